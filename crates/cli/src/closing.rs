//! Waits for the end of a mount that another process serves.
//!
//! The server holds a lock on its image while the image is open. So a process that has the same file open, even if the
//! file was renamed or removed since, learns from the lock when the volume is closed. Other processes may take that
//! lock, too: it suffices that the server has ended, or that its descriptors of the image are visible in /proc and
//! closed. As long as the kernel has the volume mounted anywhere, the server does not close it.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, FlockOperation, StatxFlags, flock, major, minor, statx};
use rustix::io::Errno;
use steadfs::{FileId, NamedFile};

use crate::failure::{Failure, code};
use crate::stderr::say;
use crate::umount::{Mount, at, mounts};

/// How long another namespace may have the volume mounted before the command reports it. Namespaces that are just
/// ending are not reported.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the command waits for other namespaces: a sandbox that is being set up has their mounts for a short time.
const LIMIT: Duration = Duration::from_secs(15);

/// A mount that is about to end.
pub struct Closing {
    mount: Mount,
    /// No other mount is known that the command would have to look for.
    image: Option<File>,
    /// The server's descriptors of the image, in /proc, and the image.
    servers: Option<(Vec<PathBuf>, FileId)>,
    /// The process that ends when the volume is closed, and its start time.
    server: Option<(i32, String)>,
    /// What the kernel shows of the mount as long as it exists.
    shown: Option<(PathBuf, u64)>,
    /// Devices of other mounts of files that have, or had, the image's name.
    others: Vec<String>,
}

impl Closing {
    /// Call it while the volume is mounted. `image` and `server` are the file and the process that the server reported.
    pub fn of(mount: &Mount, image: Option<FileId>, server: Option<i32>) -> Self {
        let others = of_source(&mount.source).filter(|device| *device != mount.device);
        let opened = match image {
            Some(image) => open_image(&mount.source, image),
            None => open_named(&mount.source),
        };
        let id = image.or_else(|| {
            let file = opened.as_ref()?.metadata().ok()?;
            Some(FileId {
                device: file.dev(),
                inode: file.ino(),
            })
        });
        Self {
            servers: id.map(|id| (servers(mount, id), id)),
            server: server.and_then(|process| Some((process, start_time(process)?))),
            image: opened,
            shown: shown(&mount.device),
            others: others.collect(),
            mount: mount.clone(),
        }
    }

    /// Waits until the server has closed the image or device; returns whether this was seen. Does not wait for another
    /// server that mounts the volume again at once, or has it at another mount point. `has_ended`: the server had ended
    /// before. Its last requests may still be on the way, but one that has the image for longer is another one.
    pub fn wait(self, has_ended: bool) -> Result<bool, Failure> {
        let source = self.mount.source.display();
        let Some(image) = &self.image else {
            if self.has_server_ended() {
                return Ok(true);
            }
            say(format_args!(
                "steadfs: unmounted; it cannot be seen from here when {source} is closed"
            ));
            return Ok(false);
        };
        let begun = steadfs_rt::now();
        let mut is_told = false;
        loop {
            match flock(image, FlockOperation::NonBlockingLockShared) {
                Ok(()) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if self.is_released() => return Ok(true),
                Err(Errno::WOULDBLOCK)
                    if has_ended && (!self.others.is_empty() || begun.elapsed() > PATIENCE) =>
                {
                    return Ok(true);
                }
                Err(Errno::WOULDBLOCK) if self.is_mounted_again() => return Ok(false),
                Err(Errno::WOULDBLOCK) if begun.elapsed() > PATIENCE && self.is_used() => {
                    if begun.elapsed() > LIMIT {
                        return Err(self.not_closed());
                    }
                    if !is_told {
                        say(format_args!(
                            "steadfs: waiting, for {source} is still mounted {}",
                            self.elsewhere()
                        ));
                        is_told = true;
                    }
                    steadfs_rt::sleep(Duration::from_millis(50));
                }
                Err(Errno::WOULDBLOCK) => steadfs_rt::sleep(Duration::from_millis(2)),
                Err(error) => return Err(at(&self.mount.source, &error.into())),
            }
        }
    }

