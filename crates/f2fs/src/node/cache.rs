//! Nodes in memory, by id: clean ones as long as there is room, changed ones until they are written.
//!
//! A node that is changed has no place of its own any more: it gets one when a checkpoint or an fsync
//! writes it. Content is copy-on-write, so what is being written stays as it was.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use steadfs_base::FixedMap;
use steadfs_block::Buf;
use steadfs_rt::{Mutex, Rank, RwLock, RwLockWriteGuard};
use steadfs_vfs::Result;

use crate::cp_lock::Change;
use crate::disk::node::Footer;
use crate::disk::{BLOCK_SIZE, BlockAddr, NatEntry, Nid};

const SHARDS: usize = 16;

/// One node in memory.
pub struct Node {
    nid: Nid,
    state: RwLock<NodeState>,
    /// Used since the last sweep.
    recent: AtomicBool,
}

#[derive(Default)]
struct NodeState {
    /// `None` until the first read has filled it, and when the node was freed.
    data: Option<Buf>,
    /// What the node address table says of it.
    entry: NatEntry,
    /// Newer than what was last placed in a log.
    dirty: bool,
}

/// A node that was given a place.
pub struct PlacedNode {
    /// Its content as it is to be written there.
    pub data: Buf,
    /// What the node address table says from now on.
    pub entry: NatEntry,
    /// Where it lay before.
    pub old: BlockAddr,
}

impl Node {
    /// Its id.
    pub fn nid(&self) -> Nid {
        self.nid
    }

    /// The present content. The clone keeps it as it is now; a writer that comes later copies.
    ///
    /// # Errors
    /// The node has been freed: whoever holds it looks for it anew.
    pub fn data(&self) -> Result<Buf> {
        let content = self.state.read().data.clone();
        content.ok_or_else(|| self.is_gone())
    }

    /// Its footer.
    ///
    /// # Errors
    /// As [`Node::data`].
    pub fn footer(&self) -> Result<Footer> {
        Ok(Footer::parse(&self.data()?))
    }

    /// What the node address table says of it: whose it is, where it was placed last, which life of its id
    /// it is.
    pub fn entry(&self) -> NatEntry {
        self.state.read().entry
    }

    fn is_gone(&self) -> steadfs_vfs::FsError {
        let rule = "freed while it was used";
        let what = crate::disk::Structure::Node;
        crate::disk::DiskError::field(what, "nid", self.nid.0, rule).into()
    }
}

/// A node locked for changing.
pub struct NodeMut<'n> {
    state: RwLockWriteGuard<'n, NodeState>,
}

impl Deref for NodeMut<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.state.data.as_ref().expect("looked at when locked")
    }
}

impl DerefMut for NodeMut<'_> {
    /// Copies the content first if a write in flight or a reader shares it.
    fn deref_mut(&mut self) -> &mut [u8] {
        let data = self.state.data.as_mut().expect("looked at when locked");
        data.make_mut()
    }
}

/// A changed node's place: its inode, and its offset in that one's tree.
pub type TreePosition = (Nid, u32);

/// All nodes in memory.
pub struct NodeCache {
    /// How many clean nodes may stay.
    budget: usize,
    cached: AtomicUsize,
    shards: Vec<Mutex<FixedMap<u32, Arc<Node>>>>,
    /// Changed nodes by inode and place in its tree.
    dirty: Mutex<BTreeMap<TreePosition, Arc<Node>>>,
}

impl NodeCache {
    /// A cache for about `budget` bytes of clean nodes.
    pub fn new(budget: usize) -> Self {
        let shard = || Mutex::new(Rank::Table, FixedMap::default());
        Self {
            budget: (budget / BLOCK_SIZE).max(64),
            cached: AtomicUsize::new(0),
            shards: (0..SHARDS).map(|_| shard()).collect(),
            dirty: Mutex::new(Rank::Dirty, BTreeMap::new()),
        }
    }

    fn shard(&self, nid: Nid) -> &Mutex<FixedMap<u32, Arc<Node>>> {
        &self.shards[nid.0 as usize % SHARDS]
    }

    /// The node in its table, empty if it was not there.
    fn find_or_insert(&self, nid: Nid) -> Arc<Node> {
        let mut shard = self.shard(nid).lock();
        let mut inserted = false;
        let node = Arc::clone(shard.entry(nid.0).or_insert_with(|| {
            inserted = true;
            Arc::new(Node {
                nid,
                state: RwLock::new(Rank::Node, NodeState::default()),
                recent: AtomicBool::new(true),
            })
        }));
        node.recent.store(true, Ordering::Relaxed);
        if inserted && self.cached.fetch_add(1, Ordering::Relaxed) >= self.budget {
            let before = shard.len();
            // Whoever uses a node holds it, and so does the list of changed ones.
            let used = |node: &Arc<Node>| Arc::strong_count(node) > 1;
            shard.retain(|_, node| used(node) || node.recent.swap(false, Ordering::Relaxed));
            let left = before - shard.len();
            self.cached.fetch_sub(left, Ordering::Relaxed);
        }
        node
    }

