//! The server of a mount: opens the volume, and serves it until it is unmounted.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use steadfs::tools::{owner_cx, printable_text};
use steadfs::{
    BrokerClient, Error, HandOverError, Inheritance, KernelMount, Kind, Legacy, MountError,
    Mounter, OpenError, Options, Record, Served, ServiceClient, TakenOver, Unmount, Volume,
    VolumeDevice, serve_commands,
};
use steadfs_vfs::{FsError, ShutdownMode};

use crate::failure::{Failure, code, mount_failure};
use crate::stderr::say;
use crate::{args, broker, kind, log, mount, sandbox, signals};

/// Threads without which no volume is served: its tasks, one for device I/O, one for signals, and one or two for
/// requests. Additional threads increase parallelism.
pub const THREADS: usize = 16;
/// Longest time that a successor waits for the locks of its predecessor: error handling of a device takes minutes.
pub const LOCKS_TIME: Duration = Duration::from_secs(300);
/// The same behind an unmount, when another program may use the volume: longer than the last requests of rings of a server
/// that was killed usually take.
const UNMOUNTED_LOCKS_TIME: Duration = Duration::from_millis(200);
/// The wait for locks that is reported.
const LOCKS_NOTICE: Duration = Duration::from_secs(5);
/// The exit code of a contained server whose volume can only be read: the broker starts another one, with `ro`.
pub const READ_ONLY_AGAIN: u8 = 77;

/// Mounts and serves in this process.
pub fn run(
    args: &args::Mount,
    options: &Options,
    path: &Path,
    mountpoint: &Path,
) -> Result<(), Failure> {
    let nowhere = broker::leave_session(args, path, mountpoint)?;
    steadfs_rt::limit_malloc_arenas();
    let ending = signals::Ending::begin().map_err(system)?;
    steadfs_rt::check_thread_limit(THREADS)
        .map_err(|error| Failure::new(code::SYSTEM, FsError::no_thread(error)))?;
    let options = mounted_on(options, mountpoint);
    let (volume, options) = open(path, &options, args.options.read_write)?;
    report(args, &volume);
    let unmounted = |error| close_unmounted(&volume, &error);
    let kernel = KernelMount::new(mountpoint).map_err(|error| unmounted(error.into()))?;
    let kernel = Arc::new(kernel);
    ending.mounts(Arc::<KernelMount>::clone(&kernel));
    let mounted = steadfs::mount_by(&volume, &kernel, &options).map_err(unmounted)?;
    let fs = Arc::downgrade(&volume.fs());
    let sync = move || match fs.upgrade() {
        Some(fs) => fs.sync_all(&owner_cx()).map_err(|error| error.to_string()),
        None => Ok(()),
    };
    if let Err(error) = ending.usable(mounted.handle(), sync) {
        // Signals could not end the mount, and the caller does not know about it yet.
        let left = mounted.handle().unmount(Unmount::Detach);
        let closed = mounted.wait();
        tracing::debug!(?left, ?closed, "giving up a mount");
        return Err(Failure::new(code::SYSTEM, FsError::no_thread(error)));
    }
    broker::leave_terminal(nowhere);
    let ended = mounted.wait();
    volume.give_up_device();
    ended.map_err(|error| close_failure(path, &error))
}

/// Serves as a process that a broker contains: standard input is the socket of requests to the broker, standard output
/// that of its commands.
pub fn run_contained(
    args: &args::Mount,
    options: &Options,
    path: &Path,
    mountpoint: &Path,
) -> Result<(), Failure> {
    let (requests, commands) = sockets(args, path, mountpoint)?;
    let broker = BrokerClient::connect(requests);
    let options = mounted_on(options, mountpoint);
    steadfs::prepare_rings(&options);
    let device = VolumeDevice::open(path, &options);
    let volume = open_contained(args, path, &options, device, &broker)?;
    serve(args, &volume, &*broker, &options, commands)
}

/// The same as a process that a service contains: the broker has the device from its mounter, which root uses if `is_roots`,
/// and cannot open another.
pub fn run_of_service(
    args: &args::Mount,
    is_roots: bool,
    options: &Options,
    path: &Path,
    mountpoint: &Path,
) -> Result<(), Failure> {
    let (requests, commands) = sockets(args, path, mountpoint)?;
    let client = ServiceClient::connect(requests, is_roots);
    let broker = client.broker();
    let options = match mountpoint.is_absolute() {
        true => mounted_on(options, mountpoint),
        // The superblock records no path that depends on the mounter's working directory.
        false => options.clone(),
    };
    steadfs::prepare_rings(&options);
    let device = VolumeDevice::opened_by(path, &options, broker);
    let volume = open_contained(args, path, &options, device, broker)?;
    serve(args, &volume, &*client, &options, commands)
}

