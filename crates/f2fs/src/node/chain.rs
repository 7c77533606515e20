//! The node chain: what fsync writes of a file's nodes, in the warm node log, where roll-forward follows it.
//!
//! **Rule.** A chain has all dirty direct nodes of the file, then its inode, and **only the last node is marked**. So
//! roll-forward recovers everything that one fsync wrote, or nothing. Each footer has the address of the next node in
//! the log, so a node is found only through those before it, of any file: an fsync ends when all node writes that began
//! before it have ended. Its nodes carry the version of the checkpoint that they follow; the fsync is not durable
//! before that checkpoint is.
//!
//! Concurrent fsyncs share a FLUSH ([`super::writes`], [`super::GroupLead`]).

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::{Bio, Buf, IoHandle};
use steadfs_rt::{inherit, now};
use steadfs_vfs::{FsError, Result};

use super::Node;
use super::writes::{Arrival, ChainWrite, GroupContent, GroupLead, NodeWrite};
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
    /// The chain belongs to a group, which is written with PREFLUSH and FUA: data was written out of place, and is
    /// durable if the chain is found.
    Ordered,
}

/// For what a chain is written.
#[derive(Clone, Copy)]
pub struct ChainUse<'a> {
    pub barrier: Barrier,
    /// Of an fsync of the file itself, not of one that it is clustered with.
    pub caller: Option<&'a Arrival<'a>>,
    pub tag: IoTag,
}

