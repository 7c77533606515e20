//! Inodes in memory: one per inode number in use, shared by all tasks.
//!
//! **Problem.** The caller of the file system may reference any number of inodes for any time (the kernel does, until
//! it is short of memory).
//!
//! **Rule.** Only the lookup count is kept for all of them. An inode that is not in use, not dirty and without cached
//! data may be evicted, and is read from its table again.

mod shown;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use steadfs_base::{BlockSize, Corruption, FixedMap, InodeNo, Tid};
use steadfs_cache::{
    ClusterMark, DirtyFile, FlushGuard, FlushLock, Mapping, ReadAheadWindow, Writeback,
};
use steadfs_fscrypt::FileKey;
use steadfs_rt::{Mutex, Rank, RwLock};
use steadfs_vfs::names::NameLock;
use steadfs_vfs::{FileKind, InodeFlags, InodeMarks, LookupCounts, Result};

use crate::disk::{self, Ino};
use crate::quota::ChargedCell;
use crate::txn::Handle;

const SHARDS: usize = 16;
/// Unused inodes kept in memory in all shards: about 16 MiB.
const CACHED_INODES_MAX: usize = 12 << 10;
/// Unused inodes kept in one shard.
const CACHED_PER_SHARD: usize = CACHED_INODES_MAX / SHARDS;
/// No transaction: the inode was not changed since it was read.
const NO_TID: u64 = u64::MAX;

/// An inode in memory.
///
/// Locks, in the order they are taken: `lock`, `flush`, a handle, `core`.
pub struct Inode {
    ino: Ino,
    kind: FileKind,
    /// It is an attribute inode; never changes.
    is_value: bool,
    is_encrypted: bool,
    /// Held for writing by calls that change content, size or names, for reading by calls that read them.
    pub lock: RwLock<()>,
    /// One write-back of the file's data at a time.
    pub(crate) flush: FlushLock,
    /// What the inode table has or will have, block map included. For regular files its `size` is the
    /// size on disk, which follows [`Inode::size`] when data has been written.
    pub core: RwLock<disk::Inode>,
    /// Cached data of a regular file (or a long link's target).
    pub pages: Mapping,
    /// State of its sequential reads (read-ahead).
    pub read_ahead: ReadAheadWindow,
    size: AtomicU64,
    lookups: AtomicU64,
    /// Transaction that changed the inode last.
    sync_tid: AtomicU64,
    /// Transaction that changed what is needed to read the data back.
    datasync_tid: AtomicU64,
    /// `core` is newer than the inode table (times and size of a write).
    core_dirty: AtomicBool,
    /// The times were reported to a caller: the next change must alter them.
    times_seen: AtomicBool,
    /// Number of the commit's FLUSH that makes durable what was written last
    /// ([`Queue::next_flush`](steadfs_block::Queue::next_flush)); 0: nothing was written.
    unflushed: AtomicU64,
    /// Written by another file's fsync (fsync clustering), and not synced since.
    pub(crate) clustered: ClusterMark,
    /// Read from the inode table: before an earlier eviction, changes may have been left in a transaction, or data in
    /// the device's cache, that are not durable.
    reread: AtomicBool,
    /// The key of its encrypted content, while some of it may be dirty.
    pub(crate) held_key: Mutex<Option<Arc<FileKey>>>,
    /// Whether it is an orphan, may get a name, or was freed.
    pub(crate) marks: InodeMarks,
    /// What quota counts for it.
    pub(crate) charged: ChargedCell,
    /// Used since the last sweep.
    recent: AtomicBool,
    /// Of a directory without an index: the block that the last search ended in.
    pub(crate) search_start: AtomicU32,
}

impl NameLock for Inode {
    fn number(&self) -> InodeNo {
        self.ino.into()
    }

    fn lock(&self) -> &RwLock<()> {
        &self.lock
    }

    fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

impl Inode {
    pub(crate) fn new(
        ino: Ino,
        core: disk::Inode,
        block_size: BlockSize,
        writeback: &Arc<Writeback>,
    ) -> Result<Self> {
        let kind = FileKind::from_mode(core.mode.into())
            .ok_or_else(|| Corruption::new(format!("mode {:#o}", core.mode)).in_inode(ino))?;
        let file = DirtyFile(ino.0.into());
        Ok(Self {
            ino,
            kind,
            is_value: core.has(disk::inode::EA_INODE),
            is_encrypted: core.has(InodeFlags::ENCRYPTED),
            lock: RwLock::with_key(Rank::Inode, ino.0.into(), ()),
            flush: FlushLock::new(ino.0.into()),
            size: AtomicU64::new(core.size),
            core: RwLock::new(core_rank(&core), core),
            read_ahead: ReadAheadWindow::default(),
            pages: Mapping::new(block_size, file, Arc::clone(writeback)),
            lookups: AtomicU64::new(0),
            sync_tid: AtomicU64::new(NO_TID),
            datasync_tid: AtomicU64::new(NO_TID),
            core_dirty: AtomicBool::new(false),
            times_seen: AtomicBool::new(true),
            unflushed: AtomicU64::new(0),
            clustered: ClusterMark::default(),
            reread: AtomicBool::new(false),
            held_key: Mutex::new(Rank::Leaf, None),
            marks: InodeMarks::default(),
            charged: ChargedCell::default(),
            recent: AtomicBool::new(true),
            search_start: AtomicU32::new(0),
        })
    }

    /// Waits for the flush lock and takes it.
    pub(crate) fn lock_flush(&self) -> FlushGuard<'_> {
        FlushGuard::lock(self)
    }

    /// The inode's number.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// The inode's type; never changes.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Whether it is an attribute inode: the value of an extended attribute.
    pub fn is_value(&self) -> bool {
        self.is_value
    }

    /// Whether the content of a file or link is encrypted; never changes.
    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Whether the inode flag is set.
    pub fn has(&self, flag: InodeFlags) -> bool {
        self.core.read().has(flag)
    }

    /// Size in bytes, including data not yet written back.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Sets the size in memory; the caller holds `lock` for writing.
    pub fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    /// Adds a reference by the caller of the file system.
    pub fn add_lookup(&self) {
        self.lookups.fetch_add(1, Ordering::AcqRel);
    }

    /// Drops references; returns whether none is left.
    pub fn drop_lookups(&self, count: u64) -> bool {
        let mut now = self.lookups.load(Ordering::Acquire);
        loop {
            // Dropping more references than were taken affects this inode only.
            let left = now.saturating_sub(count);
            match self
                .lookups
                .compare_exchange(now, left, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return left == 0,
                Err(other) => now = other,
            }
        }
    }

    /// Drops all references; returns their number.
    pub(crate) fn take_lookups(&self) -> u64 {
        self.lookups.swap(0, Ordering::AcqRel)
    }

    /// Whether the caller of the file system holds references.
    pub fn is_looked_up(&self) -> bool {
        self.lookups.load(Ordering::Acquire) > 0
    }

    /// The transaction that fsync (`datasync`: fdatasync) must make durable.
    pub fn tid_for_sync(&self, datasync: bool) -> Option<Tid> {
        let tid = if datasync {
            &self.datasync_tid
        } else {
            &self.sync_tid
        };
        u32::try_from(tid.load(Ordering::Acquire)).ok().map(Tid)
    }

    /// Records that `handle` changes the inode; `data`: reading the data back depends on it.
    pub fn record_tid(&self, handle: &Handle<'_>, data: bool) {
        if handle.is_journaled() {
            let tid = u64::from(handle.tid().0);
            self.sync_tid.store(tid, Ordering::Release);
            if data {
                self.datasync_tid.store(tid, Ordering::Release);
            }
        }
    }

    /// Marks the inode as read from its table: earlier changes are unknown. `flush`: the FLUSH that covers them.
    pub(crate) fn mark_reread(&self, flush: u64) {
        self.reread.store(true, Ordering::Release);
        self.mark_unflushed(flush);
    }

    /// Whether there may be changes that the recorded transactions do not cover.
    pub(crate) fn is_reread(&self) -> bool {
        self.reread.load(Ordering::Acquire)
    }

    /// All changes from before it was read are durable.
    pub(crate) fn all_is_durable(&self) {
        self.reread.store(false, Ordering::Release);
    }

    /// `core` was changed in memory only.
    pub fn mark_core_dirty(&self) {
        self.core_dirty.store(true, Ordering::Release);
    }

    /// Whether `core` is newer than the inode table.
    pub fn is_core_dirty(&self) -> bool {
        self.core_dirty.load(Ordering::Acquire)
    }

