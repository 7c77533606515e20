//! Nodes in memory, by id: clean ones within a budget, dirty ones until they are written.
//!
//! A node is kept without its zeros until its block is used, and again when it has been written.
//!
//! A dirty node has no valid address: a checkpoint or an fsync allocates one when it writes the node. Content is
//! copy-on-write, so a node in flight does not change.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use steadfs_base::FixedMap;
use steadfs_block::Buf;
use steadfs_rt::{Mutex, Rank, RwLock, RwLockWriteGuard};
use steadfs_vfs::Result;

use crate::cp_lock::Change;
use crate::disk::node::Footer;
use crate::disk::{BLOCK_SIZE, BlockAddr, NatEntry, Nid};

use super::content::NodeContent;

const SHARDS: usize = 16;
/// Memory of a node beside its content, in bytes: the object, and its places in the tables.
const NODE_BYTES: usize = 256;
/// A table with fewer nodes than this is not swept.
const SHARD_NODES_MIN: usize = 16;

/// Counts of all nodes.
#[derive(Default)]
struct Totals {
    /// Memory in bytes.
    memory: AtomicUsize,
    /// Nodes read ahead and evicted unused, until they are taken.
    unused: AtomicU32,
}

pub struct Node {
    nid: Nid,
    state: RwLock<NodeState>,
    totals: Arc<Totals>,
    /// Used since the last eviction scan.
    recent: AtomicBool,
    /// Read ahead and not used yet.
    read_ahead: AtomicBool,
}

impl Drop for Node {
    fn drop(&mut self) {
        let content = self.state.get_mut().data.take();
        let bytes = NODE_BYTES + content.map_or(0, |content| content.memory());
        let before = self.totals.memory.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "the memory of each node is counted");
        let unused = u32::from(*self.read_ahead.get_mut());
        self.totals.unused.fetch_add(unused, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct NodeState {
    /// `None` until the first read, and after the node was freed.
    data: Option<NodeContent>,
    /// The node's NAT entry.
    entry: NatEntry,
    /// Changed since a block was last allocated for it.
    dirty: bool,
}

/// A node for which a block was allocated.
pub struct PlacedNode {
    /// The content to be written.
    pub data: NodeContent,
    /// The new NAT entry.
    pub entry: NatEntry,
    /// The address before.
    pub old: BlockAddr,
}

impl Node {
    pub fn nid(&self) -> Nid {
        self.nid
    }

    /// The inode whose node it is.
    pub fn ino(&self) -> Nid {
        self.state.read().entry.ino
    }

    /// The current content. The clone does not change; a later writer copies. From now on the node is kept as a block,
    /// because it will be used again.
    ///
    /// # Errors
    /// The node was freed; the caller looks it up again.
    pub fn data(&self) -> Result<Buf> {
        if let Some(NodeContent::Whole(block)) = &self.state.read().data {
            return Ok(block.clone());
        }
        let mut state = self.state.write();
        let content = state.data.as_ref().ok_or_else(|| self.is_gone())?;
        let block = content.block();
        self.set_content(&mut state, Some(NodeContent::Whole(block.clone())));
        Ok(block)
    }

    /// The same for a single use.
    ///
    /// # Errors
    /// As [`Node::data`].
    pub fn block(&self) -> Result<Buf> {
        let content = self.state.read().data.clone();
        content
            .map(|content| content.block())
            .ok_or_else(|| self.is_gone())
    }

    fn set_content(&self, state: &mut NodeState, content: Option<NodeContent>) {
        let bytes = |content: &Option<NodeContent>| content.as_ref().map_or(0, NodeContent::memory);
        self.recount(bytes(&state.data), bytes(&content));
        state.data = content;
    }

    fn pack(&self, state: &mut NodeState) {
        if let Some(content) = state.data.take() {
            let before = content.memory();
            let packed = match content {
                NodeContent::Whole(block) => NodeContent::of(block),
                packed => packed,
            };
            self.recount(before, packed.memory());
            state.data = Some(packed);
        }
    }

    /// The content changes its size.
    fn recount(&self, before: usize, after: usize) {
        self.totals.memory.fetch_add(after, Ordering::Relaxed);
        let all = self.totals.memory.fetch_sub(before, Ordering::Relaxed);
        debug_assert!(all >= before, "the memory of each node is counted");
    }

    /// The node's footer.
    ///
    /// # Errors
    /// As [`Node::data`].
    pub fn footer(&self) -> Result<Footer> {
        let state = self.state.read();
        let content = state.data.as_ref().ok_or_else(|| self.is_gone())?;
        Ok(content.footer())
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

impl NodeMut<'_> {
    const WHOLE: &'static str = "made whole when it was locked";
}

impl Deref for NodeMut<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.state.data {
            Some(NodeContent::Whole(block)) => block,
            _ => unreachable!("{}", Self::WHOLE),
        }
    }
}

impl DerefMut for NodeMut<'_> {
    /// Copies the content first if a write in flight or a reader shares it.
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.state.data {
            Some(NodeContent::Whole(block)) => block.make_mut(),
            _ => unreachable!("{}", Self::WHOLE),
        }
    }
}

