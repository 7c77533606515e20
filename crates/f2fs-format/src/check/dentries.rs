//! Directory entries: names, hashes, hash buckets, and the inodes they refer to.

use std::borrow::Cow;
use std::hash::Hasher;

use steadfs_base::FixedHasher;
use steadfs_vfs::{FileKind, InodeFlags};

use super::Name;
use super::tables::Slot;
use super::{Checker, Issue};
use crate::disk::bits::{self, Order};
use crate::disk::casefold::FoldedName;
use crate::disk::dentry::{self, DentryLayout, Entry};
use crate::disk::inode::Advise;
use crate::disk::{Inode, Layout, Nid, hash};

/// The state of checking a directory.
pub(super) struct Context {
    /// Its index in the list of directories.
    pub(super) dir: usize,
    ino: Nid,
    encrypted: bool,
    pub(super) comparison: Comparison,
    dots: u32,
    dotdots: u32,
    /// Fingerprints of all names, to find duplicates.
    fingerprints: Vec<u64>,
}

/// How the names of a directory are compared and hashed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    /// By their bytes.
    Bytes,
    /// By their folded forms.
    Folded,
    /// By plain names that are not on the volume, or in an unknown encoding: not checked.
    Unknown,
}

impl Comparison {
    /// That of a directory.
    pub(super) fn of(layout: &Layout, dir: &Inode) -> Self {
        let encrypted = dir.advise.contains(Advise::ENCRYPTED);
        match (dir.flags.contains(InodeFlags::CASEFOLD), layout.encoding) {
            (false, _) => Self::Bytes,
            (true, Some(_)) if !encrypted => Self::Folded,
            (true, _) => Self::Unknown,
        }
    }

    /// The bytes that are compared and hashed.
    pub(super) fn key(self, name: &[u8]) -> Cow<'_, [u8]> {
        match self {
            Self::Folded => {
                Cow::Owned(FoldedName::within(name, hash::FOLDED_MAX).hashed().to_vec())
            }
            Self::Bytes | Self::Unknown => Cow::Borrowed(name),
        }
    }
}

/// The position of a block of entries.
#[derive(Clone, Copy)]
pub(super) struct EntryBlock {
    /// Block number in the directory's file.
    block: u64,
    /// Its level in the hash table; `None` if no lookup reaches the block.
    level: Option<u32>,
    dir_level: u8,
}

impl EntryBlock {
    /// The position of a block in a directory with this many levels and blocks.
    pub(super) fn new(block: u64, dir_level: u8, depth: u32, blocks: u64) -> Self {
        let ends_after = |level: &u32| block < hash::level_start(level + 1, dir_level);
        let level = (0..depth.min(hash::MAX_DEPTH)).find(ends_after);
        Self {
            block,
            level: level.filter(|_| block < blocks),
            dir_level,
        }
    }

    /// Whether a lookup of this hash reaches the block.
    fn is_right(&self, hash: u32) -> bool {
        self.level
            .is_some_and(|level| hash::bucket(level, self.dir_level, hash).contains(&self.block))
    }
}

/// A number that is equal for equal names.
pub(super) fn fingerprint(comparison: Comparison, entry: &Entry<'_>) -> u64 {
    let mut hasher = FixedHasher::default();
    let key = comparison.key(entry.name);
    hasher.write(&key);
    hasher.write_usize(key.len());
    hasher.finish()
}

impl Context {
    pub(super) fn new(dir: usize, ino: Nid, encrypted: bool, comparison: Comparison) -> Self {
        Self {
            dir,
            ino,
            encrypted,
            comparison,
            dots: 0,
            dotdots: 0,
            fingerprints: Vec::new(),
        }
    }

    /// Fingerprints that occur more than once, sorted.
    pub(super) fn equal_fingerprints(&mut self) -> Vec<u64> {
        self.fingerprints.sort_unstable();
        let pairs = self.fingerprints.windows(2);
        let mut equal: Vec<u64> = pairs.filter(|w| w[0] == w[1]).map(|w| w[0]).collect();
        equal.dedup();
        equal
    }
}

