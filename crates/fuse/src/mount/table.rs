//! The kernel's list of mounts, and which of them a path leads to.
//!
//! Several mounts can lie on one path, and calls that take a path are about the one on top. So a mount is known by
//! its number. Nothing here asks a server: it may be one that does not answer.

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
    /// Its number, which is another's when it is gone.
    pub id: u64,
    /// `MAJOR:MINOR` of the file system, the same at all its mount points.
    pub device: String,
    /// Where it is mounted, as seen from here.
    pub mountpoint: PathBuf,
    /// The file system's type, such as `fuse.steadfs`.
    pub kind: String,
    /// What is mounted, as the file system says.
    pub source: PathBuf,
    /// The mount point's options and the file system's.
    pub options: Vec<String>,
}

impl MountEntry {
    /// All mounts that are seen from here, the newest last.
    ///
    /// # Errors
    /// The list cannot be read.
    pub fn all() -> io::Result<Vec<Self>> {
        let table = fs::read("/proc/self/mountinfo")?;
        Ok(table
            .split(|&b| b == b'\n')
            .filter_map(Self::parse)
            .collect())
    }

    /// A line of /proc/PID/mountinfo: number, the parent's, device, root, mount point and options; after a lone dash
    /// type, source and the file system's options.
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

    /// Whether this is the same mount: numbers are soon another's, so they alone do not say so.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.id == other.id && self.device == other.device && self.source == other.source
    }

    /// In words, for who has to do something about it.
    pub(super) fn describe(&self) -> String {
        let (kind, source) = (&self.kind, self.source.display());
        format!("{source} ({kind}) on {}", self.mountpoint.display())
    }

    /// Opens the mount's root, which keeps it in use.
    ///
    /// # Errors
    /// [`Hidden`].
    pub(super) fn open(&self) -> Result<OwnedFd, Hidden> {
        let opened = match open_place(&self.mountpoint) {
            Ok(place) if number_of(&place)? == self.id => return Ok(place),
            Ok(place) => Ok(place),
            // What lies over one of the folders on the way does not have the next.
            Err(Errno::NOENT | Errno::NOTDIR) => self.nearest(),
            Err(errno) => Err(errno),
        };
        let over = number_of(&opened?)?;
        let found = Self::all().unwrap_or_default().into_iter();
        let found = found.rev().find(|mount| mount.id == over);
        Err(Hidden::By(found.map(Box::new)))
    }

    /// The last folder that is there on the way to the mount point.
    fn nearest(&self) -> Result<OwnedFd, Errno> {
        let above = self.mountpoint.ancestors().skip(1);
        let mut found = above.map(open_place);
        found.find(Result::is_ok).unwrap_or(Err(Errno::NOENT))
    }
}

/// Why a mount cannot be reached by its mount point.
pub(super) enum Hidden {
    /// The path leads to this one, if the kernel lists it.
    By(Option<Box<MountEntry>>),
    /// It cannot be followed.
    Path(Errno),
}

impl From<Errno> for Hidden {
    fn from(errno: Errno) -> Self {
        Self::Path(errno)
    }
}

/// Opens what lies on top at a path, without asking whoever serves it.
fn open_place(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

/// A path that leads to just what is open, not to what lies over it.
pub(super) fn by_number(place: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", place.as_raw_fd()))
}

/// The number of the mount on which something open lies. Nothing else is wanted, and what the kernel knows without
/// asking: so this works for root in what another user has mounted, too.
fn number_of(place: impl AsFd) -> Result<u64, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(place, "", flags, StatxFlags::empty())?;
    if found.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return Err(Errno::NOSYS);
    }
    Ok(found.stx_mnt_id)
}

/// The kernel writes blanks, line ends, backslashes and the like as three octal digits.
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
    fn lines_of_mountinfo() {
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
    fn a_path_leads_to_the_mount_on_top() {
        let dir = tempfile::tempdir().unwrap();
        let number = number_of(open_place(dir.path()).unwrap()).unwrap();
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
