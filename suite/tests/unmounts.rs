//! What `steadfs sync` and `steadfs umount` guarantee in difficult cases: everything is durable and the image is
//! closed, or the exception is reported.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use steadfs_suite::command::{finish, succeed, until};
use steadfs_suite::scratch::{IN_NAMESPACE, mounts_below};
use steadfs_suite::stead::program;
use steadfs_suite::{Image, LoopDevice, Outcome, Scratch, SteadMount, steadfs, steadfs_when_idle};

const MIB: u64 = 1 << 20;
/// Longest time of an unmount that has nothing to wait for.
const SOON: Duration = Duration::from_secs(60);

fn image(scratch: &Scratch, name: &str) -> Image {
    Image::mke2fs(scratch, name, 64 * MIB, &["-t", "ext4"])
}

fn umount(mount: &SteadMount) -> Outcome {
    steadfs_when_idle(&["umount".as_ref(), mount.root().as_os_str()])
}

/// The line of `steadfs list` about a mount, and its object of the JSON document.
fn listed(mount: &SteadMount) -> (String, String) {
    let of = |text: String, parts: &str| {
        let root = mount.root().to_str().unwrap().to_owned();
        let found = text.split(parts).find(|part| part.contains(&root));
        found.expect("it is listed").to_owned()
    };
    let lines = steadfs(["list"]).expect(0).out;
    let json = steadfs(["list", "--json"]).expect(0).out;
    (of(lines, "\n"), of(json, "},"))
}

#[test]
fn a_list_shows_mounts_of_servers_that_have_ended_or_hang() {
    let scratch = Scratch::new();
    let image = image(&scratch, "a.img");
    let mount = SteadMount::new(&scratch, image.path(), "ro");
    let (line, json) = listed(&mount);
    // Other mounts make the columns wider.
    let words: Vec<&str> = line.split_whitespace().collect();
    let (root, path) = (
        mount.root().to_str().unwrap(),
        image.path().to_str().unwrap(),
    );
    assert_eq!(words[..3], [root, path, "ext4"], "{line}");
    assert!(line.ends_with("read-only, ok"), "{line}");
    for field in ["\"type\": \"ext4\"", "\"state\": \"ok\"", "\"errors\": []"] {
        assert!(json.contains(field), "{field}: {json}");
    }
    mount.unmount();

    let f2fs = steadfs_suite::f2fs::mkfs(&scratch, "b.img", 64 * MIB, "");
    let mount = SteadMount::new(&scratch, f2fs.path(), "sandbox=off");
    assert!(listed(&mount).1.contains("\"type\": \"f2fs\""));
    mount.stop();
    let (line, json) = listed(&mount);
    assert!(line.ends_with("its server does not answer"), "{line}");
    assert!(json.contains("\"state\": \"silent\""), "{json}");
    mount.signal(Signal::KILL);
    until("the mount is listed as one without a server", || {
        listed(&mount).1.contains("\"state\": \"gone\"")
    });
    mount.kill();
}

/// A user with read permission waits for the image's lock, and gets it as soon as the server has closed the image.
#[test]
fn a_readers_lock_delays_neither_unmount_nor_the_next_mount() {
    const NOBODY: u32 = 65_534;
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let image = image(&scratch, "a.img");
    fs::set_permissions(image.path(), fs::Permissions::from_mode(0o644)).unwrap();
    let mount = SteadMount::new(&scratch, image.path(), "");
    fs::write(mount.join("f"), "x").unwrap();
    let mut reader = Command::new("flock");
    reader.args(["--no-fork", "-x"]).arg(image.path());
    let mut reader = reader.args(["sleep", "600"]).uid(NOBODY).spawn().unwrap();
    let waits = format!("-> FLOCK  ADVISORY  WRITE {} ", reader.id());
    until("the reader waits for the lock", || {
        fs::read_to_string("/proc/locks").unwrap().contains(&waits)
    });
    let mut command = Command::new(program());
    command.arg("umount").arg(mount.root());
    finish(command, SOON).expect(0);
    assert_eq!(mount.wait(), 0);
    let comm = format!("/proc/{}/comm", reader.id());
    until("the reader has the lock", || {
        fs::read_to_string(&comm).unwrap() == "sleep\n"
    });
    let mount = SteadMount::new(&scratch, image.path(), "");
    assert_eq!(fs::read(mount.join("f")).unwrap(), b"x");
    assert!(mount.log().contains("(sleep)"), "{}", mount.log());
    let second = scratch.folder("second");
    let words = ["mount", "-o", "ro"].map(std::ffi::OsStr::new);
    let output = steadfs(
        words
            .into_iter()
            .chain([image.path().as_os_str(), second.as_os_str()]),
    );
    assert!(
        output.code() != 0 && output.err.contains("in use by"),
        "{}",
        output.err
    );
    let mut command = Command::new(program());
    command.arg("umount").arg(mount.root());
    finish(command, SOON).expect(0);
    assert_eq!(mount.wait(), 0);
    reader.kill().unwrap();
    reader.wait().unwrap();
    image.check_clean();
}

