//! Errors of a volume: shown in `.steadfs/errors`, and on a volume that is written recorded in both superblocks as Linux
//! does since 6.1: kinds of corruption as bits of `s_errors`, stops counted in `s_stop_reason`.
//!
//! Errors occur while locks are held, so they are only recorded in memory there. A task without locks writes them: a call
//! that fails, the tick of write-back, the unmount. One copy is written and flushed before the other, so a crash in between
//! leaves one of them valid.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_block::Bio;
use steadfs_rt::{Instant, Mutex, PANICKED, Rank, now};
use steadfs_vfs::{Findings, FsError, Result};

use crate::disk::superblock::{ErrorFlag, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, StopReason};
use crate::disk::{BLOCK_SIZE, Nid, Superblock};
use crate::fs::{F2fs, io_error};

/// Files with failed data writes that are kept, at most.
const FAILED_FILES_MAX: usize = 64;
/// Time between two attempts to write a superblock.
const SUPERBLOCK_RETRY: Duration = Duration::from_secs(5);

/// Errors since the mount, and the superblock that records them.
pub struct ErrorLog {
    state: Mutex<State>,
    /// Corruption that was found.
    findings: Findings,
    /// Directories whose index is full for one hash although there is space.
    pub(crate) full_directories: Findings,
    /// The superblocks are to be written.
    pending: AtomicBool,
}

/// [Leaf]
struct State {
    superblock: Superblock,
    /// Files whose data could not be written, with the last error of each.
    data: BTreeMap<Nid, String>,
    /// Why the superblocks could not be written, and since when.
    unwritten: Option<(String, Instant)>,
}

impl ErrorLog {
    pub fn new(superblock: Superblock) -> Self {
        let state = State {
            superblock,
            data: BTreeMap::new(),
            unwritten: None,
        };
        Self {
            state: Mutex::new(Rank::Leaf, state),
            findings: Findings::new(),
            full_directories: Findings::new(),
            pending: AtomicBool::new(false),
        }
    }

    /// Records corruption. Returns whether it is new.
    fn record(&self, what: &FsError) -> bool {
        if let Some(flag) = ErrorFlag::of_error(what) {
            let new = self.state.lock().superblock.record_error(flag);
            self.pending.fetch_or(new, Ordering::AcqRel);
        }
        match what {
            FsError::Corrupt(corruption) => self.findings.record(&corruption.to_string()),
            other => self.findings.record(&other.to_string()),
        }
    }

    fn stop(&self, reason: StopReason) {
        self.state.lock().superblock.record_stop(reason);
        self.pending.store(true, Ordering::Release);
    }

    /// Whether errors are recorded that the superblocks on the device lack.
    pub fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Records that a file's data could not be written.
    pub fn data_failed(&self, ino: Nid, error: &FsError) {
        let mut state = self.state.lock();
        while state.data.len() >= FAILED_FILES_MAX {
            state.data.pop_first();
        }
        state.data.insert(ino, error.to_string());
    }
}

impl F2fs {
    /// Stops the volume for good: the first cause is kept, nothing is changed any more.
    pub(crate) fn abort(&self, reason: StopReason, cause: &str) {
        tracing::error!(cause, "the volume stops");
        let first = {
            let mut stopped = self.aborted.lock();
            let first = stopped.is_none();
            stopped.get_or_insert_with(|| cause.to_owned());
            first
        };
        if first {
            self.errors.stop(reason);
        }
        self.read_only.store(true, Ordering::Release);
    }

    /// Stops the volume because its code panicked, as a power cut would: nothing is recorded on the device, which has a
    /// state that the volume passed through.
    pub(crate) fn abort_for_panic(&self) {
        tracing::error!(cause = PANICKED, "the volume stops");
        let mut stopped = self.aborted.lock();
        stopped.get_or_insert_with(|| PANICKED.to_owned());
        drop(stopped);
        self.read_only.store(true, Ordering::Release);
    }

    /// Why the volume stopped, if it did.
    pub(crate) fn abort_cause(&self) -> Option<String> {
        self.aborted.lock().clone()
    }

