//! Mounting and unmounting as users see it: exit codes, durability points, limits, control files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use rustix::fs::{AtFlags, CWD, IFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};
use steadfs_suite::command::{PATIENCE, finish};
use steadfs_suite::scratch::{mounts_below, unmount_when_idle};
use steadfs_suite::stead::program;
use steadfs_suite::{
    Image, LoopDevice, Scratch, SteadMount, run, steadfs, steadfs_when_idle, succeed,
};

#[path = "mounts/files.rs"]
mod files;

const MIB: u64 = 1 << 20;

fn image(scratch: &Scratch) -> Image {
    Image::mke2fs(scratch, "a.img", 64 * MIB, &["-t", "ext4"])
}

/// The effective options, except for the transport, which the suite chooses, and the sandbox, in which all servers are.
fn options_of(mount: &SteadMount) -> String {
    let shown = fs::read_to_string(mount.join(".steadfs/options")).unwrap();
    let items = shown.trim_end().split(',');
    let items: Vec<_> = items
        .filter(|item| !item.starts_with("fuse_transport=") && *item != "sandbox=on")
        .collect();
    items.join(",")
}

/// Checks that mounting fails with this exit code and message.
#[track_caller]
fn refuses(args: &[&str], code: i32, words: &[&str]) {
    let output = steadfs(["mount"].iter().chain(args));
    assert_eq!(output.code(), code, "{args:?}: {}", output.err);
    for word in words {
        assert!(
            output.err.contains(word),
            "{args:?}: {word:?} is not in {:?}",
            output.err
        );
    }
    assert!(output.err.lines().count() <= 2, "{}", output.err);
}

#[test]
fn errors_have_the_exit_codes_of_mount_8() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let image = image.path().to_str().unwrap();
    let dir = scratch.folder("mnt");
    let dir = dir.to_str().unwrap();
    let zeros = Image::empty(&scratch, "zeros.img", MIB);
    let zeros = zeros.path().to_str().unwrap();
    let empty = Image::empty(&scratch, "empty.img", 0);
    let empty = empty.path().to_str().unwrap();

    refuses(
        &["-o", "noatme", image, dir],
        1,
        &["noatme", "did you mean noatime?"],
    );
    refuses(&["-o", "data=journal", image, dir], 1, &["data=ordered"]);
    refuses(&["-o", "commit=x", image, dir], 1, &["commit=x", "number"]);
    refuses(&["-o", "noload", image, dir], 1, &["noload", "ro"]);
    refuses(
        &["/no/such/image", dir],
        32,
        &["/no/such/image", "No such file"],
    );
    refuses(&[image, "/no/such/folder"], 32, &["/no/such/folder"]);
    refuses(&[image, image], 32, &["not a directory"]);
    refuses(&["/dev/null", dir], 32, &["character device"]);
    refuses(&[dir, dir], 32, &["directory"]);
    refuses(&[zeros, dir], 32, &["ext4"]);
    refuses(&[empty, dir], 32, &["is empty"]);
    refuses(&["-o", "offset=1M", image, dir], 32, &["ext4"]);
    refuses(&["-o", "offset=1G", image, dir], 32, &["offset"]);
    // A usage error: mount(8) returns 1, e2fsck(8) 16; e2fsck's 1 and 2 would mean repaired errors.
    for (words, code) in [
        (&["mount"][..], 1),
        (&["mount", "--bogus", image, dir], 1),
        (&["umount"], 1),
        (&["remount", dir], 1),
        (&["check"], 16),
        (&["check", "-o", "bogus", image], 16),
        (&["ls", "--bogus"], 2),
        (&["mount", "--help"], 0),
    ] {
        let output = steadfs(words);
        assert_eq!(output.code(), code, "{words:?}: {}", output.err);
    }
    let full = format!("{} check {image} >/dev/full", program().display());
    assert_eq!(run("sh", ["-c", &full]).code(), 8);
    assert!(mounts_below(scratch.path()).is_empty());
}