/// The nodes of an fsync with their addresses.
pub struct Chain<'f> {
    inode: &'f Inode,
    write: ChainWrite<'f>,
    /// Contents by address, the marked node last; none if the chain belongs to a group, which has them.
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
    pub(crate) fn place_chain<'f>(
        &'f self,
        inode: &'f Inode,
        by: ChainUse<'_>,
    ) -> Result<ChainPlan<'f>> {
        let tag = by.tag;
        // The checks below are valid until blocks are allocated: inside the `Change` no checkpoint begins, and under
        // the inode's `core` no name of it changes and no node of it is freed.
        let change = self.change()?;
        let core = inode.core.read();
        let ino = inode.nid();
        let (_, version) = self.checkpoints.node_version();
        // If no checkpoint has the inode, roll-forward has to create its name: the inode's first chain after a
        // checkpoint has a dentry mark.
        let named = !inode.is_dentry_marked(version) && !self.is_in_checkpoint(ino, tag)?;
        if !named && self.is_clean_file(inode) && !self.since_cp.needs_checkpoint(ino) {
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
        let chain = self.allocate_chain(&change, inode, (nodes, dentry), by);
        assert!(
            chain.version == version,
            "no checkpoint begins inside a change"
        );
        self.since_cp.add_chain(ino);
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
        debug_assert!(
            nodes.last().is_some_and(|last| last.nid() == ino) == with_inode,
            "an inode is the last node of its chain"
        );
        (nodes, with_inode)
    }

    /// Allocates a block for each of these nodes and marks the last. No checkpoint begins inside `change`, so all carry
    /// the same version.
    fn allocate_chain<'f>(
        &'f self,
        change: &Change<'_>,
        inode: &'f Inode,
        (nodes, dentry): (Vec<Arc<Node>>, bool),
        by: ChainUse<'_>,
    ) -> Chain<'f> {
        assert!(!nodes.is_empty(), "a chain has a node to mark");
        let (node_version, version) = self.checkpoints.node_version();
        let grouped = by.barrier == Barrier::Ordered;
        let (write, order) = self
            .node_writes
            .begin_chain(version, grouped, by.caller, by.tag);
        let mut blocks = Vec::with_capacity(nodes.len());
        let mut allocated = Ok(());
        for (n, node) in nodes.iter().enumerate() {
            let marked = n + 1 == nodes.len();
            let marks = Marks {
                fsync: marked,
                dentry: marked && dentry,
            };
            match self.place_node(change, node, node_version, marks) {
                Ok(placed) => blocks.extend(placed.map(|(addr, content)| (addr, content.block()))),
                // Those with a block are written nevertheless: the NAT refers to them.
                Err(error) => {
                    allocated = Err(error);
                    break;
                }
            }
        }
        assert!(blocks.len() <= nodes.len(), "a node is in its chain once");
        let mut chain = Chain {
            inode,
            write,
            blocks,
            in_flight_nodes: nodes,
            version,
            allocated,
        };
        if let Some(group) = chain.write.group() {
            let nodes = std::mem::take(&mut chain.in_flight_nodes);
            group.add(&order, std::mem::take(&mut chain.blocks), nodes);
        }
        chain
    }

    /// Writes a chain with those of other files, allocated after it, and makes all durable (fsync clustering).
    ///
    /// # Errors
    /// `NoSpace`: blocks were not allocated for all nodes of the first chain; the fsync can be repeated when there is
    /// space. (That of other chains is ignored: their files have not called fsync.) A device error: the volume aborts,
    /// because the NAT refers to nodes that were not written.
    pub(crate) fn write_chains(
        &self,
        first: Chain<'_>,
        others: Vec<Chain<'_>>,
        how: Barrier,
        tag: IoTag,
    ) -> Result<()> {
        let allocated = first.allocated.clone();
        let (mut own, mut grouped) = (Vec::new(), Vec::new());
        let mut version = 0;
        for chain in std::iter::once(first).chain(others) {
            assert!(
                chain.version >= version,
                "chains are in the order of the log"
            );
            version = chain.version;
            match chain.write {
                ChainWrite::Own(_) => own.push(chain),
                ChainWrite::Lead(_) | ChainWrite::Member(_) => grouped.push(chain.write),
            }
        }
        // Those of the groups may be behind them in the log, and wait for them.
        let before = self.write_own(own, tag)?;
        for write in grouped {
            match write {
                ChainWrite::Lead(lead) => self.write_group(lead, tag)?,
                ChainWrite::Member(group) => {
                    let is_light = self.node_writes.is_outweighed(&self.queue, tag);
                    self.queue.begin_wait(tag, !is_light);
                    group.wait()?;
                }
                ChainWrite::Own(_) => unreachable!("these were written above"),
            }
        }
        allocated?;
        if let Some(before) = before {
            self.node_writes.wait(before, &self.queue, tag)?;
            if how != Barrier::None {
                self.flush_device(tag)?;
            }
        }
        self.wait_checkpoint(version, tag)
    }

    /// Writes chains that belong to no group; a FLUSH makes them durable. Returns the number of node writes before the
    /// last of them.
    fn write_own(&self, mut chains: Vec<Chain<'_>>, tag: IoTag) -> Result<Option<u64>> {
        if chains.is_empty() {
            return Ok(None);
        }
        assert!(
            chains.iter().all(|chain| chain.write.own().is_some()),
            "a group's leader writes its chains"
        );
        let each = chains.iter_mut().map(|c| std::mem::take(&mut c.blocks));
        let blocks: Vec<_> = each.flatten().collect();
        let own = chains.iter().filter_map(|chain| chain.write.own());
        self.write_nodes(&blocks, own, tag)?;
        let mut before = None;
        for chain in chains {
            // A later fsync of the clean file waits for this write and knows which FLUSH it needs.
            chain.inode.record_written(false, self.queue.next_flush());
            if let ChainWrite::Own(write) = chain.write {
                before = Some(write.before());
                write.end();
            }
        }
        Ok(before)
    }

    /// Writes a group: the blocks behind the gate, then the gate with PREFLUSH and FUA.
    fn write_group(&self, lead: GroupLead<'_>, tag: IoTag) -> Result<()> {
        let before = lead.write().before();
        let waited = self.node_writes.wait(before, &self.queue, tag);
        let content = waited.and_then(|()| lead.close());
        let content = content.inspect_err(|error| self.abort_for_node(error))?;
        let began = now();
        let (gate, rest) = content.split_at_gate();
        let mut writes = Writes::default();
        self.submit_blocks(rest, tag, &mut writes);
        self.note_group(&lead, &content, writes.ios());
        let written = writes.wait().map_err(io_error);
        written.inspect_err(|error| self.abort_for_node(error))?;
        if let Some((at, _)) = gate.first() {
            let bufs = gate.iter().map(|(_, data)| data.clone()).collect();
            let bio = Bio::write(u64::from(at.0) * BLOCK_SIZE as u64, bufs);
            let io = self.queue.submit(bio.preflush_and_fua(), tag);
            self.note_group(&lead, &content, std::slice::from_ref(&io));
            let written = io.wait().map_err(io_error);
            written.inspect_err(|error| self.abort_for_node(error))?;
        }
        self.queue.end_waits(&content.tags);
        lead.end(began.elapsed());
        inherit::end_waits();
        Ok(())
    }

    /// Records requests of a group, which its leader has submitted: they are charged to the groups of all members, and
    /// have the effective tag of them.
    fn note_group(&self, lead: &GroupLead<'_>, content: &GroupContent, ios: &[IoHandle]) {
        lead.write().note(ios, &self.queue);
        if content.tags.len() > 1 {
            self.queue.share(ios, &content.tags);
            let tag = content.tag(&self.queue);
            for io in ios {
                self.queue.boost(io, tag);
            }
        }
    }

    /// Writes node blocks and waits for them.
    ///
    /// # Errors
    /// A device error: the volume aborts.
    fn write_nodes<'w>(
        &self,
        blocks: &[(BlockAddr, Buf)],
        of: impl Iterator<Item = &'w NodeWrite<'w>>,
        tag: IoTag,
    ) -> Result<()> {
        let mut writes = Writes::default();
        self.submit_blocks(blocks, tag, &mut writes);
        for write in of {
            write.note(writes.ios(), &self.queue);
        }
        let written = writes.wait().map_err(io_error);
        written.inspect_err(|error| self.abort_for_node(error))
    }

    fn abort_for_node(&self, error: &FsError) {
        let cause = format!("a node could not be written: {error}");
        self.abort(StopReason::WRITE_FAIL, &cause);
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
