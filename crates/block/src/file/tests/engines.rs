//! Tests of the engines: system calls, rings and threads.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Batches of all operations, larger than a ring, with one that fails.
pub(super) fn check_batches(device: &FileDevice) {
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
        .args([
            "--ignored",
            "--exact",
            "file::tests::engines::without_a_ring",
        ])
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
