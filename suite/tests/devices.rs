//! Devices that fail under a mounted volume: the errors that programs get, what the volume does, and how it ends.
//!
//! The device is a loop device or an image over a file on a small tmpfs. Where the file has holes and the tmpfs is
//! full, writes fail: with EIO through a loop device, with ENOSPC on the file.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use steadfs_suite::scratch::unmount_when_idle;
use steadfs_suite::{
    Image, LoopDevice, Outcome, Scratch, SteadMount, steadfs, steadfs_when_idle, succeed,
};

const MIB: u64 = 1 << 20;

/// The part of the device that cannot be written once the host is full.
#[derive(Clone, Copy, PartialEq)]
enum Fragile {
    /// Free blocks only: metadata and journal are allocated on the host.
    Data,
    /// Everything that mke2fs did not write, the journal included.
    All,
}

struct Host {
    scratch: Scratch,
    image: Image,
    filler: PathBuf,
}

impl Host {
    fn new(fragile: Fragile) -> Self {
        let scratch = Scratch::new();
        let dir = scratch.folder("host");
        let args = ["-t", "tmpfs", "-o", "size=96M", "none"];
        succeed(
            "mount",
            args.iter().map(std::path::Path::new).chain([dir.as_path()]),
        );
        let image = Image::mke2fs(
            &scratch,
            "host/d.img",
            64 * MIB,
            &["-t", "ext4", "-b", "4096", "-J", "size=4"],
        );
        if fragile == Fragile::Data {
            allocate_metadata(&image);
        }
        Self {
            filler: dir.join("filler"),
            scratch,
            image,
        }
    }

    /// Fills the host: writes to holes fail from now on.
    fn fill(&self) {
        let file = File::create(&self.filler).unwrap();
        let piece = vec![1; 1 << 20];
        for n in 0.. {
            match file.write_all_at(&piece, n << 20) {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(Errno::from_io_error(&error), Some(Errno::NOSPC));
                    return;
                }
            }
        }
    }

    /// Frees space on the host: writes succeed again.
    fn free(&self) {
        fs::remove_file(&self.filler).unwrap();
    }
}

/// Allocates every block in use on the host.
fn allocate_metadata(image: &Image) {
    let file = File::options().write(true).open(image.path()).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 64 * MIB).unwrap();
    let output = succeed("dumpe2fs", [image.path()]).out;
    let free = output
        .lines()
        .filter_map(|line| line.strip_prefix("  Free blocks: "));
    for range in free
        .flat_map(|line| line.split(", "))
        .filter(|r| !r.is_empty())
    {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let first: u64 = first.parse().unwrap();
        let last: u64 = last.parse().unwrap();
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, hole, first << 12, (last + 1 - first) << 12).unwrap();
    }
}

#[track_caller]
fn fails<T>(result: std::io::Result<T>, wanted: Errno) {
    let error = result.err().expect("it fails");
    assert_eq!(Errno::from_io_error(&error), Some(wanted));
}

fn umount(mount: &SteadMount) -> Outcome {
    steadfs_when_idle(&["umount".as_ref(), mount.root().as_os_str()])
}

fn errors(mount: &SteadMount) -> String {
    fs::read_to_string(mount.join(".steadfs/errors")).unwrap()
}

#[test]
fn data_errors_are_returned_to_every_holder_until_repaired() {
    let host = Host::new(Fragile::Data);
    let device = LoopDevice::attach(host.image.path(), false);
    let mount = SteadMount::new(&host.scratch, device.path(), "errors=continue");
    fs::write(mount.join("before"), b"before").unwrap();
    File::open(mount.join("before"))
        .unwrap()
        .sync_all()
        .unwrap();
    assert_eq!(errors(&mount), "none\n");
    host.fill();
    let content: Vec<u8> = (0..2_000_000).map(|n| (n % 251) as u8).collect();
    let file = File::create(mount.join("file")).unwrap();
    file.write_all_at(&content, 0).unwrap();
    fails(file.sync_all(), Errno::IO);
    fails(file.sync_data(), Errno::IO);
    // A later open gets the error, too; what was written can still be read.
    let later = File::open(mount.join("file")).unwrap();
    fails(later.sync_all(), Errno::IO);
    assert!(fs::read(mount.join("file")).unwrap() == content);
    let output = errors(&mount);
    assert!(output.contains("bytes are not written yet"), "{output}");
    // The rest of the volume still works.
    fs::create_dir(mount.join("dir")).unwrap();
    File::open(mount.root()).unwrap().sync_all().unwrap();
    // Unmounting would lose the data: the error is reported while the user can still act.
    drop((file, later));
    let output = umount(&mount);
    assert_eq!(output.code(), 32);
    assert!(output.err.contains("--lazy"), "{}", output.err);
    host.free();
    // The unmount met the error; a holder that has not seen it yet gets it once more.
    let file = File::open(mount.join("file")).unwrap();
    let _ = file.sync_all();
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(errors(&mount), "none\n");
    mount.unmount();
    let mount = SteadMount::new(&host.scratch, device.path(), "");
    assert!(fs::read(mount.join("file")).unwrap() == content);
    mount.unmount();
    drop(device);
    host.image.check_clean();
}

