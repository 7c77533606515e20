//! Mounting and unmounting.
//!
//! Root mounts with mount(2): an image as `fuse`, a block device as `fuseblk`, for which the kernel
//! sends SYNCFS (sync(2) reaches the volume) and DESTROY (umount(2) returns when the volume is
//! closed). Everybody else goes through fusermount3, the set-user-ID helper of libfuse.

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

use crate::admission::most_in_service;
use crate::call::SessionConfig;
use crate::error::MountError;
use crate::notify::Notifier;
use crate::owner::{Classifier, Owners};
use crate::reply::Timeouts;
use crate::session::{Negotiated, Session};
use crate::stats::Stats;
use crate::sys;
use crate::transport::Crew;
use crate::transport::dev::DevPool;
use crate::transport::uring::{UringPool, queue_count, refusal};
use table::Hidden;

/// How requests shall arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Through io_uring where the kernel allows it, through `/dev/fuse` otherwise.
    #[default]
    Auto,
    /// Through io_uring, or the mount fails.
    Uring,
    /// Through `/dev/fuse`.
    Dev,
}

/// A block device that is mounted as such.
#[derive(Clone, Debug)]
pub struct BlockDevice {
    /// The device. The kernel opens it for itself alone: whoever serves the volume must not hold it
    /// with O_EXCL.
    pub path: PathBuf,
    /// The volume's block size in bytes (the kernel is told at most a page).
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
    /// `noatime` (shown in /proc/mounts; access times are kept by the volume, not the kernel).
    pub noatime: bool,
    /// `nodiratime` (likewise).
    pub nodiratime: bool,
    /// `sync`.
    pub sync: bool,
    /// `dirsync`.
    pub dirsync: bool,
}

impl MountFlags {
    /// With the bits of mount(2) and the words of fusermount3.
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
    /// What /proc/mounts shows as the source: the image's path, usually.
    pub source: String,
    /// What /proc/mounts shows behind `fuse.` as the type.
    pub subtype: String,
    /// Mount as `fuseblk` on this device (only root can).
    pub block_device: Option<BlockDevice>,
    /// The image file that is served, if it is one: whoever waits for its end is told.
    pub image: Option<FileId>,
    /// Flags that the kernel enforces.
    pub flags: MountFlags,
    /// Whether users other than the mounting one may enter.
    pub allow_other: bool,
    /// Whether POSIX ACLs are checked.
    pub posix_acl: bool,
    /// How requests arrive.
    pub transport: Transport,
    /// How long names are valid in the kernel.
    pub entry_timeout: Duration,
    /// How long missing names are valid in the kernel.
    pub negative_timeout: Duration,
    /// How long attributes are valid in the kernel.
    pub attr_timeout: Duration,
    /// Largest read or write in bytes, a multiple of 4096 up to 1 MiB.
    pub max_request: u32,
    /// How far the kernel reads ahead in a file, in KiB (only root can set it).
    pub read_ahead_kib: u32,
    /// How many requests are served at one time, about; others are queued (`admission`). The classic transport
    /// starts threads when they are needed, io_uring shares so many out among the CPUs at the start.
    pub max_threads: usize,
    /// Who is behind a process.
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
    /// Source and type that the kernel lists.
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
/// Dropping it without [`Mounted::wait`] takes the mount out of the tree and lets the service
/// threads end when the last user has left.
pub struct Mounted {
    crew: Arc<Crew>,
    agreed: Negotiated,
    handle: MountHandle,
    waited: bool,
}

/// Says and does things to one mount, from any thread, and to no other that lies on the same path.
#[derive(Clone, Debug)]
pub struct MountHandle {
    /// As it was listed once.
    entry: Arc<MountEntry>,
    /// Mounted through fusermount3.
    helped: bool,
}

/// How to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Only if nobody uses the volume.
    IfIdle,
    /// Take the mount out of the tree now; the volume is closed when its last user has left.
    Detach,
    /// The same, and every call that waits for an answer fails at once, as with `umount -f`. Only root can.
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
        match attempt(fs.clone(), &mountpoint, &options, Some(queues)) {
            // No request has come yet: the volume is as it was.
            Err(MountError::Uring(cause)) if options.transport == Transport::Auto => {
                tracing::warn!(%cause, "FUSE over io_uring does not work here");
            }
            result => return result,
        }
    }
    attempt(fs, &mountpoint, &options, None)
}

