//! What a checkpoint stores about segments.
//!
//! **SIT.** A changed entry goes to the journal in the checkpoint pack or to its SIT block. A block is never
//! overwritten in place: its other copy is written, and the bitmap in the pack selects the current copy. Journal
//! entries override their blocks, so they are written again with each checkpoint until they move to a block. SIT blocks
//! with the fewest changes go to the journal first.
//!
//! **Summaries.** Those of closed segments go to the SSA at any time: entries of blocks that the last checkpoint refers
//! to never change, but those of orphans do (an atomic write is committed): a mount frees them by their nodes. Those of the cursegs are in the pack, for nodes only if the caller requires it (at unmount);
//! otherwise a mount rebuilds them from the nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::{Bio, Buf, IoHandle, Queue};
use steadfs_f2fs_format::io_error;
use steadfs_vfs::Result;

use super::map::BlockBitmap;
use super::seglists::SegmentState;
use super::ssa::SegmentSummary;
use super::{Inner, summary_mut};
use crate::disk::bits::{self, Order};
use crate::disk::checkpoint::CursegState;
use crate::disk::summary::{CompactSummaries, SummaryBlock};
use crate::disk::{BLOCK_SIZE, BlockAddr, Layout, LogType, SegNo, journal, sit};

/// The data logs, in the order of their summaries in a pack.
const DATA: [LogType; 3] = [LogType::HotData, LogType::WarmData, LogType::ColdData];
/// The node logs, likewise.
const NODES: [LogType; 3] = [LogType::HotNode, LogType::WarmNode, LogType::ColdNode];
/// Reads of summary blocks in flight at most.
const READS_IN_FLIGHT: usize = 32;

/// A summary, with the blocks whose entries must be right.
struct SummaryPart {
    segment: SegNo,
    edit: Arc<SegmentSummary>,
    valid: BlockBitmap,
}

/// What a checkpoint stores about segments.
pub struct SegmentSnapshot {
    /// Segments without a valid block and without a curseg (`free_segment_count`).
    pub free_segments: u32,
    /// Valid blocks of data and of nodes.
    pub valid: (u64, u64),
    /// Positions of the cursegs.
    pub logs: [CursegState; 6],
    /// Seconds for which the volume has been mounted in its life (`elapsed_time`).
    pub elapsed: u64,
    /// One bit for each SIT block: which copy is current.
    pub sit_bitmap: Vec<u8>,
    sit_journal: [u8; journal::SIZE],
    sit_blocks: Vec<(BlockAddr, Buf)>,
    journaled: BTreeSet<u32>,
    entries: BTreeSet<u32>,
    open: [SummaryPart; 6],
    counts: [u32; 6],
    closed: Vec<SummaryPart>,
}

pub(super) fn take(layout: &Layout, inner: &mut Inner, elapsed: u64) -> SegmentSnapshot {
    inner.manager.close_atgc();
    assert!(
        inner.manager.atgc.is_none(),
        "no checkpoint stores the ATGC log"
    );
    let mut entries = inner.manager.sit.begin_checkpoint();
    entries.extend(&inner.journaled);
    let plan = plan_entries(layout, inner, &entries);
    let manager = &mut inner.manager;
    let part =
        |manager: &super::SegmentManager, segment: SegNo, edit: Arc<SegmentSummary>| SummaryPart {
            segment,
            edit,
            valid: manager.sit.current(segment),
        };
    assert!(manager.writing.is_empty(), "one checkpoint at a time");
    let mut closed = Vec::new();
    for (n, edit) in std::mem::take(&mut manager.closed) {
        let at = SegNo(n);
        assert!(
            manager.sit.state(at) != SegmentState::Open,
            "no curseg is in a closed segment"
        );
        if !manager.sit.allocated(at).is_empty() {
            // Allocated blocks will become valid: the summary is kept so that it need not be read again.
            manager.closed.insert(n, edit.clone());
        }
        if manager.sit.valid(at) > 0 {
            closed.push(part(manager, at, Arc::from(edit)));
        }
    }
    for part in &closed {
        manager
            .writing
            .insert(part.segment.0, Arc::clone(&part.edit));
    }
    SegmentSnapshot {
        free_segments: manager.sit.in_state(SegmentState::Free)
            + manager.sit.in_state(SegmentState::Prefree),
        valid: manager.sit.totals(),
        logs: LogType::ALL.map(|log| manager.open_log(log)),
        elapsed,
        sit_bitmap: plan.bitmap,
        sit_journal: plan.journal,
        sit_blocks: plan.blocks,
        journaled: plan.journaled,
        entries,
        open: LogType::ALL.map(|log| {
            let curseg = &manager.cursegs[log.index()];
            part(manager, curseg.segment, Arc::from(curseg.summary.clone()))
        }),
        counts: LogType::ALL.map(|log| manager.summary_entries(log)),
        closed,
    }
}

