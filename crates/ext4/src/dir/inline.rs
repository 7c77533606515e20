//! Inline directories (`inline_data`): the parent's number and entries in `i_block`, more entries in the value of the
//! attribute `system.data`. Read-only.

use steadfs_vfs::{DirEntry, Result};

use super::Dir;
use super::shown::Emit;
use crate::disk::dir_entry::{self, RawEntry};
use crate::disk::xattr::{INDEX_SYSTEM, InodeAttrs, Value};
use crate::disk::{self, Ino};

/// Bytes of the parent's number, in place of `.` and `..`.
const PARENT: usize = 4;

/// The parts of an inode that hold its content, in order.
pub(crate) fn parts(core: &disk::Inode) -> Result<[&[u8]; 2]> {
    let attrs = InodeAttrs::parse(&core.xattr_area)?;
    let more = match attrs.get(INDEX_SYSTEM, b"data").map(|attr| attr.value) {
        Some(Value::Here(value)) => value,
        _ => &[],
    };
    Ok([&core.block, more])
}

pub(super) fn parent(core: &disk::Inode) -> Ino {
    let word = core
        .block
        .first_chunk::<PARENT>()
        .expect("i_block is longer");
    Ino(u32::from_le_bytes(*word))
}

/// Calls `visit` with every entry and its offset in the content, until it returns false.
fn each(
    dir: &Dir<'_>,
    core: &disk::Inode,
    visit: &mut dyn FnMut(Ino, usize, &RawEntry<'_>) -> Result<bool>,
) -> Result<()> {
    let mut base = 0;
    for (part, start) in parts(core)?.into_iter().zip([PARENT, 0]) {
        for entry in dir_entry::entries_in(&dir.layout, part, start, part.len()) {
            let entry = entry.map_err(|e| e.in_inode(dir.ino))?;
            if let Some(ino) = entry.ino
                && !visit(ino, base + entry.offset, &entry)?
            {
                return Ok(());
            }
        }
        base += part.len();
    }
    Ok(())
}

pub(super) fn lookup(dir: &Dir<'_>, core: &disk::Inode, name: &[u8]) -> Result<Option<Ino>> {
    let mut found = None;
    each(dir, core, &mut |ino, _, entry| {
        if entry.name == name {
            found = Some(ino);
        }
        Ok(found.is_none())
    })?;
    Ok(found)
}

pub(super) fn is_empty(dir: &Dir<'_>, core: &disk::Inode) -> Result<bool> {
    let mut empty = true;
    each(dir, core, &mut |_, _, _| {
        empty = false;
        Ok(false)
    })?;
    Ok(empty)
}

pub(super) fn read(dir: &Dir<'_>, core: &disk::Inode, cookie: u64, emit: Emit<'_>) -> Result<()> {
    if !dir.read_dots(core, cookie, emit)? {
        return Ok(());
    }
    each(dir, core, &mut |ino, at, entry| {
        // No entry starts before the end of the parent's number, so its offset is above the dots' cookies.
        let at = at as u64;
        if cookie > at.max(2) {
            return Ok(true);
        }
        dir.check_shown(entry)?;
        Ok(emit(DirEntry {
            ino: ino.into(),
            kind: entry.kind(),
            name: entry.name,
            next: at + 1,
        }))
    })
}
