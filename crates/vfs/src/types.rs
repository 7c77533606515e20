//! Arguments and results of the calls of [`FileSystem`](crate::FileSystem).

use std::ops::Range;
use std::sync::Arc;

use steadfs_base::limits::NAME_MAX;
use steadfs_base::{InodeNo, Timestamp};

use crate::{FsError, Result};

/// The type of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FileKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
}

impl FileKind {
    /// The type bits of `st_mode`.
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::Fifo => 0o010_000,
            Self::CharDevice => 0o020_000,
            Self::Directory => 0o040_000,
            Self::BlockDevice => 0o060_000,
            Self::Regular => 0o100_000,
            Self::Symlink => 0o120_000,
            Self::Socket => 0o140_000,
        }
    }

    /// The type in the type bits of `mode`; `None` for an undefined pattern.
    pub const fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & 0o170_000 {
            0o010_000 => Self::Fifo,
            0o020_000 => Self::CharDevice,
            0o040_000 => Self::Directory,
            0o060_000 => Self::BlockDevice,
            0o100_000 => Self::Regular,
            0o120_000 => Self::Symlink,
            0o140_000 => Self::Socket,
            _ => return None,
        })
    }

    /// The type byte in directory entries on disk, the same in all formats that have one (`FT_*` of Linux's
    /// linux/fs_types.h).
    pub const fn entry_type(self) -> u8 {
        match self {
            Self::Regular => 1,
            Self::Directory => 2,
            Self::CharDevice => 3,
            Self::BlockDevice => 4,
            Self::Fifo => 5,
            Self::Socket => 6,
            Self::Symlink => 7,
        }
    }

    /// The type of such a byte; `None` for "unknown" (0) and undefined values.
    pub const fn from_entry_type(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Regular,
            2 => Self::Directory,
            3 => Self::CharDevice,
            4 => Self::BlockDevice,
            5 => Self::Fifo,
            6 => Self::Socket,
            7 => Self::Symlink,
            _ => return None,
        })
    }
}

/// An inode's attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: InodeNo,
    /// Generation: differs between two uses of one inode number.
    pub generation: u32,
    /// Type.
    pub kind: FileKind,
    /// Permission bits with set-user-ID, set-group-ID and sticky (`st_mode & 07777`).
    pub perm: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, 0 otherwise.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Space used, in units of 512 bytes.
    pub blocks: u64,
    /// Preferred I/O size in bytes.
    pub block_size: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth, where the format keeps it.
    pub btime: Option<Timestamp>,
    /// Inode flags that statx reports.
    pub flags: InodeFlags,
}

/// A new time of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current time.
    Now,
    /// This time.
    At(Timestamp),
}

/// The changes of [`FileSystem::setattr`](crate::FileSystem::setattr); `None` changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits (07777).
    pub perm: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of content.
    pub mtime: Option<SetTime>,
    /// Last change of the inode (only the kernel's write-back cache sends it).
    pub ctime: Option<Timestamp>,
    /// Clear set-user-ID and set-group-ID, as chown and truncate by an unprivileged process do.
    pub kill_priv: bool,
}

impl SetAttr {
    /// Whether the change clears set-user-ID, set-group-ID and file capabilities of an inode of this kind.
    /// A directory keeps them (`security_inode_killpriv` is not called for one).
    pub const fn kills_privileges(&self, kind: FileKind) -> bool {
        let chown = self.uid.is_some() || self.gid.is_some();
        (self.kill_priv || chown) && !matches!(kind, FileKind::Directory)
    }

    /// Whether it changes more than the size.
    pub fn changes_fields(&self) -> bool {
        let other = Self {
            size: None,
            ..self.clone()
        };
        other != Self::default()
    }

    /// Whether an inode of this kind, with these flags, allows the change.
    ///
    /// # Errors
    /// The inode has no size that can be set, or is immutable or append-only.
    pub fn check(&self, kind: FileKind, flags: InodeFlags) -> Result<()> {
        if self.size.is_some() {
            match kind {
                FileKind::Regular => {}
                FileKind::Directory => return Err(FsError::IsDir),
                _ => {
                    return Err(FsError::Invalid(
                        "only the size of a regular file can be set",
                    ));
                }
            }
        }
        let immutable = flags.contains(InodeFlags::IMMUTABLE);
        let fixed = immutable || flags.contains(InodeFlags::APPEND);
        let at = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
        let touches = self.atime.is_some() || self.mtime.is_some();
        let changes = self.perm.is_some()
            || self.uid.is_some()
            || self.gid.is_some()
            || self.size.is_some()
            || at(self.atime)
            || at(self.mtime);
        if (fixed && changes) || (immutable && touches) {
            return Err(FsError::NotPermitted);
        }
        Ok(())
    }
}

