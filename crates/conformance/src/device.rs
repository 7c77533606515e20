//! The device under a volume: in memory, with a write cache, faults, counts, and actions between two requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use steadfs_block::{Bio, Device, Done, FaultDevice, Geometry, MemDevice, Op};
use steadfs_rt::{Mutex, Rank, spawn};

type Action = Box<dyn FnOnce() + Send>;

/// A device in memory that a test observes and disturbs.
pub struct TestDevice {
    /// Injects faults and has the content.
    pub faults: Arc<FaultDevice>,
    before_next_write: Mutex<Option<Action>>,
    writes: AtomicU64,
    flushes: AtomicU64,
    /// Taken by the completion of a request, with no other lock.
    cache: Arc<Mutex<Cache>>,
}

/// The write cache of a device: what a power cut would leave of what was written.
struct Cache {
    /// The content that the latest FLUSH or preflush has made durable: everything that had completed at its start.
    durable: Arc<MemDevice>,
    /// Number of the start of that flush.
    since: u64,
    /// Writes with FUA that completed after it: the number of their completion, offset and content.
    fua: Vec<(u64, u64, Vec<u8>)>,
    /// Starts of flushes and completions of writes with FUA so far.
    events: u64,
}

impl Cache {
    fn next_event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    fn flushed(&mut self, started: u64, content: Arc<MemDevice>) {
        if started > self.since {
            (self.since, self.durable) = (started, content);
            self.fua.retain(|(completed, ..)| *completed > started);
        }
    }

    fn written_durably(&mut self, bio: &Bio) {
        let content = bio.bufs.iter().flat_map(|buf| buf.iter().copied());
        let event = self.next_event();
        self.fua.push((event, bio.offset, content.collect()));
    }
}

impl TestDevice {
    /// A device with the content of `memory`.
    pub fn new(memory: Arc<MemDevice>) -> Arc<Self> {
        let cache = Cache {
            durable: Arc::new(memory.copy()),
            since: 0,
            fua: Vec::new(),
            events: 0,
        };
        Arc::new(Self {
            cache: Arc::new(Mutex::new(Rank::Leaf, cache)),
            faults: FaultDevice::new(memory),
            before_next_write: Mutex::new(Rank::Leaf, None),
            writes: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
        })
    }

    /// Runs `action` in a task of its own, to its end, before the next write is executed.
    pub fn before_next_write(&self, action: impl FnOnce() + Send + 'static) {
        *self.before_next_write.lock() = Some(Box::new(action));
    }

    /// Number of write requests so far.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    /// Number of FLUSH requests so far; a write with PREFLUSH or FUA is none.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// The content, durable or not.
    pub fn bytes(&self) -> Vec<u8> {
        self.faults.memory.to_bytes()
    }

    /// A device with the content that is durable: what a power cut would leave now at worst.
    pub fn durable(&self) -> Arc<MemDevice> {
        let (durable, fua) = {
            let cache = self.cache.lock();
            (Arc::clone(&cache.durable), cache.fua.clone())
        };
        let copy = durable.copy();
        for (_, offset, content) in fua {
            copy.write(offset, &content);
        }
        Arc::new(copy)
    }

    /// A device with the content, durable or not: what a power cut leaves of a device without a write cache.
    pub fn copy(&self) -> Arc<MemDevice> {
        Arc::new(self.faults.memory.copy())
    }

    /// A completion that also does to the cache what the request does.
    fn through_cache(&self, bio: &Bio, done: Done) -> Done {
        let is_flush = bio.op == Op::Flush || bio.preflush;
        let is_fua = bio.op == Op::Write && bio.fua;
        if !is_flush && !is_fua {
            return done;
        }
        let flush = is_flush.then(|| {
            let content = self.copy();
            (self.cache.lock().next_event(), content)
        });
        let cache = Arc::clone(&self.cache);
        Box::new(move |bio, result| {
            if result.is_ok() {
                let mut cache = cache.lock();
                if let Some((started, content)) = flush {
                    cache.flushed(started, content);
                }
                if is_fua {
                    cache.written_durably(&bio);
                }
            }
            done(bio, result);
        })
    }
}

impl Device for TestDevice {
    fn geometry(&self) -> &Geometry {
        self.faults.geometry()
    }

    fn start(&self, bio: Bio, done: Done) {
        match bio.op {
            Op::Write => {
                self.writes.fetch_add(1, Ordering::Relaxed);
                let action = self.before_next_write.lock().take();
                if let Some(action) = action {
                    spawn("between two requests", action).join();
                }
            }
            Op::Flush => {
                self.flushes.fetch_add(1, Ordering::Relaxed);
            }
            Op::Read | Op::Discard | Op::WriteZeroes => {}
        }
        let done = self.through_cache(&bio, done);
        self.faults.start(bio, done);
    }
}

#[cfg(test)]
mod tests {
    use steadfs_block::Buf;

    use super::*;

    const BYTES: usize = 4096;

    fn write(device: &TestDevice, at: u64, value: u8, set: impl Fn(&mut Bio)) {
        let mut bio = Bio::write(at * BYTES as u64, vec![Buf::copy_of(&[value; BYTES])]);
        set(&mut bio);
        run(device, bio);
    }

    fn run(device: &TestDevice, bio: Bio) {
        device.start(bio, Box::new(|_, result| result.expect("no fault")));
    }

    fn durable(device: &TestDevice) -> [u8; 3] {
        let left = device.durable().to_bytes();
        [left[0], left[BYTES], left[2 * BYTES]]
    }

    #[test]
    fn a_power_cut_leaves_what_a_flush_or_fua_has_made_durable() {
        let device = TestDevice::new(Arc::new(MemDevice::new(3 * BYTES as u64)));
        write(&device, 0, 1, |_| {});
        assert_eq!(durable(&device), [0, 0, 0]);
        write(&device, 1, 2, |bio| bio.fua = true);
        assert_eq!(durable(&device), [0, 2, 0]);
        write(&device, 2, 3, |bio| bio.preflush = true);
        assert_eq!(durable(&device), [1, 2, 0]);
        write(&device, 1, 4, |_| {});
        assert_eq!(durable(&device), [1, 2, 0]);
        run(&device, Bio::flush());
        assert_eq!(durable(&device), [1, 4, 3]);
        assert_eq!(device.copy().to_bytes(), device.durable().to_bytes());
    }
}