/// umount(8) cannot report lost data; the server does.
#[test]
fn lost_data_is_the_servers_exit_code() {
    let host = Host::new(Fragile::Data);
    let mount = SteadMount::new(&host.scratch, host.image.path(), "");
    fs::write(mount.join("before"), b"before").unwrap();
    File::open(mount.join("before"))
        .unwrap()
        .sync_all()
        .unwrap();
    host.fill();
    fs::write(mount.join("file"), vec![1; 500_000]).unwrap();
    unmount_when_idle(mount.root());
    let (code, output) = mount.wait_with_log();
    assert_eq!(code, 32, "{output}");
    assert!(output.contains("No space left on device"), "{output}");
    host.free();
    let mount = SteadMount::new(&host.scratch, host.image.path(), "");
    assert_eq!(fs::read(mount.join("before")).unwrap(), b"before");
    mount.unmount();
    host.image.check_clean();
}

/// A journal that cannot be written stops the volume; what was acknowledged before is there.
fn a_journal_that_fails(through_loop: bool, options: &str) {
    let host = Host::new(Fragile::All);
    let device = through_loop.then(|| LoopDevice::attach(host.image.path(), false));
    let path = device.as_ref().map_or(host.image.path(), |d| d.path());
    let mount = SteadMount::new(&host.scratch, path, options);
    fs::write(mount.join("before"), b"before").unwrap();
    File::open(mount.join("before"))
        .unwrap()
        .sync_all()
        .unwrap();
    host.fill();
    fs::create_dir(mount.join("dir")).unwrap();
    let folder = File::open(mount.root()).unwrap();
    fails(folder.sync_all(), Errno::IO);
    fails(folder.sync_all(), Errno::IO);
    drop(folder);
    // As the kernel reports an aborted journal.
    fails(fs::create_dir(mount.join("another")), Errno::ROFS);
    fails(fs::remove_file(mount.join("before")), Errno::ROFS);
    assert_eq!(fs::read(mount.join("before")).unwrap(), b"before");
    let options = fs::read_to_string(mount.join(".steadfs/options")).unwrap();
    assert!(options.starts_with("ro,"), "{options}");
    let output = errors(&mount);
    assert!(output.starts_with("stopped: journal: Write of"), "{output}");
    mount.wait_for_log("journal aborted");
    let output = umount(&mount);
    assert_eq!(output.code(), 32);
    assert!(output.err.contains("unmounted, but"), "{}", output.err);
    let (code, words) = mount.wait_with_log();
    assert_eq!(code, 32, "{words}");
    host.free();
    let mount = SteadMount::new(&host.scratch, path, "");
    assert_eq!(fs::read(mount.join("before")).unwrap(), b"before");
    mount.unmount();
    drop(device);
    host.image.check_clean();
}

#[test]
fn a_journal_on_a_failing_device_stops_the_volume() {
    a_journal_that_fails(true, "errors=continue");
}

#[test]
fn a_journal_on_a_full_host_stops_the_volume() {
    a_journal_that_fails(false, "errors=remount-ro");
}

/// `errors=` concerns corruption.
#[test]
fn corruption_follows_the_errors_option() {
    let scratch = Scratch::new();
    let image = Image::mke2fs(&scratch, "a.img", 16 * MIB, &["-t", "ext4", "-b", "1024"]);
    let mount = SteadMount::new(&scratch, image.path(), "");
    fs::create_dir(mount.join("dir")).unwrap();
    fs::write(mount.join("dir/child"), b"").unwrap();
    mount.unmount();
    let output = image.debugfs("blocks /dir").out;
    let block: u64 = output.split_whitespace().last().unwrap().parse().unwrap();
    let file = File::options().write(true).open(image.path()).unwrap();
    file.write_all_at(&[0xAA; 40], block * 1024 + 30).unwrap();
    drop(file);
    for (options, writable) in [("errors=continue", true), ("errors=remount-ro", false)] {
        let mount = SteadMount::new(&scratch, image.path(), options);
        let open = File::create(mount.join("open")).unwrap();
        fails(fs::metadata(mount.join("dir/child")), Errno::UCLEAN);
        mount.wait_for_log("corrupt");
        assert!(
            errors(&mount).contains("errors recorded"),
            "{}",
            errors(&mount)
        );
        let changes = [
            fs::write(mount.join("new"), b"new"),
            open.write_all_at(b"more", 0),
            open.set_len(100),
            fs::rename(mount.join("open"), mount.join("other")),
        ];
        for change in changes {
            match writable {
                true => change.unwrap(),
                false => fails(change, Errno::ROFS),
            }
        }
        drop(open);
        let output = umount(&mount);
        assert_eq!(
            output.code(),
            if writable { 0 } else { 32 },
            "{}",
            output.err
        );
        let (code, words) = mount.wait_with_log();
        assert_eq!(code == 0, writable, "{options}: {words}");
    }
    let dir = scratch.folder("mnt");
    let args = ["mount", "-o", "errors=panic"].map(std::path::Path::new);
    let output = steadfs(args.into_iter().chain([image.path(), dir.as_path()]));
    assert_eq!(output.code(), 1);
    assert!(output.err.contains("errors=remount-ro"), "{}", output.err);
}

