//! No-key names of encrypted directories (see [`steadfs_vfs::nokey`]), with the hashes that the directory's index has.

use steadfs_vfs::nokey::{show, shown_hash};
use steadfs_vfs::{InodeFlags, Result};

use super::{Dir, Entry};
use crate::disk;
use crate::disk::dir_entry::{self, RawEntry};
use crate::disk::hash::NameHash;

/// The no-key name of an entry of an encrypted directory; `block` holds the entry.
pub(super) fn shown_name(
    dir: &Dir<'_>,
    core: &disk::Inode,
    block: &[u8],
    entry: &RawEntry<'_>,
) -> Result<Vec<u8>> {
    let hash = if core.has(InodeFlags::CASEFOLD) {
        stored_hash(block, entry)
    } else if dir.is_dx(core) {
        dir.hash(dir.hash_kind(core)?, entry.name)?
    } else {
        NameHash { major: 0, minor: 0 }
    };
    show([hash.major, hash.minor], entry.name)
        .ok_or_else(|| dir.corrupt("an encrypted name is too short"))
}

/// The hash stored after the name: encrypted, case-insensitive directories hash the plain name.
fn stored_hash(block: &[u8], entry: &RawEntry<'_>) -> NameHash {
    let at = entry.offset + dir_entry::entry_size(entry.name.len());
    let word = |at: usize| {
        let bytes = block
            .get(at..at + 4)
            .filter(|_| at + 4 <= entry.offset + entry.rec_len);
        bytes.map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    };
    NameHash {
        major: word(at),
        minor: word(at + 4),
    }
}

/// Finds an entry by its no-key name.
pub(super) fn find(dir: &Dir<'_>, core: &disk::Inode, name: &[u8]) -> Result<Option<Entry>> {
    let Some(major) = shown_hash(name) else {
        return Ok(None);
    };
    find_by(dir, core, major, &|block, entry| {
        Ok(shown_name(dir, core, block, entry)? == name)
    })
}

/// Whether the entry, in this block, is the one that is searched for.
type IsWanted<'a> = &'a dyn Fn(&[u8], &RawEntry<'_>) -> Result<bool>;

/// Finds an entry where the index has this hash, or anywhere in a directory without index.
pub(super) fn find_by(
    dir: &Dir<'_>,
    core: &disk::Inode,
    major: u32,
    is: IsWanted<'_>,
) -> Result<Option<Entry>> {
    if !dir.is_indexed(core) {
        for n in 0..dir.block_count(core) {
            if let Some(entry) = find_in_leaf(dir, core, n, is)? {
                return Ok(Some(entry));
            }
        }
        return Ok(None);
    }
    let mut path = dir.descend(core, major)?;
    for _ in 0..dir.block_count(core) {
        if let Some(entry) = find_in_leaf(dir, core, path.leaf, is)? {
            return Ok(Some(entry));
        }
        if dir.bound(&path)? != Some(major | 1) {
            return Ok(None);
        }
        dir.advance(core, &mut path)?;
    }
    Ok(None)
}

fn find_in_leaf(
    dir: &Dir<'_>,
    core: &disk::Inode,
    n: u32,
    is: IsWanted<'_>,
) -> Result<Option<Entry>> {
    let buf = dir.leaf(core, n)?;
    let found = {
        let data = buf.data();
        let mut at = None;
        for entry in dir_entry::entries(&dir.layout, &data) {
            let entry = entry.map_err(dir.bad(buf.block()))?;
            let dot = entry.name == b"." || entry.name == b"..";
            if entry.ino.is_some() && !dot && is(&data, &entry)? {
                at = Some(entry.offset);
                break;
            }
        }
        let is_it = |entry: &RawEntry<'_>| at == Some(entry.offset);
        dir_entry::locate_by(&dir.layout, &data, is_it).map_err(dir.bad(buf.block()))?
    };
    Ok(found.map(|found| Entry::in_block(buf, found)))
}
