//! The files of every new volume: root directory, lost+found, and the hidden files for bad blocks, resizing, journal
//! and orphans.

use steadfs_base::DevBlock;
use steadfs_block::Buf;
use steadfs_jbd2_format::NewJournal;
use steadfs_rt::{node_name, wall_clock};
use steadfs_vfs::FileKind;

use super::build::Build;
use super::mapping::Mapped;
use super::plan::JournalPlan;
use super::{FormatError, FormatOptions};
use crate::disk::mmp::CHECK_INTERVAL_MIN;
use crate::disk::num::{idx, low32, put32};
use crate::disk::{GroupNo, Incompat, Ino, Inode, Mmp, dir_entry, indirect, orphan_file};

pub(super) const REGULAR_600: u16 = 0o100_600;
const DIRECTORY: u16 = 0o040_000;
/// Smallest size of lost+found: e2fsck need not allocate blocks for it during a repair.
const LOST_FOUND_SIZE: u64 = 16 << 10;
/// A file from this size on needs the feature large_file.
const LARGE: u64 = 1 << 31;

impl Build {
    /// The root directory, empty.
    pub(super) fn make_root(
        &mut self,
        owner: (u32, u32),
        perms: Option<u16>,
    ) -> Result<(), FormatError> {
        let block = self.alloc(self.inode_goal(Ino::ROOT))?;
        self.use_inode(Ino::ROOT);
        let mut inode = self.fresh_inode(DIRECTORY | perms.unwrap_or(0o755), 2);
        (inode.uid, inode.gid) = owner;
        inode.size = self.geo.block_size.bytes_u64();
        self.map_small(&mut inode, &[block]);
        self.inodes.insert(Ino::ROOT, inode);
        self.put_first_dir_block(block, Ino::ROOT, Ino::ROOT)?;
        self.descs[0].used_dirs += 1;
        Ok(())
    }

    fn put_first_dir_block(&mut self, at: u64, own: Ino, parent: Ino) -> Result<(), FormatError> {
        let layout = dir_entry::DirLayout::of(&self.geo);
        let mut block = self.zero_block();
        dir_entry::init_first(&layout, block.make_mut(), own, parent);
        if own == Ino::ROOT {
            let entry = dir_entry::NewEntry {
                ino: self.lost_found(),
                kind: FileKind::Directory,
                name: b"lost+found",
                hash: None,
            };
            dir_entry::insert(&layout, block.make_mut(), &entry)?;
        }
        dir_entry::seal(&layout, self.geo.seed.of_inode(own, 0), block.make_mut());
        self.content.insert(DevBlock(at), block);
        Ok(())
    }

    /// The inode that lost+found gets: the first that is not reserved.
    fn lost_found(&self) -> Ino {
        self.geo.first_ino
    }

    /// The block of multiple-mount protection. A reproducible volume names neither machine nor device.
    pub(super) fn make_mount_protection(
        &mut self,
        opts: &FormatOptions,
    ) -> Result<(), FormatError> {
        let at = DevBlock(self.alloc(self.geo.first_data_block.0)?);
        let mut mmp = Mmp::new();
        let interval = self.superblock.mmp_update_interval();
        mmp.set_check_interval(interval.max(CHECK_INTERVAL_MIN));
        mmp.set_time(opts.time.unwrap_or_else(wall_clock).secs);
        if opts.time.is_none() {
            mmp.set_names(&node_name(), &opts.device_name);
        }
        let mut block = self.zero_block();
        mmp.seal_into(self.geo.seed, block.make_mut());
        self.content.insert(at, block);
        self.superblock.set_mmp_block(at);
        Ok(())
    }

