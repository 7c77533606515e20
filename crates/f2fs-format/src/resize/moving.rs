//! Moves blocks out of segments that the new volume does not have.
//!
//! A data block is copied, its node gets the new address, and its inode loses a cached extent that has it. Nodes that
//! change are written to new places in batches, and the NAT gets their addresses; a node that was written already is
//! written again where it is.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::state::{State, corrupt};
use super::{ResizeError, Result};
use crate::disk::inode::{Extent, Inline, seal};
use crate::disk::node::{self, Footer};
use crate::disk::summary::Summary;
use crate::disk::{BLOCK_SIZE, BlockAddr, Inode, LogType, Nid, SEGMENT_BLOCKS};

/// Nodes in memory.
const NODES_MAX: usize = 8192;

/// A node in memory.
struct Node {
    block: Vec<u8>,
    addr: BlockAddr,
    version: u8,
    log: LogType,
    is_changed: bool,
}

/// Nodes by id.
#[derive(Default)]
struct Nodes(BTreeMap<Nid, Node>);

impl Nodes {
    fn get(&mut self, state: &mut State<'_>, nid: Nid) -> Result<&mut Node> {
        let slot = match self.0.entry(nid) {
            Entry::Occupied(node) => return Ok(node.into_mut()),
            Entry::Vacant(slot) => slot,
        };
        let entry = state.nat_entry(nid)?;
        let place = state.place(entry.addr).filter(|_| entry.is_used());
        let (segment, _) =
            place.ok_or_else(|| corrupt("a summary names a node that does not exist"))?;
        let block = state.disk.read(entry.addr, 1)?.to_vec();
        Footer::parse(&block).check(nid, entry.ino)?;
        Ok(slot.insert(Node {
            block,
            addr: entry.addr,
            version: entry.version,
            log: state.new[segment as usize].kind,
            is_changed: false,
        }))
    }

    /// Writes changed nodes.
    fn write(&mut self, state: &mut State<'_>) -> Result<()> {
        for (nid, mut node) in std::mem::take(&mut self.0) {
            if !node.is_changed {
                continue;
            }
            let ino = Footer::parse(&node.block).ino;
            if ino == nid {
                seal(&state.layout, &mut node.block);
            }
            let (segment, offset) = state.place(node.addr).unwrap_or_default();
            if state.was_valid(segment, offset) {
                let (version, slot) = (node.version, 0);
                let owner = Summary {
                    nid,
                    version: 0,
                    slot,
                };
                let addr = state.allocate(node.log, owner)?;
                state.release(node.addr);
                node.addr = addr;
                let entry = crate::disk::NatEntry { version, ino, addr };
                state.nat.insert(nid, entry);
            }
            state.disk.put(node.addr, &node.block)?;
        }
        // Its blocks can be read again from here on.
        state.disk.wait()
    }
}

/// Moves everything that is outside the segments that the new volume has.
pub(super) fn move_blocks(state: &mut State<'_>) -> Result<()> {
    let mut nodes = Nodes::default();
    let last = state.old.len() as u32;
    let outside = (0..state.keep.start.min(last)).chain(state.keep.end.min(last)..last);
    for segment in outside {
        if state.new[segment as usize].valid > 0 {
            move_segment(state, &mut nodes, segment)?;
        }
    }
    nodes.write(state)
}

fn move_segment(state: &mut State<'_>, nodes: &mut Nodes, segment: u32) -> Result<()> {
    let log = state.old[segment as usize].kind;
    let summary = state.summary(segment)?;
    let blocks = match log.is_node() {
        true => None,
        false => Some(state.disk.read(state.addr(segment, 0), SEGMENT_BLOCKS)?),
    };
    for offset in 0..SEGMENT_BLOCKS {
        if !state.new[segment as usize].is_valid(offset) {
            continue;
        }
        let from = state.addr(segment, offset);
        let owner = summary.entries[offset as usize];
        match &blocks {
            None => {
                let node = nodes.get(state, owner.nid)?;
                if node.addr != from {
                    return Err(corrupt("a summary names a node that is elsewhere"));
                }
                node.is_changed = true;
            }
            Some(blocks) => {
                let at = offset as usize * BLOCK_SIZE;
                move_data(
                    state,
                    nodes,
                    (log, from),
                    owner,
                    &blocks[at..at + BLOCK_SIZE],
                )?;
            }
        }
        if nodes.0.len() >= NODES_MAX {
            nodes.write(state)?;
        }
    }
    Ok(())
}

fn move_data(
    state: &mut State<'_>,
    nodes: &mut Nodes,
    (log, from): (LogType, BlockAddr),
    owner: Summary,
    block: &[u8],
) -> Result<()> {
    let layout = state.layout.clone();
    let footer = Footer::parse(&nodes.get(state, owner.nid)?.block);
    let inode_node = nodes.get(state, footer.ino)?;
    let mut inode = Inode::decode(&layout, &inode_node.block)?;
    if inode.inline.contains(Inline::PINNED) {
        let (ino, name) = (footer.ino, steadfs_vfs::names::printable(&inode.name));
        return Err(ResizeError::refused(format!(
            "blocks of the pinned file {name} (inode {ino}) would have to move: unpin it first"
        )));
    }
    let extent = inode.extent;
    if from
        .0
        .checked_sub(extent.addr.0)
        .is_some_and(|within| within < extent.len)
    {
        inode.extent = Extent::default();
        inode.encode_into(&layout, &mut inode_node.block)?;
        inode_node.is_changed = true;
    }
    let is_inode = footer.ino == owner.nid;
    let slots = match is_inode {
        true => inode.fanout(&layout).inode,
        false => node::PER_NODE,
    };
    if u32::from(owner.slot) >= slots {
        return Err(corrupt(
            "a summary names a slot that its node does not have",
        ));
    }
    let to = state.allocate(log, owner)?;
    let holder = nodes.get(state, owner.nid)?;
    let found = match is_inode {
        true => inode.addr(&layout, &holder.block, owner.slot),
        false => node::addr(&holder.block, owner.slot),
    };
    if found != from {
        return Err(corrupt(
            "a summary names a block that its node does not have",
        ));
    }
    match is_inode {
        true => inode.set_addr(&layout, &mut holder.block, owner.slot, to),
        false => node::set_addr(&mut holder.block, owner.slot, to),
    }
    holder.is_changed = true;
    state.release(from);
    state.disk.put(to, block)
}
