//! What the checker remembers: twenty bytes for each node in use, two bits for each block of the main
//! area, and a bounded number of summary blocks. Memory for nodes is taken by block of the node address
//! table, when the first of its entries turns up.

use crate::disk::nat::PER_BLOCK;
use crate::disk::summary::{ENTRY_SIZE, SummaryKind};
use crate::disk::{BLOCK_SIZE, BlockAddr, Layout, NatEntry, Nid, SEGMENT_BLOCKS, SegNo};

/// What is known of a node.
#[derive(Clone, Copy, Default)]
pub(super) struct Slot {
    /// Its block; `NULL` where there is no such node.
    pub(super) addr: BlockAddr,
    /// The inode it belongs to.
    pub(super) ino: Nid,
    /// Of an inode: names found.
    pub(super) names: u32,
    /// Of an inode: links as stored.
    pub(super) links: u32,
    pub(super) version: u8,
    /// Of an inode that could be read its type byte, as in directory entries; otherwise 0.
    pub(super) kind: u8,
    flags: u8,
}

impl Slot {
    /// Some tree has it.
    pub(super) const REACHED: u8 = 1;
    /// On the list of orphans.
    pub(super) const ORPHAN: u8 = 2;
    /// Has no name by its nature: quota files.
    pub(super) const HIDDEN: u8 = 4;

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Sets a flag; whether it was set before.
    pub(super) fn set(&mut self, flag: u8) -> bool {
        let before = self.has(flag);
        self.flags |= flag;
        before
    }
}

/// The node address table with its journal, and what is found out of each node.
pub(super) struct NatTable {
    chunks: Vec<Option<Box<[Slot]>>>,
    /// Bytes taken.
    pub(super) bytes: u64,
}

impl NatTable {
    pub(super) fn new(layout: &Layout) -> Self {
        Self {
            chunks: vec![None; layout.nat_blocks as usize],
            bytes: 0,
        }
    }

    /// Keeps an entry; `NULL` for a node that is not in use.
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

    /// A node in use.
    pub(super) fn get(&self, layout: &Layout, nid: Nid) -> Option<Slot> {
        let (block, slot) = layout.nat_slot(nid);
        let chunk = self.chunks.get(block as usize)?.as_ref()?;
        Some(chunk[slot]).filter(|slot| slot.addr != BlockAddr::NULL)
    }

    /// The same, to be changed.
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

/// Blocks of one segment.
type Map = [u64; WORDS];

/// A bit for each block of the main area. The order is that of the segment table's maps, read as big-endian
/// words.
pub(super) struct Blocks {
    segments: Vec<Map>,
}

impl Blocks {
    pub(super) fn new(layout: &Layout) -> Self {
        Self {
            segments: vec![[0; WORDS]; layout.main_segments as usize],
        }
    }

    /// Takes over a segment's map from the segment table.
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

    const fn place(offset: u32) -> (usize, u64) {
        ((offset / 64) as usize, 1 << (63 - offset % 64))
    }

    pub(super) fn get(&self, segment: SegNo, offset: u32) -> bool {
        let (word, bit) = Self::place(offset);
        self.segments[segment.0 as usize][word] & bit != 0
    }

    /// Marks a block; whether it was marked before.
    pub(super) fn set(&mut self, segment: SegNo, offset: u32) -> bool {
        let (word, bit) = Self::place(offset);
        let word = &mut self.segments[segment.0 as usize][word];
        let before = *word & bit != 0;
        *word |= bit;
        before
    }

    /// Number of blocks marked.
    pub(super) fn count(map: &Map) -> u32 {
        map.iter().map(|word| word.count_ones()).sum()
    }

    /// The first block marked.
    pub(super) fn first(map: &Map) -> Option<u32> {
        let (n, word) = (0..).zip(map).find(|(_, word)| **word != 0)?;
        Some(n * 64 + word.leading_zeros())
    }

    /// Blocks marked in `a` and not in `b`.
    pub(super) fn without(a: &Map, b: &Map) -> Map {
        std::array::from_fn(|i| a[i] & !b[i])
    }
}

/// Summary blocks kept at most.
const LINES: usize = 2048;

/// A summary block that is kept.
pub(super) struct Line {
    segment: SegNo,
    bytes: Box<[u8]>,
}

/// Summaries of closed segments, read when they are asked for.
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

    /// A segment's summary block, if it is here.
    pub(super) fn get(&self, segment: SegNo) -> Option<&[u8]> {
        let line = self.lines[self.line(segment)].as_ref()?;
        (line.segment == segment).then_some(&line.bytes)
    }

    /// Keeps a segment's summary block in the place of another's.
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

/// What a summary block says that its segment holds.
pub(super) fn holds(block: &[u8]) -> Option<SummaryKind> {
    match block[BLOCK_SIZE - 5] {
        0 => Some(SummaryKind::Data),
        1 => Some(SummaryKind::Nodes),
        _ => None,
    }
}

/// What is known of a segment.
#[derive(Clone, Copy, Default)]
pub(super) struct Segment {
    /// Number of its log in the segment table; 255 where the entry has none.
    pub(super) kind: u8,
    flags: u8,
}

impl Segment {
    /// The wrong kind of blocks was found in it, and told.
    pub(super) const TYPE_TOLD: u8 = 1;
    /// Its summary has the wrong type, which was told.
    pub(super) const SUMMARY_TOLD: u8 = 2;

    /// Sets a flag; whether it was set before.
    pub(super) fn set(&mut self, flag: u8) -> bool {
        let before = self.flags & flag != 0;
        self.flags |= flag;
        before
    }
}

/// A directory.
pub(super) struct Dir {
    pub(super) ino: Nid,
    /// Its blocks in the list of all directories' blocks.
    pub(super) blocks: std::ops::Range<usize>,
    /// Where its name was found.
    pub(super) parent: Option<Nid>,
    /// The directory that its inode says it was made in, or was moved to.
    pub(super) stored_parent: Nid,
    pub(super) dotdot: Option<Nid>,
    pub(super) subdirs: u64,
}

/// A block of a directory.
#[derive(Clone, Copy)]
pub(super) struct DirBlock {
    /// Block of the directory's file.
    pub(super) file_block: u32,
    pub(super) addr: BlockAddr,
}
