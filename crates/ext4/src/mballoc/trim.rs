//! Free space that the device is told to forget.
//!
//! What is being discarded is allocated, so that nobody gets it meanwhile; for who writes it is not free. So only a
//! part of what nobody was promised is taken at a time, who finds too little room all the same waits for it as for
//! other space that is being freed, and nothing more is taken while he looks again.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use steadfs_rt::{now, sleep};
use steadfs_vfs::{Cx, Result};

use super::{Allocator, Run};
use crate::disk::{GroupNo, bitmap};
use crate::fs::Ext4;

/// Bytes discarded at a time: a slow device does that in a moment.
const TRIM_CHUNK_BYTES: u64 = 32 << 20;
/// How long callers without room are waited for, and how often they are looked at.
const SHORTAGE_WAIT_MAX: Duration = Duration::from_secs(1);
const SHORTAGE_POLL: Duration = Duration::from_millis(10);

impl Allocator {
    /// Discards free space in a block range, runs of at least `min` blocks; blocks discarded.
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

    /// Discards what is still free of a run, piece by piece.
    fn trim_run(&self, fs: &Ext4, no: GroupNo, run: Range<u32>) -> Result<u64> {
        let base = fs.geo().first_block_of(no);
        let mut trimmed = 0;
        let mut at = run.start;
        while at < run.end {
            self.wait_for_shortages();
            // Before the claim: who misses these blocks waits for them.
            let _under_way = fs.freeing.begin();
            let Some(piece) = self.take_for_trim(fs, no, at..run.end)? else {
                break;
            };
            let allocated = Run {
                start: base.plus(piece.start.into()),
                len: piece.end - piece.start,
            };
            self.discard_run(fs, allocated);
            self.release(fs, allocated);
            self.trimmed.fetch_add(1, Ordering::AcqRel);
            trimmed += u64::from(allocated.len);
            at = piece.end;
        }
        Ok(trimmed)
    }

    /// Claims the next free blocks, so that nobody takes them while they are being discarded: at most half of what
    /// nobody was promised.
    fn take_for_trim(
        &self,
        fs: &Ext4,
        no: GroupNo,
        range: Range<u32>,
    ) -> Result<Option<Range<u32>>> {
        let most = (TRIM_CHUNK_BYTES >> fs.geo().block_size.bits()).max(1);
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
        bitmap::set_range(busy, piece.clone());
        group.free -= len;
        Ok(Some(piece))
    }

    /// Lets callers who found no room look without a block being missing.
    fn wait_for_shortages(&self) {
        let until = now() + SHORTAGE_WAIT_MAX;
        while self.shortages.load(Ordering::Acquire) > 0 && !until.since(now()).is_zero() {
            sleep(SHORTAGE_POLL);
        }
    }

    /// Somebody found too little room and is about to look again.
    pub(crate) fn enter_shortage(&self) {
        self.shortages.fetch_add(1, Ordering::AcqRel);
    }

    /// Changes whenever blocks are free again that were being discarded.
    pub(crate) fn trimmed(&self) -> u64 {
        self.trimmed.load(Ordering::Acquire)
    }

    /// He found some, or gave up.
    pub(crate) fn leave_shortage(&self) {
        self.shortages.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests;
