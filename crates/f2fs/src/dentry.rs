//! Directories: finding names and listing them.
//!
//! A readdir cookie is the position after an entry: 1 after `.`, 2 after `..`, then slots counted from the
//! directory's first block. Entries never move within a directory, so cookies stay valid.

mod buckets;
mod change;
mod lookup_name;
pub(crate) mod slots;

use std::ops::Range;

use steadfs_base::{DevBlock, FileBlock, IoTag};
use steadfs_block::Buf;
use steadfs_fscrypt::FileKey;
use steadfs_vfs::nokey::show;
use steadfs_vfs::{DirEntry, FileKind, FsError, Result};

use crate::data::{BLOCK, MapTarget};
use crate::disk::dentry::{self, BLOCK_SLOTS, DentryLayout, Entry};
use crate::disk::{BlockAddr, DiskError, Nid, Structure, hash};
use crate::fs::F2fs;
use crate::inode::Inode;
use buckets::Buckets;
use lookup_name::LookupName;

pub(crate) use change::{DentrySearch, NewName};
pub(crate) use lookup_name::StoredName;
pub(crate) use slots::FreeDentry;

/// Blocks of a directory read ahead by a listing.
const READ_AHEAD_BLOCKS: u64 = 32;
/// Cookies before the first slot: those after `.` and `..`.
const DOT_COOKIES: u64 = 2;

/// A callback that receives entries until it returns false.
pub(crate) type Emit<'e> = &'e mut dyn FnMut(DirEntry<'_>) -> bool;

/// A directory entry and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundDentry {
    /// The inode that it refers to.
    pub(crate) ino: Nid,
    /// That of the name that was looked up: the stored one may be of other rules.
    pub(crate) hash: u32,
    /// The directory block that holds it; `None` if it is stored in the inode.
    pub(crate) block: Option<u64>,
    /// Its first slot.
    pub(crate) slot: usize,
    /// Bytes of the stored name.
    pub(crate) len: usize,
}

impl FoundDentry {
    fn new(block: Option<u64>, entry: &Entry<'_>) -> Self {
        Self {
            ino: entry.ino,
            hash: entry.hash,
            block,
            slot: entry.slot,
            len: entry.name.len(),
        }
    }
}

impl F2fs {
    /// The inode that a name refers to.
    pub(crate) fn find_name(&self, dir: &Inode, name: &[u8], tag: IoTag) -> Result<Option<Nid>> {
        if self.recovered().names(dir.nid()).next().is_some() {
            let key = self.names_key(dir, tag)?;
            if let Some(found) = self.recovered_name((dir, key.as_deref()), name) {
                return Ok(Some(found));
            }
        }
        Ok(self.find_entry(dir, name, tag)?.map(|entry| entry.ino))
    }

    /// The directory entry of a name.
    pub(crate) fn find_entry(
        &self,
        dir: &Inode,
        name: &[u8],
        tag: IoTag,
    ) -> Result<Option<FoundDentry>> {
        let Some(wanted) = LookupName::new(self, dir, name, tag)? else {
            return Ok(None);
        };
        let mut found = self.find_wanted(dir, &wanted, tag)?;
        if found.is_none() {
            found = self.find_misplaced(dir, &wanted, tag)?;
        }
        if found.is_none() {
            wanted.check_encoded()?;
        }
        Ok(found)
    }

    /// Whether the stored name of an entry has these bytes: in a case-insensitive directory it may be spelled differently.
    pub(crate) fn is_spelled(
        &self,
        dir: &Inode,
        named: &FoundDentry,
        name: &[u8],
        tag: IoTag,
    ) -> Result<bool> {
        let is = |layout: &DentryLayout, bytes: &[u8]| {
            let entry = dentry::entries(layout, bytes, named.slot).next();
            entry.is_some_and(|entry| entry.is_ok_and(|entry| entry.name == name))
        };
        if let Some(block) = named.block {
            let bytes = self.dir_block(dir, block, tag)?;
            return Ok(bytes.is_some_and(|bytes| is(&DentryLayout::BLOCK, &bytes)));
        }
        let block = self.inode_block(dir, tag)?;
        let (range, layout) = self.inline_area(dir);
        Ok(is(&layout, &block[range]))
    }

    fn find_wanted(
        &self,
        dir: &Inode,
        wanted: &LookupName<'_>,
        tag: IoTag,
    ) -> Result<Option<FoundDentry>> {
        if dir.has_inline_dentries() {
            let block = self.inode_block(dir, tag)?;
            let (range, layout) = self.inline_area(dir);
            let bytes = &block[range];
            let found = wanted.find(&layout, bytes);
            return Ok(found.map(|entry| FoundDentry::new(None, &entry)));
        }
        self.search_buckets(dir, wanted, tag)
    }

