//! An open file.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use steadfs::{FallocMode, Seek};

use crate::error::of_io;
use crate::handle::Handle;
use crate::stat::{Stat, stat};

/// Bytes that one call of the library reads; signals are handled between two.
const CHUNK_BYTES: usize = 4 << 20;

/// An open file of a volume, without a position: `steadfs.RawFile` is the one for users.
#[pyclass(frozen, module = "steadfs._steadfs")]
pub struct File(Handle<steadfs::File>);

/// How a file is opened.
#[derive(Clone, Copy)]
pub struct Access {
    pub read: bool,
    pub write: bool,
    pub append: bool,
    pub create: bool,
    pub exclusive: bool,
    pub truncate: bool,
}

impl Access {
    /// From letters as of a mode of `open`: `r`, `w`, `a`, `x`, `+`.
    pub fn parse(mode: &str) -> PyResult<Self> {
        let has = |letter| mode.contains(letter);
        let ways = ['r', 'w', 'a', 'x'].into_iter().filter(|way| has(*way));
        let known = mode.chars().all(|letter| "rwax+".contains(letter));
        if !known || ways.count() != 1 {
            let why = format!("the mode is r, w, a or x, and +; {mode:?} is none");
            return Err(PyValueError::new_err(why));
        }
        Ok(Self {
            read: has('r') || has('+'),
            write: has('w') || has('x') || (has('r') && has('+')),
            append: has('a'),
            create: has('w') || has('a'),
            exclusive: has('x'),
            truncate: has('w'),
        })
    }
}

impl File {
    pub fn open(
        volume: &steadfs::Volume,
        path: &[u8],
        access: Access,
        permissions: u32,
    ) -> PyResult<Self> {
        let path = Path::new(OsStr::from_bytes(path));
        let opened = volume
            .open_file()
            .read(access.read)
            .write(access.write)
            .append(access.append)
            .create(access.create)
            .create_new(access.exclusive)
            .truncate(access.truncate)
            .permissions(permissions)
            .open(path);
        opened
            .map(|file| Self(Handle::new("file", file)))
            .map_err(of_io)
    }
}

/// Reads up to `len` bytes from `offset`, fewer only at the end of the file.
fn read_from(py: Python<'_>, file: &steadfs::File, len: usize, offset: u64) -> PyResult<Vec<u8>> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let (done, now) = (bytes.len(), CHUNK_BYTES.min(len - bytes.len()));
        let no_memory = |_| PyMemoryError::new_err(format!("no memory for {} bytes", done + now));
        bytes.try_reserve(now).map_err(no_memory)?;
        bytes.resize(done + now, 0);
        let part = &mut bytes[done..];
        let at = offset.saturating_add(done as u64);
        let read = py.detach(|| file.read_at(part, at)).map_err(of_io)?;
        bytes.truncate(done + read);
        if read < now {
            break;
        }
        py.check_signals()?;
    }
    Ok(bytes)
}

#[pymethods]
impl File {
    /// Reads up to this many bytes, fewer only at the end of the file; -1: all.
    fn read_at<'py>(
        &self,
        py: Python<'py>,
        len: i64,
        offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.0.get()?;
        let size = py.detach(|| file.metadata()).map_err(of_io)?.len();
        let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(left);
        Ok(PyBytes::new(py, &read_from(py, &file, len, offset)?))
    }

    /// Writes all of the buffer at `offset`.
    fn write_at(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let file = self.0.get()?;
        with_bytes(buffer, |bytes| {
            py.detach(|| file.write_at(bytes, offset)).map_err(of_io)?;
            Ok(bytes.len())
        })
    }

    /// Writes all of the buffer at the end. Returns where it begins.
    fn append(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<u64> {
        let file = self.0.get()?;
        with_bytes(buffer, |bytes| {
            py.detach(|| file.append(bytes)).map_err(of_io)
        })
    }

    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        let file = self.0.get()?;
        let found = py.detach(|| file.metadata()).map_err(of_io)?;
        Ok(found.len())
    }

    fn stat(&self, py: Python<'_>) -> PyResult<Stat> {
        let file = self.0.get()?;
        let found = py.detach(|| file.metadata()).map_err(of_io)?;
        Ok(stat(&found))
    }

    fn set_len(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        let file = self.0.get()?;
        py.detach(|| file.set_len(size)).map_err(of_io)
    }

    /// The next data (or hole) at or after `offset`.
    fn seek_to(&self, py: Python<'_>, hole: bool, offset: u64) -> PyResult<Option<u64>> {
        let file = self.0.get()?;
        let what = if hole { Seek::Hole } else { Seek::Data };
        py.detach(|| file.seek_to(what, offset)).map_err(of_io)
    }

    /// Allocates a range of bytes (`allocate`), or makes a hole of it (`punch`).
    fn allocate(&self, py: Python<'_>, punch: bool, offset: u64, len: u64) -> PyResult<()> {
        let file = self.0.get()?;
        let mode = match punch {
            true => FallocMode::PunchHole,
            false => FallocMode::Allocate { keep_size: false },
        };
        py.detach(|| file.allocate(mode, offset, len))
            .map_err(of_io)
    }

    fn sync(&self, py: Python<'_>, data_only: bool) -> PyResult<()> {
        let file = self.0.get()?;
        let synced = py.detach(|| match data_only {
            true => file.sync_data(),
            false => file.sync_all(),
        });
        synced.map_err(of_io)
    }

    fn close(&self, py: Python<'_>) {
        // In a forked child there is nothing to close.
        if let Ok(Some(file)) = self.0.take() {
            // An unlinked file is freed here, which takes I/O.
            py.detach(|| drop(file));
        }
    }
}

/// Calls `work` with the bytes of a buffer: those of `bytes` in place, others copied, because they could change meanwhile.
fn with_bytes<T>(
    buffer: &Bound<'_, PyAny>,
    work: impl FnOnce(&[u8]) -> PyResult<T>,
) -> PyResult<T> {
    if let Ok(bytes) = buffer.cast::<PyBytes>() {
        return work(bytes.as_bytes());
    }
    let whole = buffer.py().import("builtins")?.getattr("memoryview")?;
    let whole = whole.call1((buffer,))?.call_method1("tobytes", ())?;
    work(whole.cast::<PyBytes>()?.as_bytes())
}
