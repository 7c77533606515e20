//! Access control lists: attributes that are also permission bits.
//!
//! **Rule.** A file's access list and its mode are always consistent: setting the list sets the nine bits, chmod sets
//! the list's owner, mask and other entries, and a new file inherits both from its directory's default list.

use steadfs_base::IoTag;
use steadfs_vfs::acl::Acl;
use steadfs_vfs::{Cx, FileKind, FsError, Result};

use crate::disk::xattr::{INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT};
use crate::disk::{self, DiskError, Ino};
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::txn::Handle;
use crate::xattr::Change;

const NINE: u16 = 0o777;
const SET_GROUP_ID: u16 = 0o2000;

/// What a new inode inherits from its directory's default list.
#[derive(Default)]
pub(crate) struct Inherited {
    /// The nine permission bits, if the list determines them.
    pub(crate) mode: Option<u32>,
    /// Lists to store, by prefix number.
    pub(crate) lists: Vec<(u8, Vec<u8>)>,
}

impl Ext4 {
    /// A list of an inode, if it has one.
    fn acl_of(
        &self,
        ino: Ino,
        core: &disk::Inode,
        index: u8,
        tag: IoTag,
    ) -> Result<Option<(Acl, Vec<u8>)>> {
        let Some(stored) = self.attr_value(core, index, b"", tag)? else {
            return Ok(None);
        };
        let acl = Acl::from_disk(&stored).map_err(|e| DiskError::from(e).in_inode(ino))?;
        Ok((!acl.is_empty()).then_some((acl, stored)))
    }

    /// What an inode of this kind, made with the permission bits `perm` in the directory `dir`, inherits. Symbolic
    /// links inherit nothing.
    pub(crate) fn inherit_acl(
        &self,
        dir: &Inode,
        kind: FileKind,
        perm: u32,
        tag: IoTag,
    ) -> Result<Inherited> {
        let core = dir.core.read();
        if kind == FileKind::Symlink
            || !core.may_have_attrs()
            || self.check_namespace(INDEX_ACL_DEFAULT).is_err()
        {
            return Ok(Inherited::default());
        }
        let Some((default, stored)) = self.acl_of(dir.ino(), &core, INDEX_ACL_DEFAULT, tag)? else {
            return Ok(Inherited::default());
        };
        let access = default.inherit(perm);
        let mut lists = Vec::new();
        if !access.is_trivial() {
            lists.push((INDEX_ACL_ACCESS, access.to_disk()));
        }
        if kind == FileKind::Directory {
            lists.push((INDEX_ACL_DEFAULT, stored));
        }
        Ok(Inherited {
            mode: Some(access.mode_bits()),
            lists,
        })
    }

    /// Changes the access list according to a new mode, which is in `core` already. The caller stores the inode.
    /// [`crate::credits::XATTR_BLOCKS`].
    pub(crate) fn acl_follows_mode(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        tag: IoTag,
    ) -> Result<()> {
        if !core.may_have_attrs() {
            return Ok(());
        }
        let Some((mut acl, _)) = self.acl_of(inode.ino(), core, INDEX_ACL_ACCESS, tag)? else {
            return Ok(());
        };
        acl.set_mode_bits(core.mode.into());
        let change = Change {
            index: INDEX_ACL_ACCESS,
            name: b"",
            value: Some(&acl.to_disk()),
        };
        self.change_attr(handle, inode, core, &change)
    }

    /// The value of a list's attribute in the form of the system call.
    pub(crate) fn show_acl(
        &self,
        ino: Ino,
        core: &disk::Inode,
        index: u8,
        tag: IoTag,
    ) -> Result<Vec<u8>> {
        if core.kind() == Some(FileKind::Symlink) {
            return Err(FsError::NotSupported(
                "access control lists of symbolic links",
            ));
        }
        match self.acl_of(ino, core, index, tag)? {
            Some((acl, _)) => Ok(acl.to_xattr()),
            None => Err(FsError::NoData),
        }
    }

    /// Sets a list from its attribute's value (`None`: removes it) together with the mode. The caller
    /// has checked that the inode may be changed, and stores it.
    pub(crate) fn set_acl(
        &self,
        cx: &Cx,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        index: u8,
        value: Option<&[u8]>,
    ) -> Result<()> {
        let acl = match value {
            Some(value) => {
                let parsed = Acl::from_xattr(value);
                Some(parsed.map_err(|_| FsError::Invalid("not a valid access control list"))?)
            }
            None => None,
        };
        let mut acl = acl.filter(|acl| !acl.is_empty());
        if index == INDEX_ACL_DEFAULT && inode.kind() != FileKind::Directory {
            return if acl.is_some() {
                Err(FsError::Access)
            } else {
                Ok(())
            };
        }
        let mut mode = core.mode;
        if index == INDEX_ACL_ACCESS
            && let Some(access) = &acl
        {
            // Nine bits.
            mode = mode & !NINE | access.mode_bits() as u16;
            if !cx.may_keep_group(core.gid) {
                mode &= !SET_GROUP_ID;
            }
            acl = acl.filter(|access| !access.is_trivial());
        }
        let stored = acl.map(|acl| acl.to_disk());
        let change = Change {
            index,
            name: b"",
            value: stored.as_deref(),
        };
        self.change_attr(handle, inode, core, &change)?;
        core.mode = mode;
        Ok(())
    }
}
