//! Quota: what each user, group and project uses, in hidden files of the volume (feature `quota_ino`).
//!
//! **Problem.** After any crash the counts must agree with the inodes of the last checkpoint, and counting must not cost
//! I/O.
//!
//! **Rule.** An inode in memory knows what was counted for it ([`Charged`]). Calls that change its blocks or owners count
//! the difference in memory ([`F2fs::charge`]), and so does whatever stores the inode in its node. A checkpoint's snapshot
//! first counts all dirty inodes, then copies the changed entries into blocks of the quota files, which it writes like
//! blocks of directories. So a checkpoint has inodes and counts of one moment. Roll-forward changes inodes by the same calls.
//!
//! **No read in a snapshot.** Marking an inode dirty also marks the blocks dirty that have the entries of its owners
//! ([`F2fs::touch_owners`]). An owner gets an entry in a change of its own, before the first inode is made for it
//! ([`F2fs::prepare_owners`]). Entries are not removed. A call that changes names reads those blocks before its first
//! change, with all else that it needs ([`F2fs::pin_inodes`]).
//!
//! **If it is wrong.** A quota file that contradicts its format, or counts that cannot be, are recorded, and checkpoints have
//! the flag `quota_need_fsck` from then on. With it a mount counts nothing, as in Linux; fsck.f2fs counts anew.
//!
//! **Locks.** The fields of a quota file's inode (rank `InodeState`: those of a counted inode may be locked) guard its tree
//! and are held exclusively while an entry is read into the table. Each entry has a lock of its own.

mod admin;
mod blocks;
mod file;
mod limits;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use steadfs_base::IoTag;
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{FsError, Result};

use crate::cp_lock::Change;
use crate::data::BLOCK;
use crate::disk::checkpoint::CpFlags;
use crate::disk::quota::Kind;
use crate::disk::quota::account::Enforced;
use crate::disk::quota::usage::Usage;
use crate::disk::{self, Features};
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::pins::Pins;

pub(crate) use file::Dquot;
use file::QuotaFile;
pub(crate) use limits::QuotaHold;

/// The quota of a volume, which has it or not.
#[derive(Default)]
pub(crate) struct QuotaState {
    /// Set when the volume becomes writable and its quota files can be used.
    opened: OnceLock<Quota>,
    /// Checkpoints ask for a check of the usage.
    is_wrong: AtomicBool,
}

/// The quota files of a volume that is written.
struct Quota {
    files: [Option<QuotaFile>; 3],
    enforced: Enforced,
    /// The number of snapshots.
    epoch: AtomicU64,
}

/// What was counted for an inode.
#[derive(Clone, Default)]
pub(crate) struct Charged {
    owners: [u32; 3],
    used: Usage,
    /// Bytes of delayed data that count for the owners, too.
    delayed: u64,
    /// Blocks of delayed data now.
    delayed_blocks: u64,
    dquots: [Option<Arc<Dquot>>; 3],
}

/// What an inode in memory remembers for its volume's quota; volumes without it keep nothing.
#[derive(Default)]
pub(crate) struct ChargedCell(OnceLock<Box<Mutex<Charged>>>);

/// The owners of an inode, by kind.
pub(crate) fn owners_of(core: &disk::Inode) -> [u32; 3] {
    [core.uid, core.gid, core.project]
}

/// What an inode uses. Its own block is not counted.
fn usage_of(core: &disk::Inode) -> Usage {
    Usage {
        bytes: core.blocks.saturating_sub(1).saturating_mul(BLOCK),
        inodes: 1,
    }
}

impl QuotaState {
    /// Whether checkpoints ask for a check of the usage.
    pub(crate) fn is_wrong(&self) -> bool {
        self.is_wrong.load(Ordering::Acquire)
    }
}

