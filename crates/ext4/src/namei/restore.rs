//! What a restoration ([`steadfs_vfs::restore`]) does to a volume with a journal.
//!
//! **Rule.** Each step is one transaction that leaves the volume consistent. New inodes are orphans until they get a
//! name, so that a mount after a power cut frees them.

use std::sync::Arc;

use steadfs_base::{Corruption, InodeNo, IoTag};
use steadfs_cache::WritebackReason;
use steadfs_vfs::acl::Inherited;
use steadfs_vfs::names::{NameIn, with_names_locked};
use steadfs_vfs::restore::{FoundInode, RestoreVolume, restore};
use steadfs_vfs::{
    Cx, FileKind, FsError, InodeFlags, NewInode, RecordedFile, RecordedState, RenameFlags, Result,
    SetXattr, XattrChange,
};

use super::create::NewContent;
use super::{NewName, check_may_have_subdir, gain_subdir, lose_subdir};
use crate::attr::{MODIFIABLE, flags_for};
use crate::credits;
use crate::dir::{Dir, Dots, Entry};
use crate::disk::Ino;
use crate::disk::superblock::STATE_ERROR;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::quota::owners_of;
use crate::txn::Handle;

fn is_dir(inode: &Inode) -> bool {
    inode.kind() == FileKind::Directory
}

impl Ext4 {
    /// See [`steadfs_vfs::FileSystem::restore`].
    pub(crate) fn restore_recorded(&self, state: &RecordedState) -> Result<()> {
        if !self.txns().is_journaled() {
            return Err(FsError::NotSupported(
                "restoring a killed server's state on a volume without a journal",
            ));
        }
        // The mount leaves the orphans of such a volume to e2fsck.
        if self.sb.lock().state() & STATE_ERROR != 0 && !self.orphans.none_on_record() {
            return Err(FsError::NotSupported(
                "restoring a killed server's state on a volume with recorded errors and orphans",
            ));
        }
        self.check_writable()?;
        restore(self, state)
    }

    fn dir_entry(&self, dir: &Inode, name: &[u8]) -> Result<Option<Entry>> {
        let core = dir.core.read();
        Dir::new(self, dir.ino(), &core, IoTag::default()).find(&core, name)
    }

    fn given_entry(&self, dir: &Inode, name: &[u8]) -> Result<Entry> {
        self.dir_entry(dir, name)?.ok_or(FsError::NotFound)
    }

    /// [`Ext4::add_name`] that leaves the directory's times.
    fn put_entry(
        &self,
        handle: &mut Handle<'_>,
        dir: &Inode,
        new: &NewName<'_>,
        inode: &Inode,
        subdir: bool,
    ) -> Result<()> {
        let named = (&new.name, inode.ino(), inode.kind());
        let mut core = dir.core.write();
        Dir::new(self, dir.ino(), &core, IoTag::default())
            .insert(handle, &mut core, &new.slot, named)?;
        if subdir {
            gain_subdir(&mut core);
        }
        self.store_inode(handle, dir, &core)
    }

    /// [`Ext4::take_name`] that leaves the directory's times.
    fn drop_entry(
        &self,
        handle: &mut Handle<'_>,
        dir: &Inode,
        entry: &Entry,
        subdir: bool,
    ) -> Result<()> {
        let mut core = dir.core.write();
        Dir::new(self, dir.ino(), &core, IoTag::default()).remove(handle, &mut core, entry)?;
        if subdir {
            lose_subdir(&mut core);
        }
        self.store_inode(handle, dir, &core)
    }

    fn point_to_parent(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        dots: &Dots,
        parent: Ino,
    ) -> Result<()> {
        let mut core = inode.core.write();
        Dir::new(self, inode.ino(), &core, IoTag::default())
            .set_parent(handle, &mut core, dots, parent)?;
        self.store_inode(handle, inode, &core)
    }

    fn insert_recorded_name(&self, dir: &Arc<Inode>, name: &[u8], inode: &Inode) -> Result<()> {
        let _names = dir.lock.write();
        let subdir = is_dir(inode);
        if subdir {
            check_may_have_subdir(self, &dir.core.read())?;
        }
        let cx = Cx::default();
        let mut pins = self.pin_inodes(&[dir.ino(), inode.ino()], cx.tag)?;
        self.orphans.pin_to_remove(self, &mut pins, inode.ino())?;
        let dots = match subdir {
            true => Some(self.dots_of(&cx, inode)?),
            false => None,
        };
        self.txns().run(credits::RENAME, cx.tag, |handle| {
            let slot = self.room_for_name(&cx, handle, dir, name, credits::RENAME)?;
            self.put_entry(handle, dir, &slot, inode, subdir)?;
            if let Some(dots) = &dots {
                self.point_to_parent(handle, inode, dots, dir.ino())?;
            }
            let first = {
                let mut core = inode.core.write();
                core.links += if subdir { 2 } else { 1 };
                self.store_inode(handle, inode, &core)?;
                core.links == if subdir { 2 } else { 1 }
            };
            if first {
                self.orphans.remove(self, handle, inode)?;
                inode.marks.set_linkable(false);
            }
            Ok(())
        })
    }

