//! Mounts with `sandbox=on`: a broker, and a server without rights.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use steadfs_suite::command::until;
use steadfs_suite::command::{run, succeed};
use steadfs_suite::scratch::mounts_below;
use steadfs_suite::{Image, LoopDevice, Scratch, SteadMount, f2fs, steadfs};

const MIB: u64 = 1 << 20;

fn volume(scratch: &Scratch, kind: &str) -> Image {
    match kind {
        "f2fs" => f2fs::mkfs(scratch, "a.img", 64 * MIB, "-q"),
        kind => Image::mke2fs(scratch, "a.img", 64 * MIB, &["-t", kind]),
    }
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// A line of a process's status.
fn status(pid: u32, label: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(label));
    line.unwrap().trim().to_owned()
}

/// Whether a process has ended, whether or not its parent knows.
fn has_exited(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    status.map_or(true, |status| status.contains("State:\tZ"))
}

/// Files are made, read, renamed and removed; the checker finds nothing afterwards.
fn works(mount: &SteadMount) {
    let dir = mount.join("dir");
    fs::create_dir(&dir).unwrap();
    for n in 0..50 {
        fs::write(dir.join(format!("file{n}")), vec![n; 10_000]).unwrap();
    }
    fs::File::open(dir.join("file7"))
        .unwrap()
        .sync_all()
        .unwrap();
    fs::rename(dir.join("file7"), dir.join("renamed")).unwrap();
    assert_eq!(fs::read(dir.join("renamed")).unwrap(), [7; 10_000]);
    fs::remove_file(dir.join("file8")).unwrap();
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 49);
}

#[test]
fn the_server_has_no_rights_over_the_host() {
    for kind in ["ext4", "f2fs"] {
        let scratch = Scratch::new();
        let image = volume(&scratch, kind);
        let mount = SteadMount::new(&scratch, image.path(), "sandbox=on");
        let shown = fs::read_to_string(mount.join(".steadfs/options")).unwrap();
        assert!(shown.contains("sandbox=on"), "{shown}");
        works(&mount);
        let server = mount.pid();
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(status(server, set), "0000000000000000", "{set}");
        }
        assert_eq!(status(server, "NoNewPrivs:"), "1");
        assert_eq!(status(server, "Seccomp:"), "2");
        let users: Vec<u32> = status(server, "Uid:")
            .split_whitespace()
            .map(|uid| uid.parse().unwrap())
            .collect();
        assert!(users.iter().all(|uid| *uid > 1_879_048_192), "{users:?}");
        assert_eq!(status(server, "Groups:"), "");
        let network = |pid| fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
        assert_ne!(network(server), network(std::process::id()));
        // Every thread, not only the first.
        for task in fs::read_dir(format!("/proc/{server}/task")).unwrap() {
            let task = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            assert!(task.contains("CapEff:\t0000000000000000"), "{task}");
            assert!(task.contains("Seccomp:\t2"), "{task}");
        }
        mount.unmount();
    }
}

#[test]
fn a_block_device_and_a_read_only_one_are_served() {
    let scratch = Scratch::new();
    let image = volume(&scratch, "ext4");
    let device = LoopDevice::attach(image.path(), true);
    let mount = SteadMount::new(&scratch, device.path(), "sandbox=on");
    works(&mount);
    mount.unmount();
    drop(device);
    let device = LoopDevice::attach_read_only(image.path());
    let dir = scratch.folder("ro");
    let words = ["mount", "-o", "sandbox=on"].map(AsRef::as_ref);
    let output = steadfs(
        words
            .into_iter()
            .chain([device.path().as_os_str(), dir.as_os_str()]),
    );
    assert_eq!(output.code(), 0, "{}", output.err);
    assert!(output.err.contains("mounted read-only"), "{}", output.err);
    assert_eq!(fs::read(dir.join("dir/renamed")).unwrap(), [7; 10_000]);
    assert!(fs::write(dir.join("new"), "x").is_err());
    steadfs(["umount".as_ref(), dir.as_os_str()]).expect(0);
}

#[test]
fn errors_are_those_of_a_server_without_a_broker() {
    let scratch = Scratch::new();
    let image = volume(&scratch, "ext4");
    let noise = Image::empty(&scratch, "noise.img", MIB);
    fs::write(noise.path(), [0xa5; 8192]).unwrap();
    let dir = scratch.folder("mnt");
    let (image, noise) = (
        image.path().to_str().unwrap(),
        noise.path().to_str().unwrap(),
    );
    let missing = scratch.path().join("missing");
    let dir = dir.to_str().unwrap();
    for (args, wanted) in [
        (vec![noise, dir], "no ext2, ext3, ext4 or f2fs volume"),
        (vec![missing.to_str().unwrap(), dir], "No such file"),
        (vec![image, missing.to_str().unwrap()], "No such file"),
        (vec!["-t", "f2fs", image, dir], "is an ext4 volume"),
        (vec!["-t", "xfs", image, dir], "not served here"),
        (vec![image, image], "not a directory"),
    ] {
        let results = ["on", "off"].map(|sandbox| {
            let options = format!("sandbox={sandbox}");
            let output = steadfs(["mount", "-o", &options].iter().chain(&args));
            assert!(output.err.contains(wanted), "{args:?}: {}", output.err);
            (output.code(), output.err)
        });
        assert_eq!(results[0], results[1], "{args:?}");
        assert_ne!(results[0].0, 0, "{args:?}");
    }
    assert!(mounts_below(scratch.path()).is_empty());
}

