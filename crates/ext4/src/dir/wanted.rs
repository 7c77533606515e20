//! A name as a directory compares and hashes it: by its bytes, or in a case-insensitive directory by its folded form.

use std::borrow::Cow;

use steadfs_vfs::{FsError, Result};

use super::Dir;
use crate::disk::casefold::{FoldedName, fold};
use crate::disk::dir_entry::{self, DirLayout, Found, RawEntry, Search};
use crate::disk::hash::{HashKind, NameHash};

/// A name that is searched for.
pub(super) struct Wanted<'n> {
    pub(super) name: &'n [u8],
    /// In a case-insensitive directory.
    folded: Option<FoldedName<'n>>,
}

impl<'n> Wanted<'n> {
    /// A name that is compared by its bytes.
    pub(super) const fn exact(name: &'n [u8]) -> Self {
        Self { name, folded: None }
    }

    /// The bytes whose hash the index has.
    pub(super) fn hashed(&self) -> &[u8] {
        match &self.folded {
            Some(folded) => folded.hashed(),
            None => self.name,
        }
    }

    /// Whether an entry has this name.
    pub(super) fn is(&self, entry: &RawEntry<'_>) -> bool {
        match &self.folded {
            Some(folded) => folded.is_same(entry.name),
            None => entry.is_named(self.name),
        }
    }

    /// [`dir_entry::locate`].
    pub(super) fn locate(
        &self,
        layout: &DirLayout,
        block: &[u8],
    ) -> crate::disk::Result<Option<Found>> {
        match &self.folded {
            Some(_) => dir_entry::locate_by(layout, block, |entry| self.is(entry)),
            None => dir_entry::locate(layout, block, self.name),
        }
    }

    /// [`dir_entry::search`].
    pub(super) fn search(
        &self,
        layout: &DirLayout,
        block: &[u8],
        last: usize,
    ) -> crate::disk::Result<Search> {
        let needed = dir_entry::entry_size(self.name.len());
        match &self.folded {
            Some(_) => dir_entry::search_by(layout, block, needed, |entry| self.is(entry)),
            None => dir_entry::search(layout, block, self.name, last),
        }
    }
}

impl Dir<'_> {
    /// A name as this directory compares it.
    pub(super) fn wanted<'n>(&self, name: &'n [u8]) -> Wanted<'n> {
        let folded = self.encoding.map(|_| FoldedName::new(name));
        Wanted { name, folded }
    }

    /// Refuses a name that the encoding of a case-insensitive directory has not.
    ///
    /// # Errors
    /// `Invalid`, in strict mode only.
    pub(super) fn check_encoded(&self, wanted: &Wanted<'_>) -> Result<()> {
        match (self.encoding, &wanted.folded) {
            (Some(encoding), Some(folded)) => encoding.check(folded),
            _ => Ok(()),
        }
    }

    /// Refuses a new name: as [`Dir::check_encoded`], and one that is the same as `.` or `..`.
    pub(crate) fn check_new_name(&self, name: &[u8]) -> Result<()> {
        let wanted = self.wanted(name);
        self.check_encoded(&wanted)?;
        wanted.folded.map_or(Ok(()), |folded| folded.check_dots())
    }

    /// The hash of the name of an entry.
    pub(super) fn hash(&self, kind: HashKind, name: &[u8]) -> Result<NameHash> {
        let hashed = self.encoding.and_then(|_| fold(name));
        self.hash_bytes(kind, &hashed.map_or(Cow::Borrowed(name), Cow::Owned))
    }

    /// The hash of bytes.
    pub(super) fn hash_bytes(&self, kind: HashKind, bytes: &[u8]) -> Result<NameHash> {
        let params = self.fs.geo().hash.with_kind(kind);
        params.hash(bytes).ok_or(FsError::NotSupported(
            "names hashed with a key in a directory without encryption",
        ))
    }
}
