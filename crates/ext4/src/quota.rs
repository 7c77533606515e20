//! Quota: what each user, group and project uses, in hidden files of the volume (feature `quota`).
//!
//! **Problem.** The counts must agree with the inodes after any crash, and counting must not cost I/O.
//!
//! **Rule.** An inode in memory knows what was counted for it ([`Charged`]). Whenever it is stored in its table, the
//! difference to its fields is added to the counts of its owners in the same handle ([`Ext4::charge`]), so the two are in
//! one transaction whatever changed: blocks of data or metadata, owner, project. A freed inode loses all that it has.
//!
//! **Entries** ([`Dquot`]) are cached with their place in the quota file, so a change writes 72 bytes into a metadata block
//! in memory. An owner gets an entry in a handle of its own before the first inode is made for it
//! ([`Ext4::prepare_owners`]): the file grows in it. Entries are not removed.
//!
//! **Credits.** Each handle has [`CREDITS_PER_KIND`] more for each kind of quota ([`crate::txn::Txns`]).
//!
//! **Locks.** The fields of the quota file's inode guard the tree, the table of a kind what is cached, and each entry has a
//! lock of its own, which is held while its block changes.

mod admin;
mod blocks;
mod limits;

use std::sync::{Arc, OnceLock};

use steadfs_base::{Corruption, FixedMap, IoTag};
use steadfs_cache::MetaBuf;
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{FsError, Result};

use crate::disk::features::{Incompat, RoCompat};
use crate::disk::quota::account::{Account, Enforced};
use crate::disk::quota::usage::Usage;
use crate::disk::quota::{BLOCK_SIZE, ENTRY_SIZE, Entry, Info, Kind, QuotaError, tree};
use crate::disk::{self, Geometry, Ino};
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::pins::Pins;
use crate::txn::Handle;
pub(crate) use limits::QuotaHold;

use blocks::{FileBlocks, Growth};

/// Blocks of entries of one kind that a handle changes at most: the owners of a directory that grows and of a new inode in
/// it, or the old and the new owner.
const CREDITS_PER_KIND: u32 = 2;
/// Entries of a kind that are cached, beside those in use.
const CACHED_MAX: usize = 4096;

/// The quota files of a volume that is written.
pub(crate) struct Quota {
    files: [Option<QuotaFile>; 3],
    enforced: Enforced,
}

/// The file of one kind.
struct QuotaFile {
    kind: Kind,
    inode: Arc<Inode>,
    /// Where its content is, and what its first block says. The tree changes while the inode's fields are locked.
    layout: Mutex<Layout>,
    cached: Mutex<FixedMap<u32, Arc<Dquot>>>,
}

struct Layout {
    blocks: Vec<steadfs_base::DevBlock>,
    info: Info,
}

/// The entry of an owner.
pub(crate) struct Dquot {
    /// The block that holds it, and its offset there.
    buf: Arc<MetaBuf>,
    at: usize,
    account: Mutex<Account>,
}

/// What was counted for an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charged {
    owners: [u32; 3],
    used: Usage,
}

/// The owners of an inode, by kind.
pub(crate) fn owners_of(core: &disk::Inode) -> [u32; 3] {
    [core.uid, core.gid, core.project]
}

/// Credits that each handle needs for the counts, on a volume with this geometry.
pub(crate) fn credits(geo: &Geometry) -> u32 {
    match geo.has_ro_compat(RoCompat::QUOTA) {
        true => CREDITS_PER_KIND * Kind::ALL.len() as u32,
        false => 0,
    }
}

impl Ext4 {
    /// Opens the quota files, if the volume has any. Inodes are counted from here on.
    ///
    /// # Errors
    /// A quota file cannot be used.
    pub(crate) fn open_quota(&self) -> Result<()> {
        let files = self.sb.lock().quota_inodes();
        if self.quota.get().is_some() || files == [None; 3] {
            return Ok(());
        }
        let mut opened = [None, None, None];
        for (kind, ino) in Kind::ALL.into_iter().zip(files) {
            if let Some(ino) = ino {
                opened[kind.index()] = Some(self.open_quota_file(kind, ino)?);
            }
        }
        // A remount opens them once.
        let _ = self.quota.set(Quota {
            files: opened,
            enforced: Enforced::default(),
        });
        self.enforce_limits();
        Ok(())
    }

