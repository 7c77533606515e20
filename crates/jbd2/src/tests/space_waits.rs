//! How long handles wait for log space while the background reclaims, on a device of known speed.

use std::sync::Arc;
use std::time::Duration;

use steadfs_block::{DeviceModel, ModelDevice};
use steadfs_rt::{Random, sim, sleep, spawn};

use super::support::{Layout, buf};
use crate::{JournalConfig, ReclaimPolicy, Stats};

/// Where the blocks that are changed lie.
const HOME: u64 = 3000;
const HOMES: usize = 12_000;

/// Writers that come in bursts: each one fills a good part of the log with blocks here and there, and
/// the device has the time between two to write them home, not the time of one.
fn bursts(seed: u64, low_free_percent: Option<u8>) -> Stats {
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
        journal.start();
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
        journal.stop();
        journal.stats()
    };
    sim::run(sim::Config::new(seed), run).value
}

/// With reclaim in the background handles wait less often, and who waits all the same waits no longer
/// than one who reclaims for himself: he stands behind one short step, and goes on from what is home.
#[test]
fn the_background_makes_no_wait_longer() {
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
