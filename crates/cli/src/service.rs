//! `steadfs service`: the server of a mount that a mounter makes, as a service manager starts it.
//!
//! `steadfs_fuse::Service` has the protocol. The mounter opens what its user may open, and this process gets descriptors
//! only; then it gives up its rights as the server of a broker does, and serves until the mount has ended. Errors go to
//! standard error, which is the service's log; the mounter gets the exit code.

use std::ffi::OsStr;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, OFlags, fstat};
use rustix::net::{AddressFamily, SocketType, sockopt};
use steadfs::tools::{owner_cx, printable_text};
use steadfs::{Options, Served, Service, ServiceError, Volume, VolumeDevice};
use steadfs_vfs::FsError;

use crate::failure::{Failure, code, mount_failure};
use crate::sandbox::{self, StartedBy};
use crate::{args, helper, log, mount, server, signals};

/// Ways to name a device that a server without a view of devices cannot follow.
const TAGS: [&str; 4] = ["LABEL=", "UUID=", "PARTLABEL=", "PARTUUID="];

const NOT_REOPENED: &str = "the server of this mount is a service, which cannot open the device for writing: unmount, \
    and mount again without ro";

/// Serves the mounter at the other end of the socket that this program was started with.
pub fn run() -> Result<(), Failure> {
    log::to_broker();
    let socket = socket().ok_or_else(|| {
        let what = "service: needs the socket of a mounter as a service manager passes it";
        let way_out = "packaging/ has the units, steadfs mount mounts without";
        Failure::new(
            code::USAGE,
            format!("{what} (descriptor 3 by LISTEN_FDS, or standard input; {way_out})"),
        )
    })?;
    let service = Service::accept(socket).map_err(|error| service_failure(&error))?;
    serve(&service).map_err(|failure| {
        // The text is in the log before the mounter refers its user to it.
        eprintln!("steadfs: {}", printable_text(&failure.message));
        service.end(failure.code);
        Failure::new(failure.code, "")
    })
}

/// The socket of sd_listen_fds(3), else standard input if that is one.
fn socket() -> Option<OwnedFd> {
    let inherited = || std::io::stdin().as_fd().try_clone_to_owned().ok();
    let socket = steadfs_rt::take_passed_socket().or_else(inherited)?;
    let is_ours = sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(&socket) == Ok(SocketType::SEQPACKET);
    is_ours.then_some(socket)
}

fn service_failure(error: &ServiceError) -> Failure {
    let code = match error {
        ServiceError::Refused { cause, .. } if cause.kind() == ErrorKind::PermissionDenied => {
            code::USAGE
        }
        ServiceError::Refused { .. } => code::MOUNT,
        ServiceError::Connection(_) | ServiceError::Protocol(_) => code::SYSTEM,
    };
    Failure::new(code, error)
}

fn system(error: std::io::Error) -> Failure {
    Failure::new(code::SYSTEM, error)
}

/// Mounts, and serves until the mount has ended.
fn serve(service: &Arc<Service>) -> Result<(), Failure> {
    let args = helper::called_by_service(service.arguments().get(1..).unwrap_or_default())?;
    log::start(args.verbose);
    let (path, mountpoint) = places(&args)?;
    log::serves(&path, &mountpoint);
    service.mount_on(mountpoint.as_os_str());
    let options = options(&args, &path, service)?;
    steadfs_rt::limit_malloc_arenas();
    steadfs_rt::check_thread_limit(server::THREADS)
        .map_err(|error| Failure::new(code::SYSTEM, FsError::no_thread(error)))?;
    let signalled = signals::pipe().map_err(system)?;
    steadfs::prepare_rings(&options);
    let (device, options) = open(service, &path, &options, args.options.read_write)?;
    service.end_requests_for_files();
    sandbox::enter_as_server(StartedBy::ServiceManager)?;
    let volume = device.never_reopened(NOT_REOPENED).volume();
    let volume = volume.map_err(|error| mount_failure(&error))?;
    server::report(&args, &volume);
    let served = steadfs::serve(&volume, &**service, &options)
        .map_err(|error| server::close_unmounted(&volume, &error))?;
    serve_until_end(&volume, &served, signalled)
}

/// The image or device, and the mount point.
fn places(args: &args::Mount) -> Result<(PathBuf, PathBuf), Failure> {
    let (path, mountpoint) = (&args.volume, args.mountpoint.as_ref());
    let mountpoint = mountpoint
        .ok_or_else(|| Failure::new(code::USAGE, "called without a device and a mount point"))?;
    let text = path.to_string_lossy();
    if TAGS.iter().any(|tag| text.starts_with(tag)) {
        let why = "a service sees no devices to look it up";
        let way_out =
            "name the device, such as /dev/disk/by-uuid/…, or use mount(8), which finds it";
        return Err(Failure::new(
            code::USAGE,
            format!("{text}: {why}: {way_out}"),
        ));
    }
    Ok((path.clone(), mountpoint.clone()))
}

