//! The I/O of a checkpoint, concurrent with new operations, and its commit.

use std::collections::VecDeque;

use steadfs_base::{DevBlock, IoTag};
use steadfs_block::{Bio, Buf, IoError, IoHandle};
use steadfs_vfs::Result;

use super::snapshot::{DirBlock, PlacedNodes, Snapshot};
use super::state::MetaArea;
use super::steps::Steps;
use crate::disk::{BLOCK_SIZE, BlockAddr};
use crate::fs::{F2fs, io_error};
use crate::nat::NatWrites;

/// Blocks in one request at most.
const MAX_RUN: usize = 256;

/// Nodes in flight at most (4 MiB): memory has the others without their zeros.
const NODES_IN_FLIGHT: usize = 1024;
/// Nodes that are submitted at a time.
const NODES_AT_ONCE: usize = MAX_RUN;

/// Write requests in flight.
#[derive(Default)]
pub struct Writes(Vec<IoHandle>);

impl Writes {
    pub fn ios(&self) -> &[IoHandle] {
        &self.0
    }

    /// Waits for all requests; returns the first error after all have ended.
    ///
    /// # Errors
    /// A write failed.
    pub fn wait(self) -> Result<(), IoError> {
        let mut first = Ok(());
        for io in self.0 {
            first = first.and(io.wait());
        }
        first
    }
}

/// Submits nodes; waits for the oldest ones while [`NODES_IN_FLIGHT`] are in flight. Those in flight at the end, or at an
/// error, are added to `to`.
///
/// # Errors
/// A write failed.
pub fn submit_nodes(
    nodes: &PlacedNodes,
    to: &mut Writes,
    submit: impl Fn(&[(BlockAddr, Buf)], &mut Writes),
) -> Result<(), IoError> {
    let mut in_flight: VecDeque<Writes> = VecDeque::new();
    let mut first = Ok(());
    for part in nodes.chunks(NODES_AT_ONCE) {
        if in_flight.len() == NODES_IN_FLIGHT / NODES_AT_ONCE
            && let Some(oldest) = in_flight.pop_front()
        {
            first = oldest.wait();
            if first.is_err() {
                break;
            }
        }
        let blocks: Vec<_> = part.iter().map(|(at, node)| (*at, node.block())).collect();
        let mut writes = Writes::default();
        submit(&blocks, &mut writes);
        in_flight.push_back(writes);
    }
    to.0.extend(in_flight.into_iter().flat_map(|writes| writes.0));
    first
}

impl F2fs {
    /// Submits blocks; consecutive ones in one request.
    pub(crate) fn submit_blocks(&self, blocks: &[(BlockAddr, Buf)], tag: IoTag, to: &mut Writes) {
        debug_assert!(
            blocks
                .iter()
                .all(|(addr, data)| addr.is_block() && data.len() == BLOCK_SIZE),
            "whole blocks with addresses are written"
        );
        let plug = self.queue.plug();
        let follows = |a: &(BlockAddr, Buf), b: &(BlockAddr, Buf)| a.0.0 + 1 == b.0.0;
        for run in blocks.chunk_by(follows) {
            for part in run.chunks(MAX_RUN) {
                let offset = u64::from(part[0].0.0) * BLOCK_SIZE as u64;
                let bufs = part.iter().map(|(_, data)| data.clone()).collect();
                to.0.push(plug.submit(Bio::write(offset, bufs), tag));
            }
        }
    }

    /// Submits blocks of the checkpoint in flight, with its current tag.
    fn submit_part(&self, blocks: &[(BlockAddr, Buf)], to: &mut Writes) {
        let (tag, before) = (self.checkpoints.in_flight().tag(), to.0.len());
        self.submit_blocks(blocks, tag, to);
        let ios = &to.0[before..];
        self.checkpoints.in_flight().record(&self.queue, ios, tag);
    }

    /// Writes a snapshot and makes it the current checkpoint.
    pub(super) fn write_snapshot(&self, mut snapshot: Snapshot, steps: &mut Steps) -> Result<()> {
        let pack = self.checkpoints.next_pack();
        let written = self.write_all(&mut snapshot, pack, steps);
        if let Err(error) = &written {
            self.redirty_dirs(&snapshot.dirs, error);
            self.segments().abandoned(&snapshot.segments);
        }
        self.end_checkpoint(snapshot, pack, written?);
        steps.ended("commit");
        Ok(())
    }

    fn write_all(
        &self,
        snapshot: &mut Snapshot,
        pack: u32,
        steps: &mut Steps,
    ) -> Result<NatWrites> {
        let mut writes = Writes::default();
        self.submit_placed(snapshot, &mut writes)?;
        steps.ended("submit nodes and directories");
        let tag = self.checkpoints.in_flight().tag();
        let nat = self.nat.complete(&snapshot.nat, tag)?;
        steps.ended("read node addresses");
        let (segments, nodes) = (&mut snapshot.segments, snapshot.node_summaries);
        segments.complete(&self.layout, &self.queue, nodes, tag)?;
        steps.ended("read summaries");
        debug_assert!(
            nat.iter().all(|(addr, _)| !self.layout.is_main(*addr)),
            "tables are outside the main area"
        );
        self.submit_part(&nat, &mut writes);
        self.submit_part(snapshot.segments.sit_writes(), &mut writes);
        let summaries = snapshot.segments.summary_writes(&self.layout);
        self.submit_part(&summaries, &mut writes);
        let body = self.pack_body(snapshot, pack);
        self.submit_part(&body, &mut writes);
        let sit = snapshot.segments.sit_writes().len();
        for (area, blocks) in [
            (MetaArea::Nat, nat.len()),
            (MetaArea::Sit, sit),
            (MetaArea::Ssa, summaries.len()),
            (MetaArea::Cp, body.len() + 1),
        ] {
            self.checkpoints.count_writes(area, blocks);
        }
        steps.ended("submit tables and pack");
        writes.wait().map_err(io_error)?;
        snapshot.in_flight_nodes.clear();
        steps.ended("wait for tables, nodes and pack");
        let tag = self.checkpoints.in_flight().tag();
        self.node_writes
            .wait(snapshot.writes_before, &self.queue, tag)?;
        steps.ended("wait for nodes of fsync");
        self.write_last(snapshot, pack)?;
        steps.ended("last block");
        Ok(nat)
    }