/// Mounts by `mounter`, and serves.
fn serve(
    args: &args::Mount,
    volume: &Volume,
    mounter: &dyn Mounter,
    options: &Options,
    commands: OwnedFd,
) -> Result<(), Failure> {
    report(args, volume);
    let served = steadfs::serve(volume, mounter, options)
        .map_err(|error| close_unmounted(volume, &error))?;
    serve_until_end(volume, served, commands)
}

/// The same on the mount of a server that has handed over or ended. A failure leaves what it found to another attempt: unlinked
/// files that are in use are not freed.
pub fn run_successor(
    args: &args::Mount,
    options: &Options,
    path: &Path,
    mountpoint: &Path,
) -> Result<(), Failure> {
    let (requests, commands) = sockets(args, path, mountpoint)?;
    steadfs_rt::fault_point("successor");
    let broker = BrokerClient::connect(requests);
    let failed = |error: Error| mount_failure(&error);
    let left = broker.take_over().map_err(|error| failed(error.into()))?;
    steadfs::prepare_rings(options);
    let opened = open_device_again(path, options, &left)
        .and_then(|opened| opened.confirmed_by(&broker))
        .map_err(failed)?;
    sandbox::enter_as_server()?;
    // Text of a process that may have been taken over: nothing that follows has more rights than that process.
    let legacy = Legacy::read(&File::from(left.legacy)).map_err(system)?;
    let record_file = left.record.filter(|_| legacy.recorded);
    let record = match (&record_file, &legacy.lookups) {
        (Some(file), None) => Some(Record::read(file).map_err(system)?),
        _ => None,
    };
    let mut lists = args.options.lists.clone();
    lists.push(legacy.options.clone());
    let options = mounted_on(&mount::parse(&lists.join(","), path)?, mountpoint);
    let opened = opened.reopened_by(&broker);
    let volume = open_left(opened, &options, &legacy, record.as_ref())?;
    let inheritance = Inheritance {
        device: left.device,
        legacy: &legacy,
        record_file,
        record: record.as_ref(),
    };
    let usable = || broker.report_usable();
    let served = steadfs::serve_on(&volume, inheritance, &options, usable).map_err(|error| {
        let left = volume.fs().hand_over();
        tracing::debug!(left = left.is_ok(), "leaving a volume to another attempt");
        failed(error)
    })?;
    drop(record);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "continues the mount");
    serve_until_end(&volume, served, commands)
}

/// Opens the device of a server that has ended: the kernel may drop what that one had open, and its locks, a little later,
/// when the last request of its rings has ended.
fn open_device_again(
    path: &Path,
    options: &Options,
    left: &TakenOver,
) -> Result<VolumeDevice, Error> {
    const STEP: Duration = Duration::from_millis(20);
    let began = steadfs_rt::now();
    let mut is_reported = false;
    loop {
        if !left.is_worth_continuing() {
            // It shall not be in the way of another mount.
            return Err(MountError::ConnectionEnded.into());
        }
        let locks_time = match left.is_connected() {
            true => LOCKS_TIME,
            false => UNMOUNTED_LOCKS_TIME,
        };
        match VolumeDevice::open_again(path, options, left.claimed) {
            Err(Error::Open(error @ OpenError::Busy { .. })) if began.elapsed() < locks_time => {
                if began.elapsed() > LOCKS_NOTICE && !std::mem::replace(&mut is_reported, true) {
                    tracing::warn!(%error, "waiting for what the last server had open");
                }
                steadfs_rt::sleep(STEP);
            }
            opened => return opened,
        }
    }
}

