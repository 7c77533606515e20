//! Mounts by two processes: this one, the broker, mounts and unmounts; its child, the server, reads the volume.
//!
//! `steadfs_fuse::Broker` has the reasons and the messages. What the server prints is shown here line by line, without
//! control characters, and goes to the system's log once the mount is usable: the server has no path to it.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use steadfs::{
    Broker, Commands, Ended, Error, KernelMount, MountHandle, Options, ServedFiles, broker_sockets,
};
use steadfs_rt::Instant;

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
        program: mount::this_program()?,
        ending: signals::Ending::begin().map_err(system)?,
        waiting: Some(nowhere),
    };
    match mounting.serve() {
        Err(failure) if failure.code == server::READ_ONLY_AGAIN => {
            mounting.options.set_read_only(true);
            mounting.serve()
        }
        result => result,
    }
}

/// The program of this process, even if its file has been replaced.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// What a mount is made of.
struct Mounting<'a> {
    args: &'a args::Mount,
    options: Options,
    path: &'a Path,
    mountpoint: &'a Path,
    /// The program of servers.
    program: PathBuf,
    ending: signals::Ending,
    /// Until the mount is usable: what replaces the terminal.
    waiting: Option<Option<NullDevice>>,
}

/// A process that serves.
pub struct Server {
    child: Child,
    printer: Option<steadfs_rt::JoinHandle<()>>,
}

impl Server {
    /// Starts a command of `mount::command`; returns its process with the sockets of its requests and commands.
    pub fn start(mut command: Command) -> Result<(Self, OwnedFd, OwnedFd), Failure> {
        let (requests, theirs) = broker_sockets().map_err(system)?;
        let (commands, taken) = broker_sockets().map_err(system)?;
        steadfs_rt::close_descriptors_on_exec();
        let child = command
            // A preloaded library, such as fakeroot's, makes calls that are refused, and has no task there.
            .env_remove("LD_PRELOAD")
            .stdin(theirs)
            .stdout(taken)
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.map_err(|error| {
            Failure::new(code::SYSTEM, format!("cannot start the server: {error}"))
        })?;
        let printer = start_printer(&mut child)?;
        Ok((Self { child, printer }, requests, commands))
    }

    /// Waits until it has ended and its messages are printed.
    pub fn wait(mut self) -> Result<ExitStatus, Failure> {
        let status = self.child.wait().map_err(system)?;
        if let Some(printer) = self.printer {
            printer.join();
        }
        Ok(status)
    }
}

impl Mounting<'_> {
    /// Starts a server, and serves it and its successors until the mount has ended.
    fn serve(&mut self) -> Result<(), Failure> {
        let (mut server, requests, commands) = self.start(&self.program, "--contained")?;
        let commands = Arc::new(Commands::new(commands));
        let (path, options) = (self.path.to_owned(), self.options.clone());
        let reopen = move |claim| steadfs::reopen_for_writing(&path, &options, claim);
        let mounter = KernelMount::new(self.mountpoint);
        let mounter = Arc::new(mounter.map_err(|error| mount_failure(&error.into()))?);
        let mut broker = Broker::new(
            requests,
            Arc::clone(&commands),
            Arc::<KernelMount>::clone(&mounter),
            Box::new(reopen),
        )
        .with_files(ServedFiles::new(self.path, &self.options));
        let mut succession = Succession::default();
        loop {
            let ended = self.run(&mut broker, &commands, &mounter);
            let status = server.wait()?;
            if let Some(result) = succession.after(ended, status) {
                return result;
            }
            let (requests, commands);
            (server, requests, commands) = self.start_next(&broker, &mut succession)?;
            broker.serve_successor(requests, commands);
        }
    }

    /// Starts the next server. What the host lacks for that, it may have a little later.
    fn start_next(
        &self,
        broker: &Broker,
        succession: &mut Succession,
    ) -> Result<(Server, OwnedFd, OwnedFd), Failure> {
        loop {
            if !broker.is_worth_continuing_after(succession.pause) {
                return Err(not_taken_over());
            }
            let program = match succession.is_own {
                true => Path::new(OWN_PROGRAM),
                false => &self.program,
            };
            // The file may be gone.
            let next = self.start(program, "--successor");
            let next = next.or_else(|_| self.start(Path::new(OWN_PROGRAM), "--successor"));
            match next {
                Err(failure) if succession.has_failed() => {
                    tracing::error!(why = failure.message, "no server can be started yet");
                }
                next => return next,
            }
        }
    }

    fn run(
        &mut self,
        broker: &mut Broker,
        commands: &Arc<Commands>,
        mounter: &Arc<KernelMount>,
    ) -> Ended {
        let (path, options) = (self.path, self.options.clone());
        let ending = &self.ending;
        let usable = |handle: Option<MountHandle>| {
            let Some((handle, nowhere)) = handle.zip(self.waiting.take()) else {
                return;
            };
            let commands = Arc::clone(commands);
            if let Err(error) = ending.usable(handle, move || commands.sync()) {
                tracing::error!(%error, "cannot create a thread: signals do not unmount this volume");
            }
            leave_terminal(nowhere);
        };
        let mounts = |facts| {
            ending.mounts(Arc::<KernelMount>::clone(mounter));
            steadfs::mount_options(path, &options, facts)
        };
        broker.run(mounts, usable)
    }

    /// Starts a server; returns it with the sockets of its requests and commands.
    fn start(&self, program: &Path, role: &str) -> Result<(Server, OwnedFd, OwnedFd), Failure> {
        Server::start(mount::command(
            program,
            self.args,
            &self.options,
            role,
            self.path,
            self.mountpoint,
        ))
    }
}

