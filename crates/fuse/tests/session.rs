//! A session without a kernel: what it agrees on and what it answers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_fuse::reply::{Answer, ReplyBuf, Timeouts};
use steadfs_fuse::request::RawRequest;
use steadfs_fuse::session::{Session, SessionConfig};
use steadfs_fuse::wire::{self, InHeader, InitIn, opcode as op};
use steadfs_fuse::{Classifier, MountOptions};
use steadfs_vfs::{Cx, FileSystem};
use zerocopy::{FromBytes, IntoBytes};

use common::MemFs;

struct OneOwner;

impl Classifier for OneOwner {
    fn tag(&self, _pid: u32) -> IoTag {
        IoTag::default()
    }
}

fn session(fs: Arc<MemFs>, max_request: u32, page_size: u32) -> Session {
    let config = SessionConfig {
        timeouts: Timeouts {
            entry: Duration::ZERO,
            negative: Duration::ZERO,
            attr: Duration::ZERO,
        },
        max_request,
        page_size,
        threads: 4,
        posix_acl: true,
        fakeroot: None,
        image: None,
        uring: false,
        classifier: Arc::new(OneOwner),
        stats: MountOptions::default().stats,
    };
    Session::new(fs, config)
}

fn send(session: &Session, opcode: u32, node: u64, body: &[u8]) -> (Answer, ReplyBuf) {
    let header = InHeader {
        len: (size_of::<InHeader>() + body.len()) as u32,
        opcode,
        unique: 2,
        nodeid: node,
        ..InHeader::default()
    };
    let message = [header.as_bytes(), body].concat();
    let mut out = session.reply_buf();
    let answer = session.serve(RawRequest::from_message(&message).unwrap(), &mut out);
    (answer, out)
}

/// The kernel multiplies `max_pages` by its own page size. It takes a short reply to a longer read for the end of the
/// file.
#[test]
fn no_page_size_makes_requests_longer_than_the_largest() {
    for max_request in [4096, 128 << 10, 1 << 20] {
        for page_size in [4096, 16 << 10, 64 << 10] {
            let session = session(Arc::new(MemFs::new()), max_request, page_size);
            let init = InitIn {
                major: wire::MAJOR,
                minor: wire::MINOR,
                flags: u32::MAX,
                flags2: u32::MAX,
                ..InitIn::default()
            };
            let (answer, out) = send(&session, op::INIT, 0, init.as_bytes());
            assert_eq!(answer, Answer::Done);
            let (reply, _) = wire::InitOut::read_from_prefix(&out.bytes).unwrap();
            let bytes = u32::from(reply.max_pages) * page_size;
            assert_eq!(bytes, max_request.max(page_size), "pages of {page_size}");
        }
    }
}

#[test]
fn a_read_is_not_cut_before_the_end_of_the_file() {
    let fs = Arc::new(MemFs::new());
    let cx = Cx::default();
    let file = fs.mknod(&cx, fs.root(), b"f", 0o100_644, 0).unwrap().ino;
    let size: u64 = 17 << 20;
    for piece in 0..17 {
        fs.write(&cx, file, piece << 20, &[7; 1 << 20], false)
            .unwrap();
    }
    let session = session(Arc::clone(&fs), 1 << 20, 4096);
    let read = |offset, size| {
        let arg = wire::ReadIn {
            offset,
            size,
            ..Default::default()
        };
        let (answer, out) = send(&session, op::READ, file.0, arg.as_bytes());
        (answer, out.len())
    };
    assert_eq!(read(0, 2 << 20), (Answer::Done, 2 << 20));
    assert_eq!(read(size - 10, u32::MAX), (Answer::Done, 10));
    // Longer than any kernel asks for.
    let (answer, _) = read(0, u32::MAX);
    assert!(matches!(answer, Answer::Error(_)), "{answer:?}");
}
