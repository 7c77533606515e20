//! Tests with files and loop devices; those that attach loop devices run as root.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};

use steadfs_base::IoTag;
use steadfs_rt::Event;
use tempfile::TempDir;

use super::*;
use crate::{Buf, IoError, Queue, QueueOptions};

mod sharing;

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

/// Batches of all operations, larger than a ring, with one that fails.
fn check_batches(device: &FileDevice) {
    let left = Arc::new(AtomicUsize::new(0));
    let failed = Arc::new(AtomicUsize::new(0));
    let job = |bio: Bio, expected: Option<Buf>| -> (Bio, Done) {
        left.fetch_add(1, Ordering::Relaxed);
        let (left, failed) = (Arc::clone(&left), Arc::clone(&failed));
        let done: Done = Box::new(move |bio, result| {
            if result.is_err() {
                failed.fetch_add(1, Ordering::Relaxed);
            }
            if let Some(expected) = expected {
                let got: Vec<u8> = bio.bufs.iter().flat_map(|b| b.to_vec()).collect();
                assert_eq!(got, expected[..]);
            }
            left.fetch_sub(1, Ordering::Relaxed);
        });
        (bio, done)
    };
    let bytes = |n: u64| pattern(1536, n as u8);
    let write = |n: u64| {
        let (head, tail) = (&bytes(n)[..512], &bytes(n)[512..]);
        Bio::write(n * 2048, vec![Buf::copy_of(head), Buf::copy_of(tail)])
    };
    let mut batch: Vec<_> = (0..200).map(|n| job(write(n), None)).collect();
    batch.insert(20, job(Bio::flush(), None));
    batch.insert(70, job(write(300).with_fua(), None));
    batch.insert(90, job(Bio::read(device.geometry().size, 512), None));
    batch.insert(99, job(Bio::write_zeroes(900 * 1024, 4096), None));
    device.run(batch);
    while left.load(Ordering::Relaxed) > 0 {
        steadfs_rt::yield_now();
    }
    assert_eq!(failed.load(Ordering::Relaxed), 1);
    let read = |n: u64| {
        let mut bio = Bio::read(n * 2048, 1024);
        bio.bufs.push(Buf::zeroed(512));
        bio.len = 1536;
        bio
    };
    let batch = (0..200).map(|n| job(read(n), Some(bytes(n)))).collect();
    device.run(batch);
    while left.load(Ordering::Relaxed) > 0 {
        steadfs_rt::yield_now();
    }
    assert_eq!(failed.load(Ordering::Relaxed), 1);
}

#[test]
fn the_engine_is_chosen_and_named() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 1 << 20);
    let device = FileDevice::open(&path, OpenOptions::default()).unwrap();
    assert!(
        device.describe().ends_with("io_uring"),
        "{}",
        device.describe()
    );
    drop(device);
    let device = FileDevice::open(&path, with_engine(Engine::Threads)).unwrap();
    assert!(
        device
            .describe()
            .ends_with("threads because they were selected")
    );
    drop(device);
    let buffered = OpenOptions {
        direct: false,
        ..OpenOptions::default()
    };
    let device = FileDevice::open(&path, buffered).unwrap();
    assert!(
        device
            .describe()
            .ends_with("threads because I/O is buffered")
    );
}

#[test]
fn a_batch_reports_a_truncated_file() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 1 << 20);
    for engine in ENGINES {
        let device = FileDevice::open(&path, with_engine(engine)).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(8192).unwrap();
        let results = Arc::new(steadfs_rt::Mutex::new(steadfs_rt::Rank::Leaf, Vec::new()));
        let batch = [0, 4096, 6144, 8192].map(|at| {
            let results = Arc::clone(&results);
            let done: Done = Box::new(move |bio, result| {
                results.lock().push((bio.offset, result.is_ok()));
            });
            (Bio::read(at, 4096), done)
        });
        device.run(batch.into());
        while results.lock().len() < 4 {
            steadfs_rt::yield_now();
        }
        results.lock().sort();
        assert_eq!(
            results.lock()[..],
            [(0, true), (4096, true), (6144, false), (8192, false)]
        );
        file.set_len(1 << 20).unwrap();
    }
}

#[test]
fn started_requests_end_without_a_waiter() {
    for engine in ENGINES {
        let dir = TempDir::new().unwrap();
        let path = image(&dir, 1 << 20);
        let device = FileDevice::open(&path, with_engine(engine)).unwrap();
        let left = Arc::new(AtomicUsize::new(100));
        let (ended, all_there): (Arc<Event<()>>, Arc<Event<()>>) = Default::default();
        for i in 0..100 {
            let (left, ended) = (Arc::clone(&left), Arc::clone(&ended));
            let all_there = Arc::clone(&all_there);
            let done: Done = Box::new(move |_, result| {
                result.unwrap();
                // Even a fast first lane leaves requests pending.
                if i == 0 {
                    all_there.wait();
                }
                if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    ended.set(());
                }
            });
            let bio = match i % 10 {
                9 => Bio::flush(),
                _ => Bio::write(i * 4096, vec![pattern(4096, i as u8)]),
            };
            device.start(bio, done);
        }
        all_there.set(());
        ended.wait();
        assert!(
            device.first.pool.lanes() > 1,
            "a lane that leaves work behind wakes the next"
        );
        for i in (0..100).filter(|i| i % 10 != 9) {
            assert_eq!(read(&device, i * 4096, 4096), pattern(4096, i as u8)[..]);
        }
    }
}

