//! The server of a writable mount is killed while programs write, and another one continues the mount with everything that
//! was acknowledged, synced or not.
//!
//! Several writers change files at random and keep a model of what their calls have returned. Calls may take long, but none
//! fails. After each kill the writers pause, the kernel forgets what it has cached, and everything is compared with the
//! models; at the end also after an unmount and a check.
//!
//! `STEADFS_TAKEOVER_KILLS` is the number of kills of each kind of volume.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "takeover_writable/model.rs"]
mod model;
#[path = "takeover_writable/writer.rs"]
mod writer;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Gid, Pid, Signal, Uid, kill_process};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use steadfs_suite::command::until;
use steadfs_suite::generate::Numbers;
use steadfs_suite::{Image, LoopDevice, Scratch, SteadMount, f2fs, steadfs};

use model::{DIRS, Model};
use writer::Writer;

const MIB: u64 = 1 << 20;
const WRITERS: u64 = 4;
/// A fifth server that ends within a minute has no successor.
const KILLS_PER_MOUNT: u32 = 4;
const OPTIONS: &str = "takeover=on,fuse_transport=dev";
/// The user of every other writer.
const USER: u32 = 1000;

fn kills() -> u32 {
    let kills = std::env::var("STEADFS_TAKEOVER_KILLS").ok();
    kills.and_then(|kills| kills.parse().ok()).unwrap_or(3)
}

/// The calling thread has no privileges any more.
fn give_up_root() {
    let (uid, gid) = (Uid::from_raw(USER), Gid::from_raw(USER));
    set_thread_groups(&[]).unwrap();
    set_thread_res_gid(gid, gid, gid).unwrap();
    set_thread_res_uid(uid, uid, uid).unwrap();
}

/// All writers of a mount.
struct Writers {
    /// Taken for reading by each change.
    gate: Arc<RwLock<()>>,
    stop: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    models: Vec<(PathBuf, Arc<Mutex<Model>>)>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    fn start(root: &Path, seed: u64) -> Self {
        let mut this = Self {
            gate: Arc::default(),
            stop: Arc::default(),
            calls: Arc::default(),
            models: Vec::new(),
            threads: Vec::new(),
        };
        for n in 0..WRITERS {
            let dir = root.join(format!("w{seed}.{n}"));
            for dir in DIRS.map(|name| dir.join(name)) {
                fs::create_dir(&dir).unwrap();
                if n % 2 == 1 {
                    chown(&dir, Some(USER), Some(USER)).unwrap();
                }
            }
            let model = Arc::new(Mutex::new(Model::default()));
            this.models.push((dir.clone(), Arc::clone(&model)));
            let random = Numbers::new(seed * WRITERS + n);
            let mut writer = Writer { dir, random };
            let (gate, stop, calls) = (this.gate.clone(), this.stop.clone(), this.calls.clone());
            this.threads.push(std::thread::spawn(move || {
                if n % 2 == 1 {
                    give_up_root();
                }
                while !stop.load(Ordering::SeqCst) {
                    let _open = gate.read().unwrap();
                    writer.step(&mut model.lock().unwrap());
                    calls.fetch_add(1, Ordering::SeqCst);
                }
            }));
        }
        this
    }

    /// Waits until this number of changes was made.
    #[track_caller]
    fn go_on(&self, count: u64) {
        let enough = self.calls.load(Ordering::SeqCst) + count;
        until("programs go on", || {
            let fails = self.threads.iter().any(JoinHandle::is_finished);
            assert!(!fails, "a call has failed");
            self.calls.load(Ordering::SeqCst) >= enough
        });
    }

    fn check(&self) {
        let _closed = self.gate.write().unwrap();
        fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
        for (dir, model) in &self.models {
            model.lock().unwrap().check(dir);
        }
    }

    fn end(self) -> Vec<(PathBuf, Arc<Mutex<Model>>)> {
        self.stop.store(true, Ordering::SeqCst);
        self.threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        self.models
    }
}

