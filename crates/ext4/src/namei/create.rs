//! New inodes: mknod, mkdir, symlink, tmpfile.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_base::limits::SYMLINK_MAX;
use steadfs_rt::random_u64;
use steadfs_vfs::names::is_dots;
use steadfs_vfs::{Attr, Cx, FileKind, FsError, InodeFlags, Result, check_name};

use super::{check_may_add, check_may_have_subdir, gain_subdir};
use crate::acl::Inherited;
use crate::attr::flags_for;
use crate::credits;
use crate::dir::{Dir, Slot};
use crate::disk::dir_entry::NewEntry;
use crate::disk::features::Incompat;
use crate::disk::inode::I_BLOCK_SIZE;
use crate::disk::{self, Ino};
use crate::extent;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::pins::Pins;
use crate::txn::Handle;
use crate::xattr::Change;

/// Flags that a new inode inherits from its directory (`EXT4_FL_INHERITED`), without those of volumes that are not
/// written: secure deletion, undelete, compression, sync, no dump, no access time, no
/// compression, journal data, no tail merging, directory sync, project inheritance.
const INHERITED: u32 = 0x1
    | 0x2
    | InodeFlags::COMPRESSED.0
    | InodeFlags::SYNC.0
    | InodeFlags::NODUMP.0
    | InodeFlags::NOATIME.0
    | 0x400
    | 0x4000
    | 0x8000
    | InodeFlags::DIRSYNC.0
    | InodeFlags::PROJINHERIT.0;

const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// The inode to create.
#[derive(Clone, Copy)]
pub(super) struct Spec<'a> {
    pub(super) kind: FileKind,
    /// Requested permission bits, before umask and default list.
    pub(super) perm: u32,
    pub(super) rdev: u32,
    /// Target of a symbolic link.
    pub(super) target: &'a [u8],
}

/// The error of a failed creation, and the partly made inode, for [`Ext4::clean_up_failed`].
pub(super) struct Failed {
    error: FsError,
    half_made: Option<Arc<Inode>>,
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl From<FsError> for Failed {
    fn from(error: FsError) -> Self {
        Self {
            error,
            half_made: None,
        }
    }
}

impl Spec<'_> {
    /// An inode without content of its own.
    pub(super) const fn plain(kind: FileKind, perm: u32, rdev: u32) -> Self {
        Self {
            kind,
            perm,
            rdev,
            target: b"",
        }
    }
}

impl Ext4 {
    /// See [`steadfs_vfs::FileSystem::mknod`].
    pub fn mknod(&self, cx: &Cx, dir: InodeNo, name: &[u8], mode: u32, rdev: u32) -> Result<Attr> {
        let kind = FileKind::from_mode(mode).ok_or(FsError::Invalid("a mode without a type"))?;
        if matches!(kind, FileKind::Directory | FileKind::Symlink) {
            return Err(FsError::Invalid(
                "mknod makes neither directories nor links",
            ));
        }
        self.create(cx, dir, name, &Spec::plain(kind, mode, rdev))
    }

    /// See [`steadfs_vfs::FileSystem::mkdir`].
    pub fn mkdir(&self, cx: &Cx, dir: InodeNo, name: &[u8], mode: u32) -> Result<Attr> {
        // Set-group-ID is inherited from the parent; set-user-ID is ignored.
        self.create(
            cx,
            dir,
            name,
            &Spec::plain(FileKind::Directory, mode & 0o1777, 0),
        )
    }

    /// See [`steadfs_vfs::FileSystem::symlink`].
    pub fn symlink(&self, cx: &Cx, dir: InodeNo, name: &[u8], target: &[u8]) -> Result<Attr> {
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        if target.contains(&0) {
            return Err(FsError::Invalid(
                "a link's target cannot contain a zero byte",
            ));
        }
        if target.len() >= self.geo().block_size.bytes() || target.len() > SYMLINK_MAX {
            return Err(FsError::NameTooLong);
        }
        let spec = Spec {
            kind: FileKind::Symlink,
            perm: 0o777,
            rdev: 0,
            target,
        };
        self.create(cx, dir, name, &spec)
    }

    /// See [`steadfs_vfs::FileSystem::tmpfile`].
    pub fn tmpfile(&self, cx: &Cx, dir: InodeNo, mode: u32) -> Result<Attr> {
        self.with_space(cx, || self.make_tmpfile(cx, dir, mode))
    }

