//! What a restoration ([`steadfs_vfs::restore`]) does to a volume.
//!
//! **Rule.** Each step is one `Change` that leaves the volume consistent, so a checkpoint may come after any of them.
//! New inodes are orphans until they get a name.
//!
//! A node id is an inode's number or that of another node. One that is to be an inode may be a node of a file that a
//! recorded change has made shorter: that file's contents are restored first. No other node gets such an id meanwhile.

use std::sync::Arc;

use steadfs_base::{InodeNo, IoTag};
use steadfs_vfs::names::{NameIn, is_dots, with_names_locked};
use steadfs_vfs::restore::{FoundInode, RestoreVolume, restore};
use steadfs_vfs::{
    Cx, FileKind, FsError, InodeFlags, NewInode, RecordedFile, RecordedState, RenameFlags, Result,
};

use super::{check_link_max, drop_subdir_link, flags_for};
use crate::attr::SETTABLE_FLAGS;
use crate::cp_lock::Change;
use crate::dentry::{FoundDentry, FreeDentry, NewName};
use crate::disk::inode::Advise;
use crate::disk::xattr::{XattrChange, index};
use crate::disk::{DiskError, Nid, Structure};
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::space::Need;
use crate::space::Reservation;

fn is_dir(inode: &Inode) -> bool {
    inode.kind() == FileKind::Directory
}

fn check_names_are_plain(dir: &Inode) -> Result<()> {
    if dir.is_encrypted() {
        return Err(FsError::NotSupported(
            "restoring names in encrypted directories",
        ));
    }
    Ok(())
}

impl F2fs {
    /// See [`steadfs_vfs::FileSystem::restore`].
    pub(crate) fn restore_recorded(&self, state: &RecordedState) -> Result<()> {
        if self.is_cp_disabled() {
            return Err(FsError::NotSupported(
                "restoring a killed server's state on a volume whose checkpoints are disabled",
            ));
        }
        self.check_writable()?;
        restore(self, state)
    }

    /// [`F2fs::find_free_dentry`] in a directory whose names can be encoded.
    fn free_dentry(&self, cx: &Cx, dir: &Inode, name: &[u8]) -> Result<FreeDentry> {
        check_names_are_plain(dir)?;
        self.find_free_dentry(cx, dir, name)
    }

    fn given_entry(&self, dir: &Inode, name: &[u8], tag: IoTag) -> Result<FoundDentry> {
        self.find_entry(dir, name, tag)?.ok_or(FsError::NotFound)
    }

    /// [`F2fs::add_name`] that leaves the directory's times.
    fn put_entry(
        &self,
        change: &Change<'_>,
        reservation: &mut Reservation<'_>,
        (dir, free, name): (&Inode, &FreeDentry, &[u8]),
        inode: &Inode,
        subdir: bool,
    ) -> Result<()> {
        let mut core = dir.core.write();
        let new = NewName {
            ino: inode.nid(),
            kind: inode.kind(),
            name,
        };
        let tag = IoTag::default();
        self.insert_name(change, dir, &mut core, reservation, (free, &new), tag)?;
        if subdir {
            core.links += 1;
        }
        self.check_recovered_name(dir, free.hash, inode.nid());
        Ok(())
    }

    /// Removes an entry and leaves the directory's times.
    fn drop_entry(
        &self,
        change: &Change<'_>,
        dir: &Inode,
        entry: &FoundDentry,
        subdir: bool,
    ) -> Result<()> {
        let mut core = dir.core.write();
        self.remove_name(change, dir, &mut core, entry, IoTag::default())?;
        if subdir {
            drop_subdir_link(&mut core);
        }
        self.record_moved_name(dir, entry.hash);
        Ok(())
    }

