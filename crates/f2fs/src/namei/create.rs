//! Creating inodes: mknod, mkdir, symlink, tmpfile.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_vfs::acl::Inherited;
use steadfs_vfs::names::check_new_name;
use steadfs_vfs::{Attr, Cx, FileKind, InodeFlags, NewInode, Result};

use super::check_link_max;
use super::new_inode::{self, InodeContext};
use crate::cp_lock::Change;
use crate::dentry::{FreeDentry, NewName, StoredName};
use crate::disk::dentry::{self, DentryLayout, Entry};
use crate::disk::inode::{Advise, Inline};
use crate::disk::{self, BLOCK_SIZE, Nid};
use crate::encryption::NewEncryption;
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::pins::Pins;
use crate::quota::owners_of;
use crate::space::{Need, Reservation};
use crate::xattr::SplitXattrs;

/// Everything about a new inode that is decided before the first change, and the space it needs.
pub(super) struct InodePlan<'a> {
    parent: Nid,
    spec: &'a NewInode<'a>,
    encryption: Option<NewEncryption>,
    core: disk::Inode,
    attrs: Option<SplitXattrs>,
    /// The number that it must have.
    number: Option<Nid>,
    pub(super) need: Need,
}

impl F2fs {
    /// See [`steadfs_vfs::FileSystem::mknod`].
    pub(crate) fn make_node_file(
        &self,
        cx: &Cx,
        dir: InodeNo,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Attr> {
        self.create(cx, dir, name, &NewInode::node(mode, rdev)?)
    }

    /// See [`steadfs_vfs::FileSystem::mkdir`].
    pub(crate) fn make_dir(&self, cx: &Cx, dir: InodeNo, name: &[u8], mode: u32) -> Result<Attr> {
        // Set-group-ID is inherited from the parent, and set-user-ID has no meaning for directories.
        let spec = NewInode::dir(mode);
        self.create(cx, dir, name, &spec)
    }

    /// See [`steadfs_vfs::FileSystem::symlink`].
    pub(crate) fn make_symlink(
        &self,
        cx: &Cx,
        dir: InodeNo,
        name: &[u8],
        target: &[u8],
    ) -> Result<Attr> {
        let spec = NewInode::link(target, BLOCK_SIZE)?;
        self.create(cx, dir, name, &spec)
    }

    /// See [`steadfs_vfs::FileSystem::tmpfile`].
    pub(crate) fn make_tmpfile(&self, cx: &Cx, dir: InodeNo, mode: u32) -> Result<Attr> {
        self.with_space(cx, || self.make_tmpfile_once(cx, dir, mode))
    }

    fn make_tmpfile_once(&self, cx: &Cx, dir: InodeNo, mode: u32) -> Result<Attr> {
        self.prepare(cx)?;
        let dir = self.directory(dir, cx.tag)?;
        let _names = dir.lock.read();
        self.check_may_add(&dir, cx.tag)?;
        let spec = NewInode::plain(FileKind::Regular, mode & 0o7777, 0);
        let plan = self.plan_inode(cx, &dir, &spec, &StoredName::NONE)?;
        let _room = self.orphans.room()?;
        let _pins = self.prepare_new(cx, &plan, (&dir, Need::default()))?;
        let mut reservation = self
            .space
            .reservation(plan.need, self.may_use_reserved(cx))?;
        let change = self.change()?;
        let inode = self.create_inode(cx, &change, &mut reservation, plan)?;
        self.orphans.add(&change, &inode)?;
        inode.marks.set_linkable(true);
        inode.add_lookup();
        Ok(inode.attr(self, cx.tag))
    }

    fn create(&self, cx: &Cx, dir: InodeNo, name: &[u8], spec: &NewInode<'_>) -> Result<Attr> {
        check_new_name(name)?;
        self.with_space(cx, || self.create_once(cx, dir, name, spec))
    }

    fn create_once(&self, cx: &Cx, dir: InodeNo, name: &[u8], spec: &NewInode<'_>) -> Result<Attr> {
        self.prepare(cx)?;
        let dir = self.directory(dir, cx.tag)?;
        let _names = dir.lock.write();
        self.check_may_add(&dir, cx.tag)?;
        if spec.kind == FileKind::Directory {
            check_link_max(&dir.core.read())?;
        }
        let free_dentry = self.find_free_dentry(cx, &dir, name)?;
        let stored = self.stored_name(&dir, name, cx.tag)?;
        let plan = self.plan_inode(cx, &dir, spec, &stored)?;
        let need = free_dentry.need + plan.need;
        let mut pins = self.prepare_new(cx, &plan, (&dir, free_dentry.need))?;
        pins.add(self.pin_inodes(&[&dir], cx.tag)?);
        self.pin_dir_block(&mut pins, &dir, free_dentry.block, cx.tag)?;
        let mut reservation = self.space.reservation(need, self.may_use_reserved(cx))?;
        let change = self.change()?;
        let inode = self.create_inode(cx, &change, &mut reservation, plan)?;
        let added = self.add_name(
            cx,
            &change,
            &mut reservation,
            (&dir, &free_dentry, &stored.bytes),
            &inode,
            true,
        );
        self.abort_on_error(added)?;
        self.check_recovered_name(&dir, free_dentry.hash, inode.nid());
        inode.add_lookup();
        Ok(inode.attr(self, cx.tag))
    }

    /// Inserts a name. `counts`: the new subdirectory's `..` adds a link to the directory.
    pub(super) fn add_name(
        &self,
        cx: &Cx,
        change: &Change<'_>,
        reservation: &mut Reservation<'_>,
        (dir, free_dentry, name): (&Inode, &FreeDentry, &[u8]),
        inode: &Inode,
        counts: bool,
    ) -> Result<()> {
        let mut core = dir.core.write();
        let new = NewName {
            ino: inode.nid(),
            kind: inode.kind(),
            name,
        };
        self.insert_name(
            change,
            dir,
            &mut core,
            reservation,
            (free_dentry, &new),
            cx.tag,
        )?;
        self.touch_dir(&mut core);
        if counts && inode.kind() == FileKind::Directory {
            core.links += 1;
        }
        Ok(())
    }

    /// Plans a new inode. The caller holds the directory's lock.
    pub(super) fn plan_inode<'a>(
        &self,
        cx: &Cx,
        dir: &Inode,
        spec: &'a NewInode<'a>,
        name: &StoredName<'_>,
    ) -> Result<InodePlan<'a>> {
        let inherited = self.inherit_acl(dir, spec.kind, spec.perm & 0o777, cx)?;
        let encryption = self.encryption_in(dir, spec, cx.tag)?;
        // Its length is that of any inode number.
        let target = self.target_of((spec, encryption.as_ref()), Nid::ROOT);
        let measured = NewInode {
            target: &target,
            ..*spec
        };
        let mut core = self.new_fields(cx, dir, &measured, &inherited, name.plain);
        name.put(&mut core);
        let context = encryption.as_ref().map(|new| {
            core.advise = core.advise.union(Advise::ENCRYPTED);
            if spec.kind == FileKind::Regular {
                core.inline = core.inline.without(Inline::DATA);
            }
            new.context.to_bytes()
        });
        let attrs = self.first_attrs(&core, &inherited.lists, context.as_deref())?;
        Ok(InodePlan {
            encryption,
            ..Self::plan_of(dir, spec, core, attrs)
        })
    }

    /// Before a new inode and its name are made: checks limits of quota, and makes and pins entries for the inode's owners.
    pub(super) fn prepare_new(
        &self,
        cx: &Cx,
        plan: &InodePlan<'_>,
        dir: (&Inode, Need),
    ) -> Result<Pins> {
        let owners = owners_of(&plan.core);
        let mut pins = self.prepare_owners(owners, cx.tag)?;
        pins.hold(self.hold_new(cx, (owners, plan.need), dir)?);
        Ok(pins)
    }

    /// Plans a new inode of this number and generation without a name, which inherits nothing.
    pub(super) fn plan_given<'a>(
        &self,
        cx: &Cx,
        dir: &Inode,
        spec: &'a NewInode<'a>,
        (number, generation): (Nid, u32),
    ) -> InodePlan<'a> {
        let mut core = self.new_fields(cx, dir, spec, &Inherited::default(), b"");
        core.flags = InodeFlags(core.flags.0 & InodeFlags::INDEX.0);
        core.generation = generation;
        core.links = 0;
        core.project = 0;
        core.compression = core.compression.map(|_| Default::default());
        InodePlan {
            number: Some(number),
            ..Self::plan_of(dir, spec, core, None)
        }
    }

    fn plan_of<'a>(
        dir: &Inode,
        spec: &'a NewInode<'a>,
        core: disk::Inode,
        attrs: Option<SplitXattrs>,
    ) -> InodePlan<'a> {
        let node = attrs.as_ref().is_some_and(|cut| cut.node.is_some());
        let inline = disk::inode::Inline::DATA.union(disk::inode::Inline::DENTRIES);
        let block = match spec.kind {
            FileKind::Directory | FileKind::Symlink => core.inline.without(inline) == core.inline,
            _ => false,
        };
        InodePlan {
            parent: dir.nid(),
            spec,
            encryption: None,
            core,
            attrs,
            number: None,
            need: Need {
                blocks: block.into(),
                nodes: 1 + u64::from(node),
            },
        }
    }

    fn new_fields(
        &self,
        cx: &Cx,
        dir: &Inode,
        spec: &NewInode<'_>,
        inherited: &Inherited,
        name: &[u8],
    ) -> disk::Inode {
        let parent = dir.core.read();
        let options = self.options.read();
        let setting = InodeContext {
            layout: &self.layout,
            options: &options,
            extensions: options.ext_identify.then_some(&self.extensions),
            lists: &self.extensions,
            parent: &parent,
            parent_ino: dir.nid(),
            now: self.now(),
        };
        new_inode::fields(cx, &setting, spec, inherited, name)
    }

    /// Creates an inode as planned and inserts it into the inode table, without a name.
    pub(super) fn create_inode(
        &self,
        cx: &Cx,
        change: &Change<'_>,
        reservation: &mut Reservation<'_>,
        plan: InodePlan<'_>,
    ) -> Result<Arc<Inode>> {
        let (spec, layout) = (plan.spec, &self.layout);
        let encryption = plan.encryption;
        self.touch_owners(change, owners_of(&plan.core), cx.tag)?;
        let inline = plan.need.blocks == 0;
        let made = self.new_inode(
            change,
            (plan.number, spec.rdev),
            |nid, block| {
                let core = plan.core;
                match spec.kind {
                    FileKind::CharDevice | FileKind::BlockDevice => {
                        core.set_rdev(layout, block, spec.rdev);
                    }
                    FileKind::Symlink if inline => {
                        let at = core.inline_range(layout).start;
                        let target = self.target_of((spec, encryption.as_ref()), nid);
                        block[at..][..target.len()].copy_from_slice(&target);
                    }
                    FileKind::Directory if inline => {
                        let area = &mut block[core.inline_range(layout)];
                        put_dots(&core.inline_dentries(layout), area, nid, plan.parent);
                    }
                    _ => {}
                }
                if let Some(cut) = &plan.attrs {
                    block[core.xattr_range(layout)].copy_from_slice(&cut.inode);
                }
                core
            },
            cx.tag,
        );
        let inode = made?;
        reservation.used(Need {
            blocks: 0,
            nodes: 1,
        });
        let rest = self.write_inode_blocks(
            cx,
            change,
            reservation,
            &inode,
            (plan.parent, spec, encryption.as_ref()),
            plan.attrs,
        );
        self.abort_on_error(rest)?;
        Ok(inode)
    }

    /// Writes the parts of a new inode that are stored outside of it.
    fn write_inode_blocks(
        &self,
        cx: &Cx,
        change: &Change<'_>,
        reservation: &mut Reservation<'_>,
        inode: &Inode,
        (parent, spec, encryption): (Nid, &NewInode<'_>, Option<&NewEncryption>),
        attrs: Option<SplitXattrs>,
    ) -> Result<()> {
        let mut core = inode.core.write();
        if let Some(bytes) = attrs.and_then(|cut| cut.node) {
            self.put_xattr_node(change, inode, &mut core, reservation, &bytes, cx.tag)?;
            self.charge(inode, &core);
        }
        let fill = |block: &mut [u8]| match spec.kind {
            FileKind::Directory => put_dots(&DentryLayout::BLOCK, block, inode.nid(), parent),
            _ => {
                let target = self.target_of((spec, encryption), inode.nid());
                block[..target.len()].copy_from_slice(&target);
            }
        };
        let has_block = match spec.kind {
            FileKind::Directory => !core.inline.contains(disk::inode::Inline::DENTRIES),
            FileKind::Symlink => !core.inline.contains(disk::inode::Inline::DATA),
            _ => false,
        };
        if has_block {
            self.make_block(change, inode, &mut core, reservation, (0, cx.tag), fill)?;
        }
        Ok(())
    }
}

/// Inserts `.` and `..`.
fn put_dots(layout: &DentryLayout, bytes: &mut [u8], own: Nid, parent: Nid) {
    for (slot, (name, ino)) in [(&b"."[..], own), (b"..", parent)].into_iter().enumerate() {
        let entry = Entry {
            slot,
            hash: 0,
            ino,
            file_type: FileKind::Directory.entry_type(),
            name,
        };
        dentry::insert(layout, bytes, &entry);
    }
}