    /// Searches the hash buckets, level by level.
    fn search_buckets(
        &self,
        dir: &Inode,
        wanted: &LookupName<'_>,
        tag: IoTag,
    ) -> Result<Option<FoundDentry>> {
        let mut buckets = Buckets::new(self, dir, wanted.hash, tag);
        while let Some((block, bytes)) = buckets.next_block()? {
            if let Some(bytes) = bytes
                && let Some(found) = wanted.find(&DentryLayout::BLOCK, &bytes)
            {
                return Ok(Some(FoundDentry::new(Some(block), &found)));
            }
        }
        Ok(None)
    }

    /// Blocks of a directory's file.
    fn dir_blocks(&self, dir: &Inode) -> u64 {
        let most = dir.core.read().fanout(&self.layout).max_blocks();
        dir.size().div_ceil(BLOCK).min(most)
    }

    /// The byte range and layout of the entries stored in a directory's inode.
    fn inline_area(&self, dir: &Inode) -> (Range<usize>, DentryLayout) {
        let core = dir.core.read();
        (
            core.inline_range(&self.layout),
            core.inline_dentries(&self.layout),
        )
    }

    /// A block of a directory; `None` for a hole.
    pub(crate) fn dir_block(&self, dir: &Inode, block: u64, tag: IoTag) -> Result<Option<Buf>> {
        if block >= self.dir_blocks(dir) {
            return Ok(None);
        }
        if let Some(changed) = dir.pages.get(FileBlock(block)) {
            return Ok(Some(changed));
        }
        let mapped = self.map(dir, block, 1, tag)?.target;
        let addr = Self::dir_block_addr(dir, mapped)?;
        addr.map(|addr| Ok(self.main_block(addr, tag)?.data()))
            .transpose()
    }

    /// The address of a directory's block; `None` for a hole.
    fn dir_block_addr(dir: &Inode, mapped: MapTarget) -> Result<Option<BlockAddr>> {
        match mapped {
            MapTarget::Hole | MapTarget::Reserved => Ok(None),
            MapTarget::Block(addr) => Ok(Some(addr)),
            MapTarget::Compressed => {
                let rule = "a directory cannot be compressed";
                let error = DiskError::entry(Structure::Dentries, 0, rule);
                Err(error.in_node(dir.nid()).into())
            }
        }
    }

    /// Calls `work` with each allocated block of a directory, from block `first` on, until it returns false.
    fn each_block(
        &self,
        dir: &Inode,
        first: u64,
        tag: IoTag,
        work: &mut dyn FnMut(u64, &[u8]) -> Result<bool>,
    ) -> Result<()> {
        let end = self.dir_blocks(dir);
        let mut at = first;
        while at < end {
            // A hole is skipped whole; blocks are read in batches.
            let mapped = self.map(dir, at, end - at, tag)?;
            if mapped.target == MapTarget::Hole {
                at += mapped.len;
                continue;
            }
            let count = mapped.len.min(READ_AHEAD_BLOCKS);
            if let MapTarget::Block(addr) = mapped.target
                && count > 1
            {
                self.meta.prefetch(DevBlock(addr.0.into()), count, tag);
            }
            for block in at..at + count {
                if let Some(bytes) = self.dir_block(dir, block, tag)?
                    && !work(block, &bytes)?
                {
                    return Ok(());
                }
            }
            at += count;
        }
        Ok(())
    }

    /// Reports the entries after `cookie` until `emit` returns false.
    pub(crate) fn list(&self, dir: &Inode, cookie: u64, tag: IoTag, emit: Emit<'_>) -> Result<()> {
        if !self.list_dots(dir, cookie, tag, emit)? {
            return Ok(());
        }
        let key = self.names_key(dir, tag)?;
        let key = key.as_deref();
        let first = cookie.saturating_sub(DOT_COOKIES);
        if dir.has_inline_dentries() {
            let block = self.inode_block(dir, tag)?;
            let (range, layout) = self.inline_area(dir);
            let bytes = &block[range];
            let from = usize::try_from(first).unwrap_or(usize::MAX);
            if self.list_slots((dir, key), &layout, bytes, (0, from), emit)? {
                self.list_recovered((dir, key), cookie, tag, emit)?;
            }
            return Ok(());
        }
        let slots = BLOCK_SLOTS as u64;
        let mut more = true;
        self.each_block(dir, first / slots, tag, &mut |block, bytes| {
            let base = block * slots;
            let from = first.saturating_sub(base) as usize;
            more = self.list_slots((dir, key), &DentryLayout::BLOCK, bytes, (base, from), emit)?;
            Ok(more)
        })?;
        if more {
            self.list_recovered((dir, key), cookie, tag, emit)?;
        }
        Ok(())
    }

