//! Writing nodes and directories without a checkpoint: while those are switched off, so that memory does not
//! fill, and where a checkpoint finds no room for all.

use steadfs_base::IoTag;
use steadfs_vfs::Result;

use super::snapshot::PlacedBlocks;
use super::write::Writes;
use crate::cp_lock::Change;
use crate::disk::superblock::StopReason;
use crate::fs::{F2fs, io_error};

impl F2fs {
    /// Writes every changed node and directory block to a place of its own; nothing durable refers to them.
    /// One at a time, like checkpoints.
    ///
    /// # Errors
    /// `NoSpace`: not all have a place; the device: the volume stops.
    pub(super) fn flush_nodes(&self, tag: IoTag) -> Result<()> {
        let change = self.change_exclusive()?;
        let placed = self.place_dirty(&change);
        self.write_placed(change, placed, tag)
    }

    /// Writes what has its place, and says whether that is all.
    pub(super) fn write_placed(
        &self,
        change: Change<'_>,
        mut placed: PlacedBlocks,
        tag: IoTag,
    ) -> Result<()> {
        // They may lie between the nodes of fsyncs, which lead through them.
        // Alone in the gate: nobody else gives places.
        let (write, _) = self.node_writes.begin();
        drop(change);
        let mut writes = Writes::default();
        placed.nodes.sort_unstable_by_key(|(addr, _)| *addr);
        self.submit_blocks(&placed.nodes, tag, &mut writes);
        placed.dirs.sort_unstable_by_key(|dir| dir.addr);
        let dirs: Vec<_> = placed
            .dirs
            .iter()
            .map(|dir| (dir.addr, dir.data.clone()))
            .collect();
        self.submit_blocks(&dirs, tag, &mut writes);
        let written = writes.wait().map_err(io_error);
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
        written.and(placed.whole)
    }
}
