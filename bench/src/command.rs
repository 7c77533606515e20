//! Runs the programs that do the work.

use std::process::{Command, Stdio};

use steadfs_suite::judge;

use crate::Result;

/// A program of the host, by name.
pub fn program(name: &str) -> Command {
    Command::new(judge(name))
}

/// Runs `command` to its end; returns its output.
pub fn output(command: &mut Command) -> Result<String> {
    let result = command.stdin(Stdio::null()).output()?;
    if !result.status.success() {
        let err = String::from_utf8_lossy(&result.stderr);
        return Err(format!("{command:?}: {}: {}", result.status, err.trim()).into());
    }
    Ok(String::from_utf8_lossy(&result.stdout).into_owned())
}

/// Runs `command` to its end; discards its output.
pub fn quietly(command: &mut Command) -> Result<()> {
    command.stdout(Stdio::null());
    output(command).map(drop)
}
