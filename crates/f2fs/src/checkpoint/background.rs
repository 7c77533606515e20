//! Background checkpoints: written when much is dirty in memory, or something has been dirty for long
//! (`f2fs_balance_fs_bg`).

use steadfs_base::IoTag;
use steadfs_cache::WritebackReason;
use steadfs_rt::now;

use crate::disk::SEGMENT_BLOCKS;
use crate::fs::F2fs;

/// Dirty NAT entries, in percent of all possible ones (`dirty_nats_ratio`).
const NAT_PERCENT: u64 = 10;
/// Dirty nodes, directory blocks or inodes: eight segments of each, as in the kernel.
const DIRTY_NODES_MAX: usize = 8 * SEGMENT_BLOCKS as usize;
/// Prefree segments, in percent of all (`reclaim_segments`).
const PREFREE_PERCENT: u64 = 5;
const PREFREE_SEGMENTS_MAX: u32 = 4096;
/// Dirty nodes that can be written without a free section, in the cursegs and by SSR.
const DIRTY_NODES_ALWAYS: u64 = SEGMENT_BLOCKS as u64 / 2;
/// A volume that is always in use gets its checkpoint after this many intervals.
const INTERVALS_WHILE_IN_USE: u32 = 2;

impl F2fs {
    /// Dirty nodes before a checkpoint is due; fewer if memory is small.
    pub(crate) fn node_limit(&self) -> usize {
        let limit = DIRTY_NODES_MAX.min(self.nodes.budget() / 2);
        assert!(limit > 0, "a clean volume needs no checkpoint");
        limit
    }

    /// Whether more nodes are dirty than operations may leave in memory; they wait for a checkpoint then.
    pub(crate) fn excess_dirty_nodes(&self) -> bool {
        self.nodes.dirty_count() > 4 * self.node_limit() || self.excess_of_free_space()
    }

    /// Nodes that a checkpoint has to write: dirty ones, and those of dirty inodes.
    pub(crate) fn nodes_to_place(&self) -> usize {
        self.nodes.dirty_count() + self.inodes.dirty_count()
    }

    /// Whether the dirty nodes would use half of the free sections, so that a checkpoint is due. The limit for
    /// operations is `excess_node_capacity` of `gc::balance`.
    pub(crate) fn excess_of_free_space(&self) -> bool {
        let free = self.segments().free_sections() * self.layout.segments_per_section;
        debug_assert!(
            free <= self.layout.main_segments,
            "free segments are part of the main area"
        );
        self.nodes_to_place() as u64
            > u64::from(free) * u64::from(SEGMENT_BLOCKS) / 2 + DIRTY_NODES_ALWAYS
    }

    /// Prefree segments before a checkpoint is due.
    pub(crate) fn prefree_limit(&self) -> u32 {
        let share = u64::from(self.layout.main_segments) * PREFREE_PERCENT / 100;
        let usual = u32::try_from(share).unwrap_or(PREFREE_SEGMENTS_MAX);
        let usual = usual.clamp(1, PREFREE_SEGMENTS_MAX);
        let set = self.gc.tunables.lock().reclaim_segments;
        set.unwrap_or(usual)
    }

    /// Whether the dirty blocks of one kind, or of all kinds together, exceed the kernel's limit
    /// (`excess_dirty_threshold`); the limit is 1.5 times higher while operations are in progress.
    fn excess_dirty_blocks(&self) -> bool {
        let quiet = self.cp_lock.is_idle();
        let most = self.node_limit() as u64;
        let most = if quiet { most } else { most + most / 2 };
        let others = self.inodes.dirty_others();
        let changed = [
            self.nodes.dirty_count() as u64,
            others.iter().map(|inode| inode.pages.unwritten()).sum(),
            self.inodes.dirty_count() as u64,
        ];
        changed.iter().any(|count| *count >= most) || changed.iter().sum::<u64>() > most + most / 2
    }

    /// Whether a checkpoint should be written at once.
    pub(crate) fn needs_background_checkpoint(&self) -> bool {
        let nids = u64::from(self.layout.max_nid);
        let prefree = self.segments().counts().prefree;
        self.excess_dirty_blocks()
            || self.excess_of_free_space()
            || self.nat.dirty_count() as u64 > nids * NAT_PERCENT / 100
            || prefree > self.prefree_limit()
            || !self.space.has_space_for_roll_forward()
    }

    /// Whether the device has I/O in flight, or an operation is in progress and others came within `idle_interval`.
    fn is_in_use(&self) -> bool {
        let idle = self.checkpoints.idle().as_secs();
        self.queue.stats().in_flight > 0 || (self.gc.quiet_for() < idle && !self.cp_lock.is_idle())
    }

    /// Whether a checkpoint is due by age: after `cp_interval` if the volume is idle, else after two intervals.
    fn is_due(&self) -> bool {
        let interval = self.checkpoints.interval();
        let age = now().since(self.checkpoints.last_ended());
        age >= interval && (age >= interval * INTERVALS_WHILE_IN_USE || !self.is_in_use())
    }

    /// Writes a checkpoint if one is due; called every few seconds.
    pub(crate) fn background_checkpoint(&self) {
        if self.check_writable().is_err() || !self.has_changed() {
            return;
        }
        if self.needs_background_checkpoint() || self.is_due() {
            self.checkpoints.count_background();
            if self.options.read().data_flush {
                let dirty = self.writeback.dirty_files();
                if let Err(error) =
                    self.write_out_files(&dirty, WritebackReason::Sync, IoTag::background())
                {
                    // The data stays dirty; the checkpoint does not depend on it.
                    tracing::warn!(%error, "write-back before a checkpoint failed");
                }
            }
            if let Err(error) = self.request_checkpoint(IoTag::background()) {
                tracing::warn!(%error, "a background checkpoint failed");
            }
        }
    }
}
