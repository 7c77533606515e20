//! Files on volumes with clusters (`bigalloc`): which device blocks a hole may get, and which clusters nothing maps.
//!
//! A block has the same place in its device cluster as in its cluster of the file. The functions here do nothing on
//! volumes without the feature.

use std::ops::Range;

use steadfs_base::{Corruption, DevBlock, FileBlock, IoTag};
use steadfs_vfs::{FsError, Result};

use crate::disk::extent::FILE_END;
use crate::disk::{self, Ino};
use crate::extent;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::map::has_extents;
use crate::mballoc::{Goal, Run};
use crate::place::BlockPlace;

/// What a hole of a file gets.
#[derive(Clone, Copy)]
pub(crate) struct HoleRequest {
    /// The file.
    pub ino: Ino,
    /// First block of the hole to be mapped.
    pub at: FileBlock,
    /// Most blocks, at least one: all of them are holes.
    pub len: u64,
    /// Where the first block is best.
    pub goal: Goal,
}

/// The way in which a hole gets its blocks.
#[derive(Clone, Copy)]
pub(crate) struct HolePlan {
    hole: HoleRequest,
    /// The first block's device block, in a cluster that the file has already, and whether that is used on disk.
    given: Option<(DevBlock, bool)>,
}

/// Whether blocks of a hole need clusters that the file does not map.
pub(crate) enum NewClusters {
    /// The first blocks, as many as this, are of a cluster that the file maps.
    None(u64),
    /// The first `len` blocks need each cluster that they are in; the first one begins `before` blocks earlier.
    For {
        /// A number of blocks.
        len: u64,
        /// A number of blocks.
        before: u64,
    },
}

impl Ext4 {
    /// Which clusters `len` blocks from `at` on, a hole of the file, need. The caller holds the inode's flush lock, or it
    /// alone has the inode.
    pub(crate) fn new_clusters(
        &self,
        ino: Ino,
        core: &disk::Inode,
        at: FileBlock,
        len: u64,
    ) -> Result<NewClusters> {
        let goal = DevBlock(0).into();
        let plan = self.plan_hole(core, HoleRequest { ino, at, len, goal })?;
        let len = plan.hole.len;
        Ok(match plan.given {
            Some((_, true)) => NewClusters::None(len),
            // One that is kept for the file, but not mapped, is not counted any more.
            Some((_, false)) | None => NewClusters::For {
                len,
                before: at.0 % u64::from(self.geo.blocks_per_cluster()),
            },
        })
    }

    /// Blocks for a hole of a file, from its first block on; see [`Ext4::fill_hole`]. The caller holds the inode's flush lock
    /// until they are mapped or given up, and no handle.
    pub(crate) fn allocate_hole(
        &self,
        inode: &Inode,
        hole: HoleRequest,
        tag: IoTag,
        allocate: impl FnOnce(FileBlock, Goal, u32) -> Result<Run>,
    ) -> Result<Run> {
        let plan = self.plan_hole(&inode.core.read(), hole)?;
        self.settle_hole(&plan, tag)?;
        self.fill_hole(plan, allocate)
    }

    /// How a hole of a file gets blocks. The caller holds the inode's flush lock until they are mapped or given up, or it
    /// alone has the inode.
    pub(crate) fn plan_hole(&self, core: &disk::Inode, hole: HoleRequest) -> Result<HolePlan> {
        let HoleRequest { ino, at, len, .. } = hole;
        if self.geo.cluster_bits == 0 {
            return Ok(HolePlan { hole, given: None });
        }
        if !has_extents(core) {
            return Err(not_by_extents(ino));
        }
        let per = u64::from(self.geo.blocks_per_cluster());
        let (first, before) = (at.0 - at.0 % per, at.0 % per);
        if let Some((start, used)) = self.cluster_for(ino, core, first)? {
            let len = len.min(per - before);
            return Ok(HolePlan {
                hole: HoleRequest { len, ..hole },
                given: Some((start.plus(before), used)),
            });
        }
        // The last cluster may be one that the file has.
        let mut end = at.0 + len;
        let last = end - end % per;
        if last > first && last < end && self.cluster_for(ino, core, last)?.is_some() {
            end = last;
        }
        let len = end - at.0;
        Ok(HolePlan {
            hole: HoleRequest { len, ..hole },
            given: None,
        })
    }

    /// Commits what has unmapped the blocks that a hole is to get: until that is durable, a crash would give what is
    /// written to them to the file as it was before. The caller holds no handle.
    fn settle_hole(&self, plan: &HolePlan, tag: IoTag) -> Result<()> {
        let Some((start, _)) = plan.given else {
            return Ok(());
        };
        match self.alloc.unmapped_by(start, plan.hole.len) {
            Some(tid) => self.txns.commit(tid, tag),
            None => Ok(()),
        }
    }

