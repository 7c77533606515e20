//! The background reclaimer beside submitters, policy changes, task restarts and freezes.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_rt::{Random, sim, sleep, spawn};

use super::crash_device::CrashDevice;
use super::support::{Layout, buf, seeds, set};
use crate::{Journal, JournalConfig, JournalError, JournalStats, ReclaimPolicy};

const TAG: IoTag = IoTag::background();
const SUBMITTERS: u64 = 6;
const FIRST: u64 = 1000;
const CHANGES: u64 = 40;

fn policy(low_free_percent: Option<u8>) -> ReclaimPolicy {
    ReclaimPolicy {
        low_free_percent,
        ..ReclaimPolicy::default()
    }
}

struct World {
    layout: Layout,
    device: Arc<CrashDevice>,
    journal: Arc<Journal>,
}

impl World {
    fn new(seed: u64, len: u64, low_free_percent: Option<u8>) -> Self {
        let layout = Layout::new(1024, 3000, len);
        let device = Arc::new(CrashDevice::new(layout.device().to_bytes(), seed));
        let config = JournalConfig {
            reclaim: policy(low_free_percent),
            ..JournalConfig::default()
        };
        let journal = layout.open(Arc::clone(&device) as _, config);
        journal.start_tasks().unwrap();
        Self {
            layout,
            device,
            journal,
        }
    }

    /// Runs submitters, each with its own blocks, and calls `administer` 12 times beside them.
    fn run(&self, seed: u64, administer: impl Fn(&World, &mut Random) + Send + 'static) {
        let submitters: Vec<_> = (0..SUBMITTERS)
            .map(|task| {
                let journal = Arc::clone(&self.journal);
                spawn("submitter", move || submit(&journal, seed, task))
            })
            .collect();
        let mut random = Random::new(seed ^ 0xBAC);
        for _ in 0..12 {
            administer(self, &mut random);
            sleep(Duration::from_millis(random.below(12) as u64));
        }
        submitters.into_iter().for_each(|task| task.join());
    }

    /// Checks that every block is at its home location, byte for byte, and that the log is empty.
    fn end(self) -> JournalStats {
        self.journal.flush_all().unwrap();
        self.journal.join_tasks();
        let (free, capacity) = self.journal.log_space();
        assert_eq!(free, capacity);
        let media = self.device.media();
        for task in 0..SUBMITTERS {
            for n in CHANGES - 10..CHANGES {
                let block = self.layout.block(&media, FIRST + task * 100 + n % 10);
                assert_eq!(block[9], n as u8, "block {n} of task {task}");
            }
        }
        let summary = self.layout.recover(self.device).summary;
        assert_eq!(summary.transactions, 0);
        self.journal.stats()
    }
}

fn submit(journal: &Journal, seed: u64, task: u64) {
    let mut random = Random::new(seed * 100 + task);
    for n in 0..CHANGES {
        let tid = set(journal, FIRST + task * 100 + n % 10, n as u8);
        if random.chance(600) {
            journal.commit(tid, TAG).unwrap();
            assert!(journal.durable_tid().at_least(tid));
        }
        if random.chance(200) {
            sleep(Duration::from_micros(random.below(4000) as u64));
        }
    }
}

/// Freezes for a random time; the device gets no request meanwhile.
fn freeze(world: &World, random: &mut Random) {
    world.journal.freeze().unwrap();
    let before = world.device.events().len();
    sleep(Duration::from_millis(1 + random.below(8000) as u64));
    assert_eq!(world.device.events().len(), before, "frozen");
    world.journal.thaw();
}

#[test]
fn concurrent_administration_loses_nothing_and_hangs_nothing() {
    for seed in seeds(25) {
        sim::run(sim::Config::new(seed), move || {
            let world = World::new(seed, 60 + seed % 3 * 40, Some(50));
            world.run(seed, |world, random| match random.below(5) {
                0 => world.journal.set_reclaim_policy(policy(None)),
                1 => {
                    let percent = 1 + random.below(99) as u8;
                    world.journal.set_reclaim_policy(policy(Some(percent)));
                }
                2 => {
                    world.journal.join_tasks();
                    sleep(Duration::from_millis(random.below(5) as u64));
                    world.journal.start_tasks().unwrap();
                }
                3 => freeze(world, random),
                _ => world.journal.flush_all().unwrap(),
            });
            world.end();
        });
    }
}