/// A directory entry as `readdir` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The entry's inode number.
    pub ino: InodeNo,
    /// Its type, if the directory (or else the inode) has it.
    pub kind: Option<FileKind>,
    /// The name.
    pub name: &'a [u8],
    /// Cookie that continues after this entry.
    pub next: u64,
}

/// Flags of `rename` (renameat2(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// Fail if the new name exists.
    pub no_replace: bool,
    /// Swap both names, which must exist.
    pub exchange: bool,
    /// Leave a whiteout (character device 0:0) at the old name.
    pub whiteout: bool,
}

/// The mode of fallocate(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocMode {
    /// Allocate; the size grows to the range's end unless `keep_size`.
    Allocate {
        /// Leave the file's size.
        keep_size: bool,
    },
    /// Make a hole; the size stays.
    PunchHole,
    /// Make the range read as zero, allocated; the size grows unless `keep_size`.
    ZeroRange {
        /// Leave the file's size.
        keep_size: bool,
    },
    /// Remove the range and move the following data down.
    CollapseRange,
    /// Move the data from the offset on up and leave a hole.
    InsertRange,
}

/// What lseek(2) searches for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// SEEK_DATA.
    Data,
    /// SEEK_HOLE.
    Hole,
}

/// How setxattr treats an existing attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    /// Create or replace.
    Any,
    /// Fail if it exists.
    Create,
    /// Fail if it does not exist.
    Replace,
}

/// The cause of a stop by `FS_IOC_SHUTDOWN`.
pub const SHUT_DOWN: &str = "shut down on request";

/// What `FS_IOC_SHUTDOWN` writes before the volume stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownMode {
    /// Everything is synced.
    Sync,
    /// The journal is committed, data is not written.
    FlushLog,
    /// Nothing is written.
    NoFlush,
    /// f2fs: metadata is written, without a checkpoint.
    MetaFlush,
    /// f2fs: the volume is marked to be checked, and stays mounted.
    NeedCheck,
}

/// Usage of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes in a block: the unit of the next three.
    pub block_size: u32,
    /// Blocks of the volume (without overhead, as the file system's statfs shows).
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for unprivileged users.
    pub blocks_available: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
    /// Volume identity.
    pub fsid: u64,
}

/// Inode flags as FS_IOC_GETFLAGS has them (`FS_*_FL` bits).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeFlags(pub u32);

impl InodeFlags {
    /// FS_COMPR_FL.
    pub const COMPRESSED: Self = Self(0x4);
    /// FS_SYNC_FL: writes are synchronous.
    pub const SYNC: Self = Self(0x8);
    /// FS_IMMUTABLE_FL: no change at all.
    pub const IMMUTABLE: Self = Self(0x10);
    /// FS_APPEND_FL: only appending.
    pub const APPEND: Self = Self(0x20);
    /// FS_NODUMP_FL.
    pub const NODUMP: Self = Self(0x40);
    /// FS_NOATIME_FL.
    pub const NOATIME: Self = Self(0x80);
    /// FS_ENCRYPT_FL.
    pub const ENCRYPTED: Self = Self(0x800);
    /// It is not compressed, whatever else says so (`FS_NOCOMP_FL`).
    pub const NOT_COMPRESSED: Self = Self(0x400);
    /// FS_INDEX_FL: hashed directory.
    pub const INDEX: Self = Self(0x1000);
    /// FS_DIRSYNC_FL: directory changes are synchronous.
    pub const DIRSYNC: Self = Self(0x1_0000);
    /// FS_TOPDIR_FL: subdirectories are spread over the volume.
    pub const TOPDIR: Self = Self(0x2_0000);
    /// FS_EXTENT_FL: mapped by extents.
    pub const EXTENTS: Self = Self(0x8_0000);
    /// FS_VERITY_FL.
    pub const VERITY: Self = Self(0x10_0000);
    /// FS_NOCOW_FL: written in place (f2fs: pinned).
    pub const NOCOW: Self = Self(0x80_0000);
    /// FS_INLINE_DATA_FL: the content is in the inode.
    pub const INLINE_DATA: Self = Self(0x1000_0000);
    /// FS_PROJINHERIT_FL: new files inherit the project.
    pub const PROJINHERIT: Self = Self(0x2000_0000);
    /// FS_CASEFOLD_FL.
    pub const CASEFOLD: Self = Self(0x4000_0000);

