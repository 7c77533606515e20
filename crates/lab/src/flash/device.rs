//! The model as a device: commands complete at the machine's times, in a simulation or on the host's clock.

use std::sync::Arc;

use steadfs_block::{Bio, DelayedCompletions, Device, Done, Geometry, Op};
use steadfs_rt::{Instant, Mutex, Rank, now, sim};

use super::{Command, Machine, Parameters, Store};

/// Counts of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads, and their bytes.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes, including preflushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Pages programmed.
    pub pages: u64,
    /// Erase units opened.
    pub units_opened: u64,
    /// Writes that did not continue at the end of their open erase unit's last write.
    pub jumps: u64,
}

impl Counters {
    /// The difference from the counts `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            read_bytes: self.read_bytes - earlier.read_bytes,
            writes: self.writes - earlier.writes,
            written_bytes: self.written_bytes - earlier.written_bytes,
            flushes: self.flushes - earlier.flushes,
            discards: self.discards - earlier.discards,
            pages: self.pages - earlier.pages,
            units_opened: self.units_opened - earlier.units_opened,
            jumps: self.jumps - earlier.jumps,
        }
    }
}

/// An event of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestEvent {
    /// The device has received it.
    Started,
    /// It has completed.
    Ended,
}

/// Called for each request with its number, the bio and the event. It must not wait.
pub type Watcher = Arc<dyn Fn(u64, &Bio, RequestEvent) + Send + Sync>;

/// A device model. Clones are the same device.
///
/// In a simulation commands complete on the virtual clock; otherwise a task completes them at their times.
#[derive(Clone)]
pub struct FlashDevice(Arc<Inner>);

struct Inner {
    geometry: Geometry,
    depth: usize,
    state: Mutex<State>,
    /// Only outside simulations.
    clock: Option<DelayedCompletions>,
}

struct State {
    /// `None`: no time passes.
    machine: Option<Machine>,
    store: Store,
    counters: Counters,
    watcher: Option<Watcher>,
    /// Number of the next watched request.
    next: u64,
}

impl FlashDevice {
    /// A device with this content; `seed` chooses its jitter.
    pub fn new(parameters: &Parameters, store: Store, seed: u64) -> Self {
        let depth = parameters.interface.queue_depth;
        let geometry = Geometry {
            fua: parameters.cache.fua,
            max_transfer: parameters.interface.max_transfer,
            ..geometry(&store)
        };
        Self::with(Some(Machine::new(parameters, seed)), geometry, depth, store)
    }

    /// A device that takes no time: to prepare and check volumes.
    pub fn instant(store: Store) -> Self {
        let geometry = geometry(&store);
        Self::with(None, geometry, 1024, store)
    }

    fn with(machine: Option<Machine>, geometry: Geometry, depth: usize, store: Store) -> Self {
        let clock = (machine.is_some() && !sim::active()).then(|| {
            let clock = DelayedCompletions::start("flash-device");
            clock.expect("a thread for the device model")
        });
        let state = State {
            machine,
            store,
            counters: Counters::default(),
            watcher: None,
            next: 0,
        };
        Self(Arc::new(Inner {
            geometry,
            depth,
            state: Mutex::new(Rank::DeviceInner, state),
            clock,
        }))
    }

    /// The present content.
    pub fn content(&self) -> Store {
        self.0.state.lock().store.clone()
    }

    /// Calls `watcher` for each request that starts from now on; `None`: no longer.
    pub fn watch(&self, watcher: Option<Watcher>) {
        self.0.state.lock().watcher = watcher;
    }

    /// Its counts.
    pub fn counters(&self) -> Counters {
        let state = self.0.state.lock();
        let machine = state.machine.as_ref();
        Counters {
            pages: machine.map_or(0, Machine::pages_programmed),
            units_opened: machine.map_or(0, Machine::opened),
            jumps: machine.map_or(0, Machine::jumps),
            ..state.counters
        }
    }
}

fn geometry(store: &Store) -> Geometry {
    Geometry {
        size: store.size(),
        logical_block: 512,
        read_only: false,
        discard_granularity: Some(4096),
        discard_zeroes: true,
        fua: true,
        max_transfer: 1 << 20,
    }
}

