//! Special inodes: orphans, journal, quota, resize inode.

use steadfs_base::checksum::crc32c;
use steadfs_base::{DevBlock, FileBlock};
use steadfs_vfs::FileKind;

use super::map::{Collect, Walk};
use super::tables::InodeState;
use super::{Checker, Issue};
use crate::disk::features::{Compat, RoCompat};
use crate::disk::indirect;
use crate::disk::num::get32;
use crate::disk::superblock::JournalPlace;
use crate::disk::{ChecksumSeed, Ino, Inode, orphan_file};

/// Magic of a journal block (big-endian on disk, as all of the journal).
const JBD2_MAGIC: u32 = 0xC03B_3998;

fn be32(block: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

impl Checker<'_> {
    /// Collects the orphans: inodes in use until the next mount, with or without a link.
    pub(super) fn collect_orphans(&mut self) {
        self.follow_orphan_list();
        if let Some(ino) = self.sb.orphan_file() {
            self.read_orphan_file(ino);
        }
        self.report.stats.orphans = self.orphans.len() as u32;
    }

    fn follow_orphan_list(&mut self) {
        let mut slot = Vec::new();
        let mut next = self.sb.last_orphan();
        while let Some(ino) = next {
            let why = if !self.geo.is_inode(ino) || !self.can_be_orphan(ino) {
                "cannot be an orphan"
            } else if !self.orphans.insert(ino.0) {
                "is there twice"
            } else if !self.read_slot(ino, &mut slot) {
                "cannot be read"
            } else {
                // The deletion time field links to the next orphan.
                next = Ino(get32(&slot, 0x14)).some();
                continue;
            };
            return self.issue(Issue::OrphanList { ino, why });
        }
    }

    fn can_be_orphan(&self, ino: Ino) -> bool {
        ino >= self.geo.first_ino
            && self.sb.orphan_file() != Some(ino)
            && self.sb.journal() != JournalPlace::Inode(ino)
    }

    fn read_orphan_file(&mut self, ino: Ino) {
        let mut slot = Vec::new();
        // Its number was validated with the superblock.
        if !self.read_slot(ino, &mut slot) {
            return;
        }
        self.check_slot(ino, &slot);
        let generation = get32(&slot, 0x64);
        let seed = self.geo.seed.of_inode(ino, generation);
        let mut block = Vec::new();
        let before = self.orphans.len();
        for run in std::mem::take(&mut self.orphan_runs) {
            for i in 0..run.len {
                let at = run.start.plus(i.into());
                if self.read_block(at, &mut block) {
                    self.read_orphan_block(ino, seed, at, &block);
                }
            }
        }
        let features = self.sb.features();
        let announced = features.ro_compat.contains(RoCompat::ORPHAN_PRESENT);
        if self.orphans.len() > before && !announced {
            self.issue(Issue::OrphansNotAnnounced);
        }
    }

    fn read_orphan_block(&mut self, ino: Ino, seed: ChecksumSeed, at: DevBlock, block: &[u8]) {
        if let Err(error) = orphan_file::verify(&self.geo, seed, at, block) {
            return self.issue(Issue::OrphanFile(error.in_inode(ino)));
        }
        for (_, orphan) in orphan_file::orphans(&self.geo, block) {
            if !self.can_be_orphan(orphan) || !self.orphans.insert(orphan.0) {
                let why = "is there twice or cannot be an orphan";
                self.issue(Issue::OrphanList { ino: orphan, why });
            }
        }
    }

    /// Checks orphans, the journal, and reserved inodes without a feature, after all inodes are known.
    pub(super) fn check_special(&mut self) {
        let orphans = self.orphans.iter().map(|&ino| Ino(ino));
        let (geo, inodes) = (&self.geo, &self.inodes);
        let free = orphans.filter(|&ino| !inodes.get(geo, ino).has(InodeState::USED));
        for ino in free.collect::<Vec<_>>() {
            let why = "is free";
            self.issue(Issue::OrphanList { ino, why });
        }
        let has_quota = self.geo.has_ro_compat(RoCompat::QUOTA);
        for (ino, needed) in [
            (Ino::USER_QUOTA, has_quota),
            (Ino::GROUP_QUOTA, has_quota),
            (Ino::JOURNAL, self.sb.journal() != JournalPlace::None),
        ] {
            if !needed && self.inodes.get(&self.geo, ino).has(InodeState::USED) {
                self.issue(Issue::ReservedInUse { ino });
            }
        }
        self.check_quota_files();
        match self.sb.journal() {
            JournalPlace::None => {}
            JournalPlace::External(uuid) if uuid == [0; 16] => {
                let why = "it is nowhere";
                self.issue(Issue::Journal { why });
            }
            JournalPlace::External(_) => self.skip("the journal on another device"),
            JournalPlace::Inode(ino) => {
                if self.sb.raw().journal_uuid != [0; 16] {
                    let why = "it is in an inode and on another device";
                    self.issue(Issue::Journal { why });
                }
                if let Err(why) = self.check_journal(ino) {
                    self.issue(Issue::Journal { why });
                }
            }
        }
    }

    /// The quota inodes that the superblock names, with the fields' names.
    fn quota_files(&self) -> impl Iterator<Item = (&'static str, Ino)> + use<> {
        let fields = ["s_usr_quota_inum", "s_grp_quota_inum", "s_prj_quota_inum"];
        let named = fields.into_iter().zip(self.sb.quota_inodes());
        named.filter_map(|(field, ino)| Some((field, ino?)))
    }

    /// User and group quota have reserved inodes; each kind of quota may use an ordinary inode.
    pub(super) fn check_quota_numbers(&mut self) {
        for (field, ino) in self.quota_files() {
            let reserved = match field {
                "s_usr_quota_inum" => Some(Ino::USER_QUOTA),
                "s_grp_quota_inum" => Some(Ino::GROUP_QUOTA),
                _ => None,
            };
            let fine = reserved == Some(ino) || ino >= self.geo.first_ino;
            if !fine || !self.geo.is_inode(ino) {
                let why = "which no quota file is";
                self.issue(Issue::QuotaInode { field, ino, why });
            }
        }
    }

    fn check_quota_files(&mut self) {
        for (field, ino) in self.quota_files() {
            if !self.geo.is_inode(ino) {
                continue;
            }
            let state = self.inodes.get(&self.geo, ino);
            let is_file = state.kind == FileKind::Regular.entry_type() && state.links > 0;
            if !is_file {
                let why = "which is not a file in use";
                self.issue(Issue::QuotaInode { field, ino, why });
            }
        }
    }

    fn check_journal(&mut self, ino: Ino) -> Result<(), &'static str> {
        const LEAST_BLOCKS: u64 = 1024;
        let state = self.inodes.get(&self.geo, ino);
        if state.kind != FileKind::Regular.entry_type() || state.links == 0 {
            return Err("its inode is not a file in use");
        }
        let mut blocks = 0;
        for run in &self.journal_runs {
            if run.block != FileBlock(blocks) {
                return Err("its inode has a hole");
            }
            blocks += u64::from(run.len);
        }
        if blocks < LEAST_BLOCKS {
            return Err("it has less than 1024 blocks");
        }
        let first = self.journal_runs[0].start;
        let mut block = std::mem::take(&mut self.levels[0]);
        let result = if self.read_block(first, &mut block) {
            self.check_journal_superblock(&block, blocks)
        } else {
            Ok(())
        };
        self.levels[0] = block;
        result
    }

    /// The fields of the journal's superblock that decide whether it can be used.
    fn check_journal_superblock(&mut self, block: &[u8], blocks: u64) -> Result<(), &'static str> {
        // Revoke records, 64 bits, asynchronous commit, checksums 2 and 3, fast commits.
        const KNOWN_FEATURES: u32 = 0x3F;
        const WITH_CHECKSUM: u32 = 0x8 | 0x10;
        let (kind, max_len, first) = (be32(block, 4), be32(block, 0x10), be32(block, 0x14));
        if be32(block, 0) != JBD2_MAGIC || !(3..=4).contains(&kind) {
            return Err("its first block is not a journal superblock");
        }
        if u64::from(be32(block, 0x0C)) != self.geo.block_size.bytes_u64() {
            return Err("it has another block size");
        }
        if u64::from(max_len) > blocks {
            return Err("it is longer than its inode");
        }
        if first == 0 || first >= max_len {
            return Err("its log starts outside");
        }
        if be32(block, 0x40) > 1 {
            return Err("several volumes use it");
        }
        let later_fields = [0x24, 0x28, 0x2C];
        if kind == 3 && later_fields.iter().any(|&at| be32(block, at) != 0) {
            return Err("its superblock has fields of a later version");
        }
        if be32(block, 0x28) & !KNOWN_FEATURES != 0 || be32(block, 0x2C) != 0 {
            return Err("it has unknown features");
        }
        if kind == 4 && be32(block, 0x28) & WITH_CHECKSUM != 0 {
            let sum = crc32c(crc32c(!0, &block[..0xFC]), &[0; 4]);
            if crc32c(sum, &block[0x100..0x400]) != be32(block, 0xFC) {
                return Err("its superblock has a wrong checksum");
            }
        }
        if be32(block, 0x1C) != 0 && !self.report.stats.needs_recovery {
            self.issue(Issue::JournalNotEmpty);
        }
        Ok(())
    }

    pub(super) fn check_no_resize_inode(&mut self) {
        if self.geo.features.compat.contains(Compat::RESIZE_INODE) {
            let why = "is not in use";
            self.issue(Issue::ResizeInode { why });
        }
    }

    /// The resize inode maps the blocks that are reserved for descriptors: through its doubly
    /// indirect block those of group 0, each of which lists its copies in the other groups.
    pub(super) fn check_resize_inode(&mut self, inode: &Inode, attr_blocks: u64) {
        let dind = get32(&inode.block, indirect::DOUBLE as usize * 4);
        if !self.geo.features.compat.contains(Compat::RESIZE_INODE) {
            if dind != 0 {
                let why = "is in use, but the volume has no such feature";
                self.issue(Issue::ResizeInode { why });
            }
            return;
        }
        let at = DevBlock(dind.into());
        let others = inode
            .block
            .chunks(4)
            .filter(|word| get32(word, 0) != 0)
            .count();
        if inode.kind() != Some(FileKind::Regular) || inode.links != 1 {
            let why = "is not a file with one link";
            return self.issue(Issue::ResizeInode { why });
        }
        if others != 1 || !self.geo.is_data_range(at, 1) {
            let why = "does not map by its doubly indirect block alone";
            return self.issue(Issue::ResizeInode { why });
        }
        let seed = ChecksumSeed::NONE;
        let mut walk = Walk::new(Ino::RESIZE, seed, Collect::Nothing, false);
        if !self.mark_meta(&mut walk, at) {
            return;
        }
        let mut dind = std::mem::take(&mut self.levels[2]);
        let mut copies = std::mem::take(&mut self.levels[1]);
        let result = if self.read_block(at, &mut dind) {
            self.check_reserved_blocks(&dind, &mut copies)
        } else {
            Ok(0)
        };
        self.levels[1] = copies;
        self.levels[2] = dind;
        match result {
            Ok(0) => {}
            Ok(blocks) => {
                // With clusters e2fsprogs counts each of these blocks as a whole one.
                let blocks = (blocks << self.geo.cluster_bits) + attr_blocks;
                self.check_block_count(Ino::RESIZE, inode, blocks);
            }
            Err(why) => self.issue(Issue::ResizeInode { why }),
        }
    }

    /// Follows the doubly indirect block; the number of blocks in the whole map, 0 where a part
    /// could not be read.
    fn check_reserved_blocks(
        &mut self,
        dind: &[u8],
        copies: &mut Vec<u8>,
    ) -> Result<u64, &'static str> {
        const FOREIGN: &str = "maps a block that is not reserved for descriptors";
        let per_block = indirect::per_block(&self.geo);
        let first = self.geo.desc_blocks();
        let base = self.geo.superblock_place().0.plus(1);
        let reserved = first..first + u32::from(self.geo.reserved_gdt_blocks);
        let words = |block: &[u8]| {
            block
                .chunks_exact(4)
                .filter(|word| **word != [0; 4])
                .count()
        };
        if words(dind) != reserved.len() {
            return Err(FOREIGN);
        }
        let mut blocks = 1;
        for i in reserved {
            let at = base.plus(i.into());
            let word = (i % per_block) as usize * 4;
            if u64::from(get32(dind, word)) != at.0 {
                return Err(FOREIGN);
            }
            if !self.read_block(at, copies) {
                return Ok(0);
            }
            let mut listed = copies.chunks_exact(4).map(|word| get32(word, 0));
            let mut count = 0;
            for group in self.geo.groups().skip(1).filter(|&g| self.geo.has_super(g)) {
                let distance = u64::from(group.0) * u64::from(self.geo.blocks_per_group);
                let copy = at.0 + distance;
                if listed.next().map(u64::from) != Some(copy) {
                    return Err("does not list the copies of a reserved block");
                }
                count += 1;
            }
            if words(copies) != count {
                return Err(FOREIGN);
            }
            blocks += 1 + count as u64;
        }
        Ok(blocks)
    }
}
