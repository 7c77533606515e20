//! Files of a volume by their paths, as [`std::fs`] has them for the host.
//!
//! Paths begin at the volume's root, with a slash or without; symbolic links are followed inside the volume. Calls have
//! the rights of the volume's owner: permissions are not checked.

mod attributes;
#[cfg(target_os = "linux")]
mod copies;
mod dir;
mod error;
mod file;
mod metadata;
mod open;
mod tree;

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use steadfs_base::InodeNo;
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{
    Attr, Cx, FileKind, FileSystem, FsError, RenameFlags, SetAttr, SetXattr, StatFs,
};

pub use dir::{DirEntry, ReadDir};
pub use error::VolumeIoError;
pub use file::File;
pub use metadata::Metadata;
pub use open::OpenFile;
#[cfg(target_os = "linux")]
pub(crate) use tree::FirstProblem;
pub use tree::{Walk, WalkEntry};

use crate::Volume;
use crate::os_names::{bytes_of, os_path};
use crate::tools::{Held, LastName, owner_cx, resolve};
use error::At;

/// Permissions of a new directory.
const NEW_DIRECTORY: u32 = 0o755;

fn bytes(path: &Path) -> &[u8] {
    bytes_of(path)
}

/// What the files of an open volume share.
#[derive(Debug)]
pub(crate) struct InUse {
    /// Held while a file is appended to: its end must not move meanwhile.
    appends: Mutex<()>,
    closed: AtomicBool,
    /// A server closes the volume.
    served: AtomicBool,
}

impl Default for InUse {
    fn default() -> Self {
        Self {
            appends: Mutex::new(Rank::Record, ()),
            closed: AtomicBool::new(false),
            served: AtomicBool::new(false),
        }
    }
}

impl InUse {
    /// From now on nothing is read from the volume's caches, either.
    pub(crate) fn end(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// A server closes the volume, not the program that opened it.
    #[cfg(feature = "mount")]
    pub(crate) fn leave_to_server(&self) {
        self.served.store(true, Ordering::Release);
    }

    pub(crate) fn is_served(&self) -> bool {
        self.served.load(Ordering::Acquire)
    }

    fn check(&self) -> Result<(), FsError> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(FsError::Stopped("it is closed".to_owned())),
            false => Ok(()),
        }
    }
}

/// The calls of one volume.
#[derive(Clone)]
struct Calls {
    fs: Arc<dyn FileSystem>,
    cx: Cx,
    in_use: Arc<InUse>,
}

impl Calls {
    fn find(&self, path: &Path, follow: bool) -> Result<Held<'_>, FsError> {
        self.in_use.check()?;
        match bytes(path) {
            b"" => Err(FsError::NotFound),
            path => resolve(&*self.fs, &self.cx, path, follow),
        }
    }

    /// The last name of a path that is to be made, removed or moved.
    fn last_name(&self, path: &Path) -> Result<LastName<'_, '_>, FsError> {
        self.in_use.check()?;
        LastName::of(&*self.fs, &self.cx, bytes(path))
    }

    /// Calls `work` with the file at a path; an error names the path.
    fn with<T>(
        &self,
        path: &Path,
        follow: bool,
        work: impl FnOnce(InodeNo, &Attr) -> Result<T, FsError>,
    ) -> io::Result<T> {
        let found = self.find(path, follow);
        let done = found.and_then(|file| work(file.ino(), file.attr()));
        done.at(path)
    }

    /// Makes something that is no directory at a path, and drops its lookup count.
    fn make(
        &self,
        path: &Path,
        work: impl FnOnce(InodeNo, &[u8]) -> Result<Attr, FsError>,
    ) -> io::Result<()> {
        let made = self.last_name(path).and_then(|last| {
            last.check_make()?;
            let attr = work(last.dir()?.ino(), &last.name)?;
            self.fs.forget(attr.ino, 1);
            Ok(())
        });
        made.at(path)
    }

    /// Makes a directory, and drops its lookup count.
    fn make_dir(&self, path: &Path, permissions: u32) -> Result<(), FsError> {
        let last = self.last_name(path)?;
        last.check_make_dir()?;
        let dir = last.dir()?.ino();
        let attr = self.fs.mkdir(&self.cx, dir, &last.name, permissions)?;
        self.fs.forget(attr.ino, 1);
        Ok(())
    }

    /// Makes a directory, or finds one.
    fn make_or_find_dir(&self, path: &Path) -> Result<(), FsError> {
        let is_dir = || {
            let found = self.find(path, true);
            found.is_ok_and(|found| found.attr().kind == FileKind::Directory)
        };
        match self.make_dir(path, NEW_DIRECTORY) {
            Err(error) if error == FsError::NotFound || !is_dir() => Err(error),
            _ => Ok(()),
        }
    }
}

