//! Commits that wait for those who will ask for them.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_block::{DeviceModel, ModelDevice, Queue, QueueSettings};
use steadfs_cache::MetaCache;
use steadfs_rt::{now, sim, sleep, spawn};

use super::support::{Layout, set};
use crate::{Journal, JournalConfig, JournalStats, JournalTuning};

/// Tasks change a block, ask for the commit and are away for a moment, for a while; and how often each has.
fn load(tasks: u64, away: Duration, max_batch: Duration) -> (JournalStats, Vec<u64>) {
    let run = move || {
        let layout = Layout::new(1024, 3000, 1000);
        let model = DeviceModel {
            bytes_per_second: 500 << 20,
            latency: Duration::from_micros(40),
            flush: Duration::from_micros(200),
            depth: 8,
        };
        let device = Arc::new(ModelDevice::new(layout.device(), model));
        let queue = Arc::new(Queue::with_settings(device, QueueSettings::default()));
        let cache = Arc::new(MetaCache::new(queue, layout.block_size, 1 << 20));
        let mut config = JournalConfig::default();
        config.tuning = JournalTuning {
            max_batch,
            ..config.tuning
        };
        let journal = Journal::open(cache, layout.map(), config).unwrap();
        let until = now().0 + 200_000_000;
        let tasks: Vec<_> = (0..tasks)
            .map(|task| {
                let journal = Arc::clone(&journal);
                spawn("caller", move || {
                    sleep(Duration::from_micros(task * 150));
                    let mut count = 0u64;
                    while now().0 < until {
                        let tid = set(&journal, 1100 + task, count as u8);
                        journal.commit(tid, IoTag::default()).unwrap();
                        count += 1;
                        sleep(away);
                    }
                    count
                })
            })
            .collect();
        let counts = tasks.into_iter().map(|task| task.join()).collect();
        (journal.stats(), counts)
    };
    sim::run(sim::Config::new(1), run).value
}

#[test]
fn a_commit_serves_all_who_come_again_and_again() {
    const BATCH: Duration = Duration::from_millis(15);
    let away = Duration::from_micros(60);
    for tasks in [2, 4, 8] {
        let each = |(stats, counts): (JournalStats, Vec<u64>)| {
            let done: u64 = counts.iter().sum();
            (done, done as f64 / stats.transactions as f64)
        };
        let (done, per_commit) = each(load(tasks, away, BATCH));
        let (before, half) = each(load(tasks, away, Duration::ZERO));
        assert!(
            per_commit > tasks as f64 * 0.8,
            "{tasks}: {per_commit} of them"
        );
        assert!(half < tasks as f64 * 0.7, "{tasks}: {half} of them");
        assert!(done * 10 > before * 12, "{tasks}: {done}, without {before}");
    }
}

#[test]
fn a_lone_caller_is_not_held_up() {
    let away = Duration::from_micros(60);
    let (stats, _) = load(1, away, Duration::from_millis(15));
    assert_eq!(stats.waited_batch.count, 0);
}

/// Those who are away for longer than a commit takes are not waited for, but for a try now and then.
#[test]
fn who_does_not_come_is_soon_not_waited_for() {
    let away = Duration::from_micros(1500);
    let (with, counts) = load(3, away, Duration::from_millis(15));
    let (_, before) = load(3, away, Duration::ZERO);
    let all = |counts: &[u64]| counts.iter().sum::<u64>();
    assert!(with.waited_batch.count * 4 < with.transactions, "{with:?}");
    assert!(
        all(&counts) * 20 > all(&before) * 19,
        "{counts:?} {before:?}"
    );
}
