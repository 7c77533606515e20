//! Runs programs with a time limit.

use std::ffi::OsStr;
use std::io::{self, ErrorKind, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The result of a program that has exited.
#[derive(Debug)]
pub struct Outcome {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
    /// The command line, for messages.
    pub line: String,
}

impl Outcome {
    /// The exit code, or 128 and the signal's number.
    pub fn code(&self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        let signal = self.status.signal().unwrap_or(0);
        self.status.code().unwrap_or(128 + signal)
    }

    /// Fails the test unless the exit code is `code`.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code(), code, "{}\n{}{}", self.line, self.out, self.err);
        self
    }
}

/// Longest time of a judge.
const LIMIT: Duration = Duration::from_secs(1200);
/// Longest wait for an effect that another program or the kernel has shortly after a call: 1000 times what it takes on
/// an idle machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A program that the tests need, by name.
///
/// # Panics
/// If it is not installed.
#[track_caller]
pub fn judge(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.cache/judges/bin"));
    let sbin = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(sbin)
        .chain([own])
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
        .unwrap_or_else(|| panic!("{name} is not installed: run scripts/install-judges"))
}

/// Runs a judge to its end.
///
/// # Panics
/// If it is not installed or takes too long.
#[track_caller]
pub fn run<I, S>(name: &str, args: I) -> Outcome
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut command = Command::new(judge(name));
    command.args(args);
    finish(command, LIMIT)
}

/// Runs a judge that must succeed.
///
/// # Panics
/// If it does not.
#[track_caller]
pub fn succeed<I, S>(name: &str, args: I) -> Outcome
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    run(name, args).expect(0)
}

/// Starts a program, which a test may just have copied: a process that another test forks meanwhile has the copy open for
/// writing until it runs its own program.
fn start(command: &mut Command) -> io::Result<Child> {
    let end = Instant::now() + PATIENCE;
    loop {
        match command.spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy && Instant::now() < end => {
                thread::sleep(Duration::from_millis(10));
            }
            started => return started,
        }
    }
}

/// Runs `command` to its end, at most for `limit`.
///
/// # Panics
/// If it cannot be started, or if it exceeds the limit (it is then killed).
#[track_caller]
pub fn finish(mut command: Command, limit: Duration) -> Outcome {
    let line = format!("{command:?}");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = start(&mut command).unwrap_or_else(|e| panic!("{line}: {e}"));
    let out = drain(child.stdout.take());
    let err = drain(child.stderr.take());
    let status =
        wait(&mut child, limit).unwrap_or_else(|| panic!("{line}: not finished after {limit:?}"));
    Outcome {
        status,
        out: out.join().unwrap_or_default(),
        err: err.join().unwrap_or_default(),
        line,
    }
}

/// Waits until `ready` returns true.
///
/// # Panics
/// If it does not within [`PATIENCE`].
#[track_caller]
pub fn until(what: &str, mut ready: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !ready() {
        assert!(Instant::now() < end, "never happened: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for the exit of `child`; kills it and returns `None` after `limit`.
pub fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_micros(200);
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= end {
            // Both fail only if it has just exited.
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What was read before an error is still useful.
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