/// Files by their paths.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// # let image = dir.path().join("disk.img");
/// # steadfs::format(&image, Some(16 << 20), &steadfs::FormatOptions::default())?;
/// use std::io::{Read, Write};
///
/// let volume = steadfs::Volume::open(&image)?;
/// volume.create_dir_all("/etc/network")?;
/// volume.write("/etc/hostname", "box\n")?;
///
/// let mut log = volume.open_file().append(true).create(true).open("/log")?;
/// writeln!(log, "hello")?;
/// log.sync_all()?; // survives a power cut from here on
///
/// assert_eq!(volume.read_to_string("/etc/hostname")?, "box\n");
/// for entry in volume.read_dir("/etc")? {
///     println!("{}", entry?.file_name().display());
/// }
/// volume.close()?;
/// # Ok(())
/// # }
/// ```
impl Volume {
    fn calls(&self) -> Calls {
        Calls {
            fs: self.fs(),
            cx: owner_cx(),
            in_use: self.in_use(),
        }
    }

    /// Opens a file for reading; [`Volume::open_file`] has other ways.
    ///
    /// # Errors
    /// There is no such file, or it is a directory; an encrypted file has no key.
    pub fn file(&self, path: impl AsRef<Path>) -> io::Result<File> {
        self.open_file().read(true).open(path)
    }

    /// Opens a file for writing, which is made or truncated.
    ///
    /// # Errors
    /// As [`OpenFile::open`].
    pub fn create(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let mut how = self.open_file();
        how.write(true).create(true).truncate(true).open(path)
    }

    /// Says how a file is to be opened, as [`std::fs::OpenOptions`].
    pub fn open_file(&self) -> OpenFile {
        OpenFile::new(self.calls())
    }

