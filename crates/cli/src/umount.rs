//! `steadfs umount` and `sync`, and what all commands share that are about a running mount.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use steadfs::{MountHandle, SyncError, Synced, Unmount};
use steadfs_vfs::SHUT_DOWN;

use crate::args;
use crate::closing::Closing;
use crate::failure::{Failure, code};

/// A mounted volume as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub mountpoint: PathBuf,
    pub source: PathBuf,
    /// `MAJOR:MINOR` of the file system, the same at all its mount points.
    pub device: String,
    /// A block device mounted as such: umount(2) returns when it is closed.
    is_block: bool,
    /// The mount point's options and the file system's, as the kernel shows them.
    pub options: Vec<String>,
}

pub fn run(args: &args::Umount) -> Result<(), Failure> {
    let mount = find(&args.mountpoint)?;
    if args.force {
        // Whatever asked the server for something could wait forever.
        return take_away(&mount, Unmount::Abort);
    }
    if args.lazy {
        return take_away(&mount, Unmount::Detach);
    }
    let before = match settle(&mount)? {
        Settled::Closed(_) if let Some(done) = by_owner(&mount) => return done,
        settled => settled,
    };
    let image = match &before {
        Settled::Durable(synced) => synced.image,
        _ => None,
    };
    let closing = Closing::of(&mount, image);
    take_away(&mount, Unmount::IfIdle)?;
    let closed = closing.wait();
    let place = mount.mountpoint.display();
    match before {
        Settled::Durable(_) | Settled::Gone => closed,
        // Whoever asked for that knows what it leaves.
        Settled::Stopped(cause) if cause == SHUT_DOWN => closed,
        Settled::Stopped(cause) => Err(Failure::new(
            code::MOUNT,
            format!("{place}: unmounted, but not everything could be written: {cause}"),
        )),
        Settled::Closed(why) => Err(Failure::new(
            code::MOUNT,
            format!(
                "{place}: unmounted, but its server could not be asked whether everything is written: {why}"
            ),
        )),
    }
}

fn take_away(mount: &Mount, how: Unmount) -> Result<(), Failure> {
    let handle = MountHandle::of(&mount.mountpoint);
    handle
        .unmount(how)
        .map_err(|e| Failure::new(code::MOUNT, e))
}

/// What is known of a volume that may be unmounted.
enum Settled {
    Durable(Synced),
    /// Nothing can be done any more; the first cause.
    Stopped(String),
    /// The server is not there any more.
    Gone,
    /// Nobody but its user may ask the server; what the kernel said.
    Closed(String),
}

/// Makes everything durable. A failure is told while there is still a mount to do something about it.
fn settle(mount: &Mount) -> Result<Settled, Failure> {
    let handle = MountHandle::of(&mount.mountpoint);
    let first = match handle.sync() {
        Ok(synced) => {
            if let Some(cause) = &synced.lost {
                eprintln!(
                    "steadfs: {}: {cause}; what the volume has is written, but what programs wrote through shared \
                     mappings may be lost",
                    mount.mountpoint.display()
                );
            }
            return Ok(Settled::Durable(synced));
        }
        Err(SyncError::Gone) => return Ok(Settled::Gone),
        Err(SyncError::Closed(why)) => return Ok(Settled::Closed(why)),
        Err(error @ SyncError::NotAllowed) => return Err(failure(mount, &error)),
        Err(error) => error,
    };
    // What stopped the volume may have failed just now: then it is the next who hears that.
    match (first, handle.sync()) {
        (SyncError::Stopped(cause), _) | (_, Err(SyncError::Stopped(cause))) => {
            Ok(Settled::Stopped(cause))
        }
        (first, _) => Err(still_mounted(failure(mount, &first))),
    }
}

/// Root may not enter what another user has mounted for himself. So a process of that user's does what is to be done,
/// if one can be had.
fn by_owner(mount: &Mount) -> Option<Result<(), Failure>> {
    let number = |name: &str| {
        let mut items = mount.options.iter();
        items.find_map(|item| item.strip_prefix(name)?.parse::<u32>().ok())
    };
    let (user, group) = (number("user_id=")?, number("group_id=")?);
    if user == 0 || !rustix::process::geteuid().is_root() {
        return None;
    }
    let mut command = Command::new("/proc/self/exe");
    command.args(["umount", "--"]).arg(&mount.mountpoint);
    let ended = command.uid(user).gid(group).status().ok()?;
    Some(match ended.code().map(u8::try_from) {
        Some(Ok(0)) => Ok(()),
        // It has said why.
        Some(Ok(code)) => Err(Failure::new(code, "")),
        _ => Err(at(&mount.mountpoint, &io::Error::other(ended.to_string()))),
    })
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
        // The kernel asks the server, whoever calls.
        let folder = File::open(&mount.mountpoint).map_err(|e| at(&mount.mountpoint, &e))?;
        return rustix::fs::syncfs(&folder).map_err(|e| at(&mount.mountpoint, &e.into()));
    }
    let synced = MountHandle::of(&mount.mountpoint).sync();
    match synced.map_err(|error| failure(&mount, &error))?.lost {
        None => Ok(()),
        Some(cause) => Err(at(&mount.mountpoint, &io::Error::other(cause))),
    }
}

fn failure(mount: &Mount, error: &SyncError) -> Failure {
    let code = match error {
        SyncError::Closed(_) | SyncError::NotAllowed => code::USAGE,
        SyncError::Gone | SyncError::Stopped(_) | SyncError::Failed(_) => code::MOUNT,
    };
    Failure::new(code, format!("{}: {error}", mount.mountpoint.display()))
}

pub fn at(path: &Path, error: &io::Error) -> Failure {
    Failure::new(code::MOUNT, format!("{}: {error}", path.display()))
}

/// All mounts of steadfs volumes, the newest last.
pub fn mounts() -> Result<Vec<Mount>, Failure> {
    let table = fs::read("/proc/self/mountinfo").map_err(|e| Failure::new(code::SYSTEM, e))?;
    let lines = table.split(|&b| b == b'\n');
    Ok(lines.filter_map(parse_line).collect())
}

/// The mount at a path, or of an image.
pub fn find(path: &Path) -> Result<Mount, Failure> {
    let mounts = mounts()?;
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

/// A line of /proc/PID/mountinfo, if it is one of ours: the device is the third word, the mount point the fifth, its
/// options the sixth; after a lone dash follow type, source and the file system's options.
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|&b| b == b' ');
    let device = words.nth(2)?;
    let mountpoint = words.nth(1)?;
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
        device: String::from_utf8_lossy(device).into_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo() {
        let line = br"40 28 0:35 / /mnt/a\040b rw,relatime shared:1 - fuse.steadfs /x\134y.img ro,user_id=0";
        let mount = Mount {
            mountpoint: "/mnt/a b".into(),
            source: r"/x\y.img".into(),
            device: "0:35".to_owned(),
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