    /// Blocks for a hole as planned, from its first block on: allocated by `allocate`, which gets the first file block,
    /// the goal and the number of blocks, or those of a cluster that the file has already. None of them is mapped yet.
    pub(crate) fn fill_hole(
        &self,
        plan: HolePlan,
        allocate: impl FnOnce(FileBlock, Goal, u32) -> Result<Run>,
    ) -> Result<Run> {
        let HoleRequest { ino, at, len, goal } = plan.hole;
        let geo = &self.geo;
        if geo.cluster_bits == 0 {
            return allocate(at, goal, len as u32);
        }
        let (run, used) = match plan.given {
            Some((start, used)) => (
                Run {
                    start,
                    len: len as u32,
                },
                used,
            ),
            None => {
                let before = at.0 % u64::from(geo.blocks_per_cluster());
                let goal = goal.at(DevBlock(goal.near.0.saturating_sub(before)));
                let first = FileBlock(at.0 - before);
                let found = allocate(first, goal, (before + len) as u32)?;
                let run = Run {
                    start: found.start.plus(before),
                    len: (u64::from(found.len) - before).min(len) as u32,
                };
                (run, false)
            }
        };
        self.alloc.hold(geo, run, Some((ino, at)), used)?;
        Ok(run)
    }

    /// The device cluster of the file's cluster that begins at block `first`, and whether blocks of it are mapped (or wait
    /// for that).
    fn cluster_for(
        &self,
        ino: Ino,
        core: &disk::Inode,
        first: u64,
    ) -> Result<Option<(DevBlock, bool)>> {
        let geo = &self.geo;
        let blocks = first..first + u64::from(geo.blocks_per_cluster());
        if let Some((at, start)) = mapped_in(self, ino, core, blocks)? {
            return Ok(Some((cluster_start(self, ino, at, start)?, true)));
        }
        let held = self.alloc.held_for(geo, ino, first >> geo.cluster_bits);
        Ok(held.map(|start| (start, false)))
    }

    /// The whole device clusters that no block of the file but `blocks` maps. `start` is the device block of the first of
    /// these, and the next ones follow it.
    pub(crate) fn own_clusters(
        &self,
        ino: Ino,
        core: &disk::Inode,
        blocks: &Range<FileBlock>,
        start: DevBlock,
    ) -> Result<(DevBlock, u64)> {
        let len = blocks.end.0 - blocks.start.0;
        if self.geo.cluster_bits == 0 {
            return Ok((start, len));
        }
        let per = u64::from(self.geo.blocks_per_cluster());
        let first = cluster_start(self, ino, blocks.start, start)?;
        let (mut low, mut high) = (
            blocks.start.0 - blocks.start.0 % per,
            blocks.end.0.next_multiple_of(per),
        );
        let base = low;
        if mapped_in(self, ino, core, low..blocks.start.0)?.is_some() {
            low += per;
        }
        if high > low && mapped_in(self, ino, core, blocks.end.0..high)?.is_some() {
            high -= per;
        }
        Ok((first.plus(low - base), high.saturating_sub(low)))
    }
}

/// The first mapped block of a range, and its device block.
fn mapped_in(
    fs: &Ext4,
    ino: Ino,
    core: &disk::Inode,
    blocks: Range<u64>,
) -> Result<Option<(FileBlock, DevBlock)>> {
    let end = blocks.end.min(FILE_END.0);
    let mut at = blocks.start;
    while at < end {
        let mapped = extent::lookup(fs, ino, core, FileBlock(at), IoTag::default())?;
        if let BlockPlace::Written(start) | BlockPlace::Unwritten(start) = mapped.place {
            return Ok(Some((FileBlock(at), start)));
        }
        at += mapped.len;
    }
    Ok(None)
}

/// The first block of the cluster of `start`, which the file maps at `at`.
fn cluster_start(fs: &Ext4, ino: Ino, at: FileBlock, start: DevBlock) -> Result<DevBlock> {
    let per = u64::from(fs.geo().blocks_per_cluster());
    if at.0 % per == start.0 % per {
        return Ok(DevBlock(start.0 - start.0 % per));
    }
    Err(
        Corruption::new("has another place in its cluster than in the file")
            .in_inode(ino)
            .at_file_block(at)
            .in_block(start)
            .into(),
    )
}

/// The error for a file on such a volume that is mapped by indirect blocks, which Linux does not allow.
pub(crate) fn not_by_extents(ino: Ino) -> FsError {
    Corruption::new("is not mapped by extents, on a volume with clusters")
        .in_inode(ino)
        .into()
}

#[cfg(test)]
mod tests;
