//! `touch` and `truncate`.

use steadfs_base::size;
use steadfs_vfs::{FileKind, FsError, SetAttr, SetTime};

use super::super::last_name::LastName;
use super::super::walk::{Held, resolve};
use super::super::{Result, refused};
use super::{Editor, InChange, NEW_FILE};

const TOUCH: &str = "cannot touch";
const TRUNCATE: &str = "cannot truncate";

/// The options of [`Editor::touch`].
#[derive(Clone, Copy, Debug)]
pub struct TouchOptions {
    /// The new time of access; `None` leaves it.
    pub atime: Option<SetTime>,
    /// The new time of modification; `None` leaves it.
    pub mtime: Option<SetTime>,
    /// A missing file is not made, without an error.
    pub no_create: bool,
    /// A link itself.
    pub no_follow: bool,
}

/// A new size, absolute or from the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeChange {
    /// This size.
    To(u64),
    /// Larger by this.
    Grow(u64),
    /// Smaller by this, at least 0.
    Shrink(u64),
    /// At most this.
    AtMost(u64),
    /// At least this.
    AtLeast(u64),
    /// Down to a multiple of this.
    RoundDown(u64),
    /// Up to a multiple of this.
    RoundUp(u64),
}

impl SizeChange {
    /// Parses `[+-<>/%]SIZE`.
    ///
    /// # Errors
    /// Why it is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut rest = text.chars();
        let signed: Option<fn(u64) -> Self> = match rest.next() {
            Some('+') => Some(Self::Grow),
            Some('-') => Some(Self::Shrink),
            Some('<') => Some(Self::AtMost),
            Some('>') => Some(Self::AtLeast),
            Some('/') => Some(Self::RoundDown),
            Some('%') => Some(Self::RoundUp),
            _ => None,
        };
        let size = match signed {
            Some(_) => rest.as_str(),
            None => text,
        };
        let size = size::parse(size, 1).map_err(|why| why.to_string())?;
        match signed.unwrap_or(Self::To)(size) {
            Self::RoundDown(0) | Self::RoundUp(0) => Err("is no multiple of 0".to_owned()),
            change => Ok(change),
        }
    }

    /// The size of a file that had `old` bytes; `None` if it is too large.
    pub fn of(self, old: u64) -> Option<u64> {
        match self {
            Self::To(size) => Some(size),
            Self::Grow(by) => old.checked_add(by),
            Self::Shrink(by) => Some(old.saturating_sub(by)),
            Self::AtMost(size) => Some(old.min(size)),
            Self::AtLeast(size) => Some(old.max(size)),
            Self::RoundDown(unit) => Some(old - old % unit),
            Self::RoundUp(unit) => old.checked_next_multiple_of(unit),
        }
    }
}

impl<'a> Editor<'a> {
    /// Sets times, as touch(1).
    ///
    /// # Errors
    /// A signal, or the volume has stopped.
    pub fn touch(&mut self, path: &[u8], options: TouchOptions) -> Result<()> {
        let touched = self.touch_one(path, options);
        self.note(touched)
    }

    fn touch_one(&self, path: &[u8], options: TouchOptions) -> Result<()> {
        let no_create = options.no_create || options.no_follow;
        let Some(file) = self.open_or_make(path, no_create, !options.no_follow, TOUCH)? else {
            return match options.no_create {
                true => Ok(()),
                false => Err(FsError::NotFound).in_change(path, TOUCH),
            };
        };
        let set = SetAttr {
            atime: options.atime,
            mtime: options.mtime,
            ..SetAttr::default()
        };
        let set = self.fs.setattr(self.cx, file.ino(), &set);
        set.map(drop).in_change(path, TOUCH)
    }

    /// Sets a size, as truncate(1).
    ///
    /// # Errors
    /// A signal, or the volume has stopped.
    pub fn truncate(&mut self, path: &[u8], size: SizeChange, no_create: bool) -> Result<()> {
        let set = self.truncate_one(path, size, no_create);
        self.note(set)
    }

    fn truncate_one(&self, path: &[u8], size: SizeChange, no_create: bool) -> Result<()> {
        let (fs, cx) = (self.fs, self.cx);
        let Some(file) = self.open_or_make(path, no_create, true, TRUNCATE)? else {
            return Ok(());
        };
        match file.attr().kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(FsError::IsDir).in_change(path, TRUNCATE),
            _ => return refused(path, "is no regular file"),
        }
        fs.open(cx, file.ino(), true).in_change(path, TRUNCATE)?;
        let size = size.of(file.attr().size).ok_or(FsError::FileTooBig);
        let set = SetAttr {
            size: Some(size.in_change(path, TRUNCATE)?),
            ..SetAttr::default()
        };
        let set = fs.setattr(cx, file.ino(), &set);
        set.map(drop).in_change(path, TRUNCATE)
    }

    /// The file at `path`, which is made if it does not exist, also behind links; `None` with `no_create`.
    fn open_or_make(
        &self,
        path: &[u8],
        no_create: bool,
        follow: bool,
        what: &'static str,
    ) -> Result<Option<Held<'a>>> {
        let (fs, cx) = (self.fs, self.cx);
        match resolve(fs, cx, path, follow) {
            Err(FsError::NotFound) if no_create => return Ok(None),
            Err(FsError::NotFound) => {}
            found => return found.map(Some).in_change(path, what),
        }
        let mode = FileKind::Regular.mode_bits() | NEW_FILE;
        let make = |dir: &Held<'_>, name: &[u8]| fs.mknod(cx, dir.ino(), name, mode, 0);
        let made = LastName::of(fs, cx, path).and_then(|last| last.open(false, make));
        let made = made.map_err(|error| match error {
            // A slash behind a name that is missing.
            FsError::IsDir => FsError::NotFound,
            error => error,
        });
        let made = made.in_change(path, what)?;
        Ok(Some(Held::counted(fs, made)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_changed_as_by_truncate() {
        let change = SizeChange::parse;
        for (text, wanted) in [
            ("5", 5),
            ("+5", 105),
            ("-5", 95),
            ("-500", 0),
            ("<50", 50),
            ("<500", 100),
            (">500", 500),
            (">50", 100),
            ("/30", 90),
            ("%30", 120),
            ("%50", 100),
            ("1.5KiB", 1536),
            ("+1kB", 1100),
        ] {
            assert_eq!(
                change(text).map(|change| change.of(100)),
                Ok(Some(wanted)),
                "{text}"
            );
        }
        for text in ["", "+", "x", "/0", "%0", "--5"] {
            assert!(change(text).is_err(), "{text}");
        }
        assert_eq!(SizeChange::Grow(1).of(u64::MAX), None);
    }
}