/// Most servers of a mount that may end in [`RESTARTS_TIME`]: a volume that ends every server shall not occupy
/// the host.
const RESTARTS_MAX: usize = 5;
const RESTARTS_TIME: Duration = Duration::from_secs(60);

/// Pauses between the attempts to continue a mount, in milliseconds. What the device or the host lacks may pass:
/// callers wait in the kernel meanwhile, and a mount that is given up is lost, with what it has acknowledged.
const PAUSES_MS: [u64; 6] = [0, 100, 500, 2000, 10_000, 30_000];
/// Attempts begin within this time, since each may wait for locks as long.
const ATTEMPTS_TIME: Duration = server::LOCKS_TIME;

/// Which program is the next server, and when.
#[derive(Default)]
struct Succession {
    /// The program of this process, because another one could not continue the mount.
    is_own: bool,
    /// When servers have ended without handing over.
    ended: Vec<Instant>,
    /// Attempts in a row that have failed.
    failed: usize,
    /// No attempt begins from then on.
    deadline: Option<Instant>,
    /// Time until the next attempt.
    pause: Duration,
}

impl Succession {
    /// A server has ended. Returns the result of the mount if it has no successor.
    fn after(&mut self, ended: Ended, status: ExitStatus) -> Option<Result<(), Failure>> {
        match ended {
            Ended::WithMount(Some(error)) => {
                return Some(Err(mount_failure(&Error::from(error))));
            }
            Ended::WithMount(None) => return Some(result(status)),
            Ended::HandedOver => self.begin(),
            Ended::Unexpectedly if self.may_restart() => {
                self.begin();
                tracing::error!(%status, "the server has ended; another one continues this mount");
            }
            Ended::Unexpectedly => {
                tracing::error!(
                    "{RESTARTS_MAX} servers have ended within a minute: this mount ends, too"
                );
                return Some(result(status));
            }
            // What one server cannot continue, another one may.
            Ended::NotTakenOver if self.has_failed() => {
                let pause = self.pause;
                tracing::error!(%status, ?pause, "a server could not continue this mount: another one tries");
                self.is_own = true;
            }
            Ended::NotTakenOver => return Some(Err(not_taken_over())),
        }
        None
    }

    /// A server that has served is followed by the program as it is installed now, at once.
    fn begin(&mut self) {
        (self.is_own, self.failed, self.pause) = (false, 0, Duration::ZERO);
        self.deadline = Some(steadfs_rt::now() + ATTEMPTS_TIME);
    }

    /// An attempt has failed. Returns whether there is another one.
    fn has_failed(&mut self) -> bool {
        let in_time = |deadline| steadfs_rt::now() < deadline;
        let pause = PAUSES_MS.get(self.failed);
        // The second one is always made: by the program of this process, if the first one was by another.
        let pause = pause.filter(|_| self.failed == 0 || self.deadline.is_none_or(in_time));
        self.failed += 1;
        self.pause = Duration::from_millis(pause.copied().unwrap_or_default());
        pause.is_some()
    }

    fn may_restart(&mut self) -> bool {
        self.ended.retain(|ended| ended.elapsed() < RESTARTS_TIME);
        self.ended.push(steadfs_rt::now());
        self.ended.len() < RESTARTS_MAX
    }
}

/// After a hand-over everything is written, so this is an unmount that was not requested.
fn not_taken_over() -> Failure {
    let what = "no server could continue the mount, which has ended";
    tracing::error!("{what}");
    Failure::new(code::SYSTEM, what)
}

/// Leaves the session of a terminal if this process serves in the background, and starts the log.
pub fn leave_session(
    args: &args::Mount,
    path: &Path,
    mountpoint: &Path,
) -> Result<Option<NullDevice>, Failure> {
    let nowhere = args.serve.then(NullDevice::open);
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
pub fn result(status: ExitStatus) -> Result<(), Failure> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_half_a_minute_does_not_end_a_mount() {
        let mut succession = Succession::default();
        let ended = ExitStatus::default();
        assert!(succession.after(Ended::Unexpectedly, ended).is_none());
        assert_eq!(
            (succession.pause, succession.is_own),
            (Duration::ZERO, false)
        );
        let mut waited = Duration::ZERO;
        let mut attempts = 0;
        while succession.after(Ended::NotTakenOver, ended).is_none() {
            assert!(succession.is_own, "the program that has served");
            waited += succession.pause;
            attempts += 1;
        }
        assert!(waited > Duration::from_secs(30), "{waited:?}");
        assert!(attempts < 10, "{attempts}");
    }

    /// An attempt may wait for locks as long as all together may take.
    #[test]
    fn no_attempt_follows_one_that_has_waited_for_locks_in_vain() {
        let mut succession = Succession::default();
        let ended = ExitStatus::default();
        assert!(succession.after(Ended::Unexpectedly, ended).is_none());
        assert!(succession.after(Ended::NotTakenOver, ended).is_none());
        succession.deadline = Some(steadfs_rt::now());
        assert!(succession.after(Ended::NotTakenOver, ended).is_some());
    }

    #[test]
    fn a_volume_that_ends_every_server_ends_its_mount() {
        let mut succession = Succession::default();
        let ended = ExitStatus::default();
        let mut served = 0;
        while succession.after(Ended::Unexpectedly, ended).is_none() {
            served += 1;
            assert!(succession.after(Ended::NotTakenOver, ended).is_none());
        }
        assert_eq!(served + 1, RESTARTS_MAX);
    }
}
