//! The context of a call: volume, caller and inode; and the errors with which a call can fail.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::io::Errno;
use steadfs_base::InodeNo;
use steadfs_vfs::{Cx, FileSystem, FsError};

use crate::close_result::CloseResultFile;
use crate::labels::Labels;
use crate::mount::FileId;
use crate::notify::Notifier;
use crate::owner::Classifier;
use crate::record::Recorder;
use crate::reply::{NodeIds, Timeouts, Translate};
use crate::standby::Standby;
use crate::stats::Stats;
use crate::wire;
use crate::writers::FileWriters;

/// Configuration of a session.
pub struct SessionConfig {
    /// Timeouts of names and attributes.
    pub timeouts: Timeouts,
    /// Largest read or write in bytes.
    pub max_request: u32,
    /// The kernel's page size in bytes.
    pub page_size: u32,
    /// Approximate number of admission slots.
    pub threads: usize,
    /// Whether the kernel shall check and store POSIX ACLs.
    pub posix_acl: bool,
    /// Every caller has root's permissions, and this user and group own what callers create.
    pub fakeroot: Option<(u32, u32)>,
    /// The image file that is served, if it is one.
    pub image: Option<FileId>,
    /// Whether to negotiate io_uring.
    pub uring: bool,
    /// Finds the owner of a request's I/O.
    pub classifier: Arc<dyn Classifier>,
    /// Counters of the mount.
    pub stats: Arc<Stats>,
}

impl SessionConfig {
    /// Pages of the largest read or write. The kernel counts its own pages, of 4 to 64 KiB.
    pub(crate) fn max_pages(&self) -> u32 {
        (self.max_request / self.page_size).max(1)
    }

    /// Smallest payload of a ring entry that the kernel accepts.
    #[cfg_attr(
        not(feature = "io-uring"),
        allow(dead_code, reason = "there are no rings")
    )]
    pub(crate) fn payload_bytes(&self) -> usize {
        /// FUSE_MIN_READ_BUFFER.
        const PAYLOAD_BYTES_MIN: u32 = 8192;
        let largest = self.max_request.max(self.max_pages() * self.page_size);
        largest.max(PAYLOAD_BYTES_MIN) as usize
    }
}

/// What every call of a mount needs.
pub(crate) struct Volume {
    pub fs: Arc<dyn FileSystem>,
    pub translate: Translate,
    pub config: SessionConfig,
    pub labels: Labels,
    /// Files that are open for writing, if every OPEN comes here.
    pub writers: FileWriters,
    /// The memfd through which `umount` learns how the volume was closed.
    pub close_result: Option<CloseResultFile>,
    /// Sends invalidations to the kernel; set once the volume is mounted.
    notifier: OnceLock<Arc<Notifier>>,
    /// If a successor could continue the mount.
    standby: OnceLock<Standby>,
    /// With `takeover=on`.
    recorder: OnceLock<Arc<Recorder>>,
}

impl Volume {
    pub fn new(fs: Arc<dyn FileSystem>, config: SessionConfig) -> Self {
        let translate = Translate {
            ids: NodeIds::new(fs.root()),
            timeouts: config.timeouts,
        };
        Self {
            labels: Labels::of(&*fs),
            writers: FileWriters::default(),
            close_result: CloseResultFile::new(),
            fs,
            translate,
            config,
            notifier: OnceLock::new(),
            standby: OnceLock::new(),
            recorder: OnceLock::new(),
        }
    }

    /// Enables invalidations.
    pub fn set_notifier(&self, notifier: Notifier) {
        if self.notifier.set(Arc::new(notifier)).is_err() {
            unreachable!("a volume is mounted once");
        }
    }

    /// Records all calls from now on; to be called before the first one.
    pub fn record_by(&self, recorder: Arc<Recorder>) {
        if self.recorder.set(recorder).is_err() {
            unreachable!("a volume is mounted once");
        }
    }

    /// What records calls.
    pub fn recorder(&self) -> Option<&Arc<Recorder>> {
        self.recorder.get()
    }

