//! Checkpoints asked for by many at one time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_rt::{now, sim, sleep, spawn};
use steadfs_vfs::FsError;

use super::checkpoints::{make_file, writable};
use crate::F2fs;
use crate::format::{FormatOptions, image};

fn world() -> Arc<F2fs> {
    let opts = FormatOptions {
        uuid: Some([7; 16]),
        time: Some(1),
        checkpoint_version: Some(1),
        ..FormatOptions::default()
    };
    writable(&image(64 << 20, &opts).unwrap())
}

/// Makes files and wants each durable at once; answers in order.
fn client(fs: &Arc<F2fs>, number: u64, rounds: u64) -> Vec<Result<(), FsError>> {
    let mut answers = Vec::new();
    for round in 0..rounds {
        sleep(Duration::from_micros(137 * number + 1));
        make_file(fs, format!("{number} {round}").as_bytes(), 0);
        let before = fs.checkpoints.written();
        let answer = fs.request_checkpoint(IoTag::default());
        if answer.is_ok() {
            assert!(fs.checkpoints.written() > before || !fs.has_changed());
        }
        answers.push(answer);
    }
    answers
}

#[test]
fn requests_share_checkpoints_and_none_is_lost_at_the_end() {
    for seed in 0..20 {
        let run = move || {
            let fs = world();
            fs.daemon.start(fs.me.get().unwrap().clone());
            fs.daemon.start(fs.me.get().unwrap().clone());
            let clients: Vec<_> = (0..6)
                .map(|number| {
                    let fs = Arc::clone(&fs);
                    spawn("client", move || client(&fs, number, 5))
                })
                .collect();
            // The task goes and comes while they ask.
            for _ in 0..3 {
                sleep(Duration::from_micros(500 + seed * 31));
                fs.daemon.stop(&fs);
                assert_eq!(fs.daemon.stats().queued, 0);
                fs.daemon.start(fs.me.get().unwrap().clone());
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
fn everybody_learns_that_the_volume_stopped() {
    sim::run(sim::Config::new(3), || {
        let fs = world();
        fs.daemon.start(fs.me.get().unwrap().clone());
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
        fs.stop("the first cause");
        for client in clients {
            let answer = client.join();
            assert_eq!(answer, Err(FsError::Stopped("the first cause".to_owned())));
        }
        let began = now();
        fs.daemon.stop(&fs);
        assert!(now().since(began) < Duration::from_secs(1));
        assert!(!fs.unmounted.load(Ordering::Acquire));
    });
}
