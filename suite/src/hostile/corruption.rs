//! Corrupts an image, as a function of a seed.

use steadfs_lab::device::Image;

use super::base::Base;
use super::survey::{MetadataBlock, Part};
use crate::generate::Numbers;

/// The kinds of corruption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// The end is missing.
    Truncated,
    /// Some bits, words or blocks are changed.
    Flipped,
    /// Large parts are random.
    Random,
}

impl Family {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Truncated, Self::Flipped, Self::Random];

    /// Name in messages and variables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::Flipped => "flipped",
            Self::Random => "random",
        }
    }

    /// A corrupt copy of a base.
    pub fn apply(self, base: &Base, seed: u64) -> Image {
        let mut corruption = Corrupter {
            base,
            image: base.image.clone(),
            numbers: Numbers::new(seed ^ (self as u64) << 60),
        };
        match self {
            Self::Truncated => return corruption.truncate(),
            Self::Flipped => corruption.flip(),
            Self::Random => corruption.randomize(),
        }
        corruption.image
    }
}

struct Corrupter<'a> {
    base: &'a Base,
    image: Image,
    numbers: Numbers,
}

/// Values at which arithmetic overflows.
const EDGES: [u64; 20] = [
    0,
    1,
    2,
    3,
    7,
    8,
    10,
    11,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0x8001,
    0xFFFF,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFE,
    0xFFFF_FFFF,
    0x1_0000,
];

