//! Runs the server in the background: another process of this program serves; this one waits until the mount is usable
//! and then ends with the matching exit code.
//!
//! The child reports readiness on its standard output; until then its standard error is ours. So no process with
//! threads forks, and an error before the mount is usable appears where the command was typed.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use crate::failure::{Failure, code};

const READY: &[u8] = b"ready\n";

/// Runs `command` (this program with `--serve`) until it is ready or ends. Returns when the mount is usable.
///
/// # Errors
/// The child's exit code, if it ended before; it has printed the error itself.
pub fn start(mut command: Command) -> Result<(), Failure> {
    let system = |error| Failure::new(code::SYSTEM, format!("cannot start the server: {error}"));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    steadfs_rt::close_descriptors_on_exec();
    let mut child = command.spawn().map_err(system)?;
    let mut received = Vec::new();
    if let Some(mut pipe) = child.stdout.take() {
        let mut byte = [0];
        while received.len() < READY.len() && pipe.read(&mut byte).map_err(system)? == 1 {
            received.push(byte[0]);
        }
    }
    if received == READY {
        return Ok(());
    }
    let status = child.wait().map_err(system)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    match code {
        Some(code) if code != 0 => Err(Failure::new(code, "")),
        _ => Err(Failure::new(
            code::SYSTEM,
            format!("the server ended before the mount was usable ({status})"),
        )),
    }
}

/// /dev/null, which replaces the terminal or pipe of a child of [`start`]. Opened before anything else: later there may
/// be no descriptor left, and the reader of that pipe waits for its end.
pub struct NullDevice(File);

impl NullDevice {
    /// In the child, before anything else.
    ///
    /// # Errors
    /// /dev/null cannot be opened.
    pub fn open() -> std::io::Result<Self> {
        let null = File::options().read(true).write(true).open("/dev/null");
        null.map(Self)
    }

    /// In the child: leaves the terminal's session, so that its signals are not received, reports that the mount is usable, and
    /// releases the terminal and the working directory.
    ///
    /// The process stays in its group until then: while autofs waits for a mount, only processes of the group of systemd or
    /// automount(8) can look up the mount point, and others wait for it.
    ///
    /// # Errors
    /// The parent has exited. The terminal is released in any case.
    pub fn ready(self) -> std::io::Result<()> {
        // Fails only for a process group leader, which a child of `start` is not.
        let _ = rustix::process::setsid();
        let mut out = std::io::stdout();
        let reported = out.write_all(READY).and_then(|()| out.flush());
        rustix::stdio::dup2_stdout(&self.0)?;
        rustix::stdio::dup2_stderr(&self.0)?;
        std::env::set_current_dir("/")?;
        reported
    }
}
