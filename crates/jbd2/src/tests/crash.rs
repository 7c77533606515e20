//! Crashes at every point, with samples of what the device may have kept.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{DevBlock, Tid};
use steadfs_block::{Device, MemDevice};
use steadfs_rt::{Random, sim, sleep, spawn};

use super::crash_device::{CrashDevice, Crashes, Event, Kind};
use super::model::{Blocks, Content, Model, find_state, pattern};
use super::support::{Layout, seeds};
use crate::{Checksum, JournalConfig, JournalError, JournalTuning, ReclaimPolicy};

const BLOCK: usize = 1024;
const DEVICE_BLOCKS: u64 = 1200;

fn layout(random: &mut Random) -> Layout {
    let mut layout = Layout::new(BLOCK as u32, DEVICE_BLOCKS, 0);
    // A log of two to four transactions, in several extents.
    let len = 130 + random.below(200) as u64;
    let cut = 20 + random.below(50) as u64;
    layout.sequence = [1, u32::MAX - 10, 0, 1 << 31][random.below(4)];
    layout.journal = vec![(DevBlock(400), cut), (DevBlock(20), len - cut)];
    layout
}

fn config(random: &mut Random) -> JournalConfig {
    let checksums = [Checksum::None, Checksum::V1, Checksum::V2, Checksum::V3];
    JournalConfig {
        wide: random.chance(512),
        checksum: Some(checksums[random.below(4)]),
        reclaim: ReclaimPolicy {
            enabled: random.chance(700),
            max_age: Duration::from_millis(20),
            period: Duration::from_millis(10),
            low_free_percent: [None, Some(1), Some(50), Some(99)][random.below(4)],
            ..ReclaimPolicy::default()
        },
        tuning: JournalTuning {
            commit_interval: Duration::from_millis(50),
            ..JournalTuning::default()
        },
        ..JournalConfig::default()
    }
}

/// A finished run: the device's events, and the oracle's states.
struct Life {
    layout: Layout,
    first_image: Vec<u8>,
    events: Vec<Event>,
    states: BTreeMap<u32, Blocks>,
}

/// Recovers an image; returns the device's events meanwhile and its content afterwards.
fn recover(layout: &Layout, image: Vec<u8>) -> (Vec<Event>, Vec<u8>) {
    let device = Arc::new(CrashDevice::new(image, 0));
    layout.recover(Arc::clone(&device) as _);
    (device.events(), device.media())
}

impl Life {
    fn check(&self, image: Vec<u8>, acked: Option<Tid>, what: &str) -> Option<u32> {
        let (_, media) = recover(&self.layout, image);
        let before = self.layout.sequence.wrapping_sub(1);
        let acked = acked.map(|tid| tid.0.wrapping_sub(before));
        match find_state(&media, BLOCK, &self.states, acked) {
            Ok(tid) => tid,
            Err(wrong) => panic!("{what}: {wrong}"),
        }
    }

    /// Checks images at every event and returns how many there were.
    fn check_all(&self, random: &mut Random, samples: usize) -> usize {
        let mut images = 0;
        let mut crashes = Crashes::new(self.first_image.clone(), &self.events);
        let mut event = 0;
        loop {
            let acked = crashes.acked;
            let mut check = |image, how: &str| {
                images += 1;
                self.check(image, acked, &format!("event {event}, {how}"))
            };
            check(crashes.image(|_, _| true), "all");
            if crashes.volatile() > 0 {
                check(crashes.image(|_, _| false), "none");
                for sample in 0..samples {
                    let whole = sample % 2 == 0;
                    let share = random.below(1024) as u16;
                    let picks: Vec<bool> = (0..crashes.volatile())
                        .map(|_| random.chance(share))
                        .collect();
                    let image = crashes.image(|write, _| {
                        if whole {
                            picks[write]
                        } else {
                            random.chance(share)
                        }
                    });
                    let shown = check(image.clone(), "some");
                    if random.chance(64) {
                        self.crash_recovery(image, acked, shown, random);
                    }
                }
            }
            if !crashes.step() {
                return images;
            }
            event += 1;
        }
    }

