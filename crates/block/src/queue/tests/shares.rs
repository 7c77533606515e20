//! Shares of a device with slow FLUSHes, in virtual time.

use steadfs_base::OwnerId;
use steadfs_rt::{now, sleep, spawn};

use super::*;
use crate::{DeviceModel, ModelDevice, wait_all};

const SECONDS: u64 = 20;

fn of_group(number: u32, owner: u32) -> IoTag {
    IoTag {
        group: GroupId(number),
        owner: OwnerId(owner),
        ..IoTag::default()
    }
}

/// Work of a client, in a loop.
#[derive(Clone, Copy)]
enum Work {
    /// Appends this number of bytes and calls fsync.
    Append(usize),
    /// The same after a pause of 100 ms.
    Paused(usize),
    /// Commits: a write with preflush and FUA.
    Commit,
    /// Streams, with this number of requests of 64 KiB in flight.
    Stream(usize),
    /// The same with background requests.
    Background(usize),
}

struct Client {
    group: u32,
    tasks: u32,
    work: Work,
}

/// One round of a client's work, in its own region of the device.
fn round(queue: &Queue, work: Work, tag: IoTag, region: u64, n: u64) {
    match work {
        Work::Append(bytes) | Work::Paused(bytes) => {
            if let Work::Paused(_) = work {
                sleep(Duration::from_millis(100));
            }
            let at = region + n % 32 * (64 << 10);
            queue.write(at, vec![Buf::zeroed(bytes)], tag).unwrap();
            queue.flush(tag).wait().unwrap();
        }
        Work::Commit => {
            let mut bio = Bio::write(region, vec![Buf::zeroed(4096)]);
            (bio.preflush, bio.fua) = (true, true);
            queue.submit(bio, tag).wait().unwrap();
        }
        Work::Stream(depth) | Work::Background(depth) => {
            let tag = match work {
                Work::Background(_) => tag.with_urgency(Urgency::Background),
                _ => tag,
            };
            let write =
                |n: usize| Bio::write(region + n as u64 * (128 << 10), vec![Buf::zeroed(64 << 10)]);
            let ios: Vec<_> = (0..depth).map(|n| queue.submit(write(n), tag)).collect();
            wait_all(&ios).unwrap();
        }
    }
}

/// Device and settings of a measurement.
#[derive(Clone, Copy)]
struct Scene {
    depth: usize,
    flush: Duration,
    seconds: u64,
    settings: QueueSettings,
}

impl Scene {
    fn of(depth: usize) -> Self {
        Self {
            depth,
            flush: Duration::from_millis(4),
            seconds: SECONDS,
            settings: QueueSettings::default(),
        }
    }
}

/// Total number of rounds of each client's tasks in [`SECONDS`].
fn rounds(depth: usize, clients: Vec<Client>) -> Vec<u64> {
    rounds_in(Scene::of(depth), clients)
}

fn rounds_in(scene: Scene, clients: Vec<Client>) -> Vec<u64> {
    let run = move || {
        let model = DeviceModel {
            bytes_per_second: 100 << 20,
            latency: Duration::from_micros(50),
            flush: scene.flush,
            depth: scene.depth,
        };
        let memory = Arc::new(MemDevice::new(64 << 20));
        let device = Arc::new(ModelDevice::new(memory, model));
        let queue = Arc::new(Queue::with_settings(device, scene.settings));
        for (group, weight) in [(1, 100), (2, 20), (3, 100)] {
            queue.set_group(GroupId(group), GroupId(0), weight);
        }
        let until = now().0 + scene.seconds * 1_000_000_000;
        let mut owner = 0;
        let start = |client: &Client| -> Vec<_> {
            let (group, work) = (client.group, client.work);
            let one = |_| {
                owner += 1;
                let (queue, owner) = (Arc::clone(&queue), owner);
                spawn("client", move || {
                    let region = u64::from(owner) * (4 << 20);
                    let mut n = 0;
                    while now().0 < until {
                        round(&queue, work, of_group(group, owner), region, n);
                        n += 1;
                    }
                    n
                })
            };
            (0..client.tasks).map(one).collect()
        };
        let tasks: Vec<Vec<_>> = clients.iter().map(start).collect();
        let sum = |tasks: Vec<steadfs_rt::JoinHandle<u64>>| {
            tasks.into_iter().map(steadfs_rt::JoinHandle::join).sum()
        };
        tasks.into_iter().map(sum).collect()
    };
    sim::run(sim::Config::new(7), run).value
}

fn client(group: u32, tasks: u32, work: Work) -> Client {
    Client { group, tasks, work }
}

