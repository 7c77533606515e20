//! The file of one kind of owner, and its entries in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use steadfs_base::{Corruption, FixedMap, IoTag};
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{FileKind, FsError, Result};

use super::{blocks, limits};
use crate::cp_lock::Change;
use crate::disk::inode::{Advise, Inline};
use crate::disk::quota::account::Account;
use crate::disk::quota::usage::Usage;
use crate::disk::quota::{Entry, Info, Kind, QuotaError, tree};
use crate::disk::{self, Nid};
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::pins::Pins;

/// Entries of a kind that are cached, beside those in use.
const CACHED_MAX: usize = 4096;

/// The file of one kind.
pub(super) struct QuotaFile {
    pub(super) kind: Kind,
    pub(super) inode: Arc<Inode>,
    pub(super) info: Mutex<Info>,
    pub(super) cached: Mutex<FixedMap<u32, Arc<Dquot>>>,
    /// Entries that have changed since they were copied to their blocks.
    dirty: Mutex<Vec<Arc<Dquot>>>,
}

/// The entry of an owner.
pub(crate) struct Dquot {
    /// The file block that has it, and its offset there.
    block: u64,
    at: usize,
    pub(super) account: Mutex<Account>,
    /// The epoch in which its block was marked dirty.
    touched: AtomicU64,
    /// Whether it is in the list of changed entries.
    dirty: AtomicBool,
}

impl QuotaFile {
    /// Opens the file of a kind. `is_own`: its inode is not that of another kind.
    pub(super) fn open(fs: &F2fs, kind: Kind, nid: Nid, is_own: bool) -> Result<Self> {
        let corrupt = |what: &str| {
            let what = format!("the {} quota file {what}", kind.name());
            FsError::from(Corruption::new(what).in_inode(nid))
        };
        let inode = match fs.inode(nid, IoTag::default()) {
            Err(FsError::Stale) => return Err(corrupt("is no inode in use")),
            found => found?,
        };
        {
            let core = inode.core.read();
            let is_plain = inode.is_quota_file()
                && inode.kind() == FileKind::Regular
                && !core.inline.contains(Inline::DATA)
                && !core.is_compressed(&fs.layout)
                && !core.advise.contains(Advise::ENCRYPTED);
            if !is_own || !is_plain {
                return Err(corrupt("is not a plain file of its own"));
            }
        }
        let file = Self {
            kind,
            inode,
            info: Mutex::new(Rank::Leaf, Info::default()),
            cached: Mutex::new(Rank::QuotaTable, FixedMap::default()),
            dirty: Mutex::new(Rank::Leaf, Vec::new()),
        };
        let info = file.read_info(fs)?;
        *file.info.lock() = info;
        Ok(file)
    }

    /// Replaces `before` by `now`, usage and delayed bytes, in an owner's counts. An owner without an entry was
    /// recorded.
    pub(super) fn add(
        &self,
        fs: &F2fs,
        dquot: Option<&Arc<Dquot>>,
        before: (Usage, u64),
        now: (Usage, u64),
        enforced: bool,
    ) {
        let Some(dquot) = dquot.filter(|_| before != now) else {
            return;
        };
        let info = *self.info.lock();
        let plausible = {
            let mut account = dquot.account.lock();
            account.delayed = account
                .delayed
                .saturating_add(now.1)
                .saturating_sub(before.1);
            if before.0 == now.0 {
                return;
            }
            let plausible = account.replace(before.0, now.0);
            account.update_timers(&info, enforced, limits::now_secs());
            plausible
        };
        self.changed(dquot);
        if !plausible {
            fs.quota_is_wrong(&self.corruption("counts for an owner what cannot be"));
        }
    }

    /// An entry has changed in memory.
    pub(super) fn changed(&self, dquot: &Arc<Dquot>) {
        if !dquot.dirty.swap(true, Ordering::AcqRel) {
            self.dirty.lock().push(Arc::clone(dquot));
        }
    }

    /// The entry of an owner who must have one; `None` if that was recorded as wrong.
    pub(super) fn known(&self, fs: &F2fs, owner: u32, tag: IoTag) -> Result<Option<Arc<Dquot>>> {
        let found = self.dquot(fs, owner, tag);
        let found = found.or_else(|error| self.tolerate(fs, error).map(|()| None))?;
        if found.is_none() && !fs.quota.is_wrong() {
            fs.quota_is_wrong(&self.corruption("has no entry for an owner"));
        }
        Ok(found)
    }

    /// The same where no error can be returned.
    pub(super) fn found(&self, fs: &F2fs, owner: u32) -> Option<Arc<Dquot>> {
        let found = self.known(fs, owner, IoTag::default());
        found.unwrap_or_else(|error| {
            fs.quota_is_wrong(&error);
            None
        })
    }

    /// A quota file that is wrong fails no call.
    pub(super) fn tolerate(&self, fs: &F2fs, error: FsError) -> Result<()> {
        if !error.is_corruption() {
            return Err(error);
        }
        fs.quota_is_wrong(&error);
        Ok(())
    }

