//! The device under a volume: in memory, with faults, counts, and actions between two requests.

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
}

impl TestDevice {
    /// A device with the content of `memory`.
    pub fn new(memory: Arc<MemDevice>) -> Arc<Self> {
        Arc::new(Self {
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

    /// The content: what a power cut would leave now.
    pub fn bytes(&self) -> Vec<u8> {
        self.faults.memory.to_bytes()
    }

    /// A device with the content that a power cut would leave now.
    pub fn copy(&self) -> Arc<MemDevice> {
        Arc::new(self.faults.memory.copy())
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
        self.faults.start(bio, done);
    }
}
