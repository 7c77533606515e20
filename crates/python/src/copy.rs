//! Copies between the host and a volume, which signals end.

use std::path::Path;

use pyo3::prelude::*;
use steadfs::Volume;
use steadfs::tools::{CopyOptions, Progress, ToolError};

use crate::error::{of_io, of_tool};
use crate::signals::Signals;

/// The direction of a copy.
#[derive(Clone, Copy)]
pub enum Way {
    /// To the volume.
    In,
    /// To the host.
    Out,
}

/// Files with more data than this many times the size of the volume are not copied out, as by the program: on a hostile
/// volume many files can share blocks.
const DATA_PER_SIZE: u64 = 16;

/// Keeps the first problem, and what a signal handler raised.
#[derive(Default)]
struct Watch {
    problem: Option<PyErr>,
    signals: Signals,
}

impl Progress for Watch {
    fn file(&mut self, _: &[u8], _: &[u8]) {}

    fn bytes(&mut self, _: u64) {}

    fn problem(&mut self, error: &ToolError) {
        self.problem.get_or_insert_with(|| of_tool(error));
    }

    fn stopped(&self) -> bool {
        self.signals.have_raised()
    }
}

/// Copies a file or tree; to be called without the interpreter's lock. Returns the number of files.
pub fn copy(
    volume: &Volume,
    (from, to): (&Path, &Path),
    way: Way,
    data_max: Option<u64>,
) -> PyResult<u64> {
    let mut watch = Watch::default();
    let done = match way {
        Way::In => volume.copy_in_with(from, to, CopyOptions::default(), &mut watch),
        Way::Out => {
            let usage = volume.usage().map_err(of_io)?;
            let size = usage.blocks.saturating_mul(usage.block_size.into());
            let options = CopyOptions {
                data_max: data_max.or(Some(size.saturating_mul(DATA_PER_SIZE))),
                ..CopyOptions::default()
            };
            volume.copy_out_with(from, to, options, &mut watch)
        }
    };
    watch.signals.or(match watch.problem {
        Some(problem) => Err(problem),
        None => done.map(|report| report.files).map_err(of_io),
    })
}
