//! Encrypted files: their keys, and what the volume's ring of master keys changes.

use std::sync::Arc;

use steadfs_base::{Corruption, InodeNo, IoTag};
use steadfs_fscrypt::{Context, FileKey, FileOf, KeyName, Policy, PolicyCommand, may_be_encrypted};
use steadfs_vfs::{Cx, FileKind, FsError, InodeFlags, NewInode, Result, names};

use crate::credits;
use crate::dir::Dir;
use crate::disk::features::{Compat, Incompat};
use crate::disk::inode::INLINE_DATA;
use crate::disk::quota::usage::Usage;
use crate::disk::xattr::INDEX_ENCRYPTION;
use crate::disk::{self, Ino};
use crate::fast_commit::refusal;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::quota::owners_of;
use crate::txn::Handle;
use crate::xattr::Change;

/// The attribute with the context.
pub(crate) const CONTEXT: &[u8] = b"c";

/// How a new inode is encrypted.
pub(crate) struct NewEncrypted {
    /// The value of its context's attribute.
    pub(crate) context: Vec<u8>,
    /// The content of a symbolic link.
    pub(crate) target: Vec<u8>,
}

/// Fails for a policy that a case-insensitive directory cannot have, as in Linux.
fn check_may_fold(policy: &Policy) -> Result<()> {
    match policy.key {
        KeyName::Identifier(_) => Ok(()),
        KeyName::Descriptor(_) => Err(FsError::Invalid(
            "a case-insensitive directory with an encryption policy of version 1",
        )),
    }
}

impl Ext4 {
    /// Whether the volume may have encrypted files.
    pub(crate) fn has_encryption(&self) -> bool {
        self.geo.has_incompat(Incompat::ENCRYPT)
    }

