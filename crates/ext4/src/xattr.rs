//! Extended attributes: in the inode if they fit, else in one block, else, on volumes with `ea_inode`, with the value in
//! an inode of its own ([`values`]). Inodes written by other implementations may share a block.
//!
//! **Rule.** Only the reference count of a shared block changes: a change of an attribute gives the inode its own block
//! (copy on write).

mod block;
mod dropping;
mod known;
mod values;

use steadfs_base::limits::XATTR_NAME_MAX;
use steadfs_base::{Corruption, InodeNo, IoTag};
use steadfs_vfs::{Cx, FileKind, FsError, InodeFlags, Result, SetXattr, XattrChange};

use crate::disk::quota::usage::Usage;
use crate::disk::xattr::{
    self, Attr, AttrList, BlockAttrs, INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, InodeAttrs, OwnedValue,
    Value,
};
use crate::disk::{self, Compat, Ino, Superblock};
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::pins::Pins;
use crate::quota::{QuotaHold, owners_of};
use crate::txn::Handle;

use block::BlockChange;
pub(crate) use known::Values;
use values::{OwnedAttrValue, Owner};

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

/// Where a value is stored.
#[derive(Clone, Copy)]
struct Place {
    /// Its entry is in the block, not in the inode.
    to_block: bool,
    /// The value is in an inode of its own.
    in_inode: bool,
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
        self.check_namespace(split(name)?.0)?;
        self.named_value(cx, ino, name)
    }

    /// The same, whatever namespaces the options switch off.
    pub(crate) fn named_value(&self, cx: &Cx, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        let (index, rest) = split(name)?;
        let inode = self.by_number(ino, cx.tag)?;
        if index == INDEX_USER && !has_user_attrs(inode.kind()) {
            return Err(FsError::NoData);
        }
        let core = inode.core.read();
        if is_acl(index) {
            return self.show_acl(inode.ino(), &core, index, cx.tag);
        }
        self.attr_value(inode.ino(), &core, index, rest, cx.tag)?
            .ok_or(FsError::NoData)
    }

    /// See [`steadfs_vfs::FileSystem::listxattr`]. Attributes in `trusted.` are shown to the superuser
    /// only.
    pub fn listxattr(&self, cx: &Cx, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        let inode = self.by_number(ino, cx.tag)?;
        let core = inode.core.read();
        let mut names = Vec::new();
        let mut add = |attr: Attr<'_>| {
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
        self.change_by_name(cx, ino, &change)
    }

    /// See [`steadfs_vfs::FileSystem::removexattr`].
    pub fn removexattr(&self, cx: &Cx, ino: InodeNo, name: &[u8]) -> Result<()> {
        self.change_by_name(cx, ino, &XattrChange::remove(name))
    }

    fn change_by_name(&self, cx: &Cx, ino: InodeNo, change: &XattrChange<'_>) -> Result<()> {
        self.check_writable()?;
        self.check_namespace(split(change.name)?.0)?;
        self.change_named(cx, ino, change)
    }

    /// The same, whatever namespaces the options switch off.
    pub(crate) fn change_named(
        &self,
        cx: &Cx,
        ino: InodeNo,
        change: &XattrChange<'_>,
    ) -> Result<()> {
        self.with_space(cx, || {
            let changed = self.change_named_once(cx, ino, change);
            self.free_values();
            changed
        })
    }

    fn change_named_once(&self, cx: &Cx, ino: InodeNo, change: &XattrChange<'_>) -> Result<()> {
        self.check_writable()?;
        let &XattrChange { name, value, how } = change;
        let (index, rest) = split(name)?;
        let inode = self.by_number(ino, cx.tag)?;
        let _alone = inode.lock.write();
        self.check_attr_change(cx, &inode, (index, rest), how)?;
        let len = value.map_or(0, <[u8]>::len);
        let held = value.map(|value| self.hold_attr(cx, &inode, (index, rest), value));
        let _held = held.transpose()?;
        self.change_fields(cx, &inode, len, |handle, core| {
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

    /// Holds the block or the inode that an attribute's new value needs, for the inode's owners.
    ///
    /// # Errors
    /// [`FsError::Quota`]: they may not have it.
    pub(crate) fn hold_attr(
        &self,
        cx: &Cx,
        inode: &Inode,
        (index, name): (u8, &[u8]),
        value: &[u8],
    ) -> Result<QuotaHold> {
        if self.quota.get().is_none() {
            return Ok(QuotaHold::default());
        }
        let core = inode.core.read();
        let lists = self.attr_lists(inode.ino(), &core)?;
        let change = Change {
            index,
            name,
            value: Some(value),
        };
        let need = self.need_of_attrs(&core, lists, &[change]);
        let owners = owners_of(&core).map(Some);
        drop(core);
        self.hold_quota(cx, owners, need)
    }

    /// The block and the inodes that new values need, in an inode with these attributes.
    pub(crate) fn need_of_attrs(
        &self,
        core: &disk::Inode,
        (mut inside, mut outside): (AttrList, AttrList),
        changes: &[Change<'_>],
    ) -> Usage {
        let mut need = Usage::default();
        let mut has_block = core.file_acl.is_some();
        for change in changes {
            for list in [&mut inside, &mut outside] {
                list.remove(change.index, change.name);
            }
            let Some(value) = change.value else { continue };
            let room = core.xattr_room(self.geo());
            // One without any room is refused by the change itself.
            let Ok(place) = self.place(&mut inside, &mut outside, change, value, room) else {
                break;
            };
            if place.to_block && !has_block {
                has_block = true;
                need.bytes += self.geo().cluster_units() * 512;
            }
            if place.in_inode {
                need.bytes += self.value_units(value.len() as u64) * 512;
                need.inodes += 1;
            }
        }
        need
    }

    /// Pins the blocks that a change of an inode's fields and attributes changes: its slot, its attribute block with
    /// the bitmap and descriptor that freeing it changes, the slots of its values in inodes, and the superblock.
    pub(crate) fn pin_to_change_attrs(&self, inode: &Inode, tag: IoTag) -> Result<Pins> {
        let mut pins = self.pin_inodes(&[inode.ino()], tag)?;
        let file_acl = inode.core.read().file_acl;
        if let Some(at) = file_acl {
            pins.keep(self.attr_block(at, tag)?);
            self.alloc.pin_to_free(self, &mut pins, at, 1)?;
        }
        self.pin_values(inode, tag, &mut pins)?;
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
        let exists = self
            .find_attr(&core, index, rest, cx.tag, |_| Ok(()))?
            .is_some();
        match how {
            SetXattr::Create if exists => Err(FsError::Exists),
            SetXattr::Replace if !exists => Err(FsError::NoData),
            _ => Ok(()),
        }
    }

    /// Calls `with` for an attribute, if the inode has it.
    fn find_attr<T>(
        &self,
        core: &disk::Inode,
        index: u8,
        name: &[u8],
        tag: IoTag,
        with: impl FnOnce(&Attr<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        if !core.may_have_attrs() {
            return Ok(None);
        }
        if let Some(attr) = InodeAttrs::parse(&core.xattr_area)?.get(index, name) {
            return with(&attr).map(Some);
        }
        let Some(at) = core.file_acl else {
            return Ok(None);
        };
        let buf = self.attr_block(at, tag)?;
        let data = buf.data();
        let attr = BlockAttrs::parse(self.geo(), at, &data)?.get(index, name);
        attr.map(|attr| with(&attr)).transpose()
    }

    /// The stored value of an attribute of the inode `ino`.
    pub(crate) fn attr_value(
        &self,
        ino: Ino,
        core: &disk::Inode,
        index: u8,
        name: &[u8],
        tag: IoTag,
    ) -> Result<Option<Vec<u8>>> {
        self.find_attr(core, index, name, tag, |attr| match attr.value {
            Value::Here(bytes) => Ok(bytes.to_vec()),
            Value::Inode { ino: value, size } => {
                self.read_value(Owner::of(ino, core), attr, (value, size), tag)
            }
        })
    }

    /// Changes one attribute: in the inode if the result fits there, else in the block, with its value there or in an
    /// inode. On error `core` is unchanged; the caller stores it, has pinned the blocks to change, and calls
    /// [`Ext4::orphan_values`]. [`crate::credits::XATTR_BLOCKS`] and what [`Ext4::attr_credits`] adds.
    pub(crate) fn change_attr(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        change: &Change<'_>,
    ) -> Result<()> {
        let room = core.xattr_room(self.geo());
        let (mut inside, mut outside) = self.attr_lists(inode.ino(), core)?;
        let old_outside = outside.remove(change.index, change.name);
        let old_inside = inside.remove(change.index, change.name);
        let place = match change.value {
            Some(value) => Some(self.place(&mut inside, &mut outside, change, value, room)?),
            None => None,
        };
        // Values that overlap on disk take more room than they had.
        if !inside.fits_inode(room) || !outside.fits_block(self.geo()) {
            let what = Corruption::new("values of attributes overlap");
            return Err(what.in_inode(inode.ino()).into());
        }
        let owner = Owner::of(inode.ino(), core);
        let old = old_outside.as_ref().or(old_inside.as_ref());
        let old = old.and_then(OwnedAttrValue::of);
        let old = old.map(|old| self.reference(owner, &old)).transpose()?;
        let to_block = place.is_some_and(|place| place.to_block);
        let (mut planned, before) = (BlockChange::default(), handle.savepoint());
        if old_outside.is_some() || to_block {
            planned = self.plan_block(handle, inode, core, &outside, change)?;
        }
        let mut units = 0;
        if let (Some(value), true) = (change.value, place.is_some_and(|place| place.in_inode)) {
            let (ino, hash) = match self.value_for(handle, inode, core, value) {
                Ok(made) => made,
                Err(error) => {
                    let cancelled = self.cancel_block(handle, planned.new, error);
                    handle.consistent_since(before);
                    return cancelled;
                }
            };
            let size = value.len() as u32;
            let hash = xattr::entry_hash(change.name, &hash.to_le_bytes());
            let list = if to_block { &mut outside } else { &mut inside };
            let value = OwnedValue::Inode { ino, size, hash };
            list.put(change.index, change.name, value);
            units = self.value_units(size.into());
        }
        core.blocks += units;
        if let Some(old) = old {
            core.blocks = core.blocks.saturating_sub(self.units_of(&old));
            // The block's references end with the block, or stay with it.
            if old_outside.is_none() || planned.in_place {
                self.drop_reference(handle, old)?;
            }
        }
        self.apply_block(handle, core, owner, planned, &mut outside)?;
        if change.value.is_some() {
            self.note_attrs(handle)?;
        }
        core.xattr_area = inside.to_inode_area(room);
        Ok(())
    }

    /// Notes in the superblock that the volume has attributes.
    pub(crate) fn note_attrs(&self, handle: &mut Handle<'_>) -> Result<()> {
        let features = self.sb.lock().features();
        match features.compat.contains(Compat::EXT_ATTR) {
            true => Ok(()),
            false => self.update_super(handle, Superblock::set_ext_attr),
        }
    }

    /// Adds the changed attribute to the list of the place where it is stored.
    fn place(
        &self,
        inside: &mut AttrList,
        outside: &mut AttrList,
        change: &Change<'_>,
        value: &[u8],
        room: usize,
    ) -> Result<Place> {
        let (index, name) = (change.index, change.name);
        let may_be_inode = self.has_value_inodes() && !value.is_empty();
        for in_inode in [false, true] {
            if in_inode && !may_be_inode {
                break;
            }
            let stored = match in_inode {
                false => OwnedValue::Here(value.to_vec()),
                // Replaced when the inode is known.
                true => OwnedValue::Inode {
                    ino: Ino(0),
                    size: value.len() as u32,
                    hash: 0,
                },
            };
            inside.put(index, name, stored.clone());
            if inside.fits_inode(room) {
                return Ok(Place {
                    to_block: false,
                    in_inode,
                });
            }
            inside.remove(index, name);
            outside.put(index, name, stored);
            let leaves_room =
                in_inode || !may_be_inode || outside.leaves_room_for_entries(self.geo());
            if leaves_room && outside.fits_block(self.geo()) {
                return Ok(Place {
                    to_block: true,
                    in_inode,
                });
            }
            outside.remove(index, name);
        }
        Err(FsError::NoRoom("the extended attribute beside the others"))
    }

    /// The attributes in an inode and in its block.
    fn attr_lists(&self, ino: Ino, core: &disk::Inode) -> Result<(AttrList, AttrList)> {
        let inside = InodeAttrs::parse(&core.xattr_area).map_err(|e| e.in_inode(ino))?;
        Ok((inside.iter().collect(), self.block_list(core)?))
    }

    /// The number of attributes whose value is an inode.
    pub(crate) fn count_values(&self, ino: Ino, core: &disk::Inode) -> Result<u64> {
        let (mut inside, mut outside) = self.attr_lists(ino, core)?;
        let values = [&mut inside, &mut outside].map(|list| list.take_values(usize::MAX).len());
        Ok(values.into_iter().sum::<usize>() as u64)
    }

    /// Releases the attributes of an inode that is being freed, after [`Ext4::drop_values`]. The caller stores the inode.
    /// [`crate::credits::XATTR_BLOCKS`].
    pub(crate) fn drop_xattrs(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        let mut core = inode.core.write();
        let owner = Owner::of(inode.ino(), &core);
        core.xattr_area = Box::default();
        self.release_block(handle, owner, &mut core)
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
            .find_attr(core, INDEX_SECURITY, NAME, IoTag::default(), |_| Ok(()))?
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
