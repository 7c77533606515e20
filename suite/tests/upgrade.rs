//! `steadfs upgrade`: the server of a mount is replaced while programs use the mount.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use steadfs_suite::command::{finish, run, until};
use steadfs_suite::scratch::mounts_below;
use steadfs_suite::stead::program;
use steadfs_suite::{Image, LoopDevice, Scratch, SteadMount, f2fs, steadfs};

const MIB: u64 = 1 << 20;
/// Contained, and by the transport whose requests another process can take.
const OPTIONS: &str = "sandbox=on,fuse_transport=dev";

fn volume(scratch: &Scratch, kind: &str) -> Image {
    match kind {
        "f2fs" => f2fs::mkfs(scratch, "a.img", 128 * MIB, "-q"),
        kind => Image::mke2fs(scratch, "a.img", 128 * MIB, &["-t", kind]),
    }
}

fn check(kind: &str, image: &Image) {
    match kind {
        "f2fs" => drop(f2fs::check_clean(image.path(), "after upgrades")),
        _ => image.check_clean(),
    }
}

/// Replaces the server; another process serves afterwards.
#[track_caller]
fn upgrade(mount: &SteadMount) {
    let before = mount.pid();
    steadfs(["upgrade".as_ref(), mount.root().as_os_str()]).expect(0);
    assert_ne!(mount.pid(), before, "the same process serves");
    assert_ne!(mount.pid(), mount.broker());
}

/// Writes files, makes some of them durable, and checks every byte of all of them, until `stop` is set.
fn work(dir: &Path, stop: &AtomicBool, rounds: &AtomicU32) {
    fs::create_dir(dir).unwrap();
    let content = |n: u32| n.to_string().repeat(5000 + n as usize % 1000);
    let mut last = 0;
    while !stop.load(Ordering::SeqCst) {
        let path = dir.join(format!("f{}", last % 40));
        let mut file = File::create(&path).unwrap();
        file.write_all(content(last).as_bytes()).unwrap();
        if last % 7 == 0 {
            file.sync_all().unwrap();
        }
        let renamed = dir.join(format!("r{}", last % 40));
        fs::rename(&path, &renamed).unwrap();
        let read = fs::read_to_string(&renamed).unwrap();
        assert_eq!(read, content(last), "{last}");
        let older = last.saturating_sub(39);
        let read = fs::read_to_string(dir.join(format!("r{}", older % 40))).unwrap();
        assert_eq!(read, content(older), "{older}");
        last += 1;
        rounds.store(last, Ordering::SeqCst);
    }
}