#[test]
fn a_mount_whose_server_is_being_killed_is_unmounted() {
    for round in 0..12 {
        let scratch = Scratch::new();
        let image = image(&scratch, "a.img");
        let transport = ["uring", "dev"][round % 2];
        let mount = SteadMount::new(
            &scratch,
            image.path(),
            &format!("fuse_transport={transport}"),
        );
        mount.signal(Signal::KILL);
        let output = umount(&mount);
        assert_eq!(output.code(), 0, "{transport}: {}", output.err);
        mount.wait();
    }
}

/// The lock of the image is that of another server by then.
#[test]
fn a_mount_without_a_server_is_unmounted_while_its_image_is_mounted_elsewhere() {
    let scratch = Scratch::new();
    let image = image(&scratch, "a.img");
    let dead = SteadMount::new(&scratch, image.path(), "");
    dead.signal(Signal::KILL);
    let second = scratch.folder("second");
    let places = [image.path().as_os_str(), second.as_os_str()];
    let mount = || steadfs(["mount".as_ref()].into_iter().chain(places)).code();
    until("the image is mounted again", || mount() == 0);
    let mut command = Command::new(program());
    command.arg("umount").arg(dead.root());
    let output = finish(command, SOON).expect(0);
    assert!(
        output.err.contains("its server had ended"),
        "{}",
        output.err
    );
    dead.wait();
    steadfs(["umount".as_ref(), second.as_os_str()]).expect(0);
    image.check_clean();
}

/// Initial content of mapped files; the program changes the first block.
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
        // Opening and closing the file makes the kernel write back its pages.
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
        // It may have exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn sync_covers_shared_mappings() {
    let scratch = Scratch::new();
    let image = image(&scratch, "mapped.img");
    let device = LoopDevice::attach(image.path(), false);
    for volume in [image.path(), device.path()] {
        // An image behind a loop device cannot be mounted.
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
fn an_image_is_closed_when_umount_returns_even_if_renamed() {
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
        opened.try_lock_shared().expect("the image is closed");
        assert_eq!(mount.wait(), 0);
    }
}

/// Fills the log of the volume at `root`, and takes the end of its device away, to which closing it would write that.
fn take_the_end_away(root: &Path, image: &Image, device: &LoopDevice) {
    for n in 0..40 {
        fs::create_dir(root.join(n.to_string())).unwrap();
    }
    steadfs(["sync".as_ref(), root.as_os_str()]).expect(0);
    let file = File::options().write(true).open(image.path()).unwrap();
    file.set_len(100 * MIB).unwrap();
    succeed("losetup", ["-c".as_ref(), device.path().as_os_str()]);
}

/// The kernel discards the result of an unmount: the server passes it on another way.
#[test]
fn errors_while_a_volume_is_closed_are_reported() {
    let scratch = Scratch::new();
    let image = Image::mke2fs(&scratch, "cut.img", 512 * MIB, &["-t", "ext4"]);
    let device = LoopDevice::attach(image.path(), false);
    let mount = SteadMount::new(&scratch, device.path(), "");
    take_the_end_away(mount.root(), &image, &device);
    let output = umount(&mount);
    assert_eq!(output.code(), 32, "{}", output.err);
    assert!(
        output.err.contains("cannot close the volume cleanly: "),
        "{}",
        output.err
    );
    assert!(mounts_below(mount.root()).is_empty());
    assert_eq!(mount.wait(), 32);
}

