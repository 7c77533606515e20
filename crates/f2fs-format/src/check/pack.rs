//! The current checkpoint pack: its choice, counts, summaries, journals and orphans.

use steadfs_block::BlockSource;

use super::tables::Slot;
use super::{Checker, Issue, Report, read_from};
use crate::disk::checkpoint::{ALLOC_LFS, ALLOC_SSR, CpFlags, is_after, verify_block};
use crate::disk::summary::{CompactSummaries, Summary, SummaryBlock, SummaryKind};
use crate::disk::{
    BLOCK_SIZE, BlockAddr, Checkpoint, DiskError, Features, Layout, LogType, Nid, Structure,
    journal, orphan,
};

/// Summaries of the cursegs by [`LogType`]; `None` if the pack does not have them. An LFS curseg has one per block
/// before its position.
pub(super) type OpenSummaries = [Option<Vec<Summary>>; 6];

/// Both journals of a pack as they are stored.
pub(super) struct Journals {
    pub(super) nat: [u8; journal::SIZE],
    pub(super) sit: [u8; journal::SIZE],
}

const DATA_LOGS: [LogType; 3] = [LogType::HotData, LogType::WarmData, LogType::ColdData];
const NODE_LOGS: [LogType; 3] = [LogType::HotNode, LogType::WarmNode, LogType::ColdNode];

/// The valid pack with the higher version, as a mount chooses it. Only checksums and versions decide: an
/// inconsistent pack is not skipped in favour of an older one.
pub(super) fn choose(
    src: &dyn BlockSource,
    layout: &Layout,
    report: &mut Report,
) -> Option<(Checkpoint, u32)> {
    let first = read_pack(src, layout, 0, report)?;
    let second = read_pack(src, layout, 1, report)?;
    let ((_, blocks), pack) = match (first, second) {
        (Ok(first), Ok(second)) if is_after(second.0, first.0) => (second, 1),
        (Ok(first), _) => (first, 0),
        (Err(_), Ok(second)) => (second, 1),
        (Err(first), Err(second)) => {
            report.issues.push(Issue::NoCheckpoint { first, second });
            return None;
        }
    };
    match Checkpoint::parse(layout, &blocks) {
        Ok(checkpoint) => Some((checkpoint, pack)),
        Err(error) => {
            let error = error.in_block(layout.pack_start(pack));
            report.issues.push(Issue::Pack(error));
            None
        }
    }
}

/// A pack's version, first block and payload, if its first and last block verify and agree; `None` and an issue if
/// it cannot be read.
fn read_pack(
    src: &dyn BlockSource,
    layout: &Layout,
    pack: u32,
    report: &mut Report,
) -> Option<Result<(u64, Vec<u8>), DiskError>> {
    let start = layout.pack_start(pack);
    let mut buf = Vec::new();
    let mut read = |at: BlockAddr, count: u32| {
        let good = read_from(src, at, count, &mut buf);
        if !good {
            report.issues.push(Issue::Unreadable { block: at });
        }
        good.then(|| buf.clone())
    };
    let blocks = read(start, 1 + layout.cp_payload)?;
    let head = match verify_block(&blocks[..BLOCK_SIZE]) {
        Ok(head) => head,
        Err(error) => return Some(Err(error.in_block(start))),
    };
    let last = start.plus(head.pack_blocks - 1);
    let tail = verify_block(&read(last, 1)?).and_then(|tail| {
        if tail.version == head.version {
            return Ok(());
        }
        let (field, rule) = ("checkpoint_ver", "not that of the pack's first block");
        let what = Structure::Checkpoint;
        Err(DiskError::field(what, field, tail.version, rule))
    });
    Some(match tail {
        Ok(()) => Ok((head.version, blocks)),
        Err(error) => Err(error.in_block(last)),
    })
}

