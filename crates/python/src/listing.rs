//! Names in directories and trees, in batches.

use std::os::unix::ffi::OsStrExt;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::of_io;
use crate::handle::Handle;
use crate::stat::{Stat, stat};

/// Entries that are read at a time; signals are handled between two batches.
const BATCH: usize = 256;

/// An iterator that one thread uses at a time.
struct Turns<T>(Handle<T>);

impl<T: Send + Sync> Turns<T> {
    /// Calls `work` with the iterator, without the interpreter's lock.
    fn with<R: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut T) -> R + Send) -> PyResult<R> {
        let in_use = || PyValueError::new_err("another thread uses this iterator, or it is closed");
        let mut taken = self.0.take()?.ok_or_else(in_use)?;
        let done = match std::sync::Arc::get_mut(&mut taken) {
            Some(iterator) => py.detach(|| work(iterator)),
            None => return Err(in_use()),
        };
        self.0.put_back(taken);
        Ok(done)
    }
}

/// What comes before an error, and the error.
fn until_error<T>(
    all: impl Iterator<Item = std::io::Result<T>>,
) -> (Vec<T>, Option<std::io::Error>) {
    let mut found = Vec::new();
    for one in all {
        match one {
            Ok(one) => found.push(one),
            Err(error) => return (found, Some(error)),
        }
    }
    (found, None)
}

/// A name, its inode number, its type as in `st_mode`.
type Entry<'py> = (Bound<'py, PyBytes>, u64, u32);

/// The names in a directory.
#[pyclass(frozen, module = "steadfs._steadfs")]
pub struct Listing(Turns<steadfs::ReadDir>);

impl Listing {
    pub fn new(listed: steadfs::ReadDir) -> Self {
        Self(Turns(Handle::new("directory", listed)))
    }
}

#[pymethods]
impl Listing {
    /// The next names, and the error that the batch ended with. Neither at the end.
    fn batch<'py>(&self, py: Python<'py>) -> PyResult<(Vec<Entry<'py>>, Option<Py<PyAny>>)> {
        let (found, error) = self.0.with(py, |listed| {
            let entry = |entry: std::io::Result<steadfs::DirEntry>| {
                let entry = entry?;
                let kind = entry.file_type()?.mode_bits();
                let name = entry.file_name().as_bytes().to_vec();
                Ok((name, entry.ino().0, kind))
            };
            until_error(listed.take(BATCH).map(entry))
        })?;
        let entry = |(name, ino, kind): (Vec<u8>, u64, u32)| (PyBytes::new(py, &name), ino, kind);
        let error = error.map(|error| of_io(error).into_value(py).into_any());
        Ok((found.into_iter().map(entry).collect(), error))
    }
}

/// A path, its inode number, its type as in `st_mode`, its attributes; or an error.
type Step<'py> = (Bound<'py, PyBytes>, u64, u32, Option<Stat>);

/// The files below a directory.
#[pyclass(frozen, module = "steadfs._steadfs")]
pub struct Walk {
    walk: Turns<steadfs::Walk>,
    attributes: bool,
}

impl Walk {
    pub fn new(walk: steadfs::Walk, attributes: bool) -> Self {
        let walk = Turns(Handle::new("walk", walk));
        Self { walk, attributes }
    }
}

#[pymethods]
impl Walk {
    /// The next files, and the error that the batch ended with. Neither at the end.
    fn batch<'py>(&self, py: Python<'py>) -> PyResult<(Vec<Step<'py>>, Option<Py<PyAny>>)> {
        let attributes = self.attributes;
        let (found, error) = self.walk.with(py, |walk| {
            let step = |step: std::io::Result<_>| {
                let step: steadfs::WalkEntry = step?;
                let found = attributes.then(|| step.metadata()).transpose()?;
                let path = step.path().into_os_string();
                let kind = step.file_type().mode_bits();
                Ok((path, step.ino().0, kind, found.as_ref().map(stat)))
            };
            until_error(walk.take(BATCH).map(step))
        })?;
        let step = |(path, ino, kind, stat): (std::ffi::OsString, u64, u32, Option<Stat>)| {
            (PyBytes::new(py, path.as_bytes()), ino, kind, stat)
        };
        let error = error.map(|error| of_io(error).into_value(py).into_any());
        Ok((found.into_iter().map(step).collect(), error))
    }
}
