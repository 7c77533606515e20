//! A device in memory that records its writes, takes time, and fails what a test picks.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use steadfs_block::{Bio, Device, Done, Geometry, IoError, MemDevice, Op};
use steadfs_rt::{Mutex, Rank, sim};

/// Bytes of a block.
pub(super) const BS: u64 = 1024;
const DEVICE_BLOCKS: u64 = 4096;
/// Content of blocks that were never written.
pub(super) const GARBAGE: u8 = 0xee;

/// A step of write-back. Ranges of `Started` and `Ended` are blocks of the device, the others blocks of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Allocated(u64, Range<u64>),
    Started(Range<u64>),
    Ended(Range<u64>),
    Mapped(u64, Range<u64>),
    Completed(u64),
}

pub(super) type FailWrite = Box<dyn FnMut(Range<u64>) -> bool + Send>;

/// A device in memory that takes time and fails the writes that a test picks. No two writes in flight overlap on it.
pub(super) struct TestDevice {
    memory: MemDevice,
    state: Mutex<DeviceState>,
}

struct DeviceState {
    delay: Duration,
    fails: FailWrite,
    in_flight: Vec<Range<u64>>,
    /// Blocks whose last write succeeded.
    written: BTreeSet<u64>,
    log: Vec<Event>,
}

impl TestDevice {
    pub(super) fn new() -> Arc<Self> {
        let memory = MemDevice::new(DEVICE_BLOCKS * BS);
        memory.write(0, &vec![GARBAGE; (DEVICE_BLOCKS * BS) as usize]);
        let state = DeviceState {
            delay: Duration::ZERO,
            fails: Box::new(|_| false),
            in_flight: Vec::new(),
            written: BTreeSet::new(),
            log: Vec::new(),
        };
        Arc::new(Self {
            memory,
            state: Mutex::new(Rank::DeviceInner, state),
        })
    }

    /// The device as a queue takes it.
    pub(super) fn handle(self: &Arc<Self>) -> Arc<dyn Device> {
        Arc::new(Handle(Arc::clone(self)))
    }

    /// Each later write takes this time.
    pub(super) fn set_delay(&self, delay: Duration) {
        self.state.lock().delay = delay;
    }

    /// Later writes to blocks that `which` picks fail.
    pub(super) fn fail_writes(&self, which: FailWrite) {
        self.state.lock().fails = which;
    }

    pub(super) fn log(&self, event: Event) {
        self.state.lock().log.push(event);
    }

    /// The steps since the last call.
    pub(super) fn take_log(&self) -> Vec<Event> {
        std::mem::take(&mut self.state.lock().log)
    }

    /// Whether the last write of a block has succeeded.
    pub(super) fn is_written(&self, block: u64) -> bool {
        self.state.lock().written.contains(&block)
    }

    /// The content of a block.
    pub(super) fn block(&self, block: u64) -> [u8; BS as usize] {
        let mut content = [0; BS as usize];
        self.memory.read(block * BS, &mut content);
        content
    }

    fn end(&self, blocks: Range<u64>, fails: bool, bio: Bio, done: Done) {
        {
            let mut state = self.state.lock();
            let at = state.in_flight.iter().position(|range| *range == blocks);
            state.in_flight.remove(at.expect("a write ends once"));
            state.log.push(Event::Ended(blocks.clone()));
            for block in blocks {
                match fails {
                    true => state.written.remove(&block),
                    false => state.written.insert(block),
                };
            }
        }
        if fails {
            let error = IoError::of(&bio, "injected fault");
            return done(bio, Err(error));
        }
        let mut at = bio.offset;
        for buf in &bio.bufs {
            self.memory.write(at, buf);
            at += buf.len() as u64;
        }
        done(bio, Ok(()));
    }
}

/// What the queue has of the device.
struct Handle(Arc<TestDevice>);

impl Device for Handle {
    fn geometry(&self) -> &Geometry {
        self.0.memory.geometry()
    }

    fn start(&self, bio: Bio, done: Done) {
        assert_eq!(bio.op, Op::Write, "the engine only writes");
        let blocks = bio.offset / BS..(bio.offset + bio.len) / BS;
        let (delay, fails) = {
            let mut state = self.0.state.lock();
            for other in &state.in_flight {
                let apart = other.end <= blocks.start || blocks.end <= other.start;
                assert!(apart, "{other:?} and {blocks:?} are in flight together");
            }
            state.in_flight.push(blocks.clone());
            state.log.push(Event::Started(blocks.clone()));
            (state.delay, (state.fails)(blocks.clone()))
        };
        let device = Arc::clone(&self.0);
        if delay.is_zero() {
            return device.end(blocks, fails, bio, done);
        }
        sim::after(delay, move || device.end(blocks, fails, bio, done));
    }
}