    /// Crashes the recovery of an image: the next recovery ends in the same state.
    fn crash_recovery(
        &self,
        image: Vec<u8>,
        acked: Option<Tid>,
        shown: Option<u32>,
        random: &mut Random,
    ) {
        let (events, _) = recover(&self.layout, image.clone());
        let mut crashes = Crashes::new(image, &events);
        loop {
            let share = random.below(1024) as u16;
            let image = crashes.image(|_, _| random.chance(share));
            assert_eq!(self.check(image, acked, "recovery"), shown);
            if !crashes.step() {
                return;
            }
        }
    }
}

/// One task, all crash points. The subsets of surviving sectors are too many, so they are sampled.
fn single(seed: u64, operations: usize) -> Life {
    let mut random = Random::new(seed);
    let layout = layout(&mut random);
    let first_image = layout.device().to_bytes();
    let device = Arc::new(CrashDevice::new(first_image.clone(), seed));
    let journal = layout.open(Arc::clone(&device) as _, config(&mut random));
    let model = Model::new(&journal);
    for _ in 0..operations {
        let tid = model.operation(&journal, &mut random).unwrap();
        if random.chance(500) {
            model.commit(&journal, &device, tid).unwrap();
        }
        if random.chance(20) {
            journal.flush_all().unwrap();
            model.commit(&journal, &device, tid).unwrap();
        }
        while random.chance(200) && journal.reclaim_in_background().unwrap() {}
    }
    journal.shutdown("the test ends here");
    Life {
        layout,
        first_image,
        events: device.events(),
        states: model.states(),
    }
}

#[test]
fn every_crash_of_one_task_leaves_an_allowed_state() {
    let mut images = 0;
    for seed in seeds(8) {
        let life = single(seed, 40);
        images += life.check_all(&mut Random::new(seed), 4);
    }
    assert!(images > 3000, "only {images} images");
}

/// Several tasks beside the journal's own ones, in simulation.
fn simulated(seed: u64) -> Life {
    let run = move || {
        let mut random = Random::new(seed);
        let layout = layout(&mut random);
        let first_image = layout.device().to_bytes();
        let device = Arc::new(CrashDevice::new(first_image.clone(), seed));
        let journal = layout.open(Arc::clone(&device) as _, config(&mut random));
        let model = Arc::new(Model::new(&journal));
        journal.start_tasks().unwrap();
        let tasks: Vec<_> = (0..5)
            .map(|task| {
                let (device, model) = (Arc::clone(&device), Arc::clone(&model));
                let journal = Arc::clone(&journal);
                spawn("writer", move || {
                    let mut random = Random::new(seed * 100 + task);
                    for _ in 0..25 {
                        let done = model.operations(&journal, &device, &mut random);
                        let tid = done.unwrap();
                        if random.chance(400) {
                            model.commit(&journal, &device, tid).unwrap();
                        }
                        if random.chance(100) {
                            sleep(Duration::from_millis(random.below(100) as u64));
                        }
                        if random.chance(10) {
                            journal.flush_all().unwrap();
                            model.commit(&journal, &device, tid).unwrap();
                        }
                    }
                })
            })
            .collect();
        tasks.into_iter().for_each(|task| task.join());
        if seed.is_multiple_of(2) {
            journal.flush_all().unwrap();
            let media = device.media();
            for (block, content) in model.now() {
                let (Content::Meta(value) | Content::Data(value)) = content;
                let at = block as usize * BLOCK;
                assert_eq!(
                    media[at..at + BLOCK],
                    pattern(value, BLOCK),
                    "{block} {content:?}"
                );
            }
        }
        journal.join_tasks();
        let events = device.events();
        (layout, first_image, events, model.states())
    };
    let report = sim::run(sim::Config::new(seed), run);
    let (layout, first_image, events, states) = report.value;
    Life {
        layout,
        first_image,
        events,
        states,
    }
}

#[test]
fn every_crash_of_many_tasks_leaves_an_allowed_state() {
    let mut images = 0;
    for seed in seeds(8) {
        let life = simulated(seed);
        images += life.check_all(&mut Random::new(seed), 3);
    }
    assert!(images > 3000, "only {images} images");
}

