//! Multiple-mount protection against the kernel and e2fsprogs: two loop devices on one image are two nodes with a shared
//! device. All waits of 11 s run beside each other; the rules of waiting are tested in virtual time
//! (`crates/ext4/src/node_lock/tests.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use steadfs_suite::command::{run, wait};
use steadfs_suite::stead::program;
use steadfs_suite::{Image, KernelMount, LoopDevice, Scratch, SteadMount, steadfs, succeed};

const MIB: u64 = 1 << 20;
/// Time in which a volume that is clean is mounted.
const AT_ONCE: Duration = Duration::from_secs(5);
/// The wait for a node that does not update the block.
const WAIT: Duration = Duration::from_secs(11);

fn make(scratch: &Scratch, name: &str) -> Image {
    let args = ["-t", "ext4", "-O", "mmp", "-E", "mmp_update_interval=1"];
    Image::mke2fs(scratch, name, 64 * MIB, &args)
}

/// The sequence number, as dumpe2fs prints it.
fn sequence(image: &Image) -> String {
    let dump = succeed("dumpe2fs", ["-h".as_ref(), image.path().as_os_str()]).out;
    let line = dump.lines().find(|line| line.contains("mmp_sequence:"));
    line.unwrap().split(' ').next_back().unwrap().to_owned()
}

/// The kernel refuses what steadfs has mounted, and mounts it at once after the unmount.
fn mounted_by_steadfs(scratch: &Scratch) {
    let image = make(scratch, "ours.img");
    let device = LoopDevice::attach(image.path(), false);
    let mount = SteadMount::new(scratch, device.path(), "");
    fs::write(mount.join("file"), "of steadfs").unwrap();
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let dump = run("dumpe2fs", ["-m".as_ref(), image.path().as_os_str()]);
            assert!(dump.err.contains("currently active"), "{}", dump.err);
            assert!(dump.err.contains("loop"), "{}", dump.err);
        });
        let refused = KernelMount::attempt(scratch, image.path(), "");
        let refused = refused.err().unwrap();
        assert!(refused.err.contains("busy"), "{}", refused.err);
        assert!(began.elapsed() >= WAIT, "{:?}", began.elapsed());
    });
    fs::write(mount.join("later"), "of steadfs").unwrap();
    mount.unmount();
    drop(device);

    assert_eq!(sequence(&image), "0xff4d4d50");
    image.check_clean();
    let began = Instant::now();
    let kernel = KernelMount::new(scratch, image.path(), "");
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    assert_eq!(fs::read(kernel.join("later")).unwrap(), b"of steadfs");
    kernel.unmount();
    image.check_clean();
}

/// Refused by the node that the kernel's mount names.
fn refused_for(words: &str) {
    let node = succeed("uname", ["-n"]).out;
    assert!(words.contains("in use by node"), "{words}");
    assert!(
        words.contains(node.trim()) && words.contains("device loop"),
        "{words}"
    );
    assert!(words.contains("unmount it there"), "{words}");
}

/// A mount that waits for another node ends at a signal.
fn interrupted(scratch: &Scratch, image: &Image) {
    let device = LoopDevice::attach(image.path(), false);
    let mut mount = Command::new(program())
        .args(["mount", "--foreground"])
        .args([device.path(), &scratch.folder("interrupted")])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(mount.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("waiting for")));
    kill_process(Pid::from_child(&mount), Signal::TERM).unwrap();
    let ended = wait(&mut mount, AT_ONCE).expect("it does not wait for the other node");
    assert_eq!(ended.signal(), Some(Signal::TERM.as_raw()), "{ended}");
}

/// What the kernel has mounted is refused by a mount and by all commands that write, and can be read.
fn mounted_by_the_kernel(scratch: &Scratch) {
    let image = make(scratch, "kernel.img");
    let kernel = KernelMount::new(scratch, image.path(), "");
    fs::write(kernel.join("file"), "of the kernel").unwrap();
    succeed("sync", ["-f".as_ref(), kernel.root().as_os_str()]);
    let script = scratch.join("script");
    fs::write(&script, "mkdir /x\n").unwrap();
    let command = |words: &[&str], after: &[&Path]| {
        let device = LoopDevice::attach(image.path(), false);
        let path = device.path().to_str().unwrap();
        let words = words.iter().map(|word| word.replace("DEV", path).into());
        let words: Vec<std::ffi::OsString> = words
            .chain(after.iter().map(|path| path.as_os_str().into()))
            .collect();
        let done = steadfs(&words);
        assert_eq!(done.code(), 1, "{words:?}: {}", done.err);
        assert!(done.err.contains("waiting for"), "{words:?}: {}", done.err);
        refused_for(&done.err);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| interrupted(scratch, &image));
        scope.spawn(|| command(&["mkdir", "DEV:/x"], &[]));
        scope.spawn(|| command(&["edit", "DEV"], &[&script]));
        scope.spawn(|| command(&["format", "-F", "DEV"], &[]));
        scope.spawn(|| command(&["format", "-t", "f2fs", "--force", "DEV"], &[]));
        scope.spawn(|| {
            let device = LoopDevice::attach(image.path(), false);
            let (code, words) = SteadMount::attempt(scratch, device.path(), "")
                .err()
                .unwrap();
            assert_eq!(code, 32, "{words}");
            refused_for(&words);
            let mount = SteadMount::new(scratch, device.path(), "ro");
            assert_eq!(fs::read(mount.join("file")).unwrap(), b"of the kernel");
            mount.unmount();
            let shown = steadfs(["inspect".as_ref(), device.path().as_os_str()]).expect(0);
            assert!(
                shown.out.contains("in use (or not unmounted) by node"),
                "{}",
                shown.out
            );
        });
    });
    kernel.unmount();
    image.check_clean();
}

#[test]
fn a_volume_is_mounted_by_one_node() {
    let scratch = Scratch::new();
    std::thread::scope(|scope| {
        scope.spawn(|| mounted_by_steadfs(&scratch));
        scope.spawn(|| mounted_by_the_kernel(&scratch));
    });
}

/// On a volume that is not in use no command waits.
#[test]
fn commands_take_and_release_the_volume() {
    let scratch = Scratch::new();
    let image = make(&scratch, "volume.img");
    let path = image.path().display();
    let script = scratch.join("script");
    fs::write(
        &script,
        "mkdir /of-a-script\nput /etc/hostname /of-a-script\n",
    )
    .unwrap();
    let script = script.to_str().unwrap();
    // It may have to be built first.
    program();
    let began = Instant::now();
    for words in [
        &["mkdir", &format!("{path}:/dir")][..],
        &["cp", "/etc/hostname", &format!("{path}:/dir")],
        &["edit", &path.to_string(), script],
        &["rm", "-r", &format!("{path}:/of-a-script")],
        &["edit", "--copy", &path.to_string(), script],
    ] {
        steadfs(words).expect(0);
        assert_eq!(sequence(&image), "0xff4d4d50", "{words:?}");
        image.check_clean();
    }
    let mount = SteadMount::new(&scratch, image.path(), "ro");
    assert!(mount.join("dir/hostname").exists() && mount.join("of-a-script/hostname").exists());
    mount.unmount();
    steadfs(["check", &path.to_string()]).expect(0);
    steadfs(["format", "-q", "-F", &path.to_string()]).expect(0);
    assert!(began.elapsed() < WAIT, "{:?}", began.elapsed());
}
