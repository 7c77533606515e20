//! A failed command: its exit code and message.

use std::fmt::Display;
use std::process::ExitCode;

use steadfs::{Error, MountError, OpenError};
use steadfs_vfs::FsError;

/// Exit codes; those of mounting are mount(8)'s.
pub mod code {
    /// A command other than mount and umount failed.
    pub const FAILED: u8 = 1;
    /// Wrong call or missing permission.
    pub const USAGE: u8 = 1;
    /// Arguments that no command takes; of commands other than mount and umount.
    pub const WORDS: u8 = 2;
    /// A resource of the system is missing, such as /dev/fuse or memory.
    pub const SYSTEM: u8 = 2;
    /// Mounting or unmounting failed.
    pub const MOUNT: u8 = 32;
}

/// Shells show a termination by a signal as 128 plus its number.
const SIGNALLED: u8 = 128;

/// A failed command.
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

    /// A command that a signal interrupted and that has cleaned up: the shell shall see the signal.
    pub fn by_signal(signal: i32, message: impl Display) -> Self {
        let code = u8::try_from(signal).map_or(code::FAILED, |signal| SIGNALLED | signal);
        Self::new(code, message)
    }

    /// Whether a signal interrupted the command.
    pub fn is_signal(&self) -> bool {
        self.code & SIGNALLED != 0
    }

    /// Ends the process by the signal, or returns the exit code.
    pub fn exit(&self) -> ExitCode {
        if self.is_signal() {
            let signal = i32::from(self.code & !SIGNALLED);
            // Returns only for a signal whose default action is not to terminate; the code shows the same.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
        ExitCode::from(self.code)
    }

    /// A failure of a command other than mount and umount.
    pub fn plain(message: impl Display) -> Self {
        Self::new(code::FAILED, message)
    }
}

/// mount(8)'s exit code for an error of opening or mounting.
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
            // fusermount3 refused it: this user lacks the permission.
            MountError::Helper(_) => code::USAGE,
            _ => code::MOUNT,
        },
        _ => code::MOUNT,
    };
    Failure::new(code, format!("{error}{}", hint(error)))
}

/// A hint for an error whose message contains none.
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