/// umount(8)'s `-r` is for a mount that is in use: any other failure stays one, and changes no other mount.
#[test]
fn a_mount_below_one_that_cannot_be_closed_stays_writable() {
    let scratch = Scratch::new();
    let below = image(&scratch, "below.img");
    let mount = SteadMount::new(&scratch, below.path(), "");
    let above = Image::mke2fs(&scratch, "cut.img", 512 * MIB, &["-t", "ext4"]);
    let device = LoopDevice::attach(above.path(), false);
    let words = [
        "mount".as_ref(),
        device.path().as_os_str(),
        mount.root().as_os_str(),
    ];
    steadfs(words).expect(0);
    take_the_end_away(mount.root(), &above, &device);
    let mut command = Command::new(program());
    command.arg0("umount.steadfs").arg("-r").arg(mount.root());
    let output = finish(command, SOON).expect(32);
    assert!(
        output.err.contains("cannot close the volume cleanly: "),
        "{}",
        output.err
    );
    fs::write(mount.join("file"), "text").unwrap();
    mount.unmount();
    below.check_clean();
}

/// An unmount does not wait for a volume that stays mounted elsewhere.
#[test]
fn a_volume_with_two_mount_points_stays_at_the_other() {
    let scratch = Scratch::new();
    let image = image(&scratch, "two.img");
    let mount = SteadMount::new(&scratch, image.path(), "");
    let other = scratch.folder("other");
    let places = [mount.root(), &other];
    succeed("mount", ["--bind".as_ref()].into_iter().chain(places));
    fs::write(mount.join("file"), "content").unwrap();
    umount(&mount).expect(0);
    assert_eq!(fs::read(other.join("file")).unwrap(), b"content");
    steadfs_when_idle(&["umount".as_ref(), other.as_os_str()]).expect(0);
    assert_eq!(mount.wait(), 0);
    image.check_clean();
}

#[test]
fn a_mount_in_another_namespace_is_reported_and_not_waited_for() {
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
    let output = finish(command, SOON);
    let still_there = mounts_below(mount.root());
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(output.code(), 32, "{}", output.err);
    for words in [
        "waiting, for",
        "another mount namespace",
        &format!("process {}", other.id()),
    ] {
        assert!(output.err.contains(words), "{}", output.err);
    }
    assert!(still_there.is_empty());
    assert_eq!(mount.wait(), 0);
    image.check_clean();
}

/// Sends SIGTERM until the broker has ended: what comes within a second of the first signal has no effect.
fn end_by_another_signal(mount: &SteadMount) {
    let stat = format!("/proc/{}/stat", mount.broker());
    until("the broker has ended", || {
        mount.signal(Signal::TERM);
        fs::read_to_string(&stat).unwrap().contains(") Z ")
    });
}

/// A terminal that is closed sends SIGHUP twice: by the shell, and by the kernel.
#[test]
fn two_signals_of_one_event_lose_nothing() {
    let scratch = Scratch::new();
    let image = image(&scratch, "a.img");
    let mount = SteadMount::new(&scratch, image.path(), "");
    let content = vec![7; 20 << 20];
    fs::write(mount.join("file"), &content).unwrap();
    // While the first one waits for the server, which has not written everything.
    mount.stop();
    mount.signal(Signal::HUP);
    mount.wait_for_log("another SIGTERM or SIGINT ends this at once");
    mount.signal(Signal::HUP);
    std::thread::sleep(Duration::from_millis(100));
    mount.proceed();
    assert_eq!(mount.wait(), 0);
    let mount = SteadMount::new(&scratch, image.path(), "");
    assert!(fs::read(mount.join("file")).unwrap() == content);
    mount.unmount();
}

/// A second signal ends a busy mount that the first one has detached, and loses nothing that was written before.
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
        until("the mount is detached", || {
            mounts_below(mount.root()).is_empty()
        });
        end_by_another_signal(&mount);
        assert_eq!(mount.wait(), 32);
        drop((open, mapper));
        let mount = SteadMount::new(&scratch, image.path(), "");
        assert!(fs::read(mount.join("file")).unwrap() == content.as_bytes());
        assert!(is_changed(&mount.join("mapped")));
        mount.unmount();
    }
}

