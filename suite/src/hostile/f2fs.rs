//! The same for f2fs, read-only: finds the metadata blocks, corrupts them with correct checksums, and reads everything.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use steadfs_block::{Queue, QueueOptions};
use steadfs_f2fs::disk::checkpoint::{is_after, verify_block};
use steadfs_f2fs::disk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use steadfs_f2fs::disk::{
    BLOCK_SIZE, Checkpoint, Features, Layout, Superblock, checksum, inode, nat, node,
};
use steadfs_f2fs::{CacheSizes, F2fs, MountOptions, check};
use steadfs_lab::device::Image;
use steadfs_rt::sim;
use steadfs_vfs::FileSystem;

use super::base::write_tree;
use super::exercise::{CACHE, Outcome, QueueSource, Trial, run_trial};
use super::{Family, ImageDevice, encrypted};
use crate::command::succeed;
use crate::generate::Numbers;

/// The content of a block. Both copies of a table are corrupted alike, so it does not matter which one is current.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Both superblocks.
    Super,
    /// The first and the last block of a checkpoint pack.
    Checkpoint,
    /// Summaries and journals of the pack, and orphans.
    Summary,
    /// NAT blocks.
    Nat,
    /// SIT blocks.
    Sit,
    /// SSA blocks.
    Ssa,
    /// An inode.
    Inode,
    /// A node that is no inode.
    Node,
    /// A node that fsync wrote after the checkpoint.
    Chain,
    /// The first data blocks of each node: mostly directory entries.
    Data,
}

/// A clean volume.
pub struct F2fsBase {
    /// Name in messages.
    pub name: &'static str,
    /// Its content.
    pub image: Image,
    layout: Layout,
    /// Blocks that are corrupted together.
    metadata: Vec<(Part, Vec<u64>)>,
    /// Kinds of blocks in the volume.
    pub parts: Vec<Part>,
    nids: Vec<u32>,
    /// The version in the footers of nodes written after the checkpoint.
    node_version: u64,
}

const RECIPES: &[(&str, &str)] = &[
    ("plain", ""),
    (
        "all",
        "-i -O extra_attr,inode_checksum,sb_checksum,inode_crtime,lost_found,encrypt",
    ),
];

/// Bytes of a file whose map needs three levels of nodes.
const DEEP: usize = 13 << 20;

/// Offset of `block_count` in the superblock's block.
const BLOCK_COUNT: usize = 1024 + 36;

/// Values at which arithmetic overflows.
const EDGES: [u64; 14] = [
    0,
    1,
    2,
    63,
    0x1FF,
    0x200,
    0x7FFF,
    0xFFFF,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFE,
    0xFFFF_FFFF,
    455,
    1018,
];

/// How a volume is made.
pub struct Recipe<'a> {
    scratch: &'a Path,
    name: &'a str,
    args: &'a str,
}

impl<'a> Recipe<'a> {
    /// By mkfs.f2fs with `args`, in a file below `scratch`.
    pub fn new(scratch: &'a Path, name: &'a str, args: &'a str) -> Self {
        Self {
            scratch,
            name,
            args,
        }
    }

    /// Makes it, with files by sload.f2fs.
    ///
    /// # Panics
    /// If a program fails.
    pub fn make(&self) -> Image {
        let path = self.make_empty();
        let tree = self.scratch.join("tree");
        if !tree.exists() {
            write_tree(&tree);
            // sload.f2fs miscounts files with holes.
            std::fs::remove_file(tree.join("scattered")).expect("it was written");
            std::fs::write(tree.join("deep"), vec![0x5A; DEEP]).expect("scratch can be written");
        }
        let tree = tree.to_str().expect("scratch paths are UTF-8");
        let name = path.to_str().expect("scratch paths are UTF-8");
        succeed("sload.f2fs", ["-f", tree, name]);
        Image::load(&path).expect("a file")
    }

