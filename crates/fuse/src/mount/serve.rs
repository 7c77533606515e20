//! Serves a volume on a mount, whichever process makes the mount.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use steadfs_vfs::{FileSystem, FsError};

use super::{MountHandle, MountOptions, Transport, page_size};
use crate::admission::max_in_service;
use crate::call::SessionConfig;
use crate::error::MountError;
use crate::host;
use crate::notify::Notifier;
use crate::record::{Beginning, Recorder};
use crate::reply::Timeouts;
use crate::session::{Negotiated, Session};
use crate::standby::Standby;
use crate::stats::Stats;
use crate::sys;
use crate::transport::MountThreads;
use crate::transport::dev::DevPool;
use crate::transport::uring::{self, UringPool, queue_count, refusal};

/// Makes the kernel's mount for a server.
pub trait Mounter {
    /// Mounts; returns the device of the connection.
    ///
    /// # Errors
    /// There is no mount.
    fn mount(&self, options: &MountOptions) -> Result<OwnedFd, MountError>;

    /// Descriptors held while others are opened, so that enough are left to find the mount and unmount it if that
    /// fails.
    ///
    /// # Errors
    /// None are left.
    fn spare(&self) -> Result<Vec<File>, MountError>;

    /// Detaches a mount that could not be served. Returns whether this process gets no more requests.
    fn detach(&self) -> bool;

    /// User and group that the mount belongs to. Root's mount of a block device is of type `fuseblk`, and other users may
    /// use root's mounts.
    fn owner(&self) -> (u32, u32) {
        steadfs_rt::kernel_ids()
    }

    /// The mount is usable.
    fn is_usable(&self, options: &MountOptions);

    /// Opens the FUSE device once more, for a reader.
    ///
    /// # Errors
    /// Readers share the descriptors that they have.
    fn open_device(&self) -> io::Result<OwnedFd> {
        sys::open_device()
    }

    /// Whether the processes that use the mount are visible from here.
    fn sees_callers(&self) -> bool {
        true
    }

    /// The mount, if it was made and this process can unmount it.
    fn handle(&self) -> Option<MountHandle> {
        None
    }
}

/// A served volume.
pub struct Served {
    pub(super) mount_threads: Arc<MountThreads>,
    pub(super) negotiated: Negotiated,
    pub(super) pool: Arc<DevPool>,
}

/// Mounts with `mounter` and serves `fs`. Returns when the mount is usable.
///
/// # Errors
/// There is no mount.
pub fn serve(
    fs: Arc<dyn FileSystem>,
    mounter: &dyn Mounter,
    options: &MountOptions,
) -> Result<Served, MountError> {
    if let Some(queues) = uring_queues(options.transport)? {
        match serve_with(fs.clone(), mounter, options, Some(queues)) {
            // No request has arrived yet: the volume is unchanged.
            Err(MountError::Uring(cause)) if options.transport == Transport::Auto => {
                tracing::warn!(%cause, "FUSE over io_uring is not available; using /dev/fuse");
            }
            result => return result,
        }
    }
    serve_with(fs, mounter, options, None)
}

/// Serves with `queues` queues of io_uring, or through the device.
fn serve_with(
    fs: Arc<dyn FileSystem>,
    mounter: &dyn Mounter,
    options: &MountOptions,
    queues: Option<u16>,
) -> Result<Served, MountError> {
    let device = mounter.mount(options)?;
    let session = session(fs, options, queues.is_some());
    let mount_threads = MountThreads::new(Arc::new(session));
    let recorded = match options.takeover {
        true => host::record_file()
            .map_err(|error| MountError::Record(error.to_string()))
            .and_then(|file| record_to(&mount_threads.session, file, &Beginning::Durable(&[]))),
        false => Ok(()),
    };
    let started = recorded.and_then(|()| mounter.spare()).and_then(|spare| {
        let started = start(&mount_threads, device, options, queues);
        drop(spare);
        started
    });
    match started {
        Ok((negotiated, pool)) => {
            stand_by(&mount_threads.session, negotiated, true);
            mounter.is_usable(options);
            Ok(Served {
                mount_threads,
                negotiated,
                pool,
            })
        }
        Err(error) => {
            // The mount is unusable: detach it, so that the threads exit.
            if mounter.detach() {
                mount_threads.wait();
            }
            Err(error)
        }
    }
}

