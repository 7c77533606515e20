//! Changing extended attributes.
//!
//! The caller holds the inode's lock for writing. A change is planned first: the new list, and whether it needs a
//! node.

use steadfs_base::{InodeNo, IoTag};
use steadfs_vfs::acl::AclType;
use steadfs_vfs::{Cx, FileKind, FsError, InodeFlags, Result, SetXattr, XattrChange};

use super::{SplitXattrs, has_user_attrs, is_acl, split};
use crate::acl::{index_of, plan_acl};
use crate::cp_lock::Change;
use crate::disk;
use crate::disk::inode::Advise;
use crate::disk::xattr::{self, Xattr, XattrChange as AttrChange, index};
use crate::encryption::CONTEXT;
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::space::{Need, Reservation};

/// Hints that users may set (`FADVISE_MODIFIABLE_BITS`).
const ADVISABLE: Advise = Advise::COLD.union(Advise::HOT);

impl F2fs {
    /// See [`steadfs_vfs::FileSystem::setxattr`] and [`steadfs_vfs::FileSystem::removexattr`].
    pub(crate) fn change_xattr(
        &self,
        cx: &Cx,
        ino: InodeNo,
        change: &XattrChange<'_>,
    ) -> Result<()> {
        let change_it = || {
            self.prepare(cx)?;
            self.check_namespace(split(change.name)?.0)?;
            self.change_named(cx, ino, change)
        };
        self.with_space(cx, change_it)
    }