    /// lost+found in the root directory, with free blocks.
    pub(super) fn make_lost_found(&mut self) -> Result<(), FormatError> {
        let ino = self.new_inode()?;
        assert_eq!(ino, self.lost_found(), "the root names it");
        let size = self.geo.block_size.bytes_u64();
        let count = (LOST_FOUND_SIZE / size).clamp(2, u64::from(indirect::DIRECT));
        // With inline data mke2fs makes it in its inode, and its first step of growing only moves it into a block.
        let inline = self.geo.has_incompat(Incompat::INLINE_DATA);
        let count = count - u64::from(inline);
        let mut blocks = vec![self.alloc(self.inode_goal(ino))?];
        for _ in 1..count {
            let before = blocks[blocks.len() - 1];
            blocks.push(self.alloc_after(before)?);
        }
        let mut inode = self.fresh_inode(DIRECTORY | 0o700, 2);
        inode.size = count * size;
        self.map_small(&mut inode, &blocks);
        self.inodes.insert(ino, inode);
        self.put_first_dir_block(blocks[0], ino, Ino::ROOT)?;
        let layout = dir_entry::DirLayout::of(&self.geo);
        for &at in &blocks[1..] {
            let mut block = self.zero_block();
            dir_entry::init_empty(&layout, block.make_mut());
            dir_entry::seal(&layout, self.geo.seed.of_inode(ino, 0), block.make_mut());
            self.content.insert(DevBlock(at), block);
        }
        let (group, _) = self.geo.group_of_inode(ino);
        self.descs[idx(group.0)].used_dirs += 1;
        let root = self.inodes.get_mut(&Ino::ROOT).expect("made before");
        root.links += 1;
        Ok(())
    }

    /// The reserved inodes; the bad-blocks inode is an empty file.
    pub(super) fn make_reserved(&mut self) {
        for ino in (1..self.geo.first_ino.0).map(Ino) {
            if ino != Ino::ROOT {
                self.use_inode(ino);
            }
        }
        let bad_blocks = Inode {
            atime: self.now,
            ctime: self.now,
            mtime: self.now,
            ..Inode::default()
        };
        self.inodes.insert(Ino::BAD_BLOCKS, bad_blocks);
    }

    /// The inode that owns the blocks reserved for descriptors: its doubly indirect block names those
    /// of group 0, and each of these, as an indirect block, names its copies in the other groups.
    pub(super) fn make_resize_inode(&mut self) -> Result<(), FormatError> {
        let geo = self.geo.clone();
        let (superblock, _) = geo.superblock_place();
        let reserved = u64::from(geo.reserved_gdt_blocks);
        let table_end = superblock.0 + 1 + u64::from(geo.desc_blocks());
        let goal = table_end + reserved - 1 + 2 + u64::from(geo.itable_blocks());
        let doubly = self.alloc(goal)?;
        let per_block = indirect::per_block(&geo);
        let copies: Vec<GroupNo> = geo
            .groups()
            .skip(1)
            .filter(|&group| geo.has_super(group))
            .collect();
        if copies.len() > idx(per_block) {
            let why = "the volume has more superblock copies than resize_inode can name";
            return Err(FormatError::option("features", why));
        }
        let mut names = self.zero_block();
        for n in 0..reserved {
            let at = table_end + n;
            let slot = (geo.desc_blocks() + low32(n)) % per_block;
            put32(names.make_mut(), idx(slot) * 4, low32(at));
            let mut block = self.zero_block();
            for (&group, slot) in copies.iter().zip(0..) {
                let distance = u64::from(group.0) * u64::from(geo.blocks_per_group);
                put32(block.make_mut(), slot * 4, low32(at + distance));
            }
            self.content.insert(DevBlock(at), block);
        }
        self.content.insert(DevBlock(doubly), names);
        let mut inode = self.fresh_inode(REGULAR_600, 1);
        put32(&mut inode.block, 13 * 4, low32(doubly));
        let per = u64::from(per_block);
        inode.size = (u64::from(indirect::DIRECT) + per + per * per) << geo.block_size.bits();
        // As mke2fs counts it: each block as a cluster.
        inode.blocks = (1 + reserved * (1 + copies.len() as u64)) * geo.cluster_units();
        self.note_size(inode.size);
        self.inodes.insert(Ino::RESIZE, inode);
        Ok(())
    }