/// Why the calls of a mount are not recorded.
const NO_RESEND: &str = "the kernel does not send requests again (Linux 6.9 or newer does)";

/// Records all calls of a session in `file`.
pub(super) fn record_to(
    session: &Session,
    file: OwnedFd,
    beginning: &Beginning<'_>,
) -> Result<(), MountError> {
    let recorder = Recorder::begin(&session.volume.fs, file, beginning)?;
    session.volume.record_by(Arc::new(recorder));
    Ok(())
}

/// Leaves to the broker what a successor would need, if one could continue the mount.
pub(super) fn stand_by(session: &Session, negotiated: Negotiated, only_read: bool) {
    if negotiated.resends && !negotiated.uring {
        let recorder = session.volume.recorder().map(Arc::clone);
        let standby = Standby::new(negotiated.minor, only_read, recorder);
        session.volume.stand_by(standby);
    }
}

/// The session of a mount with these options.
pub(super) fn session(fs: Arc<dyn FileSystem>, options: &MountOptions, uring: bool) -> Session {
    let config = SessionConfig {
        timeouts: Timeouts {
            entry: options.entry_timeout,
            negative: options.negative_timeout,
            attr: options.attr_timeout,
        },
        max_request: options.request_bytes(page_size()),
        page_size: page_size(),
        threads: options.max_threads,
        // The kernel would check their permissions.
        posix_acl: options.posix_acl && options.fakeroot.is_none(),
        fakeroot: options.fakeroot,
        image: options.image,
        uring,
        classifier: options.classifier.clone(),
        stats: Arc::clone(&options.stats),
    };
    Session::new(fs, config)
}

/// Starts the service threads and waits until the mount is usable.
fn start(
    mount_threads: &Arc<MountThreads>,
    device: OwnedFd,
    options: &MountOptions,
    queues: Option<u16>,
) -> Result<(Negotiated, Arc<DevPool>), MountError> {
    let device = Arc::new(device);
    mount_threads
        .session
        .volume
        .set_notifier(Notifier::new(device.clone()));
    // With io_uring few requests come through the device: one thread is enough to begin with.
    let readers = match queues {
        Some(_) => 1,
        None => steadfs_rt::cpu::allowed_cpus().clamp(1, 8),
    };
    let pool = start_readers(mount_threads, &device, options, readers)?;
    let negotiated = mount_threads.session.wait_negotiated()?;
    if options.takeover && !negotiated.resends {
        return Err(MountError::Record(NO_RESEND.to_owned()));
    }
    if let (true, Some(queues)) = (negotiated.uring, queues) {
        UringPool::start(mount_threads, device, queues, options.max_threads)?;
        pool.leave_slots_to_rings();
    }
    Ok((negotiated, pool))
}

/// Starts `readers` threads that read the device.
pub(super) fn start_readers(
    mount_threads: &Arc<MountThreads>,
    device: &Arc<OwnedFd>,
    options: &MountOptions,
    readers: usize,
) -> Result<Arc<DevPool>, MountError> {
    let threads_max = max_in_service(options.max_threads) + readers;
    DevPool::start(mount_threads, Arc::clone(device), readers, threads_max)
        .map_err(|error| MountError::Threads(FsError::no_thread(error)))
}

impl Served {
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

    /// Waits until the connection has ended, and closes the volume ([`FileSystem::unmount`]) unless DESTROY has done
    /// so. Returns the result of closing.
    pub fn wait(&self) -> Result<(), FsError> {
        self.mount_threads.wait();
        self.mount_threads.session.close_volume()
    }
}

/// Makes the rings of a server that is about to be contained, and cannot make any afterwards.
///
/// # Panics
/// If they were made before.
pub fn prepare_rings(transport: Transport) {
    if uring_queues(transport).is_ok_and(|queues| queues.is_some()) {
        uring::prepare_rings(MountOptions::default().max_threads);
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