    /// Whether corruption was found.
    pub(crate) fn is_corrupt(&self) -> bool {
        self.damaged.load(Ordering::Acquire)
    }

    /// Records corruption that does not fail the operation. The next checkpoint requests a check of the volume.
    pub(crate) fn record_corruption(&self, error: &FsError) {
        self.damaged.store(true, Ordering::Release);
        if self.errors.record(error) {
            tracing::error!(%error, "the volume is corrupt; run fsck.f2fs");
        }
    }

    /// Writes the superblocks if errors are recorded. A failure is logged and retried by later calls, at intervals. The
    /// caller holds no lock.
    pub(crate) fn write_errors(&self) {
        // While the volume is frozen not even this is written.
        if !self.errors.is_pending() || self.is_frozen() {
            return;
        }
        let failed = self
            .errors
            .state
            .lock()
            .unwritten
            .as_ref()
            .map(|(_, at)| *at);
        if failed.is_none_or(|at| at.elapsed() >= SUPERBLOCK_RETRY) {
            // Logged by the function itself; the unmount returns it.
            let _ = self.write_errors_now();
        }
    }

    /// As [`F2fs::write_errors`], without an interval.
    ///
    /// # Errors
    /// The device failed: the superblocks lack the errors.
    pub(crate) fn write_errors_now(&self) -> Result<()> {
        // A volume that was only ever read is not written.
        if self.segments.get().is_none() || !self.errors.pending.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let bytes = self.errors.state.lock().superblock.encode();
        let written = [1, 0].iter().try_for_each(|n| self.write_copy(*n, &bytes));
        let mut state = self.errors.state.lock();
        match &written {
            Ok(()) => state.unwritten = None,
            Err(error) => {
                if state.unwritten.is_none() {
                    tracing::error!(%error, "cannot record errors in the superblocks");
                }
                state.unwritten = Some((error.to_string(), now()));
                self.errors.pending.store(true, Ordering::Release);
            }
        }
        written
    }

    fn write_copy(&self, copy: u64, bytes: &[u8]) -> Result<()> {
        let (at, tag) = (copy * BLOCK_SIZE as u64, IoTag::default());
        let mut block = self.queue.read(at, BLOCK_SIZE, tag).map_err(io_error)?;
        block.make_mut()[SUPERBLOCK_OFFSET..][..SUPERBLOCK_SIZE].copy_from_slice(bytes);
        // A failed write with PREFLUSH would count as a failed FLUSH, after which nothing is written any more.
        let written = self.queue.submit(Bio::write(at, vec![block]), tag).wait();
        written.map_err(io_error)?;
        self.queue.flush(tag).wait().map_err(io_error)
    }

    /// The content of `.steadfs/errors`, one line each: why the volume stopped, data that could not be written and is
    /// retried, corruption found since the mount, and what the superblock has recorded; `none` if there is nothing.
    pub(crate) fn show_errors(&self) -> String {
        let mut text = String::new();
        if let Some(cause) = self.abort_cause() {
            text += &format!("stopped: {cause}\n");
        }
        let dirty = self.writeback.dirty_files();
        let findings =
            self.errors.findings.show("corruption") + &self.errors.full_directories.show("full");
        let mut state = self.errors.state.lock();
        // The data of the others has been written, or removed.
        state
            .data
            .retain(|ino, _| dirty.contains(&u64::from(ino.0)));
        for (ino, error) in &state.data {
            text += &format!("data of inode {ino} is not written yet: {error}\n");
        }
        text += &findings;
        let kinds = state.superblock.recorded_errors().join(", ");
        if !kinds.is_empty() {
            text += &format!("errors noted in the superblock: {kinds}\n");
        }
        let stops = state.superblock.recorded_stops();
        let stops: Vec<String> = stops
            .iter()
            .map(|(why, n)| format!("{why} ({n})"))
            .collect();
        if !stops.is_empty() {
            text += &format!("stops noted in the superblock: {}\n", stops.join(", "));
        }
        if let Some((error, _)) = &state.unwritten {
            text += &format!("the superblock could not be written: {error}\n");
        }
        if text.is_empty() {
            text.push_str("none\n");
        }
        text
    }
}

#[cfg(test)]
mod tests;
