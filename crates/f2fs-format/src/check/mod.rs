//! The consistency checker: read-only, like fsck.f2fs --dry-run, and reporting exact [`Issue`]s.
//!
//! It reads from a [`BlockSource`], which may be a device or an image in memory. It changes nothing, needs a few
//! bits per block of the main area and 20 bytes per node in use, and on a corrupt volume neither panics nor loops:
//! each node is visited once, however many references it has.
//!
//! The checkpoint's state of the volume is checked. Nodes that fsync wrote after the checkpoint are followed and
//! counted ([`Stats::fsynced_nodes`]), and must not contradict the checkpoint.
//!
//! The steps, in order: superblocks and checkpoint; NAT and SIT; every inode with its node tree, blocks and
//! attributes, and the summary of each block; every directory; names and inodes; orphans; nodes written by fsync;
//! valid maps and counts.
//!
//! Intended differences from fsck.f2fs:
//! - An older or incomplete checkpoint pack, and errors recorded in the superblock, are not findings.
//! - More is checked: hash buckets beyond the depth, duplicate names, slots of long names, clusters, contexts of
//!   encrypted files, versions of nodes.
//!
//! Properties of a volume that are not checked are listed in [`Report::skipped`].

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
use steadfs_format_base::check;
use steadfs_format_base::quota::usage::Usages;

use crate::disk::checkpoint::CpFlags;
use crate::disk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use crate::disk::{
    BLOCK_SIZE, BlockAddr, Checkpoint, CorruptKind, Features, Layout, SegNo, Superblock, mount_mode,
};

pub use issue::Issue;
pub use steadfs_format_base::check::{Name, Refusal};
use tables::{Blocks, Dir, DirBlock, NatTable, Segment, Summaries};

/// Limits of a check.
#[derive(Clone, Debug)]
pub struct Options {
    /// The most issues to keep; further ones are only counted.
    pub max_issues: usize,
    /// The most memory in bytes; a volume that needs more is refused ([`Refusal::TooLarge`]).
    pub memory_limit: u64,
    /// The source is all devices of a volume on several.
    pub is_joined: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_issues: 1000,
            memory_limit: 4 << 30,
            is_joined: false,
        }
    }
}

/// Counts of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks of the main area.
    pub blocks: u64,
    /// Valid blocks, including reserved ones.
    pub blocks_used: u64,
    /// The most nodes that the volume can have.
    pub nodes: u32,
    /// Nodes in use.
    pub nodes_used: u32,
    /// Inodes in use.
    pub inodes_used: u32,
    /// Regular files.
    pub files: u32,
    /// Regular files and symbolic links with inline data.
    pub inline_files: u32,
    /// Regular files that may be compressed.
    pub compressed_files: u32,
    /// Directories.
    pub dirs: u32,
    /// Directories with inline entries.
    pub inline_dirs: u32,
    /// Symbolic links.
    pub symlinks: u32,
    /// Device nodes, FIFOs and sockets.
    pub specials: u32,
    /// Names without `.` and `..`.
    pub names: u64,
    /// Xattr nodes.
    pub xattr_nodes: u32,
    /// Segments of the main area.
    pub segments: u32,
    /// Segments without valid blocks that are not cursegs.
    pub free_segments: u32,
    /// Inodes on the orphan list.
    pub orphans: u32,
    /// Version of the checkpoint.
    pub checkpoint: u64,
    /// Whether the checkpoint was written by an unmount.
    pub unmounted: bool,
    /// Nodes that fsync wrote after the checkpoint.
    pub fsynced_nodes: u64,
    /// Inodes of these nodes.
    pub fsynced_files: u64,
    /// The superblock or checkpoint has recorded errors or an abort.
    pub has_errors: bool,
}

/// The result of a check.
pub type Report = check::Report<Issue, Stats>;

/// Checks the volume on `src`.
pub fn check(src: &dyn BlockSource, options: &Options) -> Report {
    let mut report = Report::default();
    let Some(superblock) = read_superblocks(src, &mut report) else {
        return report;
    };
    let layout = superblock.layout().clone();
    let mut refused = mount_mode(superblock.features()).refused();
    if !options.is_joined {
        refused.extend(superblock.missing_devices().map(Cow::Owned));
    }
    if !refused.is_empty() {
        report.refuse_features(&refused);
        return report;
    }
    if !report.has_memory(memory_needed(&layout), options.memory_limit) {
        return report;
    }
    let device_blocks = src.size_bytes() / BLOCK_SIZE as u64;
    let blocks = superblock.needed_blocks();
    if blocks > device_blocks {
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

/// The first valid copy of the superblock.
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

/// The unsupported requirements of a volume, if they are the only finding about a superblock copy.
fn unsupported(issues: &[Issue]) -> Option<String> {
    issues.iter().find_map(|issue| match issue {
        Issue::Superblock { error, .. } => match &error.kind {
            CorruptKind::Unsupported { what } => Some(what.clone()),
            _ => None,
        },
        _ => None,
    })
}

/// Memory in bytes that is independent of the volume's content.
fn memory_needed(layout: &Layout) -> u64 {
    let segment = (2 * 64 + size_of::<Segment>()) as u64;
    u64::from(layout.main_segments) * segment + u64::from(layout.nat_blocks) * 16
}

/// The state of a running check.
struct Checker<'a> {
    src: &'a dyn BlockSource,
    options: &'a Options,
    layout: Layout,
    checkpoint: Checkpoint,
    /// The number of the pack.
    pack: u32,
    report: Report,
    nat: NatTable,
    segments: Vec<Segment>,
    /// Valid blocks according to the SIT.
    valid: Blocks,
    /// Blocks found in use.
    used: Blocks,
    summaries: Summaries,
    /// Summaries of cursegs that are in the pack.
    open: pack::OpenSummaries,
    /// Wrong summary entries by segment: the number, and the first one.
    wrong_summaries: BTreeMap<SegNo, blocks::WrongSummary>,
    orphans: BTreeSet<u32>,
    /// Usage by owner, on volumes with quota files.
    usages: Usages,
    dirs: Vec<Dir>,
    dir_blocks: Vec<DirBlock>,
    /// Reusable block buffers, one per level of the node tree and one for attributes and content.
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
        stats.has_errors = superblock.has_errors()
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
        self.report.add(issue, self.options.max_issues);
    }

    /// Reads a block. On an error, reports an issue and returns false.
    fn read_block(&mut self, block: BlockAddr, buf: &mut Vec<u8>) -> bool {
        self.read_blocks(block, 1, buf)
    }

    /// Reads consecutive blocks.
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
        ];
        for (feature, what) in parts {
            if self.layout.has(feature) {
                self.report.skipped.push(what.into());
            }
        }
        let folds = self.layout.has(Features::CASEFOLD);
        if folds && (self.layout.encoding.is_none() || self.layout.has(Features::ENCRYPT)) {
            let what = "hashes and equality of encrypted casefolded names, or of unknown encodings (casefold)";
            self.report.skipped.push(what.into());
        }
    }
}

/// Reads consecutive blocks. Returns whether that succeeded.
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
