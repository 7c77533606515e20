//! The [`FileSystem`] trait, its types, the errno table, the mount options' tables, and the control files' interface.
//!
//! This crate knows no on-disk format and no FUSE, and does no I/O.

#![forbid(unsafe_code)]

pub mod acl;
mod caller;
mod clock;
mod control;
mod control_overlay;
mod error;
mod findings;
mod inode_marks;
mod make;
mod metrics;
mod misplaced;
pub mod names;
mod new_inode;
pub mod nokey;
pub mod options;
mod pending_frees;
mod recorded;
mod remount_state;
pub mod restore;
mod stop_state;
#[cfg(feature = "test-support")]
#[doc(hidden)]
pub mod test_support;
mod tune;
mod types;
pub mod verity;
mod xattr_change;

pub use caller::{CallerState, Cx, OpenFile};
pub use clock::{Clock, relatime_needs_update};
pub use control::{Control, ControlEntry, ControlLayer, PreparedOptions, Setter};
pub use control_overlay::{
    CONTROL_DIR, METRICS_FILE, SYNC_FILE, WithControl, is_control_inode, reported_ino,
};
pub use error::{FsError, Result};
pub use findings::Findings;
pub use inode_marks::InodeMarks;
pub use make::{Given, GivenPart, NewFile, NotGiven, give_attributes, make_file, write_all};
pub use metrics::{Label, MetricKind, MetricValue, Metrics, TimeHistogram};
pub use misplaced::OrderlyDirs;
pub use new_inode::NewInode;
pub use pending_frees::{FreeGuard, PendingFrees};
pub use recorded::{RecordedChange, RecordedFile, RecordedInode, RecordedName, RecordedState};
pub use remount_state::{AloneGuard, OpenGuard, RemountState};
pub use stop_state::StopState;
pub use types::{
    Attr, DirEntry, FallocMode, FileKind, FsxAttr, InodeFlags, IoctlAnswer, ReadData, RenameFlags,
    SHUT_DOWN, Seek, Segment, SetAttr, SetTime, SetXattr, ShutdownMode, StatFs, check_name,
};
pub use xattr_change::XattrChange;

use steadfs_base::InodeNo;

/// Inodes in use and their lookup counts ([`FileSystem`]), in no order.
pub type LookupCounts = Vec<(InodeNo, u64)>;

/// A mounted volume. Every call blocks until it is done and may be made from any task; the file system orders calls on
/// one file itself.
///
/// **Lookup counts.** Each call that returns the [`Attr`] of a directory entry (`lookup`, `attach`, `mknod`, `mkdir`,
/// `symlink`, `link`, `tmpfile`) adds one to the inode's lookup count; [`FileSystem::forget`] subtracts from it. An unlinked inode lives until its count is zero. Calls
/// that take an inode number are only made while its count is positive (the root's always is).
///
/// **Permissions** are checked by the caller (the kernel with `default_permissions`, or the library's user). The file
/// system enforces what only it knows: immutable and append-only inodes, read-only volumes, space, limits.
pub trait FileSystem: Send + Sync {
    /// The root directory's inode number.
    fn root(&self) -> InodeNo;