#[test]
fn programs_see_a_pause_and_lose_nothing() {
    for kind in ["ext4", "ext2", "f2fs"] {
        let scratch = Scratch::new();
        let image = volume(&scratch, kind);
        let mount = SteadMount::new(&scratch, image.path(), OPTIONS);
        let held = mount.join("held");
        let held = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(held);
        let held = held.unwrap();
        fs::remove_file(mount.join("held")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let workers: Vec<_> = (0..4)
            .map(|n| {
                let (dir, stop) = (mount.join(&format!("w{n}")), Arc::clone(&stop));
                let rounds = Arc::new(AtomicU32::new(0));
                let seen = Arc::clone(&rounds);
                (std::thread::spawn(move || work(&dir, &stop, &seen)), rounds)
            })
            .collect();
        for n in 0..12_u64 {
            held.write_all_at(&[n as u8; 10_000], n * 10_000).unwrap();
            upgrade(&mount);
            for (_, rounds) in &workers {
                let before = rounds.load(Ordering::SeqCst);
                until("a program goes on", || {
                    rounds.load(Ordering::SeqCst) > before
                });
            }
        }
        stop.store(true, Ordering::SeqCst);
        for (worker, _) in workers {
            worker.join().unwrap();
        }
        let mut all = Vec::new();
        (&held).read_to_end(&mut all).unwrap();
        let expected: Vec<u8> = (0..12).flat_map(|n| [n; 10_000]).collect();
        assert!(all == expected, "{kind}: an unlinked file");
        drop(held);
        mount.unmount();
        check(kind, &image);
    }
}

#[test]
fn a_block_device_and_its_options_are_continued() {
    let scratch = Scratch::new();
    let image = volume(&scratch, "ext4");
    let device = LoopDevice::attach(image.path(), true);
    let mount = SteadMount::new(&scratch, device.path(), OPTIONS);
    fs::write(mount.join("file"), "text").unwrap();
    let remount = |list: &str| {
        let root = mount.root().to_str().unwrap();
        steadfs(["remount", root, "-o", list]).expect(0);
    };
    let options = || fs::read_to_string(mount.join(".steadfs/options")).unwrap();
    remount("noatime,commit=17");
    upgrade(&mount);
    assert!(
        options().contains("noatime") && options().contains("commit=17"),
        "{}",
        options()
    );
    remount("ro");
    upgrade(&mount);
    assert!(options().starts_with("ro,"), "{}", options());
    assert!(fs::write(mount.join("no"), "x").is_err());
    assert_eq!(fs::read_to_string(mount.join("file")).unwrap(), "text");
    remount("rw");
    upgrade(&mount);
    fs::write(mount.join("file"), "new").unwrap();
    mount.unmount();
    drop(device);
    image.check_clean();
}

#[test]
fn a_mount_that_was_read_only_is_continued_for_writing() {
    let scratch = Scratch::new();
    let image = volume(&scratch, "ext4");
    let options = format!("ro,{OPTIONS}");
    let mount = SteadMount::new(&scratch, image.path(), &options);
    let root = mount.root().to_str().unwrap();
    steadfs(["remount", root, "-o", "rw"]).expect(0);
    upgrade(&mount);
    fs::write(mount.join("file"), "text").unwrap();
    upgrade(&mount);
    assert_eq!(fs::read_to_string(mount.join("file")).unwrap(), "text");
    steadfs(["remount", root, "-o", "ro"]).expect(0);
    mount.unmount();
    image.check_clean();
}

#[test]
fn what_cannot_be_replaced_says_why_and_serves_on() {
    let scratch = Scratch::new();
    let image = volume(&scratch, "f2fs");
    let refused = |mount: &SteadMount, why: &str| {
        let output = steadfs(["upgrade".as_ref(), mount.root().as_os_str()]);
        assert_eq!(output.code(), 32, "{}", output.err);
        assert!(output.err.contains(why), "{}", output.err);
        fs::write(mount.join("file"), why).unwrap();
        assert_eq!(fs::read_to_string(mount.join("file")).unwrap(), why);
    };
    let mount = SteadMount::new(&scratch, image.path(), "sandbox=off,fuse_transport=dev");
    refused(&mount, "sandbox=off");
    mount.unmount();
    let mount = SteadMount::new(&scratch, image.path(), OPTIONS);
    fs::write(mount.join(".steadfs/f2fs/freeze"), "1").unwrap();
    let output = steadfs(["upgrade".as_ref(), mount.root().as_os_str()]);
    assert!(output.err.contains("busy"), "{}", output.err);
    fs::write(mount.join(".steadfs/f2fs/freeze"), "0").unwrap();
    let root = mount.root().to_str().unwrap();
    steadfs(["remount", root, "-o", "checkpoint=disable"]).expect(0);
    refused(&mount, "checkpoints are disabled");
    steadfs(["remount", root, "-o", "checkpoint=enable"]).expect(0);
    upgrade(&mount);
    assert!(mount.join("file").exists());
    mount.unmount();
    check("f2fs", &image);
}

/// A copy of the program that a test replaces.
fn install(scratch: &Scratch) -> std::path::PathBuf {
    let copy = scratch.join("steadfs");
    fs::copy(program(), &copy).unwrap();
    copy
}

fn mount_by(program: &Path, image: &Path, root: &Path) {
    let mut command = Command::new(program);
    command.args(["mount", "-o", OPTIONS]).arg(image).arg(root);
    finish(command, Duration::from_secs(60)).expect(0);
}

#[test]
fn the_old_program_continues_if_the_new_one_cannot() {
    for broken in ["exits", "is no program", "is gone"] {
        let scratch = Scratch::new();
        let image = volume(&scratch, "ext4");
        let installed = install(&scratch);
        let root = scratch.folder("mnt");
        mount_by(&installed, image.path(), &root);
        fs::write(root.join("file"), "text").unwrap();
        let held = File::open(root.join("file")).unwrap();
        fs::remove_file(root.join("file")).unwrap();
        fs::remove_file(&installed).unwrap();
        match broken {
            "exits" => symlink("/bin/false", &installed).unwrap(),
            "is no program" => {
                fs::write(&installed, [0; 100]).unwrap();
                fs::set_permissions(&installed, fs::Permissions::from_mode(0o755)).unwrap();
            }
            _ => {}
        }
        steadfs(["upgrade".as_ref(), root.as_os_str()]).expect(0);
        let mut text = String::new();
        (&held).read_to_string(&mut text).unwrap();
        assert_eq!(text, "text", "{broken}");
        fs::write(root.join("new"), "text").unwrap();
        drop(held);
        steadfs(["umount".as_ref(), root.as_os_str()]).expect(0);
        image.check_clean();
    }
}

/// The mount goes on with the image that it has open, and no server opens the one that has its name now.
#[test]
fn an_image_that_was_replaced_is_not_taken_for_the_mounted_one() {
    let scratch = Scratch::new();
    let image = Image::mke2fs(&scratch, "a.img", 16 * MIB, &["-t", "ext4"]);
    let other = Image::mke2fs(&scratch, "b.img", 16 * MIB, &["-t", "ext4"]);
    let options = "takeover=on,fuse_transport=dev";
    let mount = SteadMount::new(&scratch, image.path(), options);
    fs::write(mount.join("file"), "text").unwrap();
    let before = fs::read(other.path()).unwrap();
    fs::rename(other.path(), image.path()).unwrap();
    let root = mount.root().to_owned();
    let refused = steadfs(["upgrade".as_ref(), root.as_os_str()]).expect(32);
    let why = "another file has this name now";
    assert!(refused.err.contains(why), "{}", refused.err);
    assert_eq!(fs::read_to_string(root.join("file")).unwrap(), "text");
    fs::write(root.join("more"), "text").unwrap();

    let server = Pid::from_raw(i32::try_from(mount.pid()).unwrap()).unwrap();
    kill_process(server, Signal::KILL).unwrap();
    until("the mount is dead", || {
        fs::write(root.join("new"), "x").is_err()
    });
    assert_ne!(mount.wait(), 0);
    run("umount", ["-l".as_ref(), root.as_os_str()]);
    let after = fs::read(image.path()).unwrap();
    assert!(after == before, "the other image was changed");
}

#[test]
fn signals_and_kills_find_the_successor() {
    let scratch = Scratch::new();
    let image = volume(&scratch, "ext4");
    let mount = SteadMount::new(&scratch, image.path(), OPTIONS);
    upgrade(&mount);
    fs::write(mount.join("file"), "text").unwrap();
    mount.signal(Signal::TERM);
    assert_eq!(mount.wait(), 0);
    image.check_clean();

    let mount = SteadMount::new(&scratch, image.path(), OPTIONS);
    let file = File::open(mount.join("file")).unwrap();
    upgrade(&mount);
    file.sync_all().unwrap();
    let root = mount.root().to_owned();
    let server = Pid::from_raw(i32::try_from(mount.pid()).unwrap()).unwrap();
    kill_process(server, Signal::KILL).unwrap();
    // No server continues: calls fail, and none waits.
    until("the mount is dead", || {
        fs::write(root.join("new"), "x").is_err()
    });
    drop(file);
    assert_ne!(mount.wait(), 0);
    run("umount", ["-l".as_ref(), root.as_os_str()]);
    until("the mount is gone", || mounts_below(&root).is_empty());
    image.replay_by_e2fsck();
    image.check_clean();
}
