//! Roll-forward: recovers what fsync wrote after the checkpoint; into an overlay in memory on a volume that is only
//! read, into the volume (`apply`) on one that is written.
//!
//! fsync writes a chain of a file's dirty nodes to the warm node log; each footer has the address of the next node, and
//! the last node is marked. Recovery follows the chain from the position that the checkpoint stores, and ends at the
//! first block that does not carry the checkpoint's version. Of an inode, everything up to its last marked node is
//! recovered. An inode with a *dentry mark* was created after the checkpoint: its name is created, too.
//!
//! On a read-only volume recovered nodes are looked up by inode and offset before the NAT, and names before their
//! directory. (Indirect nodes are not part of a chain, so the ids on the path to a new node may not exist; its offset
//! does.)

mod apply;
pub mod overlay;
pub mod state;

use std::collections::BTreeMap;

use steadfs_base::{FixedSet, IoTag};
use steadfs_vfs::Result;

use crate::checkpoint::read_blocks;
use crate::disk::checkpoint::CpFlags;
use crate::disk::node::{Footer, NodeKind};
use crate::disk::{self, BlockAddr, Checkpoint, LogType, Nid, SEGMENT_BLOCKS};
use crate::fs::F2fs;

use overlay::Recovered;

/// A node in the chain.
struct ChainNode {
    addr: BlockAddr,
    footer: Footer,
}

/// The chain behind the checkpoint.
struct NodeLog {
    /// All nodes in the order of the log.
    chain: Vec<ChainNode>,
    /// Of each inode to be recovered, its last marked node.
    ends: BTreeMap<Nid, usize>,
    /// Of each inode whose name has to be created, its last node with a dentry mark.
    named: BTreeMap<Nid, usize>,
}

impl NodeLog {
    /// The nodes to be recovered, in order.
    fn wanted(&self) -> impl Iterator<Item = &ChainNode> {
        let is_wanted = |(n, found): &(usize, &ChainNode)| {
            let end = self.ends.get(&found.footer.ino);
            end.is_some_and(|end| n <= end)
        };
        self.chain
            .iter()
            .enumerate()
            .filter(is_wanted)
            .map(|(_, found)| found)
    }

    /// The inodes whose names have to be created, with their addresses, in the order of the log: if two files had a
    /// name one after the other, the later one keeps it. (Inode numbers have no order: those of removed files are
    /// reused.)
    fn names(&self) -> Vec<(Nid, BlockAddr)> {
        let mut marked: Vec<(usize, Nid)> = self.named.iter().map(|(ino, n)| (*n, *ino)).collect();
        marked.sort_unstable();
        assert!(
            marked.last().is_none_or(|(n, _)| *n < self.chain.len()),
            "a mark is in the chain"
        );
        let place = |(n, ino): (usize, Nid)| (ino, self.chain[n].addr);
        marked.into_iter().map(place).collect()
    }
}

impl F2fs {
    /// Follows the chain and builds the overlay.
    pub(crate) fn find_fsynced(&self, tag: IoTag) -> Result<Recovered> {
        assert!(
            self.stop_state.is_read_only(),
            "the overlay is for read-only mounts"
        );
        let log = self.read_log(tag)?;
        let mut recovered = Recovered::of_files(log.ends.len() as u64);
        for ChainNode { addr, footer } in log.wanted() {
            recovered.add_node(footer.ino, footer.offset, footer.nid, *addr);
        }
        for (ino, addr) in log.names() {
            self.recover_name(&mut recovered, ino, addr, tag)?;
        }
        Ok(recovered)
    }

    /// Follows the chain and finds what completed fsyncs wrote.
    fn read_log(&self, tag: IoTag) -> Result<NodeLog> {
        let chain = self.chain()?;
        let mut last = BTreeMap::new();
        let mut named = BTreeMap::new();
        for (n, found) in chain.iter().enumerate().filter(|(_, f)| f.footer.fsync) {
            last.insert(found.footer.ino, n);
            if found.footer.kind() == NodeKind::Inode && found.footer.dentry {
                named.insert(found.footer.ino, n);
            }
        }
        // An inode without a dentry mark must be in the checkpoint.
        let mut ends = BTreeMap::new();
        for (ino, end) in last {
            if named.contains_key(&ino) || self.is_in_checkpoint(ino, tag)? {
                ends.insert(ino, end);
            }
        }
        assert!(
            named.keys().all(|ino| ends.contains_key(ino)),
            "an inode whose name is created is recovered"
        );
        assert!(
            ends.values().all(|n| chain[*n].footer.fsync),
            "an inode is recovered up to a marked node"
        );
        Ok(NodeLog { chain, ends, named })
    }

