//! Files and loop devices; the tests that attach loop devices run as root.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};

use steadfs_base::IoTag;
use steadfs_rt::Event;
use tempfile::TempDir;

use super::*;
use crate::{Buf, IoError, Queue, QueueOptions};

fn image(dir: &TempDir, size: u64) -> PathBuf {
    let path = dir.path().join("image");
    File::create(&path).unwrap().set_len(size).unwrap();
    path
}

fn pattern(len: usize, seed: u8) -> Buf {
    let bytes: Vec<u8> = (0..len).map(|i| (i / 7) as u8 ^ (i as u8) ^ seed).collect();
    Buf::copy_of(&bytes)
}

fn run(device: &FileDevice, bio: Bio) -> Result<Bio, IoError> {
    let ended: Arc<Event<()>> = Arc::default();
    let slot = Arc::new(steadfs_rt::Mutex::new(steadfs_rt::Rank::Leaf, None));
    let (e, s) = (Arc::clone(&ended), Arc::clone(&slot));
    let done: Done = Box::new(move |bio, result: Result<(), IoError>| {
        *s.lock() = Some(result.map(|()| bio));
        e.set(());
    });
    device.run(vec![(bio, done)]);
    ended.wait();
    slot.lock().take().unwrap()
}

fn read(device: &FileDevice, offset: u64, len: usize) -> Vec<u8> {
    run(device, Bio::read(offset, len)).unwrap().bufs[0].to_vec()
}

struct Loop(String);

impl Loop {
    fn attach(args: &[&str], image: &Path) -> Self {
        let out = Command::new("losetup")
            .args(["--find", "--show"])
            .args(args)
            .arg(image)
            .output()
            .expect("losetup is installed");
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "losetup (as root): {error}");
        Self(String::from_utf8(out.stdout).unwrap().trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// Another process that holds a lock until it is dropped.
struct Locker(Child);

impl Locker {
    fn hold(kind: &str, path: &Path) -> Self {
        let child = Command::new("flock")
            .args(["--no-fork", kind, path.to_str().unwrap(), "sleep", "60"])
            .spawn()
            .expect("flock is installed");
        let locker = Self(child);
        while !is_locked(path) {
            steadfs_rt::yield_now();
        }
        locker
    }

    fn release(self, path: &Path) {
        drop(self);
        while is_locked(path) {
            steadfs_rt::yield_now();
        }
    }
}

fn is_locked(path: &Path) -> bool {
    let probe = Command::new("flock")
        .args(["-n", "-x", path.to_str().unwrap(), "true"])
        .status();
    !probe.unwrap().success()
}

impl Drop for Locker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn check_transfers(device: &FileDevice) {
    let bufs = vec![pattern(4096, 1), pattern(1024, 2), pattern(512, 3)];
    let whole: Vec<u8> = bufs.iter().flat_map(|b| b.to_vec()).collect();
    run(device, Bio::write(8192, bufs)).unwrap();
    assert_eq!(read(device, 8192, whole.len()), whole);
    assert_eq!(read(device, 8192 + 512, 512), whole[512..1024]);
    let mut vector = Bio::read(8192, 512);
    vector.bufs.push(Buf::zeroed(5120));
    vector.len = 5632;
    let got = run(device, vector).unwrap();
    assert_eq!(got.bufs[1][..], whole[512..]);
    run(
        device,
        Bio::write(4096, vec![pattern(4096, 9)]).preflush_and_fua(),
    )
    .unwrap();
    run(device, Bio::flush()).unwrap();
    assert_eq!(read(device, 4096, 4096), pattern(4096, 9)[..]);
    run(device, Bio::write_zeroes(8192, 512)).unwrap();
    assert_eq!(read(device, 8192, 512), [0; 512]);
    assert_eq!(read(device, 8704, 512), whole[512..1024]);
    run(device, Bio::discard(4096, 4096)).unwrap();
    let after = read(device, 4096, 4096);
    assert!(after == pattern(4096, 9)[..] || after == [0; 4096]);
}

#[test]
fn an_image_is_transferred_directly_and_buffered() {
    for direct in [true, false] {
        let dir = TempDir::new().unwrap();
        let path = image(&dir, 1 << 20);
        let options = OpenOptions {
            direct,
            ..OpenOptions::default()
        };
        let device = FileDevice::open(&path, options).unwrap();
        assert_eq!(device.target.is_direct(), direct, "{}", device.describe());
        check_transfers(&device);
        if !direct {
            assert!(
                device
                    .describe()
                    .contains("buffered I/O because it was asked for")
            );
        }
    }
}

#[test]
fn a_loop_device_of_either_sector_size_is_transferred() {
    for sector in ["512", "4096"] {
        let dir = TempDir::new().unwrap();
        let path = image(&dir, 1 << 20);
        let looped = Loop::attach(&["--sector-size", sector], &path);
        let device = FileDevice::open(&looped.0, OpenOptions::default()).unwrap();
        assert!(device.target.is_direct());
        assert_eq!(device.target.direct_unit.to_string(), sector);
        run(&device, Bio::write(0, vec![pattern(4096, 5)])).unwrap();
        // Reads of half a sector need no page cache, writes do.
        assert_eq!(read(&device, 1024, 1024), pattern(4096, 5)[1024..2048]);
        assert!(device.target.is_direct());
        check_transfers(&device);
        assert_eq!(
            device.target.is_direct(),
            sector == "512",
            "{}",
            device.describe()
        );
        assert_eq!(read(&device, 0, 4096), pattern(4096, 5)[..]);
    }
}

#[test]
fn pieces_smaller_than_a_sector_are_joined_when_the_whole_is_aligned() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 1 << 20);
    let looped = Loop::attach(&["--sector-size", "4096"], &path);
    let device = FileDevice::open(&looped.0, OpenOptions::default()).unwrap();
    let quarters: Vec<Buf> = (0..4).map(|i| pattern(1024, i)).collect();
    let whole: Vec<u8> = quarters.iter().flat_map(|b| b.to_vec()).collect();
    run(&device, Bio::write(4096, quarters)).unwrap();
    assert!(device.target.is_direct());
    assert_eq!(read(&device, 4096, 4096), whole);
}