/// Mounts with requests through io_uring for `queues`, or through the device.
fn attempt(
    fs: Arc<dyn FileSystem>,
    mountpoint: &Path,
    options: &MountOptions,
    queues: Option<u16>,
) -> Result<Mounted, MountError> {
    // A mount that is not found in the list could not be taken away either: so the list is asked before there is one.
    listed(mountpoint)?;
    let spare = spare_descriptors(mountpoint)?;
    let device = if is_helped() {
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
    let crew = Crew::new(Arc::new(session));
    let served = spare_descriptors(mountpoint).and_then(|spare| {
        let served = serve(&crew, device, options, queues);
        drop(spare);
        served
    });
    match served {
        Ok(agreed) => {
            set_read_ahead(&handle.entry.device, options.read_ahead_kib);
            Ok(Mounted {
                crew,
                agreed,
                handle,
                waited: false,
            })
        }
        Err(error) => {
            // The mount is dead; take it away and let the threads end.
            if let Err(error) = handle.unmount(Unmount::Detach) {
                tracing::error!(%error, "taking away a mount that failed");
            }
            crew.wait();
            Err(error)
        }
    }
}

/// Starts the service threads and waits until the mount is usable.
fn serve(
    crew: &Arc<Crew>,
    device: OwnedFd,
    options: &MountOptions,
    queues: Option<u16>,
) -> Result<Negotiated, MountError> {
    let device = Arc::new(device);
    crew.session
        .volume
        .set_notifier(Notifier::new(device.clone()));
    // With io_uring, few requests come through the device: a thread is enough to begin with.
    let cpus = steadfs_rt::cpu::allowed_cpus();
    let readers = if queues.is_some() {
        1
    } else {
        cpus.clamp(1, 8)
    };
    let most = most_in_service(options.max_threads) + readers;
    DevPool::start(crew, device.clone(), readers, most)
        .map_err(|error| MountError::Threads(FsError::no_thread(error)))?;
    let agreed = crew.session.wait_negotiated()?;
    if let (true, Some(queues)) = (agreed.uring, queues) {
        UringPool::start(crew, device, queues, options.max_threads)?;
    }
    Ok(agreed)
}

/// The directory's absolute path without links, as mount(2) and /proc/mounts have it.
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
            "the server of what is mounted there is gone; unmount that first".to_owned(),
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
                    " (the device is mounted or held by another program)"
                }
                Errno::PERM => " (mounting needs CAP_SYS_ADMIN here)",
                Errno::NODEV => " (this kernel has no FUSE for it)",
                _ => "",
            };
            fail(format!("{errno}{hint}"))
        },
    )?;
    Ok(device)
}

/// Held while others are taken: what finding a mount and taking it away needs, should that be all that can be done.
fn spare_descriptors(mountpoint: &Path) -> Result<[File; 3], MountError> {
    let none_left = |error| MountError::Mount {
        path: mountpoint.to_owned(),
        cause: format!("/dev/null: {error} (ulimit -n?)"),
    };
    let open = || File::open("/dev/null").map_err(none_left);
    Ok([open()?, open()?, open()?])
}

/// All mounts, for one that is made on `mountpoint`.
fn listed(mountpoint: &Path) -> Result<Vec<MountEntry>, MountError> {
    MountEntry::all().map_err(|error| MountError::Mount {
        path: mountpoint.to_owned(),
        cause: format!("/proc/self/mountinfo: {error}"),
    })
}

/// The mount that was just made. Nothing is asked that its server would answer, which does not serve yet.
fn new_entry(mountpoint: &Path, options: &MountOptions) -> Result<MountEntry, MountError> {
    let (source, kind) = options.shown();
    let mut newest = listed(mountpoint)?.into_iter().rev();
    let found = newest.find(|entry| {
        entry.mountpoint == mountpoint && entry.source == source && entry.kind == kind
    });
    found.ok_or_else(|| MountError::Mount {
        path: mountpoint.to_owned(),
        cause: "it was taken away at once".to_owned(),
    })
}

/// Raises the mount's read-ahead, which the kernel does not take from INIT beyond its default.
fn set_read_ahead(device: &str, kib: u32) {
    for suffix in ["", "-fuseblk"] {
        let file = format!("/sys/class/bdi/{device}{suffix}/read_ahead_kb");
        if let Err(error) = std::fs::write(&file, kib.to_string()) {
            tracing::debug!(file, %error, "read-ahead stays as it is");
        }
    }
}

