//! New inodes: mknod, mkdir, symlink, tmpfile.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_fscrypt::{CONTEXT_SIZE_MAX, may_be_encrypted};
use steadfs_jbd2::NameChange;
use steadfs_rt::random_u64;
use steadfs_vfs::acl::Inherited;
use steadfs_vfs::names::check_new_name;
use steadfs_vfs::{Attr, Cx, FileKind, FsError, InodeFlags, NewInode, Result};

use super::{NewName, check_may_have_subdir, gain_subdir};
use crate::acl::index_of;
use crate::attr::flags_for;
use crate::credits;
use crate::dir::Dir;
use crate::disk::features::Incompat;
use crate::disk::inode::I_BLOCK_SIZE;
use crate::disk::quota::usage::Usage;
use crate::disk::xattr::INDEX_ENCRYPTION;
use crate::disk::{self, Ino};
use crate::encryption::CONTEXT;
use crate::extent;
use crate::fast_commit::refusal;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::pins::Pins;
use crate::quota::owners_of;
use crate::txn::{Handle, Savepoint};
use crate::xattr::Change;

/// Flags that a new inode inherits from its directory (`EXT4_FL_INHERITED`): secure deletion, undelete, compression,
/// sync, no dump, no access time, no compression, journal data, no tail merging, directory sync, project inheritance,
/// case folding.
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
    | InodeFlags::PROJINHERIT.0
    | InodeFlags::CASEFOLD.0;

/// What a new inode gets.
pub(super) struct NewContent<'n> {
    /// Of a directory.
    pub(super) parent: Ino,
    pub(super) spec: &'n NewInode<'n>,
    pub(super) inherited: &'n Inherited,
    /// Of an encrypted inode.
    pub(super) context: Option<&'n [u8]>,
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

impl Ext4 {
    /// See [`steadfs_vfs::FileSystem::mknod`].
    pub fn mknod(&self, cx: &Cx, dir: InodeNo, name: &[u8], mode: u32, rdev: u32) -> Result<Attr> {
        self.create(cx, dir, name, &NewInode::node(mode, rdev)?)
    }

    /// See [`steadfs_vfs::FileSystem::mkdir`].
    pub fn mkdir(&self, cx: &Cx, dir: InodeNo, name: &[u8], mode: u32) -> Result<Attr> {
        self.create(cx, dir, name, &NewInode::dir(mode))
    }

    /// See [`steadfs_vfs::FileSystem::symlink`].
    pub fn symlink(&self, cx: &Cx, dir: InodeNo, name: &[u8], target: &[u8]) -> Result<Attr> {
        let spec = NewInode::link(target, self.geo().block_size.bytes())?;
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
        self.check_may_add(&dir, cx.tag)?;
        let spec = NewInode::plain(FileKind::Regular, mode, 0);
        let mut pins = self.prepare_new(cx, &dir, &spec)?;
        self.orphans.pin_to_add(self, &mut pins)?;
        let credits = credits::TMPFILE + self.inherit_credits(&dir, cx.tag)?;
        let made = self.run_for(cx, credits, |handle| {
            let inode = self.new_inode(cx, handle, &dir, &spec, 0)?;
            self.orphans.add(self, handle, &inode)?;
            inode.marks.set_linkable(true);
            inode.add_lookup();
            Ok(inode)
        });
        drop(names);
        let inode = made.map_err(|failed| self.clean_up_failed(failed))?;
        Ok(inode.attr(self))
    }

    fn create(&self, cx: &Cx, dir: InodeNo, name: &[u8], spec: &NewInode<'_>) -> Result<Attr> {
        check_new_name(name)?;
        self.with_space(cx, || self.create_once(cx, dir, name, spec))
    }

    fn create_once(&self, cx: &Cx, dir: InodeNo, name: &[u8], spec: &NewInode<'_>) -> Result<Attr> {
        self.check_writable()?;
        let dir = self.directory(dir, cx.tag)?;
        let names = dir.lock.write();
        self.check_may_add(&dir, cx.tag)?;
        if spec.kind == FileKind::Directory {
            check_may_have_subdir(self, &dir.core.read())?;
        }
        let mut pins = self.prepare_new(cx, &dir, spec)?;
        let subdir = spec.kind == FileKind::Directory;
        let links = if subdir { 2 } else { 1 };
        pins.add(self.pin_inodes(&[dir.ino()], cx.tag)?);
        let credits = credits::CREATE + self.inherit_credits(&dir, cx.tag)?;
        let made = self.run_for(cx, credits, |handle| {
            handle.track();
            let slot = self.room_for_name(cx, handle, &dir, name, credits)?;
            let inode = self.new_inode(cx, handle, &dir, spec, links)?;
            self.add_name(cx, handle, &dir, &slot, &inode, subdir)?;
            self.record_name(handle, NameChange::Create, (&dir, name), &inode);
            inode.add_lookup();
            Ok(inode)
        });
        drop(names);
        let inode = made.map_err(|failed: Failed| self.clean_up_failed(failed))?;
        Ok(inode.attr(self))
    }

