//! Directory entries: a bitmap of used slots, an entry per slot, and the names. A name of more than 8 bytes takes
//! consecutive slots, all marked as used; the entry is in the first one. Directory blocks and inline directories
//! use the same form with different sizes.

use std::collections::BTreeMap;
use std::ops::Range;

use zerocopy::{FromBytes, IntoBytes};

pub use super::raw::RawDirEntry;

use super::bits::{self, Order};
use super::hash::{MAX_DEPTH, bucket};
use super::num::{idx16, low16, short};
use super::{BLOCK_SIZE, DiskError, Nid, Result, Structure};

/// Bytes of a name in one slot (`F2FS_SLOT_LEN`).
pub const SLOT: usize = 8;
/// Slots in a block (`NR_DENTRY_IN_BLOCK`).
pub const BLOCK_SLOTS: usize = 214;
const ENTRY: usize = size_of::<RawDirEntry>();

/// Offsets of bitmap, entries and names in a directory block or inline directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DentryLayout {
    /// Number of slots.
    pub slots: usize,
    entries_at: usize,
    names_at: usize,
    /// Size in bytes.
    pub len: usize,
}

impl DentryLayout {
    /// The layout of a directory block.
    pub const BLOCK: Self = Self::of(BLOCK_SIZE);

    /// The layout of an area of `len` bytes: as many slots as fit, each with a bit; unused bytes are between the
    /// bitmap and the entries.
    pub const fn of(len: usize) -> Self {
        let slots = len * 8 / ((ENTRY + SLOT) * 8 + 1);
        let names_at = len - slots * SLOT;
        Self {
            slots,
            entries_at: names_at - slots * ENTRY,
            names_at,
            len,
        }
    }

    const fn bitmap(&self) -> Range<usize> {
        0..self.slots.div_ceil(8)
    }

    const fn entry(&self, slot: usize) -> Range<usize> {
        let at = self.entries_at + slot * ENTRY;
        at..at + ENTRY
    }

    const fn name(&self, slot: usize, len: usize) -> Range<usize> {
        let at = self.names_at + slot * SLOT;
        at..at + len
    }
}

const _: () = {
    assert!(DentryLayout::BLOCK.slots == BLOCK_SLOTS);
    assert!(DentryLayout::BLOCK.bitmap().end == 27);
    assert!(DentryLayout::BLOCK.entries_at == 30);
};

/// Number of slots for a name of `len` bytes.
pub const fn slots_for(len: usize) -> usize {
    len.div_ceil(SLOT)
}

/// A directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its first slot.
    pub slot: usize,
    /// Hash of the name.
    pub hash: u32,
    /// The inode it refers to.
    pub ino: Nid,
    /// The stored file type; see [`kind_of`].
    pub file_type: u8,
    /// The name.
    pub name: &'a [u8],
}

impl Entry<'_> {
    /// Whether the name has no slash and no zero byte, as every name that is not encrypted.
    pub fn has_plain_name(&self) -> bool {
        !self.name.iter().any(|&b| b == 0 || b == b'/')
    }

    /// Whether this is `.` or `..`.
    pub fn is_dot(&self) -> bool {
        self.name == b"." || self.name == b".."
    }
}

/// An iterator over the entries of an area.
pub struct Entries<'a> {
    layout: DentryLayout,
    bytes: &'a [u8],
    next: usize,
}

/// The entries with a first slot of `from` or higher. A corrupt entry is reported as an error and skipped as one
/// slot.
///
/// `from` may be any number: a longer entry may have been inserted where a listing stopped, and callers of readdir
/// may pass any cookie. So the iteration starts at the first slot and reports nothing before `from`.
pub fn entries<'a>(layout: &DentryLayout, bytes: &'a [u8], from: usize) -> Entries<'a> {
    assert_eq!(bytes.len(), layout.len);
    let mut entries = Entries {
        layout: *layout,
        bytes,
        next: 0,
    };
    while entries.slot().is_some_and(|slot| slot < from) {
        let _ = entries.next();
    }
    entries
}