    /// The content of a file.
    ///
    /// # Errors
    /// As [`Volume::file`]; it cannot be read.
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        io::Read::read_to_end(&mut self.file(path)?, &mut content)?;
        Ok(content)
    }

    /// The content of a file in UTF-8.
    ///
    /// # Errors
    /// As [`Volume::read`]; `InvalidData` for other content.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> io::Result<String> {
        io::read_to_string(self.file(path)?)
    }

    /// Writes a whole file, which is made or truncated. It is durable after [`Volume::sync`] or [`File::sync_all`].
    ///
    /// # Errors
    /// As [`Volume::create`]; there is no space.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> io::Result<()> {
        io::Write::write_all(&mut self.create(path)?, content.as_ref())
    }

    /// Attributes of a file; links are followed.
    ///
    /// # Errors
    /// There is no such file.
    pub fn metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        let attr = |_, attr: &Attr| Ok(Metadata::of(attr.clone()));
        self.calls().with(path.as_ref(), true, attr)
    }

    /// Attributes of a file, or of a link itself.
    ///
    /// # Errors
    /// There is no such file.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        let attr = |_, attr: &Attr| Ok(Metadata::of(attr.clone()));
        self.calls().with(path.as_ref(), false, attr)
    }

    /// Whether there is a file; a link that leads nowhere is none.
    ///
    /// # Errors
    /// The volume cannot be read.
    pub fn try_exists(&self, path: impl AsRef<Path>) -> io::Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The names in a directory, `.` and `..` left out, in the directory's order.
    ///
    /// # Errors
    /// There is no such directory.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> io::Result<ReadDir> {
        ReadDir::open(self.calls(), path.as_ref())
    }

    /// The files below a directory, each directory before what is in it.
    ///
    /// # Errors
    /// There is no such directory.
    pub fn walk(&self, path: impl AsRef<Path>) -> io::Result<Walk> {
        Walk::below(self.read_dir(path)?)
    }

    /// Makes a directory with the permissions 0755.
    ///
    /// # Errors
    /// The name exists; the directory around it does not; there is no space.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.create_dir_with(path, NEW_DIRECTORY)
    }

    /// Makes a directory with these permissions (octal, at most 01777, as of mkdir(2)).
    ///
    /// # Errors
    /// As [`Volume::create_dir`].
    pub fn create_dir_with(&self, path: impl AsRef<Path>, permissions: u32) -> io::Result<()> {
        let path = path.as_ref();
        self.calls().make_dir(path, permissions & 0o1777).at(path)
    }

    /// Makes a directory and those around it, as far as they do not exist.
    ///
    /// # Errors
    /// As [`Volume::create_dir`]; a file is in the way.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let calls = self.calls();
        let mut missing = Vec::new();
        for dir in path.as_ref().ancestors() {
            if dir.as_os_str().is_empty() {
                break;
            }
            match calls.make_or_find_dir(dir) {
                Err(FsError::NotFound) => missing.push(dir),
                made => {
                    made.at(dir)?;
                    break;
                }
            }
        }
        let make = |dir: &Path| calls.make_or_find_dir(dir).at(dir);
        missing.into_iter().rev().try_for_each(make)
    }

    /// Removes the name of a file that is not a directory.
    ///
    /// # Errors
    /// There is no such file, or it is a directory.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let (calls, path) = (self.calls(), path.as_ref());
        let removed = calls.last_name(path).and_then(|last| {
            last.check_remove()?;
            calls.fs.unlink(&calls.cx, last.dir()?.ino(), &last.name)
        });
        removed.at(path)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// There is no such directory, or it is not empty.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let (calls, path) = (self.calls(), path.as_ref());
        let removed = calls.last_name(path).and_then(|last| {
            last.check_remove_dir()?;
            calls.fs.rmdir(&calls.cx, last.dir()?.ino(), &last.name)
        });
        removed.at(path)
    }

    /// Removes a directory with all that is in it. Links are removed, not followed.
    ///
    /// # Errors
    /// There is no such directory; something in it cannot be removed, and the rest is.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        if !self.symlink_metadata(path)?.is_dir() {
            return Err(FsError::NotDir).at(path);
        }
        tree::remove(&self.calls(), path)
    }

    /// Moves a name. A file at the new name is replaced, as by rename(2).
    ///
    /// # Errors
    /// There is no such file; the new name is a directory that is not empty.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let calls = self.calls();
        let old = calls.last_name(from).at(from)?;
        let new = calls.last_name(to).at(to)?;
        let moved = old.check_move(&new).and_then(|()| {
            let (old, new) = (
                (old.dir()?.ino(), &*old.name),
                (new.dir()?.ino(), &*new.name),
            );
            let flags = RenameFlags::default();
            calls.fs.rename(&calls.cx, old, new, flags)
        });
        moved.at(from)
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// There is no such file, or it is a directory; the new name exists.
    pub fn hard_link(&self, file: impl AsRef<Path>, name: impl AsRef<Path>) -> io::Result<()> {
        let (calls, file, name) = (self.calls(), file.as_ref(), name.as_ref());
        let found = calls.find(file, false).at(file)?;
        let linked = calls.last_name(name).and_then(|last| {
            last.check_link(found.attr())?;
            let dir = last.dir()?.ino();
            calls.fs.link(&calls.cx, found.ino(), dir, &last.name)
        });
        calls.fs.forget(linked.at(name)?.ino, 1);
        Ok(())
    }

    /// Makes a symbolic link to `target`.
    ///
    /// # Errors
    /// The name exists; there is no space.
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
        let (calls, target) = (self.calls(), target.as_ref());
        let make = |dir, name: &[u8]| calls.fs.symlink(&calls.cx, dir, name, bytes(target));
        calls.make(link.as_ref(), make)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// There is no such link; `InvalidInput` for another file.
    pub fn read_link(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let calls = self.calls();
        let target = calls.with(path.as_ref(), false, |ino, attr| {
            match attr.kind == FileKind::Symlink {
                true => calls.fs.readlink(&calls.cx, ino),
                false => Err(FsError::Invalid("not a symbolic link")),
            }
        })?;
        Ok(os_path(target))
    }

    /// Sets the permission bits (octal, at most 07777) of a file.
    ///
    /// # Errors
    /// There is no such file, or it is immutable.
    pub fn set_permissions(&self, path: impl AsRef<Path>, permissions: u32) -> io::Result<()> {
        let set = SetAttr {
            perm: Some(permissions & 0o7777),
            ..SetAttr::default()
        };
        self.set_attributes(path, true, &set)
    }

    /// Sets the owner of a file.
    ///
    /// # Errors
    /// As [`Volume::set_permissions`].
    pub fn set_owner(&self, path: impl AsRef<Path>, user: u32, group: u32) -> io::Result<()> {
        let set = SetAttr {
            uid: Some(user),
            gid: Some(group),
            ..SetAttr::default()
        };
        self.set_attributes(path, true, &set)
    }

    /// The extended attributes of a file, with their full names (`user.comment`). Of a link those of its target.
    ///
    /// # Errors
    /// There is no such file; the attributes cannot be read.
    pub fn xattrs(&self, path: impl AsRef<Path>) -> io::Result<Vec<(OsString, Vec<u8>)>> {
        self.calls().xattrs(path.as_ref(), true)
    }

    /// Sets an extended attribute, or removes it (`None`).
    ///
    /// # Errors
    /// There is no such file or, to be removed, no such attribute; the value is too large.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: Option<&[u8]>,
    ) -> io::Result<()> {
        let (calls, name) = (self.calls(), name.as_ref().as_encoded_bytes());
        calls.with(path.as_ref(), true, |ino, _| match value {
            Some(value) => (calls.fs).setxattr(&calls.cx, ino, name, value, SetXattr::Any),
            None => calls.fs.removexattr(&calls.cx, ino, name),
        })
    }

    /// Makes everything durable, as sync(2).
    ///
    /// # Errors
    /// Something could not be written.
    pub fn sync(&self) -> io::Result<()> {
        self.in_use().check()?;
        Ok(self.fs().sync_all(&owner_cx())?)
    }

    /// Space and inodes of the volume, in use and free.
    ///
    /// # Errors
    /// The volume is closed.
    pub fn usage(&self) -> io::Result<StatFs> {
        self.in_use().check()?;
        Ok(self.fs().statfs(&owner_cx())?)
    }
}

#[cfg(test)]
mod tests;
