//! Extended attributes: one list, stored in the inode and in a node of its own.

use steadfs_base::limits::XATTR_NAME_MAX;
use steadfs_base::{InodeNo, IoTag};
use steadfs_vfs::{Cx, FileKind, FsError, Result};

use crate::disk::xattr::{self, NODE_XATTR_BYTES, index};

use crate::fs::F2fs;
use crate::inode::Inode;

mod change;

pub(crate) use change::need_of;
pub(crate) use xattr::SplitXattrs;

const PREFIXES: [(u8, &[u8]); 3] = [
    (index::USER, b"user."),
    (index::TRUSTED, b"trusted."),
    (index::SECURITY, b"security."),
];
const FULL_NAMES: [(u8, &[u8]); 3] = [
    (index::ACL_ACCESS, b"system.posix_acl_access"),
    (index::ACL_DEFAULT, b"system.posix_acl_default"),
    (index::ADVISE, b"system.advise"),
];

/// Splits a name into namespace and rest.
fn split(name: &[u8]) -> Result<(u8, &[u8])> {
    if name.is_empty() || name.len() > XATTR_NAME_MAX {
        return Err(FsError::Range);
    }
    if let Some((index, _)) = FULL_NAMES.iter().find(|(_, whole)| *whole == name) {
        return Ok((*index, b""));
    }
    for (index, prefix) in PREFIXES {
        match name.strip_prefix(prefix) {
            Some(b"") => {
                return Err(FsError::Invalid("an attribute name has only its namespace"));
            }
            Some(rest) => return Ok((index, rest)),
            None => {}
        }
    }
    Err(FsError::NotSupported(
        "extended attributes of this namespace",
    ))
}

/// The full name of a stored attribute; `None` if it is not visible.
fn full_name(number: u8, rest: &[u8]) -> Option<Vec<u8>> {
    let shown = FULL_NAMES
        .iter()
        .find(|(n, _)| *n == number && *n != index::ADVISE);
    if let Some((_, whole)) = shown {
        return rest.is_empty().then(|| whole.to_vec());
    }
    let (_, prefix) = PREFIXES.iter().find(|(n, _)| *n == number)?;
    Some([prefix, rest].concat())
}

fn is_acl(number: u8) -> bool {
    number == index::ACL_ACCESS || number == index::ACL_DEFAULT
}

/// Whether files of this kind can have `user.` attributes.
fn has_user_attrs(kind: FileKind) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Directory)
}

impl F2fs {
    /// Fails for a namespace that a mount option switches off.
    pub(crate) fn check_namespace(&self, number: u8) -> Result<()> {
        let options = self.options.read();
        if is_acl(number) && options.common.acl == Some(false) {
            return Err(FsError::NotSupported(
                "access control lists (mounted with noacl)",
            ));
        }
        if number == index::USER && options.common.user_xattr == Some(false) {
            let what = "user.* attributes (mounted with nouser_xattr)";
            return Err(FsError::NotSupported(what));
        }
        Ok(())
    }

    /// The bytes of an inode's list: the part in the inode, then the node.
    fn xattr_area(&self, inode: &Inode, tag: IoTag) -> Result<Vec<u8>> {
        let core = inode.core.read();
        let block = self.inode_node(inode.nid(), tag)?.block()?;
        let mut area = block[core.xattr_range(&self.layout)].to_vec();
        if let Some(node) = self.xattr_node(inode, &core, tag)? {
            area.extend_from_slice(&node.data()?[..NODE_XATTR_BYTES]);
        }
        Ok(area)
    }

    pub(crate) fn attr_value(
        &self,
        inode: &Inode,
        number: u8,
        name: &[u8],
        tag: IoTag,
    ) -> Result<Option<Vec<u8>>> {
        let area = self.xattr_area(inode, tag)?;
        let list = xattr::parse(&area).map_err(|e| e.in_node(inode.nid()))?;
        let found = list
            .iter()
            .find(|xattr| xattr.index == number && xattr.name == name);
        Ok(found.map(|xattr| xattr.value.to_vec()))
    }

    /// See [`steadfs_vfs::FileSystem::getxattr`].
    pub(crate) fn xattr_value(&self, cx: &Cx, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        self.check_namespace(split(name)?.0)?;
        self.named_value(cx, ino, name)
    }

    /// The same, whatever namespaces the options switch off.
    pub(crate) fn named_value(&self, cx: &Cx, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        let (number, rest) = split(name)?;
        let inode = self.by_number(ino, cx.tag)?;
        if number == index::ADVISE {
            return Ok(vec![inode.core.read().advise.0]);
        }
        if number == index::USER && !has_user_attrs(inode.kind()) {
            return Err(FsError::NoData);
        }
        if is_acl(number) {
            return self.show_acl(&inode, number, cx.tag);
        }
        self.attr_value(&inode, number, rest, cx.tag)?
            .ok_or(FsError::NoData)
    }

    /// See [`steadfs_vfs::FileSystem::listxattr`]. `trusted.` attributes are visible to root only.
    pub(crate) fn xattr_names(&self, cx: &Cx, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        let inode = self.by_number(ino, cx.tag)?;
        let area = self.xattr_area(&inode, cx.tag)?;
        let list = xattr::parse(&area).map_err(|e| e.in_node(inode.nid()))?;
        let hidden = |number: u8| {
            (number == index::TRUSTED && cx.uid != 0)
                || (number == index::USER && !has_user_attrs(inode.kind()))
                || self.check_namespace(number).is_err()
        };
        let shown = list.iter().filter(|xattr| !hidden(xattr.index));
        Ok(shown
            .filter_map(|xattr| full_name(xattr.index, xattr.name))
            .collect())
    }
}

#[cfg(test)]
mod tests;
