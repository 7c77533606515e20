//! How a command ends badly: an exit code and a sentence.

use std::fmt::Display;
use std::process::ExitCode;

use steadfs::{Error, MountError, OpenError};
use steadfs_vfs::FsError;

/// Exit codes; those of mounting are mount(8)'s.
pub mod code {
    /// A command that is not about mounting failed.
    pub const FAILED: u8 = 1;
    /// Wrong call or missing permission.
    pub const USAGE: u8 = 1;
    /// Words that no command takes; of commands that are not about mounting.
    pub const WORDS: u8 = 2;
    /// The system lacks something, such as /dev/fuse or memory.
    pub const SYSTEM: u8 = 2;
    /// Mounting or unmounting failed.
    pub const MOUNT: u8 = 32;
}

/// Shells show the end by a signal as 128 and its number.
const SIGNALLED: u8 = 128;

/// A command's bad end.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub message: String,
}

impl Failure {
    pub fn new(code: u8, message: impl Display) -> Self {
        let message = message.to_string();
        Self { code, message }
    }

    /// The end of a command that a signal ended, once it has left everything in order: shells are to
    /// see the signal.
    pub fn by_signal(signal: i32, message: impl Display) -> Self {
        let code = u8::try_from(signal).map_or(code::FAILED, |signal| SIGNALLED | signal);
        Self::new(code, message)
    }

    /// Whether a signal ended the command.
    pub fn is_signal(&self) -> bool {
        self.code & SIGNALLED != 0
    }

    /// Ends the program as the signal does, or gives its exit code.
    pub fn exit(&self) -> ExitCode {
        if self.is_signal() {
            let signal = i32::from(self.code & !SIGNALLED);
            // Does not return, except for signals that end nothing; the code says the same.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
        ExitCode::from(self.code)
    }

    /// For commands that are not about mounting.
    pub fn plain(message: impl Display) -> Self {
        Self::new(code::FAILED, message)
    }
}

/// The exit code that mount(8) has for an error of opening or mounting.
pub fn mount_failure(error: &Error) -> Failure {
    use std::io::ErrorKind::PermissionDenied;
    let code = match error {
        Error::Open(OpenError::Io { cause, .. }) if cause.kind() == PermissionDenied => code::USAGE,
        Error::Volume {
            error: FsError::NoMemory | FsError::NoThread(_),
            ..
        } => code::SYSTEM,
        Error::Mount(error) => match error {
            MountError::Device(_)
            | MountError::NoHelper
            | MountError::Threads(_)
            | MountError::OldKernel { .. } => code::SYSTEM,
            // What fusermount3 refuses, this user may not do.
            MountError::Helper(_) => code::USAGE,
            _ => code::MOUNT,
        },
        _ => code::MOUNT,
    };
    Failure::new(code, format!("{error}{}", hint(error)))
}

/// The way out of an error, where what is wrong does not say it.
fn hint(error: &Error) -> &'static str {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    match error {
        Error::Open(OpenError::Io { path, cause, .. })
            if matches!(cause.kind(), PermissionDenied | ReadOnlyFilesystem)
                && std::fs::File::open(path).is_ok() =>
        {
            " (it can be read: -o ro mounts it read-only)"
        }
        _ => "",
    }
}
