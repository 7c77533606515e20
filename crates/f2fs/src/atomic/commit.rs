//! The commit of an atomic write.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_vfs::{Cx, FsError, IoctlAnswer, Result};

use super::{AtomicWrite, stale};
use crate::cp_lock::Change;
use crate::data::{BLOCK, MapTarget};
use crate::disk::superblock::StopReason;
use crate::disk::{self, BlockAddr, DiskError, Nid, Structure};
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::node::{Node, Slot, SlotLookup};
use crate::pins::Pins;
use crate::segment::BlockKind;

/// Nodes that a commit keeps in memory, of 4 KiB each. They map 64 GiB; with more a device error in the middle aborts the
/// volume.
const HELD_MAX: usize = 1 << 14;

/// What a commit moves, read before it changes anything.
pub(crate) struct Moves {
    /// Runs of staged blocks: the first one, and their number.
    runs: Vec<(u64, u64)>,
    /// Runs of blocks that the file had before it was truncated, and has no more.
    gone: Vec<(u64, u64)>,
    /// The nodes that map any of these, and what the file is truncated by, stay in memory.
    _nodes: BTreeMap<Nid, Arc<Node>>,
    /// So do the quota entries of both files.
    _pins: Pins,
}

/// Both files of a commit, with their fields.
struct Both<'c> {
    change: &'c Change<'c>,
    file: &'c Inode,
    staging: &'c Inode,
    core: &'c mut disk::Inode,
    staged_core: &'c mut disk::Inode,
    tag: IoTag,
}

/// Whether a commit frees blocks behind the end of the file, whose stored size is that from before the start.
fn is_shorter(file: &Inode, core: &disk::Inode) -> bool {
    file.size().div_ceil(BLOCK) < core.size.div_ceil(BLOCK)
}

impl F2fs {
    /// Makes what was written since the start part of the file, and makes that durable. Without an atomic write it is
    /// fdatasync(2), as in Linux.
    ///
    /// # Errors
    /// The staged data could not be written: the atomic write is dropped, the file is as before the start. An error of
    /// the fsync, as there.
    pub(crate) fn commit_atomic_write(&self, cx: &Cx, inode: &Inode) -> Result<IoctlAnswer> {
        self.check_may_stage(cx, inode)?;
        self.prepare(cx)?;
        let mut tried = None;
        let moved = self.with_space(cx, || {
            let _exclusive = inode.lock.write();
            tried = self.atomic_writes.of(inode);
            match &tried {
                None => Ok(None),
                Some(write) => self
                    .commit_locked(cx, inode, write)
                    .map(|()| Some(Arc::clone(write))),
            }
        });
        match moved {
            Ok(None) => {
                self.fsync_inode(cx, inode, true)?;
                return Ok(stale(false));
            }
            Ok(Some(write)) => self.free_staging(&write.staging, cx.tag),
            Err(error) => {
                let is_tried = |write: &AtomicWrite| {
                    let tried = tried.as_deref();
                    tried.is_some_and(|tried| std::ptr::eq(tried, write))
                };
                self.drop_staged(inode, cx.tag, is_tried);
                return Err(error);
            }
        }
        match self.fsync_inode(cx, inode, false) {
            // The node log is full. A checkpoint takes its blocks elsewhere.
            Err(FsError::NoSpace) => self.request_checkpoint(cx.tag)?,
            other => other?,
        }
        Ok(stale(false))
    }

    /// Moves the staged blocks, with `inode.lock` held for writing.
    fn commit_locked(&self, cx: &Cx, inode: &Inode, write: &AtomicWrite) -> Result<()> {
        let (staging, tag) = (&*write.staging, cx.tag);
        let _alone = staging.lock.write();
        self.write_out_locked(staging, tag)?;
        let moves = self.plan_moves(inode, write, tag)?;
        self.nat.build_free_nids(tag)?;
        let size = inode.size();
        self.move_staged((inode, staging), &moves, tag, |_, core| {
            core.size = size;
            let now = self.now();
            (core.mtime, core.ctime) = (now, now);
            Ok(())
        })?;
        if let Some(end) = staging.stale_tail() {
            inode.record_truncation(end);
        }
        self.atomic_writes.remove(inode);
        self.release_nodes(inode, 0);
        Ok(())
    }

