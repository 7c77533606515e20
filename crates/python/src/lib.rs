//! The extension module of the Python package `steadfs`: the library's calls with paths in bytes, attributes in tuples and
//! errors as `OSError`. What users see is written in Python, in `python/steadfs`.
//!
//! Rule: a call holds the interpreter's lock while it converts arguments and results only, never while it waits for the
//! library.

#![forbid(unsafe_code)]

mod copy;
mod error;
mod file;
mod handle;
mod listing;
mod signals;
mod stat;
mod tools;
mod volume;

use pyo3::prelude::*;

#[pymodule]
mod _steadfs {
    #[pymodule_export]
    use super::error::{CorruptError, NoVolumeError};
    #[pymodule_export]
    use super::file::File;
    #[pymodule_export]
    use super::listing::{Listing, Walk};
    #[pymodule_export]
    use super::tools::{check, format, partitions, probe};
    #[pymodule_export]
    use super::volume::Volume;
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name of Python's convention")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