/// Types `answer` at a terminal to `steadfs format` of an image with content.
fn format_at_a_terminal(answer: &str, more: &str, image: &str) -> i32 {
    let line = format!("{} format -q {more} {image}", program().display());
    let typed = format!("echo {answer} | script -qec '{line}' /dev/null");
    run("sh", ["-c", &typed]).code()
}

#[test]
fn existing_content_is_not_overwritten_without_a_question() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let path = image.path().to_str().unwrap();
    let before = fs::read(image.path()).unwrap();
    assert_eq!(format_at_a_terminal("n", "", path), 1);
    assert!(fs::read(image.path()).unwrap() == before);
    assert_eq!(format_at_a_terminal("y", "-L asked", path), 0);
    assert_eq!(format_at_a_terminal("n", "--force -L forced", path), 0);
    assert!(steadfs(["inspect", path]).expect(0).out.contains("forced"));
    // Without a terminal there is no question, and none for an empty image.
    steadfs(["format", "-q", path]).expect(0);
    let zeros = Image::empty(&scratch, "zeros.img", 16 * MIB);
    let zeros = zeros.path().to_str().unwrap();
    assert_eq!(format_at_a_terminal("n", "", zeros), 0);

    // A refused format leaves no file.
    let new = scratch.join("new.img");
    let small = new.to_str().unwrap();
    for kind in ["ext4", "f2fs", "xfs"] {
        assert_ne!(steadfs(["format", "-t", kind, small, "20K"]).code(), 0);
        assert!(!new.exists(), "{kind}");
    }
    for (from, why) in [(zeros, "no tar archive"), ("/no/such/folder", "No such")] {
        let output = steadfs(["format", "-d", from, small, "64M"]);
        assert_eq!(output.code(), 1);
        assert!(
            output.err.contains(from) && output.err.contains(why),
            "{}",
            output.err
        );
        assert!(!new.exists(), "{from}");
    }
}

#[test]
fn a_volume_is_used_by_one_program_at_a_time() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let other = scratch.folder("other");
    let mount = SteadMount::new(&scratch, image.path(), "");
    let (path, dir) = (image.path().to_str().unwrap(), other.to_str().unwrap());
    refuses(&[path, dir], 32, &["in use", "steadfs"]);
    let output = steadfs(["cp", "/etc/hostname", &format!("{path}:/")]);
    assert_eq!(output.code(), 1);
    mount.unmount();
    let device = LoopDevice::attach(image.path(), false);
    refuses(&[path, dir], 32, &["loop device"]);
    // This mount has no path any more, and exists as long as the file is open.
    let (shown, hidden) = (device.path().to_str().unwrap(), scratch.folder("hidden"));
    let hidden = hidden.to_str().unwrap();
    run("mount", ["-t", "ext4", shown, hidden]).expect(0);
    let open = File::open(hidden).unwrap();
    run("umount", ["-l", hidden]).expect(0);
    refuses(&[shown, dir], 32, &["the kernel", "umount --lazy"]);
    drop(open);
    drop(device);
    SteadMount::new(&scratch, image.path(), "").unmount();
}

#[test]
fn the_background_begins_when_the_mount_is_usable() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let dir = scratch.folder("mnt");
    for _ in 0..5 {
        let output = steadfs(["mount".as_ref(), image.path().as_os_str(), dir.as_os_str()]);
        assert_eq!(output.code(), 0, "{}", output.err);
        fs::write(dir.join("file"), b"here").unwrap();
        let output = steadfs_when_idle(&["umount".as_ref(), dir.as_os_str()]);
        assert_eq!(output.code(), 0, "{}", output.err);
        // Closed when umount returns: there is no open file, and nothing left to write.
        image.check_clean();
        assert!(!image.needs_recovery());
    }
    let output = steadfs(["umount".as_ref(), dir.as_os_str()]);
    assert_eq!(output.code(), 32);
    assert!(
        output.err.contains("no steadfs volume is mounted"),
        "{}",
        output.err
    );
}