    /// Whether every flag of `other` is set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets together.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Inode flags with the project id (FS_IOC_FSGETXATTR).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsxAttr {
    /// Inode flags.
    pub flags: InodeFlags,
    /// Project id.
    pub project: u32,
    /// Number of extents; 0 if counting them would be expensive.
    pub extents: u32,
}

/// A segment of a read's result: part of a shared buffer, or zeros.
#[derive(Clone)]
pub enum Segment {
    /// Bytes of a shared buffer.
    Bytes(Arc<dyn AsRef<[u8]> + Send + Sync>, Range<usize>),
    /// This many zero bytes (a hole).
    Zeros(usize),
}

/// The result of a read: segments in file order, without copies of cached blocks.
#[derive(Clone, Default)]
pub struct ReadData {
    segments: Vec<Segment>,
    len: usize,
}

impl ReadData {
    /// An empty result.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends `range` of a shared buffer.
    pub fn push(&mut self, owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) {
        assert!(
            range.end <= (*owner).as_ref().len(),
            "segment outside its buffer"
        );
        if !range.is_empty() {
            self.len += range.len();
            self.segments.push(Segment::Bytes(owner, range));
        }
    }

    /// Appends another result.
    pub fn append(&mut self, other: Self) {
        self.len += other.len;
        self.segments.extend(other.segments);
    }

    /// Appends `len` zero bytes.
    pub fn push_zeros(&mut self, len: usize) {
        if len > 0 {
            self.len += len;
            self.segments.push(Segment::Zeros(len));
        }
    }

    /// Bytes read.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was read.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The segments in file order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The bytes `range` of the result, without copying.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let mut out = Self::new();
        let mut at = 0;
        for segment in &self.segments {
            let len = match segment {
                Segment::Bytes(_, bytes) => bytes.len(),
                Segment::Zeros(len) => *len,
            };
            let from = range.start.clamp(at, at + len) - at;
            let to = range.end.clamp(at, at + len) - at;
            match segment {
                Segment::Bytes(owner, bytes) => {
                    out.push(
                        Arc::clone(owner),
                        bytes.start + from..bytes.start + to.max(from),
                    );
                }
                Segment::Zeros(_) => out.push_zeros(to.saturating_sub(from)),
            }
            at += len;
        }
        out
    }

    /// A copy of all bytes in one vector.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len);
        for segment in &self.segments {
            match segment {
                Segment::Bytes(owner, range) => {
                    out.extend_from_slice(&(**owner).as_ref()[range.clone()]);
                }
                Segment::Zeros(len) => out.resize(out.len() + len, 0),
            }
        }
        out
    }
}

/// Refuses names that no entry can have: longer than 255 bytes, empty, or with a slash or a zero byte.
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    if name.is_empty() {
        return Err(FsError::NotFound);
    }
    if name.iter().any(|&b| b == b'/' || b == 0) {
        return Err(FsError::Invalid("a name cannot contain '/' or a zero byte"));
    }
    Ok(())
}

/// The result of an ioctl.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoctlAnswer {
    /// The return value of the call: 0 or more.
    pub result: i32,
    /// The new bytes of the caller's argument.
    pub output: Vec<u8>,
    /// Whether the content and size of the file that were seen before are not those of the file any more.
    pub stale: bool,
}

impl IoctlAnswer {
    /// Returns 0 and these bytes.
    pub const fn bytes(output: Vec<u8>) -> Self {
        Self {
            result: 0,
            output,
            stale: false,
        }
    }

    /// Returns a number and no bytes.
    pub const fn result(result: i32) -> Self {
        let output = Vec::new();
        Self {
            result,
            output,
            stale: false,
        }
    }
}
