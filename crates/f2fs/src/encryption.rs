//! Encrypted files: their keys, and what the volume's ring of master keys changes.

use std::borrow::Cow;
use std::sync::Arc;

use steadfs_base::{Corruption, InodeNo, IoTag};
use steadfs_fscrypt::{Context, FileKey, FileOf, KeyName, Policy, PolicyCommand, may_be_encrypted};
use steadfs_vfs::{Cx, FileKind, FsError, InodeFlags, NewInode, Result, names};

use crate::disk::features::Features;
use crate::disk::inode::Advise;
use crate::disk::xattr::{XattrChange, index};
use crate::disk::{BLOCK_SIZE, Nid};
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::xattr::need_of;

/// The attribute with the context.
pub(crate) const CONTEXT: &[u8] = b"c";
/// Binary logarithm of the block size.
const BLOCK_BITS: u32 = 12;

/// How a new inode is encrypted.
pub(crate) struct NewEncryption {
    pub(crate) context: Context,
    /// Of the directory that it is made in.
    dir_flags: InodeFlags,
}

/// What the key of an inode depends on; `flags`: its own, or those of the directory that it is made in.
fn file_of(uuid: &[u8; 16], nid: Nid, kind: FileKind, flags: InodeFlags) -> FileOf<'_> {
    FileOf {
        ino: nid.0.into(),
        kind,
        folds: flags.contains(InodeFlags::CASEFOLD) && kind == FileKind::Directory,
        uuid,
        block_bits: BLOCK_BITS,
    }
}

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
        let file = file_of(&uuid, inode.nid(), inode.kind(), inode.flags());
        let generation = inode.core.read().generation;
        self.keyring
            .file_key(generation, &file, || self.context(inode, tag))
    }

    /// The context of an encrypted inode.
    fn context(&self, inode: &Inode, tag: IoTag) -> Result<Context> {
        let corrupt = |what: Corruption| FsError::from(what.in_inode(inode.nid()));
        let missing = || corrupt(Corruption::new("an encrypted inode has no context"));
        let context = self.attr_value(inode, index::ENCRYPTION, CONTEXT, tag)?;
        Context::parse(&context.ok_or_else(missing)?).map_err(|error| match error {
            FsError::Corrupt(what) => corrupt(*what),
            other => other,
        })
    }

    /// Fails for an encrypted directory that cannot become case-insensitive, as in Linux.
    ///
    /// # Errors
    /// `NoKey`: its key is not there. `Invalid`: its policy is of version 1.
    pub(crate) fn check_may_fold(&self, dir: &Inode, tag: IoTag) -> Result<()> {
        if !dir.flags().contains(InodeFlags::ENCRYPTED) {
            return Ok(());
        }
        self.file_key(dir, tag)?.ok_or(FsError::NoKey)?;
        match self.context(dir, tag)?.policy.key {
            KeyName::Identifier(_) => Ok(()),
            KeyName::Descriptor(_) => Err(FsError::Invalid(
                "a case-insensitive directory with an encryption policy of version 1",
            )),
        }
    }

    /// Keeps the key of an encrypted file with its inode, for the write-back of what becomes dirty: also if the master key is
    /// removed meanwhile.
    ///
    /// # Errors
    /// As [`F2fs::content_key`].
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

    /// How a new inode in a directory is encrypted; `None`: it is not.
    ///
    /// # Errors
    /// `NoKey`: the key of the directory is not there. `NameTooLong`: the link's target.
    pub(crate) fn encryption_in(
        &self,
        dir: &Inode,
        spec: &NewInode<'_>,
        tag: IoTag,
    ) -> Result<Option<NewEncryption>> {
        if !dir.is_encrypted() || !may_be_encrypted(spec.kind) {
            return Ok(None);
        }
        let policy = self.context(dir, tag)?.policy;
        let new = NewEncryption {
            context: Context::of_new_inode(policy),
            dir_flags: dir.flags(),
        };
        let key = self.new_key(&new, Nid::ROOT, spec.kind)?;
        if spec.kind == FileKind::Symlink {
            key.encrypt_target(spec.target, BLOCK_SIZE)?;
        }
        Ok(Some(new))
    }

    fn new_key(&self, new: &NewEncryption, nid: Nid, kind: FileKind) -> Result<FileKey> {
        let uuid = self.superblock.uuid();
        let file = file_of(&uuid, nid, kind, new.dir_flags);
        self.keyring.new_file_key(&new.context, &file)
    }

    /// The content of a new symbolic link with this number, and this encryption.
    pub(crate) fn target_of<'s>(
        &self,
        (spec, new): (&NewInode<'s>, Option<&NewEncryption>),
        nid: Nid,
    ) -> Cow<'s, [u8]> {
        let Some(new) = new.filter(|_| spec.kind == FileKind::Symlink) else {
            return Cow::Borrowed(spec.target);
        };
        // Keys change only while no call changes the volume.
        let key = self.new_key(new, nid, spec.kind);
        let key = key.expect("the key was there when the link was planned");
        let target = key.encrypt_target(spec.target, BLOCK_SIZE);
        Cow::Owned(target.expect("its length was checked when the link was planned"))
    }

    /// Fails if an encrypted directory may not have a name of an inode: it has another policy.
    ///
    /// # Errors
    /// `CrossDevice`.
    pub(crate) fn check_policy(&self, dir: &Inode, inode: &Inode, tag: IoTag) -> Result<()> {
        if !dir.is_encrypted() || !may_be_encrypted(inode.kind()) {
            return Ok(());
        }
        let wanted = self.context(dir, tag)?.policy;
        match inode.is_encrypted() && self.context(inode, tag)?.policy == wanted {
            true => Ok(()),
            false => Err(FsError::CrossDevice),
        }
    }

    /// Carries out a command about keys ([`Keyring::write`]). While keys change no call changes the volume; before a key is
    /// removed everything is written.
    ///
    /// # Errors
    /// As [`Keyring::write`]; those of [`F2fs::set_policy`]; data could not be written: the key is removed, and stays with
    /// files that have such data.
    ///
    /// [`Keyring::write`]: steadfs_fscrypt::Keyring::write
    pub(crate) fn change_keys(&self, command: &[u8]) -> Result<()> {
        let cx = Cx::default();
        if let Some(PolicyCommand { dir, policy }) = PolicyCommand::parse(command)? {
            let _open = self.open_to_changes()?;
            let set = || self.set_policy(&cx, InodeNo(dir), policy);
            return self.report_corruption(self.with_space(&cx, set));
        }
        let removes = command.trim_ascii_start().starts_with(b"remove");
        if removes && self.check_writable().is_ok() {
            // Most of it while changes continue; an error stays for the second time.
            let _: Result<()> = self.sync_volume(&cx);
        }
        let _alone = self.remount.exclude_changes();
        let written = match removes && self.check_writable().is_ok() {
            true => {
                self.daemon.flush(self);
                self.report_corruption(self.sync_volume_unmerged(&cx))
            }
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
    /// `NotDir`, `NotEmpty`. `Exists`: it has another policy. `NoKey`: the master key is not there. `NotPermitted`: the root of
    /// a volume that has lost+found. `Invalid`: the policy does not suit the volume or directory.
    fn set_policy(&self, cx: &Cx, ino: InodeNo, policy: Policy) -> Result<()> {
        self.prepare(cx)?;
        let dir = self.directory(ino, cx.tag)?;
        let _names = dir.lock.write();
        {
            let core = dir.core.read();
            names::check_may_add(core.links, core.flags)?;
        }
        if dir.is_encrypted() {
            return match self.context(&dir, cx.tag)?.policy == policy {
                true => Ok(()),
                false => Err(FsError::Exists),
            };
        }
        if dir.nid() == Nid::ROOT && self.layout.has(Features::LOST_FOUND) {
            return Err(FsError::NotPermitted);
        }
        if !self.is_empty_dir(&dir, cx.tag)? {
            return Err(FsError::NotEmpty);
        }
        let context = Context::of_new_inode(policy);
        let uuid = self.superblock.uuid();
        let file = file_of(&uuid, dir.nid(), FileKind::Directory, dir.flags());
        self.keyring.new_file_key(&context, &file)?;
        let change = XattrChange {
            index: index::ENCRYPTION,
            name: CONTEXT,
            value: Some(&context.to_bytes()),
        };
        let attrs = self.plan_attrs(&dir, &[change], cx.tag)?;
        let need = attrs.as_ref().map(|attrs| need_of(&dir, attrs));
        let need = need.unwrap_or_default();
        let _held = self.hold_space(cx, &dir, need)?;
        let mut reservation = self.space.reservation(need, self.may_use_reserved(cx))?;
        let change = self.change()?;
        let mut core = dir.core.write();
        self.mark_dirty(&change, &dir, cx.tag)?;
        if let Some(attrs) = &attrs {
            self.put_attrs(&change, &dir, &mut core, &mut reservation, attrs, cx.tag)?;
        }
        core.advise = core.advise.union(Advise::ENCRYPTED);
        core.ctime = self.now();
        self.charge(&dir, &core);
        drop(core);
        *dir.absent.lock() = None;
        self.record_attr_change(&dir);
        Ok(())
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
