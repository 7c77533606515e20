//! Nodes: blocks with a footer that identifies the node and its inode. There are inodes, direct nodes (block
//! addresses), indirect nodes (ids of direct nodes), double indirect nodes (ids of indirect nodes), and the xattr
//! node.
//!
//! The nodes of an inode are numbered in preorder ("node offset"): the inode 0, two direct nodes 1 and 2, two
//! indirect ones 3 and 1022, each followed by its 1018 children, and a double indirect one 2041, followed by
//! indirect ones that are each followed by their children.

use zerocopy::{FromBytes, IntoBytes};

pub use super::raw::RawFooter;

use super::num::{get32, low16, low32, put32};
use super::{BLOCK_SIZE, BlockAddr, DiskError, Nid, Result, Structure};

/// Offset of the footer.
pub const FOOTER_AT: usize = BLOCK_SIZE - size_of::<RawFooter>();
/// Addresses per direct node, ids per indirect node (`DEF_ADDRS_PER_BLOCK`, `NIDS_PER_BLOCK`).
pub const PER_NODE: u32 = 1018;
/// Node offset of the xattr node (`XATTR_NODE_OFFSET`).
pub const XATTR_OFFSET: u32 = u32::MAX >> 3;

/// Node offset of the first indirect node; its children follow.
pub const FIRST_INDIRECT: u32 = 3;
/// Node offset of the second indirect node; its children follow.
pub const SECOND_INDIRECT: u32 = FIRST_INDIRECT + 1 + PER_NODE;
/// Node offset of the double indirect node; its children follow, each with its own children.
pub const DOUBLE_INDIRECT: u32 = SECOND_INDIRECT + 1 + PER_NODE;

const COLD: u32 = 1;
const FSYNC: u32 = 2;
const DENTRY: u32 = 4;
const OFFSET_SHIFT: u32 = 3;

const _: () = assert!(FOOTER_AT == 4072 && DOUBLE_INDIRECT == 2 * PER_NODE + 5);

/// A node's footer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footer {
    /// The node's id.
    pub nid: Nid,
    /// Its inode.
    pub ino: Nid,
    /// The node belongs to a file with cold data.
    pub cold: bool,
    /// Fsync mark: the last node that an fsync wrote.
    pub fsync: bool,
    /// Dentry mark of an inode that an fsync wrote: recovery adds its name to the directory.
    pub dentry: bool,
    /// Its node offset.
    pub offset: u32,
    /// The version of the checkpoint before it ([`Checkpoint::node_version`](super::Checkpoint::node_version)).
    pub cp_version: u64,
    /// The next block of the log: the node chain that recovery follows.
    pub next: BlockAddr,
}

impl Footer {
    /// Decodes the footer of a node block.
    pub fn parse(block: &[u8]) -> Self {
        assert_eq!(block.len(), BLOCK_SIZE);
        Self::parse_end(block)
    }

    /// Decodes the footer at the end of the last bytes of a node block.
    pub fn parse_end(bytes: &[u8]) -> Self {
        let at = bytes.len() - size_of::<RawFooter>();
        let raw = RawFooter::ref_from_bytes(&bytes[at..]).expect("a footer's size");
        let flag = raw.flag.get();
        Self {
            nid: Nid(raw.nid.get()),
            ino: Nid(raw.ino.get()),
            cold: flag & COLD != 0,
            fsync: flag & FSYNC != 0,
            dentry: flag & DENTRY != 0,
            offset: flag >> OFFSET_SHIFT,
            cp_version: raw.cp_ver.get(),
            next: BlockAddr(raw.next_blkaddr.get()),
        }
    }

