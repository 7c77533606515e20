//! Where bitmaps and inode tables are.
//!
//! Without flex groups each group holds its own, after the copies of superblock and descriptors.
//! With them the bitmaps of a flex group are side by side, then its inode bitmaps, then its inode
//! tables, as far as the copies in between leave room.

use std::ops::Range;

use super::FormatError;
use super::space::Space;
use crate::disk::num::idx;
use crate::disk::{Geometry, GroupDesc, GroupNo};

/// Places the tables group by group.
pub(super) struct Tables<'a> {
    pub geo: &'a Geometry,
    pub space: &'a mut Space,
    /// Blocks by which the bitmaps of neighbouring groups are moved apart on a RAID.
    pub stride: u32,
}

/// The flex group in which tables are placed.
struct Flex {
    /// Groups in a flex group.
    size: u32,
    /// First group of this one.
    first: GroupNo,
    /// Last one that exists.
    last: GroupNo,
}

fn no_room(group: GroupNo) -> FormatError {
    FormatError::TooSmall(format!("no room for the tables of group {group}"))
}

impl Tables<'_> {
    /// Places all tables, group by group. `touched` is called with the blocks taken in flex groups: the block bitmaps
    /// of their groups must be written.
    pub(super) fn place(
        &mut self,
        descs: &mut [GroupDesc],
        mut touched: impl FnMut(&mut [GroupDesc], Range<u64>),
    ) -> Result<(), FormatError> {
        for group in self.geo.groups() {
            let taken = match self.flex_of(group) {
                None => {
                    self.place_in_group(descs, group)?;
                    continue;
                }
                Some(flex) => self.place_in_flex(descs, group, &flex)?,
            };
            for blocks in taken {
                touched(descs, blocks);
            }
        }
        Ok(())
    }

    /// Places all block bitmaps, then all inode bitmaps, then all inode tables, from the volume's
    /// start on.
    pub(super) fn place_packed(
        &mut self,
        descs: &mut [GroupDesc],
        mut touched: impl FnMut(&mut [GroupDesc], Range<u64>),
    ) -> Result<(), FormatError> {
        let itable = u64::from(self.geo.itable_blocks());
        let mut goal = 0;
        for table in 0..3 {
            for group in self.geo.groups() {
                let len = if table == 2 { itable } else { 1 };
                let found = if table == 2 {
                    self.space.find(goal, self.geo.blocks_count - 1, len)
                } else {
                    self.space.near(goal)
                };
                let at = found.ok_or_else(|| no_room(group))?;
                self.space.take(at..at + len);
                let desc = &mut descs[idx(group.0)];
                match table {
                    0 => desc.block_bitmap.0 = at,
                    1 => desc.inode_bitmap.0 = at,
                    _ => desc.inode_table.0 = at,
                }
                touched(descs, at..at + len);
                goal = at;
            }
        }
        Ok(())
    }

    fn flex_of(&self, group: GroupNo) -> Option<Flex> {
        if self.geo.flex_bits == 0 {
            return None;
        }
        let size = 1u32 << self.geo.flex_bits;
        let first = group.0 & !(size - 1);
        let last = (group.0 | (size - 1)).min(self.geo.group_count - 1);
        Some(Flex {
            size,
            first: GroupNo(first),
            last: GroupNo(last),
        })
    }

    fn last_block(&self, group: GroupNo) -> u64 {
        self.geo.first_block_of(group).0 + u64::from(self.geo.blocks_in(group)) - 1
    }

    fn take(&mut self, at: u64, len: u64) -> Range<u64> {
        self.space.take(at..at + len);
        at..at + len
    }

    fn place_in_group(
        &mut self,
        descs: &mut [GroupDesc],
        group: GroupNo,
    ) -> Result<(), FormatError> {
        let first = self.geo.first_block_of(group).0;
        let last = self.last_block(group);
        let itable = u64::from(self.geo.itable_blocks());
        let mut start = first;
        if self.stride > 0 {
            let free = self.space.find(first, last, 1);
            start = free.ok_or_else(|| no_room(group))? + itable;
            if start <= last {
                start += u64::from(self.stride) * u64::from(group.0) % (last - start + 1);
            }
            if start >= last {
                start = first;
            }
        }
        let one = |space: &mut Space| {
            let at = space
                .find(start, last, 1)
                .or_else(|| space.find(first, last, 1))?;
            space.take(at..at + 1);
            Some(at)
        };
        let desc = &mut descs[idx(group.0)];
        desc.block_bitmap.0 = one(self.space).ok_or_else(|| no_room(group))?;
        desc.inode_bitmap.0 = one(self.space).ok_or_else(|| no_room(group))?;
        let found = self.space.find(first, last, itable);
        let inode_table = found.ok_or_else(|| no_room(group))?;
        desc.inode_table.0 = inode_table;
        self.take(inode_table, itable);
        Ok(())
    }

    fn place_in_flex(
        &mut self,
        descs: &mut [GroupDesc],
        group: GroupNo,
        flex: &Flex,
    ) -> Result<[Range<u64>; 3], FormatError> {
        let itable = u64::from(self.geo.itable_blocks());
        let leads = group == flex.first;
        let before = (!leads).then(|| descs[idx(group.0) - 1]);
        // Distance between the starts of the three tables of a flex group. The last flex group may have fewer groups;
        // its tables are close together, too.
        let groups = flex.last.0 - flex.first.0 + 1;
        let short = flex.last.0 == self.geo.group_count - 1 && groups > 1;
        let apart = u64::from(if short { groups } else { flex.size });

        let hint = before.map(|desc| desc.block_bitmap.0 + 1);
        let block_bitmap = self.place_one(group, flex, hint)?;
        let hint = before.map_or(block_bitmap + apart, |desc| desc.inode_bitmap.0 + 1);
        let inode_bitmap = self.place_one(group, flex, Some(hint))?;
        let hint = before.map_or(inode_bitmap + apart, |desc| desc.inode_table.0 + itable);
        let start = self.look(group, flex, Some(hint), itable);
        let found = self.space.find(start, self.last_block(flex.last), itable);
        let inode_table = found.ok_or_else(|| no_room(group))?;

        let desc = &mut descs[idx(group.0)];
        desc.block_bitmap.0 = block_bitmap;
        desc.inode_bitmap.0 = inode_bitmap;
        desc.inode_table.0 = inode_table;
        Ok([
            block_bitmap..block_bitmap + 1,
            inode_bitmap..inode_bitmap + 1,
            self.take(inode_table, itable),
        ])
    }

    /// Takes one block for a bitmap.
    fn place_one(
        &mut self,
        group: GroupNo,
        flex: &Flex,
        hint: Option<u64>,
    ) -> Result<u64, FormatError> {
        let start = self.look(group, flex, hint, 1);
        let last = self.last_block(flex.last);
        let own = self.geo.first_block_of(group).0;
        let at = self
            .space
            .find(start, last, 1)
            .or_else(|| self.space.find(own, last, 1))
            .ok_or_else(|| no_room(group))?;
        self.take(at, 1);
        Ok(at)
    }

    /// Start of the search for a table of `len` blocks: near `hint`, the end of the previous group's table; else where
    /// all remaining tables of the flex group fit; else where one fits.
    fn look(&self, group: GroupNo, flex: &Flex, hint: Option<u64>, len: u64) -> u64 {
        let remaining = u64::from(flex.last.0 - group.0 + 1);
        let room = (remaining * len).min(u64::from(self.geo.blocks_per_group / 4));
        let last = self.last_block(flex.last);
        let first = self.geo.first_block_of(flex.first).0;
        let near = hint
            .filter(|&hint| hint < self.geo.blocks_count)
            .and_then(|hint| self.space.find(hint, hint + room, len));
        near.or_else(|| self.space.find(first, last, room))
            .or_else(|| self.space.find(first, last, len))
            .or_else(|| self.space.find(0, last, len))
            .unwrap_or(0)
    }
}
