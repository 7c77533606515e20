//! `steadfs service`: mounts by a mounter of libfuse's protocol, and the files in packaging/.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::OFlags;
use rustix::net::SendFlags;
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open,
};
use steadfs_suite::command::{judge, run, succeed, until};
use steadfs_suite::scratch::{IN_NAMESPACE, mounts_below, unmount_when_idle};
use steadfs_suite::stead::program;
use steadfs_suite::{Image, LoopDevice, Scratch, f2fs, steadfs};

#[path = "service/mounter.rs"]
mod mounter;
#[path = "service/systemd.rs"]
mod systemd;

use mounter::{Mounted, ROOT, USER};

const MIB: u64 = 1 << 20;
const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging");

/// What starts a server for each connection, and its log. Killed when dropped.
struct Activation {
    process: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl Activation {
    /// systemd's own listener, with servers as ordinary users without rights and without a network, as the unit has it.
    fn new(scratch: &Scratch) -> Self {
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let copy = scratch.join("steadfs");
        // By a process of its own: what this one has open for writing cannot be executed.
        succeed("cp", [program(), &copy]);
        let (socket, log) = (scratch.join("service"), scratch.join("service.log"));
        let words = "--seqpacket --accept unshare --net setpriv --reuid=61234 --regid=61234 --clear-groups \
            --no-new-privs --inh-caps=-all --bounding-set=-all";
        let mut command = Command::new(judge("systemd-socket-activate"));
        command
            .arg("--listen")
            .arg(&socket)
            .args(words.split_whitespace());
        command.arg(copy).arg("service");
        let err = File::create(&log).unwrap();
        let process = command.stdin(Stdio::null()).stderr(err).spawn().unwrap();
        until("the socket exists", || socket.exists());
        Self {
            process,
            socket,
            log,
        }
    }

    fn mount(&self, flags: u32, words: &[&str]) -> Mounted {
        mounter::mount(&self.socket, flags, words)
    }

    /// Mounts `volume` on a folder; returns the folder.
    fn mounted(&self, scratch: &Scratch, volume: &Path, options: &str) -> PathBuf {
        let dir = scratch.folder("mnt");
        let (volume, place) = (volume.to_str().unwrap(), dir.to_str().unwrap());
        let mounted = self.mount(ROOT, &[volume, place, "-o", options]);
        assert_eq!(mounted.code, Some(0), "{mounted:?}\n{}", self.log());
        dir
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// The servers that run.
    fn servers(&self) -> Vec<u32> {
        children(self.process.id())
    }

    /// The process of a server that reads the volume, a child of the one that was started.
    fn reader(&self) -> u32 {
        let readers = children(self.servers()[0]);
        assert_eq!(readers.len(), 1, "{readers:?}");
        readers[0]
    }

    /// Unmounts, and waits until the server has ended without an error.
    fn unmount(&self, dir: &Path) {
        unmount_when_idle(dir);
        let ended = || self.log().matches(" died with code ").count();
        let started = self.log().matches("Spawned ").count();
        until("the server has ended", || ended() == started);
        let log = self.log();
        let last = log
            .lines()
            .rev()
            .find(|line| line.contains(" died with code "));
        assert!(last.is_some_and(|line| line.ends_with("code 0")), "{log}");
    }
}

impl Drop for Activation {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn children(process: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    let children = children.unwrap();
    let pids = children.split_whitespace().map(|pid| pid.parse().unwrap());
    pids.collect()
}

fn volumes(scratch: &Scratch) -> [Image; 2] {
    let images = [
        Image::mke2fs(scratch, "a.img", 64 * MIB, &["-t", "ext4"]),
        f2fs::mkfs(scratch, "b.img", 64 * MIB, "-q"),
    ];
    for image in &images {
        // The server may not open it.
        fs::set_permissions(image.path(), fs::Permissions::from_mode(0o600)).unwrap();
    }
    images
}

fn check(image: &Image) {
    match image.path().ends_with("b.img") {
        true => drop(succeed("fsck.f2fs", [image.path()])),
        false => image.check_clean(),
    }
}

/// Files are made, synced, read and removed.
fn works(dir: &Path) {
    for n in 0..20_u8 {
        let path = dir.join(format!("file{n}"));
        fs::write(&path, vec![n; 10_000]).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        assert_eq!(fs::read(&path).unwrap(), vec![n; 10_000]);
        fs::remove_file(path).unwrap();
    }
    fs::write(dir.join("kept"), "content").unwrap();
}

fn kind_of_mount(dir: &Path) -> String {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let place = dir.to_str().unwrap();
    let line = table
        .lines()
        .find(|line| line.split(' ').nth(1) == Some(place));
    line.unwrap().split(' ').nth(2).unwrap().to_owned()
}

/// A server has no rights of its own, and the process that reads the volume is contained.
fn has_no_rights(activation: &Activation) {
    let reader = activation.reader();
    for process in [activation.servers()[0], reader] {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        for line in [
            "CapPrm:\t0000000000000000",
            "CapEff:\t0000000000000000",
            "NoNewPrivs:\t1",
        ] {
            assert!(status.contains(line), "{line}: {status}");
        }
        assert!(!status.contains("Uid:\t0"), "{status}");
        assert_eq!(
            status.contains("Seccomp:\t2"),
            process == reader,
            "{status}"
        );
    }
}

/// The processes that are started for connections.
fn started(activation: &Activation) -> Vec<u32> {
    let servers = activation.servers();
    let readers: Vec<u32> = servers.iter().flat_map(|pid| children(*pid)).collect();
    [servers, readers].concat()
}

/// Sends `message` through each socket of a process, as an attacker in it could. Returns how many sockets took it.
fn send_as(process: u32, message: &[u8]) -> usize {
    let pid = Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    let pid = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    let mut taken = 0;
    for entry in fs::read_dir(format!("/proc/{process}/fd")).unwrap() {
        let entry = entry.unwrap();
        let link = fs::read_link(entry.path()).unwrap();
        if !link.to_str().unwrap().starts_with("socket:") {
            continue;
        }
        let number = entry.file_name().to_str().unwrap().parse().unwrap();
        let socket = pidfd_getfd(&pid, number, PidfdGetfdFlags::empty()).unwrap();
        taken += usize::from(rustix::net::send(&socket, message, SendFlags::NOSIGNAL).is_ok());
    }
    taken
}

/// The mounter opens any path with any flags for the process at the other end of its socket.
#[test]
fn the_process_that_reads_a_volume_cannot_reach_the_mounter() {
    let scratch = Scratch::new();
    let activation = Activation::new(&scratch);
    let [image, _] = volumes(&scratch);
    let (dir, victim) = (scratch.folder("mnt"), scratch.join("victim"));
    fs::write(&victim, "content").unwrap();
    let socket = mounter::connect(&activation.socket);
    let words = [image.path(), &dir].map(|path| path.to_str().unwrap());
    let _device = mounter::greet(&socket, ROOT, &words);
    // What follows the volume's opening is the mount: then the volume has been read.
    assert_eq!(&mounter::open_files(&socket)[..4], b"TYPE");
    let contained = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status"));
        status.unwrap().contains("Seccomp:\t2")
    };
    let mut readers = started(&activation);
    readers.retain(contained);
    assert_eq!(readers.len(), 1, "{readers:?}");
    let truncate = mounter::opening(&victim, OFlags::WRONLY | OFlags::TRUNC);
    assert_ne!(send_as(readers[0], &truncate), 0, "no sockets");
    // What was sent to the mounter is here.
    assert_eq!(mounter::receive_now(&socket), None);
    drop(socket);
    until("the server has ended", || activation.servers().is_empty());
    assert!(mounts_below(scratch.path()).is_empty());
}

#[test]
fn images_and_block_devices_are_served() {
    let scratch = Scratch::new();
    let activation = Activation::new(&scratch);
    for image in volumes(&scratch) {
        let dir = activation.mounted(&scratch, image.path(), "noexec");
        assert_eq!(kind_of_mount(&dir), "fuse.steadfs");
        has_no_rights(&activation);
        works(&dir);
        activation.unmount(&dir);
        check(&image);
        let device = LoopDevice::attach(image.path(), true);
        let dir = activation.mounted(&scratch, device.path(), "noexec");
        assert_eq!(kind_of_mount(&dir), "fuseblk.steadfs");
        assert_eq!(fs::read(dir.join("kept")).unwrap(), b"content");
        works(&dir);
        activation.unmount(&dir);
        drop(device);
        check(&image);
    }
    assert!(
        !activation.log().contains("incomplete"),
        "{}",
        activation.log()
    );
}

#[test]
fn two_mounts_have_two_servers() {
    let scratch = Scratch::new();
    let activation = Activation::new(&scratch);
    let [a, b] = volumes(&scratch);
    let other = scratch.folder("other");
    let dir = activation.mounted(&scratch, a.path(), "rw");
    let words = [b.path().to_str().unwrap(), other.to_str().unwrap()];
    assert_eq!(activation.mount(ROOT, &words).code, Some(0));
    assert_eq!(activation.servers().len(), 2);
    works(&dir);
    works(&other);
    // In use by the first server.
    let words = [a.path().to_str().unwrap(), other.to_str().unwrap()];
    assert_eq!(activation.mount(ROOT, &words).code, Some(32));
    assert!(
        activation.log().contains("in use by"),
        "{}",
        activation.log()
    );
    unmount_when_idle(&other);
    steadfs(["umount".as_ref(), dir.as_os_str()]).expect(0);
    until("the servers have ended", || activation.servers().is_empty());
    check(&a);
    check(&b);
}

/// Flags of the mounter, its arguments, its exit code, and the message.
fn refusals<'a>(
    image: &'a str,
    noise: &'a str,
    dir: &'a str,
    missing: &'a str,
) -> Vec<(u32, Vec<&'a str>, u32, &'static str)> {
    vec![
        (
            ROOT,
            vec![image, dir, "-o", "sandbox=off"],
            1,
            "option sandbox=off: a service is always contained",
        ),
        (
            ROOT,
            vec![image, dir, "-o", "remount,noatime"],
            1,
            "option remount: a service cannot",
        ),
        (
            ROOT,
            vec![image, dir, "-f"],
            1,
            "-f: a service always mounts",
        ),
        (
            ROOT,
            vec![image, dir, "-o", "noatme"],
            1,
            "did you mean noatime",
        ),
        (
            USER,
            vec![image, dir, "-o", "allow_other"],
            1,
            "option allow_other: the mounter allows it to root only",
        ),
        (
            ROOT,
            vec!["UUID=1-2", dir],
            1,
            "UUID=1-2: a service sees no devices",
        ),
        (ROOT, vec![image], 1, "called without a path"),
        (ROOT, vec![missing, dir], 32, "missing: No such file"),
        (
            ROOT,
            vec![image, missing],
            32,
            "the mount point: Not a directory",
        ),
        (
            ROOT,
            vec![noise, dir],
            32,
            "no ext2, ext3, ext4 or f2fs volume",
        ),
        (ROOT, vec![dir, dir], 32, "Is a directory"),
        (ROOT, vec!["/dev/null", dir], 32, "is a character device"),
    ]
}

#[test]
fn what_a_service_cannot_do_is_refused_by_name() {
    let scratch = Scratch::new();
    let activation = Activation::new(&scratch);
    let [image, _] = volumes(&scratch);
    let noise = Image::empty(&scratch, "noise.img", MIB);
    fs::write(noise.path(), [0xa5; 8192]).unwrap();
    let (dir, missing) = (scratch.folder("mnt"), scratch.join("missing"));
    let [image, noise, dir, missing] =
        [image.path(), noise.path(), &dir, &missing].map(|path| path.to_str().unwrap());
    for (flags, words, code, wanted) in refusals(image, noise, dir, missing) {
        let before = activation.log().len();
        let mounted = activation.mount(flags, &words);
        let log = activation.log()[before..].to_owned();
        assert_eq!(mounted.code, Some(code), "{words:?}: {log}");
        assert!(log.contains(wanted), "{words:?}: {log}");
    }
    assert!(mounts_below(scratch.path()).is_empty());
    until("the servers have ended", || activation.servers().is_empty());
    // Started by hand.
    let output = steadfs(["service"]);
    assert_eq!(output.code(), 1);
    assert!(
        output.err.contains("needs the socket of a mounter"),
        "{}",
        output.err
    );
}

#[test]
fn a_mount_is_not_administered() {
    let scratch = Scratch::new();
    let activation = Activation::new(&scratch);
    let [image, _] = volumes(&scratch);
    let dir = activation.mounted(&scratch, image.path(), "ro");
    let place = dir.to_str().unwrap();
    for words in [
        &["remount", place, "-o", "noatime"][..],
        &["upgrade", place],
        &["tune", place],
    ] {
        let output = steadfs(words);
        assert_ne!(output.code(), 0, "{words:?}");
        assert!(
            output.err.contains("is a service"),
            "{words:?}: {}",
            output.err
        );
    }
    assert!(
        fs::read_to_string(dir.join(".steadfs/options"))
            .unwrap()
            .contains("sandbox=on")
    );
    activation.unmount(&dir);
}

#[test]
fn a_device_that_takes_no_writes_is_mounted_read_only() {
    let scratch = Scratch::new();
    let activation = Activation::new(&scratch);
    let [image, _] = volumes(&scratch);
    let device = LoopDevice::attach_read_only(image.path());
    let dir = scratch.folder("mnt");
    let words = [device.path().to_str().unwrap(), dir.to_str().unwrap()];
    let with_w = [&words[..], &["-w"]].concat();
    assert_eq!(activation.mount(ROOT, &with_w).code, Some(32));
    assert_eq!(activation.mount(ROOT, &words).code, Some(0));
    assert!(fs::write(dir.join("new"), "x").is_err());
    assert!(
        activation.log().contains("mounted read-only"),
        "{}",
        activation.log()
    );
    activation.unmount(&dir);
    drop(device);
    // Known only when the volume is read.
    succeed(
        "tune2fs",
        ["-O", "read-only", image.path().to_str().unwrap()],
    );
    let words = [image.path().to_str().unwrap(), dir.to_str().unwrap()];
    let with_w = [&words[..], &["-w"]].concat();
    assert_eq!(activation.mount(ROOT, &with_w).code, Some(32));
    assert_eq!(activation.mount(ROOT, &words).code, Some(0));
    let why = "mounted read-only: made to be read only";
    assert!(activation.log().contains(why), "{}", activation.log());
    assert!(fs::write(dir.join("new"), "x").is_err());
    activation.unmount(&dir);
}

/// The kernel opens a block device as such for root only: the server's own claim stays.
#[test]
fn mounts_of_an_ordinary_user_are_private() {
    let scratch = Scratch::new();
    let activation = Activation::new(&scratch);
    let [image, _] = volumes(&scratch);
    let dir = scratch.folder("mnt");
    let device = LoopDevice::attach(image.path(), true);
    for volume in [image.path(), device.path()] {
        let words = [volume, &dir].map(|path| path.to_str().unwrap());
        let mounted = activation.mount(USER, &words);
        if volume == image.path() {
            // In use by the loop device.
            assert_eq!(mounted.code, Some(32), "{mounted:?}");
            continue;
        }
        assert_eq!(mounted.code, Some(0), "{mounted:?}\n{}", activation.log());
        assert_eq!(kind_of_mount(&dir), "fuse.steadfs");
        assert!(!mounted.options.contains("allow_other"), "{mounted:?}");
        works(&dir);
        assert!(dir.join(".steadfs/options").metadata().is_ok());
        let output = run("mount", [volume, &scratch.folder("other")]);
        assert!(
            output.err.contains("busy") || output.err.contains("already mounted"),
            "{}",
            output.err
        );
        activation.unmount(&dir);
    }
    drop(device);
    check(&image);
}

/// The service manager cannot unmount: the server writes everything, and serves on.
#[test]
fn a_stop_makes_everything_durable() {
    let scratch = Scratch::new();
    let activation = Activation::new(&scratch);
    let [image, _] = volumes(&scratch);
    let dir = activation.mounted(&scratch, image.path(), "commit=3600");
    fs::write(dir.join("file"), "durable").unwrap();
    let server = i32::try_from(activation.servers()[0]).unwrap();
    let server = Pid::from_raw(server).unwrap();
    let reader = activation.reader();
    kill_process(server, Signal::TERM).unwrap();
    until("the server has written", || {
        activation.log().contains("everything is written")
    });
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"durable");
    kill_process(server, Signal::KILL).unwrap();
    until("the server has ended", || {
        activation.servers().is_empty() && !Path::new(&format!("/proc/{reader}")).exists()
    });
    succeed("umount", [dir.as_os_str()]);
    let dir = activation.mounted(&scratch, image.path(), "rw");
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"durable");
    activation.unmount(&dir);
    check(&image);
}

