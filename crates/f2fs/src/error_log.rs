//! The log of a volume's errors: what `.steadfs/errors` shows, and what both superblocks record as Linux does since
//! 6.1: kinds of corruption as bits of `s_errors`, stops counted in `s_stop_reason`.
//!
//! **Rule.** Errors occur while locks are held, so they are only recorded in memory there. A task without locks writes
//! them: a call that fails, the tick of write-back, the unmount. One copy is written and flushed before the other, so a
//! crash in between leaves one of them valid.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_block::{Bio, Queue};
use steadfs_f2fs_format::io_error;
use steadfs_rt::{Instant, Mutex, Rank, now};
use steadfs_vfs::{Findings, FsError, Result};

use crate::disk::superblock::{ErrorFlag, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, StopReason};
use crate::disk::{BLOCK_SIZE, Nid, Superblock};

/// Files with failed data writes that are kept, at most.
const FAILED_FILES_MAX: usize = 64;
/// Time between two attempts to write a superblock.
pub const SUPERBLOCK_RETRY: Duration = Duration::from_secs(5);

/// Errors since the mount, and the superblock that records them.
pub struct ErrorLog {
    state: Mutex<ErrorState>,
    /// Corruption that was found.
    findings: Findings,
    /// Directories whose index is full for one hash although there is space.
    full_directories: Findings,
    /// Corruption was found: checkpoints set the flag that requires fsck.
    corrupt: AtomicBool,
    /// The superblocks are to be written.
    pending: AtomicBool,
}

/// [Leaf]
struct ErrorState {
    superblock: Superblock,
    /// Files whose data could not be written, with the last error of each.
    data: BTreeMap<Nid, String>,
    /// Why the superblocks could not be written, and since when.
    unwritten: Option<(String, Instant)>,
}

impl ErrorLog {
    pub fn new(superblock: Superblock) -> Self {
        let state = ErrorState {
            superblock,
            data: BTreeMap::new(),
            unwritten: None,
        };
        Self {
            state: Mutex::new(Rank::Leaf, state),
            findings: Findings::new(),
            full_directories: Findings::new(),
            corrupt: AtomicBool::new(false),
            pending: AtomicBool::new(false),
        }
    }

    /// Records corruption. Returns whether it is new.
    pub fn record(&self, what: &FsError) -> bool {
        self.require_fsck();
        if let Some(flag) = ErrorFlag::of_error(what) {
            let new = self.state.lock().superblock.record_error(flag);
            self.pending.fetch_or(new, Ordering::AcqRel);
        }
        match what {
            FsError::Corrupt(corruption) => self.findings.record(&corruption.to_string()),
            other => self.findings.record(&other.to_string()),
        }
    }

    /// Records a directory that cannot take another name. Returns whether it is new.
    pub fn record_full_directory(&self, what: &str) -> bool {
        self.full_directories.record(what)
    }

    /// Records why the volume stopped.
    pub fn record_stop(&self, reason: StopReason) {
        self.state.lock().superblock.record_stop(reason);
        self.pending.store(true, Ordering::Release);
    }

    /// The next checkpoint requests a check of the volume.
    pub fn require_fsck(&self) {
        self.corrupt.store(true, Ordering::Release);
    }

    /// Whether corruption was found.
    pub fn is_corrupt(&self) -> bool {
        self.corrupt.load(Ordering::Acquire)
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

    /// Whether the superblocks should be written now: something is pending, and the last failure is long enough ago.
    pub fn is_due(&self) -> bool {
        if !self.is_pending() {
            return false;
        }
        let state = self.state.lock();
        let failed = state.unwritten.as_ref().map(|(_, at)| *at);
        failed.is_none_or(|at| at.elapsed() >= SUPERBLOCK_RETRY)
    }

    /// Writes the superblocks if errors are recorded that they lack. The caller holds no lock.
    ///
    /// # Errors
    /// The device failed: the superblocks lack the errors. This is logged, and retried by the next call.
    pub fn write(&self, queue: &Queue) -> Result<()> {
        if !self.pending.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let bytes = self.state.lock().superblock.encode();
        let written = [1, 0]
            .iter()
            .try_for_each(|n| write_copy(queue, *n, &bytes));
        let mut state = self.state.lock();
        match &written {
            Ok(()) => state.unwritten = None,
            Err(error) => {
                if state.unwritten.is_none() {
                    tracing::error!(%error, "cannot record errors in the superblocks");
                }
                state.unwritten = Some((error.to_string(), now()));
                self.pending.store(true, Ordering::Release);
            }
        }
        written
    }

    /// The lines of `.steadfs/errors` behind the cause of a stop. `dirty`: numbers of the files with dirty data.
    pub fn show(&self, dirty: &[u64]) -> String {
        let mut text = String::new();
        let findings = self.findings.show("corruption") + &self.full_directories.show("full");
        let mut state = self.state.lock();
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
        text
    }
}

fn write_copy(queue: &Queue, copy: u64, bytes: &[u8]) -> Result<()> {
    assert!(copy < 2, "a volume has two superblocks");
    let (at, tag) = (copy * BLOCK_SIZE as u64, IoTag::default());
    let mut block = queue.read(at, BLOCK_SIZE, tag).map_err(io_error)?;
    block.make_mut()[SUPERBLOCK_OFFSET..][..SUPERBLOCK_SIZE].copy_from_slice(bytes);
    // A failed write with PREFLUSH would count as a failed FLUSH, after which nothing is written any more.
    let written = queue.submit(Bio::write(at, vec![block]), tag).wait();
    written.map_err(io_error)?;
    queue.flush(tag).wait().map_err(io_error)
}
