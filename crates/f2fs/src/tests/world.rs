//! A mounted volume in memory for the tests of this crate, judged by fsck.f2fs and by our checker.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_block::MemDevice;
use steadfs_vfs::test_support::{self, Tree};
use steadfs_vfs::{Attr, Cx, FileSystem, Result};

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

    pub(crate) fn list(&self, dir: InodeNo, batch: usize) -> Vec<(Vec<u8>, InodeNo)> {
        test_support::list(&*self.fs, &self.cx, dir, batch)
    }

    pub(crate) fn names(&self, dir: InodeNo) -> Vec<Vec<u8>> {
        test_support::names(&*self.fs, &self.cx, dir)
    }

    pub(crate) fn tree(&self) -> Tree {
        test_support::tree(&*self.fs, &self.cx)
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