impl Corrupter<'_> {
    fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).expect("a limit");
        usize::try_from(self.numbers.below(limit)).expect("below a usize")
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.numbers.below(100) < percent
    }

    fn block_size(&self) -> usize {
        self.base.survey.geo.block_size.bytes()
    }

    /// Cuts the image; in three of four cases the superblock agrees with the new size.
    fn truncate(mut self) -> Image {
        let size = self.image.size();
        let unit = match self.numbers.below(3) {
            0 => 1,
            1 => 512,
            _ => self.base.survey.geo.block_size.bytes_u64(),
        };
        let limit = match self.numbers.below(3) {
            0 => 65_536.min(size),
            _ => size,
        };
        let cut = self.numbers.below(limit) / unit * unit;
        if self.chance(75) && cut > 4096 {
            let blocks = cut / self.base.survey.geo.block_size.bytes_u64();
            let low = u32::try_from(blocks).expect("a small image");
            self.image.write(1024 + 4, &low.to_le_bytes());
            if self.chance(80) {
                let groups = self.base.survey.geo.blocks_per_group;
                let inodes = self.base.survey.geo.inodes_per_group;
                let left = low.div_ceil(groups).saturating_mul(inodes);
                self.image.write(1024, &left.to_le_bytes());
            }
            self.seal_super();
        }
        // A device has whole sectors.
        let cut = cut / 512 * 512;
        let mut out = Image::zeroed(cut);
        let mut piece = vec![0; 65_536];
        let mut at = 0;
        while at < cut {
            let n = piece.len().min(usize::try_from(cut - at).expect("small"));
            self.image.read(at, &mut piece[..n]);
            if piece[..n].iter().any(|&byte| byte != 0) {
                out.write(at, &piece[..n]);
            }
            at += n as u64;
        }
        out
    }

    fn flip(&mut self) {
        let hits = 1 + self.below(6);
        let sealed = self.chance(75);
        for _ in 0..hits {
            if self.chance(30) {
                let at = self.numbers.below(self.image.size());
                self.change(at, 1);
                continue;
            }
            let meta = self.pick_block();
            self.hit(&meta);
            if sealed {
                self.base.survey.seal(&mut self.image, &meta);
            }
        }
    }

    /// A block of metadata; each kind is equally likely.
    fn pick_block(&mut self) -> MetadataBlock {
        let parts = &self.base.survey.parts;
        let part = parts[self.below(parts.len())];
        self.pick_block_of(part)
    }

    fn pick_block_of(&mut self, part: Part) -> MetadataBlock {
        let metadata = self.base.survey.metadata.iter();
        let of_part: Vec<MetadataBlock> =
            metadata.filter(|meta| meta.part == part).copied().collect();
        of_part[self.below(of_part.len())]
    }

    /// Corrupts one block of metadata.
    fn hit(&mut self, meta: &MetadataBlock) {
        let size = self.block_size();
        let start = meta.block * size as u64;
        match self.numbers.below(12) {
            0 => self.image.write(start, &vec![0; size]),
            1 => {
                // Another block of the same kind, or of any kind.
                let other = if self.chance(60) {
                    self.pick_block_of(meta.part)
                } else {
                    self.pick_block()
                };
                let bytes = self.base.survey.block(&self.image, other.block);
                self.image.write(start, &bytes);
            }
            2 => {
                let from = self.below(size);
                let len = 1 + self.below((size - from).min(64));
                let bytes = self.numbers.bytes(len);
                self.image.write(start + from as u64, &bytes);
            }
            _ => {
                let at = self.offset(meta.part, size);
                let wide = [1, 2, 4, 4][self.below(4)];
                let at = at / wide * wide;
                self.change(start + at as u64, wide);
            }
        }
    }

    /// An offset in a block: important fields are mostly at the start of a structure.
    fn offset(&mut self, part: Part, size: usize) -> usize {
        match part {
            Part::Super => {
                let within = self.below(0x180);
                if size > 1024 { 1024 + within } else { within }
            }
            Part::Inodes => {
                let inode = usize::from(self.base.survey.geo.inode_size);
                let slots = size / inode;
                let used = if self.chance(50) {
                    slots.min(16)
                } else {
                    slots
                };
                let within = if self.chance(80) { 0x84 } else { inode };
                self.below(used) * inode + self.below(within.min(inode))
            }
            Part::Descriptors => self.below(size.min(512)),
            _ if self.chance(70) => self.below(size.min(64)),
            _ => self.below(size),
        }
    }

    /// Flips a bit of the word at `at`, or writes a plausible number there.
    fn change(&mut self, at: u64, wide: usize) {
        if at + wide as u64 > self.image.size() {
            return;
        }
        let mut word = [0; 8];
        self.image.read(at, &mut word[..wide]);
        let old = u64::from_le_bytes(word);
        let geo = &self.base.survey.geo;
        let (blocks, inodes) = (geo.blocks_count, u64::from(geo.inodes_count));
        let new = match self.numbers.below(8) {
            0 | 1 => EDGES[self.below(EDGES.len())],
            2 => self.numbers.below(blocks + 2),
            3 => self.numbers.below(inodes + 2),
            4 => self.pick_block().block,
            5 => old.wrapping_add(1 + self.numbers.below(4)),
            6 => self.numbers.number(),
            _ => old ^ 1 << self.below(wide * 8),
        };
        let big = self.chance(10);
        let bytes = if big {
            (new << (64 - 8 * wide)).to_be_bytes()
        } else {
            new.to_le_bytes()
        };
        self.image.write(at, &bytes[..wide]);
    }

    fn seal_super(&mut self) {
        let metadata = self.base.survey.metadata.iter();
        let meta = metadata.clone().find(|meta| meta.part == Part::Super);
        let meta = *meta.expect("every volume has one");
        self.base.survey.seal(&mut self.image, &meta);
    }

    fn randomize(&mut self) {
        match self.numbers.below(4) {
            0 => self.random_but_super(),
            1 => {
                for _ in 0..1 + self.below(5) {
                    let at = 1024 + 4 * self.numbers.below(96);
                    self.change(at, 4);
                }
                self.seal_super();
            }
            2 => {
                let part = self.base.survey.parts[self.below(self.base.survey.parts.len())];
                if part == Part::Super {
                    self.seal_super();
                    return self.random_but_super();
                }
                self.random_part(part);
            }
            _ => {
                for _ in 0..1 + self.below(4) {
                    let meta = self.pick_block();
                    if meta.part != Part::Super {
                        self.random_block(&meta);
                    }
                }
            }
        }
    }

    /// Random bytes after a good superblock, sometimes after good descriptors, too.
    fn random_but_super(&mut self) {
        let size = self.block_size() as u64;
        let (sb, _) = self.base.survey.geo.superblock_place();
        let keep_descriptors = self.chance(70);
        let last_kept = if keep_descriptors {
            let metadata = self.base.survey.metadata.iter();
            let descriptors = metadata.filter(|meta| meta.part == Part::Descriptors);
            descriptors.map(|meta| meta.block).max().unwrap_or(sb.0)
        } else {
            sb.0
        };
        let end = self.image.size().min((last_kept + 1) * size + (3 << 20));
        let mut at = (last_kept + 1) * size;
        while at < end {
            let len = usize::try_from((end - at).min(65_536)).expect("small");
            let bytes = self.numbers.bytes(len);
            self.image.write(at, &bytes);
            at += bytes.len() as u64;
        }
    }

    fn random_part(&mut self, part: Part) {
        let metadata: Vec<MetadataBlock> = self.base.survey.metadata.clone();
        for meta in metadata.iter().filter(|meta| meta.part == part) {
            self.random_block(meta);
        }
    }

    /// Random bytes in a block, or in its tail, mostly with a correct checksum.
    fn random_block(&mut self, meta: &MetadataBlock) {
        let size = self.block_size();
        let from = if self.chance(40) { 0 } else { self.below(size) };
        let bytes = self.numbers.bytes(size - from);
        self.image
            .write(meta.block * size as u64 + from as u64, &bytes);
        if self.chance(80) {
            self.base.survey.seal(&mut self.image, meta);
        }
    }
}
