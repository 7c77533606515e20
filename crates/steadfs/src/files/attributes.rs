//! Attributes that [`std::fs`] has no calls for: times, device nodes, and those of links themselves.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use steadfs_vfs::{Attr, FsError, SetAttr};

use super::Calls;
use crate::Volume;
use crate::os_names::os_string;

impl Volume {
    /// Sets the attributes that `set` has. Of a link its own, or with `follow` those of its target.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let dir = tempfile::tempdir()?;
    /// # let image = dir.path().join("disk.img");
    /// # steadfs::format(&image, Some(16 << 20), &steadfs::FormatOptions::default())?;
    /// # let volume = steadfs::Volume::open(&image)?;
    /// # volume.write("/file", "")?;
    /// use steadfs::{SetAttr, SetTime, Timestamp};
    ///
    /// let modified = Timestamp { secs: 1_700_000_000, nanos: 5 };
    /// let set = SetAttr { mtime: Some(SetTime::At(modified)), ..SetAttr::default() };
    /// volume.set_attributes("/file", true, &set)?;
    /// assert_eq!(volume.metadata("/file")?.attr().mtime, modified);
    /// # volume.close()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// There is no such file, or it is immutable.
    pub fn set_attributes(
        &self,
        path: impl AsRef<Path>,
        follow: bool,
        set: &SetAttr,
    ) -> io::Result<()> {
        let calls = self.calls();
        let changed = |ino, _: &Attr| calls.fs.setattr(&calls.cx, ino, set).map(drop);
        calls.with(path.as_ref(), follow, changed)
    }

    /// Makes a file that is not a directory or link. `mode` has its type and permissions as `st_mode`, `rdev` the number of a
    /// device node as `st_rdev`. The node has no effect here: it names a device of the machine that the volume is mounted on.
    ///
    /// # Errors
    /// The name exists; there is no space; `InvalidInput` for another type.
    pub fn create_node(&self, path: impl AsRef<Path>, mode: u32, rdev: u32) -> io::Result<()> {
        let calls = self.calls();
        let make = |dir, name: &[u8]| calls.fs.mknod(&calls.cx, dir, name, mode, rdev);
        calls.make(path.as_ref(), make)
    }

    /// The extended attributes of a file, with their full names (`user.comment`). Of a link its own.
    ///
    /// # Errors
    /// As [`Volume::xattrs`].
    pub fn symlink_xattrs(&self, path: impl AsRef<Path>) -> io::Result<Vec<(OsString, Vec<u8>)>> {
        self.calls().xattrs(path.as_ref(), false)
    }
}

impl Calls {
    pub(super) fn xattrs(&self, path: &Path, follow: bool) -> io::Result<Vec<(OsString, Vec<u8>)>> {
        self.with(path, follow, |ino, _| {
            let names = self.fs.listxattr(&self.cx, ino)?;
            let read = |name: Vec<u8>| {
                let value = self.fs.getxattr(&self.cx, ino, &name)?;
                Ok::<_, FsError>((os_string(name), value))
            };
            names.into_iter().map(read).collect()
        })
    }
}
