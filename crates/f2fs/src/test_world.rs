//! A mounted volume in memory for the tests of this crate, judged by fsck.f2fs and by our checker.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_block::MemDevice;
use steadfs_vfs::{Attr, Cx, DirEntry, FileKind, FileSystem, FsError, Result};

use crate::CacheSizes;
use crate::checkpoint::Reason;
use crate::disk::inode::Inline;
use crate::format::{FormatOptions, image};
use crate::fs::F2fs;
use crate::options::MountOptions;

pub(crate) const ROOT: InodeNo = InodeNo(3);
/// All features of volumes that are written.
pub(crate) const ALL: &str = "extra_attr,inode_checksum,sb_checksum,inode_crtime,\
                              flexible_inline_xattr,lost_found,verity,encrypt,compression";

/// Result of a walk over all names: paths and their inodes.
pub(crate) type Tree = BTreeMap<Vec<u8>, Seen>;

/// An inode as a caller sees it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) attr: Attr,
    pub(crate) target: Option<Vec<u8>>,
    pub(crate) attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

pub(crate) struct World {
    device: Arc<MemDevice>,
    options: String,
    pub(crate) fs: Arc<F2fs>,
    pub(crate) cx: Cx,
}

impl World {
    /// Formats a volume of `mib` MiB with these features, and mounts it.
    pub(crate) fn make(features: &str, mib: u64) -> Self {
        Self::make_with(features, mib, "")
    }

    /// The same with mount options.
    pub(crate) fn make_with(features: &str, mib: u64, options: &str) -> Self {
        let mut format = FormatOptions::default();
        format.set_features(features).unwrap();
        let device = image(mib << 20, &format).unwrap();
        Self::open(device, options)
    }

    fn open(device: Arc<MemDevice>, options: &str) -> Self {
        let parsed = MountOptions::parse(options).unwrap();
        let (fs, _) =
            F2fs::open(Arc::clone(&device) as _, parsed, CacheSizes::of(64 << 20)).unwrap();
        let cx = Cx {
            fsetid: true,
            admin: true,
            ..Cx::default()
        };
        Self {
            device,
            options: options.to_owned(),
            fs,
            cx,
        }
    }

    /// Unmounts and judges the device.
    pub(crate) fn close(self) -> Arc<MemDevice> {
        self.fs.close().unwrap();
        judge(&self.device);
        self.device
    }

    /// The content of the device: what a power cut would leave.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.device.to_bytes()
    }

    /// Judges the device in its current state.
    pub(crate) fn judge_device(&self) {
        judge(&self.device);
    }

    /// Mounts an existing volume.
    pub(crate) fn of(device: Arc<MemDevice>, options: &str) -> Self {
        Self::open(device, options)
    }

    /// Mounts the device of an aborted volume.
    pub(crate) fn open_again(self) -> Self {
        Self::open(self.device, &self.options)
    }

    /// The same with other options, beside this mount.
    pub(crate) fn look_at_again(&self, options: &str) -> Self {
        Self::open(Arc::clone(&self.device), options)
    }

    /// Unmounts, judges and mounts again, and compares the trees.
    pub(crate) fn reopen(self) -> Self {
        let (options, before) = (self.options.clone(), self.tree());
        let again = Self::open(self.close(), &options);
        let after = again.tree();
        for (path, seen) in &before {
            let name = String::from_utf8_lossy(path);
            assert_eq!(after.get(path), Some(seen), "{name}");
        }
        assert_eq!(after.len(), before.len());
        again
    }

    /// Writes a checkpoint and judges what a power cut would leave.
    pub(crate) fn judge_now(&self) {
        self.fs.checkpoint(Reason::Sync, self.cx.tag).unwrap();
        judge(&self.device);
    }

    /// Pins a file with blocks outside whole sections, as kernels before 6.8 allowed.
    pub(crate) fn pin_where_it_lies(&self, file: InodeNo) {
        let inode = self.fs.by_number(file, self.cx.tag).unwrap();
        let change = self.fs.change().unwrap();
        let mut core = inode.core.write();
        self.fs.mark_dirty(&change, &inode, self.cx.tag).unwrap();
        core.inline = core.inline.union(Inline::PINNED);
    }

    pub(crate) fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        let attr = self.fs.lookup(&self.cx, dir, name)?;
        self.forget(attr.ino);
        Ok(attr)
    }

    /// Drops one lookup, as the kernel does.
    pub(crate) fn forget(&self, ino: InodeNo) {
        self.fs.put(ino, 1).unwrap();
    }

    /// Creates a regular file and drops its lookup.
    pub(crate) fn file(&self, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        let attr = self.fs.mknod(&self.cx, dir, name, 0o100_644, 0)?;
        self.forget(attr.ino);
        Ok(attr)
    }

    pub(crate) fn mkdir(&self, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        let attr = self.fs.mkdir(&self.cx, dir, name, 0o755)?;
        self.forget(attr.ino);
        Ok(attr)
    }

    /// Names and inodes of a directory in listing order, dots included, read `batch` at a time.
    pub(crate) fn list(&self, dir: InodeNo, batch: usize) -> Vec<(Vec<u8>, InodeNo)> {
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
            self.fs.readdir(&self.cx, dir, from, &mut emit).unwrap();
            if got < batch {
                return all;
            }
        }
    }

    /// The names of a directory without the dots, sorted.
    pub(crate) fn names(&self, dir: InodeNo) -> Vec<Vec<u8>> {
        let all = self.list(dir, 1000);
        let mut names: Vec<_> = all.into_iter().map(|(name, _)| name).collect();
        names.retain(|name| name != b"." && name != b"..");
        names.sort();
        names
    }

    /// All names and their inodes. Access times are left out, because reading changes them.
    pub(crate) fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        let mut below = vec![(Vec::new(), ROOT)];
        while let Some((path, dir)) = below.pop() {
            for name in self.names(dir) {
                let attr = self.lookup(dir, &name).unwrap();
                let path = [&path[..], b"/", &name].concat();
                if attr.kind == FileKind::Directory {
                    below.push((path.clone(), attr.ino));
                }
                tree.insert(path, self.see(attr));
            }
        }
        tree
    }

    fn see(&self, mut attr: Attr) -> Seen {
        let (fs, cx) = (&self.fs, &self.cx);
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
}

/// Asserts that fsck.f2fs and our checker find nothing.
fn judge(device: &MemDevice) {
    let report = crate::check::check(device, &crate::check::Options::default());
    assert!(report.is_clean(), "{:?}", report.issues);
    fsck(device);
}

/// Runs fsck.f2fs on a device and asserts that it finds nothing.
pub(crate) fn fsck(device: &MemDevice) {
    let file = tempfile::NamedTempFile::new().unwrap();
    device.save(file.path()).unwrap();
    let out = steadfs_f2fs_format::test_support::tool("fsck.f2fs")
        .args(["-f", "--dry-run"])
        .arg(file.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let bad = text.contains("[FAIL]") || text.contains("ASSERT") || text.contains("[FIX]");
    assert!(out.status.success() && !bad, "{text}");
}

/// Whether an operation failed in a way that a concurrent operation can cause.
pub(crate) fn is_race(error: &FsError) -> bool {
    matches!(
        error,
        FsError::Exists
            | FsError::NotFound
            | FsError::IsDir
            | FsError::NotDir
            | FsError::NotEmpty
            | FsError::NotPermitted
            | FsError::Invalid(_)
    )
}