impl Entries<'_> {
    /// The first slot of the next entry.
    fn slot(&self) -> Option<usize> {
        let layout = &self.layout;
        let map = &self.bytes[layout.bitmap()];
        let more = self.next < layout.slots;
        more.then(|| bits::find(Order::LowFirst, map, self.next, layout.slots, true))?
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let slot = self.slot()?;
        let entry = entry_at(&self.layout, self.bytes, slot);
        self.next = slot
            + match &entry {
                Ok(entry) => slots_for(entry.name.len()),
                Err(_) => 1,
            };
        Some(entry)
    }
}

/// The entry at a first slot whose bit is set.
fn entry_at<'a>(layout: &DentryLayout, bytes: &'a [u8], slot: usize) -> Result<Entry<'a>> {
    let bad = |rule| Err(DiskError::entry(Structure::Dentries, short(slot), rule));
    let raw = RawDirEntry::ref_from_bytes(&bytes[layout.entry(slot)]).expect("an entry's size");
    let len = idx16(raw.name_len.get());
    if len == 0 || len > 255 || slot + slots_for(len) > layout.slots {
        return bad("has an invalid name length");
    }
    let name = &bytes[layout.name(slot, len)];
    if raw.ino.get() == 0 {
        return bad("has no inode number");
    }
    Ok(Entry {
        slot,
        hash: raw.hash_code.get(),
        ino: Nid(raw.ino.get()),
        file_type: raw.file_type,
        name,
    })
}

/// Whether a slot has this hash, in use or not: a look-up reads many blocks without the name.
fn may_have(layout: &DentryLayout, bytes: &[u8], hash: u32) -> bool {
    assert_eq!(bytes.len(), layout.len);
    let (slots, _) = bytes[layout.entries_at..layout.names_at].as_chunks::<ENTRY>();
    // Without an early end, which would be a branch for each slot: most blocks do not have the hash.
    let has = |slot: &[u8; ENTRY]| u32::from_le_bytes([slot[0], slot[1], slot[2], slot[3]]) == hash;
    slots.iter().fold(false, |found, slot| found | has(slot))
}

/// The entry with this hash and name. Corrupt entries are skipped: they have no name to compare.
pub fn find<'a>(
    layout: &DentryLayout,
    bytes: &'a [u8],
    hash: u32,
    name: &[u8],
) -> Option<Entry<'a>> {
    if !may_have(layout, bytes, hash) {
        return None;
    }
    entries(layout, bytes, 0)
        .flatten()
        .find(|entry| entry.hash == hash && entry.name == name)
}

/// The first `slots` consecutive free slots.
pub fn find_free_slots(layout: &DentryLayout, bytes: &[u8], slots: usize) -> Option<usize> {
    assert_eq!(bytes.len(), layout.len);
    let map = &bytes[layout.bitmap()];
    let mut from = 0;
    loop {
        let start = bits::find(Order::LowFirst, map, from, layout.slots, false)?;
        let end =
            bits::find(Order::LowFirst, map, start, layout.slots, true).unwrap_or(layout.slots);
        if end - start >= slots {
            return Some(start);
        }
        from = end;
    }
}

/// Writes an entry into free slots, as found by [`find_free_slots`].
pub fn insert(layout: &DentryLayout, bytes: &mut [u8], entry: &Entry<'_>) {
    assert_eq!(bytes.len(), layout.len);
    let count = slots_for(entry.name.len());
    assert!(entry.slot + count <= layout.slots && !entry.name.is_empty());
    let raw = RawDirEntry {
        hash_code: entry.hash.into(),
        ino: entry.ino.0.into(),
        name_len: low16(short(entry.name.len())).into(),
        file_type: entry.file_type,
    };
    bytes[layout.entry(entry.slot)].copy_from_slice(raw.as_bytes());
    bytes[layout.name(entry.slot, entry.name.len())].copy_from_slice(entry.name);
    for slot in entry.slot..entry.slot + count {
        // Name lengths of the other slots are cleared: an iteration that starts at one of them must not find an old
        // entry.
        if slot > entry.slot {
            bytes[layout.entry(slot)].fill(0);
        }
        bits::put(Order::LowFirst, &mut bytes[layout.bitmap()], slot, true);
    }
}

