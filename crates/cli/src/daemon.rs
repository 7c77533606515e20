//! Going to the background: another run of this program serves, this one waits until the mount is
//! usable and then ends with the exit code that tells.
//!
//! The child's standard output is the way it says "ready"; its standard error is ours until then.
//! So nothing is forked in the middle of a program with threads, and whatever goes wrong before the
//! mount is usable is seen where the command was typed.

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

/// In the child, before anything else: leaves the terminal's session, so that its signals stay away.
pub fn leave_session() {
    // Fails only for the leader of a group, which a child of `start` is not.
    let _ = rustix::process::setsid();
}

/// In the child: says that the mount is usable and lets the terminal and the current folder go.
///
/// # Errors
/// If the parent or /dev/null is gone.
pub fn ready() -> std::io::Result<()> {
    let mut out = std::io::stdout();
    out.write_all(READY)?;
    out.flush()?;
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    std::env::set_current_dir("/")
}