#[test]
fn groups_that_call_fsync_get_their_weights() {
    for depth in [1, 8] {
        for work in [Work::Append(4096), Work::Append(64 << 10), Work::Commit] {
            for tasks in [1, 4] {
                let both = vec![client(1, tasks, work), client(2, tasks, work)];
                let got = rounds(depth, both);
                let ratio = got[0] as f64 / got[1] as f64;
                // Rounds of tasks that share a FLUSH are cheaper.
                let near = if tasks == 1 { 4.5..=5.5 } else { 3.5..=6.5 };
                assert!(
                    near.contains(&ratio),
                    "depth {depth}, {tasks} tasks: {got:?}"
                );
            }
        }
    }
}

/// Two groups that write synchronously have their shares of the device's time, FLUSHes included, whatever the size of
/// the writes, the depth of the device and the time of a FLUSH.
#[test]
fn synchronous_writers_get_their_weights() {
    for bytes in [2 << 20, 256 << 10, 64 << 10, 4096] {
        for depth in [1, 4, 32] {
            for ms in [0, 1, 4] {
                let scene = Scene {
                    flush: Duration::from_millis(ms),
                    seconds: 4,
                    ..Scene::of(depth)
                };
                let work = Work::Append(bytes);
                let got = rounds_in(scene, vec![client(1, 1, work), client(2, 1, work)]);
                let ratio = got[0] as f64 / got[1] as f64;
                assert!(
                    (4.5..=5.5).contains(&ratio),
                    "{bytes} bytes, depth {depth}, FLUSH {ms} ms: {ratio} {got:?}"
                );
            }
        }
    }
}

/// Of two equal groups, one that streams gets half of the device's time beside one that calls fsync, whose FLUSHes
/// transfer nothing.
#[test]
fn fsync_is_charged_for_its_flushes_beside_a_stream() {
    for depth in [1, 8] {
        let append = client(1, 1, Work::Append(4096));
        let stream = client(3, 1, Work::Stream(8));
        let got = rounds(depth, vec![append, stream]);
        let flushing = got[0] as f64 * 0.004 / SECONDS as f64;
        let moving = got[1] as f64 * 0.005 / SECONDS as f64;
        assert!(moving >= 0.45, "depth {depth}: {moving} {flushing}");
        // Each of its rounds waits for the requests in the device.
        let least = if depth == 1 { 0.45 } else { 0.25 };
        assert!(flushing >= least, "depth {depth}: {moving} {flushing}");
    }
}

/// Background requests are delayed for fsync callers, but not below their group's share.
#[test]
fn background_of_a_group_has_its_share_beside_fsyncs_of_another() {
    for depth in [1, 8] {
        for (streams, syncs, least) in [(1, 3, 0.43), (1, 2, 0.6), (2, 1, 0.08)] {
            let append = client(syncs, 1, Work::Append(4096));
            let stream = client(streams, 1, Work::Background(64));
            let got = rounds(depth, vec![append, stream]);
            let flushing = got[0] as f64 * 0.004 / SECONDS as f64;
            let moving = got[1] as f64 * 0.040 / SECONDS as f64;
            assert!(
                moving >= least,
                "depth {depth}, {streams} beside {syncs}: {moving} {flushing}"
            );
        }
    }
}

/// An fsync beside a stream of its own group takes at most about twice its time alone, and the stream keeps its
/// quarter beside fsyncs without a pause; with pauses it keeps its throughput.
#[test]
fn an_fsync_beside_background_takes_at_most_twice_its_time() {
    let alone = 4.1;
    for depth in [8, 32] {
        let run = |fsync_target, work| {
            let mut scene = Scene::of(depth);
            scene.settings.fsync_target = fsync_target;
            let stream = client(1, 1, Work::Background(64));
            rounds_in(scene, vec![client(1, 1, work), stream])
        };
        let took = |rounds: u64, pause: f64| SECONDS as f64 * 1000.0 / rounds as f64 - pause;
        let moving = |rounds: u64| rounds as f64 * 0.040 / SECONDS as f64;

        let paused = Work::Paused(4096);
        let (auto, off) = (
            run(FsyncTarget::Auto, paused),
            run(FsyncTarget::Unlimited, paused),
        );
        let (with, without) = (took(auto[0], 100.0), took(off[0], 100.0));
        assert!(with <= 2.0 * alone, "depth {depth}: {with} {without}");
        assert!(without > 1.25 * with, "depth {depth}: {with} {without}");
        let (with, without) = (moving(auto[1]), moving(off[1]));
        assert!(with >= 0.95 * without, "depth {depth}: {with} {without}");

        let auto = run(FsyncTarget::Auto, Work::Append(4096));
        assert!(moving(auto[1]) >= 0.2, "depth {depth}: {auto:?}");
        assert!(took(auto[0], 0.0) <= 2.0 * alone, "depth {depth}: {auto:?}");
    }
}
