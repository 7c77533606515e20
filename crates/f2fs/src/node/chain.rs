//! What fsync writes of a file's nodes: a chain in the warm node log that recovery follows.
//!
//! All changed direct nodes of the file, then its inode; **only the last is marked**. So recovery takes
//! everything that one fsync wrote, or nothing. Each node says where the log goes on, so a node is found
//! only through those before it, whoever wrote them: an fsync ends when all writes of nodes that began
//! before it have ended. It comes after a checkpoint whose version its nodes carry; if that one is not
//! durable yet, the fsync is not either.

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

/// How a chain becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// Not by us (`fsync_mode=nobarrier`).
    None,
    /// A FLUSH behind it.
    Flush,
    /// Nothing that was written before is lost where the marked node is found: its data went to new places.
    Ordered,
}

/// Nodes of an fsync with their places.
pub struct Chain<'f> {
    inode: &'f Inode,
    write: NodeWrite<'f>,
    /// The marked one last.
    blocks: Vec<(BlockAddr, Buf)>,
    /// What is on its way must not leave memory and be read again.
    held: Vec<Arc<Node>>,
    /// The checkpoint it comes after.
    version: u64,
    /// Whether all have a place.
    whole: Result<()>,
}

/// What came of the wish to make a file durable by its own nodes.
pub enum ChainPlan<'f> {
    /// The nodes have their places.
    Chain(Chain<'f>),
    /// Nothing of the file waits to be written.
    Clean,
    /// They cannot tell what has changed: a checkpoint is needed.
    NeedsCheckpoint(CpReason),
}

impl F2fs {
    /// Gives places to what changed of a file's nodes, if recovery can make of them what the file is now. The
    /// caller holds `inode.flush`.
    pub(crate) fn place_chain<'f>(&'f self, inode: &'f Inode, tag: IoTag) -> Result<ChainPlan<'f>> {
        // What is looked up here holds until the nodes have their places: no checkpoint begins, and nobody
        // gives the inode a name, takes one or frees nodes.
        let change = self.change()?;
        let core = inode.core.read();
        let ino = inode.nid();
        let (_, version) = self.checkpoints.node_version();
        // Where no checkpoint has the inode, recovery has to make its name, which needs a mark on it in the
        // first chain behind a checkpoint.
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
        let chain = self.give_places(&change, inode, nodes, dentry);
        if dentry && chain.whole.is_ok() {
            inode.set_dentry_marked(version);
        }
        Ok(ChainPlan::Chain(chain))
    }

    /// The changed nodes of a file that a chain tells of, its inode last, and whether that is among them.
    fn chain_nodes(&self, ino: Nid) -> (Vec<Arc<Node>>, bool) {
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        let mut last = None;
        for (offset, node) in self.nodes.dirty_of(ino) {
            match NodeKind::at(offset) {
                NodeKind::Inode => last = Some(node),
                NodeKind::Direct | NodeKind::Xattr => nodes.push(node),
                // Recovery makes them anew.
                NodeKind::Indirect | NodeKind::DoubleIndirect => {}
            }
        }
        let with_inode = last.is_some();
        nodes.extend(last);
        (nodes, with_inode)
    }

    /// Gives each of these nodes a place and marks the last. Within `change` no checkpoint begins, so all carry
    /// one version.
    fn give_places<'f>(
        &'f self,
        change: &Change<'_>,
        inode: &'f Inode,
        nodes: Vec<Arc<Node>>,
        dentry: bool,
    ) -> Chain<'f> {
        let (node_version, version) = self.checkpoints.node_version();
        let (write, order) = self.node_writes.begin();
        let mut blocks = Vec::with_capacity(nodes.len());
        let mut whole = Ok(());
        for (n, node) in nodes.iter().enumerate() {
            let marked = n + 1 == nodes.len();
            let marks = Marks {
                fsync: marked,
                dentry: marked && dentry,
            };
            match self.place_node(change, node, node_version, marks) {
                Ok(placed) => blocks.extend(placed),
                // Those that have a place are written all the same: the table says that they lie there.
                Err(error) => {
                    whole = Err(error);
                    break;
                }
            }
        }
        drop(order);
        Chain {
            inode,
            write,
            blocks,
            held: nodes,
            version,
            whole,
        }
    }

    /// Writes a chain; it is durable when this returns well.
    ///
    /// # Errors
    /// `NoSpace`: not all nodes have a place; the fsync can be tried again when there is room. The device
    /// failed: the volume stops, as nodes are not where the table says.
    pub(crate) fn write_chain(&self, chain: Chain<'_>, how: Barrier, tag: IoTag) -> Result<()> {
        let Chain {
            inode,
            write,
            mut blocks,
            held,
            version,
            whole,
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
        drop(held);
        match &written {
            Ok(()) => {
                // Who finds nothing of the file to write waits for the end, and sees what is to flush.
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
        whole?;
        self.node_writes.wait(before, &self.queue, tag)?;
        if how == Barrier::Flush {
            self.queue.flush(tag).wait().map_err(|error| {
                self.abort(StopReason::FLUSH_FAIL, &format!("a flush failed: {error}"));
                io_error(error)
            })?;
        }
        self.wait_checkpoint(version, tag)
    }

    /// Writes a chain with those of other files, placed behind it; all are durable when this returns well.
    /// What data went to new places is made durable first: recovery may find any of the marked nodes, each
    /// only if it has found those before it.
    ///
    /// # Errors
    /// As [`F2fs::write_chain`]. What has no place of the others is no error: they are not told of anything.
    pub(crate) fn write_chains(
        &self,
        first: Chain<'_>,
        others: Vec<Chain<'_>>,
        tag: IoTag,
    ) -> Result<()> {
        let whole = first.whole.clone();
        let mut chains = Vec::with_capacity(1 + others.len());
        chains.push(first);
        chains.extend(others);
        let last = chains.last().expect("the first is among them");
        let (before, version) = (last.write.before(), last.version);
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
        whole?;
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

    /// Whether the last checkpoint, or the one under way, has this inode: recovery finds it there.
    pub(crate) fn is_in_checkpoint(&self, ino: Nid, tag: IoTag) -> Result<bool> {
        match self.nat.in_checkpoint(ino, tag) {
            Ok(entry) => Ok(entry.is_used() && entry.ino == ino),
            Err(error) if error.is_corruption() => Ok(false),
            Err(error) => Err(error),
        }
    }
}
