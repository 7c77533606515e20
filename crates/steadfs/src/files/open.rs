//! How a file is opened.

use std::io;
use std::path::Path;

use steadfs_vfs::{Attr, FileKind, FsError};

use super::error::At;
use super::file::Access;
use super::{Calls, File};
use crate::tools::Held;

/// How a file of a volume is to be opened, as [`std::fs::OpenOptions`]: [`Volume::open_file`](crate::Volume::open_file)
/// begins one.
pub struct OpenFile {
    calls: Calls,
    access: Access,
    truncate: bool,
    create: bool,
    create_new: bool,
    permissions: u32,
}

impl OpenFile {
    pub(super) fn new(calls: Calls) -> Self {
        Self {
            calls,
            access: Access::default(),
            truncate: false,
            create: false,
            create_new: false,
            permissions: 0o644,
        }
    }

    /// The file is read.
    pub fn read(&mut self, read: bool) -> &mut Self {
        self.access.read = read;
        self
    }

    /// The file is written.
    pub fn write(&mut self, write: bool) -> &mut Self {
        self.access.write = write;
        self
    }

    /// Each write goes to the end of the file.
    pub fn append(&mut self, append: bool) -> &mut Self {
        self.access.append = append;
        self
    }

    /// The file is emptied.
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.truncate = truncate;
        self
    }

    /// The file is made if there is none.
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.create = create;
        self
    }

    /// The file is made; a name that exists is an error.
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.create_new = create_new;
        self
    }

    /// Permission bits of a file that is made (at most 07777); 0644 if they are not given.
    pub fn permissions(&mut self, permissions: u32) -> &mut Self {
        self.permissions = permissions & 0o7777;
        self
    }

    /// Opens the file at `path`.
    ///
    /// # Errors
    /// There is no such file, or there is one that is to be made; it is no regular file; it is immutable or an encrypted
    /// file without its key; there is no space; `InvalidInput` for options that make no sense together.
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let path = path.as_ref();
        let attr = self.check().and_then(|()| self.find_or_make(path));
        let attr = attr.at(path)?;
        let (calls, access) = (self.calls.clone(), self.access);
        // It holds the lookup count from here on.
        let file = File::new(calls, attr.ino, path.to_owned(), access);
        self.prepare(&attr).at(path)?;
        if self.truncate && attr.size > 0 {
            file.set_len(0)?;
        }
        Ok(file)
    }

    fn writes(&self) -> bool {
        self.access.write || self.access.append
    }

    fn check(&self) -> Result<(), FsError> {
        let wrong = [
            (
                !self.access.read && !self.writes(),
                "a file is opened for reading, writing or appending",
            ),
            (
                (self.truncate || self.create || self.create_new) && !self.writes(),
                "only a file that is written can be made or truncated",
            ),
            (
                self.truncate && self.access.append && !self.create_new,
                "a file that is appended to is not truncated",
            ),
        ];
        match wrong.into_iter().find(|(is_so, _)| *is_so) {
            Some((_, why)) => Err(FsError::Invalid(why)),
            None => Ok(()),
        }
    }

    /// Refuses what cannot be opened like this.
    fn prepare(&self, attr: &Attr) -> Result<(), FsError> {
        match attr.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(FsError::IsDir),
            _ => {
                return Err(FsError::Invalid(
                    "only regular files can be opened: a device or pipe is one of the host",
                ));
            }
        }
        let (fs, cx) = (&self.calls.fs, &self.calls.cx);
        fs.open(cx, attr.ino, self.writes())
    }

    /// The file, with a lookup count that the caller drops.
    fn find_or_make(&self, path: &Path) -> Result<Attr, FsError> {
        let calls = &self.calls;
        if !self.create && !self.create_new {
            return calls.find(path, true).map(Held::into_counted);
        }
        let mode = FileKind::Regular.mode_bits() | self.permissions;
        let make =
            |dir: &Held<'_>, name: &[u8]| calls.fs.mknod(&calls.cx, dir.ino(), name, mode, 0);
        calls.last_name(path)?.open(self.create_new, make)
    }
}
