//! Read-only consistency checker: the findings of e2fsck -fn as a list of exact [`Issue`]s.
//!
//! It reads through a [`BlockSource`], so that it runs on an image in memory, on a device, and on
//! the state that a journal replay leaves in memory. It changes nothing, keeps a bitmap of blocks and
//! eight bytes for each inode of the groups in use, and never panics or loops on corruption: each
//! metadata block is visited once, whatever points to it.
//!
//! The steps, in order: superblock and group descriptors; orphans; every inode with its map and
//! attributes; every directory; names against inodes; bitmaps and counts.
//!
//! Where it differs from e2fsck on purpose:
//! - inodes on the orphan list or in the orphan file are counted as in use and not reported: the next
//!   mount removes them;
//! - a missing `lost+found`, backup superblocks and a file system marked as having errors are not
//!   reported;
//! - names that are equal in different blocks of one directory are found too.
//!
//! [`Report::skipped`] names the parts of the volume that are not checked.

mod bitmaps;
mod dirs;
mod encryption;
mod groups;
mod htree;
mod inodes;
mod issue;
mod links;
mod map;
mod quota;
mod special;
mod tables;
mod values;
mod xattrs;

use std::collections::{BTreeMap, BTreeSet};

use steadfs_base::DevBlock;
use steadfs_format_base::check;

use crate::disk::dir_entry::DirLayout;
use crate::disk::features::{self, Incompat, RoCompat};
use crate::disk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use crate::disk::{DiskError, Geometry, GroupDesc, Superblock};
use crate::superblock;

pub use issue::Issue;
pub use steadfs_block::BlockSource;
pub use steadfs_format_base::check::Refusal;
use tables::{Budget, Dir, InodeTable, Run, UsedBlocks};

/// Options of a check.
#[derive(Clone, Debug)]
pub struct Options {
    /// Most issues that are kept; further ones are only counted.
    pub max_issues: usize,
    /// End the check ([`Refusal::TooLarge`]) when its tables of blocks and inodes need more bytes of memory than this. Groups
    /// without any in use need none.
    pub memory_limit: u64,
    /// The journal was just replayed: the free counts in the superblock may be out of date, as not every transaction
    /// contains them. Implied by `needs_recovery`.
    pub after_crash: bool,
    /// First byte of the superblock to check by. Errors of the first superblock are reported in any case.
    pub super_at: u64,
    /// Why the log could not be replayed, where it should have been.
    pub unreplayed: Option<String>,
    /// Error of the first superblock on the device, where the log holds a valid one.
    pub mended: Option<DiskError>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_issues: 1000,
            memory_limit: 4 << 30,
            after_crash: false,
            super_at: SUPERBLOCK_OFFSET,
            unreplayed: None,
            mended: None,
        }
    }
}

/// Counts of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks of the volume.
    pub blocks: u64,
    /// Blocks in use by files and metadata.
    pub blocks_used: u64,
    /// Inodes of the volume.
    pub inodes: u32,
    /// Inodes in use, reserved ones included.
    pub inodes_used: u32,
    /// Regular files.
    pub files: u32,
    /// Directories.
    pub dirs: u32,
    /// Directories with a hash index.
    pub indexed_dirs: u32,
    /// Symbolic links.
    pub symlinks: u32,
    /// Devices, pipes and sockets.
    pub specials: u32,
    /// Names, `.` and `..` not counted.
    pub names: u64,
    /// Blocks of extended attributes.
    pub xattr_blocks: u32,
    /// Inodes on the orphan list or in the orphan file.
    pub orphans: u32,
    /// Whether the log holds transactions.
    pub needs_recovery: bool,
    /// `s_state` as stored.
    pub state: u16,
    /// The superblock's count of free blocks minus the counted one.
    pub free_blocks_off: i64,
    /// The superblock's count of free inodes minus the counted one.
    pub free_inodes_off: i64,
}

/// The result of a check.
pub type Report = check::Report<Issue, Stats>;