/// Opens the volume of a server that has handed over or ended, in the state that it had acknowledged.
fn open_left(
    opened: VolumeDevice,
    options: &Options,
    legacy: &Legacy,
    record: Option<&Record>,
) -> Result<Volume, Failure> {
    let failed = |error: Error| mount_failure(&error);
    let Some(record) = record else {
        let lookups = legacy.lookups.as_deref().unwrap_or_default();
        return opened.volume_again(options, lookups).map_err(failed);
    };
    let began = steadfs_rt::now();
    let mut counts = record.counts().clone();
    record.state().hold(&mut counts);
    let volume = opened.volume_again(options, &counts).map_err(failed)?;
    if let Err(error) = volume.restore(record.state()) {
        // What is on the volume now is not for use: another attempt begins from the last commit.
        let shut_down = volume.fs().shutdown(&owner_cx(), ShutdownMode::NoFlush);
        tracing::debug!(
            shut_down = shut_down.is_ok(),
            "leaving a volume to another attempt"
        );
        return Err(failed(error));
    }
    let state = record.state();
    let (inodes, names) = (state.inodes.len(), state.names.len());
    let took = began.elapsed();
    tracing::info!(inodes, names, ?took, "restored what was acknowledged");
    Ok(volume)
}

fn system(error: std::io::Error) -> Failure {
    Failure::new(code::SYSTEM, error)
}

/// The start of a process that a broker contains: returns the sockets of its requests and of the broker's commands.
fn sockets(
    args: &args::Mount,
    path: &Path,
    mountpoint: &Path,
) -> Result<(OwnedFd, OwnedFd), Failure> {
    log::start(args.verbose);
    log::to_broker();
    log::serves(path, mountpoint);
    steadfs_rt::limit_malloc_arenas();
    // A signal is for the broker: one that is sent to all processes means one unmount.
    signals::ignore().map_err(system)?;
    let socket = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(system);
    let requests = socket(std::io::stdin().as_fd())?;
    let commands = socket(std::io::stdout().as_fd())?;
    steadfs_rt::check_thread_limit(THREADS)
        .map_err(|error| Failure::new(code::SYSTEM, FsError::no_thread(error)))?;
    Ok((requests, commands))
}

/// Serves until the mount has ended or a successor continues it.
fn serve_until_end(volume: &Volume, served: Served, commands: OwnedFd) -> Result<(), Failure> {
    let fs = Arc::downgrade(&volume.fs());
    let sync = move || match fs.upgrade() {
        Some(fs) => fs.sync_all(&owner_cx()),
        None => Ok(()),
    };
    let served = Arc::new(served);
    let leaves = Arc::new(AtomicBool::new(false));
    let (leaving, serving) = (Arc::clone(&leaves), Arc::downgrade(&served));
    let bound = volume.is_bound_because();
    let hand_over = move |file: &File| {
        if let Some(why) = bound {
            return Err(HandOverError::Refused(FsError::NotSupported(why)));
        }
        let unmounted = || HandOverError::Refused(FsError::Stopped("unmounted".to_owned()));
        let serving = serving.upgrade().ok_or_else(unmounted)?;
        leaving.store(true, Ordering::SeqCst);
        let legacy = serving.hand_over().map_err(|error| {
            leaving.store(false, Ordering::SeqCst);
            HandOverError::Refused(error)
        })?;
        legacy.write(file).map_err(|error| {
            tracing::error!(%error, "no successor can continue the mount, which ends");
            HandOverError::Lost(FsError::Io(error.to_string()))
        })
    };
    let commands = steadfs_rt::try_spawn("commands", move || {
        serve_commands(&commands, sync, hand_over);
    });
    let commands = commands.inspect_err(|error| {
        tracing::error!(%error, "cannot take commands of the broker: unmount before a signal ends it");
    });
    let ended = served.wait();
    volume.give_up_device();
    if let (true, Ok(commands)) = (leaves.load(Ordering::SeqCst), commands) {
        // The broker knows about the hand-over before this process ends.
        commands.join();
    }
    ended.map_err(|error| close_failure(volume.path(), &error))
}

fn close_failure(path: &Path, error: &FsError) -> Failure {
    tracing::error!(%error, "closing the volume");
    Failure::new(code::MOUNT, format!("{}: {error}", path.display()))
}

fn mounted_on(options: &Options, mountpoint: &Path) -> Options {
    let mut options = options.clone();
    options.ext4.mounted_on = Some(mountpoint.as_os_str().as_encoded_bytes().to_vec());
    options
}

/// Gives up all rights, then opens the volume.
///
/// # Errors
/// With [`READ_ONLY_AGAIN`]: the volume can only be read, and the device is open for writing.
fn open_contained(
    args: &args::Mount,
    path: &Path,
    options: &Options,
    device: Result<VolumeDevice, Error>,
    broker: &Arc<BrokerClient>,
) -> Result<Volume, Failure> {
    let device = device.and_then(|device| device.confirmed_by(broker));
    let opened = device.map(|device| {
        let contained = sandbox::enter_as_server();
        contained.map(|()| device.reopened_by(broker).volume())
    });
    let error = match opened {
        Ok(contained) => match contained? {
            Ok(volume) => {
                return kind::check_found(&args.types, path, volume.kind()).map(|()| volume);
            }
            Err(error) => error,
        },
        Err(error) => error,
    };
    read_only_because(path, options, args.options.read_write, &error)?;
    Err(Failure::new(READ_ONLY_AGAIN, ""))
}

