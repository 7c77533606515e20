//! The format's one checksum: CRC-32 with the reflected polynomial 0xEDB88320, started at a seed and
//! stored without inversion (the kernel's `f2fs_crc32`, `f2fs_chksum`).

use steadfs_base::checksum::crc32_le;

use super::Nid;

/// `F2FS_SUPER_MAGIC`: what a superblock begins with, and most checksums start at.
pub const MAGIC: u32 = 0xF2F5_2010;

/// Of a structure of the volume itself: starts at the magic number.
pub fn of(bytes: &[u8]) -> u32 {
    crc32_le(MAGIC, bytes)
}

/// Continued from `sum`.
pub fn over(sum: u32, bytes: &[u8]) -> u32 {
    crc32_le(sum, bytes)
}

/// Where the checksums of inodes start: all ones over the volume's UUID.
pub fn seed_of_volume(uuid: &[u8; 16]) -> u32 {
    crc32_le(!0, uuid)
}

/// From the volume's seed to an inode's: its number and generation.
pub fn seed_of_inode(volume: u32, ino: Nid, generation: u32) -> u32 {
    crc32_le(
        crc32_le(volume, &ino.0.to_le_bytes()),
        &generation.to_le_bytes(),
    )
}