    /// Prepares and pins the counts of a new inode's owners, and fails if they may not have it. The caller holds no handle.
    pub(super) fn prepare_new(&self, cx: &Cx, dir: &Inode, spec: &NewInode<'_>) -> Result<Pins> {
        if self.quota.get().is_none() {
            return Ok(Pins::default());
        }
        let inherited = self.inherit_acl(dir, spec.kind, spec.perm & 0o777, cx)?;
        let mut core = self.new_core(cx, dir, spec, &inherited, 0);
        if dir.has(InodeFlags::ENCRYPTED) {
            // What is encrypted does not start in the inode.
            core.flags = core.flags.union(InodeFlags::ENCRYPTED);
        }
        let owners = owners_of(&core).map(Some);
        let mut pins = self.prepare_owners(owners, cx.tag)?;
        let has_block = match spec.kind {
            FileKind::Directory => !Dir::new(self, Ino(0), &core, cx.tag).starts_in_inode(&core)?,
            // An encrypted one has up to 33 bytes more.
            FileKind::Symlink if dir.has(InodeFlags::ENCRYPTED) => true,
            FileKind::Symlink => spec.target.len() >= I_BLOCK_SIZE,
            _ => false,
        };
        let of_attrs = self.need_of_new_attrs(&core, spec.kind, &inherited);
        let need = Usage {
            bytes: of_attrs.bytes + u64::from(has_block) * self.geo().cluster_units() * 512,
            inodes: of_attrs.inodes + 1,
        };
        pins.hold(self.hold_quota(cx, owners, need)?);
        Ok(pins)
    }

    /// What the attributes of a new inode need outside of it.
    fn need_of_new_attrs(
        &self,
        core: &disk::Inode,
        kind: FileKind,
        inherited: &Inherited,
    ) -> Usage {
        let context = core.has(InodeFlags::ENCRYPTED) && may_be_encrypted(kind);
        let context = context.then_some(Change {
            index: INDEX_ENCRYPTION,
            name: CONTEXT,
            value: Some(&[0; CONTEXT_SIZE_MAX]),
        });
        let lists = inherited.lists.iter().map(|(list, value)| Change {
            index: index_of(*list),
            name: b"",
            value: Some(value),
        });
        let changes: Vec<_> = context.into_iter().chain(lists).collect();
        self.need_of_attrs(core, Default::default(), &changes)
    }

