//! Access control lists: attributes that are also permission bits.
//!
//! **Rule.** A file's access list and its mode are always consistent: setting the list sets the nine bits, chmod sets
//! the list's owner, mask and other entries, and a new file inherits both from its directory's default list.

use steadfs_base::IoTag;
use steadfs_vfs::acl::{self, Acl, AclChange, AclType, Inherited};
use steadfs_vfs::{Cx, FileKind, FsError, Result};

use crate::disk::xattr::{INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT};
use crate::disk::{self, DiskError, Ino};
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::txn::Handle;
use crate::xattr::Change;

impl Ext4 {
    /// A list of an inode, if it has one.
    fn acl_of(
        &self,
        ino: Ino,
        core: &disk::Inode,
        index: u8,
        tag: IoTag,
    ) -> Result<Option<(Acl, Vec<u8>)>> {
        let Some(stored) = self.attr_value(ino, core, index, b"", tag)? else {
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
        cx: &Cx,
    ) -> Result<Inherited> {
        let core = dir.core.read();
        if kind == FileKind::Symlink
            || cx.no_default_acl
            || !core.may_have_attrs()
            || self.check_namespace(INDEX_ACL_DEFAULT).is_err()
        {
            return Ok(Inherited::default());
        }
        let Some((default, stored)) = self.acl_of(dir.ino(), &core, INDEX_ACL_DEFAULT, cx.tag)?
        else {
            return Ok(Inherited::default());
        };
        Ok(Inherited::of(&default, stored, kind, perm))
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
        acl::check_has_lists(core.kind().unwrap_or(FileKind::Regular))?;
        let acl = self.acl_of(ino, core, index, tag)?.map(|(acl, _)| acl);
        acl.map(|acl| acl.to_xattr()).ok_or(FsError::NoData)
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
        let which = match index {
            INDEX_ACL_DEFAULT => AclType::Default,
            _ => AclType::Access,
        };
        let owner = (inode.kind(), core.mode, core.gid);
        let Some(AclChange { stored, mode }) = AclChange::plan(cx, owner, which, value)? else {
            return Ok(());
        };
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

/// Number of the attribute that holds a list.
pub(crate) const fn index_of(list: AclType) -> u8 {
    match list {
        AclType::Access => INDEX_ACL_ACCESS,
        AclType::Default => INDEX_ACL_DEFAULT,
    }
}
