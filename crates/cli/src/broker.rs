//! Mounts by two processes: this one, the broker, mounts and unmounts; its child, the server, reads the volume.
//!
//! `steadfs_fuse::Broker` has the reasons and the messages. What the server prints is shown here line by line, without
//! control characters, and goes to the system's log once the mount is usable: the server has no path to it.

use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};

use signal_hook::iterator::Signals;
use steadfs::{Broker, Commands, Error, MountHandle, Options, broker_sockets};

use crate::daemon::NullDevice;
use crate::failure::{Failure, code, mount_failure};
use crate::{args, log, mount, server, signals};

fn system(error: std::io::Error) -> Failure {
    Failure::new(code::SYSTEM, error)
}

/// Mounts, and waits until the volume is closed.
pub fn run(
    args: &args::Mount,
    options: &Options,
    path: &Path,
    mountpoint: &Path,
) -> Result<(), Failure> {
    let nowhere = leave_session(args, path, mountpoint)?;
    let mut mounting = Mounting {
        args,
        options: options.clone(),
        path,
        mountpoint,
        waiting: Some((signals::catch_signals().map_err(system)?, nowhere)),
    };
    match mounting.serve() {
        Err(failure) if failure.code == server::READ_ONLY_AGAIN => {
            mounting.options.set_read_only(true);
            mounting.serve()
        }
        result => result,
    }
}

/// What a mount is made of.
struct Mounting<'a> {
    args: &'a args::Mount,
    options: Options,
    path: &'a Path,
    mountpoint: &'a Path,
    /// Until the mount is usable: the signals, and what replaces the terminal.
    waiting: Option<(Signals, Option<NullDevice>)>,
}

impl Mounting<'_> {
    /// Starts a server, and serves it until it has ended.
    fn serve(&mut self) -> Result<(), Failure> {
        let (requests, theirs) = broker_sockets().map_err(system)?;
        let (commands, taken) = broker_sockets().map_err(system)?;
        let (path, options) = (self.path.to_owned(), self.options.clone());
        let reopen = move |claim| steadfs::reopen_for_writing(&path, &options, claim);
        let broker = Broker::new(requests, self.mountpoint, Box::new(reopen))
            .map_err(|error| mount_failure(&error.into()))?;
        let mut child = self.start(theirs, taken)?;
        let printer = start_printer(&mut child)?;
        let (path, options) = (self.path, self.options.clone());
        let mut commands = Some(Commands::new(commands));
        let usable = |handle: MountHandle| {
            if let (Some((signals, nowhere)), Some(commands)) =
                (self.waiting.take(), commands.take())
            {
                if let Err(error) = signals::end(signals, handle, move || commands.sync()) {
                    tracing::error!(%error, "cannot create a thread: signals do not unmount this volume");
                }
                leave_terminal(nowhere);
            }
        };
        let how = |facts| steadfs::mount_options(path, &options, facts);
        let failure = broker.run(how, usable);
        let status = child.wait().map_err(system)?;
        if let Some(printer) = printer {
            printer.join();
        }
        match failure {
            Some(error) => Err(mount_failure(&Error::from(error))),
            None => result(status),
        }
    }

    fn start(&self, requests: OwnedFd, commands: OwnedFd) -> Result<Child, Failure> {
        steadfs_rt::close_descriptors_on_exec();
        let mut command = mount::command(
            self.args,
            &self.options,
            "--contained",
            self.path,
            self.mountpoint,
        )?;
        command
            .stdin(requests)
            .stdout(commands)
            .stderr(Stdio::piped())
            // A signal of the terminal is for this process.
            .process_group(0)
            .spawn()
            .map_err(|error| {
                Failure::new(code::SYSTEM, format!("cannot start the server: {error}"))
            })
    }
}

/// Leaves the session of a terminal if this process serves in the background, and starts the log.
pub fn leave_session(
    args: &args::Mount,
    path: &Path,
    mountpoint: &Path,
) -> Result<Option<NullDevice>, Failure> {
    let nowhere = args.serve.then(NullDevice::open_in_new_session);
    let nowhere = nowhere.transpose().map_err(system)?;
    log::start(args.verbose);
    log::serves(path, mountpoint);
    Ok(nowhere)
}

/// The mount is usable: the terminal is released, and the log goes to the system.
pub fn leave_terminal(nowhere: Option<NullDevice>) {
    let Some(nowhere) = nowhere else { return };
    if let Err(error) = nowhere.ready() {
        // The parent has exited: the mount continues, as requested.
        tracing::warn!(%error, "cannot leave the terminal");
    }
    log::to_system();
}

/// The result of a server that has printed its error.
fn result(status: ExitStatus) -> Result<(), Failure> {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    match (code, status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) => Err(Failure::new(code, "")),
        (None, signal) => {
            let signal = signal.unwrap_or(0);
            tracing::error!(
                signal,
                "the server was ended by a signal; for the volume this is a power cut"
            );
            Err(Failure::new(code::SYSTEM, ""))
        }
    }
}

fn start_printer(child: &mut Child) -> Result<Option<steadfs_rt::JoinHandle<()>>, Failure> {
    let pipe = child.stderr.take();
    let printer =
        pipe.map(|pipe| steadfs_rt::try_spawn("server-messages", move || log::show(pipe)));
    printer.transpose().map_err(system)
}