    /// Submits the nodes and directory blocks, sorted by address.
    fn submit_placed(&self, snapshot: &mut Snapshot, writes: &mut Writes) -> Result<()> {
        snapshot.nodes.sort_unstable_by_key(|(addr, _)| *addr);
        debug_assert!(
            snapshot.nodes.is_sorted_by(|a, b| a.0 < b.0),
            "each node has an address of its own"
        );
        assert!(
            snapshot.nodes.len() == snapshot.in_flight_nodes.len(),
            "each node in flight stays in memory"
        );
        debug_assert!(
            snapshot
                .nodes
                .iter()
                .all(|(addr, _)| self.layout.is_main(*addr)),
            "nodes are in the main area"
        );
        let submit = |blocks: &[_], to: &mut Writes| self.submit_part(blocks, to);
        submit_nodes(&snapshot.nodes, writes, submit).map_err(io_error)?;
        snapshot.nodes.clear();
        snapshot.dirs.sort_unstable_by_key(|dir| dir.addr);
        let dirs: Vec<_> = snapshot
            .dirs
            .iter()
            .map(|d| (d.addr, d.data.clone()))
            .collect();
        self.submit_part(&dirs, writes);
        Ok(())
    }

    /// All blocks of the pack except the last.
    fn pack_body(&self, snapshot: &Snapshot, pack: u32) -> Vec<(BlockAddr, Buf)> {
        let mut blocks: Vec<Buf> = Vec::new();
        let head = snapshot.head.chunks(BLOCK_SIZE);
        blocks.extend(head.map(Buf::copy_of));
        blocks.extend(snapshot.orphans.iter().map(|block| Buf::copy_of(block)));
        blocks.extend(snapshot.segments.data_summaries(snapshot.nat.journal()));
        if snapshot.node_summaries {
            blocks.extend(snapshot.segments.node_summaries());
        }
        let start = self.layout.pack_start(pack);
        assert_eq!(
            blocks.len() + 1,
            snapshot.checkpoint.pack_blocks as usize,
            "a pack has the length that its first block states"
        );
        (0..).map(|n| start.plus(n)).zip(blocks).collect()
    }

    /// Writes the last block of the pack, with preflush and FUA: the checkpoint is durable then.
    fn write_last(&self, snapshot: &Snapshot, pack: u32) -> Result<()> {
        assert!(
            snapshot.head.len() >= BLOCK_SIZE && snapshot.checkpoint.pack_blocks > 1,
            "the last block of a pack repeats the first"
        );
        assert!(
            snapshot.in_flight_nodes.is_empty(),
            "everything else has been written before"
        );
        let last = snapshot.checkpoint.pack_blocks - 1;
        let at = self.layout.pack_start(pack).plus(last);
        let block = Buf::copy_of(&snapshot.head[..BLOCK_SIZE]);
        let bio = Bio::write(u64::from(at.0) * BLOCK_SIZE as u64, vec![block]);
        let bio = match self.options.read().barrier {
            true => bio.preflush_and_fua(),
            false => bio,
        };
        let tag = self.checkpoints.in_flight().tag();
        let io = self.queue.submit(bio, tag);
        let ios = std::slice::from_ref(&io);
        self.checkpoints.in_flight().record(&self.queue, ios, tag);
        io.wait().map_err(io_error)
    }

    /// Directory blocks have been written.
    pub(super) fn dirs_written(&self, dirs: Vec<DirBlock>) {
        for DirBlock {
            inode,
            block,
            addr,
            data,
        } in dirs
        {
            assert!(addr.is_block(), "a written block has an address");
            // Readers find the block in the cache after the mapping has dropped it.
            self.meta.set_content(DevBlock(addr.0.into()), data);
            inode.pages.complete(block..block + 1, Ok(()), false);
        }
    }

    /// The checkpoint is durable: blocks and ids that it freed can be used.
    fn end_checkpoint(&self, snapshot: Snapshot, pack: u32, nat: NatWrites) {
        assert!(
            self.checkpoints.is_in_flight(),
            "a checkpoint ends after its snapshot"
        );
        self.dirs_written(snapshot.dirs);
        let freed = self
            .segments()
            .committed(&snapshot.segments, snapshot.disables_cp);
        self.checkpoints.set_disabled(snapshot.disables_cp);
        self.space.all_usable();
        self.discards.add(freed);
        let ids = self.nat.committed(snapshot.nat, nat);
        self.nodes.trim();
        self.space.free_nids(ids);
        self.checkpoints.commit(snapshot.checkpoint, pack);
    }
}