/// Commands that act on a mount by its path reach that mount, or none.
#[test]
fn a_covered_mount_is_reported_and_both_stay() {
    let scratch = Scratch::new();
    let (below, above) = (image(&scratch, "below.img"), image(&scratch, "above.img"));
    let mount = SteadMount::new(&scratch, below.path(), "");
    fs::write(mount.join("file"), b"below").unwrap();
    let open = File::open(mount.join("file")).unwrap();
    steadfs([
        "mount".as_ref(),
        above.path().as_os_str(),
        mount.root().as_os_str(),
    ])
    .expect(0);
    fs::write(mount.join("file"), b"above").unwrap();
    let both = [mount.root(), mount.root()];
    for words in [
        &["umount"][..],
        &["umount", "--lazy"],
        &["umount", "--force"],
        &["sync"],
        &["remount", "-o", "ro"],
        &["tune"],
    ] {
        let words = words.iter().map(std::ffi::OsStr::new);
        let output = steadfs(words.chain([below.path().as_os_str()]));
        assert_eq!(output.code(), 32, "{}", output.err);
        assert!(output.err.contains("is covered by"), "{}", output.err);
        assert!(
            output.err.contains("above.img (fuse.steadfs)"),
            "{}",
            output.err
        );
        assert_eq!(mounts_below(mount.root()), both);
    }
    mount.signal(Signal::TERM);
    mount.wait_for_log("above.img (fuse.steadfs)");
    assert_eq!(mounts_below(mount.root()), both);
    assert_eq!(fs::read(mount.join("file")).unwrap(), b"above");
    steadfs_when_idle(&["umount".as_ref(), above.path().as_os_str()]).expect(0);
    above.check_clean();
    // The server has waited for this; the volume is in use again.
    until("the other mount is detached", || {
        mounts_below(mount.root()).is_empty()
    });
    drop(open);
    assert_eq!(mount.wait(), 0);
    below.check_clean();
}

/// The first signal waits for a server that does not answer; the second one does not.
#[test]
fn a_mount_whose_server_hangs_ends_at_the_second_signal() {
    let scratch = Scratch::new();
    let image = image(&scratch, "a.img");
    let mount = SteadMount::new(&scratch, image.path(), "");
    fs::write(mount.join("file"), b"content").unwrap();
    mount.stop();
    let root = mount.root().to_owned();
    end_by_another_signal(&mount);
    assert_eq!(mount.wait(), 32);
    succeed("umount", ["-l".as_ref(), root.as_os_str()]);
}

/// A second signal ends the server, and loses nothing that was written before it.
#[test]
fn a_mount_covered_by_a_foreign_one_ends_at_the_second_signal() {
    let scratch = Scratch::new();
    let image = image(&scratch, "below.img");
    let folder = Scratch::new();
    // Over the mount point itself, and over a folder above it: then the path does not exist.
    for parent in [false, true] {
        let mount = SteadMount::new(&folder, image.path(), "");
        fs::write(mount.join("file"), b"content").unwrap();
        let mapper = Mapper::new(&mount.join("mapped"));
        let root = mount.root().to_owned();
        let over = if parent { folder.path() } else { &root };
        let over = over.as_os_str();
        succeed(
            "mount",
            ["-t".as_ref(), "tmpfs".as_ref(), "foreign".as_ref(), over],
        );
        for name in [&*root, image.path()] {
            let output = steadfs(["umount".as_ref(), name.as_os_str()]);
            assert_eq!(output.code(), 32, "{}", output.err);
            assert!(output.err.contains("foreign (tmpfs) on"), "{}", output.err);
        }
        mount.signal(Signal::TERM);
        std::thread::sleep(Duration::from_secs(1));
        let tables = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(tables.contains(&format!("foreign {} tmpfs", over.to_str().unwrap())));
        end_by_another_signal(&mount);
        assert_eq!(mount.wait(), 32);
        drop(mapper);
        succeed("umount", [over]);
        succeed("umount", ["-l".as_ref(), root.as_os_str()]);
        let mount = SteadMount::new(&folder, image.path(), "");
        assert_eq!(fs::read(mount.join("file")).unwrap(), b"content");
        assert!(is_changed(&mount.join("mapped")));
        mount.unmount();
    }
}