/// Closes a volume that could not be mounted.
fn close_unmounted(volume: &Volume, error: &Error) -> Failure {
    let mut failure = mount_failure(error);
    if matches!(error, Error::Mount(MountError::Broker(_))) {
        // The broker reports it.
        failure.message.clear();
    }
    match volume.close() {
        Ok(()) => failure,
        Err(closing) => Failure::new(
            failure.code,
            format!("{}; closing the volume: {closing}", failure.message),
        ),
    }
}

/// Opens the volume.
fn open(path: &Path, options: &Options, read_write: bool) -> Result<(Volume, Options), Failure> {
    let mut options = options.clone();
    let error = match Volume::open_with(path, &options) {
        Ok(volume) => return Ok((volume, options)),
        Err(error) => error,
    };
    read_only_because(path, &options, read_write, &error)?;
    options.set_read_only(true);
    let volume = Volume::open_with(path, &options).map_err(|error| mount_failure(&error))?;
    Ok((volume, options))
}

/// Whether this is the error of a device that can only be read.
fn takes_no_writes(error: &Error) -> bool {
    matches!(error, Error::Open(OpenError::Io { cause, .. })
        if cause.kind() == ErrorKind::ReadOnlyFilesystem)
}

/// Whether the error is of the device at `path`, not of another one such as a journal's.
fn is_of(error: &Error, path: &Path) -> bool {
    matches!(error, Error::Open(OpenError::Io { path: at, .. }) if at == path)
}

/// Whether a volume that could not be opened for this reason is mounted read-only: one that can only be read, with a
/// warning, as mount(8) does, unless `-w` requests write access. A file that this user may not write is refused: that may
/// be a mistake.
fn read_only_because(
    path: &Path,
    options: &Options,
    read_write: bool,
    error: &Error,
) -> Result<(), Failure> {
    let why = match error {
        error if takes_no_writes(error) && is_of(error, path) => "the device takes no writes",
        Error::Volume {
            error: FsError::OnlyReadable(why),
            ..
        } => why,
        _ => return Err(mount_failure(error)),
    };
    if options.read_only() {
        return Err(mount_failure(error));
    }
    if read_write {
        let place = path.display();
        let way_out = "leave out -w to mount it read-only";
        return Err(Failure::new(
            code::MOUNT,
            format!("{place}: cannot be mounted for writing (-w): {why}; {way_out}"),
        ));
    }
    let warning = format!("{}: mounted read-only: {why}", path.display());
    say(format_args!("steadfs: {}", printable_text(&warning)));
    Ok(())
}

/// Prints warnings about the mount before it is used.
fn report(args: &args::Mount, volume: &Volume) {
    let report = volume.report();
    let list = args.options.lists.join(",");
    report_no_effect(&list, Some(volume.kind()));
    for warning in &report.warnings {
        say(format_args!(
            "steadfs: {}: {}",
            volume.path().display(),
            printable_text(warning)
        ));
    }
    for why in &report.defaults_passed_over {
        say(format_args!(
            "steadfs: ignored a default mount option of the superblock: {why}"
        ));
    }
    if let Some(why) = report.check_because {
        say(format_args!(
            "steadfs: the volume {why}: mounted all the same; unmount it and run e2fsck -f on it"
        ));
    }
    if let Some(hint) = steadfs::uring_hint() {
        say(format_args!("steadfs: {hint}"));
    }
    if args.verbose {
        say(format_args!(
            "steadfs: {}: {}; replayed {} transactions ({} blocks) and {} fast commits, recovered {} files, \
             finished {} orphans",
            volume.kind().name(),
            volume.describe_device(),
            report.replayed_transactions,
            report.replayed_blocks,
            report.replayed_fast_commits,
            report.recovered_files,
            report.orphans,
        ));
    }
}

/// Prints the options of a list that have no effect, with the reason.
pub fn report_no_effect(list: &str, kind: Option<Kind>) {
    for why in Options::without_effect(list, kind) {
        say(format_args!(
            "steadfs: without effect: {}",
            printable_text(&why)
        ));
    }
}
