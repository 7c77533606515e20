//! Opening a file that another process has named.
//!
//! **Problem.** The server of a mount names the file with the result of closing the volume, and the image; for `umount` by root
//! it may be any user's process. Opening a FIFO waits for a writer, and opening a device may act. **Rule.** The file is found
//! first, without being opened, and opened if it is a regular file or a block device, and the one that was expected.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, makedev, openat, statx};

use crate::mount::{FileId, proc_fd_path};

/// A file that was found at a path.
#[derive(Debug)]
pub struct NamedFile {
    file: OwnedFd,
    id: FileId,
    links: u32,
    kind: FileType,
}

impl NamedFile {
    /// Finds the file at a path.
    ///
    /// # Errors
    /// There is none, or it cannot be reached.
    pub fn find(path: &Path) -> io::Result<Self> {
        let file = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        // Its file system may be one that does not answer.
        let flags = AtFlags::EMPTY_PATH | steadfs_rt::STATX_DONT_SYNC;
        let wanted = StatxFlags::INO | StatxFlags::TYPE | StatxFlags::NLINK;
        let found = statx(&file, "", flags, wanted)?;
        Ok(Self {
            id: FileId {
                device: makedev(found.stx_dev_major, found.stx_dev_minor),
                inode: found.stx_ino,
            },
            links: found.stx_nlink,
            kind: FileType::from_raw_mode(found.stx_mode.into()),
            file,
        })
    }

    /// Which file it is.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Its link count.
    pub fn links(&self) -> u32 {
        self.links
    }

    /// Opens it for reading.
    ///
    /// # Errors
    /// `InvalidInput`: it is neither a regular file nor a block device. Those of open(2).
    pub fn open(&self) -> io::Result<File> {
        if !matches!(self.kind, FileType::RegularFile | FileType::BlockDevice) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let path = proc_fd_path(&self.file);
        Ok(openat(CWD, &path, flags, Mode::empty())?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_and_block_devices_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (file, fifo) = (dir.path().join("file"), dir.path().join("fifo"));
        std::fs::write(&file, "content").unwrap();
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
        let found = NamedFile::find(&file).unwrap();
        let content = io::read_to_string(found.open().unwrap()).unwrap();
        assert_eq!((&*content, found.links()), ("content", 1));
        for refused in [&fifo, Path::new("/dev/null"), dir.path()] {
            // A FIFO without a writer would be waited for.
            let error = NamedFile::find(refused).unwrap().open().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{refused:?}");
        }
    }
}
