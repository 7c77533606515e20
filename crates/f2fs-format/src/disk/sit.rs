//! The SIT, the segment information table: which blocks of each segment are valid, its type, and its age. Each
//! block exists twice, as in the NAT.

use zerocopy::{FromBytes, IntoBytes};

pub use super::raw::{RawSitEntry, RawSitJournalEntry};

use super::bits::{self, Order};
use super::num::{idx, low16, low32};
use super::{BLOCK_SIZE, DiskError, LogType, Result, SEGMENT_BLOCKS, SegNo, Structure};

/// Entries per block (`SIT_ENTRY_PER_BLOCK`).
pub const PER_BLOCK: usize = BLOCK_SIZE / size_of::<RawSitEntry>();
/// Bytes of a segment's valid map (`SIT_VBLOCK_MAP_SIZE`).
pub const MAP_SIZE: usize = 64;
const ENTRY: usize = size_of::<RawSitEntry>();
/// Bits of `vblocks` that are the count; the other bits are the type (`SIT_VBLOCKS_SHIFT`).
pub const COUNT_BITS: u32 = 10;

const _: () = assert!(PER_BLOCK == 55);

/// The state of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SitEntry {
    /// Its type.
    pub kind: LogType,
    /// Number of valid blocks, 0 to 512; the bits set in `map`.
    pub valid: u16,
    /// Which blocks are valid.
    pub map: [u8; MAP_SIZE],
    /// Its modification time, in seconds of mounted time.
    pub mtime: u64,
}

impl SitEntry {
    /// A segment without valid blocks.
    pub const fn empty(kind: LogType) -> Self {
        Self {
            kind,
            valid: 0,
            map: [0; MAP_SIZE],
            mtime: 0,
        }
    }

    /// Decodes and validates an entry: the count matches the map, and the type is one of the six.
    pub fn decode(raw: &RawSitEntry, segment: SegNo) -> Result<Self> {
        let word = u32::from(raw.vblocks.get());
        let valid = word & ((1 << COUNT_BITS) - 1);
        let kind = word >> COUNT_BITS;
        let bad = |rule| Err(DiskError::entry(Structure::Sit, segment.0, rule));
        let Some(kind) = u8::try_from(kind).ok().and_then(LogType::from_number) else {
            return bad("has an unknown type");
        };
        if u64::from(valid) != bits::count(&raw.valid_map) {
            return bad("has a count that differs from its valid map");
        }
        Ok(Self {
            kind,
            valid: low16(valid),
            map: raw.valid_map,
            mtime: raw.mtime.get(),
        })
    }

    /// Encodes an entry.
    pub fn encode(&self) -> RawSitEntry {
        debug_assert_eq!(u64::from(self.valid), bits::count(&self.map));
        let kind = u16::from(self.kind.number());
        RawSitEntry {
            vblocks: (kind << COUNT_BITS | self.valid).into(),
            valid_map: self.map,
            mtime: self.mtime.into(),
        }
    }

    /// Whether the block at `offset` of the segment is valid.
    pub fn is_valid(&self, offset: u32) -> bool {
        bits::get(Order::HighFirst, &self.map, idx(offset))
    }

    /// Marks a block as valid or invalid and updates the count. Returns whether the map changed.
    pub fn set_valid(&mut self, offset: u32, valid: bool) -> bool {
        assert!(offset < SEGMENT_BLOCKS, "the offset is within the segment");
        if self.is_valid(offset) == valid {
            return false;
        }
        bits::put(Order::HighFirst, &mut self.map, idx(offset), valid);
        self.valid = low16(low32(bits::count(&self.map)));
        true
    }
}

/// The entry at `slot` of a block; `segment` is for error messages.
pub fn get(block: &[u8], slot: usize, segment: SegNo) -> Result<SitEntry> {
    assert_eq!(block.len(), BLOCK_SIZE);
    assert!(slot < PER_BLOCK);
    let raw = RawSitEntry::ref_from_bytes(&block[slot * ENTRY..(slot + 1) * ENTRY])
        .expect("a slice of an entry's size");
    SitEntry::decode(raw, segment)
}

/// Stores the entry at `slot` of a block.
pub fn put(block: &mut [u8], slot: usize, entry: &SitEntry) {
    assert_eq!(block.len(), BLOCK_SIZE);
    assert!(slot < PER_BLOCK);
    block[slot * ENTRY..(slot + 1) * ENTRY].copy_from_slice(entry.encode().as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_follows_the_map() {
        let mut entry = SitEntry::empty(LogType::WarmNode);
        assert!(entry.set_valid(511, true));
        assert!(!entry.set_valid(511, true));
        assert!(entry.set_valid(0, true));
        assert_eq!((entry.valid, entry.map[0], entry.map[63]), (2, 0x80, 1));
        let mut raw = entry.encode();
        assert_eq!(SitEntry::decode(&raw, SegNo(7)).unwrap(), entry);
        raw.valid_map[3] = 1;
        assert!(SitEntry::decode(&raw, SegNo(7)).is_err());
        raw.valid_map[3] = 0;
        raw.vblocks.set(2 | 6 << 10);
        assert!(SitEntry::decode(&raw, SegNo(7)).is_err());
    }
}
