//! Allocation of given blocks and inodes: those that fast commits name.

use steadfs_base::{Corruption, DevBlock, IoTag};
use steadfs_vfs::{FileKind, Result};

use super::Allocator;
use super::blocks::desc_block;
use super::inodes::check_unused;
use crate::disk::bitmap;
use crate::disk::group_desc::INODE_ZEROED;
use crate::disk::{Geometry, GroupNo, Ino};
use crate::fs::Ext4;
use crate::txn::Handle;

impl Allocator {
    /// Allocates the free clusters among those of a run in memory, so that no other allocation takes them. The caller has checked
    /// with [`Allocator::may_own`] that files may have them.
    pub(crate) fn allocate_given(&self, fs: &Ext4, start: DevBlock, len: u64) -> Result<()> {
        for (no, first, len) in pieces(fs.geo(), start, len) {
            let geo = fs.geo();
            let clusters = first >> geo.cluster_bits..geo.clusters_for(first + len);
            let mut group = self.loaded(fs, no)?;
            let busy = group.busy.as_mut().expect("loaded");
            let free = bitmap::count_zeros(busy, clusters.clone());
            bitmap::set_range(busy, clusters);
            group.free -= free;
            drop(group);
            self.with_totals(|t| t.free -= u64::from(free));
        }
        Ok(())
    }

    /// Allocates the free inode `ino`. Two credits, and one for each block of slots that was never written.
    pub(crate) fn allocate_given_inode(
        &self,
        fs: &Ext4,
        handle: &mut Handle<'_>,
        ino: Ino,
        kind: FileKind,
    ) -> Result<()> {
        let geo = fs.geo();
        let (no, index) = geo.group_of_inode(ino);
        let mut group = self.group(no);
        let table = desc_block(fs, no)?;
        let written = group.desc.inodes_in_use_limit(geo);
        let zeroed = group.desc.flags & INODE_ZEROED != 0;
        if index < written {
            let (slots, at) = fs.inode_slot(ino, IoTag::default())?;
            check_unused(ino, &slots.data()[at..])?;
        }
        let buf = self.writable_inode_bitmap(fs, no, &mut group, handle)?;
        if group.desc.free_inodes == 0 || bitmap::test(&buf.data(), index) {
            let what = "its number is not free";
            return Err(Corruption::new(what).in_inode(ino).into());
        }
        self.set_inode_used(fs, handle, (no, index), kind, &mut group, (&buf, &table))?;
        drop(group);
        // Slots before it count as written from now on.
        let skipped = if zeroed { index..index } else { written..index };
        for index in skipped {
            fs.clear_slot(handle, geo.inode_at(no, index))?;
        }
        Ok(())
    }

    /// Blocks of slots that [`Allocator::allocate_given_inode`] clears at most.
    pub(crate) fn slots_to_clear(&self, fs: &Ext4, ino: Ino) -> u32 {
        let geo = fs.geo();
        let (no, index) = geo.group_of_inode(ino);
        let group = self.group(no);
        let written = match group.desc.flags & INODE_ZEROED {
            0 => group.desc.inodes_in_use_limit(geo),
            _ => index,
        };
        let per_block = geo.block_size.bytes() as u32 / u32::from(geo.inode_size);
        index.saturating_sub(written).div_ceil(per_block) + 1
    }
}

/// The parts of a run by group: the group, the first block in it, the number of blocks.
pub(crate) fn pieces(
    geo: &Geometry,
    start: DevBlock,
    len: u64,
) -> impl Iterator<Item = (GroupNo, u32, u32)> {
    let end = start.plus(len);
    let mut at = start;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (no, first) = geo.group_of_block(at);
        let len = u64::from(geo.blocks_in(no) - first).min(end.0 - at.0);
        at = at.plus(len);
        Some((no, first, len as u32))
    })
}
