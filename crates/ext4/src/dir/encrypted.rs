//! Names of encrypted directories whose key is there.
//!
//! They are stored, compared and hashed encrypted. In a case-insensitive directory two spellings differ in their encrypted
//! forms, so entries are decrypted to be compared, and the index has a keyed hash of the folded name.

use std::sync::Arc;

use steadfs_fscrypt::FileKey;
use steadfs_vfs::{FileKind, FsError, InodeFlags, Result};

use super::wanted::Wanted;
use super::{Dir, Entry, nokey};
use crate::disk;
use crate::disk::casefold::FoldedName;
use crate::disk::dir_entry::RawEntry;
use crate::disk::hash::NameHash;

impl Dir<'_> {
    /// The key of the directory's names; `None`: they are not encrypted, or the key is not there.
    pub(super) fn names_key(&self, core: &disk::Inode) -> Result<Option<Arc<FileKey>>> {
        match core.has(InodeFlags::ENCRYPTED) {
            true => match (self.fs).file_key(self.ino, core, FileKind::Directory, self.tag) {
                // A policy that is not known here: as without a key, so that the files can be deleted.
                Err(FsError::Invalid(_)) => Ok(None),
                key => key,
            },
            false => Ok(None),
        }
    }

    /// The name of an entry.
    pub(super) fn decrypt(&self, key: &FileKey, entry: &RawEntry<'_>) -> Result<Vec<u8>> {
        let at = entry.offset;
        let name = key.decrypt_name(entry.name);
        name.map_err(|error| match error {
            FsError::Corrupt(_) => {
                self.corrupt(format_args!("the entry at {at} has an impossible name"))
            }
            other => other,
        })
    }
}

/// Finds an entry by its name.
pub(super) fn find(
    dir: &Dir<'_>,
    core: &disk::Inode,
    key: &FileKey,
    name: &[u8],
) -> Result<Option<Entry>> {
    let encoding = dir.fs.geo().encoding;
    let Some(encoding) = encoding.filter(|_| core.has(InodeFlags::CASEFOLD)) else {
        let stored = key.encrypt_name(name);
        return dir.find_wanted(core, &Wanted::exact(&stored));
    };
    let wanted = FoldedName::new(name);
    let hash = key.hash_name(wanted.hashed()).unwrap_or_default();
    let NameHash { major, .. } = NameHash::of_keyed(hash);
    let found = nokey::find_by(dir, core, major, &|_, entry| {
        let name = key.decrypt_name(entry.name);
        Ok(name.is_ok_and(|name| wanted.is_same(&name)))
    })?;
    if found.is_none() {
        encoding.check(&wanted)?;
    }
    Ok(found)
}
