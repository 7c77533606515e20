//! Checkpoint merging with many concurrent requests.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_cache::CacheSizes;
use steadfs_rt::{now, sim, sleep, spawn};
use steadfs_vfs::{Cx, FileSystem, FsError};

use super::checkpoints::{make_file, writable};
use crate::disk::LogType;
use crate::disk::superblock::StopReason;
use crate::format::{FormatOptions, image};
use crate::segment::Purpose;
use crate::{F2fs, MountOptions};

fn world() -> Arc<F2fs> {
    writable(&image(64 << 20, &the_same_each_time()).unwrap())
}

fn the_same_each_time() -> FormatOptions {
    FormatOptions {
        uuid: Some([7; 16]),
        time: Some(1),
        checkpoint_version: Some(1),
        ..FormatOptions::default()
    }
}

/// Creates files and makes each durable at once; returns the results in order.
fn client(fs: &Arc<F2fs>, number: u64, rounds: u64) -> Vec<Result<(), FsError>> {
    let mut answers = Vec::new();
    for round in 0..rounds {
        sleep(Duration::from_micros(137 * number + 1));
        // Checkpoints up to this one may lack the file: they began before the request and must not answer it.
        let (_, before) = fs.checkpoints.node_version();
        make_file(fs, format!("{number} {round}").as_bytes(), 0);
        let answer = fs.request_checkpoint(IoTag::default());
        if answer.is_ok() {
            assert!(fs.checkpoints.last().version > before);
        }
        answers.push(answer);
    }
    answers
}

#[test]
fn requests_share_checkpoints_and_each_is_answered() {
    for seed in 0..20 {
        let run = move || {
            let fs = world();
            fs.daemon.start(fs.weak().clone()).unwrap();
            fs.daemon.start(fs.weak().clone()).unwrap();
            let clients: Vec<_> = (0..6)
                .map(|number| {
                    let fs = Arc::clone(&fs);
                    spawn("client", move || client(&fs, number, 5))
                })
                .collect();
            // The task is started and stopped meanwhile.
            for _ in 0..3 {
                sleep(Duration::from_micros(500 + seed * 31));
                fs.daemon.stop(&fs);
                assert_eq!(fs.daemon.stats().queued, 0);
                fs.daemon.start(fs.weak().clone()).unwrap();
            }
            for client in clients {
                assert!(client.join().iter().all(Result::is_ok));
            }
            fs.daemon.stop(&fs);
            let stats = fs.daemon.stats();
            assert!(
                stats.issued <= stats.total && stats.total <= 30,
                "{stats:?}"
            );
            assert_eq!(stats.waits.iter().sum::<u64>(), stats.total);
            assert_eq!(fs.checkpoints.calls(), (30, 0));
            stats
        };
        let first = sim::run(sim::Config::new(seed), run);
        assert_eq!(first.value, sim::run(sim::Config::new(seed), run).value);
    }
}

#[test]
fn all_requesters_get_the_error_of_an_abort() {
    sim::run(sim::Config::new(3), || {
        let fs = world();
        fs.daemon.start(fs.weak().clone()).unwrap();
        let clients: Vec<_> = (0..4)
            .map(|number| {
                let fs = Arc::clone(&fs);
                spawn("client", move || {
                    let tag = IoTag::default();
                    while fs.request_checkpoint(tag).is_ok() {
                        sleep(Duration::from_micros(50 + number));
                    }
                    fs.request_checkpoint(tag)
                })
            })
            .collect();
        sleep(Duration::from_millis(2));
        fs.abort(StopReason::SHUTDOWN, "the first cause");
        for client in clients {
            let answer = client.join();
            assert_eq!(answer, Err(FsError::Stopped("the first cause".to_owned())));
        }
        // A failed checkpoint counts as issued; although nothing had changed, it must not report success.
        let before = fs.daemon.stats();
        fs.request_checkpoint(IoTag::default()).unwrap_err();
        fs.daemon.flush(&fs);
        let after = fs.daemon.stats();
        assert_eq!(after.issued, before.issued + 1);
        assert_eq!(after.batches.iter().sum::<u64>(), after.issued);
        assert!(matches!(
            fs.sync_all(&Cx::default()),
            Err(FsError::Stopped(_))
        ));
        let began = now();
        fs.daemon.stop(&fs);
        assert!(now().since(began) < Duration::from_secs(1));
        assert!(fs.check_open().is_ok());
    });
}