/// The server may not watch opens of the image, nor open the loop device.
#[test]
fn a_loop_device_on_the_image_ends_its_use() {
    let scratch = Scratch::new();
    let activation = Activation::new(&scratch);
    let [image, _] = volumes(&scratch);
    let dir = activation.mounted(&scratch, image.path(), "rw");
    fs::write(dir.join("before"), "x").unwrap();
    let file = File::create(dir.join("file")).unwrap();
    file.sync_all().unwrap();
    let device = LoopDevice::attach(image.path(), true);
    fs::write(dir.join("file"), "y").unwrap();
    assert!(
        file.sync_all().is_err(),
        "acknowledged what the kernel may overwrite"
    );
    drop(file);
    let words = [image.path().to_str().unwrap(), dir.to_str().unwrap()];
    unmount_when_idle(&dir);
    until("the server has ended", || activation.servers().is_empty());
    assert_eq!(activation.mount(ROOT, &words).code, Some(32));
    assert!(
        activation.log().contains("the loop device"),
        "{}",
        activation.log()
    );
    drop(device);
}

#[test]
fn a_mounter_that_ends_early_ends_its_server() {
    let scratch = Scratch::new();
    let activation = Activation::new(&scratch);
    let [image, _] = volumes(&scratch);
    let dir = scratch.folder("mnt");
    drop(mounter::connect(&activation.socket));
    let socket = mounter::connect(&activation.socket);
    mounter::send(&socket, b"FATS\0\x01\0\x01\0\0\0\0", &[]);
    drop(socket);
    let socket = mounter::connect(&activation.socket);
    let words = [image.path().to_str().unwrap(), dir.to_str().unwrap()];
    drop(mounter::greet(&socket, ROOT, &words));
    assert_eq!(&mounter::receive(&socket)[..4], b"OPEN");
    drop(socket);
    until("three servers have ended", || {
        activation.log().matches("died with code 2").count() == 3
    });
    assert!(activation.servers().is_empty());
    assert!(mounts_below(scratch.path()).is_empty());
}

