//! Superblock and group descriptors: their own rules, and the blocks they use.

use steadfs_base::DevBlock;

use super::{Checker, Issue};
use crate::disk::desc_from_copies;
use crate::disk::features::{Compat, Incompat, RoCompat};
use crate::disk::group_desc::{BLOCK_UNINIT, INODE_UNINIT};
use crate::disk::mmp::Usage;
use crate::disk::superblock::JournalPlace;
use crate::disk::{DiskError, GroupDesc, GroupNo, MIN_DESC_SIZE, Mmp, Structure};

impl Checker<'_> {
    pub(super) fn check_superblock(&mut self) {
        let geo = &self.geo;
        self.report.stats.blocks = geo.blocks_count;
        self.report.stats.inodes = geo.inodes_count;
        self.report.stats.state = self.sb.state();
        let recovery = self
            .sb
            .features()
            .incompat
            .contains(Incompat::NEEDS_RECOVERY);
        self.report.stats.needs_recovery = recovery;
        let blocks = geo.blocks_count;
        let device_blocks = self.src.size_bytes() >> geo.block_size.bits();
        if let Err(error) = self.sb.verify_checksum() {
            self.issue(Issue::Superblock(error));
        }
        let reserved = self.sb.reserved_blocks();
        if reserved > blocks / 2 {
            self.issue(Issue::ReservedBlocks { reserved, blocks });
        }
        if device_blocks < blocks {
            self.issue(Issue::DeviceTooSmall {
                blocks,
                device_blocks,
            });
        }
        self.check_unused_fields();
        if recovery && self.sb.journal() == JournalPlace::None {
            self.issue(Issue::RecoveryWithoutJournal);
        }
        self.check_lone_features();
    }

    fn check_lone_features(&mut self) {
        let features = self.sb.features();
        let has_sums = features.ro_compat.contains(RoCompat::METADATA_CSUM);
        let has_orphan_file = features.compat.contains(Compat::ORPHAN_FILE);
        let seeded = features.incompat.contains(Incompat::CSUM_SEED);
        let orphans = features.ro_compat.contains(RoCompat::ORPHAN_PRESENT);
        for (feature, there, needs, fine) in [
            ("metadata_csum_seed", seeded, "metadata_csum", has_sums),
            ("orphan_present", orphans, "orphan_file", has_orphan_file),
        ] {
            if there && !fine {
                self.issue(Issue::FeatureAlone { feature, needs });
            }
        }
    }

    /// Fields that are unused on such a volume but have one valid value.
    fn check_unused_fields(&mut self) {
        let raw = self.sb.raw();
        let bigalloc = self.geo.has_ro_compat(RoCompat::BIGALLOC);
        let old_size = [0, MIN_DESC_SIZE];
        let journal = self.geo.features.compat.contains(Compat::HAS_JOURNAL);
        let rules = [
            (
                "s_journal_inum",
                raw.journal_inum.get(),
                journal || raw.journal_inum.get() == 0,
            ),
            (
                "s_journal_dev",
                raw.journal_dev.get(),
                journal || raw.journal_dev.get() == 0,
            ),
            (
                "s_desc_size",
                u32::from(raw.desc_size.get()),
                self.geo.has_64bit() || old_size.contains(&raw.desc_size.get()),
            ),
            (
                "s_log_cluster_size",
                raw.log_cluster_size.get(),
                bigalloc || raw.log_cluster_size == raw.log_block_size,
            ),
            (
                "s_clusters_per_group",
                raw.clusters_per_group.get(),
                bigalloc || raw.clusters_per_group == raw.blocks_per_group,
            ),
            (
                "s_log_groups_per_flex",
                raw.log_groups_per_flex.into(),
                raw.log_groups_per_flex < 32,
            ),
        ];
        for (field, value, _) in rules.into_iter().filter(|(_, _, fine)| !fine) {
            let rule = "not a value that it can have";
            let error = DiskError::field(Structure::Superblock, field, value, rule);
            self.issue(Issue::Superblock(error));
        }
    }

    /// Reads all descriptors, checks them, and marks the blocks that they and their copies use.
    pub(super) fn check_groups(&mut self) {
        let mut block = Vec::new();
        let mut loaded = None;
        for group in self.geo.groups() {
            let (n, offset) = self.geo.desc_slot(group);
            if loaded != Some(n) {
                let at = self.geo.desc_block_at(n);
                // An unreadable block is all zeros: each of its descriptors breaks a rule.
                if !self.read_block(at, &mut block) {
                    block.fill(0);
                }
                loaded = Some(n);
            }
            let slot = &block[offset..offset + usize::from(self.geo.desc_size)];
            let desc = GroupDesc::decode(&self.geo, slot);
            let checksum = GroupDesc::verify_checksum(&self.geo, group, slot);
            let valid = desc.validate(&self.geo, group);
            let is_right = checksum.is_ok() && valid.is_ok();
            for error in [checksum, valid].into_iter().filter_map(Result::err) {
                self.issue(Issue::GroupDesc(error));
            }
            let copy = (!is_right).then(|| self.places_of_copy(group, desc));
            // Places are checked below, counts at the end.
            self.descs.push(copy.unwrap_or(desc));
        }
        self.mark_overheads();
        for group in self.geo.groups() {
            self.check_group(group);
        }
        if let Some(block) = self.sb.mmp_block() {
            self.check_mount_protection(block);
        }
    }

    /// Checks the block of multiple-mount protection and marks it. A node that has the volume mounted is no issue.
    fn check_mount_protection(&mut self, at: DevBlock) {
        if !self.geo.is_data_range(at, 1) {
            let rule = "outside the volume";
            let error = DiskError::field(Structure::Superblock, "s_mmp_block", at.0, rule);
            self.issue(Issue::Superblock(error));
            return;
        }
        if self.used.mark_used(&self.geo, at, 1).is_some() {
            self.issue(Issue::MountProtectionOverlap { block: at });
        }
        let mut block = Vec::new();
        if !self.read_block(at, &mut block) {
            return;
        }
        match Mmp::parse(self.geo.seed, at, &block) {
            Err(error) => self.issue(Issue::MountProtection(error)),
            Ok(mmp) => match mmp.usage() {
                Usage::Clean | Usage::Mounted => {}
                Usage::Fsck | Usage::Unknown => self.issue(Issue::MountProtectionSequence {
                    sequence: mmp.seq(),
                    writer: mmp.writer().to_string(),
                }),
            },
        }
    }

    /// An invalid descriptor with the places of its first copy that verifies. The error has been reported; with the
    /// places the content of the group can be checked.
    fn places_of_copy(&self, group: GroupNo, stored: GroupDesc) -> GroupDesc {
        let size = self.geo.block_size;
        let copy = desc_from_copies(&self.geo, group, |at| {
            let mut block = vec![0; size.bytes()];
            let offset = size.offset_of(at);
            let fits = offset + size.bytes_u64() <= self.src.size_bytes();
            (fits && self.src.read(offset, &mut block).is_ok()).then_some(block)
        });
        copy.map_or(stored, |copy| GroupDesc {
            block_bitmap: copy.block_bitmap,
            inode_bitmap: copy.inode_bitmap,
            inode_table: copy.inode_table,
            ..stored
        })
    }

    fn mark_overheads(&mut self) {
        for group in self.geo.groups() {
            let blocks = self
                .geo
                .overhead(group)
                .total()
                .min(self.geo.blocks_in(group));
            if blocks > 0 {
                let first = self.geo.first_block_of(group);
                self.used.mark_used(&self.geo, first, blocks.into());
            }
        }
    }

    /// Checks the places of a group's metadata and marks the blocks. Impossible places are set to 0.
    fn check_group(&mut self, group: GroupNo) {
        let mut desc = self.descs[group.0 as usize];
        let uninit = desc.flags & (INODE_UNINIT | BLOCK_UNINIT);
        if uninit != 0 && !self.geo.has_group_checksums() {
            let rule = "uninitialised without checksums";
            let error = DiskError::field(Structure::GroupDesc, "bg_flags", desc.flags, rule);
            self.issue(Issue::GroupDesc(error.in_group(group)));
        }
        let itable_blocks = u64::from(self.geo.itable_blocks());
        // With clusters several of these blocks share one.
        let exclusive = !self.geo.has_ro_compat(RoCompat::BIGALLOC);
        for (what, at, count) in [
            ("the block bitmap", &mut desc.block_bitmap, 1),
            ("the inode bitmap", &mut desc.inode_bitmap, 1),
            ("the inode table", &mut desc.inode_table, itable_blocks),
        ] {
            if !self.geo.is_data_range(*at, count) {
                *at = DevBlock(0);
                continue;
            }
            let twice = self.used.mark_used(&self.geo, *at, count);
            if exclusive && twice.is_some() {
                let block = *at;
                self.issue(Issue::MetadataOverlap { group, what, block });
            }
        }
        self.descs[group.0 as usize] = desc;
    }

    /// Whether inodes may have extended attributes in blocks.
    pub(super) fn has_xattrs(&self) -> bool {
        self.geo.features.compat.contains(Compat::EXT_ATTR)
    }
}
