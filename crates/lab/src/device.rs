//! A simulated device: time, a volatile cache, faults, and a log of all requests.
//!
//! **The crash model.** A completed write is in the device's volatile cache. It is durable once a FLUSH (or a write's
//! preflush) that was started after its completion has completed, or on its own completion if it carried FUA. A crash
//! keeps everything durable and any subset of the other writes, including those in flight, each torn at the atomic
//! unit; of two writes that overlap the later one wins if both survive. A write with a preflush reaches the medium only
//! after the preflush. Reads are stable. A discarded range reads as before or as zeros (the model's seed decides once
//! per discard), and after a crash as either.
//!
//! **Crash images without stopping.** The device keeps a [`Log`] of its requests. For every position in the log and
//! every choice of survivors [`Log::image`] builds the image, which shares unchanged content. A device made from such
//! an image has a log of its own, so crashes during a recovery compose.
//!
//! **Several devices.** A [`SimPart`] is a range of the device with a cache of its own: its FLUSH makes durable what lies in it.
//!
//! **Time.** In a simulation requests take the model's time on one of its parallel units; outside, and if the model's
//! time is zero, they complete before [`Device::start`] returns.

mod change;
mod content_tree;
mod cut;
mod image;
mod log;
mod part;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use steadfs_block::{Bio, Device, Done, Geometry, IoError, Op};
use steadfs_rt::{Instant, Mutex, Random, Rank, now, sim};

pub use change::Change;
pub use cut::{Cut, Pending, Survivors};
pub use image::Image;
pub use log::{Event, Log};
pub use part::SimPart;

use log::{Covered, Recorder};

/// Properties of a simulated device.
#[derive(Clone, Debug)]
pub struct Model {
    /// Unit of offsets and lengths: 512 or 4096.
    pub logical_block: u32,
    /// Bytes that are written atomically: a multiple of the logical block.
    pub atomic_unit: u32,
    /// Whether the device offers FUA.
    pub fua: bool,
    /// Granularity of discards in bytes; `None`: no discards.
    pub discard_granularity: Option<u64>,
    /// Maximum transfer in bytes.
    pub max_transfer: u32,
    /// Whether it fails changes.
    pub read_only: bool,
    /// Time of a read without its transfer.
    pub read: Duration,
    /// Time of a write or discard without its transfer.
    pub write: Duration,
    /// Time of a flush, also as preflush and for FUA.
    pub flush: Duration,
    /// Transfer time per MiB.
    pub per_mib: Duration,
    /// Each request takes up to this many 1024ths longer, at random.
    pub jitter: u16,
    /// Requests served concurrently.
    pub parallel: usize,
    /// Whether the device keeps a log.
    pub log: bool,
    /// Decides which discards keep the old content.
    pub seed: u64,
}

impl Default for Model {
    /// Takes no time; 512-byte blocks, FUA and discard.
    fn default() -> Self {
        Self {
            logical_block: 512,
            atomic_unit: 512,
            fua: true,
            discard_granularity: Some(4096),
            max_transfer: 1 << 20,
            read_only: false,
            read: Duration::ZERO,
            write: Duration::ZERO,
            flush: Duration::ZERO,
            per_mib: Duration::ZERO,
            jitter: 0,
            parallel: 1,
            log: true,
            seed: 0,
        }
    }
}

impl Model {
    /// A solid-state disk: 80 µs per read, 20 µs per write, 400 µs per flush, 2 GiB/s, 16 requests at a time.
    pub fn solid_state() -> Self {
        Self {
            read: Duration::from_micros(80),
            write: Duration::from_micros(20),
            flush: Duration::from_micros(400),
            per_mib: Duration::from_micros(500),
            jitter: 512,
            parallel: 16,
            ..Self::default()
        }
    }

    /// A rotating disk without FUA: 8 ms per access, 160 MiB/s, one request at a time.
    pub fn rotating() -> Self {
        Self {
            atomic_unit: 4096,
            fua: false,
            discard_granularity: None,
            read: Duration::from_millis(8),
            write: Duration::from_millis(8),
            flush: Duration::from_millis(12),
            per_mib: Duration::from_micros(6250),
            jitter: 512,
            ..Self::default()
        }
    }
}

