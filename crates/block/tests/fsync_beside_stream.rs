//! What a stream of background writes keeps beside fsync callers, with `fsync_latency_target` and without it.
//!
//! The stream has to keep its floor: its share of the device's time (by cgroup weights, or a quarter in the callers' own
//! group), and at least a quarter of what it has without the target. A caller must not be slower with the target.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use steadfs_base::{GroupId, IoTag, OwnerId, Urgency};
use steadfs_block::{
    Bio, Buf, DeviceModel, FsyncTarget, MemDevice, ModelDevice, Policy, Queue, QueueSettings,
};
use steadfs_rt::{now, sim, sleep, spawn};

const MIB: u64 = 1 << 20;
const ROOT: GroupId = GroupId(0);
const CALLERS: GroupId = GroupId(1);
const STREAMS: GroupId = GroupId(2);
/// Bytes that the stream keeps in the queue.
const QUEUED: u64 = 16 * MIB;
/// Time that the stream is alone at first, that callers and stream then run before the measurement, and of the measurement.
const ALONE: Duration = Duration::from_millis(500);
const WARM_UP: Duration = Duration::from_millis(500);
const MEASURED: Duration = Duration::from_secs(2);

/// A device, and fsync callers beside a stream.
#[derive(Clone, Copy, Debug)]
struct Workload {
    device: DeviceModel,
    strict_guarantees: bool,
    stream: GroupId,
    /// Weights of the callers' group and of the stream's.
    weights: [u32; 2],
    callers: u32,
    /// Whether there is a stream.
    streams: bool,
    /// Bytes that each fsync writes first.
    data: u64,
    /// Pause after each fsync.
    think: Duration,
}

const WORKLOAD: Workload = Workload {
    device: DeviceModel {
        bytes_per_second: 100 * MIB,
        latency: Duration::from_micros(100),
        flush: Duration::from_millis(5),
        depth: 32,
    },
    strict_guarantees: false,
    stream: CALLERS,
    weights: [100, 100],
    callers: 1,
    streams: true,
    data: 4096,
    think: Duration::ZERO,
};

/// Mean time of an fsync, and bytes of the stream in a second.
#[derive(Clone, Copy, Debug)]
struct Measured {
    fsync: Duration,
    stream: f64,
}

fn tag(group: GroupId, owner: u32, urgency: Urgency) -> IoTag {
    IoTag {
        group,
        owner: OwnerId(owner),
        urgency,
        ..IoTag::default()
    }
}

/// Writes data, a log block, and a record behind a FLUSH, as a commit does.
fn fsync(queue: &Queue, owner: u32, data: u64) {
    let tag = tag(CALLERS, owner, Urgency::Waited);
    let at = u64::from(owner) * 16 * MIB;
    let block = |len: u64| vec![Buf::zeroed(usize::try_from(len).expect("it is small"))];
    let piece = queue.max_transfer_for(tag).min(data);
    let writes: Vec<_> = (0..data.div_ceil(piece))
        .map(|n| queue.submit(Bio::write(at + n * piece, block(piece)), tag))
        .collect();
    for write in writes {
        write.wait().expect("no fault is injected");
    }
    let log = at + 15 * MIB;
    queue
        .write(log, block(16 << 10), tag)
        .expect("no fault is injected");
    let record = Bio::write(log + (64 << 10), block(4096)).preflush_and_fua();
    queue
        .submit(record, tag)
        .wait()
        .expect("no fault is injected");
}

/// Writes until `over`, and counts what has completed.
fn stream(queue: &Queue, group: GroupId, over: &AtomicBool, done: &AtomicU64) {
    let tag = tag(group, 99, Urgency::Background);
    let (mut at, mut queued, mut waiting) = (0, 0, VecDeque::new());
    while !over.load(Ordering::Relaxed) {
        while queued < QUEUED {
            let len = (queue.max_transfer_for(tag) & !4095).min(MIB / 2);
            let data = Buf::zeroed(usize::try_from(len).expect("it is small"));
            let bio = Bio::write(256 * MIB + at, vec![data]);
            waiting.push_back((queue.submit(bio, tag), len));
            (at, queued) = ((at + len) % (128 * MIB), queued + len);
        }
        let (first, len) = waiting.pop_front().expect("something is queued");
        first.wait().expect("no fault is injected");
        queued -= len;
        done.fetch_add(len, Ordering::Relaxed);
    }
    for (write, _) in waiting {
        write.wait().expect("no fault is injected");
    }
}

