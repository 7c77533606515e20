//! The NAT, the table of node addresses. Each block exists twice; a bit of the checkpoint selects the current copy.

use zerocopy::{FromBytes, IntoBytes};

pub use super::raw::{RawNatEntry, RawNatJournalEntry};

use super::{BLOCK_SIZE, BlockAddr, DiskError, Layout, Nid, Result, Structure};

/// Entries per block (`NAT_ENTRY_PER_BLOCK`).
pub const PER_BLOCK: usize = BLOCK_SIZE / size_of::<RawNatEntry>();
const ENTRY: usize = size_of::<RawNatEntry>();

const _: () = assert!(PER_BLOCK == 455);

/// The address and the inode of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NatEntry {
    /// Counts the uses of this node id; also stored in the summaries of the data that the node maps.
    pub version: u8,
    /// The inode that the node belongs to; for an inode its own id.
    pub ino: Nid,
    /// Its address: `NULL` if the node does not exist, `NEW` (only in memory) before it is written.
    pub addr: BlockAddr,
}

impl NatEntry {
    /// Decodes an entry.
    pub fn decode(raw: &RawNatEntry) -> Self {
        Self {
            version: raw.version,
            ino: Nid(raw.ino.get()),
            addr: BlockAddr(raw.block_addr.get()),
        }
    }

    /// Encodes an entry.
    pub fn encode(self) -> RawNatEntry {
        RawNatEntry {
            version: self.version,
            ino: self.ino.0.into(),
            block_addr: self.addr.0.into(),
        }
    }

    /// Whether the node exists.
    pub fn is_used(self) -> bool {
        self.addr != BlockAddr::NULL
    }

    /// Validates the entry of a node that exists: an address in the main area and a valid inode number.
    pub fn validate(self, layout: &Layout, nid: Nid) -> Result<()> {
        let bad = |field, value, rule| {
            Err(DiskError::field(Structure::Nat, field, value, rule).in_node(nid))
        };
        if !layout.is_main(self.addr) {
            return bad("block_addr", self.addr.0, "outside the main area");
        }
        if !layout.is_nid(self.ino) {
            return bad("ino", self.ino.0, "not a valid inode number");
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
