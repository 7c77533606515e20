//! The superblock's fields in their order on disk, before validation:
//! [`Geometry`](super::Geometry) and [`Superblock`](super::Superblock) are built from them.

use steadfs_base::checksum::crc32c;
use steadfs_base::endian::{Le16, Le32, Le64};
use steadfs_format_base::casefold::Encoding;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ChecksumSeed, Compat, Features, Incompat, RoCompat};

/// Offset of the main superblock from the volume's first byte.
pub const SUPERBLOCK_OFFSET: u64 = 1024;

/// `s_flags`: directory hashes take name bytes as signed.
pub const FLAG_SIGNED_HASH: u32 = 1;
/// `s_flags`: directory hashes take name bytes as unsigned.
pub const FLAG_UNSIGNED_HASH: u32 = 2;

/// The superblock as it is on disk; fields as in "Super Block" of the kernel's documentation,
/// without their `s_`.
#[derive(Clone, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the documentation's")]
pub struct RawSuperblock {
    pub inodes_count: Le32,
    pub blocks_count_lo: Le32,
    pub r_blocks_count_lo: Le32,
    pub free_blocks_count_lo: Le32,
    pub free_inodes_count: Le32,
    pub first_data_block: Le32,
    pub log_block_size: Le32,
    pub log_cluster_size: Le32,
    pub blocks_per_group: Le32,
    pub clusters_per_group: Le32,
    pub inodes_per_group: Le32,
    pub mtime: Le32,
    pub wtime: Le32,
    pub mnt_count: Le16,
    pub max_mnt_count: Le16,
    pub magic: Le16,
    pub state: Le16,
    pub errors: Le16,
    pub minor_rev_level: Le16,
    pub lastcheck: Le32,
    pub checkinterval: Le32,
    pub creator_os: Le32,
    pub rev_level: Le32,
    pub def_resuid: Le16,
    pub def_resgid: Le16,
    pub first_ino: Le32,
    pub inode_size: Le16,
    pub block_group_nr: Le16,
    pub feature_compat: Le32,
    pub feature_incompat: Le32,
    pub feature_ro_compat: Le32,
    pub uuid: [u8; 16],
    pub volume_name: [u8; 16],
    pub last_mounted: [u8; 64],
    pub algorithm_usage_bitmap: Le32,
    pub prealloc_blocks: u8,
    pub prealloc_dir_blocks: u8,
    pub reserved_gdt_blocks: Le16,
    pub journal_uuid: [u8; 16],
    pub journal_inum: Le32,
    pub journal_dev: Le32,
    pub last_orphan: Le32,
    pub hash_seed: [Le32; 4],
    pub def_hash_version: u8,
    pub jnl_backup_type: u8,
    pub desc_size: Le16,
    pub default_mount_opts: Le32,
    pub first_meta_bg: Le32,
    pub mkfs_time: Le32,
    pub jnl_blocks: [Le32; 17],
    pub blocks_count_hi: Le32,
    pub r_blocks_count_hi: Le32,
    pub free_blocks_count_hi: Le32,
    pub min_extra_isize: Le16,
    pub want_extra_isize: Le16,
    pub flags: Le32,
    pub raid_stride: Le16,
    pub mmp_update_interval: Le16,
    pub mmp_block: Le64,
    pub raid_stripe_width: Le32,
    pub log_groups_per_flex: u8,
    pub checksum_type: u8,
    pub encryption_level: u8,
    pub reserved_pad: u8,
    pub kbytes_written: Le64,
    pub snapshot_inum: Le32,
    pub snapshot_id: Le32,
    pub snapshot_r_blocks_count: Le64,
    pub snapshot_list: Le32,
    pub error_count: Le32,
    pub first_error_time: Le32,
    pub first_error_ino: Le32,
    pub first_error_block: Le64,
    pub first_error_func: [u8; 32],
    pub first_error_line: Le32,
    pub last_error_time: Le32,
    pub last_error_ino: Le32,
    pub last_error_line: Le32,
    pub last_error_block: Le64,
    pub last_error_func: [u8; 32],
    pub mount_opts: [u8; 64],
    pub usr_quota_inum: Le32,
    pub grp_quota_inum: Le32,
    pub overhead_clusters: Le32,
    pub backup_bgs: [Le32; 2],
    pub encrypt_algos: [u8; 4],
    pub encrypt_pw_salt: [u8; 16],
    pub lpf_ino: Le32,
    pub prj_quota_inum: Le32,
    pub checksum_seed: Le32,
    pub wtime_hi: u8,
    pub mtime_hi: u8,
    pub mkfs_time_hi: u8,
    pub lastcheck_hi: u8,
    pub first_error_time_hi: u8,
    pub last_error_time_hi: u8,
    pub first_error_errcode: u8,
    pub last_error_errcode: u8,
    pub encoding: Le16,
    pub encoding_flags: Le16,
    pub orphan_file_inum: Le32,
    pub reserved: [Le32; 94],
    pub checksum: Le32,
}

impl RawSuperblock {
    /// The feature words. They are valid in revision 0, too, which should have none: as Linux and e2fsck do, because
    /// features have been set without raising the revision. An implementation that ignored them would write a format
    /// that it does not know.
    pub(super) fn features(&self) -> Features {
        Features {
            compat: Compat(self.feature_compat.get()),
            incompat: Incompat(self.feature_incompat.get()),
            ro_compat: RoCompat(self.feature_ro_compat.get()),
        }
    }

    /// The encoding of casefolded names, on volumes that have them and if it is known.
    pub(super) fn encoding(&self) -> Option<Encoding> {
        let folds = self.features().incompat.contains(Incompat::CASEFOLD);
        Encoding::from_disk(self.encoding.get(), self.encoding_flags.get()).filter(|_| folds)
    }

    /// The seed of the whole volume's checksums: stored, or derived from the UUID.
    pub(super) fn seed(&self) -> ChecksumSeed {
        let features = self.features();
        if !features.ro_compat.contains(RoCompat::METADATA_CSUM) {
            ChecksumSeed::NONE
        } else {
            ChecksumSeed::new(self.stored_or_derived_seed())
        }
    }

    /// The seed, whether or not the volume has checksums.
    pub(super) fn stored_or_derived_seed(&self) -> u32 {
        if self.features().incompat.contains(Incompat::CSUM_SEED) {
            self.checksum_seed.get()
        } else {
            crc32c(!0, &self.uuid)
        }
    }
}