    /// Whether the times were reported since the last call.
    pub(crate) fn take_times_seen(&self) -> bool {
        self.times_seen.load(Ordering::Acquire) && self.times_seen.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn core_is_stored(&self) {
        self.core_dirty.store(false, Ordering::Release);
    }

    /// Data of the file has been written to the device's cache; the FLUSH with this number makes it
    /// durable.
    pub(crate) fn mark_unflushed(&self, flush: u64) {
        self.unflushed.fetch_max(flush, Ordering::AcqRel);
    }

    /// The FLUSH that makes durable what was written so far; 0 if nothing was.
    pub(crate) fn unflushed(&self) -> u64 {
        self.unflushed.load(Ordering::Acquire)
    }
}

/// References to attribute inodes change while the fields of the inode that refers to them are locked.
fn core_rank(core: &disk::Inode) -> Rank {
    match core.has(disk::inode::EA_INODE) {
        true => Rank::InodeState,
        false => Rank::ExtentTree,
    }
}

/// All inodes in memory, by number.
pub struct InodeTable {
    shards: Vec<Mutex<Shard>>,
    /// A sweep found many inodes that could be evicted once they are stored.
    wants_store: AtomicBool,
}

struct Shard {
    inodes: FixedMap<u32, Arc<Inode>>,
    /// Lookup counts of inodes that are not in memory. They have names, or are orphans of a volume that was handed over
    /// and whose orphans are not loaded yet.
    evicted_lookups: FixedMap<u32, u64>,
    /// Number of inodes at which the next sweep is due.
    limit: usize,
    /// Number of evictions: an inode read from the table before may be out of date.
    evictions: u64,
    /// The number of the FLUSH that makes the writes of all evicted inodes durable.
    unflushed: u64,
}

impl InodeTable {
    /// An empty table.
    pub fn new() -> Self {
        let shard = || Shard {
            inodes: FixedMap::default(),
            evicted_lookups: FixedMap::default(),
            limit: CACHED_PER_SHARD,
            evictions: 0,
            unflushed: FIRST_FLUSH,
        };
        Self {
            shards: (0..SHARDS)
                .map(|_| Mutex::new(Rank::InodeTable, shard()))
                .collect(),
            wants_store: AtomicBool::new(false),
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// The inode, if it is in memory.
    pub fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.find(ino).ok()
    }

    /// The inode if it is in memory; otherwise what to pass to [`InodeTable::insert_read`] after reading it.
    pub(crate) fn find(&self, ino: Ino) -> Result<Arc<Inode>, NotInMemory> {
        let shard = self.shard(ino).lock();
        match shard.inodes.get(&ino.0) {
            Some(inode) => {
                inode.recent.store(true, Ordering::Relaxed);
                Ok(Arc::clone(inode))
            }
            None => Err(NotInMemory {
                evictions: shard.evictions,
                unflushed: shard.unflushed,
            }),
        }
    }

    /// Inserts an inode that was read after `since`, unless another task did; returns the one to use. `None`: inodes
    /// were evicted meanwhile, perhaps this one with changes; the caller reads it again.
    pub(crate) fn insert_read(&self, inode: Inode, since: NotInMemory) -> Option<Arc<Inode>> {
        let mut shard = self.shard(inode.ino).lock();
        if shard.evictions != since.evictions && !shard.inodes.contains_key(&inode.ino.0) {
            return None;
        }
        Some(self.insert_locked(&mut shard, inode))
    }

    /// Inserts a new inode.
    pub fn insert(&self, inode: Inode) -> Arc<Inode> {
        self.insert_locked(&mut self.shard(inode.ino).lock(), inode)
    }

    fn insert_locked(&self, shard: &mut Shard, inode: Inode) -> Arc<Inode> {
        let ino = inode.ino.0;
        if let Some(there) = shard.inodes.get(&ino) {
            return Arc::clone(there);
        }
        let lookups = shard.evicted_lookups.remove(&ino).unwrap_or(0);
        inode.lookups.store(lookups, Ordering::Release);
        let inode = Arc::new(inode);
        shard.inodes.insert(ino, Arc::clone(&inode));
        if shard.inodes.len() > shard.limit && shard.sweep() {
            self.wants_store.store(true, Ordering::Release);
        }
        inode
    }

    /// Drops references to an inode that may be evicted. If it is in memory, returns it, and the caller drops them.
    pub fn drop_evicted_lookups(&self, ino: Ino, count: u64) -> Option<Arc<Inode>> {
        let mut shard = self.shard(ino).lock();
        if let Some(inode) = shard.inodes.get(&ino.0) {
            return Some(Arc::clone(inode));
        }
        if let Some(lookups) = shard.evicted_lookups.get_mut(&ino.0) {
            *lookups = lookups.saturating_sub(count);
            if *lookups == 0 {
                shard.evicted_lookups.remove(&ino.0);
            }
        }
        None
    }

    /// Takes over lookup counts from the volume's former server, before any inode of them is read.
    pub(crate) fn adopt_lookups(&self, counts: &[(InodeNo, u64)]) {
        for &(ino, count) in counts {
            if let Some(ino) = Ino::from_vfs(ino) {
                let mut shard = self.shard(ino).lock();
                shard.evicted_lookups.insert(ino.0, count);
            }
        }
    }

    /// The lookup counts of all inodes that have one.
    pub(crate) fn lookups(&self) -> LookupCounts {
        let mut counts = LookupCounts::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let here = shard.inodes.values();
            let here = here.map(|inode| (inode.ino.0, inode.lookups.load(Ordering::Acquire)));
            let evicted = shard
                .evicted_lookups
                .iter()
                .map(|(&ino, &count)| (ino, count));
            let all = here.chain(evicted).filter(|&(_, count)| count > 0);
            counts.extend(all.map(|(ino, count)| (Ino(ino).into(), count)));
        }
        counts
    }

