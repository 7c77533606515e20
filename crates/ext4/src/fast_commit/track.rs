//! What a transaction has changed, in the terms of a fast commit.
//!
//! **Rule.** Each handle either declares that everything it changes is recorded here ([`Handle::track`]), or its
//! transaction is committed as a whole. So an operation that does not know fast commits can only cost time.
//!
//! **What is recorded.** Regular files whose inodes were stored, with the file blocks whose mapping changed, and names of
//! regular files. The content of both is read when the fast commit is written, while no handle is open: changes that
//! were undone leave a record that states what is there. Directories' blocks and times, bitmaps and extent trees follow
//! from these in a replay, as in Linux. An inode that is freed, or that loses its last name, is not described: Linux
//! records the name only, and e2fsck would find the inode without one.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use steadfs_base::{FileBlock, IoTag, Tid};
use steadfs_jbd2::{FastCommitChange, FastCommitRefusal, NameChange};
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{FileKind, Result};

use crate::disk::extent::FILE_END;
use crate::disk::features::Incompat;
use crate::disk::{Extent, Ino};
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::map::has_extents;
use crate::place::BlockPlace;
use crate::txn::Handle;

/// Ranges of one file that are recorded apart from each other.
const RANGES_MAX: usize = 64;
/// Names and inodes that are recorded for one fast commit.
const RECORDS_MAX: usize = 4096;
/// Bytes of an inode slot's fields without extra ones.
const INODE_LEN_MIN: usize = 128;
/// Where a slot has the number of bytes of its extra fields (`i_extra_isize`).
const EXTRA_ISIZE: Range<usize> = 128..130;
/// Free blocks for each change that must be left: a replay may build trees and directories in more blocks.
const SPARE_BLOCKS_PER_CHANGE: u64 = 4;
/// … and in all.
const SPARE_BLOCKS: u64 = 64;

/// Reasons for a commit of the whole transaction.
pub(crate) mod refusal {
    use steadfs_jbd2::FastCommitRefusal;

    /// An operation that fast commits do not describe, or that is not recorded.
    pub(crate) const UNTRACKED: FastCommitRefusal = "operation not recorded";
    pub(crate) const XATTR: FastCommitRefusal = "extended attributes";
    pub(crate) const LAST_NAME: FastCommitRefusal = "file without names";
    pub(crate) const DIRECTORY: FastCommitRefusal = "directory made, removed or moved";
    /// e2fsck adds no block to a directory when it replays.
    pub(crate) const GROWTH: FastCommitRefusal = "directory grows";
    pub(crate) const ENCODED: FastCommitRefusal = "encrypted or casefolded name";
    pub(crate) const INLINE: FastCommitRefusal = "inline data on this volume";
    pub(crate) const KIND: FastCommitRefusal = "not a regular file";
    pub(crate) const SUPERBLOCK: FastCommitRefusal = "superblock";
    pub(crate) const INDIRECT: FastCommitRefusal = "file without extents";
    pub(crate) const SPACE: FastCommitRefusal = "little free space";
    pub(crate) const UNREADABLE: FastCommitRefusal = "metadata cannot be read";
    pub(crate) const TOO_MANY: FastCommitRefusal = "too many changes";
}

/// A name that a transaction has given or taken.
#[derive(Clone, Debug)]
struct NameRecord {
    change: NameChange,
    parent: Ino,
    ino: Ino,
    name: Box<[u8]>,
}

/// The changes of one transaction since its last fast commit.
#[derive(Default)]
struct Changes {
    tid: Tid,
    names: Vec<NameRecord>,
    /// The ranges that are mapped differently, sorted and apart from each other.
    inodes: BTreeMap<Ino, Vec<Range<u64>>>,
}

/// The changes of the running transaction.
pub(crate) struct FastCommitTracker {
    changes: Mutex<Changes>,
}

impl Default for FastCommitTracker {
    fn default() -> Self {
        Self {
            changes: Mutex::new(Rank::Leaf, Changes::default()),
        }
    }
}

