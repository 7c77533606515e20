//! The journal's superblock while the journal is open: the only writer of block 0.

use steadfs_base::endian::Be32;
use steadfs_base::{BlockSize, DevBlock, IoTag, Tid};
use steadfs_block::{Bio, Buf, IoError, Queue};
use zerocopy::IntoBytes;

use crate::disk::RawSuperblock;

/// Block 0 as it is on the device.
pub(crate) struct Block0 {
    pub raw: RawSuperblock,
    data: Buf,
    at: DevBlock,
    block_size: BlockSize,
}

/// What must be durable before, and when the write is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// The write is durable when it completes.
    Durable,
    /// … and everything completed before it is durable first.
    AfterAll,
    /// The device has no cache.
    Plain,
}

impl Block0 {
    pub(crate) fn new(raw: RawSuperblock, data: Buf, at: DevBlock, block_size: BlockSize) -> Self {
        Self {
            raw,
            data,
            at,
            block_size,
        }
    }

    /// Says where the oldest transaction starts and which it is; `start` 0: the log is empty and
    /// `tid` comes next.
    pub(crate) fn set_tail(&mut self, start: u32, tid: Tid) {
        self.raw.start = Be32::new(start);
        self.raw.sequence = Be32::new(tid.0);
    }

    /// Notes an abort (`errno` positive; 0 takes the note away).
    pub(crate) fn set_errno(&mut self, errno: u32) {
        self.raw.errno = Be32::new(errno.wrapping_neg());
    }

    /// Writes and waits.
    pub(crate) fn write(&mut self, queue: &Queue, order: Order, tag: IoTag) -> Result<(), IoError> {
        self.raw.seal();
        self.data.make_mut()[..size_of::<RawSuperblock>()].copy_from_slice(self.raw.as_bytes());
        let bio = Bio::write(self.block_size.offset_of(self.at), vec![self.data.clone()]);
        let bio = match order {
            Order::Durable => bio.with_fua(),
            Order::AfterAll => bio.preflush_and_fua(),
            Order::Plain => bio,
        };
        queue.submit(bio, tag).wait()
    }
}
