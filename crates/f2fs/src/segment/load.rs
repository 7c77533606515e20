//! Reads the SIT and the summaries of the cursegs at mount.

use std::collections::{BTreeMap, VecDeque};

use steadfs_base::IoTag;
use steadfs_block::{Bio, Buf, IoHandle, Queue};
use steadfs_f2fs_format::io_error;
use steadfs_rt::{Mutex, Rank, now};
use steadfs_vfs::Result;

use super::curseg::{Curseg, CursegUsage, SegmentManager};
use super::gc_state::GcState;
use super::policy::{AllocMode, Mode, Policy};
use super::rules::Demand;
use super::seglists::SegmentState;
use super::sit::Sit;
use super::ssa::SegmentSummary;
use super::{Inner, Segments};
use crate::checkpoint::read_blocks;
use crate::disk::checkpoint::{ALLOC_LFS, ALLOC_SSR, CpFlags};
use crate::disk::node::Footer;
use crate::disk::summary::{CompactSummaries, Summary, SummaryBlock};
use crate::disk::{
    BLOCK_SIZE, BlockAddr, Checkpoint, DiskError, Layout, LogType, Nid, SegNo, SitEntry, Structure,
    sit,
};
use crate::options::GC_RULES_DEFAULT;
use crate::victim::age::AgeRules;

const SIT_BLOCKS_PER_READ: u32 = 256;
const READS_IN_FLIGHT: usize = 8;
/// `max_victim_search` after a mount.
const MAX_VICTIM_SEARCH: u32 = 4096;

fn wrong(field: &'static str, value: impl Into<u64>, rule: &'static str) -> DiskError {
    DiskError::field(Structure::Checkpoint, field, value, rule)
}

impl Segments {
    /// Reads the SIT as the checkpoint in `pack` (0 or 1) has it; entries in its journal override the blocks.
    ///
    /// # Errors
    /// Impossible entries, a SIT that contradicts the checkpoint, or a device error.
    pub fn load(
        layout: &Layout,
        checkpoint: &Checkpoint,
        pack: u32,
        journal: &BTreeMap<SegNo, SitEntry>,
        queue: &Queue,
        tag: IoTag,
    ) -> Result<Self> {
        let mut sit = Sit::new(layout);
        read_sit(layout, checkpoint, journal, queue, tag, &mut sit)?;
        let nodes = u64::from(checkpoint.valid_nodes);
        let (valid_data, valid_nodes) = sit.totals();
        if valid_nodes != nodes {
            let rule = "not the number of valid nodes in the segment table";
            return Err(wrong("valid_node_count", nodes, rule).into());
        }
        if valid_data + valid_nodes > checkpoint.valid_blocks {
            let rule = "less than the number of valid blocks in the segment table";
            return Err(wrong("valid_block_count", checkpoint.valid_blocks, rule).into());
        }
        let mut summaries = read_summaries(layout, checkpoint, pack, queue, &sit)?.into_iter();
        let mut cursegs = Vec::new();
        for kind in LogType::ALL {
            let summary = summaries.next().expect("one summary for each log");
            cursegs.push(open(checkpoint, kind, summary, &mut sit)?);
        }
        sit.loaded();
        assert!(
            sit.in_state(SegmentState::Open) as usize == cursegs.len(),
            "each curseg has a segment of its own"
        );
        let per_section = layout.segments_per_section;
        let reserved_sections = checkpoint.reserved_segments / per_section;
        let policy = Policy {
            rules: GC_RULES_DEFAULT,
            overprovision_sections: checkpoint.overprovision_segments / per_section,
            mode: Mode::Adaptive,
            alloc: AllocMode::Default,
            reserved_sections,
            min_ssr_sections: reserved_sections,
            force_ssr: false,
            max_search: MAX_VICTIM_SEARCH,
        };
        let Ok(cursegs) = <[Curseg; 6]>::try_from(cursegs) else {
            unreachable!("there are six logs");
        };
        let manager = SegmentManager {
            sit,
            cursegs,
            atgc: None,
            age: AgeRules::default(),
            closed: BTreeMap::new(),
            writing: BTreeMap::new(),
            policy,
            demand: Demand::default(),
            usage: CursegUsage::default(),
            gc: GcState::default(),
        };
        let inner = Inner {
            manager,
            journaled: journal.keys().map(|n| n.0).collect(),
            sit_bitmap: checkpoint.sit_bitmap.clone(),
        };
        Ok(Self {
            layout: layout.clone(),
            inner: Mutex::new(Rank::Group, inner),
            elapsed_before: checkpoint.elapsed,
            mounted: now(),
        })
    }
}

