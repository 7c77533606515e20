//! `steadfs umount` and `sync`, and what all commands share that are about a running mount.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use steadfs::{MountHandle, Unmount};
use steadfs_vfs::SHUT_DOWN;

use crate::args;
use crate::failure::{Failure, code};

/// A mounted volume as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub mountpoint: PathBuf,
    pub source: PathBuf,
    /// A block device mounted as such: umount(2) returns when it is closed.
    is_block: bool,
    /// The mount point's options and the file system's, as the kernel shows them.
    pub options: Vec<String>,
}

pub fn run(args: &args::Umount) -> Result<(), Failure> {
    let mount = find(&args.mountpoint)?;
    if args.force {
        // Whatever asked the server for something could wait forever.
        let handle = MountHandle::of(&mount.mountpoint);
        let cut = handle.unmount(Unmount::Abort);
        return cut.map_err(|e| Failure::new(code::MOUNT, e));
    }
    let has_control = mount.mountpoint.join(".steadfs").exists();
    let mut lost = None;
    if !args.lazy
        && (mount.is_block || has_control)
        && let Err(failure) = sync(&mount.mountpoint)
    {
        if failure.code == code::USAGE {
            return Err(failure);
        }
        // A failure to write is told while there is still a mount to do something about it. Where the
        // volume has stopped, nothing can be done any more.
        lost = why_stopped(&mount.mountpoint);
        match (&lost, mount.is_block) {
            (Some(_), _) => {}
            (None, true) => sync_again(&mount.mountpoint, &failure)?,
            // Here the kernel has no say: the failure is the volume's.
            (None, false) => return Err(still_mounted(failure)),
        }
    }
    let how = if args.lazy {
        Unmount::Detach
    } else {
        Unmount::IfIdle
    };
    let handle = MountHandle::of(&mount.mountpoint);
    handle
        .unmount(how)
        .map_err(|e| Failure::new(code::MOUNT, e))?;
    if !args.lazy {
        wait_closed(&mount.source)?;
    }
    match lost {
        None => Ok(()),
        // Whoever asked for that knows what it leaves.
        Some(cause) if cause == SHUT_DOWN => Ok(()),
        Some(cause) => Err(Failure::new(
            code::MOUNT,
            format!(
                "{}: unmounted, but not everything could be written: {cause}",
                mount.mountpoint.display()
            ),
        )),
    }
}

/// Why a volume has stopped, if it has.
fn why_stopped(mountpoint: &Path) -> Option<String> {
    let errors = fs::read_to_string(mountpoint.join(".steadfs/errors")).ok()?;
    let mut lines = errors.lines();
    lines.find_map(|line| line.strip_prefix("stopped: ").map(str::to_owned))
}

/// What the volume could not write it keeps, and says so again. What it does not is gone already: pages of shared
/// mappings, which the kernel drops when they find no room, and tells whoever syncs next.
fn sync_again(mountpoint: &Path, first: &Failure) -> Result<(), Failure> {
    sync(mountpoint).map_err(still_mounted)?;
    eprintln!(
        "steadfs: {}; what the volume has is written, but what programs wrote through shared mappings may be lost",
        first.message
    );
    Ok(())
}

fn still_mounted(failure: Failure) -> Failure {
    let hint = "not everything could be written, and it stays mounted: mend the device and try again, \
                or give up what is not written with --lazy";
    Failure::new(failure.code, format!("{}; {hint}", failure.message))
}

/// Makes everything on the mount durable.
pub fn sync(mountpoint: &Path) -> Result<(), Failure> {
    let mount = find(mountpoint)?;
    if mount.is_block {
        let folder = File::open(&mount.mountpoint).map_err(|e| at(&mount.mountpoint, &e))?;
        return rustix::fs::syncfs(&folder).map_err(|e| at(&mount.mountpoint, &e.into()));
    }
    match control(&mount.mountpoint, "sync", b"1") {
        // Nothing is written to a read-only mount.
        Err(error) if error.raw_os_error() == Some(Errno::ROFS.raw_os_error()) => Ok(()),
        // Nothing was tried.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(Failure::new(
            code::USAGE,
            at(&mount.mountpoint, &error).message,
        )),
        Err(error) => Err(at(&mount.mountpoint, &error)),
        Ok(()) => Ok(()),
    }
}