    /// Inserts a name. `subdir`: the directory's link count gains a `..`.
    pub(crate) fn add_name(
        &self,
        cx: &Cx,
        handle: &mut Handle<'_>,
        dir: &Inode,
        new: &NewName<'_>,
        inode: &Inode,
        subdir: bool,
    ) -> Result<()> {
        let mut core = dir.core.write();
        let named = (&new.name, inode.ino(), inode.kind());
        Dir::new(self, dir.ino(), &core, cx.tag).insert(handle, &mut core, &new.slot, named)?;
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
        spec: &NewInode<'_>,
        links: u16,
    ) -> Result<Arc<Inode>, Failed> {
        let inherited = self.inherit_acl(dir, spec.kind, spec.perm & 0o777, cx)?;
        let (before, mut pins) = (handle.savepoint(), Pins::default());
        let ino = self
            .alloc
            .new_inode(self, handle, dir, spec.kind, &mut pins)?;
        let encrypted = match self.encrypt_new(dir, (ino, spec), cx.tag) {
            Ok(encrypted) => encrypted,
            Err(error) => {
                self.alloc.free_inode(self, handle, ino, spec.kind)?;
                handle.consistent_since(before);
                return Err(error.into());
            }
        };
        let target = encrypted.as_ref().map_or(spec.target, |new| &new.target);
        let spec = &NewInode { target, ..*spec };
        let mut core = self.new_core(cx, dir, spec, &inherited, links);
        if encrypted.is_some() {
            core.flags = core.flags.union(InodeFlags::ENCRYPTED);
        }
        let inode = self.start_inode(handle, ino, core, before)?;
        let context = encrypted.as_ref().map(|new| &new.context[..]);
        let new = NewContent {
            parent: dir.ino(),
            spec,
            inherited: &inherited,
            context,
        };
        let filled = self.fill(handle, &inode, &new);
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

    /// Makes an inode with an allocated number in memory. On error the number is free again, as at `before`.
    pub(crate) fn start_inode(
        &self,
        handle: &mut Handle<'_>,
        ino: Ino,
        core: disk::Inode,
        before: Savepoint,
    ) -> Result<Arc<Inode>> {
        let kind = core.kind().unwrap_or(FileKind::Regular);
        let made = self
            .clear_slot(handle, ino)
            .and_then(|()| Inode::new(ino, core, self.geo.block_size, &self.writeback));
        let inode = match made {
            // Inserted in the table before the inode exists on disk, so that no other task reads it from there.
            Ok(inode) => self.inodes.insert(inode),
            Err(error) => {
                self.alloc.free_inode(self, handle, ino, kind)?;
                handle.consistent_since(before);
                return Err(error);
            }
        };
        self.store_if_many_wait();
        Ok(inode)
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
    pub(crate) fn clear_slot(&self, handle: &mut Handle<'_>, ino: Ino) -> Result<()> {
        let (buf, at) = self.inode_slot(ino, Default::default())?;
        let mut block = handle.write(&buf)?;
        block[at..at + usize::from(self.geo().inode_size)].fill(0);
        Ok(())
    }

    /// The fields of a new inode.
    pub(super) fn new_core(
        &self,
        cx: &Cx,
        dir: &Inode,
        spec: &NewInode<'_>,
        inherited: &Inherited,
        links: u16,
    ) -> disk::Inode {
        let parent = dir.core.read();
        let (uid, gid) = cx.new_owner();
        let mut core = disk::Inode {
            links,
            uid,
            gid,
            // The lower half of a random number.
            generation: random_u64() as u32,
            extra_isize: self.geo().want_extra_isize,
            flags: InodeFlags(parent.flags.0 & INHERITED & flags_for(spec.kind)),
            ..disk::Inode::default()
        };
        let (perm, takes_group) = spec.perm_in(cx, (parent.mode, parent.gid), inherited.mode);
        if takes_group || self.options.read().grpid == Some(true) {
            core.gid = parent.gid;
        }
        // Type and twelve bits.
        core.mode = (spec.kind.mode_bits() | perm) as u16;
        let now = self.now(&core);
        (core.atime, core.mtime, core.ctime) = (now, now, now);
        core.btime = core.has_wide_times().then_some(now);
        if parent.has(InodeFlags::PROJINHERIT) && core.has_project() {
            core.project = parent.project;
        }
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
    pub(crate) fn init_map(&self, core: &mut disk::Inode) {
        if self.geo().has_incompat(Incompat::EXTENTS) {
            core.flags = core.flags.union(InodeFlags::EXTENTS);
            extent::init_root(core);
        }
    }

    /// Gives a new inode its content and attributes, and stores it.
    pub(super) fn fill(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        new: &NewContent<'_>,
    ) -> Result<()> {
        let result = {
            let mut core = inode.core.write();
            let result = self.fill_core(handle, inode, &mut core, new);
            // Stored in any case: the cleanup finds allocated blocks there.
            self.store_inode(handle, inode, &core)?;
            result
        };
        self.orphan_values(handle)?;
        // fdatasync needs the inode to read its data back.
        inode.record_tid(handle, true);
        result
    }

    fn fill_core(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        new: &NewContent<'_>,
    ) -> Result<()> {
        let NewContent {
            parent,
            spec,
            inherited,
            context,
        } = *new;
        if let Some(context) = context {
            self.put_context(handle, inode, core, context)?;
        }
        match spec.kind {
            FileKind::Directory => {
                Dir::new(self, inode.ino(), core, Default::default())
                    .init(handle, inode, core, parent)?;
            }
            FileKind::Symlink if spec.target.len() >= I_BLOCK_SIZE => {
                let (_, buf) = self.append_block(handle, inode, core)?;
                handle.write(&buf)?[..spec.target.len()].copy_from_slice(spec.target);
                core.size = spec.target.len() as u64;
            }
            _ => {}
        }
        if !inherited.lists.is_empty() {
            handle.refuse_fast_commits(refusal::XATTR);
        }
        for (list, value) in &inherited.lists {
            let change = Change {
                index: index_of(*list),
                name: b"",
                value: Some(value),
            };
            self.change_attr(handle, inode, core, &change)?;
        }
        Ok(())
    }
}
