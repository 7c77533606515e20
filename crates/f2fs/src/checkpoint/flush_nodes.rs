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
        // An fsync of a file whose nodes were placed here finds nothing to write.
        for node in &placed.in_flight_nodes {
            self.since_cp.place_node_of(node.ino());
        }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use steadfs_block::MemDevice;
    use steadfs_cache::WritebackReason;
    use steadfs_rt::sim;
    use steadfs_vfs::{FileSystem, FsError};

    use crate::test_world::{ROOT, World};

    /// A checkpoint that finds no space writes the nodes that have a place, and they are in no chain.
    #[test]
    fn an_fsync_covers_what_a_checkpoint_without_space_has_written() {
        for datasync in [false, true] {
            sim::run(sim::Config::new(1), move || {
                let world = World::make("", 64);
                let file = world.file(ROOT, b"file").unwrap().ino;
                world.fs.sync_all(&world.cx).unwrap();
                let data = [7; 100];
                world.fs.write(&world.cx, file, 0, &data, false).unwrap();
                let inode = world.fs.by_number(file, world.cx.tag).unwrap();
                world
                    .fs
                    .write_out(&inode, WritebackReason::Sync, world.cx.tag)
                    .unwrap();
                let change = world
                    .fs
                    .cp_lock
                    .change_exclusive(&world.fs.stop_state)
                    .unwrap();
                let mut placed = world.fs.place_dirty(&change);
                placed.allocated = Err(FsError::NoSpace);
                let written = world.fs.write_placed(change, placed, world.cx.tag);
                assert_eq!(written, Err(FsError::NoSpace));
                if datasync {
                    // More than a timestamp would need nodes in any case.
                    world.fs.touch_atime(&inode, world.cx.tag);
                }
                world.fs.fsync(&world.cx, file, datasync).unwrap();
                let crashed = World::of(Arc::new(MemDevice::from_bytes(&world.bytes())), "");
                let found = crashed.fs.read(&crashed.cx, file, 0, 100).unwrap();
                assert_eq!(found.to_vec(), data);
                crashed.close();
                world.close();
            });
        }
    }
}