    /// Sets the parent and name that an inode has in its own node, and a directory's `..`; adds links.
    fn set_place(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        (dir, name): (&Inode, &[u8]),
        links: u32,
    ) -> Result<()> {
        let tag = IoTag::default();
        let up = match is_dir(inode) {
            true => self.find_entry(inode, b"..", tag)?,
            false => None,
        };
        let mut core = inode.core.write();
        self.mark_dirty(change, inode, tag)?;
        if let Some(up) = up {
            let parent = (dir.nid(), FileKind::Directory);
            self.retarget(change, inode, &core, &up, parent, tag)?;
        }
        if !is_dir(inode) && core.links > 0 {
            // Roll-forward could restore only this name.
            core.advise = core.advise.union(Advise::LOST_PARENT);
            self.since_cp.rename(inode.nid());
        }
        core.parent = dir.nid();
        core.name = name.to_vec();
        core.links += links;
        drop(core);
        self.since_cp.rename_into(dir.nid());
        Ok(())
    }

    fn insert_recorded_name(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        let cx = Cx::default();
        let _names = dir.lock.write();
        let subdir = is_dir(inode);
        if subdir {
            check_link_max(&dir.core.read())?;
        }
        let free = self.free_dentry(&cx, dir, name)?;
        let mut pins = self.pin_inodes(&[dir, inode], cx.tag)?;
        self.pin_dir_block(&mut pins, dir, free.block, cx.tag)?;
        let mut reservation = self.space.reservation(free.need, true)?;
        let change = self.change()?;
        let was_orphan = inode.core.read().links == 0;
        let mut put = || {
            self.set_place(&change, inode, (dir, name), if subdir { 2 } else { 1 })?;
            self.put_entry(&change, &mut reservation, (dir, &free, name), inode, subdir)
        };
        self.abort_on_error(put())?;
        if was_orphan {
            self.orphans.remove(&change, inode);
            inode.marks.set_linkable(false);
        }
        Ok(())
    }

    fn move_recorded_name(
        &self,
        (from_dir, from): (&Inode, &[u8]),
        (to_dir, to): (&Inode, &[u8]),
    ) -> Result<()> {
        let cx = Cx::default();
        let free = self.free_dentry(&cx, to_dir, to)?;
        let entry = self.given_entry(from_dir, from, cx.tag)?;
        let inode = self.inode_of_entry(from_dir, entry.ino, cx.tag)?;
        let subdir = is_dir(&inode) && from_dir.nid() != to_dir.nid();
        if subdir {
            check_link_max(&to_dir.core.read())?;
        }
        let mut pins = self.pin_inodes(&[from_dir, to_dir, &inode], cx.tag)?;
        self.pin_dir_block(&mut pins, from_dir, entry.block, cx.tag)?;
        self.pin_dir_block(&mut pins, to_dir, free.block, cx.tag)?;
        let mut reservation = self.space.reservation(free.need, true)?;
        let change = self.change()?;
        let mut run = || {
            self.put_entry(
                &change,
                &mut reservation,
                (to_dir, &free, to),
                &inode,
                subdir,
            )?;
            self.drop_entry(&change, from_dir, &entry, subdir)?;
            self.set_place(&change, &inode, (to_dir, to), 0)
        };
        self.abort_on_error(run())
    }

    /// Makes an orphan of the given number.
    fn make_given(&self, nid: Nid, file: &RecordedFile) -> Result<()> {
        let cx = Cx::default();
        self.prepare(&cx)?;
        let spec = NewInode {
            target: file.target.as_deref().unwrap_or_default(),
            ..NewInode::plain(file.attr.kind, file.attr.perm, file.attr.rdev)
        };
        let root = self.inode(Nid::ROOT, cx.tag)?;
        let plan = self.plan_given(&cx, &root, &spec, (nid, file.generation));
        let _room = self.orphans.room()?;
        let _pins = self.prepare_new(&cx, &plan, (&root, Need::default()))?;
        let mut reservation = self.space.reservation(plan.need, true)?;
        let change = self.change()?;
        if self.nat.entry(nid, cx.tag)?.is_used() {
            let rule = "is in use for another node than the recorded inode";
            return Err(DiskError::field(Structure::Nat, "nid", nid.0, rule).into());
        }
        let inode = self.create_inode(&cx, &change, &mut reservation, plan)?;
        let added = self.orphans.add(&change, &inode);
        self.abort_on_error(added)
    }
}