    fn move_recorded_name(
        &self,
        (from_dir, from): (&Inode, &[u8]),
        (to_dir, to): (&Inode, &[u8]),
    ) -> Result<()> {
        let cx = Cx::default();
        let entry = self.given_entry(from_dir, from)?;
        let inode = self.named(from_dir, entry.ino(), cx.tag)?;
        let subdir = is_dir(&inode) && from_dir.ino() != to_dir.ino();
        let numbers = [from_dir.ino(), to_dir.ino(), inode.ino()];
        let _pins = self.pin_inodes(&numbers, cx.tag)?;
        let mut dots = None;
        if subdir {
            check_may_have_subdir(self, &to_dir.core.read())?;
            dots = Some(self.dots_of(&cx, &inode)?);
        }
        self.txns().run(credits::RENAME, cx.tag, |handle| {
            let slot = self.room_for_name(&cx, handle, to_dir, to, credits::RENAME)?;
            let in_one = from_dir.ino() == to_dir.ino();
            // Growth may have moved the old name.
            let grown = in_one.then(|| self.given_entry(from_dir, from));
            let mut entry = grown.transpose()?.unwrap_or(entry);
            self.put_entry(handle, to_dir, &slot, &inode, subdir)?;
            if in_one {
                entry = self.after_insertion(&cx, from_dir, &entry)?;
            }
            self.drop_entry(handle, from_dir, &entry, subdir)?;
            match &dots {
                Some(dots) => self.point_to_parent(handle, &inode, dots, to_dir.ino()),
                None => Ok(()),
            }
        })
    }

    /// Makes an orphan of the given number.
    fn make_given(&self, ino: Ino, file: &RecordedFile) -> Result<()> {
        let (cx, kind) = (Cx::default(), file.attr.kind);
        let spec = NewInode {
            target: file.target.as_deref().unwrap_or_default(),
            ..NewInode::plain(kind, file.attr.perm, file.attr.rdev)
        };
        let root = self.inode(Ino::ROOT, cx.tag)?;
        let mut core = self.new_core(&cx, &root, &spec, &Inherited::default(), 0);
        core.generation = file.generation;
        core.flags = InodeFlags(core.flags.0 & InodeFlags::EXTENTS.0);
        let mut pins = self.prepare_owners(owners_of(&core).map(Some), cx.tag)?;
        pins.add(self.pin_inodes(&[ino], cx.tag)?);
        self.orphans.pin_to_add(self, &mut pins)?;
        let (slots, credits) = (self.alloc.slots_to_clear(self, ino), credits::TMPFILE);
        let credits = credits::CREATE + credits + slots;
        self.txns().run(credits, cx.tag, |handle| {
            self.alloc.allocate_given_inode(self, handle, ino, kind)?;
            self.clear_slot(handle, ino)?;
            let inode = Inode::new(ino, core, self.geo.block_size, &self.writeback)?;
            let inode = self.inodes.insert(inode);
            let content = NewContent {
                parent: Ino::ROOT,
                spec: &spec,
                inherited: &Inherited::default(),
                context: None,
            };
            let filled = self.fill(handle, &inode, &content);
            self.orphans.add(self, handle, &inode)?;
            if filled.is_err() {
                // An orphan with less content.
                handle.consistent();
            }
            filled
        })
    }
}

impl RestoreVolume for Ext4 {
    fn find_inode(&self, ino: InodeNo) -> Result<Option<FoundInode>> {
        let Some(nameable) = Ino::from_vfs(ino).filter(|ino| self.is_nameable(*ino)) else {
            let what = "is recorded, but no file can have this number";
            return Err(Corruption::new(what).in_inode(ino).into());
        };
        if !self.alloc.is_inode_used(self, nameable)? {
            return Ok(None);
        }
        let inode = match self.inode(nameable, IoTag::default()) {
            Err(FsError::Stale) => return Ok(None),
            found => found?,
        };
        let core = inode.core.read();
        Ok(Some(FoundInode {
            generation: core.generation,
            kind: inode.kind(),
            links: core.links.into(),
        }))
    }

    fn find_entry(&self, dir: InodeNo, name: &[u8]) -> Result<Option<InodeNo>> {
        let dir = self.directory(dir, IoTag::default())?;
        let entry = self.dir_entry(&dir, name)?;
        Ok(entry.map(|entry| entry.ino().into()))
    }