fn run(workload: Workload, fsync_target: FsyncTarget) -> Measured {
    let world = move || {
        let memory = Arc::new(MemDevice::new(512 * MIB));
        let settings = QueueSettings {
            policy: Policy::Fair,
            strict_guarantees: workload.strict_guarantees,
            fsync_target,
            ..QueueSettings::default()
        };
        let device = Arc::new(ModelDevice::new(memory, workload.device));
        let queue = Arc::new(Queue::with_settings(device, settings));
        for (group, weight) in [CALLERS, STREAMS].into_iter().zip(workload.weights) {
            queue.set_group(group, ROOT, weight);
        }
        let over = Arc::new(AtomicBool::new(false));
        let [written, fsyncs] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let mut tasks = Vec::new();
        if workload.streams {
            let (queue, over, written) =
                (Arc::clone(&queue), Arc::clone(&over), Arc::clone(&written));
            tasks.push(spawn("stream", move || {
                stream(&queue, workload.stream, &over, &written);
            }));
        }
        sleep(ALONE);
        for owner in 1..=workload.callers {
            let (queue, over, fsyncs) =
                (Arc::clone(&queue), Arc::clone(&over), Arc::clone(&fsyncs));
            tasks.push(spawn("caller", move || {
                while !over.load(Ordering::Relaxed) {
                    fsync(&queue, owner, workload.data);
                    fsyncs.fetch_add(1, Ordering::Relaxed);
                    sleep(workload.think);
                }
            }));
        }
        sleep(WARM_UP);
        let count = || {
            (
                written.load(Ordering::Relaxed),
                fsyncs.load(Ordering::Relaxed),
            )
        };
        let (before, begin) = (count(), now());
        sleep(MEASURED);
        let (after, elapsed) = (count(), begin.elapsed());
        over.store(true, Ordering::Relaxed);
        tasks.into_iter().for_each(|task| task.join());
        let mean = elapsed * workload.callers
            / u32::try_from(after.1 - before.1)
                .expect("some seconds of fsyncs")
                .max(1);
        let result = Measured {
            fsync: mean.saturating_sub(workload.think),
            stream: (after.0 - before.0) as f64 / elapsed.as_secs_f64(),
        };
        drop(queue);
        sleep(Duration::from_millis(1));
        result
    };
    let config = sim::Config {
        preempt: 0,
        ..sim::Config::new(1)
    };
    sim::run(config, world).value
}

/// The part of its floor that the stream has to get: beside fsyncs its writes are smaller than alone, 128 KiB.
const ACCOUNTED: f64 = 0.75;

/// Runs the workload with and without the target; `share`: the stream's share of the device by weights.
fn misses_its_floor(name: &str, workload: Workload, share: f64) -> Option<String> {
    let auto = |callers, streams| {
        let part = Workload {
            callers,
            streams,
            ..workload
        };
        run(part, FsyncTarget::Auto)
    };
    let (alone, idle) = (auto(0, true), auto(workload.callers, false));
    let [with, without] = [FsyncTarget::Auto, FsyncTarget::Unlimited].map(|to| run(workload, to));
    let of_alone = with.stream / alone.stream;
    let of_without = with.stream / without.stream;
    let line = format!(
        "{name}: {of_alone:.3} of alone, {of_without:.2} of without target; fsync {:.1?}, idle {:.1?}, without target {:.1?}",
        with.fsync, idle.fsync, without.fsync
    );
    println!("{line}");
    let is_kept = of_alone >= share.min(0.25) * ACCOUNTED && of_without >= 0.25;
    let longest = without.fsync.max(idle.fsync.mul_f64(1.5));
    let is_soon = with.fsync <= longest.mul_f64(1.1);
    (!is_kept || !is_soon).then_some(line)
}

/// Checks one device with callers and streams of one group and of two.
fn every_stream_keeps_its_floor(device: DeviceModel) {
    let mut missed = Vec::new();
    for (data, callers) in [(4096, 1), (4096, 4), (8 * MIB, 1)] {
        for (stream, weights, share) in
            [(CALLERS, [100, 100], 1.0), (STREAMS, [100, 20], 1.0 / 6.0)]
        {
            let workload = Workload {
                device,
                stream,
                weights,
                callers,
                data,
                ..WORKLOAD
            };
            let name = format!("{callers} of {data}, group {} {weights:?}", stream.0);
            missed.extend(misses_its_floor(&name, workload, share));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn a_stream_keeps_its_floor_beside_fsync_callers() {
    every_stream_keeps_its_floor(WORKLOAD.device);
}

#[test]
fn a_stream_keeps_its_floor_on_a_fast_device() {
    every_stream_keeps_its_floor(DeviceModel {
        bytes_per_second: 500 * MIB,
        flush: Duration::from_micros(500),
        ..WORKLOAD.device
    });
}

/// The device needs many requests at a time to be busy.
#[test]
fn a_stream_keeps_its_floor_on_a_device_with_latency() {
    every_stream_keeps_its_floor(DeviceModel {
        latency: Duration::from_millis(4),
        ..WORKLOAD.device
    });
}

#[test]
fn a_stream_keeps_its_floor_on_a_device_without_a_queue() {
    every_stream_keeps_its_floor(DeviceModel {
        depth: 1,
        ..WORKLOAD.device
    });
}

#[test]
fn a_stream_keeps_its_floor_with_strict_guarantees() {
    let strict = Workload {
        strict_guarantees: true,
        ..WORKLOAD
    };
    assert_eq!(misses_its_floor("strict", strict, 1.0), None);
}

/// A heavier group is not held back, and one of the same weight keeps its floor at least.
#[test]
fn groups_keep_their_weights_beside_fsync_callers() {
    for (stream, weights) in [
        (ROOT, [100, 100]),
        (STREAMS, [100, 100]),
        (STREAMS, [20, 100]),
    ] {
        let workload = Workload {
            stream,
            weights,
            ..WORKLOAD
        };
        assert_eq!(misses_its_floor("two groups", workload, 1.0), None);
    }
}