/// Like [`simulated`], with one request that fails. Returns whether it did.
fn failing(seed: u64) -> (Life, bool) {
    let run = move || {
        let mut random = Random::new(seed);
        let layout = layout(&mut random);
        let first_image = layout.device().to_bytes();
        let device = Arc::new(CrashDevice::new(first_image.clone(), seed));
        let journal = layout.open(Arc::clone(&device) as _, config(&mut random));
        let model = Arc::new(Model::new(&journal));
        journal.start_tasks().unwrap();
        let superblock = layout.block_size.offset_of(layout.journal[0].0);
        let (most, kind) = [
            (120, Kind::Write),
            (60, Kind::Flush),
            (6, Kind::At(superblock)),
        ][random.below(3)];
        device.fail_one_after(random.below(most) as u64, kind);
        let tasks: Vec<_> = (0..4)
            .map(|task| {
                let (device, model) = (Arc::clone(&device), Arc::clone(&model));
                let journal = Arc::clone(&journal);
                spawn("writer", move || {
                    let mut random = Random::new(seed * 100 + task);
                    for _ in 0..25 {
                        let Ok(tid) = model.operations(&journal, &device, &mut random) else {
                            break;
                        };
                        let commit = model.commit(&journal, &device, tid);
                        if let Some(cause) = journal.abort_reason() {
                            assert!(cause.contains("injected fault"), "{cause}");
                            assert!(journal.begin(1).is_err());
                        }
                        if let Err(error) = commit {
                            assert!(matches!(error, JournalError::Aborted(_)), "{error}");
                            break;
                        }
                    }
                })
            })
            .collect();
        tasks.into_iter().for_each(|task| task.join());
        let flushed = journal.flush_all();
        let failed = device.has_failed();
        // A failed data write is reported to the caller; any other failure aborts the journal.
        assert!(failed || flushed.is_ok());
        assert_eq!(flushed.is_err(), journal.abort_reason().is_some());
        journal.join_tasks();
        let aborted = flushed.is_err();
        (
            layout,
            first_image,
            device.events(),
            model.states(),
            aborted,
        )
    };
    let report = sim::run(sim::Config::new(seed), run);
    let (layout, first_image, events, states, aborted) = report.value;
    let life = Life {
        layout,
        first_image,
        events,
        states,
    };
    (life, aborted)
}

#[test]
fn a_failed_request_aborts_the_journal_and_loses_nothing_acknowledged() {
    let mut aborted = 0;
    for seed in seeds(30) {
        let (life, stopped) = failing(seed);
        aborted += u64::from(stopped);
        life.check_all(&mut Random::new(seed), 1);
    }
    assert!(aborted > 20, "only {aborted} failures met the journal");
}

#[test]
fn a_simulated_journal_is_a_function_of_its_seed() {
    let one = simulated(77);
    let two = simulated(77);
    assert_eq!(one.states, two.states);
    assert_eq!(one.events.len(), two.events.len());
}

#[test]
fn a_recovered_journal_goes_on() {
    // Crash, recover, work on, crash again: transactions of the first run must not affect the second.
    let mut random = Random::new(5);
    let layout = layout(&mut random);
    let mut device = layout.device();
    for life in 0..30_u8 {
        let journal = layout.open(Arc::clone(&device) as _, config(&mut random));
        for n in 0..1 + u64::from(life) * 3 % 17 {
            let tid = super::support::set(&journal, 1000 + n, life + 1);
            journal.commit(tid, steadfs_base::IoTag::default()).unwrap();
        }
        super::support::set(&journal, 1100, life + 1);
        // The next run begins with the device's present content: uncommitted changes are lost.
        let copy = Arc::new(MemDevice::from_bytes(&device.to_bytes()));
        layout.recover(Arc::clone(&copy) as _);
        let image = copy.to_bytes();
        for n in 0..1 + u64::from(life) * 3 % 17 {
            assert_eq!(layout.block(&image, 1000 + n)[9], life + 1);
        }
        assert_eq!(layout.block(&image, 1100)[9], 0);
        assert_eq!(copy.geometry().size, device.geometry().size);
        device = copy;
    }
}
