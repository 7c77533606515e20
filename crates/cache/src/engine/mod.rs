//! The write-back engine: from dirty blocks to blocks that are on the device and mapped.
//!
//! **Problem.** Two file systems write dirty data back in the same way: delayed allocation, many blocks a request, small
//! files together, one device write per block. Written twice, the copies drift apart, and each drift is a place where data
//! can be lost.
//!
//! **Steps** of a *write-back run* (some blocks of one file):
//!
//! | step | does | by |
//! |---|---|---|
//! | collect | takes dirty blocks out of the mapping, copy-on-write: a later write makes its own copy | the mapping |
//! | allocate | finds the block on the device for each, or takes a new one in memory | the file system |
//! | submit | starts the writes | the engine |
//! | wait | waits for the device | the engine |
//! | map | makes the blocks part of the file, and the file as large as they reach | the file system |
//! | complete | blocks are clean, or dirty again with their reservation | the engine |
//!
//! **Rules.**
//!
//! 1. A block is mapped only after the device has completed its write. So no committed metadata refers to a block whose
//!    data is not written, and a crash in between leaks nothing. (A caller that maps earlier commits nothing until then:
//!    [`beside`].)
//! 2. A file never grows, on disk, over a block that is not written: behind its old end there may be anything.
//! 3. A pass over a file goes forward only and ends at what was dirty when it began ([`DirtyEpoch`]).
//! 4. Each collected block ends in exactly one completion, and its reservation is used, released or kept.
//! 5. Two writes in flight never overlap on the device, also on a volume whose map refers to one block twice.
//!
//! **Overlap.** While the device writes one batch of a file, the next one is collected, allocated and submitted, unless it
//! overwrites blocks that are in flight ([`batches`]), so the device has work all the time.
//!
//! **Boost.** A caller that waits for a file's flush lock boosts what the holder has queued, and a holder that writes for
//! no caller gives the lock up ([`flush_waiters`]).

mod batches;
mod beside;
mod cluster;
mod complete;
mod encoded;
mod flush_waiters;
mod run;
mod small_files;

use std::ops::Range;
use std::sync::Arc;

use steadfs_base::{DevBlock, FileBlock, IoTag, Urgency};
use steadfs_block::{Buf, IoError, Queue};
use steadfs_rt::inherit;
use steadfs_rt::waits::{self, WaitStep};
use steadfs_vfs::{FsError, Result};

pub use beside::FileInFlight;
pub use flush_waiters::FlushLock;
pub use run::{MapAction, MapRequest, MappedPiece, Piece, WritebackRun};

use crate::{
    ClusterMark, CollectedBlock, DirtyEpoch, DirtyFile, FsyncClustering, Mapping, Writeback,
    WritebackReason,
};

/// A regular file whose dirty data the engine writes.
pub trait WritebackFile: Send + Sync {
    /// Its number, by which flush locks of several files are ordered.
    fn number(&self) -> DirtyFile;
    /// Its blocks in memory.
    fn pages(&self) -> &Mapping;
    /// Its flush lock.
    fn flush(&self) -> &FlushLock;
    /// Its size in bytes, as the caller of stat(2) sees it.
    fn size(&self) -> u64;
    /// Its size in bytes on the device, once the metadata is written.
    fn stored_size(&self) -> u64;
    /// Whether an fsync of another file wrote its data.
    fn cluster_mark(&self) -> &ClusterMark;
}

/// Limits of a file system's write-back.
#[derive(Clone, Copy, Debug)]
pub struct WritebackLimits {
    /// Dirty bytes up to which a file is written together with others.
    pub small_file_bytes: u64,
    /// Bytes that are written together at most.
    pub small_batch_bytes: u64,
}

/// Why and for which caller data is written.
#[derive(Clone, Copy, Debug)]
pub struct Intent<H> {
    /// Why.
    pub reason: WritebackReason,
    /// What the file system wants to know besides when it allocates.
    pub hint: H,
    /// Tag of the requests; the urgency follows from `reason`.
    pub tag: IoTag,
}