    /// Writes the footer into a node block. An inode must be sealed afterwards: its checksum covers the footer.
    pub fn encode_into(&self, block: &mut [u8]) {
        assert_eq!(block.len(), BLOCK_SIZE);
        assert!(self.offset <= XATTR_OFFSET);
        let bit = |on: bool, mask: u32| if on { mask } else { 0 };
        let flags = bit(self.cold, COLD) | bit(self.fsync, FSYNC) | bit(self.dentry, DENTRY);
        let raw = RawFooter {
            nid: self.nid.0.into(),
            ino: self.ino.0.into(),
            flag: (flags | self.offset << OFFSET_SHIFT).into(),
            cp_ver: self.cp_version.into(),
            next_blkaddr: self.next.0.into(),
        };
        block[FOOTER_AT..].copy_from_slice(raw.as_bytes());
    }

    /// The kind of this node.
    pub const fn kind(&self) -> NodeKind {
        NodeKind::at(self.offset)
    }

    /// Verifies that the footer is that of node `nid` of inode `ino`.
    pub fn check(&self, nid: Nid, ino: Nid) -> Result<()> {
        let bad = |field, value: Nid, rule| {
            Err(DiskError::field(Structure::Node, field, value.0, rule).in_node(nid))
        };
        if self.nid != nid {
            return bad("footer nid", self.nid, "not the expected node");
        }
        if self.ino != ino {
            return bad("footer ino", self.ino, "not the expected inode");
        }
        if (self.kind() == NodeKind::Inode) != (nid == ino) {
            return bad(
                "footer offset",
                Nid(self.offset),
                "not valid for this kind of node",
            );
        }
        Ok(())
    }
}

/// The kinds of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// An inode.
    Inode,
    /// Addresses of data blocks.
    Direct,
    /// Ids of direct nodes.
    Indirect,
    /// Ids of indirect nodes.
    DoubleIndirect,
    /// Extended attributes.
    Xattr,
}

impl NodeKind {
    /// The kind of the node at this node offset.
    pub const fn at(offset: u32) -> Self {
        if offset == 0 {
            Self::Inode
        } else if offset == XATTR_OFFSET {
            Self::Xattr
        } else if offset == DOUBLE_INDIRECT {
            Self::DoubleIndirect
        } else if offset == FIRST_INDIRECT
            || offset == SECOND_INDIRECT
            || (offset > DOUBLE_INDIRECT
                && (offset - DOUBLE_INDIRECT - 1).is_multiple_of(PER_NODE + 1))
        {
            Self::Indirect
        } else {
            Self::Direct
        }
    }
}

/// Number of blocks that each node of a file maps. In compressed files it is a multiple of the cluster size, so
/// that no cluster spans two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fanout {
    /// By the inode.
    pub inode: u32,
    /// By a direct node.
    pub direct: u32,
}

impl Fanout {
    /// Number of blocks that the map of a file can have.
    pub fn max_blocks(self) -> u64 {
        let (direct, per) = (u64::from(self.direct), u64::from(PER_NODE));
        u64::from(self.inode) + direct * (2 + 2 * per + per * per)
    }

    /// The first file block that the node at this node offset maps; `None` for nodes that map no data themselves.
    pub fn first_block(self, offset: u32) -> Option<u64> {
        let direct_number = match NodeKind::at(offset) {
            NodeKind::Inode => return Some(0),
            NodeKind::Direct => direct_number(offset),
            NodeKind::Indirect | NodeKind::DoubleIndirect | NodeKind::Xattr => return None,
        };
        Some(u64::from(self.inode) + u64::from(direct_number) * u64::from(self.direct))
    }

    /// The first file block that the node at this node offset maps, directly or through its descendants; higher
    /// than any block for the xattr node.
    pub fn first_block_below(self, offset: u32) -> u64 {
        let direct = match NodeKind::at(offset) {
            NodeKind::Inode | NodeKind::Direct => offset,
            NodeKind::Indirect => offset + 1,
            NodeKind::DoubleIndirect => offset + 2,
            NodeKind::Xattr => return u64::MAX,
        };
        self.first_block(direct).unwrap_or(u64::MAX)
    }

