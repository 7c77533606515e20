//! A name as a directory compares and hashes it: by its bytes, by its folded form if the directory is case-insensitive.
//! In an encrypted directory these are encrypted bytes, or the no-key form of these without the key. If it is also
//! case-insensitive, the folded form has a keyed hash, and entries are decrypted to be compared.

use std::borrow::Cow;
use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_base::limits::NAME_MAX;
use steadfs_fscrypt::FileKey;
use steadfs_vfs::nokey::{show, shown_hash};
use steadfs_vfs::{FsError, InodeFlags, Result, names::is_dots};

use super::{FoundDentry, shown_recovered};
use crate::disk;
use crate::disk::casefold::{Encoding, FoldedName};
use crate::disk::dentry::{self, DentryLayout, Entry};
use crate::disk::hash;
use crate::disk::inode::Advise;
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::options::LookupMode;

/// A name to look up, and its hash.
pub(super) struct LookupName<'a> {
    pub(super) hash: u32,
    /// As it is stored, but for no-key forms and folded names.
    name: Cow<'a, [u8]>,
    /// The name is the no-key form of an encrypted name.
    shown: bool,
    /// In a case-insensitive directory, but for `.` and `..`.
    folded: Option<(Encoding, FoldedName<'a>)>,
    /// Entries are decrypted to be compared.
    key: Option<Arc<FileKey>>,
}

/// How a directory encodes a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameEncoding {
    Plain,
    Encrypted,
    /// Also case-insensitive, with this hash.
    EncryptedAndFolded(u32),
}

/// A new name, as it is stored in a directory and in its inode.
pub(crate) struct StoredName<'n> {
    /// As callers give it.
    pub(crate) plain: &'n [u8],
    /// As it is stored.
    pub(crate) bytes: Cow<'n, [u8]>,
    encoding: NameEncoding,
}

impl StoredName<'_> {
    /// No name.
    pub(crate) const NONE: StoredName<'static> = StoredName {
        plain: b"",
        bytes: Cow::Borrowed(b""),
        encoding: NameEncoding::Plain,
    };

    /// Gives the name to an inode, for roll-forward.
    pub(crate) fn put(&self, core: &mut disk::Inode) {
        core.name = self.bytes.to_vec();
        core.name_hash = 0;
        core.advise = match self.encoding {
            NameEncoding::Plain => core.advise.without(Advise::ENCRYPTED_NAME),
            _ => core.advise.union(Advise::ENCRYPTED_NAME),
        };
        if let NameEncoding::EncryptedAndFolded(hash) = self.encoding {
            match core.name.len() + size_of_val(&hash) <= NAME_MAX {
                true => core.name_hash = hash,
                // Roll-forward could not find the place of the name.
                false => core.advise = core.advise.union(Advise::LOST_PARENT),
            }
        }
    }
}

impl<'a> LookupName<'a> {
    /// `None` if the directory cannot hold such a name.
    pub(super) fn new(fs: &F2fs, dir: &Inode, name: &'a [u8], tag: IoTag) -> Result<Option<Self>> {
        if !dir.is_encrypted() || is_dots(name) {
            return Ok(Some(Self::plain(fs, dir, name)));
        }
        let Some(key) = fs.names_key(dir, tag)? else {
            // Without the key only no-key names exist.
            return Ok(shown_hash(name).map(|hash| Self {
                hash,
                name: name.into(),
                shown: true,
                folded: None,
                key: None,
            }));
        };
        let plain = Self::plain(fs, dir, name);
        Ok(Some(match &plain.folded {
            Some((_, folded)) => Self {
                // The low half, as in the kernel.
                hash: key.hash_name(folded.hashed()).unwrap_or_default() as u32,
                key: Some(key),
                ..plain
            },
            None => {
                let stored = key.encrypt_name(name);
                Self {
                    hash: hash::of_name(&stored),
                    name: stored.into(),
                    ..plain
                }
            }
        }))
    }