/// The options of the mount; an error names those that are not possible here.
fn options(args: &args::Mount, path: &Path, service: &Service) -> Result<Options, Failure> {
    let refused = |what: &str| Err(Failure::new(code::USAGE, what));
    let list = args.options.lists.join(",");
    let mut options = mount::parse(&list, path)?;
    if !options.sandbox {
        return refused(
            "option sandbox=off: a service is always contained; steadfs mount takes the option",
        );
    }
    if options.allow_other == Some(true) && !service.allows_others() {
        return refused(
            "option allow_other: the mounter allows it to root only, unless /etc/fuse.conf has user_allow_other",
        );
    }
    options.allow_other = Some(options.allow_other.unwrap_or(service.is_roots()));
    if mountpoint_is_absolute(args) {
        return Ok(server::mounted_on(
            &options,
            args.mountpoint.as_deref().unwrap_or(path),
        ));
    }
    Ok(options)
}

/// The superblock records no path that depends on the mounter's working directory.
fn mountpoint_is_absolute(args: &args::Mount) -> bool {
    args.mountpoint.as_deref().is_some_and(Path::is_absolute)
}

/// Has the image or device opened. One that can only be read is opened read-only, with a warning, unless `-w` requests
/// write access.
fn open(
    service: &Service,
    path: &Path,
    options: &Options,
    read_write: bool,
) -> Result<(VolumeDevice, Options), Failure> {
    let error = match open_as(service, path, options) {
        Ok(device) => return Ok((device, options.clone())),
        Err(error) => error,
    };
    if !error.is_read_only || options.read_only() || read_write {
        return Err(error.failure);
    }
    let mut options = options.clone();
    options.set_read_only(true);
    let device = open_as(service, path, &options).map_err(|error| error.failure)?;
    let warning = format!(
        "{}: mounted read-only: the device takes no writes",
        path.display()
    );
    eprintln!("steadfs: {}", printable_text(&warning));
    Ok((device, options))
}

/// Why a device was not opened.
struct NotOpened {
    failure: Failure,
    /// It takes no writes.
    is_read_only: bool,
}

impl From<ServiceError> for NotOpened {
    fn from(error: ServiceError) -> Self {
        let kind = match &error {
            ServiceError::Refused { cause, .. } => Some(cause.kind()),
            _ => None,
        };
        let mut failure = service_failure(&error);
        if kind == Some(ErrorKind::ResourceBusy) {
            failure.message += " (it is mounted, or opened exclusively by another program)";
        }
        Self {
            failure,
            is_read_only: kind == Some(ErrorKind::ReadOnlyFilesystem),
        }
    }
}

impl From<steadfs::Error> for NotOpened {
    fn from(error: steadfs::Error) -> Self {
        Self {
            is_read_only: server::takes_no_writes(&error),
            failure: mount_failure(&error),
        }
    }
}

/// Has a file opened; a block device also with O_EXCL, which claims it.
fn open_as(service: &Service, path: &Path, options: &Options) -> Result<VolumeDevice, NotOpened> {
    let (name, access): (&OsStr, _) = match options.read_only() {
        true => (path.as_os_str(), OFlags::RDONLY),
        false => (path.as_os_str(), OFlags::RDWR),
    };
    let file = service.open(name, access)?;
    let found = fstat(&file).map_err(|errno| ServiceError::Connection(errno.into()))?;
    let is_block_device = FileType::from_raw_mode(found.st_mode) == FileType::BlockDevice;
    let exclusive = is_block_device.then(|| service.open_block_device(name, access | OFlags::EXCL));
    Ok(VolumeDevice::opened(
        path,
        options,
        file,
        exclusive.transpose()?,
    )?)
}

/// Serves until the mount has ended. A signal makes everything durable: this process cannot unmount, and is killed if
/// the volume is still mounted when the service manager's patience ends.
fn serve_until_end(
    volume: &Volume,
    served: &Served,
    mut signalled: impl Read + Send + 'static,
) -> Result<(), Failure> {
    let fs = Arc::downgrade(&volume.fs());
    let sync = move || {
        while signalled.read(&mut [0]).is_ok_and(|len| len > 0) {
            let Some(fs) = fs.upgrade() else { return };
            match fs.sync_all(&owner_cx()) {
                Ok(()) => tracing::warn!("a signal: everything is written; unmount the volume"),
                Err(error) => tracing::error!(%error, "cannot write everything at a signal"),
            }
        }
    };
    if let Err(error) = steadfs_rt::try_spawn("signals", sync) {
        tracing::error!(%error, "cannot create a thread: unmount before the service is stopped");
    }
    let ended = served.wait();
    volume.give_up_device();
    ended.map_err(|error| server::close_failure(volume.path(), &error))
}
