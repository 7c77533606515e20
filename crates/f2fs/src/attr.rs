//! Inode attributes: mode, owner, times, flags.

use steadfs_base::{InodeNo, IoTag};
use steadfs_vfs::{
    Attr, Cx, FileKind, FsError, InodeFlags, Result, SetAttr, SetTime, relatime_needs_update,
};

use crate::disk::xattr::{XattrChange as AttrChange, index};
use crate::disk::{self, Features};
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::namei::flags_for;
use crate::options::Atime;
use crate::pins::Pins;
use crate::quota::owners_of;
use crate::space::Need;
use crate::xattr::need_of;

/// Flags that users may change (`F2FS_SETTABLE_FS_FL`).
pub(crate) const SETTABLE_FLAGS: u32 = InodeFlags::SYNC.0
    | InodeFlags::COMPRESSED.0
    | InodeFlags::IMMUTABLE.0
    | InodeFlags::APPEND.0
    | InodeFlags::NODUMP.0
    | InodeFlags::NOATIME.0
    | InodeFlags::NOT_COMPRESSED.0
    | InodeFlags::DIRSYNC.0
    | InodeFlags::PROJINHERIT.0
    | InodeFlags::CASEFOLD.0;
/// Flags that only report how a file is stored; ignored when flags are set.
const REPORTED_FLAGS: u32 = InodeFlags::INLINE_DATA.0 | InodeFlags::NOCOW.0;
/// Flags that cannot be changed once set, whether or not a caller passes them (`chattr =`); all directories have
/// some.
const FIXED_FLAGS: u32 = InodeFlags::INDEX.0 | InodeFlags::ENCRYPTED.0 | InodeFlags::VERITY.0;

impl F2fs {
    /// See [`steadfs_vfs::FileSystem::setattr`].
    pub(crate) fn set_attributes(&self, cx: &Cx, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        self.prepare(cx)?;
        let inode = self.by_number(ino, cx.tag)?;
        self.with_space(cx, || {
            let _exclusive = inode.lock.write();
            set.check(inode.kind(), inode.core.read().flags)?;
            if let Some(size) = set.size {
                self.check_pinned_size(&inode, size)?;
                self.truncate(cx, &inode, size)?;
            }
            self.set_fields(cx, &inode, set)
        })?;
        Ok(inode.attr(self, cx.tag))
    }

    fn set_fields(&self, cx: &Cx, inode: &Inode, set: &SetAttr) -> Result<()> {
        if !set.changes_fields() {
            return Ok(());
        }
        let kills = set.kills_privileges(inode.kind());
        let (mut mode, gid) = {
            let core = inode.core.read();
            (core.mode, core.gid)
        };
        if kills {
            mode = cx.without_privileges(mode, gid);
        }
        if let Some(perm) = set.perm {
            // 12 permission bits below the file type.
            mode = mode & !0o7777 | (perm & 0o7777) as u16;
        }
        let list = match set.perm {
            Some(_) => self.acl_for_mode(inode, mode.into(), cx.tag)?,
            None => None,
        };
        let mut changes = Vec::new();
        changes.extend(list.as_deref().map(|list| AttrChange {
            index: index::ACL_ACCESS,
            name: b"",
            value: Some(list),
        }));
        changes.extend(kills.then_some(NO_CAPABILITIES));
        let _pins = self.prepare_new_owners(cx, inode, set)?;
        self.store_fields(cx, inode, &changes, |core, fs| {
            let now = fs.now();
            core.mode = mode;
            core.uid = set.uid.unwrap_or(core.uid);
            core.gid = set.gid.unwrap_or(core.gid);
            let stamp = |set: Option<SetTime>, old| match set {
                None => old,
                Some(SetTime::Now) => now,
                Some(SetTime::At(at)) => at,
            };
            core.atime = stamp(set.atime, core.atime);
            core.mtime = stamp(set.mtime, core.mtime);
            core.ctime = set.ctime.unwrap_or(now);
        })
    }

    /// Before an inode gets other owners.
    fn prepare_new_owners(&self, cx: &Cx, inode: &Inode, set: &SetAttr) -> Result<Pins> {
        if set.uid.is_none() && set.gid.is_none() {
            return Ok(Pins::default());
        }
        let [uid, gid, project] = owners_of(&inode.core.read());
        let new = [set.uid.unwrap_or(uid), set.gid.unwrap_or(gid), project];
        self.hold_for_new_owners(cx, inode, new)
    }

