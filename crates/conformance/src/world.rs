//! A mounted volume, as one caller uses it.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_block::MemDevice;
use steadfs_vfs::test_support::{self, Tree};
use steadfs_vfs::{Attr, Cx, FileSystem, Result, SetAttr};

use crate::{Kind, TestDevice, judge};

/// F2FS_IOC_WRITE_CHECKPOINT.
const WRITE_CHECKPOINT: u32 = 0xf507;

/// How a volume is made and mounted; the default is what most tests use.
#[derive(Clone, Copy, Default)]
pub struct Setup<'a> {
    /// Size in MiB; 0: the usual one.
    pub mib: u64,
    /// Further options of `mke2fs`, for ext volumes.
    pub mke2fs: &'a [&'a str],
    /// Further mount options.
    pub mount: &'a str,
    /// Memory for caches in bytes; 0: 64 MiB.
    pub cache: u64,
}

/// A mounted volume.
pub struct World {
    /// What it is.
    pub kind: &'static Kind,
    /// Its device.
    pub device: Arc<TestDevice>,
    /// The volume.
    pub fs: Arc<dyn FileSystem>,
    /// A caller with all privileges.
    pub cx: Cx,
    /// The root directory.
    pub root: InodeNo,
    mount: String,
    cache: u64,
}

impl World {
    /// Makes and mounts a volume.
    pub fn make(kind: &'static Kind) -> Self {
        Self::with(kind, &Setup::default())
    }

    /// Makes and mounts a volume by these terms.
    pub fn with(kind: &'static Kind, setup: &Setup<'_>) -> Self {
        let mib = match setup.mib {
            0 => kind.usual_mib(),
            mib => mib,
        };
        Self::open(kind, kind.make(mib, setup.mke2fs), setup)
    }

    /// Mounts an existing volume.
    pub fn open(kind: &'static Kind, memory: Arc<MemDevice>, setup: &Setup<'_>) -> Self {
        Self::try_open(kind, TestDevice::new(memory), setup).unwrap()
    }

    /// Mounts the volume of a device.
    ///
    /// # Errors
    /// As the mount.
    pub fn try_open(
        kind: &'static Kind,
        device: Arc<TestDevice>,
        setup: &Setup<'_>,
    ) -> Result<Self> {
        let cache = match setup.cache {
            0 => 64 << 20,
            bytes => bytes,
        };
        let fs = kind.mount(Arc::clone(&device) as _, setup.mount, cache)?;
        let cx = Cx {
            fsetid: true,
            admin: true,
            ..Cx::default()
        };
        Ok(Self {
            kind,
            device,
            root: fs.root(),
            fs,
            cx,
            mount: setup.mount.to_owned(),
            cache,
        })
    }

    /// Makes everything durable.
    pub fn sync(&self) {
        self.fs.sync_all(&self.cx).unwrap();
    }

    /// Unmounts and judges the volume, which must have met no error.
    pub fn close(self) -> Arc<MemDevice> {
        assert_eq!(self.errors(), "none\n", "{}", self.kind);
        self.fs.unmount().unwrap();
        judge(self.kind, &self.device.faults.memory);
        Arc::clone(&self.device.faults.memory)
    }

    /// Unmounts, judges and mounts again; every name, attribute and extended attribute is as before.
    pub fn reopen(self) -> Self {
        if self.kind.is_ext() {
            // The blocks of maps are counted when they are allocated.
            self.sync();
        }
        let before = self.tree();
        let (kind, mount, cache) = (self.kind, self.mount.clone(), self.cache);
        let setup = Setup {
            mount: &mount,
            cache,
            ..Setup::default()
        };
        let again = Self::open(kind, self.close(), &setup);
        let after = again.tree();
        for (path, seen) in &before {
            let name = String::from_utf8_lossy(path);
            assert_eq!(after.get(path), Some(seen), "{kind}: {name}");
        }
        assert_eq!(after.len(), before.len(), "{kind}");
        again
    }

    /// Hands the volume over to a successor, with the options that are in effect.
    ///
    /// # Errors
    /// As [`FileSystem::hand_over`].
    pub fn hand_over(self) -> Result<Self> {
        let mount = self.fs.options();
        let lookups = self.fs.hand_over()?;
        let device = Arc::clone(&self.device) as _;
        let fs = (self.kind).mount_handed_over(device, &mount, self.cache, &lookups)?;
        Ok(Self { fs, mount, ..self })
    }

    /// Writes metadata while delayed data stays where it is, if the format can: a checkpoint of f2fs.
    pub fn checkpoint(&self) {
        if !self.kind.is_ext() {
            let done = self.fs.ioctl(&self.cx, self.root, WRITE_CHECKPOINT, &[]);
            done.unwrap().expect("an ioctl of f2fs");
        }
    }

    /// Asserts that a power cut now, after a sync, would leave a consistent volume.
    pub fn judge_now(&self) {
        if !self.kind.is_ext() {
            self.checkpoint();
            judge(self.kind, &self.device.faults.memory);
        } else if self.kind.recovers {
            self.after_power_cut(true, |_| {});
        }
    }

    /// Shows `look` the volume that a mount finds after a power cut now, or after a sync; then that one is unmounted,
    /// and judged if mounts make it consistent. Its orphans are freed.
    pub fn after_power_cut<T>(&self, synced: bool, look: impl FnOnce(&Self) -> T) -> T {
        if synced {
            self.sync();
        }
        let there = self.cut_power();
        let seen = look(&there);
        if self.kind.recovers {
            there.close();
        } else {
            there.fs.unmount().unwrap();
        }
        seen
    }

