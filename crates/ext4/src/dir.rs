//! Directories: names in blocks, found, added and removed.
//!
//! A directory is a file of blocks with entries. A directory of one block is searched linearly; a larger one has a hash
//! index ([`htree`]) if the volume has `dir_index`. The names of an inline directory ([`inline`]) move to a block when the inode has no room for one more.
//! Case-insensitive directories find and hash names by their folded forms ([`wanted`]), encrypted ones by their stored forms
//! ([`encrypted`]). Without their key, names can only be removed there ([`nokey`]).
//!
//! A linear search for a name that is there begins in the block that the last one in the directory ended in, and goes on at the
//! first block after the last one: so names that are looked up in the directory's order cost one visit of a block each.
//!
//! **Rule.** The caller holds the directory's `lock` (for writing, if it changes names) and passes its `core`. The
//! result of a search is valid until the lock is released or the directory is changed.

mod encrypted;
mod htree;
mod inline;
mod nokey;
mod readdir;
mod shown;
mod walk;
mod wanted;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use steadfs_base::{Corruption, DevBlock, FileBlock, IoTag};
use steadfs_cache::MetaBuf;
use steadfs_vfs::{Cx, FileKind, FsError, InodeFlags, Result};

use crate::disk::casefold::Encoding;
use crate::disk::dir_entry::{self, DirLayout, Found, Room};
use crate::disk::features::Compat;
use crate::disk::num::{idx, low32, wide};
use crate::disk::{self, ChecksumSeed, DiskError, Ino};
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::txn::Handle;
use crate::verified;
use walk::Walk;
pub(crate) use wanted::Wanted;

/// Read-ahead window of a directory, in blocks.
const READ_AHEAD_BLOCKS: u32 = 32;

/// A directory during one operation.
pub(crate) struct Dir<'a> {
    fs: &'a Ext4,
    ino: Ino,
    layout: DirLayout,
    seed: ChecksumSeed,
    /// Of a case-insensitive directory whose names are not encrypted.
    encoding: Option<Encoding>,
    tag: IoTag,
    /// Ends walks when it is killed.
    caller: Option<&'a Cx>,
    /// Blocks visited by all walks.
    visits: Cell<u32>,
    /// [`Inode::search_start`], if searches use it.
    search_start: Option<&'a AtomicU32>,
}

/// A name found in a block, or in the inode.
pub(crate) struct Entry {
    place: EntryPlace,
    found: Found,
}

enum EntryPlace {
    Block(Arc<MetaBuf>),
    /// In this part of an inline directory.
    Inline(usize),
}

impl Entry {
    /// The inode it names.
    pub(crate) fn ino(&self) -> Ino {
        self.found.ino
    }

    fn in_block(buf: Arc<MetaBuf>, found: Found) -> Self {
        let place = EntryPlace::Block(buf);
        Self { place, found }
    }
}

/// Where a directory keeps the number of its parent. Valid until the directory is changed.
pub(crate) enum Dots {
    /// In its inode.
    Inline,
    /// In the root of its index.
    Root(Arc<MetaBuf>),
    /// In the entry `..`.
    Entry(Entry),
}

/// Room for one new name.
pub(crate) struct Slot {
    place: EntryPlace,
    room: Room,
}

/// Result of a search for a name to be added.
pub(crate) enum Search {
    /// The name is there.
    Found,
    /// It is not there; it fits here.
    Room(Slot),
    /// It is not there, and its block has no room: [`Dir::grow`].
    Full,
}

impl<'a> Dir<'a> {
    /// The directory `ino` with the inode `core`; reads have the tag `tag`.
    pub(crate) fn new(fs: &'a Ext4, ino: Ino, core: &disk::Inode, tag: IoTag) -> Self {
        let folds = core.has(InodeFlags::CASEFOLD);
        let encrypted = core.has(InodeFlags::ENCRYPTED);
        Self {
            fs,
            ino,
            layout: DirLayout {
                has_hashes: folds && encrypted,
                ..DirLayout::of(fs.geo())
            },
            seed: core.seed(fs.geo(), ino),
            encoding: fs.geo().encoding.filter(|_| folds && !encrypted),
            tag,
            caller: None,
            visits: Cell::new(0),
            search_start: None,
        }
    }