#[test]
fn the_window_begins_at_offset_and_ends_at_sizelimit() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 1 << 20);
    let options = OpenOptions {
        offset: 65536,
        sizelimit: Some(10_000),
        ..OpenOptions::default()
    };
    let device = FileDevice::open(&path, options).unwrap();
    assert_eq!(device.geometry().size, 9728, "whole sectors");
    run(&device, Bio::write(512, vec![pattern(512, 1)])).unwrap();
    let past = run(&device, Bio::read(9728, 512)).unwrap_err();
    assert!(past.cause.contains("past the end"), "{past}");
    let wrapped = run(&device, Bio::discard(u64::MAX - 511, 512)).unwrap_err();
    assert!(wrapped.cause.contains("past the end"), "{wrapped}");
    drop(device);
    let mut on_disk = [0; 512];
    File::open(&path)
        .unwrap()
        .read_exact_at(&mut on_disk, 65536 + 512)
        .unwrap();
    assert_eq!(on_disk[..], pattern(512, 1)[..]);

    let beyond = OpenOptions {
        offset: 1 << 20,
        ..OpenOptions::default()
    };
    let error = FileDevice::open(&path, beyond).err().unwrap();
    assert!(
        matches!(
            error,
            OpenError::Empty {
                size: 0x10_0000,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn an_image_of_odd_size_and_offset_works() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 100_001);
    let device = FileDevice::open(&path, OpenOptions::default()).unwrap();
    assert_eq!(device.geometry().size, 99_840);
    run(&device, Bio::write(99_840 - 512, vec![pattern(512, 4)])).unwrap();
    assert_eq!(read(&device, 99_840 - 512, 512), pattern(512, 4)[..]);
    drop(device);
    let odd = OpenOptions {
        offset: 1000,
        ..OpenOptions::default()
    };
    let device = FileDevice::open(&path, odd).unwrap();
    assert!(!device.target.is_direct());
    assert!(
        device
            .describe()
            .contains("offset 1000 is not in the units")
    );
    check_transfers(&device);
}

#[test]
fn a_second_writer_is_refused_and_told_who_has_it() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 1 << 20);
    let reader = || OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let first = FileDevice::open(&path, OpenOptions::default()).unwrap();
    for options in [OpenOptions::default(), reader()] {
        let error = FileDevice::open(&path, options).err().unwrap();
        assert!(
            error.to_string().contains("in use by this process itself"),
            "{error}"
        );
    }
    drop(first);
    let readers = [reader(), reader()].map(|o| FileDevice::open(&path, o).unwrap());
    assert!(FileDevice::open(&path, OpenOptions::default()).is_err());
    let error = run(&readers[0], Bio::write(0, vec![Buf::zeroed(512)])).unwrap_err();
    assert!(error.cause.contains("read-only"), "{error}");
    drop(readers);

    let other = Locker::hold("-x", &path);
    let error = FileDevice::open(&path, OpenOptions::default())
        .err()
        .unwrap();
    assert!(
        error
            .to_string()
            .contains(&format!("process {} (sleep)", other.0.id())),
        "{error}"
    );
    other.release(&path);
    let _other = Locker::hold("-s", &path);
    assert!(FileDevice::open(&path, OpenOptions::default()).is_err());
    FileDevice::open(&path, reader()).unwrap();
}

#[test]
fn an_image_behind_a_loop_device_is_refused() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 1 << 20);
    let looped = Loop::attach(&[], &path);
    let error = FileDevice::open(&path, OpenOptions::default())
        .err()
        .unwrap();
    assert!(error.to_string().contains(&looped.0), "{error}");
    let device = FileDevice::open(&looped.0, OpenOptions::default()).unwrap();
    let error = FileDevice::open(&looped.0, OpenOptions::default())
        .err()
        .unwrap();
    assert!(matches!(error, OpenError::Busy { .. }), "{error}");
    let reader = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    assert!(FileDevice::open(&looped.0, reader.clone()).is_err());
    drop(device);
    let _reader = FileDevice::open(&looped.0, reader.clone()).unwrap();
    let _another = FileDevice::open(&looped.0, reader).unwrap();
    assert!(FileDevice::open(&looped.0, OpenOptions::default()).is_err());
}

