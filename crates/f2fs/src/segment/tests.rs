//! The segment manager compared with a model that knows every block.

mod bg_victims;
mod disabled;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_block::{MemDevice, Queue, QueueOptions};
use steadfs_rt::{Random, sim};

use super::*;
use crate::checkpoint;
use crate::disk::checkpoint::CpFlags;
use crate::disk::{BLOCK_SIZE, Checkpoint};
use crate::format::{FormatOptions, image};

mod free_runs;
mod full;
mod space;
mod victims;

fn tag() -> IoTag {
    IoTag::default()
}

/// A volume of which only segments are used, with a minimal checkpoint writer.
struct Volume {
    device: Arc<MemDevice>,
    queue: Queue,
    layout: Layout,
    checkpoint: Checkpoint,
    pack: u32,
    segments: Segments,
}

impl Volume {
    fn new(size: u64, per_section: u32) -> Self {
        let opts = FormatOptions {
            segments_per_section: per_section,
            ..FormatOptions::default()
        };
        Self::open(image(size, &opts).unwrap())
    }

    fn open(device: Arc<MemDevice>) -> Self {
        let queue = Queue::new(device.clone(), QueueOptions::default());
        let superblock = crate::read_superblock(&queue).unwrap();
        let layout = superblock.layout().clone();
        let current = checkpoint::load(&queue, &layout).unwrap();
        let (cp, journal) = (&current.checkpoint, &current.sit_journal);
        let segments = Segments::load(&layout, cp, current.pack, journal, &queue, tag()).unwrap();
        segments.check();
        Self {
            device,
            queue,
            layout,
            checkpoint: current.checkpoint,
            pack: current.pack,
            segments,
        }
    }

    fn write(&self, at: BlockAddr, bytes: &[u8]) {
        self.device
            .write(u64::from(at.0) * BLOCK_SIZE as u64, bytes);
    }

    /// Writes a pack for the snapshot. The NAT stays as it is.
    fn write_pack(&mut self, snapshot: &mut SegmentSnapshot, unmount: bool) {
        let layout = self.layout.clone();
        snapshot
            .complete(&layout, &self.queue, unmount, tag())
            .unwrap();
        for (at, buf) in snapshot.sit_writes() {
            self.write(*at, buf);
        }
        for (at, buf) in snapshot.summary_writes(&layout) {
            self.write(at, &buf);
        }
        let mut blocks = snapshot.data_summaries([0; 507]);
        let mut flags = CpFlags::default();
        if blocks.len() < 3 {
            flags = flags.union(CpFlags::COMPACT_SUMMARIES);
        }
        if unmount {
            flags = flags.union(CpFlags::UNMOUNT);
            blocks.extend(snapshot.node_summaries());
        }
        let start_sum = 1 + layout.cp_payload;
        let checkpoint = Checkpoint {
            version: self.checkpoint.version + 1,
            logs: snapshot.logs,
            flags,
            start_sum,
            pack_blocks: start_sum + blocks.len() as u32 + 1,
            free_segments: snapshot.free_segments,
            valid_blocks: snapshot.valid.0 + snapshot.valid.1,
            valid_nodes: snapshot.valid.1 as u32,
            valid_inodes: 0,
            elapsed: snapshot.elapsed,
            sit_bitmap: snapshot.sit_bitmap.clone(),
            ..self.checkpoint.clone()
        };
        self.checkpoint = checkpoint;
        self.pack = 1 - self.pack;
        let start = layout.pack_start(self.pack);
        let head = self.checkpoint.encode(&layout).unwrap();
        self.write(start, &head);
        for (n, block) in (start_sum..).zip(&blocks) {
            self.write(start.plus(n), block);
        }
        let last = start.plus(self.checkpoint.pack_blocks - 1);
        self.write(last, &head[..BLOCK_SIZE]);
        let again = Checkpoint::parse(&layout, &head);
        assert_eq!(again.as_ref(), Ok(&self.checkpoint));
    }

    fn checkpoint(&mut self, unmount: bool) {
        let mut snapshot = self.segments.snapshot();
        self.write_pack(&mut snapshot, unmount);
        self.segments.committed(&snapshot, false);
        self.segments.check();
    }
}

/// The owner of each block, and which blocks must not be overwritten.
#[derive(Default)]
struct Model {
    valid: BTreeMap<u32, (Owner, bool)>,
    allocated: BTreeSet<u32>,
    /// Blocks of the durable checkpoint, and blocks that became valid since.
    ckpt_valid: BTreeSet<u32>,
    next: Option<BTreeSet<u32>>,
}

impl Model {
    fn may_be_written(&self, addr: BlockAddr) {
        let n = addr.0;
        assert!(!self.valid.contains_key(&n), "{n} is valid");
        assert!(!self.allocated.contains(&n), "{n} is allocated");
        assert!(
            !self.ckpt_valid.contains(&n),
            "{n} is in the last checkpoint"
        );
        let next = self.next.as_ref();
        assert!(
            !next.is_some_and(|next| next.contains(&n)),
            "{n} is in the checkpoint in flight"
        );
    }