    /// Reads the chain.
    fn chain(&self) -> Result<Vec<ChainNode>> {
        let checkpoint = self.checkpoints.last();
        let log = checkpoint.log(LogType::WarmNode);
        let mut chain = Vec::new();
        if log.segment.0 >= self.layout.main_segments || u32::from(log.offset) >= SEGMENT_BLOCKS {
            // Volumes formatted with `ro` have no such log, and on a read-only mount its position may be corrupt.
            return Ok(chain);
        }
        let mut addr = self.layout.block_in(log.segment, log.offset.into());
        let mut seen = FixedSet::default();
        while self.layout.is_main(addr) && seen.insert(addr.0) {
            let block = read_blocks(&self.queue, addr, 1)?;
            let footer = Footer::parse(&block);
            if !is_behind(&checkpoint, &footer) {
                break;
            }
            chain.push(ChainNode { addr, footer });
            addr = footer.next;
        }
        assert!(
            chain.len() <= self.layout.main_blocks() as usize,
            "each block is read once"
        );
        Ok(chain)
    }

    /// Adds the name of an inode with a dentry mark to the overlay.
    fn recover_name(
        &self,
        recovered: &mut Recovered,
        ino: Nid,
        addr: BlockAddr,
        tag: IoTag,
    ) -> Result<()> {
        let node = self.node_at(addr, ino, ino, tag)?;
        let core = disk::Inode::parse(&self.layout, ino, &node)?;
        let dir = self.inode(core.parent, tag)?;
        // The lookup sees the checkpoint only: the overlay is not in use yet. There are no keys yet, either.
        let shown = match dir.is_encrypted() {
            true => {
                let hash = match core.name_hash {
                    0 => disk::hash::of_name(&core.name),
                    hash => hash,
                };
                steadfs_vfs::nokey::show([hash, 0], &core.name).unwrap_or_default()
            }
            false => core.name.clone(),
        };
        if !shown.is_empty() && self.find_name(&dir, &shown, tag)? != Some(ino) {
            recovered.add_name(dir.nid(), core.name, ino);
        }
        Ok(())
    }
}

/// Whether a node was written after this checkpoint and before the next.
fn is_behind(checkpoint: &Checkpoint, footer: &Footer) -> bool {
    let wanted = checkpoint.node_version();
    if checkpoint.flags.contains(CpFlags::NOCRC_RECOVERY) {
        return footer.cp_version as u32 == wanted as u32;
    }
    footer.cp_version == wanted
}

#[cfg(test)]
mod tests {
    use steadfs_block::{Queue, QueueOptions};

    use super::*;
    use crate::checkpoint;
    use crate::format::{FormatOptions, image};

    #[test]
    fn nodes_of_another_checkpoint_are_not_recovered() {
        let device = image(64 << 20, &FormatOptions::default()).unwrap();
        let queue = Queue::new(device, QueueOptions::default());
        let layout = crate::read_superblock(&queue).unwrap().layout().clone();
        let mut checkpoint = checkpoint::load(&queue, &layout).unwrap().checkpoint;
        let mut footer = Footer::parse(&[0; disk::BLOCK_SIZE]);
        footer.cp_version = checkpoint.node_version();
        assert!(is_behind(&checkpoint, &footer));
        // Where checksums do not count, the low half decides.
        let changes = [(1, false), (1 << 31, false), (1 << 32, true)];
        for (change, without_checksum) in changes {
            let other = Footer {
                cp_version: footer.cp_version ^ change,
                ..footer
            };
            assert!(!is_behind(&checkpoint, &other), "{change:x}");
            let before = checkpoint.flags;
            checkpoint.flags = before.union(CpFlags::NOCRC_RECOVERY);
            assert_eq!(is_behind(&checkpoint, &other), without_checksum);
            checkpoint.flags = before;
        }
    }
}
