//! Many tasks at a time: group commit, waits, timing, liveness.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use steadfs_base::{DevBlock, IoTag};
use steadfs_cache::MetaCache;
use steadfs_rt::{Instant, Random, now, sim, sleep, spawn, yield_now};

use super::crash_device::CrashDevice;
use super::support::{Layout, buf, seeds, set};
use crate::{Durable, Journal, JournalConfig, JournalTuning, ReclaimPolicy};

const TAG: IoTag = IoTag::background();

/// A journal of `len` blocks on a slow device.
fn slow(len: u64, seed: u64, config: JournalConfig) -> (Layout, Arc<CrashDevice>, Arc<Journal>) {
    let layout = Layout::new(1024, 3000, len);
    let device = Arc::new(CrashDevice::new(layout.device().to_bytes(), seed));
    let journal = layout.open(Arc::clone(&device) as _, config);
    (layout, device, journal)
}

fn no_background() -> JournalConfig {
    JournalConfig {
        reclaim: ReclaimPolicy {
            enabled: false,
            ..ReclaimPolicy::default()
        },
        ..JournalConfig::default()
    }
}

fn spawn_all(count: u64, f: impl Fn(u64) + Send + Sync + Clone + 'static) {
    let tasks: Vec<_> = (0..count)
        .map(|task| {
            let f = f.clone();
            spawn("load", move || f(task))
        })
        .collect();
    tasks.into_iter().for_each(|task| task.join());
}

#[test]
fn concurrent_fsyncs_share_commits() {
    for tasks in [1, 4, 16, 64] {
        let run = move || {
            let (_, _, journal) = slow(1024, tasks, JournalConfig::default());
            let shared = Arc::clone(&journal);
            spawn_all(tasks, move |task| {
                for n in 0..20 {
                    let tid = set(&shared, 1100 + task, n);
                    shared.commit(tid, TAG).unwrap();
                    assert!(shared.durable_tid().at_least(tid));
                }
            });
            journal.stats()
        };
        let stats = sim::run(sim::Config::new(tasks), run).value;
        let callers = tasks * 20;
        // While one transaction is committed, all other tasks join the next one: for any number of tasks
        // there are about twice as many commits as one task requests.
        assert!(stats.transactions >= 20);
        assert!(
            stats.transactions <= 45.min(callers),
            "{tasks} tasks: {stats:?}"
        );
        assert_eq!(stats.requested, stats.transactions);
        assert_eq!(stats.handles, callers);
    }
}

/// Handles of all sizes on a very small log, so that credits and log space are scarce.
fn scarce(seed: u64, config: JournalConfig, with_tasks: bool) -> crate::JournalStats {
    let run = move || {
        let (layout, device, journal) = slow(60, seed, config);
        if with_tasks {
            journal.start_tasks().unwrap();
        }
        let shared = Arc::clone(&journal);
        spawn_all(8, move |task| {
            let mut random = Random::new(seed * 100 + task);
            for n in 0..15_u8 {
                let max = shared.max_credits() as usize;
                let credits = 1 + random.below(max) as u32;
                let mut handle = shared.begin(credits).unwrap();
                let mut last = handle.tid();
                for step in 0..random.below(30) as u64 {
                    if handle.credits() == 0 && !handle.extend(3) {
                        handle.restart(1 + random.below(max) as u32).unwrap();
                        assert!(handle.tid().at_least(last));
                        last = handle.tid();
                    }
                    let block = 1000 + task * 100 + step;
                    handle.write(&buf(&shared, block)).unwrap()[3] = n;
                    if random.chance(100) {
                        handle.forget(DevBlock(block)).unwrap();
                    }
                    if random.chance(30) {
                        sleep(Duration::from_micros(random.below(3000) as u64));
                    }
                }
                drop(handle);
                if random.chance(200) {
                    shared.commit(last, TAG).unwrap();
                }
                if random.chance(20) {
                    shared.freeze().unwrap();
                    sleep(Duration::from_millis(3));
                    shared.thaw();
                }
            }
        });
        journal.flush_all().unwrap();
        let (free, capacity) = journal.log_space();
        assert_eq!(free, capacity);
        journal.join_tasks();
        let summary = layout.recover(device).summary;
        assert_eq!(summary.transactions, 0);
        journal.stats()
    };
    sim::run(sim::Config::new(seed), run).value
}

