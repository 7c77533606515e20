//! Directories that a copy reads before it visits them.
//!
//! **Problem.** Where calls go to another process, a copy would wait at the end of each directory: for the entries of the
//! next one, and for the first files in it.
//! **Rule.** The volume is asked for the files of a directory some time before they are visited ([`Visit::next`]). When all
//! of them are asked for, the next directory is read and its first files are asked for ([`look_ahead`]).

use std::cmp::Ordering;

use steadfs_base::InodeNo;
use steadfs_vfs::{Cx, FileKind, FileSystem, FsError, Result};

use super::copying::Log;
use super::walk::{Entry, Held, child, entries};
use super::{LISTS, printable};

/// Entries that are announced at once.
const BATCH: usize = 32;

/// The order in which a copy visits the entries of a directory.
pub(super) type Order = fn(&Entry, &Entry) -> Ordering;

/// A directory as it was read.
pub(super) struct Opened<'a> {
    pub held: Held<'a>,
    pub entries: Vec<Entry>,
    /// The first entries, which were announced.
    announced: usize,
    /// Why entries are missing.
    pub error: Option<FsError>,
    pub xattrs: Xattrs,
}

impl<'a> Opened<'a> {
    /// Reads a directory.
    pub fn read(fs: &'a dyn FileSystem, cx: &Cx, held: Held<'a>, order: Order) -> Self {
        let (mut entries, error) = entries(fs, cx, held.ino());
        entries.sort_unstable_by(order);
        let xattrs = Xattrs::read(fs, cx, held.ino());
        Self {
            held,
            entries,
            announced: 0,
            error,
            xattrs,
        }
    }

    /// The entries as they will be visited, after unwanted ones were removed.
    pub fn visit(&mut self) -> Visit<'a> {
        let entries = std::mem::take(&mut self.entries);
        Visit {
            announced: self.announced.min(entries.len()),
            entries: entries.into_iter(),
            next_dir: None,
        }
    }
}

/// The entries of a directory that are still to be visited.
pub(super) struct Visit<'a> {
    entries: std::vec::IntoIter<Entry>,
    /// The first ones, which were announced.
    announced: usize,
    /// The next directory of them, by its name.
    next_dir: Option<(Vec<u8>, Box<Opened<'a>>)>,
}

impl<'a> Visit<'a> {
    /// The next entry of `dir`.
    pub fn next(&mut self, fs: &dyn FileSystem, cx: &Cx, dir: InodeNo) -> Option<Entry> {
        while self.announced <= BATCH && self.announced < self.entries.len() {
            let rest = &self.entries.as_slice()[self.announced..];
            self.announced += announce(fs, cx, dir, rest);
        }
        self.announced = self.announced.saturating_sub(1);
        self.entries.next()
    }

    /// The directory of this name, if it was read ahead.
    pub fn take_opened(&mut self, name: &[u8]) -> Option<Opened<'a>> {
        let (_, opened) = self.next_dir.take_if(|(ahead, _)| ahead == name)?;
        Some(*opened)
    }

    /// Reads the next directory in `dir`, if there is one soon.
    fn open_next(&mut self, fs: &'a dyn FileSystem, cx: &Cx, dir: InodeNo, order: Order) {
        let soon = self.entries.as_slice().iter().take(BATCH);
        let mut dirs = soon.filter(|entry| entry.kind == Some(FileKind::Directory));
        let (Some(entry), None) = (dirs.next(), &self.next_dir) else {
            return;
        };
        // An error is met again when the copy visits it.
        let Ok(held) = child(fs, cx, dir, &entry.name) else {
            return;
        };
        let mut opened = Opened::read(fs, cx, held, order);
        opened.announced = announce(fs, cx, opened.held.ino(), &opened.entries);
        self.next_dir = Some((entry.name.clone(), Box::new(opened)));
    }
}

/// Announces the first ones of these entries; returns their number.
fn announce(fs: &dyn FileSystem, cx: &Cx, dir: InodeNo, entries: &[Entry]) -> usize {
    let batch = &entries[..entries.len().min(BATCH)];
    if !batch.is_empty() {
        let names: Vec<&[u8]> = batch.iter().map(|entry| &entry.name[..]).collect();
        fs.expect(cx, dir, &names);
    }
    batch.len()
}

/// Reads the next directory, if all entries of the innermost one were announced. `levels` are the directories around the
/// current file, the innermost first.
pub(super) fn look_ahead<'a, 'v>(
    (fs, cx): (&'a dyn FileSystem, &Cx),
    order: Order,
    levels: impl Iterator<Item = (InodeNo, &'v mut Visit<'a>)>,
) where
    'a: 'v,
{
    for (at, (dir, visit)) in levels.enumerate() {
        if at == 0 && visit.announced < visit.entries.len() {
            return;
        }
        if visit.entries.len() > 0 {
            visit.open_next(fs, cx, dir, order);
            return;
        }
    }
}

/// The name of an extended attribute, and its value or why it cannot be read.
type Xattr = (Vec<u8>, Result<Vec<u8>>);

/// The extended attributes of a file, or why they cannot be listed.
pub(super) struct Xattrs(Result<Vec<Xattr>>);

impl Xattrs {
    /// Reads them.
    pub fn read(fs: &dyn FileSystem, cx: &Cx, ino: InodeNo) -> Self {
        Self(fs.listxattr(cx, ino).map(|names| {
            let values = names.into_iter().map(|name| {
                let value = fs.getxattr(cx, ino, &name);
                (name, value)
            });
            values.collect()
        }))
    }

    /// The permissions of a file that has `perm` and these attributes, until its access list is set.
    pub fn perm_without_list(&self, perm: u32) -> u32 {
        let Ok(all) = &self.0 else {
            return super::perm_without_list(perm, None);
        };
        let list = all.iter().find(|(name, _)| name == LISTS[0]);
        list.map_or(perm, |(_, list)| {
            super::perm_without_list(perm, list.as_deref().ok())
        })
    }

    /// Those with a value that are wanted. The others that are wanted are reported as not kept.
    pub fn kept(
        self,
        path: &[u8],
        log: &mut Log<'_>,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Vec<(Vec<u8>, Vec<u8>)> {
        let xattrs = self.0.unwrap_or_else(|error| {
            log.not_kept(path, "extended attributes", &error);
            Vec::new()
        });
        let mut kept = Vec::with_capacity(xattrs.len());
        for (name, value) in xattrs.into_iter().filter(|(name, _)| wanted(name)) {
            match value {
                Ok(value) => kept.push((name, value)),
                Err(error) => {
                    let shown = format!("attribute {}", printable(&name));
                    log.not_kept(path, &shown, &error);
                }
            }
        }
        kept
    }
}
