//! readdir, with cookies that stay valid while the directory changes.
//!
//! Directories that have an index, or that will get one when their only block (or their inode) is full, are listed in the order of their
//! names' hashes: an insertion, a removal or a split never moves a name in that order. The cookie of an entry is the
//! position after it:
//!
//! ```text
//! 62          32 31             8 7       0
//! hash (major)/2  tie (24 bits)   ordinal       + 2
//! ```
//!
//! 0, 1 and 2 are the positions before `.`, before `..` and before the first name. The tie is the upper
//! part of the minor hash (of the name's CRC where the hash function has no minor), the ordinal counts
//! names that agree in all 55 bits, in the order of their bytes. A name can be listed twice or not at
//! all only if more than 256 names agree and one of them is added or removed between two calls.
//!
//! Names of encrypted directories have the hashes of their stored forms, or those stored behind them. All other directories are
//! listed by position, as in the kernel; those never get an index.

use steadfs_base::checksum::crc32c;
use steadfs_cache::MetaBuf;
use steadfs_fscrypt::FileKey;
use steadfs_vfs::{DirEntry, FileKind, InodeFlags, Result};

use super::shown::Emit;
use super::walk::Walk;
use super::{Dir, htree, inline, nokey};
use crate::disk::dir_entry::{self, RawEntry};
use crate::disk::hash::{HashKind, NameHash};
use crate::disk::{self, Ino};

/// Most names kept in memory if a run of equal hashes covers many leaves.
const WINDOW_NAMES_MAX: usize = 4096;
/// Bits of the ordinal.
const ORDINAL: u64 = 0xFF;

/// A name in the listing's order.
struct Name {
    /// Position in the order; the [`ORDINAL`] bits are zero until all names of its group are collected.
    key: u64,
    ino: Ino,
    file_type: u8,
    name: Box<[u8]>,
}

/// A part of the listing.
struct Window {
    names: Vec<Name>,
    /// Start of the next part.
    next: Option<u64>,
}

