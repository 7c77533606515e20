//! The table of inodes in memory, by number.
//!
//! The caller of the file system may hold references to any number of inodes (the kernel does, until it is short of
//! memory). For all of them only the lookup count is kept; an inode that no task needs is evicted, and read from
//! its node again.
//!
//! An inode that is newer than its node is in memory until it is stored there. A workload of many small files makes tens
//! of thousands of them between two checkpoints, of 840 bytes each. So unused regular files are stored when their number
//! has grown by a quarter ([`InodeTable::unused_dirty`]), in nodes that keep only the chunks that are not zero.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use steadfs_base::{FixedMap, InodeNo};
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::LookupCounts;

use super::Inode;
use crate::disk::Nid;
use crate::node::cache::Node;

const SHARDS: usize = 16;
/// The most unused inodes in a shard; about 4 MiB in all.
const INODES_PER_SHARD_MAX: usize = (4 << 10) / SHARDS;
/// Fewest dirty inodes of which the unused ones are stored before the next checkpoint.
const DIRTY_STORED_MIN: usize = 1024;

pub struct InodeTable {
    shards: Vec<Mutex<Shard>>,
    /// Inodes whose fields are newer than their nodes, with the nodes.
    dirty: Mutex<DirtyInodes>,
}

/// Inodes to be stored, at the latest by the next checkpoint.
struct DirtyInodes {
    all: BTreeMap<Nid, InodeToStore>,
    /// The subset of inodes other than regular files: a checkpoint writes their blocks, and each change of such a
    /// block also marks the inode dirty.
    others: BTreeMap<Nid, Arc<Inode>>,
    /// The number of dirty inodes at which the unused ones are stored next.
    store_at: usize,
}

type InodeToStore = (Arc<Inode>, Arc<Node>);

#[derive(Default)]
struct Shard {
    inodes: FixedMap<u32, Arc<Inode>>,
    /// New inodes whose nodes can be read already, and that are not inserted yet.
    announced: BTreeSet<u32>,
    /// Lookup counts of inodes that are not in memory. They have links, or are orphans of a volume that was handed over
    /// and whose orphans are not loaded yet.
    evicted_lookups: FixedMap<u32, u64>,
    /// The number of inodes that triggers the next sweep.
    limit: usize,
    /// Number of evictions: an inode read from its node before an eviction may be out of date.
    evictions: u64,
    /// The number of the FLUSH that makes the writes of all evicted inodes durable.
    unflushed: u64,
}

/// What a shard knows of an inode that is not in memory.
#[derive(Clone, Copy, Debug)]
pub struct NotInMemory {
    /// The number of evictions at that time.
    evictions: u64,
    /// The number of the FLUSH that makes the inode's writes durable, if it was in memory before.
    pub unflushed: u64,
    /// Its node is there, but it is about to be made.
    pub is_announced: bool,
}

/// A mount does not know what the server before it has written: its first FLUSH covers that.
const FIRST_FLUSH: u64 = 1;

impl InodeTable {
    pub fn new() -> Self {
        let shard = || Shard {
            limit: INODES_PER_SHARD_MAX,
            unflushed: FIRST_FLUSH,
            ..Shard::default()
        };
        Self {
            shards: (0..SHARDS)
                .map(|_| Mutex::new(Rank::InodeTable, shard()))
                .collect(),
            dirty: Mutex::new(
                Rank::Dirty,
                DirtyInodes {
                    all: BTreeMap::new(),
                    others: BTreeMap::new(),
                    store_at: DIRTY_STORED_MIN,
                },
            ),
        }
    }

    fn shard(&self, nid: Nid) -> &Mutex<Shard> {
        &self.shards[nid.0 as usize % SHARDS]
    }

    /// The inode if it is in memory; otherwise what to pass to [`InodeTable::insert_read`] after reading it.
    pub fn find(&self, nid: Nid) -> Result<Arc<Inode>, NotInMemory> {
        let shard = self.shard(nid).lock();
        match shard.inodes.get(&nid.0) {
            Some(inode) => {
                inode.recent.store(true, Ordering::Relaxed);
                Ok(Arc::clone(inode))
            }
            None => Err(NotInMemory {
                evictions: shard.evictions,
                unflushed: shard.unflushed,
                is_announced: shard.announced.contains(&nid.0),
            }),
        }
    }