    /// Makes it without files.
    ///
    /// # Panics
    /// If a program fails.
    pub fn make_empty(&self) -> PathBuf {
        let path = self.scratch.join(self.name);
        let file = std::fs::File::create(&path).expect("scratch can be written");
        file.set_len(128 << 20).expect("scratch can be written");
        let name = path.to_str().expect("scratch paths are UTF-8");
        let all = ["-q", "-f"].into_iter().chain(self.args.split_whitespace());
        succeed("mkfs.f2fs", all.chain([name]));
        path
    }
}

fn read(image: &Image, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_SIZE];
    image.read(block * BLOCK_SIZE as u64, &mut bytes);
    bytes
}

fn write(image: &mut Image, block: u64, bytes: &[u8]) {
    image.write(block * BLOCK_SIZE as u64, bytes);
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// The volume with an encrypted directory.
fn with_encrypted(image: Image) -> Image {
    let run = move || {
        let device = Arc::new(ImageDevice::new(image));
        let options = MountOptions::default();
        let opened = F2fs::open(Arc::clone(&device) as _, options, CacheSizes::of(CACHE));
        let (fs, _) = opened.expect("a good volume can be mounted");
        encrypted::fill(&*fs, false);
        fs.unmount().expect("a good volume unmounts");
        device.content()
    };
    sim::run(sim::Config::new(1), run).value
}

impl F2fsBase {
    /// Makes every base, using `scratch` for files.
    ///
    /// # Panics
    /// If one cannot be made.
    pub fn all(scratch: &Path) -> Vec<Self> {
        let make = |&(name, args): &(&'static str, &str)| {
            let image = Recipe::new(scratch, name, args).make();
            match args.contains("encrypt") {
                true => Self::of(name, with_encrypted(image)),
                false => Self::of(name, image),
            }
        };
        RECIPES.iter().map(make).collect()
    }

    /// A volume that is clean, or whose checkpoint is.
    ///
    /// # Panics
    /// If it is not.
    pub fn of(name: &'static str, image: Image) -> Self {
        let mut raw = vec![0; SUPERBLOCK_SIZE];
        image.read(SUPERBLOCK_OFFSET as u64, &mut raw);
        let superblock = Superblock::parse(&raw).expect("a good superblock");
        let mut base = Self {
            name,
            image,
            layout: superblock.layout().clone(),
            metadata: vec![(Part::Super, vec![0, 1])],
            parts: Vec::new(),
            nids: Vec::new(),
            node_version: 0,
        };
        base.survey_pack();
        base.survey_tables();
        base.survey_nodes();
        base.parts = base.metadata.iter().map(|(part, _)| *part).collect();
        base.parts.sort_unstable();
        base.parts.dedup();
        base
    }

    /// Only the newer pack is corrupted: it is the one that is used.
    fn survey_pack(&mut self) {
        let heads = [0, 1].map(|pack| {
            let start = u64::from(self.layout.pack_start(pack).0);
            (start, verify_block(&read(&self.image, start)).ok())
        });
        let newest = heads.into_iter().filter_map(|(at, head)| Some((at, head?)));
        let newest = newest.reduce(|a, b| {
            if is_after(b.1.version, a.1.version) {
                b
            } else {
                a
            }
        });
        let (start, head) = newest.expect("a good pack");
        let blocks: Vec<u8> = (start..=start + u64::from(self.layout.cp_payload))
            .flat_map(|block| read(&self.image, block))
            .collect();
        let checkpoint = Checkpoint::parse(&self.layout, &blocks).expect("a good checkpoint");
        self.node_version = checkpoint.node_version();
        let last = start + u64::from(head.pack_blocks) - 1;
        self.metadata.push((Part::Checkpoint, vec![start, last]));
        for block in start + 1..last {
            self.metadata.push((Part::Summary, vec![block]));
        }
    }

    fn survey_tables(&mut self) {
        let layout = self.layout.clone();
        let used = |block: u64| read(&self.image, block).iter().any(|&byte| byte != 0);
        let mut found = Vec::new();
        for n in 0..layout.nat_blocks.min(8) {
            let first = u64::from(layout.nat_start) + u64::from(n / 512 * 1024 + n % 512);
            if used(first) || used(first + 512) {
                found.push((Part::Nat, vec![first, first + 512]));
            }
        }
        for n in 0..layout.sit_used_blocks().min(8) {
            let first = u64::from(layout.sit_start) + u64::from(n);
            found.push((Part::Sit, vec![first, first + u64::from(layout.sit_blocks)]));
        }
        for n in 0..layout.main_segments {
            let block = u64::from(layout.ssa_start) + u64::from(n);
            if used(block) {
                found.push((Part::Ssa, vec![block]));
            }
        }
        self.metadata.extend(found);
    }

    /// A block is a node if its footer's nid is in the NAT or a journal with this address.
    fn survey_nodes(&mut self) {
        let start = u64::from(self.layout.main_start);
        let blocks = u64::from(self.layout.main_segments) * 512;
        let listed = self.listed();
        let mut nodes = BTreeSet::new();
        for block in start..start + blocks {
            let bytes = read(&self.image, block);
            let footer = node::Footer::parse(&bytes);
            let nid = footer.nid.0;
            if nid != 0 && listed.contains(&(nid, block)) {
                nodes.insert(block);
                self.nids.push(nid);
                let part = if footer.ino.0 == nid {
                    Part::Inode
                } else {
                    Part::Node
                };
                self.metadata.push((part, vec![block]));
            } else if nid != 0 && footer.cp_version == self.node_version {
                nodes.insert(block);
                self.metadata.push((Part::Chain, vec![block]));
            }
        }
        let main = start..start + blocks;
        let mut data = BTreeSet::new();
        for &block in &nodes {
            let bytes = read(&self.image, block);
            let words = (0..BLOCK_SIZE - 24)
                .step_by(4)
                .map(|at| u64::from(word(&bytes, at)));
            // Three of each node: a large file's blocks are alike.
            data.extend(
                words
                    .filter(|at| main.contains(at) && !nodes.contains(at))
                    .take(3),
            );
        }
        self.metadata
            .extend(data.into_iter().map(|block| (Part::Data, vec![block])));
        assert!(
            self.nids.len() > 50,
            "{}: {} nodes",
            self.name,
            self.nids.len()
        );
    }

    /// Nids and addresses in both copies of the NAT and in the journals.
    fn listed(&self) -> BTreeSet<(u32, u64)> {
        let mut listed = BTreeSet::new();
        for (part, blocks) in &self.metadata {
            for &block in blocks {
                let bytes = read(&self.image, block);
                if *part == Part::Nat {
                    let n = (block - u64::from(self.layout.nat_start)) as usize;
                    let n = n / 1024 * 512 + n % 512;
                    for slot in 0..nat::PER_BLOCK {
                        let nid = (n * nat::PER_BLOCK + slot) as u32;
                        listed.insert((nid, nat::get(&bytes, slot).addr.0.into()));
                    }
                } else if *part == Part::Summary {
                    // A compact summary block begins with the journal; others end with it.
                    for at in [0, 3584] {
                        for entry in bytes[at + 2..at + 2 + 38 * 13].chunks(13) {
                            listed.insert((word(entry, 0), word(entry, 9).into()));
                        }
                    }
                }
            }
        }
        listed
    }

    /// Whether there is a node chain to recover.
    pub fn is_dirty(&self) -> bool {
        self.parts.contains(&Part::Chain)
    }

    /// The blocks of a kind; copies that are changed alike are one item.
    pub fn of_part(&self, part: Part) -> impl Iterator<Item = &[u64]> {
        let of_part = self.metadata.iter().filter(move |(p, _)| *p == part);
        of_part.map(|(_, blocks)| blocks.as_slice())
    }

    /// Changes the copies of a block alike; `seal`: with a correct checksum.
    pub fn update_copies(
        &self,
        image: &mut Image,
        part: Part,
        blocks: &[u64],
        seal: bool,
        change: &mut dyn FnMut(&mut [u8]),
    ) {
        let mut bytes = read(image, blocks[0]);
        change(&mut bytes);
        if seal {
            self.seal(part, &mut bytes);
        }
        for &block in blocks {
            write(image, block, &bytes);
        }
    }

    /// A copy with corruption of this kind.
    pub fn corrupt_copy(&self, family: Family, seed: u64) -> Image {
        let mut numbers = Numbers::new(seed ^ (family as u64) << 60);
        match family {
            Family::Truncated => self.truncated(&mut numbers),
            Family::Flipped => self.flipped(&mut numbers),
            Family::Random => self.randomized(&mut numbers),
        }
    }

    /// The first part of the image; in one of two cases the superblock agrees with its size.
    fn truncated(&self, numbers: &mut Numbers) -> Image {
        let unit = [512, BLOCK_SIZE as u64, 2 << 20][numbers.below(3) as usize];
        let limit = [65_536, 32 << 20, self.image.size()][numbers.below(3) as usize];
        let cut = numbers.below(limit) / unit * unit;
        let mut out = Image::zeroed(cut);
        let mut at = 0;
        while at < cut {
            let mut bytes = vec![0; usize::try_from((cut - at).min(1 << 20)).expect("small")];
            self.image.read(at, &mut bytes);
            if bytes.iter().any(|&b| b != 0) {
                out.write(at, &bytes);
            }
            at += bytes.len() as u64;
        }
        if numbers.below(2) == 0 && cut >= 2 * BLOCK_SIZE as u64 {
            let mut bytes = read(&out, 0);
            let blocks = cut / BLOCK_SIZE as u64;
            bytes[BLOCK_COUNT..BLOCK_COUNT + 8].copy_from_slice(&blocks.to_le_bytes());
            self.seal(Part::Super, &mut bytes);
            (0..2).for_each(|block| write(&mut out, block, &bytes));
        }
        out
    }

    /// Random bytes in some structures, mostly with a correct checksum.
    fn randomized(&self, numbers: &mut Numbers) -> Image {
        let mut image = self.image.clone();
        let part = self.metadata[numbers.below(self.metadata.len() as u64) as usize].0;
        let all_of_it = part != Part::Super && numbers.below(4) == 0;
        for (_, blocks) in self.metadata.iter().filter(|(p, _)| *p == part) {
            if !all_of_it && numbers.below(3) > 0 {
                continue;
            }
            let mut bytes = read(&image, blocks[0]);
            let head = if part == Part::Super { 1024 } else { 0 };
            let from = head + numbers.below((BLOCK_SIZE - head) as u64) as usize;
            let from = [head, from][numbers.below(2) as usize];
            let noise = numbers.bytes(BLOCK_SIZE - from);
            bytes[from..].copy_from_slice(&noise);
            if numbers.below(5) > 0 {
                self.seal(part, &mut bytes);
            }
            for &block in blocks {
                write(&mut image, block, &bytes);
            }
        }
        image
    }

    /// Changed values in some structures, with correct checksums.
    fn flipped(&self, numbers: &mut Numbers) -> Image {
        let mut image = self.image.clone();
        let parts = &self.parts;
        for _ in 0..1 + numbers.below(5) {
            let part = parts[numbers.below(parts.len() as u64) as usize];
            let of_part: Vec<_> = self.metadata.iter().filter(|(p, _)| *p == part).collect();
            let (_, blocks) = of_part[numbers.below(of_part.len() as u64) as usize];
            let mut bytes = read(&image, blocks[0]);
            let from = if part == Part::Super { 1024 } else { 0 };
            for _ in 0..1 + numbers.below(3) {
                self.change(part, &mut bytes[from..], numbers);
            }
            self.seal(part, &mut bytes);
            for &block in blocks {
                write(&mut image, block, &bytes);
            }
        }
        image
    }

    fn change(&self, part: Part, bytes: &mut [u8], numbers: &mut Numbers) {
        let wide = [1, 2, 4, 4][numbers.below(4) as usize];
        let end = bytes.len() as u64;
        // Important fields are mostly at the start of a structure, or at the end.
        let at = match numbers.below(4) {
            0 => numbers.below(end),
            1 => end - 1 - numbers.below(520.min(end)),
            _ => numbers.below(if part == Part::Super { 120 } else { 400 }),
        };
        let at = if part == Part::Nat {
            at / 9 * 9 + 5
        } else {
            at / wide * wide
        };
        let at = at.min(end - 8) as usize;
        let mut old = [0; 8];
        old[..wide as usize].copy_from_slice(&bytes[at..at + wide as usize]);
        let old = u64::from_le_bytes(old);
        let any = |numbers: &mut Numbers| self.nids[numbers.below(self.nids.len() as u64) as usize];
        let new = match numbers.below(8) {
            0 | 1 => EDGES[numbers.below(EDGES.len() as u64) as usize],
            2 => any(numbers).into(),
            3 => {
                let (_, blocks) =
                    &self.metadata[numbers.below(self.metadata.len() as u64) as usize];
                blocks[0]
            }
            4 => old.wrapping_add(1 + numbers.below(4)),
            5 => numbers.number(),
            _ => old ^ 1 << numbers.below(wide * 8),
        };
        bytes[at..at + wide as usize].copy_from_slice(&new.to_le_bytes()[..wide as usize]);
    }

    /// Updates checksums.
    fn seal(&self, part: Part, bytes: &mut [u8]) {
        match part {
            Part::Super if self.layout.has(Features::SB_CHECKSUM) => {
                let sum = checksum::of(&bytes[1024..1024 + 3068]);
                bytes[1024 + 3068..].copy_from_slice(&sum.to_le_bytes());
            }
            Part::Checkpoint => {
                let at = word(bytes, 164) as usize;
                if at <= BLOCK_SIZE - 4 {
                    let sum = checksum::of(&bytes[..at]);
                    // A checksum that is not the last field covers what follows it, too.
                    let sum = if at + 4 < BLOCK_SIZE && at == 192 {
                        checksum::over(sum, &bytes[at + 4..])
                    } else {
                        sum
                    };
                    bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
                }
            }
            Part::Inode => inode::seal(&self.layout, bytes),
            Part::Chain => {
                let footer = node::Footer::parse(bytes);
                if footer.ino == footer.nid {
                    inode::seal(&self.layout, bytes);
                }
            }
            _ => {}
        }
    }
}

/// Tries every reading operation on `image`.
pub fn exercise_f2fs(image: &Image) -> Outcome {
    run_trial(image, |trial| {
        let device = Arc::new(ImageDevice::new(trial.image.clone()));
        let queue = Arc::new(Queue::new(
            Arc::clone(&device) as _,
            QueueOptions::default(),
        ));
        let options = check::Options {
            memory_limit: 32 << 20,
            ..check::Options::default()
        };
        let report = check::check(&QueueSource(Arc::clone(&queue)), &options);
        trial.outcome.corrupt = !report.is_clean();
        let seen = trial.check_error("inspect", steadfs_f2fs::inspect::inspect(&queue));
        if seen.is_some_and(|seen| format!("{seen}").is_empty()) {
            trial.violation("inspect prints nothing".to_owned());
        }
        // Linux, too, reads a volume whose device is too short.
        trial.may_be_longer = true;
        read_all(trial, &device);
        if device.writes() > 0 {
            trial.violation("a read-only mount writes".to_owned());
        }
        trial.check_strays("f2fs", &device);
        trial.outcome.reported = trial.reported.is_some();
        if !trial.outcome.corrupt
            && let Some(reported) = trial.reported.take()
        {
            trial.violation(format!("the checker finds nothing, but: {reported}"));
        }
    })
}

fn read_all(trial: &mut Trial, device: &Arc<ImageDevice>) {
    for salvage in [false, true] {
        let mut options = MountOptions::default();
        options.common.read_only = true;
        options.common.salvage = salvage;
        let opened = F2fs::open(Arc::clone(device) as _, options, CacheSizes::of(CACHE));
        if let Some((fs, _)) = trial.check_error("mount", opened) {
            encrypted::open_up(&*fs);
            trial.outcome.mounted[0] |= !salvage;
            trial.walk(&*fs);
            let closed = fs.unmount();
            trial.check_error("unmount", closed);
        }
    }
}
