//! Group commit of merged checkpoints, on a device whose FLUSH takes 10 ms.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_block::{DeviceModel, ModelDevice, QueueSettings};
use steadfs_cache::CacheSizes;
use steadfs_rt::{now, sim, sleep, spawn};
use steadfs_vfs::{Cx, FileSystem, SetAttr, SetTime};

use crate::checkpoint::daemon::MergeStats;
use crate::format::{FormatOptions, image};
use crate::test_world::ROOT;
use crate::{F2fs, MountOptions};

const FLUSH: Duration = Duration::from_millis(10);
const DEFAULT: &str = "15000";

fn world(max_batch_time: &str) -> Arc<F2fs> {
    let device = image(64 << 20, &FormatOptions::default()).unwrap();
    let model = DeviceModel {
        bytes_per_second: 500 << 20,
        latency: Duration::from_micros(40),
        flush: FLUSH,
        depth: 8,
    };
    let device = Arc::new(ModelDevice::new(device as _, model));
    let options = MountOptions::parse("checkpoint_merge").unwrap();
    let (fs, _) = F2fs::open(device, options, CacheSizes::of(64 << 20)).unwrap();
    fs.queue.configure(QueueSettings::default());
    let control = fs.control().unwrap();
    let path = "f2fs/max_batch_time";
    control.write(path, max_batch_time.as_bytes()).unwrap();
    fs
}

/// The result of a run.
#[derive(Debug)]
struct Load {
    stats: MergeStats,
    /// Requests that were answered.
    answered: u64,
    /// Requests per checkpoint.
    per_checkpoint: f64,
}

/// Tasks change their directories, request a checkpoint and sleep for `away`, in a loop for 2 s.
fn load(tasks: u64, away: Duration, max_batch_time: &'static str) -> Load {
    let run = move || {
        let fs = world(max_batch_time);
        let until = now().0 + 2_000_000_000;
        let tasks: Vec<_> = (0..tasks)
            .map(|task| {
                let fs = Arc::clone(&fs);
                spawn("caller", move || repeat(&fs, task, away, until))
            })
            .collect();
        let answered = tasks.into_iter().map(|task| task.join()).sum();
        fs.close().unwrap();
        let stats = fs.daemon.stats();
        assert_eq!(stats.total, answered);
        Load {
            per_checkpoint: answered as f64 / stats.issued as f64,
            answered,
            stats,
        }
    };
    // A simulation that preempts may fire timers early, and shorten the waits.
    let config = sim::Config {
        preempt: 0,
        ..sim::Config::new(1)
    };
    sim::run(config, run).value
}

fn repeat(fs: &Arc<F2fs>, task: u64, away: Duration, until: u64) -> u64 {
    let cx = Cx::default();
    let name = format!("{task}");
    let dir = fs.mkdir(&cx, ROOT, name.as_bytes(), 0o755).unwrap().ino;
    sleep(Duration::from_millis(task * 3));
    let mut answered = 0;
    while now().0 < until {
        let change = SetAttr {
            mtime: Some(SetTime::Now),
            ..SetAttr::default()
        };
        fs.setattr(&cx, dir, &change).unwrap();
        let (_, before) = fs.checkpoints.node_version();
        fs.request_checkpoint(IoTag::default()).unwrap();
        assert!(
            fs.checkpoints.last().version > before,
            "a checkpoint that began before the request does not answer it"
        );
        answered += 1;
        sleep(away);
    }
    answered
}

#[test]
fn a_checkpoint_serves_all_repeated_requesters() {
    let away = Duration::from_millis(2);
    for tasks in [2, 4] {
        let (with, without) = (load(tasks, away, DEFAULT), load(tasks, away, "0"));
        let all = tasks as f64;
        assert!(with.per_checkpoint > all * 0.9, "{tasks}: {with:?}");
        assert!(without.per_checkpoint < all * 0.7, "{tasks}: {without:?}");
        assert_eq!(without.stats.batch_waits, 0);
        let (more, before) = (with.answered, without.answered);
        assert!(more * 10 > before * 13, "{tasks}: {more}, without {before}");
    }
}

#[test]
fn a_lone_requester_never_waits() {
    let away = Duration::from_millis(2);
    let (with, without) = (load(1, away, DEFAULT), load(1, away, "0"));
    assert_eq!(with.stats.batch_waits, 0);
    assert_eq!(with.answered, without.answered);
}

/// Tasks that stay away for longer than a checkpoint takes are not waited for, except in rare attempts.
#[test]
fn absent_requesters_are_soon_not_waited_for() {
    let away = Duration::from_millis(43);
    let (with, without) = (load(3, away, DEFAULT), load(3, away, "0"));
    assert!(with.stats.batch_waits * 4 < with.stats.issued, "{with:?}");
    let (less, before) = (with.answered, without.answered);
    assert!(less * 20 > before * 19, "{less}, without {before}");
}