#[test]
fn a_log_too_small_for_all_handles_serves_them_in_turn() {
    let (mut space, mut credits, mut locked) = (0, 0, 0);
    for seed in seeds(30) {
        for with_tasks in [false, true] {
            let config = match seed % 2 {
                0 => JournalConfig::default(),
                _ => no_background(),
            };
            let stats = scarce(seed, config, with_tasks);
            space += stats.waited_space.count;
            credits += stats.waited_credits.count;
            locked += stats.waited_locked.count;
        }
    }
    assert!(
        space > 20 && credits > 100 && locked > 100,
        "{space} {credits} {locked}"
    );
}

#[test]
fn a_scarce_journal_works_on_threads_too() {
    for round in 0..20 {
        let layout = Layout::new(1024, 3000, 80);
        let device = layout.device();
        let journal = layout.open(Arc::clone(&device) as _, JournalConfig::default());
        journal.start_tasks().unwrap();
        let shared = Arc::clone(&journal);
        spawn_all(4, move |task| {
            for n in 0..50_u64 {
                let mut handle = shared.begin(8).unwrap();
                for step in 0..8 {
                    let block = 1000 + task * 100 + (n * 3 + step) % 50;
                    handle.write(&buf(&shared, block)).unwrap()[3] = round;
                }
                let tid = handle.tid();
                drop(handle);
                if n % 4 == 0 {
                    shared.commit(tid, TAG).unwrap();
                }
                if n % 7 == 0 {
                    yield_now();
                }
            }
        });
        journal.flush_all().unwrap();
        journal.join_tasks();
        let image = device.to_bytes();
        for block in (1000..1400).filter(|block| block % 100 < 50) {
            assert_eq!(layout.block(&image, block)[3], round);
        }
    }
}

#[test]
fn background_reclaim_keeps_handles_from_waiting_for_space() {
    let run = |config: JournalConfig| {
        let run = move || {
            let (_, _, journal) = slow(512, 1, config);
            journal.start_tasks().unwrap();
            for n in 0..400_u64 {
                let mut handle = journal.begin(12).unwrap();
                for step in 0..12 {
                    let block = 1000 + (n * 12 + step) % 900;
                    handle.write(&buf(&journal, block)).unwrap()[0] = n as u8;
                }
                let tid = handle.tid();
                drop(handle);
                journal.commit(tid, TAG).unwrap();
            }
            journal.join_tasks();
            journal.stats()
        };
        sim::run(sim::Config::new(1), run).value
    };
    let without = run(no_background());
    assert!(without.waited_space.count > 5, "{without:?}");
    let with = run(JournalConfig::default());
    // The device delays some requests.
    assert!(
        with.waited_space.count * 10 < without.waited_space.count,
        "{with:?}"
    );
    assert!(with.tail_moves > 5 && with.written_home > 1000, "{with:?}");
}

#[test]
fn old_transactions_are_committed_and_their_blocks_checkpointed() {
    let run = || {
        let (layout, device, journal) = slow(512, 1, JournalConfig::default());
        journal.start_tasks().unwrap();
        sleep(Duration::from_secs(123));
        let tid = set(&journal, 1500, 7);
        sleep(Duration::from_millis(4900));
        assert!(!journal.durable_tid().at_least(tid));
        sleep(Duration::from_millis(200));
        assert!(journal.durable_tid().at_least(tid));
        assert_eq!(layout.block(&device.media(), 1500)[9], 0);
        sleep(Duration::from_secs(36));
        assert_eq!(layout.block(&device.media(), 1500)[9], 7);
        // Nothing is left to commit.
        sleep(Duration::from_secs(3600));
        assert_eq!(journal.stats().transactions, 1);
        assert_eq!(journal.stats().requested, 0);
        journal.join_tasks();
    };
    sim::run(sim::Config::new(3), run);
}