/// Writes a value to a control file.
pub fn control(mountpoint: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    let path = mountpoint.join(".steadfs").join(name);
    let mut file = File::options().write(true).open(&path).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => "no control files: mounted with nocontrol?",
            io::ErrorKind::PermissionDenied => "only who mounted it may do that",
            _ => return error,
        };
        io::Error::new(error.kind(), hint)
    })?;
    file.write_all(value)
}

pub fn at(path: &Path, error: &io::Error) -> Failure {
    Failure::new(code::MOUNT, format!("{}: {error}", path.display()))
}

/// The mount at a path, or of an image.
pub fn find(path: &Path) -> Result<Mount, Failure> {
    let table = fs::read("/proc/self/mountinfo").map_err(|e| Failure::new(code::SYSTEM, e))?;
    let mounts: Vec<Mount> = table
        .split(|&b| b == b'\n')
        .filter_map(parse_line)
        .collect();
    let known_as = |wanted: &Path| {
        let mut newest = mounts.iter().rev();
        let found = newest.find(|m| m.mountpoint == wanted);
        found.or_else(|| mounts.iter().rev().find(|m| m.source == wanted))
    };
    // As it is given first: what the path leads to the server would be asked, which may not answer.
    let found = known_as(path).or_else(|| known_as(&path.canonicalize().ok()?));
    found.cloned().ok_or_else(|| {
        Failure::new(
            code::MOUNT,
            format!("{}: no steadfs volume is mounted there", path.display()),
        )
    })
}

/// A line of /proc/PID/mountinfo, if it is one of ours: the mount point is the fifth word, its options
/// the sixth; after a lone dash follow type, source and the file system's options.
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|&b| b == b' ');
    let mountpoint = words.nth(4)?;
    let own = words.next()?;
    let mut rest = words.skip_while(|word| *word != b"-").skip(1);
    let (kind, source, shared) = (rest.next()?, rest.next()?, rest.next()?);
    let is_block = match kind {
        b"fuse.steadfs" => false,
        b"fuseblk.steadfs" => true,
        _ => return None,
    };
    Some(Mount {
        mountpoint: unescape(mountpoint),
        source: unescape(source),
        is_block,
        options: [own, shared]
            .iter()
            .flat_map(|list| list.split(|&b| b == b','))
            .map(|item| String::from_utf8_lossy(item).into_owned())
            .collect(),
    })
}

/// The kernel writes blanks, line ends and backslashes as three octal digits.
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
    PathBuf::from(std::ffi::OsStr::from_bytes(&out))
}

/// Waits until the server has let the image or device go: it holds the file's lock while it has it open.
/// Somebody who mounts it again at once is not waited for.
fn wait_closed(image: &Path) -> Result<(), Failure> {
    let file = match File::open(image) {
        Ok(file) => file,
        // It has been moved or is not ours to read: whoever can see it closed does not depend on us.
        Err(_) => return Ok(()),
    };
    loop {
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if find(image).is_ok() => return Ok(()),
            Err(Errno::WOULDBLOCK) => steadfs_rt::sleep(Duration::from_millis(2)),
            Err(error) => return Err(at(image, &error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo() {
        let line = br"40 28 0:35 / /mnt/a\040b rw,relatime shared:1 - fuse.steadfs /x\134y.img ro,user_id=0";
        let mount = Mount {
            mountpoint: "/mnt/a b".into(),
            source: r"/x\y.img".into(),
            is_block: false,
            options: ["rw", "relatime", "ro", "user_id=0"]
                .map(String::from)
                .to_vec(),
        };
        assert_eq!(parse_line(line), Some(mount));
        let line = b"41 28 7:0 / /mnt rw - fuseblk.steadfs /dev/loop0 rw,user_id=0";
        assert!(parse_line(line).is_some_and(|m| m.is_block));
        assert_eq!(parse_line(b"22 1 8:1 / / rw - ext4 /dev/sda1 rw"), None);
        assert_eq!(parse_line(b"junk"), None);
        assert_eq!(unescape(br"\04"), PathBuf::from(r"\04"));
    }
}
