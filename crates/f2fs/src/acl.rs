//! POSIX ACLs: extended attributes that are kept consistent with the permission bits.
//!
//! Setting an ACL sets the nine bits, chmod sets the ACL's owner, mask and other entries, and a new file takes both
//! from its directory's default ACL.

use steadfs_base::IoTag;
use steadfs_vfs::acl::{self, Acl, AclChange, AclType, Inherited};
use steadfs_vfs::{Cx, FileKind, FsError, Result};

use crate::disk::DiskError;
use crate::disk::xattr::index;
use crate::fs::F2fs;
use crate::inode::Inode;

impl F2fs {
    /// An inode's ACL and its stored form.
    fn acl_of(&self, inode: &Inode, number: u8, tag: IoTag) -> Result<Option<(Acl, Vec<u8>)>> {
        let Some(stored) = self.attr_value(inode, number, b"", tag)? else {
            return Ok(None);
        };
        let acl = Acl::from_disk(&stored).map_err(|e| DiskError::from(e).in_node(inode.nid()))?;
        Ok((!acl.is_empty()).then_some((acl, stored)))
    }

    /// What a new inode of this kind, created with the permission bits `perm` in the directory `dir`, inherits.
    /// Symbolic links inherit nothing.
    pub(crate) fn inherit_acl(
        &self,
        dir: &Inode,
        kind: FileKind,
        perm: u32,
        cx: &Cx,
    ) -> Result<Inherited> {
        if kind == FileKind::Symlink
            || cx.no_default_acl
            || self.check_namespace(index::ACL_DEFAULT).is_err()
        {
            return Ok(Inherited::default());
        }
        let Some((default, stored)) = self.acl_of(dir, index::ACL_DEFAULT, cx.tag)? else {
            return Ok(Inherited::default());
        };
        Ok(Inherited::of(&default, stored, kind, perm))
    }

    /// The stored form of an inode's access ACL with a new mode; `None` if it has none.
    pub(crate) fn acl_for_mode(
        &self,
        inode: &Inode,
        mode: u32,
        tag: IoTag,
    ) -> Result<Option<Vec<u8>>> {
        let Some((mut acl, _)) = self.acl_of(inode, index::ACL_ACCESS, tag)? else {
            return Ok(None);
        };
        acl.set_mode_bits(mode);
        Ok(Some(acl.to_disk()))
    }

    /// The attribute value of an ACL (`system.posix_acl_*`).
    pub(crate) fn show_acl(&self, inode: &Inode, number: u8, tag: IoTag) -> Result<Vec<u8>> {
        acl::check_has_lists(inode.kind())?;
        let acl = self.acl_of(inode, number, tag)?.map(|(acl, _)| acl);
        acl.map(|acl| acl.to_xattr()).ok_or(FsError::NoData)
    }
}

/// Index of the extended attribute that holds a list.
pub(crate) const fn index_of(list: AclType) -> u8 {
    match list {
        AclType::Access => index::ACL_ACCESS,
        AclType::Default => index::ACL_DEFAULT,
    }
}

/// Plans setting an ACL from its attribute value (`None` removes it); `None`: nothing changes. The caller has checked
/// permissions.
pub(crate) fn plan_acl(
    cx: &Cx,
    inode: &Inode,
    number: u8,
    value: Option<&[u8]>,
) -> Result<Option<AclChange>> {
    let owner = {
        let core = inode.core.read();
        (inode.kind(), core.mode, core.gid)
    };
    let which = match number {
        index::ACL_DEFAULT => AclType::Default,
        _ => AclType::Access,
    };
    AclChange::plan(cx, owner, which, value)
}
