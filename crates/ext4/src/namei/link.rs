//! link, unlink, rmdir.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_jbd2::NameChange;
use steadfs_vfs::names::{
    check_may_lose_name, check_new_name, check_rmdir, check_unlink, with_removed_dir_locked,
};
use steadfs_vfs::{Attr, Cx, FileKind, FsError, Result};

use super::{check_may_remove, check_project, lose_subdir};
use crate::credits;
use crate::dir::{Dir, Entry};
use crate::disk::inode::LINK_MAX;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::pins::Pins;
use crate::txn::Handle;

impl Ext4 {
    /// See [`steadfs_vfs::FileSystem::link`]. An inode without names gets one only if it was made by
    /// `tmpfile`.
    pub fn link(&self, cx: &Cx, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        check_new_name(name)?;
        self.with_space(cx, || self.link_once(cx, ino, dir, name))
    }

    fn link_once(&self, cx: &Cx, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        self.check_writable()?;
        let inode = self.by_number(ino, cx.tag)?;
        if inode.kind() == FileKind::Directory {
            return Err(FsError::NotPermitted);
        }
        let dir = self.directory(dir, cx.tag)?;
        let _names = dir.lock.write();
        self.check_may_add(&dir, cx.tag)?;
        self.check_policy(&dir, &inode, cx.tag)?;
        check_project(&dir, &inode)?;
        let mut pins = self.pin_inodes(&[dir.ino(), inode.ino()], cx.tag)?;
        self.orphans.pin_to_remove(self, &mut pins, inode.ino())?;
        self.run_for(cx, credits::LINK, |handle| {
            handle.track();
            let slot = self.room_for_name(cx, handle, &dir, name, credits::LINK)?;
            self.gain_name(handle, &inode)?;
            self.add_name(cx, handle, &dir, &slot, &inode, false)?;
            self.record_name(handle, NameChange::Link, (&dir, name), &inode);
            Ok::<_, FsError>(())
        })?;
        inode.add_lookup();
        Ok(inode.attr(self))
    }

    /// Increments the link count; with its first name an inode is no longer an orphan.
    fn gain_name(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        let first = {
            let mut core = inode.core.write();
            check_may_lose_name(core.flags)?;
            if core.links >= LINK_MAX {
                return Err(FsError::TooManyLinks);
            }
            if core.links == 0 && !inode.marks.is_linkable() {
                return Err(FsError::NotFound);
            }
            if core.links == 0 && inode.marks.becomes_verity() {
                // It would leave the record of orphans.
                return Err(FsError::Busy);
            }
            core.links += 1;
            core.ctime = self.now(&core);
            self.store_inode(handle, inode, &core)?;
            core.links == 1
        };
        if first {
            self.orphans.remove(self, handle, inode)?;
            inode.marks.set_linkable(false);
        }
        Ok(())
    }

