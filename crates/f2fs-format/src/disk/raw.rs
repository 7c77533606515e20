//! All raw structures. Sizes and offsets are checked at compile time. Names are those of the public declarations
//! (`f2fs_fs.h`) without their prefixes.

use std::mem::{align_of, offset_of, size_of};

use steadfs_base::endian::{Le16, Le32, Le64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::BLOCK_SIZE;

macro_rules! on_disk {
    ($(#[$doc:meta])* $name:ident, $size:literal, { $($field:ident: $type:ty = $offset:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
        #[repr(C)]
        #[allow(missing_docs, reason = "the names are the declaration's")]
        pub struct $name { $(pub $field: $type),* }

        const _: () = {
            assert!(size_of::<$name>() == $size);
            assert!(align_of::<$name>() == 1);
            $(assert!(offset_of!($name, $field) == $offset, stringify!($field));)*
        };
    };
}

on_disk! {
    /// `struct f2fs_device`.
    RawDevice, 68, { path: [u8; 64] = 0, total_segments: Le32 = 64 }
}

on_disk! {
    /// `struct f2fs_super_block`.
    RawSuperblock, 3072, {
        magic: Le32 = 0, major_ver: Le16 = 4, minor_ver: Le16 = 6, log_sectorsize: Le32 = 8,
        log_sectors_per_block: Le32 = 12, log_blocksize: Le32 = 16, log_blocks_per_seg: Le32 = 20,
        segs_per_sec: Le32 = 24, secs_per_zone: Le32 = 28, checksum_offset: Le32 = 32,
        block_count: Le64 = 36, section_count: Le32 = 44, segment_count: Le32 = 48,
        segment_count_ckpt: Le32 = 52, segment_count_sit: Le32 = 56, segment_count_nat: Le32 = 60,
        segment_count_ssa: Le32 = 64, segment_count_main: Le32 = 68, segment0_blkaddr: Le32 = 72,
        cp_blkaddr: Le32 = 76, sit_blkaddr: Le32 = 80, nat_blkaddr: Le32 = 84,
        ssa_blkaddr: Le32 = 88, main_blkaddr: Le32 = 92, root_ino: Le32 = 96, node_ino: Le32 = 100,
        meta_ino: Le32 = 104, uuid: [u8; 16] = 108, volume_name: [Le16; 512] = 124,
        extension_count: Le32 = 1148, extension_list: [[u8; 8]; 64] = 1152, cp_payload: Le32 = 1664,
        version: [u8; 256] = 1668, init_version: [u8; 256] = 1924, feature: Le32 = 2180,
        encryption_level: u8 = 2184, encrypt_pw_salt: [u8; 16] = 2185,
        devs: [RawDevice; 8] = 2201, qf_ino: [Le32; 3] = 2745, hot_ext_count: u8 = 2757,
        encoding: Le16 = 2758, encoding_flags: Le16 = 2760, stop_reason: [u8; 32] = 2762,
        errors: [u8; 16] = 2794, reserved: [u8; 258] = 2810, crc: Le32 = 3068,
    }
}

on_disk! {
    /// `struct f2fs_checkpoint` up to its bitmaps.
    RawCheckpoint, 192, {
        checkpoint_ver: Le64 = 0, user_block_count: Le64 = 8, valid_block_count: Le64 = 16,
        rsvd_segment_count: Le32 = 24, overprov_segment_count: Le32 = 28,
        free_segment_count: Le32 = 32, cur_node_segno: [Le32; 8] = 36,
        cur_node_blkoff: [Le16; 8] = 68, cur_data_segno: [Le32; 8] = 84,
        cur_data_blkoff: [Le16; 8] = 116, ckpt_flags: Le32 = 132,
        cp_pack_total_block_count: Le32 = 136, cp_pack_start_sum: Le32 = 140,
        valid_node_count: Le32 = 144, valid_inode_count: Le32 = 148, next_free_nid: Le32 = 152,
        sit_ver_bitmap_bytesize: Le32 = 156, nat_ver_bitmap_bytesize: Le32 = 160,
        checksum_offset: Le32 = 164, elapsed_time: Le64 = 168, alloc_type: [u8; 16] = 176,
    }
}

on_disk! {
    /// `struct f2fs_orphan_block`.
    RawOrphanBlock, 4096, {
        ino: [Le32; 1020] = 0, reserved: Le32 = 4080, blk_addr: Le16 = 4084,
        blk_count: Le16 = 4086, entry_count: Le32 = 4088, check_sum: Le32 = 4092,
    }
}

on_disk! {
    /// `struct f2fs_inode` up to its addresses.
    RawInode, 360, {
        mode: Le16 = 0, advise: u8 = 2, inline: u8 = 3, uid: Le32 = 4, gid: Le32 = 8,
        links: Le32 = 12, size: Le64 = 16, blocks: Le64 = 24, atime: Le64 = 32, ctime: Le64 = 40,
        mtime: Le64 = 48, atime_nsec: Le32 = 56, ctime_nsec: Le32 = 60, mtime_nsec: Le32 = 64,
        generation: Le32 = 68, current_depth: Le32 = 72, xattr_nid: Le32 = 76, flags: Le32 = 80,
        pino: Le32 = 84, namelen: Le32 = 88, name: [u8; 255] = 92, dir_level: u8 = 347,
        ext_fofs: Le32 = 348, ext_blk_addr: Le32 = 352, ext_len: Le32 = 356,
    }
}

on_disk! {
    /// The extra fields of `struct f2fs_inode`; an inode has the first `i_extra_isize` bytes of them.
    RawInodeExtra, 36, {
        extra_isize: Le16 = 0, inline_xattr_size: Le16 = 2, projid: Le32 = 4,
        inode_checksum: Le32 = 8, crtime: Le64 = 12, crtime_nsec: Le32 = 20,
        compr_blocks: Le64 = 24, compress_algorithm: u8 = 32, log_cluster_size: u8 = 33,
        compress_flag: Le16 = 34,
    }
}

on_disk! {
    /// `struct node_footer`: the last bytes of a node block.
    RawFooter, 24, {
        nid: Le32 = 0, ino: Le32 = 4, flag: Le32 = 8, cp_ver: Le64 = 12, next_blkaddr: Le32 = 20,
    }
}

on_disk! {
    /// `struct f2fs_nat_entry`.
    RawNatEntry, 9, { version: u8 = 0, ino: Le32 = 1, block_addr: Le32 = 5 }
}

on_disk! {
    /// `struct nat_journal_entry`.
    RawNatJournalEntry, 13, { nid: Le32 = 0, ne: RawNatEntry = 4 }
}

on_disk! {
    /// `struct f2fs_sit_entry`.
    RawSitEntry, 74, { vblocks: Le16 = 0, valid_map: [u8; 64] = 2, mtime: Le64 = 66 }
}

on_disk! {
    /// `struct sit_journal_entry`.
    RawSitJournalEntry, 78, { segno: Le32 = 0, se: RawSitEntry = 4 }
}

on_disk! {
    /// `struct f2fs_summary`.
    RawSummary, 7, { nid: Le32 = 0, version: u8 = 4, ofs_in_node: Le16 = 5 }
}

on_disk! {
    /// `struct f2fs_summary_block`.
    RawSummaryBlock, 4096, {
        entries: [RawSummary; 512] = 0, journal: [u8; 507] = 3584, entry_type: u8 = 4091,
        check_sum: Le32 = 4092,
    }
}

on_disk! {
    /// `struct f2fs_dir_entry`.
    RawDirEntry, 11, { hash_code: Le32 = 0, ino: Le32 = 4, name_len: Le16 = 8, file_type: u8 = 10 }
}

on_disk! {
    /// `struct f2fs_xattr_header`.
    RawXattrHeader, 24, { magic: Le32 = 0, refcount: Le32 = 4, reserved: [Le32; 4] = 8 }
}

on_disk! {
    /// `struct f2fs_xattr_entry` up to its name.
    RawXattrEntry, 4, { name_index: u8 = 0, name_len: u8 = 1, value_size: Le16 = 2 }
}

const _: () = assert!(
    size_of::<RawOrphanBlock>() == BLOCK_SIZE && size_of::<RawSummaryBlock>() == BLOCK_SIZE
);
