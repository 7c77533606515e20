//! The checker's tables: 20 bytes per node in use, two bits per block of the main area, and a bounded cache of
//! summary blocks. Memory for nodes is allocated per NAT block, at its first entry in use.

use crate::disk::nat::PER_BLOCK;
use crate::disk::summary::{ENTRY_SIZE, SummaryKind};
use crate::disk::{BLOCK_SIZE, BlockAddr, Layout, NatEntry, Nid, SEGMENT_BLOCKS, SegNo};

/// The state of a node.
#[derive(Clone, Copy, Default)]
pub(super) struct Slot {
    /// Its address; `NULL` if it does not exist.
    pub(super) addr: BlockAddr,
    /// The inode it belongs to.
    pub(super) ino: Nid,
    /// For an inode: number of names found.
    pub(super) names: u32,
    /// For an inode: the stored link count.
    pub(super) links: u32,
    pub(super) version: u8,
    /// For a readable inode: its type as in directory entries; otherwise 0.
    pub(super) kind: u8,
    flags: u8,
}

impl Slot {
    /// It is in an inode's tree.
    pub(super) const REACHED: u8 = 1;
    /// It is on the orphan list.
    pub(super) const ORPHAN: u8 = 2;
    /// It is a quota file, which has no name.
    pub(super) const HIDDEN: u8 = 4;

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Sets a flag. Returns whether it was set before.
    pub(super) fn set(&mut self, flag: u8) -> bool {
        let before = self.has(flag);
        self.flags |= flag;
        before
    }
}

/// The NAT with its journal, and the findings per node.
pub(super) struct NatTable {
    chunks: Vec<Option<Box<[Slot]>>>,
    /// Bytes allocated.
    pub(super) bytes: u64,
}

impl NatTable {
    pub(super) fn new(layout: &Layout) -> Self {
        Self {
            chunks: vec![None; layout.nat_blocks as usize],
            bytes: 0,
        }
    }

    /// Stores an entry; `NULL` for a node not in use.
    pub(super) fn put(&mut self, layout: &Layout, nid: Nid, entry: NatEntry) {
        let (block, slot) = layout.nat_slot(nid);
        let Some(chunk) = self.chunks.get_mut(block as usize) else {
            return;
        };
        if chunk.is_none() && !entry.is_used() {
            return;
        }
        let bytes = &mut self.bytes;
        let chunk = chunk.get_or_insert_with(|| {
            *bytes += (PER_BLOCK * size_of::<Slot>()) as u64;
            vec![Slot::default(); PER_BLOCK].into_boxed_slice()
        });
        chunk[slot] = Slot {
            addr: entry.addr,
            ino: entry.ino,
            version: entry.version,
            ..Slot::default()
        };
    }

    /// The state of a node in use.
    pub(super) fn get(&self, layout: &Layout, nid: Nid) -> Option<Slot> {
        let (block, slot) = layout.nat_slot(nid);
        let chunk = self.chunks.get(block as usize)?.as_ref()?;
        Some(chunk[slot]).filter(|slot| slot.addr != BlockAddr::NULL)
    }

    /// The mutable state of a node in use.
    pub(super) fn get_mut(&mut self, layout: &Layout, nid: Nid) -> Option<&mut Slot> {
        let (block, slot) = layout.nat_slot(nid);
        let chunk = self.chunks.get_mut(block as usize)?.as_mut()?;
        Some(&mut chunk[slot]).filter(|slot| slot.addr != BlockAddr::NULL)
    }

    /// The first node in use from `nid` on.
    pub(super) fn next_used(&self, layout: &Layout, nid: Nid) -> Option<(Nid, Slot)> {
        let (first, mut from) = layout.nat_slot(nid);
        for (block, chunk) in self.chunks.iter().enumerate().skip(first as usize) {
            if let Some(chunk) = chunk {
                let found = (from..PER_BLOCK).find(|&slot| chunk[slot].addr != BlockAddr::NULL);
                if let Some(slot) = found {
                    return Some((Nid((block * PER_BLOCK + slot) as u32), chunk[slot]));
                }
            }
            from = 0;
        }
        None
    }
}

const WORDS: usize = SEGMENT_BLOCKS as usize / 64;

/// A bit per block of a segment.
type Map = [u64; WORDS];

/// A bit per block of the main area, in the order of the SIT's valid maps, which are read as big-endian words.
pub(super) struct Blocks {
    segments: Vec<Map>,
}

impl Blocks {
    pub(super) fn new(layout: &Layout) -> Self {
        Self {
            segments: vec![[0; WORDS]; layout.main_segments as usize],
        }
    }

