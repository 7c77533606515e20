//! Inline directories (`inline_data`): the parent's number and entries in `i_block`, more entries in the value of the
//! attribute `system.data`.
//!
//! The attribute grows with new names while the inode has room; then all names move to a block. Only volumes with
//! `dir_index` get new inline directories: there the order of a listing stays when the names move.

use steadfs_vfs::{DirEntry, FileKind, Result};

use super::shown::Emit;
use super::wanted::Wanted;
use super::{Dir, Entry, EntryPlace, Search, Slot};
use crate::disk::dir_entry::{self, NewEntry, Packer, RawEntry};
use crate::disk::inode::I_BLOCK_SIZE;
use crate::disk::{self, Ino};
use crate::inline::{self, parts};
use crate::inode::Inode;
use crate::txn::Handle;

/// Bytes of the parent's number, in place of `.` and `..`.
const PARENT: usize = 4;

pub(super) fn parent(core: &disk::Inode) -> Ino {
    let word = core
        .block
        .first_chunk::<PARENT>()
        .expect("i_block is longer");
    Ino(u32::from_le_bytes(*word))
}

/// Calls `visit` with every entry and its offset in the content, until it returns false.
pub(super) fn each(
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

pub(super) fn find(dir: &Dir<'_>, core: &disk::Inode, name: &Wanted<'_>) -> Result<Option<Entry>> {
    for (n, part) in parts(core)?.into_iter().enumerate() {
        let found = locate(dir, core, n, |entry| name.is(part, entry))?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// The first entry of part `n` that `is_it` accepts.
pub(super) fn locate(
    dir: &Dir<'_>,
    core: &disk::Inode,
    n: usize,
    is_it: impl Fn(&RawEntry<'_>) -> bool,
) -> Result<Option<Entry>> {
    let (part, start) = (parts(core)?[n], [PARENT, 0][n]);
    let found = dir_entry::locate_inline(&dir.layout, part, start, is_it);
    let found = found.map_err(|e| e.in_inode(dir.ino))?;
    let place = EntryPlace::Inline(n);
    Ok(found.map(|found| Entry { place, found }))
}

pub(super) fn set_parent(core: &mut disk::Inode, parent: Ino) {
    core.block[..PARENT].copy_from_slice(&parent.0.to_le_bytes());
}

/// Changes the bytes of part `n`, whose length stays.
pub(super) fn change_part(
    dir: &Dir<'_>,
    core: &mut disk::Inode,
    n: usize,
    change: impl FnOnce(&mut [u8]),
) -> Result<()> {
    if n == 0 {
        change(&mut core.block);
        return Ok(());
    }
    let mut content = parts(core)?.concat();
    change(&mut content[I_BLOCK_SIZE..]);
    match inline::store(dir.fs.geo(), core, &content)? {
        true => Ok(()),
        false => Err(dir.corrupt("attributes of the inode overlap")),
    }
}

/// Makes the content of a new directory; false where the inode has no room for it.
pub(super) fn init(dir: &Dir<'_>, core: &mut disk::Inode, parent: Ino) -> Result<bool> {
    if !dir.has_dir_index() || !inline::is_allowed(dir.fs.geo(), core) {
        return Ok(false);
    }
    let mut content = [0; I_BLOCK_SIZE];
    dir_entry::init_free(&dir.layout, &mut content[PARENT..]);
    if !inline::store(dir.fs.geo(), core, &content)? {
        return Ok(false);
    }
    set_parent(core, parent);
    core.size = content.len() as u64;
    Ok(true)
}

/// Searches for a name, or else for room for it.
pub(super) fn search(dir: &Dir<'_>, core: &disk::Inode, name: &Wanted<'_>) -> Result<Search> {
    let needed = dir_entry::entry_size(name.name.len());
    let mut room = None;
    for (n, (part, start)) in parts(core)?.into_iter().zip([PARENT, 0]).enumerate() {
        let is_it = |entry: &RawEntry<'_>| name.is(part, entry);
        let here = dir_entry::search_inline(&dir.layout, part, start, needed, is_it)
            .map_err(|e| e.in_inode(dir.ino))?;
        match here {
            dir_entry::Search::Found(_) => return Ok(Search::Found),
            dir_entry::Search::Room(here) => room = room.or(Some((n, here))),
            dir_entry::Search::Full => {}
        }
    }
    Ok(room.map_or(Search::Full, |(n, room)| {
        let place = EntryPlace::Inline(n);
        Search::Room(Slot { place, room })
    }))
}

/// The directory's inode with room for one more name in the attribute; `None` where it does not fit.
pub(super) fn with_room(
    dir: &Dir<'_>,
    core: &disk::Inode,
    name: &[u8],
) -> Result<Option<disk::Inode>> {
    let mut content = parts(core)?.concat();
    let end = content.len();
    content.resize(end + dir_entry::entry_size(name.len()), 0);
    dir_entry::init_free(&dir.layout, &mut content[end..]);
    let mut grown = core.clone();
    grown.size = content.len() as u64;
    Ok(inline::store(dir.fs.geo(), &mut grown, &content)?.then_some(grown))
}

pub(super) fn insert(
    dir: &Dir<'_>,
    core: &mut disk::Inode,
    n: usize,
    room: &dir_entry::Room,
    entry: &NewEntry<'_>,
) -> Result<()> {
    change_part(dir, core, n, |part| {
        dir_entry::insert_at(&dir.layout, part, room, entry);
    })
}

/// Moves all names to a first block. The inode is stored. On error nothing has changed. [`crate::credits::grow`].
pub(super) fn move_out(
    dir: &Dir<'_>,
    handle: &mut Handle<'_>,
    inode: &Inode,
    core: &mut disk::Inode,
) -> Result<()> {
    let kind = FileKind::Directory.entry_type();
    let mut names = vec![
        (dir.ino, kind, b".".to_vec()),
        (parent(core), kind, b"..".to_vec()),
    ];
    each(dir, core, &mut |ino, _, entry| {
        names.push((ino, entry.file_type, entry.name.to_vec()));
        Ok(true)
    })?;
    let sizes = names
        .iter()
        .map(|(_, _, name)| dir_entry::entry_size(name.len()));
    if sizes.sum::<usize>() > dir.layout.entries_end() {
        return Err(dir.corrupt("inline names are longer than a block"));
    }
    let (old, before) = (core.clone(), handle.savepoint());
    dir.fs.forget_inline(handle, inode, core)?;
    core.size = 0;
    let (_, buf) = match dir.fs.append_dir_block(handle, inode, core) {
        Ok(made) => made,
        Err(error) => {
            *core = old;
            dir.fs.store_inode(handle, inode, core)?;
            handle.consistent_since(before);
            return Err(error);
        }
    };
    dir.rewrite(handle, &buf, |block| {
        let mut packer = Packer::new(&dir.layout, block);
        for (ino, file_type, name) in &names {
            let fits = packer.push(*ino, *file_type, name, None);
            assert!(fits, "their sizes were added up");
        }
        packer.finish();
    })?;
    dir.fs.store_inode(handle, inode, core)
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