    fn make_tmpfile(&self, cx: &Cx, dir: InodeNo, mode: u32) -> Result<Attr> {
        self.check_writable()?;
        let dir = self.directory(dir, cx.tag)?;
        let names = dir.lock.read();
        check_may_add(&dir.core.read())?;
        let spec = Spec::plain(FileKind::Regular, mode, 0);
        let mut pins = Pins::default();
        self.orphans.pin_to_add(self, &mut pins)?;
        let made = self.txns().run(credits::TMPFILE, cx.tag, |handle| {
            let inode = self.new_inode(cx, handle, &dir, &spec, 0)?;
            self.orphans.add(self, handle, &inode)?;
            inode.set_linkable(true);
            inode.add_lookup();
            Ok(inode)
        });
        drop(names);
        let inode = made.map_err(|failed| self.clean_up_failed(failed))?;
        Ok(inode.attr(self))
    }

    fn create(&self, cx: &Cx, dir: InodeNo, name: &[u8], spec: &Spec<'_>) -> Result<Attr> {
        check_name(name)?;
        if is_dots(name) {
            return Err(FsError::Exists);
        }
        self.with_space(cx, || self.create_once(cx, dir, name, spec))
    }

    fn create_once(&self, cx: &Cx, dir: InodeNo, name: &[u8], spec: &Spec<'_>) -> Result<Attr> {
        self.check_writable()?;
        let dir = self.directory(dir, cx.tag)?;
        let names = dir.lock.write();
        {
            let core = dir.core.read();
            check_may_add(&core)?;
            if spec.kind == FileKind::Directory {
                check_may_have_subdir(self, &core)?;
            }
        }
        let subdir = spec.kind == FileKind::Directory;
        let links = if subdir { 2 } else { 1 };
        let _pins = Pins::of_inodes(self, &[dir.ino()], cx.tag)?;
        let made = self.txns().run(credits::CREATE, cx.tag, |handle| {
            let slot = self.room_for_name(cx, handle, &dir, name, credits::CREATE)?;
            let inode = self.new_inode(cx, handle, &dir, spec, links)?;
            self.add_name(cx, handle, &dir, (&slot, name), &inode, subdir)?;
            inode.add_lookup();
            Ok(inode)
        });
        drop(names);
        let inode = made.map_err(|failed: Failed| self.clean_up_failed(failed))?;
        Ok(inode.attr(self))
    }

    /// Inserts a name at `slot`. `subdir`: the directory's link count gains a `..`.
    pub(super) fn add_name(
        &self,
        cx: &Cx,
        handle: &mut Handle<'_>,
        dir: &Inode,
        (slot, name): (&Slot, &[u8]),
        inode: &Inode,
        subdir: bool,
    ) -> Result<()> {
        let mut core = dir.core.write();
        let entry = NewEntry {
            ino: inode.ino(),
            kind: inode.kind(),
            name,
        };
        Dir::new(self, dir.ino(), &core, cx.tag).insert(handle, &mut core, slot, &entry)?;
        self.touch_dir(&mut core);
        if subdir {
            gain_subdir(&mut core);
        }
        self.store_inode(handle, dir, &core)
    }

    /// Creates an inode with its content and attributes, stored and in the table of inodes, but without a name. On
    /// error nothing has changed, or the inode is an orphan ([`Ext4::clean_up_failed`]).
    pub(super) fn new_inode(
        &self,
        cx: &Cx,
        handle: &mut Handle<'_>,
        dir: &Inode,
        spec: &Spec<'_>,
        links: u16,
    ) -> Result<Arc<Inode>, Failed> {
        let inherited = self.inherit_acl(dir, spec.kind, spec.perm & 0o777, cx.tag)?;
        let (before, mut pins) = (handle.savepoint(), Pins::default());
        let ino = self
            .alloc
            .new_inode(self, handle, dir, spec.kind, &mut pins)?;
        let core = self.new_core(cx, dir, spec, &inherited, links);
        let made = self
            .clear_slot(handle, ino)
            .and_then(|()| Inode::new(self, ino, core));
        let inode = match made {
            // Inserted in the table before the inode exists on disk, so that no other task reads it from there.
            Ok(inode) => self.inodes.insert(inode),
            Err(error) => {
                self.alloc.free_inode(self, handle, ino, spec.kind)?;
                handle.consistent_since(before);
                return Err(error.into());
            }
        };
        self.store_if_many_wait();
        let filled = self.fill(handle, dir.ino(), &inode, spec, &inherited);
        match filled {
            Ok(()) => Ok(inode),
            Err(error) => {
                self.lose_all_names(handle, &inode)?;
                handle.consistent_since(before);
                Err(Failed {
                    error,
                    half_made: Some(inode),
                })
            }
        }
    }

    /// Frees a partly made inode after its handle has ended; no lock is held. After a crash before this, it is on the
    /// orphan list.
    pub(super) fn clean_up_failed(&self, failed: Failed) -> FsError {
        if let Some(inode) = failed.half_made
            && let Err(error) = self.evict(&inode)
        {
            return error;
        }
        failed.error
    }