/// The requests that a fault applies to. Requests are numbered from 0 in the order of their start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestFilter {
    /// The request with this number.
    Nth(u64),
    /// The request with this number and all later ones.
    From(u64),
    /// The request with this number among those that flush: FLUSHes, and writes with a preflush.
    NthFlushing(u64),
    /// The request with this number among those of this kind.
    NthOf(Op, u64),
    /// All requests of this kind.
    Every(Op),
    /// All requests of this kind that overlap this byte range.
    Touching(Op, Range<u64>),
}

/// A fault of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request fails without effect.
    Fail,
    /// The request fails, and the device loses everything that was not durable; reads show it.
    LoseCache,
    /// The request is done but reported as failed.
    Misreport,
    /// The request's flush, preflush or FUA is acknowledged but not done.
    LostFlush,
    /// The request takes this much longer (in a simulation).
    Delay(Duration),
}

impl Fault {
    /// Whether the device reports an error.
    pub const fn is_reported(&self) -> bool {
        match self {
            Self::Fail | Self::LoseCache | Self::Misreport => true,
            Self::LostFlush | Self::Delay(_) => false,
        }
    }
}

/// Numbers of started requests by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes, without preflushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Writes of zeroes.
    pub zeroings: u64,
}

impl Counts {
    /// The sum: the number of the next request.
    pub fn total(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.discards + self.zeroings
    }

    fn of(&mut self, op: Op) -> &mut u64 {
        match op {
            Op::Read => &mut self.reads,
            Op::Write => &mut self.writes,
            Op::Flush => &mut self.flushes,
            Op::Discard => &mut self.discards,
            Op::WriteZeroes => &mut self.zeroings,
        }
    }
}

/// A simulated device. Clones are the same device.
#[derive(Clone)]
pub struct SimDevice(Arc<Inner>);

struct Inner {
    geometry: Geometry,
    model: Model,
    state: Mutex<State>,
}

struct State {
    recorder: Recorder,
    counts: Counts,
    /// Number of started requests that flush.
    flushing: u64,
    faults: Vec<(RequestFilter, Fault)>,
    /// Length of the log when the first request with a reported fault was started.
    first_failure: Option<usize>,
    /// When each parallel unit becomes free.
    busy: Vec<Instant>,
}

/// A started request.
struct StartedRequest {
    id: u64,
    bio: Bio,
    done: Done,
    fault: Option<Fault>,
    /// The writes that its flush or preflush makes durable, for [`Recorder::flushed`].
    covers: Covered,
}

/// The times until a request's two steps complete.
struct Times {
    preflushed: Duration,
    ended: Duration,
}

impl SimDevice {
    /// A device with the content of `image`.
    ///
    /// # Panics
    /// If the model contradicts itself.
    pub fn new(image: &Image, model: Model) -> Self {
        Self::with_faults(image, model, Vec::new())
    }

    /// The same, with faults from the start. No task of a simulation takes a lock for them: up to the first fault the
    /// run equals the one without faults.
    ///
    /// # Panics
    /// If the model contradicts itself.
    pub fn with_faults(image: &Image, model: Model, faults: Vec<(RequestFilter, Fault)>) -> Self {
        let unit = model.logical_block;
        assert!(
            unit == 512 || unit == 4096,
            "a logical block of 512 or 4096 bytes"
        );
        assert!(
            model.atomic_unit > 0 && model.atomic_unit.is_multiple_of(unit),
            "whole blocks are atomic"
        );
        assert!(
            image.size().is_multiple_of(u64::from(unit)),
            "a device has whole blocks"
        );
        assert!(model.parallel > 0, "a device serves at least one request");
        let recorder = Recorder::new(image, u64::from(model.atomic_unit), model.log);
        let state = State {
            recorder,
            counts: Counts::default(),
            flushing: 0,
            faults,
            first_failure: None,
            busy: vec![Instant::default(); model.parallel],
        };
        Self(Arc::new(Inner {
            geometry: Geometry {
                size: image.size(),
                logical_block: unit,
                read_only: model.read_only,
                discard_granularity: model.discard_granularity,
                discard_zeroes: false,
                fua: model.fua,
                max_transfer: model.max_transfer,
            },
            model,
            state: Mutex::new(Rank::DeviceInner, state),
        }))
    }

