//! Going to the background: another run of this program serves, this one waits until the mount is
//! usable and then ends with the exit code that tells.
//!
//! The child's standard output is the way it says "ready"; its standard error is ours until then.
//! So nothing is forked in the middle of a program with threads, and whatever goes wrong before the
//! mount is usable is seen where the command was typed.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use crate::failure::{Failure, code};

const READY: &[u8] = b"ready\n";

/// Runs `command` (this program with `--serve`) until it is ready or ends. Returns when the mount is
/// usable.
///
/// # Errors
/// The child's exit code, when it ended before; it has said why itself.
pub fn start(mut command: Command) -> Result<(), Failure> {
    let system = |error| Failure::new(code::SYSTEM, format!("cannot start the server: {error}"));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    steadfs_rt::close_descriptors_on_exec();
    let mut child = command.spawn().map_err(system)?;
    let mut said = Vec::new();
    if let Some(mut pipe) = child.stdout.take() {
        let mut byte = [0];
        while said.len() < READY.len() && pipe.read(&mut byte).map_err(system)? == 1 {
            said.push(byte[0]);
        }
    }
    if said == READY {
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

/// What a child of [`start`] puts in the place of its caller's terminal or pipe. Opened before anything else: later
/// there may be no descriptor left, and whoever reads that pipe waits for its end.
pub struct Nowhere(File);

impl Nowhere {
    /// In the child, before anything else: leaves the terminal's session, so that its signals stay away.
    ///
    /// # Errors
    /// /dev/null cannot be opened.
    pub fn leave_session() -> std::io::Result<Self> {
        // Fails only for the leader of a group, which a child of `start` is not.
        let _ = rustix::process::setsid();
        let null = File::options().read(true).write(true).open("/dev/null");
        null.map(Self)
    }

    /// In the child: says that the mount is usable and lets the terminal and the current folder go.
    ///
    /// # Errors
    /// The parent is gone. The terminal is let go all the same.
    pub fn ready(self) -> std::io::Result<()> {
        let mut out = std::io::stdout();
        let told = out.write_all(READY).and_then(|()| out.flush());
        rustix::stdio::dup2_stdout(&self.0)?;
        rustix::stdio::dup2_stderr(&self.0)?;
        std::env::set_current_dir("/")?;
        told
    }
}