    /// The node, which `load` reads if it is not in memory; `None` where `load` says that there is none.
    /// The node's lock is held meanwhile: whoever wants it too waits, and it cannot change its place.
    pub fn get(
        &self,
        nid: Nid,
        load: impl FnOnce() -> Result<Option<(Buf, NatEntry)>>,
    ) -> Result<Option<Arc<Node>>> {
        let node = self.find_or_insert(nid);
        if node.state.read().data.is_some() {
            return Ok(Some(node));
        }
        let mut state = node.state.write();
        if state.data.is_none()
            && let Some((data, entry)) = load()?
        {
            state.data = Some(data);
            state.entry = entry;
        }
        let is_there = state.data.is_some();
        drop(state);
        Ok(is_there.then_some(node))
    }

    /// A node made now.
    pub fn insert_new(
        &self,
        change: &Change<'_>,
        nid: Nid,
        entry: NatEntry,
        block: &[u8],
    ) -> Arc<Node> {
        // Freed ones leave, and their id is not used again before a checkpoint: a stranger may still
        // hold the old one, but nobody finds it here.
        let node = self.find_or_insert(nid);
        let mut state = node.state.write();
        state.data = Some(Buf::copy_of(block));
        state.entry = entry;
        self.mark(change, &node, &mut state);
        drop(state);
        node
    }

    /// Locks a node for a change; it is dirty from now on.
    ///
    /// # Errors
    /// As [`Node::data`].
    pub fn change<'n>(&self, change: &Change<'_>, node: &'n Arc<Node>) -> Result<NodeMut<'n>> {
        let mut state = node.state.write();
        if state.data.is_none() {
            return Err(node.is_gone());
        }
        self.mark(change, node, &mut state);
        Ok(NodeMut { state })
    }

    fn mark(&self, _: &Change<'_>, node: &Arc<Node>, state: &mut NodeState) {
        if state.dirty {
            return;
        }
        state.dirty = true;
        let data = state.data.as_ref().expect("looked at when locked");
        let footer = Footer::parse(data);
        let key = (footer.ino, footer.offset);
        // Under the node's lock: whoever places what is dirty must not miss it.
        self.dirty.lock().insert(key, Arc::clone(node));
    }

    /// Forgets a node that is freed; what was changed in it is not written.
    pub fn forget(&self, _: &Change<'_>, node: &Node) {
        let mut state = node.state.write();
        if let Some(data) = state.data.take() {
            let footer = Footer::parse(&data);
            self.dirty.lock().remove(&(footer.ino, footer.offset));
        }
        state.dirty = false;
        drop(state);
        if self.shard(node.nid).lock().remove(&node.nid.0).is_some() {
            self.cached.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Gives a changed node its place: `work` finds it and writes the footer, under the node's lock. From
    /// here on the node counts as written; `None` if it was not changed.
    ///
    /// # Errors
    /// Those of `work`; the node is as dirty as it was.
    pub fn place(
        &self,
        _: &Change<'_>,
        node: &Node,
        work: impl FnOnce(&mut [u8]) -> Result<BlockAddr>,
    ) -> Result<Option<PlacedNode>> {
        let mut state = node.state.write();
        if !state.dirty {
            return Ok(None);
        }
        let data = state.data.as_mut().expect("a dirty node has content");
        let addr = work(data.make_mut())?;
        let data = data.clone();
        let footer = Footer::parse(&data);
        self.dirty.lock().remove(&(footer.ino, footer.offset));
        state.dirty = false;
        let old = std::mem::replace(&mut state.entry.addr, addr);
        let entry = state.entry;
        Ok(Some(PlacedNode { data, entry, old }))
    }

    /// How many clean nodes may stay in memory.
    pub fn budget(&self) -> usize {
        self.budget
    }

    /// Lets all nodes go that nobody uses.
    pub fn drop_unused(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let before = shard.len();
            shard.retain(|_, node| Arc::strong_count(node) > 1);
            self.cached
                .fetch_sub(before - shard.len(), Ordering::Relaxed);
        }
    }

    /// How many nodes are changed and not written.
    pub fn dirty_count(&self) -> usize {
        self.dirty.lock().len()
    }

    /// The changed nodes of one inode in the order of their places, the inode's own first. They stay
    /// listed until they are placed.
    pub fn dirty_of(&self, ino: Nid) -> Vec<(u32, Arc<Node>)> {
        let dirty = self.dirty.lock();
        let own = dirty.range((ino, 0)..=(ino, u32::MAX));
        own.map(|((_, offset), node)| (*offset, Arc::clone(node)))
            .collect()
    }

    /// The changed nodes in the order of their inodes and places. They stay listed until they are placed.
    pub fn dirty(&self) -> Vec<(TreePosition, Arc<Node>)> {
        let dirty = self.dirty.lock();
        dirty
            .iter()
            .map(|(k, node)| (*k, Arc::clone(node)))
            .collect()
    }
}
