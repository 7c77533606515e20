//! The kernel's list of mounts, and the mount that a path leads to.
//!
//! Several mounts can share a path, and calls that take a path reach the topmost one. So a mount is identified by its
//! mount id. Nothing here sends a request to a server, which may not answer.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

/// A mount as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Mount id; it is reused after the mount is gone.
    pub id: u64,
    /// `MAJOR:MINOR` of the file system, the same at all its mount points.
    pub device: String,
    /// Mount point, in this process's mount namespace.
    pub mountpoint: PathBuf,
    /// The file system's type, such as `fuse.steadfs`.
    pub kind: String,
    /// What is mounted, according to the file system.
    pub source: PathBuf,
    /// The mount point's options and the file system's.
    pub options: Vec<String>,
}

impl MountEntry {
    /// All mounts of the calling thread's mount namespace, the newest last.
    ///
    /// # Errors
    /// The list cannot be read.
    pub fn all() -> io::Result<Vec<Self>> {
        let table = fs::read("/proc/thread-self/mountinfo")?;
        Ok(table
            .split(|&b| b == b'\n')
            .filter_map(Self::parse)
            .collect())
    }

    /// A line of /proc/PID/mountinfo: id, parent's id, device, root, mount point and options; after a single dash type,
    /// source and the file system's options.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut words = line.split(|&b| b == b' ');
        let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
        let id = text(words.next()?).parse().ok()?;
        let device = text(words.nth(1)?);
        let mountpoint = unescape(words.nth(1)?);
        let own = words.next()?;
        let mut rest = words.skip_while(|word| *word != b"-").skip(1);
        let (kind, source, shared) = (rest.next()?, rest.next()?, rest.next()?);
        Some(Self {
            id,
            device,
            mountpoint,
            kind: text(kind),
            source: unescape(source),
            options: [own, shared]
                .iter()
                .flat_map(|list| list.split(|&b| b == b','))
                .map(text)
                .collect(),
        })
    }

    /// Whether this is the same mount. The id alone does not identify it, because ids are reused.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.id == other.id && self.device == other.device && self.source == other.source
    }

    /// Whether this is the mount `other` in a copy of its mount namespace, where it has another id.
    pub(super) fn is_copy_of(&self, other: &Self) -> bool {
        self.device == other.device
            && self.source == other.source
            && self.mountpoint == other.mountpoint
    }

    /// For messages.
    pub(super) fn describe(&self) -> String {
        let (kind, source) = (&self.kind, self.source.display());
        format!("{source} ({kind}) on {}", self.mountpoint.display())
    }

    /// Opens the mount's root, which keeps the mount in use.
    ///
    /// # Errors
    /// [`Hidden`].
    pub(super) fn open(&self) -> Result<OwnedFd, Hidden> {
        let opened = match open_path(&self.mountpoint) {
            Ok(place) if mount_id(&place)? == self.id => return Ok(place),
            Ok(place) => Ok(place),
            // A mount that covers one of the parent folders does not have the next component.
            Err(Errno::NOENT | Errno::NOTDIR) => self.nearest(),
            Err(errno) => Err(errno),
        };
        let over = mount_id(&opened?)?;
        let found = Self::all().unwrap_or_default().into_iter();
        let found = found.rev().find(|mount| mount.id == over);
        Err(Hidden::By(found.map(Box::new)))
    }

    /// The last existing folder on the way to the mount point.
    fn nearest(&self) -> Result<OwnedFd, Errno> {
        let above = self.mountpoint.ancestors().skip(1);
        let mut found = above.map(open_path);
        found.find(Result::is_ok).unwrap_or(Err(Errno::NOENT))
    }
}

/// Why a mount cannot be reached by its mount point.
pub(super) enum Hidden {
    /// The path leads to this mount, if the kernel lists it.
    By(Option<Box<MountEntry>>),
    /// The path cannot be resolved.
    Path(Errno),
}

impl From<Errno> for Hidden {
    fn from(errno: Errno) -> Self {
        Self::Path(errno)
    }
}

/// Opens the topmost mount at a path without a request to its server.
fn open_path(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

/// A path to the open file itself, not to a mount that covers it.
pub(crate) fn proc_fd_path(place: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", place.as_raw_fd()))
}

/// The mount id of an open file. The call requests nothing that needs the server, so it works for root on another
/// user's mount, too.
fn mount_id(place: impl AsFd) -> Result<u64, Errno> {
    let flags = AtFlags::EMPTY_PATH | steadfs_rt::STATX_DONT_SYNC;
    let found = rustix::fs::statx(place, "", flags, StatxFlags::empty())?;
    if found.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return Err(Errno::NOSYS);
    }
    Ok(found.stx_mnt_id)
}

/// The kernel writes spaces, newlines, backslashes and the like as three octal digits.
fn unescape(word: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(word.len());
    let mut at = 0;
    while at < word.len() {
        let digits = word.get(at + 1..at + 4).filter(|_| word[at] == b'\\');
        let value = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match value {
            Some(byte) => {
                out.push(byte);
                at += 4;
            }
            None => {
                out.push(word[at]);
                at += 1;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines_are_parsed() {
        let line = br"40 28 0:35 / /mnt/a\040b rw,relatime shared:1 - fuse.steadfs /x\134y\043.img ro,user_id=0";
        let entry = MountEntry {
            id: 40,
            device: "0:35".to_owned(),
            mountpoint: "/mnt/a b".into(),
            kind: "fuse.steadfs".to_owned(),
            source: r"/x\y#.img".into(),
            options: ["rw", "relatime", "ro", "user_id=0"]
                .map(String::from)
                .to_vec(),
        };
        assert_eq!(MountEntry::parse(line), Some(entry));
        assert_eq!(MountEntry::parse(b"junk"), None);
        assert_eq!(MountEntry::parse(b"1 2 0:1 / /x rw - tmpfs x"), None);
        assert_eq!(unescape(br"\04"), PathBuf::from(r"\04"));
    }

    #[test]
    fn a_path_leads_to_the_topmost_mount() {
        let dir = tempfile::tempdir().unwrap();
        let number = mount_id(open_path(dir.path()).unwrap()).unwrap();
        let all = MountEntry::all().unwrap();
        let under = all.iter().find(|mount| mount.id == number).unwrap();
        assert!(dir.path().starts_with(&under.mountpoint));
        let mut other = MountEntry {
            id: u64::MAX,
            mountpoint: dir.path().to_owned(),
            ..under.clone()
        };
        for name in ["", "missing/further"] {
            other.mountpoint.push(name);
            let Err(Hidden::By(Some(by))) = other.open() else {
                panic!("{} leads elsewhere", other.mountpoint.display());
            };
            assert_eq!(*by, *under);
        }
    }
}
