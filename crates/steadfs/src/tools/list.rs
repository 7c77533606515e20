//! Listings, and the text form of attributes.

use std::fmt::Write as _;

use steadfs_base::{InodeNo, Timestamp};
use steadfs_vfs::{Attr, Cx, FileKind, FileSystem, FsError};

use super::copying::Follow;
use super::walk::{Entry, Held, VisitedDirs, check_depth, child, entries, resolve};
use super::{At, Result, ToolError, join, push};

/// What [`list`] shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListOptions {
    /// Also names that begin with a dot.
    pub all: bool,
    /// Also `.` and `..`.
    pub dots: bool,
    /// The directory itself, not what is in it.
    pub directory: bool,
    /// A link that is named is shown itself; otherwise what is in the directory that it leads to, if it does.
    pub no_follow: bool,
    /// Only names, types and inode numbers are wanted: a file whose directory entry has its type is not looked up.
    pub names: bool,
}

/// A file of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name in the directory, or the path as given.
    pub name: Vec<u8>,
    /// Its attributes, if they can be read; `None` where [`ListOptions::names`] left them out.
    pub attr: Option<Result<Attr, FsError>>,
    /// Its type: without attributes that of the directory's entry, if it has one.
    pub kind: Option<FileKind>,
    /// Its inode number; without attributes the entry's.
    pub ino: InodeNo,
    /// Where a symbolic link leads.
    pub target: Option<Vec<u8>>,
}

/// What is in one directory, sorted by name, or the one file that was asked for.
#[derive(Debug)]
pub struct Listing {
    /// The path of the directory, or of the file.
    pub path: Vec<u8>,
    /// Whether it is a directory's content.
    pub is_dir: bool,
    /// The files.
    pub files: Vec<Listed>,
    /// What of it could not be read.
    pub errors: Vec<ToolError>,
}

/// What is in the directory at `path`, sorted by name, or the one file that is there.
///
/// # Errors
/// Those of finding the file at `path`. What else cannot be read is in the listing.
pub fn list(fs: &dyn FileSystem, cx: &Cx, path: &[u8], options: ListOptions) -> Result<Listing> {
    Listings::new(fs, cx, path, options).first()
}

#[derive(Clone, Copy)]
struct Lister<'a> {
    fs: &'a dyn FileSystem,
    cx: &'a Cx,
    options: ListOptions,
}

impl<'a> Lister<'a> {
    fn is_content(&self, of: &Held<'_>) -> bool {
        !self.options.directory && of.attr().kind == FileKind::Directory
    }

