//! Extended attributes: in the inode if they fit, else in one block. Inodes written by other implementations may share
//! a block.
//!
//! **Rule.** Only the reference count of a shared block changes: a change of an attribute gives the inode its own block
//! (copy on write). Values in inodes of their own (`ea_inode`) are read; volumes with that feature are not written.

use std::sync::Arc;

use steadfs_base::limits::{XATTR_NAME_MAX, XATTR_SIZE_MAX};
use steadfs_base::{Corruption, DevBlock, FileBlock, InodeNo, IoTag};
use steadfs_cache::MetaBuf;
use steadfs_vfs::{Cx, FileKind, FsError, InodeFlags, Result, SetXattr, XattrChange};

use crate::disk::xattr::{
    self, AttrList, BlockAttrs, INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, InodeAttrs, Value,
};
use crate::disk::{self, Compat, Ino, Superblock};
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::pins::Pins;
use crate::txn::Handle;
use crate::verified;

const INDEX_USER: u8 = 1;
const INDEX_TRUSTED: u8 = 4;
const INDEX_SECURITY: u8 = 6;

/// An attribute's new value; `None` removes it.
pub(crate) struct Change<'a> {
    /// Number of the name's prefix.
    pub(crate) index: u8,
    /// Rest of the name.
    pub(crate) name: &'a [u8],
    /// The value as it is stored.
    pub(crate) value: Option<&'a [u8]>,
}

/// An attribute's namespace and the rest of its name.
fn split(name: &[u8]) -> Result<(u8, &[u8])> {
    if name.is_empty() || name.len() > XATTR_NAME_MAX {
        return Err(FsError::Range);
    }
    match xattr::split_name(name) {
        Some((index, rest)) if is_served(index) => Ok((index, rest)),
        None if [&b"user."[..], b"trusted.", b"security."].contains(&name) => Err(
            FsError::Invalid("an attribute's name is missing after its namespace"),
        ),
        _ => Err(FsError::NotSupported(
            "extended attributes of this namespace",
        )),
    }
}

/// Whether attributes with this prefix number are accessible by name, as in the kernel.
fn is_served(index: u8) -> bool {
    is_acl(index) || matches!(index, INDEX_USER | INDEX_TRUSTED | INDEX_SECURITY)
}

fn is_acl(index: u8) -> bool {
    index == INDEX_ACL_ACCESS || index == INDEX_ACL_DEFAULT
}

/// Whether files of this kind can have `user.` attributes.
fn has_user_attrs(kind: FileKind) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Directory)
}

impl Ext4 {
    /// Refuses a namespace that the mount options switch off.
    pub(crate) fn check_namespace(&self, index: u8) -> Result<()> {
        let options = self.options.read();
        if is_acl(index) && options.common.acl == Some(false) {
            return Err(FsError::NotSupported(
                "access control lists (mounted with noacl)",
            ));
        }
        if index == INDEX_USER && options.common.user_xattr == Some(false) {
            let what = "attributes of users (mounted with nouser_xattr)";
            return Err(FsError::NotSupported(what));
        }
        Ok(())
    }

    /// See [`steadfs_vfs::FileSystem::getxattr`].
    pub fn getxattr(&self, cx: &Cx, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        let (index, rest) = split(name)?;
        self.check_namespace(index)?;
        let inode = self.by_number(ino, cx.tag)?;
        if index == INDEX_USER && !has_user_attrs(inode.kind()) {
            return Err(FsError::NoData);
        }
        let core = inode.core.read();
        if is_acl(index) {
            return self.show_acl(inode.ino(), &core, index, cx.tag);
        }
        self.attr_value(&core, index, rest, cx.tag)?
            .ok_or(FsError::NoData)
    }