    /// What is counted for an inode with these fields.
    fn charge_of(&self, ino: Ino, core: &disk::Inode) -> Charged {
        if !self.is_counted(ino, core) {
            return Charged::default();
        }
        Charged {
            owners: owners_of(core),
            used: Usage {
                bytes: core.blocks.saturating_mul(512),
                inodes: 1 + self.value_references(ino, core),
            },
        }
    }

    /// Whether the inode counts: not a file of the volume's own, nor a value of attributes, which its references
    /// count.
    fn is_counted(&self, ino: Ino, core: &disk::Inode) -> bool {
        let is_own = ino != Ino::ROOT && !self.is_nameable(ino);
        !is_own && !core.has(disk::inode::EA_INODE)
    }

    /// What was counted for an inode that is read from its table; `None` on volumes without quota.
    pub(crate) fn charged_before(&self, ino: Ino, core: &disk::Inode) -> Option<Charged> {
        let has_quota = self.geo.has_ro_compat(RoCompat::QUOTA);
        has_quota.then(|| self.charge_of(ino, core))
    }

    /// Reads the entries of an inode's owners, so that later changes need not.
    pub(crate) fn cache_owners(&self, core: &disk::Inode) {
        let Some(quota) = self.quota.get() else {
            return;
        };
        for (file, owner) in quota.files.iter().zip(owners_of(core)) {
            if let Some(file) = file
                && let Err(error) = file.dquot(self, owner)
            {
                tracing::warn!(%error, kind = file.kind.name(), owner, "reading a quota entry failed");
            }
        }
    }

    /// Adds to the counts what an inode that is being stored has more than before. The caller holds `inode.core` for
    /// writing and passes it.
    #[inline]
    pub(crate) fn charge(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &disk::Inode,
    ) -> Result<()> {
        match self.quota.get() {
            None => Ok(()),
            Some(quota) => {
                let now = self.charge_of(inode.ino(), core);
                quota.change(self, handle, inode, now)
            }
        }
    }

    /// Nothing is counted for an inode any more, which is being freed.
    pub(crate) fn uncharge(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        match self.quota.get() {
            None => Ok(()),
            Some(quota) => quota.change(self, handle, inode, Charged::default()),
        }
    }

    /// Pins the entries of an inode's owners.
    ///
    /// # Errors
    /// A device error.
    #[inline]
    pub(crate) fn pin_charged(&self, pins: &mut Pins, inode: &Inode) -> Result<()> {
        match self.quota.get() {
            None => Ok(()),
            Some(quota) => quota.pin(self, pins, inode.charged().owners),
        }
    }

    /// Makes entries for owners who have none, and pins them. The caller holds no handle.
    ///
    /// # Errors
    /// No space for an entry; a quota file is corrupt.
    #[inline]
    pub(crate) fn prepare_owners(&self, owners: [Option<u32>; 3], tag: IoTag) -> Result<Pins> {
        match self.quota.get() {
            None => Ok(Pins::default()),
            Some(quota) => quota.prepare(self, owners, tag),
        }
    }

    /// Evicts the entries of quota files that are not in use.
    pub(crate) fn drop_unused_quota(&self) {
        for file in self.quota.get().into_iter().flat_map(Quota::files) {
            file.cached.lock().retain(|_, dquot| is_in_use(dquot));
        }
    }

    fn open_quota_file(&self, kind: Kind, ino: Ino) -> Result<QuotaFile> {
        let inode = self.inode(ino, IoTag::default())?;
        let blocks = blocks::map_all(self, &inode)?;
        let layout = Layout {
            info: Info::default(),
            blocks,
        };
        let file = QuotaFile {
            kind,
            inode,
            layout: Mutex::new(Rank::Leaf, layout),
            cached: Mutex::new(Rank::QuotaTable, FixedMap::default()),
        };
        let info = file.read_info(self)?;
        file.layout.lock().info = info;
        Ok(file)
    }
}