impl F2fs {
    /// Opens the quota files, if the volume has any. Inodes are counted from here on. Quota files that cannot be used are
    /// recorded, and nothing is counted.
    ///
    /// # Errors
    /// A device error: a later mount may be able to read them, and counts on.
    pub(crate) fn open_quota(&self) -> Result<()> {
        if self.quota.opened.get().is_some() || self.superblock.quota_inodes() == [None; 3] {
            return Ok(());
        }
        if self.is_quota_out_of_date() {
            tracing::warn!("usage of quota is not counted until fsck.f2fs has counted it anew");
            return Ok(());
        }
        match Quota::open(self) {
            Ok(quota) => {
                // A remount opens them once.
                let _ = self.quota.opened.set(quota);
                self.enforce_limits();
                Ok(())
            }
            Err(error) if error.is_corruption() => {
                self.quota_is_wrong(&error);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Whether checkpoints ask for a check of the usage: it was found to be wrong, now or earlier.
    pub(crate) fn is_quota_out_of_date(&self) -> bool {
        let flags = self.checkpoints.last().flags;
        self.quota.is_wrong() || flags.contains(CpFlags::QUOTA_FSCK)
    }

    fn quota_is_wrong(&self, error: &FsError) {
        self.quota.is_wrong.store(true, Ordering::Release);
        self.record_corruption(error);
    }

    /// Adds what an inode that was read knows of its usage.
    pub(crate) fn with_charged_before(&self, inode: Inode) -> Inode {
        if self.layout.has(Features::QUOTA_INO) && !inode.is_quota_file() {
            let core = inode.core.read();
            let charged = Charged {
                owners: owners_of(&core),
                used: usage_of(&core),
                ..Charged::default()
            };
            drop(core);
            inode.charged.set(charged);
        }
        inode
    }

    /// The same for an inode that is new: nothing was counted for it.
    pub(crate) fn with_nothing_charged(&self, inode: Inode) -> Inode {
        if self.quota.opened.get().is_some() {
            let owners = owners_of(&inode.core.read());
            inode.charged.set(Charged {
                owners,
                ..Charged::default()
            });
        }
        inode
    }

    /// An inode is about to be marked dirty: the entries of its owners are kept, with their blocks.
    #[inline]
    pub(crate) fn touch_charged(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        tag: IoTag,
    ) -> Result<()> {
        let Some(cell) = self.counting(inode) else {
            return Ok(());
        };
        let owners = cell.lock().owners;
        let dquots = self.touch_owners(change, owners, tag)?;
        cell.lock().dquots = dquots;
        Ok(())
    }

    /// Marks the blocks dirty that have the entries of these owners, and returns the entries.
    ///
    /// # Errors
    /// A device error.
    pub(crate) fn touch_owners(
        &self,
        change: &Change<'_>,
        owners: [u32; 3],
        tag: IoTag,
    ) -> Result<[Option<Arc<Dquot>>; 3]> {
        let mut dquots = [const { None }; 3];
        let Some(quota) = self.quota.opened.get() else {
            return Ok(dquots);
        };
        for file in quota.files() {
            let n = file.kind.index();
            if let Some(dquot) = file.known(self, owners[n], tag)? {
                file.touch(self, change, &dquot, tag)?;
                dquots[n] = Some(dquot);
            }
        }
        Ok(dquots)
    }

    /// Makes entries for owners who have none, and pins the entries, so that counting for these owners reads nothing. The
    /// caller is in no change.
    ///
    /// # Errors
    /// No space for an entry, or a device error.
    #[inline]
    pub(crate) fn prepare_owners(&self, owners: [u32; 3], tag: IoTag) -> Result<Pins> {
        match self.quota.opened.get() {
            None => Ok(Pins::default()),
            Some(quota) => quota.prepare(self, owners, tag),
        }
    }

    /// Pins the entries of an inode's owners.
    ///
    /// # Errors
    /// A device error.
    pub(crate) fn pin_charged(&self, pins: &mut Pins, inode: &Inode, tag: IoTag) -> Result<()> {
        let (Some(quota), Some(cell)) = (self.quota.opened.get(), self.counting(inode)) else {
            return Ok(());
        };
        let owners = cell.lock().owners;
        for file in quota.files() {
            if let Some(dquot) = file.known(self, owners[file.kind.index()], tag)? {
                file.pin(self, pins, dquot, tag)?;
            }
        }
        Ok(())
    }

    /// Evicts the entries of quota files that are not in use.
    pub(crate) fn drop_unused_quota(&self) {
        let quota = self.quota.opened.get();
        quota
            .into_iter()
            .flat_map(Quota::files)
            .for_each(QuotaFile::drop_unused);
    }

    /// Counts what an inode has more than before. The caller holds `inode.core` and passes it.
    #[inline]
    pub(crate) fn charge(&self, inode: &Inode, core: &disk::Inode) {
        self.charge_mapped(inode, core, 0);
    }

    /// The same after blocks of delayed data were mapped.
    #[inline]
    pub(crate) fn charge_mapped(&self, inode: &Inode, core: &disk::Inode, blocks: u64) {
        if let Some(cell) = self.counting(inode) {
            cell.lock().end_delay(blocks);
            self.count(inode, cell, Some((owners_of(core), usage_of(core))));
        }
    }

    /// As [`F2fs::charge`], after owners may have changed, who have entries.
    pub(crate) fn charge_owners(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        core: &disk::Inode,
        tag: IoTag,
    ) {
        let Some(cell) = self.counting(inode) else {
            return;
        };
        if cell.lock().owners != owners_of(core)
            && let Err(error) = self.touch_owners(change, owners_of(core), tag)
        {
            // The snapshot reads the blocks.
            tracing::warn!(%error, "reading a quota file failed");
        }
        self.charge(inode, core);
    }

    /// As [`F2fs::charge`], by a caller that does not hold the inode's fields.
    #[inline]
    pub(crate) fn recount(&self, inode: &Inode) {
        if self.counting(inode).is_some() {
            self.charge(inode, &inode.core.read());
        }
    }

    /// Nothing is counted for an inode any more, which is being freed.
    pub(crate) fn uncharge(&self, change: &Change<'_>, inode: &Inode, tag: IoTag) -> Result<()> {
        if let Some(cell) = self.counting(inode) {
            self.touch_charged(change, inode, tag)?;
            let owners = cell.lock().owners;
            cell.lock().delayed_blocks = 0;
            self.count(inode, cell, Some((owners, Usage::default())));
        }
        Ok(())
    }

    /// Blocks of a file are delayed.
    #[inline]
    pub(crate) fn delay(&self, inode: &Inode, blocks: u64) {
        if let Some(cell) = self.counting(inode) {
            cell.lock().delayed_blocks += blocks;
            self.count(inode, cell, None);
        }
    }

    /// Blocks of a file are not delayed any more.
    #[inline]
    pub(crate) fn end_delay(&self, inode: &Inode, blocks: u64) {
        if let Some(cell) = self.counting(inode) {
            cell.lock().end_delay(blocks);
            self.count(inode, cell, None);
        }
    }

    /// What is counted for the inode, if anything is.
    #[inline]
    fn counting<'i>(&self, inode: &'i Inode) -> Option<&'i Mutex<Charged>> {
        self.quota.opened.get()?;
        inode.charged.0.get().map(|cell| &**cell)
    }

    /// Adds the difference to the owners' counts. `now`: owners and usage, unless only delayed data changed.
    fn count(&self, inode: &Inode, cell: &Mutex<Charged>, now: Option<([u32; 3], Usage)>) {
        let Some(quota) = self.quota.opened.get() else {
            return;
        };
        let nodes = inode.reserved_nodes();
        let mut dquots = {
            let charged = cell.lock();
            let (owners, used) = now.unwrap_or((charged.owners, charged.used));
            if charged.is(owners, used, nodes) {
                return;
            }
            charged.dquots.clone()
        };
        for file in quota.files() {
            let n = file.kind.index();
            let owners = cell.lock().owners;
            let new = now.map_or(owners[n], |(owners, _)| owners[n]);
            if dquots[n].is_none() || new != owners[n] {
                dquots[n] = file.found(self, new);
            }
        }
        let mut charged = cell.lock();
        let (owners, used) = now.unwrap_or((charged.owners, charged.used));
        let delayed = charged.delayed_now(nodes);
        for file in quota.files() {
            let n = file.kind.index();
            let (old, new) = (charged.dquots[n].as_ref(), dquots[n].as_ref());
            let before = (charged.used, charged.delayed);
            let enforced = quota.enforced.has(file.kind);
            if owners[n] == charged.owners[n] {
                file.add(self, new, before, (used, delayed), enforced);
            } else {
                file.add(self, old, before, Default::default(), enforced);
                file.add(self, new, Default::default(), (used, delayed), enforced);
            }
        }
        (charged.owners, charged.used, charged.delayed) = (owners, used, delayed);
        charged.dquots = dquots;
    }

    /// Counts all dirty inodes, and copies the changed entries to their blocks, for a snapshot.
    ///
    /// # Errors
    /// An entry's block is not in memory, and cannot be read.
    pub(crate) fn flush_quota(&self, change: &Change<'_>) -> Result<()> {
        let Some(quota) = self.quota.opened.get() else {
            return Ok(());
        };
        for inode in self.inodes.dirty() {
            self.recount(&inode);
        }
        for file in quota.files() {
            file.flush(self, change)?;
        }
        quota.epoch.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

impl Charged {
    fn delayed_now(&self, nodes: u64) -> u64 {
        (self.delayed_blocks + nodes) * BLOCK
    }

    fn end_delay(&mut self, blocks: u64) {
        self.delayed_blocks = self.delayed_blocks.saturating_sub(blocks);
    }

    fn is(&self, owners: [u32; 3], used: Usage, nodes: u64) -> bool {
        (self.owners, self.used, self.delayed) == (owners, used, self.delayed_now(nodes))
    }
}

impl ChargedCell {
    fn set(&self, charged: Charged) {
        let make = || Box::new(Mutex::new(Rank::QuotaTable, Charged::default()));
        *self.0.get_or_init(make).lock() = charged;
    }
}

impl Quota {
    /// # Errors
    /// A quota file cannot be used, or not be read.
    fn open(fs: &F2fs) -> Result<Self> {
        let mut files = [const { None }; 3];
        let inodes = fs.superblock.quota_inodes();
        for kind in Kind::ALL {
            if let Some(nid) = inodes[kind.index()] {
                let others = inodes.iter().filter(|other| **other == Some(nid));
                files[kind.index()] = Some(QuotaFile::open(fs, kind, nid, others.count() == 1)?);
            }
        }
        Ok(Self {
            files,
            enforced: Enforced::default(),
            // An entry that was never touched is of none.
            epoch: AtomicU64::new(1),
        })
    }

    /// The files of the kinds that the volume has.
    fn files(&self) -> impl Iterator<Item = &QuotaFile> {
        self.files.iter().flatten()
    }

    fn prepare(&self, fs: &F2fs, owners: [u32; 3], tag: IoTag) -> Result<Pins> {
        let mut pins = Pins::default();
        for file in self.files() {
            file.prepare(fs, &mut pins, owners[file.kind.index()], tag)
                .or_else(|error| file.tolerate(fs, error))?;
        }
        Ok(pins)
    }
}

#[cfg(test)]
mod tests;