impl Dir<'_> {
    /// Calls `emit` for the entries after `cookie` until it returns false.
    pub(crate) fn read(&self, core: &disk::Inode, cookie: u64, emit: Emit<'_>) -> Result<()> {
        if self.is_dx(core) {
            self.read_by_hash(core, cookie, emit)
        } else if core.has(disk::inode::INLINE_DATA) {
            inline::read(self, core, cookie, emit)
        } else {
            self.read_by_position(core, cookie, emit)
        }
    }

    /// Whether the directory has an index or will have one when it grows.
    pub(super) fn is_dx(&self, core: &disk::Inode) -> bool {
        self.has_dir_index() && (core.has(InodeFlags::INDEX) || self.block_count(core) == 1)
    }

    fn read_by_hash(&self, core: &disk::Inode, cookie: u64, emit: Emit<'_>) -> Result<()> {
        if !self.read_dots(core, cookie, emit)? {
            return Ok(());
        }
        let mut resume = cookie.saturating_sub(2);
        loop {
            let window = if self.is_indexed(core) {
                self.collect_window(core, resume)?
            } else {
                self.collect_only_block(core, resume)?
            };
            for name in window.names {
                let entry = DirEntry {
                    ino: name.ino.into(),
                    kind: FileKind::from_entry_type(name.file_type),
                    name: &name.name,
                    next: name.key + 3,
                };
                if !emit(entry) {
                    return Ok(());
                }
            }
            match window.next {
                Some(next) => resume = next,
                None => return Ok(()),
            }
        }
    }

    fn collect_only_block(&self, core: &disk::Inode, resume: u64) -> Result<Window> {
        let mut names = Vec::new();
        let kind = self.new_hash_kind();
        if core.has(disk::inode::INLINE_DATA) {
            inline::each(self, core, &mut |_, _, entry| {
                let hash = self.hash(kind, entry.name)?;
                self.take((kind, hash), entry, resume, &mut names, || {
                    self.plain_name(entry)
                })?;
                Ok(true)
            })?;
        } else {
            let buf = self.leaf(core, 0)?;
            let (block, key) = (buf.data(), self.names_key(core)?);
            for entry in dir_entry::entries(&self.layout, &block) {
                let entry = entry.map_err(self.bad(buf.block()))?;
                if entry.ino.is_some() && !is_dots(&entry) {
                    let hash = self.hash_entry(kind, &block, &entry)?;
                    self.take((kind, hash), &entry, resume, &mut names, || {
                        self.listed_name(core, key.as_deref(), &block, &entry)
                    })?;
                }
            }
        }
        order(&mut names);
        names.retain(|name| name.key >= resume);
        Ok(Window { names, next: None })
    }

    /// Collects the names of the leaf that contains `resume`, and of those that continue its run of equal hashes; or of
    /// the first leaf after it that has any.
    fn collect_window(&self, core: &disk::Inode, resume: u64) -> Result<Window> {
        let mut names = Vec::new();
        let mut cut = false;
        let mut path = self.descend(core, major_of(resume))?;
        let mut walk = Walk::default();
        loop {
            let bound = self.bound(&path)?;
            let buf = self.leaf_of(core, &path)?;
            walk.visit(self, buf.block())?;
            self.take_leaf(core, (&buf, path.hash_kind()), bound, resume, &mut names)?;
            if names.len() > 2 * WINDOW_NAMES_MAX {
                order(&mut names);
                names.truncate(WINDOW_NAMES_MAX);
                cut = true;
            }
            let run_ends = bound.is_none_or(|bound| bound & 1 == 0);
            if bound.is_none() || (run_ends && !names.is_empty()) {
                order(&mut names);
                let mut next = bound.map(|bound| key_of(bound, 0));
                if next.is_some_and(|next| next <= resume) {
                    // The listing would return to what it has listed.
                    return Err(self.corrupt("its index is not in order"));
                }
                if cut {
                    names.truncate(WINDOW_NAMES_MAX);
                    next = names.last().map(|last| last.key + 1);
                }
                names.retain(|name| name.key >= resume);
                return Ok(Window { names, next });
            }
            self.advance(core, &mut path)?;
        }
    }

    fn take_leaf(
        &self,
        core: &disk::Inode,
        (buf, kind): (&MetaBuf, HashKind),
        bound: Option<u32>,
        resume: u64,
        names: &mut Vec<Name>,
    ) -> Result<()> {
        let block = buf.data();
        let key = self.names_key(core)?;
        for entry in dir_entry::entries(&self.layout, &block) {
            let entry = entry.map_err(self.bad(buf.block()))?;
            if entry.ino.is_none() {
                continue;
            }
            let hash = self.hash_entry(kind, &block, &entry)?;
            self.take((kind, hash), &entry, resume, names, || {
                self.listed_name(core, key.as_deref(), &block, &entry)
            })?;
            let major = hash.major;
            if bound.is_some_and(|bound| major > bound || (major == bound && bound & 1 == 0)) {
                return Err(self.corrupt("a name is not where the index says"));
            }
        }
        Ok(())
    }

    /// A name as it is listed: of an encrypted directory decrypted, or as a no-key name.
    fn listed_name(
        &self,
        core: &disk::Inode,
        key: Option<&FileKey>,
        block: &[u8],
        entry: &RawEntry<'_>,
    ) -> Result<Box<[u8]>> {
        let name = match (core.has(InodeFlags::ENCRYPTED), key) {
            (false, _) => return self.plain_name(entry),
            (true, Some(key)) => self.decrypt(key, entry)?,
            (true, None) => nokey::shown_name(self, core, block, entry)?,
        };
        Ok(name.into())
    }

    fn plain_name(&self, entry: &RawEntry<'_>) -> Result<Box<[u8]>> {
        self.check_shown(entry)?;
        Ok(entry.name.into())
    }

    /// Adds a name with this hash unless it is before `resume`. `listed` makes it.
    fn take(
        &self,
        (kind, hash): (HashKind, NameHash),
        entry: &RawEntry<'_>,
        resume: u64,
        names: &mut Vec<Name>,
        listed: impl FnOnce() -> Result<Box<[u8]>>,
    ) -> Result<()> {
        let Some(ino) = entry.ino else {
            return Ok(());
        };
        let tie = match kind {
            HashKind::Legacy => crc32c(!0, entry.name),
            _ => hash.minor,
        };
        let key = key_of(hash.major, tie);
        if key >= resume & !ORDINAL {
            let name = listed()?;
            names.push(Name {
                key,
                ino,
                file_type: entry.file_type,
                name,
            });
        }
        Ok(())
    }

    fn read_by_position(&self, core: &disk::Inode, cookie: u64, emit: Emit<'_>) -> Result<()> {
        let size = self.fs.geo().block_size;
        let indexed = self.is_indexed(core);
        let key = self.names_key(core)?;
        let mut from = size.offset_in_block(cookie);
        let first = u32::try_from(size.file_block(cookie).0).unwrap_or(u32::MAX);
        let mut walk = Walk::default();
        for n in first..self.block_count(core) {
            let more = if n == 0 && indexed {
                let (own, parent) = self.indexed_dots(core)?;
                let dot = dir_entry::entry_size(1) as u64;
                let dots = [
                    (own, &b"."[..], 0, dot),
                    (parent, b"..", dot, size.bytes_u64()),
                ];
                dots.into_iter()
                    .filter(|&(_, _, at, _)| at >= from as u64)
                    .all(|(ino, name, _, next)| {
                        let kind = Some(FileKind::Directory);
                        emit(DirEntry {
                            ino: ino.into(),
                            kind,
                            name,
                            next,
                        })
                    })
            } else {
                self.read_block(core, key.as_deref(), (n, from), &mut walk, emit)?
            };
            if !more {
                return Ok(());
            }
            from = 0;
        }
        Ok(())
    }

    /// Calls `emit` for block `n`'s entries from offset `from` on; returns whether the caller wants more.
    fn read_block(
        &self,
        core: &disk::Inode,
        key: Option<&FileKey>,
        (n, from): (u32, usize),
        walk: &mut Walk,
        emit: Emit<'_>,
    ) -> Result<bool> {
        let buf = self.block(core, n)?;
        walk.visit(self, buf.block())?;
        if self.is_indexed(core) && htree::is_index_block(&self.layout, &buf.data()) {
            return Ok(true);
        }
        let buf = self.leaf(core, n)?;
        let base = u64::from(n) * self.fs.geo().block_size.bytes_u64();
        let data = buf.data();
        for entry in dir_entry::entries(&self.layout, &data) {
            let entry = entry.map_err(self.bad(buf.block()))?;
            let Some(ino) = entry.ino.filter(|_| entry.offset >= from) else {
                continue;
            };
            let next = base + (entry.offset + entry.rec_len) as u64;
            let name = match n == 0 && is_dots(&entry) {
                true => entry.name.into(),
                false => self.listed_name(core, key, &data, &entry)?,
            };
            if !emit(DirEntry {
                ino: ino.into(),
                kind: entry.kind(),
                name: &name,
                next,
            }) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether an entry of a directory's first block is `.` or `..`: the first two are.
fn is_dots(entry: &RawEntry<'_>) -> bool {
    entry.offset <= dir_entry::entry_size(1) && matches!(entry.name, b"." | b"..")
}

fn key_of(major: u32, tie: u32) -> u64 {
    u64::from(major >> 1) << 32 | u64::from(tie) & !ORDINAL
}

fn major_of(key: u64) -> u32 {
    // A made-up cookie may have any value.
    ((key >> 31) & u64::from(u32::MAX - 1)) as u32
}

/// Sorts the names, and numbers those that agree in their keys.
fn order(names: &mut [Name]) {
    names.sort_unstable_by(|a, b| (a.key & !ORDINAL, &a.name).cmp(&(b.key & !ORDINAL, &b.name)));
    let mut group = None;
    let mut ordinal = 0;
    for name in names {
        let base = name.key & !ORDINAL;
        ordinal = if group == Some(base) {
            (ordinal + 1).min(ORDINAL)
        } else {
            0
        };
        group = Some(base);
        name.key = base | ordinal;
    }
}
