//! Exit codes and the message of a failed command.

use std::fmt::Display;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use signal_hook::consts::SIGPIPE;

/// The command failed, or the lab found steadfs at fault.
const FAILED: u8 = 1;

/// What ended a command.
#[derive(Debug)]
enum End {
    Code(u8),
    Signal(i32),
}

/// A failed command.
#[derive(Debug)]
pub struct Failure {
    end: End,
    /// Printed to standard error unless it is empty.
    pub message: String,
}

impl Failure {
    /// A failure with exit code 1.
    pub fn new(message: impl Display) -> Self {
        Self::with_code(FAILED, message)
    }

    /// A failure with this exit code.
    pub fn with_code(code: u8, message: impl Display) -> Self {
        Self {
            end: End::Code(code),
            message: message.to_string(),
        }
    }

    /// A command that a signal interrupted and that has cleaned up: the shell shall see the signal.
    pub fn by_signal(signal: i32, message: impl Display) -> Self {
        Self {
            end: End::Signal(signal),
            message: message.to_string(),
        }
    }

    /// Ends the process by the signal, or returns the exit code.
    pub fn exit(&self) -> ExitCode {
        match self.end {
            End::Code(code) => ExitCode::from(code),
            End::Signal(signal) => {
                // Returns only for a signal whose default action is not to terminate.
                let _ = signal_hook::low_level::emulate_default_handler(signal);
                ExitCode::from(FAILED)
            }
        }
    }
}

/// Prints to standard output. If the reader has closed the pipe, the process ends by SIGPIPE without a message.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            drop(out.into_parts());
            Err(Failure::by_signal(SIGPIPE, ""))
        }
        Err(error) => Err(Failure::new(format!(
            "cannot write standard output: {error}"
        ))),
    }
}