    /// Changes an inode's fields and extended attributes together. New owners have entries in quota files. The caller holds `inode.lock` for writing.
    pub(crate) fn store_fields(
        &self,
        cx: &Cx,
        inode: &Inode,
        changes: &[AttrChange<'_>],
        work: impl FnOnce(&mut disk::Inode, &Self),
    ) -> Result<()> {
        let cut = match changes {
            [] => None,
            changes => self.plan_attrs(inode, changes, cx.tag)?,
        };
        let need = match &cut {
            Some(cut) => need_of(inode, cut),
            None => Need::default(),
        };
        let _held = self.hold_space(cx, inode, need)?;
        let mut reservation = self.space.reservation(need, self.may_use_reserved(cx))?;
        let change = self.change()?;
        let mut core = inode.core.write();
        self.mark_dirty(&change, inode, cx.tag)?;
        if let Some(cut) = &cut {
            self.put_attrs(&change, inode, &mut core, &mut reservation, cut, cx.tag)?;
        }
        work(&mut core, self);
        self.charge_owners(&change, inode, &core, cx.tag);
        Ok(())
    }

    /// Removes set-ID bits and capabilities, as on a write by an unprivileged process. The caller holds
    /// `inode.lock` for writing.
    pub(crate) fn kill_priv(&self, cx: &Cx, inode: &Inode) -> Result<()> {
        let (mode, bare) = {
            let core = inode.core.read();
            (core.mode, cx.without_privileges(core.mode, core.gid))
        };
        let capabilities = self.attr_value(inode, index::SECURITY, CAPABILITY, cx.tag)?;
        if mode == bare && capabilities.is_none() {
            return Ok(());
        }
        self.store_fields(cx, inode, &[NO_CAPABILITIES], |core, fs| {
            core.mode = bare;
            core.ctime = fs.now();
        })
    }

    /// See [`steadfs_vfs::FileSystem::set_flags`].
    pub(crate) fn change_flags(&self, cx: &Cx, ino: InodeNo, flags: InodeFlags) -> Result<()> {
        self.prepare(cx)?;
        let inode = self.by_number(ino, cx.tag)?;
        let _exclusive = inode.lock.write();
        let folds = flags.contains(InodeFlags::CASEFOLD);
        if folds != inode.flags().contains(InodeFlags::CASEFOLD) {
            self.change_folding(&inode, cx.tag)?;
        }
        let shown = inode.flags().0;
        let changed = InodeFlags((flags.0 ^ shown) & !(REPORTED_FLAGS | shown & FIXED_FLAGS));
        if changed.0 & !SETTABLE_FLAGS != 0 {
            return Err(FsError::NotSupported("changing one of these inode flags"));
        }
        if flags.0 & SETTABLE_FLAGS & !flags_for(inode.kind()) != 0 {
            let why = "an inode flag that is not valid for this type of file";
            return Err(FsError::NotSupported(why));
        }
        self.check_compress_flags(flags)?;
        let compresses = changed.contains(InodeFlags::COMPRESSED);
        if compresses {
            self.check_may_convert(&inode, flags.contains(InodeFlags::COMPRESSED), cx.tag)?;
        }
        let change = self.change()?;
        let mut core = inode.core.write();
        self.mark_dirty(&change, &inode, cx.tag)?;
        core.flags = InodeFlags(core.flags.0 & !SETTABLE_FLAGS | flags.0 & SETTABLE_FLAGS);
        if compresses {
            self.convert(&inode, &mut core);
        }
        core.ctime = self.now();
        Ok(())
    }

    /// Refuses to make a directory case-insensitive, or case-sensitive again, unless it is empty.
    fn change_folding(&self, dir: &Inode, tag: IoTag) -> Result<()> {
        if self.layout.encoding.is_none() || dir.kind() != FileKind::Directory {
            let why = "case-insensitive names on this volume or of this type of file";
            return Err(FsError::NotSupported(why));
        }
        if !self.is_empty_dir(dir, tag)? {
            return Err(FsError::NotEmpty);
        }
        self.check_may_fold(dir, tag)?;
        // Its slots are those of another hash.
        *dir.absent.lock() = None;
        Ok(())
    }

    /// See [`steadfs_vfs::FileSystem::set_project`].
    pub(crate) fn change_project(&self, cx: &Cx, ino: InodeNo, project: u32) -> Result<()> {
        self.prepare(cx)?;
        let inode = self.by_number(ino, cx.tag)?;
        let _exclusive = inode.lock.write();
        let [uid, gid, old] = owners_of(&inode.core.read());
        if old == project {
            return Ok(());
        }
        if !self.layout.has(Features::PROJECT_QUOTA) {
            return Err(FsError::NotSupported("projects on this volume"));
        }
        if !inode.core.read().has_project(&self.layout) {
            return Err(FsError::NotSupported(
                "project ids on inodes without the field i_projid",
            ));
        }
        let _pins = self.hold_for_new_owners(cx, &inode, [uid, gid, project])?;
        let change = self.change()?;
        let mut core = inode.core.write();
        self.mark_dirty(&change, &inode, cx.tag)?;
        core.project = project;
        core.ctime = self.now();
        self.charge_owners(&change, &inode, &core, cx.tag);
        Ok(())
    }

    /// Updates the access time after a read, with the rules of `relatime`.
    pub(crate) fn touch_atime(&self, inode: &Inode, tag: IoTag) {
        if self.options.read().common.atime == Atime::Never || self.is_frozen() {
            return;
        }
        let now = self.now();
        {
            let core = inode.core.read();
            let due = relatime_needs_update(now, core.atime, core.mtime, core.ctime);
            if !due || core.has(InodeFlags::NOATIME) {
                return;
            }
        }
        if self.segments.get().is_none() || self.excess_of_free_space() {
            // A read does not wait for space to update the time.
            return;
        }
        // A read-only volume keeps its times.
        let Ok(change) = self.change() else {
            return;
        };
        let mut core = inode.core.write();
        if self.mark_dirty(&change, inode, tag).is_ok() {
            core.atime = now;
        }
    }
}

const CAPABILITY: &[u8] = b"capability";
const NO_CAPABILITIES: AttrChange<'static> = AttrChange {
    index: index::SECURITY,
    name: CAPABILITY,
    value: None,
};

#[cfg(test)]
mod tests;
