//! Checkpoints that nobody asks for: when much is changed in memory, or it has been for long.

use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_cache::Why;
use steadfs_rt::now;

use crate::disk::SEGMENT_BLOCKS;
use crate::fs::F2fs;

/// Changed entries of the node address table, in percent of all there can be (`dirty_nats_ratio`).
const NAT_PERCENT: u64 = 10;
/// Changed nodes: eight segments' worth, as in the kernel.
const NODES: usize = 8 * SEGMENT_BLOCKS as usize;
/// Segments that only wait for a checkpoint to be free, in percent of all (`reclaim_segments`).
const HELD_PERCENT: u32 = 5;
const MOST_HELD: u32 = 4096;
/// Changed nodes that find a place where no section is free: in the logs and in holes.
const AT_LEAST: u64 = SEGMENT_BLOCKS as u64 / 2;
/// `cp_interval` after a mount.
pub const INTERVAL: Duration = Duration::from_secs(60);

impl F2fs {
    /// How many changed nodes there may be before a checkpoint is due; less where memory is small.
    pub(crate) fn node_limit(&self) -> usize {
        NODES.min(self.nodes.budget() / 2)
    }

    /// Whether so much is changed that those who change more wait for a checkpoint.
    pub(crate) fn has_too_much(&self) -> bool {
        self.nodes.dirty_count() > 4 * self.node_limit() || self.fills_room()
    }

    /// Nodes that a checkpoint has to place: those that are changed, and those that changed inodes will be
    /// stored in.
    pub(crate) fn changed_nodes(&self) -> usize {
        self.nodes.dirty_count() + self.inodes.dirty_count()
    }

    /// Whether what is changed would take half of the free sections, so that a checkpoint is due. Nobody
    /// changes more than there surely are places for: that is `is_tight` of `gc::room`.
    pub(crate) fn fills_room(&self) -> bool {
        let free = self.segments().free_sections() * self.layout.segments_per_section;
        self.changed_nodes() as u64 > u64::from(free) * u64::from(SEGMENT_BLOCKS) / 2 + AT_LEAST
    }

    /// How many segments may wait for a checkpoint to be free before one is due.
    pub(crate) fn held_limit(&self) -> u32 {
        let segments = self.layout.main_segments;
        let set = self.gc.tunables.lock().reclaim_segments;
        set.unwrap_or((segments / 100 * HELD_PERCENT).clamp(1, MOST_HELD))
    }

    /// Whether so much is changed that a checkpoint should be written.
    pub(crate) fn has_much(&self) -> bool {
        let nids = u64::from(self.layout.max_nid);
        let held = self.segments().counts().held;
        self.nodes.dirty_count() > self.node_limit()
            || self.fills_room()
            || self.nat.dirty_count() as u64 > nids / 100 * NAT_PERCENT
            || held > self.held_limit()
    }

    /// Writes a checkpoint if one is due; called every few seconds.
    pub(crate) fn background_checkpoint(&self) {
        if self.check_writable().is_err() || !self.has_changed() {
            return;
        }
        let interval = *self.checkpoints.interval.lock();
        let due = now().since(self.checkpoints.last_ended()) >= interval;
        if due || self.has_much() {
            self.checkpoints.count_background();
            if self.options.read().data_flush {
                let dirty = self.writeback.dirty_files();
                if let Err(error) = self.write_out_files(&dirty, Why::Sync, IoTag::background()) {
                    // It stays with the files; the checkpoint says nothing of it.
                    tracing::warn!(%error, "write-back before a checkpoint failed");
                }
            }
            if let Err(error) = self.request_checkpoint(IoTag::background()) {
                tracing::warn!(%error, "a background checkpoint failed");
            }
        }
    }
}
