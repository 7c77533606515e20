//! How long handles wait for log space with background reclaim, on a device with a fixed speed.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_block::{DeviceModel, ModelDevice};
use steadfs_rt::{Random, sim, sleep, spawn};

use super::support::{Layout, buf, set};
use crate::{Journal, JournalConfig, JournalStats, ReclaimPolicy};

/// First of the blocks that are changed.
const HOME: u64 = 3000;
const HOMES: usize = 12_000;

/// Bursts of writers: each burst fills a large part of the log with scattered blocks. The device can write
/// them to their home locations between two bursts, but not during one.
fn bursts(seed: u64, low_free_percent: Option<u8>) -> JournalStats {
    let run = move || {
        let layout = Layout::new(4096, HOME + HOMES as u64, 2048);
        let model = DeviceModel {
            bytes_per_second: 200 << 20,
            latency: Duration::from_micros(400),
            flush: Duration::from_millis(2),
            depth: 4,
        };
        let device = Arc::new(ModelDevice::new(layout.device(), model));
        let config = JournalConfig {
            reclaim: ReclaimPolicy {
                low_free_percent,
                ..ReclaimPolicy::default()
            },
            ..JournalConfig::default()
        };
        let journal = layout.open(device, config);
        journal.start_tasks().unwrap();
        let writers: Vec<_> = (0..4)
            .map(|task| {
                let journal = Arc::clone(&journal);
                spawn("writer", move || {
                    let mut random = Random::new(seed * 100 + task);
                    for _ in 0..6 {
                        for _ in 0..24 {
                            let mut handle = journal.begin(16).unwrap();
                            for _ in 0..16 {
                                let block = HOME + random.below(HOMES) as u64;
                                handle.write(&buf(&journal, block)).unwrap()[0] ^= 1;
                            }
                            drop(handle);
                            sleep(Duration::from_micros(random.below(400) as u64));
                        }
                        sleep(Duration::from_millis(random.below(400) as u64));
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|task| task.join());
        journal.join_tasks();
        journal.stats()
    };
    sim::run(sim::Config::new(seed), run).value
}

/// With background reclaim handles wait less often, and a handle that waits does so no longer than one that
/// reclaims by itself: it waits for one short step and continues with what is written already.
#[test]
fn background_reclaim_makes_no_wait_longer() {
    let all = |low_free_percent| {
        let runs = (1..6).map(|seed| bursts(seed, low_free_percent).waited_space);
        runs.fold((0, Duration::ZERO), |(count, longest), waits| {
            (count + waits.count, longest.max(waits.max))
        })
    };
    let (on, longest_on) = all(Some(50));
    let (off, longest_off) = all(None);
    assert!(on > 0 && on * 2 < off, "{on} waits, {off} without");
    assert!(longest_on < longest_off, "{longest_on:?}, {longest_off:?}");
}

/// Commits changes of `blocks`, which are durable then but not written to their home locations.
fn fill(journal: &Journal, blocks: Range<u64>) {
    for block in blocks {
        set(journal, HOME + block, 1);
    }
    journal.commit_all(IoTag::default()).unwrap();
}

/// Blocks that the background reclaimer has written to their home locations in one step that it was to begin
/// while a handle waits for log space: before 200 more blocks are committed, after that, and after the wait.
fn beside_a_waiter(max_unwritten_bytes: u64) -> [u64; 3] {
    let run = move || {
        let layout = Layout::new(4096, HOME + HOMES as u64, 4096);
        let config = JournalConfig {
            reclaim: ReclaimPolicy {
                low_free_percent: Some(99),
                max_unwritten_bytes,
                ..ReclaimPolicy::default()
            },
            ..JournalConfig::default()
        };
        let journal = layout.open(layout.device(), config);
        fill(&journal, 0..1500);
        let waits = journal.add_space_waiter(IoTag::default());
        let other = Arc::clone(&journal);
        let background = spawn("background", move || other.reclaim_in_background().unwrap());
        let home = || {
            sleep(Duration::from_secs(1));
            journal.stats().written_home
        };
        let before = home();
        fill(&journal, 1500..1700);
        let heavier = home();
        drop(waits);
        let after = home();
        background.join();
        [before, heavier, after]
    };
    sim::run(sim::Config::new(1), run).value
}

/// A step for log space does not begin while a handle waits, and is short. A step that relieves memory begins
/// as soon as the limit is exceeded, even while a handle waits, and is large.
#[test]
fn only_memory_relief_begins_while_a_handle_waits() {
    let (step, batch) = ((512 << 10) / 4096, (4 << 20) / 4096);
    assert_eq!(beside_a_waiter(32 << 20), [0, 0, step]);
    assert_eq!(beside_a_waiter(1600 << 12), [0, batch, batch]);
    assert_eq!(beside_a_waiter(1400 << 12), [batch; 3]);
}
