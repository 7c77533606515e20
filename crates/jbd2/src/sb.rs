//! The journal's superblock while the journal is open: the only writer of block 0.

use steadfs_base::endian::Be32;
use steadfs_base::{BlockSize, DevBlock, IoTag, Tid};
use steadfs_block::{Bio, Buf, IoError, IoHandle, Queue};
use zerocopy::IntoBytes;

use steadfs_jbd2_format::RawSuperblock;

/// Block 0 as it is on the device.
pub(crate) struct Block0 {
    pub raw: RawSuperblock,
    data: Buf,
    at: DevBlock,
    block_size: BlockSize,
}

/// What a write of the superblock says anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SuperblockChange {
    /// Where the oldest transaction starts and which it is; `start` 0: the log is empty and `tid`
    /// comes next.
    Tail { start: u32, tid: Tid },
    /// An abort (positive; 0: none).
    Errno(u32),
}

/// What must be durable before, and when the write is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteOrder {
    /// The write is durable when it completes.
    Durable,
    /// … and everything completed before it is durable first.
    AfterFlush,
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

    /// Writes the superblock with `change` and waits. If that fails it counts as not changed: what is
    /// written later must not say by the way what was to be said in another order.
    pub(crate) fn write(
        &mut self,
        change: SuperblockChange,
        queue: &Queue,
        order: WriteOrder,
        tag: IoTag,
    ) -> Result<(), IoError> {
        self.write_tracked(change, queue, order, tag, |_| {})
    }

    /// The same; `started` learns of each request before it is waited for.
    pub(crate) fn write_tracked(
        &mut self,
        change: SuperblockChange,
        queue: &Queue,
        order: WriteOrder,
        tag: IoTag,
        started: impl Fn(&IoHandle),
    ) -> Result<(), IoError> {
        if order == WriteOrder::AfterFlush {
            // By itself: a FLUSH before the write in the device would not know of another one that
            // fails meanwhile, and may take what was written home with it.
            let flush = queue.flush(tag);
            started(&flush);
            flush.wait()?;
        }
        let mut raw = self.raw.clone();
        match change {
            SuperblockChange::Tail { start, tid } => {
                raw.start = Be32::new(start);
                raw.sequence = Be32::new(tid.0);
            }
            SuperblockChange::Errno(errno) => raw.errno = Be32::new(errno.wrapping_neg()),
        }
        raw.seal();
        let mut data = self.data.clone();
        data.make_mut()[..size_of::<RawSuperblock>()].copy_from_slice(raw.as_bytes());
        let bio = Bio::write(self.block_size.offset_of(self.at), vec![data.clone()]);
        let bio = match order {
            WriteOrder::Durable | WriteOrder::AfterFlush => bio.with_fua(),
            WriteOrder::Plain => bio,
        };
        let io = queue.submit(bio, tag);
        started(&io);
        io.wait()?;
        self.raw = raw;
        self.data = data;
        Ok(())
    }
}