/// Checks the volume that `src` holds.
pub fn check(src: &dyn BlockSource, options: &Options) -> Report {
    let mut report = Report::default();
    let mended = options.mended.clone().map(Issue::Superblock);
    report.issues.extend(mended);
    let Some(sb) = choose_superblock(src, options, &mut report) else {
        return report;
    };
    let refused = features::mount_mode(sb.features()).refused();
    if !refused.is_empty() {
        report.refuse_features(&refused);
        return report;
    }
    let geo = sb.geometry().clone();
    if !report.has_memory(memory_of_groups(&geo), options.memory_limit) {
        return report;
    }
    let mut checker = Checker::new(src, options, sb, geo);
    checker.report = report;
    checker.run();
    checker.report
}

/// Reads the superblock to check by. Errors of the first superblock are reported even if another one is used.
fn choose_superblock(
    src: &dyn BlockSource,
    options: &Options,
    report: &mut Report,
) -> Option<Superblock> {
    let first = read_superblock(src, SUPERBLOCK_OFFSET, report);
    if options.super_at == SUPERBLOCK_OFFSET {
        let first = first?;
        if let Some(names) = superblock::refused_features(&first) {
            report.refused = Some(Refusal::Unsupported { names });
            return None;
        }
        let sb = Superblock::parse_lenient(&first);
        return sb
            .map_err(|error| report.issues.push(Issue::Superblock(error)))
            .ok();
    }
    if let Some(Err(error)) = first.map(|bytes| Superblock::parse(&bytes)) {
        report.issues.push(Issue::Superblock(error));
    }
    let copy = read_superblock(src, options.super_at, report)?;
    let sb = Superblock::parse(&copy);
    sb.map_err(|error| report.issues.push(Issue::Superblock(error)))
        .ok()
}

fn read_superblock(
    src: &dyn BlockSource,
    at: u64,
    report: &mut Report,
) -> Option<[u8; SUPERBLOCK_SIZE]> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    let end = at.saturating_add(SUPERBLOCK_SIZE as u64);
    if src.size_bytes() < end || src.read(at, &mut bytes).is_err() {
        let block = DevBlock(0);
        report.issues.push(Issue::Unreadable { block });
        return None;
    }
    Some(bytes)
}

/// Bytes of what is kept for each group, whatever is in use there.
fn memory_of_groups(geo: &Geometry) -> u64 {
    u64::from(geo.group_count) * (size_of::<GroupDesc>() as u64 + 64)
}

/// The state of a check.
struct Checker<'a> {
    src: &'a dyn BlockSource,
    options: &'a Options,
    sb: Superblock,
    geo: Geometry,
    layout: DirLayout,
    report: Report,
    /// One for each group; a default one where the stored one is unusable.
    descs: Vec<GroupDesc>,
    used: UsedBlocks,
    /// Blocks in a list of runs.
    collected: UsedBlocks,
    inodes: InodeTable,
    budget: Budget,
    dirs: Vec<Dir>,
    /// Blocks of all directories, directory by directory.
    dir_runs: Vec<Run>,
    /// Blocks of the journal.
    journal_runs: Vec<Run>,
    /// Blocks of the orphan file.
    orphan_runs: Vec<Run>,
    /// Attribute blocks: stored and counted references.
    xattr_blocks: BTreeMap<u64, xattrs::Shared>,
    /// Attribute inodes that are referred to, or have the wrong content.
    values: BTreeMap<u32, values::Value>,
    /// Buffer for the slot of an attribute inode.
    value_slot: Vec<u8>,
    /// Blocks of the attribute inode being checked.
    value_runs: Vec<Run>,
    /// What is counted for quota.
    counted: quota::Counted,
    /// Hash of the encryption policy, for encrypted inodes with a valid context.
    policies: BTreeMap<u32, u64>,
    /// Inodes on the orphan list or in the orphan file.
    orphans: BTreeSet<u32>,
    /// Several inodes may own a block (`shared_blocks`).
    shared_blocks: bool,
    /// Block buffers for the levels of a map, reused from map to map.
    levels: [Vec<u8>; 6],
}