    /// What the key of an inode depends on; `core`: its fields, or those of the directory that it is made in.
    fn file_of(&self, ino: Ino, core: &disk::Inode, kind: FileKind) -> FileOf<'_> {
        FileOf {
            ino: ino.0.into(),
            kind,
            folds: core.has(InodeFlags::CASEFOLD) && kind == FileKind::Directory,
            uuid: &self.geo.uuid,
            block_bits: self.geo.block_size.bits(),
        }
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
        let file = self.file_of(ino, core, kind);
        self.keyring
            .file_key(core.generation, &file, || self.context(ino, core, tag))
    }

    /// Keeps the key of an encrypted file with its inode, for the write-back of what becomes dirty: also if the master key is
    /// removed meanwhile.
    ///
    /// # Errors
    /// As [`Ext4::content_key`].
    pub(crate) fn hold_key(&self, inode: &Inode, tag: IoTag) -> Result<()> {
        if let Some(key) = self.content_key(inode, tag)? {
            let is_clean = inode.pages.is_empty();
            let mut held = inode.held_key.lock();
            // What is dirty goes out under one key, also if another one got the name of a removed key meanwhile.
            if held.is_none() || is_clean {
                *held = Some(key);
            }
        }
        Ok(())
    }

    /// Carries out a command about keys ([`Keyring::write`]). While keys change no call changes the volume; before a key is
    /// removed everything is written.
    ///
    /// # Errors
    /// As [`Keyring::write`]; those of [`Ext4::set_policy`]; data could not be written: the key is removed, and stays with
    /// files that have such data.
    ///
    /// [`Keyring::write`]: steadfs_fscrypt::Keyring::write
    pub(crate) fn change_keys(&self, command: &[u8]) -> Result<()> {
        if let Some(policy) = PolicyCommand::parse(command)? {
            let _open = self.open_to_changes();
            let set = self.set_policy(InodeNo(policy.dir), policy.policy);
            return self.report_corruption(set);
        }
        let removes = command.trim_ascii_start().starts_with(b"remove");
        let cx = Cx::default();
        if removes && self.check_writable().is_ok() {
            // Most of it while changes continue; an error stays for the second time.
            let _: Result<()> = self.sync_volume(&cx);
        }
        let _alone = self.remount_state.exclude_changes();
        let written = match removes && self.check_writable().is_ok() {
            true => self.report_corruption(self.sync_volume(&cx)),
            false => Ok(()),
        };
        self.keyring.write(command)?;
        if removes {
            let holders = self.inodes.with_keys().into_iter();
            for inode in holders.filter(|inode| inode.pages.is_empty()) {
                *inode.held_key.lock() = None;
            }
        }
        written
    }

    /// Encrypts what will be made in an empty directory.
    ///
    /// # Errors
    /// `NotDir`, `NotEmpty`. `Exists`: it has another policy. `NoKey`: the master key is not there. `NotPermitted`: the root.
    /// `Invalid`: the policy does not suit the volume or directory.
    fn set_policy(&self, ino: InodeNo, policy: Policy) -> Result<()> {
        self.check_writable()?;
        let (cx, tag) = (Cx::default(), IoTag::default());
        let dir = self.directory(ino, tag)?;
        let _names = dir.lock.write();
        let context = {
            let core = dir.core.read();
            names::check_may_add(core.links.into(), core.flags)?;
            if core.has(InodeFlags::ENCRYPTED) {
                let has = self.context(dir.ino(), &core, tag)?.policy;
                return match has == policy {
                    true => Ok(()),
                    false => Err(FsError::Exists),
                };
            }
            if dir.ino() == Ino::ROOT {
                return Err(FsError::NotPermitted);
            }
            if !Dir::new(self, dir.ino(), &core, tag).is_empty(&core)? {
                return Err(FsError::NotEmpty);
            }
            if core.has(InodeFlags::CASEFOLD) {
                check_may_fold(&policy)?;
                Self::check_not_indexed(&core)?;
            }
            if policy.needs_stable_inodes()
                && !self.geo.features.compat.contains(Compat::STABLE_INODES)
            {
                let why = "the encryption policy needs the feature stable_inodes";
                return Err(FsError::Invalid(why));
            }
            let context = Context::of_new_inode(policy);
            let file = self.file_of(dir.ino(), &core, FileKind::Directory);
            self.keyring.new_file_key(&context, &file)?;
            context.to_bytes()
        };
        self.with_space(&cx, || self.leave_inode(&cx, &dir))?;
        let _held = self.hold_attr(&cx, &dir, (INDEX_ENCRYPTION, CONTEXT), &context)?;
        // The context may need a block.
        let set = || {
            self.change_fields(&cx, &dir, context.len(), |handle, core| {
                self.put_context(handle, &dir, core, &context)?;
                core.flags = core.flags.union(InodeFlags::ENCRYPTED);
                core.ctime = self.now(core);
                dir.record_tid(handle, true);
                Ok(())
            })
        };
        self.with_space(&cx, set)
    }

    /// Moves the names of an inline directory to a block.
    fn leave_inode(&self, cx: &Cx, dir: &Inode) -> Result<()> {
        let (credits, owners) = {
            let core = dir.core.read();
            if !core.has(INLINE_DATA) {
                return Ok(());
            }
            let credits = credits::grow(self, &core) + credits::ATTRIBUTES;
            (credits, owners_of(&core).map(Some))
        };
        let need = Usage {
            bytes: self.geo.cluster_units() * 512,
            inodes: 0,
        };
        let _held = self.hold_quota(cx, owners, need)?;
        let _pins = self.pin_inodes(&[dir.ino()], cx.tag)?;
        self.run_for(cx, credits, |handle| {
            handle.refuse_fast_commits(refusal::GROWTH);
            let mut core = dir.core.write();
            Dir::new(self, dir.ino(), &core, cx.tag).move_out(handle, dir, &mut core)
        })
    }

    /// The context of an encrypted inode.
    fn context(&self, ino: Ino, core: &disk::Inode, tag: IoTag) -> Result<Context> {
        let context = self.attr_value(ino, core, INDEX_ENCRYPTION, CONTEXT, tag)?;
        let missing = || Corruption::new("an encrypted inode has no context").in_inode(ino);
        Context::parse(&context.ok_or_else(missing)?).map_err(|error| match error {
            FsError::Corrupt(corruption) => corruption.in_inode(ino).into(),
            other => other,
        })
    }

    /// Fails for a directory with encrypted names unless its key is there.
    pub(crate) fn check_has_key(&self, dir: &Inode, core: &disk::Inode, tag: IoTag) -> Result<()> {
        if !core.has(InodeFlags::ENCRYPTED) {
            return Ok(());
        }
        let key = self.file_key(dir.ino(), core, FileKind::Directory, tag)?;
        key.map(drop).ok_or(FsError::NoKey)
    }

    /// Fails if an encrypted directory may not have a name of an inode: it has another policy.
    ///
    /// # Errors
    /// `CrossDevice`.
    pub(crate) fn check_policy(&self, dir: &Inode, inode: &Inode, tag: IoTag) -> Result<()> {
        let dir_core = dir.core.read();
        if !dir_core.has(InodeFlags::ENCRYPTED) || !may_be_encrypted(inode.kind()) {
            return Ok(());
        }
        let wanted = self.context(dir.ino(), &dir_core, tag)?.policy;
        drop(dir_core);
        let core = inode.core.read();
        let is_same = core.has(InodeFlags::ENCRYPTED)
            && self.context(inode.ino(), &core, tag)?.policy == wanted;
        match is_same {
            true => Ok(()),
            false => Err(FsError::CrossDevice),
        }
    }

    /// How a new inode with this number is encrypted: its context, and the content of a link. `None`: it is not.
    ///
    /// # Errors
    /// `NoKey`: the key of the directory is not there. `NameTooLong`: the link's target.
    pub(crate) fn encrypt_new(
        &self,
        dir: &Inode,
        (ino, spec): (Ino, &NewInode<'_>),
        tag: IoTag,
    ) -> Result<Option<NewEncrypted>> {
        let core = dir.core.read();
        if !core.has(InodeFlags::ENCRYPTED) || !may_be_encrypted(spec.kind) {
            return Ok(None);
        }
        let policy = self.context(dir.ino(), &core, tag)?.policy;
        let context = Context::of_new_inode(policy);
        let file = self.file_of(ino, &core, spec.kind);
        let key = self.keyring.new_file_key(&context, &file)?;
        let target = match spec.kind {
            FileKind::Symlink => key.encrypt_target(spec.target, self.geo.block_size.bytes())?,
            _ => Vec::new(),
        };
        Ok(Some(NewEncrypted {
            context: context.to_bytes(),
            target,
        }))
    }

    /// Gives an inode its context. As [`Ext4::change_attr`].
    pub(crate) fn put_context(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        context: &[u8],
    ) -> Result<()> {
        handle.refuse_fast_commits(refusal::XATTR);
        let change = Change {
            index: INDEX_ENCRYPTION,
            name: CONTEXT,
            value: Some(context),
        };
        self.change_attr(handle, inode, core, &change)
    }

    /// Fails for an encrypted directory whose names cannot become case-insensitive, or case-sensitive again.
    ///
    /// # Errors
    /// `NoKey`: its key is not there. `Invalid`: its policy is of version 1. `NotSupported`: it has an index.
    pub(crate) fn check_may_refold(
        &self,
        dir: &Inode,
        core: &disk::Inode,
        tag: IoTag,
    ) -> Result<()> {
        if !core.has(InodeFlags::ENCRYPTED) {
            return Ok(());
        }
        self.check_has_key(dir, core, tag)?;
        check_may_fold(&self.context(dir.ino(), core, tag)?.policy)?;
        Self::check_not_indexed(core)
    }

    /// Encrypted, case-insensitive names have an index of their own kind, which no other one becomes.
    fn check_not_indexed(core: &disk::Inode) -> Result<()> {
        match core.has(InodeFlags::INDEX) {
            false => Ok(()),
            true => Err(FsError::NotSupported(
                "encrypted case-insensitive names in a directory that had many names: use a new one",
            )),
        }
    }

    /// The key of an inode's content; `None`: it is not encrypted.
    ///
    /// # Errors
    /// `NoKey`: its master key is not there. As [`Ext4::file_key`].
    pub(crate) fn content_key(&self, inode: &Inode, tag: IoTag) -> Result<Option<Arc<FileKey>>> {
        if !inode.is_encrypted() {
            return Ok(None);
        }
        let key = self.file_key(inode.ino(), &inode.core.read(), inode.kind(), tag)?;
        key.map(Some).ok_or(FsError::NoKey)
    }
}
