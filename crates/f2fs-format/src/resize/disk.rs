//! Reads and writes by block address, and the two copies of the superblock.

use steadfs_base::IoTag;
use steadfs_block::{Buf, Queue};

use super::{ResizeError, Result};
use crate::disk::superblock::{Resizing, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use crate::disk::{BLOCK_SIZE, BlockAddr, Superblock};
use crate::format::write::Writer;

/// The device. Writes are in flight until [`Disk::wait`] or [`Disk::flush`].
pub(super) struct Disk<'a> {
    queue: &'a Queue,
    writer: Writer<'a>,
}

impl<'a> Disk<'a> {
    pub(super) const fn new(queue: &'a Queue) -> Self {
        Self {
            queue,
            writer: Writer::new(queue),
        }
    }

    pub(super) const fn queue(&self) -> &'a Queue {
        self.queue
    }

    /// Blocks of the device.
    pub(super) fn blocks(&self) -> u64 {
        self.queue.geometry().size / BLOCK_SIZE as u64
    }

    pub(super) fn read(&self, at: BlockAddr, count: u32) -> Result<Buf> {
        let offset = u64::from(at.0) * BLOCK_SIZE as u64;
        let len = count as usize * BLOCK_SIZE;
        Ok(self.queue.read(offset, len, IoTag::default())?)
    }

    pub(super) fn put(&mut self, at: BlockAddr, block: &[u8]) -> Result<()> {
        Ok(self.writer.put(at.0, block)?)
    }

    pub(super) fn zero(&mut self, first: u32, count: u32) -> Result<()> {
        Ok(self.writer.zero(first..first + count)?)
    }

    /// Waits for the writes, so that their blocks can be read.
    pub(super) fn wait(&mut self) -> Result<()> {
        Ok(self.writer.wait()?)
    }

    /// Makes all writes durable.
    pub(super) fn flush(&mut self) -> Result<()> {
        Ok(self.writer.wait_and_flush()?)
    }

    /// The block of a copy of the superblock with other content in the superblock's place; the boot sector before it stays.
    pub(super) fn superblock_block(&self, copy: u32, superblock: &[u8]) -> Result<Vec<u8>> {
        let mut block = self.read(BlockAddr(copy), 1)?.to_vec();
        block[SUPERBLOCK_OFFSET..SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE].copy_from_slice(superblock);
        Ok(block)
    }

    /// Writes a copy of the superblock and makes it durable.
    pub(super) fn put_superblock(&mut self, copy: u32, superblock: &[u8]) -> Result<()> {
        let block = self.superblock_block(copy, superblock)?;
        self.put(BlockAddr(copy), &block)?;
        self.flush()
    }
}

/// What both copies of the superblock say.
pub(super) enum Copies {
    /// The volume has a size. A copy is not valid, or differs from the first valid one, if `differ`.
    Volume {
        superblock: Box<Superblock>,
        differ: bool,
    },
    /// A resize was interrupted after it had begun to mark the copies, and none is of a volume. With `second_is_torn` only
    /// the first copy has the mark.
    Interrupted {
        mark: Resizing,
        second_is_torn: bool,
    },
}

impl Copies {
    /// Reads them. The mark of a resize is in effect only if no copy is valid: with one, no area has been rewritten, or all of
    /// them. Without one, the other copy has the same mark, or a power cut has torn its write.
    pub(super) fn read(disk: &Disk<'_>) -> Result<Self> {
        if disk.blocks() < 2 {
            return Err(crate::read_superblock(disk.queue())
                .map_or_else(ResizeError::Volume, |_| {
                    ResizeError::refused("the device has less than two blocks")
                }));
        }
        let copies = [disk.read(BlockAddr(0), 1)?, disk.read(BlockAddr(1), 1)?];
        let bytes = copies
            .each_ref()
            .map(|block| &block[SUPERBLOCK_OFFSET..SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE]);
        let parsed = bytes.map(|bytes| Superblock::parse(bytes).ok());
        let differ = bytes[0] != bytes[1];
        if let Some(superblock) = parsed.into_iter().flatten().next() {
            let superblock = Box::new(superblock);
            return Ok(Self::Volume { superblock, differ });
        }
        let marks = bytes.map(Resizing::parse);
        match marks[0].or(marks[1]) {
            Some(mark) if marks.into_iter().flatten().all(|other| other == mark) => {
                Ok(Self::Interrupted {
                    mark,
                    second_is_torn: marks[1].is_none(),
                })
            }
            _ => Err(match crate::read_superblock(disk.queue()) {
                Err(error) => error.into(),
                Ok(_) => ResizeError::refused("the superblocks changed while they were read"),
            }),
        }
    }
}
