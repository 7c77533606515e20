//! Changes that were made on a copy of the volume become one transaction of the volume's journal.
//!
//! **Problem.** Changes of many calls are to be on the device all together or not at all, also after a crash at any time. The
//! running journal commits when it must, and file data is overwritten in place.
//!
//! **Rule.** The calls are made on a device over the base that keeps all writes (`edited`), and end there with a clean
//! unmount. Then its blocks are compared with the base's. Blocks that are free in the base are written in place first, as
//! no file of the base has them. All others that differ, metadata and data alike, are one transaction in the base's own
//! journal, which is empty ([`OneTransaction`]). Its commit record makes the changes durable; any jbd2 replays it. What
//! follows is that replay, and the superblock without its mark for recovery.
//!
//! The superblock is in the transaction, too, with the mark for recovery: a replay that a crash interrupts is repeated.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use steadfs_base::{DevBlock, IoTag};
use steadfs_block::{Bio, Buf, Device, Queue, QueueOptions};
use steadfs_cache::CacheSizes;
use steadfs_jbd2::{JournalMap, OneTransaction};
use steadfs_vfs::{FsError, Result};

use crate::disk::Geometry;
use crate::disk::Superblock;
use crate::disk::features::Incompat;
use crate::disk::superblock::{JournalPlace, SUPERBLOCK_SIZE};
use crate::external_journal::JournalArea;
use crate::fs::Ext4;
use crate::io_error;
use crate::options::MountOptions;
use crate::replay::recover_to_device;
use crate::report::MountReport;
use crate::source::journal_map;
use crate::superblock::read_superblock;
use crate::txn::journal_error;

/// Memory for looking up which blocks are free, in bytes.
const CACHE_BYTES: u64 = 16 << 20;
/// Most bytes that are compared or copied at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Whether [`apply`] is possible on a volume as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appliable {
    /// Yes.
    Now,
    /// After its log has been replayed, which a mount for writing does.
    AfterRecovery,
}

/// Whether changes can be applied to the volume on `base` in one transaction. `external`: where its external journal is on
/// `base`, in bytes.
///
/// # Errors
/// It has no journal of its own, or its superblock cannot be used.
pub fn appliable(base: &Arc<dyn Device>, external: Option<JournalArea>) -> Result<Appliable> {
    let queue = Queue::new(Arc::clone(base), QueueOptions::default());
    let sb = read_superblock(&queue)?;
    let refuse = |why: &str| Err(FsError::BadOption(why.to_owned()));
    match sb.journal() {
        JournalPlace::Inode(_) => {}
        JournalPlace::None => return refuse("the volume has no journal"),
        JournalPlace::External(_) if external.is_some() => {}
        JournalPlace::External(_) => {
            return refuse(
                "the volume's journal is on another device, which -o journal_path= names",
            );
        }
    }
    Ok(match needs_recovery(&sb) {
        true => Appliable::AfterRecovery,
        false => Appliable::Now,
    })
}

fn needs_recovery(sb: &Superblock) -> bool {
    sb.features().incompat.contains(Incompat::NEEDS_RECOVERY)
}

/// Makes the volume on `base` what it is on `edited`, which differs from it in the byte ranges `changed` and was closed
/// clean. After a crash at any time the volume has all of the changes or none. The caller has checked [`appliable`], and
/// nothing else has written to `base` since.
///
/// # Errors
/// Before anything is written: one transaction has no room for the changes, or something cannot be read. Later: the device
/// has failed, and the message says what is known of the changes.
pub fn apply(
    base: &Arc<dyn Device>,
    edited: &Arc<dyn Device>,
    changed: &[Range<u64>],
    external: Option<JournalArea>,
) -> Result<()> {
    let queue = Arc::new(Queue::new(Arc::clone(base), QueueOptions::default()));
    let sb = read_superblock(&queue)?;
    if needs_recovery(&sb) {
        return Err(FsError::Busy);
    }
    let job = Job {
        map: journal_map(&queue, &sb, external)?,
        external,
        queue,
        edited: Queue::new(Arc::clone(edited), QueueOptions::default()),
        geo: sb.geometry().clone(),
        protection: sb.mmp_block(),
        tag: IoTag::default(),
    };
    let mut plan = job.compare(base, changed)?;
    let (place, last) = job.last_superblock(&mut plan)?;
    let prepared = OneTransaction::prepare(
        &job.queue,
        job.geo.block_size,
        &job.map,
        &plan.logged,
        job.tag,
    );
    let transaction = prepared.map_err(journal_error)?;

    job.write_new(&plan.new)?;
    let marked = job.with_mark(&job.block(&job.queue, place)?)?;
    job.write_durably(place, marked)?;
    transaction.commit(job.tag).map_err(|error| {
        let why = format!("{error}; whether the changes are there, the next mount shows");
        FsError::Io(why)
    })?;
    let mut report = MountReport::default();
    let replayed = recover_to_device(&job.queue, (&sb, external), None, || (), &mut report);
    let finished = replayed.and_then(|()| job.write_durably(place, last));
    finished.map_err(|error| {
        let why = format!("{error}; all changes are in the journal, which the next mount replays");
        FsError::Io(why)
    })
}

