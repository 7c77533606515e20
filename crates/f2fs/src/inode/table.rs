//! All inodes in memory, by number.
//!
//! The caller of the file system may refer to any number of inodes for as long as it likes (the kernel
//! does, until it is short of memory). Only the count of its references is kept for all of them; an
//! inode that nothing needs in memory leaves, and is read from its node again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use steadfs_base::FixedMap;
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::FileKind;

use super::Inode;
use crate::disk::Nid;
use crate::node::Node;

const SHARDS: usize = 16;
/// Inodes that nobody works on kept in one shard; about 16 MiB in all.
const INODES_PER_SHARD_MAX: usize = (12 << 10) / SHARDS;

/// All inodes in memory.
pub struct InodeTable {
    shards: Vec<Mutex<Shard>>,
    /// Inodes whose fields are newer than their nodes, and the nodes.
    dirty: Mutex<DirtyInodes>,
}

/// Inodes to be stored.
#[derive(Default)]
struct DirtyInodes {
    all: BTreeMap<Nid, InodeToStore>,
    /// Those of them that are no regular files: a checkpoint writes their blocks, and whoever changes such
    /// a block changes the inode too.
    others: BTreeMap<Nid, Arc<Inode>>,
}

/// An inode to be stored, and its node.
type InodeToStore = (Arc<Inode>, Arc<Node>);

#[derive(Default)]
struct Shard {
    inodes: FixedMap<u32, Arc<Inode>>,
    /// References of the caller to inodes that are not in memory; all of them have names.
    evicted_lookups: FixedMap<u32, u64>,
    /// How many there may be before the next sweep.
    limit: usize,
    /// How often inodes have left: what was read from a node before may be out of date.
    evictions: u64,
}

/// How often inodes had left their part of the table at some point.
#[derive(Clone, Copy, Debug)]
pub struct EvictionCount(u64);

impl InodeTable {
    /// An empty table.
    pub fn new() -> Self {
        let shard = || Shard {
            limit: INODES_PER_SHARD_MAX,
            ..Shard::default()
        };
        Self {
            shards: (0..SHARDS)
                .map(|_| Mutex::new(Rank::InodeTable, shard()))
                .collect(),
            dirty: Mutex::new(Rank::Dirty, DirtyInodes::default()),
        }
    }

    fn shard(&self, nid: Nid) -> &Mutex<Shard> {
        &self.shards[nid.0 as usize % SHARDS]
    }

    /// The inode if it is in memory; otherwise what [`InodeTable::insert_read`] wants to know of whoever
    /// reads it now.
    pub fn find(&self, nid: Nid) -> Result<Arc<Inode>, EvictionCount> {
        let shard = self.shard(nid).lock();
        match shard.inodes.get(&nid.0) {
            Some(inode) => {
                inode.recent.store(true, Ordering::Relaxed);
                Ok(Arc::clone(inode))
            }
            None => Err(EvictionCount(shard.evictions)),
        }
    }

    /// Puts an inode in that was read after `read_at`, unless somebody else did; returns the one to use.
    /// `None`: meanwhile inodes have left, perhaps this one with changes; read it again.
    pub fn insert_read(&self, inode: Inode, read_at: EvictionCount) -> Option<Arc<Inode>> {
        let mut shard = self.shard(inode.nid).lock();
        if shard.evictions != read_at.0 && !shard.inodes.contains_key(&inode.nid.0) {
            return None;
        }
        Some(shard.insert(inode))
    }

    /// Puts a new inode in.
    pub fn insert(&self, inode: Inode) -> Arc<Inode> {
        self.shard(inode.nid).lock().insert(inode)
    }

    /// Gives back references to an inode that may be evicted_lookups. Returns it if it is here: then the caller
    /// gives them back to it.
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

    /// Takes a freed inode out.
    pub fn remove(&self, nid: Nid) {
        {
            let mut shard = self.shard(nid).lock();
            shard.inodes.remove(&nid.0);
            shard.evicted_lookups.remove(&nid.0);
            shard.evictions += 1;
        }
        let mut dirty = self.dirty.lock();
        dirty.all.remove(&nid);
        dirty.others.remove(&nid);
    }

    /// Notes that an inode's fields are newer than its node.
    pub fn mark_dirty(&self, inode: &Inode, node: Arc<Node>) {
        let Ok(inode) = self.find(inode.nid) else {
            // Freed: nothing of it is stored any more.
            return;
        };
        let mut dirty = self.dirty.lock();
        inode.dirty.store(true, Ordering::Release);
        if inode.kind != FileKind::Regular {
            dirty.others.insert(inode.nid, Arc::clone(&inode));
        }
        dirty.all.entry(inode.nid).or_insert((inode, node));
    }

    /// Takes an inode off the list of those to be stored; its node, if it was on it.
    pub fn take_dirty(&self, inode: &Inode) -> Option<Arc<Node>> {
        let mut dirty = self.dirty.lock();
        inode.dirty.store(false, Ordering::Release);
        dirty.others.remove(&inode.nid);
        dirty.all.remove(&inode.nid).map(|(_, node)| node)
    }

    /// Lets all inodes go that nobody works on; references to them stay counted.
    pub fn drop_unused(&self) {
        for shard in &self.shards {
            shard.lock().evict(|_| true);
        }
    }

    /// How many inodes are to be stored.
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

    /// Those of them that are no regular files.
    pub fn dirty_others(&self) -> Vec<Arc<Inode>> {
        self.dirty.lock().others.values().cloned().collect()
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

    /// Lets inodes go that nothing needs in memory: first those that nobody asked for of late, then,
    /// where those are too few, the others. What stays raises the limit, so that many inodes in use
    /// cost no sweep each time one is added.
    fn sweep(&mut self) {
        self.evict(|inode| !inode.recent.swap(false, Ordering::Relaxed));
        if self.inodes.len() > INODES_PER_SHARD_MAX / 4 * 3 {
            self.evict(|_| true);
        }
        let left = self.inodes.len();
        self.limit = (left + left / 4 + INODES_PER_SHARD_MAX / 4).max(INODES_PER_SHARD_MAX);
    }

    fn evict(&mut self, may_evict: impl Fn(&Inode) -> bool) {
        let evicted_lookups = &mut self.evicted_lookups;
        let before = self.inodes.len();
        self.inodes.retain(|&nid, inode| {
            // Whoever wants it has it by the table: nobody can come to have it meanwhile. Those to be
            // stored are held by their list.
            let needed = Arc::strong_count(inode) > 1
                || inode.orphan.load(Ordering::Acquire)
                || !inode.reserved.lock().is_empty()
                || !inode.pages.is_empty();
            if needed || !may_evict(inode) {
                return true;
            }
            let lookups = inode.lookups.load(Ordering::Acquire);
            if lookups > 0 {
                evicted_lookups.insert(nid, lookups);
            }
            false
        });
        self.evictions += u64::from(self.inodes.len() < before);
    }
}