#[test]
fn a_busy_volume_stays_unless_it_is_lazy() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let mount = SteadMount::new(&scratch, image.path(), "");
    let mut open = File::create(mount.join("open")).unwrap();
    let output = steadfs(["umount".as_ref(), mount.root().as_os_str()]);
    assert_eq!(output.code(), 32);
    assert!(output.err.contains("busy"), "{}", output.err);
    let output = steadfs([
        "umount".as_ref(),
        "--lazy".as_ref(),
        mount.root().as_os_str(),
    ]);
    assert_eq!(output.code(), 0, "{}", output.err);
    open.write_all(b"still written").unwrap();
    drop(open);
    assert_eq!(mount.wait(), 0);
    image.check_clean();
    let output = steadfs(["cat", &format!("{}:/open", image.path().display())]);
    assert_eq!(output.out, "still written");
}

#[test]
fn the_mount_of_a_dead_server_is_reported_and_detached() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let mount = SteadMount::new(&scratch, image.path(), "");
    let dir = mount.root().to_owned();
    let words = ["mount".as_ref(), image.path().as_os_str(), dir.as_os_str()];
    fs::write(dir.join("file"), b"here").unwrap();
    File::open(dir.join("file")).unwrap().sync_all().unwrap();
    mount.signal(rustix::process::Signal::KILL);
    assert_ne!(mount.wait(), 0);
    let output = steadfs(words);
    assert_eq!(output.code(), 32, "{}", output.err);
    assert!(output.err.contains("unmount it first"), "{}", output.err);
    steadfs(["umount".as_ref(), dir.as_os_str()]).expect(0);
    steadfs(words).expect(0);
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"here");
    steadfs_when_idle(&["umount".as_ref(), dir.as_os_str()]).expect(0);
    image.check_clean();
}

#[test]
fn signals_unmount() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    use rustix::process::Signal;
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mount = SteadMount::new(&scratch, image.path(), "");
        fs::write(mount.join("file"), b"content").unwrap();
        mount.signal(signal);
        assert_eq!(mount.wait(), 0);
        assert!(mounts_below(scratch.path()).is_empty());
        image.check_clean();
        assert!(!image.needs_recovery());
    }
}

#[test]
fn block_devices_reach_durability_by_sync_and_umount() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let device = LoopDevice::attach(image.path(), true);
    let mount = SteadMount::new(&scratch, device.path(), "");
    let table = fs::read_to_string("/proc/mounts").unwrap();
    let line = format!(
        "{} {} fuseblk.steadfs",
        device.path().display(),
        mount.root().display()
    );
    assert!(table.contains(&line), "{table}");
    // The kernel has it open exclusively: no other program can open it.
    let other = scratch.folder("other");
    assert_ne!(run("mount", [device.path(), &other]).code(), 0);

    fs::write(mount.join("synced"), vec![7; 100_000]).unwrap();
    let folder = File::open(mount.root()).unwrap();
    rustix::fs::syncfs(&folder).unwrap();
    drop(folder);
    mount.kill();
    let mount = SteadMount::new(&scratch, device.path(), "");
    assert!(fs::read(mount.join("synced")).unwrap() == vec![7; 100_000]);
    fs::write(mount.join("last"), b"words").unwrap();
    // umount(8) returns when the volume is closed.
    unmount_when_idle(mount.root());
    image.check_clean();
    assert!(!image.needs_recovery());
    assert_eq!(mount.wait(), 0);
}

#[test]
fn read_only_mounts_change_nothing() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let mount = SteadMount::new(&scratch, image.path(), "");
    fs::write(mount.join("file"), b"content").unwrap();
    mount.unmount();
    let before = fs::read(image.path()).unwrap();
    let mount = SteadMount::new(&scratch, image.path(), "ro");
    assert_eq!(fs::read(mount.join("file")).unwrap(), b"content");
    let error = fs::write(mount.join("file"), b"x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    let error = fs::create_dir(mount.join("dir")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    // Several programs may read.
    let output = steadfs(["cat", &format!("{}:/file", image.path().display())]);
    assert_eq!(output.out, "content");
    mount.unmount();
    assert!(fs::read(image.path()).unwrap() == before);
}

