//! Waiting for checkpoints and nodes of other groups, on a slow device with weighted groups.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{GroupId, IoTag, OwnerId};
use steadfs_block::{Bio, Buf, DeviceModel, ModelDevice, Policy, QueueSettings};
use steadfs_cache::{CacheSizes, WritebackReason};
use steadfs_rt::{now, sim, sleep, spawn};
use steadfs_vfs::{Cx, FileSystem};

use super::checkpoints::make_file;
use crate::format::{FormatOptions, image};
use crate::{F2fs, MountOptions};

const LIGHT: IoTag = of_group(1);
const HEAVY: IoTag = of_group(2);
/// Other I/O of the same weight that keeps the device busy.
const OTHERS: IoTag = of_group(3);

const fn of_group(number: u32) -> IoTag {
    let mut tag = IoTag::background();
    tag.urgency = steadfs_base::Urgency::Waited;
    tag.group = GroupId(number);
    tag.owner = OwnerId(number);
    tag
}

fn world(options: &str, boost: bool) -> Arc<F2fs> {
    let device = image(256 << 20, &FormatOptions::default()).unwrap();
    let model = DeviceModel {
        bytes_per_second: 10 << 20,
        latency: Duration::from_micros(500),
        flush: Duration::ZERO,
        depth: 1,
    };
    let device = Arc::new(ModelDevice::new(device as _, model));
    let options = MountOptions::parse(options).unwrap();
    let (fs, _) = F2fs::open(device, options, CacheSizes::of(64 << 20)).unwrap();
    fs.queue.configure(QueueSettings {
        policy: Policy::Fair,
        depth: 1,
        boost,
        ..QueueSettings::default()
    });
    for (group, weight) in [(1, 20), (2, 1000), (3, 1000)] {
        fs.queue.set_group(GroupId(group), GroupId(0), weight);
    }
    fs
}

/// Requests boosted, and bytes served in the slices of the heavy group, when a task waits for a checkpoint that was begun
/// for another group.
fn waits(options: &str, first: IoTag, waiter: IoTag) -> (u64, u64) {
    let options = options.to_owned();
    let run = move || {
        let fs = world(&options, true);
        for n in 0..200 {
            make_file(&fs, format!("{n}").as_bytes(), 0);
        }
        let before = fs.queue.stats();
        let other = Arc::clone(&fs);
        let other = spawn("first", move || other.request_checkpoint(first).unwrap());
        sleep(Duration::from_millis(10));
        fs.request_checkpoint(waiter).unwrap();
        other.join();
        let after = fs.queue.stats();
        let mine = after.groups.iter().find(|group| group.group == HEAVY.group);
        let mine = mine.map_or(0, |group| group.written);
        fs.close().unwrap();
        (after.boosts.raised - before.boosts.raised, mine)
    };
    sim::run(sim::Config::new(5), run).value
}

#[test]
fn a_merged_checkpoint_is_boosted_to_its_waiter() {
    let real_time = IoTag {
        prio: steadfs_base::IoPrio {
            class: steadfs_base::PrioClass::RealTime,
            level: 4,
        },
        ..HEAVY
    };
    for waiter in [real_time, HEAVY] {
        let (raised, bytes) = waits("checkpoint_merge", LIGHT, waiter);
        assert!(raised > 0 && bytes > 0, "{waiter:?}: {raised} {bytes}");
    }
    // The daemon weighs more than the light group.
    assert_eq!(waits("checkpoint_merge", HEAVY, LIGHT).0, 0);
}

#[test]
fn an_unmerged_checkpoint_is_charged_to_its_caller() {
    assert_eq!(waits("nocheckpoint_merge", LIGHT, HEAVY), (0, 0));
    let background = IoTag {
        urgency: steadfs_base::Urgency::Background,
        ..LIGHT
    };
    let (raised, bytes) = waits("nocheckpoint_merge", background, HEAVY);
    assert!(raised > 0, "a task waits for it now");
    assert_eq!(bytes, 0, "but is not charged");
}

/// Bytes that a group has been charged.
fn charged(fs: &F2fs, group: GroupId) -> u64 {
    let text = fs.queue.describe();
    let name = format!("group {} weight ", group.0);
    let line = text.lines().find(|line| line.starts_with(&name));
    let line = line.expect("the group was set");
    let (before, _) = line.split_once(" bytes charged").unwrap();
    let (_, bytes) = before.rsplit_once(' ').unwrap();
    bytes.parse().unwrap()
}

