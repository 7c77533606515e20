//! The node chain: what fsync writes of a file's nodes, in the warm node log, where roll-forward follows it.
//!
//! **Rule.** A chain has all dirty direct nodes of the file, then its inode, and **only the last node is marked**. So
//! roll-forward recovers everything that one fsync wrote, or nothing. Each footer has the address of the next node in
//! the log, so a node is found only through those before it, of any file: an fsync ends when all node writes that began
//! before it have ended. Its nodes carry the version of the checkpoint that they follow; the fsync is not durable
//! before that checkpoint is.

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::{Bio, Buf};
use steadfs_vfs::Result;

use super::Node;
use super::writes::NodeWrite;
use crate::checkpoint::{Marks, Writes};
use crate::cp_lock::Change;
use crate::data::cp_reason::CpReason;
use crate::disk::node::NodeKind;
use crate::disk::superblock::StopReason;
use crate::disk::{BLOCK_SIZE, BlockAddr, Nid};
use crate::fs::{F2fs, io_error};
use crate::inode::Inode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// No FLUSH (`fsync_mode=nobarrier`).
    None,
    /// A FLUSH after the chain.
    Flush,
    /// Preflush and FUA on the marked node: all data was written out of place, and is durable if that node is found.
    Ordered,
}

/// The nodes of an fsync with their addresses.
pub struct Chain<'f> {
    inode: &'f Inode,
    write: NodeWrite<'f>,
    /// Contents by address, the marked node last.
    blocks: Vec<(BlockAddr, Buf)>,
    /// The same nodes, so that a node being written is not evicted and read again.
    in_flight_nodes: Vec<Arc<Node>>,
    /// Version of the checkpoint that the chain follows.
    version: u64,
    /// `NoSpace` if blocks were not allocated for all nodes.
    allocated: Result<()>,
}

/// How an fsync makes a file's nodes durable.
pub enum ChainPlan<'f> {
    /// By this chain.
    Chain(Chain<'f>),
    /// The file has no dirty node.
    Clean,
    /// By a checkpoint: a chain cannot express what changed.
    NeedsCheckpoint(CpReason),
}

impl F2fs {
    /// Allocates blocks for a file's dirty nodes, if roll-forward can recover the file from them. The caller holds
    /// `inode.flush`.
    pub(crate) fn place_chain<'f>(&'f self, inode: &'f Inode, tag: IoTag) -> Result<ChainPlan<'f>> {
        // The checks below are valid until blocks are allocated: inside the `Change` no checkpoint begins, and under
        // the inode's `core` no name of it changes and no node of it is freed.
        let change = self.change()?;
        let core = inode.core.read();
        let ino = inode.nid();
        let (_, version) = self.checkpoints.node_version();
        // If no checkpoint has the inode, roll-forward has to create its name: the inode's first chain after a
        // checkpoint has a dentry mark.
        let named = !inode.is_dentry_marked(version) && !self.is_in_checkpoint(ino, tag)?;
        if !named && self.is_clean_file(inode) {
            return Ok(ChainPlan::Clean);
        }
        if let Some(reason) = self.fsync_facts(inode, &core, tag)?.cp_reason() {
            return Ok(ChainPlan::NeedsCheckpoint(reason));
        }
        self.store_inode(&change, inode, &core)?;
        if named {
            let node = self.inode_node(ino, tag)?;
            drop(self.nodes.change(&change, &node)?);
        }
        let (nodes, with_inode) = self.chain_nodes(ino);
        if nodes.is_empty() {
            return Ok(ChainPlan::Clean);
        }
        let dentry = named && with_inode;
        let chain = self.allocate_chain(&change, inode, nodes, dentry);
        if dentry && chain.allocated.is_ok() {
            inode.set_dentry_marked(version);
        }
        Ok(ChainPlan::Chain(chain))
    }

    /// The dirty nodes of a file that go into a chain, its inode last, and whether the inode is among them.
    fn chain_nodes(&self, ino: Nid) -> (Vec<Arc<Node>>, bool) {
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        let mut last = None;
        for (offset, node) in self.nodes.dirty_of(ino) {
            match NodeKind::at(offset) {
                NodeKind::Inode => last = Some(node),
                NodeKind::Direct | NodeKind::Xattr => nodes.push(node),
                // Roll-forward creates them anew.
                NodeKind::Indirect | NodeKind::DoubleIndirect => {}
            }
        }
        let with_inode = last.is_some();
        nodes.extend(last);
        (nodes, with_inode)
    }

