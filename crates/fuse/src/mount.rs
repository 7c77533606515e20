//! Mounting and unmounting.
//!
//! Root mounts with mount(2): an image as `fuse`, a block device as `fuseblk`. For `fuseblk` the kernel sends SYNCFS
//! (sync(2) reaches the volume) and DESTROY (umount(2) returns after the volume is closed). Other users mount through
//! fusermount3, the set-user-ID helper of libfuse.

mod covered;
mod gone;
mod helper;
mod kernel;
mod remount;
mod serve;
mod succession;
mod sync;
mod table;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{MountFlags as RawFlags, UnmountFlags};
use steadfs_vfs::{FileSystem, FsError};

pub use gone::is_server_gone;
pub use kernel::KernelMount;
pub use serve::{Mounter, Served, prepare_rings, serve, uring_hint};
pub use succession::{Inheritance, Legacy, serve_on};
pub use sync::{FileId, SyncError, Synced};
pub use table::MountEntry;

use crate::error::MountError;
use crate::owner::{Classifier, Owners};
use crate::stats::Stats;
use table::Hidden;
pub(crate) use table::proc_fd_path;

/// How long an unmount is repeated while the mount is busy.
const BUSY_PATIENCE: Duration = Duration::from_millis(250);
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// Longest read or write in bytes.
const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// How requests arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Through io_uring if the kernel allows it, otherwise through `/dev/fuse`.
    #[default]
    Auto,
    /// Through io_uring, or the mount fails.
    Uring,
    /// Through `/dev/fuse`.
    Dev,
}

/// A block device to be mounted as `fuseblk`.
#[derive(Clone, Debug)]
pub struct BlockDevice {
    /// The device. The kernel opens it exclusively: the server must not hold it with O_EXCL.
    pub path: PathBuf,
    /// The volume's block size in bytes (the kernel gets at most the page size).
    pub block_size: u32,
}

/// Flags of the mount that the kernel enforces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountFlags {
    /// `ro`.
    pub read_only: bool,
    /// `nosuid`.
    pub nosuid: bool,
    /// `nodev`.
    pub nodev: bool,
    /// `noexec`.
    pub noexec: bool,
    /// `noatime` (shown in /proc/mounts; the volume maintains access times, not the kernel).
    pub noatime: bool,
    /// `nodiratime` (likewise).
    pub nodiratime: bool,
    /// `sync`.
    pub sync: bool,
    /// `dirsync`.
    pub dirsync: bool,
}

impl MountFlags {
    /// With the bits of mount(2) and the option names of fusermount3.
    fn list(self) -> [(bool, RawFlags, &'static str); 8] {
        [
            (self.read_only, RawFlags::RDONLY, "ro"),
            (self.nosuid, RawFlags::NOSUID, "nosuid"),
            (self.nodev, RawFlags::NODEV, "nodev"),
            (self.noexec, RawFlags::NOEXEC, "noexec"),
            (self.noatime, RawFlags::NOATIME, "noatime"),
            (self.nodiratime, RawFlags::NODIRATIME, "nodiratime"),
            (self.sync, RawFlags::SYNCHRONOUS, "sync"),
            (self.dirsync, RawFlags::DIRSYNC, "dirsync"),
        ]
    }

    /// The bits of mount(2).
    pub(crate) fn raw(self) -> RawFlags {
        self.list()
            .into_iter()
            .filter(|(on, ..)| *on)
            .fold(RawFlags::empty(), |set, (_, flag, _)| set | flag)
    }
}

/// How to mount.
#[derive(Clone)]
pub struct MountOptions {
    /// Source in /proc/mounts: usually the path of the image.
    pub source: String,
    /// Type in /proc/mounts, after `fuse.`.
    pub subtype: String,
    /// Mount as `fuseblk` on this device (root only).
    pub block_device: Option<BlockDevice>,
    /// The image file that is served, if it is one; reported to `umount`, which waits until the server has closed it.
    pub image: Option<FileId>,
    /// Flags that the kernel enforces.
    pub flags: MountFlags,
    /// Whether users other than the mounting one have access.
    pub allow_other: bool,
    /// Whether POSIX ACLs are checked.
    pub posix_acl: bool,
    /// The kernel checks no permissions, every caller has root's, and this user and group own what callers create. Never with
    /// `allow_other`.
    pub fakeroot: Option<(u32, u32)>,
    /// How requests arrive.
    pub transport: Transport,
    /// How long the kernel may cache names.
    pub entry_timeout: Duration,
    /// How long the kernel may cache negative entries.
    pub negative_timeout: Duration,
    /// How long the kernel may cache attributes.
    pub attr_timeout: Duration,
    /// Largest read or write in bytes: at least one page of the kernel, at most 1 MiB.
    pub max_request: u32,
    /// The kernel's read-ahead window in KiB (root only).
    pub read_ahead_kib: u32,
    /// Approximate number of requests in service at a time; others are queued (`admission`). The classic transport
    /// creates threads on demand, io_uring distributes this many over the CPUs at the start.
    pub max_threads: usize,
    /// Whether calls are recorded, so that another server can continue the mount if this one is killed.
    pub takeover: bool,
    /// Finds the owner of a request's I/O.
    pub classifier: Arc<dyn Classifier>,
    /// Counters of the mount.
    pub stats: Arc<Stats>,
}

impl Default for MountOptions {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(86_400);
        Self {
            source: "steadfs".to_owned(),
            subtype: "steadfs".to_owned(),
            block_device: None,
            image: None,
            flags: MountFlags::default(),
            allow_other: true,
            posix_acl: true,
            fakeroot: None,
            transport: Transport::Auto,
            entry_timeout: DAY,
            negative_timeout: DAY,
            attr_timeout: DAY,
            max_request: REQUEST_BYTES_MAX,
            read_ahead_kib: 2048,
            max_threads: 128,
            takeover: false,
            classifier: Arc::new(Owners::default()),
            stats: Arc::default(),
        }
    }
}

