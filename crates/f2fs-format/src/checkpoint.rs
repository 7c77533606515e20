//! Loads the checkpoint at mount: chooses the pack and reads its journals.

use std::collections::BTreeMap;

use steadfs_base::IoTag;
use steadfs_block::{Buf, Queue};
use steadfs_vfs::{FsError, Result};

use crate::disk::checkpoint::{CpFlags, is_after, verify_block};
use crate::disk::summary::{CompactSummaries, SummaryBlock};
use crate::disk::{
    BLOCK_SIZE, BlockAddr, Checkpoint, DiskError, Layout, LogType, NatEntry, Nid, SegNo, SitEntry,
    Structure, journal, orphan,
};
use crate::io_error;

/// The current checkpoint as found on the device.
pub struct Current {
    /// Fields of its first block and payload.
    pub checkpoint: Checkpoint,
    /// Its pack: 0 or 1.
    pub pack: u32,
    /// Entries that override NAT blocks.
    pub nat_journal: BTreeMap<Nid, NatEntry>,
    /// Entries that override SIT blocks.
    pub sit_journal: BTreeMap<SegNo, SitEntry>,
    /// Unlinked inodes that were open.
    pub orphans: Vec<Nid>,
    /// An error because of which nodes may not be found; the NAT journal is empty then.
    pub unreadable: Option<FsError>,
    /// An error in what only writing depends on: counts, cursegs, orphans, the SIT journal.
    pub unwritable: Option<FsError>,
}

impl Current {
    /// The same for a volume to be written, which requires all of it.
    ///
    /// # Errors
    /// The first error found.
    pub fn for_writing(self) -> Result<Self> {
        let wrong = self.unreadable.as_ref().or(self.unwritable.as_ref());
        wrong.cloned().map_or(Ok(self), Err)
    }
}

/// Reads consecutive blocks.
pub fn read_blocks(queue: &Queue, at: BlockAddr, count: u32) -> Result<Buf> {
    let offset = u64::from(at.0) * BLOCK_SIZE as u64;
    let len = count as usize * BLOCK_SIZE;
    queue.read(offset, len, IoTag::default()).map_err(io_error)
}

/// Reads both packs and takes the complete one with the higher version. If that one is complete but inconsistent, it is
/// corrupt: the other is older, and blocks it refers to may have been overwritten.
pub fn load(queue: &Queue, layout: &Layout) -> Result<Current> {
    let packs = [read_pack(queue, layout, 0)?, read_pack(queue, layout, 1)?];
    let (found, pack) = match packs {
        [Ok(first), Ok(second)] if is_after(second.version, first.version) => (second, 1),
        [Ok(first), _] => (first, 0),
        [Err(_), Ok(second)] => (second, 1),
        [Err(first), Err(second)] => {
            tracing::error!(%first, %second, "no checkpoint is valid");
            return Err(first.into());
        }
    };
    let checkpoint = found.checkpoint?;
    let start = layout.pack_start(pack);
    let valid = checkpoint.validate(layout);
    let wrong = valid.and_then(|()| checkpoint.validate_version()).err();
    let mut unwritable = wrong.map(|error| error.in_block(start).into());
    let mut unreadable = None;
    let nat_journal = nat_journal(queue, layout, &checkpoint, start).unwrap_or_else(|error| {
        unreadable = Some(error);
        BTreeMap::new()
    });
    let sit_journal = sit_journal(queue, layout, &checkpoint, start).unwrap_or_else(|error| {
        unwritable.get_or_insert(error);
        BTreeMap::new()
    });
    let orphans = read_orphans(queue, layout, &checkpoint, start).unwrap_or_else(|error| {
        unwritable.get_or_insert(error);
        Vec::new()
    });
    Ok(Current {
        nat_journal,
        sit_journal,
        checkpoint,
        pack,
        orphans,
        unreadable,
        unwritable,
    })
}

