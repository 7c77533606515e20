//! Overlays with power cuts, faults and concurrent writes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_block::{
    Bio, Buf, Device, Done, Fault, FaultDevice, Geometry, MemDevice, Op, Queue, QueueOptions,
};
use steadfs_rt::{Mutex, Rank, sim, spawn};

use super::{BaseId, Head, Layout, OverlayDevice, check_head, identity};

const SECTOR: usize = 512;
/// Ends inside a unit.
const BASE_BYTES: usize = (300 << 10) + 1536;

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn base() -> Arc<MemDevice> {
    let bytes: Vec<u8> = (0..BASE_BYTES)
        .map(|i| (i / SECTOR % 251) as u8 | 1)
        .collect();
    Arc::new(MemDevice::from_bytes(&bytes))
}

fn layout() -> Layout {
    Layout::of(BASE_BYTES as u64).unwrap()
}

/// Opens the overlay in `upper` as a mount does.
fn open(base: &Arc<MemDevice>, upper: Arc<dyn Device>, id: &BaseId) -> Result<Queue, String> {
    let mut head = vec![0; 4096];
    let queue = Queue::new(Arc::clone(&upper), QueueOptions::default());
    head.copy_from_slice(&queue.read(0, 4096, IoTag::default()).unwrap());
    let head = check_head(&head, upper.geometry().size, &layout(), id)?;
    let device = OverlayDevice::open(Arc::clone(base) as _, upper, head, id)?;
    Ok(Queue::new(Arc::new(device), QueueOptions::default()))
}

/// What happened on a device.
enum Event {
    Write(u64, Vec<u8>),
    Flush,
}

/// A device in memory that records what changes it.
struct Recorder {
    memory: MemDevice,
    events: Mutex<Vec<Event>>,
}

impl Device for Recorder {
    fn geometry(&self) -> &Geometry {
        self.memory.geometry()
    }

    fn start(&self, bio: Bio, done: Done) {
        let event = match bio.op {
            Op::Read | Op::Discard => None,
            Op::Flush => Some(Event::Flush),
            Op::Write => Some(Event::Write(
                bio.offset,
                bio.bufs.iter().flat_map(|b| b.to_vec()).collect(),
            )),
            Op::WriteZeroes => Some(Event::Write(bio.offset, vec![0; bio.len as usize])),
        };
        self.events.lock().extend(event);
        self.memory.start(bio, done);
    }
}

/// What a sector may have after a power cut: what the last FLUSH acknowledged, and what was written since.
type Allowed = Vec<u8>;

struct Model {
    now: Vec<u8>,
    allowed: Vec<Allowed>,
    /// The number of events after which the model was as it is here.
    history: Vec<(usize, Vec<Allowed>)>,
}

impl Model {
    fn new(bytes: Vec<u8>) -> Self {
        let allowed = bytes.chunks(SECTOR).map(|s| vec![s[0]]).collect();
        Self {
            now: bytes,
            allowed,
            history: Vec::new(),
        }
    }

    /// From now on a power cut may leave these bytes.
    fn write(&mut self, at: usize, len: usize, byte: u8) {
        self.now[at..at + len].fill(byte);
        for sector in at / SECTOR..(at + len) / SECTOR {
            self.allowed[sector].push(byte);
        }
    }

    /// From now on there is nothing else.
    fn flushed(&mut self) {
        for (sector, allowed) in self.allowed.iter_mut().enumerate() {
            *allowed = vec![self.now[sector * SECTOR]];
        }
    }

    fn note(&mut self, events: usize) {
        self.history.push((events, self.allowed.clone()));
    }
}

/// One step of a run on the overlay. Before a request the model allows what it writes; after a FLUSH nothing else.
fn step(queue: &Queue, model: &mut Model, random: &mut Random, events: impl Fn() -> usize) {
    let tag = IoTag::default();
    let sectors = BASE_BYTES / SECTOR;
    let at = random.below(sectors as u64) as usize;
    let len = (1 + random.below(24) as usize).min(sectors - at) * SECTOR;
    let (at, byte) = (at * SECTOR, random.below(256) as u8);
    let data = || vec![Buf::copy_of(&vec![byte; len])];
    match random.below(8) {
        0 => {
            queue.flush(tag).wait().unwrap();
            model.flushed();
        }
        1 => {
            model.write(at, len, 0);
            model.note(events());
            let bio = Bio::write_zeroes(at as u64, len as u64);
            queue.submit(bio, tag).wait().unwrap();
        }
        2 => {
            model.write(at, len, byte);
            model.note(events());
            let bio = Bio::write(at as u64, data()).preflush_and_fua();
            queue.submit(bio, tag).wait().unwrap();
            model.flushed();
        }
        3 => {
            let read = queue.read(at as u64, len, tag).unwrap();
            assert!(*read == model.now[at..at + len]);
        }
        _ => {
            model.write(at, len, byte);
            model.note(events());
            queue
                .submit(Bio::write(at as u64, data()), tag)
                .wait()
                .unwrap();
        }
    }
    model.note(events());
}