impl Changes {
    /// Whether one more name or inode can be recorded.
    fn has_room(&self) -> bool {
        self.names.len() + self.inodes.len() < RECORDS_MAX
    }

    /// The ranges of a file, unless it is new here and there are too many.
    fn ranges(&mut self, ino: Ino) -> Option<&mut Vec<Range<u64>>> {
        let has_room = self.has_room();
        match self.inodes.entry(ino) {
            Entry::Vacant(_) if !has_room => None,
            entry => Some(entry.or_default()),
        }
    }
}

impl FastCommitTracker {
    fn with<T>(&self, tid: Tid, change: impl FnOnce(&mut Changes) -> T) -> T {
        let mut changes = self.changes.lock();
        if changes.tid != tid {
            *changes = Changes {
                tid,
                ..Changes::default()
            };
        }
        change(&mut changes)
    }

    /// Transaction `tid` is durable.
    pub(crate) fn committed(&self, tid: Tid) {
        let mut changes = self.changes.lock();
        if changes.tid == tid {
            *changes = Changes::default();
        }
    }

    /// The inode was stored.
    pub(crate) fn stored(&self, handle: &mut Handle<'_>, inode: &Inode) {
        match inode.kind() {
            FileKind::Regular => {
                let ino = inode.ino();
                if self.with(handle.tid(), |changes| changes.ranges(ino).is_none()) {
                    handle.refuse_fast_commits(refusal::TOO_MANY);
                }
            }
            // Its names are recorded; its times are those of the replay.
            FileKind::Directory => {}
            _ => handle.refuse_fast_commits(refusal::KIND),
        }
    }

    /// Blocks of the file are mapped differently.
    pub(crate) fn mapped(&self, handle: &mut Handle<'_>, ino: Ino, blocks: Range<u64>) {
        let fits = self.with(handle.tid(), |changes| {
            let Some(ranges) = changes.ranges(ino) else {
                return false;
            };
            insert(ranges, blocks);
            ranges.len() <= RANGES_MAX
        });
        if !fits {
            handle.refuse_fast_commits(refusal::TOO_MANY);
        }
    }

    /// A regular file got or lost a name.
    pub(crate) fn named(
        &self,
        handle: &mut Handle<'_>,
        change: NameChange,
        (parent, name): (&Inode, &[u8]),
        ino: Ino,
    ) {
        let fits = self.with(handle.tid(), |changes| {
            let fits = changes.has_room();
            if fits {
                changes.names.push(NameRecord {
                    change,
                    parent: parent.ino(),
                    ino,
                    name: name.into(),
                });
            }
            fits
        });
        if !fits {
            handle.refuse_fast_commits(refusal::TOO_MANY);
        }
    }
}

/// Adds a range to sorted ones that do not touch.
fn insert(ranges: &mut Vec<Range<u64>>, mut new: Range<u64>) {
    let first = ranges.partition_point(|range| range.end < new.start);
    let last = ranges.partition_point(|range| range.start <= new.end);
    if let Some(touched) = ranges
        .get(first..last)
        .filter(|touched| !touched.is_empty())
    {
        new.start = new.start.min(touched[0].start);
        new.end = new.end.max(touched[touched.len() - 1].end);
    }
    ranges.splice(first..last, [new]);
}