#[test]
fn a_write_protected_device_is_mounted_read_only() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let mount = SteadMount::new(&scratch, image.path(), "");
    fs::write(mount.join("file"), "kept").unwrap();
    mount.unmount();
    let before = fs::read(image.path()).unwrap();
    let device = LoopDevice::attach_read_only(image.path());
    let device_name = device.path().to_str().unwrap();
    let mount = SteadMount::new(&scratch, device.path(), "");
    assert!(mount.log().contains("takes no writes"), "{}", mount.log());
    assert_eq!(fs::read(mount.join("file")).unwrap(), b"kept");
    let refused = fs::write(mount.join("file"), "new").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    let options = kernel_options(mount.root());
    assert!(options.split(',').any(|option| option == "ro"), "{options}");
    let refused = steadfs(["remount", "-o", "rw", &mount.root().display().to_string()]);
    assert_ne!(refused.code(), 0, "{refused:?}");
    mount.unmount();
    // An attempt to write gets the reason for the refusal.
    let refused = steadfs(["cp", "/etc/hostname", &format!("{device_name}:/")]);
    assert!(refused.err.contains("is write-protected"), "{refused:?}");
    drop(device);
    assert!(fs::read(image.path()).unwrap() == before);
}

/// As in /proc/mounts: what differs from the defaults, in a form that can be passed to a mount.
#[test]
fn mount_options_are_shown() {
    let scratch = Scratch::new();
    let disk = scratch.join("disk");
    let words = [
        "format",
        "-q",
        "-E",
        "offset=1M",
        disk.to_str().unwrap(),
        "64M",
    ];
    steadfs(words).expect(0);
    let given =
        "direct,offset=1M,sizelimit=64M,buffered,io_engine=threads,io_scheduler=fifo,commit=9";
    let mount = SteadMount::new(&scratch, &disk, given);
    let shown = "rw,relatime,commit=9,async_checkpoint=50,offset=1048576,sizelimit=67108864,io_engine=threads,buffered,\
                 io_scheduler=fifo";
    assert_eq!(options_of(&mount), shown);
    let file = mount.join(".steadfs/options");
    fs::write(&file, fs::read(&file).unwrap()).unwrap();
    for other in ["offset=2M", "direct", "io_engine=auto,commit=5"] {
        let error = fs::write(&file, other).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{other}: {error}");
    }
    assert_eq!(options_of(&mount), shown);
    mount.unmount();
    let mount = SteadMount::new(
        &scratch,
        &disk,
        "offset=1M,direct,io_engine=auto,sizelimit=0",
    );
    assert_eq!(
        options_of(&mount),
        "rw,relatime,async_checkpoint=50,offset=1048576"
    );
    mount.unmount();
}

