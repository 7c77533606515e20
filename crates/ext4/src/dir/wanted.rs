//! A name as a directory stores, compares and hashes it: by its bytes, or in a case-insensitive directory by its folded
//! form, encrypted or not.

use std::borrow::Cow;
use std::sync::Arc;

use steadfs_fscrypt::FileKey;
use steadfs_vfs::{FileKind, FsError, InodeFlags, Result};

use super::Dir;
use crate::disk;
use crate::disk::casefold::{FoldedName, fold};
use crate::disk::dir_entry::{self, DirLayout, Found, RawEntry, Search};
use crate::disk::hash::{HashKind, NameHash};
use crate::disk::{Ino, dir_entry::NewEntry};

/// A name that is searched for, or added.
pub(crate) struct Wanted<'n> {
    /// As it is stored.
    pub(super) name: Cow<'n, [u8]>,
    /// In a case-insensitive directory.
    folded: Option<FoldedName<'n>>,
    /// In an encrypted one that is case-insensitive.
    keyed: Option<Keyed>,
}

/// Two spellings differ in their encrypted forms, so entries are decrypted to be compared, and the hash of the folded name
/// has a key.
struct Keyed {
    key: Arc<FileKey>,
    hash: NameHash,
}

impl<'n> Wanted<'n> {
    /// A name that is compared by its bytes.
    pub(super) const fn exact(name: &'n [u8]) -> Self {
        Self::stored(Cow::Borrowed(name))
    }

    const fn stored(name: Cow<'n, [u8]>) -> Self {
        Self {
            name,
            folded: None,
            keyed: None,
        }
    }

    /// A name of an encrypted directory with this key.
    ///
    /// # Errors
    /// `Invalid`: it folds names, and the key is of a policy that has no hash for that.
    pub(super) fn encrypted(key: &Arc<FileKey>, folds: bool, name: &'n [u8]) -> Result<Self> {
        let stored = Self::stored(Cow::Owned(key.encrypt_name(name)));
        if !folds {
            return Ok(stored);
        }
        let folded = FoldedName::new(name);
        let hash = key.hash_name(folded.hashed()).ok_or(FsError::Invalid(
            "a case-insensitive directory with a key that hashes no names",
        ))?;
        Ok(Self {
            folded: Some(folded),
            keyed: Some(Keyed {
                key: Arc::clone(key),
                hash: NameHash::of_keyed(hash),
            }),
            ..stored
        })
    }

    /// The entry of the name.
    pub(super) fn entry(&self, ino: Ino, kind: FileKind) -> NewEntry<'_> {
        NewEntry {
            ino,
            kind,
            name: &self.name,
            hash: self.keyed.as_ref().map(|keyed| keyed.hash),
        }
    }

    /// Whether an entry of this block has this name.
    pub(super) fn is(&self, block: &[u8], entry: &RawEntry<'_>) -> bool {
        match (&self.folded, &self.keyed) {
            (Some(folded), None) => folded.is_same(entry.name),
            (Some(_), Some(keyed)) if entry.stored_hash(block) != keyed.hash => false,
            (Some(folded), Some(keyed)) => {
                let name = keyed.key.decrypt_name(entry.name);
                name.is_ok_and(|name| folded.is_same(&name))
            }
            (None, _) => entry.is_named(&self.name),
        }
    }

    /// [`dir_entry::locate`].
    pub(super) fn locate(
        &self,
        layout: &DirLayout,
        block: &[u8],
    ) -> crate::disk::Result<Option<Found>> {
        match &self.folded {
            Some(_) => dir_entry::locate_by(layout, block, |entry| self.is(block, entry)),
            None => dir_entry::locate(layout, block, &self.name),
        }
    }

    /// [`dir_entry::search`].
    pub(super) fn search(
        &self,
        layout: &DirLayout,
        block: &[u8],
        last: usize,
    ) -> crate::disk::Result<Search> {
        let needed = layout.entry_size(self.name.len());
        match &self.folded {
            Some(_) => dir_entry::search_by(layout, block, needed, |entry| self.is(block, entry)),
            None => dir_entry::search(layout, block, &self.name, last),
        }
    }
}

impl Dir<'_> {
    /// A name as this directory compares it; its names are not encrypted.
    pub(super) fn wanted<'n>(&self, name: &'n [u8]) -> Wanted<'n> {
        let folded = self.encoding.map(|_| FoldedName::new(name));
        Wanted {
            folded,
            ..Wanted::exact(name)
        }
    }

    /// A name to be added, which this directory may have.
    ///
    /// # Errors
    /// `NoKey`: the key of an encrypted directory is not there. `Invalid`: as [`Dir::check_encoded`], or it is the same as
    /// `.` or `..`.
    pub(crate) fn new_name<'n>(&self, core: &disk::Inode, name: &'n [u8]) -> Result<Wanted<'n>> {
        let wanted = match core.has(InodeFlags::ENCRYPTED) {
            true => {
                let key = (self.fs).file_key(self.ino, core, FileKind::Directory, self.tag)?;
                let key = key.ok_or(FsError::NoKey)?;
                Wanted::encrypted(&key, core.has(InodeFlags::CASEFOLD), name)?
            }
            false => self.wanted(name),
        };
        self.check_encoded(&wanted)?;
        if let Some(folded) = &wanted.folded {
            folded.check_dots()?;
        }
        Ok(wanted)
    }

    /// Refuses a name that the encoding of a case-insensitive directory has not.
    ///
    /// # Errors
    /// `Invalid`, in strict mode only.
    pub(super) fn check_encoded(&self, wanted: &Wanted<'_>) -> Result<()> {
        match (self.fs.geo().encoding, &wanted.folded) {
            (Some(encoding), Some(folded)) => encoding.check(folded),
            _ => Ok(()),
        }
    }

    /// The hash of a name that is searched for, or added.
    pub(super) fn hash_wanted(&self, kind: HashKind, wanted: &Wanted<'_>) -> Result<NameHash> {
        match (&wanted.keyed, &wanted.folded) {
            (Some(keyed), _) if kind == HashKind::SipHash => Ok(keyed.hash),
            (Some(_), _) => {
                Err(self
                    .corrupt("the index of encrypted, case-insensitive names has no keyed hashes"))
            }
            (None, Some(folded)) => self.hash_bytes(kind, folded.hashed()),
            (None, None) => self.hash_bytes(kind, &wanted.name),
        }
    }

    /// The hash of the name of an entry, in the block that has it.
    pub(super) fn hash_entry(
        &self,
        kind: HashKind,
        block: &[u8],
        entry: &RawEntry<'_>,
    ) -> Result<NameHash> {
        match self.layout.has_hashes {
            true => Ok(entry.stored_hash(block)),
            false => self.hash(kind, entry.name),
        }
    }

    /// The hash of a name that is stored without one.
    pub(super) fn hash(&self, kind: HashKind, name: &[u8]) -> Result<NameHash> {
        let hashed = self.encoding.and_then(|_| fold(name));
        self.hash_bytes(kind, &hashed.map_or(Cow::Borrowed(name), Cow::Owned))
    }

    fn hash_bytes(&self, kind: HashKind, bytes: &[u8]) -> Result<NameHash> {
        let params = self.fs.geo().hash.with_kind(kind);
        params.hash(bytes).ok_or_else(|| {
            self.corrupt("names are hashed with a key and are not encrypted and case-insensitive")
        })
    }
}
