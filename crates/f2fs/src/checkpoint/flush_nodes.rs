//! Writes nodes and directory blocks without a checkpoint pack: while checkpoints are disabled, so that memory does not
//! fill, and when a checkpoint has no space for all of them.

use steadfs_base::IoTag;
use steadfs_vfs::Result;

use super::snapshot::PlacedBlocks;
use super::write::{Writes, submit_nodes};
use crate::cp_lock::Change;
use crate::disk::BlockAddr;
use crate::disk::superblock::StopReason;
use crate::fs::{F2fs, io_error};

impl F2fs {
    /// Writes each dirty node and directory block to a new place; nothing durable refers to them. One at a time, like
    /// checkpoints.
    ///
    /// # Errors
    /// `NoSpace`: not all could be allocated. A device error: the volume aborts.
    pub(super) fn flush_nodes(&self, tag: IoTag) -> Result<()> {
        assert!(
            self.is_cp_disabled(),
            "while checkpoints are enabled they write the nodes"
        );
        let change = self.cp_lock.change_exclusive(&self.stop_state)?;
        let placed = self.place_dirty(&change);
        self.write_placed(change, placed, tag)
    }

    /// Writes the blocks that were allocated; `NoSpace` if these are not all.
    pub(super) fn write_placed(
        &self,
        change: Change<'_>,
        mut placed: PlacedBlocks,
        tag: IoTag,
    ) -> Result<()> {
        // They may be in the log between nodes of fsyncs, whose chains lead through them. `cp_lock` is held
        // exclusively, so no other task allocates nodes.
        let (write, _) = self.node_writes.begin();
        drop(change);
        let mut writes = Writes::default();
        assert!(
            placed.nodes.len() == placed.in_flight_nodes.len(),
            "each node in flight stays in memory"
        );
        debug_assert!(
            placed.dirs.iter().all(|dir| dir.addr != BlockAddr::NULL),
            "each block to be written is allocated"
        );
        placed.nodes.sort_unstable_by_key(|(addr, _)| *addr);
        let submit = |blocks: &[_], to: &mut Writes| self.submit_blocks(blocks, tag, to);
        let nodes = submit_nodes(&placed.nodes, &mut writes, submit);
        placed.dirs.sort_unstable_by_key(|dir| dir.addr);
        let dirs: Vec<_> = placed
            .dirs
            .iter()
            .map(|dir| (dir.addr, dir.data.clone()))
            .collect();
        self.submit_blocks(&dirs, tag, &mut writes);
        let written = nodes.and(writes.wait()).map_err(io_error);
        match &written {
            Ok(()) => {
                write.end();
                self.dirs_written(placed.dirs);
            }
            Err(error) => {
                self.abort(
                    StopReason::WRITE_FAIL,
                    &format!("a node could not be written: {error}"),
                );
                self.redirty_dirs(&placed.dirs, error);
            }
        }
        written.and(placed.allocated)
    }
}