    /// A name that is to be added.
    ///
    /// # Errors
    /// `NoKey`: the key of an encrypted directory is not there.
    pub(super) fn new_name(fs: &F2fs, dir: &Inode, name: &'a [u8], tag: IoTag) -> Result<Self> {
        let wanted = Self::new(fs, dir, name, tag)?;
        wanted.filter(|wanted| !wanted.shown).ok_or(FsError::NoKey)
    }

    /// A name as an encrypted directory stores it; `hash`: if the directory is also case-insensitive.
    pub(super) fn encrypted(dir: &Inode, stored: &'a [u8], hash: u32) -> Self {
        let folds = dir.flags().contains(InodeFlags::CASEFOLD);
        Self {
            hash: if folds { hash } else { hash::of_name(stored) },
            name: stored.into(),
            shown: false,
            folded: None,
            key: None,
        }
    }

    /// Bytes of the name as it is stored.
    pub(super) fn stored_len(&self) -> usize {
        match &self.key {
            Some(key) => key.encrypt_name(&self.name).len(),
            None => self.name.len(),
        }
    }

    /// A name that is not encrypted.
    pub(super) fn plain(fs: &F2fs, dir: &Inode, name: &'a [u8]) -> Self {
        let folds = |_: &Encoding| dir.flags().contains(InodeFlags::CASEFOLD) && !is_dots(name);
        let folded = (fs.layout.encoding.filter(folds)).map(|encoding| (encoding, folded(name)));
        let hashed = folded.as_ref().map_or(name, |(_, folded)| folded.hashed());
        Self {
            hash: hash::of_name(hashed),
            name: name.into(),
            shown: false,
            folded,
            key: None,
        }
    }

    /// Finds the entry in an area.
    pub(super) fn find<'b>(&self, layout: &DentryLayout, bytes: &'b [u8]) -> Option<Entry<'b>> {
        if !self.shown && self.folded.is_none() {
            return dentry::find(layout, bytes, self.hash, &self.name);
        }
        dentry::entries(layout, bytes, 0)
            .flatten()
            .filter(|entry| entry.hash == self.hash && !entry.is_dot())
            .find(|entry| match self.shown {
                true => show([entry.hash, 0], entry.name).as_deref() == Some(&*self.name),
                false => self.is_entry(entry.name),
            })
    }

    /// Finds the entry in an area, whatever its hash. Returns also whether all hashes are right.
    fn find_misplaced<'b>(
        &self,
        layout: &DentryLayout,
        bytes: &'b [u8],
    ) -> (Option<Entry<'b>>, bool) {
        let mut orderly = true;
        for entry in dentry::entries(layout, bytes, 0).flatten() {
            if entry.is_dot() {
                continue;
            }
            if self.is_same(entry.name) {
                return (Some(entry), orderly);
            }
            // Names in ASCII were folded alike at all times.
            orderly = orderly
                && (entry.name.is_ascii()
                    || hash::of_name(folded(entry.name).hashed()) == entry.hash);
        }
        (None, orderly)
    }

    /// Whether a stored name is the same.
    fn is_entry(&self, stored: &[u8]) -> bool {
        match &self.key {
            Some(key) => key
                .decrypt_name(stored)
                .is_ok_and(|name| self.is_same(&name)),
            None => self.is_same(stored),
        }
    }

    /// Whether another plain name is the same.
    pub(super) fn is_same(&self, other: &[u8]) -> bool {
        match &self.folded {
            Some((_, folded)) => folded.is_same(other),
            None => *self.name == *other,
        }
    }

    /// Refuses a name that the encoding of a case-insensitive directory has not.
    ///
    /// # Errors
    /// `Invalid`, in strict mode only.
    pub(super) fn check_encoded(&self) -> Result<()> {
        match &self.folded {
            Some((encoding, folded)) => encoding.check(folded),
            None => Ok(()),
        }
    }
}

fn folded(name: &[u8]) -> FoldedName<'_> {
    FoldedName::within(name, hash::FOLDED_MAX)
}

