//! Read-only consistency checker: what fsck.f2fs --dry-run would say and more, as a list of exact
//! [`Issue`]s.
//!
//! It reads through a [`BlockSource`], so that it runs on an image in memory and on a device. It changes
//! nothing, keeps a few bits for each block of the main area and twenty bytes for each node in use, and
//! never panics or loops on damage: each node is visited once, whatever points to it.
//!
//! A volume is checked as its checkpoint has it. What fsync wrote after the checkpoint is no part of
//! that: it is followed, counted ([`Stats::fsynced_nodes`]) and must not contradict the checkpoint.
//!
//! The steps, in order: superblocks and checkpoint; node address table and segment table; every inode
//! with its tree, blocks and attributes, each block against its segment's summary; every directory;
//! names against inodes; orphans; what fsync wrote; maps of valid blocks and counts.
//!
//! Where it differs from fsck.f2fs on purpose:
//! - an older or broken checkpoint pack beside the current one, and errors that the volume notes about
//!   itself, are not damage;
//! - what fsck.f2fs does not look at is looked at: hash places behind the depth, equal names, slots of
//!   long names, clusters, contexts of encrypted files, versions of nodes.
//!
//! What a volume has that is not looked at is named in [`Report::skipped`].

mod blocks;
mod dentries;
mod dirs;
mod fsynced;
mod inodes;
mod issue;
mod links;
mod loaded;
mod pack;
mod quota;
mod segments;
mod tables;
mod tree;
mod xattrs;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use steadfs_block::BlockSource;
use thiserror::Error;

use crate::disk::checkpoint::CpFlags;
use crate::disk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use crate::disk::{
    BLOCK_SIZE, BlockAddr, Checkpoint, CorruptKind, Features, Layout, MountMode, SegNo, Superblock,
    mount_mode,
};

pub use issue::{Issue, Name};
use tables::{Blocks, Dir, DirBlock, NatTable, Segment, Summaries};

/// How to check.
#[derive(Clone, Debug)]
pub struct Options {
    /// Keep at most this many issues; the rest is counted.
    pub max_issues: usize,
    /// Stop ([`Refusal::TooLarge`]) where a volume needs more bytes of memory than this.
    pub memory_limit: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_issues: 1000,
            memory_limit: 4 << 30,
        }
    }
}

/// What was counted on the way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks of the main area.
    pub blocks: u64,
    /// Valid blocks, those promised to files included.
    pub blocks_used: u64,
    /// Nodes that the volume can have.
    pub nodes: u32,
    /// Nodes in use.
    pub nodes_used: u32,
    /// Inodes in use.
    pub inodes_used: u32,
    /// Regular files.
    pub files: u32,
    /// Regular files and links whose content lies in the inode.
    pub inline_files: u32,
    /// Regular files that may be compressed.
    pub compressed_files: u32,
    /// Directories.
    pub dirs: u32,
    /// Directories whose entries lie in the inode.
    pub inline_dirs: u32,
    /// Symbolic links.
    pub symlinks: u32,
    /// Devices, pipes and sockets.
    pub specials: u32,
    /// Names, `.` and `..` not counted.
    pub names: u64,
    /// Nodes of attributes.
    pub xattr_nodes: u32,
    /// Segments of the main area.
    pub segments: u32,
    /// Segments without a valid block that no log has open.
    pub free_segments: u32,
    /// Inodes on the list of orphans.
    pub orphans: u32,
    /// Version of the checkpoint.
    pub checkpoint: u64,
    /// Whether the checkpoint was written by an unmount.
    pub unmounted: bool,
    /// Nodes that fsync wrote after the checkpoint.
    pub fsynced_nodes: u64,
    /// Files that they belong to.
    pub fsynced_files: u64,
    /// Whether the volume notes errors or an unwanted stop.
    pub notes_errors: bool,
}

/// Why a volume was not checked: that says nothing about whether it is damaged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// It needs what is not supported.
    #[error("not supported: {names}")]
    Unsupported {
        /// Names of the features.
        names: String,
    },
    /// The check takes more memory than allowed.
    #[error("checking this volume takes more than {needed} bytes of memory")]
    TooLarge {
        /// Bytes needed.
        needed: u64,
    },
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Why it was not checked, or not to its end.
    pub refused: Option<Refusal>,
    /// Everything found, in the order of the steps.
    pub issues: Vec<Issue>,
    /// Issues beyond [`Options::max_issues`].
    pub more: u64,
    /// What was counted.
    pub stats: Stats,
    /// What the volume has and was not checked, by name.
    pub skipped: Vec<Cow<'static, str>>,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.refused.is_none() && self.issues.is_empty() && self.more == 0
    }
}

