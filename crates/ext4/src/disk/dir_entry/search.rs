//! One pass over a block that finds a name, or the place for it, and remembers enough to change the
//! block without another.

use super::{DirLayout, NewEntry, RawEntry, entries, entry_size, put16, take_out, write_entry};
use crate::disk::{Ino, Result};

/// A name in a block: what one pass over the block learns about it.
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
    /// Bytes that the entry now there needs for itself.
    kept: usize,
}

impl Room {
    /// The spare part of an entry.
    pub(super) fn in_entry(entry: &RawEntry<'_>) -> Self {
        Self {
            offset: entry.offset,
            rec_len: entry.rec_len,
            kept: entry.rec_len - entry.spare(),
        }
    }

    /// Where the new entry will start.
    pub(super) const fn place(&self) -> usize {
        self.offset + self.kept
    }
}

/// What looking for a name, or else for a place for it, comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// The name is there.
    Found(Found),
    /// It is not, and here it fits.
    Room(Room),
    /// It is not, and there is no room.
    Full,
}

/// Finds `name`, and what it takes to remove it.
pub fn locate(layout: &DirLayout, block: &[u8], name: &[u8]) -> Result<Option<Found>> {
    let mut before = None;
    for entry in entries(layout, block) {
        let entry = entry?;
        if entry.is_named(name)
            && let Some(ino) = entry.ino
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

/// Finds `name`, or else the first room for an entry with this name.
pub fn search(layout: &DirLayout, block: &[u8], name: &[u8]) -> Result<Search> {
    let needed = entry_size(name.len());
    let mut before = None;
    let mut room = None;
    for entry in entries(layout, block) {
        let entry = entry?;
        if entry.is_named(name)
            && let Some(ino) = entry.ino
        {
            return Ok(Search::Found(found(&entry, ino, before)));
        }
        if room.is_none() && entry.spare() >= needed {
            room = Some(Room::in_entry(&entry));
        }
        before = Some((entry.offset, entry.rec_len));
    }
    Ok(room.map_or(Search::Full, Search::Room))
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