impl F2fs {
    /// Whether names that are not where their hashes lead to are looked for (`lookup_mode=`).
    fn looks_everywhere(&self, dir: &Inode, wanted: &LookupName<'_>) -> bool {
        // Of encrypted names no kernel has placed any by other rules.
        let Some((encoding, _)) = wanted.folded.as_ref().filter(|_| wanted.key.is_none()) else {
            return false;
        };
        let may_have_some = match self.options.read().lookup_mode {
            LookupMode::Perf => false,
            LookupMode::Compat => true,
            LookupMode::Auto => !encoding.hash_only,
        };
        may_have_some && !self.orderly_dirs.contains(dir.nid().into())
    }

    /// Finds a name that was not where its hash leads to ([`OrderlyDirs`](steadfs_vfs::OrderlyDirs)).
    pub(super) fn find_misplaced(
        &self,
        dir: &Inode,
        wanted: &LookupName<'_>,
        tag: IoTag,
    ) -> Result<Option<FoundDentry>> {
        if !self.looks_everywhere(dir, wanted) {
            return Ok(None);
        }
        let (mut found, mut orderly) = (None, true);
        let mut look = |at, layout: &DentryLayout, bytes: &[u8]| {
            let (here, is_orderly) = wanted.find_misplaced(layout, bytes);
            // Changes of a name are recorded by the hash that it has today.
            found = here.map(|entry| FoundDentry {
                hash: wanted.hash,
                ..FoundDentry::new(at, &entry)
            });
            orderly &= is_orderly;
            found.is_none()
        };
        if dir.has_inline_dentries() {
            let block = self.inode_block(dir, tag)?;
            let (range, layout) = self.inline_area(dir);
            look(None, &layout, &block[range]);
        } else {
            self.each_block(dir, 0, tag, &mut |at, bytes| {
                Ok(look(Some(at), &DentryLayout::BLOCK, bytes))
            })?;
        }
        if found.is_none() && orderly {
            self.orderly_dirs.insert(dir.nid().into());
        }
        Ok(found)
    }

    /// A new name as a directory and its inode store it.
    ///
    /// # Errors
    /// `NoKey`: the key of an encrypted directory is not there.
    pub(crate) fn stored_name<'n>(
        &self,
        dir: &Inode,
        name: &'n [u8],
        tag: IoTag,
    ) -> Result<StoredName<'n>> {
        let wanted = LookupName::new_name(self, dir, name, tag)?;
        let encoding = match (dir.is_encrypted(), &wanted.key) {
            (false, _) => NameEncoding::Plain,
            (true, None) => NameEncoding::Encrypted,
            (true, Some(_)) => NameEncoding::EncryptedAndFolded(wanted.hash),
        };
        let bytes = match &wanted.key {
            Some(key) => key.encrypt_name(name).into(),
            None => wanted.name,
        };
        Ok(StoredName {
            plain: name,
            bytes,
            encoding,
        })
    }

    /// Refuses a new name that the encoding of a case-insensitive directory has not, or that is the same as `.` or `..`.
    ///
    /// # Errors
    /// `Invalid`.
    pub(crate) fn check_new_name_in(&self, dir: &Inode, name: &[u8]) -> Result<()> {
        let name = LookupName::plain(self, dir, name);
        name.check_encoded()?;
        match &name.folded {
            Some((_, folded)) => folded.check_dots(),
            None => Ok(()),
        }
    }

    /// The inode of a name that roll-forward recovery found, on a volume that is only read.
    pub(super) fn recovered_name(
        &self,
        (dir, key): (&Inode, Option<&FileKey>),
        name: &[u8],
    ) -> Option<crate::disk::Nid> {
        let recovered = self.recovered();
        if dir.is_encrypted() {
            let mut names = recovered.names(dir.nid());
            let found =
                names.find(|(stored, _)| shown_recovered(key, stored).as_deref() == Some(name));
            return found.map(|(_, ino)| ino);
        }
        if !dir.flags().contains(InodeFlags::CASEFOLD) {
            return recovered.name(dir.nid(), name);
        }
        let wanted = LookupName::plain(self, dir, name);
        let mut names = recovered.names(dir.nid());
        names
            .find(|(other, _)| wanted.is_same(other))
            .map(|(_, ino)| ino)
    }
}