/// Directories are made durable by several tasks while the volume is remounted, frozen and finally unmounted: each gets
/// an answer, and success only if the directory is durable.
#[test]
fn requests_end_during_remount_freeze_and_unmount() {
    for seed in 0..8 {
        sim::run(sim::Config::new(seed), move || {
            let device = image(64 << 20, &the_same_each_time()).unwrap();
            let options = MountOptions::parse("").unwrap();
            let (fs, _) = F2fs::open(device, options, CacheSizes::of(64 << 20)).unwrap();
            let clients: Vec<_> = (0..4)
                .map(|number| {
                    let fs = Arc::clone(&fs);
                    spawn("client", move || directories(&fs, number))
                })
                .collect();
            let cx = Cx::default();
            let control = fs.control().unwrap();
            for (n, step) in [
                "nocheckpoint_merge",
                "1",
                "0",
                "checkpoint_merge",
                "ro",
                "rw",
            ]
            .into_iter()
            .cycle()
            .take(12)
            .enumerate()
            {
                sleep(Duration::from_micros(
                    300 + (seed * 97 + n as u64 * 41) % 400,
                ));
                match step {
                    "0" | "1" => control.write("f2fs/freeze", step.as_bytes()).unwrap(),
                    list => fs.remount(&cx, list).unwrap(),
                }
            }
            let durable: u64 = clients.into_iter().map(|client| client.join()).sum();
            assert!(durable > 10, "{durable}");
            fs.close().unwrap();
            assert_eq!(fs.daemon.stats().queued, 0);
            assert!(!fs.daemon.is_running());
        });
    }
}

/// Creates directories until forty are durable or refused; returns the number of durable ones.
fn directories(fs: &Arc<F2fs>, number: u64) -> u64 {
    let cx = Cx::default();
    let mut durable = 0;
    for round in 0..40 {
        sleep(Duration::from_micros(50 + 13 * number));
        let (_, before) = fs.checkpoints.node_version();
        let name = format!("{number} {round}");
        let done = fs
            .mkdir(&cx, fs.root(), name.as_bytes(), 0o755)
            .and_then(|made| fs.fsync(&cx, made.ino, false));
        match done {
            Ok(()) => {
                assert!(fs.checkpoints.last().version > before);
                durable += 1;
            }
            Err(FsError::ReadOnly | FsError::Busy) => {}
            Err(other) => panic!("{other}"),
        }
    }
    durable
}

/// A checkpoint without space is not repeated endlessly: each requester gets the error, and a later checkpoint succeeds
/// when there is space.
#[test]
fn all_requesters_get_no_space_and_a_later_checkpoint_succeeds() {
    for merge in [true, false] {
        sim::run(sim::Config::new(5), move || {
            let fs = world();
            if merge {
                fs.daemon.start(fs.weak().clone()).unwrap();
            }
            make_file(&fs, b"durable", 0);
            fs.request_checkpoint(IoTag::default()).unwrap();
            let written = fs.checkpoints.written();
            make_file(&fs, b"dirty", 0);
            // All blocks that nodes could use.
            let mut claimed = Vec::new();
            for log in LogType::ALL {
                while let Ok(run) = fs.segments().allocate(log, 512, Purpose::Reserved) {
                    claimed.push(run);
                }
            }
            let began = now();
            let clients: Vec<_> = (0..4)
                .map(|number| {
                    let fs = Arc::clone(&fs);
                    spawn("client", move || {
                        sleep(Duration::from_micros(number));
                        (0..3)
                            .map(|_| fs.request_checkpoint(IoTag::default()))
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            for client in clients {
                let answers = client.join();
                assert!(
                    answers.iter().all(|a| *a == Err(FsError::NoSpace)),
                    "{answers:?}"
                );
            }
            assert!(began.elapsed() < Duration::from_secs(1));
            assert_eq!(fs.checkpoints.written(), written);
            assert_eq!(fs.abort_cause(), None);
            for run in claimed {
                fs.segments().release(run);
            }
            fs.request_checkpoint(IoTag::default()).unwrap();
            assert_eq!(fs.checkpoints.written(), written + 1);
            fs.daemon.stop(&fs);
            assert_eq!(fs.daemon.stats().queued, 0);
        });
    }
}
