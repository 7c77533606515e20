//! Priority inheritance: a task waits for a lock that a task of a low-weight group holds during I/O.

use steadfs_base::OwnerId;
use steadfs_rt::inherit::set_task_tag;
use steadfs_rt::{JoinHandle, RwLock, now, sleep, spawn};

use super::*;
use crate::{DeviceModel, ModelDevice};

fn of_group(number: u32) -> IoTag {
    IoTag {
        group: GroupId(number),
        owner: OwnerId(number),
        ..IoTag::default()
    }
}

/// How the low-weight task holds the lock that the high-weight task waits for.
#[derive(Clone, Copy, Debug)]
enum Holding {
    /// Exclusively.
    Alone,
    /// As one of two readers.
    Shared,
    /// Indirectly: the holder waits for another lock, whose holder does the I/O.
    Through,
}

/// Requests that the low-weight task writes under the lock, one after the other.
const PIECES: u64 = 8;

/// The two locks, and the queue of a slow device with three groups.
#[derive(Clone)]
struct Scene {
    queue: Arc<Queue>,
    outer: Arc<RwLock<()>>,
    inner: Arc<Mutex<()>>,
}

impl Scene {
    fn new(boost: bool) -> Self {
        let model = DeviceModel {
            bytes_per_second: 10 << 20,
            latency: Duration::from_micros(500),
            flush: Duration::ZERO,
            depth: 1,
        };
        let device = Arc::new(ModelDevice::new(Arc::new(MemDevice::new(64 << 20)), model));
        let settings = QueueSettings {
            boost,
            ..QueueSettings::default()
        };
        let queue = Arc::new(Queue::with_settings(device, settings));
        for (group, weight) in [(1, 5), (2, 1000), (3, 1000)] {
            queue.set_group(GroupId(group), GroupId(0), weight);
        }
        Self {
            queue,
            outer: Arc::new(RwLock::new(Rank::Inode, ())),
            inner: Arc::new(Mutex::new(Rank::Writeback, ())),
        }
    }

    /// Four tasks of a third group that keep the device busy.
    fn start_others(&self) -> Vec<JoinHandle<()>> {
        let until = now().0 + 20_000_000_000;
        let one = |_| {
            let queue = Arc::clone(&self.queue);
            spawn("others", move || {
                while now().0 < until {
                    queue.read(1 << 20, 64 << 10, of_group(3)).unwrap();
                }
            })
        };
        (0..4).map(one).collect()
    }

    fn hold_and_write(&self, holding: Holding) {
        let _light = set_task_tag(of_group(1));
        let (mut alone, mut shared) = (None, None);
        match holding {
            Holding::Alone => alone = Some(self.outer.write()),
            Holding::Shared => shared = Some(self.outer.read()),
            Holding::Through => {}
        }
        let _inner = self.inner.lock();
        for n in 0..PIECES {
            let at = (32 << 20) + n * (1 << 20);
            let bufs = vec![Buf::zeroed(64 << 10)];
            self.queue.write(at, bufs, of_group(1)).unwrap();
        }
        drop((alone, shared));
    }

    /// The task between the holder and the waiter, for two kinds of holding.
    fn stand_between(&self, holding: Holding) {
        match holding {
            Holding::Alone => {}
            Holding::Shared => {
                let _shared = self.outer.read();
                sleep(Duration::from_millis(20));
            }
            Holding::Through => {
                let _light = set_task_tag(of_group(1));
                let _alone = self.outer.write();
                let _inner = self.inner.lock();
            }
        }
    }
}

/// Time that a high-weight task waits for a lock under which a low-weight one writes, while a third task keeps the
/// device busy.
fn waited(holding: Holding, boost: bool, seed: u64) -> Duration {
    let run = move || {
        let scene = Scene::new(boost);
        let others = scene.start_others();
        sleep(Duration::from_millis(50));
        let light = scene.clone();
        let light = spawn("light", move || light.hold_and_write(holding));
        sleep(Duration::from_millis(10));
        let between = scene.clone();
        let between = spawn("between", move || between.stand_between(holding));
        sleep(Duration::from_millis(10));
        let began = now();
        {
            let _heavy = set_task_tag(of_group(2));
            drop(scene.outer.write());
        }
        let waited = began.elapsed();
        // The donated tag ends with the wait.
        assert!(!steadfs_rt::inherit::has_waiters());
        for task in others.into_iter().chain([light, between]) {
            task.join();
        }
        let inherited = scene.queue.stats().boosts.inherited;
        assert_eq!(inherited > 0, boost, "{inherited}");
        waited
    };
    sim::run(sim::Config::new(seed), run).value
}

#[test]
fn a_low_weight_holder_inherits_the_tag_of_a_high_weight_waiter() {
    for holding in [Holding::Alone, Holding::Shared, Holding::Through] {
        for seed in 0..3 {
            let (with, without) = (waited(holding, true, seed), waited(holding, false, seed));
            // Eight requests beside four of another task, and those in the device.
            assert!(with < Duration::from_millis(150), "{holding:?}: {with:?}");
            assert!(without > 10 * with, "{holding:?}: {with:?} {without:?}");
        }
    }
}
