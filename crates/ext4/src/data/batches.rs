//! A file's dirty data, batch by batch: while the device has one, the next one gets its place.

use std::ops::Range;

use steadfs_base::{IoTag, Urgency};
use steadfs_cache::DirtyEpoch;
use steadfs_vfs::{FsError, Result};

use super::writeout::{MapAction, WritebackRun};
use crate::fs::Ext4;
use crate::inode::Inode;

/// Blocks that get their place together, in bytes; up to twice as much is in wb_run.
pub(super) const BATCH_BYTES: usize = 4 << 20;
/// Batches after which who writes for nobody lets others have the file's flush lock.
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

    /// Writes up to `most` batches of a file's dirty data for nobody who waits for it, then lets others have
    /// `inode.flush`, and so on; until what was dirty in `epoch` is written, or `enough`.
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

    /// Writes up to `most` batches of what was dirty in `epoch` in `rest`, and takes them out of it. Whether there may be
    /// more to write; and the first error of all.
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
            // What has its place already may, on a damaged volume, have that of the batch under way.
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
                    // The file cannot grow over what has failed.
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

    /// Takes the next batch of dirty blocks out of `rest` and gives them their place, behind that of the batch
    /// `before`. `None`: nothing is dirty any more, or somebody waits who writes the rest himself, in his own
    /// name.
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

    /// Leaves the blocks of a batch dirty and without names, because of an error elsewhere.
    fn abandon_run(&self, wb_run: &WritebackRun<'_>, error: &FsError) {
        wb_run.wait();
        let written = vec![Ok(()); wb_run.pieces.len()];
        let mapped: Vec<_> = wb_run.pieces.iter().map(|_| Err(error.clone())).collect();
        // The caller has the error, and each block is dirty.
        let _ = self.complete_run(wb_run, &written, &mapped);
    }
}