impl Checker<'_> {
    /// Checks all entries of an area; `position` is that of its block; `None` for inline entries.
    pub(super) fn check_entries(
        &mut self,
        cx: &mut Context,
        layout: &DentryLayout,
        area: &[u8],
        position: Option<EntryBlock>,
    ) {
        for entry in dentry::entries(layout, area, 0) {
            match entry {
                Ok(entry) => self.check_entry(cx, layout, area, &entry, position),
                Err(error) => {
                    let error = error.in_node(cx.ino);
                    let block = position.map_or(0, |position| position.block);
                    self.issue(Issue::Dentry { block, error });
                }
            }
        }
    }

    fn check_entry(
        &mut self,
        cx: &mut Context,
        layout: &DentryLayout,
        area: &[u8],
        entry: &Entry<'_>,
        position: Option<EntryBlock>,
    ) {
        let dir = cx.ino;
        if entry.is_dot() {
            return self.check_dot(cx, entry);
        }
        self.report.stats.names += 1;
        let name = || Name::of(entry.name);
        let slots = entry.slot..entry.slot + dentry::slots_for(entry.name.len());
        let mut marked = slots
            .skip(1)
            .map(|slot| bits::get(Order::LowFirst, area, slot));
        if !marked.all(|bit| bit) {
            self.issue(Issue::DirSlots { dir, name: name() });
        }
        debug_assert!(
            layout.slots / 8 < area.len(),
            "the bitmap is within the area"
        );
        if !cx.encrypted && !entry.has_plain_name() {
            self.issue(Issue::BadName { dir, name: name() });
        }
        let computed = hash::of_name(&cx.comparison.key(entry.name));
        if cx.comparison != Comparison::Unknown && entry.hash != computed {
            self.issue(Issue::DirHash {
                dir,
                name: name(),
                stored: entry.hash,
                computed,
            });
        }
        if let Some(position) = position
            && !position.is_right(entry.hash)
        {
            let block = position.block;
            self.issue(Issue::DirPlace {
                dir,
                name: name(),
                block,
            });
        }
        cx.fingerprints.push(fingerprint(cx.comparison, entry));
        self.check_target(cx, entry);
    }

    fn check_dot(&mut self, cx: &mut Context, entry: &Entry<'_>) {
        let mut wrong = Vec::new();
        if entry.file_type != FileKind::Directory.entry_type() {
            wrong.push("\".\" or \"..\" does not have the type of a directory");
        }
        if cx.comparison == Comparison::Bytes && entry.hash != 0 {
            wrong.push("\".\" or \"..\" has a hash that is not 0");
        }
        if entry.name == b"." {
            cx.dots += 1;
            if entry.ino != cx.ino {
                wrong.push("\".\" refers to another inode");
            }
        } else {
            cx.dotdots += 1;
            self.dirs[cx.dir].dotdot = Some(entry.ino);
        }
        let dir = cx.ino;
        for why in wrong {
            self.issue(Issue::DirDots { dir, why });
        }
    }

    pub(super) fn check_dots(&mut self, cx: &Context) {
        let why = match (cx.dots, cx.dotdots) {
            (1, 1) => return,
            (0, _) => "\".\" is missing",
            (_, 0) => "\"..\" is missing",
            _ => "\".\" or \"..\" occurs twice",
        };
        self.issue(Issue::DirDots { dir: cx.ino, why });
    }

    /// Checks the inode that an entry refers to.
    fn check_target(&mut self, cx: &Context, entry: &Entry<'_>) {
        let (dir, ino) = (cx.ino, entry.ino);
        let name = || Name::of(entry.name);
        let slot = self.nat.get_mut(&self.layout, ino);
        let why = match &slot {
            None => "which is not in use",
            Some(slot) if slot.ino != ino => "which is a node and not an inode",
            Some(_) if ino == Nid::ROOT => "the root directory",
            Some(slot) if slot.has(Slot::HIDDEN) => "a quota file",
            Some(slot) if slot.has(Slot::ORPHAN) => "an orphan",
            Some(_) => "",
        };
        let Some(slot) = slot.filter(|_| why.is_empty()) else {
            return self.issue(Issue::BadTarget {
                dir,
                name: name(),
                ino,
                why,
            });
        };
        slot.names = slot.names.saturating_add(1);
        let (stored, kind) = (entry.file_type, slot.kind);
        // The type of an unreadable inode is not known; that was reported.
        if kind != 0 && stored != kind {
            self.issue(Issue::EntryType {
                dir,
                name: name(),
                ino,
                stored,
                kind,
            });
        }
        let Some(child) = self.dir_index(ino) else {
            return;
        };
        if self.dirs[child].parent.is_some() {
            let name = name();
            return self.issue(Issue::SecondName { dir, name, ino });
        }
        self.dirs[child].parent = Some(dir);
        self.dirs[cx.dir].subdirs += 1;
    }
}