    fn named(&mut self, addr: BlockAddr, owner: Owner, node: bool) {
        self.valid.insert(addr.0, (owner, node));
        self.next
            .as_mut()
            .unwrap_or(&mut self.ckpt_valid)
            .insert(addr.0);
    }

    fn begin(&mut self) {
        self.next = Some(self.valid.keys().copied().collect());
    }

    fn commit(&mut self) {
        self.ckpt_valid = self.next.take().unwrap();
    }
}

/// Random operations; `fill`: the share of the volume that users may have, in 1024ths.
struct RandomRun {
    volume: Volume,
    model: Model,
    random: Random,
    limit: usize,
}

impl RandomRun {
    fn new(size: u64, per_section: u32, seed: u64) -> Self {
        let volume = Volume::new(size, per_section);
        let mut model = Model::default();
        for n in 0..volume.layout.main_blocks() {
            let addr = volume.layout.block_in(SegNo(0), 0).plus(n);
            if volume.segments.is_valid(addr) {
                model.ckpt_valid.insert(addr.0);
            }
        }
        let reserved = model.ckpt_valid.len();
        let limit = volume.checkpoint.user_blocks as usize - reserved;
        Self {
            volume,
            model,
            random: Random::new(seed),
            limit,
        }
    }

    fn any_valid(&mut self) -> Option<BlockAddr> {
        let len = self.model.valid.len();
        let from = self.volume.layout.main_start;
        let at = from + self.random.below(self.volume.layout.main_blocks() as usize) as u32;
        let found = self.model.valid.range(at..).next();
        let found = found.or_else(|| self.model.valid.iter().next());
        (len > 0).then(|| BlockAddr(*found.unwrap().0))
    }

    /// Invalidates a block, which fails for the other kind of blocks.
    fn invalidate(&mut self, addr: BlockAddr) {
        let (_, node) = self.model.valid.remove(&addr.0).unwrap();
        let (content, other) = match node {
            true => (BlockKind::Node, BlockKind::Data),
            false => (BlockKind::Data, BlockKind::Node),
        };
        let segments = &self.volume.segments;
        assert!(segments.invalidate(addr, other).is_err());
        segments.invalidate(addr, content).unwrap();
    }

    fn used(&self) -> usize {
        self.model.valid.len() + self.model.allocated.len()
    }

    fn owner(&mut self) -> Owner {
        Owner {
            nid: Nid(4 + self.random.below(1000) as u32),
            version: self.random.below(4) as u8,
            slot: self.random.below(900) as u16,
        }
    }

    fn data(&mut self) {
        let kinds = [LogType::HotData, LogType::WarmData, LogType::ColdData];
        let log = kinds[self.random.below(3)];
        let want = 1 + self.random.below(60) as u32;
        if self.used() + want as usize > self.limit {
            return;
        }
        let purpose = [Purpose::User, Purpose::Reserved][self.random.below(2)];
        let Ok(run) = self.volume.segments.allocate(log, want, purpose) else {
            return;
        };
        for addr in run.blocks() {
            self.model.may_be_written(addr);
            self.model.allocated.insert(addr.0);
        }
        if self.random.chance(100) {
            // Kept for a while, as by a slow write.
            return;
        }
        for addr in run.blocks() {
            self.end_claim(addr);
        }
    }

    /// Moves no data, but allocates blocks as GC by age does.
    fn atgc(&mut self) {
        let want = 1 + self.random.below(40) as u32;
        let Some(from) = self.any_valid() else { return };
        if self.used() + want as usize > self.limit {
            return;
        }
        let Some(run) = self.volume.segments.allocate_atgc(from, want) else {
            return;
        };
        for addr in run.blocks() {
            self.model.may_be_written(addr);
            let owner = self.owner();
            self.volume.segments.set_valid_atgc(addr, owner, from);
            self.model.named(addr, owner, false);
        }
    }

    fn end_claim(&mut self, addr: BlockAddr) {
        assert!(self.model.allocated.remove(&addr.0));
        if self.random.chance(60) {
            self.volume.segments.release(Run {
                start: addr,
                len: 1,
            });
        } else {
            let owner = self.owner();
            self.volume.segments.set_valid(addr, owner);
            self.model.named(addr, owner, false);
        }
    }