    /// For a call that changes nothing: walks end when its caller is killed.
    pub(crate) fn for_reader(self, cx: &'a Cx) -> Self {
        let caller = Some(cx);
        Self { caller, ..self }
    }

    /// Searches begin where the last one ended, which `inode` of the directory remembers.
    pub(crate) fn after_last_search(self, inode: &'a Inode) -> Self {
        let search_start = Some(&inode.search_start);
        Self {
            search_start,
            ..self
        }
    }

    /// Whether names are found through an index.
    fn is_indexed(&self, core: &disk::Inode) -> bool {
        let has_blocks = !core.has(disk::inode::INLINE_DATA);
        core.has(InodeFlags::INDEX) && has_blocks && self.has_dir_index()
    }

    fn has_dir_index(&self) -> bool {
        self.fs.geo().features.compat.contains(Compat::DIR_INDEX)
    }

    fn block_count(&self, core: &disk::Inode) -> u32 {
        // Directories have at most 2^28 blocks; larger numbers are refused when the block is read.
        u32::try_from(self.fs.geo().block_size.blocks_for(core.size)).unwrap_or(u32::MAX)
    }

    fn corrupt(&self, what: impl std::fmt::Display) -> FsError {
        Corruption::new(format!("directory: {what}"))
            .in_inode(self.ino)
            .into()
    }

    fn bad(&self, at: DevBlock) -> impl FnOnce(DiskError) -> FsError + use<> {
        let ino = self.ino;
        move |error| error.in_inode(ino).in_block(at).into()
    }

    /// Block `n` of the directory, not verified.
    fn block(&self, core: &disk::Inode, n: u32) -> Result<Arc<MetaBuf>> {
        let at = self
            .fs
            .map_block(core, self.ino, FileBlock(n.into()), self.tag)?
            .filter(|_| n < self.block_count(core))
            .ok_or_else(|| self.corrupt(format_args!("file block {n} is missing")))?;
        if let Some(buf) = self.fs.meta().peek(at) {
            return Ok(buf);
        }
        self.read_ahead(core, n)?;
        self.fs.block(at, self.tag)
    }

    /// Reads the window around block `n`, with one request for each contiguous run.
    fn read_ahead(&self, core: &disk::Inode, n: u32) -> Result<()> {
        let first = n - n % READ_AHEAD_BLOCKS;
        let end = self
            .block_count(core)
            .min(first.saturating_add(READ_AHEAD_BLOCKS));
        let mut run: Option<(DevBlock, u64)> = None;
        for i in first..end {
            let Some(at) = self
                .fs
                .map_block(core, self.ino, FileBlock(i.into()), self.tag)?
            else {
                continue;
            };
            run = Some(match run {
                Some((start, len)) if start.plus(len) == at => (start, len + 1),
                Some((start, len)) => {
                    self.fs.meta().prefetch(start, len, self.tag);
                    (at, 1)
                }
                None => (at, 1),
            });
        }
        if let Some((start, len)) = run.filter(|&(_, len)| len > 1) {
            self.fs.meta().prefetch(start, len, self.tag);
        }
        Ok(())
    }

    /// Block `n`, verified as one with entries.
    fn leaf(&self, core: &disk::Inode, n: u32) -> Result<Arc<MetaBuf>> {
        let buf = self.block(core, n)?;
        buf.verify_once(verified::DIR_LEAF, |block| {
            dir_entry::verify(&self.layout, self.seed, block)
        })
        .map_err(self.bad(buf.block()))?;
        Ok(buf)
    }

    /// Finds a name in a leaf.
    fn find_in(&self, buf: Arc<MetaBuf>, name: &Wanted<'_>) -> Result<Option<Entry>> {
        let found = name
            .locate(&self.layout, &buf.data())
            .map_err(self.bad(buf.block()))?;
        Ok(found.map(|found| Entry::in_block(buf, found)))
    }

