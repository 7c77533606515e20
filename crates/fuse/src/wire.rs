//! The kernel's FUSE interface, version 7.45, as bytes: structures, operation numbers and flags.
//!
//! Source of every number: the public header `linux/fuse.h` (uapi). All fields are in the host's byte order. A
//! structure has the name of its counterpart without `fuse_`; those that the kernel sends end in `In`, those of replies
//! in `Out`.

use std::mem::{offset_of, size_of};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the interface; others are refused.
pub const MAJOR: u32 = 7;
/// Newest minor version whose requests are understood.
pub const MINOR: u32 = 45;
/// Oldest minor version that is served: Linux 5.14, the first in which the kernel itself checks permission to change
/// inode flags.
pub const MINOR_MIN: u32 = 34;
/// Node id of the root directory.
pub const ROOT_ID: u64 = 1;
/// Smallest buffer the kernel accepts for a read of the device.
pub const MIN_READ_BUFFER: usize = 8192;

macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident = $size:literal { $($(#[$fdoc:meta])* $field:ident: $ty:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            #[allow(missing_docs, reason = "the fields are those of linux/fuse.h")]
            pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }
            const _: () = assert!(size_of::<$name>() == $size);
        )*
    };
}

wire! {
    /// Header of each request.
    InHeader = 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        /// Length of the extensions at the end, in units of 8 bytes.
        total_extlen: u16,
        padding: u16,
    }
    /// Header of each reply.
    OutHeader = 16 {
        len: u32,
        /// 0 or a negated error number.
        error: i32,
        unique: u64,
    }
    /// Attributes of an inode.
    WireAttr = 88 {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64,
        atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    /// A time in [`Statx`].
    SxTime = 16 { tv_sec: i64, tv_nsec: u32, reserved: i32 }
    /// statx(2)'s result.
    Statx = 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16,
        spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    /// A directory entry: node, timeouts, attributes.
    EntryOut = 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nsec: u32, attr_valid_nsec: u32, attr: WireAttr,
    }
    /// Notification: invalidates an inode's attributes, and its pages from `off` on (none if `off` is negative).
    InvalInodeOut = 24 { ino: u64, off: i64, len: i64 }
    /// GETATTR.
    GetattrIn = 16 { getattr_flags: u32, dummy: u32, fh: u64 }
    /// GETATTR, SETATTR.
    AttrOut = 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: WireAttr }
    /// STATX.
    StatxIn = 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    /// STATX.
    StatxOut = 288 { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx }
    /// FORGET.
    ForgetIn = 8 { nlookup: u64 }
    /// One of BATCH_FORGET.
    ForgetOne = 16 { nodeid: u64, nlookup: u64 }
    /// BATCH_FORGET.
    BatchForgetIn = 8 { count: u32, dummy: u32 }
    /// MKNOD.
    MknodIn = 16 { mode: u32, rdev: u32, umask: u32, padding: u32 }
    /// MKDIR.
    MkdirIn = 8 { mode: u32, umask: u32 }
    /// RENAME.
    RenameIn = 8 { newdir: u64 }
    /// RENAME2.
    Rename2In = 16 { newdir: u64, flags: u32, padding: u32 }
    /// LINK.
    LinkIn = 8 { oldnodeid: u64 }
    /// SETATTR.
    SetattrIn = 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64,
        atime: i64, mtime: i64, ctime: i64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    /// OPEN, OPENDIR.
    OpenIn = 8 { flags: u32, open_flags: u32 }
    /// CREATE, TMPFILE.
    CreateIn = 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    /// CREATE, TMPFILE (after the entry).
    OpenOut = 16 { fh: u64, open_flags: u32, backing_id: i32 }
    /// RELEASE, RELEASEDIR.
    ReleaseIn = 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    /// FLUSH.
    FlushIn = 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    /// READ, READDIR, READDIRPLUS.
    ReadIn = 40 {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    /// WRITE.
    WriteIn = 40 {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    /// WRITE, COPY_FILE_RANGE.
    WriteOut = 8 { size: u32, padding: u32 }
    /// STATFS.
    StatfsOut = 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64,
        bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }
    /// FSYNC, FSYNCDIR.
    FsyncIn = 16 { fh: u64, fsync_flags: u32, padding: u32 }
    /// SETXATTR (in the long form that `SETXATTR_EXT` chooses).
    SetxattrIn = 16 { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    /// GETXATTR, LISTXATTR.
    GetxattrIn = 8 { size: u32, padding: u32 }
    /// GETXATTR and LISTXATTR if the request is for the size.
    GetxattrOut = 8 { size: u32, padding: u32 }
    /// ACCESS.
    AccessIn = 8 { mask: u32, padding: u32 }
    /// INIT; kernels before 7.36 send only the first four fields.
    InitIn = 64 { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11] }
    /// INIT.
    InitOut = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32,
        max_background: u16, congestion_threshold: u16, max_write: u32, time_gran: u32,
        max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused0: u16, unused: [u32; 5],
    }
    /// INTERRUPT.
    InterruptIn = 8 { unique: u64 }
    /// IOCTL.
    IoctlIn = 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    /// IOCTL.
    IoctlOut = 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    /// FALLOCATE.
    FallocateIn = 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    /// LSEEK.
    LseekIn = 24 { fh: u64, offset: u64, whence: u32, padding: u32 }
    /// LSEEK.
    LseekOut = 8 { offset: u64 }
    /// COPY_FILE_RANGE, COPY_FILE_RANGE_64.
    CopyFileRangeIn = 56 {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    /// COPY_FILE_RANGE_64.
    CopyFileRangeOut = 8 { bytes_copied: u64 }
    /// Header of an entry of READDIR; the name follows, padded to 8 bytes.
    Dirent = 24 { ino: u64, off: u64, namelen: u32, kind: u32 }
    /// Header of an extension at the end of a request.
    ExtHeader = 8 {
        /// Size, this header included.
        size: u32,
        kind: u32,
    }
    /// Commit id and payload size of a ring entry's request or reply.
    UringEntInOut = 32 { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64 }
    /// A command to the ring, in the command area of a long submission entry.
    UringCmdReq = 24 { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6] }
    /// FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR (`struct fsxattr` of linux/fs.h).
    Fsxattr = 28 { xflags: u32, extsize: u32, nextents: u32, projid: u32, cowextsize: u32, pad: [u8; 8] }
    /// FS_IOC_ENABLE_VERITY (`struct fsverity_enable_arg` of linux/fsverity.h); salt and signature follow it.
    FsverityEnableArg = 128 { version: u32, hash_algorithm: u32, block_size: u32, salt_size: u32, salt_ptr: u64, sig_size: u32, reserved1: u32, sig_ptr: u64, reserved2: [u64; 11] }
    /// FITRIM (`struct fstrim_range` of linux/fs.h).
    FstrimRange = 24 { start: u64, len: u64, minlen: u64 }
}