/// Frees the slots of an entry.
pub fn remove(layout: &DentryLayout, bytes: &mut [u8], slot: usize, name_len: usize) {
    assert_eq!(bytes.len(), layout.len);
    for slot in slot..slot + slots_for(name_len) {
        bits::put(Order::LowFirst, &mut bytes[layout.bitmap()], slot, false);
    }
}

/// Changes the inode that an entry refers to.
pub fn set_target(layout: &DentryLayout, bytes: &mut [u8], slot: usize, ino: Nid, file_type: u8) {
    assert_eq!(bytes.len(), layout.len);
    let raw = RawDirEntry::mut_from_bytes(&mut bytes[layout.entry(slot)]).expect("an entry's size");
    raw.ino.set(ino.0);
    raw.file_type = file_type;
}

/// Converts an inline directory to a directory block. Each entry keeps its slot, so that readdir cookies stay
/// valid.
pub fn as_block(layout: &DentryLayout, bytes: &[u8]) -> Vec<u8> {
    assert!(bytes.len() == layout.len && layout.slots <= BLOCK_SLOTS);
    let block = &DentryLayout::BLOCK;
    let mut out = vec![0; block.len];
    let map = layout.bitmap().len();
    out[..map].copy_from_slice(&bytes[..map]);
    // Bits after the last slot are padding in the inline form, but slots in a block.
    for slot in layout.slots..map * 8 {
        bits::put(Order::LowFirst, &mut out, slot, false);
    }
    let entries = layout.slots * ENTRY;
    out[block.entries_at..][..entries].copy_from_slice(&bytes[layout.entries_at..][..entries]);
    let names = layout.slots * SLOT;
    out[block.names_at..][..names].copy_from_slice(&bytes[layout.names_at..][..names]);
    out
}

/// Converts an inline directory to the blocks of a hash table that starts with `dir_level`. Returns the blocks and
/// the number of levels.
///
/// # Errors
/// A corrupt entry, because its hash cannot be trusted.
pub fn as_table(
    layout: &DentryLayout,
    bytes: &[u8],
    dir_level: u8,
) -> Result<(BTreeMap<u64, Vec<u8>>, u32)> {
    let mut table: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut depth = 1;
    for entry in entries(layout, bytes, 0) {
        let entry = entry?;
        let slots = slots_for(entry.name.len());
        let position = (0..MAX_DEPTH).find_map(|level| {
            bucket(level, dir_level, entry.hash).find_map(|block| {
                let room = match table.get(&block) {
                    Some(bytes) => find_free_slots(&DentryLayout::BLOCK, bytes, slots),
                    None => Some(0),
                };
                room.map(|slot| (level, block, slot))
            })
        });
        let (level, block, slot) = position.ok_or_else(|| {
            let rule = "does not fit in any level";
            DiskError::entry(Structure::Dentries, short(entry.slot), rule)
        })?;
        depth = depth.max(level + 1);
        let bytes = table.entry(block).or_insert_with(|| vec![0; BLOCK_SIZE]);
        insert(&DentryLayout::BLOCK, bytes, &Entry { slot, ..entry });
    }
    Ok((table, depth))
}

/// Whether no slot is in use.
pub fn is_vacant(layout: &DentryLayout, bytes: &[u8]) -> bool {
    let map = &bytes[layout.bitmap()];
    bits::find(Order::LowFirst, map, 0, layout.slots, true).is_none()
}