    /// Restores an attribute as it was recorded, whatever namespaces the options switch off. Of the hints in
    /// `system.advise` those count that users may set.
    pub(crate) fn restore_named(
        &self,
        cx: &Cx,
        ino: InodeNo,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<()> {
        let hints = value.and_then(<[u8]>::first).copied().unwrap_or_default();
        let settable = [hints & ADVISABLE.0];
        let change = XattrChange {
            name,
            value: match split(name)?.0 {
                index::ADVISE => Some(&settable),
                _ => value,
            },
            how: SetXattr::Any,
        };
        self.with_space(cx, || {
            self.prepare(cx)?;
            self.change_named(cx, ino, &change)
        })
    }

    fn change_named(&self, cx: &Cx, ino: InodeNo, change: &XattrChange<'_>) -> Result<()> {
        let &XattrChange { name, value, how } = change;
        let (number, rest) = split(name)?;
        let inode = self.by_number(ino, cx.tag)?;
        let _exclusive = inode.lock.write();
        if number == index::ADVISE {
            return self.set_advice(cx, &inode, value);
        }
        self.check_attr_change(cx, &inode, (number, rest), how)?;
        let mut change = AttrChange {
            index: number,
            name: rest,
            value,
        };
        let list = if is_acl(number) {
            match plan_acl(cx, &inode, number, value)? {
                Some(list) => Some(list),
                None => return Ok(()),
            }
        } else {
            None
        };
        if let Some(list) = &list {
            change.value = list.stored.as_deref();
        }
        let cut = self.plan_attrs(&inode, &[change], cx.tag)?;
        let need = cut
            .as_ref()
            .map_or(Need::default(), |cut| need_of(&inode, cut));
        let _held = self.hold_space(cx, &inode, need)?;
        let mut reservation = self.space.reservation(need, self.may_use_reserved(cx))?;
        let change = self.change()?;
        let mut core = inode.core.write();
        self.mark_dirty(&change, &inode, cx.tag)?;
        if let Some(cut) = &cut {
            self.put_attrs(&change, &inode, &mut core, &mut reservation, cut, cx.tag)?;
        }
        if let Some(list) = list {
            core.mode = list.mode;
        }
        core.ctime = self.now();
        self.charge(&inode, &core);
        drop(core);
        self.record_attr_change(&inode);
        Ok(())
    }

    /// `system.advise`: a byte of hints, stored in the inode.
    fn set_advice(&self, cx: &Cx, inode: &Inode, value: Option<&[u8]>) -> Result<()> {
        let hint = match value {
            Some(&[byte]) => Advise(byte),
            _ => return Err(FsError::Invalid("the value of system.advise is one byte")),
        };
        if hint.without(ADVISABLE) != Advise::default() {
            return Err(FsError::Invalid(
                "only the cold and hot bits of system.advise can be set",
            ));
        }
        let change = self.change()?;
        let mut core = inode.core.write();
        // The kernel leaves the permission check of this namespace to the file system.
        if cx.uid != 0 && cx.uid != core.uid {
            return Err(FsError::NotPermitted);
        }
        check_not_sealed(&core)?;
        self.mark_dirty(&change, inode, cx.tag)?;
        core.advise = core.advise.without(ADVISABLE).union(hint);
        Ok(())
    }

    fn check_attr_change(
        &self,
        cx: &Cx,
        inode: &Inode,
        (number, rest): (u8, &[u8]),
        how: SetXattr,
    ) -> Result<()> {
        check_not_sealed(&inode.core.read())?;
        if number == index::USER && !has_user_attrs(inode.kind()) {
            return Err(FsError::NotPermitted);
        }
        if is_acl(number) && inode.kind() == FileKind::Symlink {
            return Err(FsError::NotSupported(
                "access control lists of symbolic links",
            ));
        }
        // As in the kernel, ACLs are set and removed without checking XATTR_CREATE and XATTR_REPLACE.
        if how == SetXattr::Any || is_acl(number) {
            return Ok(());
        }
        let exists = self.attr_value(inode, number, rest, cx.tag)?.is_some();
        match how {
            SetXattr::Create if exists => Err(FsError::Exists),
            SetXattr::Replace if !exists => Err(FsError::NoData),
            _ => Ok(()),
        }
    }

    /// Plans changes of attributes; `None` if they change nothing.
    ///
    /// # Errors
    /// `TooBig` if the list does not fit.
    pub(crate) fn plan_attrs(
        &self,
        inode: &Inode,
        changes: &[AttrChange<'_>],
        tag: IoTag,
    ) -> Result<Option<SplitXattrs>> {
        let area = self.xattr_area(inode, tag)?;
        let list = xattr::parse(&area).map_err(|e| e.in_node(inode.nid()))?;
        let idle = |change: &AttrChange<'_>| {
            let old = list.iter().find(|xattr| change.is_of(xattr));
            old.map(|xattr| xattr.value) == change.value
        };
        if changes.iter().all(idle) {
            return Ok(None);
        }
        let room = inode.core.read().xattr_range(&self.layout).len();
        let cut = xattr::apply(&list, changes, room).ok_or(FsError::TooBig)?;
        Ok(Some(cut))
    }

    /// The first attributes of a new inode; `None` if it has none.
    pub(crate) fn first_attrs(
        &self,
        core: &disk::Inode,
        lists: &[(AclType, Vec<u8>)],
        context: Option<&[u8]>,
    ) -> Result<Option<SplitXattrs>> {
        let acls = lists.iter().map(|(list, value)| Xattr {
            index: index_of(*list),
            name: b"",
            value,
        });
        let context = context.map(|value| Xattr {
            index: index::ENCRYPTION,
            name: CONTEXT,
            value,
        });
        let list: Vec<_> = acls.chain(context).collect();
        if list.is_empty() {
            return Ok(None);
        }
        let room = core.xattr_range(&self.layout).len();
        let cut = xattr::split(&list, room).ok_or(FsError::NoSpace)?;
        Ok(Some(cut))
    }

    /// Stores an inode's attributes. The caller has marked it dirty and reserved the space of [`need_of`].
    pub(crate) fn put_attrs(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        reservation: &mut Reservation<'_>,
        cut: &SplitXattrs,
        tag: IoTag,
    ) -> Result<()> {
        match &cut.node {
            Some(bytes) => self.put_xattr_node(change, inode, core, reservation, bytes, tag)?,
            None => self.free_xattr_node(change, inode, core, tag)?,
        }
        if !cut.inode.is_empty() {
            let node = self.inode_node(inode.nid(), tag)?;
            let mut data = self.nodes.change(change, &node)?;
            data[core.xattr_range(&self.layout)].copy_from_slice(&cut.inode);
        }
        Ok(())
    }

    /// Stores the part of an inode's attributes that is in a node, which is created if it is missing.
    pub(crate) fn put_xattr_node(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        reservation: &mut Reservation<'_>,
        bytes: &[u8],
        tag: IoTag,
    ) -> Result<()> {
        let node = match self.xattr_node(inode, core, tag)? {
            Some(node) => node,
            None => {
                let before = core.blocks;
                let made = self.make_xattr_node(change, inode, core, tag);
                let nodes = core.blocks - before;
                reservation.used(Need { blocks: 0, nodes });
                made?
            }
        };
        self.nodes.change(change, &node)?[..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// Records that the attributes of a directory changed.
    pub(crate) fn record_attr_change(&self, inode: &Inode) {
        if inode.kind() == FileKind::Directory {
            self.since_cp.change_attributes(inode.nid());
        }
    }
}

/// The space that storing attributes needs.
pub(crate) fn need_of(inode: &Inode, cut: &SplitXattrs) -> Need {
    let has_node = inode.core.read().xattr_nid.some().is_some();
    Need {
        blocks: 0,
        nodes: (cut.node.is_some() && !has_node).into(),
    }
}

/// Attributes of such a file cannot be changed.
fn check_not_sealed(core: &disk::Inode) -> Result<()> {
    match core.has(InodeFlags::IMMUTABLE) || core.has(InodeFlags::APPEND) {
        true => Err(FsError::NotPermitted),
        false => Ok(()),
    }
}
