//! Encrypted files: their keys.

use std::sync::Arc;

use steadfs_base::{Corruption, IoTag};
use steadfs_fscrypt::{Context, FileKey, FileOf};
use steadfs_vfs::{FileKind, FsError, InodeFlags, Result};

use crate::disk::features::Features;
use crate::disk::xattr::index;
use crate::fs::F2fs;
use crate::inode::Inode;

/// The attribute with the context.
const CONTEXT: &[u8] = b"c";
/// Binary logarithm of the block size.
const BLOCK_BITS: u32 = 12;

impl F2fs {
    /// Whether the volume may have encrypted files.
    pub(crate) fn has_encryption(&self) -> bool {
        self.layout.has(Features::ENCRYPT)
    }

    /// The key of an encrypted inode: of its content, names or target; `None`: its master key is not there.
    ///
    /// # Errors
    /// `Corrupt`, `Invalid`: its context is wrong, or unknown here.
    pub(crate) fn file_key(&self, inode: &Inode, tag: IoTag) -> Result<Option<Arc<FileKey>>> {
        let uuid = self.superblock.uuid();
        let file = FileOf {
            ino: inode.nid().0.into(),
            kind: inode.kind(),
            folds: inode.flags().contains(InodeFlags::CASEFOLD),
            uuid: &uuid,
            block_bits: BLOCK_BITS,
        };
        let generation = inode.core.read().generation;
        self.keyring.file_key(generation, &file, || {
            let corrupt = |what: Corruption| FsError::from(what.in_inode(inode.nid()));
            let missing = || corrupt(Corruption::new("an encrypted inode has no context"));
            let context = self.attr_value(inode, index::ENCRYPTION, CONTEXT, tag)?;
            Context::parse(&context.ok_or_else(missing)?).map_err(|error| match error {
                FsError::Corrupt(what) => corrupt(*what),
                other => other,
            })
        })
    }

    /// The key of an encrypted regular file's content; `None`: it is not encrypted.
    ///
    /// # Errors
    /// `NoKey`: its master key is not there. As [`F2fs::file_key`].
    pub(crate) fn content_key(&self, inode: &Inode, tag: IoTag) -> Result<Option<Arc<FileKey>>> {
        match inode.kind() == FileKind::Regular && inode.is_encrypted() {
            true => self.file_key(inode, tag)?.map(Some).ok_or(FsError::NoKey),
            false => Ok(None),
        }
    }

    /// The key of a directory's names; `None`: they are not encrypted, or the key is not there.
    pub(crate) fn names_key(&self, dir: &Inode, tag: IoTag) -> Result<Option<Arc<FileKey>>> {
        match dir.is_encrypted() {
            true => match self.file_key(dir, tag) {
                // A policy that is not known here: as without a key, so that the files can be deleted.
                Err(FsError::Invalid(_)) => Ok(None),
                key => key,
            },
            false => Ok(None),
        }
    }
}