#[test]
fn control_files_are_there_and_hidden() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let mount = SteadMount::new(&scratch, image.path(), "commit=7");
    let names: Vec<_> = fs::read_dir(mount.root())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["lost+found"]);
    let control = mount.join(".steadfs");
    let options = || options_of(&mount);
    assert_eq!(options(), "rw,relatime,commit=7,async_checkpoint=50");
    assert!(
        fs::read_to_string(control.join("jbd2/info"))
            .unwrap()
            .contains("transaction")
    );
    let stats = fs::read_to_string(control.join("io/stats.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&stats).unwrap();
    assert_eq!(fs::metadata(&control).unwrap().mode() & 0o777, 0o700);

    let remount = |list: &str| {
        steadfs([
            "remount".as_ref(),
            mount.root().as_os_str(),
            "-o".as_ref(),
            list.as_ref(),
        ])
    };
    assert_eq!(remount("noatime,commit=9").expect(0).out, "");
    assert_eq!(options(), "rw,noatime,commit=9,async_checkpoint=50");
    let output = remount("data=writeback");
    assert_eq!(output.code(), 32);
    assert_eq!(options(), "rw,noatime,commit=9,async_checkpoint=50");
    assert!(
        output.err.contains("unmount and mount again"),
        "{}",
        output.err
    );
    let output = remount("noatme");
    assert_eq!(output.code(), 1);
    assert!(
        output.err.contains("did you mean noatime?"),
        "{}",
        output.err
    );
    fs::write(mount.join("file"), b"after").unwrap();
    let output = steadfs(["sync".as_ref(), mount.root().as_os_str()]);
    assert_eq!(output.code(), 0, "{}", output.err);
    mount.kill();
    let mount = SteadMount::new(&scratch, image.path(), "nocontrol");
    assert_eq!(
        fs::read(mount.join("file")).unwrap(),
        b"after",
        "sync was durable"
    );
    assert!(!mount.join(".steadfs").exists());
    mount.unmount();
    image.check_clean();
}

/// A mount's options in /proc/mounts.
fn kernel_options(mount: &Path) -> String {
    let table = fs::read_to_string("/proc/mounts").unwrap();
    let place = mount.display().to_string();
    let line = table.lines().find(|l| l.split(' ').nth(1) == Some(&place));
    line.unwrap().split(' ').nth(3).unwrap().to_owned()
}

#[test]
fn a_frozen_mount_can_be_copied() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let mount = SteadMount::new(&scratch, image.path(), "");
    let freeze = mount.join(".steadfs/ext4/freeze");
    fs::write(mount.join("before"), "kept").unwrap();
    fs::write(&freeze, "1").unwrap();
    let refused = fs::create_dir(mount.join("during")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::BUSY.raw_os_error()));
    let copy = scratch.join("copy.img");
    fs::copy(image.path(), &copy).unwrap();
    run("e2fsck", ["-fn", copy.to_str().unwrap()]).expect(0);
    let kept = steadfs(["cat", &format!("{}:/before", copy.display())]);
    assert_eq!(kept.out, "kept");
    fs::write(&freeze, "0").unwrap();
    fs::create_dir(mount.join("after")).unwrap();
    mount.unmount();
    image.check_clean();
}

#[test]
fn a_mount_is_remounted_read_only_and_read_write() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    there_and_back(&scratch, &image, image.path(), "rw");
    there_and_back(&scratch, &image, image.path(), "ro");
    let device = LoopDevice::attach(image.path(), true);
    there_and_back(&scratch, &image, device.path(), "ro");
}

fn there_and_back(scratch: &Scratch, image: &Image, path: &Path, started: &str) {
    let mount = SteadMount::new(scratch, path, started);
    let remount = |list: &str| {
        let words = ["remount".as_ref(), mount.root().as_os_str(), "-o".as_ref()];
        steadfs(words.into_iter().chain([list.as_ref()]))
    };
    let options = || options_of(&mount);
    remount("rw").expect(0);
    assert!(kernel_options(mount.root()).starts_with("rw,"));
    let mut file = File::create(mount.join("file")).unwrap();
    file.write_all(b"content").unwrap();
    let output = remount("ro");
    assert_eq!(output.code(), 32);
    assert!(output.err.contains("open for writing"), "{}", output.err);
    drop(file);
    let open = File::open(mount.join("file")).unwrap();
    fs::remove_file(mount.join("file")).unwrap();
    let output = remount("ro");
    assert_eq!(output.code(), 32);
    assert!(
        output.err.contains("an unlinked file is still open"),
        "{}",
        output.err
    );
    assert!(options().starts_with("rw,"), "{}", options());
    assert!(kernel_options(mount.root()).starts_with("rw,"));
    drop(open);
    fs::write(mount.join("kept"), b"written").unwrap();
    let words = ["remount".as_ref(), mount.root().as_os_str(), "-o".as_ref()];
    let words = [&words[..], &["ro,noatime".as_ref()]].concat();
    steadfs_when_idle(&words).expect(0);
    assert_eq!(options(), "ro,noatime,async_checkpoint=50");
    assert!(kernel_options(mount.root()).starts_with("ro,noatime"));
    let error = fs::write(mount.join("kept"), b"not").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    image.check_clean();
    assert!(!image.needs_recovery());
    remount("commit=9").expect(0);
    remount("rw,relatime").expect(0);
    assert_eq!(options(), "rw,relatime,commit=9,async_checkpoint=50");
    assert_eq!(fs::read(mount.join("kept")).unwrap(), b"written");
    fs::write(mount.join("again"), b"writable").unwrap();
    mount.unmount();
    image.check_clean();
}

