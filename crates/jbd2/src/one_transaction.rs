//! Blocks that are logged as one transaction of a log that is not in use.
//!
//! **Problem.** Changes of a whole program run are to be durable together, and a running journal divides them into
//! transactions of at most a quarter of the log.
//!
//! **Rule.** The log is empty and no [`Journal`](crate::Journal) is open, so a transaction may fill all of it. The superblock
//! gets the transaction's start first: without its commit record it is an incomplete transaction, of which recovery replays
//! nothing. Then the blocks are written, and when they are durable the commit record. A later [`recover`](crate::recover())
//! replays it.

use std::collections::BTreeMap;

use steadfs_base::{BlockSize, DevBlock, IoTag, Tid};
use steadfs_block::{Bio, Buf, Queue};
use steadfs_rt::wall_clock;

use crate::io::{submit_writes, wait_all};
use crate::log_writer::{encode, encoded_len};
use crate::recover::{check_home_locations, load_superblock};
use crate::sb::{Block0, SuperblockChange, WriteOrder};
use crate::space::LogRing;
use crate::{JournalError, JournalMap};
use steadfs_jbd2_format::{Format, build_commit};

/// A transaction that fits the log, and of which nothing is written yet.
pub struct OneTransaction<'c> {
    queue: &'c Queue,
    map: &'c JournalMap,
    changed: &'c BTreeMap<DevBlock, Buf>,
    format: Format,
    block0: Block0,
    ring: LogRing,
    tid: Tid,
}

impl<'c> OneTransaction<'c> {
    /// Prepares a transaction with the content of these blocks. Nothing is written.
    ///
    /// # Errors
    /// [`JournalError::TooLarge`], [`JournalError::NeedsRecovery`] if the log is not empty, [`JournalError::Corrupt`],
    /// [`JournalError::Unsupported`], or the device fails.
    pub fn prepare(
        queue: &'c Queue,
        block_size: BlockSize,
        map: &'c JournalMap,
        changed: &'c BTreeMap<DevBlock, Buf>,
        tag: IoTag,
    ) -> Result<Self, JournalError> {
        let (data, superblock) = load_superblock(queue, block_size, map, tag)?;
        if superblock.raw.start.get() != 0 {
            return Err(JournalError::NeedsRecovery);
        }
        let tid = superblock.sequence();
        let ring = LogRing::new(superblock.first, superblock.last);
        let format = superblock.format;
        check_home_locations(queue, block_size, map, changed.keys())?;
        if !format.wide && changed.keys().any(|block| block.0 > u32::MAX.into()) {
            let why = "block numbers of more than 32 bits in a journal that was never mounted";
            return Err(JournalError::Unsupported(why.to_owned()));
        }
        let len = |blocks| encoded_len(&format, blocks, 0) as u64 + 1;
        let capacity = u64::from(ring.capacity());
        if len(changed.len()) > capacity {
            let room = (0..=ring.capacity() as usize).rev();
            let room = room.into_iter().find(|blocks| len(*blocks) <= capacity);
            return Err(JournalError::TooLarge {
                blocks: changed.len() as u64,
                room: room.unwrap_or(0) as u64,
            });
        }
        let (at, _) = map.locate(0);
        Ok(Self {
            queue,
            map,
            changed,
            block0: Block0::new(superblock.raw, data, at, block_size),
            format,
            ring,
            tid,
        })
    }

    /// Writes the transaction: it is durable on success. On a failure, or after a crash, it is or is not.
    ///
    /// # Errors
    /// The device fails.
    pub fn commit(mut self, tag: IoTag) -> Result<(), JournalError> {
        let head = self.ring.head();
        let tail = SuperblockChange::Tail {
            start: head,
            tid: self.tid,
        };
        let order = WriteOrder::AfterFlush;
        self.block0.write(tail, self.queue, order, tag)?;
        let place = (&self.ring, head);
        let (format, map) = (&self.format, self.map);
        write_transaction(self.queue, format, map, place, self.tid, self.changed, tag)
    }
}

/// Writes the blocks of a transaction into the log, from block `head` of the ring on, and makes it durable.
pub(crate) fn write_transaction(
    queue: &Queue,
    format: &Format,
    map: &JournalMap,
    (ring, head): (&LogRing, u32),
    tid: Tid,
    changed: &BTreeMap<DevBlock, Buf>,
    tag: IoTag,
) -> Result<(), JournalError> {
    let size = format.block_size;
    let blocks: Vec<(DevBlock, Buf)> = changed.iter().map(|(&at, buf)| (at, buf.clone())).collect();
    let encoded = encode(format, tid, &blocks, &[]);
    let place = |n: usize| map.locate(ring.after(head, n as u32)).0;
    let record_at = place(encoded.blocks.len());
    let places = (0..encoded.blocks.len()).map(place);
    wait_all(&submit_writes(queue, size, places.zip(encoded.blocks), tag))?;
    let mut record = Buf::zeroed(size.bytes());
    build_commit(format, tid, wall_clock(), encoded.sum, record.make_mut());
    let bio = Bio::write(size.offset_of(record_at), vec![record]).preflush_and_fua();
    Ok(queue.submit(bio, tag).wait()?)
}