impl MountOptions {
    /// The options of the kernel's FUSE, without descriptor, owner and type of the root.
    pub(crate) fn for_fuse(&self) -> String {
        let mut list = self.for_any_user();
        if let Some(block) = &self.block_device {
            list.push(format!("blksize={}", block.block_size.clamp(512, 4096)));
        }
        list.join(",")
    }

    /// Those that fusermount3 takes, too. INIT limits reads by pages, which does not bound every read of the kernel's own.
    fn for_any_user(&self) -> Vec<String> {
        let mut list = vec![format!("max_read={}", self.request_bytes(page_size()))];
        if self.fakeroot.is_none() {
            list.push("default_permissions".to_owned());
            if self.allow_other {
                list.push("allow_other".to_owned());
            }
        }
        list
    }

    /// Largest read or write: whole pages of the kernel, at least one.
    pub(crate) fn request_bytes(&self, page_size: u32) -> u32 {
        let bytes = self.max_request.clamp(page_size, REQUEST_BYTES_MAX);
        bytes / page_size * page_size
    }

    /// Source and type as /proc/mounts shows them.
    pub(crate) fn shown(&self) -> (&Path, String) {
        let (source, kind) = match &self.block_device {
            None => (Path::new(&self.source), "fuse"),
            Some(block) => (&*block.path, "fuseblk"),
        };
        (source, format!("{kind}.{}", self.subtype))
    }
}

/// A mounted volume.
///
/// Dropping it without [`Mounted::wait`] detaches the mount; the service threads exit when it is no longer in use.
pub struct Mounted {
    served: Served,
    handle: MountHandle,
    waited: bool,
}

/// Controls one mount, from any thread, and no other mount at the same path.
#[derive(Clone, Debug)]
pub struct MountHandle {
    /// As it was listed when the handle was made.
    entry: Arc<MountEntry>,
    /// Mounted through fusermount3.
    via_fusermount: bool,
}

/// How to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Fails if the volume is in use.
    IfIdle,
    /// Detach the mount from the tree now; the volume is closed when it is no longer in use.
    Detach,
    /// Detach, and fail every call that waits for a reply, as `umount -f` does. Root only.
    Abort,
}

/// Mounts `fs` on the directory `mountpoint` and serves it. Returns when the mount is usable.
///
/// # Errors
/// There is no mount.
pub fn mount(
    fs: Arc<dyn FileSystem>,
    mountpoint: &Path,
    options: MountOptions,
) -> Result<Mounted, MountError> {
    mount_by(fs, &KernelMount::new(mountpoint)?, &options)
}

/// Mounts `fs` by `kernel` and serves it. Returns when the mount is usable; until then another thread may remove it by
/// `kernel`.
///
/// # Errors
/// There is no mount.
pub fn mount_by(
    fs: Arc<dyn FileSystem>,
    kernel: &KernelMount,
    options: &MountOptions,
) -> Result<Mounted, MountError> {
    let served = serve(fs, kernel, options)?;
    Ok(Mounted {
        served,
        handle: kernel.handle().ok_or(MountError::ConnectionEnded)?,
        waited: false,
    })
}

/// The kernel's page size in bytes.
fn page_size() -> u32 {
    u32::try_from(rustix::param::page_size()).unwrap_or(REQUEST_BYTES_MAX)
}