struct EntryPlan {
    journal: [u8; journal::SIZE],
    journaled: BTreeSet<u32>,
    blocks: Vec<(BlockAddr, Buf)>,
    bitmap: Vec<u8>,
}

/// Divides the entries between the journal and SIT blocks.
fn plan_entries(layout: &Layout, inner: &Inner, entries: &BTreeSet<u32>) -> EntryPlan {
    let sit = &inner.manager.sit;
    let mut by_block: BTreeMap<u32, u32> = BTreeMap::new();
    for n in entries {
        *by_block.entry(layout.sit_slot(SegNo(*n)).0).or_default() += 1;
    }
    let mut order: Vec<(u32, u32)> = by_block.into_iter().map(|(b, n)| (n, b)).collect();
    order.sort_unstable();
    let changed_blocks = order.len();
    let mut room = journal::SIT_ENTRIES as u32;
    let mut in_journal = BTreeSet::new();
    let mut blocks = Vec::new();
    let mut bitmap = inner.sit_bitmap.clone();
    for (count, block) in order {
        if count <= room {
            room -= count;
            in_journal.insert(block);
            continue;
        }
        let second = !bits::get(Order::HighFirst, &bitmap, block as usize);
        bits::put(Order::HighFirst, &mut bitmap, block as usize, second);
        let per = sit::PER_BLOCK as u32;
        let content = Buf::with_bytes(BLOCK_SIZE, |bytes| {
            bytes.fill(0);
            for n in block * per..((block + 1) * per).min(sit.len()) {
                let slot = (n % per) as usize;
                sit::put(bytes, slot, &sit.entry(SegNo(n)));
            }
        });
        blocks.push((layout.sit_block(block, second), content));
    }
    assert!(
        blocks.len() + in_journal.len() == changed_blocks,
        "the entries of each SIT block are stored once"
    );
    blocks.sort_unstable_by_key(|(at, _)| *at);
    let journaled: BTreeSet<u32> = entries
        .iter()
        .copied()
        .filter(|n| in_journal.contains(&layout.sit_slot(SegNo(*n)).0))
        .collect();
    assert!(
        journaled.len() <= journal::SIT_ENTRIES,
        "the journal has space for its entries"
    );
    let list: Vec<_> = journaled
        .iter()
        .map(|n| (SegNo(*n), sit.entry(SegNo(*n))))
        .collect();
    EntryPlan {
        journal: journal::encode_sit(&list),
        journaled,
        blocks,
        bitmap,
    }
}

pub(super) fn committed(
    inner: &mut Inner,
    snapshot: &SegmentSnapshot,
    disables_cp: bool,
) -> Vec<(SegNo, BlockBitmap)> {
    inner.sit_bitmap.clone_from(&snapshot.sit_bitmap);
    inner.journaled.clone_from(&snapshot.journaled);
    let manager = &mut inner.manager;
    assert!(
        manager.writing.len() == snapshot.closed.len(),
        "the checkpoint that ends is the one that was begun"
    );
    manager.writing.clear();
    for part in &snapshot.open {
        if let Some(curseg) = manager.curseg_in(part.segment) {
            curseg.summary.merge(&part.edit);
        }
    }
    let freed = manager.sit.end_checkpoint(disables_cp);
    manager.gc.forget_empty(&manager.sit);
    freed
}

