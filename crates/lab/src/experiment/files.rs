//! The calls that experiments make: of the file-system code in a simulation, or of the kernel on a real mount.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_vfs::{Cx, FileSystem, FsError, SetAttr, SetTime};

/// A volume as the processes of an experiment see it.
pub trait Files: Send + Sync {
    /// The root directory.
    fn root(&self) -> InodeNo;

    /// Looks up a name.
    ///
    /// # Errors
    /// The file system's, here and below.
    fn lookup(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<InodeNo, FsError>;

    /// Creates a file.
    ///
    /// # Errors
    /// As above.
    fn make(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<InodeNo, FsError>;

    /// Creates a directory.
    ///
    /// # Errors
    /// As above.
    fn mkdir(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<InodeNo, FsError>;

    /// Removes a file's name.
    ///
    /// # Errors
    /// As above.
    fn unlink(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<(), FsError>;

    /// Sets a file's times to now.
    ///
    /// # Errors
    /// As above.
    fn touch(&self, cx: &Cx, file: InodeNo) -> Result<(), FsError>;

    /// Writes; returns the number of bytes written.
    ///
    /// # Errors
    /// As above.
    fn write(&self, cx: &Cx, file: InodeNo, at: u64, data: &[u8]) -> Result<usize, FsError>;

    /// fsync(2), also of a directory.
    ///
    /// # Errors
    /// As above.
    fn fsync(&self, cx: &Cx, ino: InodeNo) -> Result<(), FsError>;

    /// sync(2).
    ///
    /// # Errors
    /// As above.
    fn sync_all(&self, cx: &Cx) -> Result<(), FsError>;

    /// Drops the lookup count of an inode.
    fn forget(&self, ino: InodeNo);

    /// Number of free blocks.
    ///
    /// # Errors
    /// As above.
    fn blocks_free(&self) -> Result<u64, FsError>;

    /// Reads a control file.
    ///
    /// # Errors
    /// The file does not exist.
    fn control(&self, path: &str) -> Result<Vec<u8>, FsError>;

    /// Writes a control file.
    ///
    /// # Errors
    /// The file does not exist, or refuses the value.
    fn set_control(&self, path: &str, value: &[u8]) -> Result<(), FsError>;
}

/// Calls the file-system code directly.
pub(super) struct Direct(pub(super) Arc<dyn FileSystem>);

impl Files for Direct {
    fn root(&self) -> InodeNo {
        self.0.root()
    }

    fn lookup(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<InodeNo, FsError> {
        Ok(self.0.lookup(cx, dir, name)?.ino)
    }

    fn make(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<InodeNo, FsError> {
        Ok(self.0.mknod(cx, dir, name, 0o100_644, 0)?.ino)
    }

    fn mkdir(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<InodeNo, FsError> {
        Ok(self.0.mkdir(cx, dir, name, 0o755)?.ino)
    }

    fn unlink(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<(), FsError> {
        self.0.unlink(cx, dir, name)
    }

    fn touch(&self, cx: &Cx, file: InodeNo) -> Result<(), FsError> {
        let set = SetAttr {
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::Now),
            ..SetAttr::default()
        };
        self.0.setattr(cx, file, &set).map(drop)
    }

    fn write(&self, cx: &Cx, file: InodeNo, at: u64, data: &[u8]) -> Result<usize, FsError> {
        self.0.write(cx, file, at, data, false)
    }

    fn fsync(&self, cx: &Cx, ino: InodeNo) -> Result<(), FsError> {
        self.0.fsync(cx, ino, false)
    }

    fn sync_all(&self, cx: &Cx) -> Result<(), FsError> {
        self.0.sync_all(cx)
    }

    fn forget(&self, ino: InodeNo) {
        self.0.forget(ino, 1);
    }

    fn blocks_free(&self) -> Result<u64, FsError> {
        Ok(self.0.statfs(&Cx::default())?.blocks_free)
    }

    fn control(&self, path: &str) -> Result<Vec<u8>, FsError> {
        let control = self.0.control().ok_or(FsError::NotFound)?;
        control.read(path)
    }

    fn set_control(&self, path: &str, value: &[u8]) -> Result<(), FsError> {
        let control = self.0.control().ok_or(FsError::NotFound)?;
        control.write(path, value)
    }
}