/// Cuts the power after each event: unflushed sectors keep any of their contents.
fn cut_everywhere(base: &Arc<MemDevice>, id: &BaseId, events: &[Event], model: &Model, seed: u64) {
    let mut random = Random(seed ^ 0x1234_5678);
    let durable = MemDevice::new(layout().file_bytes());
    let mut pending: BTreeMap<u64, Vec<&[u8]>> = BTreeMap::new();
    for (number, event) in events.iter().enumerate() {
        match event {
            Event::Write(at, bytes) => {
                for (sector, bytes) in (at / 512..).zip(bytes.chunks(SECTOR)) {
                    pending.entry(sector).or_default().push(bytes);
                }
            }
            Event::Flush => {
                for (sector, versions) in std::mem::take(&mut pending) {
                    durable.write(sector * 512, versions.last().unwrap());
                }
            }
        }
        let image = durable.copy();
        for (sector, versions) in &pending {
            let chosen = random.below(versions.len() as u64 + 1) as usize;
            if let Some(bytes) = versions.get(chosen) {
                image.write(sector * 512, bytes);
            }
        }
        let queue = open(base, Arc::new(image), id).unwrap();
        let found = queue.read(0, BASE_BYTES, IoTag::default()).unwrap();
        // The state that the model had when this event happened.
        let (_, allowed) = model
            .history
            .iter()
            .rfind(|(events, _)| *events <= number)
            .unwrap_or(&model.history[0]);
        for (sector, allowed) in allowed.iter().enumerate() {
            let bytes = &found[sector * SECTOR..(sector + 1) * SECTOR];
            let is_allowed = allowed.iter().any(|one| bytes.iter().all(|b| b == one));
            assert!(
                is_allowed,
                "seed {seed}, event {number}, sector {sector}: {} of {allowed:?}",
                bytes[0]
            );
        }
    }
}

#[test]
fn what_a_flush_acknowledged_survives_power_cuts_at_each_write() {
    let base = base();
    let untouched = base.to_bytes();
    let id = identity(&(Arc::clone(&base) as Arc<dyn Device>)).unwrap();
    for seed in 1..=4 {
        let upper = Arc::new(Recorder {
            memory: MemDevice::new(layout().file_bytes()),
            events: Mutex::new(Rank::Leaf, Vec::new()),
        });
        let queue = open(&base, Arc::clone(&upper) as _, &id).unwrap();
        let mut model = Model::new(untouched.clone());
        model.note(0);
        let mut random = Random(seed);
        for _ in 0..60 {
            step(&queue, &mut model, &mut random, || {
                upper.events.lock().len()
            });
        }
        let events = std::mem::take(&mut *upper.events.lock());
        cut_everywhere(&base, &id, &events, &model, seed);
        assert!(base.to_bytes() == untouched);
    }
}

/// Writes of one unit by several tasks, on devices with random delays.
#[test]
fn concurrent_first_writes_of_a_unit_lose_nothing() {
    for seed in 1..=8 {
        sim::run(sim::Config::new(seed), move || {
            let late = |memory: Arc<MemDevice>, seed: u64| {
                let device = FaultDevice::new(memory);
                let mut random = Random(seed);
                device.set(move |_| match random.below(3) {
                    0 => Fault::None,
                    n => Fault::Delay(Duration::from_micros(n * 700)),
                });
                device
            };
            let base = base();
            let id = identity(&(Arc::clone(&base) as Arc<dyn Device>)).unwrap();
            let below = late(Arc::clone(&base), seed);
            let upper = Arc::new(MemDevice::new(layout().file_bytes()));
            let above = late(Arc::clone(&upper), seed + 99);
            let device = OverlayDevice::open(below, above, Head::New, &id).unwrap();
            let queue = Arc::new(Queue::new(Arc::new(device), QueueOptions::default()));
            let tasks: Vec<_> = (0..8u64)
                .map(|task| {
                    let queue = Arc::clone(&queue);
                    spawn("writer", move || {
                        let tag = IoTag::default();
                        for unit in 0..6u64 {
                            let at = unit * 4096 + task * 512;
                            let bio = Bio::write(at, vec![Buf::copy_of(&[task as u8; 512])]);
                            queue.submit(bio, tag).wait().unwrap();
                            if (task + unit) % 3 == 0 {
                                queue.flush(tag).wait().unwrap();
                            }
                        }
                        queue.flush(tag).wait().unwrap();
                    })
                })
                .collect();
            tasks.into_iter().for_each(steadfs_rt::JoinHandle::join);
            let again = open(&base, upper, &id).unwrap();
            let found = again.read(0, 6 * 4096, IoTag::default()).unwrap();
            for (sector, bytes) in found.chunks(SECTOR).enumerate() {
                assert!(
                    bytes.iter().all(|byte| *byte as usize == sector % 8),
                    "{sector}"
                );
            }
        });
    }
}

