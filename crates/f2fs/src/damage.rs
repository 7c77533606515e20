//! What went wrong: told below `.steadfs`, and on a volume that is written noted in both superblocks as
//! Linux does since 6.1, kinds of damage as bits of `s_errors`, stops counted in `s_stop_reason`.
//!
//! Damage and failures are met with locks held, so they are only remembered there. They are written by
//! who holds none: a call that fails, the tick of write-back, the unmount. A copy is written whole and waited
//! for before the other one, so a crash in between leaves one of them good.

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

/// Files remembered whose data could not be written.
const FAILED_FILES: usize = 64;
/// How long after a superblock could not be written it is tried again.
const PAUSE: Duration = Duration::from_secs(5);

/// What went wrong since the mount, and what the superblock is to say of it.
pub struct Notes {
    state: Mutex<State>,
    /// What corruption was met.
    findings: Findings,
    /// Directories that take no further names of one hash although there is space.
    pub(crate) full_directories: Findings,
    /// Something is to be written.
    pending: AtomicBool,
}

/// [Leaf]
struct State {
    superblock: Superblock,
    /// Files whose data could not be written, and how each failed last.
    data: BTreeMap<Nid, String>,
    /// Why the superblock does not say it, and since when.
    unwritten: Option<(String, Instant)>,
}

impl Notes {
    /// Nothing went wrong yet.
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

    /// Damage of this kind was met. Whether it is the first of its kind at its place.
    fn damage(&self, what: &FsError) -> bool {
        if let Some(note) = ErrorFlag::of_error(what) {
            let new = self.state.lock().superblock.record_error(note);
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

    /// Whether the superblocks do not say yet what they are to say.
    pub fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// A file's data could not be written.
    pub fn data_failed(&self, ino: Nid, error: &FsError) {
        let mut state = self.state.lock();
        while state.data.len() >= FAILED_FILES {
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
            self.notes.stop(reason);
        }
        self.read_only.store(true, Ordering::Release);
    }

    /// Stops the volume because its code panicked, as a power cut would: nothing is noted on the device, which has a
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

    /// Whether something was found that contradicts itself.
    pub(crate) fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Acquire)
    }

    /// Tells of damage that does not keep an operation from being done. The next checkpoint says that the
    /// volume should be checked.
    pub(crate) fn note_damage(&self, error: &FsError) {
        self.damaged.store(true, Ordering::Release);
        if self.notes.damage(error) {
            tracing::error!(%error, "the volume is damaged; it should be checked");
        }
    }

    /// Writes what is to be noted in the superblocks, if anything is. What cannot be written is told, and tried
    /// again by later calls, though not by each. The caller holds no lock.
    pub(crate) fn store_notes(&self) {
        // While the volume is frozen not even this is written.
        if !self.notes.is_pending() || self.is_frozen() {
            return;
        }
        let failed = self
            .notes
            .state
            .lock()
            .unwritten
            .as_ref()
            .map(|(_, at)| *at);
        if failed.is_none_or(|at| at.elapsed() >= PAUSE) {
            // Told by the function itself; the unmount returns it.
            let _ = self.store_notes_now();
        }
    }

    /// The same at once.
    ///
    /// # Errors
    /// The device failed: the superblocks do not say what went wrong.
    pub(crate) fn store_notes_now(&self) -> Result<()> {
        // A volume that was only ever read is not written.
        if self.segments.get().is_none() || !self.notes.pending.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let bytes = self.notes.state.lock().superblock.encode();
        let written = [1, 0].iter().try_for_each(|n| self.write_copy(*n, &bytes));
        let mut state = self.notes.state.lock();
        match &written {
            Ok(()) => state.unwritten = None,
            Err(error) => {
                if state.unwritten.is_none() {
                    tracing::error!(%error, "the superblock cannot note what went wrong");
                }
                state.unwritten = Some((error.to_string(), now()));
                self.notes.pending.store(true, Ordering::Release);
            }
        }
        written
    }

    fn write_copy(&self, copy: u64, bytes: &[u8]) -> Result<()> {
        let (at, tag) = (copy * BLOCK_SIZE as u64, IoTag::default());
        let mut block = self.queue.read(at, BLOCK_SIZE, tag).map_err(io_error)?;
        block.make_mut()[SUPERBLOCK_OFFSET..][..SUPERBLOCK_SIZE].copy_from_slice(bytes);
        // A write with a FLUSH of its own that fails would be taken for a FLUSH that failed, after which nothing
        // is written any more.
        let written = self.queue.submit(Bio::write(at, vec![block]), tag).wait();
        written.map_err(io_error)?;
        self.queue.flush(tag).wait().map_err(io_error)
    }

    /// What is wrong with the volume, a line each: why it stopped, data that could not be written and is
    /// tried again, damage met since the mount, and what the superblock says. `none` where nothing is.
    pub(crate) fn tell_errors(&self) -> String {
        let mut text = String::new();
        if let Some(cause) = self.abort_cause() {
            text += &format!("stopped: {cause}\n");
        }
        let dirty = self.writeback.dirty_files();
        let findings =
            self.notes.findings.show("corruption") + &self.notes.full_directories.show("full");
        let mut state = self.notes.state.lock();
        // Of the others the data is written by now, or gone.
        state
            .data
            .retain(|ino, _| dirty.contains(&u64::from(ino.0)));
        for (ino, error) in &state.data {
            text += &format!("data of inode {ino} is not written yet: {error}\n");
        }
        text += &findings;
        let kinds = state.superblock.recorded_errors().join(", ");
        if !kinds.is_empty() {
            text += &format!("damage noted in the superblock: {kinds}\n");
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
