//! Segment summaries: the owner of each block of a segment. The SSA has one block per segment. The summaries of the
//! cursegs, with the journals, are in the checkpoint pack: as whole blocks ("normal") or packed ("compact").

use zerocopy::{FromBytes, FromZeros, IntoBytes};

pub use super::raw::{RawSummary, RawSummaryBlock};

use super::num::idx;
use super::{BLOCK_SIZE, DiskError, Nid, Result, SEGMENT_BLOCKS, Structure, journal};

/// Bytes per entry (`SUMMARY_SIZE`).
pub const ENTRY_SIZE: usize = size_of::<RawSummary>();
/// Bytes of the footer of a summary block (`SUM_FOOTER_SIZE`).
pub const FOOTER_SIZE: usize = 5;
/// Entries of a summary block: one per block of the segment.
pub const ENTRIES: usize = 512;

/// The owner of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// For a data block the node that maps it, for a node its own id; 0 for a block never written.
    pub nid: Nid,
    /// The node's version in the node address table when the data was written.
    pub version: u8,
    /// For a data block the slot in the node.
    pub slot: u16,
}

impl Summary {
    /// Decodes an entry.
    pub fn decode(raw: &RawSummary) -> Self {
        Self {
            nid: Nid(raw.nid.get()),
            version: raw.version,
            slot: raw.ofs_in_node.get(),
        }
    }

    /// Encodes an entry.
    pub fn encode(self) -> RawSummary {
        RawSummary {
            nid: self.nid.0.into(),
            version: self.version,
            ofs_in_node: self.slot.into(),
        }
    }
}

/// The type of blocks in a segment according to its summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SummaryKind {
    /// `SUM_TYPE_DATA`.
    Data,
    /// `SUM_TYPE_NODE`.
    Nodes,
}

/// A summary block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SummaryBlock {
    /// One entry per block of the segment.
    pub entries: Box<[Summary; ENTRIES]>,
    /// In a checkpoint pack: the NAT journal in the block of the hot data log, the SIT journal in that of the cold
    /// data log. Unused elsewhere.
    pub journal: [u8; journal::SIZE],
    /// The type of the segment's blocks.
    pub holds: SummaryKind,
}

impl SummaryBlock {
    /// A summary block without entries.
    pub fn empty(holds: SummaryKind) -> Self {
        Self {
            entries: Box::new([Summary::default(); ENTRIES]),
            journal: [0; journal::SIZE],
            holds,
        }
    }

    /// Decodes a summary block. Node ids are not validated: old segments may refer to nodes that do not exist any
    /// more.
    pub fn parse(block: &[u8]) -> Result<Self> {
        assert_eq!(block.len(), BLOCK_SIZE);
        let raw = RawSummaryBlock::ref_from_bytes(block).expect("a block is a summary's size");
        let holds = match raw.entry_type {
            0 => SummaryKind::Data,
            1 => SummaryKind::Nodes,
            other => {
                let what = Structure::Summary;
                return Err(DiskError::field(
                    what,
                    "entry_type",
                    other,
                    "not data or nodes",
                ));
            }
        };
        let mut entries = Box::new([Summary::default(); ENTRIES]);
        for (entry, raw) in entries.iter_mut().zip(&raw.entries) {
            *entry = Summary::decode(raw);
        }
        Ok(Self {
            entries,
            journal: raw.journal,
            holds,
        })
    }

    /// Encodes a summary block.
    pub fn encode(&self) -> Vec<u8> {
        let mut raw = RawSummaryBlock::new_zeroed();
        for (entry, raw) in self.entries.iter().zip(&mut raw.entries) {
            *raw = entry.encode();
        }
        raw.journal = self.journal;
        raw.entry_type = match self.holds {
            SummaryKind::Data => 0,
            SummaryKind::Nodes => 1,
        };
        raw.as_bytes().to_vec()
    }
}

/// The compact form of the summaries of the three data logs: both journals, then the used entries, none across a
/// block boundary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactSummaries {
    /// The NAT journal.
    pub nat_journal: [u8; journal::SIZE],
    /// The SIT journal.
    pub sit_journal: [u8; journal::SIZE],
    /// Entries of the hot, warm and cold data log.
    pub logs: [Vec<Summary>; 3],
}