/// Position of a dirty node: its inode, and its offset in the inode's tree.
pub type TreePosition = (Nid, u32);

/// All nodes in memory.
pub struct NodeCache {
    /// Memory in bytes above which clean nodes are evicted.
    budget: usize,
    totals: Arc<Totals>,
    shards: Vec<Mutex<Shard>>,
    /// Dirty nodes by position.
    dirty: Mutex<BTreeMap<TreePosition, Arc<Node>>>,
}

#[derive(Default)]
struct Shard {
    nodes: FixedMap<u32, Arc<Node>>,
    /// Nodes that the last sweep left, and a quarter more: with many nodes in use not each insertion sweeps.
    limit: usize,
}

impl Shard {
    /// Evicts nodes that are not in use and were not used since the last sweep.
    fn sweep(&mut self) {
        // Each user and the list of dirty nodes hold a reference.
        let used = |node: &Arc<Node>| Arc::strong_count(node) > 1;
        self.nodes
            .retain(|_, node| used(node) || node.recent.swap(false, Ordering::Relaxed));
        let left = self.nodes.len();
        self.limit = (left + left / 4).max(SHARD_NODES_MIN);
    }
}

impl NodeCache {
    /// A cache for about `budget` bytes of clean nodes.
    pub fn new(budget: usize) -> Self {
        let shard = || Mutex::new(Rank::Table, Shard::default());
        Self {
            budget: budget.max(64 * BLOCK_SIZE),
            totals: Arc::default(),
            shards: (0..SHARDS).map(|_| shard()).collect(),
            dirty: Mutex::new(Rank::Dirty, BTreeMap::new()),
        }
    }

    fn shard(&self, nid: Nid) -> &Mutex<Shard> {
        &self.shards[nid.0 as usize % SHARDS]
    }

    /// The node with this id, inserted without content if it was not in memory.
    fn find_or_insert(&self, nid: Nid) -> Arc<Node> {
        let mut shard = self.shard(nid).lock();
        if let Some(node) = shard.nodes.get(&nid.0) {
            assert!(node.nid == nid, "the table is keyed by node id");
            node.recent.store(true, Ordering::Relaxed);
            return Arc::clone(node);
        }
        let node = Arc::new(Node {
            nid,
            state: RwLock::new(Rank::Node, NodeState::default()),
            totals: Arc::clone(&self.totals),
            recent: AtomicBool::new(true),
            read_ahead: AtomicBool::new(false),
        });
        shard.nodes.insert(nid.0, Arc::clone(&node));
        let memory = self.totals.memory.fetch_add(NODE_BYTES, Ordering::Relaxed);
        if memory >= self.budget && shard.nodes.len() > shard.limit {
            shard.sweep();
        }
        node
    }

    /// The node, read by `load` if it is not in memory, and whether it was read ahead and is used for the first time;
    /// `None` if `load` finds none. The node's lock is held meanwhile, so that concurrent callers wait and its address
    /// does not change. If it is not in memory `before` is called first, which may insert it.
    pub fn get(
        &self,
        nid: Nid,
        before: impl FnOnce(),
        load: impl FnOnce() -> Result<Option<(Buf, NatEntry)>>,
    ) -> Result<Option<(Arc<Node>, bool)>> {
        let node = self.find_or_insert(nid);
        let is_there = node.state.read().data.is_some();
        if !is_there {
            before();
            if !self.fill(&node, load)? {
                return Ok(None);
            }
        }
        let read_ahead = node.read_ahead.load(Ordering::Relaxed)
            && node.read_ahead.swap(false, Ordering::Relaxed);
        Ok(Some((node, read_ahead)))
    }

    /// Loads a node that is not in memory; returns whether it exists.
    fn fill(
        &self,
        node: &Node,
        load: impl FnOnce() -> Result<Option<(Buf, NatEntry)>>,
    ) -> Result<bool> {
        let mut state = node.state.write();
        debug_assert!(
            state.data.is_some() || !state.dirty,
            "a dirty node has content"
        );
        if state.data.is_none()
            && let Some((data, entry)) = load()?
        {
            node.set_content(&mut state, Some(NodeContent::of(data)));
            state.entry = entry;
        }
        Ok(state.data.is_some())
    }