    /// See [`steadfs_vfs::FileSystem::listxattr`]. Attributes in `trusted.` are shown to the superuser
    /// only.
    pub fn listxattr(&self, cx: &Cx, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        let inode = self.by_number(ino, cx.tag)?;
        let core = inode.core.read();
        let mut names = Vec::new();
        let mut add = |attr: xattr::Attr<'_>| {
            let hidden = !is_served(attr.index)
                || (attr.index == INDEX_TRUSTED && cx.uid != 0)
                || (attr.index == INDEX_USER && !has_user_attrs(inode.kind()))
                || self.check_namespace(attr.index).is_err();
            if !hidden {
                names.extend(xattr::full_name(attr.index, attr.name));
            }
        };
        InodeAttrs::parse(&core.xattr_area)
            .map_err(|e| e.in_inode(inode.ino()))?
            .iter()
            .for_each(&mut add);
        if let Some(at) = core.file_acl {
            let buf = self.attr_block(at, cx.tag)?;
            BlockAttrs::parse(self.geo(), at, &buf.data())?
                .iter()
                .for_each(&mut add);
        }
        Ok(names)
    }

    /// See [`steadfs_vfs::FileSystem::setxattr`].
    pub fn setxattr(
        &self,
        cx: &Cx,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        let change = XattrChange::set(name, value, how)?;
        self.with_space(cx, || self.change_named(cx, ino, &change))
    }

    /// See [`steadfs_vfs::FileSystem::removexattr`].
    pub fn removexattr(&self, cx: &Cx, ino: InodeNo, name: &[u8]) -> Result<()> {
        let change = XattrChange::remove(name);
        self.with_space(cx, || self.change_named(cx, ino, &change))
    }

    fn change_named(&self, cx: &Cx, ino: InodeNo, change: &XattrChange<'_>) -> Result<()> {
        self.check_writable()?;
        let &XattrChange { name, value, how } = change;
        let (index, rest) = split(name)?;
        self.check_namespace(index)?;
        let inode = self.by_number(ino, cx.tag)?;
        let _alone = inode.lock.write();
        self.check_attr_change(cx, &inode, (index, rest), how)?;
        self.change_fields(cx.tag, &inode, |handle, core| {
            if is_acl(index) {
                self.set_acl(cx, handle, &inode, core, index, value)?;
            } else {
                let change = Change {
                    index,
                    name: rest,
                    value,
                };
                self.change_attr(handle, &inode, core, &change)?;
            }
            core.ctime = self.now(core);
            Ok(())
        })
    }

    /// Pins the blocks that a change of an inode's fields and attributes changes: its slot, its attribute block with
    /// the bitmap and descriptor that freeing it changes, and the superblock.
    pub(crate) fn pin_to_change_attrs(&self, inode: &Inode, tag: IoTag) -> Result<Pins> {
        let mut pins = self.pin_inodes(&[inode.ino()], tag)?;
        let file_acl = inode.core.read().file_acl;
        if let Some(at) = file_acl {
            pins.keep(self.attr_block(at, tag)?);
            self.alloc.pin_to_free(self, &mut pins, at, 1)?;
        }
        if !self.sb.lock().features().compat.contains(Compat::EXT_ATTR) {
            self.pin_superblock(&mut pins, tag)?;
        }
        Ok(pins)
    }

    fn check_attr_change(
        &self,
        cx: &Cx,
        inode: &Inode,
        (index, rest): (u8, &[u8]),
        how: SetXattr,
    ) -> Result<()> {
        let core = inode.core.read();
        if core.has(InodeFlags::IMMUTABLE) || core.has(InodeFlags::APPEND) {
            return Err(FsError::NotPermitted);
        }
        if index == INDEX_USER && !has_user_attrs(inode.kind()) {
            return Err(FsError::NotPermitted);
        }
        if is_acl(index) && inode.kind() == FileKind::Symlink {
            return Err(FsError::NotSupported(
                "access control lists of symbolic links",
            ));
        }
        // ACLs are set and removed whether or not there was one, as in the kernel.
        if how == SetXattr::Any || is_acl(index) {
            return Ok(());
        }
        let exists = self.attr_value(&core, index, rest, cx.tag)?.is_some();
        match how {
            SetXattr::Create if exists => Err(FsError::Exists),
            SetXattr::Replace if !exists => Err(FsError::NoData),
            _ => Ok(()),
        }
    }

    /// A verified block of attributes.
    fn attr_block(&self, at: DevBlock, tag: IoTag) -> Result<Arc<MetaBuf>> {
        if !self.alloc.may_own(self.geo(), at, 1) {
            return Err(
                Corruption::new("attribute block is part of the volume's own metadata")
                    .in_block(at)
                    .into(),
            );
        }
        let buf = self.block(at, tag)?;
        buf.verify_once(verified::XATTR, |block| {
            BlockAttrs::parse(self.geo(), at, block).map(|_| ())
        })?;
        Ok(buf)
    }

    /// The stored value of an attribute.
    pub(crate) fn attr_value(
        &self,
        core: &disk::Inode,
        index: u8,
        name: &[u8],
        tag: IoTag,
    ) -> Result<Option<Vec<u8>>> {
        if !core.may_have_attrs() {
            return Ok(None);
        }
        if let Some(attr) = InodeAttrs::parse(&core.xattr_area)?.get(index, name) {
            return self.own_value(attr.value, tag).map(Some);
        }
        let Some(at) = core.file_acl else {
            return Ok(None);
        };
        let buf = self.attr_block(at, tag)?;
        let data = buf.data();
        match BlockAttrs::parse(self.geo(), at, &data)?.get(index, name) {
            Some(attr) => self.own_value(attr.value, tag).map(Some),
            None => Ok(None),
        }
    }

    fn own_value(&self, value: Value<'_>, tag: IoTag) -> Result<Vec<u8>> {
        match value {
            Value::Here(bytes) => Ok(bytes.to_vec()),
            Value::Inode { ino, size } => self.value_inode(ino, size, tag),
        }
    }

    /// The content of an inode that is an attribute's value.
    fn value_inode(&self, ino: Ino, size: u32, tag: IoTag) -> Result<Vec<u8>> {
        let bad = |what| {
            let what = format!("as an attribute's value: {what}");
            FsError::from(Corruption::new(what).in_inode(ino))
        };
        if !self.is_nameable(ino) {
            return Err(bad("no such inode"));
        }
        // Read from the table directly: the locks of inodes in memory come before the one held here, and no task has an
        // attribute inode in memory.
        let (slots, at) = self.inode_slot(ino, tag)?;
        let slot = &slots.data()[at..at + usize::from(self.geo().inode_size)];
        let core = disk::Inode::parse(self.geo(), ino, slot)?;
        if !core.has(disk::inode::EA_INODE) {
            return Err(bad("is not an attribute inode"));
        }
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if core.size != size as u64 || size > XATTR_SIZE_MAX {
            return Err(bad("has another size"));
        }
        let mut value = Vec::with_capacity(size);
        for n in 0..self.geo().block_size.blocks_for(core.size) {
            let at = self
                .map_block(&core, ino, FileBlock(n), tag)?
                .ok_or_else(|| bad("has a hole"))?;
            let left = size - value.len();
            let data = self.block(at, tag)?.data();
            value.extend_from_slice(&data[..left.min(data.len())]);
        }
        Ok(value)
    }

    /// Changes one attribute: in the inode if the result fits there, else in the block. On error `core` is unchanged;
    /// the caller stores it, and has pinned the blocks to change. [`crate::credits::XATTR_BLOCKS`].
    pub(crate) fn change_attr(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        change: &Change<'_>,
    ) -> Result<()> {
        let room = core.xattr_room(self.geo());
        let inside = InodeAttrs::parse(&core.xattr_area).map_err(|e| e.in_inode(inode.ino()))?;
        let mut inside: AttrList = inside.iter().collect();
        let mut outside = self.block_list(core)?;
        let was_outside = outside.remove(change.index, change.name).is_some();
        inside.remove(change.index, change.name);
        let mut to_block = false;
        if let Some(value) = change.value {
            inside.set(change.index, change.name, value);
            if !inside.fits_inode(room) {
                inside.remove(change.index, change.name);
                outside.set(change.index, change.name, value);
                to_block = true;
                if !outside.fits_block(self.geo()) {
                    return Err(FsError::NoSpace);
                }
            }
        }
        // Values that overlap on disk take more room than they had.
        if !inside.fits_inode(room) || !outside.fits_block(self.geo()) {
            let what = Corruption::new("values of attributes overlap");
            return Err(what.in_inode(inode.ino()).into());
        }
        if was_outside || to_block {
            self.replace_block(handle, inode, core, &mut outside)?;
        }
        let features = self.sb.lock().features();
        if change.value.is_some() && !features.compat.contains(Compat::EXT_ATTR) {
            self.update_super(handle, Superblock::set_ext_attr)?;
        }
        core.xattr_area = inside.to_inode_area(room);
        Ok(())
    }

    fn block_list(&self, core: &disk::Inode) -> Result<AttrList> {
        let Some(at) = core.file_acl else {
            return Ok(AttrList::default());
        };
        let buf = self.attr_block(at, IoTag::default())?;
        Ok(BlockAttrs::parse(self.geo(), at, &buf.data())?
            .iter()
            .collect())
    }

    /// Stores `list` in the inode's block: in place if the block is not shared, else in a new one; none for an empty
    /// list.
    fn replace_block(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        list: &mut AttrList,
    ) -> Result<()> {
        if list.is_empty() {
            return self.release_block(handle, core);
        }
        if let Some(at) = core.file_acl {
            let buf = self.attr_block(at, IoTag::default())?;
            let mut block = handle.write(&buf)?;
            if BlockAttrs::parse(self.geo(), at, &block)?.refcount <= 1 {
                list.write_block(self.geo(), at, 1, &mut block);
                return Ok(());
            }
        }
        let mut pins = Pins::default();
        if let Some(old) = core.file_acl {
            pins.keep(self.attr_block(old, IoTag::default())?);
        }
        let goal = self.alloc.goal_for(self.geo(), inode.ino());
        let at = self.alloc.alloc_meta_block(self, handle, goal)?;
        let buf = self.meta().get_new(at);
        list.write_block(self.geo(), at, 1, &mut handle.write(&buf)?);
        buf.set_verified(verified::XATTR);
        self.release_block(handle, core)?;
        core.file_acl = Some(at);
        core.blocks += self.geo().block_size.bytes_u64() / 512;
        Ok(())
    }

    /// Releases the inode's block: decrements its reference count, or frees it.
    fn release_block(&self, handle: &mut Handle<'_>, core: &mut disk::Inode) -> Result<()> {
        let Some(at) = core.file_acl else {
            return Ok(());
        };
        let buf = self.attr_block(at, IoTag::default())?;
        let refcount = BlockAttrs::parse(self.geo(), at, &buf.data())?.refcount;
        if refcount > 1 {
            let mut block = handle.write(&buf)?;
            xattr::set_refcount(self.geo(), at, &mut block, refcount - 1);
        } else {
            let mut pins = Pins::default();
            self.alloc.pin_to_free(self, &mut pins, at, 1)?;
            handle.forget(at)?;
            self.alloc.free_blocks(self, handle, at, 1)?;
        }
        core.file_acl = None;
        core.blocks = core
            .blocks
            .saturating_sub(self.geo().block_size.bytes_u64() / 512);
        Ok(())
    }

    /// Releases the attributes of an inode that is being freed. The caller stores the inode.
    /// [`crate::credits::XATTR_BLOCKS`].
    pub(crate) fn drop_xattrs(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        let mut core = inode.core.write();
        core.xattr_area = Box::default();
        self.release_block(handle, &mut core)
    }

    /// Removes file capabilities, as a write by an unprivileged process does.
    pub(crate) fn drop_capabilities(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
    ) -> Result<()> {
        const NAME: &[u8] = b"capability";
        if self
            .attr_value(core, INDEX_SECURITY, NAME, IoTag::default())?
            .is_none()
        {
            return Ok(());
        }
        let change = Change {
            index: INDEX_SECURITY,
            name: NAME,
            value: None,
        };
        self.change_attr(handle, inode, core, &change)
    }
}

#[cfg(test)]
mod tests;
