//! Nodes in memory, by id: clean ones within a budget, dirty ones until they are written.
//!
//! A dirty node has no valid address: a checkpoint or an fsync allocates one when it writes the node. Content is
//! copy-on-write, so a node in flight does not change.

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

pub struct Node {
    nid: Nid,
    state: RwLock<NodeState>,
    /// Used since the last eviction scan.
    recent: AtomicBool,
}

#[derive(Default)]
struct NodeState {
    /// `None` until the first read, and after the node was freed.
    data: Option<Buf>,
    /// The node's NAT entry.
    entry: NatEntry,
    /// Changed since a block was last allocated for it.
    dirty: bool,
}

/// A node for which a block was allocated.
pub struct PlacedNode {
    /// The content to be written.
    pub data: Buf,
    /// The new NAT entry.
    pub entry: NatEntry,
    /// The address before.
    pub old: BlockAddr,
}

impl Node {
    pub fn nid(&self) -> Nid {
        self.nid
    }

    /// The current content. The clone does not change; a later writer copies.
    ///
    /// # Errors
    /// The node was freed; the caller looks it up again.
    pub fn data(&self) -> Result<Buf> {
        let content = self.state.read().data.clone();
        content.ok_or_else(|| self.is_gone())
    }

    /// The node's footer.
    ///
    /// # Errors
    /// As [`Node::data`].
    pub fn footer(&self) -> Result<Footer> {
        Ok(Footer::parse(&self.data()?))
    }

    /// The NAT entry: inode, last address, and version of the id.
    pub fn entry(&self) -> NatEntry {
        self.state.read().entry
    }

    fn is_gone(&self) -> steadfs_vfs::FsError {
        let rule = "freed while it was in use";
        let what = crate::disk::Structure::Node;
        crate::disk::DiskError::field(what, "nid", self.nid.0, rule).into()
    }
}

/// A node locked for a change.
pub struct NodeMut<'n> {
    state: RwLockWriteGuard<'n, NodeState>,
}

impl Deref for NodeMut<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.state
            .data
            .as_ref()
            .expect("checked when it was locked")
    }
}

impl DerefMut for NodeMut<'_> {
    /// Copies the content first if a write in flight or a reader shares it.
    fn deref_mut(&mut self) -> &mut [u8] {
        let data = self
            .state
            .data
            .as_mut()
            .expect("checked when it was locked");
        data.make_mut()
    }
}

/// Position of a dirty node: its inode, and its offset in the inode's tree.
pub type TreePosition = (Nid, u32);

/// All nodes in memory.
pub struct NodeCache {
    /// Clean nodes that may stay.
    budget: usize,
    cached: AtomicUsize,
    shards: Vec<Mutex<FixedMap<u32, Arc<Node>>>>,
    /// Dirty nodes by position.
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

    /// The node with this id, inserted without content if it was not in memory.
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
        assert!(node.nid == nid, "the table is keyed by node id");
        node.recent.store(true, Ordering::Relaxed);
        if inserted && self.cached.fetch_add(1, Ordering::Relaxed) >= self.budget {
            let before = shard.len();
            // Each user and the list of dirty nodes hold a reference.
            let used = |node: &Arc<Node>| Arc::strong_count(node) > 1;
            shard.retain(|_, node| used(node) || node.recent.swap(false, Ordering::Relaxed));
            let left = before - shard.len();
            self.cached.fetch_sub(left, Ordering::Relaxed);
        }
        node
    }

    /// The node, read by `load` if it is not in memory; `None` if `load` finds none. The node's lock is held meanwhile,
    /// so that concurrent callers wait and its address does not change.
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

    /// Inserts a new node.
    pub fn insert_new(
        &self,
        change: &Change<'_>,
        nid: Nid,
        entry: NatEntry,
        block: &[u8],
    ) -> Arc<Node> {
        // A freed node leaves the table, and its id is not used again before a checkpoint. A task may still hold the
        // old node, but cannot find it here.
        let node = self.find_or_insert(nid);
        assert!(
            Footer::parse(block).nid == nid && block.len() == BLOCK_SIZE,
            "a new node has its own footer"
        );
        let mut state = node.state.write();
        state.data = Some(Buf::copy_of(block));
        state.entry = entry;
        self.mark(change, &node, &mut state);
        drop(state);
        node
    }

    /// Locks a node for a change and marks it dirty.
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
        let data = state.data.as_ref().expect("checked when it was locked");
        let footer = Footer::parse(data);
        let key = (footer.ino, footer.offset);
        // Under the node's lock, so that a checkpoint does not miss it.
        self.dirty.lock().insert(key, Arc::clone(node));
    }

    /// Removes a freed node; its changes are not written.
    pub fn forget(&self, _: &Change<'_>, node: &Node) {
        let mut state = node.state.write();
        if let Some(data) = state.data.take() {
            let footer = Footer::parse(&data);
            self.dirty.lock().remove(&(footer.ino, footer.offset));
        }
        state.dirty = false;
        drop(state);
        if self.shard(node.nid).lock().remove(&node.nid.0).is_some() {
            let cached = self.cached.fetch_sub(1, Ordering::Relaxed);
            assert!(cached > 0, "each node in a table is counted");
        }
    }

    /// Allocates a block for a dirty node: `work` chooses it and writes the footer, under the node's lock. The node is
    /// clean then; `None` if it was clean before.
    ///
    /// # Errors
    /// Those of `work`; the node stays dirty.
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
        assert!(
            footer.nid == node.nid,
            "a node is written with its own footer"
        );
        self.dirty.lock().remove(&(footer.ino, footer.offset));
        state.dirty = false;
        let old = std::mem::replace(&mut state.entry.addr, addr);
        let entry = state.entry;
        Ok(Some(PlacedNode { data, entry, old }))
    }

    /// Clean nodes that may stay in memory.
    pub fn budget(&self) -> usize {
        self.budget
    }

    /// Evicts all nodes that are not in use.
    pub fn drop_unused(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let before = shard.len();
            shard.retain(|_, node| Arc::strong_count(node) > 1);
            let dropped = before - shard.len();
            let cached = self.cached.fetch_sub(dropped, Ordering::Relaxed);
            assert!(cached >= dropped, "each node in a table is counted");
        }
    }

    /// Number of dirty nodes.
    pub fn dirty_count(&self) -> usize {
        self.dirty.lock().len()
    }

    /// The dirty nodes of an inode in the order of their offsets, the inode's own first. They stay listed until blocks
    /// are allocated for them.
    pub fn dirty_of(&self, ino: Nid) -> Vec<(u32, Arc<Node>)> {
        let dirty = self.dirty.lock();
        let own = dirty.range((ino, 0)..=(ino, u32::MAX));
        own.map(|((_, offset), node)| (*offset, Arc::clone(node)))
            .collect()
    }

    /// All dirty nodes in the order of their positions. They stay listed until blocks are allocated for them.
    pub fn dirty(&self) -> Vec<(TreePosition, Arc<Node>)> {
        let dirty = self.dirty.lock();
        dirty
            .iter()
            .map(|(k, node)| (*k, Arc::clone(node)))
            .collect()
    }
}