    /// Finds a name not `.` or `..`; a no-key name, if names are encrypted and there is no key.
    ///
    /// # Errors
    /// As [`Dir::check_encoded`], if it is not there; others.
    pub(crate) fn find(&self, core: &disk::Inode, name: &[u8]) -> Result<Option<Entry>> {
        if core.has(InodeFlags::ENCRYPTED) && !core.has(disk::inode::INLINE_DATA) {
            return match self.names_key(core)? {
                Some(key) => encrypted::find(self, core, &key, name),
                None => nokey::find(self, core, name),
            };
        }
        let wanted = self.wanted(name);
        let found = self.find_wanted(core, &wanted)?;
        if found.is_none() {
            self.check_encoded(&wanted)?;
        }
        Ok(found)
    }

    fn find_wanted(&self, core: &disk::Inode, name: &Wanted<'_>) -> Result<Option<Entry>> {
        if core.has(disk::inode::INLINE_DATA) {
            return inline::find(self, core, name);
        }
        if self.is_indexed(core) {
            return self.find_anywhere(core, name);
        }
        let mut walk = Walk::default();
        for n in self.linear_order(core) {
            let buf = self.leaf(core, n)?;
            walk.visit(self, buf.block())?;
            if let Some(entry) = self.find_in(buf, name)? {
                self.end_search(n);
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// All blocks, in the order of a linear search.
    fn linear_order(&self, core: &disk::Inode) -> impl Iterator<Item = u32> + use<> {
        let count = self.block_count(core);
        let last = self.search_start;
        let start = last.map_or(0, |start| start.load(Ordering::Relaxed));
        let start = if start < count { start } else { 0 };
        (start..count).chain(0..start)
    }

    /// Remembers the block in which a linear search has found its name.
    fn end_search(&self, n: u32) {
        if let Some(start) = self.search_start {
            start.store(n, Ordering::Relaxed);
        }
    }

    /// The inode of a name, in any directory, `.` and `..` included.
    pub(crate) fn lookup(&self, core: &disk::Inode, name: &[u8]) -> Result<Option<Ino>> {
        let ino = match name {
            b"." => return Ok(Some(self.ino)),
            b".." => return self.parent(core).map(Some),
            _ => self.find(core, name)?.map(|entry| entry.ino()),
        };
        if let Some(ino) = ino {
            self.check_target(ino)?;
        }
        Ok(ino)
    }

    /// Refuses an entry that names one of the volume's own inodes or the directory itself.
    pub(crate) fn check_target(&self, ino: Ino) -> Result<()> {
        if ino == self.ino || !self.fs.is_nameable(ino) {
            return Err(self.corrupt(format_args!("an entry names inode {ino}")));
        }
        Ok(())
    }

    /// The inode that `..` names.
    pub(crate) fn parent(&self, core: &disk::Inode) -> Result<Ino> {
        let parent = if core.has(disk::inode::INLINE_DATA) {
            inline::parent(core)
        } else if self.is_indexed(core) {
            self.indexed_dots(core)?.1
        } else {
            self.dotdot(core)?.ino()
        };
        if !self.fs.is_nameable(parent) {
            return Err(self.corrupt(format_args!(".. names inode {parent}")));
        }
        Ok(parent)
    }

    /// Where the inode is that `..` names.
    pub(crate) fn dots(&self, core: &disk::Inode) -> Result<Dots> {
        Ok(match self.is_indexed(core) {
            _ if core.has(disk::inode::INLINE_DATA) => Dots::Inline,
            true => Dots::Root(self.root(core)?.0),
            false => Dots::Entry(self.dotdot(core)?),
        })
    }

    fn dotdot(&self, core: &disk::Inode) -> Result<Entry> {
        self.find_in(self.leaf(core, 0)?, &Wanted::exact(b".."))?
            .ok_or_else(|| self.corrupt(".. is missing"))
    }

    /// Changes the inode that `..` names. The caller stores the directory's inode. One credit.
    pub(crate) fn set_parent(
        &self,
        handle: &mut Handle<'_>,
        core: &mut disk::Inode,
        dots: &Dots,
        parent: Ino,
    ) -> Result<()> {
        match dots {
            Dots::Inline => {
                inline::set_parent(core, parent);
                Ok(())
            }
            Dots::Root(root) => self.set_indexed_parent(handle, root, parent),
            Dots::Entry(entry) => self.retarget(handle, core, entry, parent, FileKind::Directory),
        }
    }

    /// Whether there are no names besides `.` and `..`.
    pub(crate) fn is_empty(&self, core: &disk::Inode) -> Result<bool> {
        if core.has(disk::inode::INLINE_DATA) {
            return inline::is_empty(self, core);
        }
        let indexed = self.is_indexed(core);
        let mut walk = Walk::default();
        for n in u32::from(indexed)..self.block_count(core) {
            let buf = self.block(core, n)?;
            walk.visit(self, buf.block())?;
            if indexed && htree::is_index_block(&self.layout, &buf.data()) {
                continue;
            }
            let buf = self.leaf(core, n)?;
            if !dir_entry::is_empty(&self.layout, &buf.data()).map_err(self.bad(buf.block()))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Searches for `name`, or else for room for it, in one pass.
    pub(crate) fn search(&self, core: &disk::Inode, name: &Wanted<'_>) -> Result<Search> {
        if core.has(disk::inode::INLINE_DATA) {
            return inline::search(self, core, name);
        }
        if self.is_indexed(core) {
            return self.search_indexed(core, name);
        }
        let mut room = None;
        let mut walk = Walk::default();
        for n in 0..self.block_count(core) {
            let buf = self.leaf(core, n)?;
            walk.visit(self, buf.block())?;
            match self.search_in(buf, name)? {
                Search::Found => return Ok(Search::Found),
                here @ Search::Room(_) => room = room.or(Some(here)),
                Search::Full => {}
            }
        }
        Ok(room.unwrap_or(Search::Full))
    }

    fn search_in(&self, buf: Arc<MetaBuf>, name: &Wanted<'_>) -> Result<Search> {
        let (block, last) = buf.data_and_hint();
        let search = name
            .search(&self.layout, &block, idx(last))
            .map_err(self.bad(buf.block()))?;
        drop(block);
        Ok(match search {
            dir_entry::Search::Found(_) => Search::Found,
            dir_entry::Search::Room(room) => {
                let place = EntryPlace::Block(buf);
                Search::Room(Slot { place, room })
            }
            dir_entry::Search::Full => Search::Full,
        })
    }

    /// Whether the next step of [`Dir::grow`] needs no block.
    pub(crate) fn grows_in_inode(&self, core: &disk::Inode, name: &Wanted<'_>) -> Result<bool> {
        let is_inline = core.has(disk::inode::INLINE_DATA);
        Ok(is_inline && inline::with_room(self, core, &name.name)?.is_some())
    }

    /// Makes room for `name` by one step: more room in the inode, a first block, another one, a first index, a split. The caller searches again afterwards.
    /// The inode is stored; the directory is consistent after each step. [`crate::credits::grow`].
    pub(crate) fn grow(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        name: &Wanted<'_>,
    ) -> Result<()> {
        if core.has(disk::inode::INLINE_DATA) {
            let Some(grown) = inline::with_room(self, core, &name.name)? else {
                return inline::move_out(self, handle, inode, core);
            };
            *core = grown;
            return self.fs.store_inode(handle, inode, core);
        }
        if self.is_indexed(core) {
            self.grow_index(handle, inode, core, name)?;
        } else if self.block_count(core) == 1 && self.has_dir_index() {
            self.make_index(handle, inode, core)?;
        } else {
            let (_, buf) = self.fs.append_dir_block(handle, inode, core)?;
            self.rewrite(handle, &buf, |block| {
                dir_entry::init_empty(&self.layout, block)
            })?;
        }
        self.fs.store_inode(handle, inode, core)
    }

    /// Moves the names of an inline directory to a block. The inode is stored. [`crate::credits::grow`].
    pub(crate) fn move_out(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
    ) -> Result<()> {
        inline::move_out(self, handle, inode, core)
    }

    /// Whether the content of a new directory needs no block.
    pub(crate) fn starts_in_inode(&self, core: &disk::Inode) -> Result<bool> {
        inline::init(self, &mut core.clone(), self.ino)
    }

    /// Makes the content of a new directory, in its inode or in a first block. The caller stores the inode.
    pub(crate) fn init(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        parent: Ino,
    ) -> Result<()> {
        if inline::init(self, core, parent)? {
            return self.fs.note_attrs(handle);
        }
        let (_, buf) = self.fs.append_dir_block(handle, inode, core)?;
        self.rewrite(handle, &buf, |block| {
            dir_entry::init_first(&self.layout, block, self.ino, parent);
        })
    }

    /// Changes a leaf and seals it.
    fn rewrite(
        &self,
        handle: &mut Handle<'_>,
        buf: &Arc<MetaBuf>,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        self.rewrite_noting(handle, buf, 0, change)
    }

    /// Changes a leaf, seals it, and remembers the offset of the new entry for [`Dir::search_in`].
    fn rewrite_noting(
        &self,
        handle: &mut Handle<'_>,
        buf: &Arc<MetaBuf>,
        last: usize,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let mut guard = handle.write(buf)?;
        let block: &mut [u8] = &mut guard;
        change(block);
        dir_entry::seal(&self.layout, self.seed, block);
        guard.set_hint(low32(wide(last)));
        buf.set_verified(verified::DIR_LEAF);
        Ok(())
    }

    /// Inserts a name at its slot. The caller stores the inode. One credit.
    pub(crate) fn insert(
        &self,
        handle: &mut Handle<'_>,
        core: &mut disk::Inode,
        slot: &Slot,
        (name, ino, kind): (&Wanted<'_>, Ino, FileKind),
    ) -> Result<()> {
        let entry = &name.entry(ino, kind);
        if !self.is_indexed(core) {
            // An index from a time when the volume had the feature does not have this name, which may even overwrite
            // its root.
            core.flags = InodeFlags(core.flags.0 & !InodeFlags::INDEX.0);
        }
        let room = &slot.room;
        match &slot.place {
            EntryPlace::Block(buf) => self.rewrite_noting(handle, buf, room.place(), |block| {
                dir_entry::insert_at(&self.layout, block, room, entry);
            }),
            EntryPlace::Inline(part) => inline::insert(self, core, *part, room, entry),
        }
    }

    /// An entry as it is after an insertion into its block, which leaves entries where they are. Reads nothing.
    pub(crate) fn after_insertion(&self, core: &disk::Inode, entry: &Entry) -> Result<Entry> {
        let is_it = |here: &dir_entry::RawEntry<'_>| here.offset == entry.found.offset;
        let again = match &entry.place {
            EntryPlace::Block(buf) => dir_entry::locate_by(&self.layout, &buf.data(), is_it)
                .map_err(self.bad(buf.block()))?
                .map(|found| Entry::in_block(Arc::clone(buf), found)),
            EntryPlace::Inline(part) => inline::locate(self, core, *part, is_it)?,
        };
        again.ok_or_else(|| self.corrupt("an insertion moved an entry"))
    }

    /// Removes a name. The caller stores the inode. One credit.
    pub(crate) fn remove(
        &self,
        handle: &mut Handle<'_>,
        core: &mut disk::Inode,
        entry: &Entry,
    ) -> Result<()> {
        self.change_entry(handle, core, entry, |block| {
            dir_entry::remove_found(&self.layout, block, &entry.found);
        })
    }

    /// Points a name to another inode. The caller stores the directory's inode. One credit.
    pub(crate) fn retarget(
        &self,
        handle: &mut Handle<'_>,
        core: &mut disk::Inode,
        entry: &Entry,
        ino: Ino,
        kind: FileKind,
    ) -> Result<()> {
        self.change_entry(handle, core, entry, |block| {
            dir_entry::set_target(&self.layout, block, entry.found.offset, ino, kind);
        })
    }

    /// Changes the bytes around an entry: its block, or its part of an inline directory.
    fn change_entry(
        &self,
        handle: &mut Handle<'_>,
        core: &mut disk::Inode,
        entry: &Entry,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        match &entry.place {
            EntryPlace::Block(buf) => self.rewrite(handle, buf, change),
            EntryPlace::Inline(part) => inline::change_part(self, core, *part, change),
        }
    }
}

#[cfg(test)]
mod tests;
