//! Inline directories (`inline_data`): the parent's number and entries in `i_block`, more entries in the value of the
//! attribute `system.data`.
//!
//! Names are removed and pointed to other inodes in place. For a new name all names move to a block.

use steadfs_vfs::{DirEntry, FileKind, Result};

use super::shown::Emit;
use super::wanted::Wanted;
use super::{Dir, Entry, EntryPlace};
use crate::disk::dir_entry::{self, Packer, RawEntry};
use crate::disk::xattr::{AttrList, INDEX_SYSTEM, InodeAttrs, Value};
use crate::disk::{self, Ino};
use crate::inode::Inode;
use crate::txn::Handle;

/// The attribute with what `i_block` has no room for.
pub(crate) const NAME: &[u8] = b"data";

/// Bytes of the parent's number, in place of `.` and `..`.
const PARENT: usize = 4;

/// The parts of an inode that hold its content, in order.
pub(crate) fn parts(core: &disk::Inode) -> Result<[&[u8]; 2]> {
    let attrs = InodeAttrs::parse(&core.xattr_area)?;
    let more = match attrs.get(INDEX_SYSTEM, NAME).map(|attr| attr.value) {
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
    for (n, (part, start)) in parts(core)?.into_iter().zip([PARENT, 0]).enumerate() {
        let found = dir_entry::locate_inline(&dir.layout, part, start, |entry| name.is(entry))
            .map_err(|e| e.in_inode(dir.ino))?;
        if let Some(found) = found {
            let place = EntryPlace::Inline(n);
            return Ok(Some(Entry { place, found }));
        }
    }
    Ok(None)
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
    let mut value = parts(core)?[n].to_vec();
    change(&mut value);
    let room = core.xattr_room(dir.fs.geo());
    let attrs = InodeAttrs::parse(&core.xattr_area).map_err(|e| e.in_inode(dir.ino))?;
    let mut list: AttrList = attrs.iter().collect();
    list.set(INDEX_SYSTEM, NAME, &value);
    if !list.fits_inode(room) {
        return Err(dir.corrupt("attributes of the inode overlap"));
    }
    core.xattr_area = list.to_inode_area(room);
    Ok(())
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
            let fits = packer.push(*ino, *file_type, name);
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
