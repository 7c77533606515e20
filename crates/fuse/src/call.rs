//! What serving a call knows: the volume, who calls, on which inode; and how a call may end.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use steadfs_base::InodeNo;
use steadfs_vfs::{Cx, FileSystem, FsError};

use crate::close_result::CloseResultFile;
use crate::labels::Labels;
use crate::mount::FileId;
use crate::notify::Notifier;
use crate::owner::Classifier;
use crate::reply::{NodeIds, Timeouts, Translate};
use crate::wire;

/// What a session is told at its start.
pub struct SessionConfig {
    /// Timeouts of names and attributes.
    pub timeouts: Timeouts,
    /// Largest read or write in bytes.
    pub max_request: u32,
    /// For how many requests there are slots, about.
    pub threads: usize,
    /// Whether the kernel shall check and store POSIX ACLs.
    pub posix_acl: bool,
    /// The image file that is served, if it is one.
    pub image: Option<FileId>,
    /// Whether to ask for requests through io_uring.
    pub uring: bool,
    /// Who is behind a process.
    pub classifier: Arc<dyn Classifier>,
}

/// What every call of a mount needs.
pub(crate) struct Volume {
    pub fs: Arc<dyn FileSystem>,
    pub translate: Translate,
    pub config: SessionConfig,
    pub labels: Labels,
    /// The memfd through which `umount` learns how the volume was closed.
    pub close_result: Option<CloseResultFile>,
    /// How the kernel is told what it did not ask for, once it is mounted.
    notifier: OnceLock<Arc<Notifier>>,
}

impl Volume {
    pub fn new(fs: Arc<dyn FileSystem>, config: SessionConfig) -> Self {
        let translate = Translate {
            ids: NodeIds::new(fs.root()),
            timeouts: config.timeouts,
        };
        Self {
            labels: Labels::of(&*fs),
            close_result: CloseResultFile::new(),
            fs,
            translate,
            config,
            notifier: OnceLock::new(),
        }
    }

    /// From now on the kernel can be told of changes.
    pub fn set_notifier(&self, notifier: Notifier) {
        if self.notifier.set(Arc::new(notifier)).is_err() {
            unreachable!("a volume is mounted once");
        }
    }

    /// A call changed attributes of `ino` that the kernel does not ask for again after such a call.
    pub fn attributes_changed(&self, ino: InodeNo) {
        if let Some(notifier) = self.notifier.get() {
            notifier.attributes_changed(self.translate.ids.node(ino));
        }
    }

    /// Bytes of `ino` are about to be read into the kernel's page cache.
    pub fn will_be_cached(&self, ino: InodeNo) {
        if let Some(notifier) = self.notifier.get() {
            notifier.is_cached(self.translate.ids.node(ino));
        }
    }

    /// Bytes of `ino` are about to be written, around the kernel's page cache or out of it.
    pub fn will_be_written(&self, ino: InodeNo, around: bool) {
        if let Some(notifier) = self.notifier.get() {
            let node = self.translate.ids.node(ino);
            if around {
                notifier.goes_around(node);
            } else {
                notifier.is_written(node);
            }
        }
    }

    /// Bytes of `ino` were written around the kernel's page cache.
    pub fn pages_changed(&self, ino: InodeNo, bytes: Range<u64>) {
        if let Some(notifier) = self.notifier.get() {
            notifier.pages_changed(self.translate.ids.node(ino), bytes);
        }
    }
}

/// What stops an operation: the volume's error, or a refusal of our own.
pub(crate) enum CallError {
    /// The volume's error.
    Fs(FsError),
    /// A refusal by number.
    Errno(Errno),
}

impl From<FsError> for CallError {
    fn from(error: FsError) -> Self {
        Self::Fs(error)
    }
}

impl From<Errno> for CallError {
    fn from(error: Errno) -> Self {
        Self::Errno(error)
    }
}

pub(crate) type Outcome<T = ()> = Result<T, CallError>;

/// One call on its way.
pub(crate) struct Call<'a> {
    pub volume: &'a Volume,
    pub header: &'a wire::InHeader,
    pub ino: InodeNo,
    pub cx: Cx,
}
