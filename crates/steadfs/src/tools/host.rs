//! The host's side of copies: all paths are relative to open directories, and no symbolic link is followed.
//!
//! Owners, permissions, types and extended attributes are read and set by functions of the C library only: fakeroot(1)
//! and pseudo(1), under which images are built without root, replace these. rustix calls the C library, too (feature
//! `use-libc`), but for `fchown`, `fchmod` and `fchmodat`, which it leaves to the kernel.

use std::ffi::{CString, OsStr};
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timestamps, Uid, XattrFlags, linkat,
    openat, statat,
};
use rustix::io::Errno;
use steadfs_base::Timestamp;
use steadfs_vfs::{Attr, FileKind, FsError};

/// Opens a directory; a link to one is refused.
pub fn open_dir(at: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

/// Opens a directory again, to read it from its beginning.
pub fn open_this_dir(dir: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(dir, ".", flags, Mode::empty())
}

/// The owner of new files.
pub fn own_ids() -> (u32, u32) {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    (uid.as_raw(), gid.as_raw())
}

/// Attributes of `name` itself.
pub fn stat(at: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<Stat> {
    statat(at, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// A file to be copied from the host, with the attributes of what was opened.
pub struct Source {
    /// Readable for a regular file or directory; of anything else the file itself (`O_PATH`).
    pub fd: OwnedFd,
    /// Read from `fd`.
    pub stat: Stat,
}

/// How [`open_source`] opens.
#[derive(Clone, Copy)]
pub struct Opening {
    /// Open the target of a link, not the link.
    pub follow: bool,
    /// Read devices and pipes, not copy them as such.
    pub read_special: bool,
}

/// How what can be read is opened. Without O_NONBLOCK a pipe's open would wait for a writer, where no signal stops the copy
/// in order.
const READABLE: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Opens `name` for copying.
///
/// How a file is opened depends on its type: opening a pipe may wait, opening a device may act on it. The type
/// comes from a look at the name, so another file may have been moved there before the open. That one is refused, as
/// cp(1) does: where the folder belongs to another user, it could be any file that this user may read.
///
/// # Errors
/// Those of the calls; [`io::ErrorKind::Other`] for a file that was replaced between them.
pub fn open_source(at: BorrowedFd<'_>, name: &OsStr, how: Opening) -> io::Result<Source> {
    let follow = match how.follow {
        true => (AtFlags::empty(), OFlags::empty()),
        false => (AtFlags::SYMLINK_NOFOLLOW, OFlags::NOFOLLOW),
    };
    let seen = statat(at, name, follow.0)?;
    let flags = match kind_of(&seen) {
        Some(FileKind::Regular) => READABLE,
        Some(FileKind::Directory) => OFlags::RDONLY | OFlags::DIRECTORY,
        Some(FileKind::Symlink | FileKind::Socket) | None => OFlags::PATH,
        Some(_) if how.read_special => READABLE,
        Some(_) => OFlags::PATH,
    };
    let fd = match openat(at, name, flags | follow.1 | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::LOOP | Errno::NOTDIR) => return Err(replaced()),
        opened => opened?,
    };
    let stat = rustix::fs::fstat(&fd)?;
    match id_of(&stat) == id_of(&seen) && kind_of(&stat) == kind_of(&seen) {
        true => Ok(Source { fd, stat }),
        false => Err(replaced()),
    }
}

/// As [`open_source`], for an entry of the directory `at`. For most files the type and inode number in the entry replace the
/// look at the name, which takes a fifth of the time of copying a small file.
pub fn open_entry(at: BorrowedFd<'_>, entry: &Entry, how: Opening) -> io::Result<Source> {
    let name = OsStr::from_bytes(&entry.name);
    if let Some(ino) = entry.regular
        && let Ok(fd) = openat(
            at,
            name,
            READABLE | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )
    {
        let stat = rustix::fs::fstat(&fd)?;
        // Others are what was replaced, what overlayfs shows with another number, and the devices of fakeroot.
        if stat.st_ino == ino && kind_of(&stat) == Some(FileKind::Regular) {
            return Ok(Source { fd, stat });
        }
    }
    open_source(at, name, how)
}

impl Source {
    /// A descriptor with O_PATH has no calls for attributes; its path in /proc leads to the file itself, a link too.
    fn xattr_path(&self) -> Option<String> {
        match kind_of(&self.stat) {
            Some(FileKind::Regular | FileKind::Directory) => None,
            _ => Some(proc_path(self.fd.as_fd())),
        }
    }

    /// Whether the file has this extended attribute; if it cannot be found out, it may have it.
    pub fn may_have(&self, name: &[u8]) -> bool {
        let mut nothing = [0_u8; 0];
        let found = match (CString::new(name), self.xattr_path()) {
            (Ok(name), None) => rustix::fs::fgetxattr(&self.fd, name, &mut nothing[..]),
            (Ok(name), Some(path)) => rustix::fs::getxattr(path, name, &mut nothing[..]),
            (Err(_), _) => return false,
        };
        !matches!(found, Err(Errno::NODATA | Errno::OPNOTSUPP))
    }

    /// All extended attributes with their values; none where the host keeps none.
    pub fn xattrs(&self) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let path = self.xattr_path();
        let names = grown(|buffer: &mut Vec<u8>| match &path {
            None => rustix::fs::flistxattr(&self.fd, &mut buffer[..]),
            Some(path) => rustix::fs::listxattr(path, &mut buffer[..]),
        });
        let names = match names {
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            names => names?,
        };
        let mut all = Vec::new();
        for name in names.split(|&b| b == 0).filter(|name| !name.is_empty()) {
            let c_name = CString::new(name)?;
            let value = grown(|buffer: &mut Vec<u8>| match &path {
                None => rustix::fs::fgetxattr(&self.fd, &c_name, &mut buffer[..]),
                Some(path) => rustix::fs::getxattr(path, &c_name, &mut buffer[..]),
            });
            match value {
                Err(Errno::NODATA) => {} // Removed meanwhile.
                value => all.push((name.to_vec(), value?)),
            }
        }
        Ok(all)
    }

    /// Where a symbolic link leads.
    pub fn link_target(&self) -> rustix::io::Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(&self.fd, "", Vec::new())?.into_bytes())
    }
}

