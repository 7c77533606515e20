//! Writes a volume from memory to the device.

use std::collections::VecDeque;
use std::ops::Range;

use steadfs_base::IoTag;
use steadfs_block::{Bio, Buf, IoHandle, Queue};

use super::FormatError;
use super::build::Build;
use super::plan::first_block;
use crate::disk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use crate::disk::{BLOCK_SIZE, LogType, SEGMENT_BLOCKS};

const BLOCK: u64 = BLOCK_SIZE as u64;
const WRITES_IN_FLIGHT_MAX: usize = 32;
/// Bytes per request of a discard or of zeroing.
const DISCARD_STEP_BYTES: u64 = 2 << 30;

/// Writes to the device with several requests in flight.
pub(crate) struct Writer<'a> {
    queue: &'a Queue,
    under_way: VecDeque<IoHandle>,
    written: u64,
}

impl<'a> Writer<'a> {
    pub(crate) const fn new(queue: &'a Queue) -> Self {
        Self {
            queue,
            under_way: VecDeque::new(),
            written: 0,
        }
    }

    fn start(&mut self, bio: Bio) -> Result<(), FormatError> {
        if self.under_way.len() >= WRITES_IN_FLIGHT_MAX
            && let Some(oldest) = self.under_way.pop_front()
        {
            oldest.wait()?;
        }
        let io = self.queue.submit(bio, IoTag::default());
        self.under_way.push_back(io);
        Ok(())
    }

    pub(crate) fn wait(&mut self) -> Result<(), FormatError> {
        for io in self.under_way.drain(..) {
            io.wait()?;
        }
        Ok(())
    }

    pub(crate) fn wait_and_flush(&mut self) -> Result<(), FormatError> {
        self.wait()?;
        Ok(self.queue.flush(IoTag::default()).wait()?)
    }

    /// Discards the first `len` bytes. Returns whether the device did so, and whether they now read as zeros.
    pub(super) fn discard(&mut self, len: u64) -> Result<(bool, bool), FormatError> {
        if self.queue.geometry().discard_granularity.is_none() {
            return Ok((false, false));
        }
        let mut ok = true;
        for at in (0..len).step_by(DISCARD_STEP_BYTES as usize) {
            let bio = Bio::discard(at, DISCARD_STEP_BYTES.min(len - at));
            // A device may fail a discard; its content is unchanged then.
            ok &= self.queue.submit(bio, IoTag::default()).wait().is_ok();
        }
        Ok((ok, ok && self.queue.geometry().discard_zeroes))
    }

    /// Makes sure that no superblock is found before the new one is written. The whole segment before the first
    /// area is erased, because other file systems have their superblocks there.
    pub(super) fn wipe_superblocks(&mut self, zeroed: bool) -> Result<(), FormatError> {
        let blocks = if zeroed { 2 } else { SEGMENT_BLOCKS };
        self.zero(0..blocks)?;
        self.wait_and_flush()
    }

    pub(crate) fn zero(&mut self, blocks: Range<u32>) -> Result<(), FormatError> {
        let end = u64::from(blocks.end) * BLOCK;
        let mut at = u64::from(blocks.start) * BLOCK;
        while at < end {
            let len = DISCARD_STEP_BYTES.min(end - at);
            self.start(Bio::write_zeroes(at, len))?;
            at += len;
        }
        Ok(())
    }

    /// Zeroes the current copies of both tables, and the block where recovery would look for a node chain after the
    /// checkpoint.
    pub(super) fn zero_tables(&mut self, build: &Build) -> Result<(), FormatError> {
        let layout = build.layout();
        self.zero(layout.sit_start..layout.sit_start + layout.sit_blocks)?;
        for segment in 0..layout.nat_blocks / SEGMENT_BLOCKS {
            let at = layout.nat_block(segment * SEGMENT_BLOCKS, false).0;
            self.zero(at..at + SEGMENT_BLOCKS)?;
        }
        let log = first_block(&build.plan, LogType::WarmNode).0;
        self.zero(log..log + 1)?;
        self.wait()
    }

    /// Writes the whole volume and makes it durable, superblocks last. Returns the bytes written.
    pub(super) fn write(mut self, build: &mut Build) -> Result<u64, FormatError> {
        for (at, block) in std::mem::take(&mut build.blocks) {
            self.put(at, &block)?;
        }
        self.wait_and_flush()?;
        let mut block = vec![0; BLOCK_SIZE];
        let superblock = build.plan.superblock.encode();
        block[SUPERBLOCK_OFFSET..SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE].copy_from_slice(&superblock);
        for copy in [1, 0] {
            self.put(copy, &block)?;
        }
        self.wait_and_flush()?;
        Ok(self.written)
    }

    pub(crate) fn put(&mut self, at: u32, block: &[u8]) -> Result<(), FormatError> {
        let mut buf = Buf::zeroed(BLOCK_SIZE);
        buf.make_mut().copy_from_slice(block);
        self.written += BLOCK;
        self.start(Bio::write(u64::from(at) * BLOCK, vec![buf]))
    }
}