/// Kills the server at a random moment, and waits until another one serves.
fn replace(mount: &SteadMount, random: &mut Numbers) -> Duration {
    let before = mount.pid();
    let signal = match random.below(2) {
        0 => Signal::KILL,
        _ => Signal::ABORT,
    };
    std::thread::sleep(Duration::from_micros(random.below(50_000)));
    let began = Instant::now();
    let pid = Pid::from_raw(i32::try_from(before).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
    until("another server", || {
        ![before, mount.broker(), 0].contains(&mount.pid())
    });
    began.elapsed()
}

fn image(scratch: &Scratch, kind: &str) -> Image {
    match kind {
        "f2fs" => f2fs::mkfs(scratch, "a.img", 512 * MIB, "-q"),
        kind => Image::mke2fs(scratch, "a.img", 512 * MIB, &["-t", kind]),
    }
}

fn check(kind: &str, image: &Image) {
    match kind {
        "f2fs" => drop(f2fs::check_clean(image.path(), "after a takeover")),
        _ => image.check_clean(),
    }
}

fn outlives_kills(kind: &str, on_device: bool) {
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
    let image = image(&scratch, kind);
    let mut random = Numbers::new(kills().into());
    let mut left = kills();
    let mut seed = 0;
    while left > 0 {
        seed += 1;
        let device = on_device.then(|| LoopDevice::attach(image.path(), true));
        let path = device.as_ref().map_or(image.path(), LoopDevice::path);
        let mount = SteadMount::new(&scratch, path, OPTIONS);
        let writers = Writers::start(mount.root(), seed);
        for _ in 0..left.min(KILLS_PER_MOUNT) {
            writers.go_on(random.below(1000));
            let took = replace(&mount, &mut random);
            writers.go_on(WRITERS * 2);
            writers.check();
            left -= 1;
            eprintln!("{kind}: {left} kills are left, another server after {took:?}");
        }
        let models = writers.end();
        for (_, model) in &models {
            model.lock().unwrap().unnamed.clear();
        }
        mount.unmount();
        drop(device);
        check(kind, &image);
        let mount = SteadMount::new(&scratch, image.path(), "ro");
        for (dir, model) in &models {
            let dir = mount.join(dir.file_name().unwrap().to_str().unwrap());
            model.lock().unwrap().check(&dir);
        }
        mount.unmount();
        let mount = SteadMount::new(&scratch, image.path(), "");
        for (dir, _) in &models {
            fs::remove_dir_all(mount.join(dir.file_name().unwrap().to_str().unwrap())).unwrap();
        }
        mount.unmount();
    }
}

#[test]
fn a_writable_ext4_mount_outlives_its_servers() {
    outlives_kills("ext4", false);
}

#[test]
fn a_writable_ext4_block_device_outlives_its_servers() {
    outlives_kills("ext4", true);
}

#[test]
fn a_writable_f2fs_mount_outlives_its_servers() {
    outlives_kills("f2fs", false);
}

#[test]
fn a_writable_f2fs_block_device_outlives_its_servers() {
    outlives_kills("f2fs", true);
}

/// umount(2) of an image does not wait until the server has closed it: what that one has not written when it is killed, a
/// successor restores.
#[test]
fn a_server_that_is_killed_after_the_unmount_loses_nothing() {
    for kind in ["ext4", "f2fs"] {
        let scratch = Scratch::new();
        let image = image(&scratch, kind);
        let mount = SteadMount::new(&scratch, image.path(), OPTIONS);
        fs::write(mount.join("file"), "text").unwrap();
        // It cannot write the file.
        mount.stop();
        unmount(mount.root(), UnmountFlags::NOFOLLOW).unwrap();
        let server = Pid::from_raw(i32::try_from(mount.pid()).unwrap()).unwrap();
        kill_process(server, Signal::KILL).unwrap();
        let (code, log) = mount.wait_with_log();
        assert_eq!(code, 0, "{log}");
        check(kind, &image);
        let mount = SteadMount::new(&scratch, image.path(), "ro");
        assert_eq!(fs::read_to_string(mount.join("file")).unwrap(), "text");
        mount.unmount();
    }
}

/// What keeps all successors from beginning for a while does not end the mount.
#[test]
fn a_lack_that_passes_is_waited_for() {
    let scratch = Scratch::new();
    let image = image(&scratch, "ext4");
    let (mount, trigger) = SteadMount::with_fault(&scratch, image.path(), OPTIONS, "successor");
    fs::write(mount.join("file"), "text").unwrap();
    fs::write(&trigger, "").unwrap();
    let pid = Pid::from_raw(i32::try_from(mount.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    until("attempts have failed", || {
        mount.log().matches("fault point successor").count() >= 4
    });
    fs::remove_file(&trigger).unwrap();
    assert_eq!(fs::read_to_string(mount.join("file")).unwrap(), "text");
    mount.signal(Signal::TERM);
    assert_eq!(mount.wait(), 0);
    image.check_clean();
}

/// What may not be set in this way, or not any more, is restored all the same.
#[test]
fn attributes_that_callers_may_not_change_are_restored() {
    let scratch = Scratch::new();
    let image = f2fs::mkfs(&scratch, "a.img", 128 * MIB, "-q");
    let mount = SteadMount::new(&scratch, image.path(), OPTIONS);
    let path = mount.join("file");
    let file = File::create(&path).unwrap();
    let value = |name: &str| {
        let mut value = vec![0; 100];
        let len = getxattr(&path, name, &mut value).unwrap();
        value.truncate(len);
        value
    };
    setxattr(&path, "user.test", b"before", XattrFlags::empty()).unwrap();
    // A hint of f2fs that the data is cold, which has no removal. The byte has other bits, too.
    setxattr(&path, "system.advise", &[1], XattrFlags::empty()).unwrap();
    let root = mount.root().to_str().unwrap();
    steadfs(["remount", root, "-o", "nouser_xattr"]).expect(0);
    replace(&mount, &mut Numbers::new(1));
    steadfs(["remount", root, "-o", "user_xattr"]).expect(0);
    assert_eq!(value("user.test"), b"before");
    assert_eq!(value("system.advise")[0] & 0x21, 1);
    drop(file);
    mount.unmount();
    check("f2fs", &image);
}

/// Names of a server that was killed get their places again: a listing that goes on, or that the kernel has in part, has each
/// of them once.
#[test]
fn listings_have_each_name_once() {
    let scratch = Scratch::new();
    let linear = Image::mke2fs(
        &scratch,
        "e.img",
        64 * MIB,
        &["-t", "ext4", "-O", "^dir_index"],
    );
    let buckets = f2fs::mkfs(&scratch, "f.img", 128 * MIB, "-q");
    for (kind, image) in [("ext4", &linear), ("f2fs", &buckets)] {
        let mount = SteadMount::new(&scratch, image.path(), OPTIONS);
        let dir = mount.join("dir");
        fs::create_dir(&dir).unwrap();
        let mut names: Vec<_> = (0..1000).map(|n| format!("file{n}")).collect();
        for name in &names {
            File::create(dir.join(name)).unwrap();
        }
        names.sort();
        let list = |listing: fs::ReadDir| {
            let names = listing.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<_> = names.collect();
            names.sort();
            names
        };
        let mut begun = fs::read_dir(&dir).unwrap();
        let mut first: Vec<_> = begun
            .by_ref()
            .take(50)
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        replace(&mount, &mut Numbers::new(1));
        for _ in 0..2 {
            assert!(list(fs::read_dir(&dir).unwrap()) == names, "{kind}");
        }
        first.extend(list(begun));
        first.sort();
        assert!(first == names, "{kind}: {} of {}", first.len(), names.len());
        fs::remove_dir_all(&dir).unwrap();
        mount.unmount();
        check(kind, image);
    }
}