#[test]
fn no_handle_begins_while_frozen() {
    let run = || {
        let (layout, device, journal) = slow(512, 1, JournalConfig::default());
        journal.start_tasks().unwrap();
        set(&journal, 1500, 1);
        journal.freeze().unwrap();
        assert_eq!(layout.block(&device.media(), 1500)[9], 1);
        let events = device.events().len();
        let shared = Arc::clone(&journal);
        let writer = spawn("writer", move || {
            set(&shared, 1500, 2);
            now()
        });
        sleep(Duration::from_secs(100));
        assert_eq!(device.events().len(), events, "nothing is written");
        let thawed = now();
        journal.thaw();
        assert!(writer.join() >= thawed);
        journal.join_tasks();
    };
    sim::run(sim::Config::new(3), run);
}

#[test]
fn a_synchronous_writer_waits_for_others_unless_alone() {
    let run = || {
        let config = JournalConfig {
            tuning: JournalTuning {
                min_batch: Duration::from_millis(8),
                ..JournalTuning::default()
            },
            ..JournalConfig::default()
        };
        let (_, _, journal) = slow(512, 1, config);
        let sync = |writer| {
            let began = now();
            let mut handle = journal.begin(1).unwrap();
            handle.write(&buf(&journal, 1500)).unwrap()[0] = 1;
            let tid = handle.tid();
            drop(handle);
            journal.wait_for_batch(writer);
            let waited = began.elapsed();
            journal.commit(tid, TAG).unwrap();
            waited
        };
        assert!(sync(1) >= Duration::from_millis(8));
        assert!(sync(1).is_zero());
        assert!(sync(2) >= Duration::from_millis(8));
        journal.set_tuning(JournalTuning {
            max_batch: Duration::ZERO,
            ..journal.tuning()
        });
        assert!(sync(3).is_zero());
    };
    let config = sim::Config {
        preempt: 0,
        ..sim::Config::default()
    };
    sim::run(config, run);
}

#[test]
fn a_commit_reports_whether_its_flush_covers_the_caller() {
    let run = || {
        let (_, _, journal) = slow(512, 1, JournalConfig::default());
        let tid = set(&journal, 1500, 1);
        let leader = Arc::clone(&journal);
        let leader = spawn("leader", move || leader.commit(tid, TAG).unwrap());
        let outcomes: Vec<_> = (0..400)
            .map(|n| {
                let journal = Arc::clone(&journal);
                spawn("waiter", move || {
                    sleep(Duration::from_micros(n * 5));
                    journal.commit(tid, TAG).unwrap()
                })
            })
            .collect();
        assert_eq!(leader.join(), Durable::Flushed);
        let outcomes: Vec<_> = outcomes.into_iter().map(|task| task.join()).collect();
        // Early callers are covered and late ones are not, with one point of change.
        assert_eq!(outcomes[0], Durable::Flushed);
        assert_eq!(outcomes[399], Durable::Already);
        let turns = outcomes.windows(2).filter(|two| two[0] != two[1]).count();
        assert_eq!(turns, 1);
    };
    let config = sim::Config {
        preempt: 0,
        ..sim::Config::default()
    };
    sim::run(config, run);
}

#[test]
fn commit_callbacks_run_before_the_waiters_wake() {
    let run = || {
        let (_, _, journal) = slow(512, 1, JournalConfig::default());
        let heard = Arc::new(AtomicU32::new(u32::MAX));
        let hears = Arc::clone(&heard);
        journal.on_commit(Box::new(move |tid| hears.store(tid.0, Ordering::Release)));
        let shared = Arc::clone(&journal);
        spawn_all(8, move |task| {
            for n in 0..10 {
                let tid = set(&shared, 1500 + task, n);
                shared.commit(tid, TAG).unwrap();
                assert!(heard.load(Ordering::Acquire) >= tid.0);
            }
        });
    };
    for seed in 0..20 {
        sim::run(sim::Config::new(seed), run);
    }
}

