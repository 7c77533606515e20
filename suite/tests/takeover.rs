//! A server is killed, and another one continues its mount.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

use rustix::fs::OFlags;
use rustix::mount::{MountFlags, mount_remount};
use rustix::process::{Pid, Signal, kill_process};
use steadfs_suite::command::{run, until};
use steadfs_suite::scratch::mounts_below;
use steadfs_suite::{Image, LoopDevice, Scratch, SteadMount, f2fs, steadfs};

const MIB: u64 = 1 << 20;
/// By the transport whose requests another process can take.
const OPTIONS: &str = "fuse_transport=dev";
const FILES: usize = 40;
/// A multiple of what direct reads need.
const FILE_BYTES: usize = 64 << 10;

fn content(n: usize) -> Vec<u8> {
    (0..FILE_BYTES).map(|at| (at / 512 * 7 + n) as u8).collect()
}

/// A volume with a folder of files.
fn volume(scratch: &Scratch, kind: &str) -> Image {
    let image = match kind {
        "f2fs" => f2fs::mkfs(scratch, "a.img", 128 * MIB, "-q"),
        kind => Image::mke2fs(scratch, "a.img", 128 * MIB, &["-t", kind]),
    };
    let mount = SteadMount::new(scratch, image.path(), OPTIONS);
    fs::create_dir(mount.join("dir")).unwrap();
    for n in 0..FILES {
        fs::write(mount.join(&format!("dir/f{n}")), content(n)).unwrap();
    }
    mount.unmount();
    image
}

fn check(kind: &str, image: &Image) {
    match kind {
        "f2fs" => drop(f2fs::check_clean(image.path(), "after a takeover")),
        _ => image.check_clean(),
    }
}

/// Reads and checks everything until `stop` is set; every other file past the kernel's page cache.
fn read_all(dir: &Path, stop: &AtomicBool, rounds: &AtomicU32) {
    while !stop.load(Ordering::SeqCst) {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names.len(), FILES);
        for n in 0..FILES {
            let path = dir.join(format!("f{n}"));
            assert_eq!(fs::metadata(&path).unwrap().len(), FILE_BYTES as u64);
            let mut file = OpenOptions::new();
            if n % 2 == 0 {
                file.custom_flags(OFlags::DIRECT.bits() as i32);
            }
            let file = file.read(true).open(path).unwrap();
            let mut bytes = vec![0; FILE_BYTES + 4096];
            let start = bytes.as_ptr().align_offset(4096);
            let place = &mut bytes[start..start + FILE_BYTES];
            file.read_exact_at(place, 0).unwrap();
            assert!(*place == content(n), "file {n}");
        }
        rounds.fetch_add(1, Ordering::SeqCst);
    }
}

struct Readers {
    stop: Arc<AtomicBool>,
    threads: Vec<(JoinHandle<()>, Arc<AtomicU32>)>,
}

impl Readers {
    fn start(dir: &Path) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let start = |_| {
            let (dir, stop) = (PathBuf::from(dir), Arc::clone(&stop));
            let rounds = Arc::new(AtomicU32::new(0));
            let seen = Arc::clone(&rounds);
            let thread = std::thread::spawn(move || read_all(&dir, &stop, &seen));
            (thread, rounds)
        };
        Self {
            threads: (0..4).map(start).collect(),
            stop,
        }
    }

    /// Waits until each has read everything once more.
    #[track_caller]
    fn go_on(&self) {
        for (_, rounds) in &self.threads {
            // The round in progress may have ended before.
            let enough = rounds.load(Ordering::SeqCst) + 2;
            until("a program goes on", || {
                rounds.load(Ordering::SeqCst) >= enough
            });
        }
    }

    fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        for (thread, _) in self.threads {
            thread.join().unwrap();
        }
    }
}

/// A read-only mount with `options`, once a successor could continue it: a server that was replaced by another one has left
/// what that one needs.
fn read_only(scratch: &Scratch, volume: &Path, options: &str) -> SteadMount {
    let mount = SteadMount::new(scratch, volume, &format!("ro,{options}"));
    let root = mount.root().to_owned();
    until("the mount is usable", || {
        steadfs(["upgrade".as_ref(), root.as_os_str()]).code() == 0
    });
    mount
}