/// The path in /proc of what is open.
fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// The path of a name in an open folder, for calls that take only paths.
fn path_in(dir: BorrowedFd<'_>, name: &OsStr) -> Vec<u8> {
    let mut path = proc_path(dir).into_bytes();
    path.push(b'/');
    path.extend(name.as_bytes());
    path
}

fn replaced() -> io::Error {
    io::Error::other("not copied: it was replaced while it was being copied")
}

/// The device and inode number.
pub fn id_of(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Opens a file with `O_PATH`, without following a link at the end of the path. The path can be longer than PATH_MAX.
pub fn open_path(path: &Path) -> rustix::io::Result<OwnedFd> {
    // Linux's PATH_MAX is 4096, and a name with its slash at most 256.
    const PIECE: usize = 4096 - 256;
    let mut folder: Option<OwnedFd> = None;
    let mut rest = path.as_os_str().as_bytes();
    while let Some(slash) = rest.get(..PIECE).and_then(last_slash) {
        let piece = OsStr::from_bytes(&rest[..=slash]);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let at = folder.as_ref().map_or(cwd(), AsFd::as_fd);
        folder = Some(openat(at, piece, flags, Mode::empty())?);
        rest = &rest[slash + 1..];
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let at = folder.as_ref().map_or(cwd(), AsFd::as_fd);
    openat(at, OsStr::from_bytes(rest), flags, Mode::empty())
}

fn last_slash(path: &[u8]) -> Option<usize> {
    path.iter().rposition(|&b| b == b'/')
}

/// Gives an open file a name.
pub fn link(file: &OwnedFd, dir: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
    let path = proc_path(file.as_fd());
    linkat(cwd(), path, dir, name, AtFlags::SYMLINK_FOLLOW)
}

/// An entry of a directory of the host.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Its name.
    pub name: Vec<u8>,
    /// The inode number of a regular file, if the directory has its type.
    regular: Option<u64>,
}

/// Entries of a directory that can be read, sorted by name, `.` and `..` left out, and why others cannot.
pub fn entries(dir: BorrowedFd<'_>) -> (Vec<Entry>, Option<Errno>) {
    let mut all = Vec::new();
    let read = Dir::read_from(dir).and_then(|entries| {
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                let is_regular = entry.file_type() == FileType::RegularFile;
                let regular = is_regular.then(|| entry.ino());
                all.push(Entry { name, regular });
            }
        }
        Ok(())
    });
    all.sort_unstable();
    (all, read.err())
}

/// The type that a mode of the host means.
pub fn kind_of(stat: &Stat) -> Option<FileKind> {
    FileKind::from_mode(stat.st_mode)
}

/// The type of the file at a path, following links.
pub fn kind_at(path: &Path) -> steadfs_vfs::Result<FileKind> {
    match rustix::fs::stat(path) {
        Ok(stat) => Ok(kind_of(&stat).unwrap_or(FileKind::Regular)),
        Err(Errno::NOENT) => Err(FsError::NotFound),
        Err(Errno::ACCESS) => Err(FsError::Access),
        Err(_) => Err(FsError::NotDir),
    }
}