    /// Number of blocks from this one to the last that the same node maps.
    pub fn left_in_node(self, block: u64) -> u64 {
        match block.checked_sub(self.inode.into()) {
            None => u64::from(self.inode) - block,
            Some(after_inode) => u64::from(self.direct) - after_inode % u64::from(self.direct),
        }
    }

    /// The path to a file block; `None` beyond the largest file.
    pub fn path(self, block: u64) -> Option<NodePath> {
        if block >= self.max_blocks() {
            return None;
        }
        let Some(after_inode) = block.checked_sub(self.inode.into()) else {
            return Some(NodePath::inline(low16(low32(block))));
        };
        // No overflow: the largest file has fewer than 2^31 blocks.
        let number = low32(after_inode / u64::from(self.direct));
        let last = low16(low32(after_inode % u64::from(self.direct)));
        Some(NodePath::through(number, last))
    }
}

/// The node offset of the direct node with this number among the direct nodes of a file.
const fn direct_number(offset: u32) -> u32 {
    if offset < FIRST_INDIRECT {
        offset - 1
    } else if offset < SECOND_INDIRECT {
        offset - 2
    } else if offset < DOUBLE_INDIRECT {
        offset - 3
    } else {
        let within = offset - DOUBLE_INDIRECT - 1;
        2 + 2 * PER_NODE + (within / (PER_NODE + 1)) * PER_NODE + within % (PER_NODE + 1) - 1
    }
}

/// The path from an inode to a file block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePath {
    /// Number of nodes below the inode: 0 to 3.
    pub depth: usize,
    /// The slot in each node, starting with the inode. With `depth` 0 the inode's slot holds an address, otherwise
    /// a node id (0 to 4); the slot at index `depth` holds an address.
    pub slots: [u16; 4],
    /// The node offsets, starting with the inode.
    pub offsets: [u32; 4],
}

impl NodePath {
    const fn inline(slot: u16) -> Self {
        Self {
            depth: 0,
            slots: [slot, 0, 0, 0],
            offsets: [0; 4],
        }
    }

    /// A path through the direct node with this number.
    const fn through(number: u32, last: u16) -> Self {
        if number < 2 {
            return Self {
                depth: 1,
                slots: [low16(number), last, 0, 0],
                offsets: [0, 1 + number, 0, 0],
            };
        }
        let number = number - 2;
        if number < 2 * PER_NODE {
            let (which, slot) = (number / PER_NODE, number % PER_NODE);
            let top = FIRST_INDIRECT + which * (PER_NODE + 1);
            return Self {
                depth: 2,
                slots: [low16(2 + which), low16(slot), last, 0],
                offsets: [0, top, top + 1 + slot, 0],
            };
        }
        let number = number - 2 * PER_NODE;
        let (which, slot) = (number / PER_NODE, number % PER_NODE);
        let middle = DOUBLE_INDIRECT + 1 + which * (PER_NODE + 1);
        Self {
            depth: 3,
            slots: [4, low16(which), low16(slot), last],
            offsets: [0, DOUBLE_INDIRECT, middle, middle + 1 + slot],
        }
    }
}

/// The node id in a slot of an indirect node.
pub fn child(block: &[u8], slot: u16) -> Nid {
    Nid(word(block, slot))
}

/// Stores a node id in a slot of an indirect node.
pub fn set_child(block: &mut [u8], slot: u16, nid: Nid) {
    set_word(block, slot, nid.0);
}

/// The address in a slot of a direct node.
pub fn addr(block: &[u8], slot: u16) -> BlockAddr {
    BlockAddr(word(block, slot))
}

/// Stores an address in a slot of a direct node.
pub fn set_addr(block: &mut [u8], slot: u16, addr: BlockAddr) {
    set_word(block, slot, addr.0);
}

fn word(block: &[u8], slot: u16) -> u32 {
    assert_eq!(block.len(), BLOCK_SIZE);
    assert!(u32::from(slot) < PER_NODE);
    get32(block, usize::from(slot) * 4)
}

