//! Errors of the library as exceptions of Python: an `OSError` with the number that Linux uses for the case, and the path.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::Path;

use pyo3::exceptions::PyOSError;
use pyo3::{PyErr, create_exception};
use steadfs::tools::ToolError;
use steadfs::{Error, FsError, OpenError, VolumeIoError};

create_exception!(
    _steadfs,
    NoVolumeError,
    PyOSError,
    "The image holds no ext2, ext3, ext4 or f2fs volume; the message names what it holds."
);
create_exception!(
    _steadfs,
    CorruptError,
    PyOSError,
    "What was read from the volume failed verification."
);

const EIO: i32 = 5;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const EFBIG: i32 = 27;
const EROFS: i32 = 30;
const EOPNOTSUPP: i32 = 95;
const EUCLEAN: i32 = 117;

fn os_error(errno: i32, text: String, path: Option<&Path>) -> PyErr {
    match (errno, path) {
        (EUCLEAN, Some(path)) => PyErr::new::<CorruptError, _>((errno, text, OsString::from(path))),
        (EUCLEAN, None) => PyErr::new::<CorruptError, _>((errno, text)),
        (_, Some(path)) => PyErr::new::<PyOSError, _>((errno, text, OsString::from(path))),
        (_, None) => PyErr::new::<PyOSError, _>((errno, text)),
    }
}

/// The error of a volume that can only be read.
pub fn only_readable(path: &Path, why: &str) -> PyErr {
    os_error(EROFS, format!("can only be read: {why}"), Some(path))
}

/// The error of something that is in use.
pub fn busy(path: &Path, why: &str) -> PyErr {
    os_error(EBUSY, why.to_owned(), Some(path))
}

fn of_fs(error: &FsError, path: Option<&Path>) -> PyErr {
    os_error(error.errno(), error.to_string(), path)
}

/// The text of an error, which begins with the path.
fn without_path(text: &str, path: &Path) -> String {
    let start = format!("{}: ", path.display());
    text.strip_prefix(&start).unwrap_or(text).to_owned()
}

fn of_open(error: &OpenError) -> PyErr {
    let (path, errno) = match error {
        OpenError::Busy { path, .. } => (path, EBUSY),
        OpenError::WrongKind { path, .. } | OpenError::Empty { path, .. } => (path, EINVAL),
        OpenError::Limited { path, .. } => (path, EFBIG),
        OpenError::NoUring { path, .. } => (path, EOPNOTSUPP),
        OpenError::Io { path, cause, .. } => (path, errno_of(cause)),
    };
    os_error(errno, without_path(&error.to_string(), path), Some(path))
}

/// The exception for an error of a volume as a whole.
pub fn of_volume(error: &Error) -> PyErr {
    const ENOENT: i32 = 2;
    match error {
        Error::Open(error) => of_open(error),
        Error::NoVolume { path, found } => {
            let at = OsString::from(path);
            PyErr::new::<NoVolumeError, _>((EINVAL, found.to_string(), at))
        }
        Error::NoPartition { path, why } => os_error(ENOENT, why.clone(), Some(path)),
        Error::Unchecked { path, why } => {
            os_error(EINVAL, format!("not checked: {why}"), Some(path))
        }
        Error::Volume { path, error } => of_fs(error, Some(path)),
        Error::Mount(error) => os_error(EIO, error.to_string(), None),
    }
}

/// The number of an error of the host, or of one that has only a kind.
fn errno_of(error: &io::Error) -> i32 {
    let of_kind = || match error.kind() {
        ErrorKind::NotFound => 2,
        ErrorKind::PermissionDenied => 13,
        ErrorKind::AlreadyExists => 17,
        ErrorKind::InvalidInput | ErrorKind::InvalidData => EINVAL,
        ErrorKind::StorageFull => 28,
        ErrorKind::ConnectionRefused => 111,
        ErrorKind::TimedOut => 110,
        _ => EIO,
    };
    error.raw_os_error().unwrap_or_else(of_kind)
}

/// The exception for an error of a call.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub fn of_io(error: io::Error) -> PyErr {
    let inner = error.get_ref();
    if let Some(at) = inner.and_then(|inner| inner.downcast_ref::<VolumeIoError>()) {
        return of_fs(&at.source, Some(&at.path));
    }
    if let Some(error) = inner.and_then(|inner| inner.downcast_ref::<FsError>()) {
        return of_fs(error, None);
    }
    if let Some(error) = inner.and_then(|inner| inner.downcast_ref::<Error>()) {
        return of_volume(error);
    }
    if let Some(error) = inner.and_then(|inner| inner.downcast_ref::<ToolError>()) {
        return of_tool(error);
    }
    os_error(errno_of(&error), error.to_string(), None)
}

/// The exception for a file that was not copied.
pub fn of_tool(error: &ToolError) -> PyErr {
    let on_volume = |path: &[u8]| {
        use std::os::unix::ffi::OsStringExt;
        OsString::from_vec(path.to_vec())
    };
    match error {
        ToolError::Volume { path, source } | ToolError::Change { path, source, .. } => {
            of_fs(source, Some(Path::new(&on_volume(path))))
        }
        ToolError::Host { path, source } => {
            os_error(errno_of(source), source.to_string(), Some(path))
        }
        other => {
            let errno = errno_of(&io::Error::from(other.io_kind()));
            os_error(errno, other.to_string(), None)
        }
    }
}