    /// Loads a segment's valid map from the SIT.
    pub(super) fn load(&mut self, segment: SegNo, map: &[u8; 64]) {
        for (word, bytes) in self.segments[segment.0 as usize]
            .iter_mut()
            .zip(map.as_chunks::<8>().0)
        {
            *word = u64::from_be_bytes(*bytes);
        }
    }

    pub(super) fn map(&self, segment: SegNo) -> &Map {
        &self.segments[segment.0 as usize]
    }

    const fn bit_position(offset: u32) -> (usize, u64) {
        ((offset / 64) as usize, 1 << (63 - offset % 64))
    }

    pub(super) fn get(&self, segment: SegNo, offset: u32) -> bool {
        let (word, bit) = Self::bit_position(offset);
        self.segments[segment.0 as usize][word] & bit != 0
    }

    /// Marks a block. Returns whether it was marked before.
    pub(super) fn set(&mut self, segment: SegNo, offset: u32) -> bool {
        let (word, bit) = Self::bit_position(offset);
        let word = &mut self.segments[segment.0 as usize][word];
        let before = *word & bit != 0;
        *word |= bit;
        before
    }

    /// Number of marked blocks.
    pub(super) fn count(map: &Map) -> u32 {
        map.iter().map(|word| word.count_ones()).sum()
    }

    /// The first marked block.
    pub(super) fn first(map: &Map) -> Option<u32> {
        let (n, word) = (0..).zip(map).find(|(_, word)| **word != 0)?;
        Some(n * 64 + word.leading_zeros())
    }

    /// Blocks marked in `a` and not in `b`.
    pub(super) fn without(a: &Map, b: &Map) -> Map {
        std::array::from_fn(|i| a[i] & !b[i])
    }
}

/// The most cached summary blocks.
const LINES: usize = 2048;

/// A cached summary block.
pub(super) struct Line {
    segment: SegNo,
    bytes: Box<[u8]>,
}

/// The SSA, cached block by block.
pub(super) struct Summaries {
    lines: Vec<Option<Line>>,
}

impl Summaries {
    pub(super) fn new(layout: &Layout) -> Self {
        let lines = (layout.main_segments as usize).min(LINES);
        Self {
            lines: (0..lines).map(|_| None).collect(),
        }
    }

    fn line(&self, segment: SegNo) -> usize {
        segment.0 as usize % self.lines.len()
    }

    /// A segment's summary block, if it is cached.
    pub(super) fn get(&self, segment: SegNo) -> Option<&[u8]> {
        let line = self.lines[self.line(segment)].as_ref()?;
        (line.segment == segment).then_some(&line.bytes)
    }

    /// Caches a segment's summary block, replacing another one.
    pub(super) fn put(&mut self, segment: SegNo, bytes: Box<[u8]>) {
        assert_eq!(bytes.len(), BLOCK_SIZE);
        let line = self.line(segment);
        self.lines[line] = Some(Line { segment, bytes });
    }
}

/// The bytes of an entry in a summary block.
pub(super) fn entry_bytes(block: &[u8], offset: u32) -> &[u8] {
    let at = offset as usize * ENTRY_SIZE;
    &block[at..at + ENTRY_SIZE]
}

/// The type of a summary block.
pub(super) fn holds(block: &[u8]) -> Option<SummaryKind> {
    match block[BLOCK_SIZE - 5] {
        0 => Some(SummaryKind::Data),
        1 => Some(SummaryKind::Nodes),
        _ => None,
    }
}

/// The state of a segment.
#[derive(Clone, Copy, Default)]
pub(super) struct Segment {
    /// Its type in the SIT; 255 if that is invalid.
    pub(super) kind: u8,
    flags: u8,
}

impl Segment {
    /// A block of the wrong kind was reported.
    pub(super) const TYPE_REPORTED: u8 = 1;
    /// A summary block of the wrong type was reported.
    pub(super) const SUMMARY_REPORTED: u8 = 2;

    /// Sets a flag. Returns whether it was set before.
    pub(super) fn set(&mut self, flag: u8) -> bool {
        let before = self.flags & flag != 0;
        self.flags |= flag;
        before
    }
}

/// A directory.
pub(super) struct Dir {
    pub(super) ino: Nid,
    /// Its range in the list of all directory blocks.
    pub(super) blocks: std::ops::Range<usize>,
    /// The directory that has its name.
    pub(super) parent: Option<Nid>,
    /// The parent in its inode.
    pub(super) stored_parent: Nid,
    pub(super) dotdot: Option<Nid>,
    pub(super) subdirs: u64,
}

/// A block of a directory.
#[derive(Clone, Copy)]
pub(super) struct DirBlock {
    /// Block number in the directory's file.
    pub(super) file_block: u32,
    pub(super) addr: BlockAddr,
}