fn kill_server(mount: &SteadMount, signal: Signal) -> u32 {
    let server = mount.pid();
    let pid = Pid::from_raw(i32::try_from(server).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
    server
}

/// Kills the server, which is replaced.
#[track_caller]
fn replace(mount: &SteadMount, signal: Signal) {
    let before = kill_server(mount, signal);
    until("another server", || {
        ![before, mount.broker(), 0].contains(&mount.pid())
    });
}

#[test]
fn a_read_only_mount_outlives_its_servers() {
    for kind in ["ext4", "f2fs"] {
        let scratch = Scratch::new();
        let image = volume(&scratch, kind);
        let mount = read_only(&scratch, image.path(), OPTIONS);
        let held = File::open(mount.join("dir/f7")).unwrap();
        let mut folder = fs::read_dir(mount.join("dir")).unwrap();
        let readers = Readers::start(&mount.join("dir"));
        for signal in [Signal::KILL, Signal::ABORT, Signal::KILL, Signal::ABORT] {
            readers.go_on();
            replace(&mount, signal);
            readers.go_on();
            assert!(mount.join(".steadfs/options").exists());
        }
        readers.end();
        let mut bytes = Vec::new();
        (&held).read_to_end(&mut bytes).unwrap();
        assert!(bytes == content(7), "a file that was open");
        assert!(folder.all(|entry| entry.is_ok()), "a folder that was open");
        drop((held, folder));
        mount.unmount();
        check(kind, &image);
    }
}

#[test]
fn a_block_device_and_remounts_are_continued() {
    let scratch = Scratch::new();
    let image = volume(&scratch, "ext4");
    let device = LoopDevice::attach(image.path(), true);
    let mount = read_only(&scratch, device.path(), OPTIONS);
    let root = mount.root().to_str().unwrap();
    steadfs(["remount", root, "-o", "noatime"]).expect(0);
    replace(&mount, Signal::KILL);
    let options = fs::read_to_string(mount.join(".steadfs/options")).unwrap();
    assert!(
        options.starts_with("ro,") && options.contains("noatime"),
        "{options}"
    );
    assert!(fs::write(mount.join("no"), "x").is_err());
    // A planned replacement is continued as well.
    steadfs(["upgrade", root]).expect(0);
    replace(&mount, Signal::KILL);
    assert!(fs::read(mount.join("dir/f3")).unwrap() == content(3));
    // Once it was writable, it has something to lose.
    steadfs(["remount", root, "-o", "rw"]).expect(0);
    steadfs(["remount", root, "-o", "ro"]).expect(0);
    ends_with_its_server(mount);
    drop(device);
    image.check_clean();
}

/// Kills the server: calls fail, and none waits.
#[track_caller]
fn ends_with_its_server(mount: SteadMount) {
    kill_server(&mount, Signal::KILL);
    until("the mount is dead", || {
        rustix::fs::statvfs(mount.root()).is_err()
    });
    is_dead(mount);
}

fn is_dead(mount: SteadMount) {
    let root = mount.root().to_owned();
    assert_ne!(mount.wait(), 0);
    run("umount", ["-l".as_ref(), root.as_os_str()]);
    until("the mount is gone", || mounts_below(&root).is_empty());
}

#[test]
fn servers_that_keep_ending_are_not_replaced_for_ever() {
    let scratch = Scratch::new();
    let image = volume(&scratch, "ext4");
    let mount = read_only(&scratch, image.path(), OPTIONS);
    let dead = || rustix::fs::statvfs(mount.root()).is_err();
    let mut kills = 0;
    while !dead() {
        let before = kill_server(&mount, Signal::KILL);
        kills += 1;
        until("another server, or none", || {
            dead() || ![before, mount.broker(), 0].contains(&mount.pid())
        });
    }
    // The last ones may have been killed before they served.
    assert!((5..=7).contains(&kills), "{kills}");
    is_dead(mount);
    image.check_clean();
}

#[test]
fn without_a_broker_a_mount_ends_with_its_server() {
    let scratch = Scratch::new();
    let image = volume(&scratch, "ext4");
    let options = format!("ro,sandbox=off,{OPTIONS}");
    let mount = SteadMount::new(&scratch, image.path(), &options);
    ends_with_its_server(mount);
    image.check_clean();
}

/// The kernel does not notify the server of such a remount.
#[test]
fn a_mount_that_became_writable_by_a_control_file_ends_with_its_server() {
    let scratch = Scratch::new();
    let image = volume(&scratch, "ext4");
    let mount = read_only(&scratch, image.path(), OPTIONS);
    mount_remount(mount.root(), MountFlags::empty(), "").unwrap();
    fs::write(mount.join(".steadfs/options"), "rw").unwrap();
    fs::write(mount.join("new"), "x").unwrap();
    ends_with_its_server(mount);
    image.replay_by_e2fsck();
    image.check_clean();
}
