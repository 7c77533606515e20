//! Attributes of a file.
#![expect(
    clippy::disallowed_types,
    reason = "the type that programs have for times; none of them is asked of the host"
)]

use std::time::{Duration, SystemTime};

use steadfs_base::{InodeNo, Timestamp};
use steadfs_vfs::{Attr, FileKind, InodeFlags};

/// The attributes of a file, as [`std::fs::Metadata`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata(Attr);

impl Metadata {
    pub(super) const fn of(attr: Attr) -> Self {
        Self(attr)
    }

    /// All attributes, with times in nanoseconds.
    pub const fn attr(&self) -> &Attr {
        &self.0
    }

    /// The type.
    pub const fn file_type(&self) -> FileKind {
        self.0.kind
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.0.kind == FileKind::Directory
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.0.kind == FileKind::Regular
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.0.kind == FileKind::Symlink
    }

    /// Size in bytes.
    #[expect(clippy::len_without_is_empty, reason = "as in std::fs::Metadata")]
    pub const fn len(&self) -> u64 {
        self.0.size
    }

    /// Space used, in bytes.
    pub const fn allocated(&self) -> u64 {
        self.0.blocks * 512
    }

    /// Type and permissions, as `st_mode`.
    pub const fn mode(&self) -> u32 {
        self.0.kind.mode_bits() | self.0.perm
    }

    /// Permission bits with set-user-ID, set-group-ID and sticky (at most 07777).
    pub const fn permissions(&self) -> u32 {
        self.0.perm
    }

    /// The user that owns it.
    pub const fn uid(&self) -> u32 {
        self.0.uid
    }

    /// The group that owns it.
    pub const fn gid(&self) -> u32 {
        self.0.gid
    }

    /// Number of names.
    pub const fn nlink(&self) -> u32 {
        self.0.nlink
    }

    /// Inode number.
    pub const fn ino(&self) -> InodeNo {
        self.0.ino
    }

    /// Device number of a device node, 0 otherwise.
    pub const fn rdev(&self) -> u32 {
        self.0.rdev
    }

    /// Flags, as lsattr(1) shows them.
    pub const fn flags(&self) -> InodeFlags {
        self.0.flags
    }

    /// Time of the last access.
    pub fn accessed(&self) -> SystemTime {
        time(self.0.atime)
    }

    /// Time of the last change of the content.
    pub fn modified(&self) -> SystemTime {
        time(self.0.mtime)
    }

    /// Time of the last change of the inode.
    pub fn changed(&self) -> SystemTime {
        time(self.0.ctime)
    }

    /// Time of birth, where the format keeps it.
    pub fn created(&self) -> Option<SystemTime> {
        self.0.btime.map(time)
    }
}

fn time(time: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(time.secs.unsigned_abs());
    let second = match time.secs < 0 {
        true => SystemTime::UNIX_EPOCH - whole,
        false => SystemTime::UNIX_EPOCH + whole,
    };
    second + Duration::from_nanos(time.nanos.into())
}