impl<'a> Checker<'a> {
    fn new(src: &'a dyn BlockSource, options: &'a Options, sb: Superblock, geo: Geometry) -> Self {
        let budget = Budget::new(options.memory_limit - memory_of_groups(&geo));
        Self {
            src,
            options,
            layout: DirLayout::of(&geo),
            report: Report::default(),
            descs: Vec::with_capacity(geo.group_count as usize),
            used: UsedBlocks::new(&geo, budget.clone()),
            collected: UsedBlocks::new(&geo, budget.clone()),
            inodes: InodeTable::new(&geo, budget.clone()),
            budget,
            dirs: Vec::new(),
            dir_runs: Vec::new(),
            journal_runs: Vec::new(),
            orphan_runs: Vec::new(),
            xattr_blocks: BTreeMap::new(),
            values: BTreeMap::new(),
            value_slot: Vec::new(),
            value_runs: Vec::new(),
            counted: quota::Counted::default(),
            policies: BTreeMap::new(),
            orphans: BTreeSet::new(),
            shared_blocks: geo.has_ro_compat(RoCompat::SHARED_BLOCKS),
            levels: Default::default(),
            sb,
            geo,
        }
    }

    fn run(&mut self) {
        self.name_skipped();
        if let Some(why) = self.options.unreplayed.clone() {
            self.issue(Issue::Unreplayed { why });
        }
        self.check_superblock();
        self.check_quota_numbers();
        self.check_groups();
        self.collect_orphans();
        self.check_inodes();
        if !self.has_memory() {
            return;
        }
        self.check_special();
        self.check_xattr_refcounts();
        self.check_values();
        self.check_quota_usage();
        self.check_dirs();
        if !self.has_memory() {
            return;
        }
        self.check_links();
        self.check_bitmaps();
    }

    /// Whether the tables have all that they need; if not, the check is refused, and what it has found is dropped.
    fn has_memory(&mut self) -> bool {
        let limit = self.options.memory_limit;
        let needed = limit.saturating_add(self.budget.is_exceeded().into());
        let has_memory = self.report.has_memory(needed, limit);
        if !has_memory {
            self.report.issues.clear();
            self.report.more = 0;
        }
        has_memory
    }

    fn issue(&mut self, issue: Issue) {
        self.report.add(issue, self.options.max_issues);
    }

    /// Reads a block of the volume; false, with an issue, if it cannot be read.
    fn read_block(&mut self, block: DevBlock, buf: &mut Vec<u8>) -> bool {
        self.read_blocks(block, 1, buf)
    }

    /// Reads `count` blocks in a row.
    fn read_blocks(&mut self, first: DevBlock, count: usize, buf: &mut Vec<u8>) -> bool {
        let len = count * self.geo.block_size.bytes();
        if buf.len() != len {
            buf.clear();
            buf.resize(len, 0);
        }
        let offset = self.geo.block_size.offset_of(first);
        let fits = offset
            .checked_add(len as u64)
            .is_some_and(|end| end <= self.src.size_bytes());
        if fits && self.src.read(offset, buf).is_ok() {
            return true;
        }
        self.issue(Issue::Unreadable { block: first });
        false
    }

    fn skip(&mut self, what: &'static str) {
        if !self.report.skipped.iter().any(|known| known == what) {
            self.report.skipped.push(what.into());
        }
    }

    fn name_skipped(&mut self) {
        let geo = &self.geo;
        let unknown = geo.features.ro_compat.without(RoCompat(0x1FFFF));
        let unknown: Vec<_> = unknown
            .names()
            .map(|name| format!("{name}, unknown"))
            .collect();
        let parts = [
            (
                geo.has_ro_compat(RoCompat::SHARED_BLOCKS),
                "blocks used twice (shared_blocks)",
            ),
            (
                geo.has_incompat(Incompat::ENCRYPT),
                "contents and names of encrypted files (encrypt)",
            ),
            (
                geo.has_ro_compat(RoCompat::VERITY),
                "file contents against their hashes (verity)",
            ),
            (
                geo.has_incompat(Incompat::CASEFOLD)
                    && (geo.encoding.is_none() || geo.has_incompat(Incompat::ENCRYPT)),
                "equality of encrypted casefolded names, or hashes and equality in unknown encodings (casefold)",
            ),
        ];
        for (there, what) in parts {
            if there {
                self.skip(what);
            }
        }
        for name in unknown {
            self.report.skipped.push(name.into());
        }
    }
}

#[cfg(test)]
mod tests;
