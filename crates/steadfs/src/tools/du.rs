//! `du`: the space that files take.
//!
//! **Rule.** As du(1) counts: the blocks of a directory and of all that is in it. An inode with several names counts where
//! it is met first; with several starting points each file does, so that none counts twice. Memory grows with the number
//! of these inodes, and with the depth.

use std::collections::BTreeSet;

use steadfs_base::InodeNo;
use steadfs_vfs::{Attr, Cx, FileKind, FileSystem};

use super::walk::{Held, resolve};
use super::walker::{Visited, Visitor, visit};
use super::{At, Progress, Result, ToolError};

/// Bytes of a unit of [`Attr::blocks`].
const SECTOR: u64 = 512;

/// What is counted and shown.
#[derive(Clone, Copy, Debug)]
pub struct DuOptions {
    /// Also files that are no directories.
    pub all: bool,
    /// Sizes, not the space of blocks.
    pub apparent: bool,
    /// Directories without those in them.
    pub separate: bool,
    /// Deepest level that is shown; it is counted in any case.
    pub max_depth: usize,
    /// Each name of an inode counts.
    pub count_links: bool,
}

/// Space that is used on one volume.
pub struct Usage<'u> {
    fs: &'u dyn FileSystem,
    cx: &'u Cx,
    options: DuOptions,
    /// Each file counts once, not only those with several names.
    several: bool,
    counted: BTreeSet<InodeNo>,
    /// Bytes of all that was counted.
    pub total: u64,
    /// Files that could not be read.
    pub failures: u64,
}

impl<'u> Usage<'u> {
    /// Of the volume `fs`, where `several` starting points are counted.
    pub fn new(fs: &'u dyn FileSystem, cx: &'u Cx, options: DuOptions, several: bool) -> Self {
        Self {
            fs,
            cx,
            options,
            several,
            counted: BTreeSet::new(),
            total: 0,
            failures: 0,
        }
    }

    /// Counts the tree at `path`; `show` gets the paths and bytes that are to be shown, a directory after what is in it.
    ///
    /// # Errors
    /// There is no such file; those of `show`; a signal.
    pub fn count(
        &mut self,
        path: &[u8],
        progress: &mut dyn Progress,
        show: &mut dyn FnMut(&[u8], u64) -> Result<()>,
    ) -> Result<()> {
        let top = resolve(self.fs, self.cx, path, false).on_volume(path)?;
        self.count_from((top, path), progress, show)
    }

    /// As [`Usage::count`], of a file that was found at a path.
    pub(super) fn count_from(
        &mut self,
        (top, path): (Held<'_>, &[u8]),
        progress: &mut dyn Progress,
        show: &mut dyn FnMut(&[u8], u64) -> Result<()>,
    ) -> Result<()> {
        let (fs, cx) = (self.fs, self.cx);
        let mut counter = Counter {
            usage: self,
            progress,
            show,
            levels: Vec::new(),
        };
        visit(fs, cx, (top, path), false, &mut counter)
    }

    /// Whether a file counts; it does not a second time.
    fn counts(&mut self, attr: &Attr) -> bool {
        let linked = attr.kind != FileKind::Directory && attr.nlink > 1;
        let once = !self.options.count_links && (self.several || linked);
        !once || self.counted.insert(attr.ino)
    }

    fn size(&self, attr: &Attr) -> u64 {
        match self.options.apparent {
            true => attr.size,
            false => attr.blocks.saturating_mul(SECTOR),
        }
    }
}

/// A directory that is visited.
#[derive(Default)]
struct Level {
    /// It was counted before.
    skipped: bool,
    /// Bytes of its entries.
    here: u64,
    /// Bytes of what is in its directories.
    below: u64,
}

struct Counter<'c, 'u> {
    usage: &'c mut Usage<'u>,
    progress: &'c mut dyn Progress,
    show: &'c mut dyn FnMut(&[u8], u64) -> Result<()>,
    levels: Vec<Level>,
}

impl Visitor for Counter<'_, '_> {
    fn enter(&mut self, file: Visited<'_>) -> Result<bool> {
        if self.progress.stopped() {
            return Err(ToolError::Stopped);
        }
        let counts = self.usage.counts(file.attr);
        if file.attr.kind == FileKind::Directory {
            let skipped = !counts;
            self.levels.push(Level {
                skipped,
                ..Level::default()
            });
            return Ok(counts);
        }
        if !counts {
            return Ok(false);
        }
        let size = self.usage.size(file.attr);
        self.usage.total = self.usage.total.saturating_add(size);
        if let Some(level) = self.levels.last_mut() {
            level.here = level.here.saturating_add(size);
        }
        if file.depth == 0 || self.usage.options.all && file.depth <= self.usage.options.max_depth {
            (self.show)(file.path, size)?;
        }
        Ok(false)
    }