impl Quota {
    /// The files of the kinds that the volume has.
    fn files(&self) -> impl Iterator<Item = &QuotaFile> {
        self.files.iter().flatten()
    }

    fn change(
        &self,
        fs: &Ext4,
        handle: &mut Handle<'_>,
        inode: &Inode,
        now: Charged,
    ) -> Result<()> {
        let before = inode.charged();
        if now == before {
            return Ok(());
        }
        for file in self.files() {
            let (n, enforced) = (file.kind.index(), self.enforced.has(file.kind));
            if before.owners[n] == now.owners[n] {
                file.add(fs, handle, now.owners[n], (before.used, now.used), enforced)?;
            } else {
                let (lost, gained) = (
                    (before.used, Usage::default()),
                    (Usage::default(), now.used),
                );
                file.add(fs, handle, before.owners[n], lost, enforced)?;
                file.add(fs, handle, now.owners[n], gained, enforced)?;
            }
        }
        inode.set_charged(now);
        Ok(())
    }

    fn prepare(&self, fs: &Ext4, owners: [Option<u32>; 3], tag: IoTag) -> Result<Pins> {
        let mut pins = Pins::default();
        for file in self.files() {
            let Some(owner) = owners[file.kind.index()] else {
                continue;
            };
            let mut dquot = file.dquot(fs, owner)?;
            if dquot.is_none() {
                file.make_entry(fs, owner, tag)?;
                dquot = file.dquot(fs, owner)?;
            }
            dquot.into_iter().for_each(|dquot| pins.keep_dquot(dquot));
        }
        Ok(pins)
    }