/// Also if a folder of the volume has the name of the control folder.
#[test]
fn umount_reports_errors_without_control_files() {
    let host = Host::new(Fragile::Data);
    let options = "nocontrol,errors=continue";
    let mount = SteadMount::new(&host.scratch, host.image.path(), options);
    fs::create_dir(mount.join(".steadfs")).unwrap();
    File::open(mount.root()).unwrap().sync_all().unwrap();
    host.fill();
    let content: Vec<u8> = (0..2_000_000).map(|n| (n % 251) as u8).collect();
    fs::write(mount.join("file"), &content).unwrap();
    let output = umount(&mount);
    assert_eq!(output.code(), 32, "{}", output.err);
    for words in ["No space left", "--lazy"] {
        assert!(output.err.contains(words), "{}", output.err);
    }
    host.free();
    mount.unmount();
    let mount = SteadMount::new(&host.scratch, host.image.path(), "");
    assert!(fs::read(mount.join("file")).unwrap() == content);
    mount.unmount();
}

/// A stopped volume can no longer be synced.
#[test]
fn a_stopped_volume_without_control_files_is_unmounted() {
    let host = Host::new(Fragile::All);
    let mount = SteadMount::new(&host.scratch, host.image.path(), "nocontrol");
    host.fill();
    fs::write(mount.join("file"), vec![1; 2_000_000]).unwrap();
    let output = umount(&mount);
    assert_eq!(output.code(), 32, "{}", output.err);
    for words in ["unmounted, but not everything", "No space left"] {
        assert!(output.err.contains(words), "{}", output.err);
    }
    assert_ne!(mount.wait(), 0);
}

#[test]
fn blocks_smaller_than_the_devices_sectors_are_supported() {
    let scratch = Scratch::new();
    for kind in ["ext2", "ext4"] {
        let image = Image::mke2fs(&scratch, kind, 64 * MIB, &["-t", kind, "-b", "1024"]);
        let device = LoopDevice::attach_with_sectors(image.path(), 4096);
        let mount = SteadMount::new(&scratch, device.path(), "");
        for n in 0..300_usize {
            fs::write(mount.join(&n.to_string()), vec![n as u8; 700 * (n % 5)]).unwrap();
        }
        fs::remove_file(mount.join("7")).unwrap();
        File::open(mount.join("9")).unwrap().sync_all().unwrap();
        if kind == "ext4" {
            mount.kill();
        } else {
            mount.unmount();
        }
        let mount = SteadMount::new(&scratch, device.path(), "");
        for n in (0..300_usize).filter(|n| *n != 7) {
            let found = fs::read(mount.join(&n.to_string())).unwrap();
            assert!(kind == "ext4" || found == vec![n as u8; 700 * (n % 5)]);
        }
        assert_eq!(fs::read(mount.join("9")).unwrap(), vec![9; 700 * 4]);
        mount.unmount();
    }
}

#[test]
fn new_volumes_have_blocks_of_at_least_a_sector() {
    let scratch = Scratch::new();
    let image = Image::empty(&scratch, "d.img", 64 * MIB);
    let device = LoopDevice::attach_with_sectors(image.path(), 4096);
    let path = device.path().to_str().unwrap();
    let output = steadfs(["format", "-b", "2048", path]).expect(1).err;
    assert!(output.contains("sectors of 4096 bytes"), "{output}");
    steadfs(["format", "-q", path]).expect(0);
    let output = succeed("dumpe2fs", ["-h", path]).out;
    assert!(
        output.contains("Block size:               4096"),
        "{output}"
    );
    let root = scratch.folder("kernel");
    succeed("mount", [device.path(), &root]);
    unmount_when_idle(&root);
    steadfs(["format", "-q", "-f", "-t", "f2fs", path]).expect(0);
    let output = succeed("fsck.f2fs", ["--dry-run", path]).out;
    assert!(output.contains("FS sectors = 16384 (64 MB)"), "{output}");
}