/// Whether there is an entry other than `.` and `..`.
pub fn has_names(layout: &DentryLayout, bytes: &[u8]) -> bool {
    entries(layout, bytes, 0).any(|entry| match entry {
        Ok(entry) => entry.name != b"." && entry.name != b"..",
        Err(_) => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(slot: usize, name: &[u8]) -> Entry<'_> {
        Entry {
            slot,
            hash: super::super::hash::of_name(name),
            ino: Nid(7),
            file_type: 1,
            name,
        }
    }

    #[test]
    fn names_are_inserted_and_removed() {
        for layout in [DentryLayout::BLOCK, DentryLayout::of(3488)] {
            let mut bytes = vec![0; layout.len];
            let long = [b'x'; 255];
            for name in [&b"a"[..], &long, b"exactly8", b"nine byte"] {
                let slot = find_free_slots(&layout, &bytes, slots_for(name.len())).unwrap();
                insert(&layout, &mut bytes, &entry(slot, name));
            }
            let names: Vec<_> = entries(&layout, &bytes, 0)
                .map(|e| e.unwrap().name)
                .collect();
            assert_eq!(names, [&b"a"[..], &long, b"exactly8", b"nine byte"]);
            // From the middle of an entry the iteration continues with the next one.
            for (from, first) in [(1, 1), (2, 33), (32, 33), (33, 33), (35, 36), (36, 36)] {
                let next = entries(&layout, &bytes, from).next();
                let next = next.map(|e| e.unwrap().slot);
                assert_eq!(next, (first < 36).then_some(first), "{from}");
            }
            let found = find(&layout, &bytes, entry(0, &long).hash, &long).unwrap();
            assert_eq!((found.slot, found.ino), (1, Nid(7)));
            remove(&layout, &mut bytes, 1, 255);
            assert_eq!(find(&layout, &bytes, entry(0, &long).hash, &long), None);
            assert_eq!(find_free_slots(&layout, &bytes, 32), Some(1));
            assert_eq!(find_free_slots(&layout, &bytes, 33), Some(36));
            assert!(has_names(&layout, &bytes) && !is_vacant(&layout, &bytes));
        }
    }

    #[test]
    fn inline_entries_become_blocks() {
        let layout = DentryLayout::of(3488);
        let mut bytes = vec![0xFF; layout.len];
        bytes[..layout.bitmap().end].fill(0);
        let names: Vec<_> = (0..20)
            .map(|n| vec![b'a' + n; usize::from(n) + 1])
            .collect();
        for name in &names {
            let slot = find_free_slots(&layout, &bytes, slots_for(name.len())).unwrap();
            insert(&layout, &mut bytes, &entry(slot, name));
        }
        remove(&layout, &mut bytes, 3, 4);
        let block = as_block(&layout, &bytes);
        let list = |layout: &DentryLayout, bytes: &[u8]| -> Vec<_> {
            let all = entries(layout, bytes, 0).map(Result::unwrap);
            all.map(|e| (e.slot, e.hash, e.name.to_vec())).collect()
        };
        assert_eq!(list(&DentryLayout::BLOCK, &block), list(&layout, &bytes));
        // Many buckets on the first level: each name is where a lookup searches.
        let (table, depth) = as_table(&layout, &bytes, 3).unwrap();
        assert_eq!(depth, 1);
        assert!(table.len() > 4 && *table.keys().last().unwrap() < 16);
        let found = |name: &[u8]| {
            let hash = super::super::hash::of_name(name);
            bucket(0, 3, hash).any(|n| {
                let block = table.get(&n);
                block.is_some_and(|b| find(&DentryLayout::BLOCK, b, hash, name).is_some())
            })
        };
        assert_eq!(names.iter().filter(|name| found(name)).count(), 19);
    }

    #[test]
    fn corrupt_entries_are_reported_and_skipped() {
        let layout = DentryLayout::BLOCK;
        let mut bytes = vec![0xFF; layout.len];
        assert!(entries(&layout, &bytes, 0).all(|e| e.is_err()));
        assert_eq!(entries(&layout, &bytes, 0).count(), BLOCK_SLOTS);
        bytes.fill(0);
        insert(&layout, &mut bytes, &entry(213, b"last"));
        assert!(entries(&layout, &bytes, 0).next().unwrap().is_ok());
        bytes[layout.entry(213)][8] = 9;
        assert!(entries(&layout, &bytes, 0).next().unwrap().is_err());
        assert!(entries(&layout, &bytes, 214).next().is_none());
    }
}
