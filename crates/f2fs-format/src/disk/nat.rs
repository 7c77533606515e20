//! The node address table: where each node lies. Two copies of every block; a bit of the checkpoint
//! says which is the current one.

use zerocopy::{FromBytes, IntoBytes};

pub use super::raw::{RawNatEntry, RawNatJournalEntry};

use super::{BLOCK_SIZE, BlockAddr, DiskError, Layout, Nid, Result, Structure};

/// Entries in a block (`NAT_ENTRY_PER_BLOCK`).
pub const PER_BLOCK: usize = BLOCK_SIZE / size_of::<RawNatEntry>();
const ENTRY: usize = size_of::<RawNatEntry>();

const _: () = assert!(PER_BLOCK == 455);

/// Where a node lies and whose it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NatEntry {
    /// Counts the lives of this node id; part of the summaries of the data it maps.
    pub version: u8,
    /// The inode it belongs to; itself for an inode.
    pub ino: Nid,
    /// Its block; `NULL` when there is no such node, `NEW` (only in memory) when it is not written.
    pub addr: BlockAddr,
}

impl NatEntry {
    /// From its fields on disk.
    pub fn decode(raw: &RawNatEntry) -> Self {
        Self {
            version: raw.version,
            ino: Nid(raw.ino.get()),
            addr: BlockAddr(raw.block_addr.get()),
        }
    }

    /// As fields on disk.
    pub fn encode(self) -> RawNatEntry {
        RawNatEntry {
            version: self.version,
            ino: self.ino.0.into(),
            block_addr: self.addr.0.into(),
        }
    }

    /// Whether there is such a node.
    pub fn is_used(self) -> bool {
        self.addr != BlockAddr::NULL
    }

    /// Whether a node that is in use lies in the main area and belongs to a possible inode.
    pub fn validate(self, layout: &Layout, nid: Nid) -> Result<()> {
        let bad = |field, value, rule| {
            Err(DiskError::field(Structure::Nat, field, value, rule).in_node(nid))
        };
        if !layout.is_main(self.addr) {
            return bad("block_addr", self.addr.0, "outside the main area");
        }
        if !layout.is_nid(self.ino) {
            return bad("ino", self.ino.0, "not a possible inode");
        }
        Ok(())
    }
}

/// The entry at `slot` of a block.
pub fn get(block: &[u8], slot: usize) -> NatEntry {
    assert_eq!(block.len(), BLOCK_SIZE);
    assert!(slot < PER_BLOCK);
    let raw = RawNatEntry::ref_from_bytes(&block[slot * ENTRY..(slot + 1) * ENTRY])
        .expect("a slice of an entry's size");
    NatEntry::decode(raw)
}

/// Stores the entry at `slot` of a block.
pub fn put(block: &mut [u8], slot: usize, entry: NatEntry) {
    assert_eq!(block.len(), BLOCK_SIZE);
    assert!(slot < PER_BLOCK);
    block[slot * ENTRY..(slot + 1) * ENTRY].copy_from_slice(entry.encode().as_bytes());
}
