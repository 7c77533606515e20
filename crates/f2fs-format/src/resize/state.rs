//! The state of the volume while its blocks move: the old segment table, the new one, and what changes in the NAT.
//!
//! Segments have the numbers of the old volume here, also those that only the new one has; [`State::number`] is the new
//! number. **Rule.** A block that the old volume uses is never written: `old` decides, `new` is what is built.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use steadfs_block::Buf;

use super::disk::Disk;
use super::geometry::Target;
use super::{ResizeError, Result};
use crate::checkpoint::{Current, load};
use crate::disk::checkpoint::{ALLOC_LFS, CpFlags, CursegState};
use crate::disk::summary::{CompactSummaries, Summary, SummaryBlock, SummaryKind};
use crate::disk::{
    BLOCK_SIZE, BlockAddr, DiskError, Layout, LogType, NatEntry, Nid, SEGMENT_BLOCKS, SegNo,
    SitEntry, Structure, Superblock, nat, sit,
};

/// NAT blocks kept in memory.
const NAT_BLOCKS_MAX: usize = 1024;

pub(super) struct State<'a> {
    pub disk: Disk<'a>,
    pub layout: Layout,
    pub current: Current,
    pub old: Vec<SitEntry>,
    pub new: Vec<SitEntry>,
    /// Blocks of the larger of both volumes: what lies behind them is not theirs.
    blocks: u64,
    /// The segments that the new volume has.
    pub keep: Range<u32>,
    /// Summaries of the old cursegs.
    open: [SummaryBlock; 6],
    /// Summaries of the segments that get blocks.
    pub summaries: BTreeMap<u32, SummaryBlock>,
    /// Free segments that are used up from now on, whole sections of them.
    taken: BTreeSet<u32>,
    /// The next block of each log that was begun.
    next: [Option<(u32, u32)>; 6],
    /// Sections from here on can be free.
    from: u32,
    free_sections: u32,
    /// Free sections that are left to GC, as long as there are holes in other segments.
    spare_sections: u32,
    /// Segments from here on can have holes, by log.
    holes: [u32; 6],
    /// Changed NAT entries.
    pub nat: BTreeMap<Nid, NatEntry>,
    nat_blocks: BTreeMap<u32, Buf>,
    pub moved: u64,
}

impl<'a> State<'a> {
    pub(super) fn load(disk: Disk<'a>, superblock: &Superblock, target: &Target) -> Result<Self> {
        let layout = superblock.layout().clone();
        let current = load(disk.queue(), &layout)?.for_writing()?;
        let old = read_sit(&disk, &layout, &current)?;
        let new_layout = target.superblock.layout();
        let keep = target.moved_up..target.moved_up + new_layout.main_segments;
        let mut new = old.clone();
        let more = (keep.end as usize).saturating_sub(new.len());
        new.extend(std::iter::repeat_n(SitEntry::empty(LogType::HotData), more));
        let open = open_summaries(&disk, &layout, &current)?;
        let mut state = Self {
            disk,
            nat: current.nat_journal.clone(),
            layout,
            current,
            old,
            new,
            open,
            blocks: superblock.layout().block_count.max(new_layout.block_count),
            summaries: BTreeMap::new(),
            taken: BTreeSet::new(),
            next: [None; 6],
            holes: [keep.start; 6],
            from: keep.start,
            free_sections: 0,
            spare_sections: target.reserved / new_layout.segments_per_section,
            keep,
            nat_blocks: BTreeMap::new(),
            moved: 0,
        };
        let section = state.layout.segments_per_section as usize;
        let starts = state.keep.clone().step_by(section);
        state.free_sections = starts.filter(|first| state.is_free_section(*first)).count() as u32;
        Ok(state)
    }

    /// A segment's number in the new volume.
    pub(super) fn number(&self, segment: u32) -> SegNo {
        SegNo(segment - self.keep.start)
    }

    /// The address of a block. Both volumes have the same.
    pub(super) fn addr(&self, segment: u32, offset: u32) -> BlockAddr {
        BlockAddr(self.layout.main_start + segment * SEGMENT_BLOCKS + offset)
    }

    /// The segment of a block of the main area, and the offset in it.
    pub(super) fn place(&self, addr: BlockAddr) -> Option<(u32, u32)> {
        let within = addr.0.checked_sub(self.layout.main_start)?;
        let segment = within / SEGMENT_BLOCKS;
        ((segment as usize) < self.new.len()).then_some((segment, within % SEGMENT_BLOCKS))
    }

    /// Whether the old volume has this block in use.
    pub(super) fn was_valid(&self, segment: u32, offset: u32) -> bool {
        let entry = self.old.get(segment as usize);
        entry.is_some_and(|entry| entry.is_valid(offset))
    }

    fn is_open(&self, segment: u32) -> bool {
        let mut logs = LogType::ALL.into_iter();
        logs.any(|log| self.current.checkpoint.log(log).segment.0 == segment)
    }