/// The host's type.
pub fn file_type(kind: FileKind) -> FileType {
    FileType::from_raw_mode(kind.mode_bits())
}

fn by_libc(done: io::Result<()>) -> rustix::io::Result<()> {
    done.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// A file by its folder and name, or by itself: what attributes are set on.
pub enum Target<'a> {
    /// An open file or folder, and its owner if that is known.
    Open(&'a File, Option<(u32, u32)>),
    /// A name in an open folder.
    Named(BorrowedFd<'a>, &'a OsStr),
}

impl Target<'_> {
    /// Changes the owner.
    pub fn chown(&self, uid: u32, gid: u32) -> rustix::io::Result<()> {
        match self {
            Self::Open(_, Some(owner)) if *owner == (uid, gid) => Ok(()),
            Self::Open(file, _) => by_libc(std::os::unix::fs::fchown(file, Some(uid), Some(gid))),
            Self::Named(dir, name) => {
                let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                rustix::fs::chownat(dir, *name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            }
        }
    }

    /// Changes the permissions; not for symbolic links, which have none.
    pub fn chmod(&self, perm: u32) -> rustix::io::Result<()> {
        let mode = Mode::from_raw_mode(perm);
        match self {
            Self::Open(file, _) => by_libc(file.set_permissions(Permissions::from_mode(perm))),
            Self::Named(dir, name) => {
                // chmod(2) follows a link, which another process may have put here meanwhile.
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = openat(dir, *name, flags, Mode::empty())?;
                let stat = rustix::fs::fstat(&file)?;
                if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
                    return Err(Errno::LOOP);
                }
                rustix::fs::chmod(proc_path(file.as_fd()), mode)
            }
        }
    }

    /// Sets the times of last access and change.
    pub fn set_times(&self, attr: &Attr) -> rustix::io::Result<()> {
        let times = Timestamps {
            last_access: timespec(attr.atime),
            last_modification: timespec(attr.mtime),
        };
        match self {
            Self::Open(file, _) => rustix::fs::futimens(file, &times),
            Self::Named(dir, name) => {
                rustix::fs::utimensat(dir, *name, &times, AtFlags::SYMLINK_NOFOLLOW)
            }
        }
    }

    /// Removes an access control list that the file has inherited or had before; without one nothing is done.
    pub fn remove_list(&self, name: &[u8]) -> io::Result<()> {
        let name = CString::new(name)?;
        let mut nothing = [0_u8; 0];
        // An attempt to remove one that is not there is a transaction of the host's file system.
        match self {
            Self::Open(file, _) => {
                if rustix::fs::fgetxattr(file, &name, &mut nothing[..]).is_ok() {
                    rustix::fs::fremovexattr(file, &name)?;
                }
            }
            Self::Named(dir, file) => {
                let path = path_in(*dir, file);
                if rustix::fs::lgetxattr(&path[..], &name, &mut nothing[..]).is_ok() {
                    rustix::fs::lremovexattr(&path[..], &name)?;
                }
            }
        }
        Ok(())
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, name: &[u8], value: &[u8]) -> io::Result<()> {
        let name = CString::new(name)?;
        match self {
            Self::Open(file, _) => rustix::fs::fsetxattr(file, &name, value, XattrFlags::empty())?,
            Self::Named(dir, file) => {
                let path = path_in(*dir, file);
                rustix::fs::lsetxattr(path, &name, value, XattrFlags::empty())?;
            }
        }
        Ok(())
    }
}

