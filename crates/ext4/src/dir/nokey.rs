//! No-key names of encrypted directories (see [`steadfs_vfs::nokey`]), with the hashes that the directory's index has.

use steadfs_vfs::nokey::{show, shown_hash};
use steadfs_vfs::{InodeFlags, Result};

use super::walk::Walk;
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
        entry.stored_hash(block)
    } else if dir.is_dx(core) {
        dir.hash(dir.hash_kind(core)?, entry.name)?
    } else {
        NameHash { major: 0, minor: 0 }
    };
    show([hash.major, hash.minor], entry.name)
        .ok_or_else(|| dir.corrupt("an encrypted name is too short"))
}

/// Finds an entry by its no-key name.
pub(super) fn find(dir: &Dir<'_>, core: &disk::Inode, name: &[u8]) -> Result<Option<Entry>> {
    let Some(major) = shown_hash(name) else {
        return Ok(None);
    };
    let mut walk = Walk::default();
    if !dir.is_indexed(core) {
        for n in dir.linear_order(core) {
            if let Some(entry) = find_in_leaf(dir, core, n, &mut walk, name)? {
                dir.end_search(n);
                return Ok(Some(entry));
            }
        }
        return Ok(None);
    }
    let mut path = dir.descend(core, major)?;
    loop {
        if let Some(entry) = find_in_leaf(dir, core, path.leaf, &mut walk, name)? {
            return Ok(Some(entry));
        }
        if dir.bound(&path)? != Some(major | 1) {
            return Ok(None);
        }
        dir.advance(core, &mut path)?;
    }
}

fn find_in_leaf(
    dir: &Dir<'_>,
    core: &disk::Inode,
    n: u32,
    walk: &mut Walk,
    name: &[u8],
) -> Result<Option<Entry>> {
    let buf = dir.leaf(core, n)?;
    walk.visit(dir, buf.block())?;
    let found = {
        let data = buf.data();
        let mut at = None;
        for entry in dir_entry::entries(&dir.layout, &data) {
            let entry = entry.map_err(dir.bad(buf.block()))?;
            let dot = entry.name == b"." || entry.name == b"..";
            if entry.ino.is_some() && !dot && shown_name(dir, core, &data, &entry)? == name {
                at = Some(entry.offset);
                break;
            }
        }
        let is_it = |entry: &RawEntry<'_>| at == Some(entry.offset);
        dir_entry::locate_by(&dir.layout, &data, is_it).map_err(dir.bad(buf.block()))?
    };
    Ok(found.map(|found| Entry::in_block(buf, found)))
}
