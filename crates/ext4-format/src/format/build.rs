//! The new volume in memory: the blocks and inodes in use, and their content.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use steadfs_base::{DevBlock, Timestamp};
use steadfs_block::Buf;

use super::plan::Plan;
use super::space::Space;
use super::tables::Tables;
use super::{FormatError, FormatOptions};
use crate::disk::group_desc::{BLOCK_UNINIT, INODE_UNINIT, INODE_ZEROED};
use crate::disk::num::{idx, low32};
use crate::disk::{Geometry, GroupDesc, GroupNo, Ino, Inode, Superblock};

/// A volume in memory. What no field holds is zeros, or is never read.
pub(super) struct Build {
    pub superblock: Superblock,
    pub geo: Geometry,
    pub space: Space,
    pub descs: Vec<GroupDesc>,
    /// Inodes in use, the reserved ones included.
    pub used_inodes: BTreeSet<Ino>,
    /// Inodes that are not all zeros.
    pub inodes: BTreeMap<Ino, Inode>,
    /// Blocks of files and maps.
    pub content: BTreeMap<DevBlock, Buf>,
    /// Blocks that must read as zeros.
    pub zeros: Vec<Range<u64>>,
    pub now: Timestamp,
}

impl Build {
    /// A volume with all metadata placed, and no files.
    pub(super) fn new(plan: &Plan, opts: &FormatOptions) -> Result<Self, FormatError> {
        let superblock = plan.superblock.clone();
        let geo = superblock.geometry().clone();
        let mut build = Self {
            space: Space::new(geo.block_range()),
            descs: vec![GroupDesc::default(); idx(geo.group_count)],
            used_inodes: BTreeSet::new(),
            inodes: BTreeMap::new(),
            content: BTreeMap::new(),
            zeros: Vec::new(),
            now: Timestamp {
                secs: plan.now.secs,
                nanos: 0,
            },
            superblock,
            geo,
        };
        build.reserve_copies();
        build.set_flags();
        build.place_tables(opts)?;
        // As in mke2fs, tables may begin within clusters.
        build.space.round(build.geo.cluster_bits);
        Ok(build)
    }

    /// Sets aside the superblocks, the descriptors and the blocks reserved for more of them.
    fn reserve_copies(&mut self) {
        for group in self.geo.groups() {
            let first = self.geo.first_block_of(group).0;
            let blocks = self.geo.overhead(group).total();
            self.space
                .take(first..(first + u64::from(blocks)).min(self.geo.blocks_count));
        }
    }

    /// Marks all groups uninitialised, where descriptors have that flag. The last group's block bitmap is always
    /// initialised: it ends with bits for blocks that do not exist.
    fn set_flags(&mut self) {
        if !self.geo.has_group_checksums() {
            return;
        }
        let mut reserved = self.geo.first_ino.0;
        let last = self.geo.group_count - 1;
        for (desc, group) in self.descs.iter_mut().zip(0..) {
            desc.flags = INODE_UNINIT;
            if group != last {
                desc.flags |= BLOCK_UNINIT;
            }
            let here = reserved.min(self.geo.inodes_per_group);
            desc.itable_unused = self.geo.inodes_per_group - here;
            reserved -= here;
        }
    }

    fn place_tables(&mut self, opts: &FormatOptions) -> Result<(), FormatError> {
        let geo = self.geo.clone();
        let mut tables = Tables {
            geo: &geo,
            space: &mut self.space,
            stride: opts.stride,
        };
        let touched = |descs: &mut [GroupDesc], blocks| clear_uninit(&geo, descs, blocks);
        let has_flex = geo.has_incompat(crate::disk::Incompat::FLEX_BG);
        if opts.packed_meta_blocks && has_flex {
            tables.place_packed(&mut self.descs, touched)
        } else {
            tables.place(&mut self.descs, touched)
        }
    }

    /// Flags the inode tables that are zeros, and adds the others to the blocks to be zeroed. `zeroed`: the device
    /// is zeros; `lazy`: the kernel may zero what is not in use later.
    pub(super) fn zero_itables(&mut self, zeroed: bool, lazy: bool) {
        let per_block = u64::from(self.geo.inodes_per_block());
        let lazy = lazy || zeroed;
        for desc in &mut self.descs {
            if !lazy || zeroed {
                desc.flags |= INODE_ZEROED;
            }
            if zeroed {
                continue;
            }
            let unused = if lazy { desc.itable_unused } else { 0 };
            let blocks = u64::from(self.geo.inodes_per_group - unused).div_ceil(per_block);
            self.zeros
                .push(desc.inode_table.0..desc.inode_table.0 + blocks);
        }
    }

    /// Allocates a file's block after another one of it: the next one, where that is in the same cluster.
    pub(super) fn alloc_after(&mut self, before: u64) -> Result<u64, FormatError> {
        let next = before + 1;
        match next.is_multiple_of(self.geo.blocks_per_cluster().into()) {
            true => self.alloc(before),
            false => Ok(next),
        }
    }