    /// A reply adds to an inode's lookup count.
    pub fn counted(&self, ino: InodeNo) {
        if let Some(recorder) = self.recorder.get() {
            recorder.counted(ino);
        }
    }

    /// Drops lookups of an inode.
    pub fn forget(&self, ino: InodeNo, count: u64) {
        if let Some(recorder) = self.recorder.get() {
            recorder.forgotten(ino, count);
        }
        self.fs.forget(ino, count);
    }

    /// A successor could continue the mount if this server ended.
    pub fn stand_by(&self, standby: Standby) {
        standby.update(&*self.fs);
        if self.standby.set(standby).is_err() {
            unreachable!("a volume is mounted once");
        }
    }

    /// Whether the mount is known to have been read-only since it was made.
    pub fn only_read(&self) -> bool {
        self.standby.get().is_some_and(Standby::only_read)
    }

    /// The options of this list are about to take effect.
    pub fn will_remount(&self, list: &str) {
        if let Some(standby) = self.standby.get() {
            standby.will_remount(list);
        }
    }

    /// A control file is about to be written, perhaps with options that make the volume writable.
    pub fn may_become_writable(&self) {
        if let Some(standby) = self.standby.get() {
            standby.may_become_writable();
        }
    }

    /// Options have changed.
    pub fn is_remounted(&self) {
        if let Some(standby) = self.standby.get() {
            standby.update(&*self.fs);
        }
    }

    /// Records that a call changed attributes of `ino` which the kernel does not fetch again after such a call.
    pub fn attributes_changed(&self, ino: InodeNo) {
        if let Some(notifier) = self.notifier.get() {
            notifier.attributes_changed(self.translate.ids.node(ino));
        }
    }

    /// Records that bytes of `ino` are about to be read into the kernel's page cache.
    pub fn will_be_cached(&self, ino: InodeNo) {
        if let Some(notifier) = self.notifier.get() {
            notifier.is_cached(self.translate.ids.node(ino));
        }
    }

    /// Records that bytes of `ino` are about to be written, from the kernel's page cache or (`bypass`) directly.
    pub fn will_be_written(&self, ino: InodeNo, bypass: bool) {
        if let Some(notifier) = self.notifier.get() {
            let node = self.translate.ids.node(ino);
            if bypass {
                notifier.bypasses_cache(node);
            } else {
                notifier.is_written(node);
            }
        }
    }

    /// Content of `ino` that the kernel may have cached is not that of the file any more.
    pub fn content_dropped(&self, ino: InodeNo) -> bool {
        let node = self.translate.ids.node(ino);
        let notifier = self.notifier.get();
        notifier.is_none_or(|notifier| notifier.content_dropped(node))
    }

    /// Has the kernel drop what it has of the listings of directories.
    pub(crate) fn listings_dropped(&self, dirs: &BTreeSet<InodeNo>) {
        if let Some(notifier) = self.notifier.get() {
            for dir in dirs {
                notifier.listing_dropped(self.translate.ids.node(*dir));
            }
        }
    }

    /// Waits until the kernel has been notified of all that calls have changed; returns whether that is so in time. No call is
    /// in service.
    pub(crate) fn settle_notifications(&self, wait_max: Duration) -> bool {
        let notifier = self.notifier.get();
        notifier.is_none_or(|notifier| notifier.settle(wait_max))
    }

    /// Records that bytes of `ino` were written directly.
    pub fn pages_changed(&self, ino: InodeNo, bytes: Range<u64>) {
        if let Some(notifier) = self.notifier.get() {
            notifier.pages_changed(self.translate.ids.node(ino), bytes);
        }
    }
}

/// Why a call fails: an error of the volume, or one of this crate.
pub(crate) enum CallError {
    /// From the volume.
    Fs(FsError),
    /// From this crate.
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

/// One call in service.
pub(crate) struct Call<'a> {
    pub volume: &'a Volume,
    pub header: &'a wire::InHeader,
    pub ino: InodeNo,
    pub cx: Cx,
}
