//! The summary of a segment that changed: entries known here, and those only the summary area has.

use steadfs_block::Buf;

use super::map::Map;
use crate::disk::journal;
use crate::disk::summary::{ENTRIES, Summary, SummaryBlock, SummaryKind};
use crate::disk::{BLOCK_SIZE, LogType};

/// What a segment of this type holds.
pub fn holds(kind: LogType) -> SummaryKind {
    if kind.is_node() {
        SummaryKind::Nodes
    } else {
        SummaryKind::Data
    }
}

/// The summary of a segment, perhaps known in parts only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentSummary {
    entries: Box<[Summary; ENTRIES]>,
    known: Map,
    holds: SummaryKind,
}

impl SegmentSummary {
    /// Of a segment with no block in use: every entry is known to be empty.
    pub fn empty(kind: LogType) -> Self {
        Self {
            known: Map::FULL,
            ..Self::unknown(kind)
        }
    }

    /// Of a segment whose entries are in the summary area.
    pub fn unknown(kind: LogType) -> Self {
        Self {
            entries: Box::new([Summary::default(); ENTRIES]),
            known: Map::EMPTY,
            holds: holds(kind),
        }
    }

    /// With the first entries given and the rest empty.
    pub fn starting_with(kind: LogType, entries: &[Summary]) -> Self {
        let mut edit = Self::empty(kind);
        edit.entries[..entries.len()].copy_from_slice(entries);
        edit
    }

    /// Notes who points at a block.
    pub fn set(&mut self, offset: u32, owner: Summary) {
        self.entries[offset as usize] = owner;
        self.known.set(offset);
    }

    /// Who points at a block, if that is known here.
    pub fn get(&self, offset: u32) -> Option<Summary> {
        self.known
            .get(offset)
            .then(|| self.entries[offset as usize])
    }

    /// Of these blocks those whose entries are not known here.
    pub fn unknown_of(&self, valid: Map) -> Map {
        valid.without(self.known)
    }

    /// Takes the entries that are not known here from the summary area's block.
    pub fn fill_from(&mut self, block: &SummaryBlock) {
        for offset in Map::FULL.without(self.known).ones() {
            self.entries[offset as usize] = block.entries[offset as usize];
        }
        self.known = Map::FULL;
    }

    /// Takes what is not known here from another edit of the same segment.
    pub fn merge(&mut self, other: &Self) {
        for offset in other.known.without(self.known).ones() {
            self.set(offset, other.entries[offset as usize]);
        }
    }

    /// The first entries, or all.
    pub fn entries(&self, count: usize) -> &[Summary] {
        &self.entries[..count]
    }

    /// As a block, with a journal.
    pub fn block(&self, journal: [u8; journal::SIZE]) -> Buf {
        let block = SummaryBlock {
            entries: self.entries.clone(),
            journal,
            holds: self.holds,
        };
        Buf::copy_of(&block.encode())
    }

    /// As a block of the summary area.
    pub fn area_block(&self) -> Buf {
        let block = self.block([0; journal::SIZE]);
        debug_assert_eq!(block.len(), BLOCK_SIZE);
        block
    }
}