/// Checks the volume that `src` holds.
pub fn check(src: &dyn BlockSource, options: &Options) -> Report {
    let mut report = Report::default();
    let Some(superblock) = read_superblocks(src, &mut report) else {
        return report;
    };
    let layout = superblock.layout().clone();
    let mut refused = match mount_mode(superblock.features()) {
        MountMode::Refused { features } => features,
        MountMode::ReadOnly { .. } | MountMode::ReadWrite => Vec::new(),
    };
    if !superblock.devices().is_empty() {
        refused.push("several devices".into());
    }
    if !refused.is_empty() {
        let names = refused.join(", ");
        report.refused = Some(Refusal::Unsupported { names });
        return report;
    }
    let needed = memory_needed(&layout);
    if needed > options.memory_limit {
        report.refused = Some(Refusal::TooLarge { needed });
        return report;
    }
    let device_blocks = src.size_bytes() / BLOCK_SIZE as u64;
    if layout.block_count > device_blocks {
        let blocks = layout.block_count;
        report.issues.push(Issue::DeviceTooSmall {
            blocks,
            device_blocks,
        });
    }
    let Some((checkpoint, pack)) = pack::choose(src, &layout, &mut report) else {
        return report;
    };
    let mut checker = Checker::new(src, options, &superblock, checkpoint, pack);
    checker.report = report;
    checker.run(&superblock);
    checker.report
}

/// The first copy of the superblock that verifies.
fn read_superblocks(src: &dyn BlockSource, report: &mut Report) -> Option<Superblock> {
    let mut good = Vec::new();
    for copy in 0..2 {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        let at = u64::from(copy) * BLOCK_SIZE as u64 + SUPERBLOCK_OFFSET as u64;
        if src.size_bytes() < at + SUPERBLOCK_SIZE as u64 || src.read(at, &mut bytes).is_err() {
            let block = BlockAddr(copy);
            report.issues.push(Issue::Unreadable { block });
            continue;
        }
        match Superblock::parse(&bytes) {
            Ok(superblock) => good.push(superblock),
            Err(error) => report.issues.push(Issue::Superblock { copy, error }),
        }
    }
    if good.is_empty()
        && let Some(names) = unsupported(&report.issues)
    {
        report.issues.clear();
        report.refused = Some(Refusal::Unsupported { names });
        return None;
    }
    if let [first, second] = &good[..]
        && first.layout() != second.layout()
    {
        report.issues.push(Issue::SuperblocksDiffer);
    }
    good.into_iter().next()
}

/// What a volume needs that is not supported, if that is all that is said of a copy of its superblock.
fn unsupported(issues: &[Issue]) -> Option<String> {
    issues.iter().find_map(|issue| match issue {
        Issue::Superblock { error, .. } => match &error.kind {
            CorruptKind::Unsupported { what } => Some(what.clone()),
            _ => None,
        },
        _ => None,
    })
}

/// Bytes of what is kept for each block, segment and block of a table, whatever is in use.
fn memory_needed(layout: &Layout) -> u64 {
    let segment = (2 * 64 + size_of::<Segment>()) as u64;
    u64::from(layout.main_segments) * segment + u64::from(layout.nat_blocks) * 16
}

/// The state of a check.
struct Checker<'a> {
    src: &'a dyn BlockSource,
    options: &'a Options,
    layout: Layout,
    checkpoint: Checkpoint,
    /// Which of the two packs it is.
    pack: u32,
    report: Report,
    nat: NatTable,
    segments: Vec<Segment>,
    /// Blocks valid by the segment table.
    valid: Blocks,
    /// Blocks found in use.
    used: Blocks,
    summaries: Summaries,
    /// Summaries of open logs, where the pack has them.
    open: pack::OpenSummaries,
    /// Wrong entries of summaries by segment: how many, and the first.
    wrong_summaries: BTreeMap<SegNo, blocks::WrongSummary>,
    orphans: BTreeSet<u32>,
    /// What belongs to whom, on volumes with quota files.
    usages: quota::Usages,
    dirs: Vec<Dir>,
    dir_blocks: Vec<DirBlock>,
    /// Block buffers for the levels of a tree and for what hangs on it; taken and given back.
    buffers: [Vec<u8>; 5],
}