    /// Moves blocks that are on the device to the file, in one change, which `last` completes. The caller holds the locks of
    /// both files for writing. An error after the first change aborts the volume.
    pub(crate) fn move_staged(
        &self,
        (inode, staging): (&Inode, &Inode),
        moves: &Moves,
        tag: IoTag,
        last: impl FnOnce(&Change<'_>, &mut disk::Inode) -> Result<()>,
    ) -> Result<()> {
        // An fsync that places nodes of the file must see, before they change, which FLUSH covers the staged blocks: also those
        // that were overwritten in place.
        let _flush = inode.lock_flush();
        inode.record_written(true, staging.unflushed().max(staging.unflushed_opu()));
        let change = self.change()?;
        let mut core = inode.core.write();
        let mut staged_core = staging.core.write();
        let mut both = Both {
            change: &change,
            file: inode,
            staging,
            core: &mut core,
            staged_core: &mut staged_core,
            tag,
        };
        let moved = self
            .move_all(&mut both, moves)
            .and_then(|()| last(&change, &mut core));
        if let Err(error) = &moved {
            let cause = format!("moving staged blocks failed after the first change: {error}");
            self.abort(StopReason::UPDATE_INODE, &cause);
        }
        moved?;
        self.charge(staging, &staged_core);
        self.charge(inode, &core);
        Ok(())
    }

    /// Plans to move all blocks of a range of the staging file, which is beyond the end of the file.
    pub(crate) fn plan_appended(
        &self,
        inode: &Inode,
        staging: &Inode,
        blocks: std::ops::Range<u64>,
        tag: IoTag,
    ) -> Result<Moves> {
        let (mut runs, mut nodes) = (Vec::new(), BTreeMap::new());
        let mut at = blocks.start;
        while at < blocks.end {
            let run = self.map(staging, at, blocks.end - at, tag)?;
            let len = run.len.min(blocks.end - at);
            if matches!(run.target, MapTarget::Block(_)) {
                for file in [inode, staging] {
                    self.hold_nodes(file, at..at + len, (&mut nodes, HELD_MAX), tag)?;
                }
                runs.push((at, len));
            }
            at += len;
        }
        Ok(Moves {
            runs,
            gone: Vec::new(),
            _nodes: nodes,
            _pins: self.pin_inodes(&[inode, staging], tag)?,
        })
    }

    /// Finds the blocks to be moved and reads all nodes that this needs.
    fn plan_moves(&self, inode: &Inode, write: &AtomicWrite, tag: IoTag) -> Result<Moves> {
        let staging = &*write.staging;
        let (mut runs, mut gone, mut nodes) = (Vec::new(), Vec::new(), BTreeMap::new());
        let end = write.seen_blocks();
        let mut at = 0;
        while at < end {
            let run = self.map(staging, at, end - at, tag)?;
            let len = run.len.min(end - at);
            match run.target {
                MapTarget::Block(_) => {
                    for file in [inode, staging] {
                        self.hold_nodes(file, at..at + len, (&mut nodes, HELD_MAX), tag)?;
                    }
                    runs.push((at, len));
                }
                _ => self.plan_gone(inode, write, (at, len), &mut gone, tag)?,
            }
            at += len;
        }
        for &(at, len) in &gone {
            self.hold_nodes(inode, at..at + len, (&mut nodes, HELD_MAX), tag)?;
        }
        if is_shorter(inode, &inode.core.read()) {
            self.hold_nodes(inode, end..u64::MAX, (&mut nodes, HELD_MAX), tag)?;
        }
        Ok(Moves {
            runs,
            gone,
            _nodes: nodes,
            _pins: self.pin_inodes(&[inode, staging], tag)?,
        })
    }

    /// Blocks of the file behind `base` in a run that is not staged.
    fn plan_gone(
        &self,
        inode: &Inode,
        write: &AtomicWrite,
        (start, len): (u64, u64),
        gone: &mut Vec<(u64, u64)>,
        tag: IoTag,
    ) -> Result<()> {
        let mut at = start.max(write.base().div_ceil(BLOCK));
        let end = start + len;
        while at < end {
            let run = self.map(inode, at, end - at, tag)?;
            let len = run.len.min(end - at);
            if run.target != MapTarget::Hole {
                gone.push((at, len));
            }
            at += len;
        }
        Ok(())
    }

    fn move_all(&self, both: &mut Both<'_>, moves: &Moves) -> Result<()> {
        self.mark_dirty(both.change, both.file, both.tag)?;
        self.mark_dirty(both.change, both.staging, both.tag)?;
        for &(start, len) in &moves.gone {
            for block in start..start + len {
                if let SlotLookup::Slot(slot) =
                    self.find_slot(both.file, both.core, block, both.tag)?
                {
                    let (file, core) = (both.file, &mut *both.core);
                    self.set_slot(both.change, file, core, &slot, BlockAddr::NULL, both.tag)?;
                }
            }
        }
        for &(start, len) in &moves.runs {
            let mut at = start;
            while at < start + len {
                at += self.move_in_nodes(both, at, start + len - at)?;
            }
        }
        let end = both.file.size().div_ceil(BLOCK);
        let (file, core) = (both.file, &mut *both.core);
        if is_shorter(file, core)
            && self.truncate_nodes(both.change, file, core, end, u32::MAX, both.tag)? != end
        {
            unreachable!("the number of nodes is not limited");
        }
        Ok(())
    }

    /// Moves blocks that one node maps in each of the files, at most `limit`; returns their number.
    fn move_in_nodes(&self, both: &mut Both<'_>, at: u64, limit: u64) -> Result<u64> {
        let SlotLookup::Slot(mut from) =
            self.find_slot(both.staging, both.staged_core, at, both.tag)?
        else {
            let rule = "has no slot in its node while it is committed";
            let error = DiskError::field(Structure::Node, "staged block", at, rule);
            return Err(error.in_node(both.staging.nid()).into());
        };
        let mut to = self.make_slot(both.change, both.file, both.core, at, both.tag)?;
        let len = limit.min(from.left.into()).min(to.left.into());
        for _ in 0..len {
            self.move_block(both, &from, &to)?;
            from.slot += 1;
            to.slot += 1;
        }
        Ok(len)
    }

    /// The block stays in use, so nothing is reserved or freed for it; what the file had there is freed.
    fn move_block(&self, both: &mut Both<'_>, from: &Slot, to: &Slot) -> Result<()> {
        let addr = self.addr_in(both.staged_core, from)?;
        let old = self.addr_in(both.core, to)?;
        self.store_slot(both.change, both.staged_core, from, BlockAddr::NULL)?;
        self.store_slot(both.change, both.core, to, addr)?;
        self.segments().change_owner(addr, to.owner())?;
        both.staged_core.blocks = both.staged_core.blocks.saturating_sub(1).max(1);
        if both.core.counts(old) {
            let was_own = !old.is_block() || self.invalidate(both.change, old, BlockKind::Data);
            self.space.free_blocks(was_own.into());
        } else {
            both.core.blocks += 1;
        }
        Ok(())
    }
}