/// What the light and the heavy group are charged while the light group's checkpoint of 200 nodes is in flight, and the
/// heavy group does what `waiter` does.
fn charged_for(waiter: fn(&F2fs)) -> [u64; 2] {
    let run = move || {
        let fs = world("checkpoint_merge,background_gc=off", true);
        // Others are in the queue, so that requests are charged.
        let until = now().0 + 3_000_000_000;
        let busy = Arc::clone(&fs);
        let busy = spawn("others", move || {
            while now().0 < until {
                busy.queue.read(0, 4 << 10, OTHERS).unwrap();
            }
        });
        for n in 0..200 {
            make_file(&fs, format!("{n}").as_bytes(), 0);
        }
        let groups = [LIGHT, HEAVY].map(|tag| tag.group);
        let before = groups.map(|group| charged(&fs, group));
        let light = Arc::clone(&fs);
        let light = spawn("light", move || light.request_checkpoint(LIGHT).unwrap());
        sleep(Duration::from_millis(10));
        assert!(fs.checkpoints.is_in_flight());
        waiter(&fs);
        light.join();
        let after = groups.map(|group| charged(&fs, group));
        busy.join();
        fs.close().unwrap();
        [after[0] - before[0], after[1] - before[1]]
    };
    sim::run(sim::Config::new(5), run).value
}

/// 200 nodes, without their directory and tables.
const NODES: u64 = 200 * 4096;

#[test]
fn a_waiter_that_a_checkpoint_does_not_serve_is_charged_for_its_own_only() {
    let [light, heavy] = charged_for(|fs| fs.request_checkpoint(HEAVY).unwrap());
    assert!(light > NODES, "{light}");
    assert_eq!(heavy, 0, "nothing had changed");
    let [light, heavy] = charged_for(|fs| {
        make_file(fs, b"new", 0);
        fs.request_checkpoint(HEAVY).unwrap();
    });
    assert!(light > NODES, "{light}");
    // Tables and pack of its own checkpoint, and two nodes.
    assert!((16 << 10..64 << 10).contains(&heavy), "{heavy}");
}

#[test]
fn an_fsync_whose_nodes_are_in_a_checkpoint_is_charged_for_it() {
    let [light, heavy] = charged_for(|fs| {
        let cx = Cx {
            tag: HEAVY,
            ..Cx::default()
        };
        let ino = fs.lookup(&cx, fs.root(), b"199").unwrap().ino;
        fs.fsync(&cx, ino, false).unwrap();
    });
    assert!(light > NODES, "{light}");
    // What the device had not begun: the tables and the pack.
    assert!(
        (128 << 10..light - NODES + 4096).contains(&heavy),
        "{heavy}"
    );
}

/// Checkpoints that two requesters, each in a group of its own, get in ten seconds while a task of a third group
/// streams; `waited`: as awaited I/O or not.
fn asked(options: &str, groups: [u32; 3], waited: bool) -> [u64; 2] {
    let options = options.to_owned();
    let run = move || {
        let fs = world(&options, true);
        let until = now().0 + 10_000_000_000;
        let (first, second) = (groups[0], groups[1]);
        let askers = [(first, 10u32), (second, 20)].map(|(group, owner)| {
            let fs = Arc::clone(&fs);
            let tag = IoTag {
                owner: OwnerId(owner),
                ..of_group(group)
            };
            spawn("asker", move || {
                let mut count = 0;
                while now().0 < until {
                    let cx = Cx {
                        tag,
                        ..Cx::default()
                    };
                    let name = format!("{owner} {count}");
                    fs.mknod(&cx, fs.root(), name.as_bytes(), 0o100_644, 0)
                        .unwrap();
                    fs.request_checkpoint(tag).unwrap();
                    // The requesters are out of step.
                    sleep(Duration::from_micros(u64::from(owner) * 53));
                    count += 1;
                }
                count
            })
        });
        let tag = match waited {
            true => of_group(groups[2]),
            false => of_group(groups[2]).with_urgency(steadfs_base::Urgency::Background),
        };
        // The most requests in flight, in the middle of the volume, which is unused.
        while now().0 < until {
            let write =
                |n: u64| Bio::write((128 << 20) + n * (128 << 10), vec![Buf::zeroed(64 << 10)]);
            let ios: Vec<_> = (0..8).map(|n| fs.queue.submit(write(n), tag)).collect();
            steadfs_block::wait_all(&ios).unwrap();
        }
        let counts = askers.map(steadfs_rt::JoinHandle::join);
        fs.close().unwrap();
        counts
    };
    sim::run(sim::Config::new(5), run).value
}

