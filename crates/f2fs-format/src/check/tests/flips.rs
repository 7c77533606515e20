//! Random corruption with correct checksums: the checker never panics or hangs, and finds whatever fsck.f2fs finds.

use std::collections::BTreeMap;

use super::provoked::ImageFile;
use super::*;
use crate::disk::Nid;
use crate::disk::checkpoint::verify_block;
use crate::disk::inode;
use crate::disk::node::Footer;
use crate::test_support::corrupt::{BaseImage, CorruptVolume};

/// A small random generator with a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % limit as u64) as usize
    }
}

/// The number of rounds; STEADFS_FLIPS overrides it.
fn rounds(default: usize) -> usize {
    let asked = std::env::var("STEADFS_FLIPS").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// Blocks by kind.
struct Places {
    /// The blocks of each kind, so that rare kinds are picked as often as others.
    kinds: Vec<Vec<BlockAddr>>,
    nodes: Vec<Nid>,
}

impl Places {
    fn of(volume: &CorruptVolume, base: BaseImage) -> Self {
        let opened = volume.opened();
        let layout = &volume.layout;
        let cp = &opened.checkpoint;
        let pack = layout.pack_start(opened.pack);
        let filled = (base.filled() / BLOCK_SIZE) as u32;
        let holds = |addr: &BlockAddr| {
            addr.0 < filled && opened.blocks(*addr, 1).iter().any(|byte| *byte != 0)
        };
        let nodes = opened.nids();
        let node_blocks: Vec<_> = nodes.iter().map(|nid| opened.nat(*nid).addr).collect();
        let data = |addr: &BlockAddr| {
            let block = opened.blocks(*addr, 1);
            let same = block.iter().all(|byte| *byte == block[0]);
            !same && !node_blocks.contains(addr)
        };
        let main = (layout.main_start..filled).map(BlockAddr).filter(holds);
        let kinds = vec![
            (0..cp.pack_blocks).map(|n| pack.plus(n)).collect(),
            (layout.sit_start..layout.nat_start)
                .map(BlockAddr)
                .filter(holds)
                .collect(),
            (layout.nat_start..layout.ssa_start)
                .map(BlockAddr)
                .filter(holds)
                .collect(),
            (layout.ssa_start..layout.main_start)
                .map(BlockAddr)
                .filter(holds)
                .collect(),
            main.filter(data).collect(),
            node_blocks,
        ];
        Self { kinds, nodes }
    }

    /// A random byte, often among the fields.
    fn pick(&self, random: &mut Random) -> (BlockAddr, usize) {
        let kind = &self.kinds[random.below(self.kinds.len())];
        let within = match random.below(4) {
            0 => random.below(400),
            1 => BLOCK_SIZE - 1 - random.below(48),
            2 => random.below(64),
            _ => random.below(BLOCK_SIZE),
        };
        (kind[random.below(kind.len())], within)
    }
}

/// Corrects the checksums of inodes and of both ends of the pack.
fn mend(volume: &mut CorruptVolume, addr: BlockAddr, packs: [BlockAddr; 2]) {
    let layout = volume.layout.clone();
    if addr.0 >= layout.main_start {
        let block = volume.block(addr);
        if Footer::parse(block).offset == 0 {
            inode::seal(&layout, block);
        }
    } else if packs.contains(&addr) {
        let block = volume.block(addr);
        let at = u32::from_le_bytes([164, 165, 166, 167].map(|i| block[i])) as usize;
        if (192..=BLOCK_SIZE - 4).contains(&at) && verify_block(block).is_err() {
            let sum = crate::disk::checksum::of(&block[..at]);
            block[at..at + 4].copy_from_slice(&sum.to_le_bytes());
        }
        let block = block.to_vec();
        for end in packs {
            volume.block(end).copy_from_slice(&block);
        }
    }
}

fn pack_ends(volume: &CorruptVolume) -> [BlockAddr; 2] {
    let opened = volume.opened();
    let start = volume.layout.pack_start(opened.pack);
    [start, start.plus(opened.checkpoint.pack_blocks - 1)]
}

#[test]
fn corruption_never_panics_or_hangs() {
    let mut random = Random(7);
    for base in [BaseImage::Plain, BaseImage::Rich, BaseImage::Quota] {
        let mut volume = CorruptVolume::new(base);
        let places = Places::of(&volume, base);
        let packs = pack_ends(&volume);
        for _ in 0..rounds(300) {
            let mut undo = BTreeMap::new();
            for _ in 0..=random.below(12) {
                let (addr, at) = places.pick(&mut random);
                for addr in [addr, packs[0], packs[1]] {
                    let old = volume.block(addr).to_vec();
                    undo.entry(addr).or_insert(old);
                }
                let block = volume.block(addr);
                match random.below(4) {
                    0 => block[at] ^= 1 << random.below(8),
                    1 => block[at] = random.below(256) as u8,
                    2 => {
                        // References to random nodes and blocks.
                        let nid = places.nodes[random.below(places.nodes.len())];
                        let word = at / 4 * 4;
                        block[word..word + 4].copy_from_slice(&nid.0.to_le_bytes());
                    }
                    _ => {
                        let word = at / 4 * 4;
                        block[word..word + 4].fill(0xFF);
                    }
                }
                mend(&mut volume, addr, packs);
            }
            let began = steadfs_rt::now();
            check(&volume.bytes, &Options::default());
            assert!(began.elapsed().as_secs() < 120, "{undo:?}");
            for (addr, old) in undo {
                volume.block(addr).copy_from_slice(&old);
            }
        }
    }
}

/// Exchanged blocks, and truncated volumes.
#[test]
fn exchanged_blocks_never_panic() {
    let mut random = Random(3);
    let mut volume = CorruptVolume::new(BaseImage::Rich);
    let places = Places::of(&volume, BaseImage::Rich);
    for _ in 0..rounds(300) {
        let (one, _) = places.pick(&mut random);
        let (other, _) = places.pick(&mut random);
        let old = volume.block(one).to_vec();
        let new = volume.block(other).to_vec();
        volume.block(one).copy_from_slice(&new);
        check(&volume.bytes, &Options::default());
        volume.block(one).copy_from_slice(&old);
    }
    for blocks in [0, 1, 2, 3, 513, 600, 2000, 6000, 9000] {
        let cut = &volume.bytes[..blocks * BLOCK_SIZE];
        assert!(!check(&cut, &Options::default()).is_clean());
    }
}

/// One random wrong byte: the checker finds whatever fsck.f2fs finds.
#[test]
fn nothing_that_fsck_finds_is_missed() {
    let mut random = Random(11);
    let (mut found, mut missed) = (0, Vec::new());
    for base in [BaseImage::Plain, BaseImage::Rich, BaseImage::Quota] {
        let image = ImageFile::new(base);
        let mut volume = CorruptVolume::new(base);
        let places = Places::of(&volume, base);
        let packs = pack_ends(&volume);
        for _ in 0..rounds(60) {
            let (addr, at) = places.pick(&mut random);
            let value = random.below(256) as u8;
            let old = [addr, packs[0], packs[1]].map(|addr| (addr, volume.block(addr).to_vec()));
            let before = volume.block(addr)[at];
            volume.block(addr)[at] = value;
            mend(&mut volume, addr, packs);
            if !check(&volume.bytes, &Options::default()).is_clean() {
                found += 1;
            } else if before != value {
                let (code, said) = image.fsck(&volume.bytes);
                if code != 0 {
                    let lines: Vec<_> =
                        said.lines().filter(|line| !line.contains("Ok..")).collect();
                    let what =
                        format!("{base:?}: block {addr}, byte {at}: {before:#x} to {value:#x}");
                    missed.push(format!(
                        "{what}: {}",
                        lines[14.min(lines.len())..].join("\n")
                    ));
                }
            }
            for (addr, old) in old {
                volume.block(addr).copy_from_slice(&old);
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    assert!(found > 30, "only {found} bytes were damage");
}