    /// What is shown for the path that is named: as in ls(1) a link itself, but for the directory that it leads to.
    fn named(&self, path: &[u8]) -> steadfs_vfs::Result<Held<'a>> {
        let Self { fs, cx, options } = *self;
        let named = resolve(fs, cx, path, false)?;
        if named.attr().kind != FileKind::Symlink || options.directory || options.no_follow {
            return Ok(named);
        }
        match resolve(fs, cx, path, true) {
            Ok(found) if found.attr().kind == FileKind::Directory => Ok(found),
            _ => Ok(named),
        }
    }

    /// The listing of `found`; `above` is the directory around it, if that is known.
    fn listing(&self, path: &[u8], found: &Held<'_>, above: Option<&Held<'_>>) -> Listing {
        let Self { fs, cx, options } = *self;
        let mut listing = Listing {
            path: path.to_vec(),
            is_dir: self.is_content(found),
            files: Vec::new(),
            errors: Vec::new(),
        };
        if !listing.is_dir {
            self.add(&mut listing, path, path, found);
            return listing;
        }
        let (mut entries, error) = entries(fs, cx, found.ino());
        listing.note(path, error);
        entries.retain(|entry| options.all || !entry.name.starts_with(b"."));
        if options.dots {
            self.add(&mut listing, path, b".", found);
            self.add_above(&mut listing, path, above);
        }
        let dots = listing.files.len();
        let mut unreadable = Vec::new();
        // In the order of the directory, in which lookups need no search.
        for entry in entries {
            if options.names && entry.kind.is_some() {
                listing.files.push(Listed::unread(entry, None));
                continue;
            }
            let at = join(path, &entry.name);
            match child(fs, cx, found.ino(), &entry.name) {
                Ok(file) => self.add(&mut listing, &at, &entry.name, &file),
                Err(error) => {
                    unreadable.push((at, error.clone()));
                    listing.files.push(Listed::unread(entry, Some(error)));
                }
            }
        }
        listing.files[dots..].sort_by(|a, b| a.name.cmp(&b.name));
        unreadable.sort_by(|a, b| a.0.cmp(&b.0));
        for (at, error) in unreadable {
            listing.note(&at, Some(error));
        }
        listing
    }

    /// Adds the entry `..` of the directory at `path`.
    fn add_above(&self, listing: &mut Listing, path: &[u8], known: Option<&Held<'_>>) {
        let at = join(path, b"..");
        if let Some(parent) = known {
            return self.add(listing, &at, b"..", parent);
        }
        match resolve(self.fs, self.cx, &at, true) {
            Ok(parent) => self.add(listing, &at, b"..", &parent),
            Err(error) => listing.note(&at, Some(error)),
        }
    }

    fn add(&self, listing: &mut Listing, at: &[u8], name: &[u8], file: &Held<'_>) {
        let attr = file.attr().clone();
        let target = match attr.kind {
            FileKind::Symlink => match self.fs.readlink(self.cx, attr.ino) {
                Ok(target) => Some(target),
                Err(error) => {
                    listing.note(at, Some(error));
                    None
                }
            },
            _ => None,
        };
        listing.files.push(Listed {
            name: name.to_vec(),
            kind: Some(attr.kind),
            ino: attr.ino,
            attr: Some(Ok(attr)),
            target,
        });
    }
}

impl Listed {
    /// A directory's entry, whose file could not be read for this reason, or was not.
    fn unread(entry: Entry, error: Option<FsError>) -> Self {
        Self {
            name: entry.name,
            attr: error.map(Err),
            kind: entry.kind,
            ino: entry.ino,
            target: None,
        }
    }

    /// Its attributes, if they were read.
    pub fn known(&self) -> Option<&Attr> {
        self.attr.as_ref()?.as_ref().ok()
    }
}

impl Listing {
    fn note(&mut self, path: &[u8], error: Option<FsError>) {
        let path = path.to_vec();
        let error = error.map(|source| ToolError::Volume { path, source });
        self.errors.extend(error);
    }
}

/// The listings of a directory and of all directories below it: each before those below it, sorted by name.
pub struct Listings<'a> {
    lister: Lister<'a>,
    /// The directory that was listed last; `levels` has one level for it and for each directory around it.
    path: Vec<u8>,
    levels: Vec<Level<'a>>,
    folders: VisitedDirs,
    /// The top has not been listed yet.
    top: bool,
}

/// A directory between the top and the current one.
struct Level<'a> {
    held: Held<'a>,
    /// The length of its path.
    path: usize,
    /// The directories in it that are still to be listed.
    names: std::vec::IntoIter<Vec<u8>>,
}

impl<'a> Listings<'a> {
    /// Of the directory at `path`, or the one file that is there.
    pub fn new(fs: &'a dyn FileSystem, cx: &'a Cx, path: &[u8], options: ListOptions) -> Self {
        Self {
            lister: Lister { fs, cx, options },
            path: path.to_vec(),
            levels: Vec::new(),
            folders: VisitedDirs::new(Follow::Never),
            top: true,
        }
    }

    /// Lists what is at the path.
    fn enter(&mut self, found: Held<'a>) -> Result<Listing> {
        let is_dir = self.lister.is_content(&found);
        if is_dir {
            check_depth(self.levels.len(), &self.path)?;
            self.folders.add(found.ino()).on_volume(&self.path)?;
        }
        let above = self.levels.last().map(|level| &level.held);
        let listing = self.lister.listing(&self.path, &found, above);
        let is_below = |file: &&Listed| {
            is_dir
                && !matches!(file.attr, Some(Err(_)))
                && file.kind == Some(FileKind::Directory)
                && file.name != b"."
                && file.name != b".."
        };
        let names: Vec<_> = listing
            .files
            .iter()
            .filter(is_below)
            .map(|file| file.name.clone())
            .collect();
        self.levels.push(Level {
            held: found,
            path: self.path.len(),
            names: names.into_iter(),
        });
        Ok(listing)
    }