    fn pin(&self, fs: &Ext4, pins: &mut Pins, owners: [u32; 3]) -> Result<()> {
        for file in self.files() {
            match file.dquot(fs, owners[file.kind.index()]) {
                Ok(dquot) => dquot.into_iter().for_each(|dquot| pins.keep_dquot(dquot)),
                // Counting records it.
                Err(error) if error.is_corruption() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl QuotaFile {
    /// Replaces `before` by `now` in an owner's counts.
    fn add(
        &self,
        fs: &Ext4,
        handle: &mut Handle<'_>,
        owner: u32,
        (before, now): (Usage, Usage),
        enforced: bool,
    ) -> Result<()> {
        if before == now {
            return Ok(());
        }
        let dquot = match self.dquot(fs, owner) {
            Ok(Some(dquot)) => dquot,
            Ok(None) => {
                fs.alloc
                    .record_corruption(self.corruption("has no entry for an owner"));
                return Ok(());
            }
            Err(FsError::Corrupt(what)) => {
                fs.alloc.record_corruption(*what);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let info = self.layout.lock().info;
        let mut account = dquot.account.lock();
        if !account.replace(before, now) {
            let what = self.corruption("counts for an owner what cannot be");
            fs.alloc.record_corruption(what);
        }
        account.update_timers(&info, enforced, limits::now_secs());
        dquot.store(handle, &account.entry)
    }

    /// The entry of an owner, if there is one.
    fn dquot(&self, fs: &Ext4, owner: u32) -> Result<Option<Arc<Dquot>>> {
        if let Some(dquot) = self.cached.lock().get(&owner) {
            return Ok(Some(Arc::clone(dquot)));
        }
        let Some((place, _)) = self.find(fs, owner)? else {
            return Ok(None);
        };
        let (buf, at) = self.place_in_block(fs, place)?;
        let mut cached = self.cached.lock();
        if let Some(dquot) = cached.get(&owner) {
            return Ok(Some(Arc::clone(dquot)));
        }
        // The entry changes only by what is cached.
        let entry = {
            let data = buf.data();
            let bytes = data[at..].first_chunk();
            Entry::parse(bytes.expect("within the block"))
        };
        let Some(entry) = entry.filter(|entry| entry.id == owner) else {
            return Err(self.corruption("changes while it is read").into());
        };
        if cached.len() >= CACHED_MAX {
            cached.retain(|_, dquot| is_in_use(dquot));
        }
        let dquot = Arc::new(Dquot {
            buf,
            at,
            account: Mutex::new(Rank::Quota, Account::new(entry)),
        });
        cached.insert(owner, Arc::clone(&dquot));
        Ok(Some(dquot))
    }

    /// Looks up an owner in the tree. Beside this it may grow, but the path of an entry stays.
    fn find(&self, fs: &Ext4, owner: u32) -> Result<Option<(tree::Place, Entry)>> {
        loop {
            let bound = self.bound(fs);
            let found = tree::find(&mut FileBlocks::new(fs, self), &bound, owner);
            match found {
                Err(QuotaError::Malformed(_)) if bound != self.bound(fs) => {}
                found => return found.map_err(|error| self.error(error)),
            }
        }
    }

    /// Adds an entry without usage, unless there is one by now.
    fn make_entry(&self, fs: &Ext4, owner: u32, tag: IoTag) -> Result<()> {
        let growth = Growth::of(fs.geo());
        let credits = growth.credits(fs, &self.inode) + tree::CHANGED_MAX + 1;
        let _pins = fs.pin_inodes(&[self.inode.ino()], tag)?;
        fs.txns().run(credits, tag, |handle| {
            let mut core = self.inode.core.write();
            if self.find(fs, owner)?.is_some() {
                return Ok(());
            }
            growth.make_room(fs, handle, self, &mut core)?;
            let mut info = self.layout.lock().info;
            let entry = Entry {
                id: owner,
                ..Entry::default()
            };
            let mut blocks = FileBlocks::new(fs, self);
            let inserted = tree::insert(&mut blocks, &mut info, &entry);
            inserted.map_err(|error| self.error(error))?;
            blocks.write_info(&info)?;
            blocks.store(handle)?;
            self.layout.lock().info = info;
            // Where several of its blocks are in one of the volume's, the file grows within that.
            let size = u64::from(info.blocks) * BLOCK_SIZE as u64;
            if core.size < size {
                core.size = size;
                fs.store_inode(handle, &self.inode, &core)?;
            }
            Ok(())
        })
    }

    fn error(&self, error: QuotaError<FsError>) -> FsError {
        match error {
            QuotaError::Malformed(what) => self.corruption(what).into(),
            QuotaError::Blocks(error) => error,
        }
    }

    fn corruption(&self, what: &str) -> Corruption {
        let what = format!("the {} quota file {what}", self.kind.name());
        Corruption::new(what).in_inode(self.inode.ino())
    }
}

/// Whether an entry is referred to outside of the table, or has a state that is not in its block. The caller has locked the
/// table.
fn is_in_use(dquot: &Arc<Dquot>) -> bool {
    Arc::strong_count(dquot) > 1 || dquot.has_delayed()
}

impl Dquot {
    /// Writes the entry, whose lock the caller holds.
    fn store(&self, handle: &mut Handle<'_>, entry: &Entry) -> Result<()> {
        let mut block = handle.write(&self.buf)?;
        block[self.at..self.at + ENTRY_SIZE].copy_from_slice(&entry.to_bytes());
        Ok(())
    }
}

/// What an inode in memory remembers for its volume's quota; volumes without it keep nothing.
#[derive(Default)]
pub(crate) struct ChargedCell(OnceLock<Box<Mutex<Charged>>>);

impl Inode {
    fn charged(&self) -> Charged {
        let charged = self.charged.0.get();
        charged.map_or_else(Charged::default, |charged| *charged.lock())
    }

    /// The inode with what was counted for it before it was read.
    pub(crate) fn with_charged(self, charged: Option<Charged>) -> Self {
        if let Some(charged) = charged {
            self.set_charged(charged);
        }
        self
    }

    fn set_charged(&self, now: Charged) {
        let make = || Box::new(Mutex::new(Rank::Leaf, Charged::default()));
        *self.charged.0.get_or_init(make).lock() = now;
    }
}

impl Ext4 {
    /// The number of an inode's attributes whose value is an inode. Attributes that cannot be read have none.
    fn value_references(&self, ino: Ino, core: &disk::Inode) -> u64 {
        if !self.geo.has_incompat(Incompat::EA_INODE) || !core.may_have_attrs() {
            return 0;
        }
        self.count_values(ino, core).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