#[test]
fn failed_requests_fail_and_leave_the_rest() {
    let base = base();
    let id = identity(&(Arc::clone(&base) as Arc<dyn Device>)).unwrap();
    let memory = Arc::new(MemDevice::new(layout().file_bytes()));
    let upper = FaultDevice::new(Arc::clone(&memory));
    let device = OverlayDevice::open(
        Arc::clone(&base) as _,
        Arc::clone(&upper) as _,
        Head::New,
        &id,
    );
    let device = Arc::new(device.unwrap());
    // A queue flushes no more after a FLUSH that failed.
    let new_queue = || Queue::new(Arc::clone(&device) as _, QueueOptions::default());
    let queue = new_queue();
    let tag = IoTag::default();
    let write = |at: u64, byte: u8| {
        let bio = Bio::write(at, vec![Buf::copy_of(&[byte; 512])]);
        queue.submit(bio, tag).wait()
    };
    upper.fail_writes(true);
    assert_eq!(write(512, 7).unwrap_err().offset, 512);
    assert!(*queue.read(0, 4096, tag).unwrap() == base.to_bytes()[..4096]);
    // The data are written, the map is not.
    upper.fail_writes(false);
    write(512, 8).unwrap();
    upper.fail_writes(true);
    queue.flush(tag).wait().unwrap_err();
    upper.fail(|bio| bio.op == Op::Flush);
    new_queue().flush(tag).wait().unwrap_err();
    upper.fail_writes(false);
    new_queue().flush(tag).wait().unwrap();
    let again = open(&base, memory, &id).unwrap();
    assert_eq!(again.read(512, 512, tag).unwrap()[0], 8);
}

#[test]
fn memory_is_bounded() {
    let base = base();
    let device = OverlayDevice::in_memory(Arc::clone(&base) as _, 3 * 4096).unwrap();
    let queue = Queue::new(Arc::new(device), QueueOptions::default());
    let tag = IoTag::default();
    let write = |at: u64| {
        let bio = Bio::write(at, vec![Buf::copy_of(&[9; 512])]);
        queue.submit(bio, tag).wait()
    };
    for unit in [0, 5, 70] {
        write(unit * 4096 + 1024).unwrap();
    }
    let error = write(8192).unwrap_err();
    assert!(
        error
            .cause
            .contains("the overlay is full: it has 12288 bytes"),
        "{error}"
    );
    // What is there can be changed, and all of it read.
    write(5 * 4096).unwrap();
    queue.flush(tag).wait().unwrap();
    let mut expected = base.to_bytes();
    for at in [1024, 5 * 4096 + 1024, 70 * 4096 + 1024, 5 * 4096] {
        expected[at..at + 512].fill(9);
    }
    assert!(*queue.read(0, BASE_BYTES, tag).unwrap() == expected);
}

#[test]
fn only_the_overlay_of_this_base_is_taken() {
    let (layout, id) = (layout(), [3; 32]);
    let header = layout.header(&id);
    let len = layout.file_bytes();
    let check = |head: &[u8], len| check_head(head, len, &layout, &id);
    assert_eq!(check(&[], 0), Ok(Head::New));
    assert_eq!(check(&[0; 4096], len), Ok(Head::New));
    assert_eq!(check(&header, len), Ok(Head::Ours));
    let refused = |head: &[u8], len, why: &str| {
        let said = check(head, len).unwrap_err();
        assert!(said.contains(why), "{why}: {said}");
    };
    refused(&[0; 4096], len - 1, "is no overlay");
    refused(b"text", 4, "is no overlay");
    refused(&header, len - 1, "is cut off");
    for at in 0..112 {
        let mut other = header.clone();
        other[at] ^= 1;
        let said = check(&other, len).unwrap_err();
        let expected = ["no overlay", "unknown version", "wrong checksum"];
        assert!(
            expected.iter().any(|why| said.contains(why)),
            "{at}: {said}"
        );
    }
    refused(&layout.header(&[4; 32]), len, "has been changed since");
    let larger = Layout::of(layout.size + 512).unwrap();
    refused(&larger.header(&id), len, "of one with 309248 bytes");
}

#[test]
fn maps_of_large_bases_are_bounded() {
    let tib = Layout::of(1 << 40).unwrap();
    assert_eq!((tib.unit, tib.map_blocks()), (4096, 8192));
    let large = Layout::of(1 << 50).unwrap();
    assert_eq!((large.unit, large.map_blocks()), (4 << 20, 8192));
    assert_eq!(Layout::of(u64::MAX), None);
    assert_eq!(Layout::of(0).map(|layout| layout.map_blocks()), Some(0));
}