impl Checker<'_> {
    /// Whether a volume has this log: with the feature `ro` there is one for data and one for nodes.
    pub(super) fn has_log(&self, log: LogType) -> bool {
        !self.layout.has(Features::READ_ONLY) || matches!(log, LogType::HotData | LogType::HotNode)
    }

    /// Checks counts that depend on the volume, and the pack's length.
    pub(super) fn check_checkpoint(&mut self) {
        let cp = &self.checkpoint;
        let layout = &self.layout;
        let kept = u64::from(cp.overprovision_segments);
        let mut found = Vec::new();
        let mut bad = |field, stored: u64, rule| {
            found.push(Issue::Checkpoint {
                field,
                stored,
                rule,
            });
        };
        if !layout.has(Features::READ_ONLY) {
            let reserved = cp.reserved_segments.into();
            if kept == 0 {
                bad(
                    "overprov_segment_count",
                    kept,
                    "no segments are reserved for garbage collection",
                );
            }
            if reserved == 0 || reserved > kept {
                let rule = "more than the overprovisioned segments";
                bad("rsvd_segment_count", reserved, rule);
            }
        }
        for log in LogType::ALL.into_iter().filter(|log| self.has_log(*log)) {
            let alloc = cp.log(log).alloc;
            if alloc != ALLOC_LFS && alloc != ALLOC_SSR {
                bad("alloc_type", alloc.into(), "neither LFS nor SSR");
            }
        }
        let expected = self.expected_pack_blocks();
        if cp.pack_blocks != expected {
            let rule = "not the length of the pack's content";
            bad("cp_pack_total_block_count", cp.pack_blocks.into(), rule);
        }
        for issue in found {
            self.issue(issue);
        }
        self.check_ends();
    }

    /// Number of blocks of the pack according to its content.
    fn expected_pack_blocks(&self) -> u32 {
        let cp = &self.checkpoint;
        let data = if cp.flags.contains(CpFlags::COMPACT_SUMMARIES) {
            let entries: u32 = self.checkpoint.compacted_counts().iter().sum();
            CompactSummaries::blocks_for(entries as usize) as u32
        } else {
            3
        };
        let nodes = if cp.has_node_summaries() { 3 } else { 0 };
        cp.start_sum + data + nodes + 1
    }

    fn check_ends(&mut self) {
        let start = self.layout.pack_start(self.pack);
        let last = start.plus(self.checkpoint.pack_blocks - 1);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        if self.read_block(start, &mut a) && self.read_block(last, &mut b) && a != b {
            let pack = self.pack;
            self.issue(Issue::PackEnds { pack });
        }
    }

    /// Loads summaries, journals and orphans; `None` if the journals cannot be decoded.
    pub(super) fn load_pack(&mut self) -> Option<Journals> {
        let start = self.layout.pack_start(self.pack);
        let first = self.checkpoint.start_sum;
        let count = self.checkpoint.pack_blocks - first;
        let mut blocks = Vec::new();
        self.load_orphans();
        if !self.read_blocks(start.plus(first), count, &mut blocks) {
            return None;
        }
        match self.parse_summaries(&blocks) {
            Ok(journals) => Some(journals),
            Err(error) => {
                self.issue(Issue::Pack(error));
                None
            }
        }
    }

    /// Decodes summaries and journals from the blocks after the orphans.
    fn parse_summaries(&mut self, blocks: &[u8]) -> Result<Journals, DiskError> {
        let compacted = self.checkpoint.flags.contains(CpFlags::COMPACT_SUMMARIES);
        let mut journals = None;
        if compacted {
            let packed = CompactSummaries::parse(blocks, self.checkpoint.compacted_counts())?;
            for (log, entries) in DATA_LOGS.into_iter().zip(packed.logs) {
                self.open[log.index()] = Some(entries);
            }
            journals = Some(Journals {
                nat: packed.nat_journal,
                sit: packed.sit_journal,
            });
        }
        let data = DATA_LOGS.into_iter().filter(|_| !compacted);
        let nodes = NODE_LOGS
            .into_iter()
            .filter(|_| self.checkpoint.has_node_summaries());
        let mut whole = [None, None];
        for log in data.chain(nodes).collect::<Vec<_>>() {
            let block = self.parse_summary(blocks, log)?;
            match log {
                LogType::HotData => whole[0] = Some(block.journal),
                LogType::ColdData => whole[1] = Some(block.journal),
                _ => {}
            }
            self.open[log.index()] = Some(block.entries.to_vec());
        }
        match (journals, whole) {
            (Some(journals), _) => Ok(journals),
            (None, [Some(nat), Some(sit)]) => Ok(Journals { nat, sit }),
            (None, _) => unreachable!("normal summaries were decoded above"),
        }
    }

    fn parse_summary(&mut self, blocks: &[u8], log: LogType) -> Result<SummaryBlock, DiskError> {
        let cp = &self.checkpoint;
        let position = cp.summary_in_pack(log);
        let block = position
            .and_then(|at| at.checked_sub(cp.start_sum))
            .and_then(|n| blocks.get(n as usize * BLOCK_SIZE..(n as usize + 1) * BLOCK_SIZE))
            .ok_or_else(|| {
                let (field, rule) = ("cp_pack_total_block_count", "too small for the summaries");
                DiskError::field(Structure::Checkpoint, field, cp.pack_blocks, rule)
            })?;
        let block = SummaryBlock::parse(block)?;
        let wanted = if log.is_node() {
            SummaryKind::Nodes
        } else {
            SummaryKind::Data
        };
        if block.holds != wanted && self.has_log(log) {
            let segment = cp.log(log).segment;
            let why = "has a summary of the other type";
            self.issue(Issue::Log { log, segment, why });
        }
        Ok(block)
    }

    fn load_orphans(&mut self) {
        let start = self.layout.pack_start(self.pack);
        let mut block = Vec::new();
        for n in self.checkpoint.orphan_blocks(&self.layout) {
            let at = start.plus(n);
            if !self.read_block(at, &mut block) {
                continue;
            }
            let list = match orphan::parse(&self.layout, &block) {
                Ok(list) => list,
                Err(error) => {
                    self.issue(Issue::OrphanBlock(error.in_block(at)));
                    continue;
                }
            };
            for ino in list {
                if !self.orphans.insert(ino.0) {
                    let why = "occurs twice";
                    self.issue(Issue::Orphan { ino, why });
                }
            }
        }
        self.report.stats.orphans = self.orphans.len() as u32;
    }

    /// Marks orphans in the node table.
    pub(super) fn mark_orphans(&mut self) {
        for ino in std::mem::take(&mut self.orphans) {
            let ino = Nid(ino);
            match self.nat.get_mut(&self.layout, ino) {
                Some(slot) if slot.ino == ino => {
                    slot.set(Slot::ORPHAN);
                }
                _ => {
                    let why = "is not an inode in use";
                    self.issue(Issue::Orphan { ino, why });
                }
            }
        }
    }

    /// Marks quota files in the node table.
    pub(super) fn mark_quota_files(&mut self, files: [Option<Nid>; 3]) {
        for ino in files.into_iter().flatten() {
            match self.nat.get_mut(&self.layout, ino) {
                Some(slot) if slot.ino == ino => {
                    slot.set(Slot::HIDDEN);
                }
                _ => {
                    let why = "is not an inode in use";
                    self.issue(Issue::QuotaFile { ino, why });
                }
            }
        }
    }
}
