//! A file's dirty data, batch by batch: while the device has one, the next one gets its place.

use std::ops::Range;

use steadfs_base::{IoTag, Urgency};
use steadfs_cache::DirtyEpoch;
use steadfs_vfs::{FsError, Result};

use super::writeout::{Flight, Naming};
use crate::fs::Ext4;
use crate::inode::Inode;

/// Blocks that get their place together, in bytes; up to twice as much is in flight.
pub(super) const BATCH: usize = 4 << 20;
/// Batches after which who writes for nobody lets others have the file's flush lock.
const TURN: usize = 4;

impl Flight<'_> {
    /// Whether all its blocks are claimed.
    fn is_claimed(&self) -> bool {
        let claimed = |naming| matches!(naming, Naming::Claim(_));
        self.pieces.iter().all(|piece| claimed(piece.naming))
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
    pub(super) fn write_by_turns(
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
            let (more, result) = self.write_batches(inode, &mut rest, epoch, TURN, tag);
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
        let mut under_way: Option<Flight<'_>> = None;
        let mut first_error = Ok(());
        let mut batches = 0;
        loop {
            let mut next = match batches < most {
                true => self.take_next(inode, rest, epoch, under_way.as_ref(), tag),
                false => None,
            };
            // What has its place already may, on a damaged volume, have that of the batch under way.
            let beside = next.as_mut().filter(|next| next.is_claimed());
            let launched = beside.map(|next| self.launch(None, next, tag)).is_some();
            if let Some(done) = under_way.take() {
                let size = done.size;
                first_error = first_error.and(self.finish_flights(vec![done]));
                if let Err(error) = &first_error
                    && inode.core.read().size < size
                {
                    // The file cannot grow over what has failed.
                    if let Some(next) = next {
                        self.take_back(&next, error);
                    }
                    return (false, first_error);
                }
            }
            let Some(mut next) = next else {
                return (batches == most, first_error);
            };
            if !launched {
                self.launch(None, &mut next, tag);
            }
            under_way = Some(next);
            batches += 1;
        }
    }

    /// Takes the next batch of dirty blocks out of `rest` and gives them their place, behind that of the batch
    /// `before`. `None`: nothing is dirty any more, or somebody waits who writes the rest himself, in his own
    /// name.
    fn take_next<'a>(
        &self,
        inode: &'a Inode,
        rest: &mut Range<u64>,
        epoch: DirtyEpoch,
        before: Option<&Flight<'_>>,
        tag: IoTag,
    ) -> Option<Flight<'a>> {
        if tag.urgency == Urgency::Background && inode.waiting.tag().is_some() {
            return None;
        }
        let bits = self.geo.block_size.bits();
        let passed = rest.start << bits;
        let stored = before.map_or(0, |flight| flight.size.min(passed));
        let stored = stored.max(inode.core.read().size);
        let limit = BATCH >> bits;
        let taken = inode
            .pages
            .collect_forward(rest.clone(), limit, epoch, stored, || inode.size());
        rest.start = taken.0.last()?.block.0 + 1;
        let before = before.and_then(|flight| flight.pieces.last());
        Some(self.prepare(inode, taken, before, tag))
    }

    /// Leaves the blocks of a batch dirty and without names, because of an error elsewhere.
    fn take_back(&self, flight: &Flight<'_>, error: &FsError) {
        flight.wait();
        let written = vec![Ok(()); flight.pieces.len()];
        let named: Vec<_> = flight.pieces.iter().map(|_| Err(error.clone())).collect();
        // The caller has the error, and each block is dirty.
        let _ = self.land(flight, &written, &named);
    }
}
