//! Discarding free space (FITRIM).
//!
//! **Problem.** Blocks must be allocated while they are discarded, so that no file gets them; for a writer on a nearly
//! full volume they are then missing.
//!
//! **Rule.** One request takes at most 32 MiB and at most half of the unreserved free blocks. A task that still finds
//! too little space waits for the discard as for other space being freed, and the trim takes nothing more while that
//! task searches again (for at most 1 s).

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_rt::{now, sleep};
use steadfs_vfs::{Cx, Result};

use super::blocks::discard_runs;
use super::{Allocator, Run};
use crate::disk::{GroupNo, bitmap};
use crate::fs::Ext4;

/// Bytes discarded by one request.
const TRIM_CHUNK_BYTES: u64 = 32 << 20;
/// How long a trim waits for tasks that are short of space, and how often it looks.
const SHORTAGE_WAIT_MAX: Duration = Duration::from_secs(1);
const SHORTAGE_POLL: Duration = Duration::from_millis(10);

impl Allocator {
    /// Discards the free clusters in runs of at least `min` blocks that are within a block range; returns the number of
    /// blocks discarded. `Busy`: the volume was frozen meanwhile.
    pub fn trim(&self, fs: &Ext4, cx: &Cx, range: Range<u64>, min: u32) -> Result<u64> {
        let geo = fs.geo();
        let mut trimmed = 0;
        self.drop_all_preallocs(fs);
        for no in geo.groups() {
            cx.check_killed()?;
            let base = geo.first_block_of(no).0;
            let blocks = geo.blocks_in(no);
            let from = range.start.saturating_sub(base).min(blocks.into()) as u32;
            let to = range.end.saturating_sub(base).min(blocks.into()) as u32;
            let (from, to) = (geo.clusters_for(from), to >> geo.cluster_bits);
            let min = geo.clusters_for(min);
            let mut at = from;
            while at < to {
                let Some(run) = self.long_free_run(fs, no, at..to, min)? else {
                    break;
                };
                trimmed += self.trim_run(fs, no, run.clone())?;
                at = run.end;
            }
        }
        Ok(trimmed)
    }

    fn long_free_run(
        &self,
        fs: &Ext4,
        no: GroupNo,
        range: Range<u32>,
        min: u32,
    ) -> Result<Option<Range<u32>>> {
        let group = self.loaded(fs, no)?;
        let busy = group.busy.as_ref().expect("loaded");
        Ok(bitmap::find_zero_run(busy, range, min.max(1)))
    }

    /// Discards the clusters of a run that are still free, piece by piece; returns the number of blocks.
    fn trim_run(&self, fs: &Ext4, no: GroupNo, run: Range<u32>) -> Result<u64> {
        let bits = fs.geo().cluster_bits;
        let base = fs.geo().first_block_of(no);
        let mut trimmed = 0;
        let mut at = run.start;
        while at < run.end {
            self.wait_for_shortages();
            // For one piece: a freeze waits for it, and changes wait for the freeze.
            let _open = fs.open_to_changes();
            fs.check_writable()?;
            // Before the allocation: a task that lacks these blocks waits for them.
            let _under_way = fs.freeing.begin();
            let Some(piece) = self.take_for_trim(fs, no, at..run.end)? else {
                break;
            };
            let allocated = Run {
                start: base.plus(u64::from(piece.start) << bits),
                len: (piece.end - piece.start) << bits,
            };
            assert!(allocated.len > 0, "a discard has at least one block");
            discard_runs(fs, &[allocated], IoTag::background());
            self.make_free(fs, allocated, true);
            self.trimmed.fetch_add(1, Ordering::AcqRel);
            trimmed += u64::from(allocated.len);
            at = piece.end;
        }
        Ok(trimmed)
    }

    /// Allocates the next free clusters for a discard: at most half of the unreserved ones.
    fn take_for_trim(
        &self,
        fs: &Ext4,
        no: GroupNo,
        range: Range<u32>,
    ) -> Result<Option<Range<u32>>> {
        let cluster = fs.geo().block_size.bits() + fs.geo().cluster_bits;
        let most = (TRIM_CHUNK_BYTES >> cluster).max(1);
        let mut group = self.loaded(fs, no)?;
        let busy = group.busy.as_mut().expect("loaded");
        let Some(found) = bitmap::find_zero_run(busy, range, 1) else {
            return Ok(None);
        };
        let len = self.with_totals(|t| {
            let len = most
                .min(u64::from(found.end - found.start))
                .min(t.spare(0) / 2);
            t.free -= len;
            len as u32
        });
        if len == 0 {
            return Ok(None);
        }
        let piece = found.start..found.start + len;
        assert!(piece.end <= found.end, "blocks are taken from the free run");
        bitmap::set_range(busy, piece.clone());
        group.free -= len;
        Ok(Some(piece))
    }

    /// Waits for tasks that are short of space, so that they search without a block being discarded.
    fn wait_for_shortages(&self) {
        let until = now() + SHORTAGE_WAIT_MAX;
        while self.shortages.load(Ordering::Acquire) > 0 && !until.since(now()).is_zero() {
            sleep(SHORTAGE_POLL);
        }
    }

    /// A task found too little space and will search again.
    pub(crate) fn enter_shortage(&self) {
        self.shortages.fetch_add(1, Ordering::AcqRel);
    }

    /// Changes whenever discarded blocks are free again.
    pub(crate) fn trimmed(&self) -> u64 {
        self.trimmed.load(Ordering::Acquire)
    }

    /// The task found space, or gave up.
    pub(crate) fn leave_shortage(&self) {
        let before = self.shortages.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a shortage ends once");
    }
}

#[cfg(test)]
mod tests;