    /// Reports `.` and `..`. Returns whether `emit` wants more.
    fn list_dots(&self, dir: &Inode, cookie: u64, tag: IoTag, emit: Emit<'_>) -> Result<bool> {
        for (at, name) in [(0, &b"."[..]), (1, b"..")] {
            if cookie > at {
                continue;
            }
            let ino = if at == 0 {
                dir.nid()
            } else {
                // Directories without a `..` entry (`F2FS_INLINE_DOTS`): `i_pino` is the parent.
                self.find_name(dir, name, tag)?
                    .unwrap_or(dir.core.read().parent)
            };
            let entry = DirEntry {
                ino: ino.into(),
                kind: Some(FileKind::Directory),
                name,
                next: at + 1,
            };
            if !emit(entry) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reports the entries of an area from slot `from` on; its first slot has cookie `base`. Returns whether `emit`
    /// wants more.
    fn list_slots(
        &self,
        (dir, key): (&Inode, Option<&FileKey>),
        layout: &DentryLayout,
        bytes: &[u8],
        (base, from): (u64, usize),
        emit: Emit<'_>,
    ) -> Result<bool> {
        for entry in dentry::entries(layout, bytes, from) {
            let entry = entry.map_err(|e| e.in_node(dir.nid()))?;
            if entry.is_dot() {
                continue;
            }
            let name = shown_name((dir, key), &entry)?;
            let after = entry.slot + dentry::slots_for(entry.name.len());
            let shown = DirEntry {
                ino: entry.ino.into(),
                kind: FileKind::from_entry_type(entry.file_type),
                name: name.as_deref().unwrap_or(entry.name),
                next: base + after as u64 + DOT_COOKIES,
            };
            // A name that roll-forward recovery has assigned to another inode is reported below.
            let replaced = self.recovered_name((dir, key), shown.name).is_some();
            if !replaced && !emit(shown) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reports names added by roll-forward recovery, after all others.
    fn list_recovered(
        &self,
        (dir, key): (&Inode, Option<&FileKey>),
        cookie: u64,
        tag: IoTag,
        emit: Emit<'_>,
    ) -> Result<()> {
        const BASE: u64 = 1 << 62;
        for (n, (name, ino)) in (0u64..).zip(self.recovered().names(dir.nid())) {
            if cookie > BASE + n {
                continue;
            }
            let kind = Some(self.inode_of_entry(dir, ino, tag)?.kind());
            let shown;
            let name = match dir.is_encrypted() {
                true => match shown_recovered(key, name) {
                    Some(name) => {
                        shown = name;
                        &shown
                    }
                    None => continue,
                },
                false => name,
            };
            let entry = DirEntry {
                ino: ino.into(),
                kind,
                name,
                next: BASE + n + 1,
            };
            if !emit(entry) {
                break;
            }
        }
        Ok(())
    }
}

/// A recovered name of an encrypted directory, as it is shown; `None`: it is none. Its hash is unknown in a
/// case-insensitive directory.
fn shown_recovered(key: Option<&FileKey>, stored: &[u8]) -> Option<Vec<u8>> {
    match key {
        Some(key) => key.decrypt_name(stored).ok(),
        None => show([hash::of_name(stored), 0], stored),
    }
}

/// The name to report, if it differs from the stored one.
fn shown_name(
    (dir, key): (&Inode, Option<&FileKey>),
    entry: &Entry<'_>,
) -> Result<Option<Vec<u8>>> {
    let bad = |rule| {
        let slot = u32::try_from(entry.slot).unwrap_or(u32::MAX);
        DiskError::entry(Structure::Dentries, slot, rule).in_node(dir.nid())
    };
    if let Some(key) = key {
        let name = key.decrypt_name(entry.name);
        return name.map(Some).map_err(|error| match error {
            FsError::Corrupt(_) => bad("has an impossible encrypted name").into(),
            other => other,
        });
    }
    if dir.is_encrypted() {
        let shown = show([entry.hash, 0], entry.name);
        return Ok(Some(
            shown.ok_or_else(|| bad("has too short an encrypted name"))?,
        ));
    }
    if !entry.has_plain_name() {
        return Err(bad("has a name with a slash or a zero byte").into());
    }
    Ok(None)
}
