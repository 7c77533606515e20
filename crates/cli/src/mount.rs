//! `steadfs mount`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use steadfs::tools::printable_text;
use steadfs::{Error, Kind, OpenError, Options, Unmount, Volume};
use steadfs_vfs::FsError;

use crate::args;
use crate::daemon::NullDevice;
use crate::failure::{Failure, code, mount_failure};
use crate::{daemon, kind, log, signals, source};

/// Threads without which no volume is served: its tasks, one for device I/O, one for signals, and one or two for
/// requests. Additional threads increase parallelism.
const THREADS: usize = 16;

pub fn run(args: &args::Mount) -> Result<(), Failure> {
    let list = args.options.lists.join(",");
    let (volume, mountpoint) = places(args);
    let options = parse(&list, &volume)?;
    let volume = absolute(&source::device(&volume)?)?;
    let mountpoint = absolute(&mountpoint)?;
    kind::check(&args.types, &volume, &options)?;
    if args.foreground || options.foreground || args.serve {
        return serve(args, &options, &volume, &mountpoint);
    }
    let program = std::env::current_exe().map_err(|e| Failure::new(code::SYSTEM, e))?;
    let mut command = Command::new(program);
    command.args(["mount", "--serve"]);
    if args.verbose {
        command.arg("--verbose");
    }
    if !list.is_empty() {
        command.args(["-o", &list]);
    }
    if args.options.read_write && !options.read_only() {
        command.arg("-w");
    }
    command.arg("--").args([&volume, &mountpoint]);
    daemon::start(command)
}

/// The volume and the mount point: with a label or UUID the first argument is the mount point.
fn places(args: &args::Mount) -> (PathBuf, PathBuf) {
    let named = [("LABEL", &args.label), ("UUID", &args.uuid)];
    let named = named
        .iter()
        .find_map(|(tag, value)| value.as_ref().map(|value| format!("{tag}={value}").into()));
    match (named, &args.mountpoint) {
        (Some(volume), _) => (volume, args.volume.clone()),
        (None, mountpoint) => (args.volume.clone(), mountpoint.clone().unwrap_or_default()),
    }
}

/// Options that this kind of volume does not support are reported together with refused ones.
fn parse(list: &str, volume: &Path) -> Result<Options, Failure> {
    let parsed = Options::parse(list).or_else(|error| match source::device(volume) {
        Ok(volume) => Options::parse_for(list, &volume),
        Err(_) => Err(error),
    });
    parsed.map_err(|error| Failure::new(code::USAGE, error))
}

/// The server changes to `/`: paths must not depend on its working directory.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize().map_err(|error| {
        let code = match error.kind() {
            ErrorKind::PermissionDenied => code::USAGE,
            _ => code::MOUNT,
        };
        Failure::new(code, format!("{}: {error}", path.display()))
    })
}

fn serve(
    args: &args::Mount,
    options: &Options,
    path: &Path,
    mountpoint: &Path,
) -> Result<(), Failure> {
    let system = |error: std::io::Error| Failure::new(code::SYSTEM, error);
    let nowhere = match args.serve {
        true => Some(NullDevice::open_in_new_session().map_err(system)?),
        false => None,
    };
    log::start(args.verbose);
    log::serves(path, mountpoint);
    steadfs_rt::limit_malloc_arenas();
    let signals = signals::catch_signals().map_err(system)?;
    steadfs_rt::check_thread_limit(THREADS)
        .map_err(|error| Failure::new(code::SYSTEM, FsError::no_thread(error)))?;
    let mut options = options.clone();
    options.ext4.mounted_on = Some(mountpoint.as_os_str().as_encoded_bytes().to_vec());
    let (volume, options) = open(path, &options, args.options.read_write)?;
    report(args, &volume);
    let mounted = match steadfs::mount(&volume, mountpoint, &options) {
        Ok(mounted) => mounted,
        Err(error) => {
            let failure = mount_failure(&error);
            return match volume.close() {
                Ok(()) => Err(failure),
                Err(closing) => Err(Failure::new(
                    failure.code,
                    format!("{}; closing the volume: {closing}", failure.message),
                )),
            };
        }
    };
    if let Err(error) = signals::end(signals, mounted.handle(), Arc::downgrade(&volume.fs())) {
        // Signals could not end the mount, and the caller does not know about it yet.
        let left = mounted.handle().unmount(Unmount::Detach);
        let closed = mounted.wait();
        tracing::debug!(?left, ?closed, "giving up a mount");
        return Err(Failure::new(code::SYSTEM, FsError::no_thread(error)));
    }
    if let Some(nowhere) = nowhere {
        if let Err(error) = nowhere.ready() {
            // The parent has exited: the mount continues, as requested.
            tracing::warn!(%error, "cannot leave the terminal");
        }
        log::to_system();
    }
    mounted.wait().map_err(|error| {
        tracing::error!(%error, "closing the volume");
        Failure::new(code::MOUNT, format!("{}: {error}", path.display()))
    })
}

/// Opens the volume. A volume that can only be read is mounted read-only with a warning, as mount(8) does, unless `-w`
/// requests write access. A file that this user may not write is refused: that may be a mistake.
fn open(path: &Path, options: &Options, read_write: bool) -> Result<(Volume, Options), Failure> {
    let mut options = options.clone();
    let error = match Volume::open(path, &options) {
        Ok(volume) => return Ok((volume, options)),
        Err(error) => error,
    };
    let why = match &error {
        Error::Open(OpenError::Io { cause, .. })
            if cause.kind() == ErrorKind::ReadOnlyFilesystem =>
        {
            "the device takes no writes"
        }
        Error::Volume {
            error: FsError::OnlyReadable(why),
            ..
        } => why,
        _ => return Err(mount_failure(&error)),
    };
    if options.read_only() {
        return Err(mount_failure(&error));
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
    options.set_read_only(true);
    let volume = Volume::open(path, &options).map_err(|error| mount_failure(&error))?;
    eprintln!("steadfs: {}", printable_text(&warning));
    Ok((volume, options))
}

/// Prints warnings about the mount before it is used.
fn report(args: &args::Mount, volume: &Volume) {
    let report = volume.report();
    let list = args.options.lists.join(",");
    report_no_effect(&list, Some(volume.kind()));
    for warning in &report.warnings {
        eprintln!(
            "steadfs: {}: {}",
            volume.path().display(),
            printable_text(warning)
        );
    }
    for why in &report.defaults_passed_over {
        eprintln!("steadfs: ignored a default mount option of the superblock: {why}");
    }
    if let Some(why) = report.check_because {
        eprintln!(
            "steadfs: the volume {why}: mounted all the same; unmount it and run e2fsck -f on it"
        );
    }
    if let Some(hint) = steadfs::uring_hint() {
        eprintln!("steadfs: {hint}");
    }
    if args.verbose {
        eprintln!(
            "steadfs: {}: {}; replayed {} transactions ({} blocks) and {} fast commits, recovered {} files, \
             finished {} orphans",
            volume.kind().name(),
            volume.describe_device(),
            report.replayed_transactions,
            report.replayed_blocks,
            report.replayed_fast_commits,
            report.recovered_files,
            report.orphans,
        );
    }
}

/// Prints the options of a list that have no effect, with the reason.
pub fn report_no_effect(list: &str, kind: Option<Kind>) {
    for why in Options::without_effect(list, kind) {
        eprintln!("steadfs: without effect: {}", printable_text(&why));
    }
}