/// Positions of entries in the blocks of compact summaries.
fn compacted_slots() -> impl Iterator<Item = (usize, usize)> {
    let last = BLOCK_SIZE - FOOTER_SIZE - ENTRY_SIZE;
    (0usize..).flat_map(move |block| {
        let first = if block == 0 { 2 * journal::SIZE } else { 0 };
        (first..=last)
            .step_by(ENTRY_SIZE)
            .map(move |at| (block, at))
    })
}

impl CompactSummaries {
    /// Number of blocks of compact summaries with this number of entries, journals included.
    pub fn blocks_for(entries: usize) -> usize {
        match entries.checked_sub(1) {
            None => 1,
            Some(last) => compacted_slots()
                .nth(last)
                .map_or(usize::MAX, |(block, _)| block + 1),
        }
    }

    /// Decodes consecutive blocks; `counts` has the used entries of each log (512 for SSR).
    pub fn parse(blocks: &[u8], counts: [u32; 3]) -> Result<Self> {
        let short = |len: usize| {
            let len = super::num::wide(len);
            DiskError::field(
                Structure::Summary,
                "length",
                len,
                "too few blocks for the entries",
            )
        };
        let total: u32 = counts.iter().sum();
        if counts.iter().any(|&count| count > SEGMENT_BLOCKS)
            || blocks.len() < Self::blocks_for(idx(total)) * BLOCK_SIZE
        {
            return Err(short(blocks.len()));
        }
        let journal = |at: usize| {
            <[u8; journal::SIZE]>::try_from(&blocks[at..at + journal::SIZE])
                .expect("a slice of its size")
        };
        let mut slots = compacted_slots();
        let logs = counts.map(|count| {
            let slots_of_log = slots.by_ref().take(idx(count));
            slots_of_log
                .map(|(block, at)| {
                    let start = block * BLOCK_SIZE + at;
                    let raw = RawSummary::ref_from_bytes(&blocks[start..start + ENTRY_SIZE])
                        .expect("a slice of its size");
                    Summary::decode(raw)
                })
                .collect()
        });
        Ok(Self {
            nat_journal: journal(0),
            sit_journal: journal(journal::SIZE),
            logs,
        })
    }

    /// Encodes consecutive blocks.
    pub fn encode(&self) -> Vec<u8> {
        let total = self.logs.iter().map(Vec::len).sum();
        let mut out = vec![0; Self::blocks_for(total) * BLOCK_SIZE];
        out[..journal::SIZE].copy_from_slice(&self.nat_journal);
        out[journal::SIZE..2 * journal::SIZE].copy_from_slice(&self.sit_journal);
        for (entry, (block, at)) in self.logs.iter().flatten().zip(compacted_slots()) {
            let start = block * BLOCK_SIZE + at;
            out[start..start + ENTRY_SIZE].copy_from_slice(entry.encode().as_bytes());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(n: u32) -> Summary {
        Summary {
            nid: Nid(n + 4),
            version: 1,
            slot: 3,
        }
    }

    #[test]
    fn packing() {
        // 439 entries share the first block with the journals; each further block has 584.
        assert_eq!(CompactSummaries::blocks_for(0), 1);
        assert_eq!(CompactSummaries::blocks_for(439), 1);
        assert_eq!(CompactSummaries::blocks_for(440), 2);
        assert_eq!(CompactSummaries::blocks_for(439 + 584), 2);
        assert_eq!(CompactSummaries::blocks_for(439 + 585), 3);
        let packed = CompactSummaries {
            nat_journal: [1; journal::SIZE],
            sit_journal: [2; journal::SIZE],
            logs: [
                (0..400).map(entry).collect(),
                vec![],
                (400..912).map(entry).collect(),
            ],
        };
        let blocks = packed.encode();
        assert_eq!(blocks.len(), 2 * BLOCK_SIZE);
        assert_eq!(
            CompactSummaries::parse(&blocks, [400, 0, 512]).unwrap(),
            packed
        );
        assert!(CompactSummaries::parse(&blocks, [512, 512, 512]).is_err());
        assert!(CompactSummaries::parse(&blocks, [0, 0, 513]).is_err());
    }

    #[test]
    fn blocks_round_trip() {
        let mut block = SummaryBlock::empty(SummaryKind::Nodes);
        block.entries[17] = entry(9);
        block.journal[506] = 7;
        let mut bytes = block.encode();
        assert_eq!(SummaryBlock::parse(&bytes).unwrap(), block);
        bytes[4091] = 2;
        assert!(SummaryBlock::parse(&bytes).is_err());
    }
}
