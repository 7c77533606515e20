//! Encrypted files: their keys, and what the volume's ring of master keys changes.

use std::sync::Arc;

use steadfs_base::{Corruption, IoTag};
use steadfs_fscrypt::{Context, FileKey, FileOf};
use steadfs_vfs::{FileKind, FsError, InodeFlags, Result};

use crate::disk::features::Incompat;
use crate::disk::xattr::INDEX_ENCRYPTION;
use crate::disk::{self, Ino};
use crate::fs::Ext4;
use crate::inode::Inode;

/// The attribute with the context.
const CONTEXT: &[u8] = b"c";

impl Ext4 {
    /// Whether the volume may have encrypted files.
    pub(crate) fn has_encryption(&self) -> bool {
        self.geo.has_incompat(Incompat::ENCRYPT)
    }

    /// The key of an encrypted inode; `None`: its master key is not there.
    ///
    /// # Errors
    /// `Corrupt`, `Invalid`: its context is wrong, or unknown here.
    pub(crate) fn file_key(
        &self,
        ino: Ino,
        core: &disk::Inode,
        kind: FileKind,
        tag: IoTag,
    ) -> Result<Option<Arc<FileKey>>> {
        let file = FileOf {
            ino: ino.0.into(),
            kind,
            folds: core.has(InodeFlags::CASEFOLD),
            uuid: &self.geo.uuid,
            block_bits: self.geo.block_size.bits(),
        };
        self.keyring.file_key(core.generation, &file, || {
            let context = self.attr_value(ino, core, INDEX_ENCRYPTION, CONTEXT, tag)?;
            let missing = || Corruption::new("an encrypted inode has no context").in_inode(ino);
            Context::parse(&context.ok_or_else(missing)?).map_err(|error| match error {
                FsError::Corrupt(corruption) => corruption.in_inode(ino).into(),
                other => other,
            })
        })
    }

    /// The key of an inode's content; `None`: it is not encrypted.
    ///
    /// # Errors
    /// `NoKey`: its master key is not there. As [`Ext4::file_key`].
    pub(crate) fn content_key(&self, inode: &Inode, tag: IoTag) -> Result<Option<Arc<FileKey>>> {
        let core = inode.core.read();
        if !core.has(InodeFlags::ENCRYPTED) {
            return Ok(None);
        }
        let key = self.file_key(inode.ino(), &core, inode.kind(), tag)?;
        key.map(Some).ok_or(FsError::NoKey)
    }
}