    fn list_entries(&self, dir: InodeNo) -> Result<Vec<(Vec<u8>, InodeNo)>> {
        let dir = self.directory(dir, IoTag::default())?;
        let core = dir.core.read();
        let mut names = Vec::new();
        Dir::new(self, dir.ino(), &core, IoTag::default()).read(&core, 0, &mut |entry| {
            if !steadfs_vfs::names::is_dots(entry.name) {
                names.push((entry.name.to_vec(), entry.ino));
            }
            true
        })?;
        Ok(names)
    }

    fn insert_entry(&self, dir: InodeNo, name: &[u8], ino: InodeNo) -> Result<()> {
        let cx = Cx::default();
        let dir = self.directory(dir, cx.tag)?;
        let inode = self.by_number(ino, cx.tag)?;
        self.with_space(&cx, || self.insert_recorded_name(&dir, name, &inode))
    }

    fn remove_entry(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        let cx = Cx::default();
        let dir = self.directory(dir, cx.tag)?;
        let _names = dir.lock.write();
        let entry = self.given_entry(&dir, name)?;
        let inode = self.named(&dir, entry.ino(), cx.tag)?;
        let _pins = self.pin_to_lose_name(&cx, &dir, &inode)?;
        self.txns().run(credits::UNLINK, cx.tag, |handle| {
            self.drop_entry(handle, &dir, &entry, is_dir(&inode))?;
            match is_dir(&inode) {
                true => self.lose_all_names(handle, &inode),
                false => self.lose_name(handle, &inode),
            }
        })
    }

    fn move_entry(&self, from: (InodeNo, &[u8]), to: (InodeNo, &[u8])) -> Result<()> {
        let cx = Cx::default();
        let from_dir = self.directory(from.0, cx.tag)?;
        let to_dir = self.directory(to.0, cx.tag)?;
        let move_it = || {
            let look = || Ok(((), Vec::new()));
            with_names_locked([&*from_dir, &*to_dir], look, |()| {
                self.move_recorded_name((&from_dir, from.1), (&to_dir, to.1))
            })
        };
        self.with_space(&cx, move_it)
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
        let (from, to) = (NameIn::new(&*from_dir, from.1), NameIn::new(&*to_dir, to.1));
        self.with_space(&cx, || self.rename_recorded(&cx, from, to, flags))
    }

    fn parent_of(&self, dir: InodeNo) -> Result<InodeNo> {
        let dir = self.directory(dir, IoTag::default())?;
        self.parent(&dir, IoTag::default()).map(InodeNo::from)
    }

    fn free_inode(&self, ino: InodeNo) -> Result<()> {
        let inode = self.by_number(ino, IoTag::default())?;
        let lookups = inode.take_lookups();
        self.evict(&inode)?;
        if lookups > 0 {
            self.inodes.adopt_lookups(&[(ino, lookups)]);
        }
        Ok(())
    }

    fn make_inode(&self, ino: InodeNo, file: &RecordedFile) -> Result<()> {
        let ino = Ino::from_vfs(ino).ok_or(FsError::Stale)?;
        self.make_given(ino, file)
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
        let how = SetXattr::Any;
        self.change_named(cx, ino, &XattrChange { name, value, how })
    }

    fn set_attributes(&self, ino: InodeNo, file: &RecordedFile) -> Result<()> {
        let inode = self.by_number(ino, IoTag::default())?;
        if file.attr.nlink == 0 {
            inode.marks.adopt_orphan();
        }
        let _alone = inode.lock.write();
        let project = file.flags.project;
        self.check_project_can_be(&inode.core.read(), project)?;
        let attr = &file.attr;
        let owners = [attr.uid, attr.gid, project];
        let _pins = self.prepare_owners(owners.map(Some), IoTag::default())?;
        if owners_of(&inode.core.read()) != owners {
            // What it delays counts for the old ones.
            self.write_out(&inode, WritebackReason::Sync, IoTag::default())?;
        }
        let flags = MODIFIABLE & flags_for(inode.kind());
        self.change_fields(&Cx::default(), &inode, 0, |handle, core| {
            (core.uid, core.gid) = (attr.uid, attr.gid);
            // Type and twelve bits.
            core.mode = (attr.kind.mode_bits() | attr.perm & 0o7777) as u16;
            // The list may have been recorded before the mode.
            self.acl_follows_mode(handle, &inode, core, IoTag::default())?;
            core.flags = InodeFlags(core.flags.0 & !flags | file.flags.flags.0 & flags);
            (core.atime, core.mtime, core.ctime) = (attr.atime, attr.mtime, attr.ctime);
            core.btime = attr.btime;
            core.project = project;
            Ok(())
        })
    }
}