    /// Whether neither volume uses a segment.
    fn is_free(&self, segment: u32) -> bool {
        let is_empty = |entry: Option<&SitEntry>| entry.is_none_or(|entry| entry.valid == 0);
        let segment_entry = segment as usize;
        is_empty(self.old.get(segment_entry))
            && is_empty(self.new.get(segment_entry))
            && !self.is_open(segment)
            && !self.taken.contains(&segment)
    }

    fn is_free_section(&self, first: u32) -> bool {
        let section = first..first + self.layout.segments_per_section;
        section.end <= self.keep.end && section.into_iter().all(|segment| self.is_free(segment))
    }

    /// The first blocks of segments that neither volume uses, up to the end of the larger one.
    pub(super) fn free_segments(&self) -> Vec<BlockAddr> {
        let end = self.blocks.min(BlockAddr::COMPRESSED.0.into());
        let behind = end.saturating_sub(self.layout.main_start.into());
        let last = (behind / u64::from(SEGMENT_BLOCKS)) as u32;
        let free = (self.keep.start..last).filter(|segment| self.is_free(*segment));
        free.map(|segment| self.addr(segment, 0)).collect()
    }

    /// Takes the next free section for a log.
    fn take_section(&mut self) -> Option<u32> {
        let section = self.layout.segments_per_section;
        while self.from < self.keep.end {
            let first = self.from;
            self.from += section;
            if self.is_free_section(first) {
                self.taken.extend(first..first + section);
                self.free_sections -= 1;
                return Some(first);
            }
        }
        None
    }

    /// Begins a segment of a log.
    fn begin(&mut self, segment: u32, log: LogType) {
        let mtime = self.new[segment as usize].mtime;
        self.new[segment as usize] = SitEntry {
            mtime,
            ..SitEntry::empty(log)
        };
        self.summaries
            .insert(segment, SummaryBlock::empty(kind_of(log)));
        self.next[log.index()] = Some((segment, 0));
    }

    /// Allocates a block that is free on both volumes.
    pub(super) fn allocate(&mut self, log: LogType, owner: Summary) -> Result<BlockAddr> {
        let (segment, offset) = self.find(log)?;
        self.new[segment as usize].set_valid(offset, true);
        if let Some(block) = self.summaries.get_mut(&segment) {
            block.entries[offset as usize] = owner;
        }
        self.moved += 1;
        Ok(self.addr(segment, offset))
    }

    fn find(&mut self, log: LogType) -> Result<(u32, u32)> {
        if let Some((segment, offset)) = self.next[log.index()] {
            if offset < SEGMENT_BLOCKS {
                self.next[log.index()] = Some((segment, offset + 1));
                return Ok((segment, offset));
            }
            let section = self.layout.segments_per_section;
            let following = segment + 1;
            if !self.number(following).0.is_multiple_of(section) {
                self.begin(following, log);
                return self.find(log);
            }
        }
        if self.free_sections <= self.spare_sections
            && let Some(hole) = self.hole(log)?
        {
            return Ok(hole);
        }
        match self.take_section() {
            Some(first) => {
                self.begin(first, log);
                self.find(log)
            }
            None => self.hole(log)?.ok_or_else(|| {
                ResizeError::refused(format!(
                    "no room for the blocks that have to move ({} have been copied, and none is lost): \
                     remove files, or choose a larger size",
                    self.moved
                ))
            }),
        }
    }

    /// A block of a segment of this log that neither volume uses.
    fn hole(&mut self, log: LogType) -> Result<Option<(u32, u32)>> {
        let full = SEGMENT_BLOCKS as u16;
        while self.holes[log.index()] < self.keep.end {
            let segment = self.holes[log.index()];
            let entry = &self.new[segment as usize];
            let has_holes = entry.kind == log && entry.valid > 0 && entry.valid < full;
            let is_hole =
                |offset: &u32| !entry.is_valid(*offset) && !self.was_valid(segment, *offset);
            let is_used = self.is_open(segment) || self.taken.contains(&segment);
            if has_holes
                && !is_used
                && let Some(offset) = (0..SEGMENT_BLOCKS).find(is_hole)
            {
                if !self.summaries.contains_key(&segment) {
                    let block = self.summary(segment)?;
                    self.summaries.insert(segment, block);
                }
                return Ok(Some((segment, offset)));
            }
            self.holes[log.index()] += 1;
        }
        Ok(None)
    }

    /// A segment's summary in the old volume.
    pub(super) fn summary(&self, segment: u32) -> Result<SummaryBlock> {
        if let Some(log) = self.log_of(segment) {
            return Ok(self.open[log.index()].clone());
        }
        let at = self.layout.summary_block(SegNo(segment));
        let block = self.disk.read(at, 1)?;
        Ok(SummaryBlock::parse(&block).map_err(|error| error.in_block(at))?)
    }

    /// The log whose curseg a segment is in the old volume.
    pub(super) fn log_of(&self, segment: u32) -> Option<LogType> {
        let mut logs = LogType::ALL.into_iter();
        logs.find(|log| self.current.checkpoint.log(*log).segment.0 == segment)
    }