impl State {
    /// Executes a bio and returns when it ends.
    fn take(&mut self, bio: &mut Bio, now: Instant) -> Option<Instant> {
        let command = Command::of(bio);
        self.counters.count(&command);
        let mut at = bio.offset;
        match bio.op {
            Op::Read => {
                for buf in &mut bio.bufs {
                    let bytes = buf.make_mut();
                    self.store.read(at, bytes);
                    at += bytes.len() as u64;
                }
            }
            Op::Write => {
                for buf in &bio.bufs {
                    self.store.write(at, buf);
                    at += buf.len() as u64;
                }
            }
            Op::Discard | Op::WriteZeroes => self.store.zero(bio.offset, bio.len),
            Op::Flush => {}
        }
        let machine = self.machine.as_mut()?;
        let times = machine.begin(command, now.0);
        if sim::active() {
            sim::trace(bio.offset ^ bio.len.rotate_left(32) ^ (bio.op as u64) << 60);
            sim::trace(times.ended);
        }
        Some(Instant(times.ended))
    }
}

impl Counters {
    fn count(&mut self, command: &Command) {
        self.flushes += u64::from(command.preflush || command.op == Op::Flush);
        match command.op {
            Op::Read => {
                self.reads += 1;
                self.read_bytes += command.len;
            }
            Op::Write => {
                self.writes += 1;
                self.written_bytes += command.len;
            }
            Op::Discard | Op::WriteZeroes => self.discards += 1,
            Op::Flush => {}
        }
    }
}

impl Device for FlashDevice {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn start(&self, mut bio: Bio, done: Done) {
        if let Err(error) = self.0.geometry.check(&bio) {
            done(bio, Err(error));
            return;
        }
        let (ends, watched) = {
            let mut state = self.0.state.lock();
            let ends = state.take(&mut bio, now());
            state.next += u64::from(state.watcher.is_some());
            let number = state.next;
            (ends, state.watcher.clone().map(|watcher| (number, watcher)))
        };
        let done = match watched {
            None => done,
            Some((number, watcher)) => {
                watcher(number, &bio, RequestEvent::Started);
                Box::new(move |bio: Bio, result| {
                    watcher(number, &bio, RequestEvent::Ended);
                    done(bio, result);
                })
            }
        };
        match (ends, &self.0.clock) {
            (Some(ends), _) if sim::active() => sim::at(ends, move || done(bio, Ok(()))),
            (Some(ends), Some(clock)) => clock.at(ends, done)(bio, Ok(())),
            _ => done(bio, Ok(())),
        }
    }

    fn depth(&self) -> usize {
        self.0.depth
    }

    fn background_depth(&self) -> usize {
        self.0.depth
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use steadfs_base::IoTag;
    use steadfs_block::{Buf, Queue, QueueOptions, wait_all};

    use super::*;

    fn parameters() -> Parameters {
        let mut parameters = Parameters::built_in("ufs-2021").expect("built in");
        parameters.flash.jitter_percent = 0;
        parameters
    }

    /// The time of writes, flushes and reads through a queue.
    fn work() -> Duration {
        let device = FlashDevice::new(&parameters(), Store::zeroed(1 << 20), 1);
        let queue = Queue::new(Arc::new(device.clone()), QueueOptions::default());
        let begin = now();
        let tag = IoTag::default();
        let writes: Vec<_> = (0..4u8)
            .map(|n| {
                let bio = Bio::write(u64::from(n) * 8192, vec![Buf::copy_of(&[n; 4096])]);
                queue.submit(bio, tag)
            })
            .collect();
        wait_all(&writes).expect("the model reports no errors");
        queue
            .flush(tag)
            .wait()
            .expect("the model reports no errors");
        for n in 0..4u8 {
            let read = queue
                .read(u64::from(n) * 8192, 4096, tag)
                .expect("the model reports no errors");
            assert!(read.iter().all(|byte| *byte == n));
        }
        let took = begin.elapsed();
        let counters = device.counters();
        assert_eq!(
            (counters.writes, counters.reads, counters.flushes),
            (4, 4, 1)
        );
        assert_eq!((counters.written_bytes, counters.pages), (16384, 1));
        took
    }

    #[test]
    fn simulated_and_real_time_follow_the_model() {
        let simulated = sim::run(sim::Config::default(), work).value;
        let real = work();
        assert!(simulated >= Duration::from_millis(4), "{simulated:?}");
        assert!(real >= simulated, "real {real:?}, simulated {simulated:?}");
    }
}