    /// Inserts an inode that was read after `read_at`, unless another task has inserted it; returns the one to use.
    /// `None` if inodes were evicted meanwhile, perhaps this one with changes: read it again.
    pub fn insert_read(&self, inode: Inode, read_at: NotInMemory) -> Option<Arc<Inode>> {
        let mut shard = self.shard(inode.nid).lock();
        let is_old = shard.evictions != read_at.evictions;
        if shard.announced.contains(&inode.nid.0)
            || (is_old && !shard.inodes.contains_key(&inode.nid.0))
        {
            return None;
        }
        Some(shard.insert(inode))
    }

    /// Called before the node of a new inode can be found: until [`InodeTable::insert_new`] no task reads the inode from
    /// it. What is new is known only there: its role, and that nothing is charged for it.
    pub fn announce(&self, nid: Nid) {
        self.shard(nid).lock().announced.insert(nid.0);
    }

    /// Inserts an inode that was announced.
    pub fn insert_new(&self, inode: Inode) -> Arc<Inode> {
        let mut shard = self.shard(inode.nid).lock();
        let nid = inode.nid.0;
        let was_announced = shard.announced.remove(&nid);
        assert!(was_announced, "a new inode is announced before its node");
        assert!(
            !shard.inodes.contains_key(&nid),
            "the id of a new inode is free"
        );
        shard.insert(inode)
    }

    /// Subtracts from the lookup count of an evicted inode. If it is in memory, returns it and the caller subtracts
    /// there.
    pub fn drop_evicted_lookups(&self, nid: Nid, count: u64) -> Option<Arc<Inode>> {
        let mut shard = self.shard(nid).lock();
        if let Some(inode) = shard.inodes.get(&nid.0) {
            return Some(Arc::clone(inode));
        }
        if let Some(lookups) = shard.evicted_lookups.get_mut(&nid.0) {
            *lookups = lookups.saturating_sub(count);
            if *lookups == 0 {
                shard.evicted_lookups.remove(&nid.0);
            }
        }
        None
    }

    /// Takes over lookup counts from the volume's former server, before any inode of them is read.
    pub fn adopt_lookups(&self, counts: &[(InodeNo, u64)]) {
        for &(ino, count) in counts {
            if let Some(nid) = Nid::from_vfs(ino) {
                let mut shard = self.shard(nid).lock();
                shard.evicted_lookups.insert(nid.0, count);
            }
        }
    }

    /// The lookup counts of all inodes that have one.
    pub fn lookups(&self) -> LookupCounts {
        let mut counts = LookupCounts::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let here = shard.inodes.values();
            let here = here.map(|inode| (inode.nid.0, inode.lookups.load(Ordering::Acquire)));
            let evicted = shard
                .evicted_lookups
                .iter()
                .map(|(&nid, &count)| (nid, count));
            let all = here.chain(evicted).filter(|&(_, count)| count > 0);
            counts.extend(all.map(|(nid, count)| (Nid(nid).into(), count)));
        }
        counts
    }

    /// Removes a freed inode.
    pub fn remove(&self, nid: Nid) {
        {
            let mut shard = self.shard(nid).lock();
            shard.inodes.remove(&nid.0);
            shard.evicted_lookups.remove(&nid.0);
            shard.evictions += 1;
        }
        self.dirty.lock().remove(nid);
    }

    /// Records that an inode's fields are newer than its node.
    pub fn mark_dirty(&self, inode: &Inode, node: Arc<Node>) {
        let Ok(inode) = self.find(inode.nid) else {
            // Freed: it is not stored any more.
            return;
        };
        let mut dirty = self.dirty.lock();
        inode.dirty.store(true, Ordering::Release);
        if inode.is_written_by_cp() {
            dirty.others.insert(inode.nid, Arc::clone(&inode));
        }
        dirty.all.entry(inode.nid).or_insert((inode, node));
    }

    /// Removes an inode from those to be stored and returns its node, if it was one of them.
    pub fn take_dirty(&self, inode: &Inode) -> Option<Arc<Node>> {
        let mut dirty = self.dirty.lock();
        inode.dirty.store(false, Ordering::Release);
        dirty.remove(inode.nid)
    }

    /// If many inodes are dirty, and a quarter more than after the last call: the regular files among them that no task
    /// uses and that have no dirty data.
    pub fn unused_dirty(&self) -> Vec<Arc<Inode>> {
        let mut unused = self.dirty.lock().idle_files();
        unused.retain(|inode| !inode.needs_memory());
        unused
    }

    /// Evicts all unused inodes; their lookup counts are kept.
    pub fn drop_unused(&self) {
        for shard in &self.shards {
            shard.lock().evict(|_| true);
        }
    }

    /// Inodes that hold the key of their content.
    pub(crate) fn with_keys(&self) -> Vec<Arc<Inode>> {
        let mut holders = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let all = shard.inodes.values();
            holders.extend(all.filter(|inode| inode.held_key.lock().is_some()).cloned());
        }
        holders
    }

    /// Number of inodes to be stored.
    pub fn dirty_count(&self) -> usize {
        self.dirty.lock().all.len()
    }

    /// Inodes to be stored.
    pub fn dirty(&self) -> Vec<Arc<Inode>> {
        let dirty = self.dirty.lock();
        dirty
            .all
            .values()
            .map(|(inode, _)| Arc::clone(inode))
            .collect()
    }

    /// Inodes to be stored that are not regular files.
    pub fn dirty_others(&self) -> Vec<Arc<Inode>> {
        self.dirty.lock().others.values().cloned().collect()
    }
}