impl RestoreVolume for F2fs {
    fn find_inode(&self, ino: InodeNo) -> Result<Option<FoundInode>> {
        let inode = match self.by_number(ino, IoTag::default()) {
            Err(FsError::Stale) => return Ok(None),
            found => found?,
        };
        let core = inode.core.read();
        Ok(Some(FoundInode {
            generation: core.generation,
            kind: inode.kind(),
            links: core.links,
        }))
    }

    fn find_entry(&self, dir: InodeNo, name: &[u8]) -> Result<Option<InodeNo>> {
        let dir = self.directory(dir, IoTag::default())?;
        let entry = self.find_entry(&dir, name, IoTag::default())?;
        Ok(entry.map(|entry| entry.ino.into()))
    }

    fn list_entries(&self, dir: InodeNo) -> Result<Vec<(Vec<u8>, InodeNo)>> {
        let dir = self.directory(dir, IoTag::default())?;
        let mut names = Vec::new();
        self.list(&dir, 0, IoTag::default(), &mut |entry| {
            if !is_dots(entry.name) {
                names.push((entry.name.to_vec(), entry.ino));
            }
            true
        })?;
        Ok(names)
    }

    fn insert_entry(&self, dir: InodeNo, name: &[u8], ino: InodeNo) -> Result<()> {
        let cx = Cx::default();
        self.prepare(&cx)?;
        let dir = self.directory(dir, cx.tag)?;
        let inode = self.by_number(ino, cx.tag)?;
        self.with_space(&cx, || self.insert_recorded_name(&dir, name, &inode))
    }

    fn remove_entry(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        let tag = IoTag::default();
        self.balance(tag)?;
        let dir = self.directory(dir, tag)?;
        let _names = dir.lock.write();
        let entry = self.given_entry(&dir, name, tag)?;
        let inode = self.inode_of_entry(&dir, entry.ino, tag)?;
        let _room = self.orphans.room()?;
        let _pins = self.pin_entry(&dir, &entry, &inode, tag)?;
        let change = self.change()?;
        let remove = || {
            self.drop_entry(&change, &dir, &entry, is_dir(&inode))?;
            match is_dir(&inode) {
                true => self.drop_all_links(&change, &inode, tag),
                false => self.drop_link(&change, &inode, tag).map(|_| ()),
            }
        };
        self.abort_on_error(remove())
    }

    fn move_entry(&self, from: (InodeNo, &[u8]), to: (InodeNo, &[u8])) -> Result<()> {
        let cx = Cx::default();
        self.prepare(&cx)?;
        let from_dir = self.directory(from.0, cx.tag)?;
        let to_dir = self.directory(to.0, cx.tag)?;
        self.with_space(&cx, || {
            let look = || Ok(((), Vec::new()));
            with_names_locked([&*from_dir, &*to_dir], look, |()| {
                self.move_recorded_name((&from_dir, from.1), (&to_dir, to.1))
            })
        })
    }

    fn rename_entry(
        &self,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let cx = Cx::default();
        let from_dir = self.directory(from.0, cx.tag)?;
        let to_dir = self.directory(to.0, cx.tag)?;
        check_names_are_plain(&from_dir)?;
        check_names_are_plain(&to_dir)?;
        let (from, to) = (NameIn::new(&*from_dir, from.1), NameIn::new(&*to_dir, to.1));
        self.with_space(&cx, || self.rename_recorded(&cx, from, to, flags))
    }

    fn parent_of(&self, dir: InodeNo) -> Result<InodeNo> {
        let dir = self.directory(dir, IoTag::default())?;
        self.parent(&dir, IoTag::default()).map(InodeNo::from)
    }

