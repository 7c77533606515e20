//! Write-back of one file in batches: while one batch is in flight, blocks are allocated for the next.

use std::ops::Range;

use steadfs_base::{IoTag, Urgency};
use steadfs_cache::DirtyEpoch;
use steadfs_vfs::{FsError, Result};

use super::writeout::{MapAction, WritebackRun};
use crate::fs::Ext4;
use crate::inode::Inode;

/// Bytes of a batch, for which blocks are allocated together; up to two batches are in flight.
pub(super) const BATCH_BYTES: usize = 4 << 20;
/// Batches after which background write-back releases the file's flush lock for waiting tasks.
const TURN_BATCHES: usize = 4;

impl WritebackRun<'_> {
    /// Whether all its blocks are allocated.
    fn is_allocated(&self) -> bool {
        let allocated = |action| matches!(action, MapAction::Insert(_));
        self.pieces.iter().all(|piece| allocated(piece.action))
    }
}

impl Ext4 {
    /// Writes a file's dirty data in a range and waits, as [`Ext4::write_out`] does. The caller holds
    /// `inode.flush`, and the inode's lock, which keeps writers out.
    pub(crate) fn write_out_locked(
        &self,
        inode: &Inode,
        mut range: Range<u64>,
        tag: IoTag,
    ) -> Result<()> {
        let all = DirtyEpoch::ALL;
        self.write_batches(inode, &mut range, all, usize::MAX, tag)
            .1
    }

    /// Background write-back of a file: writes [`TURN_BATCHES`] batches at a time, and releases `inode.flush` in
    /// between, until the data of `epoch` is written or `enough` returns true.
    pub(super) fn write_in_turns(
        &self,
        inode: &Inode,
        enough: impl Fn() -> bool,
        epoch: DirtyEpoch,
        tag: IoTag,
    ) -> Result<()> {
        let mut rest = 0..inode.pages.dirty_end(epoch);
        let mut first_error = Ok(());
        loop {
            let _one = inode.lock_flush();
            if enough() {
                return first_error;
            }
            let (more, result) = self.write_batches(inode, &mut rest, epoch, TURN_BATCHES, tag);
            first_error = first_error.and(result);
            if !more {
                return first_error;
            }
        }
    }

    /// Writes up to `most` batches of the data of `epoch` in `rest`, and removes them from it. Returns whether more may
    /// be left, and the first error.
    pub(super) fn write_batches(
        &self,
        inode: &Inode,
        rest: &mut Range<u64>,
        epoch: DirtyEpoch,
        most: usize,
        tag: IoTag,
    ) -> (bool, Result<()>) {
        let mut under_way: Option<WritebackRun<'_>> = None;
        let mut first_error = Ok(());
        let mut batches = 0;
        loop {
            let mut next = match batches < most {
                true => self.collect_next(inode, rest, epoch, under_way.as_ref(), tag),
                false => None,
            };
            // Mapped blocks may, on a corrupt volume, be the same as those of the batch in flight.
            let beside = next.as_mut().filter(|next| next.is_allocated());
            let submitted = beside
                .map(|next| self.submit_run(None, next, tag))
                .is_some();
            if let Some(done) = under_way.take() {
                let size = done.size;
                first_error = first_error.and(self.finish_runs(vec![done]));
                if let Err(error) = &first_error
                    && inode.core.read().size < size
                {
                    // The file must not grow over a batch that failed.
                    if let Some(next) = next {
                        self.abandon_run(&next, error);
                    }
                    return (false, first_error);
                }
            }
            let Some(mut next) = next else {
                return (batches == most, first_error);
            };
            if !submitted {
                self.submit_run(None, &mut next, tag);
            }
            under_way = Some(next);
            batches += 1;
        }
    }

    /// Collects the next batch of dirty blocks of `rest` and allocates its blocks, after those of the batch `before`.
    /// `None`: nothing is dirty, or this is background write-back and an fsync waits, which writes the rest itself.
    fn collect_next<'a>(
        &self,
        inode: &'a Inode,
        rest: &mut Range<u64>,
        epoch: DirtyEpoch,
        before: Option<&WritebackRun<'_>>,
        tag: IoTag,
    ) -> Option<WritebackRun<'a>> {
        if tag.urgency == Urgency::Background && inode.flush_waiters.tag().is_some() {
            return None;
        }
        let bits = self.geo.block_size.bits();
        let passed = rest.start << bits;
        let stored = before.map_or(0, |wb_run| wb_run.size.min(passed));
        let stored = stored.max(inode.core.read().size);
        let limit = BATCH_BYTES >> bits;
        let collected = inode
            .pages
            .collect_forward(rest.clone(), limit, epoch, stored, || inode.size());
        rest.start = collected.0.last()?.block.0 + 1;
        let before = before.and_then(|wb_run| wb_run.pieces.last());
        Some(self.allocate_run(inode, collected, before, tag))
    }

    /// Leaves the blocks of a batch dirty and unmapped, because of an error of another batch.
    fn abandon_run(&self, wb_run: &WritebackRun<'_>, error: &FsError) {
        wb_run.wait();
        let written = vec![Ok(()); wb_run.pieces.len()];
        let mapped: Vec<_> = wb_run.pieces.iter().map(|_| Err(error.clone())).collect();
        // The caller has the error, and the blocks stay dirty.
        let _ = self.complete_run(wb_run, &written, &mapped);
    }
}
