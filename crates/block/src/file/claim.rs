//! Exclusive claims of devices and images: no volume is opened for writing while another program or the kernel uses it.
//!
//! - A block device that is opened for writing is claimed with O_EXCL, as mount(2), swapon(2), RAID and
//!   device mapper do: each of them excludes the others.
//! - Between instances of steadfs (and programs with the same convention, such as udev) flock(2) is used on devices and
//!   images: exclusive for writing, shared for reading. A byte past the end of the image is locked, too (F_OFD_SETLK):
//!   only a descriptor that is open for writing can lock it for writing.
//! - Every user with read access to an image can take flock(2) of it. A lock whose holder could not write the image
//!   (`holders`) is ignored, with a warning: it must not prevent the owner from using the image.
//! - An image with a loop device is refused for writing, and also for reading if a file system is mounted from that
//!   loop device. A loop device whose image is locked is refused. A loop device that is set up later is detected by
//!   `guard`.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    CWD, FlockOperation, Stat, Statx, StatxFlags, flock, fstat, major, makedev, minor, stat, statx,
};
use rustix::io::Errno;

use super::holders::{Descriptor, LockHolder};
use super::ioctl::{self, ByteLock};
use super::transfer::{TargetKind, retry};

/// Takes the locks of an open file, or returns their holders.
pub(super) fn lock(fd: impl AsFd, read_only: bool) -> Result<(), String> {
    let kind = if read_only {
        ByteLock::Read
    } else {
        ByteLock::Write
    };
    let take = |kind| retry(|| ioctl::lock_byte(fd.as_fd(), kind));
    let byte = match take(kind) {
        // The file is open for reading only: this lock still detects a writer.
        Err(Errno::BADF) => take(ByteLock::Read),
        byte => byte,
    };
    // Other errors mean that the file system has no such locks.
    let byte_is_free = !matches!(byte, Err(Errno::AGAIN | Errno::ACCESS));
    let whole = lock_whole(fd.as_fd(), read_only);
    if whole == Ok(true) && byte_is_free {
        return Ok(());
    }
    let checked = whole.and_then(|_| check_lock_holders(fd.as_fd(), read_only));
    if checked.is_err() {
        unlock(&fd);
    }
    checked
}

/// Ignores locks whose holders could not write the file.
fn check_lock_holders(fd: BorrowedFd<'_>, read_only: bool) -> Result<(), String> {
    let Ok(file) = fstat(fd) else {
        return Err("another process".to_owned());
    };
    let unseen = || Err(openers(&file).unwrap_or_else(|| "another process".to_owned()));
    let own = Descriptor {
        process: rustix::process::getpid().as_raw_nonzero().get(),
        number: fd.as_raw_fd(),
    };
    let Some(mut holders) = LockHolder::all(&file, own) else {
        return unseen();
    };
    // Readers share.
    holders.retain(|holder| holder.is_exclusive || !read_only);
    let names = |holders: &[&LockHolder]| {
        let names: Vec<String> = holders
            .iter()
            .map(|holder| name_of(holder.process))
            .collect();
        names.join(", ")
    };
    let (may, may_not): (Vec<&LockHolder>, Vec<&LockHolder>) =
        holders.iter().partition(|holder| holder.may_write(&file));
    if !may.is_empty() {
        return Err(names(&may));
    }
    if may_not.is_empty() {
        return unseen();
    }
    tracing::warn!(
        "{} holds a lock of the image, but may not write it; the lock is ignored",
        names(&may_not)
    );
    Ok(())
}

/// Takes flock(2) of an open file; false if it is held already.
fn lock_whole(fd: BorrowedFd<'_>, read_only: bool) -> Result<bool, String> {
    let operation = if read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    match retry(|| flock(fd, operation)) {
        Ok(()) => Ok(true),
        // A file system without locks, such as some network ones.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(format!(
            "a lock that cannot be taken ({})",
            std::io::Error::from(errno)
        )),
    }
}

/// Releases the locks. If that fails they stay, and the next program that needs them reports it.
pub(super) fn unlock(fd: impl AsFd) {
    if let Err(errno) = retry(|| ioctl::lock_byte(fd.as_fd(), ByteLock::None)) {
        tracing::debug!(%errno, "cannot unlock the image");
    }
    if let Err(errno) = retry(|| flock(&fd, FlockOperation::NonBlockingUnlock)) {
        tracing::debug!(%errno, "cannot unlock the image");
    }
}

