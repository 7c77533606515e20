//! Listing files, and the words in which attributes are shown.

use std::fmt::Write as _;

use steadfs_base::Timestamp;
use steadfs_vfs::{Attr, Cx, FileKind, FileSystem};

use super::walk::{Held, Met, check_depth, child, read_dir, resolve};
use super::{At, Result, join, push};

/// What [`list`] shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListOptions {
    /// Also names that begin with a dot.
    pub all: bool,
    /// Also `.` and `..`.
    pub dots: bool,
    /// The directory itself, not what is in it.
    pub directory: bool,
}

/// A file of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name in the directory, or the path as it was asked for.
    pub name: Vec<u8>,
    /// Its attributes.
    pub attr: Attr,
    /// Where a symbolic link leads.
    pub target: Option<Vec<u8>>,
}

/// What is in one directory, sorted by name, or the one file that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The path of the directory, or of the file.
    pub path: Vec<u8>,
    /// Whether it is a directory's content.
    pub is_dir: bool,
    /// The files.
    pub files: Vec<Listed>,
}

/// What is in the directory at `path`, sorted by name, or the one file that is there.
///
/// # Errors
/// Those of finding and reading the directory and each of its files.
pub fn list(
    fs: &dyn FileSystem,
    cx: &Cx,
    path: &[u8],
    options: ListOptions,
) -> Result<Vec<Listed>> {
    let found = resolve(fs, cx, path, !options.directory).on_volume(path)?;
    Lister { fs, cx, options }.files(path, &found, None)
}

#[derive(Clone, Copy)]
struct Lister<'a> {
    fs: &'a dyn FileSystem,
    cx: &'a Cx,
    options: ListOptions,
}

impl Lister<'_> {
    fn is_content(&self, of: &Held<'_>) -> bool {
        !self.options.directory && of.attr().kind == FileKind::Directory
    }

    /// The files of a listing of `found`; `above` is the directory around it, if that is known.
    fn files(
        &self,
        path: &[u8],
        found: &Held<'_>,
        above: Option<&Held<'_>>,
    ) -> Result<Vec<Listed>> {
        let Self { fs, cx, options } = *self;
        if !self.is_content(found) {
            return Ok(vec![listed(fs, cx, path, path, found)?]);
        }
        let mut entries = read_dir(fs, cx, found.ino()).on_volume(path)?;
        entries.retain(|entry| options.all || !entry.name.starts_with(b"."));
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let mut files = Vec::with_capacity(entries.len());
        if options.dots {
            files.push(listed(fs, cx, path, b".", found)?);
            files.push(self.above(path, above)?);
        }
        for entry in entries {
            let at = join(path, &entry.name);
            let file = child(fs, cx, found.ino(), &entry.name).on_volume(&at)?;
            files.push(listed(fs, cx, &at, &entry.name, &file)?);
        }
        Ok(files)
    }

    /// The entry `..` of the directory at `path`.
    fn above(&self, path: &[u8], known: Option<&Held<'_>>) -> Result<Listed> {
        let Self { fs, cx, .. } = *self;
        let at = join(path, b"..");
        if let Some(parent) = known {
            return listed(fs, cx, &at, b"..", parent);
        }
        let parent = resolve(fs, cx, &at, true).on_volume(&at)?;
        listed(fs, cx, &at, b"..", &parent)
    }
}

/// The listings of a directory and of all that are below it: each before those below it, in the order of names.
pub struct Listings<'a> {
    lister: Lister<'a>,
    /// The directory that was listed last, with a level for each one around it.
    path: Vec<u8>,
    levels: Vec<Level<'a>>,
    folders: Met,
    /// What is listed first, if it was not yet.
    top: bool,
}

/// A directory on the way down.
struct Level<'a> {
    held: Held<'a>,
    /// How much of the path is its own.
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
            folders: Met::default(),
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
        let files = self.lister.files(&self.path, &found, above)?;
        let is_below = |file: &&Listed| {
            is_dir
                && file.attr.kind == FileKind::Directory
                && file.name != b"."
                && file.name != b".."
        };
        let names: Vec<_> = files
            .iter()
            .filter(is_below)
            .map(|file| file.name.clone())
            .collect();
        self.levels.push(Level {
            held: found,
            path: self.path.len(),
            names: names.into_iter(),
        });
        Ok(Listing {
            path: self.path.clone(),
            is_dir,
            files,
        })
    }

    fn first(&mut self) -> Result<Listing> {
        let Lister { fs, cx, options } = self.lister;
        let found = resolve(fs, cx, &self.path, !options.directory).on_volume(&self.path)?;
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

fn listed(fs: &dyn FileSystem, cx: &Cx, at: &[u8], name: &[u8], file: &Held<'_>) -> Result<Listed> {
    let attr = file.attr().clone();
    let target = match attr.kind {
        FileKind::Symlink => Some(fs.readlink(cx, attr.ino).on_volume(at)?),
        _ => None,
    };
    Ok(Listed {
        name: name.to_vec(),
        attr,
        target,
    })
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
fn civil(days: i64) -> (i64, i64, i64) {
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
    fn modes_read_as_ls_has_them() {
        let m = mode_string;
        assert_eq!(m(FileKind::Regular, 0o644), "-rw-r--r--");
        assert_eq!(m(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(m(FileKind::Regular, 0o6750), "-rwsr-s---");
        assert_eq!(m(FileKind::Socket, 0o7000), "s--S--S--T");
    }

    #[test]
    fn days_have_dates() {
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
