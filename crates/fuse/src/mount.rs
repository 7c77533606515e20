//! Mounting and unmounting.
//!
//! Root mounts with mount(2): an image as `fuse`, a block device as `fuseblk`. For `fuseblk` the kernel sends SYNCFS
//! (sync(2) reaches the volume) and DESTROY (umount(2) returns after the volume is closed). Other users mount through
//! fusermount3, the set-user-ID helper of libfuse.

mod covered;
mod helper;
mod remount;
mod sync;
mod table;

use std::ffi::CString;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{MountFlags as RawFlags, UnmountFlags};
use steadfs_vfs::{FileSystem, FsError};

pub use sync::{FileId, SyncError, Synced};
pub use table::MountEntry;

use crate::admission::max_in_service;
use crate::call::SessionConfig;
use crate::error::MountError;
use crate::notify::Notifier;
use crate::owner::{Classifier, Owners};
use crate::reply::Timeouts;
use crate::session::{Negotiated, Session};
use crate::stats::Stats;
use crate::sys;
use crate::transport::MountThreads;
use crate::transport::dev::DevPool;
use crate::transport::uring::{UringPool, queue_count, refusal};
use table::Hidden;

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

    fn raw(self) -> RawFlags {
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
    /// How requests arrive.
    pub transport: Transport,
    /// How long the kernel may cache names.
    pub entry_timeout: Duration,
    /// How long the kernel may cache negative entries.
    pub negative_timeout: Duration,
    /// How long the kernel may cache attributes.
    pub attr_timeout: Duration,
    /// Largest read or write in bytes, a multiple of 4096 up to 1 MiB.
    pub max_request: u32,
    /// The kernel's read-ahead window in KiB (root only).
    pub read_ahead_kib: u32,
    /// Approximate number of requests in service at a time; others are queued (`admission`). The classic transport
    /// creates threads on demand, io_uring distributes this many over the CPUs at the start.
    pub max_threads: usize,
    /// Finds the owner of a request's I/O.
    pub classifier: Arc<dyn Classifier>,
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
            transport: Transport::Auto,
            entry_timeout: DAY,
            negative_timeout: DAY,
            attr_timeout: DAY,
            max_request: 1 << 20,
            read_ahead_kib: 2048,
            max_threads: 128,
            classifier: Arc::new(Owners::default()),
        }
    }
}