impl DirtyInodes {
    /// Removes an inode and returns its node.
    fn remove(&mut self, nid: Nid) -> Option<Arc<Node>> {
        self.others.remove(&nid);
        let removed = self.all.remove(&nid);
        self.store_at = self.store_at.min(self.next_store());
        removed.map(|(_, node)| node)
    }

    fn next_store(&self) -> usize {
        let count = self.all.len();
        count + count / 4 + DIRTY_STORED_MIN
    }

    /// Regular files to which only the table and this list refer; none before [`DirtyInodes::store_at`].
    fn idle_files(&mut self) -> Vec<Arc<Inode>> {
        if self.all.len() < self.store_at {
            return Vec::new();
        }
        self.store_at = self.next_store();
        let is_idle =
            |inode: &&Arc<Inode>| !inode.is_written_by_cp() && Arc::strong_count(inode) <= 2;
        let all = self.all.values().map(|(inode, _)| inode);
        all.filter(is_idle).cloned().collect()
    }
}

impl Inode {
    /// Whether it has state that its node does not have.
    fn needs_memory(&self) -> bool {
        self.marks.is_orphan() || !self.reserved.lock().is_empty() || self.pages.is_needed()
    }
}

impl Shard {
    fn insert(&mut self, inode: Inode) -> Arc<Inode> {
        let nid = inode.nid.0;
        if let Some(there) = self.inodes.get(&nid) {
            return Arc::clone(there);
        }
        let lookups = self.evicted_lookups.remove(&nid).unwrap_or(0);
        inode.lookups.store(lookups, Ordering::Release);
        let inode = Arc::new(inode);
        self.inodes.insert(nid, Arc::clone(&inode));
        if self.inodes.len() > self.limit {
            self.sweep();
        }
        inode
    }

    /// Evicts inodes that no task needs: first those not used since the last sweep, then, if these are too few, the
    /// others. Inodes that stay raise the limit, so that inserting with many inodes in use does not sweep each
    /// time.
    fn sweep(&mut self) {
        self.evict(|inode| !inode.recent.swap(false, Ordering::Relaxed));
        if self.inodes.len() > INODES_PER_SHARD_MAX / 4 * 3 {
            self.evict(|_| true);
        }
        let left = self.inodes.len();
        self.limit = (left + left / 4 + INODES_PER_SHARD_MAX / 4).max(INODES_PER_SHARD_MAX);
    }

    fn evict(&mut self, may_evict: impl Fn(&Inode) -> bool) {
        let (evicted_lookups, unflushed) = (&mut self.evicted_lookups, &mut self.unflushed);
        let before = self.inodes.len();
        self.inodes.retain(|&nid, inode| {
            // References are taken through the table, which is locked here, so no task can get a new one meanwhile.
            // Inodes to be stored are referenced by their list.
            let needed = Arc::strong_count(inode) > 1 || inode.needs_memory();
            if needed || !may_evict(inode) {
                return true;
            }
            let lookups = inode.lookups.load(Ordering::Acquire);
            if lookups > 0 {
                evicted_lookups.insert(nid, lookups);
            }
            *unflushed = inode.unflushed().max(*unflushed);
            false
        });
        self.evictions += u64::from(self.inodes.len() < before);
    }
}
