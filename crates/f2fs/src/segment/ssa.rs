//! Summary of a changed segment: the owner of each block, as far as it is in memory; the rest is in the SSA.

use steadfs_block::Buf;

use super::map::BlockBitmap;
use crate::disk::journal;
use crate::disk::summary::{ENTRIES, Summary, SummaryBlock, SummaryKind};
use crate::disk::{BLOCK_SIZE, LogType};

pub fn holds(kind: LogType) -> SummaryKind {
    if kind.is_node() {
        SummaryKind::Nodes
    } else {
        SummaryKind::Data
    }
}

/// A summary of which some entries may be in the SSA only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentSummary {
    entries: Box<[Summary; ENTRIES]>,
    known: BlockBitmap,
    holds: SummaryKind,
}

impl SegmentSummary {
    /// Of a segment with no valid block: each entry is known to be empty.
    pub fn empty(kind: LogType) -> Self {
        Self {
            known: BlockBitmap::FULL,
            ..Self::unknown(kind)
        }
    }

    /// Of a segment whose entries are in the SSA.
    pub fn unknown(kind: LogType) -> Self {
        Self {
            entries: Box::new([Summary::default(); ENTRIES]),
            known: BlockBitmap::EMPTY,
            holds: holds(kind),
        }
    }

    /// With these first entries; the rest is known to be empty.
    pub fn starting_with(kind: LogType, entries: &[Summary]) -> Self {
        assert!(
            entries.len() <= ENTRIES,
            "a segment has one entry for each block"
        );
        let mut edit = Self::empty(kind);
        edit.entries[..entries.len()].copy_from_slice(entries);
        edit
    }

    /// Stores the owner of a block.
    pub fn set(&mut self, offset: u32, owner: Summary) {
        self.entries[offset as usize] = owner;
        self.known.set(offset);
    }

    /// The owner of a block, if it is in memory.
    pub fn get(&self, offset: u32) -> Option<Summary> {
        self.known
            .get(offset)
            .then(|| self.entries[offset as usize])
    }

    /// Those of these blocks whose entries are not in memory.
    pub fn unknown_of(&self, valid: BlockBitmap) -> BlockBitmap {
        valid.without(self.known)
    }

    /// Takes the entries that are not in memory from the SSA block.
    pub fn fill_from(&mut self, block: &SummaryBlock) {
        for offset in BlockBitmap::FULL.without(self.known).ones() {
            self.entries[offset as usize] = block.entries[offset as usize];
        }
        self.known = BlockBitmap::FULL;
    }

    /// Takes the entries that are not in memory from another summary of the same segment.
    pub fn merge(&mut self, other: &Self) {
        for offset in other.known.without(self.known).ones() {
            self.set(offset, other.entries[offset as usize]);
        }
        debug_assert!(
            other.known.without(self.known).is_empty(),
            "a merged summary knows what either knew"
        );
    }

    pub fn entries(&self, count: usize) -> &[Summary] {
        &self.entries[..count]
    }

    /// As a summary block with a journal.
    pub fn block(&self, journal: [u8; journal::SIZE]) -> Buf {
        let block = SummaryBlock {
            entries: self.entries.clone(),
            journal,
            holds: self.holds,
        };
        Buf::copy_of(&block.encode())
    }

    /// As a block of the SSA.
    pub fn area_block(&self) -> Buf {
        let block = self.block([0; journal::SIZE]);
        debug_assert_eq!(block.len(), BLOCK_SIZE);
        block
    }
}