    /// Allocates a block for each of these nodes and marks the last. No checkpoint begins inside `change`, so all carry
    /// the same version.
    fn allocate_chain<'f>(
        &'f self,
        change: &Change<'_>,
        inode: &'f Inode,
        nodes: Vec<Arc<Node>>,
        dentry: bool,
    ) -> Chain<'f> {
        assert!(!nodes.is_empty(), "a chain has a node to mark");
        let (node_version, version) = self.checkpoints.node_version();
        let (write, order) = self.node_writes.begin();
        let mut blocks = Vec::with_capacity(nodes.len());
        let mut allocated = Ok(());
        for (n, node) in nodes.iter().enumerate() {
            let marked = n + 1 == nodes.len();
            let marks = Marks {
                fsync: marked,
                dentry: marked && dentry,
            };
            match self.place_node(change, node, node_version, marks) {
                Ok(placed) => blocks.extend(placed),
                // Those with a block are written nevertheless: the NAT refers to them.
                Err(error) => {
                    allocated = Err(error);
                    break;
                }
            }
        }
        drop(order);
        assert!(blocks.len() <= nodes.len(), "a node is in its chain once");
        Chain {
            inode,
            write,
            blocks,
            in_flight_nodes: nodes,
            version,
            allocated,
        }
    }

    /// Writes a chain and makes it durable.
    ///
    /// # Errors
    /// `NoSpace`: blocks were not allocated for all nodes; the fsync can be repeated when there is space. A device
    /// error: the volume aborts, because the NAT refers to nodes that were not written.
    pub(crate) fn write_chain(&self, chain: Chain<'_>, how: Barrier, tag: IoTag) -> Result<()> {
        let Chain {
            inode,
            write,
            mut blocks,
            in_flight_nodes,
            version,
            allocated,
        } = chain;
        let before = write.before();
        let marked = (how == Barrier::Ordered).then(|| blocks.pop()).flatten();
        let written = self.write_nodes(&blocks, &write, tag).and_then(|()| {
            let Some((at, data)) = marked else {
                return Ok(());
            };
            self.node_writes.wait(before, &self.queue, tag)?;
            let bio = Bio::write(u64::from(at.0) * BLOCK_SIZE as u64, vec![data]);
            let io = self.queue.submit(bio.preflush_and_fua(), tag);
            write.note(std::slice::from_ref(&io), &self.queue);
            io.wait().map_err(io_error)
        });
        drop(in_flight_nodes);
        match &written {
            Ok(()) => {
                // A later fsync of the clean file waits for this write and knows which FLUSH it needs.
                inode.record_written(false, self.queue.next_flush());
                write.end();
            }
            Err(error) => {
                self.abort(
                    StopReason::WRITE_FAIL,
                    &format!("a node could not be written: {error}"),
                );
                drop(write);
            }
        }
        written?;
        allocated?;
        self.node_writes.wait(before, &self.queue, tag)?;
        if how == Barrier::Flush {
            self.queue.flush(tag).wait().map_err(|error| {
                self.abort(StopReason::FLUSH_FAIL, &format!("a flush failed: {error}"));
                io_error(error)
            })?;
        }
        self.wait_checkpoint(version, tag)
    }

    /// Writes a chain with those of other files, allocated after it, and makes all durable (fsync clustering). Data
    /// that was written out of place is made durable first, because roll-forward may find any of the marked nodes.
    ///
    /// # Errors
    /// As [`F2fs::write_chain`], for the first chain. `NoSpace` of the other chains is ignored: their files have not
    /// called fsync.
    pub(crate) fn write_chains(
        &self,
        first: Chain<'_>,
        others: Vec<Chain<'_>>,
        tag: IoTag,
    ) -> Result<()> {
        let allocated = first.allocated.clone();
        let mut chains = Vec::with_capacity(1 + others.len());
        chains.push(first);
        chains.extend(others);
        let last = chains.last().expect("there is at least one chain");
        let (before, version) = (last.write.before(), last.version);
        assert!(
            chains.iter().all(|chain| chain.version <= version),
            "the last chain follows the latest checkpoint"
        );
        assert!(
            chains.is_sorted_by(|a, b| a.write.before() < b.write.before()),
            "chains are in the order of the log"
        );
        let opu = chains.iter().map(|chain| chain.inode.unflushed_opu());
        if !self.queue.has_flushed(opu.max().unwrap_or(0)) {
            self.flush_device(tag)?;
        }
        let each = chains.iter_mut().map(|c| std::mem::take(&mut c.blocks));
        let blocks: Vec<_> = each.flatten().collect();
        let mut writes = Writes::default();
        self.submit_blocks(&blocks, tag, &mut writes);
        for chain in &chains {
            chain.write.note(writes.ios(), &self.queue);
        }
        if let Err(error) = writes.wait() {
            self.abort(
                StopReason::WRITE_FAIL,
                &format!("a node could not be written: {error}"),
            );
            return Err(io_error(error));
        }
        for chain in chains {
            // As in `write_chain`.
            chain.inode.record_written(false, self.queue.next_flush());
            chain.write.end();
        }
        allocated?;
        self.node_writes.wait(before, &self.queue, tag)?;
        self.flush_device(tag)?;
        self.wait_checkpoint(version, tag)
    }

    fn write_nodes(
        &self,
        blocks: &[(BlockAddr, Buf)],
        write: &NodeWrite<'_>,
        tag: IoTag,
    ) -> Result<()> {
        let mut writes = Writes::default();
        self.submit_blocks(blocks, tag, &mut writes);
        write.note(writes.ios(), &self.queue);
        writes.wait().map_err(io_error)
    }

    /// Whether the last checkpoint, or the one in flight, has this inode, so that roll-forward finds it there.
    pub(crate) fn is_in_checkpoint(&self, ino: Nid, tag: IoTag) -> Result<bool> {
        match self.nat.in_checkpoint(ino, tag) {
            Ok(entry) => Ok(entry.is_used() && entry.ino == ino),
            Err(error) if error.is_corruption() => Ok(false),
            Err(error) => Err(error),
        }
    }
}