#[test]
fn merging_keeps_the_share_of_each_group() {
    for waited in [false, true] {
        for groups in [[1, 1, 1], [3, 3, 3], [1, 1, 3]] {
            let merged = asked("checkpoint_merge", groups, waited);
            let apart = asked("nocheckpoint_merge", groups, waited);
            for (merged, apart) in merged.iter().zip(apart) {
                assert!(
                    merged * 50 >= apart * 49,
                    "{groups:?} {waited}: {merged} {apart}"
                );
            }
        }
    }
}

/// Time of the heavy group's fsync after one of the light group, for whose nodes it has to wait, on a busy device.
fn fsync_behind_another(boost: bool) -> Duration {
    let run = move || {
        let fs = world("", boost);
        let cx = |tag| Cx {
            tag,
            ..Cx::default()
        };
        let files = [0, 1].map(|n| {
            let name = format!("{n}");
            let root = fs.root();
            let made = fs.mknod(&cx(OTHERS), root, name.as_bytes(), 0o100_644, 0);
            let ino = made.unwrap().ino;
            fs.fsync(&cx(OTHERS), ino, false).unwrap();
            fs.write(&cx(OTHERS), ino, 0, &[7; 50_000], false).unwrap();
            fs.fsync(&cx(OTHERS), ino, false).unwrap();
            fs.write(&cx(OTHERS), ino, 50_000, &[7; 50_000], false)
                .unwrap();
            ino
        });
        let busy = Arc::clone(&fs);
        let stop = now().0 + 3_000_000_000;
        let busy = spawn("others", move || {
            while now().0 < stop {
                busy.queue.read(0, 256 << 10, OTHERS).unwrap();
            }
        });
        let (light, light_cx) = (Arc::clone(&fs), cx(LIGHT));
        let light = spawn("light", move || {
            light.fsync(&light_cx, files[0], false).unwrap();
        });
        sleep(Duration::from_millis(150));
        let began = now();
        fs.fsync(&cx(HEAVY), files[1], false).unwrap();
        let took = began.elapsed();
        light.join();
        busy.join();
        fs.close().unwrap();
        took
    };
    sim::run(sim::Config::new(7), run).value
}

#[test]
fn node_writes_are_boosted_to_their_waiter() {
    let (with, without) = (fsync_behind_another(true), fsync_behind_another(false));
    assert!(with * 2 < without, "{with:?} {without:?}");
}

/// Time of the fsync of one small file that the flusher is writing together with 99 files of a light group, on a busy
/// device.
fn fsync_of_one_of_many(boost: bool) -> Duration {
    let run = move || {
        let fs = world("background_gc=off", boost);
        let cx = Cx {
            tag: HEAVY,
            ..Cx::default()
        };
        let files: Vec<_> = (0..100)
            .map(|n| {
                let name = format!("{n}");
                let root = fs.root();
                let made = fs.mknod(&cx, root, name.as_bytes(), 0o100_644, 0);
                made.unwrap().ino
            })
            .collect();
        fs.sync_all(&cx).unwrap();
        let light = Cx {
            tag: LIGHT,
            ..Cx::default()
        };
        for (n, ino) in files.iter().enumerate() {
            let whose = if n == 99 { &cx } else { &light };
            fs.write(whose, *ino, 0, &[7; 30_000], false).unwrap();
        }
        let stop = now().0 + 8_000_000_000;
        let busy = [0; 4].map(|_| {
            let busy = Arc::clone(&fs);
            spawn("others", move || {
                while now().0 < stop {
                    busy.queue.read(0, 64 << 10, OTHERS).unwrap();
                }
            })
        });
        let (flusher, inos) = (Arc::clone(&fs), files.iter().map(|ino| ino.0).collect());
        let flusher = spawn("flusher", move || {
            let inos: Vec<u64> = inos;
            let written =
                flusher.write_out_files(&inos, WritebackReason::Background, IoTag::background());
            written.unwrap();
        });
        sleep(Duration::from_millis(150));
        let began = now();
        fs.fsync(&cx, files[99], false).unwrap();
        let took = began.elapsed();
        flusher.join();
        busy.into_iter().for_each(steadfs_rt::JoinHandle::join);
        assert_eq!(fs.queue.stats().boosts.raised > 0, boost);
        fs.close().unwrap();
        took
    };
    sim::run(sim::Config::new(11), run).value
}

/// All requests that the flusher completes before it releases the file are boosted, those of other files, too.
#[test]
fn an_fsync_boosts_the_whole_write_back_run() {
    let with = fsync_of_one_of_many(true);
    let without = fsync_of_one_of_many(false);
    assert!(with * 2 < without, "{with:?} {without:?}");
}
