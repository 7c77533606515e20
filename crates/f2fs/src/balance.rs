//! Keeping enough free sections for what is changed in memory.
//!
//! Operations look before they begin, while they hold no lock: what they change will need a place in the
//! next checkpoint, and that must have room for everything. A checkpoint makes the segments free that
//! have no valid block left; if those are too few, sections have to be cleaned.

use std::sync::atomic::Ordering;

use steadfs_base::IoTag;
use steadfs_vfs::Result;

use crate::checkpoint::Reason;
use crate::fs::F2fs;
use crate::segment::Demand;

/// The demand is counted at every so many operations.
const OFTEN: u64 = 32;

impl F2fs {
    /// Makes room where space is short: at the start of each operation that changes the volume, with no
    /// lock held.
    ///
    /// # Errors
    /// A checkpoint failed.
    pub(crate) fn balance(&self, tag: IoTag) -> Result<()> {
        if self.segments.get().is_none() {
            return Ok(());
        }
        // Counting takes longer than most operations, and one of them needs a few blocks only.
        let number = self.operations.fetch_add(1, Ordering::Relaxed);
        if number.is_multiple_of(OFTEN) {
            self.tell_demand();
        }
        if self.segments().is_short() {
            self.make_log_room(tag)?;
        }
        if self.has_too_much() {
            // Memory is full of what is changed.
            self.request_checkpoint(tag)?;
        }
        Ok(())
    }

    /// Makes room in the logs, for somebody whose claim found none. With no lock held.
    ///
    /// # Errors
    /// A checkpoint failed.
    pub(crate) fn make_log_room(&self, tag: IoTag) -> Result<()> {
        self.checkpoint(Reason::Sync, tag)
    }

    /// Tells the segments what in memory will need a place.
    fn tell_demand(&self) {
        let inodes = self.inodes.dirty_count();
        let others = self.inodes.dirty_others();
        let dentries: u64 = others.iter().map(|inode| inode.pages.unwritten()).sum();
        self.segments().set_demand(Demand {
            nodes: clamp(self.nodes.dirty_count()),
            dentries: u32::try_from(dentries).unwrap_or(u32::MAX),
            inodes: clamp(inodes),
            data: 0,
        });
    }
}

fn clamp(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
