//! Reads the superblock: the first of its two copies that verifies.

use steadfs_base::{Corruption, IoTag};
use steadfs_block::Queue;
use steadfs_vfs::Result;

use crate::disk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use crate::disk::{BLOCK_SIZE, DiskError, Superblock};
use crate::io_error;

/// Reads and verifies the superblock.
///
/// # Errors
/// Neither copy verifies; the more specific of the two errors is returned (a wrong magic number only if both have one).
pub fn read_superblock(queue: &Queue) -> Result<Superblock> {
    let size = queue.geometry().size;
    if size < 2 * BLOCK_SIZE as u64 {
        return Err(Corruption::new(format!("{size} bytes are too few for an f2fs volume")).into());
    }
    let first = match read_copy(queue, 0)? {
        Ok(superblock) => return Ok(superblock),
        Err(error) => error,
    };
    match read_copy(queue, 1)? {
        Ok(superblock) => {
            tracing::warn!(%first, "using the second superblock");
            Ok(superblock)
        }
        Err(second) if is_magic(&first) || is_unsupported(&second) => Err(second.into()),
        Err(_) => Err(first.into()),
    }
}

fn is_magic(error: &DiskError) -> bool {
    matches!(error.kind, crate::disk::CorruptKind::Magic { .. })
}

fn is_unsupported(error: &DiskError) -> bool {
    matches!(error.kind, crate::disk::CorruptKind::Unsupported { .. })
}

/// Reads and verifies one copy.
fn read_copy(queue: &Queue, copy: u64) -> Result<Result<Superblock, DiskError>> {
    let block = queue
        .read(copy * BLOCK_SIZE as u64, BLOCK_SIZE, IoTag::default())
        .map_err(io_error)?;
    let bytes = &block[SUPERBLOCK_OFFSET..SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE];
    Ok(Superblock::parse(bytes))
}
