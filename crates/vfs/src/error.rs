//! Errors of file-system calls, and the one table of error numbers.

use std::fmt;

use steadfs_base::Corruption;
use thiserror::Error;

use crate::SHUT_DOWN;

/// Result of a file-system call.
pub type Result<T, E = FsError> = std::result::Result<T, E>;

/// Why a file-system call failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FsError {
    /// No such name or inode.
    #[error("no such file or directory")]
    NotFound,
    /// The name exists already.
    #[error("file exists")]
    Exists,
    /// The operation requires a directory.
    #[error("not a directory")]
    NotDir,
    /// The operation does not accept a directory.
    #[error("is a directory")]
    IsDir,
    /// The directory has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// No block or inode is free.
    #[error("no space left on volume")]
    NoSpace,
    /// A limit of the format or of an option: free space does not help.
    #[error("no room for {0}")]
    NoRoom(&'static str),
    /// The quota is used up.
    #[error("quota exceeded")]
    Quota,
    /// The volume is read-only.
    #[error("volume is read-only")]
    ReadOnly,
    /// The volume can only be read and was opened for writing, with the reason.
    #[error("can only be read: {0}")]
    OnlyReadable(String),
    /// The operation is not allowed on this inode (immutable, append-only, …).
    #[error("operation not permitted")]
    NotPermitted,
    /// Permission bits deny it.
    #[error("permission denied")]
    Access,
    /// A name longer than 255 bytes or a link target longer than a block.
    #[error("file name too long")]
    NameTooLong,
    /// An argument is invalid; which one.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// A mount option or control value is invalid, with the reason.
    #[error("{0}")]
    BadOption(String),
    /// The link count has reached its limit.
    #[error("too many links")]
    TooManyLinks,
    /// A path leads through more symbolic links than are followed.
    #[error("too many levels of symbolic links")]
    Loop,
    /// The file would grow past the format's limit.
    #[error("file too large")]
    FileTooBig,
    /// No such extended attribute, or no data after the offset (ENXIO is [`FsError::NoSuchOffset`]).
    #[error("no data available")]
    NoData,
    /// SEEK_DATA or SEEK_HOLE past the end of the file.
    #[error("offset past the end of the file")]
    NoSuchOffset,
    /// The result does not fit the caller's buffer, or the value the format.
    #[error("result too large")]
    Range,
    /// An attribute value is larger than the limit.
    #[error("argument too large")]
    TooBig,
    /// The operation or flag is not supported; which one.
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// Names on two volumes.
    #[error("not on the same volume")]
    CrossDevice,
    /// In use.
    #[error("busy")]
    Busy,
    /// The file is open for writing although it becomes a verity file, or the other way round.
    #[error("text file busy: it is open for writing, or about to become a verity file")]
    TextBusy,
    /// Another program or another machine uses the volume; which one.
    #[error("{0}")]
    InUse(String),
    /// Temporarily impossible, with the reason.
    #[error("try again: {0}")]
    Again(&'static str),
    /// The host refused another thread, with the reason.
    #[error("cannot create a thread: {0} (see ulimit -u)")]
    NoThread(String),
    /// The inode number is no longer valid.
    #[error("stale file handle")]
    Stale,
    /// An encrypted name or file without its key.
    #[error("required key not available")]
    NoKey,
    /// The file is not open for writing, or not open at all.
    #[error("bad file descriptor (not open for writing)")]
    NotOpenForWriting,
    /// Interrupted by a signal.
    #[error("interrupted")]
    Interrupted,
    /// Out of memory within the budget.
    #[error("out of memory")]
    NoMemory,
    /// An error has made the volume read-only, and the call would change it; the first cause.
    #[error("volume was made read-only by an error: {0}")]
    TurnedReadOnly(String),
    /// The volume was shut down or aborted; the first cause.
    #[error("volume stopped: {0}")]
    Stopped(String),
    /// The device failed; which access.
    #[error("I/O error: {0}")]
    Io(String),
    /// Content of the volume failed verification.
    #[error("volume is corrupt: {0}")]
    Corrupt(Box<Corruption>),
    /// An error of a volume that another process serves.
    #[error("{text}")]
    Elsewhere {
        /// Its number.
        errno: i32,
        /// Its text.
        text: String,
    },
}

impl From<FsError> for std::io::Error {
    fn from(error: FsError) -> Self {
        Self::new(error.io_kind(), error)
    }
}

impl FsError {
    /// From the host's refusal of a thread.
    pub fn no_thread(error: impl fmt::Display) -> Self {
        let why = error.to_string();
        // The number behind the host's error texts adds nothing.
        let words = why.split(" (os error").next().unwrap_or_default();
        Self::NoThread(words.to_owned())
    }

    /// The error of a call that would change a volume which stopped for `cause`: as of ext4 in Linux, EROFS after an
    /// error and EIO after a requested shutdown.
    pub fn refused(cause: &str) -> Self {
        match cause {
            SHUT_DOWN => Self::Stopped(cause.to_owned()),
            _ => Self::TurnedReadOnly(cause.to_owned()),
        }
    }

    /// The same where written data is not durable: EIO, because fsync(2) documents EROFS for files that support no
    /// synchronization, and some programs ignore it.
    pub fn not_durable(self) -> Self {
        match self {
            Self::TurnedReadOnly(cause) => Self::Stopped(cause),
            other => other,
        }
    }

    /// The same with the inode named, where content of a file could not be read.
    #[must_use]
    pub fn of_file(self, ino: impl std::fmt::Display) -> Self {
        match self {
            Self::Io(what) => Self::Io(format!("inode {ino}: {what}")),
            other => other,
        }
    }

    /// Whether the call found the volume stopped.
    pub const fn is_stop(&self) -> bool {
        matches!(self, Self::Stopped(_) | Self::TurnedReadOnly(_))
    }

    /// What failed verification, if that is the cause.
    pub fn corruption(&self) -> Option<&Corruption> {
        match self {
            Self::Corrupt(corruption) => Some(corruption),
            _ => None,
        }
    }

    /// The kind of this error in [`std::io`].
    pub fn io_kind(&self) -> std::io::ErrorKind {
        std::io::Error::from_raw_os_error(self.errno()).kind()
    }

    /// Whether content of the volume failed verification.
    pub fn is_corruption(&self) -> bool {
        matches!(self, Self::Corrupt(_))
    }

    /// The error number that Linux uses for this case (asm-generic values, as on x86 and ARM).
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotPermitted => 1,
            Self::NotFound => 2,
            Self::Interrupted => 4,
            Self::Io(_) | Self::Stopped(_) => 5,
            Self::NoSuchOffset => 6,
            Self::TooBig => 7,
            Self::NotOpenForWriting => 9,
            Self::Again(_) | Self::NoThread(_) => 11,
            Self::NoMemory => 12,
            Self::Access => 13,
            Self::Busy | Self::InUse(_) => 16,
            Self::Exists => 17,
            Self::CrossDevice => 18,
            Self::NotDir => 20,
            Self::IsDir => 21,
            Self::Invalid(_) | Self::BadOption(_) => 22,
            Self::TextBusy => 26,
            Self::FileTooBig => 27,
            Self::NoSpace | Self::NoRoom(_) => 28,
            Self::ReadOnly | Self::OnlyReadable(_) | Self::TurnedReadOnly(_) => 30,
            Self::TooManyLinks => 31,
            Self::Range => 34,
            Self::NameTooLong => 36,
            Self::NotEmpty => 39,
            Self::Loop => 40,
            Self::NoData => 61,
            Self::NotSupported(_) => 95,
            Self::Stale => 116,
            // EUCLEAN: what ext4 and f2fs return for damaged structures.
            Self::Corrupt(_) => 117,
            Self::Quota => 122,
            Self::NoKey => 126,
            Self::Elsewhere { errno, .. } => *errno,
        }
    }
}

impl From<Corruption> for FsError {
    fn from(corruption: Corruption) -> Self {
        Self::Corrupt(Box::new(corruption))
    }
}
