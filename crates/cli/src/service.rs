//! `steadfs service`: the broker of a mount that a mounter makes, as a service manager starts it.
//!
//! `steadfs_fuse::Service` has the protocol. The mounter opens what its user may open and mounts; this process asks it for
//! the device of its command line, and starts the server, which gets descriptors only and reads the volume. Errors go to
//! standard error, which is the service's log; the mounter gets the exit code.

use std::ffi::OsStr;
use std::io::{ErrorKind, PipeReader};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, OFlags, fstat};
use rustix::net::{AddressFamily, SocketType, sockopt};
use steadfs::tools::printable_text;
use steadfs::{
    Broker, Commands, Ended, Error, MountHandle, Options, Reopen, Service, ServiceError,
};

use crate::broker::{self, Server};
use crate::failure::{Failure, code, mount_failure};
use crate::stderr::say;
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
    let service = Arc::new(service);
    serve(&service).map_err(|failure| {
        // The text is in the log before the mounter refers its user to it.
        if !failure.message.is_empty() {
            say(format_args!(
                "steadfs: {}",
                printable_text(&failure.message)
            ));
        }
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

/// Mounts, and waits until the volume is closed.
fn serve(service: &Arc<Service>) -> Result<(), Failure> {
    let args = helper::called_by_service(service.arguments().get(1..).unwrap_or_default())?;
    if steadfs::is_uri(&args.volume) {
        let why =
            "an NBD server is reached by steadfs mount; a service gets its device from the mounter";
        let uri = args.volume.display();
        return Err(Failure::new(code::USAGE, format!("{uri}: {why}")));
    }
    log::start(args.verbose);
    let (path, mountpoint) = places(&args)?;
    log::serves(&path, &mountpoint);
    service.mount_on(mountpoint.as_os_str());
    let mut mounting = Mounting {
        service,
        options: options(&args, &path, service)?,
        args: &args,
        path: &path,
        mountpoint: &mountpoint,
        signalled: Some(signals::pipe().map_err(system)?),
    };
    let files = mounting.open()?;
    service.open_devices();
    match mounting.serve(files) {
        Err(failure)
            if failure.code == server::READ_ONLY_AGAIN && !mounting.options.read_only() =>
        {
            mounting.options.set_read_only(true);
            let files = mounting.open()?;
            mounting.serve(files)
        }
        result => result,
    }
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
    if options.partition.is_some() {
        return refused(
            "option partition: a service finds no partitions; give the device of the partition, or offset= and sizelimit=",
        );
    }
    if options.overlay.is_some() {
        return refused("option overlay: a service opens the device only; use steadfs mount");
    }
    if let Some((option, _)) = options.device_beside() {
        return refused(&format!(
            "option {option}: a service opens one device only; use steadfs mount"
        ));
    }
    if options.fakeroot.is_some() {
        return refused(
            "option fakeroot: a service serves mounts of other users; steadfs mount takes the option",
        );
    }
    if options.allow_other == Some(true) && !service.allows_others() {
        return refused(
            "option allow_other: the mounter allows it to root only, unless /etc/fuse.conf has user_allow_other",
        );
    }
    options.allow_other = Some(options.allow_other.unwrap_or(service.is_roots()));
    Ok(options)
}

/// What a mount is made of.
struct Mounting<'a> {
    service: &'a Arc<Service>,
    options: Options,
    args: &'a args::Mount,
    path: &'a Path,
    mountpoint: &'a Path,
    /// Signals, until the mount is usable.
    signalled: Option<PipeReader>,
}

impl Mounting<'_> {
    /// Has the image or device opened. One that can only be read is opened read-only, with a warning, unless `-w` requests
    /// write access.
    fn open(&mut self) -> Result<Vec<OwnedFd>, Failure> {
        let error = match open_as(self.service, self.path, &self.options) {
            Ok(files) => return Ok(files),
            Err(error) => error,
        };
        let takes_no_writes = matches!(&error, ServiceError::Refused { cause, .. }
            if cause.kind() == ErrorKind::ReadOnlyFilesystem);
        if !takes_no_writes || self.options.read_only() || self.args.options.read_write {
            return Err(not_opened(&error));
        }
        self.options.set_read_only(true);
        let files = open_as(self.service, self.path, &self.options);
        let files = files.map_err(|error| not_opened(&error))?;
        let warning = format!(
            "{}: mounted read-only: the device takes no writes",
            self.path.display()
        );
        say(format_args!("steadfs: {}", printable_text(&warning)));
        Ok(files)
    }

    /// Starts the server, which gets these files, and serves it until it has ended.
    fn serve(&mut self, files: Vec<OwnedFd>) -> Result<(), Failure> {
        let role = match self.service.is_roots() {
            true => "--service-of=root",
            false => "--service-of=other",
        };
        let program = mount::this_program()?;
        let (server, requests, commands) = Server::start(mount::command(
            &program,
            self.args,
            &self.options,
            role,
            self.path,
            self.mountpoint,
        ))?;
        let commands = Arc::new(Commands::new(commands));
        let mounter = Arc::clone(self.service);
        let mut broker = Broker::new(requests, Arc::clone(&commands), mounter, once(files));
        let usable = |_: Option<MountHandle>| {
            let Some(signalled) = self.signalled.take() else {
                return;
            };
            let commands = Arc::clone(&commands);
            if let Err(error) = signals::sync_only(signalled, move || commands.sync()) {
                tracing::error!(%error, "cannot create a thread: unmount before the service is stopped");
            }
        };
        let (path, options) = (self.path, &self.options);
        let ended = broker.run(|facts| steadfs::mount_options(path, options, facts), usable);
        let status = server.wait()?;
        match ended {
            Ended::WithMount(Some(error)) => Err(mount_failure(&Error::from(error))),
            // A server of this program does not hand over here.
            _ => broker::result(status),
        }
    }
}

/// Gives these files once.
fn once(files: Vec<OwnedFd>) -> Reopen {
    let files = steadfs_rt::Mutex::new(steadfs_rt::Rank::Leaf, files);
    Box::new(move |_| match std::mem::take(&mut *files.lock()) {
        files if files.is_empty() => Err(NOT_REOPENED.to_owned()),
        files => Ok(files),
    })
}

fn not_opened(error: &ServiceError) -> Failure {
    let mut failure = service_failure(error);
    if matches!(error, ServiceError::Refused { cause, .. } if cause.kind() == ErrorKind::ResourceBusy)
    {
        failure.message += " (it is mounted, or opened exclusively by another program)";
    }
    failure
}

/// Has a file opened; a block device also with O_EXCL, which claims it.
fn open_as(
    service: &Service,
    path: &Path,
    options: &Options,
) -> Result<Vec<OwnedFd>, ServiceError> {
    let (name, access): (&OsStr, _) = match options.read_only() {
        true => (path.as_os_str(), OFlags::RDONLY),
        false => (path.as_os_str(), OFlags::RDWR),
    };
    let file = service.open(name, access)?;
    let found = fstat(&file).map_err(|errno| ServiceError::Connection(errno.into()))?;
    let mut files = vec![file];
    if FileType::from_raw_mode(found.st_mode) == FileType::BlockDevice {
        files.push(service.open_block_device(name, access | OFlags::EXCL)?);
    }
    Ok(files)
}