#[test]
fn a_mounted_device_is_refused_with_its_mount_point() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 4 << 20);
    let made = Command::new("mke2fs")
        .args(["-q", "-F"])
        .arg(&path)
        .status()
        .unwrap();
    assert!(made.success());
    let looped = Loop::attach(&[], &path);
    let place = dir.path().join("mnt");
    std::fs::create_dir(&place).unwrap();
    let mount = Command::new("mount")
        .arg(&looped.0)
        .arg(&place)
        .status()
        .unwrap();
    assert!(mount.success());
    let errors = [looped.0.as_ref(), path.as_path()].map(|path| {
        let options = OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        };
        FileDevice::open(path, options).err().map(|e| e.to_string())
    });
    assert!(
        Command::new("umount")
            .arg(&place)
            .status()
            .unwrap()
            .success()
    );
    for error in errors {
        let error = error.expect("a mounted volume is refused");
        assert!(error.contains(place.to_str().unwrap()), "{error}");
    }
}

#[test]
fn what_is_no_device_is_refused() {
    let dir = TempDir::new().unwrap();
    let open = |path: &Path| {
        FileDevice::open(path, OpenOptions::default())
            .err()
            .unwrap()
    };
    assert!(open(dir.path()).to_string().contains("is a directory"));
    assert!(
        open(Path::new("/dev/null"))
            .to_string()
            .contains("character device")
    );
    assert!(
        open(&dir.path().join("none"))
            .to_string()
            .contains("No such file")
    );
    assert!(matches!(open(&image(&dir, 511)), OpenError::Empty { .. }));
}

#[test]
fn create_makes_and_lengthens_images() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("new");
    for (wanted, got) in [(1 << 20, 1 << 20), (2 << 20, 2 << 20), (1 << 20, 2 << 20)] {
        let options = OpenOptions {
            create: Some(wanted),
            ..OpenOptions::default()
        };
        let device = FileDevice::open(&path, options).unwrap();
        assert_eq!(device.geometry().size, got);
    }
}

#[test]
fn a_failed_transfer_is_reported() {
    // A file system without room: the loop device on it cannot write what its image promises.
    let dir = TempDir::new().unwrap();
    let place = dir.path().join("small");
    std::fs::create_dir(&place).unwrap();
    let mount = |args: &[&str]| {
        Command::new("mount")
            .args(args)
            .arg(&place)
            .status()
            .unwrap()
    };
    assert!(mount(&["-t", "tmpfs", "-o", "size=64k", "none"]).success());
    let path = place.join("image");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let looped = Loop::attach(&[], &path);
    let device = FileDevice::open(&looped.0, OpenOptions::default()).unwrap();
    let described = device.describe();
    let write = run(&device, Bio::write(0, vec![Buf::copy_of(&[1; 1 << 20])]));
    drop(device);
    // An image that becomes shorter under way.
    let cut = dir.path().join("cut");
    File::create(&cut).unwrap().set_len(1 << 20).unwrap();
    let shrinking = FileDevice::open(&cut, OpenOptions::default()).unwrap();
    File::options()
        .write(true)
        .open(&cut)
        .unwrap()
        .set_len(4096)
        .unwrap();
    let read = run(&shrinking, Bio::read(0, 8192));
    drop(looped);
    assert!(
        Command::new("umount")
            .arg("-l")
            .arg(&place)
            .status()
            .unwrap()
            .success()
    );
    let error = write.expect_err(&described);
    assert!(error.cause.contains("os error"), "{error}");
    assert!(read.unwrap_err().cause.contains("shorter"));
}

#[test]
fn started_requests_end_without_a_waiter() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 1 << 20);
    let device = FileDevice::open(&path, OpenOptions::default()).unwrap();
    let left = Arc::new(AtomicUsize::new(100));
    let ended: Arc<Event<()>> = Arc::default();
    for i in 0..100 {
        let (left, ended) = (Arc::clone(&left), Arc::clone(&ended));
        let done: Done = Box::new(move |_, result| {
            result.unwrap();
            if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                ended.set(());
            }
        });
        device.start(Bio::write(i * 4096, vec![pattern(4096, i as u8)]), done);
    }
    ended.wait();
    for i in 0..100 {
        assert_eq!(read(&device, i * 4096, 4096), pattern(4096, i as u8)[..]);
    }
}

#[test]
fn a_queue_runs_on_it_and_a_dropped_device_may_be_opened_again() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 1 << 20);
    for round in 0..20 {
        let device = FileDevice::open(&path, OpenOptions::default()).unwrap();
        let queue = Queue::new(Arc::new(device), QueueOptions::default());
        queue
            .write(0, vec![pattern(4096, round)], IoTag::default())
            .unwrap();
        queue.flush(IoTag::default()).wait().unwrap();
        let got = queue.read(0, 4096, IoTag::default()).unwrap();
        assert_eq!(got[..], pattern(4096, round)[..]);
    }
}
