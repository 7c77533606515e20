//! Names of encrypted directories whose key is there.
//!
//! They are stored, compared and hashed encrypted, in a case-insensitive directory by their decrypted forms ([`Wanted`]).

use std::sync::Arc;

use steadfs_fscrypt::FileKey;
use steadfs_vfs::{FileKind, FsError, InodeFlags, Result};

use super::wanted::Wanted;
use super::{Dir, Entry};
use crate::disk;
use crate::disk::dir_entry::RawEntry;

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
    key: &Arc<FileKey>,
    name: &[u8],
) -> Result<Option<Entry>> {
    let wanted = Wanted::encrypted(key, core.has(InodeFlags::CASEFOLD), name)?;
    let found = dir.find_wanted(core, &wanted)?;
    if found.is_none() {
        dir.check_encoded(&wanted)?;
    }
    Ok(found)
}