    /// Allocates a block. The caller provides its content.
    pub(super) fn alloc(&mut self, goal: u64) -> Result<u64, FormatError> {
        let block = self.space.near(goal).ok_or_else(full)?;
        self.mark_used(block..block + 1);
        Ok(block)
    }

    /// Marks free blocks as in use.
    pub(super) fn mark_used(&mut self, blocks: Range<u64>) {
        clear_uninit(&self.geo, &mut self.descs, blocks.clone());
        self.space.take(blocks);
    }

    /// Marks an inode as in use.
    pub(super) fn use_inode(&mut self, ino: Ino) {
        let (group, index) = self.geo.group_of_inode(ino);
        let desc = &mut self.descs[idx(group.0)];
        desc.flags &= !INODE_UNINIT;
        let unused = self.geo.inodes_per_group - index - 1;
        desc.itable_unused = desc.itable_unused.min(unused);
        let new = self.used_inodes.insert(ino);
        assert!(new, "an inode is used once");
    }

    /// The first inode that is neither reserved nor in use. Its group's bitmaps are initialised.
    pub(super) fn new_inode(&mut self) -> Result<Ino, FormatError> {
        let ino = (self.geo.first_ino.0..=self.geo.inodes_count)
            .map(Ino)
            .find(|ino| !self.used_inodes.contains(ino))
            .ok_or_else(full)?;
        let (group, _) = self.geo.group_of_inode(ino);
        let desc = &mut self.descs[idx(group.0)];
        if desc.flags & INODE_UNINIT != 0 {
            desc.flags &= !BLOCK_UNINIT;
        }
        self.use_inode(ino);
        Ok(ino)
    }

    /// The inode of a new file.
    pub(super) fn fresh_inode(&self, mode: u16, links: u16) -> Inode {
        let room = self.geo.inode_size > 128;
        Inode {
            mode,
            links,
            atime: self.now,
            ctime: self.now,
            mtime: self.now,
            btime: room.then_some(self.now),
            extra_isize: if room { 32 } else { 0 },
            ..Inode::default()
        }
    }

    /// Allocation goal of `ino`: the start of its group, or of its flex group.
    pub(super) fn inode_goal(&self, ino: Ino) -> u64 {
        let (group, _) = self.geo.group_of_inode(ino);
        let mask = (1u32 << self.geo.flex_bits) - 1;
        self.geo.first_block_of(GroupNo(group.0 & !mask)).0
    }

    /// Free clusters in `group`.
    pub(super) fn free_in(&self, group: GroupNo) -> u32 {
        let first = self.geo.first_block_of(group).0;
        let blocks = self.geo.blocks_in(group);
        let used = low32(self.space.count_used(first..first + u64::from(blocks)));
        self.geo.clusters_in(group) - self.geo.clusters_for(used)
    }

    /// A block of zeros.
    pub(super) fn zero_block(&self) -> Buf {
        Buf::zeroed(self.geo.block_size.bytes())
    }

    /// Units of 512 bytes in the clusters of `blocks` adjacent blocks, as `i_blocks` counts.
    pub(super) fn sectors(&self, blocks: u64) -> u64 {
        blocks.div_ceil(self.geo.blocks_per_cluster().into()) * self.geo.cluster_units()
    }

    /// Sets the free counts of descriptors and superblock.
    pub(super) fn count(&mut self) {
        let (mut clusters, mut inodes) = (0, 0);
        for group in self.geo.groups() {
            let free = self.free_in(group);
            let first = self.geo.inode_at(group, 0);
            let next = Ino(first.0.saturating_add(self.geo.inodes_per_group));
            let used = low32(self.used_inodes.range(first..next).count() as u64);
            let desc = &mut self.descs[idx(group.0)];
            desc.free_clusters = free;
            desc.free_inodes = self.geo.inodes_per_group - used;
            clusters += u64::from(free);
            inodes += desc.free_inodes;
        }
        self.superblock
            .set_free_blocks(clusters << self.geo.cluster_bits);
        self.superblock.set_free_inodes(inodes);
    }
}

pub(super) fn full() -> FormatError {
    FormatError::TooSmall("no room for the files every volume has".to_owned())
}

/// Clears `BLOCK_UNINIT` of the groups that contain `blocks`.
fn clear_uninit(geo: &Geometry, descs: &mut [GroupDesc], blocks: Range<u64>) {
    if blocks.is_empty() {
        return;
    }
    let (first, _) = geo.group_of_block(DevBlock(blocks.start));
    let (last, _) = geo.group_of_block(DevBlock(blocks.end - 1));
    for desc in &mut descs[idx(first.0)..=idx(last.0)] {
        desc.flags &= !BLOCK_UNINIT;
    }
}