    /// Removes a freed inode.
    pub fn remove(&self, ino: Ino) {
        let mut shard = self.shard(ino).lock();
        shard.inodes.remove(&ino.0);
        shard.evicted_lookups.remove(&ino.0);
        shard.evictions += 1;
    }

    /// Whether storing inodes would allow many evictions; resets the flag.
    pub fn take_wants_store(&self) -> bool {
        self.wants_store.load(Ordering::Relaxed) && self.wants_store.swap(false, Ordering::AcqRel)
    }

    /// Evicts all inodes that are not in use and are stored; their lookup counts are kept.
    pub fn evict_all(&self) {
        for shard in &self.shards {
            shard.lock().evict(|_| true);
        }
    }

    /// Inodes whose `core` is newer than the inode table.
    pub fn dirty(&self) -> Vec<Arc<Inode>> {
        self.which(Inode::is_core_dirty)
    }

    /// Inodes that hold the key of their content.
    pub(crate) fn with_keys(&self) -> Vec<Arc<Inode>> {
        self.which(|inode| inode.held_key.lock().is_some())
    }

    fn which(&self, is: impl Fn(&Inode) -> bool) -> Vec<Arc<Inode>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            found.extend(shard.inodes.values().filter(|inode| is(inode)).cloned());
        }
        found.sort_unstable_by_key(|inode| inode.ino);
        found
    }

    /// Inodes in memory.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().inodes.len()).sum()
    }
}

/// What a shard knows of an inode that is not in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotInMemory {
    /// The number of evictions at that time.
    evictions: u64,
    /// The number of the FLUSH that makes the inode's writes durable, if it was in memory before.
    pub unflushed: u64,
}

/// A mount does not know what the server before it has written: its first FLUSH covers that.
const FIRST_FLUSH: u64 = 1;

impl Shard {
    /// Evicts unused inodes: first those not used since the last sweep, then, if those are too few, the others. Returns
    /// whether many stay only because they are not stored.
    ///
    /// The remaining ones raise the limit, so that many inodes in use do not cause a sweep with each insertion.
    fn sweep(&mut self) -> bool {
        self.evict(|inode| !inode.recent.swap(false, Ordering::Relaxed));
        if self.inodes.len() > CACHED_PER_SHARD / 4 * 3 {
            self.evict(|_| true);
        }
        let left = self.inodes.len();
        self.limit = (left + left / 4 + CACHED_PER_SHARD / 4).max(CACHED_PER_SHARD);
        let dirty = |inode: &&Arc<Inode>| inode.is_core_dirty();
        self.inodes.values().filter(dirty).count() > CACHED_PER_SHARD / 4
    }

    fn evict(&mut self, may_go: impl Fn(&Inode) -> bool) {
        let (evicted_lookups, unflushed) = (&mut self.evicted_lookups, &mut self.unflushed);
        let before = self.inodes.len();
        self.inodes.retain(|&ino, inode| {
            // References are taken through the table, which is locked: no task can get one meanwhile.
            let needed = Arc::strong_count(inode) > 1
                || inode.is_core_dirty()
                || inode.marks.is_orphan()
                || inode.pages.is_needed();
            if needed || !may_go(inode) {
                return true;
            }
            let lookups = inode.lookups.load(Ordering::Acquire);
            if lookups > 0 {
                evicted_lookups.insert(ino, lookups);
            }
            *unflushed = inode.unflushed().max(*unflushed);
            false
        });
        self.evictions += u64::from(self.inodes.len() < before);
    }
}