    fn node(&mut self) {
        let kinds = [LogType::HotNode, LogType::WarmNode, LogType::ColdNode];
        let log = kinds[self.random.below(3)];
        if self.used() >= self.limit {
            return;
        }
        let nid = Nid(4 + self.random.below(1000) as u32);
        let Ok(placed) = self.volume.segments.place_node(log, nid) else {
            return;
        };
        self.model.may_be_written(placed.addr);
        let (version, slot) = (0, 0);
        self.model
            .named(placed.addr, Owner { nid, version, slot }, true);
        self.model.may_be_written(placed.next);
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..36 => self.data(),
            36..40 => self.atgc(),
            40..60 => self.node(),
            60..64 => {
                let allocated: Vec<u32> = self.model.allocated.iter().copied().collect();
                for addr in allocated {
                    self.end_claim(BlockAddr(addr));
                }
            }
            64..97 => {
                for _ in 0..self.random.below(24) {
                    if let Some(addr) = self.any_valid() {
                        self.invalidate(addr);
                        for content in [BlockKind::Data, BlockKind::Node] {
                            let again = self.volume.segments.invalidate(addr, content);
                            assert!(again.is_err());
                        }
                    }
                }
            }
            _ => {
                self.victims();
                self.checkpoint();
            }
        }
    }

    /// A checkpoint with operations between its snapshot and its end.
    fn checkpoint(&mut self) {
        let mut snapshot = self.volume.segments.snapshot();
        self.model.begin();
        let expected = self.model.valid.clone();
        for _ in 0..self.random.below(20) {
            match self.random.below(4) {
                0 => self.data(),
                1 => self.node(),
                2 => self.atgc(),
                _ => {
                    if let Some(addr) = self.any_valid() {
                        self.invalidate(addr);
                    }
                }
            }
            self.volume.segments.check();
        }
        let unmount = self.random.chance(512);
        self.write_nodes(&expected);
        self.volume.write_pack(&mut snapshot, unmount);
        self.volume.segments.committed(&snapshot, false);
        self.model.commit();
        self.volume.segments.check();
        self.compare(&expected);
    }

    /// Nodes with footers: a mount reads them if a pack has no node summaries.
    fn write_nodes(&self, expected: &BTreeMap<u32, (Owner, bool)>) {
        for (addr, (owner, node)) in expected {
            if *node {
                let mut block = vec![0; BLOCK_SIZE];
                block[BLOCK_SIZE - 24..BLOCK_SIZE - 20].copy_from_slice(&owner.nid.0.to_le_bytes());
                self.volume.write(BlockAddr(*addr), &block);
            }
        }
    }

    /// A mount finds the state of the snapshot.
    fn compare(&mut self, expected: &BTreeMap<u32, (Owner, bool)>) {
        let found = Volume::open(Arc::clone(&self.volume.device));
        let layout = &found.layout;
        let mut inner = found.segments.inner.lock();
        let mut valid = 0;
        for n in 0..layout.main_segments {
            let at = SegNo(n);
            let map = inner.manager.sit.current(at);
            if map.is_empty() {
                continue;
            }
            let kind = inner.manager.sit.kind(at);
            let mut edit = inner.manager.known_summary(at, kind);
            if !edit.unknown_of(map).is_empty() {
                let bytes = checkpoint::read_blocks(&found.queue, layout.summary_block(at), 1);
                let block = crate::disk::summary::SummaryBlock::parse(&bytes.unwrap()).unwrap();
                edit.fill_from(&block);
            }
            for offset in map.ones() {
                let addr = layout.block_in(at, offset);
                let Some((owner, node)) = expected.get(&addr.0) else {
                    continue;
                };
                valid += 1;
                assert_eq!(*node, kind.is_node());
                assert_eq!(edit.get(offset), Some(*owner), "{addr}");
            }
        }
        for addr in expected.keys() {
            let (at, offset) = layout.segment_of(BlockAddr(*addr)).unwrap();
            let map = inner.manager.sit.current(at);
            assert!(
                map.get(offset),
                "{at}/{offset} is not valid: {}",
                map.count()
            );
        }
        assert_eq!(valid, expected.len());
        let logs = &mut inner.manager;
        for kind in LogType::ALL {
            assert_eq!(logs.open_log(kind), found.checkpoint.log(kind));
        }
    }
}

fn long() -> usize {
    let steps = std::env::var("STEADFS_SEGMENT_STEPS").ok();
    steps.and_then(|n| n.parse().ok()).unwrap_or(1500)
}

fn random_run(size: u64, per_section: u32, seed: u64, force: bool) {
    let mut run = RandomRun::new(size, per_section, seed);
    run.volume.segments.set_policy(|p| {
        p.force_ssr = force;
        p.max_search = 20;
    });
    for _ in 0..long() {
        run.step();
        run.volume.segments.check();
    }
    let usage = run.volume.segments.usage();
    assert!(usage.lfs_blocks > 0);
    if force {
        assert!(usage.ssr_blocks > 0, "{usage:?}");
    }
}

#[test]
fn random_operations() {
    for seed in 0..3 {
        for (size, per_section, force) in [
            (192 << 20, 1, false),
            (192 << 20, 1, true),
            (384 << 20, 2, seed == 1),
        ] {
            // Years of simulated time, so that segments differ in age.
            let config = sim::Config {
                max_time: Duration::from_secs(100 * 365 * 86_400),
                ..sim::Config::new(seed)
            };
            sim::run(config, move || random_run(size, per_section, seed, force));
        }
    }
}