    /// Waits for the end of a server whose image is no file, as of an NBD URI; returns whether it was seen.
    fn has_server_ended(&self) -> bool {
        let Some((process, start)) = &self.server else {
            return false;
        };
        let begun = steadfs_rt::now();
        while start_time(*process).as_ref() == Some(start) {
            if begun.elapsed() > LIMIT {
                return false;
            }
            steadfs_rt::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Whether the server has ended, or its descriptors of the image were seen, and are closed.
    fn is_released(&self) -> bool {
        let has_ended =
            |(process, start): &(i32, String)| start_time(*process).as_ref() != Some(start);
        self.server.as_ref().is_some_and(has_ended)
            || self.servers.as_ref().is_some_and(|(servers, image)| {
                !servers.is_empty() && !servers.iter().any(|path| is_file(path, *image))
            })
    }

    /// Mounted again, or still mounted at another mount point.
    fn is_mounted_again(&self) -> bool {
        of_source(&self.mount.source).any(|device| !self.others.contains(&device))
    }

    /// Whether the kernel still has the volume mounted somewhere.
    fn is_used(&self) -> bool {
        self.shown.is_some() && shown(&self.mount.device) == self.shown
    }

    /// The places where the volume is still mounted.
    fn elsewhere(&self) -> String {
        match user_of(&self.mount.device) {
            Some(who) => format!("in another mount namespace, that of {who}"),
            None => "where it is not seen from here: in another mount namespace, or taken out of the tree (umount \
                     --lazy) and still in use"
                .to_owned(),
        }
    }

    fn not_closed(&self) -> Failure {
        let (place, source) = (self.mount.mountpoint.display(), self.mount.source.display());
        let where_mounted = self.elsewhere();
        Failure::new(
            code::MOUNT,
            format!(
                "{place}: unmounted here, but {source} is not closed: it is still mounted {where_mounted}"
            ),
        )
    }
}

/// When a process was started, in proc_pid_stat(5): another process that gets its number has another time. `None` if it has
/// ended, whether or not its parent knows.
fn start_time(process: i32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Field 22. The second field, the name, is in parentheses and may contain any character.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let has_ended = fields.next().is_none_or(|state| matches!(state, "Z" | "X"));
    fields.nth(18).filter(|_| !has_ended).map(str::to_owned)
}

/// Devices of the mounts of files with this name.
fn of_source(source: &Path) -> impl Iterator<Item = String> {
    let all = mounts().unwrap_or_default().into_iter();
    all.filter(move |mount| mount.source == source)
        .map(|mount| mount.device)
}

/// The entry of a mounted volume in sysfs, and the entry's inode number: the volume's number is soon reused.
fn shown(device: &str) -> Option<(PathBuf, u64)> {
    ["", "-fuseblk"].into_iter().find_map(|suffix| {
        let path = PathBuf::from(format!("/sys/class/bdi/{device}{suffix}"));
        let number = fs::metadata(&path).ok()?.ino();
        Some((path, number))
    })
}

/// A process that sees the volume mounted.
fn user_of(device: &str) -> Option<String> {
    processes().find_map(|process| {
        let table = fs::read_to_string(process.join("mountinfo")).ok()?;
        let has = |line: &str| line.split(' ').nth(2) == Some(device);
        table.lines().find(|line| has(line))?;
        let name = fs::read_to_string(process.join("comm")).ok()?;
        let number = process.file_name()?.to_str()?;
        Some(format!("process {number} ({})", name.trim_end()))
    })
}

fn processes() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_process = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit()))
    };
    entries.map(|entry| entry.path()).filter(is_process)
}

/// Descriptors of the image in processes of the user that serves the mount.
fn servers(mount: &Mount, image: FileId) -> Vec<PathBuf> {
    let user = mount
        .options
        .iter()
        .find_map(|item| item.strip_prefix("user_id="));
    let Some(user) = user.and_then(|user| user.parse::<u32>().ok()) else {
        return Vec::new();
    };
    let of_user = |process: &PathBuf| fs::metadata(process).is_ok_and(|found| found.uid() == user);
    let mut found = Vec::new();
    let own = PathBuf::from(format!("/proc/{}", std::process::id()));
    for process in processes().filter(|one| *one != own && of_user(one)) {
        let list = fs::read_dir(process.join("fd")).into_iter().flatten();
        let paths = list.flatten().map(|descriptor| descriptor.path());
        found.extend(paths.filter(|path| is_file(path, image)));
    }
    found
}

/// Opens the image by its name, or else through the server's descriptor.
fn open_image(source: &Path, image: FileId) -> Option<File> {
    let descriptors = || {
        processes().flat_map(|process| {
            let list = fs::read_dir(process.join("fd")).into_iter().flatten();
            list.flatten().map(|descriptor| descriptor.path())
        })
    };
    let found = [source.to_owned()].into_iter().chain(descriptors());
    found
        .filter(|path| is_file(path, image))
        .find_map(|path| open_named(&path))
}

/// Opens a file or block device that a server, or a user who mounted, has named.
fn open_named(path: &Path) -> Option<File> {
    NamedFile::find(path).and_then(|found| found.open()).ok()
}

/// Whether a path leads to the image. Does not follow it into a FUSE mount, where_mounted server may not answer.
fn is_file(path: &Path, image: FileId) -> bool {
    let found = statx(
        CWD,
        path,
        steadfs_rt::STATX_DONT_SYNC,
        StatxFlags::INO | StatxFlags::TYPE,
    );
    found.is_ok_and(|found| {
        found.stx_ino == image.inode
            && found.stx_dev_major == major(image.device)
            && found.stx_dev_minor == minor(image.device)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_that_a_server_names_as_its_image_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let found = fs::metadata(&fifo).unwrap();
        let image = FileId {
            device: found.dev(),
            inode: found.ino(),
        };
        // An open(2) waits for a writer.
        assert!(open_image(&fifo, image).is_none());
        fs::remove_file(&fifo).unwrap();
        fs::write(&fifo, "an image").unwrap();
        let found = fs::metadata(&fifo).unwrap();
        let image = FileId {
            device: found.dev(),
            inode: found.ino(),
        };
        assert!(open_image(&fifo, image).is_some());
    }
}
