//! ext2, ext3 and ext4 on their real on-disk format.

pub mod disk;