/// Whether this user mounts and unmounts through fusermount3.
fn uses_fusermount() -> bool {
    steadfs_rt::kernel_ids().0 != 0
}

impl Mounted {
    /// A handle for other threads.
    pub fn handle(&self) -> MountHandle {
        self.handle.clone()
    }

    /// Counters of requests.
    pub fn stats(&self) -> &Stats {
        self.served.stats()
    }

    /// How requests arrive.
    pub fn transport(&self) -> Transport {
        self.served.transport()
    }

    /// The kernel's minor protocol version.
    pub fn protocol_minor(&self) -> u32 {
        self.served.protocol_minor()
    }

    /// Unmounts; [`Mounted::wait`] then returns the result of closing the volume.
    pub fn unmount(&self, how: Unmount) -> Result<(), MountError> {
        self.handle.unmount(how)
    }

    /// Waits until the connection has ended, and closes the volume ([`FileSystem::unmount`]) unless DESTROY has done
    /// so. Returns the result of closing.
    pub fn wait(mut self) -> Result<(), FsError> {
        self.waited = true;
        self.served.wait()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.waited
            && let Err(error) = self.handle.unmount(Unmount::Detach)
        {
            tracing::debug!(%error, "cannot detach a dropped mount");
        }
    }
}

impl MountHandle {
    /// A handle of a mount, whichever process serves it.
    pub fn of(entry: MountEntry) -> Self {
        Self {
            entry: Arc::new(entry),
            via_fusermount: uses_fusermount(),
        }
    }

    /// The mount point, as it was when the mount was listed.
    pub fn mountpoint(&self) -> &Path {
        &self.entry.mountpoint
    }

    /// Checks that the mount can be reached by its mount point, and so be used and unmounted.
    ///
    /// # Errors
    /// [`MountError::Covered`], [`MountError::NotMounted`], or [`MountError::Unreachable`].
    pub fn check(&self) -> Result<(), MountError> {
        self.open_root().map(drop)
    }

    /// The mount's current entry in the kernel's list.
    fn now(&self) -> Result<MountEntry, MountError> {
        let all = MountEntry::all().map_err(|error| MountError::Unreachable {
            path: self.mountpoint().to_owned(),
            cause: format!("cannot read /proc/self/mountinfo: {error}"),
        })?;
        let found = all.into_iter().find(|entry| entry.is(&self.entry));
        found.ok_or_else(|| MountError::NotMounted(self.mountpoint().to_owned()))
    }

    /// Opens the mount's root with `O_PATH`, which does not depend on mounts that later cover it. It keeps the mount in
    /// use.
    fn open_root(&self) -> Result<OwnedFd, MountError> {
        let now = self.now()?;
        now.open().map_err(|hidden| match hidden {
            Hidden::By(over) => MountError::Covered {
                path: now.mountpoint.clone(),
                over: over.map_or("another mount".to_owned(), |over| over.describe()),
            },
            Hidden::Path(errno) => MountError::Unreachable {
                path: now.mountpoint.clone(),
                cause: errno.to_string(),
            },
        })
    }

    /// Unmounts.
    ///
    /// The kernel unmounts the topmost mount of a path and has no call to unmount one below it. So a mount that is
    /// covered stays, and so does the covering one. Another mount may still appear between the check and the call.
    ///
    /// A mount is in use during each stat(2) of its root, which here may need a request to the server, and programs
    /// inspect all mounts. So a busy mount is tried again for 250 ms.
    ///
    /// # Errors
    /// [`MountError::Busy`], [`MountError::Covered`], [`MountError::NotMounted`], or [`MountError::Unmount`].
    pub fn unmount(&self, how: Unmount) -> Result<(), MountError> {
        let begun = steadfs_rt::now();
        loop {
            match self.unmount_once(how) {
                Err(MountError::Busy(_)) if begun.elapsed() < BUSY_PATIENCE => {
                    steadfs_rt::sleep(BUSY_PAUSE);
                }
                result => return result,
            }
        }
    }

    fn unmount_once(&self, how: Unmount) -> Result<(), MountError> {
        self.check()?;
        let path = self.now()?.mountpoint;
        if self.via_fusermount {
            return helper::unmount(&path, how);
        }
        let flags = match how {
            Unmount::IfIdle => UnmountFlags::NOFOLLOW,
            Unmount::Detach => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
            Unmount::Abort => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH | UnmountFlags::FORCE,
        };
        rustix::mount::unmount(&path, flags).map_err(|errno| match errno {
            Errno::BUSY => MountError::Busy(path),
            errno => MountError::Unmount {
                path,
                cause: errno.to_string(),
            },
        })
    }
}
