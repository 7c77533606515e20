//! Fast commits: what a transaction has changed (`track.rs`), and their replay: from ext4's logical changes to the blocks that they change.
//!
//! **Problem.** A fast commit records what an fsync changed since the last transaction: names, inodes, mapped ranges. It
//! has no blocks of directories, bitmaps, descriptors or extent trees; these follow from its changes.
//!
//! **Rule.** The changes are applied by the code that changes a mounted volume, to a copy of the volume whose writes stay
//! in memory ([`ScratchDevice`]). The result is the set of changed blocks, for the log ([`steadfs_jbd2`]) or for the
//! overlay of a volume that is only read. If anything contradicts the volume, nothing was changed.
//!
//! **Order.** Linux records names first and then the inodes with their ranges. An inode without a create record (made
//! without a name, and linked later) is named and mapped before its fields are known: such records wait for it.
//!
//! **Allocation.** File data of a fast commit is on the device. The blocks of its ranges are allocated in memory before anything is
//! allocated for directories and trees; unmapped blocks are freed at the end. Inodes without names become orphans, which
//! the mount frees.

mod inodes;
mod names;
mod ranges;
mod track;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use steadfs_base::{BlockSize, Corruption, DevBlock, IoTag};
use steadfs_block::{Buf, Device, Queue, QueueOptions};
use steadfs_cache::CacheSizes;
use steadfs_jbd2::{FastCommitChange, FastCommitRecord, FastCommits, NameChange, ScratchDevice};
use steadfs_vfs::{Cx, FsError, Result};

use crate::disk::Ino;
use crate::disk::features::{Incompat, RoCompat};
use crate::disk::superblock::SUPERBLOCK_OFFSET;
use crate::external_journal::JournalArea;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::io_error;
use crate::mode::why_only_readable;
use crate::options::MountOptions;
use crate::report::MountReport;
use crate::source::Source;
use crate::superblock::{read_superblock, superblock_bytes};
use crate::txn::Handle;

pub(crate) use track::{FastCommitTracker, refusal};

use names::Name;
use ranges::{FileRange, Unmapped};

/// What to do about fast commits that are not replayed here.
const WAY_OUT: &str = "replay them with e2fsck on a copy of the volume, or read it as it was before them with -o ro,noload";

/// Bytes of clean metadata that the replay keeps in memory.
const METADATA_BYTES: u64 = 16 << 20;

/// The blocks that `commits` change, with their new content. `view` is the volume with its log replayed; `external`: where an
/// external journal follows it.
///
/// # Errors
/// A record contradicts the volume; the volume has features that are not written; it has too little space.
pub(crate) fn changed_blocks(
    view: Arc<dyn Device>,
    block_size: BlockSize,
    external: Option<JournalArea>,
    commits: &FastCommits,
) -> Result<BTreeMap<DevBlock, Buf>> {
    let scratch = Arc::new(ScratchDevice::new(view, block_size));
    let device: Arc<dyn Device> = Arc::clone(&scratch) as _;
    let queue = Arc::new(Queue::new(device, QueueOptions::default()));
    let sb = read_superblock(&queue)?;
    let options = MountOptions {
        external_journal: external,
        ..MountOptions::default()
    };
    let mut why = why_only_readable(&sb, &options);
    if sb.features().incompat.contains(Incompat::INLINE_DATA) {
        why.push("inline_data, whose content is in records of inodes".to_owned());
    }
    if sb.features().ro_compat.contains(RoCompat::BIGALLOC) {
        why.push("bigalloc, whose clusters several ranges share".to_owned());
    }
    if !why.is_empty() {
        let why = why.join("; ");
        return Err(FsError::BadOption(format!(
            "its journal has fast commits to replay, which is not supported on this volume ({why}): {WAY_OUT}"
        )));
    }
    let source = Source {
        super_bytes: superblock_bytes(&queue, SUPERBLOCK_OFFSET)?,
        super_at: SUPERBLOCK_OFFSET,
        queue,
        overlay: None,
        unreplayed: None,
        sb,
    };
    let sizes = CacheSizes {
        metadata: METADATA_BYTES,
        dirty_data: 0,
        read_ahead: 0,
    };
    let mut report = MountReport::default();
    let fs = Ext4::assemble(source, options, sizes, false, &mut report)?;
    if let Some(why) = &fs.unwritable {
        return Err(Corruption::new(why.clone()).into());
    }
    // No record has the counts: they follow from what is changed.
    fs.open_quota()?;
    let mut replay = Replay::new(&fs);
    replay.all(commits).map_err(|error| match error {
        // The last two: a name that cannot be encoded here.
        FsError::NoSpace | FsError::NoRoom(_) | FsError::NoKey | FsError::NotSupported(_) => {
            FsError::BadOption(format!(
                "its fast commits cannot be replayed: {error}: {WAY_OUT}"
            ))
        }
        error => error,
    })?;
    fs.meta.write_dirty(IoTag::default()).map_err(io_error)?;
    Ok(scratch.take_written())
}

