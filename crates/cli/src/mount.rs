//! `steadfs mount`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use steadfs::Options;
use steadfs_vfs::options::items;

use crate::args;
use crate::failure::{Failure, code};
use crate::{broker, daemon, kind, partition, server, source};

pub fn run(args: &args::Mount) -> Result<(), Failure> {
    if args.successor || args.contained || args.service_of.is_some() {
        // Signals of the terminal are for the broker. It fails for a leader of a process group only, which a server is not.
        let _ = rustix::process::setsid();
        return run_resolved(args, &places(args).0);
    }
    let named = source::device(&places(args).0)?;
    let list = args.options.lists.join(",");
    let off = items(&list).any(|item| item == ("sandbox", Some("off")));
    let sandbox = off.then_some(args::Sandbox::Off);
    let failed = |failure: Failure| Failure::new(code::MOUNT, failure.message);
    let (volume, list) = partition::resolve(&named, &list, sandbox).map_err(failed)?;
    let mut args = args.clone();
    args.options.lists = vec![list];
    run_resolved(&args, &volume)
}

/// The same where the options say where a partition is.
fn run_resolved(args: &args::Mount, volume: &Path) -> Result<(), Failure> {
    let list = args.options.lists.join(",");
    let (volume, mountpoint) = (volume.to_owned(), places(args).1);
    let options = parse(&list, &volume)?;
    if options.takeover && steadfs::is_uri(&volume) {
        let why = "option takeover: requests of a killed server that the NBD server still has could overtake those of \
                   the next one; leave it out";
        return Err(Failure::new(code::USAGE, why));
    }
    if args.successor {
        // The paths are absolute, and the mount has no server yet that a look at it could be answered by.
        return server::run_successor(args, &options, &volume, &mountpoint);
    }
    if let Some(user) = &args.service_of {
        // The paths are those of the mounter.
        return server::run_of_service(args, user == "root", &options, &volume, &mountpoint);
    }
    if args.contained {
        // The paths are absolute. This process is in a group of its own, where it would wait for what autofs waits for.
        return server::run_contained(args, &options, &volume, &mountpoint);
    }
    let volume = absolute(&volume)?;
    let mountpoint = absolute(&mountpoint)?;
    match options.sandbox {
        // The server compares them with the volume.
        true => kind::wanted(&args.types).map(drop)?,
        false => kind::check(&args.types, &volume, &options)?,
    }
    if args.foreground || options.foreground || args.serve {
        return match options.sandbox {
            true => broker::run(args, &options, &volume, &mountpoint),
            false => server::run(args, &options, &volume, &mountpoint),
        };
    }
    let program = this_program()?;
    daemon::start(command(
        &program,
        args,
        &options,
        "--serve",
        &volume,
        &mountpoint,
    ))
}

/// The file of this program.
pub fn this_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| Failure::new(code::SYSTEM, error))
}

/// A program with the arguments of this one, as the process that `role` says.
pub fn command(
    program: &Path,
    args: &args::Mount,
    options: &Options,
    role: &str,
    volume: &Path,
    mountpoint: &Path,
) -> Command {
    let list = args.options.lists.join(",");
    let mut command = Command::new(program);
    command.args(["mount", role]);
    if args.verbose {
        command.arg("--verbose");
    }
    if !list.is_empty() {
        command.args(["-o", &list]);
    }
    if !args.types.is_empty() {
        command.args(["-t", &args.types.join(",")]);
    }
    if options.read_only() {
        command.arg("-r");
    } else if args.options.read_write {
        command.arg("-w");
    }
    command.arg("--").args([volume, mountpoint]);
    command
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

/// Options that this kind of volume does not support are reported together with refused ones, unless the volume is to be
/// read in a sandbox only.
pub fn parse(list: &str, volume: &Path) -> Result<Options, Failure> {
    let kind = |options: &Options| match options.sandbox {
        true => None,
        false => steadfs::probe(&source::device(volume).ok()?, options).ok(),
    };
    Options::parse_by(list, kind).map_err(|error| Failure::new(code::USAGE, error))
}

/// The server changes to `/`: paths must not depend on its working directory.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    if steadfs::is_uri(path) {
        return Ok(path.to_owned());
    }
    path.canonicalize().map_err(|error| {
        let code = match error.kind() {
            ErrorKind::PermissionDenied => code::USAGE,
            _ => code::MOUNT,
        };
        Failure::new(code, format!("{}: {error}", path.display()))
    })
}
