//! How a file becomes a device, and why it does not.

use std::path::PathBuf;

use thiserror::Error;

/// How a file is opened as a device.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Read-only: other readers may have it open, too.
    pub read_only: bool,
    /// Bypass the host's page cache if the file supports it.
    pub direct: bool,
    /// If direct, too: small reads go through the page cache, where the kernel reads ahead and other programs may have read
    /// them. For a device that is only read, once.
    pub cached_small_reads: bool,
    /// The device begins at this byte of the file.
    pub offset: u64,
    /// Longest size of the device in bytes.
    pub sizelimit: Option<u64>,
    /// How requests are passed to the kernel.
    pub engine: Engine,
    /// Claim a block device with O_EXCL. Without it, the kernel's mount of ours claims it.
    pub claim: bool,
    /// The caller has the file open for writing, and so locked, for another part of it: this one is only read, without a
    /// lock of its own.
    pub beside: bool,
    /// Create an image file of this size in bytes if there is none; extend a shorter one.
    pub create: Option<u64>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            direct: true,
            cached_small_reads: false,
            offset: 0,
            sizelimit: None,
            engine: Engine::Auto,
            claim: true,
            beside: false,
            create: None,
        }
    }
}

/// How requests are passed to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Engine {
    /// io_uring for direct I/O if the kernel permits it, otherwise threads.
    #[default]
    Auto,
    /// Several requests at a time per thread through io_uring.
    Uring,
    /// One system call for each request.
    Threads,
}

/// Why a file could not be opened as a device.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another program or the kernel uses it.
    #[error("{path}: in use by {holder}", path = path.display())]
    Busy {
        /// The file.
        path: PathBuf,
        /// The holder, as far as known.
        holder: String,
    },
    /// Neither a regular file nor a block device.
    #[error("{path}: is {what}, not an image file or block device", path = path.display())]
    WrongKind {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The window has less than one sector of the file.
    #[error("{path}: {why}", path = path.display(), why = emptiness(*size, *offset))]
    Empty {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// The window's first byte.
        offset: u64,
    },
    /// The volume is larger than this process's limit of file sizes.
    #[error("{path}: has {end} bytes, above the limit of file sizes, {limit} (see ulimit -f)", path = path.display())]
    Limited {
        /// The file.
        path: PathBuf,
        /// End of the window, or of the file.
        end: u64,
        /// The soft limit of file sizes.
        limit: u64,
    },
    /// The selected engine is not available.
    #[error("{path}: cannot use io_uring: {reason}", path = path.display())]
    NoUring {
        /// The file.
        path: PathBuf,
        /// Why the kernel refuses it.
        reason: String,
    },
    /// A system call failed.
    #[error("{path}: {what}: {cause}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What failed.
        what: &'static str,
        /// The system's error.
        cause: std::io::Error,
    },
}

fn emptiness(size: u64, offset: u64) -> String {
    match (size, offset) {
        (0, _) => "is empty".to_owned(),
        (_, 0) => format!("has only {size} bytes"),
        _ => format!("has only {size} bytes, none after offset {offset}"),
    }
}

impl OpenError {
    /// The kind of this error in [`std::io`].
    pub fn io_kind(&self) -> std::io::ErrorKind {
        match self {
            Self::Busy { .. } => std::io::ErrorKind::ResourceBusy,
            Self::WrongKind { .. } | Self::Empty { .. } => std::io::ErrorKind::InvalidInput,
            Self::Limited { .. } => std::io::ErrorKind::FileTooLarge,
            Self::NoUring { .. } => std::io::ErrorKind::Unsupported,
            Self::Io { cause, .. } => cause.kind(),
        }
    }
}
