//! A mounted volume in memory, for the tests of this crate: made by `mke2fs`, judged by `e2fsck`.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_block::MemDevice;
use steadfs_vfs::{Attr, Cx, FsError, Result, test_support};

use crate::CacheSizes;
use crate::disk::test_images::{Image, judge};
use crate::fs::Ext4;
use crate::options::MountOptions;

pub(crate) const ROOT: InodeNo = InodeNo(2);

/// A mounted volume.
pub(crate) struct World {
    pub(crate) image: Image,
    device: Arc<MemDevice>,
    pub(crate) fs: Arc<Ext4>,
    pub(crate) cx: Cx,
}

impl World {
    /// Makes and mounts a volume with these `mke2fs` options.
    pub(crate) fn make(options: &[&str], size: &str) -> Self {
        Self::open(Image::make(options, size))
    }

    /// Mounts an image for writing.
    pub(crate) fn open(image: Image) -> Self {
        Self::open_with(image, MountOptions::default())
    }

    pub(crate) fn open_with(image: Image, options: MountOptions) -> Self {
        let device = image.device();
        let fs = mount(&device, options).unwrap();
        let cx = Cx {
            fsetid: true,
            admin: true,
            ..Cx::default()
        };
        Self {
            image,
            device,
            fs,
            cx,
        }
    }

    pub(crate) fn device(&self) -> &MemDevice {
        &self.device
    }

    /// Unmounts and runs e2fsck.
    pub(crate) fn close(self) -> Image {
        self.fs.close().unwrap();
        self.judge()
    }

    fn judge(self) -> Image {
        self.device.save(&self.image.path()).unwrap();
        check(&self.image);
        self.image
    }

    /// Unmounts, checks and mounts again.
    pub(crate) fn reopen(self) -> Self {
        Self::open(self.close())
    }

    /// Copies the device as a power cut after a sync would leave it, without unmounting.
    pub(crate) fn cut_power(&self) -> Arc<MemDevice> {
        self.fs.sync_volume(&self.cx).unwrap();
        Arc::new(self.device.copy())
    }

    /// Copies the device as a power cut now would leave it.
    pub(crate) fn cut_power_now(&self) -> Arc<MemDevice> {
        Arc::new(self.device.copy())
    }

    /// Mounts the image of a power cut: journal and orphans are processed.
    pub(crate) fn recover(self, device: Arc<MemDevice>) -> Self {
        let fs = mount(&device, MountOptions::default()).unwrap();
        Self { fs, device, ..self }
    }

    pub(crate) fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        let attr = self.fs.lookup(&self.cx, dir, name)?;
        self.forget(attr.ino);
        Ok(attr)
    }

    /// Drops one lookup, as the caller of the file system does.
    pub(crate) fn forget(&self, ino: InodeNo) {
        let inode = self.fs.by_number(ino, self.cx.tag).unwrap();
        if inode.drop_lookups(1) && inode.core.read().links == 0 {
            self.fs.evict(&inode).unwrap();
        }
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
}

fn mount(device: &Arc<MemDevice>, options: MountOptions) -> Result<Arc<Ext4>, FsError> {
    let (fs, _) = Ext4::open(Arc::clone(device) as _, options, CacheSizes::of(64 << 20))?;
    Ok(fs)
}

/// `e2fsck -fn` finds nothing, and neither does our own checker.
pub(crate) fn check(image: &Image) {
    let report = crate::check::check(&*image.device(), &crate::check::Options::default());
    assert!(report.is_clean(), "{:?}", report.issues);
    let output = judge("e2fsck")
        .args(["-fn", image.path().to_str().unwrap()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "e2fsck: {said}");
}
