//! What tests of file systems do again and again, by the calls of the trait alone.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use steadfs_base::InodeNo;

use crate::{Attr, Cx, DirEntry, FileKind, FileSystem, Result};

/// Result of a walk over all names: paths and their inodes.
pub type Tree = BTreeMap<Vec<u8>, Seen>;

/// An inode as a caller sees it.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    /// Attributes, with the time of the last change as access time.
    pub attr: Attr,
    /// The target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Names and values of extended attributes, sorted.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Finds a name, and drops the lookup.
///
/// # Errors
/// As [`FileSystem::lookup`].
pub fn lookup(fs: &dyn FileSystem, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<Attr> {
    let attr = fs.lookup(cx, dir, name)?;
    fs.forget(attr.ino, 1);
    Ok(attr)
}

/// Creates a regular file, and drops its lookup.
///
/// # Errors
/// As [`FileSystem::mknod`].
pub fn file(fs: &dyn FileSystem, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<Attr> {
    let attr = fs.mknod(cx, dir, name, 0o100_644, 0)?;
    fs.forget(attr.ino, 1);
    Ok(attr)
}

/// Creates a directory, and drops its lookup.
///
/// # Errors
/// As [`FileSystem::mkdir`].
pub fn mkdir(fs: &dyn FileSystem, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<Attr> {
    let attr = fs.mkdir(cx, dir, name, 0o755)?;
    fs.forget(attr.ino, 1);
    Ok(attr)
}

/// Names and inodes of a whole directory in listing order, dots included, read `batch` at a time.
pub fn list(fs: &dyn FileSystem, cx: &Cx, dir: InodeNo, batch: usize) -> Vec<(Vec<u8>, InodeNo)> {
    let mut all = Vec::new();
    let mut cookie = 0;
    loop {
        let mut got = 0;
        let from = cookie;
        let mut emit = |entry: DirEntry<'_>| {
            if got == batch {
                return false;
            }
            got += 1;
            all.push((entry.name.to_vec(), entry.ino));
            cookie = entry.next;
            true
        };
        fs.readdir(cx, dir, from, &mut emit).unwrap();
        if got < batch {
            return all;
        }
    }
}

/// The names of a directory without the dots, sorted.
pub fn names(fs: &dyn FileSystem, cx: &Cx, dir: InodeNo) -> Vec<Vec<u8>> {
    let all = list(fs, cx, dir, 1000);
    let mut names: Vec<_> = all.into_iter().map(|(name, _)| name).collect();
    names.retain(|name| name != b"." && name != b"..");
    names.sort();
    names
}

/// All names and their inodes. Access times are left out, because reading changes them.
pub fn tree(fs: &dyn FileSystem, cx: &Cx) -> Tree {
    let mut tree = Tree::new();
    let mut below = vec![(Vec::new(), fs.root())];
    while let Some((path, dir)) = below.pop() {
        for name in names(fs, cx, dir) {
            let attr = lookup(fs, cx, dir, &name).unwrap();
            let path = [&path[..], b"/", &name].concat();
            if attr.kind == FileKind::Directory {
                below.push((path.clone(), attr.ino));
            }
            tree.insert(path, see(fs, cx, attr));
        }
    }
    tree
}

fn see(fs: &dyn FileSystem, cx: &Cx, mut attr: Attr) -> Seen {
    let mut attributes: Vec<_> = fs
        .listxattr(cx, attr.ino)
        .unwrap()
        .into_iter()
        .map(|name| {
            let value = fs.getxattr(cx, attr.ino, &name).unwrap();
            (name, value)
        })
        .collect();
    attributes.sort();
    attr.atime = attr.mtime;
    Seen {
        target: (attr.kind == FileKind::Symlink).then(|| fs.readlink(cx, attr.ino).unwrap()),
        attributes,
        attr,
    }
}