    /// Finds `name` in `dir`.
    fn lookup(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<Attr>;
    /// Announces that these entries of a directory will be looked up next, and that files will be read, directories listed.
    fn expect(&self, _cx: &Cx, _dir: InodeNo, _names: &[&[u8]]) {}
    /// Takes one lookup count on an inode found by number (as `readdir` reports it).
    fn attach(&self, cx: &Cx, ino: InodeNo) -> Result<Attr>;
    /// Drops `count` lookup counts. The last one of an unlinked inode frees it. An error of that is recorded by the
    /// volume, not returned here; orphan processing of the next mount frees the inode.
    fn forget(&self, ino: InodeNo, count: u64);

    /// The inode's attributes.
    fn getattr(&self, cx: &Cx, ino: InodeNo) -> Result<Attr>;
    /// Changes the attributes that `set` has; returns all of them afterwards.
    fn setattr(&self, cx: &Cx, ino: InodeNo, set: &SetAttr) -> Result<Attr>;
    /// A symbolic link's target.
    fn readlink(&self, cx: &Cx, ino: InodeNo) -> Result<Vec<u8>>;

    /// Makes a file that is not a directory or link. `mode` has the type and permission bits (the caller's umask in `cx`
    /// is applied here, after default ACLs), `rdev` the device number of a device node (32 bits, Linux's `makedev`).
    fn mknod(&self, cx: &Cx, dir: InodeNo, name: &[u8], mode: u32, rdev: u32) -> Result<Attr>;
    /// Makes a directory.
    fn mkdir(&self, cx: &Cx, dir: InodeNo, name: &[u8], mode: u32) -> Result<Attr>;
    /// Makes a symbolic link to `target`.
    fn symlink(&self, cx: &Cx, dir: InodeNo, name: &[u8], target: &[u8]) -> Result<Attr>;
    /// Makes a hard link to `ino`.
    fn link(&self, cx: &Cx, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Result<Attr>;
    /// Makes a file with all that it has, as [`make_file`], and forgets it. `None`: it is made later, but before any call
    /// that follows has its effect, and [`FileSystem::made`] returns the result.
    fn make(
        &self,
        cx: &Cx,
        dir: InodeNo,
        name: &[u8],
        new: &NewFile<'_>,
    ) -> Option<Result<Vec<NotGiven>>> {
        Some(make_file(self, cx, dir, name, new))
    }
    /// Sets attributes, as [`give_attributes`]. `None` as from [`FileSystem::make`].
    fn give(&self, cx: &Cx, ino: InodeNo, given: &Given) -> Option<Result<Vec<NotGiven>>> {
        Some(Ok(give_attributes(self, cx, ino, given)))
    }
    /// The results of calls of `make` and `give` that returned `None`, in the order of the calls, each once: those that
    /// are known, or if `all` is set of all such calls.
    fn made(&self, _all: bool) -> Vec<Result<Vec<NotGiven>>> {
        Vec::new()
    }
    /// Makes a regular file without a name (O_TMPFILE) near `dir`.
    fn tmpfile(&self, cx: &Cx, dir: InodeNo, mode: u32) -> Result<Attr>;
    /// Removes the name of a file that is not a directory.
    fn unlink(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<()>;
    /// Moves a name.
    fn rename(
        &self,
        cx: &Cx,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        flags: RenameFlags,
    ) -> Result<()>;

    /// Whether directories may be case-insensitive: a name that is made, moved or removed there may be that of an entry
    /// with another spelling. Constant while the volume is mounted.
    fn folds_names(&self) -> bool {
        false
    }
    /// Whether there may be encrypted files: their names, the targets of links, and whether a file can be opened depend on
    /// the keys that are there. Constant while the volume is mounted.
    fn has_encryption(&self) -> bool {
        false
    }
    /// Whether [`FileSystem::open`] must be called: the volume may have regular files that cannot be opened although
    /// their permission bits allow it. Constant while the volume is mounted.
    fn checks_opens(&self) -> bool {
        false
    }
    /// Checks whether a regular file can be opened (`write`: for writing).
    fn open(&self, _cx: &Cx, _ino: InodeNo, _write: bool) -> Result<()> {
        Ok(())
    }
    /// Whether what files contain may depend on which processes have them open: then [`Cx::opened`] is set in ioctls, and
    /// [`FileSystem::drop_abandoned`] and [`FileSystem::closed`] are called. Constant while the volume is mounted.
    fn tracks_files(&self) -> bool {
        false
    }
    /// Drops what a process that has ended left unfinished in a file: before the file is opened, and when a descriptor
    /// that it was written by is closed. Returns whether the content and size that were seen before are not those of the
    /// file any more.
    fn drop_abandoned(&self, _cx: &Cx, _ino: InodeNo) -> bool {
        false
    }
    /// The last descriptor of the open file [`Cx::opened`] was closed. Returns the same.
    fn closed(&self, _cx: &Cx, _ino: InodeNo) -> bool {
        false
    }
    /// The digest of a verity file (FS_IOC_MEASURE_VERITY); [`FsError::NoData`] for any other file.
    fn verity_digest(&self, _cx: &Cx, _ino: InodeNo) -> Result<verity::FileDigest> {
        Err(FsError::NotSupported("verity on this volume"))
    }
    /// Makes a file a verity file (FS_IOC_ENABLE_VERITY) and that durable: its content never changes again, and is verified
    /// whenever it is read. Until the call returns the file cannot be changed. May take long; a caller that is being killed
    /// ends it.
    ///
    /// # Errors
    /// The file is as before: neither its content nor its space has changed. `Exists`: it is a verity file. `Busy`: it becomes
    /// one.
    fn enable_verity(
        &self,
        _cx: &Cx,
        _ino: InodeNo,
        _options: &verity::VerityOptions,
    ) -> Result<()> {
        Err(FsError::NotSupported("verity on this volume"))
    }
    /// Reads up to `len` bytes from `offset`; shorter only at the end of the file.
    fn read(&self, cx: &Cx, ino: InodeNo, offset: u64, len: usize) -> Result<ReadData>;
    /// Writes all of `data` at `offset`. `kill_priv`: clear set-user-ID, set-group-ID and file
    /// capabilities as a write by an unprivileged process does.
    fn write(
        &self,
        cx: &Cx,
        ino: InodeNo,
        offset: u64,
        data: &[u8],
        kill_priv: bool,
    ) -> Result<usize>;
    /// Makes the file or directory durable (`datasync`: its data and the metadata needed to read it).
    fn fsync(&self, cx: &Cx, ino: InodeNo, datasync: bool) -> Result<()>;
    /// Allocates, punches or zeroes a byte range.
    fn fallocate(
        &self,
        cx: &Cx,
        ino: InodeNo,
        mode: FallocMode,
        offset: u64,
        len: u64,
    ) -> Result<()>;
    /// The next data or hole at or after `offset`.
    fn seek(&self, cx: &Cx, ino: InodeNo, offset: u64, what: Seek) -> Result<u64>;
    /// Copies between two regular files; returns the bytes copied (short only at the source's end).
    fn copy_range(
        &self,
        cx: &Cx,
        from: (InodeNo, u64),
        to: (InodeNo, u64),
        len: u64,
    ) -> Result<u64>;

    /// Reports the entries of `dir` after `cookie` (0: from the start), `.` and `..` included, until
    /// `emit` returns false. Cookies stay valid while the directory is changed.
    fn readdir(
        &self,
        cx: &Cx,
        dir: InodeNo,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()>;

    /// The value of extended attribute `name` (full name, `user.` and the like included).
    fn getxattr(&self, cx: &Cx, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>>;
    /// Full names of all extended attributes.
    fn listxattr(&self, cx: &Cx, ino: InodeNo) -> Result<Vec<Vec<u8>>>;
    /// Sets an extended attribute.
    fn setxattr(
        &self,
        cx: &Cx,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<()>;
    /// Removes an extended attribute.
    fn removexattr(&self, cx: &Cx, ino: InodeNo, name: &[u8]) -> Result<()>;

    /// Usage of the volume.
    fn statfs(&self, cx: &Cx) -> Result<StatFs>;
    /// The same as statfs(2) on this inode shows it: of a directory that passes its project on, at most what the project
    /// may use, while limits of projects are enforced.
    fn statfs_at(&self, cx: &Cx, _ino: InodeNo) -> Result<StatFs> {
        self.statfs(cx)
    }
    /// Inode flags and project (FS_IOC_GETFLAGS, FS_IOC_FSGETXATTR).
    fn flags(&self, cx: &Cx, ino: InodeNo) -> Result<FsxAttr>;
    /// Changes inode flags; only the flags that users may change.
    fn set_flags(&self, cx: &Cx, ino: InodeNo, flags: InodeFlags) -> Result<()>;
    /// Changes the project id (only where the volume has projects).
    fn set_project(&self, cx: &Cx, ino: InodeNo, project: u32) -> Result<()>;
    /// The inode's generation (FS_IOC_GETVERSION).
    fn generation(&self, cx: &Cx, ino: InodeNo) -> Result<u32>;
    /// Discards free space in the byte range, extents of at least `min_len` bytes; returns the
    /// bytes discarded.
    fn trim(&self, cx: &Cx, start: u64, len: u64, min_len: u64) -> Result<u64>;

    /// An ioctl of this file system only, by its number, with the bytes that the kernel copied in. `None`: there is no
    /// such ioctl.
    fn ioctl(
        &self,
        _cx: &Cx,
        _ino: InodeNo,
        _command: u32,
        _input: &[u8],
    ) -> Result<Option<IoctlAnswer>> {
        Ok(None)
    }
    /// Whether [`FileSystem::ioctl`] may change files by this number, in a way that no record of calls describes.
    fn ioctl_changes_files(&self, _command: u32) -> bool {
        false
    }

    /// Makes everything durable.
    fn sync_all(&self, cx: &Cx) -> Result<()>;
    /// A call has panicked, so the volume's state in memory is unknown: it aborts, and nothing is changed or written any
    /// more. (A volume in memory has nothing to protect.)
    fn panicked(&self) {}
    /// Stops the volume as a power cut would, after the writes that `mode` requests.
    fn shutdown(&self, cx: &Cx, mode: ShutdownMode) -> Result<()>;
    /// The effective options, as /proc/mounts shows them.
    fn options(&self) -> String;
    /// Applies mount options to the running volume: all of them or none.
    fn remount(&self, cx: &Cx, options: &str) -> Result<()>;
    /// Control files, shown below `.steadfs`.
    fn control(&self) -> Option<&dyn Control>;
    /// The content of the control file at `path`, also of a volume that another process serves.
    ///
    /// # Errors
    /// `NotFound`: there is no such file.
    fn read_control(&self, path: &str) -> Result<Vec<u8>> {
        self.control().ok_or(FsError::NotFound)?.read(path)
    }

    /// Writes the control file at `path`, as [`FileSystem::read_control`] reads it.
    ///
    /// # Errors
    /// `NotFound`, `BadOption`: nothing has changed.
    fn write_control(&self, path: &str, value: &[u8]) -> Result<()> {
        self.control().ok_or(FsError::NotFound)?.write(path, value)
    }

    /// Sets control files that are settings, given as lines `NAME=VALUE`: all of them or none. Returns all settings
    /// afterwards, in such lines.
    ///
    /// # Errors
    /// [`FsError::BadOption`] names the first line that is wrong, and the reason.
    fn tune(&self, list: &str) -> Result<String> {
        let controls: Vec<_> = self.control().into_iter().collect();
        tune::tune(&controls, list)
    }

    /// Writes everything, marks the volume clean and stops its tasks. Later calls fail. An error means that data was
    /// lost.
    fn unmount(&self) -> Result<()>;
    /// Ends the service of the volume for a successor that opens the same device with the lookup counts returned here.
    /// Everything is written as by a freeze; unlinked inodes that are in use stay, as orphans. A write error that no
    /// fsync has reported ends here: its data is durable by now. Later calls fail.
    ///
    /// # Errors
    /// `Busy`: the volume is frozen. Others: not everything could be written, or the volume cannot be handed over. It
    /// is in service as before, unless it has stopped.
    fn hand_over(&self) -> Result<LookupCounts> {
        Err(FsError::NotSupported("handing over a volume of this kind"))
    }
    /// Brings every recorded object to its recorded state, and makes that durable. To be called before any other call, on
    /// a volume that was opened as after a power cut, with the lookup counts of the killed server's callers and those of
    /// [`RecordedState::hold`], which are dropped. May be repeated. An empty state changes nothing.
    ///
    /// # Errors
    /// `NotSupported`: the volume cannot be restored at all. Others: it cannot be brought to this state (its space, an
    /// error of the device or the format, a contradiction in the record).
    fn restore(&self, _state: &RecordedState) -> Result<()> {
        Err(FsError::NotSupported(
            "restoring a killed server's state on a volume of this kind",
        ))
    }
}