    fn leave(&mut self, dir: Visited<'_>) -> Result<()> {
        let level = self.levels.pop().unwrap_or_default();
        if level.skipped {
            return Ok(());
        }
        let options = self.usage.options;
        let own = self.usage.size(dir.attr);
        self.usage.total = self.usage.total.saturating_add(own);
        let inside = level.here.saturating_add(level.below);
        if let Some(around) = self.levels.last_mut() {
            if !options.separate {
                around.here = around.here.saturating_add(own);
            }
            around.below = around.below.saturating_add(inside);
        }
        let shown = own.saturating_add(if options.separate { level.here } else { inside });
        match dir.depth <= options.max_depth {
            true => (self.show)(dir.path, shown),
            false => Ok(()),
        }
    }

    fn problem(&mut self, error: ToolError) -> Result<()> {
        self.usage.failures += 1;
        self.progress.problem(&error);
        Ok(())
    }
}

/// The unit in which bytes are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Multiples of this many bytes, rounded up.
    Bytes(u64),
    /// As short as possible, rounded up: `4.0K`; powers of this number.
    Human(u64),
}

impl Unit {
    /// A number of bytes.
    pub fn show(self, bytes: u64) -> String {
        match self {
            Self::Bytes(unit) => bytes.div_ceil(unit.max(1)).to_string(),
            Self::Human(base) => human(bytes, base),
        }
    }
}

/// Rounds up, to a tenth below ten.
fn human(bytes: u64, base: u64) -> String {
    let letters = match base {
        1000 => "kMGTPE",
        _ => "KMGTPE",
    };
    if bytes < base {
        return bytes.to_string();
    }
    let (bytes, base) = (u128::from(bytes), u128::from(base));
    let mut unit = 1;
    let mut shown = bytes.to_string();
    for letter in letters.chars() {
        unit *= base;
        let tenths = (bytes * 10).div_ceil(unit);
        let whole = bytes.div_ceil(unit);
        shown = match tenths < 100 {
            true => format!("{}.{}{letter}", tenths / 10, tenths % 10),
            false => format!("{whole}{letter}"),
        };
        if whole < base {
            break;
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results are those of du(1), coreutils 9.1.
    #[test]
    fn bytes_are_rounded_up() {
        for (bytes, wanted, si) in [
            (0, "0", "0"),
            (999, "999", "999"),
            (1000, "1000", "1.0k"),
            (1023, "1023", "1.1k"),
            (1024, "1.0K", "1.1k"),
            (1025, "1.1K", "1.1k"),
            (4096, "4.0K", "4.1k"),
            (10_189, "10K", "11k"),
            (10_240, "10K", "11k"),
            (1_047_553, "1.0M", "1.1M"),
            (1 << 40, "1.0T", "1.1T"),
            (u64::MAX, "16E", "19E"),
        ] {
            assert_eq!(Unit::Human(1024).show(bytes), wanted, "{bytes}");
            assert_eq!(Unit::Human(1000).show(bytes), si, "{bytes}");
        }
        assert_eq!(Unit::Bytes(1024).show(1025), "2");
        assert_eq!(Unit::Bytes(1).show(7), "7");
    }
}
