//! Many tasks, in simulation.

use super::*;

/// A simulated device: requests take time and end in another order.
struct Slow(Arc<MemDevice>);

impl Device for Slow {
    fn geometry(&self) -> &Geometry {
        self.0.geometry()
    }

    fn start(&self, bio: Bio, done: Done) {
        let memory = Arc::clone(&self.0);
        let time = Duration::from_micros(20 + steadfs_rt::random_u64() % 500);
        sim::after(time, move || memory.start(bio, done));
    }
}

/// Tasks that submit, wait, drop handles and flush never stall, even if the host refuses tasks of the queue.
fn crowd(seed: u64, policy: Policy, refuse: bool) -> u64 {
    let config = sim::Config {
        stall_bound: Duration::from_secs(1),
        ..sim::Config::new(seed)
    };
    let report = sim::run(config, move || {
        let memory = Arc::new(MemDevice::new(1 << 20));
        let device: Arc<dyn Device> = Arc::new(Slow(Arc::clone(&memory)));
        let settings = QueueSettings {
            policy,
            depth: 4,
            ..QueueSettings::default()
        };
        let queue = Arc::new(Queue::with_settings(device, settings));
        queue.set_group(GroupId(1), GroupId(0), 20);
        let tasks: Vec<_> = (0..6u64)
            .map(|task| {
                let queue = Arc::clone(&queue);
                steadfs_rt::spawn("task", move || {
                    let mut ios = Vec::new();
                    for i in 0..20u64 {
                        let at = task * 20 + i;
                        let choice = steadfs_rt::random_u64();
                        let io = queue.submit(block(at, task as u8), tag((choice % 4) as u8));
                        match choice / 4 % 6 {
                            5 => queue.configure(QueueSettings {
                                policy: Policy::ALL[(choice / 24 % 3) as usize],
                                strict_guarantees: (choice / 72).is_multiple_of(4),
                                ..settings
                            }),
                            0 => io.wait().unwrap(),
                            1 => drop(io),
                            2 => queue.flush(WAITED).wait().unwrap(),
                            3 => queue.boost(&io, WAITED),
                            _ => ios.push(io),
                        }
                    }
                    wait_all(&ios).unwrap();
                    queue.flush(WAITED).wait().unwrap();
                })
            })
            .collect();
        sim::refuse_tasks(refuse);
        for task in tasks {
            task.join();
        }
        // Both counts of one moment: the timer may dispatch a request between two calls.
        let left = || {
            let stats = queue.stats();
            stats.in_flight + stats.queued
        };
        while left() > 0 {
            steadfs_rt::sleep(Duration::from_millis(1));
        }
        for task in 0..6u64 {
            let mut got = [0; 20 * UNIT as usize];
            memory.read(task * 20 * UNIT, &mut got);
            assert_eq!(got, [task as u8; 20 * UNIT as usize]);
        }
    });
    report.trace_hash
}

#[test]
fn many_simulated_tasks_never_stall() {
    let mut hashes = BTreeMap::new();
    let policy = |seed: u64| Policy::ALL[(seed % 3) as usize];
    for seed in 0..200 {
        hashes.insert(seed, crowd(seed, policy(seed), false));
        crowd(seed, policy(seed), true);
    }
    for seed in [0, 7, 199] {
        assert_eq!(
            crowd(seed, policy(seed), false),
            hashes[&seed],
            "a run is a function of its seed"
        );
    }
}

#[test]
fn many_tasks_can_wait_for_one_request() {
    for seed in 0..20 {
        sim::run(sim::Config::new(seed), || {
            let device: Arc<dyn Device> = Arc::new(Slow(Arc::new(MemDevice::new(SIZE))));
            let queue = Queue::new(device, QueueOptions::default());
            for tag in [WAITED, BACKGROUND] {
                let ios = [
                    queue.submit(block(0, 1), tag),
                    queue.flush(tag),
                    queue.flush(tag),
                ];
                let tasks: Vec<_> = (0..4)
                    .map(|_| {
                        let ios = ios.clone();
                        steadfs_rt::spawn("waiter", move || wait_all(&ios).unwrap())
                    })
                    .collect();
                tasks.into_iter().for_each(steadfs_rt::JoinHandle::join);
            }
        });
    }
}