#[test]
fn an_abort_wakes_every_waiter() {
    let run = || {
        let (_, _, journal) = slow(60, 1, no_background());
        journal.start_tasks().unwrap();
        journal.freeze().unwrap();
        let stuck = Arc::clone(&journal);
        let stuck = spawn("stuck", move || stuck.begin(1).map(|handle| handle.tid()));
        let tid = {
            journal.thaw();
            set(&journal, 1500, 1)
        };
        journal.freeze().unwrap();
        let second = Arc::clone(&journal);
        let second = spawn("stuck", move || {
            drop(second.begin(1)?);
            second.commit(tid.next(), TAG)
        });
        sleep(Duration::from_secs(1));
        let at: Instant = now();
        journal.shutdown("test");
        // The first may have begun between the two freezes.
        let _ = stuck.join();
        assert!(second.join().is_err());
        assert!(at.elapsed() < Duration::from_secs(1));
        journal.join_tasks();
    };
    for seed in 0..20 {
        sim::run(sim::Config::new(seed), run);
    }
}

#[test]
fn a_caller_that_joins_a_commit_boosts_it() {
    let run = |joins: bool| {
        let run = move || {
            // Every log block is a separate request, and the device takes one at a time.
            let mut layout = Layout::new(1024, 3000, 0);
            layout.journal = (0..200).map(|n| (DevBlock(10 + n * 2), 1)).collect();
            let device = Arc::new(CrashDevice::new(layout.device().to_bytes(), 5));
            let options = steadfs_block::QueueOptions { depth: 1 };
            let queue = Arc::new(steadfs_block::Queue::new(device as _, options));
            let cache = Arc::new(MetaCache::new(
                Arc::clone(&queue),
                layout.block_size,
                1 << 20,
            ));
            let journal = Journal::open(cache, layout.map(), JournalConfig::default()).unwrap();
            let mut handle = journal.begin(40).unwrap();
            for n in 0..40 {
                handle.write(&buf(&journal, 1000 + n)).unwrap()[0] = 1;
            }
            let tid = handle.tid();
            drop(handle);
            let leader = Arc::clone(&journal);
            let tag = journal.tuning().commit_tag();
            let leader = spawn("timer", move || leader.commit_as(tid, tag, false).unwrap());
            sleep(Duration::from_millis(3));
            if joins {
                journal.commit(tid, IoTag::default()).unwrap();
            }
            leader.join();
            queue.stats().boosts.raised
        };
        sim::run(sim::Config::new(1), run).value
    };
    assert_eq!(run(false), 0);
    assert!(run(true) > 10, "the requests still queued are boosted");
}

/// A handle that waits for log space boosts the reclaim under way: queued and later requests are charged to
/// it. With boost off none are.
#[test]
fn a_handle_that_waits_for_log_space_boosts_reclaim() {
    const MINE: steadfs_base::GroupId = steadfs_base::GroupId(9);
    let run = |boost: bool| {
        let run = move || {
            let layout = Layout::new(1024, 3000, 200);
            let device = Arc::new(CrashDevice::new(layout.device().to_bytes(), 5));
            let settings = steadfs_block::QueueSettings {
                depth: 1,
                boost,
                ..steadfs_block::QueueSettings::default()
            };
            let queue = Arc::new(steadfs_block::Queue::with_settings(device as _, settings));
            let cache = MetaCache::new(Arc::clone(&queue), layout.block_size, 1 << 20);
            let journal = Journal::open(Arc::new(cache), layout.map(), no_background()).unwrap();
            // Blocks that are not contiguous: each home write is a separate request.
            for n in 0..4 {
                let mut handle = journal.begin(40).unwrap();
                for block in 0..40 {
                    let block = 1000 + (n * 40 + block) * 2;
                    handle.write(&buf(&journal, block)).unwrap()[0] = 1;
                }
                let tid = handle.tid();
                drop(handle);
                journal.commit(tid, TAG).unwrap();
            }
            let (free, _) = journal.log_space();
            assert!(free < 45, "{free}");
            let before = queue.stats().boosts.raised;
            let background = Arc::clone(&journal);
            let background = spawn("reclaim", move || {
                background.reclaim_all(IoTag::background()).unwrap();
            });
            sleep(Duration::from_millis(3));
            let tag = IoTag {
                group: MINE,
                ..IoTag::default()
            };
            drop(journal.begin_as(45, tag).unwrap());
            background.join();
            let stats = queue.stats();
            let mine = stats.groups.into_iter().find(|group| group.group == MINE);
            let mine = mine.map_or((0, 0), |group| (group.written, group.boosted));
            (stats.boosts.raised - before, mine)
        };
        sim::run(sim::Config::new(1), run).value
    };
    assert_eq!(run(false).0, 0);
    let (boosts, (written, boosted)) = run(true);
    assert!(boosts > 10, "{boosts} of the queued requests are boosted");
    assert!(boosted >= boosts * 1024, "{boosted}");
    assert!(
        written > boosted,
        "the superblock's write is charged to it, too: {written}, {boosted}"
    );
}

