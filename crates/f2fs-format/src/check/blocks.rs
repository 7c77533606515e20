//! Blocks in use: each has one owner, a segment of its type, and a matching summary entry.

use super::tables::{Segment, entry_bytes, holds};
use super::{Checker, Issue};
use crate::disk::summary::{RawSummary, Summary, SummaryKind};
use crate::disk::{BLOCK_SIZE, BlockAddr, Features, LogType, Nid, SegNo};
use zerocopy::FromBytes;

/// What is wrong with a segment's summary.
pub(super) struct WrongSummary {
    count: u32,
    first: BlockAddr,
    owner: Summary,
    stored: Summary,
}

/// The summary entry of a block.
enum SummaryLookup {
    /// An entry, and the type of its summary block.
    Entry(Option<SummaryKind>, Summary),
    /// There is no summary, or it cannot be read.
    Nothing,
}

impl Checker<'_> {
    /// Records a block as a node's.
    pub(super) fn record_node_block(&mut self, ino: Nid, nid: Nid, addr: BlockAddr) {
        let (version, slot) = (0, 0);
        self.record_block(
            ino,
            addr,
            SummaryKind::Nodes,
            Summary { nid, version, slot },
        );
    }

    /// Records a block as data; `owner` is the node and slot that map it.
    pub(super) fn record_data_block(&mut self, ino: Nid, addr: BlockAddr, owner: Summary) {
        self.record_block(ino, addr, SummaryKind::Data, owner);
    }

    fn record_block(&mut self, ino: Nid, addr: BlockAddr, what: SummaryKind, owner: Summary) {
        self.report.stats.blocks_used += 1;
        let Some((segment, offset)) = self.layout.segment_of(addr) else {
            return;
        };
        if self.used.set(segment, offset) {
            let (nid, block) = (owner.nid, addr);
            self.issue(Issue::BlockUsedTwice { ino, nid, block });
            return;
        }
        self.check_segment_type(segment, addr, what);
        if self.layout.has(Features::READ_ONLY) {
            // Volumes with the feature `ro` have no GC and no summaries.
            return;
        }
        match self.summary_of(segment, offset) {
            SummaryLookup::Nothing => {}
            SummaryLookup::Entry(kind, stored) if kind == Some(what) => {
                let good = match what {
                    SummaryKind::Data => stored == owner,
                    SummaryKind::Nodes => stored.nid == owner.nid,
                };
                if !good {
                    self.record_wrong_summary(segment, addr, owner, stored);
                }
            }
            SummaryLookup::Entry(..) => {
                if !self.segments[segment.0 as usize].set(Segment::SUMMARY_REPORTED) {
                    let holds = name(what);
                    self.issue(Issue::SummaryType { segment, holds });
                }
            }
        }
    }

    fn check_segment_type(&mut self, segment: SegNo, block: BlockAddr, what: SummaryKind) {
        let known = &mut self.segments[segment.0 as usize];
        // An invalid type was reported when the SIT entry was read.
        let Some(stored) = LogType::from_number(known.kind) else {
            return;
        };
        if stored.is_node() != (what == SummaryKind::Nodes) && !known.set(Segment::TYPE_REPORTED) {
            self.issue(Issue::SegmentType {
                segment,
                stored,
                holds: name(what),
                block,
            });
        }
    }

    /// The summary entry of a block: from the pack for a curseg, otherwise from the SSA.
    fn summary_of(&mut self, segment: SegNo, offset: u32) -> SummaryLookup {
        for log in LogType::ALL {
            if self.checkpoint.log(log).segment != segment {
                continue;
            }
            let kind = if log.is_node() {
                SummaryKind::Nodes
            } else {
                SummaryKind::Data
            };
            // In a curseg, node summaries may be missing, and data summaries end at its position.
            let entries = self.open[log.index()].as_ref();
            return match entries.and_then(|entries| entries.get(offset as usize)) {
                Some(entry) => SummaryLookup::Entry(Some(kind), *entry),
                None => SummaryLookup::Nothing,
            };
        }
        if self.summaries.get(segment).is_none() {
            let mut bytes = Vec::with_capacity(BLOCK_SIZE);
            if !self.read_block(self.layout.summary_block(segment), &mut bytes) {
                return SummaryLookup::Nothing;
            }
            self.summaries.put(segment, bytes.into_boxed_slice());
        }
        let Some(block) = self.summaries.get(segment) else {
            return SummaryLookup::Nothing;
        };
        let raw = RawSummary::ref_from_bytes(entry_bytes(block, offset));
        let entry = raw.map(Summary::decode).unwrap_or_default();
        SummaryLookup::Entry(holds(block), entry)
    }

    /// The inode that a valid block belongs to, according to its summary.
    pub(super) fn owner_of(&mut self, segment: SegNo, offset: u32) -> Option<Nid> {
        match self.summary_of(segment, offset) {
            SummaryLookup::Entry(_, entry) => {
                self.nat.get(&self.layout, entry.nid).map(|slot| slot.ino)
            }
            SummaryLookup::Nothing => None,
        }
    }

    fn record_wrong_summary(
        &mut self,
        segment: SegNo,
        first: BlockAddr,
        owner: Summary,
        stored: Summary,
    ) {
        let wrong = self.wrong_summaries.entry(segment).or_insert(WrongSummary {
            count: 0,
            first,
            owner,
            stored,
        });
        wrong.count += 1;
    }

    /// Reports wrong summary entries, one issue per segment.
    pub(super) fn report_wrong_summaries(&mut self) {
        for (segment, wrong) in std::mem::take(&mut self.wrong_summaries) {
            self.issue(Issue::Summary {
                segment,
                wrong: wrong.count,
                first: wrong.first,
                owner: wrong.owner,
                stored: wrong.stored,
            });
        }
    }
}

const fn name(what: SummaryKind) -> &'static str {
    match what {
        SummaryKind::Data => "data",
        SummaryKind::Nodes => "nodes",
    }
}
