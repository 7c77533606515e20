//! POSIX ACLs: extended attributes that are kept consistent with the permission bits.
//!
//! Setting an ACL sets the nine bits, chmod sets the ACL's owner, mask and other entries, and a new file takes both
//! from its directory's default ACL.

use steadfs_base::IoTag;
use steadfs_vfs::acl::Acl;
use steadfs_vfs::{Cx, FileKind, FsError, Result};

use crate::disk::xattr::index;
use crate::disk::{DiskError, Structure};
use crate::fs::F2fs;
use crate::inode::Inode;

const PERMISSION_BITS: u16 = 0o777;
const SET_GROUP_ID: u16 = 0o2000;

/// What a new inode inherits from its directory's default ACL.
#[derive(Default)]
pub(crate) struct InheritedAcl {
    /// The nine permission bits, if the ACL determines them.
    pub(crate) mode: Option<u32>,
    /// ACLs to store, by xattr index.
    pub(crate) lists: Vec<(u8, Vec<u8>)>,
}

/// An ACL to set, and the matching mode.
pub(crate) struct AclChange {
    /// The stored form; `None` if the mode expresses all of it.
    pub(crate) stored: Option<Vec<u8>>,
    pub(crate) mode: u16,
}

impl F2fs {
    /// An inode's ACL and its stored form.
    fn acl_of(&self, inode: &Inode, number: u8, tag: IoTag) -> Result<Option<(Acl, Vec<u8>)>> {
        let Some(stored) = self.attr_value(inode, number, b"", tag)? else {
            return Ok(None);
        };
        let acl = Acl::from_disk(&stored)
            .map_err(|e| DiskError::entry(Structure::Acl, e.index, e.rule).in_node(inode.nid()))?;
        Ok((!acl.is_empty()).then_some((acl, stored)))
    }

    /// What a new inode of this kind, created with the permission bits `perm` in the directory `dir`, inherits.
    /// Symbolic links inherit nothing.
    pub(crate) fn inherit_acl(
        &self,
        dir: &Inode,
        kind: FileKind,
        perm: u32,
        tag: IoTag,
    ) -> Result<InheritedAcl> {
        if kind == FileKind::Symlink || self.check_namespace(index::ACL_DEFAULT).is_err() {
            return Ok(InheritedAcl::default());
        }
        let Some((default, stored)) = self.acl_of(dir, index::ACL_DEFAULT, tag)? else {
            return Ok(InheritedAcl::default());
        };
        let access = default.inherit(perm);
        let mut lists = Vec::new();
        if !access.is_trivial() {
            lists.push((index::ACL_ACCESS, access.to_disk()));
        }
        if kind == FileKind::Directory {
            lists.push((index::ACL_DEFAULT, stored));
        }
        Ok(InheritedAcl {
            mode: Some(access.mode_bits()),
            lists,
        })
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
        if inode.kind() == FileKind::Symlink {
            return Err(FsError::NotSupported(
                "access control lists of symbolic links",
            ));
        }
        match self.acl_of(inode, number, tag)? {
            Some((acl, _)) => Ok(acl.to_xattr()),
            None => Err(FsError::NoData),
        }
    }

    /// Plans setting an ACL from its attribute value (`None` removes it); `None`: nothing changes. The caller has
    /// checked permissions.
    pub(crate) fn plan_acl(
        &self,
        cx: &Cx,
        inode: &Inode,
        number: u8,
        value: Option<&[u8]>,
    ) -> Result<Option<AclChange>> {
        let acl = match value {
            Some(value) => {
                let parsed = Acl::from_xattr(value);
                Some(parsed.map_err(|_| FsError::Invalid("not a valid access control list"))?)
            }
            None => None,
        };
        let mut acl = acl.filter(|acl| !acl.is_empty());
        if number == index::ACL_DEFAULT && inode.kind() != FileKind::Directory {
            return if acl.is_some() {
                Err(FsError::Access)
            } else {
                Ok(None)
            };
        }
        let (mut mode, gid) = {
            let core = inode.core.read();
            (core.mode, core.gid)
        };
        if number == index::ACL_ACCESS
            && let Some(access) = &acl
        {
            // The nine permission bits.
            mode = mode & !PERMISSION_BITS | access.mode_bits() as u16;
            if !cx.may_keep_group(gid) {
                mode &= !SET_GROUP_ID;
            }
            acl = acl.filter(|access| !access.is_trivial());
        }
        let stored = acl.map(|acl| acl.to_disk());
        Ok(Some(AclChange { stored, mode }))
    }
}
