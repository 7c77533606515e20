//! Space accounting: how many blocks and nodes users may have, how many are in use, how many are reserved.
//!
//! **Rule.** An operation reserves what it may need at worst before it changes anything and releases what it did not
//! need, so a full volume fails before the change. Which blocks are free is known by the segment manager.

use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{FsError, Result};

use crate::disk::{Checkpoint, Layout};

/// Node ids that are never used by files (`F2FS_RESERVED_NODE_NUM`).
pub const RESERVED_NODES: u64 = 3;

/// Nodes that an operation on names needs at most: two inodes, their attributes, three nodes on the path to a
/// directory block.
const NODES_PER_NAME_OPERATION: u64 = 2 * 2 + 3;

/// Counts of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks for users, nodes included.
    pub user_blocks: u64,
    /// Blocks in use: data, nodes, and data blocks allocated by fallocate.
    pub valid_blocks: u64,
    /// Reserved blocks, reserved nodes included.
    pub reserved: u64,
    /// Blocks that only the superuser may use (`reserve_root`).
    pub root_reserved: u64,
    /// Blocks that are unusable while checkpoints are disabled.
    pub unusable: u64,
    /// Nodes that the volume can have.
    pub max_nodes: u64,
    /// Nodes in use, inodes included.
    pub valid_nodes: u64,
    pub reserved_nodes: u64,
    /// Freed nodes whose ids are available after the next checkpoint.
    pub freed_nodes: u64,
    /// Inodes in use.
    pub valid_inodes: u64,
    /// Blocks in use at the last checkpoint's snapshot.
    pub before: u64,
    /// Blocks taken into use since, without those freed.
    pub taken: u64,
}

pub struct Space {
    counts: Mutex<Counts>,
}

/// What an operation has reserved and not used yet; released when it is dropped.
pub struct Reservation<'s> {
    space: &'s Space,
    left: Need,
}

impl Reservation<'_> {
    /// Blocks and nodes were taken into use.
    pub fn used(&mut self, need: Need) {
        assert!(
            need.blocks <= self.left.blocks && need.nodes <= self.left.nodes,
            "at most the reserved blocks and nodes are used"
        );
        self.left.blocks -= need.blocks;
        self.left.nodes -= need.nodes;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.space.release(self.left);
    }
}

/// What an operation may need at worst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Data blocks.
    pub blocks: u64,
    /// Nodes, inodes included.
    pub nodes: u64,
}

impl std::ops::Add for Need {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            blocks: self.blocks + other.blocks,
            nodes: self.nodes + other.nodes,
        }
    }
}

impl Counts {
    /// As a checkpoint has them.
    fn of(layout: &Layout, checkpoint: &Checkpoint) -> Self {
        // A volume mounted read-only may have wrong counts, which are shown but decide nothing.
        let possible = |blocks: u64| blocks.min(layout.main_blocks().into());
        Self {
            user_blocks: possible(checkpoint.user_blocks),
            valid_blocks: possible(checkpoint.valid_blocks),
            max_nodes: u64::from(layout.max_nid).saturating_sub(RESERVED_NODES),
            valid_nodes: checkpoint.valid_nodes.into(),
            valid_inodes: checkpoint.valid_inodes.into(),
            before: possible(checkpoint.valid_blocks),
            ..Self::default()
        }
    }

    /// Whether this fits beside what is in use and reserved; `privileged`: root's blocks may be used.
    fn fits(&self, need: Need, privileged: bool) -> bool {
        let root_reserved = if privileged { 0 } else { self.root_reserved };
        let kept = root_reserved.saturating_add(self.unusable);
        let blocks = self.valid_blocks + self.reserved + need.blocks + need.nodes + kept;
        let nodes = self.valid_nodes + self.reserved_nodes + self.freed_nodes + need.nodes;
        blocks <= self.user_blocks && nodes <= self.max_nodes
    }
}

impl Space {
    /// As the checkpoint has it.
    pub fn new(layout: &Layout, checkpoint: &Checkpoint) -> Self {
        let counts = Counts::of(layout, checkpoint);
        Self {
            counts: Mutex::new(Rank::Super, counts),
        }
    }

    /// Replaces the counts by those of another checkpoint; nothing is dirty in memory.
    pub fn reload(&self, layout: &Layout, checkpoint: &Checkpoint) {
        *self.counts.lock() = Counts::of(layout, checkpoint);
    }

    /// Sets the number of blocks reserved for root.
    pub fn set_root_reserved(&self, blocks: u64) {
        self.counts.lock().root_reserved = blocks;
    }

    /// Adds blocks that are unusable while checkpoints are disabled.
    pub fn add_unusable(&self, blocks: u64) {
        self.counts.lock().unusable += blocks;
    }

    /// A checkpoint made all blocks usable.
    pub fn all_usable(&self) {
        self.counts.lock().unusable = 0;
    }

    pub fn counts(&self) -> Counts {
        *self.counts.lock()
    }

    /// Reserves space for an operation.
    ///
    /// # Errors
    /// `NoSpace`: nothing is reserved.
    pub fn reserve(&self, need: Need, privileged: bool) -> Result<()> {
        if need == Need::default() {
            return Ok(());
        }
        let mut counts = self.counts.lock();
        if !counts.fits(need, privileged) {
            return Err(FsError::NoSpace);
        }
        counts.reserved += need.blocks + need.nodes;
        counts.reserved_nodes += need.nodes;
        Ok(())
    }