    /// The volume that a mount finds after a power cut now. The caller unmounts it.
    pub fn cut_power(&self) -> Self {
        Self::open(self.kind, self.left_by_power_cut(), &Setup::default())
    }

    /// The device that a power cut leaves now: with what FLUSHes and FUA have made durable, and nothing else. Without
    /// barriers the device is one without a write cache.
    pub fn left_by_power_cut(&self) -> Arc<MemDevice> {
        let options = self.fs.options();
        match options.split(',').any(|option| option == "nobarrier") {
            true => self.device.copy(),
            false => self.device.durable(),
        }
    }

    /// Finds a name, and drops the lookup.
    ///
    /// # Errors
    /// As [`FileSystem::lookup`].
    pub fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        test_support::lookup(&*self.fs, &self.cx, dir, name)
    }

    /// Drops one lookup.
    pub fn forget(&self, ino: InodeNo) {
        self.fs.forget(ino, 1);
    }

    /// Creates a regular file, and drops its lookup.
    ///
    /// # Errors
    /// As [`FileSystem::mknod`].
    pub fn file(&self, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        test_support::file(&*self.fs, &self.cx, dir, name)
    }

    /// Creates a directory, and drops its lookup.
    ///
    /// # Errors
    /// As [`FileSystem::mkdir`].
    pub fn mkdir(&self, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        test_support::mkdir(&*self.fs, &self.cx, dir, name)
    }

    /// Creates a file with this content in the root directory.
    ///
    /// # Errors
    /// As [`FileSystem::mknod`] and [`FileSystem::write`].
    pub fn written(&self, name: &[u8], data: &[u8]) -> Result<InodeNo> {
        let ino = self.file(self.root, name)?.ino;
        let written = self.write(ino, 0, data)?;
        assert_eq!(written, data.len(), "{}", self.kind);
        Ok(ino)
    }

    /// Writes to a file.
    ///
    /// # Errors
    /// As [`FileSystem::write`].
    pub fn write(&self, ino: InodeNo, offset: u64, data: &[u8]) -> Result<usize> {
        self.fs.write(&self.cx, ino, offset, data, false)
    }

    /// Reads from a file.
    pub fn read(&self, ino: InodeNo, offset: u64, len: usize) -> Vec<u8> {
        self.fs.read(&self.cx, ino, offset, len).unwrap().to_vec()
    }

    /// The content of a file in the root directory.
    pub fn content(&self, name: &[u8]) -> Vec<u8> {
        let attr = self.lookup(self.root, name).unwrap();
        self.read(attr.ino, 0, attr.size as usize)
    }

    /// Makes a file durable.
    ///
    /// # Errors
    /// As [`FileSystem::fsync`].
    pub fn fsync(&self, ino: InodeNo) -> Result<()> {
        self.fs.fsync(&self.cx, ino, false)
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// As [`FileSystem::setattr`].
    pub fn set(&self, ino: InodeNo, set: SetAttr) -> Result<Attr> {
        self.fs.setattr(&self.cx, ino, &set)
    }

    /// Changes the size of a file.
    ///
    /// # Errors
    /// As [`FileSystem::setattr`].
    pub fn resize(&self, ino: InodeNo, size: u64) -> Result<Attr> {
        let size = Some(size);
        let all = SetAttr::default();
        self.set(ino, SetAttr { size, ..all })
    }

    /// Attributes of an inode.
    pub fn attr(&self, ino: InodeNo) -> Attr {
        self.fs.getattr(&self.cx, ino).unwrap()
    }

    /// Free blocks and inodes.
    pub fn free(&self) -> (u64, u64) {
        let usage = self.fs.statfs(&self.cx).unwrap();
        (usage.blocks_free, usage.files_free)
    }

    /// Names and inodes of a directory; see [`test_support::list`].
    pub fn list(&self, dir: InodeNo, batch: usize) -> Vec<(Vec<u8>, InodeNo)> {
        test_support::list(&*self.fs, &self.cx, dir, batch)
    }

    /// The names of a directory; see [`test_support::names`].
    pub fn names(&self, dir: InodeNo) -> Vec<Vec<u8>> {
        test_support::names(&*self.fs, &self.cx, dir)
    }

    /// Names of the root directory that a new volume has not.
    pub fn new_names(&self) -> Vec<Vec<u8>> {
        let mut names = self.names(self.root);
        names.retain(|name| name != b"lost+found");
        names
    }

    /// All names and their inodes.
    pub fn tree(&self) -> Tree {
        test_support::tree(&*self.fs, &self.cx)
    }

    /// The content of a control file.
    pub fn control(&self, path: &str) -> String {
        let text = self.fs.control().unwrap().read(path).unwrap();
        String::from_utf8(text).unwrap()
    }

    /// The control file `errors`.
    pub fn errors(&self) -> String {
        self.control("errors")
    }

    /// Writes the control file that freezes (`1`) and thaws (`0`).
    ///
    /// # Errors
    /// As the write of the control file.
    pub fn freeze(&self, value: &str) -> Result<()> {
        let path = format!("{}/freeze", self.kind.format_name());
        let control = self.fs.control().unwrap();
        control.write(&path, value.as_bytes())
    }
}
