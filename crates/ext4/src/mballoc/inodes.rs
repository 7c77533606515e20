//! Inode numbers: near the directory for files, spread over the groups for directories (Orlov allocator).

use std::sync::Arc;

use steadfs_base::{Corruption, IoTag};
use steadfs_cache::MetaBuf;
use steadfs_vfs::{FileKind, FsError, Result};

use super::blocks::{desc_block, write_desc};
use super::{Allocator, Group};
use crate::disk::group_desc::{self, GroupDesc, INODE_UNINIT};
use crate::disk::{self, Geometry, GroupNo, Ino, bitmap};
use crate::fast_commit::refusal;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::pins::Pins;
use crate::txn::Handle;
use crate::verified::INODE_BITMAP;

impl Allocator {
    /// Allocates an inode number for a new `kind` in `parent`; `pins` keeps its slot in the table. Two credits (three
    /// if the group's block bitmap was never written).
    pub fn new_inode(
        &self,
        fs: &Ext4,
        handle: &mut Handle<'_>,
        parent: &Inode,
        kind: FileKind,
        pins: &mut Pins,
    ) -> Result<Ino> {
        let start = match kind {
            FileKind::Directory => self.group_for_dir(fs, parent),
            _ => fs.geo().group_of_inode(parent.ino()).0,
        };
        let count = fs.geo().group_count;
        let mut first_error = None;
        for n in 0..count {
            let no = GroupNo(((u64::from(start.0) + u64::from(n)) % u64::from(count)) as u32);
            let made = self.new_inode_in(fs, handle, no, kind, pins);
            if let Some(ino) = self.skip_corrupt(no, made, &mut first_error)? {
                return Ok(ino);
            }
        }
        Err(first_error.unwrap_or(FsError::NoSpace))
    }

    /// A directory in the root directory gets the next group with more free inodes and blocks than average; any other
    /// stays in its parent's group while that has a quarter of the average.
    fn group_for_dir(&self, fs: &Ext4, parent: &Inode) -> GroupNo {
        let geo = fs.geo();
        let totals = self.totals();
        let groups = u64::from(geo.group_count);
        let mean_inodes = totals.free_inodes / groups;
        let mean_free = totals.free / groups;
        let fits = |group: &Group, inodes: u64, free: u64| {
            u64::from(group.desc.free_inodes) >= inodes.max(1) && u64::from(group.free) >= free
        };
        let home = geo.group_of_inode(parent.ino()).0;
        let top = parent.ino() == Ino::ROOT;
        let start = if top { self.next_top_group(geo) } else { home };
        let (inodes, free) = if top {
            (mean_inodes, mean_free)
        } else {
            (mean_inodes / 4, mean_free / 4)
        };
        for n in 0..geo.group_count {
            let no = GroupNo(((u64::from(start.0) + u64::from(n)) % groups) as u32);
            if fits(&self.group(no), inodes, free) {
                return no;
            }
        }
        start
    }

    pub(super) fn new_inode_in(
        &self,
        fs: &Ext4,
        handle: &mut Handle<'_>,
        no: GroupNo,
        kind: FileKind,
        pins: &mut Pins,
    ) -> Result<Option<Ino>> {
        let geo = fs.geo();
        let mut group = self.group(no);
        if group.desc.free_inodes == 0 {
            return Ok(None);
        }
        let Some(first) = first_for_users(geo, no) else {
            return Ok(None);
        };
        let written = group.desc.inodes_in_use_limit(geo);
        let table = desc_block(fs, no)?;
        if group.desc.inode_uninit(geo) {
            // The first number will be allocated. Pinned now, as initialising the bitmap is a change.
            pins.keep(new_slot(fs, geo.inode_at(no, first), written, |_| false)?.0);
        }
        let buf = self.writable_inode_bitmap(fs, no, &mut group, handle)?;
        let free = bitmap::find_next_zero(&buf.data(), first..geo.inodes_per_group);
        let Some(index) = free else {
            let said = group.desc.free_inodes;
            let what = format!("descriptor has {said} free inodes, bitmap none");
            return Err(Corruption::new(what).in_group(no.0).into());
        };
        // The caller writes the slot.
        let bits = buf.data();
        let used = |index| bitmap::test(&bits, index);
        let (slots, at) = new_slot(fs, geo.inode_at(no, index), written, used)?;
        pins.keep(Arc::clone(&slots));
        if index < written {
            check_unused(geo.inode_at(no, index), &slots.data()[at..])?;
        }
        assert!(
            (first..geo.inodes_per_group).contains(&index),
            "reserved inodes are not allocated"
        );
        self.set_inode_used(fs, handle, (no, index), kind, &mut group, (&buf, &table))?;
        Ok(Some(geo.inode_at(no, index)))
    }

    /// Sets the bit of a free inode in its bitmap, and the counts in the descriptor, whose block is `table`.
    pub(super) fn set_inode_used(
        &self,
        fs: &Ext4,
        handle: &mut Handle<'_>,
        (no, index): (GroupNo, u32),
        kind: FileKind,
        group: &mut Group,
        (bitmap, table): (&Arc<MetaBuf>, &Arc<MetaBuf>),
    ) -> Result<()> {
        let geo = fs.geo();
        let mut bits = handle.write(bitmap)?;
        bitmap::set(&mut bits, index);
        let desc = &mut group.desc;
        desc.free_inodes -= 1;
        if kind == FileKind::Directory {
            desc.used_dirs += 1;
        }
        if geo.has_group_checksums() {
            desc.itable_unused = desc.itable_unused.min(geo.inodes_per_group - index - 1);
        }
        desc.seal_inode_bitmap(geo, &bits);
        drop(bits);
        write_desc(fs, no, &group.desc, handle, table)?;
        self.with_totals(|t| {
            assert!(t.free_inodes > 0, "the total includes every group");
            t.free_inodes -= 1;
            t.dirs += u64::from(kind == FileKind::Directory);
        });
        Ok(())
    }