/// Whether this user mounts and unmounts through fusermount3.
fn is_helped() -> bool {
    steadfs_rt::kernel_ids().0 != 0
}

impl Mounted {
    /// Ends the mount from another thread.
    pub fn handle(&self) -> MountHandle {
        self.handle.clone()
    }

    /// Counters of requests.
    pub fn stats(&self) -> &Stats {
        self.crew.session.stats()
    }

    /// How requests arrive.
    pub fn transport(&self) -> Transport {
        if self.agreed.uring {
            Transport::Uring
        } else {
            Transport::Dev
        }
    }

    /// The kernel's minor protocol version.
    pub fn protocol_minor(&self) -> u32 {
        self.agreed.minor
    }

    /// Unmounts; [`Mounted::wait`] then tells how the volume was closed.
    pub fn unmount(&self, how: Unmount) -> Result<(), MountError> {
        self.handle.unmount(how)
    }

    /// Waits until the kernel has let the mount go, and closes the volume
    /// ([`FileSystem::unmount`]) unless DESTROY has done so. The result is the closing's.
    pub fn wait(mut self) -> Result<(), FsError> {
        self.waited = true;
        self.crew.wait();
        self.crew.session.close_volume()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.waited
            && let Err(error) = self.handle.unmount(Unmount::Detach)
        {
            tracing::debug!(%error, "dropping a mount");
        }
    }
}

impl MountHandle {
    /// A handle of a mount that anybody serves.
    pub fn of(entry: MountEntry) -> Self {
        Self {
            entry: Arc::new(entry),
            helped: is_helped(),
        }
    }

    /// The mount point, as it was when the mount was listed.
    pub fn mountpoint(&self) -> &Path {
        &self.entry.mountpoint
    }

    /// Whether the mount can be reached by its mount point, and so be used and unmounted.
    ///
    /// # Errors
    /// [`MountError::Covered`], [`MountError::NotMounted`], or that it cannot be told.
    pub fn check(&self) -> Result<(), MountError> {
        self.open_root().map(drop)
    }

    /// As the kernel lists it now.
    fn now(&self) -> Result<MountEntry, MountError> {
        let all = MountEntry::all().map_err(|error| MountError::Unreachable {
            path: self.mountpoint().to_owned(),
            cause: format!("/proc/self/mountinfo: {error}"),
        })?;
        let found = all.into_iter().find(|entry| entry.is(&self.entry));
        found.ok_or_else(|| MountError::NotMounted(self.mountpoint().to_owned()))
    }

    /// Opens the mount's root, whatever else may come to lie over it, as a mere place (`O_PATH`). That keeps the mount
    /// in use.
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
    /// The kernel unmounts what lies on top, and knows no way to take a mount away from below another. So one that is
    /// covered stays, and so does what covers it. Between the look and the call somebody could still come.
    ///
    /// # Errors
    /// [`MountError::Busy`], [`MountError::Covered`], [`MountError::NotMounted`], or what the kernel said.
    pub fn unmount(&self, how: Unmount) -> Result<(), MountError> {
        self.check()?;
        let path = self.now()?.mountpoint;
        if self.helped {
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

/// Where requests could come through io_uring if only it were switched on: one line that says how.
pub fn uring_hint() -> Option<String> {
    let state = std::fs::read_to_string(URING_SWITCH).ok()?;
    (state.trim() != "Y").then(|| {
        format!(
            "FUSE over io_uring is switched off; `echo Y > {URING_SWITCH}` (as root) makes mounts \
             faster"
        )
    })
}

/// How many queues io_uring shall serve; `None` for the classic transport.
fn uring_queues(transport: Transport) -> Result<Option<u16>, MountError> {
    if transport == Transport::Dev {
        return Ok(None);
    }
    let state = std::fs::read_to_string(URING_SWITCH).unwrap_or_default();
    let cause = match (queue_count(), refusal()) {
        (_, Some(refusal)) => format!("io_uring is not to be had here: {refusal}"),
        (Some(queues), None) if state.trim() == "Y" => return Ok(Some(queues)),
        _ if state.is_empty() => "this kernel has no FUSE over io_uring (Linux 6.14)".to_owned(),
        (None, _) => "the number of CPUs is unknown".to_owned(),
        (Some(_), _) => uring_hint().unwrap_or_default(),
    };
    match transport {
        Transport::Uring => Err(MountError::Uring(cause)),
        _ => Ok(None),
    }
}