    /// Zeroes an inode's slot in the table.
    fn clear_slot(&self, handle: &mut Handle<'_>, ino: Ino) -> Result<()> {
        let (buf, at) = self.inode_slot(ino, Default::default())?;
        let mut block = handle.write(&buf)?;
        block[at..at + usize::from(self.geo().inode_size)].fill(0);
        Ok(())
    }

    /// The fields of a new inode.
    fn new_core(
        &self,
        cx: &Cx,
        dir: &Inode,
        spec: &Spec<'_>,
        inherited: &Inherited,
        links: u16,
    ) -> disk::Inode {
        let parent = dir.core.read();
        let mut core = disk::Inode {
            links,
            uid: cx.uid,
            gid: cx.gid,
            // The lower half of a random number.
            generation: random_u64() as u32,
            extra_isize: self.geo().want_extra_isize,
            flags: InodeFlags(parent.flags.0 & INHERITED & flags_for(spec.kind)),
            ..disk::Inode::default()
        };
        let perm = owner_and_mode(
            cx,
            &parent,
            spec,
            inherited,
            self.options.read().grpid == Some(true),
            &mut core,
        );
        // Type and twelve bits.
        core.mode = (spec.kind.mode_bits() | perm) as u16;
        let now = self.now(&core);
        (core.atime, core.mtime, core.ctime) = (now, now, now);
        core.btime = core.has_wide_times().then_some(now);
        match spec.kind {
            FileKind::Symlink if spec.target.len() < I_BLOCK_SIZE => {
                core.block[..spec.target.len()].copy_from_slice(spec.target);
                core.size = spec.target.len() as u64;
            }
            FileKind::CharDevice | FileKind::BlockDevice => core.set_rdev(spec.rdev),
            FileKind::Fifo | FileKind::Socket => {}
            FileKind::Regular | FileKind::Directory | FileKind::Symlink => {
                self.init_map(&mut core);
            }
        }
        core
    }

    /// An empty map, by extents where the volume has them.
    fn init_map(&self, core: &mut disk::Inode) {
        if self.geo().has_incompat(Incompat::EXTENTS) {
            core.flags = core.flags.union(InodeFlags::EXTENTS);
            extent::init_root(core);
        }
    }

    /// Gives a new inode its content and attributes, and stores it.
    fn fill(
        &self,
        handle: &mut Handle<'_>,
        parent: Ino,
        inode: &Inode,
        spec: &Spec<'_>,
        inherited: &Inherited,
    ) -> Result<()> {
        let mut core = inode.core.write();
        let result = self.fill_core(handle, parent, inode, &mut core, spec, inherited);
        // Stored in any case: the cleanup finds allocated blocks there.
        self.store_inode(handle, inode, &core)?;
        // fdatasync needs the inode to read its data back.
        inode.record_tid(handle, true);
        result
    }

    fn fill_core(
        &self,
        handle: &mut Handle<'_>,
        parent: Ino,
        inode: &Inode,
        core: &mut disk::Inode,
        spec: &Spec<'_>,
        inherited: &Inherited,
    ) -> Result<()> {
        match spec.kind {
            FileKind::Directory => {
                Dir::new(self, inode.ino(), core, Default::default())
                    .init(handle, inode, core, parent)?;
            }
            FileKind::Symlink if spec.target.len() >= I_BLOCK_SIZE => {
                let (_, buf) = self.append_dir_block(handle, inode, core)?;
                handle.write(&buf)?[..spec.target.len()].copy_from_slice(spec.target);
                core.size = spec.target.len() as u64;
            }
            _ => {}
        }
        for (index, list) in &inherited.lists {
            let change = Change {
                index: *index,
                name: b"",
                value: Some(list),
            };
            self.change_attr(handle, inode, core, &change)?;
        }
        Ok(())
    }
}

/// Owner, group and permission bits of a new inode.
fn owner_and_mode(
    cx: &Cx,
    parent: &disk::Inode,
    spec: &Spec<'_>,
    inherited: &Inherited,
    group_of_parent: bool,
    core: &mut disk::Inode,
) -> u32 {
    let mut perm = match inherited.mode {
        Some(nine) => spec.perm & 0o7000 | nine,
        None if spec.kind == FileKind::Symlink => spec.perm,
        None => spec.perm & !cx.umask & 0o7777,
    };
    if u32::from(parent.mode) & SET_GROUP_ID != 0 {
        core.gid = parent.gid;
        let privileged = cx.may_keep_group(parent.gid);
        if spec.kind == FileKind::Directory {
            perm |= SET_GROUP_ID;
        } else if perm & (SET_GROUP_ID | GROUP_EXECUTE) == SET_GROUP_ID | GROUP_EXECUTE
            && !privileged
        {
            perm &= !SET_GROUP_ID;
        }
    } else if group_of_parent {
        core.gid = parent.gid;
    }
    perm
}
