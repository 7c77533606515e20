//! One pass over a block that finds a name, or room for it, and returns what a change of the block needs without a
//! second pass.

use super::{
    DirLayout, Entries, NewEntry, RawEntry, entries, entries_in, entry_at, put16, take_out,
    write_entry,
};
use crate::disk::{Ino, Result};

/// A name found in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where its entry starts.
    pub offset: usize,
    /// The inode it names.
    pub ino: Ino,
    /// Its type byte.
    pub file_type: u8,
    rec_len: usize,
    /// Offset and length of the entry before it.
    before: Option<(usize, usize)>,
}

/// Room for one more entry in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    offset: usize,
    rec_len: usize,
    /// Bytes that the existing entry needs.
    kept: usize,
}

impl Room {
    /// The spare part of an entry.
    pub(super) fn in_entry(layout: &DirLayout, entry: &RawEntry<'_>) -> Self {
        Self {
            offset: entry.offset,
            rec_len: entry.rec_len,
            kept: entry.rec_len - entry.spare(layout),
        }
    }

    /// Where the new entry will start.
    pub const fn place(&self) -> usize {
        self.offset + self.kept
    }
}

/// Result of a search for a name, or else for room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// The name is there.
    Found(Found),
    /// It is not there; it fits here.
    Room(Room),
    /// It is not there, and there is no room.
    Full,
}

/// Whether `name` may be in a block; if false, no entry has it. Compares the end of the name at every possible
/// position, many at a time; a walk of the entries takes ten times as long.
fn may_have(block: &[u8], name: &[u8]) -> bool {
    let Some(end) = name.last_chunk::<4>() else {
        return true;
    };
    // Names begin at multiples of 4.
    let (places, _) = block[name.len() % 4..].as_chunks::<4>();
    places.iter().fold(false, |has, place| has | (place == end))
}

/// Whether a block is known not to have `name` without a walk. Without checksums the block is always walked, as only
/// the walk finds corruption.
fn is_without(layout: &DirLayout, block: &[u8], name: &[u8]) -> bool {
    layout.has_tail && !may_have(block, name)
}

/// Finds `name`, and what it takes to remove it.
pub fn locate(layout: &DirLayout, block: &[u8], name: &[u8]) -> Result<Option<Found>> {
    if is_without(layout, block, name) {
        return Ok(None);
    }
    locate_by(layout, block, |entry| entry.is_named(name))
}

/// [`locate_by`] in entries that fill `block` from `start` on: inline directories.
pub fn locate_inline(
    layout: &DirLayout,
    block: &[u8],
    start: usize,
    is_it: impl Fn(&RawEntry<'_>) -> bool,
) -> Result<Option<Found>> {
    locate_among(entries_in(layout, block, start, block.len()), is_it)
}

/// Finds the first entry in use that `is_it` accepts, and what it takes to remove it.
pub fn locate_by(
    layout: &DirLayout,
    block: &[u8],
    is_it: impl Fn(&RawEntry<'_>) -> bool,
) -> Result<Option<Found>> {
    locate_among(entries(layout, block), is_it)
}

fn locate_among(
    entries: Entries<'_>,
    is_it: impl Fn(&RawEntry<'_>) -> bool,
) -> Result<Option<Found>> {
    let mut before = None;
    for entry in entries {
        let entry = entry?;
        if let Some(ino) = entry.ino
            && is_it(&entry)
        {
            return Ok(Some(found(&entry, ino, before)));
        }
        before = Some((entry.offset, entry.rec_len));
    }
    Ok(None)
}

fn found(entry: &RawEntry<'_>, ino: Ino, before: Option<(usize, usize)>) -> Found {
    Found {
        offset: entry.offset,
        ino,
        file_type: entry.file_type,
        rec_len: entry.rec_len,
        before,
    }
}

/// Finds `name`, or else room for an entry with this name: after the entry at `last`, the most recent insertion, or
/// else the first room in the block (`last` is 0: no such entry is known).
pub fn search(layout: &DirLayout, block: &[u8], name: &[u8], last: usize) -> Result<Search> {
    let needed = layout.entry_size(name.len());
    if is_without(layout, block, name) {
        return room_for(layout, block, needed, last);
    }
    search_by(layout, block, needed, |entry| entry.is_named(name))
}

/// Finds the first entry in use that `is_it` accepts, or else the first room of `needed` bytes.
pub fn search_by(
    layout: &DirLayout,
    block: &[u8],
    needed: usize,
    is_it: impl Fn(&RawEntry<'_>) -> bool,
) -> Result<Search> {
    search_among(entries(layout, block), needed, is_it)
}

/// [`search_by`] in entries that fill `block` from `start` on: inline directories.
pub fn search_inline(
    layout: &DirLayout,
    block: &[u8],
    start: usize,
    needed: usize,
    is_it: impl Fn(&RawEntry<'_>) -> bool,
) -> Result<Search> {
    search_among(entries_in(layout, block, start, block.len()), needed, is_it)
}

fn search_among(
    entries: Entries<'_>,
    needed: usize,
    is_it: impl Fn(&RawEntry<'_>) -> bool,
) -> Result<Search> {
    let layout = &{ entries.layout };
    let mut before = None;
    let mut room = None;
    for entry in entries {
        let entry = entry?;
        if let Some(ino) = entry.ino
            && is_it(&entry)
        {
            return Ok(Search::Found(found(&entry, ino, before)));
        }
        if room.is_none() && entry.spare(layout) >= needed {
            room = Some(Room::in_entry(layout, &entry));
        }
        before = Some((entry.offset, entry.rec_len));
    }
    Ok(room.map_or(Search::Full, Search::Room))
}

/// Room in the entry at `last`, or else the first room.
fn room_for(layout: &DirLayout, block: &[u8], needed: usize, last: usize) -> Result<Search> {
    let has_room = |entry: &RawEntry<'_>| entry.spare(layout) >= needed;
    let end = layout.entries_end();
    if last > 0
        && let entry = entry_at(layout, block, last, end)?
        && has_room(&entry)
    {
        return Ok(Search::Room(Room::in_entry(layout, &entry)));
    }
    for entry in entries(layout, block) {
        let entry = entry?;
        if has_room(&entry) {
            return Ok(Search::Room(Room::in_entry(layout, &entry)));
        }
    }
    Ok(Search::Full)
}

/// Puts an entry where [`search`] found room for its name; the block has not been changed since.
/// Seal the block afterwards.
pub fn insert_at(layout: &DirLayout, block: &mut [u8], room: &Room, entry: &NewEntry<'_>) {
    assert!(room.offset + room.rec_len <= layout.entries_end());
    if room.kept > 0 {
        put16(block, room.offset + 4, layout.encode_rec_len(room.kept));
    }
    let (at, len) = (room.offset + room.kept, room.rec_len - room.kept);
    write_entry(layout, block, at, len, entry);
}

/// Removes what [`search`] or [`locate`] found, as [`remove`] does; the block has not been changed
/// since. Seal the block afterwards.
pub fn remove_found(layout: &DirLayout, block: &mut [u8], found: &Found) {
    assert!(found.offset + found.rec_len <= layout.entries_end());
    take_out(layout, block, found.offset, found.rec_len, found.before);
}
