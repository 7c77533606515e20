//! Replacing the server of a mount while programs use it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use steadfs_fuse::{
    Inheritance, KernelMount, MountError, MountOptions, Mounter, Served, Transport, Unmount, serve,
    serve_on,
};
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{FsError, WithControl};

use common::{MemFs, until};

/// Mounts as the program does, and keeps the device.
struct Keeper {
    kernel: KernelMount,
    device: Mutex<Option<OwnedFd>>,
}

impl Mounter for Keeper {
    fn mount(&self, options: &MountOptions) -> Result<OwnedFd, MountError> {
        let device = self.kernel.mount(options)?;
        *self.device.lock() = Some(device.try_clone().unwrap());
        Ok(device)
    }

    fn spare(&self) -> Result<Vec<File>, MountError> {
        self.kernel.spare()
    }

    fn detach(&self) -> bool {
        self.kernel.detach()
    }

    fn is_usable(&self, options: &MountOptions) {
        self.kernel.is_usable(options);
    }
}

/// A mount whose servers follow each other in this process.
struct Mount {
    dir: tempfile::TempDir,
    mem: Arc<MemFs>,
    keeper: Keeper,
    served: Served,
}

fn options() -> MountOptions {
    MountOptions {
        transport: Transport::Dev,
        ..MountOptions::default()
    }
}

impl Mount {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mem = Arc::new(MemFs::new());
        let keeper = Keeper {
            kernel: KernelMount::new(dir.path()).unwrap(),
            device: Mutex::new(Rank::Leaf, None),
        };
        let fs = Arc::new(WithControl::new(mem.clone()));
        let served = serve(fs, &keeper, &options()).unwrap();
        Self {
            dir,
            mem,
            keeper,
            served,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Replaces the server.
    fn replace(&mut self) {
        let legacy = self.served.hand_over().unwrap();
        self.served.wait().unwrap();
        let fs = WithControl::new(self.mem.clone()).succeeding(legacy.lookups.as_deref());
        let device = self.keeper.device.lock().as_ref().unwrap().try_clone();
        let inheritance = Inheritance {
            device: device.unwrap(),
            legacy: &legacy,
            record_file: None,
            record: None,
        };
        self.served = serve_on(Arc::new(fs), inheritance, &options(), || ()).unwrap();
    }

    fn end(self) {
        let handle = self.keeper.kernel.handle().unwrap();
        until("the mount is not in use", || {
            handle.unmount(Unmount::IfIdle).is_ok()
        });
        self.served.wait().unwrap();
        assert_eq!(self.mem.unmounts.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn open_files_and_folders_outlive_their_server() {
    let mut mount = Mount::new();
    let mut file = OpenOptions::new();
    let file = file.read(true).write(true).create(true);
    let mut file = file.open(mount.path("file")).unwrap();
    file.write_all(b"one").unwrap();
    fs::create_dir(mount.path("dir")).unwrap();
    fs::write(mount.path("dir/inside"), "x").unwrap();
    let mut entries = fs::read_dir(mount.path("dir")).unwrap();
    let unlinked = File::open(mount.path("dir/inside")).unwrap();
    fs::remove_file(mount.path("dir/inside")).unwrap();
    for round in 0..3 {
        mount.replace();
        file.write_all(b" more").unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text.len(), 3 + 5 * (round + 1));
        let mut one = String::new();
        (&unlinked).seek(SeekFrom::Start(0)).unwrap();
        (&unlinked).read_to_string(&mut one).unwrap();
        assert_eq!(one, "x");
    }
    assert!(entries.next().is_none_or(|entry| entry.is_ok()));
    drop((file, unlinked, entries));
    assert!(mount.served.protocol_minor() >= 34);
    mount.end();
}

/// Creates, reads and removes files until `stop` is set; returns their number. Every error fails the test.
fn work(dir: &Path, name: &str, stop: &AtomicBool) -> u64 {
    let mut rounds = 0;
    while !stop.load(Ordering::SeqCst) || rounds < 3 {
        let path = dir.join(format!("{name}-{rounds}"));
        let content = rounds.to_string().repeat(1000);
        fs::write(&path, &content).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        fs::remove_file(&path).unwrap();
        let mut text = String::new();
        (&file).read_to_string(&mut text).unwrap();
        assert_eq!(text, content);
        rounds += 1;
    }
    rounds
}

#[test]
fn programs_see_a_pause_and_no_error() {
    let mut mount = Mount::new();
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..6)
        .map(|worker| {
            let (dir, stop) = (mount.dir.path().to_owned(), Arc::clone(&stop));
            steadfs_rt::spawn("worker", move || work(&dir, &format!("w{worker}"), &stop))
        })
        .collect();
    for _ in 0..30 {
        mount.replace();
        steadfs_rt::sleep(std::time::Duration::from_millis(3));
    }
    stop.store(true, Ordering::SeqCst);
    for worker in workers {
        assert!(worker.join() >= 3);
    }
    assert_eq!(fs::read_dir(mount.dir.path()).unwrap().count(), 0);
    mount.end();
}

#[test]
fn a_request_in_service_is_answered_before_the_hand_over() {
    let mut mount = Mount::new();
    let file = File::create(mount.path("file")).unwrap();
    mount.mem.blocked_fsyncs.store(1, Ordering::SeqCst);
    let fsync = steadfs_rt::spawn("fsync", move || file.sync_all());
    until("fsync is in service", || {
        mount.mem.fsyncs.load(Ordering::SeqCst) == 1
    });
    let mem = mount.mem.clone();
    let opener = steadfs_rt::spawn("opener", move || {
        steadfs_rt::sleep(std::time::Duration::from_millis(1500));
        mem.blocked_fsyncs.store(0, Ordering::SeqCst);
    });
    mount.replace();
    assert_eq!(mount.mem.blocked_fsyncs.load(Ordering::SeqCst), 0);
    opener.join();
    fsync.join().unwrap();
    mount.end();
}

#[test]
fn a_refused_hand_over_changes_nothing() {
    let mut mount = Mount::new();
    mount.mem.refuses_hand_over.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        assert_eq!(mount.served.hand_over(), Err(FsError::Busy));
        fs::write(mount.path("file"), "text").unwrap();
        assert_eq!(fs::read_to_string(mount.path("file")).unwrap(), "text");
    }
    mount.mem.refuses_hand_over.store(false, Ordering::SeqCst);
    mount.replace();
    assert_eq!(fs::read_to_string(mount.path("file")).unwrap(), "text");
    mount.end();
}

/// What a control file of the predecessor said is not shown for one of the successor.
#[test]
fn control_files_are_those_of_the_successor() {
    let mut mount = Mount::new();
    let sync = mount.path(".steadfs/sync");
    let old = OpenOptions::new().write(true).open(&sync).unwrap();
    fs::write(&sync, "1").unwrap();
    mount.replace();
    assert!((&old).write_all(b"1").is_err(), "it is stale");
    let before = mount.mem.syncs.load(Ordering::SeqCst);
    fs::write(&sync, "1").unwrap();
    assert!(mount.mem.syncs.load(Ordering::SeqCst) > before);
    drop(old);
    mount.end();
}