/// Refuses an image with a loop device.
pub(super) fn check_loop_devices(image: &OwnedFd, read_only: bool) -> Result<(), String> {
    for device in LoopDevice::all().filter(|device| device.shows(image)) {
        match mounted(&device.number()) {
            Some((place, _)) => {
                return Err(format!("{}, which is mounted at {place}", device.name));
            }
            None if !read_only => return Err(format!("the loop device {}", device.name)),
            None => {}
        }
    }
    Ok(())
}

/// A loop device that shows a file.
pub(super) struct LoopDevice {
    /// Its path in `/dev`.
    pub(super) name: String,
    sysfs: PathBuf,
    /// The path of its file at setup.
    backing: String,
}

impl LoopDevice {
    /// All loop devices of the host that are set up now.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        named_devices().into_iter().filter_map(|device| {
            let sysfs = Path::new("/sys/block").join(&device);
            Some(Self {
                backing: fs::read_to_string(sysfs.join("loop/backing_file")).ok()?,
                name: format!("/dev/{device}"),
                sysfs,
            })
        })
    }

    fn text(&self, name: &str) -> String {
        let text = fs::read_to_string(self.sysfs.join(name)).unwrap_or_default();
        text.trim_end().to_owned()
    }

    /// `major:minor`.
    fn number(&self) -> String {
        self.text("dev")
    }

    pub(super) fn takes_writes(&self) -> bool {
        self.text("ro") != "1"
    }

    /// An identity that differs each time the device is set up.
    pub(super) fn setup_id(&self) -> (String, String, String) {
        (
            self.name.clone(),
            self.backing.clone(),
            self.text("diskseq"),
        )
    }

    /// Whether it shows `image`: by LOOP_GET_STATUS64; if that fails, by the file that has its path now; and if there is
    /// none within reach, by the path itself: a service sees neither the host's devices nor all of its directories, but the
    /// kernel shows it the paths of open files.
    pub(super) fn shows(&self, image: &OwnedFd) -> bool {
        let Ok(own) = fstat(image) else {
            return false;
        };
        let device = fs::File::open(&self.name).ok();
        let reported = device.and_then(|device| ioctl::shown_file(device.as_fd()).ok());
        let path = self.backing.trim_end_matches('\n');
        let named = || stat(path).ok().map(|file| (file.st_dev, file.st_ino));
        match reported.or_else(named) {
            Some(shown) => shown == (own.st_dev, own.st_ino),
            None => shown_path(image).is_some_and(|shown| shown == Path::new(path)),
        }
    }
}

/// The path of an open file as the kernel shows it, in whichever mount namespace it was opened.
fn shown_path(file: &OwnedFd) -> Option<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

/// Names of block devices, among them all loop devices that are set up. An fsync may wait for this, so sysfs, which
/// needs one read per device, is used only if `/proc/partitions` cannot be read.
fn named_devices() -> Vec<String> {
    let list = fs::read_to_string("/proc/partitions").unwrap_or_default();
    sized_loop_devices(&list).unwrap_or_else(|| {
        let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        devices
            .map(|device| device.file_name().to_string_lossy().into_owned())
            .collect()
    })
}

/// The loop devices in the kernel's list of devices with a size (proc_partitions(5)): one that is not set up has no
/// size.
fn sized_loop_devices(list: &str) -> Option<Vec<String>> {
    /// Major number of the loop driver, linux/major.h.
    const LOOP: &str = "7";
    let rest = list.strip_prefix("major minor  #blocks  name\n")?;
    let lines = rest.lines().map(str::split_ascii_whitespace);
    let loops = lines.filter_map(|mut words| (words.next()? == LOOP).then(|| words.nth(2))?);
    Some(loops.map(str::to_owned).collect())
}

/// Refuses a loop device whose image is locked.
pub(super) fn check_backing_image(device: &Stat, read_only: bool) -> Result<(), String> {
    let (major, minor) = (major(device.st_rdev), minor(device.st_rdev));
    let sysfs = format!("/sys/dev/block/{major}:{minor}/loop/backing_file");
    let Ok(backing) = fs::read_to_string(sysfs) else {
        return Ok(());
    };
    let backing = backing.trim_end_matches('\n');
    // The locks of an image that was removed, or is in another mount namespace, cannot be checked.
    let Ok(image) = fs::File::open(backing) else {
        return Ok(());
    };
    // Only a check: the lock is released at once.
    let locked = lock(&image, read_only);
    unlock(&image);
    locked.map_err(|holder| format!("{holder}, which has its image {backing} open"))
}