/// Options that udisks2 passes, by default or because a user asks for them.
#[test]
fn options_of_udisks_are_taken() {
    let file = fs::read_to_string(format!("{PACKAGING}/udisks2/mount_options.conf")).unwrap();
    let mut lines = file
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    assert_eq!(lines.next(), Some("[defaults]"));
    let mut checked = Vec::new();
    for line in lines {
        let (key, list) = line.split_once('=').unwrap();
        if let Some(kind) = key.strip_suffix("_drivers") {
            assert_eq!(list, format!("steadfs,{kind}"));
            continue;
        }
        let (kind, key) = key.split_once(":steadfs_").unwrap();
        assert!(["defaults", "allow"].contains(&key), "{line}");
        let kind = match kind {
            "f2fs" => steadfs::Kind::F2fs,
            _ => steadfs::Kind::Ext4,
        };
        for item in list.split(',').filter(|item| !item.is_empty()) {
            let item = match item {
                "commit" => "commit=5",
                "background_gc" => "background_gc=on",
                item => item,
            };
            let list = format!("nosuid,nodev,uhelper=udisks2,{item}");
            steadfs::Options::check_items(&list, Some(kind)).unwrap();
            checked.push(item);
        }
    }
    assert!(checked.len() > 10, "{checked:?}");
}