/// Calls `read` with growing buffers until the result fits.
fn grown(
    mut read: impl FnMut(&mut Vec<u8>) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<u8>> {
    // The kernel's limit for names and for values is 64 KiB; an ACL of the overlay may be larger.
    const LARGEST: usize = 1 << 20;
    let mut buffer = vec![0; 4096];
    loop {
        match read(&mut buffer) {
            Ok(len) => {
                buffer.truncate(len);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < LARGEST => {
                let larger = buffer.len() * 4;
                buffer.resize(larger, 0);
            }
            Err(error) => return Err(error),
        }
    }
}

/// The current directory.
pub fn cwd() -> BorrowedFd<'static> {
    rustix::fs::CWD
}

/// The times of last access and change in the host's attributes.
pub fn times_of(stat: &Stat) -> (Timestamp, Timestamp) {
    let atime = Timestamp {
        secs: stat.st_atime,
        nanos: nanos(stat.st_atime_nsec),
    };
    let mtime = Timestamp {
        secs: stat.st_mtime,
        nanos: nanos(stat.st_mtime_nsec),
    };
    (atime, mtime)
}

/// The field's type differs between C libraries.
fn nanos(count: impl TryInto<u32>) -> u32 {
    count.try_into().unwrap_or(0)
}

fn timespec(time: Timestamp) -> rustix::fs::Timespec {
    rustix::fs::Timespec {
        tv_sec: time.secs,
        tv_nsec: time.nanos.into(),
    }
}

/// The next piece of data of an open file at or after `offset`, as a range; `None` if only a hole
/// follows. Where the host does not report holes, all that can be read is data: files of /proc have no size either.
pub fn next_data(file: &OwnedFd, offset: u64) -> rustix::io::Result<Option<(u64, u64)>> {
    let seek = |to| rustix::fs::seek(file.as_fd(), to);
    match data_after(offset, seek) {
        Err(Errno::NXIO) if rustix::fs::fstat(file)?.st_size == 0 => Ok(Some((offset, u64::MAX))),
        Err(Errno::NXIO) => Ok(None),
        Err(Errno::INVAL) => Ok(Some((offset, u64::MAX))),
        found => found.map(Some),
    }
}

/// The next piece of data, found by calls of lseek(2). Another process may punch a hole between two of them, at what the first
/// one has found: the data behind it is the next one.
fn data_after(
    mut offset: u64,
    seek: impl Fn(SeekFrom) -> rustix::io::Result<u64>,
) -> rustix::io::Result<(u64, u64)> {
    loop {
        let start = seek(SeekFrom::Data(offset))?;
        let end = seek(SeekFrom::Hole(start))?;
        if start < end {
            return Ok((start, end));
        }
        // So it ends whatever the file system answers.
        offset = start.max(offset).saturating_add(1);
    }
}

/// Waits up to 200 ms for data or the end of the file. Returns false on a timeout.
pub fn is_readable(file: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    is_ready(file, PollFlags::IN)
}

/// Waits up to 200 ms until there is room for a write. Returns false on a timeout.
pub fn is_writable(file: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    is_ready(file, PollFlags::OUT)
}

fn is_ready(file: BorrowedFd<'_>, event: PollFlags) -> rustix::io::Result<bool> {
    const POLL_TIMEOUT: rustix::fs::Timespec = rustix::fs::Timespec {
        tv_sec: 0,
        tv_nsec: 200_000_000,
    };
    let mut polled = [PollFd::from_borrowed_fd(file, event)];
    match poll(&mut polled, Some(&POLL_TIMEOUT)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn data_behind_a_hole_that_was_just_punched_is_found() {
        // 4096 bytes of data at 0, which are punched, and at 8192.
        let calls = std::cell::Cell::new(0);
        let seek = |to| {
            calls.set(calls.get() + 1);
            match (calls.get(), to) {
                (1, SeekFrom::Data(at)) => Ok(at),
                (_, SeekFrom::Data(at)) if at < 12_288 => Ok(at.max(8192)),
                (_, SeekFrom::Hole(at)) if at >= 8192 => Ok(12_288),
                (_, SeekFrom::Hole(at)) => Ok(at),
                _ => Err(Errno::NXIO),
            }
        };
        assert_eq!(data_after(0, seek), Ok((8192, 12_288)));
        assert_eq!(data_after(12_288, seek), Err(Errno::NXIO));
    }

    #[test]
    fn an_entry_is_opened_as_what_has_its_name_by_then() {
        let top = tempfile::tempdir().unwrap();
        let at = |name: &str| top.path().join(name);
        for name in ["file", "link", "pipe", "other"] {
            fs::write(at(name), name).unwrap();
        }
        fs::create_dir(at("dir")).unwrap();
        let dir = File::open(top.path()).unwrap();
        let (entries, error) = entries(dir.as_fd());
        assert_eq!(error, None);
        let names: Vec<_> = entries.iter().map(|entry| &entry.name[..]).collect();
        assert_eq!(names, [&b"dir"[..], b"file", b"link", b"other", b"pipe"]);
        // Each was a regular file when the directory was read.
        for name in ["link", "pipe"] {
            fs::remove_file(at(name)).unwrap();
        }
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        rustix::fs::mknodat(cwd(), at("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        fs::rename(at("other"), at("file")).unwrap();
        let how = Opening {
            follow: false,
            read_special: false,
        };
        let kinds = entries.iter().map(|entry| {
            let opened = open_entry(dir.as_fd(), entry, how);
            opened.ok().and_then(|source| kind_of(&source.stat))
        });
        let expected = [
            Some(FileKind::Directory),
            Some(FileKind::Regular),
            Some(FileKind::Symlink),
            None,
            Some(FileKind::Fifo),
        ];
        assert_eq!(kinds.collect::<Vec<_>>(), expected);
        let file = open_entry(dir.as_fd(), &entries[1], how).unwrap();
        assert_eq!(io::read_to_string(File::from(file.fd)).unwrap(), "other");
    }
}
