//! Attributes of inodes: mode, owner, times, flags.

use steadfs_base::{InodeNo, IoTag};
use steadfs_vfs::{Attr, Cx, FileKind, FsError, FsxAttr, InodeFlags, Result, SetAttr, SetTime};

use crate::dir::Dir;
use crate::disk::features::RoCompat;
use crate::disk::{self, time};
use crate::fast_commit::refusal;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::txn::Handle;

/// Flags that users may change (`EXT4_FL_USER_MODIFIABLE` without those that are not supported:
/// mapping, data journaling): the first eight (secure deletion to no access time), no
/// tail merging (0x8000), and those of directories.
pub(crate) const MODIFIABLE: u32 = 0xFF
    | 0x8000
    | InodeFlags::DIRSYNC.0
    | InodeFlags::TOPDIR.0
    | InodeFlags::PROJINHERIT.0
    | InodeFlags::CASEFOLD.0;
/// Flags that get a specific error when they are refused.
const NAMEABLE: u32 = MODIFIABLE | InodeFlags::EXTENTS.0 | disk::inode::JOURNAL_DATA.0;

impl Ext4 {
    /// See [`steadfs_vfs::FileSystem::setattr`].
    pub fn setattr(&self, cx: &Cx, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        self.check_writable()?;
        let inode = self.by_number(ino, cx.tag)?;
        {
            let _alone = inode.lock.write();
            set.check(inode.kind(), inode.core.read().flags)?;
            if let Some(size) = set.size {
                self.check_content(&inode, cx.tag)?;
                if !self.resize_inline(cx, &inode, size)? {
                    self.move_content_out(cx, &inode)?;
                    self.truncate(cx, &inode, size)?;
                }
            }
            self.with_space(cx, || self.set_fields(cx, &inode, set))?;
        }
        self.free_values();
        Ok(inode.attr(self))
    }

    fn set_fields(&self, cx: &Cx, inode: &Inode, set: &SetAttr) -> Result<()> {
        if !set.changes_fields() {
            return Ok(());
        }
        let owners = [set.uid, set.gid, None];
        let _pins = self.prepare_owners(owners, cx.tag)?;
        let _held = self.hold_for_new_owners(cx, inode, owners)?;
        self.change_fields(cx, inode, 0, |handle, core| {
            let drops = set.kills_privileges(inode.kind());
            self.set_in_core(cx, handle, inode, core, set, drops)
        })
    }