pub(super) fn abandoned(inner: &mut Inner, snapshot: &SegmentSnapshot) {
    let manager = &mut inner.manager;
    manager.sit.abandon_checkpoint(&snapshot.entries);
    let writing = std::mem::take(&mut manager.writing);
    assert!(
        writing.len() == snapshot.closed.len(),
        "the checkpoint that fails is the one that was begun"
    );
    for (n, earlier) in writing {
        let at = SegNo(n);
        if let Some(edit) = manager.closed.get_mut(&n) {
            edit.merge(&earlier);
        } else if let Some(curseg) = manager.curseg_in(at) {
            curseg.summary.merge(&earlier);
        } else {
            manager.closed.insert(n, Box::new((*earlier).clone()));
        }
    }
}

impl SegmentSnapshot {
    /// Reads the summary entries that only the SSA has; with `nodes` those of the node logs, too, for
    /// [`SegmentSnapshot::node_summaries`].
    ///
    /// # Errors
    /// The device fails.
    pub fn complete(
        &mut self,
        layout: &Layout,
        queue: &Queue,
        nodes: bool,
        tag: IoTag,
    ) -> Result<()> {
        let wanted = |log: LogType| nodes || !log.is_node();
        let open = self.open.iter_mut().zip(LogType::ALL);
        let open = open.filter(|(_, log)| wanted(*log)).map(|(part, _)| part);
        let parts = open.chain(&mut self.closed);
        let mut parts: Vec<&mut SummaryPart> = parts
            .filter(|part| !part.edit.unknown_of(part.valid).is_empty())
            .collect();
        for group in parts.chunks_mut(READS_IN_FLIGHT) {
            let reads: Vec<IoHandle> = group
                .iter()
                .map(|part| {
                    let at = u64::from(layout.summary_block(part.segment).0);
                    queue.submit(Bio::read(at * BLOCK_SIZE as u64, BLOCK_SIZE), tag)
                })
                .collect();
            for (part, read) in group.iter_mut().zip(reads) {
                let bio = read.into_bio().map_err(io_error)?;
                match SummaryBlock::parse(&bio.bufs[0]) {
                    Ok(block) => summary_mut(&mut part.edit).fill_from(&block),
                    Err(error) => {
                        let segment = part.segment;
                        tracing::warn!(%segment, %error, "a summary block is corrupt; the owners of its blocks are unknown");
                    }
                }
            }
        }
        Ok(())
    }

    /// SIT blocks to write.
    pub fn sit_writes(&self) -> &[(BlockAddr, Buf)] {
        &self.sit_blocks
    }

    /// SSA blocks to write.
    pub fn summary_writes(&self, layout: &Layout) -> Vec<(BlockAddr, Buf)> {
        let block =
            |part: &SummaryPart| (layout.summary_block(part.segment), part.edit.area_block());
        self.closed.iter().map(block).collect()
    }

    /// Summaries of the data logs, with both journals, in the format of a pack.
    pub fn data_summaries(&self, nat_journal: [u8; journal::SIZE]) -> Vec<Buf> {
        let count = |log: LogType| self.counts[log.index()] as usize;
        let edit = |log: LogType| &self.open[log.index()].edit;
        let total = DATA.iter().map(|log| count(*log)).sum();
        if CompactSummaries::blocks_for(total) < DATA.len() {
            let packed = CompactSummaries {
                nat_journal,
                sit_journal: self.sit_journal,
                logs: DATA.map(|log| edit(log).entries(count(log)).to_vec()),
            };
            let bytes = packed.encode();
            assert!(
                bytes.len() < DATA.len() * BLOCK_SIZE,
                "compact summaries take fewer blocks than one for each log"
            );
            return bytes.chunks(BLOCK_SIZE).map(Buf::copy_of).collect();
        }
        let journal = |log: LogType| match log {
            LogType::HotData => nat_journal,
            LogType::ColdData => self.sit_journal,
            _ => [0; journal::SIZE],
        };
        let block = |log: &LogType| edit(*log).block(journal(*log));
        DATA.iter().map(block).collect()
    }

    /// Summaries of the node logs, for a pack that contains them.
    pub fn node_summaries(&self) -> Vec<Buf> {
        let block = |log: &LogType| self.open[log.index()].edit.area_block();
        NODES.iter().map(block).collect()
    }
}
