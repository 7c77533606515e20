//! Adding and removing links: link, unlink, rmdir.

use std::sync::Arc;

use steadfs_base::{InodeNo, IoTag};
use steadfs_vfs::names::{
    check_may_lose_name, check_new_name, check_rmdir, check_unlink, with_removed_dir_locked,
};
use steadfs_vfs::{Attr, Cx, FileKind, FsError, Result};

use super::{check_link_max, check_may_remove, check_project, drop_subdir_link};
use crate::cp_lock::Change;
use crate::dentry::FoundDentry;
use crate::disk::inode::Advise;
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::pins::Pins;

impl F2fs {
    /// See [`steadfs_vfs::FileSystem::link`]. An inode without links gets one only if `tmpfile` made it.
    pub(crate) fn make_link(
        &self,
        cx: &Cx,
        ino: InodeNo,
        dir: InodeNo,
        name: &[u8],
    ) -> Result<Attr> {
        check_new_name(name)?;
        self.with_space(cx, || self.link_once(cx, ino, dir, name))
    }

    fn link_once(&self, cx: &Cx, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        self.prepare(cx)?;
        let inode = self.by_number(ino, cx.tag)?;
        if inode.kind() == FileKind::Directory {
            return Err(FsError::NotPermitted);
        }
        let dir = self.directory(dir, cx.tag)?;
        let _names = dir.lock.write();
        self.check_may_add(&dir, cx.tag)?;
        self.check_policy(&dir, &inode, cx.tag)?;
        check_project(&dir, &inode)?;
        let stored = self.stored_name(&dir, name, cx.tag)?;
        let free_dentry = self.find_free_dentry(cx, &dir, name)?;
        let mut pins = self.pin_inodes(&[&dir, &inode], cx.tag)?;
        self.pin_dir_block(&mut pins, &dir, free_dentry.block, cx.tag)?;
        let _held = self.hold_space(cx, &dir, free_dentry.need)?;
        let mut reservation = self
            .space
            .reservation(free_dentry.need, self.may_use_reserved(cx))?;
        let change = self.change()?;
        let first = {
            let mut core = inode.core.write();
            check_may_lose_name(core.flags)?;
            check_link_max(&core)?;
            if core.links == 0 && !inode.marks.is_linkable() {
                return Err(FsError::NotFound);
            }
            self.mark_dirty(&change, &inode, cx.tag)?;
            core.links += 1;
            core.ctime = self.now();
            core.parent = dir.nid();
            stored.put(&mut core);
            core.advise = core.advise.union(Advise::LOST_PARENT);
            self.since_cp.rename(inode.nid());
            core.links == 1
        };
        let added = self.add_name(
            cx,
            &change,
            &mut reservation,
            (&dir, &free_dentry, &stored.bytes),
            &inode,
            false,
        );
        self.abort_on_error(added)?;
        self.check_recovered_name(&dir, free_dentry.hash, inode.nid());
        if first {
            self.orphans.remove(&change, &inode);
            inode.marks.set_linkable(false);
        }
        inode.add_lookup();
        Ok(inode.attr(self, cx.tag))
    }