    /// The same, with a guard that releases what was not used.
    ///
    /// # Errors
    /// As [`Space::reserve`].
    pub fn reservation(&self, need: Need, privileged: bool) -> Result<Reservation<'_>> {
        self.reserve(need, privileged)?;
        Ok(Reservation {
            space: self,
            left: need,
        })
    }

    /// Whether nodes are short while freed ids wait for a checkpoint.
    pub fn has_prefree_nids(&self) -> bool {
        let counts = self.counts.lock();
        let taken = counts.valid_nodes + counts.reserved_nodes + counts.freed_nodes;
        counts.freed_nodes > 0 && taken + NODES_PER_NAME_OPERATION > counts.max_nodes
    }

    /// Releases reserved space that was not needed.
    pub fn release(&self, need: Need) {
        let mut counts = self.counts.lock();
        let blocks = need.blocks + need.nodes;
        assert!(
            blocks <= counts.reserved && need.nodes <= counts.reserved_nodes,
            "only reserved space is released"
        );
        counts.reserved -= blocks;
        counts.reserved_nodes -= need.nodes;
    }

    /// A reserved block is taken into use.
    pub fn use_block(&self) {
        let mut counts = self.counts.lock();
        assert!(counts.reserved > 0, "a block is reserved before it is used");
        counts.reserved -= 1;
        counts.valid_blocks += 1;
        counts.taken += 1;
    }

    /// Data blocks are no longer in use.
    pub fn free_blocks(&self, blocks: u64) {
        let mut counts = self.counts.lock();
        // The counts of a corrupt volume may be too low.
        counts.valid_blocks = counts.valid_blocks.saturating_sub(blocks);
    }

    /// A reserved node is taken into use.
    pub fn use_node(&self, is_inode: bool) {
        let mut counts = self.counts.lock();
        assert!(
            counts.reserved > 0 && counts.reserved_nodes > 0,
            "a node is reserved before it is used"
        );
        counts.reserved -= 1;
        counts.reserved_nodes -= 1;
        counts.valid_blocks += 1;
        counts.taken += 1;
        counts.valid_nodes += 1;
        counts.valid_inodes += u64::from(is_inode);
    }

    /// A node is no longer in use; its id is available after the next checkpoint.
    pub fn free_node(&self, is_inode: bool) {
        let mut counts = self.counts.lock();
        counts.valid_blocks = counts.valid_blocks.saturating_sub(1);
        counts.valid_nodes = counts.valid_nodes.saturating_sub(1);
        counts.valid_inodes = counts.valid_inodes.saturating_sub(is_inode.into());
        counts.freed_nodes += 1;
    }

    /// The counts for a checkpoint. `valid`: valid blocks of data and of nodes by the SIT. The next mount refuses
    /// counts that contradict it, so those of a corrupt volume are corrected; returns whether they were.
    pub fn snapshot(&self, valid: (u64, u64)) -> (Counts, bool) {
        let mut counts = self.counts.lock();
        let (data, nodes) = valid;
        let wrong = counts.valid_nodes != nodes || counts.valid_blocks < data + nodes;
        counts.valid_nodes = nodes;
        counts.valid_blocks = counts.valid_blocks.max(data + nodes);
        counts.valid_inodes = counts.valid_inodes.min(nodes);
        (counts.before, counts.taken) = (counts.valid_blocks, 0);
        (*counts, wrong)
    }

    /// Whether roll-forward would have space for all blocks taken into use since the last checkpoint, without those
    /// freed since (`f2fs_space_for_roll_forward`).
    pub fn has_space_for_roll_forward(&self) -> bool {
        let counts = self.counts.lock();
        counts.before + counts.taken <= counts.user_blocks
    }

    /// A checkpoint made the ids of freed nodes available.
    pub fn free_nids(&self, count: u64) {
        let mut counts = self.counts.lock();
        assert!(
            count <= counts.freed_nodes,
            "only ids of freed nodes become available"
        );
        counts.freed_nodes -= count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_end_where_space_ends() {
        let counts = Counts {
            user_blocks: 10,
            valid_blocks: 4,
            max_nodes: 4,
            valid_nodes: 2,
            root_reserved: 1,
            ..Counts::default()
        };
        let space = Space {
            counts: Mutex::new(Rank::Super, counts),
        };
        let need = |blocks, nodes| Need { blocks, nodes };
        assert_eq!(space.reserve(need(5, 1), false), Err(FsError::NoSpace));
        assert_eq!(space.reserve(need(5, 1), true), Ok(()));
        assert_eq!(space.reserve(need(1, 0), true), Err(FsError::NoSpace));
        assert!(space.has_space_for_roll_forward());
        space.use_block();
        space.use_node(true);
        space.release(need(4, 0));
        // Ids of freed nodes are available after a checkpoint only.
        space.free_node(true);
        assert_eq!(space.reserve(need(0, 2), true), Err(FsError::NoSpace));
        space.free_nids(1);
        assert_eq!(space.reserve(need(0, 2), true), Ok(()));
        let now = space.counts();
        assert_eq!((now.valid_blocks, now.valid_nodes, now.reserved), (5, 2, 2));
    }
}