    /// Changes an inode's fields and attributes and stores it; on error nothing has changed. `value`: bytes of the value
    /// that an attribute gets.
    pub(crate) fn change_fields(
        &self,
        cx: &Cx,
        inode: &Inode,
        value: usize,
        change: impl FnOnce(&mut Handle<'_>, &mut disk::Inode) -> Result<()>,
    ) -> Result<()> {
        let _pins = self.pin_to_change_attrs(inode, cx.tag)?;
        let credits = self.attr_credits(inode, value, cx.tag)?;
        self.run_for(cx, credits, |handle| {
            let changed = self.change_core(handle, inode, change);
            self.orphan_values(handle)?;
            changed
        })
    }

    fn change_core(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        change: impl FnOnce(&mut Handle<'_>, &mut disk::Inode) -> Result<()>,
    ) -> Result<()> {
        let mut core = inode.core.write();
        let mut changed = core.clone();
        if inode.kind() == FileKind::Regular && !core.may_have_attrs() {
            handle.track();
        }
        change(handle, &mut changed)?;
        if changed.may_have_attrs() {
            handle.refuse_fast_commits(refusal::XATTR);
        }
        *core = changed;
        self.store_inode(handle, inode, &core)
    }

    fn set_in_core(
        &self,
        cx: &Cx,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        set: &SetAttr,
        drops_privileges: bool,
    ) -> Result<()> {
        let wide = core.has_wide_times();
        let now = self.now(core);
        if drops_privileges {
            self.drop_privileges(cx, handle, inode, core)?;
        }
        core.uid = set.uid.unwrap_or(core.uid);
        core.gid = set.gid.unwrap_or(core.gid);
        if let Some(perm) = set.perm {
            // Twelve bits of permissions below the type.
            core.mode = core.mode & !0o7777 | (perm & 0o7777) as u16;
            self.acl_follows_mode(handle, inode, core, cx.tag)?;
        }
        let stamp = |set: Option<SetTime>, old| match set {
            None => old,
            Some(SetTime::Now) => now,
            Some(SetTime::At(at)) => time::clamp(at, wide),
        };
        core.atime = stamp(set.atime, core.atime);
        core.mtime = stamp(set.mtime, core.mtime);
        core.ctime = set.ctime.map_or(now, |at| time::clamp(at, wide));
        Ok(())
    }

    /// Clears set-user-ID, set-group-ID ([`Cx::without_privileges`]) and file capabilities. The caller
    /// stores the inode. [`crate::credits::XATTR_BLOCKS`].
    fn drop_privileges(
        &self,
        cx: &Cx,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
    ) -> Result<()> {
        self.drop_capabilities(handle, inode, core)?;
        core.mode = cx.without_privileges(core.mode, core.gid);
        Ok(())
    }

    /// Removes a file's privileges after a write by an unprivileged process. The caller holds `inode.lock` for writing.
    pub(crate) fn kill_priv(&self, cx: &Cx, inode: &Inode) -> Result<()> {
        {
            let core = inode.core.read();
            if core.mode == cx.without_privileges(core.mode, core.gid) && !core.may_have_attrs() {
                return Ok(());
            }
        }
        let tag = IoTag::default();
        let _pins = self.pin_to_change_attrs(inode, tag)?;
        let credits = self.attr_credits(inode, 0, tag)?;
        self.txns().run(credits, tag, |handle| {
            let changed = self.kill_priv_in(cx, handle, inode);
            self.orphan_values(handle)?;
            changed
        })
    }

    fn kill_priv_in(&self, cx: &Cx, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        let mut core = inode.core.write();
        let mut changed = core.clone();
        self.drop_privileges(cx, handle, inode, &mut changed)?;
        let before = (core.mode, core.file_acl, &core.xattr_area);
        if before == (changed.mode, changed.file_acl, &changed.xattr_area) {
            return Ok(());
        }
        changed.ctime = self.now(&changed);
        *core = changed;
        self.store_inode(handle, inode, &core)
    }

    /// See [`steadfs_vfs::FileSystem::flags`].
    pub fn flags(&self, cx: &Cx, ino: InodeNo) -> Result<FsxAttr> {
        let inode = self.by_number(ino, cx.tag)?;
        let core = inode.core.read();
        Ok(FsxAttr {
            flags: core.flags,
            project: core.project,
            extents: 0,
        })
    }

    /// See [`steadfs_vfs::FileSystem::set_flags`].
    pub fn set_flags(&self, cx: &Cx, ino: InodeNo, flags: InodeFlags) -> Result<()> {
        self.check_writable()?;
        let inode = self.by_number(ino, cx.tag)?;
        let _alone = inode.lock.write();
        let old = inode.core.read().flags;
        if flags.0 & !NAMEABLE & !old.0 != 0 {
            return Err(FsError::NotSupported("one of these inode flags"));
        }
        if (flags.0 ^ old.0) & InodeFlags::EXTENTS.0 != 0 {
            return Err(FsError::NotSupported("changing how a file is mapped"));
        }
        if (flags.0 ^ old.0) & disk::inode::JOURNAL_DATA.0 != 0 {
            return Err(FsError::NotSupported("journaling a file's data"));
        }
        let allowed = MODIFIABLE & flags_for(inode.kind());
        if flags.0 & MODIFIABLE & !allowed & !old.0 != 0 {
            return Err(FsError::NotSupported(
                "this flag on a file that is not a directory",
            ));
        }
        let new = InodeFlags(old.0 & !MODIFIABLE | flags.0 & allowed);
        if (new.0 ^ old.0) & InodeFlags::CASEFOLD.0 != 0 {
            self.check_may_change_folding(cx, &inode)?;
        }
        self.change_fields(cx, &inode, 0, |_, core| {
            core.flags = new;
            core.ctime = self.now(core);
            Ok(())
        })
    }

    /// Refuses to make a directory case-insensitive, or case-sensitive again, unless it is empty.
    fn check_may_change_folding(&self, cx: &Cx, dir: &Inode) -> Result<()> {
        if self.geo().encoding.is_none() {
            return Err(FsError::NotSupported(
                "case-insensitive directories on this volume",
            ));
        }
        let core = dir.core.read();
        self.check_may_refold(dir, &core, cx.tag)?;
        match Dir::new(self, dir.ino(), &core, cx.tag).is_empty(&core)? {
            true => Ok(()),
            false => Err(FsError::NotEmpty),
        }
    }

    /// See [`steadfs_vfs::FileSystem::set_project`].
    pub fn set_project(&self, cx: &Cx, ino: InodeNo, project: u32) -> Result<()> {
        self.check_writable()?;
        let inode = self.by_number(ino, cx.tag)?;
        let _alone = inode.lock.write();
        self.check_project_can_be(&inode.core.read(), project)?;
        if inode.core.read().project == project {
            return Ok(());
        }
        let owners = [None, None, Some(project)];
        let _pins = self.prepare_owners(owners, cx.tag)?;
        let _held = self.hold_for_new_owners(cx, &inode, owners)?;
        self.change_fields(cx, &inode, 0, |_, core| {
            core.project = project;
            core.ctime = self.now(core);
            Ok(())
        })
    }

    /// Fails if an inode cannot have this project.
    pub(crate) fn check_project_can_be(&self, core: &disk::Inode, project: u32) -> Result<()> {
        if core.project == project {
            return Ok(());
        }
        if !self.geo().has_ro_compat(RoCompat::PROJECT) {
            return Err(FsError::NotSupported("projects on this volume"));
        }
        if !core.has_project() {
            return Err(FsError::NotSupported(
                "project ids on inodes without the field i_projid",
            ));
        }
        Ok(())
    }

    /// See [`steadfs_vfs::FileSystem::generation`].
    pub fn generation(&self, cx: &Cx, ino: InodeNo) -> Result<u32> {
        let inode = self.by_number(ino, cx.tag)?;
        let generation = inode.core.read().generation;
        Ok(generation)
    }
}

/// Flags that have a meaning for inodes of this kind, as ext4 keeps them (`EXT4_REG_FLMASK`,
/// `EXT4_OTHER_FLMASK`).
pub(crate) fn flags_for(kind: FileKind) -> u32 {
    const DIRECTORY_ONLY: u32 = InodeFlags::DIRSYNC.0
        | InodeFlags::TOPDIR.0
        | InodeFlags::CASEFOLD.0
        | InodeFlags::PROJINHERIT.0;
    match kind {
        FileKind::Directory => u32::MAX,
        FileKind::Regular => !DIRECTORY_ONLY,
        _ => InodeFlags::NODUMP.0 | InodeFlags::NOATIME.0,
    }
}