    /// Frees an inode number. Two credits.
    pub fn free_inode(
        &self,
        fs: &Ext4,
        handle: &mut Handle<'_>,
        ino: Ino,
        kind: FileKind,
    ) -> Result<()> {
        handle.refuse_fast_commits(refusal::LAST_NAME);
        let geo = fs.geo();
        if ino < geo.first_ino {
            let what = "a reserved inode is not used any more";
            return Err(Corruption::new(what).in_inode(ino).into());
        }
        let (no, index) = geo.group_of_inode(ino);
        let mut group = self.group(no);
        let table = desc_block(fs, no)?;
        let buf = self.writable_inode_bitmap(fs, no, &mut group, handle)?;
        if !bitmap::test(&buf.data(), index) {
            return Err(Corruption::new("freed although it is free")
                .in_inode(ino)
                .into());
        }
        let mut bits = handle.write(&buf)?;
        bitmap::clear(&mut bits, index);
        group.desc.free_inodes += 1;
        if kind == FileKind::Directory {
            group.desc.used_dirs = group.desc.used_dirs.saturating_sub(1);
        }
        group.desc.seal_inode_bitmap(geo, &bits);
        drop(bits);
        write_desc(fs, no, &group.desc, handle, &table)?;
        self.with_totals(|t| {
            t.free_inodes += 1;
            t.dirs = t
                .dirs
                .saturating_sub(u64::from(kind == FileKind::Directory));
        });
        Ok(())
    }

    /// Pins the bitmap and descriptor that freeing an inode number changes.
    pub fn pin_to_free_inode(&self, fs: &Ext4, pins: &mut Pins, ino: Ino) -> Result<()> {
        let (no, _) = fs.geo().group_of_inode(ino);
        let group = self.group(no);
        if !group.desc.inode_uninit(fs.geo()) {
            pins.keep(inode_bitmap(fs, no, &group.desc)?);
        }
        pins.keep(desc_block(fs, no)?);
        Ok(())
    }

    /// Whether the inode is in use by its bitmap.
    pub(crate) fn is_inode_used(&self, fs: &Ext4, ino: Ino) -> Result<bool> {
        let (no, index) = fs.geo().group_of_inode(ino);
        let group = self.group(no);
        if group.desc.inode_uninit(fs.geo()) {
            return Ok(false);
        }
        let bits = inode_bitmap(fs, no, &group.desc)?.data();
        Ok(bitmap::test(&bits, index))
    }

    pub(super) fn writable_inode_bitmap(
        &self,
        fs: &Ext4,
        no: GroupNo,
        group: &mut Group,
        handle: &mut Handle<'_>,
    ) -> Result<Arc<MetaBuf>> {
        let geo = fs.geo();
        if !group.desc.inode_uninit(geo) {
            return inode_bitmap(fs, no, &group.desc);
        }
        let buf = fs.meta().get_new(group.desc.inode_bitmap);
        let mut bits = handle.write(&buf)?;
        group_desc::init_inode_bitmap(geo, &mut bits);
        drop(bits);
        buf.set_verified(INODE_BITMAP);
        group.desc.flags &= !INODE_UNINIT;
        group.desc.itable_unused = geo.inodes_per_group;
        Ok(buf)
    }
}

/// The first inode of a group that is not reserved, by its index; `None` if all are. The superblock may reserve several
/// groups.
fn first_for_users(geo: &Geometry, no: GroupNo) -> Option<u32> {
    let reserved = geo.first_ino.0.saturating_sub(geo.inode_at(no, 0).0);
    (reserved < geo.inodes_per_group).then_some(reserved)
}

/// The slot of a free inode number, as [`Ext4::inode_slot`]. A block of which no inode was ever used is not read, as what
/// it holds does not count: it becomes zeros. `written` is the limit of the numbers that may have been used.
fn new_slot(
    fs: &Ext4,
    ino: Ino,
    written: u32,
    used: impl Fn(u32) -> bool,
) -> Result<(Arc<MetaBuf>, usize)> {
    let geo = fs.geo();
    let (no, index) = geo.group_of_inode(ino);
    let per_block = geo.inodes_per_block();
    let first = index / per_block * per_block;
    let last = (first + per_block).min(geo.inodes_per_group);
    if first >= written && !(first..last).any(used) {
        let (block, at) = geo.inode_slot(fs.alloc.inode_table(no)?, index);
        if !fs.meta().is_cached(block) {
            return Ok((fs.meta().get_new(block), at));
        }
    }
    fs.inode_slot(ino, IoTag::default())
}

/// Refuses a number that the bitmap has as free while its slot holds an inode with links: a new inode there would
/// destroy that file.
pub(super) fn check_unused(ino: Ino, slot: &[u8]) -> Result<()> {
    if !disk::inode::has_links(slot) {
        return Ok(());
    }
    Err(Corruption::new("free in its bitmap, but in use")
        .in_inode(ino)
        .into())
}

/// A group's inode bitmap, verified.
fn inode_bitmap(fs: &Ext4, no: GroupNo, desc: &GroupDesc) -> Result<Arc<MetaBuf>> {
    let buf = fs.block(desc.inode_bitmap, IoTag::default())?;
    let check = |bits: &[u8]| {
        desc.verify_inode_bitmap(fs.geo(), bits)
            .map_err(|e| e.in_group(no))
    };
    buf.verify_once(INODE_BITMAP, check)?;
    Ok(buf)
}