    fn keep_numbers(&self, missing: &[InodeNo]) {
        let nids = missing.iter().filter_map(|ino| Nid::from_vfs(*ino));
        self.nat.keep(nids);
    }

    fn number_owner(&self, ino: InodeNo) -> Result<Option<InodeNo>> {
        let Some(nid) = Nid::from_vfs(ino) else {
            return Ok(None);
        };
        let entry = self.nat.entry(nid, IoTag::default())?;
        Ok(entry.is_used().then(|| entry.ino.into()))
    }

    fn free_inode(&self, ino: InodeNo) -> Result<()> {
        let inode: Arc<Inode> = self.by_number(ino, IoTag::default())?;
        let lookups = inode.take_lookups();
        self.evict(&inode, IoTag::default())?;
        if lookups > 0 {
            self.inodes.adopt_lookups(&[(ino, lookups)]);
        }
        Ok(())
    }

    fn make_inode(&self, ino: InodeNo, file: &RecordedFile) -> Result<()> {
        let nid = Nid::from_vfs(ino).ok_or(FsError::Stale)?;
        self.with_space(&Cx::default(), || self.make_given(nid, file))
    }

    fn before_contents(&self, ino: InodeNo, file: &RecordedFile) -> Result<()> {
        let inode = self.by_number(ino, IoTag::default())?;
        let _alone = inode.lock.write();
        let compressed = file.flags.flags.contains(InodeFlags::COMPRESSED);
        if compressed == inode.flags().contains(InodeFlags::COMPRESSED) {
            return Ok(());
        }
        self.check_may_convert(&inode, compressed, IoTag::default())?;
        let change = self.change()?;
        let mut core = inode.core.write();
        self.mark_dirty(&change, &inode, IoTag::default())?;
        core.flags = InodeFlags(core.flags.0 ^ InodeFlags::COMPRESSED.0);
        self.convert(&inode, &mut core);
        Ok(())
    }

    fn takes_contents(&self, ino: InodeNo) -> Result<bool> {
        let inode = self.by_number(ino, IoTag::default())?;
        Ok(!inode.is_verity() && Self::check_not_released(&inode).is_ok())
    }

    fn recorded_xattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        self.named_value(&Cx::default(), ino, name)
    }

    fn restore_xattr(
        &self,
        cx: &Cx,
        ino: InodeNo,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<()> {
        self.restore_named(cx, ino, name, value)
    }

    fn set_attributes(&self, ino: InodeNo, file: &RecordedFile) -> Result<()> {
        let cx = Cx::default();
        let inode = self.by_number(ino, cx.tag)?;
        self.change_project(&cx, ino, file.flags.project)?;
        if file.attr.nlink == 0 {
            inode.marks.adopt_orphan();
        }
        let _alone = inode.lock.write();
        let attr = &file.attr;
        // The list may have been recorded before the mode.
        let mode = attr.kind.mode_bits() | attr.perm & 0o7777;
        let list = self.acl_for_mode(&inode, mode, cx.tag)?;
        let list = list.as_deref().map(|list| XattrChange {
            index: index::ACL_ACCESS,
            name: b"",
            value: Some(list),
        });
        let changes: Vec<_> = list.into_iter().collect();
        // Whether it is compressed was set before its contents.
        let flags = SETTABLE_FLAGS & !InodeFlags::COMPRESSED.0 & flags_for(inode.kind());
        let owners = [attr.uid, attr.gid, file.flags.project];
        let _pins = self.prepare_owners(owners, cx.tag)?;
        self.store_fields(&cx, &inode, &changes, |core, _| {
            (core.uid, core.gid) = (attr.uid, attr.gid);
            // Type and twelve bits.
            core.mode = mode as u16;
            core.flags = InodeFlags(core.flags.0 & !flags | file.flags.flags.0 & flags);
            (core.atime, core.mtime, core.ctime) = (attr.atime, attr.mtime, attr.ctime);
            core.btime = attr.btime;
        })
    }
}
