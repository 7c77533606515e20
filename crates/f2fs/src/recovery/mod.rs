//! Roll-forward: what fsync wrote after the checkpoint, taken over into memory on a volume that is only
//! read, and into the volume (`apply`) on one that is written.
//!
//! fsync writes a file's changed nodes one behind the other into the warm node log, each naming the
//! place of the next, the last one marked. Following that chain from where the checkpoint left the log
//! finds them all; the chain ends at the first block that does not carry the checkpoint's version. Of
//! an inode everything up to its last marked node counts. An inode marked for it (*dentry mark*) was
//! made after the checkpoint: its name is made too.
//!
//! Where nothing may be written the nodes found are looked up by inode and place in its tree before the node
//! address table is asked, names before their directory. (Indirect nodes are not part of an fsync, so
//! the ids that lead to a new node may not exist; its place in the tree does.)

mod apply;

use std::collections::BTreeMap;

use steadfs_base::{FixedSet, IoTag};
use steadfs_vfs::Result;

use crate::checkpoint::read_blocks;
use crate::disk::checkpoint::CpFlags;
use crate::disk::node::{Footer, NodeKind};
use crate::disk::{self, BlockAddr, Checkpoint, LogType, Nid, SEGMENT_BLOCKS};
use crate::fs::F2fs;

/// A node found.
struct ChainNode {
    addr: BlockAddr,
    footer: Footer,
}

/// What fsync wrote after the checkpoint.
#[derive(Default)]
pub struct Recovered {
    /// Nodes by inode and node offset.
    nodes: BTreeMap<(Nid, u32), Nid>,
    /// Where they lie.
    places: BTreeMap<Nid, BlockAddr>,
    /// Names by directory, as users see them.
    names: BTreeMap<Nid, BTreeMap<Vec<u8>, Nid>>,
    files: u64,
}

/// Nothing was found, or it is part of the volume now.
pub static NOTHING: Recovered = Recovered {
    nodes: BTreeMap::new(),
    places: BTreeMap::new(),
    names: BTreeMap::new(),
    files: 0,
};

impl Recovered {
    /// Inodes of which something was found.
    pub fn files(&self) -> u64 {
        self.files
    }

    /// Nodes found.
    pub fn nodes(&self) -> u64 {
        self.nodes.len() as u64
    }

    /// Whether something of this inode was found.
    pub fn has(&self, ino: Nid) -> bool {
        !self.nodes.is_empty()
            && self
                .nodes
                .range((ino, 0)..=(ino, u32::MAX))
                .next()
                .is_some()
    }

    /// The node of an inode at this place of its tree.
    pub fn leaf(&self, ino: Nid, offset: u32) -> Option<Nid> {
        self.nodes.get(&(ino, offset)).copied()
    }

    /// Where a node lies.
    pub fn place(&self, nid: Nid) -> Option<BlockAddr> {
        self.places.get(&nid).copied()
    }

    /// The inode that a name means, if recovery made the name.
    pub fn name(&self, dir: Nid, name: &[u8]) -> Option<Nid> {
        self.names.get(&dir)?.get(name).copied()
    }

    /// The names made in a directory.
    pub fn names(&self, dir: Nid) -> impl Iterator<Item = (&[u8], Nid)> {
        self.names
            .get(&dir)
            .into_iter()
            .flatten()
            .map(|(name, ino)| (name.as_slice(), *ino))
    }
}

/// What the log of nodes says.
struct NodeLog {
    /// The nodes behind the checkpoint in the order in which they were written.
    chain: Vec<ChainNode>,
    /// Of each inode that something is taken over of, its last marked node.
    ends: BTreeMap<Nid, usize>,
    /// Of each inode whose name is to be made, its last inode that is marked so.
    named: BTreeMap<Nid, usize>,
}

impl NodeLog {
    /// The nodes to be taken over, in order.
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

    /// The inodes whose names are to be made, with their places, in order: a name that was two files' one
    /// after the other is the later one's. (Numbers tell nothing of that: those of removed files are used again.)
    fn names(&self) -> Vec<(Nid, BlockAddr)> {
        let mut marked: Vec<(usize, Nid)> = self.named.iter().map(|(ino, n)| (*n, *ino)).collect();
        marked.sort_unstable();
        let place = |(n, ino): (usize, Nid)| (ino, self.chain[n].addr);
        marked.into_iter().map(place).collect()
    }
}

impl F2fs {
    /// Follows the chain of nodes behind the checkpoint and takes over what fsync finished.
    pub(crate) fn find_fsynced(&self, tag: IoTag) -> Result<Recovered> {
        let log = self.read_log(tag)?;
        let mut recovered = Recovered {
            files: log.ends.len() as u64,
            ..Recovered::default()
        };
        for found in log.wanted() {
            let (ino, offset) = (found.footer.ino, found.footer.offset);
            recovered.nodes.insert((ino, offset), found.footer.nid);
            recovered.places.insert(found.footer.nid, found.addr);
        }
        for (ino, addr) in log.names() {
            self.recover_name(&mut recovered, ino, addr, tag)?;
        }
        Ok(recovered)
    }

    /// Follows the chain of nodes behind the checkpoint and finds what fsync finished.
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
        // Without a name to make it must be a file of the checkpoint.
        let mut ends = BTreeMap::new();
        for (ino, end) in last {
            if named.contains_key(&ino) || self.is_in_checkpoint(ino, tag)? {
                ends.insert(ino, end);
            }
        }
        Ok(NodeLog { chain, ends, named })
    }

    /// The nodes behind the checkpoint in the order in which they were written.
    fn chain(&self) -> Result<Vec<ChainNode>> {
        let checkpoint = self.checkpoints.last();
        let log = checkpoint.log(LogType::WarmNode);
        let mut chain = Vec::new();
        if log.segment.0 >= self.layout.main_segments || u32::from(log.offset) >= SEGMENT_BLOCKS {
            // Volumes made to be read only have no such log, and what is only read may have a wrong one.
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
        Ok(chain)
    }

    /// Makes the name that a marked inode has in the directory it was made in.
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
        let name = if dir.is_encrypted() {
            let hash = disk::hash::of_name(&core.name);
            steadfs_vfs::nokey::show([hash, 0], &core.name).unwrap_or_default()
        } else {
            core.name
        };
        // Names of the checkpoint are asked: nothing has been taken over yet.
        if !name.is_empty() && self.find_name(&dir, &name, tag)? != Some(ino) {
            let names = recovered.names.entry(dir.nid()).or_default();
            names.insert(name, ino);
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