/// Flags that root has set, and no option of ours names.
#[test]
fn a_remount_keeps_flags_of_the_mount_point() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let mount = SteadMount::new(&scratch, image.path(), "");
    let flags = MountFlags::BIND | MountFlags::NOSYMFOLLOW | MountFlags::STRICTATIME;
    mount_remount(mount.root(), flags, "").unwrap();
    for (list, atime) in [
        ("commit=9", None),
        ("nosuid", None),
        ("noatime", Some("noatime")),
        ("relatime", Some("relatime")),
    ] {
        let words = ["remount".as_ref(), mount.root().as_os_str(), "-o".as_ref()];
        steadfs(words.into_iter().chain([list.as_ref()])).expect(0);
        let shown = kernel_options(mount.root());
        let flags: Vec<&str> = shown.split(',').collect();
        assert!(flags.contains(&"nosymfollow"), "{list}: {shown}");
        for flag in ["noatime", "relatime"] {
            assert_eq!(
                flags.contains(&flag),
                atime == Some(flag),
                "{list}: {shown}"
            );
        }
    }
    mount.unmount();
}

#[test]
fn mount_8_finds_its_helper() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let dir = scratch.folder("mnt");
    let call = |name: &str, args: &[&Path]| {
        let helper = scratch.join(name);
        if !helper.exists() {
            symlink(program(), &helper).unwrap();
        }
        let mut command = Command::new(helper);
        command.args(args);
        finish(command, PATIENCE)
    };
    let rw = [
        image.path(),
        &dir,
        "-n".as_ref(),
        "-o".as_ref(),
        "rw,noatime".as_ref(),
    ];
    call("mount.steadfs", &rw).expect(0);
    let table = fs::read_to_string("/proc/mounts").unwrap();
    assert!(
        table.contains(&format!("{} fuse.steadfs rw,noatime", dir.display())),
        "{table}"
    );
    let remount = [
        image.path(),
        &dir,
        "-o".as_ref(),
        "remount,commit=8".as_ref(),
    ];
    call("mount.fuse.steadfs", &remount).expect(0);
    let options = fs::read_to_string(dir.join(".steadfs/options")).unwrap();
    assert_eq!(
        options,
        "rw,noatime,commit=8,async_checkpoint=50,sandbox=on\n"
    );
    // One that is in use becomes read-only, as by umount(8).
    let open = File::open(&dir).unwrap();
    let done = call("umount.steadfs", &[&dir, "-r".as_ref()]).expect(0);
    assert!(done.err.contains("it is read-only now"), "{}", done.err);
    assert!(fs::write(dir.join("file"), "text").is_err());
    drop(open);
    call("umount.steadfs", &[&dir]).expect(0);
    image.check_clean();
    let wrong = [image.path(), &dir, "-o".as_ref(), "bogus".as_ref()];
    call("mount.steadfs", &wrong).expect(1);
}

#[test]
fn a_program_may_drop_a_volume_that_it_has_mounted() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let dir = scratch.folder("mnt");
    let options = steadfs::Options::default();
    let volume = steadfs::Volume::open(image.path()).unwrap();
    let mounted = steadfs::mount(&volume, &dir, &options).unwrap();
    drop(volume);
    fs::write(dir.join("file"), vec![7; 100_000]).unwrap();
    unmount_when_idle(&dir);
    mounted.wait().unwrap();
    image.check_clean();
    let volume = steadfs::Volume::open(image.path()).unwrap();
    assert_eq!(volume.read("/file").unwrap(), vec![7; 100_000]);
}
