//! Group commit: commits that wait for more fsync callers.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{GroupId, IoTag};
use steadfs_block::{DeviceModel, ModelDevice, Queue, QueueSettings};
use steadfs_cache::MetaCache;
use steadfs_rt::{now, sim, sleep, spawn};

use super::support::{Layout, set};
use crate::{Journal, JournalConfig, JournalStats, JournalTuning};

const MILLISECOND: u64 = 1_000_000;

/// Tasks change a block, commit it and sleep for `away`, in a loop for 200 ms. Returns the number of commits of
/// each task.
fn load(tasks: u64, away: Duration, max_batch: Duration) -> (JournalStats, Vec<u64>) {
    let tasks = vec![(GroupId(0), 200 * MILLISECOND); tasks as usize];
    load_of(tasks, away, max_batch)
}

/// The same for tasks of these groups, of which group 1 has five times the weight of group 2, each for its time in
/// nanoseconds.
fn load_of(
    tasks: Vec<(GroupId, u64)>,
    away: Duration,
    max_batch: Duration,
) -> (JournalStats, Vec<u64>) {
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
        queue.set_group(GroupId(1), GroupId(0), 100);
        queue.set_group(GroupId(2), GroupId(0), 20);
        let cache = Arc::new(MetaCache::new(queue, layout.block_size, 1 << 20));
        let mut config = JournalConfig::default();
        config.tuning = JournalTuning {
            max_batch,
            ..config.tuning
        };
        let journal = Journal::open(cache, layout.map(), config).unwrap();
        let began = now().0;
        let tasks: Vec<_> = (0..)
            .zip(tasks)
            .map(|(task, (group, time))| {
                let (journal, until) = (Arc::clone(&journal), began + time);
                let tag = IoTag {
                    group,
                    ..IoTag::default()
                };
                spawn("caller", move || {
                    sleep(Duration::from_micros(task * 150));
                    let mut count = 0u64;
                    while now().0 < until {
                        let tid = set(&journal, 1100 + task, count as u8);
                        journal.commit(tid, tag).unwrap();
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
fn a_commit_serves_all_repeated_callers() {
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
fn a_lone_caller_does_not_wait() {
    let away = Duration::from_micros(60);
    let (stats, _) = load(1, away, Duration::from_millis(15));
    assert_eq!(stats.waited_batch.count, 0);
}

/// Tasks that sleep for longer than a commit takes are not waited for, except in rare attempts.
#[test]
fn absent_callers_are_soon_not_waited_for() {
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

/// Beside a heavy group, a commit waits for no caller of a light one. When the heavy group has stopped, it does again.
#[test]
fn a_heavy_caller_that_has_stopped_is_forgotten() {
    const LIGHT: u64 = 4;
    let mut tasks = vec![(GroupId(2), 200 * MILLISECOND); LIGHT as usize];
    tasks.push((GroupId(1), 20 * MILLISECOND));
    let away = Duration::from_micros(60);
    let (stats, counts) = load_of(tasks, away, Duration::from_millis(15));
    let done: u64 = counts.iter().sum();
    let per_commit = done as f64 / stats.transactions as f64;
    assert!(
        per_commit > LIGHT as f64 * 0.75,
        "{per_commit} of them: {counts:?}"
    );
}