    fn first(&mut self) -> Result<Listing> {
        let found = self.lister.named(&self.path).on_volume(&self.path)?;
        self.enter(found)
    }
}

impl Iterator for Listings<'_> {
    type Item = Result<Listing>;

    fn next(&mut self) -> Option<Self::Item> {
        if std::mem::take(&mut self.top) {
            return Some(self.first());
        }
        loop {
            let level = self.levels.last_mut()?;
            self.path.truncate(level.path);
            let Some(name) = level.names.next() else {
                self.levels.pop();
                continue;
            };
            push(&mut self.path, &name);
            let found = child(self.lister.fs, self.lister.cx, level.held.ino(), &name);
            return Some(
                found
                    .on_volume(&self.path)
                    .and_then(|found| self.enter(found)),
            );
        }
    }
}

/// Type and permissions as ls(1) shows them: `drwxr-xr-x`.
pub fn mode_string(kind: FileKind, perm: u32) -> String {
    let mut out = String::with_capacity(10);
    out.push(match kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    });
    // For owner, group and others: the special bit, and its letter with and without execution.
    let specials = [(0o4000, 's', 'S'), (0o2000, 's', 'S'), (0o1000, 't', 'T')];
    for (shift, (special, with, without)) in [6, 3, 0].into_iter().zip(specials) {
        let bits = perm >> shift;
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        out.push(match (perm & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => with,
            (true, false) => without,
        });
    }
    out
}

/// Major and minor number in a device node's `rdev`.
pub const fn device_numbers(rdev: u32) -> (u32, u32) {
    let major = (rdev >> 8) & 0xfff;
    let minor = (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00);
    (major, minor)
}

/// A time in UTC: `2026-11-21 03:42:07.123456789`, or without the fraction.
pub fn utc(time: Timestamp, fraction: bool) -> String {
    let days = time.secs.div_euclid(86_400);
    let second = time.secs.rem_euclid(86_400);
    let (year, month, day) = civil(days);
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    let mut out = format!("{year:04}-{month:02}-{day:02} {h:02}:{m:02}:{s:02}");
    if fraction {
        let _ = write!(out, ".{:09}", time.nanos);
    }
    out
}

/// Year, month and day of a number of days after 1970-01-01, in the Gregorian calendar.
///
/// Years here begin in March, so that the leap day comes last; 400 of them have 146 097 days.
pub(super) fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468; // From 0000-03-01 to 1970-01-01.
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153; // Months from March: 31 30 31 30 31, repeating.
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_shown_as_by_ls() {
        let m = mode_string;
        assert_eq!(m(FileKind::Regular, 0o644), "-rw-r--r--");
        assert_eq!(m(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(m(FileKind::Regular, 0o6750), "-rwsr-s---");
        assert_eq!(m(FileKind::Socket, 0o7000), "s--S--S--T");
    }

    #[test]
    fn days_are_converted_to_dates() {
        let at = |secs| utc(Timestamp { secs, nanos: 7 }, false);
        assert_eq!(at(0), "1970-01-01 00:00:00");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(at(1_763_696_527), "2025-11-21 03:42:07");
        assert_eq!(at(-1), "1969-12-31 23:59:59");
        assert_eq!(at(-2_147_483_648), "1901-12-13 20:45:52");
        assert_eq!(at(15_032_385_535), "2446-05-10 22:38:55");
        let time = Timestamp { secs: 1, nanos: 7 };
        assert_eq!(utc(time, true), "1970-01-01 00:00:01.000000007");
    }

    #[test]
    fn device_numbers_have_two_parts() {
        assert_eq!(device_numbers(0x0801), (8, 1));
        assert_eq!(device_numbers(0x1234_5678), (0x456, 0x1_2378));
    }
}