impl<'a> Checker<'a> {
    fn new(
        src: &'a dyn BlockSource,
        options: &'a Options,
        superblock: &Superblock,
        checkpoint: Checkpoint,
        pack: u32,
    ) -> Self {
        let layout = superblock.layout().clone();
        Self {
            src,
            options,
            report: Report::default(),
            nat: NatTable::new(&layout),
            segments: vec![Segment::default(); layout.main_segments as usize],
            valid: Blocks::new(&layout),
            used: Blocks::new(&layout),
            summaries: Summaries::new(&layout),
            open: Default::default(),
            wrong_summaries: BTreeMap::new(),
            orphans: BTreeSet::new(),
            usages: Default::default(),
            dirs: Vec::new(),
            dir_blocks: Vec::new(),
            buffers: Default::default(),
            layout,
            checkpoint,
            pack,
        }
    }

    fn run(&mut self, superblock: &Superblock) {
        self.name_skipped();
        let stats = &mut self.report.stats;
        stats.blocks = self.layout.main_blocks().into();
        stats.segments = self.layout.main_segments;
        stats.nodes = self.layout.max_nid;
        stats.checkpoint = self.checkpoint.version;
        stats.unmounted = self.checkpoint.flags.contains(CpFlags::UNMOUNT);
        stats.notes_errors = superblock.has_errors()
            || self.checkpoint.flags.contains(CpFlags::ERROR)
            || self.checkpoint.flags.contains(CpFlags::FSCK);
        self.check_checkpoint();
        let Some(journals) = self.load_pack() else {
            return;
        };
        if !self.load_nat(&journals) {
            return;
        }
        self.load_sit(&journals);
        self.check_logs();
        self.mark_orphans();
        let quota = superblock.quota_inodes();
        self.mark_quota_files(quota);
        self.check_inodes();
        self.check_unreached();
        self.check_dirs();
        self.check_links();
        self.check_quota_files(quota);
        self.check_quota_usage(quota);
        if !self.checkpoint.flags.contains(CpFlags::DISABLED) {
            self.check_fsynced();
        }
        self.check_segments();
        self.check_counts();
    }

    fn issue(&mut self, issue: Issue) {
        if self.report.issues.len() < self.options.max_issues {
            self.report.issues.push(issue);
        } else {
            self.report.more += 1;
        }
    }

    /// Reads a block of the volume; false (and an issue) where that is not possible.
    fn read_block(&mut self, block: BlockAddr, buf: &mut Vec<u8>) -> bool {
        self.read_blocks(block, 1, buf)
    }

    /// Reads `count` blocks in a row.
    fn read_blocks(&mut self, first: BlockAddr, count: u32, buf: &mut Vec<u8>) -> bool {
        if read_from(self.src, first, count, buf) {
            return true;
        }
        self.issue(Issue::Unreadable { block: first });
        false
    }

    fn name_skipped(&mut self) {
        let parts = [
            (
                Features::ENCRYPT,
                "contents and names of encrypted files (encrypt)",
            ),
            (
                Features::VERITY,
                "file contents against their hashes (verity)",
            ),
            (
                Features::COMPRESSION,
                "whether compressed clusters can be decompressed (compression)",
            ),
            (
                Features::CASEFOLD,
                "hashes and equality of casefolded names (casefold)",
            ),
        ];
        for (feature, what) in parts {
            if self.layout.has(feature) {
                self.report.skipped.push(what.into());
            }
        }
    }
}

/// Reads blocks in a row; whether that was possible.
fn read_from(src: &dyn BlockSource, first: BlockAddr, count: u32, buf: &mut Vec<u8>) -> bool {
    let len = count as usize * BLOCK_SIZE;
    if buf.len() != len {
        buf.clear();
        buf.resize(len, 0);
    }
    let offset = u64::from(first.0) * BLOCK_SIZE as u64;
    let fits = offset + len as u64 <= src.size_bytes();
    fits && src.read(offset, buf).is_ok()
}

#[cfg(test)]
mod tests;