    /// See [`steadfs_vfs::FileSystem::unlink`].
    pub(crate) fn remove_file(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<()> {
        check_unlink(name)?;
        self.check_writable()?;
        self.balance(cx.tag)?;
        let dir = self.directory(dir, cx.tag)?;
        let names = dir.lock.write();
        let (entry, victim) = self.entry_to_remove(cx, &dir, name)?;
        if victim.kind() == FileKind::Directory {
            return Err(FsError::IsDir);
        }
        check_may_lose_name(victim.core.read().flags)?;
        let _room = self.orphans.room()?;
        let _pins = self.pin_entry(&dir, &entry, &victim, cx.tag)?;
        let change = self.change()?;
        self.remove_dentry_and_link(&change, &dir, &entry, false, cx.tag)?;
        let lost = self.drop_link(&change, &victim, cx.tag);
        if self.abort_on_error(lost)? > 0 {
            self.record_moved_name(&dir, entry.hash);
        }
        drop(change);
        drop(names);
        self.evict_if_unlinked(&victim, cx.tag);
        Ok(())
    }

    /// See [`steadfs_vfs::FileSystem::rmdir`].
    pub(crate) fn remove_dir(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<()> {
        check_rmdir(name)?;
        self.check_writable()?;
        self.balance(cx.tag)?;
        let dir = self.directory(dir, cx.tag)?;
        let find = || self.entry_to_remove(cx, &dir, name);
        let victim = with_removed_dir_locked(&*dir, find, |entry, victim| {
            self.rmdir_locked(cx, &dir, &entry, victim)
        })?;
        self.evict_if_unlinked(&victim, cx.tag);
        Ok(())
    }

    fn rmdir_locked(
        &self,
        cx: &Cx,
        dir: &Inode,
        entry: &FoundDentry,
        victim: &Inode,
    ) -> Result<()> {
        check_may_lose_name(victim.core.read().flags)?;
        if !self.is_empty_dir(victim, cx.tag)? {
            return Err(FsError::NotEmpty);
        }
        let _room = self.orphans.room()?;
        let _pins = self.pin_entry(dir, entry, victim, cx.tag)?;
        let change = self.change()?;
        self.remove_dentry_and_link(&change, dir, entry, true, cx.tag)?;
        // The checkpoint may still have the removed directory's content, none of which is recovered.
        self.record_moved_name(dir, entry.hash);
        let lost = self.drop_all_links(&change, victim, cx.tag);
        self.abort_on_error(lost)
    }

    /// The entry of a name and its inode, in a directory that allows removal.
    fn entry_to_remove(
        &self,
        cx: &Cx,
        dir: &Inode,
        name: &[u8],
    ) -> Result<(FoundDentry, Arc<Inode>)> {
        check_may_remove(&dir.core.read())?;
        let found = self.find_entry(dir, name, cx.tag)?;
        let entry = found.ok_or(FsError::NotFound)?;
        let inode = self.inode_of_entry(dir, entry.ino, cx.tag)?;
        Ok((entry, inode))
    }

    /// Reads everything that removing a link needs, before the first change.
    pub(super) fn pin_entry(
        &self,
        dir: &Inode,
        entry: &FoundDentry,
        victim: &Inode,
        tag: IoTag,
    ) -> Result<Pins> {
        let mut pins = self.pin_inodes(&[dir, victim], tag)?;
        self.pin_dir_block(&mut pins, dir, entry.block, tag)?;
        Ok(pins)
    }

    /// Removes an entry; `subdir`: of a directory.
    pub(super) fn remove_dentry_and_link(
        &self,
        change: &Change<'_>,
        dir: &Inode,
        entry: &FoundDentry,
        subdir: bool,
        tag: IoTag,
    ) -> Result<()> {
        let mut core = dir.core.write();
        self.remove_name(change, dir, &mut core, entry, tag)?;
        self.touch_dir(&mut core);
        if subdir {
            drop_subdir_link(&mut core);
        }
        Ok(())
    }

    /// Removes a link from an inode that is not a directory, and makes it an orphan if it was the last one. Returns
    /// the remaining number.
    pub(super) fn drop_link(&self, change: &Change<'_>, inode: &Inode, tag: IoTag) -> Result<u32> {
        let left = {
            let mut core = inode.core.write();
            self.mark_dirty(change, inode, tag)?;
            // A corrupt link count must not wrap.
            core.links = core.links.saturating_sub(1);
            core.ctime = self.now();
            core.links
        };
        if left == 0 {
            self.orphans.add(change, inode)?;
        }
        Ok(left)
    }

    /// Removes the links of a directory and makes it an orphan.
    pub(super) fn drop_all_links(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        tag: IoTag,
    ) -> Result<()> {
        {
            let mut core = inode.core.write();
            self.mark_dirty(change, inode, tag)?;
            core.links = 0;
            core.ctime = self.now();
        }
        self.orphans.add(change, inode)
    }
}