    /// Marks a block as not used by the new volume.
    pub(super) fn release(&mut self, addr: BlockAddr) {
        if let Some((segment, offset)) = self.place(addr) {
            self.new[segment as usize].set_valid(offset, false);
        }
    }

    /// The address of a node.
    pub(super) fn nat_entry(&mut self, nid: Nid) -> Result<NatEntry> {
        if let Some(entry) = self.nat.get(&nid) {
            return Ok(*entry);
        }
        if !self.layout.is_nid(nid) {
            return Err(corrupt("a summary names a node that cannot exist"));
        }
        let (number, slot) = self.layout.nat_slot(nid);
        if !self.nat_blocks.contains_key(&number) {
            if self.nat_blocks.len() >= NAT_BLOCKS_MAX {
                self.nat_blocks.clear();
            }
            let block = self.nat_block(number)?;
            self.nat_blocks.insert(number, block);
        }
        Ok(nat::get(&self.nat_blocks[&number], slot))
    }

    /// A NAT block as the old volume has it, without its journal.
    pub(super) fn nat_block(&self, number: u32) -> Result<Buf> {
        let second = self.current.checkpoint.nat_second(number);
        self.disk.read(self.layout.nat_block(number, second), 1)
    }

    /// The curseg of a log in the new volume, with its summary.
    pub(super) fn curseg(&mut self, log: LogType) -> Result<(CursegState, SummaryBlock)> {
        let old = self.current.checkpoint.log(log);
        if self.keep.contains(&old.segment.0) {
            let segment = self.number(old.segment.0);
            return Ok((
                CursegState { segment, ..old },
                self.open[log.index()].clone(),
            ));
        }
        let usable = self.next[log.index()].filter(|(_, offset)| *offset < SEGMENT_BLOCKS);
        let (segment, offset) = match usable {
            Some(next) => next,
            None => {
                let first = self.take_section().ok_or_else(|| {
                    ResizeError::refused(
                        "no free segment is left for a log: remove files, or choose a larger size",
                    )
                })?;
                self.begin(first, log);
                (first, 0)
            }
        };
        let state = CursegState {
            segment: self.number(segment),
            offset: offset as u16,
            alloc: ALLOC_LFS,
        };
        Ok((state, self.summaries[&segment].clone()))
    }
}

/// An error in the structures of a volume that a check found clean.
pub(super) fn corrupt(why: &'static str) -> ResizeError {
    ResizeError::refused(format!("{why}: repair the volume with fsck.f2fs first"))
}

const fn kind_of(log: LogType) -> SummaryKind {
    match log.is_node() {
        true => SummaryKind::Nodes,
        false => SummaryKind::Data,
    }
}

fn read_sit(disk: &Disk<'_>, layout: &Layout, current: &Current) -> Result<Vec<SitEntry>> {
    let mut entries = Vec::with_capacity(layout.main_segments as usize);
    for number in 0..layout.sit_used_blocks() {
        let at = layout.sit_block(number, current.checkpoint.sit_second(number));
        let block = disk.read(at, 1)?;
        let left = layout.main_segments as usize - entries.len();
        for slot in 0..left.min(sit::PER_BLOCK) {
            let segment = SegNo(entries.len() as u32);
            let entry = match current.sit_journal.get(&segment) {
                Some(entry) => entry.clone(),
                None => sit::get(&block, slot, segment).map_err(|error| error.in_block(at))?,
            };
            entries.push(entry);
        }
    }
    Ok(entries)
}

/// The summaries of the cursegs, which the pack of a volume that was unmounted has.
fn open_summaries(
    disk: &Disk<'_>,
    layout: &Layout,
    current: &Current,
) -> Result<[SummaryBlock; 6]> {
    let checkpoint = &current.checkpoint;
    let first = checkpoint.start_sum;
    let at = layout.pack_start(current.pack).plus(first);
    let blocks = disk.read(at, checkpoint.pack_blocks - first)?;
    let mut open = LogType::ALL.map(|log| SummaryBlock::empty(kind_of(log)));
    let is_compact = checkpoint.flags.contains(CpFlags::COMPACT_SUMMARIES);
    if is_compact {
        let packed = CompactSummaries::parse(&blocks, checkpoint.compacted_counts())
            .map_err(|error| error.in_block(at))?;
        for (block, entries) in open.iter_mut().zip(packed.logs) {
            block.entries[..entries.len()].copy_from_slice(&entries);
        }
    }
    let whole = LogType::ALL
        .into_iter()
        .filter(|log| log.is_node() || !is_compact);
    for log in whole {
        let position = checkpoint
            .summary_in_pack(log)
            .and_then(|at| at.checked_sub(first));
        let start = position.map_or(usize::MAX, |n| n as usize * BLOCK_SIZE);
        let block = blocks
            .get(start..start.saturating_add(BLOCK_SIZE))
            .ok_or_else(|| {
                let (field, rule) = ("cp_pack_total_block_count", "too small for the summaries");
                DiskError::field(Structure::Checkpoint, field, checkpoint.pack_blocks, rule)
            })?;
        open[log.index()] = SummaryBlock::parse(block)?;
    }
    Ok(open)
}