    /// Writes `mark` to the log: earlier requests precede it in every cut.
    pub fn mark(&self, mark: u64) {
        self.0.state.lock().recorder.push(Event::Mark(mark));
    }

    /// The log.
    ///
    /// # Panics
    /// If the model keeps no log.
    pub fn log(&self) -> Log {
        assert!(self.0.model.log, "the model keeps no log");
        self.0.state.lock().recorder.log().clone()
    }

    /// The content that reads see now.
    pub fn content(&self) -> Image {
        let tree = self.0.state.lock().recorder.live().clone();
        Image { tree }
    }

    /// Numbers of started requests.
    pub fn counts(&self) -> Counts {
        self.0.state.lock().counts
    }

    /// Adds a fault; if several apply to a request, the first one counts.
    pub fn inject(&self, which: RequestFilter, fault: Fault) {
        self.0.state.lock().faults.push((which, fault));
    }

    /// Length of the log when the first request was started that failed or will fail; `None` without failures.
    pub fn first_failure(&self) -> Option<usize> {
        self.0.state.lock().first_failure
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.0.state.lock().faults.clear();
    }

    /// Completes the preflush of a request.
    fn preflushed(&self, request: &StartedRequest) {
        let event = Event::Preflushed { id: request.id };
        let recorder = &mut self.0.state.lock().recorder;
        match request.fault {
            Some(Fault::LostFlush) => recorder.flushed_nothing(event),
            // If the FLUSH fails, the write behind it is not sent, neither by the kernel nor by our queue.
            Some(Fault::Fail | Fault::LoseCache) => {}
            Some(Fault::Delay(_) | Fault::Misreport) | None => {
                recorder.flushed(&request.covers, event)
            }
        }
    }

    /// Completes a request.
    fn end(&self, mut request: StartedRequest) {
        let result = self.0.state.lock().end(&mut request);
        (request.done)(request.bio, result);
    }
}

impl Device for SimDevice {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn start(&self, bio: Bio, done: Done) {
        self.start_within(0..self.0.geometry.size, bio, done);
    }
}

impl SimDevice {
    /// Starts a request, whose FLUSH is of what lies in this part.
    fn start_within(&self, part: Range<u64>, bio: Bio, done: Done) {
        if let Err(error) = self.0.geometry.check(&bio) {
            done(bio, Err(error));
            return;
        }
        let begun = self.0.state.lock().begin(&self.0.model, part, bio, done);
        let (request, times) = begun;
        if !sim::active() || times.ended.is_zero() {
            if request.bio.preflush {
                self.preflushed(&request);
            }
            self.end(request);
            return;
        }
        let device = self.clone();
        if request.bio.preflush {
            let rest = times.ended - times.preflushed;
            sim::after(times.preflushed, move || {
                device.preflushed(&request);
                sim::after(rest, move || device.end(request));
            });
        } else {
            sim::after(times.ended, move || device.end(request));
        }
    }
}

impl State {
    /// Numbers and logs a request and reserves its time.
    fn begin(
        &mut self,
        model: &Model,
        part: Range<u64>,
        bio: Bio,
        done: Done,
    ) -> (StartedRequest, Times) {
        let id = self.counts.total();
        let fault = self.fault_of(id, &bio);
        self.flushing += u64::from(bio.op == Op::Flush || bio.preflush);
        if fault.as_ref().is_some_and(Fault::is_reported) {
            self.first_failure.get_or_insert(self.recorder.log().len());
        }
        *self.counts.of(bio.op) += 1;
        let covers = self.recorder.covered_by_flush(part);
        match bio.op {
            Op::Read => {}
            Op::Flush => self.recorder.push(Event::FlushIssued { id }),
            Op::Write | Op::Discard | Op::WriteZeroes => {
                let reads_old = Random::new(model.seed ^ id).chance(512);
                self.recorder.issued(Change::of(id, &bio, reads_old));
            }
        }
        if sim::active() {
            sim::trace(bio.offset ^ bio.len.rotate_left(32) ^ (bio.op as u64) << 60);
        }
        let times = self.schedule(model, &bio, &fault);
        let request = StartedRequest {
            id,
            bio,
            done,
            fault,
            covers,
        };
        (request, times)
    }