/// Header buffer of a ring entry: header of the request or reply, the operation's structure, and the entry's own
/// fields.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UringReqHeader {
    /// [`InHeader`] of the request, [`OutHeader`] of the reply.
    pub in_out: [u8; 128],
    /// The operation's structure.
    pub op_in: [u8; 128],
    /// Commit id and payload size.
    pub ent: UringEntInOut,
}
const _: () = assert!(size_of::<UringReqHeader>() == 288);
const _: () = assert!(offset_of!(UringReqHeader, op_in) == 128);
const _: () = assert!(offset_of!(UringReqHeader, ent) == 256);
const _: () = assert!(offset_of!(WriteIn, size) == 16);
const _: () = assert!(offset_of!(SetattrIn, mode) == 68);
const _: () = assert!(offset_of!(Statx, atime) == 64);
const _: () = assert!(offset_of!(InitOut, flags2) == 32);

/// Size of a directory entry's header and name together, padded to 8 bytes.
pub const fn padded(len: usize) -> usize {
    (len + 7) & !7
}

macro_rules! opcodes {
    ($($name:ident = $value:literal / $op_size:expr),* $(,)?) => {
        /// Operation numbers.
        #[allow(missing_docs, reason = "the names are those of linux/fuse.h")]
        pub mod opcode {
            $(pub const $name: u32 = $value;)*
        }
        /// Size of the structure that follows an operation's header; `None` for unknown operations.
        pub const fn op_size(op: u32) -> Option<usize> {
            match op {
                $(opcode::$name => Some($op_size),)*
                _ => None,
            }
        }
        /// Name of an operation.
        pub const fn op_name(op: u32) -> &'static str {
            match op {
                $(opcode::$name => stringify!($name),)*
                _ => "other",
            }
        }
    };
}

