//! Extended attributes: the list in the inode and the xattr node.

use std::collections::BTreeSet;

use steadfs_vfs::acl::Acl;

use super::{Checker, Issue};
use crate::disk::inode::Advise;
use crate::disk::node::XATTR_OFFSET;
use crate::disk::xattr::{self, NODE_XATTR_BYTES, Xattr, index};
use crate::disk::{DiskError, Inode, Nid, Structure};

impl Checker<'_> {
    /// Checks an inode's attributes. Returns the number of blocks they use.
    pub(super) fn check_xattrs(&mut self, ino: Nid, inode: &Inode, block: &[u8]) -> u64 {
        let inline = &block[inode.xattr_range(&self.layout)];
        let mut blocks = 0;
        let mut joined;
        let mut area = inline;
        if inode.xattr_nid.some().is_some() {
            let mut node = std::mem::take(&mut self.buffers[4]);
            if self
                .read_node(ino, inode.xattr_nid, XATTR_OFFSET, &mut node)
                .is_some()
            {
                blocks = 1;
                self.report.stats.xattr_nodes += 1;
                joined = inline.to_vec();
                joined.extend_from_slice(&node[..NODE_XATTR_BYTES]);
                area = &joined;
            }
            self.buffers[4] = node;
        }
        match xattr::parse(area) {
            Ok(list) => self.check_list(ino, inode, area, &list),
            Err(error) => self.issue(Issue::Xattr(error.in_node(ino))),
        }
        blocks
    }

    fn check_list(&mut self, ino: Nid, inode: &Inode, area: &[u8], list: &[Xattr<'_>]) {
        let mut wrong = Vec::new();
        let end = if xattr::is_present(area) {
            xattr::size_of_list(list) - 4
        } else {
            0
        };
        let rest = area.get(end..).unwrap_or_default();
        if rest.iter().any(|&byte| byte != 0) {
            wrong.push(if end == 0 {
                "the area is not empty and has no list"
            } else {
                "the area is not empty after the end of the list"
            });
        }
        let has = |number: u8| list.iter().any(|xattr| xattr.index == number);
        if inode.advise.contains(Advise::ENCRYPTED) && !has(index::ENCRYPTION) {
            wrong.push("the context of an encrypted file is missing");
        }
        if inode.advise.contains(Advise::VERITY) && !has(index::VERITY) {
            wrong.push("the position of the verity descriptor is missing");
        }
        let mut names = BTreeSet::new();
        if !list
            .iter()
            .all(|xattr| names.insert((xattr.index, xattr.name)))
        {
            wrong.push("a name occurs twice");
        }
        for why in wrong {
            self.issue(Issue::XattrList { ino, why });
        }
        let acls = [index::ACL_ACCESS, index::ACL_DEFAULT];
        for xattr in list.iter().filter(|xattr| acls.contains(&xattr.index)) {
            if let Err(error) = Acl::from_disk(xattr.value) {
                let error = DiskError::entry(Structure::Acl, error.index, error.rule);
                self.issue(Issue::Xattr(error.in_node(ino)));
            }
        }
    }
}