/// Reads all entries; consecutive blocks by one request.
fn read_sit(
    layout: &Layout,
    checkpoint: &Checkpoint,
    journal: &BTreeMap<SegNo, SitEntry>,
    queue: &Queue,
    tag: IoTag,
    sit: &mut Sit,
) -> Result<()> {
    for (at, entry) in journal {
        sit.load(*at, entry);
    }
    let mut take = |first: u32, bytes: &Buf| -> Result<()> {
        let per = sit::PER_BLOCK as u32;
        for (block, content) in (first..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
            let end = ((block + 1) * per).min(sit.len());
            for at in (block * per..end).map(SegNo) {
                if journal.contains_key(&at) {
                    continue;
                }
                let entry = sit::get(content, (at.0 % per) as usize, at);
                let entry = entry.map_err(|e| {
                    let place = layout.sit_block(block, checkpoint.sit_second(block));
                    e.in_block(place)
                })?;
                sit.load(at, &entry);
            }
        }
        Ok(())
    };
    let mut in_flight: VecDeque<(u32, IoHandle)> = VecDeque::new();
    let blocks = layout.sit_used_blocks();
    let mut block = 0;
    while block < blocks {
        let second = checkpoint.sit_second(block);
        let end = blocks.min(block + SIT_BLOCKS_PER_READ);
        let alike = (block..end).take_while(|n| checkpoint.sit_second(*n) == second);
        let count = alike.count() as u32;
        assert!(count > 0, "each request reads a SIT block");
        let offset = u64::from(layout.sit_block(block, second).0) * BLOCK_SIZE as u64;
        let bio = Bio::read(offset, count as usize * BLOCK_SIZE);
        in_flight.push_back((block, queue.submit(bio, tag)));
        block += count;
        if in_flight.len() == READS_IN_FLIGHT
            && let Some((first, read)) = in_flight.pop_front()
        {
            take(first, &read.into_bio().map_err(io_error)?.bufs[0])?;
        }
    }
    for (first, read) in in_flight {
        take(first, &read.into_bio().map_err(io_error)?.bufs[0])?;
    }
    Ok(())
}

/// Opens a curseg at the position that the checkpoint stores.
fn open(
    checkpoint: &Checkpoint,
    kind: LogType,
    summary: SegmentSummary,
    sit: &mut Sit,
) -> Result<Curseg, DiskError> {
    let place = checkpoint.log(kind);
    let (at, next) = (place.segment, u32::from(place.offset));
    if sit.state(at) == SegmentState::Open {
        return Err(wrong("cur_segno", at.0, "the segment of another log, too"));
    }
    if sit.valid(at) > 0 && sit.kind(at).is_node() != kind.is_node() {
        return Err(wrong(
            "cur_segno",
            at.0,
            "a segment of the other kind of blocks",
        ));
    }
    let valid = sit.current(at);
    let ssr = match place.alloc {
        ALLOC_LFS => false,
        ALLOC_SSR => true,
        other => return Err(wrong("alloc_type", other, "not a known one")),
    };
    if valid.get(next) || !ssr && valid.next_set(next).is_some() {
        let rule = "not free, or before a valid block";
        return Err(wrong("cur_blkoff", next, rule));
    }
    if sit.valid(at) == 0 {
        sit.set_kind_of_empty(at, kind);
    }
    sit.open(at, kind);
    Ok(Curseg {
        segment: at,
        next,
        ssr,
        summary: Box::new(summary),
    })
}

fn read_summaries(
    layout: &Layout,
    checkpoint: &Checkpoint,
    pack: u32,
    queue: &Queue,
    sit: &Sit,
) -> Result<Vec<SegmentSummary>> {
    let start = layout.pack_start(pack);
    let mut edits = Vec::new();
    if checkpoint.flags.contains(CpFlags::COMPACT_SUMMARIES) {
        let kinds = [LogType::HotData, LogType::WarmData, LogType::ColdData];
        let count = checkpoint.pack_blocks - checkpoint.start_sum;
        let blocks = read_blocks(queue, start.plus(checkpoint.start_sum), count)?;
        let packed = CompactSummaries::parse(&blocks, checkpoint.compacted_counts())?;
        for (kind, entries) in kinds.into_iter().zip(&packed.logs) {
            edits.push(SegmentSummary::starting_with(kind, entries));
        }
    }
    for kind in LogType::ALL.into_iter().skip(edits.len()) {
        let at = match checkpoint.summary_in_pack(kind) {
            Some(n) if n < checkpoint.pack_blocks => start.plus(n),
            None if kind.is_node() => {
                edits.push(restore(layout, checkpoint, kind, queue, sit)?);
                continue;
            }
            _ => {
                let rule = "no room for the summaries";
                let blocks = checkpoint.pack_blocks;
                return Err(wrong("cp_pack_total_block_count", blocks, rule).into());
            }
        };
        edits.push(read_summary(queue, at, kind)?);
    }
    assert!(
        edits.len() == LogType::ALL.len(),
        "each log has one summary"
    );
    Ok(edits)
}

fn read_summary(queue: &Queue, at: BlockAddr, kind: LogType) -> Result<SegmentSummary> {
    let block = SummaryBlock::parse(&read_blocks(queue, at, 1)?).map_err(|e| e.in_block(at))?;
    Ok(SegmentSummary::starting_with(kind, &block.entries[..]))
}

/// Rebuilds the summary of a node log that the pack does not contain, from the footers of its nodes.
fn restore(
    layout: &Layout,
    checkpoint: &Checkpoint,
    kind: LogType,
    queue: &Queue,
    sit: &Sit,
) -> Result<SegmentSummary> {
    assert!(kind.is_node(), "only blocks of nodes have footers");
    let at = checkpoint.log(kind).segment;
    let valid = sit.current(at);
    let mut edit = SegmentSummary::empty(kind);
    let (Some(first), Some(last)) = (valid.next_set(0), valid.ones().last()) else {
        return Ok(edit);
    };
    let blocks = read_blocks(queue, layout.block_in(at, first), last - first + 1)?;
    for (offset, block) in (first..).zip(blocks.chunks_exact(BLOCK_SIZE)) {
        if valid.get(offset) {
            let nid = Nid(Footer::parse(block).nid.0);
            let (version, slot) = (0, 0);
            edit.set(offset, Summary { nid, version, slot });
        }
    }
    Ok(edit)
}