    /// See [`steadfs_vfs::FileSystem::unlink`].
    pub fn unlink(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<()> {
        check_unlink(name)?;
        self.check_writable()?;
        let dir = self.directory(dir, cx.tag)?;
        let names = dir.lock.write();
        let (entry, victim) = self.entry_to_remove(cx, &dir, name)?;
        if victim.kind() == FileKind::Directory {
            return Err(FsError::IsDir);
        }
        check_may_lose_name(victim.core.read().flags)?;
        let _pins = self.pin_to_lose_name(cx, &dir, &victim)?;
        self.txns().run(credits::UNLINK, cx.tag, |handle| {
            handle.track();
            self.take_name(cx, handle, &dir, &entry, false)?;
            self.record_name(handle, NameChange::Unlink, (&dir, name), &victim);
            self.lose_name(handle, &victim)
        })?;
        drop(names);
        self.free_unnamed(&victim);
        Ok(())
    }

    /// See [`steadfs_vfs::FileSystem::rmdir`].
    pub fn rmdir(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<()> {
        check_rmdir(name)?;
        self.check_writable()?;
        let dir = self.directory(dir, cx.tag)?;
        let find = || self.entry_to_remove(cx, &dir, name);
        let victim = with_removed_dir_locked(&*dir, find, |entry, victim| {
            self.rmdir_locked(cx, &dir, &entry, victim)
        })?;
        self.free_unnamed(&victim);
        Ok(())
    }

    fn rmdir_locked(&self, cx: &Cx, dir: &Inode, entry: &Entry, victim: &Inode) -> Result<()> {
        {
            let core = victim.core.read();
            check_may_lose_name(core.flags)?;
            if !Dir::new(self, victim.ino(), &core, cx.tag).is_empty(&core)? {
                return Err(FsError::NotEmpty);
            }
        }
        let _pins = self.pin_to_lose_name(cx, dir, victim)?;
        self.txns().run(credits::UNLINK, cx.tag, |handle| {
            self.take_name(cx, handle, dir, entry, true)?;
            self.lose_all_names(handle, victim)
        })
    }

    /// Pins the blocks that change when an inode loses a name, perhaps its last.
    pub(super) fn pin_to_lose_name(&self, cx: &Cx, dir: &Inode, victim: &Inode) -> Result<Pins> {
        let mut pins = self.pin_inodes(&[dir.ino(), victim.ino()], cx.tag)?;
        self.orphans.pin_to_add(self, &mut pins)?;
        Ok(pins)
    }

    /// The entry of a name in a directory that may lose names, and its inode.
    pub(super) fn entry_to_remove(
        &self,
        cx: &Cx,
        dir: &Inode,
        name: &[u8],
    ) -> Result<(Entry, Arc<Inode>)> {
        let entry = {
            let core = dir.core.read();
            check_may_remove(&core)?;
            let blocks = Dir::new(self, dir.ino(), &core, cx.tag).after_last_search(dir);
            let entry = blocks.find(&core, name)?.ok_or(FsError::NotFound)?;
            blocks.check_target(entry.ino())?;
            entry
        };
        let inode = self.named(dir, entry.ino(), cx.tag)?;
        Ok((entry, inode))
    }

    /// Removes an entry. `subdir`: the directory's link count loses a `..`.
    pub(crate) fn take_name(
        &self,
        cx: &Cx,
        handle: &mut Handle<'_>,
        dir: &Inode,
        entry: &Entry,
        subdir: bool,
    ) -> Result<()> {
        let mut core = dir.core.write();
        Dir::new(self, dir.ino(), &core, cx.tag).remove(handle, &mut core, entry)?;
        self.touch_dir(&mut core);
        if subdir {
            lose_subdir(&mut core);
        }
        self.store_inode(handle, dir, &core)
    }

    /// Decrements the link count of an inode that is not a directory; without names it becomes an orphan.
    pub(super) fn lose_name(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        let last = {
            let mut core = inode.core.write();
            // A wrong count on disk must not wrap around.
            core.links = core.links.saturating_sub(1);
            core.ctime = self.now(&core);
            self.store_inode(handle, inode, &core)?;
            core.links == 0
        };
        if last {
            self.orphans.add(self, handle, inode)
        } else {
            Ok(())
        }
    }

    /// Removes a directory's links and makes it an orphan.
    pub(super) fn lose_all_names(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        {
            let mut core = inode.core.write();
            core.links = 0;
            core.ctime = self.now(&core);
            self.store_inode(handle, inode, &core)?;
        }
        self.orphans.add(self, handle, inode)
    }

    /// Frees an inode without names and lookups. The caller holds no lock. On failure the inode stays an orphan, for
    /// the next mount.
    pub(super) fn free_unnamed(&self, inode: &Inode) {
        if inode.core.read().links > 0 {
            return;
        }
        if inode.is_looked_up() {
            return self.freeing.expect_release();
        }
        if let Err(error) = self.report_corruption(self.evict(inode)) {
            tracing::warn!(ino = %inode.ino(), %error, "freeing an unlinked inode failed");
        }
    }
}