fn set_word(block: &mut [u8], slot: u16, value: u32) {
    assert_eq!(block.len(), BLOCK_SIZE);
    assert!(u32::from(slot) < PER_NODE);
    put32(block, usize::from(slot) * 4, value);
}

/// A block for a new node other than an inode, without addresses.
pub fn new_block(footer: &Footer) -> Vec<u8> {
    let mut block = vec![0; BLOCK_SIZE];
    footer.encode_into(&mut block);
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_offsets_agree() {
        for fanout in [
            Fanout {
                inode: 923,
                direct: 1018,
            },
            Fanout {
                inode: 864,
                direct: 1016,
            },
        ] {
            let direct = u64::from(fanout.direct);
            let per = u64::from(PER_NODE);
            let first = u64::from(fanout.inode);
            let marks = [
                0,
                first - 1,
                first,
                first + direct,
                first + 2 * direct - 1,
                first + 2 * direct,
                first + (2 + per) * direct - 1,
                first + (2 + per) * direct,
                first + (2 + 2 * per) * direct - 1,
                first + (2 + 2 * per) * direct,
                first + (2 + 3 * per) * direct - 1,
                first + (2 + 3 * per) * direct,
                fanout.max_blocks() - 1,
            ];
            for block in marks {
                let path = fanout.path(block).unwrap();
                let leaf = path.offsets[path.depth];
                let start = fanout.first_block(leaf).unwrap();
                assert_eq!(start + u64::from(path.slots[path.depth]), block);
                let left = fanout.left_in_node(block);
                let next = fanout
                    .path(block + left)
                    .map(|next| next.offsets[next.depth]);
                let last = fanout.path(block + left - 1).unwrap();
                assert_eq!(last.offsets[last.depth], leaf);
                assert_ne!(next, Some(leaf));
                for offset in &path.offsets[..=path.depth] {
                    let first = fanout.first_block_below(*offset);
                    let there = fanout.path(first).unwrap();
                    assert!(there.offsets[..=there.depth].contains(offset) && first <= block);
                }
                for (level, offset) in path.offsets[..=path.depth].iter().enumerate() {
                    let kind = match path.depth - level {
                        _ if level == 0 => NodeKind::Inode,
                        0 => NodeKind::Direct,
                        1 => NodeKind::Indirect,
                        _ => NodeKind::DoubleIndirect,
                    };
                    assert_eq!(NodeKind::at(*offset), kind);
                }
            }
            assert_eq!(fanout.path(fanout.max_blocks()), None);
        }
        // The numbers of the kernel's documentation: children follow their indirect node.
        let fanout = Fanout {
            inode: 923,
            direct: 1018,
        };
        let path = fanout.path(923 + 2 * 1018).unwrap();
        assert_eq!((path.depth, path.offsets), (2, [0, 3, 4, 0]));
        let path = fanout.path(923 + (2 + 2 * 1018) * 1018).unwrap();
        assert_eq!((path.depth, path.offsets), (3, [0, 2041, 2042, 2043]));
    }

    #[test]
    fn footers() {
        let footer = Footer {
            nid: Nid(9),
            ino: Nid(4),
            cold: true,
            fsync: false,
            dentry: true,
            offset: 17,
            cp_version: 0x0102_0304_0506_0708,
            next: BlockAddr(77),
        };
        let mut block = new_block(&footer);
        assert_eq!(Footer::parse(&block), footer);
        assert!(footer.check(Nid(9), Nid(4)).is_ok());
        assert!(footer.check(Nid(9), Nid(9)).is_err());
        assert!(footer.check(Nid(4), Nid(4)).is_err());
        set_addr(&mut block, 1017, BlockAddr(5));
        assert_eq!(addr(&block, 1017), BlockAddr(5));
        assert_eq!(Footer::parse(&block), footer);
    }
}
