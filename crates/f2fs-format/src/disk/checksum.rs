//! The checksum of the format: CRC-32 with the reflected polynomial 0xEDB88320, with a seed and without the final
//! inversion (the kernel's `f2fs_crc32`, `f2fs_chksum`).

use steadfs_base::checksum::crc32_le;

use super::Nid;

/// `F2FS_SUPER_MAGIC`: the superblock's magic number, and the seed of most checksums.
pub const MAGIC: u32 = 0xF2F5_2010;

/// The checksum of a structure of the volume, with the magic number as seed.
pub fn of(bytes: &[u8]) -> u32 {
    crc32_le(MAGIC, bytes)
}

/// Continues a checksum.
pub fn over(sum: u32, bytes: &[u8]) -> u32 {
    crc32_le(sum, bytes)
}

/// The seed of inode checksums on a volume: the checksum of its UUID.
pub fn seed_of_volume(uuid: &[u8; 16]) -> u32 {
    crc32_le(!0, uuid)
}

/// The seed of an inode's checksum, from the volume's seed, the inode number and the generation.
pub fn seed_of_inode(volume: u32, ino: Nid, generation: u32) -> u32 {
    crc32_le(
        crc32_le(volume, &ino.0.to_le_bytes()),
        &generation.to_le_bytes(),
    )
}