/// With a threshold above the share at which handles wait, they wait less often for log space (for how long:
/// `space_waits`). Without a threshold handles reclaim by themselves.
#[test]
fn background_reclaim_makes_waits_for_space_rare() {
    let waits = |seed: u64, percent: Option<u8>| {
        let run = move || {
            let world = World::new(seed, 200, percent);
            assert_eq!(world.journal.forced_reclaim_percent(), 25);
            world.run(seed, |_, _| sleep(Duration::from_millis(1)));
            world.end()
        };
        sim::run(sim::Config::new(seed), run).value
    };
    // A single schedule is not significant: sums over several.
    let mut waited = [0; 2];
    let mut freed = [0; 2];
    for seed in 1..13 {
        let (on, off) = (waits(seed, Some(80)), waits(seed, None));
        assert!(
            off.waited_space.count > 0 && off.freed_by_waiters > 0,
            "{off:?}"
        );
        assert_eq!(off.freed_in_background, 0, "{off:?}");
        waited[0] += on.waited_space.count;
        waited[1] += off.waited_space.count;
        freed[0] += on.freed_in_background;
        freed[1] += on.freed_by_waiters;
    }
    assert!(freed[0] > freed[1], "{freed:?}");
    assert!(waited[0] < waited[1] / 2, "{waited:?}");
    let low = waits(3, Some(1));
    assert!(low.waited_space.count > 0, "{low:?}");
}

/// A new or higher threshold takes effect at once, and disabling it ends the reclaim that is under way.
#[test]
fn a_threshold_changes_live() {
    sim::run(sim::Config::new(1), || {
        let world = World::new(1, 200, None);
        let free = || {
            let (free, capacity) = world.journal.log_space();
            free * 100 / capacity
        };
        for n in 0..40 {
            let tid = set(&world.journal, FIRST + n, 1);
            world.journal.commit(tid, TAG).unwrap();
        }
        sleep(Duration::from_secs(2));
        let before = free();
        assert!(before < 50, "{before}% free: no task reclaims");
        let info = world.journal.info();
        assert!(info.contains("  noasync_checkpoint, idle\n"), "{info}");
        world
            .journal
            .set_reclaim_policy(policy(Some(before as u8 + 10)));
        sleep(Duration::from_millis(500));
        let after = free();
        assert!(after >= before + 10, "{before}% then {after}%");
        let info = world.journal.info();
        let line = format!("  async_checkpoint below {}% free, idle\n", before + 10);
        assert!(info.contains(&line), "{info}");
        world.journal.set_reclaim_policy(policy(Some(99)));
        world.journal.set_reclaim_policy(policy(None));
        let events = world.device.events().len();
        sleep(Duration::from_secs(4));
        assert_eq!(world.device.events().len(), events, "drained");
        drop(buf(&world.journal, FIRST));
        world.journal.join_tasks();
        world.journal.flush_all().unwrap();
    });
}

/// The first error ends background reclaim: nothing is tried again, and the tasks can be joined.
#[test]
fn an_aborted_journal_is_not_reclaimed() {
    sim::run(sim::Config::new(2), || {
        let world = World::new(2, 200, Some(90));
        for n in 0..40 {
            let tid = set(&world.journal, FIRST + n, 1);
            world.journal.commit(tid, TAG).unwrap();
        }
        world.journal.abort("test");
        sleep(Duration::from_secs(1));
        let events = world.device.events().len();
        world.journal.set_reclaim_policy(policy(Some(99)));
        sleep(Duration::from_secs(60));
        assert_eq!(world.device.events().len(), events);
        assert!(matches!(
            world.journal.begin(1).map(drop),
            Err(JournalError::Aborted(_))
        ));
        world.journal.join_tasks();
    });
}
