//! A device with a volatile cache that records its requests, so that every crash image can be made.
//!
//! The model: a write that has completed is in the cache. It is durable when a FLUSH (or the preflush
//! of another write) that started after it completed has completed, or when it carried FUA and has
//! completed. Everything else that was started may survive a crash or not, each sector by itself; but
//! where anything of a write with a preflush survives, its preflush has happened.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::Tid;
use steadfs_block::{Bio, Buf, Device, Done, Geometry, IoError, Op};
use steadfs_rt::{Mutex, Random, Rank, sim};

pub const SECTOR: usize = 512;

#[derive(Clone, Debug)]
pub enum Event {
    /// A write has started; its number is its index among the writes and flushes.
    Write {
        offset: u64,
        data: Buf,
        preflush: bool,
        fua: bool,
    },
    Flush,
    /// The request of that number has completed.
    Done(usize),
    /// The transaction was acknowledged as durable.
    Ack(Tid),
}

/// Which requests fail.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Write,
    /// Preflush and FUA included.
    Flush,
    /// Writes at this offset.
    At(u64),
}

impl Kind {
    fn matches(self, bio: &Bio) -> bool {
        match self {
            Self::Write => bio.op == Op::Write,
            Self::Flush => bio.op == Op::Flush || bio.preflush || bio.fua,
            Self::At(offset) => bio.op == Op::Write && bio.offset == offset,
        }
    }
}

struct Inner {
    /// The content that reads return.
    media: Vec<u8>,
    events: Vec<Event>,
    /// Event numbers and ranges of writes in flight.
    in_flight: Vec<(usize, u64, u64)>,
    random: Random,
    /// The kind of request that fails, and how many of them succeed before.
    fail_after: Option<(u64, Kind)>,
    failed: bool,
}

pub struct CrashDevice {
    geometry: Geometry,
    inner: Arc<Mutex<Inner>>,
}

impl CrashDevice {
    pub fn new(image: Vec<u8>, seed: u64) -> Self {
        let geometry = Geometry {
            size: image.len() as u64,
            logical_block: SECTOR as u32,
            read_only: false,
            discard_zeroes: false,
            discard_granularity: None,
            fua: true,
            max_transfer: 1 << 20,
        };
        let inner = Inner {
            media: image,
            events: Vec::new(),
            in_flight: Vec::new(),
            random: Random::new(seed),
            fail_after: None,
            failed: false,
        };
        let inner = Arc::new(Mutex::new(Rank::DeviceInner, inner));
        Self { geometry, inner }
    }

    pub fn ack(&self, tid: Tid) {
        self.inner.lock().events.push(Event::Ack(tid));
    }

    pub fn media(&self) -> Vec<u8> {
        self.inner.lock().media.clone()
    }

    pub fn events(&self) -> Vec<Event> {
        self.inner.lock().events.clone()
    }

    /// The request of this kind after the next `n` fails; later ones succeed again.
    pub fn fail_one_after(&self, n: u64, kind: Kind) {
        self.inner.lock().fail_after = Some((n, kind));
    }

    pub fn has_failed(&self) -> bool {
        self.inner.lock().failed
    }
}

impl Inner {
    /// Starts a request; returns its number, or the error that it ends with.
    fn begin(&mut self, bio: &Bio) -> Result<usize, IoError> {
        if let Some((left, kind)) = &mut self.fail_after
            && kind.matches(bio)
        {
            if *left == 0 {
                self.fail_after = None;
                self.failed = true;
                return Err(IoError::of(bio, "injected fault"));
            }
            *left -= 1;
        }
        let number = self.events.len();
        if bio.op == Op::Write {
            let mut data = Vec::new();
            bio.bufs.iter().for_each(|buf| data.extend_from_slice(buf));
            for (_, start, end) in &self.in_flight {
                let apart = bio.end() <= *start || *end <= bio.offset;
                assert!(apart, "two writes of one block are in flight");
            }
            self.in_flight.push((number, bio.offset, bio.end()));
            self.events.push(Event::Write {
                offset: bio.offset,
                data: Buf::copy_of(&data),
                preflush: bio.preflush,
                fua: bio.fua,
            });
        } else {
            self.events.push(Event::Flush);
        }
        Ok(number)
    }

    fn end(&mut self, number: usize) {
        self.events.push(Event::Done(number));
        self.in_flight.retain(|(n, ..)| *n != number);
        if let Event::Write { offset, data, .. } = &self.events[number] {
            self.media[*offset as usize..][..data.len()].copy_from_slice(data);
        }
    }
}