impl<H> Intent<H> {
    /// With the urgency that the reason has.
    fn with_urgency(self) -> Self {
        let urgency = match self.reason {
            WritebackReason::Sync => Urgency::Waited,
            WritebackReason::Background | WritebackReason::Throttle | WritebackReason::Early => {
                Urgency::Background
            }
        };
        Self {
            tag: self.tag.with_urgency(urgency),
            ..self
        }
    }
}

/// How many reservations a completion settles.
#[derive(Clone, Copy, Debug)]
pub struct Settlement {
    /// Held by the run's blocks.
    pub held: u64,
    /// Used by mapping them.
    pub used: u64,
    /// Held by blocks of the cache again.
    pub kept: u64,
}

/// What a file system does of a write-back run.
pub trait WritebackFs {
    /// Its files.
    type File: WritebackFile;
    /// What allocation depends on besides the reason.
    type Hint: Copy;
    /// Where a file's data goes: decided once for the blocks that are collected together.
    type Placement;

    /// The queue of its device.
    fn queue(&self) -> &Queue;
    /// Dirty totals.
    fn writeback(&self) -> &Writeback;
    /// Learned fsync clustering.
    fn clustering(&self) -> &FsyncClustering;
    /// Limits.
    fn limits(&self) -> WritebackLimits;
    /// A regular file in memory.
    fn file(&self, number: u64) -> Option<Arc<Self::File>>;
    /// The hint for a reason.
    fn hint(&self, reason: WritebackReason) -> Self::Hint;
    /// # Errors
    /// Nothing may reach the device any more, after an abort or a shutdown.
    fn check_writable(&self) -> Result<()>;

    /// Called without locks before a turn of batches and before a group of small files: space is made here.
    ///
    /// # Errors
    /// There is none, or the device failed.
    fn before_turn(&self, _tag: IoTag) -> Result<()> {
        Ok(())
    }
    /// Blocks of a batch at most, and batches that one hold of the flush lock writes at most.
    fn turn(&self, reason: WritebackReason) -> (usize, usize);
    /// Whether an allocation that fails so is tried again after [`WritebackFs::make_space`], and is no error of the file.
    fn is_retried(&self, _error: &FsError) -> bool {
        false
    }
    /// Makes space for allocations that found none. Called without locks.
    ///
    /// # Errors
    /// None can be made; a device's failure.
    fn make_space(&self, _tag: IoTag) -> Result<()> {
        Err(FsError::NoSpace)
    }
    /// Whether a file may be written before the fsync that is expected.
    fn may_write_early(&self, _file: &Self::File) -> bool {
        true
    }
    /// Whether an fsync may write other files along.
    fn clusters(&self) -> bool {
        true
    }

    /// What is written to the device for a block of a file: its content, or this encrypted.
    fn stored_form(&self, _file: &Self::File, _block: FileBlock, content: &Buf) -> Buf {
        content.clone()
    }
    /// Of a file whose blocks are encoded on the device, several together: the end of those that are written together with
    /// this one. `None` for other files, whose blocks are written as they are.
    fn encoded_end(&self, _file: &Self::File, _block: u64) -> Option<u64> {
        None
    }
    /// Writes a batch of an encoded file: the file had this size when its blocks were collected. All steps of the run are
    /// its own, completion and settlement included. The caller holds the flush lock.
    ///
    /// # Errors
    /// The first of all; what was not written is dirty again.
    fn write_encoded(
        &self,
        _file: &Self::File,
        _collected: (Vec<CollectedBlock>, u64),
        _intent: &Intent<Self::Hint>,
    ) -> Result<()> {
        unreachable!("no file of this file system is encoded")
    }