/// A commit waits for a handle whose task reads for a group with a low weight: the task's reads inherit the tag of
/// the commit's waiter (priority inheritance).
#[test]
fn a_handles_task_inherits_the_tag_of_a_commits_waiter() {
    use steadfs_block::{DeviceModel, ModelDevice, QueueSettings};
    use steadfs_rt::inherit::set_task_tag;

    let of_group = |number| IoTag {
        group: steadfs_base::GroupId(number),
        owner: steadfs_base::OwnerId(number),
        ..IoTag::default()
    };
    let waited = move |boost: bool| {
        let run = move || {
            let layout = Layout::new(1024, 3000, 200);
            let model = DeviceModel {
                bytes_per_second: 10 << 20,
                latency: Duration::from_micros(500),
                flush: Duration::ZERO,
                depth: 1,
            };
            let device = Arc::new(ModelDevice::new(layout.device(), model));
            let settings = QueueSettings {
                boost,
                ..QueueSettings::default()
            };
            let queue = Arc::new(steadfs_block::Queue::with_settings(device, settings));
            for (group, weight) in [(1, 5), (2, 1000), (3, 1000)] {
                let group = steadfs_base::GroupId(group);
                queue.set_group(group, steadfs_base::GroupId(0), weight);
            }
            let cache = MetaCache::new(Arc::clone(&queue), layout.block_size, 1 << 20);
            let journal = Journal::open(Arc::new(cache), layout.map(), no_background()).unwrap();
            let until = now().0 + 8_000_000_000;
            let others: Vec<_> = (0..4)
                .map(|_| {
                    let queue = Arc::clone(&queue);
                    spawn("others", move || {
                        while now().0 < until {
                            queue.read(1 << 20, 64 << 10, of_group(3)).unwrap();
                        }
                    })
                })
                .collect();
            sleep(Duration::from_millis(50));
            let light = Arc::clone(&journal);
            let light = spawn("light", move || {
                let mut handle = light.begin_as(10, of_group(1)).unwrap();
                handle.write(&buf(&light, 1000)).unwrap()[0] = 1;
                for n in 0..8 {
                    let block = DevBlock(1100 + n * 100);
                    light.cache.get(block, of_group(1)).unwrap();
                }
            });
            sleep(Duration::from_millis(10));
            let tid = journal.running_tid().unwrap();
            let began = now();
            {
                let _heavy = set_task_tag(of_group(2));
                journal.commit(tid, of_group(2)).unwrap();
            }
            let waited = began.elapsed();
            light.join();
            others.into_iter().for_each(steadfs_rt::JoinHandle::join);
            assert_eq!(queue.stats().boosts.inherited > 0, boost);
            waited
        };
        sim::run(sim::Config::new(1), run).value
    };
    let (with, without) = (waited(true), waited(false));
    assert!(with * 2 < without, "{with:?} {without:?}");
}