#[test]
fn waited_requests_need_no_thread() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 1 << 20);
    for engine in ENGINES {
        let device = Arc::new(FileDevice::open(&path, with_engine(engine)).unwrap());
        let queue = Queue::new(Arc::clone(&device) as _, QueueOptions::default());
        for i in 0..50 {
            let tag = IoTag::default();
            queue.write(i * 4096, vec![pattern(4096, 1)], tag).unwrap();
            queue.flush(tag).wait().unwrap();
            queue.read(i * 4096, 4096, tag).unwrap();
            if engine == Engine::Uring {
                let write = |n: u64| Bio::write(n * 8192, vec![pattern(4096, 2)]);
                let ios: Vec<_> = (0..9).map(|n| queue.submit(write(n), tag)).collect();
                crate::wait_all(&ios).unwrap();
            }
        }
        assert_eq!(device.first.pool.lanes(), 0);
        queue
            .submit(Bio::flush(), IoTag::background())
            .wait()
            .unwrap();
        assert!(device.first.pool.lanes() <= 1);
    }
}

/// Runs in a separate process, in which the kernel refuses rings.
#[test]
#[ignore = "started by another test"]
fn without_a_ring() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::os::fd::AsRawFd;
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 1 << 20);
    let next = File::open(&path).unwrap().as_raw_fd();
    // One more descriptor than are open: the image's.
    let limit = Rlimit {
        current: Some(next as u64 + 1),
        ..getrlimit(Resource::Nofile)
    };
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, limit).unwrap();
    let forced = FileDevice::open(&path, with_engine(Engine::Uring)).err();
    let device = FileDevice::open(&path, OpenOptions::default());
    setrlimit(Resource::Nofile, before).unwrap();
    let device = device.unwrap();
    assert!(
        matches!(forced, Some(OpenError::NoUring { .. })),
        "{forced:?}"
    );
    let described = device.describe();
    assert!(
        described.contains("threads because the kernel refuses"),
        "{described}"
    );
    check_transfers(&device);
    check_batches(&device);
}

#[test]
fn without_io_uring_threads_are_used() {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "file::tests::without_a_ring"])
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(out.contains("1 passed"), "{out}");
}

/// Threads that submit, wait, drop handles, boost and flush on one file. No request is stranded.
#[test]
fn many_threads_never_stall() {
    const TASKS: u64 = 6;
    const EACH: u64 = 400;
    let tag = |n: u64| match n % 3 {
        0 => IoTag::default(),
        1 => IoTag::background(),
        _ => IoTag::background().with_urgency(steadfs_base::Urgency::Idle),
    };
    for (engine, depth) in ENGINES.into_iter().flat_map(|e| [2, 32].map(|d| (e, d))) {
        let dir = TempDir::new().unwrap();
        let path = image(&dir, TASKS * EACH * 512);
        let device = FileDevice::open(&path, with_engine(engine)).unwrap();
        let queue = Arc::new(Queue::new(Arc::new(device), QueueOptions { depth }));
        let crowd: Vec<_> = (0..TASKS)
            .map(|task| {
                let queue = Arc::clone(&queue);
                steadfs_rt::spawn("crowd", move || {
                    let mut ios = Vec::new();
                    for i in 0..EACH {
                        let choice = steadfs_rt::random_u64();
                        let bio =
                            Bio::write((task * EACH + i) * 512, vec![pattern(512, task as u8)]);
                        let io = queue.submit(bio, tag(choice % 16));
                        match choice / 16 % 12 {
                            0..3 => io.wait().unwrap(),
                            3 => drop(io),
                            4 => queue.flush(tag(choice / 256)).wait().unwrap(),
                            5 => drop(queue.flush(tag(choice / 256))),
                            6 => queue.boost(&io, IoTag::default()),
                            _ => ios.push(io),
                        }
                    }
                    crate::wait_all(&ios).unwrap();
                })
            })
            .collect();
        let begin = steadfs_rt::now();
        let idle = || {
            let stats = queue.stats();
            stats.in_flight + stats.queued + stats.held == 0
        };
        while !(crowd.iter().all(steadfs_rt::JoinHandle::is_finished) && idle()) {
            let json = queue.stats().to_json();
            assert!(
                begin.elapsed().as_secs() < 600,
                "{engine:?} {depth}: {json}"
            );
            steadfs_rt::sleep(std::time::Duration::from_millis(1));
        }
        for task in crowd {
            task.join();
        }
        let whole = queue
            .read(0, (TASKS * EACH * 512) as usize, IoTag::default())
            .unwrap();
        for (i, block) in whole.chunks(512).enumerate() {
            assert_eq!(block, &pattern(512, (i as u64 / EACH) as u8)[..]);
        }
    }
}

/// Without threads, the submitter executes background requests.
#[test]
fn a_device_works_without_threads() {
    let run = || {
        for engine in ENGINES {
            let dir = TempDir::new().unwrap();
            let path = image(&dir, 1 << 20);
            steadfs_rt::sim::refuse_tasks(true);
            let device = FileDevice::open(&path, with_engine(engine)).unwrap();
            steadfs_rt::sim::refuse_tasks(false);
            let queue = Queue::new(Arc::new(device), QueueOptions { depth: 8 });
            steadfs_rt::sim::refuse_tasks(true);
            let write = |n: u64| Bio::write(n * 512, vec![pattern(512, n as u8)]);
            let ios: Vec<_> = (0..100)
                .map(|n| queue.submit(write(n), IoTag::background()))
                .collect();
            drop(queue.flush(IoTag::background()));
            crate::wait_all(&ios).unwrap();
            for n in 0..100 {
                let read = queue.read(n * 512, 512, IoTag::default()).unwrap();
                assert_eq!(read[..], pattern(512, n as u8)[..], "{engine:?}");
            }
            let stats = queue.stats();
            assert_eq!(stats.in_flight + stats.queued + stats.held, 0);
            steadfs_rt::sim::refuse_tasks(false);
        }
    };
    steadfs_rt::sim::run(steadfs_rt::sim::Config::new(1), run);
}
