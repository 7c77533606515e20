//! Tests with files and loop devices; those that attach loop devices run as root.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command};

use steadfs_base::IoTag;
use steadfs_rt::Event;
use tempfile::TempDir;

use super::*;
use crate::{Buf, IoError, Queue, QueueOptions};

mod engines;
mod sharing;

use engines::check_batches;

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

/// Opens a file that was closed just before: a child process that another test has forked may hold it until it
/// executes its program, which may take long on a busy machine.
fn open_patiently(path: &str, options: &OpenOptions) -> FileDevice {
    let begin = steadfs_rt::now();
    loop {
        match FileDevice::open(path, options.clone()) {
            Err(OpenError::Busy { .. }) if begin.elapsed().as_secs() < 60 => {}
            opened => return opened.unwrap(),
        }
    }
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
    if device.geometry().discard_zeroes {
        assert_eq!(after, [0; 4096]);
    } else {
        assert!(after == pattern(4096, 9)[..] || after == [0; 4096]);
    }
}

const ENGINES: [Engine; 2] = [Engine::Threads, Engine::Uring];

fn with_engine(engine: Engine) -> OpenOptions {
    OpenOptions {
        engine,
        ..OpenOptions::default()
    }
}

#[test]
fn an_image_is_transferred_directly_and_buffered() {
    for (direct, engine) in [true, false]
        .into_iter()
        .flat_map(|d| ENGINES.map(|e| (d, e)))
    {
        let dir = TempDir::new().unwrap();
        let path = image(&dir, 1 << 20);
        let options = OpenOptions {
            direct,
            ..with_engine(engine)
        };
        let device = FileDevice::open(&path, options).unwrap();
        assert_eq!(
            device.first.target.is_direct(),
            direct,
            "{}",
            device.describe()
        );
        check_transfers(&device);
        check_batches(&device);
        if !direct {
            assert!(
                device
                    .describe()
                    .contains("buffered I/O because it was selected")
            );
        }
    }
}

#[test]
fn small_reads_can_go_through_the_page_cache() {
    for engine in ENGINES {
        let dir = TempDir::new().unwrap();
        let path = image(&dir, 1 << 20);
        let content = pattern(1 << 20, 7).to_vec();
        std::fs::write(&path, &content).unwrap();
        let options = OpenOptions {
            read_only: true,
            cached_small_reads: true,
            ..with_engine(engine)
        };
        let device = FileDevice::open(&path, options).unwrap();
        assert!(device.first.target.is_direct());
        // Any place and length, small and large.
        for (at, len) in [(0, 512), (512, 1024), (4096, 65536), (0, 1 << 20)] {
            let read = read(&device, at as u64, len);
            assert_eq!(read, content[at..][..len], "{at} {len}");
        }
        // A truncated file is an error, no endless read.
        std::fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(4096)
            .unwrap();
        let end = run(&device, Bio::read(8192, 4096)).unwrap_err().to_string();
        assert!(end.contains("has been truncated"), "{end}");
    }
}

#[test]
fn a_loop_device_of_either_sector_size_is_transferred() {
    for (sector, engine) in ["512", "4096"]
        .into_iter()
        .flat_map(|s| ENGINES.map(|e| (s, e)))
    {
        let dir = TempDir::new().unwrap();
        let path = image(&dir, 1 << 20);
        let looped = Loop::attach(&["--sector-size", sector], &path);
        let device = FileDevice::open(&looped.0, with_engine(engine)).unwrap();
        assert!(device.first.target.is_direct());
        assert_eq!(device.first.target.direct_unit.to_string(), sector);
        run(&device, Bio::write(0, vec![pattern(4096, 5)])).unwrap();
        // Reads of half a sector need no page cache, but writes do.
        assert_eq!(read(&device, 1024, 1024), pattern(4096, 5)[1024..2048]);
        assert!(device.first.target.is_direct());
        check_transfers(&device);
        assert_eq!(
            device.first.target.is_direct(),
            sector == "512",
            "{}",
            device.describe()
        );
        assert_eq!(read(&device, 0, 4096), pattern(4096, 5)[..]);
        check_batches(&device);
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
    assert!(device.first.target.is_direct());
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
    assert!(!device.first.target.is_direct());
    assert!(
        device
            .describe()
            .contains("offset 1000 is not a multiple of")
    );
    check_transfers(&device);
}

#[test]
fn other_kinds_of_files_are_refused() {
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
fn create_creates_and_extends_images() {
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
    // A full file system: the loop device on it cannot write to the holes of its image.
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
    // The kernel's loop device reports a short write as a success, so the first write only fills the
    // file system.
    let _ = run(&device, Bio::write(0, vec![Buf::copy_of(&[1; 1 << 17])]));
    let write = run(&device, Bio::write(1 << 19, vec![pattern(1 << 17, 1)]));
    drop(device);
    // Through the page cache the write succeeds, and the FLUSH fails.
    let options = OpenOptions {
        direct: false,
        ..OpenOptions::default()
    };
    let device = open_patiently(&looped.0, &options);
    let cached = run(&device, Bio::write(1 << 19, vec![pattern(1 << 17, 1)]));
    let flush = run(&device, Bio::flush());
    let durable = run(
        &device,
        Bio::write(1 << 18, vec![pattern(1 << 17, 1)]).with_fua(),
    );
    drop(device);
    // An image that is truncated during I/O.
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
    cached.unwrap();
    assert!(flush.is_err() && durable.is_err());
    assert!(read.unwrap_err().cause.contains("truncated"));
}