    fn fault_of(&mut self, id: u64, bio: &Bio) -> Option<Fault> {
        let of_kind = *self.counts.of(bio.op);
        let flushes = bio.op == Op::Flush || bio.preflush;
        let meets = |which: &RequestFilter| match which {
            RequestFilter::Nth(n) => *n == id,
            RequestFilter::From(n) => *n <= id,
            RequestFilter::NthFlushing(n) => flushes && *n == self.flushing,
            RequestFilter::NthOf(op, n) => *op == bio.op && *n == of_kind,
            RequestFilter::Every(op) => *op == bio.op,
            RequestFilter::Touching(op, range) => {
                *op == bio.op && bio.offset < range.end && range.start < bio.end()
            }
        };
        let fault = self.faults.iter().find(|(which, _)| meets(which));
        fault.map(|(_, fault)| fault.clone())
    }

    /// The time of a request on the unit that becomes free first.
    fn schedule(&mut self, model: &Model, bio: &Bio, fault: &Option<Fault>) -> Times {
        if !sim::active() {
            return Times {
                preflushed: Duration::ZERO,
                ended: Duration::ZERO,
            };
        }
        let bytes = share_of(model.per_mib, bio.len, 1 << 20);
        let service = match bio.op {
            Op::Read => model.read + bytes,
            Op::Write if bio.fua => model.write + bytes + model.flush,
            Op::Write => model.write + bytes,
            Op::Discard | Op::WriteZeroes => model.write,
            Op::Flush => model.flush,
        };
        let preflush = if bio.preflush {
            model.flush
        } else {
            Duration::ZERO
        };
        let more = match model.jitter {
            0 => Duration::ZERO,
            jitter => {
                let share = steadfs_rt::random_u64() % (u64::from(jitter) + 1);
                share_of(service, share, 1024)
            }
        };
        let spike = match fault {
            Some(Fault::Delay(delay)) => *delay,
            _ => Duration::ZERO,
        };
        let now = now();
        let unit = self.busy.iter_mut().min().expect("a device has a unit");
        let start = (*unit).max(now);
        let preflushed = start + preflush;
        *unit = preflushed + service + more + spike;
        Times {
            preflushed: preflushed - now,
            ended: *unit - now,
        }
    }

    /// Executes a request and logs its completion.
    fn end(&mut self, request: &mut StartedRequest) -> Result<(), IoError> {
        let StartedRequest { id, bio, fault, .. } = request;
        let id = *id;
        let failed = matches!(fault, Some(Fault::Fail | Fault::LoseCache));
        let lies = *fault == Some(Fault::LostFlush);
        match bio.op {
            Op::Read if failed => {}
            Op::Read => self.read(bio),
            Op::Flush if failed => self.recorder.push(Event::FlushFailed { id }),
            Op::Flush if lies => self.recorder.flushed_nothing(Event::FlushCompleted { id }),
            Op::Flush => self
                .recorder
                .flushed(&request.covers, Event::FlushCompleted { id }),
            _ if failed => self.recorder.failed(id),
            _ => self.recorder.completed(id, bio.fua && !lies),
        }
        if *fault == Some(Fault::LoseCache) {
            self.recorder.lose_cache();
        }
        match failed || *fault == Some(Fault::Misreport) {
            true => Err(IoError::of(bio, "EIO (injected)")),
            false => Ok(()),
        }
    }

    fn read(&self, bio: &mut Bio) {
        let mut at = bio.offset;
        for buf in &mut bio.bufs {
            let bytes = buf.make_mut();
            self.recorder.live().read(at, bytes);
            at += bytes.len() as u64;
        }
    }
}

/// `part` of `whole` parts of a time.
fn share_of(time: Duration, part: u64, whole: u64) -> Duration {
    let nanos = time.as_nanos() * u128::from(part) / u128::from(whole);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