    /// Inserts a node that was read ahead, unless it is in memory. `load` returns its content, under the node's lock.
    pub fn insert_read_ahead(
        &self,
        nid: Nid,
        load: impl FnOnce() -> Result<Option<(Buf, NatEntry)>>,
    ) {
        let node = self.find_or_insert(nid);
        let mark = || {
            let loaded = load()?;
            node.read_ahead.store(loaded.is_some(), Ordering::Relaxed);
            Ok(loaded)
        };
        if let Err(error) = self.fill(&node, mark) {
            tracing::debug!(%error, nid = nid.0, "cannot keep a node that was read ahead");
        }
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
        node.set_content(&mut state, Some(NodeContent::of_bytes(block)));
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
        match &state.data {
            None => return Err(node.is_gone()),
            Some(NodeContent::Whole(_)) => {}
            Some(packed) => {
                let whole = NodeContent::Whole(packed.block());
                node.set_content(&mut state, Some(whole));
            }
        }
        self.mark(change, node, &mut state);
        debug_assert!(
            state.dirty && matches!(state.data, Some(NodeContent::Whole(_))),
            "a node that is being changed is dirty and a whole block"
        );
        Ok(NodeMut { state })
    }

    /// Changes a node that will not be used soon: marks it dirty and packs it.
    ///
    /// # Errors
    /// As [`Node::data`], or those of `work`.
    pub fn change_packed(
        &self,
        change: &Change<'_>,
        node: &Arc<Node>,
        work: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut changed = self.change(change, node)?;
        work(&mut changed)?;
        let NodeMut { mut state } = changed;
        node.pack(&mut state);
        Ok(())
    }

    /// Packs a node that will not be used soon.
    pub fn pack(&self, node: &Node) {
        node.pack(&mut node.state.write());
    }

    fn mark(&self, _: &Change<'_>, node: &Arc<Node>, state: &mut NodeState) {
        if state.dirty {
            return;
        }
        state.dirty = true;
        let data = state.data.as_ref().expect("checked when it was locked");
        let footer = data.footer();
        let key = (footer.ino, footer.offset);
        // Under the node's lock, so that a checkpoint does not miss it.
        self.dirty.lock().insert(key, Arc::clone(node));
    }

    /// Removes a freed node; its changes are not written.
    pub fn forget(&self, _: &Change<'_>, node: &Node) {
        let mut state = node.state.write();
        if let Some(content) = &state.data {
            let footer = content.footer();
            self.dirty.lock().remove(&(footer.ino, footer.offset));
        }
        node.set_content(&mut state, None);
        state.dirty = false;
        drop(state);
        self.shard(node.nid).lock().nodes.remove(&node.nid.0);
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
        let content = state.data.take().expect("a dirty node has content");
        let before = content.memory();
        let listed = content.footer();
        let mut block = content.into_block();
        let placed = work(block.make_mut());
        let data = NodeContent::of(block);
        node.recount(before, data.memory());
        state.data = Some(data.clone());
        let addr = placed?;
        let footer = data.footer();
        assert!(
            footer.nid == node.nid,
            "a node is written with its own footer"
        );
        assert!(
            (footer.ino, footer.offset) == (listed.ino, listed.offset),
            "a node keeps its position in the tree when it moves in the log"
        );
        self.dirty.lock().remove(&(footer.ino, footer.offset));
        state.dirty = false;
        let old = std::mem::replace(&mut state.entry.addr, addr);
        let entry = state.entry;
        Ok(Some(PlacedNode { data, entry, old }))
    }

    /// Nodes read ahead and evicted unused since the last call.
    pub fn take_unused(&self) -> u32 {
        self.totals.unused.swap(0, Ordering::Relaxed)
    }

    /// Clean nodes that may stay in memory, as whole blocks.
    pub fn budget(&self) -> usize {
        self.budget / BLOCK_SIZE
    }

    /// Evicts nodes if memory is above the budget: after a checkpoint most are clean.
    pub fn trim(&self) {
        for shard in &self.shards {
            if self.totals.memory.load(Ordering::Relaxed) <= self.budget {
                return;
            }
            shard.lock().sweep();
        }
    }

    /// Evicts all nodes that are not in use.
    pub fn drop_unused(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.nodes.retain(|_, node| Arc::strong_count(node) > 1);
            shard.limit = 0;
        }
    }

    /// Memory of all nodes, in bytes.
    #[cfg(test)]
    pub fn memory(&self) -> usize {
        self.totals.memory.load(Ordering::Relaxed)
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

    /// Up to `count` other inodes with dirty nodes, those with the next numbers above and below.
    pub fn near_dirty(&self, ino: Nid, count: usize) -> Vec<Nid> {
        let dirty = self.dirty.lock();
        let own = |(place, _): (&TreePosition, &Arc<Node>)| (place.1 == 0).then_some(place.0);
        let most = 4 * count;
        let above = dirty.range((ino, u32::MAX)..).take(most);
        let below = dirty.range(..(ino, 0)).rev().take(most);
        let (above, below) = (above.filter_map(own), below.filter_map(own));
        let mut found: Vec<Nid> = above.take(count).chain(below.take(count)).collect();
        found.sort_unstable_by_key(|nid| nid.0.abs_diff(ino.0));
        found.truncate(count);
        found
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