/// The holder of a block device that refused O_EXCL.
pub(super) fn claimant(device: &Stat) -> String {
    let number = format!("{}:{}", major(device.st_rdev), minor(device.st_rdev));
    match mounted(&number) {
        Some((place, kind)) if kind.starts_with("fuse") => {
            return format!("the program that serves {place} ({kind})");
        }
        Some((place, _)) => return format!("the kernel, which has it mounted at {place}"),
        None => {}
    }
    let sysfs = format!("/sys/dev/block/{number}");
    let first_holder = fs::read_dir(Path::new(&sysfs).join("holders"))
        .ok()
        .and_then(|mut holders| holders.next()?.ok());
    if let Some(holder) = first_holder {
        return format!("the block device {}", holder.file_name().to_string_lossy());
    }
    if is_swap(device) {
        return "the kernel, as swap".to_owned();
    }
    // Only the kernel claims without a descriptor, and no mount of it is visible here.
    openers(device).unwrap_or_else(|| {
        "the kernel, with a mount that is not visible here: in another mount namespace, or detached (umount --lazy) \
         and still in use"
            .to_owned()
    })
}

/// The first mount point of a device (`major:minor`), and the mount's type.
fn mounted(number: &str) -> Option<(String, String)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mount_of(number, &mounts)
}

/// The same, from the lines of proc_pid_mountinfo(5).
fn mount_of(number: &str, mounts: &str) -> Option<(String, String)> {
    mounts.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let mut words = mount.split(' ');
        let dev = words.nth(2)?;
        let place = words.nth(1)?;
        let kind = source.split(' ').next()?;
        (dev == number).then(|| (place.to_owned(), kind.to_owned()))
    })
}

fn is_swap(device: &Stat) -> bool {
    let Ok(swaps) = fs::read_to_string("/proc/swaps") else {
        return false;
    };
    let paths = swaps.lines().skip(1).filter_map(|l| l.split(' ').next());
    paths
        .filter_map(|path| stat(path).ok())
        .any(|swap| swap.st_rdev == device.st_rdev)
}

fn name_of(process: i32) -> String {
    if process == rustix::process::getpid().as_raw_nonzero().get() {
        return "this process itself".to_owned();
    }
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    format!("process {process} ({})", name.trim_end())
}

/// The processes that have the file open, as far as this process can see.
fn openers(file: &Stat) -> Option<String> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let mut seen: Vec<String> = Vec::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = process.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        if !has_open(&process.path(), file, pid == own) {
            continue;
        }
        seen.push(name_of(pid));
    }
    (!seen.is_empty()).then(|| seen.join(", "))
}

/// Whether the process has the file open; this process itself at least twice, because one descriptor is the
/// caller's.
fn has_open(process: &Path, file: &Stat, own: bool) -> bool {
    let same = |other: &Statx| {
        if TargetKind::of(file) == Some(TargetKind::BlockDevice) {
            let device = makedev(other.stx_rdev_major, other.stx_rdev_minor);
            u32::from(other.stx_mode) == file.st_mode && device == file.st_rdev
        } else {
            let device = makedev(other.stx_dev_major, other.stx_dev_minor);
            (device, other.stx_ino) == (file.st_dev, file.st_ino)
        }
    };
    // Without a request to a file system: one may wait for this very process, which continues its mount.
    let known = |path: &Path| {
        statx(
            CWD,
            path,
            steadfs_rt::STATX_DONT_SYNC,
            StatxFlags::BASIC_STATS,
        )
        .ok()
    };
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten();
    let found = descriptors
        .flatten()
        .filter_map(|fd| known(&fd.path()))
        .filter(same)
        .count();
    found > usize::from(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_devices_are_found_by_their_sizes() {
        let list = "major minor  #blocks  name\n\n 254        0  268435456 vda\n   7        1    2097152 loop1\n   \
                    7       12          1 loop12\n";
        let found = sized_loop_devices(list);
        assert_eq!(found, Some(vec!["loop1".to_owned(), "loop12".to_owned()]));
        assert_eq!(sized_loop_devices(""), None);
    }

    #[test]
    fn mounts_of_devices_are_found() {
        let mounts = "25 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            90 25 7:0 / /mnt/a\\040b rw,relatime - fuseblk.steadfs /dev/loop0 rw,user_id=0\n\
            91 25 7:1 / /c rw shared:3 master:2 - ext2 /dev/loop1 rw";
        let of = |number| mount_of(number, mounts);
        let mount = |place: &str, kind: &str| Some((place.to_owned(), kind.to_owned()));
        assert_eq!(of("254:0"), mount("/", "ext4"));
        assert_eq!(of("7:0"), mount("/mnt/a\\040b", "fuseblk.steadfs"));
        assert_eq!(of("7:1"), mount("/c", "ext2"));
        assert_eq!(of("7:2"), None);
    }
}
