//! The journal's superblock while the journal is open: the only writer of block 0.

use steadfs_base::endian::Be32;
use steadfs_base::{BlockSize, DevBlock, IoTag, Tid};
use steadfs_block::{Bio, Buf, IoError, IoHandle, Queue};
use zerocopy::IntoBytes;

use steadfs_jbd2_format::RawSuperblock;

/// Block 0 with the content of the device.
pub(crate) struct Block0 {
    pub raw: RawSuperblock,
    data: Buf,
    at: DevBlock,
    block_size: BlockSize,
    /// The log ends before a fast-commit area.
    fast_commits: bool,
}

/// The fields that a write of the superblock changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SuperblockChange {
    /// Start and number of the oldest transaction; `start` 0: the log is empty and `tid` is the next
    /// transaction.
    Tail { start: u32, tid: Tid },
    /// The error of an abort (positive; 0: none).
    Errno(u32),
}

/// How the superblock's write is ordered against the writes before it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteOrder {
    /// The write is durable when it completes.
    Durable,
    /// The same, and everything that completed before is durable first (FLUSH).
    AfterFlush,
    /// No barrier: the device has no volatile cache.
    Plain,
}

impl Block0 {
    pub(crate) fn new(raw: RawSuperblock, data: Buf, at: DevBlock, block_size: BlockSize) -> Self {
        Self {
            fast_commits: raw.has_fast_commits(),
            raw,
            data,
            at,
            block_size,
        }
    }

    /// Writes the superblock with `change` and waits. After a failure the change is dropped: a later write
    /// must not contain it, because its own order may have required less.
    pub(crate) fn write(
        &mut self,
        change: SuperblockChange,
        queue: &Queue,
        order: WriteOrder,
        tag: IoTag,
    ) -> Result<(), IoError> {
        self.write_tracked(change, queue, order, tag, |_| {})
    }

    /// [`Block0::write`]; `started` gets each request before the wait for it.
    pub(crate) fn write_tracked(
        &mut self,
        change: SuperblockChange,
        queue: &Queue,
        order: WriteOrder,
        tag: IoTag,
        started: impl Fn(&IoHandle),
    ) -> Result<(), IoError> {
        if order == WriteOrder::AfterFlush {
            // A request of its own, not a preflush of the write: if another FLUSH fails meanwhile and loses
            // home writes, this one fails too, but a preflush inside the device would not.
            let flush = queue.flush(tag);
            started(&flush);
            flush.wait()?;
        }
        let mut raw = self.raw.clone();
        match change {
            SuperblockChange::Tail { start, tid } => {
                raw.start = Be32::new(start);
                raw.sequence = Be32::new(tid.0);
                // As in Linux: an empty log can be read by programs that do not know fast commits.
                raw.mark_fast_commits(self.fast_commits && start != 0);
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