impl Ext4 {
    /// The changes of transaction `tid` since the last call, for [`steadfs_jbd2::Journal::fast_commit`]: while no handle
    /// is open.
    pub(crate) fn fast_commit_changes(
        &self,
        tid: Tid,
    ) -> Result<Vec<FastCommitChange>, FastCommitRefusal> {
        if self.geo.has_incompat(Incompat::INLINE_DATA) {
            // A replay would refuse them.
            return Err(refusal::INLINE);
        }
        let Changes {
            names, mut inodes, ..
        } = self.fast_commits.with(tid, |changes| {
            let taken = std::mem::take(changes);
            changes.tid = tid;
            taken
        });
        let mut changes = Vec::new();
        for record in names {
            // A new inode comes before its name.
            if record.change == NameChange::Create
                && let Some(ranges) = inodes.remove(&record.ino)
            {
                self.describe(record.ino, &[], &mut changes)?;
                self.describe_map(record.ino, &ranges, &mut changes)?;
            }
            changes.push(FastCommitChange::Name {
                change: record.change,
                parent: record.parent.0,
                ino: record.ino.0,
                name: record.name,
            });
        }
        for (ino, ranges) in inodes {
            self.describe(ino, &ranges, &mut changes)?;
        }
        let spare = SPARE_BLOCKS + SPARE_BLOCKS_PER_CHANGE * changes.len() as u64;
        match changes.is_empty() || self.alloc.totals().free >= spare {
            true => Ok(changes),
            false => Err(refusal::SPACE),
        }
    }

    /// Adds ranges of a file and its inode.
    fn describe(
        &self,
        ino: Ino,
        ranges: &[Range<u64>],
        changes: &mut Vec<FastCommitChange>,
    ) -> Result<(), FastCommitRefusal> {
        self.describe_map(ino, ranges, changes)?;
        let slot = self.inode_slot(ino, IoTag::default());
        let (buf, at) = slot.map_err(|_| refusal::UNREADABLE)?;
        let data = buf.data();
        let slot = &data[at..at + usize::from(self.geo.inode_size)];
        let extra = slot.get(EXTRA_ISIZE).map_or(0, |bytes| {
            usize::from(u16::from_le_bytes([bytes[0], bytes[1]]))
        });
        let raw = slot.get(..INODE_LEN_MIN + extra);
        changes.push(FastCommitChange::Inode {
            ino: ino.0,
            raw: raw.ok_or(refusal::UNREADABLE)?.into(),
        });
        Ok(())
    }

    /// Adds what the blocks of `ranges` are mapped to.
    fn describe_map(
        &self,
        ino: Ino,
        ranges: &[Range<u64>],
        changes: &mut Vec<FastCommitChange>,
    ) -> Result<(), FastCommitRefusal> {
        if ranges.is_empty() {
            return Ok(());
        }
        let unreadable = |_| refusal::UNREADABLE;
        let inode = self.inode(ino, IoTag::default()).map_err(unreadable)?;
        let core = inode.core.read();
        if !has_extents(&core) {
            return Err(refusal::INDIRECT);
        }
        for range in ranges {
            let mut at = range.start;
            while at < range.end.min(FILE_END.0) {
                let mapped = self.map(ino, &core, FileBlock(at), IoTag::default());
                let mapped = mapped.map_err(unreadable)?;
                let left = mapped.len.min(range.end - at);
                let (start, unwritten) = match mapped.place {
                    BlockPlace::Hole => {
                        let count = left.min(u32::MAX.into()) as u32;
                        changes.push(FastCommitChange::DelRange {
                            ino: ino.0,
                            first: at as u32,
                            count,
                        });
                        at += u64::from(count);
                        continue;
                    }
                    BlockPlace::Written(start) => (start, false),
                    BlockPlace::Unwritten(start) => (start, true),
                };
                let extent = Extent {
                    block: FileBlock(at),
                    len: left.min(Extent::max_len(unwritten).into()) as u32,
                    start,
                    unwritten,
                };
                changes.push(FastCommitChange::AddRange {
                    ino: ino.0,
                    extent: extent.to_bytes(),
                });
                at += u64::from(extent.len);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::insert;

    #[test]
    fn ranges_that_touch_become_one() {
        let mut ranges = Vec::new();
        for new in [10..12, 20..22, 12..13, 30..31, 0..1] {
            insert(&mut ranges, new);
        }
        assert_eq!(ranges, [0..1, 10..13, 20..22, 30..31]);
        insert(&mut ranges, 11..20);
        assert_eq!(ranges, [0..1, 10..22, 30..31]);
        insert(&mut ranges, 0..40);
        assert_eq!(ranges.len(), 1);
        assert_eq!(ranges[0], 0..40);
    }
}