    /// Decides where data of a file goes.
    fn placement(&self, file: &Self::File, intent: &Intent<Self::Hint>) -> Self::Placement;
    /// Finds or allocates device blocks for `run`, consecutive blocks of a file, and appends the pieces. `before` is the
    /// piece in front of the first one, of the batch in flight. Blocks that get none are left out.
    ///
    /// # Errors
    /// Why some block has no place.
    fn allocate(
        &self,
        file: &Self::File,
        run: &[CollectedBlock],
        before: Option<&Piece>,
        placement: &Self::Placement,
        tag: IoTag,
        pieces: &mut Vec<Piece>,
    ) -> Result<()>;
    /// The error of a file that maps `block` more than once.
    fn shared_block(&self, file: &Self::File, block: DevBlock) -> FsError;
    /// Maps the pieces `todo` of each request, in order, and sets their outcomes; of several files in one transaction
    /// where it can. After an error the later pieces of that file have it, too.
    fn map(&self, requests: &mut [MapRequest<'_, Self::File>]);
    /// Releases allocated blocks that were not mapped because of `why`.
    fn release_unmapped(&self, start: DevBlock, blocks: u64, why: &FsError);
    /// Settles reservations.
    fn settle(&self, file: &Self::File, settlement: Settlement);
    /// The device failed a write of the file's data.
    fn data_failed(&self, file: &Self::File, error: &IoError);
    /// Called before a run's blocks leave the cache: a task that does not find them there must see this record.
    fn before_complete(&self, run: &WritebackRun<'_, Self::File>, outcomes: &[MappedPiece]);
}

/// How often a pass makes space for one batch before it goes on without.
const SPACE_TRIES: u32 = 4;

/// The engine over a file system.
pub struct Engine<'e, S>(pub &'e S);

impl<S: WritebackFs> Engine<'_, S> {
    /// An intent without a special hint.
    pub fn intent(&self, reason: WritebackReason, tag: IoTag) -> Intent<S::Hint> {
        Intent {
            reason,
            hint: self.0.hint(reason),
            tag,
        }
    }

    /// Writes the data of a file that was dirty in `epoch` and waits. An error leaves what failed dirty. The caller holds
    /// no lock after the inode's, and none at all where the file system makes space.
    ///
    /// # Errors
    /// The first of all.
    pub fn write_out(
        &self,
        file: &S::File,
        epoch: DirtyEpoch,
        intent: Intent<S::Hint>,
    ) -> Result<()> {
        if file.pages().is_empty() {
            return Ok(());
        }
        let _step = match intent.reason {
            WritebackReason::Sync => Some(waits::during(WaitStep::Flush)),
            WritebackReason::Throttle => Some(waits::during(WaitStep::DirtyLimit)),
            WritebackReason::Background | WritebackReason::Early => None,
        };
        // After a power cut, real or requested, nothing reaches the device.
        self.0.check_writable()?;
        let intent = intent.with_urgency();
        if intent.reason != WritebackReason::Sync {
            // A throttled writer waits for the flusher's turns and must not make them urgent.
            let _task_tag = inherit::set_task_tag(intent.tag);
            let throttled = intent.reason == WritebackReason::Throttle;
            let enough = || throttled && !self.0.writeback().must_throttle(file.number());
            return self.write_in_turns(file, enough, epoch, &intent);
        }
        // The caller waits for what the flusher has in flight.
        let queue = self.0.queue();
        let _waiter = file.flush().waiters().enter(queue, intent.tag);
        file.pages().boost(0..u64::MAX, queue, intent.tag);
        self.write_in_turns(file, || false, epoch, &intent)
    }

    /// Writes a file's dirty data in a range and waits. The caller holds the file's flush lock, and the inode's lock,
    /// which keeps writers out; so no space is made.
    ///
    /// # Errors
    /// The first of all.
    pub fn write_out_locked(
        &self,
        file: &S::File,
        mut range: Range<u64>,
        intent: Intent<S::Hint>,
    ) -> Result<()> {
        let intent = intent.with_urgency();
        let (blocks, _) = self.0.turn(intent.reason);
        let turn = (blocks, usize::MAX);
        self.write_batches(file, &mut range, DirtyEpoch::ALL, turn, &intent)
            .result
    }
}

#[cfg(test)]
mod tests;
