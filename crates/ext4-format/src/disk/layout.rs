//! Sizes and offsets of every on-disk structure, checked at compile time. The numbers
//! are those of the kernel's "ext4 Data Structures and Algorithms".

use std::mem::{align_of, offset_of, size_of};

use super::group_desc::RawGroupDesc;
use super::inode::{RawInode, RawInodeExtra};
use super::mmp::RawMmp;
use super::superblock::RawSuperblock;

macro_rules! layout {
    ($type:ident, $size:literal, { $($field:ident @ $offset:literal),* $(,)? }) => {
        const _: () = {
            assert!(size_of::<$type>() == $size);
            assert!(align_of::<$type>() == 1);
            $(assert!(offset_of!($type, $field) == $offset, stringify!($field));)*
        };
    };
}

layout!(RawSuperblock, 1024, {
    inodes_count @ 0x0, blocks_count_lo @ 0x4, r_blocks_count_lo @ 0x8, free_blocks_count_lo @ 0xC,
    free_inodes_count @ 0x10, first_data_block @ 0x14, log_block_size @ 0x18,
    log_cluster_size @ 0x1C, blocks_per_group @ 0x20, clusters_per_group @ 0x24,
    inodes_per_group @ 0x28, mtime @ 0x2C, wtime @ 0x30, mnt_count @ 0x34, max_mnt_count @ 0x36,
    magic @ 0x38, state @ 0x3A, errors @ 0x3C, minor_rev_level @ 0x3E, lastcheck @ 0x40,
    checkinterval @ 0x44, creator_os @ 0x48, rev_level @ 0x4C, def_resuid @ 0x50,
    def_resgid @ 0x52, first_ino @ 0x54, inode_size @ 0x58, block_group_nr @ 0x5A,
    feature_compat @ 0x5C, feature_incompat @ 0x60, feature_ro_compat @ 0x64, uuid @ 0x68,
    volume_name @ 0x78, last_mounted @ 0x88, algorithm_usage_bitmap @ 0xC8, prealloc_blocks @ 0xCC,
    prealloc_dir_blocks @ 0xCD, reserved_gdt_blocks @ 0xCE, journal_uuid @ 0xD0,
    journal_inum @ 0xE0, journal_dev @ 0xE4, last_orphan @ 0xE8, hash_seed @ 0xEC,
    def_hash_version @ 0xFC, jnl_backup_type @ 0xFD, desc_size @ 0xFE, default_mount_opts @ 0x100,
    first_meta_bg @ 0x104, mkfs_time @ 0x108, jnl_blocks @ 0x10C, blocks_count_hi @ 0x150,
    r_blocks_count_hi @ 0x154, free_blocks_count_hi @ 0x158, min_extra_isize @ 0x15C,
    want_extra_isize @ 0x15E, flags @ 0x160, raid_stride @ 0x164, mmp_update_interval @ 0x166,
    mmp_block @ 0x168, raid_stripe_width @ 0x170, log_groups_per_flex @ 0x174,
    checksum_type @ 0x175, encryption_level @ 0x176, kbytes_written @ 0x178,
    snapshot_inum @ 0x180, snapshot_id @ 0x184, snapshot_r_blocks_count @ 0x188,
    snapshot_list @ 0x190, error_count @ 0x194, first_error_time @ 0x198, first_error_ino @ 0x19C,
    first_error_block @ 0x1A0, first_error_func @ 0x1A8, first_error_line @ 0x1C8,
    last_error_time @ 0x1CC, last_error_ino @ 0x1D0, last_error_line @ 0x1D4,
    last_error_block @ 0x1D8, last_error_func @ 0x1E0, mount_opts @ 0x200, usr_quota_inum @ 0x240,
    grp_quota_inum @ 0x244, overhead_clusters @ 0x248, backup_bgs @ 0x24C, encrypt_algos @ 0x254,
    encrypt_pw_salt @ 0x258, lpf_ino @ 0x268, prj_quota_inum @ 0x26C, checksum_seed @ 0x270,
    wtime_hi @ 0x274, mtime_hi @ 0x275, mkfs_time_hi @ 0x276, lastcheck_hi @ 0x277,
    first_error_time_hi @ 0x278, last_error_time_hi @ 0x279, first_error_errcode @ 0x27A,
    last_error_errcode @ 0x27B, encoding @ 0x27C, encoding_flags @ 0x27E, orphan_file_inum @ 0x280,
    reserved @ 0x284, checksum @ 0x3FC,
});

layout!(RawGroupDesc, 64, {
    block_bitmap_lo @ 0x0, inode_bitmap_lo @ 0x4, inode_table_lo @ 0x8,
    free_blocks_count_lo @ 0xC, free_inodes_count_lo @ 0xE, used_dirs_count_lo @ 0x10,
    flags @ 0x12, exclude_bitmap_lo @ 0x14, block_bitmap_csum_lo @ 0x18,
    inode_bitmap_csum_lo @ 0x1A, itable_unused_lo @ 0x1C, checksum @ 0x1E, block_bitmap_hi @ 0x20,
    inode_bitmap_hi @ 0x24, inode_table_hi @ 0x28, free_blocks_count_hi @ 0x2C,
    free_inodes_count_hi @ 0x2E, used_dirs_count_hi @ 0x30, itable_unused_hi @ 0x32,
    exclude_bitmap_hi @ 0x34, block_bitmap_csum_hi @ 0x38, inode_bitmap_csum_hi @ 0x3A,
    reserved @ 0x3C,
});

layout!(RawInode, 128, {
    mode @ 0x0, uid @ 0x2, size_lo @ 0x4, atime @ 0x8, ctime @ 0xC, mtime @ 0x10, dtime @ 0x14,
    gid @ 0x18, links_count @ 0x1A, blocks_lo @ 0x1C, flags @ 0x20, version @ 0x24, block @ 0x28,
    generation @ 0x64, file_acl_lo @ 0x68, size_high @ 0x6C, obso_faddr @ 0x70, blocks_high @ 0x74,
    file_acl_high @ 0x76, uid_high @ 0x78, gid_high @ 0x7A, checksum_lo @ 0x7C, reserved @ 0x7E,
});

// Offsets from the 128th byte of the inode.
layout!(RawInodeExtra, 32, {
    extra_isize @ 0x0, checksum_hi @ 0x2, ctime_extra @ 0x4, mtime_extra @ 0x8, atime_extra @ 0xC,
    crtime @ 0x10, crtime_extra @ 0x14, version_hi @ 0x18, projid @ 0x1C,
});

layout!(RawMmp, 1024, {
    magic @ 0x0, seq @ 0x4, time @ 0x8, node_name @ 0x10, device_name @ 0x50, check_interval @ 0x70,
    padding @ 0x72, checksum @ 0x3FC,
});
