//! Which file a descriptor or a path leads to.
//!
//! A device file can be made again, as udev does, so a block device is known by its own number. The number of a file's
//! inode is used again once the file is gone, so a process that compares holds a descriptor of the file.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Stat, fstat, stat};

use super::transfer::TargetKind;

/// An image file or a block device of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileId {
    /// A block device by its number.
    BlockDevice(u64),
    /// A file by the numbers of its file system and of its inode.
    File(u64, u64),
}

impl FileId {
    /// The file of a descriptor.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        Ok(Self::from_stat(&fstat(file)?))
    }

    /// The file that a path leads to now.
    ///
    /// # Errors
    /// Those of stat(2).
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self::from_stat(&stat(path)?))
    }

    fn from_stat(file: &Stat) -> Self {
        match TargetKind::of(file) {
            Some(TargetKind::BlockDevice) => Self::BlockDevice(file.st_rdev),
            Some(TargetKind::Image) | None => Self::File(file.st_dev, file.st_ino),
        }
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BlockDevice(number) => write!(text, "device:{number}"),
            Self::File(device, inode) => write!(text, "file:{device}:{inode}"),
        }
    }
}
