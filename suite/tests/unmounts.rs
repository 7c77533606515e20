//! What `steadfs sync` and `steadfs umount` promise where it is hard to keep: everything is durable, the image is
//! closed, or it is told what is not so.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use steadfs_suite::command::{finish, until};
use steadfs_suite::scratch::{IN_NAMESPACE, mounts_below};
use steadfs_suite::stead::program;
use steadfs_suite::{Image, LoopDevice, Outcome, Scratch, SteadMount, steadfs, steadfs_patiently};

const MIB: u64 = 1 << 20;
/// Longest time that an unmount may take which waits for nobody who does anything.
const SOON: Duration = Duration::from_secs(60);

fn image(scratch: &Scratch, name: &str) -> Image {
    Image::mke2fs(scratch, name, 64 * MIB, &["-t", "ext4"])
}

fn umount(mount: &SteadMount) -> Outcome {
    steadfs_patiently(&["umount".as_ref(), mount.root().as_os_str()])
}

/// What mapped files hold before and, in their first block, no more when they are changed.
static BEFORE: [u8; 65_536] = [b'A'; 65_536];

fn is_changed(path: &Path) -> bool {
    fs::read(path).unwrap()[..4096] != BEFORE[..4096]
}

/// A program that has changed the first block of a file through a shared mapping, and keeps it mapped.
struct Mapper(Child);

impl Mapper {
    fn new(path: &Path) -> Self {
        fs::write(path, BEFORE).unwrap();
        File::open(path).unwrap().sync_all().unwrap();
        let mut command = Command::new("fio");
        command.args(["--name=map", "--ioengine=mmap", "--rw=write", "--bs=4k"]);
        command.args(["--thread", "--fallocate=none", "--size=64k"]);
        command.args(["--thinktime=600s", "--thinktime_blocks=1"]);
        command.arg(format!("--filename={}", path.display()));
        command.stdout(Stdio::null());
        let mapper = Self(command.spawn().unwrap());
        // Whoever opens and closes the file has the kernel hand over its pages.
        until("the file is changed", || mapper.has_changed(path));
        mapper
    }

    fn has_changed(&self, path: &Path) -> bool {
        let maps = fs::read_to_string(format!("/proc/{}/smaps", self.0.id())).unwrap_or_default();
        let of_file = maps.split_once(path.to_str().unwrap());
        let pages = of_file.and_then(|(_, rest)| rest.split_once("Private_Dirty:"));
        pages.is_some_and(|(_, rest)| rest.trim_start().starts_with("4 kB"))
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn sync_covers_what_is_mapped() {
    let scratch = Scratch::new();
    let image = image(&scratch, "mapped.img");
    let device = LoopDevice::attach(image.path(), false);
    for volume in [image.path(), device.path()] {
        // A loop device keeps its image from being mounted.
        let volume = match volume == image.path() {
            true => scratch.join("copy.img"),
            false => volume.to_owned(),
        };
        if !volume.exists() {
            fs::copy(image.path(), &volume).unwrap();
        }
        let mount = SteadMount::new(&scratch, &volume, "");
        let mapper = Mapper::new(&mount.join("file"));
        steadfs(["sync".as_ref(), mount.root().as_os_str()]).expect(0);
        mount.kill();
        drop(mapper);
        let mount = SteadMount::new(&scratch, &volume, "");
        assert!(is_changed(&mount.join("file")));
        mount.unmount();
    }
}

#[test]
fn an_image_is_closed_whatever_became_of_its_name() {
    type Change = fn(&Path);
    let scratch = Scratch::new();
    let changes: [Change; 3] = [
        |path| fs::rename(path, path.with_extension("moved")).unwrap(),
        |path| fs::remove_file(path).unwrap(),
        |path| {
            fs::rename(path, path.with_extension("replaced")).unwrap();
            fs::write(path, "something else").unwrap();
        },
    ];
    for (n, change) in (0..9).zip(changes.into_iter().cycle()) {
        let image = image(&scratch, &format!("{n}.img"));
        let opened = File::open(image.path()).unwrap();
        let mount = SteadMount::new(&scratch, image.path(), "");
        change(image.path());
        fs::write(mount.join("file"), vec![7; 4_000_000]).unwrap();
        umount(&mount).expect(0);
        opened
            .try_lock_shared()
            .expect("nobody has it open any more");
        assert_eq!(mount.wait(), 0);
    }
}

#[test]
fn another_mount_namespace_is_told_and_not_waited_for() {
    let scratch = Scratch::new();
    let image = image(&scratch, "shared.img");
    let mount = SteadMount::new(&scratch, image.path(), "");
    fs::write(mount.join("file"), b"content").unwrap();
    let mut other = Command::new("unshare");
    other.args(IN_NAMESPACE).args(["sleep", "600"]);
    let mut other = other.env("KEEP_MOUNT", mount.root()).spawn().unwrap();
    let namespace = |pid: &str| fs::metadata(format!("/proc/{pid}/ns/mnt")).map(|m| m.ino());
    let own = namespace("self").unwrap();
    until("it has a mount namespace", || {
        let comm = fs::read_to_string(format!("/proc/{}/comm", other.id()));
        comm.is_ok_and(|name| name.trim() == "sleep")
            && namespace(&other.id().to_string()).is_ok_and(|its| its != own)
    });
    let mut command = Command::new(program());
    command.arg("umount").arg(mount.root());
    let said = finish(command, SOON);
    let still_there = mounts_below(mount.root());
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(said.code(), 32, "{}", said.err);
    for words in [
        "waiting, for",
        "another mount namespace",
        &format!("process {}", other.id()),
    ] {
        assert!(said.err.contains(words), "{}", said.err);
    }
    assert!(still_there.is_empty());
    assert_eq!(mount.wait(), 0);
    image.check_clean();
}

/// Whoever asks twice does not lose what was written before he asked.
#[test]
fn a_second_signal_ends_a_busy_mount_without_loss() {
    let scratch = Scratch::new();
    let image = image(&scratch, "busy.img");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mount = SteadMount::new(&scratch, image.path(), "");
        let content = format!("{signal:?}").repeat(100_000);
        let mut open = File::create(mount.join("file")).unwrap();
        open.write_all(content.as_bytes()).unwrap();
        let mapper = Mapper::new(&mount.join("mapped"));
        mount.signal(signal);
        until("it leaves the tree", || {
            mounts_below(mount.root()).is_empty()
        });
        mount.signal(signal);
        assert_eq!(mount.wait(), 32);
        drop((open, mapper));
        let mount = SteadMount::new(&scratch, image.path(), "");
        assert!(fs::read(mount.join("file")).unwrap() == content.as_bytes());
        assert!(is_changed(&mount.join("mapped")));
        mount.unmount();
    }
}