    /// The journal. `zero`: its blocks must be zeroed, as old content might look like transactions.
    pub(super) fn make_journal(
        &mut self,
        plan: JournalPlan,
        location: Option<u64>,
        zero: bool,
    ) -> Result<(), FormatError> {
        let goal = location.unwrap_or_else(|| self.middle());
        let mut inode = self.fresh_inode(REGULAR_600, 1);
        let mapped = if self.has_extents() {
            self.alloc_extents(Ino::JOURNAL, goal, plan.blocks.into())?
        } else {
            // Block maps are filled from the inode's own group on.
            self.alloc_mapped(self.inode_goal(Ino::JOURNAL), plan.blocks.into())?
        };
        let first = mapped.runs[0].start;
        if zero {
            self.zeros.extend(mapped.runs.iter().cloned());
        }
        self.set_map(&mut inode, &mapped, plan.blocks.into());
        let new = NewJournal {
            block_size: self.geo.block_size,
            blocks: plan.blocks,
            fast_commit_blocks: plan.fast_commit_blocks,
            uuid: self.geo.uuid,
            first: 1,
            users: 1,
        };
        let mut block = self.zero_block();
        block.make_mut()[..1024].copy_from_slice(&new.superblock());
        self.content.insert(DevBlock(first), block);
        self.superblock
            .set_journal_inode(Ino::JOURNAL, &inode.block, inode.size);
        self.inodes.insert(Ino::JOURNAL, inode);
        Ok(())
    }

    /// First block of the group with most free blocks near the volume's middle.
    fn middle(&self) -> u64 {
        let geo = &self.geo;
        let blocks = geo.blocks_count - geo.first_data_block.0;
        let half = DevBlock((blocks / 2).max(geo.first_data_block.0));
        let (GroupNo(mut group), _) = geo.group_of_block(half);
        let flex = 1u32 << geo.flex_bits;
        let start = if geo.flex_bits > 0 && group > flex {
            group &= !(flex - 1);
            group = (group..geo.group_count)
                .find(|&group| self.free_in(GroupNo(group)) > 0)
                .unwrap_or(0);
            group
        } else {
            group.saturating_sub(1)
        };
        let end = (group + 1).min(geo.group_count - 1);
        let mut best = (start, self.free_in(GroupNo(start)));
        for group in start + 1..=end {
            let free = self.free_in(GroupNo(group));
            if free > best.1 {
                best = (group, free);
            }
        }
        geo.first_block_of(GroupNo(best.0)).0
    }

    /// The orphan file, empty.
    pub(super) fn make_orphan_file(&mut self, blocks: u32) -> Result<(), FormatError> {
        let ino = self.new_inode()?;
        let mut inode = self.fresh_inode(REGULAR_600, 1);
        let mapped = if self.has_extents() {
            self.alloc_extents_in_row(ino, blocks.into())?
        } else {
            self.alloc_mapped(0, blocks.into())?
        };
        self.set_map(&mut inode, &mapped, blocks.into());
        let seed = self.geo.seed.of_inode(ino, 0);
        for at in mapped.runs.iter().flat_map(Clone::clone) {
            let mut block = Buf::zeroed(self.geo.block_size.bytes());
            orphan_file::init(block.make_mut());
            orphan_file::seal(&self.geo, seed, DevBlock(at), block.make_mut());
            self.content.insert(DevBlock(at), block);
        }
        self.inodes.insert(ino, inode);
        assert_eq!(
            self.superblock.orphan_file(),
            Some(ino),
            "the superblock has named it"
        );
        Ok(())
    }

    /// Stores a map in the inode, with size and block count.
    fn set_map(&mut self, inode: &mut Inode, mapped: &Mapped, blocks: u64) {
        inode.block = mapped.root;
        inode.flags = inode.flags.union(mapped.flags);
        inode.size = blocks << self.geo.block_size.bits();
        inode.blocks = self.sectors(blocks) + mapped.map_blocks * self.geo.cluster_units();
        self.note_size(inode.size);
    }

    /// Maps a few blocks within the inode.
    pub(super) fn map_small(&self, inode: &mut Inode, blocks: &[u64]) {
        let mapped = self.map_direct(blocks);
        inode.block = mapped.root;
        inode.flags = inode.flags.union(mapped.flags);
        inode.blocks = self.sectors(blocks.len() as u64);
    }

    fn note_size(&mut self, size: u64) {
        if size >= LARGE {
            self.superblock.set_large_file();
        }
    }
}