impl Device for CrashDevice {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn start(&self, mut bio: Bio, done: Done) {
        if let Err(error) = self.geometry.check(&bio) {
            return done(bio, Err(error));
        }
        let mut inner = self.inner.lock();
        if bio.op == Op::Read {
            let mut at = bio.offset as usize;
            for buf in &mut bio.bufs {
                let bytes = buf.make_mut();
                bytes.copy_from_slice(&inner.media[at..at + bytes.len()]);
                at += bytes.len();
            }
            drop(inner);
            return done(bio, Ok(()));
        }
        let begun = inner.begin(&bio);
        // Some requests take long, so that another one can overtake them.
        let most = if inner.random.chance(100) {
            50_000
        } else {
            1000
        };
        let micros = 1 + inner.random.below(most);
        drop(inner);
        let shared = Arc::clone(&self.inner);
        let finish = move || {
            let result = begun.map(|number| shared.lock().end(number));
            done(bio, result);
        };
        if sim::active() {
            sim::after(Duration::from_micros(micros as u64), finish);
        } else {
            finish();
        }
    }
}

/// Iterates over a device's events and makes the images that a crash could leave.
pub struct Crashes<'a> {
    events: &'a [Event],
    /// Events before this one have happened.
    at: usize,
    /// Everything that is durable.
    durable: Vec<u8>,
    /// Writes that are not: number, whether completed.
    volatile: Vec<(usize, bool)>,
    pub acked: Option<Tid>,
}

impl<'a> Crashes<'a> {
    pub fn new(image: Vec<u8>, events: &'a [Event]) -> Self {
        Self {
            events,
            at: 0,
            durable: image,
            volatile: Vec::new(),
            acked: None,
        }
    }

    /// Applies one more event; false at the end.
    pub fn step(&mut self) -> bool {
        let Some(event) = self.events.get(self.at) else {
            return false;
        };
        match event {
            Event::Ack(tid) => self.acked = self.acked.max_tid(*tid),
            Event::Write { .. } => self.volatile.push((self.at, false)),
            Event::Flush => {}
            Event::Done(number) => self.done(*number),
        }
        self.at += 1;
        true
    }

    fn done(&mut self, number: usize) {
        let (preflush, fua) = match &self.events[number] {
            Event::Write { preflush, fua, .. } => (*preflush, *fua),
            _ => (true, false),
        };
        let before = if preflush {
            self.done_before(number)
        } else {
            Vec::new()
        };
        let mut left = Vec::new();
        for (write, completed) in std::mem::take(&mut self.volatile) {
            if before.contains(&write) || (write == number && fua) {
                apply(&mut self.durable, &self.events[write], |_| true);
            } else {
                left.push((write, completed || write == number));
            }
        }
        self.volatile = left;
    }

    /// The requests that had completed when request `number` started.
    fn done_before(&self, number: usize) -> Vec<usize> {
        let done = self.events[..number]
            .iter()
            .filter_map(|event| match event {
                Event::Done(number) => Some(*number),
                _ => None,
            });
        done.collect()
    }

    /// Writes that may survive or not.
    pub fn volatile(&self) -> usize {
        self.volatile.len()
    }

    /// The image with the volatile sectors for which `survives` (index of the volatile write, sector in
    /// it) is true.
    pub fn image(&self, mut survives: impl FnMut(usize, usize) -> bool) -> Vec<u8> {
        let mut kept = Vec::new();
        let mut flushed = BTreeSet::new();
        for (place, &(number, _)) in self.volatile.iter().enumerate() {
            let Event::Write { data, preflush, .. } = &self.events[number] else {
                unreachable!("only writes are volatile");
            };
            let sectors = data.len().div_ceil(SECTOR);
            let sectors: Vec<bool> = (0..sectors).map(|sector| survives(place, sector)).collect();
            if *preflush && sectors.contains(&true) {
                flushed.extend(self.done_before(number));
            }
            kept.push((number, sectors));
        }
        let mut image = self.durable.clone();
        for (number, sectors) in kept {
            let whole = flushed.contains(&number);
            apply(&mut image, &self.events[number], |sector| {
                whole || sectors[sector]
            });
        }
        image
    }
}

trait MaxTid {
    fn max_tid(self, other: Tid) -> Option<Tid>;
}

impl MaxTid for Option<Tid> {
    fn max_tid(self, other: Tid) -> Option<Tid> {
        Some(self.filter(|tid| tid.at_least(other)).unwrap_or(other))
    }
}

fn apply(image: &mut [u8], write: &Event, mut survives: impl FnMut(usize) -> bool) {
    let Event::Write { offset, data, .. } = write else {
        unreachable!("only writes are volatile");
    };
    for (sector, bytes) in data.chunks(SECTOR).enumerate() {
        if survives(sector) {
            let at = *offset as usize + sector * SECTOR;
            image[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }
}
