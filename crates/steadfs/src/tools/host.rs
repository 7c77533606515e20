//! The host's side of copies: everything relative to open folders, no symbolic link followed.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Timestamps, Uid, XattrFlags, linkat, openat,
    statat,
};
use rustix::io::Errno;
use steadfs_base::Timestamp;
use steadfs_vfs::{Attr, FileKind, FsError};

/// Opens a folder; a link to one is refused.
pub fn open_dir(at: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

/// Who new files belong to.
pub fn own_ids() -> (u32, u32) {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    (uid.as_raw(), gid.as_raw())
}

/// Attributes of `name` itself.
pub fn stat(at: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<Stat> {
    statat(at, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// Which file attributes are of: its device and inode number.
pub fn id_of(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// A file itself, for being looked at and linked; a link at the end of the path is not followed. The path may be longer
/// than one call takes.
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
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(cwd(), path, dir, name, AtFlags::SYMLINK_FOLLOW)
}

/// Names in a folder, sorted, `.` and `..` left out.
pub fn names(dir: BorrowedFd<'_>) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The type that a mode of the host means.
pub fn kind_of(stat: &Stat) -> Option<FileKind> {
    FileKind::from_mode(stat.st_mode)
}

/// What a path leads to.
pub fn kind_at(path: &Path) -> steadfs_vfs::Result<FileKind> {
    match rustix::fs::stat(path) {
        Ok(stat) => Ok(kind_of(&stat).unwrap_or(FileKind::Regular)),
        Err(Errno::NOENT) => Err(FsError::NotFound),
        Err(Errno::ACCESS) => Err(FsError::Access),
        Err(_) => Err(FsError::NotDir),
    }
}

/// The host's word for a type.
pub fn file_type(kind: FileKind) -> FileType {
    FileType::from_raw_mode(kind.mode_bits())
}

/// A file by its folder and name, or by itself: what attributes are set on.
pub enum Target<'a> {
    /// An open file or folder.
    Open(BorrowedFd<'a>),
    /// A name in an open folder.
    Named(BorrowedFd<'a>, &'a OsStr),
}

impl Target<'_> {
    /// A path to it, through /proc for what is open, for the calls that know no descriptors.
    fn proc_path(&self) -> io::Result<CString> {
        let mut path = Vec::from("/proc/self/fd/");
        match self {
            Self::Open(fd) => path.extend(fd.as_raw_fd().to_string().bytes()),
            // The current folder is no descriptor of ours that /proc would know.
            Self::Named(dir, name) if dir.as_raw_fd() == cwd().as_raw_fd() => {
                path = name.as_encoded_bytes().to_vec();
            }
            Self::Named(dir, name) => {
                path.extend(dir.as_raw_fd().to_string().bytes());
                path.push(b'/');
                path.extend(name.as_encoded_bytes());
            }
        }
        Ok(CString::new(path)?)
    }

    /// Changes the owner.
    pub fn chown(&self, uid: u32, gid: u32) -> rustix::io::Result<()> {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        match self {
            Self::Open(fd) => rustix::fs::fchown(fd, uid, gid),
            Self::Named(dir, name) => {
                rustix::fs::chownat(dir, *name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            }
        }
    }

    /// Changes the permissions; not for symbolic links, which have none.
    pub fn chmod(&self, perm: u32) -> rustix::io::Result<()> {
        let mode = Mode::from_raw_mode(perm);
        match self {
            Self::Open(fd) => rustix::fs::fchmod(fd, mode),
            Self::Named(dir, name) => {
                // chmod(2) follows a link, which somebody may have put here meanwhile.
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = openat(dir, *name, flags, Mode::empty())?;
                let stat = rustix::fs::fstat(&file)?;
                if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
                    return Err(Errno::LOOP);
                }
                rustix::fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)
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
            Self::Open(fd) => rustix::fs::futimens(fd, &times),
            Self::Named(dir, name) => {
                rustix::fs::utimensat(dir, *name, &times, AtFlags::SYMLINK_NOFOLLOW)
            }
        }
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, name: &[u8], value: &[u8]) -> io::Result<()> {
        let name = CString::new(name)?;
        match self {
            Self::Open(fd) => rustix::fs::fsetxattr(fd, &name, value, XattrFlags::empty())?,
            Self::Named(..) => {
                rustix::fs::lsetxattr(self.proc_path()?, &name, value, XattrFlags::empty())?;
            }
        }
        Ok(())
    }

    /// All extended attributes with their values; none where the host keeps none.
    pub fn xattrs(&self) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let path = match self {
            Self::Open(_) => None,
            Self::Named(..) => Some(self.proc_path()?),
        };
        let fd = match self {
            Self::Open(fd) | Self::Named(fd, _) => fd,
        };
        let names = grown(|buffer: &mut Vec<u8>| match &path {
            None => rustix::fs::flistxattr(fd, &mut buffer[..]),
            Some(path) => rustix::fs::llistxattr(path, &mut buffer[..]),
        });
        let names = match names {
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            names => names?,
        };
        let mut all = Vec::new();
        for name in names.split(|&b| b == 0).filter(|name| !name.is_empty()) {
            let c_name = CString::new(name)?;
            let value = grown(|buffer: &mut Vec<u8>| match &path {
                None => rustix::fs::fgetxattr(fd, &c_name, &mut buffer[..]),
                Some(path) => rustix::fs::lgetxattr(path, &c_name, &mut buffer[..]),
            });
            match value {
                Err(Errno::NODATA) => {} // Removed meanwhile.
                value => all.push((name.to_vec(), value?)),
            }
        }
        Ok(all)
    }
}

/// Calls `read` with larger and larger buffers until the answer fits.
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

/// What opens the current folder's files.
pub fn cwd() -> BorrowedFd<'static> {
    rustix::fs::CWD
}

/// The times of last access and change in the host's attributes.
pub fn times_of(stat: &Stat) -> (Timestamp, Timestamp) {
    let nanos = |n: u64| u32::try_from(n).unwrap_or(0);
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

fn timespec(time: Timestamp) -> rustix::fs::Timespec {
    rustix::fs::Timespec {
        tv_sec: time.secs,
        tv_nsec: time.nanos.into(),
    }
}

/// The next piece of data of an open file at or after `offset`, as a range; `None` if only a hole
/// follows. Where the host does not tell holes, everything is data.
pub fn next_data(file: &OwnedFd, offset: u64, size: u64) -> rustix::io::Result<Option<(u64, u64)>> {
    use rustix::fs::SeekFrom;
    let start = match rustix::fs::seek(file.as_fd(), SeekFrom::Data(offset)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL) => return Ok((offset < size).then_some((offset, size))),
        Err(error) => return Err(error),
    };
    let end = rustix::fs::seek(file.as_fd(), SeekFrom::Hole(start))?;
    Ok((start < end).then_some((start, end)))
}