fn read_orphans(
    queue: &Queue,
    layout: &Layout,
    checkpoint: &Checkpoint,
    start: BlockAddr,
) -> Result<Vec<Nid>> {
    let mut orphans = Vec::new();
    for block in checkpoint.orphan_blocks(layout) {
        let at = start.plus(block);
        let bytes = read_blocks(queue, at, 1)?;
        orphans.extend(orphan::parse(layout, &bytes).map_err(|e| e.in_block(at))?);
    }
    orphan::check_count(layout, orphans.len()).map_err(|e| e.in_block(start))?;
    Ok(orphans)
}

/// A pack whose first and last block verify and agree.
struct Pack {
    version: u64,
    checkpoint: Result<Checkpoint, DiskError>,
}

/// One pack, if it was written completely.
fn read_pack(queue: &Queue, layout: &Layout, pack: u32) -> Result<Result<Pack, DiskError>> {
    let start = layout.pack_start(pack);
    let blocks = read_blocks(queue, start, 1 + layout.cp_payload)?;
    let head = match verify_block(&blocks[..BLOCK_SIZE]) {
        Ok(head) => head,
        Err(error) => return Ok(Err(error.in_block(start))),
    };
    let last = start.plus(head.pack_blocks - 1);
    let tail = verify_block(&read_blocks(queue, last, 1)?);
    Ok(match tail {
        Ok(tail) if tail.version == head.version => Ok(Pack {
            version: head.version,
            checkpoint: Checkpoint::parse_lenient(layout, &blocks).map_err(|e| e.in_block(start)),
        }),
        Ok(tail) => {
            let rule = "not that of the pack's first block";
            let what = Structure::Checkpoint;
            let error = DiskError::field(what, "checkpoint_ver", tail.version, rule);
            Err(error.in_block(last))
        }
        Err(error) => Err(error.in_block(last)),
    })
}

type JournalBytes = [u8; journal::SIZE];

/// The NAT journal of a pack.
fn nat_journal(
    queue: &Queue,
    layout: &Layout,
    checkpoint: &Checkpoint,
    start: BlockAddr,
) -> Result<BTreeMap<Nid, NatEntry>> {
    let bytes = match compacted(queue, checkpoint, start)? {
        Some(packed) => packed.nat_journal,
        None => journal_of(queue, checkpoint, start, LogType::HotData)?,
    };
    Ok(journal::parse_nat(layout, &bytes)?.into_iter().collect())
}

/// The SIT journal of a pack.
fn sit_journal(
    queue: &Queue,
    layout: &Layout,
    checkpoint: &Checkpoint,
    start: BlockAddr,
) -> Result<BTreeMap<SegNo, SitEntry>> {
    let bytes = match compacted(queue, checkpoint, start)? {
        Some(packed) => packed.sit_journal,
        None => journal_of(queue, checkpoint, start, LogType::ColdData)?,
    };
    Ok(journal::parse_sit(layout, &bytes)?.into_iter().collect())
}

/// The journals of a pack with compacted summaries; the summaries behind them are not parsed.
fn compacted(
    queue: &Queue,
    checkpoint: &Checkpoint,
    start: BlockAddr,
) -> Result<Option<CompactSummaries>> {
    if !checkpoint.flags.contains(CpFlags::COMPACT_SUMMARIES) {
        return Ok(None);
    }
    let block = read_blocks(queue, start.plus(checkpoint.start_sum), 1)?;
    Ok(Some(CompactSummaries::parse(&block, [0; 3])?))
}

/// The journal in the summary block of a log.
fn journal_of(
    queue: &Queue,
    checkpoint: &Checkpoint,
    start: BlockAddr,
    log: LogType,
) -> Result<JournalBytes> {
    let position = checkpoint.summary_in_pack(log).ok_or_else(|| {
        let (field, blocks) = ("cp_pack_total_block_count", checkpoint.pack_blocks);
        let rule = "no room for the summaries";
        DiskError::field(Structure::Checkpoint, field, blocks, rule)
    })?;
    let at = start.plus(position);
    let block = SummaryBlock::parse(&read_blocks(queue, at, 1)?).map_err(|e| e.in_block(at))?;
    Ok(block.journal)
}