/// The state of a replay.
struct Replay<'a> {
    fs: &'a Ext4,
    cx: Cx,
    /// Inodes that may have lost their last name.
    touched: BTreeSet<Ino>,
    /// New directories that have no first block, because their create record has not come yet.
    unmade: BTreeSet<Ino>,
    /// Names of inodes that do not exist yet.
    early_names: Vec<Name>,
    /// Ranges of inodes whose inode record of this fast commit has not come yet.
    early_ranges: BTreeMap<Ino, Vec<(FileRange, FastCommitRecord)>>,
    unmapped: Unmapped,
}

impl<'a> Replay<'a> {
    fn new(fs: &'a Ext4) -> Self {
        Self {
            fs,
            cx: Cx::default(),
            touched: BTreeSet::new(),
            unmade: BTreeSet::new(),
            early_names: Vec::new(),
            early_ranges: BTreeMap::new(),
            unmapped: Unmapped::default(),
        }
    }

    fn all(&mut self, commits: &FastCommits) -> Result<()> {
        self.fs.orphans.load(self.fs);
        for record in commits.commits.iter().flatten() {
            self.allocate_range(record)
                .map_err(|error| at(record, error))?;
        }
        for commit in &commits.commits {
            for record in commit {
                self.record(record).map_err(|error| at(record, error))?;
            }
            for (ino, ranges) in std::mem::take(&mut self.early_ranges) {
                self.apply_ranges(ino, ranges)?;
            }
        }
        self.finish()
    }

    fn record(&mut self, record: &FastCommitRecord) -> Result<()> {
        match &record.change {
            FastCommitChange::AddRange { ino, .. } | FastCommitChange::DelRange { ino, .. } => {
                let ino = self.usable(*ino)?;
                let range = FileRange::of(&record.change)?;
                let waiting = self.early_ranges.entry(ino).or_default();
                waiting.push((range, record.clone()));
                Ok(())
            }
            FastCommitChange::Inode { ino, raw } => {
                let ino = self.usable(*ino)?;
                self.inode(ino, raw)?;
                if let Some(ranges) = self.early_ranges.remove(&ino) {
                    self.apply_ranges(ino, ranges)?;
                }
                self.add_early_names(ino)
            }
            FastCommitChange::Name {
                change,
                parent,
                ino,
                name,
            } => {
                let name = Name {
                    parent: self.usable(*parent)?,
                    ino: self.usable(*ino)?,
                    name: name.clone(),
                };
                name.check()?;
                match change {
                    NameChange::Create => self.create(&name),
                    NameChange::Link => self.link(name),
                    NameChange::Unlink => self.unlink(&name),
                }
            }
        }
    }

    /// Frees what is no longer mapped, and makes orphans of the inodes without names.
    fn finish(&mut self) -> Result<()> {
        if let Some(ino) = self.unmade.first() {
            let what = "a directory of the fast commits has no name";
            return Err(Corruption::new(what).in_inode(*ino).into());
        }
        self.change(|replay, handle| {
            for (start, len) in std::mem::take(&mut replay.unmapped).runs() {
                replay.fs.alloc.free_blocks(replay.fs, handle, start, len)?;
            }
            Ok(())
        })?;
        for ino in std::mem::take(&mut self.touched) {
            let Some(inode) = self.current(ino)? else {
                continue;
            };
            let links = inode.core.read().links;
            if links == 0 {
                self.change(|replay, handle| replay.fs.orphans.add(replay.fs, handle, &inode))?;
            }
        }
        Ok(())
    }

    /// Runs one step. A copy without a journal is changed: there are no credits, and an error ends the whole replay.
    fn change<T>(
        &mut self,
        step: impl FnOnce(&mut Self, &mut Handle<'_>) -> Result<T>,
    ) -> Result<T> {
        let fs = self.fs;
        fs.txns
            .run(0, IoTag::default(), |handle| step(self, handle))
    }

    /// The number of an inode that files and directories may have.
    fn usable(&self, ino: u32) -> Result<Ino> {
        let ino = Ino(ino);
        if self.fs.is_nameable(ino) {
            return Ok(ino);
        }
        let what = format!("inode {ino} is not a file's or directory's");
        Err(Corruption::new(what).into())
    }

    /// The inode, if its number is in use.
    fn current(&self, ino: Ino) -> Result<Option<Arc<Inode>>> {
        if !self.fs.alloc.is_inode_used(self.fs, ino)? {
            return Ok(None);
        }
        match self.fs.inode(ino, IoTag::default()) {
            Ok(inode) => Ok(Some(inode)),
            Err(FsError::Stale) => {
                let what = "in use by its bitmap, but its slot is empty";
                Err(Corruption::new(what).in_inode(ino).into())
            }
            Err(error) => Err(error),
        }
    }
}

/// Adds the record's position to an error.
fn at(record: &FastCommitRecord, error: FsError) -> FsError {
    let place = format!("{}: {}", record.at, record.change.name());
    match error {
        FsError::Corrupt(mut corruption) => {
            corruption.what = format!("{place}: {}", corruption.what).into();
            FsError::Corrupt(corruption)
        }
        FsError::Io(_) | FsError::NoSpace | FsError::NoRoom(_) | FsError::NoMemory => error,
        other => Corruption::new(format!("{place}: {other}")).into(),
    }
}

#[cfg(test)]
mod tests;