opcodes! {
    LOOKUP = 1 / 0,
    FORGET = 2 / size_of::<ForgetIn>(),
    GETATTR = 3 / size_of::<GetattrIn>(),
    SETATTR = 4 / size_of::<SetattrIn>(),
    READLINK = 5 / 0,
    SYMLINK = 6 / 0,
    MKNOD = 8 / size_of::<MknodIn>(),
    MKDIR = 9 / size_of::<MkdirIn>(),
    UNLINK = 10 / 0,
    RMDIR = 11 / 0,
    RENAME = 12 / size_of::<RenameIn>(),
    LINK = 13 / size_of::<LinkIn>(),
    OPEN = 14 / size_of::<OpenIn>(),
    READ = 15 / size_of::<ReadIn>(),
    WRITE = 16 / size_of::<WriteIn>(),
    STATFS = 17 / 0,
    RELEASE = 18 / size_of::<ReleaseIn>(),
    FSYNC = 20 / size_of::<FsyncIn>(),
    SETXATTR = 21 / size_of::<SetxattrIn>(),
    GETXATTR = 22 / size_of::<GetxattrIn>(),
    LISTXATTR = 23 / size_of::<GetxattrIn>(),
    REMOVEXATTR = 24 / 0,
    FLUSH = 25 / size_of::<FlushIn>(),
    INIT = 26 / size_of::<InitIn>(),
    OPENDIR = 27 / size_of::<OpenIn>(),
    READDIR = 28 / size_of::<ReadIn>(),
    RELEASEDIR = 29 / size_of::<ReleaseIn>(),
    FSYNCDIR = 30 / size_of::<FsyncIn>(),
    GETLK = 31 / 48,
    SETLK = 32 / 48,
    SETLKW = 33 / 48,
    ACCESS = 34 / size_of::<AccessIn>(),
    CREATE = 35 / size_of::<CreateIn>(),
    INTERRUPT = 36 / size_of::<InterruptIn>(),
    BMAP = 37 / 16,
    DESTROY = 38 / 0,
    IOCTL = 39 / size_of::<IoctlIn>(),
    POLL = 40 / 24,
    NOTIFY_REPLY = 41 / 40,
    BATCH_FORGET = 42 / size_of::<BatchForgetIn>(),
    FALLOCATE = 43 / size_of::<FallocateIn>(),
    READDIRPLUS = 44 / size_of::<ReadIn>(),
    RENAME2 = 45 / size_of::<Rename2In>(),
    LSEEK = 46 / size_of::<LseekIn>(),
    COPY_FILE_RANGE = 47 / size_of::<CopyFileRangeIn>(),
    SYNCFS = 50 / 8,
    TMPFILE = 51 / size_of::<CreateIn>(),
    STATX = 52 / size_of::<StatxIn>(),
    COPY_FILE_RANGE_64 = 53 / size_of::<CopyFileRangeIn>(),
}

/// Whether an operation writes and waits until what it wrote is durable.
pub const fn waits_long(op: u32) -> bool {
    matches!(op, opcode::FSYNC | opcode::FSYNCDIR | opcode::SYNCFS)
}

/// Whether an operation only drops lookup counts; it has no reply.
pub const fn is_forget(op: u32) -> bool {
    matches!(op, opcode::FORGET | opcode::BATCH_FORGET)
}

/// One more than the largest operation number that is served.
pub const OPCODES: usize = 54;

/// Features that INIT negotiates.
#[allow(missing_docs, reason = "the names are those of linux/fuse.h")]
pub mod init {
    pub const ASYNC_READ: u64 = 1;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const IOCTL_DIR: u64 = 1 << 11;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub const HAS_RESEND: u64 = 1 << 39;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Which fields of [`SetattrIn`] are valid.
#[allow(missing_docs, reason = "the names are those of linux/fuse.h")]
pub mod fattr {
    pub const MODE: u32 = 1;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
    /// All of them: what a request may change.
    pub const CHANGES: u32 =
        MODE | UID | GID | SIZE | ATIME | MTIME | ATIME_NOW | MTIME_NOW | CTIME | KILL_SUIDGID;
}

/// Kind of notification: [`InvalInodeOut`].
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// Notification without a body: all requests that were read and have no reply are sent again.
pub const NOTIFY_RESEND: i32 = 7;
/// Flag of [`WriteIn`]: write-back of the page cache; the request has no owner.
pub const WRITE_CACHE: u32 = 1;
/// Flag of [`ReadIn`] and [`WriteIn`]: does not use the page cache. (Its name in the kernel is FUSE_READ_LOCKOWNER or
/// FUSE_WRITE_LOCKOWNER: the request has a lock owner, which the kernel sets for direct I/O only.)
pub const BYPASS_CACHE: u32 = 1 << 1;
/// Flag of [`WriteIn`]: clear set-user-ID and set-group-ID.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// Flag of [`FsyncIn`].
pub const FSYNC_FDATASYNC: u32 = 1;
/// Flag of [`SetxattrIn`]: clear set-group-ID with the new access ACL.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// Flag of [`OpenIn`] and [`CreateIn`]: clear set-user-ID and set-group-ID.
pub const OPEN_KILL_SUIDGID: u32 = 1;
/// Flag of [`OpenOut`]: the page cache stays valid.
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// Flag of [`OpenOut`]: closing a descriptor sends no FLUSH.
pub const FOPEN_NOFLUSH: u32 = 1 << 5;
/// Flag of [`OpenOut`]: the kernel may cache the directory's listing, as it does where OPENDIR is not supported.
pub const FOPEN_CACHE_DIR: u32 = 1 << 3;
/// Kind of the extension with the supplementary groups.
pub const EXT_GROUPS: u32 = 32;
/// Ring command: register an entry and fetch its first request.
pub const URING_CMD_REGISTER: u32 = 1;
/// Ring command: reply, and fetch the next request.
pub const URING_CMD_COMMIT_AND_FETCH: u32 = 2;