impl MountOptions {
    /// Source and type as /proc/mounts shows them.
    fn shown(&self) -> (&Path, String) {
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
    mount_threads: Arc<MountThreads>,
    negotiated: Negotiated,
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
pub fn mount(
    fs: Arc<dyn FileSystem>,
    mountpoint: &Path,
    options: MountOptions,
) -> Result<Mounted, MountError> {
    let mountpoint = check_mountpoint(mountpoint)?;
    if let Some(queues) = uring_queues(options.transport)? {
        match mount_with(fs.clone(), &mountpoint, &options, Some(queues)) {
            // No request has arrived yet: the volume is unchanged.
            Err(MountError::Uring(cause)) if options.transport == Transport::Auto => {
                tracing::warn!(%cause, "FUSE over io_uring is not available; using /dev/fuse");
            }
            result => return result,
        }
    }
    mount_with(fs, &mountpoint, &options, None)
}

/// Mounts with `queues` queues of io_uring, or through the device.
fn mount_with(
    fs: Arc<dyn FileSystem>,
    mountpoint: &Path,
    options: &MountOptions,
    queues: Option<u16>,
) -> Result<Mounted, MountError> {
    // Checks that mounts can be listed: a mount that is not found in the list could not be unmounted either.
    all_mounts(mountpoint)?;
    let spare = spare_descriptors(mountpoint)?;
    let device = if uses_fusermount() {
        helper::mount(mountpoint, options)?
    } else {
        mount_as_root(mountpoint, options)?
    };
    drop(spare);
    let handle = MountHandle::of(new_entry(mountpoint, options)?);
    let session = Session::new(
        fs,
        SessionConfig {
            timeouts: Timeouts {
                entry: options.entry_timeout,
                negative: options.negative_timeout,
                attr: options.attr_timeout,
            },
            max_request: options.max_request.clamp(4096, 1 << 20) & !4095,
            threads: options.max_threads,
            posix_acl: options.posix_acl,
            image: options.image,
            uring: queues.is_some(),
            classifier: options.classifier.clone(),
        },
    );
    let mount_threads = MountThreads::new(Arc::new(session));
    let served = spare_descriptors(mountpoint).and_then(|spare| {
        let served = serve(&mount_threads, device, options, queues);
        drop(spare);
        served
    });
    match served {
        Ok(negotiated) => {
            set_read_ahead(&handle.entry.device, options.read_ahead_kib);
            Ok(Mounted {
                mount_threads,
                negotiated,
                handle,
                waited: false,
            })
        }
        Err(error) => {
            // The mount is unusable: detach it, so that the threads exit.
            if let Err(error) = handle.unmount(Unmount::Detach) {
                tracing::error!(%error, "cannot detach a mount that failed");
            }
            mount_threads.wait();
            Err(error)
        }
    }
}

/// Starts the service threads and waits until the mount is usable.
fn serve(
    mount_threads: &Arc<MountThreads>,
    device: OwnedFd,
    options: &MountOptions,
    queues: Option<u16>,
) -> Result<Negotiated, MountError> {
    let device = Arc::new(device);
    mount_threads
        .session
        .volume
        .set_notifier(Notifier::new(device.clone()));
    // With io_uring few requests come through the device: one thread is enough to begin with.
    let cpus = steadfs_rt::cpu::allowed_cpus();
    let readers = if queues.is_some() {
        1
    } else {
        cpus.clamp(1, 8)
    };
    let threads_max = max_in_service(options.max_threads) + readers;
    DevPool::start(mount_threads, device.clone(), readers, threads_max)
        .map_err(|error| MountError::Threads(FsError::no_thread(error)))?;
    let negotiated = mount_threads.session.wait_negotiated()?;
    if let (true, Some(queues)) = (negotiated.uring, queues) {
        UringPool::start(mount_threads, device, queues, options.max_threads)?;
    }
    Ok(negotiated)
}

/// The directory's absolute path without symbolic links, as mount(2) and /proc/mounts have it.
fn check_mountpoint(path: &Path) -> Result<PathBuf, MountError> {
    let fail = |cause: String| MountError::Mountpoint {
        path: path.to_owned(),
        cause,
    };
    let real = path.canonicalize().map_err(|e| fail(e.to_string()))?;
    match real.metadata() {
        Ok(found) if found.is_dir() => Ok(real),
        Ok(_) => Err(fail("not a directory".to_owned())),
        Err(error) if error.kind() == ErrorKind::NotConnected => Err(fail(
            "the server of the volume mounted there is gone; unmount it first".to_owned(),
        )),
        Err(error) => Err(fail(error.to_string())),
    }
}

fn mount_as_root(mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let fail = |cause: String| MountError::Mount {
        path: mountpoint.to_owned(),
        cause,
    };
    let device = sys::open_device().map_err(|e| MountError::Device(e.to_string()))?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions",
        device.as_raw_fd()
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    if let Some(block) = &options.block_device {
        data.push_str(&format!(",blksize={}", block.block_size.clamp(512, 4096)));
    }
    let (source, kind) = options.shown();
    let data = CString::new(data).map_err(|e| fail(e.to_string()))?;
    rustix::mount::mount(source, mountpoint, kind, options.flags.raw(), &*data).map_err(
        |errno| {
            let hint = match errno {
                Errno::BUSY if options.block_device.is_some() => {
                    " (the device is mounted or opened exclusively by another program)"
                }
                Errno::PERM => " (mounting requires CAP_SYS_ADMIN here)",
                Errno::NODEV => " (the kernel does not support this type of FUSE mount)",
                _ => "",
            };
            fail(format!("{errno}{hint}"))
        },
    )?;
    Ok(device)
}

/// Descriptors held while others are opened, so that enough are left to find the mount and unmount it if that fails.
fn spare_descriptors(mountpoint: &Path) -> Result<[File; 3], MountError> {
    let none_left = |error| MountError::Mount {
        path: mountpoint.to_owned(),
        cause: format!("cannot open /dev/null: {error} (see ulimit -n)"),
    };
    let open = || File::open("/dev/null").map_err(none_left);
    Ok([open()?, open()?, open()?])
}

/// All mounts; an error names `mountpoint`.
fn all_mounts(mountpoint: &Path) -> Result<Vec<MountEntry>, MountError> {
    MountEntry::all().map_err(|error| MountError::Mount {
        path: mountpoint.to_owned(),
        cause: format!("cannot read /proc/self/mountinfo: {error}"),
    })
}

/// The mount that was just made. Makes no call that needs its server, which does not serve yet.
fn new_entry(mountpoint: &Path, options: &MountOptions) -> Result<MountEntry, MountError> {
    let (source, kind) = options.shown();
    let mut newest = all_mounts(mountpoint)?.into_iter().rev();
    let found = newest.find(|entry| {
        entry.mountpoint == mountpoint && entry.source == source && entry.kind == kind
    });
    found.ok_or_else(|| MountError::Mount {
        path: mountpoint.to_owned(),
        cause: "it is not in /proc/self/mountinfo; another program may have unmounted it"
            .to_owned(),
    })
}

/// Raises the mount's read-ahead; INIT cannot raise it beyond the kernel's default.
fn set_read_ahead(device: &str, kib: u32) {
    for suffix in ["", "-fuseblk"] {
        let file = format!("/sys/class/bdi/{device}{suffix}/read_ahead_kb");
        if let Err(error) = std::fs::write(&file, kib.to_string()) {
            tracing::debug!(file, %error, "cannot set the read-ahead window");
        }
    }
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
        self.mount_threads.session.stats()
    }

    /// How requests arrive.
    pub fn transport(&self) -> Transport {
        if self.negotiated.uring {
            Transport::Uring
        } else {
            Transport::Dev
        }
    }

    /// The kernel's minor protocol version.
    pub fn protocol_minor(&self) -> u32 {
        self.negotiated.minor
    }

    /// Unmounts; [`Mounted::wait`] then returns the result of closing the volume.
    pub fn unmount(&self, how: Unmount) -> Result<(), MountError> {
        self.handle.unmount(how)
    }

    /// Waits until the connection has ended, and closes the volume ([`FileSystem::unmount`]) unless DESTROY has done
    /// so. Returns the result of closing.
    pub fn wait(mut self) -> Result<(), FsError> {
        self.waited = true;
        self.mount_threads.wait();
        self.mount_threads.session.close_volume()
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
    /// # Errors
    /// [`MountError::Busy`], [`MountError::Covered`], [`MountError::NotMounted`], or [`MountError::Unmount`].
    pub fn unmount(&self, how: Unmount) -> Result<(), MountError> {
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

/// The kernel's switch for FUSE over io_uring.
const URING_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// If FUSE over io_uring is available but switched off, one line that says how to switch it on.
pub fn uring_hint() -> Option<String> {
    let state = std::fs::read_to_string(URING_SWITCH).ok()?;
    (state.trim() != "Y").then(|| {
        format!(
            "FUSE over io_uring is switched off; `echo Y > {URING_SWITCH}` (as root) makes mounts \
             faster"
        )
    })
}

/// Number of io_uring queues to serve; `None` for the classic transport.
fn uring_queues(transport: Transport) -> Result<Option<u16>, MountError> {
    if transport == Transport::Dev {
        return Ok(None);
    }
    let state = std::fs::read_to_string(URING_SWITCH).unwrap_or_default();
    let cause = match (queue_count(), refusal()) {
        (_, Some(refusal)) => format!("io_uring is not available: {refusal}"),
        (Some(queues), None) if state.trim() == "Y" => return Ok(Some(queues)),
        _ if state.is_empty() => {
            "the kernel has no FUSE over io_uring (Linux 6.14 or newer has)".to_owned()
        }
        (None, _) => "the number of CPUs is unknown".to_owned(),
        (Some(_), _) => uring_hint().unwrap_or_default(),
    };
    match transport {
        Transport::Uring => Err(MountError::Uring(cause)),
        _ => Ok(None),
    }
}