/// What is to be written.
#[derive(Default)]
struct Plan {
    /// Runs of blocks that are free in the base.
    new: Vec<Range<u64>>,
    /// The others that differ, with their new content.
    logged: BTreeMap<DevBlock, Buf>,
}

impl Plan {
    fn add_new(&mut self, block: u64) {
        match self.new.last_mut() {
            Some(last) if last.end == block => last.end += 1,
            _ => self.new.push(block..block + 1),
        }
    }
}

struct Job {
    queue: Arc<Queue>,
    edited: Queue,
    geo: Geometry,
    map: JournalMap,
    external: Option<JournalArea>,
    /// The block of multiple-mount protection.
    protection: Option<DevBlock>,
    tag: IoTag,
}

impl Job {
    /// Finds out which blocks are to be written, and how.
    fn compare(&self, base: &Arc<dyn Device>, changed: &[Range<u64>]) -> Result<Plan> {
        let mut options = MountOptions::default();
        options.common.read_only = true;
        options.external_journal = self.external;
        let sizes = CacheSizes::of(CACHE_BYTES);
        let (fs, _) = Ext4::open(Arc::clone(base), options, sizes)?;
        let size = self.geo.block_size;
        let mut plan = Plan::default();
        let mut next = 0;
        for range in changed {
            let end = range.end.div_ceil(size.bytes_u64());
            let first = (range.start / size.bytes_u64()).max(next);
            next = next.max(end);
            let mut used: Vec<Range<u64>> = Vec::new();
            for block in (first..end).map(DevBlock) {
                // The caller holds the lock of this node on the base; `edited` has a copy of its block.
                if self.map.contains(block) || Some(block) == self.protection {
                    continue;
                }
                match (fs.alloc.is_free(&fs, block), used.last_mut()) {
                    (true, _) => plan.add_new(block.0),
                    (false, Some(last)) if last.end == block.0 => last.end += 1,
                    (false, _) => used.push(block.0..block.0 + 1),
                }
            }
            for run in used {
                self.log_differing(run, &mut plan.logged)?;
            }
        }
        Ok(plan)
    }

    fn log_differing(&self, run: Range<u64>, logged: &mut BTreeMap<DevBlock, Buf>) -> Result<()> {
        let bytes = self.geo.block_size.bytes();
        for piece in self.pieces(run) {
            let (at, len) = self.bytes_of(&piece);
            let before = self.queue.read(at, len, self.tag).map_err(io_error)?;
            let after = self.edited.read(at, len, self.tag).map_err(io_error)?;
            let pairs = before.chunks(bytes).zip(after.chunks(bytes));
            for (block, (before, after)) in piece.zip(pairs) {
                if before != after {
                    logged.insert(DevBlock(block), Buf::copy_of(after));
                }
            }
        }
        Ok(())
    }

    /// Where the superblock is, and its block as it is to be in the end. The plan gets one with the mark for recovery.
    fn last_superblock(&self, plan: &mut Plan) -> Result<(DevBlock, Buf)> {
        let (place, _) = self.geo.superblock_place();
        let last = self.block(&self.edited, place)?;
        plan.logged.insert(place, self.with_mark(&last)?);
        Ok((place, last))
    }

    fn block(&self, queue: &Queue, block: DevBlock) -> Result<Buf> {
        let size = self.geo.block_size;
        let read = queue.read(size.offset_of(block), size.bytes(), self.tag);
        read.map_err(io_error)
    }

    /// The block of the superblock with the mark that the log must be replayed.
    fn with_mark(&self, block: &Buf) -> Result<Buf> {
        let (_, at) = self.geo.superblock_place();
        let mut marked = block.clone();
        let bytes = &mut marked.make_mut()[at..at + SUPERBLOCK_SIZE];
        let mut sb = Superblock::parse(bytes)?;
        sb.set_needs_recovery(true);
        sb.seal_into(bytes);
        Ok(marked)
    }

    /// Writes blocks that are free in the base. They are not durable yet.
    fn write_new(&self, runs: &[Range<u64>]) -> Result<()> {
        for piece in runs.iter().flat_map(|run| self.pieces(run.clone())) {
            let (at, len) = self.bytes_of(&piece);
            let content = self.edited.read(at, len, self.tag).map_err(io_error)?;
            let written = self.queue.write(at, vec![content], self.tag);
            written.map_err(io_error)?;
        }
        Ok(())
    }

    /// Writes a block after everything before it is durable, and makes it durable.
    fn write_durably(&self, block: DevBlock, content: Buf) -> Result<()> {
        let at = self.geo.block_size.offset_of(block);
        let bio = Bio::write(at, vec![content]).preflush_and_fua();
        self.queue.submit(bio, self.tag).wait().map_err(io_error)
    }

    fn pieces(&self, run: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        let most = PIECE_BYTES.min(self.queue.geometry().max_transfer.into());
        let most = (most / self.geo.block_size.bytes_u64()).max(1);
        let starts = run.clone().step_by(usize::try_from(most).unwrap_or(1));
        starts.map(move |start| start..(start + most).min(run.end))
    }

    fn bytes_of(&self, piece: &Range<u64>) -> (u64, usize) {
        let size = self.geo.block_size;
        let len = (piece.end - piece.start) * size.bytes_u64();
        (size.offset_of(DevBlock(piece.start)), len as usize)
    }
}