/// To name the options that do not suit the kind of volume, a process with all rights would have to read it.
#[test]
fn refused_options_are_reported_without_reading_the_volume() {
    let scratch = Scratch::new();
    let image = volume(&scratch, "ext4");
    let dir = scratch.folder("mnt");
    for (sandbox, names_misfits) in [("off", true), ("on", false)] {
        let options = format!("sandbox={sandbox},atgc,nonsense");
        let words = ["mount".as_ref(), "-o".as_ref(), options.as_ref()];
        let paths = [image.path().as_os_str(), dir.as_os_str()];
        let output = steadfs(words.into_iter().chain(paths));
        assert_eq!(output.code(), 1, "{}", output.err);
        assert!(output.err.contains("nonsense"), "{}", output.err);
        assert_eq!(output.err.contains("atgc"), names_misfits, "{}", output.err);
    }
}

#[test]
fn signals_to_the_broker_unmount_and_to_the_server_do_not() {
    let scratch = Scratch::new();
    let image = volume(&scratch, "ext4");
    for name in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mount = SteadMount::new(&scratch, image.path(), "sandbox=on");
        fs::write(mount.join("file"), b"content").unwrap();
        let server = mount.pid();
        signal(server, name);
        assert_eq!(fs::read(mount.join("file")).unwrap(), b"content");
        mount.signal(name);
        assert_eq!(mount.wait(), 0);
        until("the server has ended", || has_exited(server));
        assert!(mounts_below(scratch.path()).is_empty());
        image.check_clean();
        assert!(!image.needs_recovery());
    }
}

#[test]
fn neither_process_survives_the_other() {
    let scratch = Scratch::new();
    let image = volume(&scratch, "ext4");
    for kills_broker in [true, false] {
        let mount = SteadMount::new(&scratch, image.path(), "sandbox=on");
        fs::write(mount.join("file"), b"durable").unwrap();
        fs::File::open(mount.join("file"))
            .unwrap()
            .sync_all()
            .unwrap();
        let (server, dir) = (mount.pid(), mount.root().to_owned());
        match kills_broker {
            true => mount.signal(Signal::KILL),
            false => signal(server, Signal::KILL),
        }
        let (code, log) = mount.wait_with_log();
        assert_ne!(code, 0);
        if !kills_broker {
            assert!(log.contains("signal=9"), "{log}");
        }
        until("the server has ended", || has_exited(server));
        assert!(fs::read(dir.join("file")).is_err());
        // The broker removes it if the server had not reported yet that it is usable.
        if mounts_below(&dir).contains(&dir) {
            succeed("umount", [dir.to_str().unwrap()]);
        }
        let mount = SteadMount::new(&scratch, image.path(), "sandbox=on");
        assert_eq!(fs::read(mount.join("file")).unwrap(), b"durable");
        mount.unmount();
    }
}

/// What a server asks about callers is answered by the broker.
#[test]
fn callers_have_the_rights_that_they_have_without_a_broker() {
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let image = volume(&scratch, "f2fs");
    let mount = SteadMount::new(&scratch, image.path(), "sandbox=on");
    let options = mount.join(".steadfs/options");
    let options = options.to_str().unwrap();
    // Root administers the volume, root without capabilities and other users do not.
    fs::write(options, "noatime").unwrap();
    let bare = [
        "--bounding-set=-all",
        "--inh-caps=-all",
        "--ambient-caps=-all",
    ];
    let write = ["sh", "-c", "echo atime > \"$0\"", options];
    assert_ne!(run("setpriv", bare.iter().chain(&write)).code(), 0);
    let user = ["--reuid=1000", "--regid=1000", "--clear-groups"];
    assert_ne!(run("setpriv", user.iter().chain(&write)).code(), 0);
    assert!(fs::read_to_string(options).unwrap().contains("noatime"));
    // The mode of a shutdown is read from the caller's memory.
    let root = mount.root().to_str().unwrap().to_owned();
    succeed("f2fs_io", ["shutdown", "1", &root]);
    assert!(fs::write(mount.join("after"), "x").is_err());
    succeed("umount", [&root]);
    assert_eq!(
        mount.wait(),
        32,
        "the result of closing a volume that was shut down"
    );
}

#[test]
fn a_read_only_mount_is_remounted_for_writing() {
    let scratch = Scratch::new();
    for kind in ["ext4", "f2fs"] {
        let image = volume(&scratch, kind);
        let device = LoopDevice::attach(image.path(), true);
        remounts(&scratch, device.path());
        drop(device);
        remounts(&scratch, image.path());
    }
}

/// From read-only to writable, while no other program reads the volume.
fn remounts(scratch: &Scratch, volume: &Path) {
    let mount = SteadMount::new(scratch, volume, "sandbox=on,ro");
    let root = mount.root().to_str().unwrap();
    assert!(fs::write(mount.join("early"), "x").is_err());
    // While another program reads the volume it cannot be written, as without a sandbox.
    let mut reader = Command::new("flock");
    reader.args(["--shared", "--no-fork"]).arg(volume);
    reader
        .args(["sh", "-c", "echo; exec sleep 600"])
        .stdout(Stdio::piped());
    let mut reader = reader.spawn().unwrap();
    let mut started = [0];
    reader
        .stdout
        .take()
        .unwrap()
        .read_exact(&mut started)
        .unwrap();
    let refused = steadfs(["remount", "-o", "rw", root]);
    assert!(refused.err.contains("in use by"), "{}", refused.err);
    reader.kill().unwrap();
    reader.wait().unwrap();
    steadfs(["remount", "-o", "rw", root]).expect(0);
    works(&mount);
    steadfs(["remount", "-o", "ro", root]).expect(0);
    assert!(fs::write(mount.join("late"), "x").is_err());
    steadfs(["remount", "-o", "rw", root]).expect(0);
    fs::remove_dir_all(mount.join("dir")).unwrap();
    mount.unmount();
}