    /// The entry of an owner, if there is one.
    pub(super) fn dquot(&self, fs: &F2fs, owner: u32, tag: IoTag) -> Result<Option<Arc<Dquot>>> {
        if let Some(dquot) = self.cached.lock().get(&owner) {
            return Ok(Some(Arc::clone(dquot)));
        }
        // One task at a time reads: no entry is read, changed, forgotten and then inserted in its old state.
        let core = self.inode.core.write();
        if let Some(dquot) = self.cached.lock().get(&owner) {
            return Ok(Some(Arc::clone(dquot)));
        }
        let Some((place, entry)) = self.find(fs, &core, owner, tag)? else {
            return Ok(None);
        };
        let (block, at) = blocks::place_of(place);
        let dquot = Arc::new(Dquot {
            block,
            at,
            account: Mutex::new(Rank::Quota, Account::new(entry)),
            touched: AtomicU64::new(0),
            dirty: AtomicBool::new(false),
        });
        let mut cached = self.cached.lock();
        if cached.len() >= CACHED_MAX {
            cached.retain(|_, dquot| is_in_use(dquot));
        }
        cached.insert(owner, Arc::clone(&dquot));
        Ok(Some(dquot))
    }

    /// Makes an owner's entry, if there is none, and pins it.
    pub(super) fn prepare(&self, fs: &F2fs, pins: &mut Pins, owner: u32, tag: IoTag) -> Result<()> {
        if self.dquot(fs, owner, tag)?.is_none() {
            self.make_entry(fs, owner, tag)?;
        }
        match self.dquot(fs, owner, tag)? {
            Some(dquot) => self.pin(fs, pins, dquot, tag),
            None => Ok(()),
        }
    }

    /// Pins an entry with all that [`QuotaFile::touch`] reads.
    pub(super) fn pin(
        &self,
        fs: &F2fs,
        pins: &mut Pins,
        dquot: Arc<Dquot>,
        tag: IoTag,
    ) -> Result<()> {
        fs.pin_inode(pins, &self.inode, tag)?;
        fs.pin_dir_block(pins, &self.inode, Some(dquot.block), tag)?;
        pins.add_dquot(dquot);
        Ok(())
    }

    pub(super) fn find(
        &self,
        fs: &F2fs,
        core: &disk::Inode,
        owner: u32,
        tag: IoTag,
    ) -> Result<Option<(tree::Place, Entry)>> {
        let info = *self.info.lock();
        let found = tree::find(&mut self.blocks(fs, core, tag), &info, owner);
        found.map_err(|error| self.error(error))
    }

    /// Marks the block dirty that has an entry, once in each epoch.
    pub(super) fn touch(
        &self,
        fs: &F2fs,
        change: &Change<'_>,
        dquot: &Dquot,
        tag: IoTag,
    ) -> Result<()> {
        let Some(quota) = fs.quota.opened.get() else {
            return Ok(());
        };
        // The snapshot that ends the epoch does not begin inside the change.
        let epoch = quota.epoch.load(Ordering::Acquire);
        if dquot.touched.load(Ordering::Acquire) == epoch {
            return Ok(());
        }
        let core = self.inode.core.write();
        fs.mark_dirty(change, &self.inode, tag)?;
        fs.edit_block(change, &self.inode, &core, dquot.block, tag, |_| ())?;
        dquot.touched.store(epoch, Ordering::Release);
        Ok(())
    }

    /// Copies the changed entries to their blocks.
    pub(super) fn flush(&self, fs: &F2fs, change: &Change<'_>) -> Result<()> {
        let mut changed = std::mem::take(&mut *self.dirty.lock());
        if changed.is_empty() {
            return Ok(());
        }
        let tag = IoTag::default();
        let core = self.inode.core.write();
        fs.mark_dirty(change, &self.inode, tag)?;
        while let Some(dquot) = changed.pop() {
            let entry = dquot.account.lock().entry.to_bytes();
            let copy = |block: &mut [u8]| block[dquot.at..][..entry.len()].copy_from_slice(&entry);
            let copied = fs.edit_block(change, &self.inode, &core, dquot.block, tag, copy);
            if let Err(error) = copied {
                changed.push(dquot);
                *self.dirty.lock() = changed;
                return Err(error);
            }
            dquot.dirty.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Evicts the entries that are not in use.
    pub(super) fn drop_unused(&self) {
        self.cached.lock().retain(|_, dquot| is_in_use(dquot));
    }

    pub(super) fn error(&self, error: QuotaError<FsError>) -> FsError {
        match error {
            QuotaError::Malformed(what) => self.corruption(what),
            QuotaError::Blocks(error) => error,
        }
    }

    pub(super) fn corruption(&self, what: &str) -> FsError {
        let what = format!("the {} quota file {what}", self.kind.name());
        Corruption::new(what).in_inode(self.inode.nid()).into()
    }
}

/// Whether an entry is referred to outside of the table, or has a state that is not in its block. The caller has locked the
/// table.
fn is_in_use(dquot: &Arc<Dquot>) -> bool {
    Arc::strong_count(dquot) > 1 || dquot.account.lock().delayed > 0
}
