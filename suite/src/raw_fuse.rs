//! A client of the FUSE protocol without a kernel: sends requests of any shape to a volume's session.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_fuse::Classifier;
use steadfs_fuse::reply::{Answer, ReplyBuf, Timeouts};
use steadfs_fuse::request::{DecodeError, RawRequest};
use steadfs_fuse::session::{Session, SessionConfig};
use steadfs_fuse::wire::{self, InHeader, InitIn, opcode as op};
use steadfs_vfs::{FileSystem, FsError, WithControl};
use zerocopy::IntoBytes;

/// Size of a request's header.
pub const HEADER: usize = size_of::<InHeader>();
/// Largest read or write of a session in bytes.
pub const REQUEST_BYTES_MAX: u32 = 128 << 10;

struct RootGroup;

impl Classifier for RootGroup {
    fn tag(&self, _pid: u32) -> IoTag {
        IoTag::default()
    }
}

/// A connection to a volume and its control files.
pub struct RawClient {
    session: Session,
    /// The last reply.
    pub out: ReplyBuf,
}

impl RawClient {
    /// Connects, and sends INIT with all features.
    pub fn connect(fs: Arc<dyn FileSystem>) -> Self {
        let long = Duration::from_secs(86_400);
        let config = SessionConfig {
            timeouts: Timeouts {
                entry: long,
                negative: long,
                attr: long,
            },
            max_request: REQUEST_BYTES_MAX,
            page_size: 4096,
            threads: 4,
            posix_acl: true,
            fakeroot: None,
            image: None,
            uring: false,
            classifier: Arc::new(RootGroup),
            stats: Arc::default(),
        };
        let session = Session::new(Arc::new(WithControl::new(fs)), config);
        let mut client = Self {
            out: session.reply_buf(),
            session,
        };
        let init = InitIn {
            major: wire::MAJOR,
            minor: wire::MINOR,
            flags: u32::MAX,
            flags2: u32::MAX,
            ..InitIn::default()
        };
        let answer = client.send(op::INIT, 0, init.as_bytes());
        assert_eq!(answer, Answer::Done, "INIT");
        client
    }

    /// Sends a request of root's, whose body follows the header.
    ///
    /// # Panics
    /// If a message whose length is right is refused.
    pub fn send(&mut self, opcode: u32, node: u64, body: &[u8]) -> Answer {
        let header = InHeader {
            len: u32::try_from(HEADER + body.len()).expect("a short request"),
            opcode,
            unique: 2,
            nodeid: node,
            pid: std::process::id(),
            ..InHeader::default()
        };
        self.message(&[header.as_bytes(), body].concat())
            .expect("a message of the right length is taken")
    }

    /// Sends a message as `/dev/fuse` would deliver it.
    ///
    /// # Errors
    /// It has no header, or one with another length.
    pub fn message(&mut self, message: &[u8]) -> Result<Answer, DecodeError> {
        let raw = RawRequest::from_message(message)?;
        Ok(self.session.serve(raw, &mut self.out))
    }

    /// The node in the last reply, if it holds one.
    pub fn node(&self) -> Option<u64> {
        let id = self.out.bytes.get(..8)?;
        Some(u64::from_le_bytes(id.try_into().expect("eight bytes"))).filter(|id| *id != 0)
    }

    /// Sends DESTROY, and returns the result of closing the volume.
    ///
    /// # Errors
    /// What the volume could not write.
    pub fn close(mut self) -> Result<(), FsError> {
        self.send(op::DESTROY, 0, &[]);
        self.session.close_volume()
    }
}
