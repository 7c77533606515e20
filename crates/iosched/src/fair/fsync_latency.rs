//! Keeps the device shallow for fsync callers.
//!
//! Problem: each step of an fsync (data, log, FLUSH, commit record, or a node chain) waits for the async requests that
//! are in the device already, which no request can overtake. On a modelled phone flash an fsync takes 10 ms on an idle
//! device, and 80 ms beside a stream of which 2 MiB are in the device.
//!
//! Rules, while fsync callers are known (a durable request that a task waited for completed less than 1 s ago; background
//! commits and checkpoints count for nothing):
//! - Async bytes in the device are bounded. The bound is a feedback, as in the kernel's wbt and kyber: it shrinks where
//!   an fsync took longer than the target (twice the shortest one of its kind and at least 1 ms, or the time that was
//!   set), and grows where it exceeded the shortest by a quarter of that difference at most. There is none before an fsync was late: the
//!   first one that meets a stream makes the next one a probe, with the smallest bound, and if it took more than twice as
//!   long as the probe, the bound becomes a quarter of what the device transfers in the time of a FLUSH. It never shrinks
//!   below what keeps the device busy, and never grows beyond what gives a stream its full throughput ([`KeepBusy`]).
//! - Async requests are held back while a step of an fsync is in the device and for 1 ms afterwards, when the next step
//!   is expected; but not below their share of the device ([`Hold`]).
//! - A stream keeps a floor: a quarter of the device's time, or its cgroup's share if that is less ([`Hold`]). Requests of
//!   a later I/O class than the fsync's have none.
//!
//! The shortest fsync is a minimum of the last 32 to 64 of its kind, so it follows the device. While it is measured
//! beside a stream only, it would follow the bound, too: every 32nd fsync runs with the smallest bound, if it begins soon
//! after the one before.

mod hold;
mod keep_busy;
#[cfg(test)]
mod tests;

use std::fmt::Write;

use steadfs_base::{GroupId, IoTag, OwnerId};

pub use hold::Share;

use super::device_speed::DeviceSpeed;
use super::entry::{Entry, InFlight};
use super::lanes::is_sync;
use super::options::FairOptions;
use super::window_min::WindowMin;
use crate::Nanos;
use hold::Hold;
use keep_busy::KeepBusy;

/// An fsync caller is known for this long after its last durable request.
const KNOWN_NS: u64 = 1_000_000_000;
/// Sync writes for which async requests are held back although no fsync caller is known.
const UNPROVEN_STEPS_MAX: u32 = 8;
/// fsyncs with the same number of requests are of one kind; the last kind has those with more.
const KINDS: usize = 8;
/// Every fsync of this number runs with the smallest bound.
const PROBE_INTERVAL: u32 = 32;
/// A probe begins at most this long after the fsync before: a stream is not kept waiting for a caller that comes rarely.
const PROBE_PAUSE_NS_MAX: u64 = 150_000_000;
/// An fsync has no longer pause between its steps: a request that comes later begins another one.
const STEP_PAUSE_NS_MAX: u64 = 50_000_000;
/// A shorter fsync is not late: on a disk where one takes 0.2 ms, waking tasks takes as long, and a bound that follows
/// such delays costs a stream a fifth of its throughput. The kernel's wbt and kyber begin at 2 ms.
const LATE_NS_MIN: u64 = 1_000_000;
/// Most fsyncs that are measured at a time.
const OPEN_MAX: usize = 32;

/// The time that an fsync may take beside async requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum FsyncTarget {
    /// Twice the shortest fsync of its kind, and at least 1 ms.
    #[default]
    Auto,
    /// This time.
    Within(Nanos),
    /// No limit: async requests are neither bounded nor held back for fsync callers.
    Unlimited,
}

impl FsyncTarget {
    /// A target of this number of milliseconds.
    pub const fn of_millis(ms: u64) -> Self {
        Self::Within(Nanos(ms.saturating_mul(1_000_000)))
    }
}

/// An fsync in progress.
#[derive(Clone, Copy, Debug)]
struct OpenFsync {
    owner: (GroupId, OwnerId),
    /// The arrival of its first request.
    began: Nanos,
    /// Its last dispatch or completion.
    last_event: Nanos,
    bytes: u64,
    steps: usize,
    in_flight: usize,
    /// Whether a step was dispatched while the async bytes in the device had reached half of the bound.
    met_async: bool,
}

/// Which async requests the device may have beside fsync callers.
#[derive(Debug)]
pub struct FsyncLatency {
    target: FsyncTarget,
    bytes_min: u64,
    bytes_max: u64,
    /// The last durable sync request: its tag and when it completed.
    last_durable: Option<(IoTag, Nanos)>,
    /// Sync writes dispatched since then, without a pause between them, and the last of them.
    unproven_steps: u32,
    last_step: Nanos,
    hold: Hold,
    open: Vec<OpenFsync>,
    /// Time of the shortest fsync of each kind, without the transfer of its bytes, in nanoseconds.
    shortest: [WindowMin; KINDS],
    /// The last dispatch or completion.
    last_event: Nanos,
    /// Time of the last fsync.
    last_took: Nanos,
    since_probe: u32,
    probing: bool,
    /// Whether an fsync has met a stream.
    has_met_async: bool,
    /// The time of that fsync in nanoseconds, until a probe shows whether it was late.
    first_late: Option<u64>,
    /// Most async bytes in the device; `None` before the first fsync.
    bound: Option<u64>,
    keep_busy: KeepBusy,
}

impl FsyncLatency {
    pub(super) fn new(options: &FairOptions) -> Self {
        Self {
            target: options.fsync_target,
            bytes_min: options.flush_bytes_min.min(options.async_bytes),
            bytes_max: options.async_bytes,
            last_durable: None,
            unproven_steps: 0,
            last_step: Nanos(0),
            hold: Hold::default(),
            open: Vec::new(),
            shortest: [WindowMin::default(); KINDS],
            last_event: Nanos(0),
            last_took: Nanos(0),
            since_probe: 0,
            probing: false,
            has_met_async: false,
            first_late: None,
            bound: None,
            keep_busy: KeepBusy::default(),
        }
    }

    /// The tag of the last fsync caller, while one is known.
    pub(super) fn caller(&self, now: Nanos) -> Option<IoTag> {
        if self.target == FsyncTarget::Unlimited {
            return None;
        }
        let (tag, at) = self.last_durable?;
        (now.0 < at.0.saturating_add(KNOWN_NS)).then_some(tag)
    }

    /// Most async bytes in the device.
    pub(super) fn async_bytes(&self, now: Nanos) -> u64 {
        match self.bound {
            Some(bound) if self.caller(now).is_some() => match self.probes_at(now) {
                true => self.bound_min(),
                false => bound.max(self.bound_min()),
            },
            _ => self.bytes_max,
        }
    }

    /// Whether an fsync that begins now is a probe.
    fn probes_at(&self, now: Nanos) -> bool {
        let last = self.last_durable.map_or(Nanos(0), |(_, at)| at);
        self.probing && now.0 < last.0.saturating_add(PROBE_PAUSE_NS_MAX)
    }

    /// The largest single async write: two of them fill the bound.
    pub(super) fn async_write_max(&self, now: Nanos) -> u64 {
        match self.async_bytes(now) {
            bound if bound < self.bytes_max => self.bytes_min.max(bound / 2),
            _ => u64::MAX,
        }
    }

    fn bound_min(&self) -> u64 {
        let busy = self.keep_busy.bytes_min();
        busy.clamp(self.bytes_min, self.bytes_max)
    }

    /// The tag for which async requests are held back now: that of the fsync in progress. The first steps are held
    /// together although it is not known yet that they belong to an fsync.
    pub(super) fn holder(&self, now: Nanos) -> Option<IoTag> {
        if self.target == FsyncTarget::Unlimited || !self.hold.is_active(now) {
            return None;
        }
        let known = self.caller(now);
        known.or_else(|| {
            let trusted = self.unproven_steps <= UNPROVEN_STEPS_MAX;
            let waits = |step: &IoTag| step.owner != OwnerId(0);
            self.hold.last_step().filter(|step| trusted && waits(step))
        })
    }

    /// Whether an async request of this group is held back for the holder, because it has had its share.
    pub(super) fn has_had_share(&self, group: GroupId, share: Share, now: Nanos) -> bool {
        self.hold.exceeds_share(group, share, now)
    }

    /// The time of the device that an async request of this size takes; 0 while it is not known.
    fn time_of(&self, bytes: u64, speed: &DeviceSpeed) -> u64 {
        let alone = self.keep_busy.time_of(bytes);
        alone.unwrap_or_else(|| speed.transfer_time(bytes))
    }

    /// Whether an async request is due by the floor of its group.
    pub(super) fn is_due(
        &self,
        entry: &Entry,
        share: Share,
        speed: &DeviceSpeed,
        now: Nanos,
    ) -> bool {
        let cost = self.time_of(entry.bytes, speed);
        // While no throughput is known, nothing is charged.
        cost > 0 && self.hold.is_due(entry.tag.group, cost, share, now)
    }

    /// A group whose async requests had all been served queues one again.
    pub(super) fn stream_begins(&mut self, group: GroupId, now: Nanos) {
        self.hold.stream_begins(group, now);
    }

    /// When a request that is held back may go, unless something completes earlier.
    pub(super) fn held_until(&self, now: Nanos) -> Option<Nanos> {
        let earned = self.caller(now).and_then(|_| self.hold.due_at(now));
        let ended = self.holder(now).and_then(|_| self.hold.ends_at(now));
        ended.into_iter().chain(earned).min()
    }

    /// A request is dispatched. `in_flight` includes it; `share` is that of its group, if it is async.
    pub(super) fn dispatched(
        &mut self,
        entry: &Entry,
        in_flight: InFlight,
        share: Share,
        speed: &DeviceSpeed,
        now: Nanos,
    ) {
        if self.target == FsyncTarget::Unlimited {
            return;
        }
        self.last_event = now;
        let mut before = in_flight;
        before.count(entry, false);
        self.keep_busy.advance(before, now);
        if !is_sync(entry.tag) {
            let cost = self.time_of(entry.bytes, speed);
            self.hold.charge(entry.tag.group, cost, share, now);
            return;
        }
        if !entry.is_sync_step() {
            return;
        }
        // Only the task's own pause counts: a request that was queued meanwhile may have waited for its share.
        let pause = entry.arrived.0.saturating_sub(self.last_step.0);
        self.last_step = now;
        self.unproven_steps = match pause > STEP_PAUSE_NS_MAX {
            true => 1,
            false => self.unproven_steps.saturating_add(1),
        };
        self.hold.step_begins(entry.tag, now);
        if entry.flushes > 0 {
            self.keep_busy.flush_begins();
        }
        let met_async = in_flight.background_bytes >= self.async_bytes(now) / 2;
        let fsync = self.open_fsync(entry);
        fsync.last_event = now;
        fsync.bytes += entry.bytes;
        fsync.steps += 1;
        fsync.in_flight += 1;
        fsync.met_async |= met_async;
    }

    fn open_fsync(&mut self, entry: &Entry) -> &mut OpenFsync {
        let owner = (entry.tag.group, entry.tag.owner);
        let new = OpenFsync {
            owner,
            began: entry.arrived,
            last_event: entry.arrived,
            bytes: 0,
            steps: 0,
            in_flight: 0,
            met_async: false,
        };
        let Some(at) = self.open.iter().position(|open| open.owner == owner) else {
            if self.open.len() == OPEN_MAX {
                self.open.remove(0);
            }
            self.open.push(new);
            return self.open.last_mut().expect("one was added");
        };
        let open = &mut self.open[at];
        let pause = entry.arrived.0.saturating_sub(open.last_event.0);
        if open.in_flight == 0 && pause > STEP_PAUSE_NS_MAX {
            *open = new;
        }
        open
    }

    /// A request has completed. `in_flight` includes it.
    pub(super) fn completed(
        &mut self,
        entry: &Entry,
        in_flight: InFlight,
        speed: &DeviceSpeed,
        now: Nanos,
    ) {
        if self.target == FsyncTarget::Unlimited {
            return;
        }
        self.last_event = now;
        self.keep_busy.advance(in_flight, now);
        if !is_sync(entry.tag) && !entry.is_transfer() {
            return;
        }
        if !is_sync(entry.tag) {
            let bound = Some(self.async_bytes(now)).filter(|bound| *bound < self.bytes_max);
            self.keep_busy.completed(entry.bytes, in_flight, bound);
            return;
        }
        if !entry.is_sync_step() {
            return;
        }
        let is_durable = entry.flushes > 0;
        self.keep_busy.others_completed(entry.bytes);
        if is_durable {
            let took = now.0.saturating_sub(entry.dispatched.0) / u64::from(entry.flushes);
            let shortest = speed.flush_time().unwrap_or(took);
            self.keep_busy.flush_ends(took.saturating_sub(shortest));
        }
        let is_fsync = is_durable && entry.task_waits;
        let known_until = is_fsync.then_some(Nanos(now.0.saturating_add(KNOWN_NS)));
        self.hold.step_ends(known_until, now);
        let owner = (entry.tag.group, entry.tag.owner);
        let at = self.open.iter().position(|open| open.owner == owner);
        if let Some(at) = at {
            let fsync = &mut self.open[at];
            fsync.last_event = now;
            // The record of the fsync that the step belonged to may have been dropped.
            fsync.in_flight = fsync.in_flight.saturating_sub(1);
        }
        if !is_durable {
            return;
        }
        let ended = at.map(|at| self.open.remove(at));
        // Others whose data this FLUSH covers have no durable request of their own.
        self.open
            .retain(|open| open.in_flight > 0 || open.last_event > entry.dispatched);
        if !is_fsync {
            return;
        }
        let was_probe = ended.is_some_and(|ended| self.probes_at(ended.began));
        self.last_durable = Some((entry.tag, now));
        self.unproven_steps = 0;
        if let Some(ended) = ended {
            self.fsync_ended(&ended, was_probe, speed, now);
        }
    }

    /// Adjusts the bound by the time of an fsync.
    fn fsync_ended(&mut self, fsync: &OpenFsync, was_probe: bool, speed: &DeviceSpeed, now: Nanos) {
        let took = now.0.saturating_sub(fsync.began.0);
        self.last_took = Nanos(took);
        let transfer = speed.transfer_time(fsync.bytes);
        let kind = &mut self.shortest[fsync.steps.min(KINDS) - 1];
        kind.add(took.saturating_sub(transfer).max(took / 8));
        let ideal = kind.get().unwrap_or(took).saturating_add(transfer);
        let target = match self.target {
            FsyncTarget::Within(limit) => limit.0.max(ideal),
            FsyncTarget::Auto | FsyncTarget::Unlimited => ideal.saturating_mul(2).max(LATE_NS_MIN),
        };
        let (least, most) = (self.bound_min(), self.bytes_max);
        let bound = match self.bound {
            None => most,
            Some(_) if was_probe && self.first_late.take_if(|late| *late > target).is_some() => {
                speed.flush_bytes().unwrap_or(least) / 4
            }
            Some(bound) if !fsync.met_async || was_probe => bound,
            Some(bound) => {
                let useful = self.keep_busy.enough().unwrap_or(most);
                adjusted(bound, took, ideal, target).min(useful)
            }
        };
        self.bound = Some(bound.clamp(least, most));
        self.probing &= !was_probe;
        if fsync.met_async && !self.has_met_async {
            (self.has_met_async, self.first_late, self.probing) = (true, Some(took), true);
            return;
        }
        self.since_probe += 1;
        if self.since_probe == PROBE_INTERVAL {
            (self.since_probe, self.probing) = (0, true);
            self.keep_busy.forget();
        }
    }

    pub(super) fn describe(&self, out: &mut dyn Write) -> std::fmt::Result {
        let ms = |ns: u64| ns as f64 / 1e6;
        write!(out, "fsync target ")?;
        match self.target {
            FsyncTarget::Auto => write!(out, "auto")?,
            FsyncTarget::Within(limit) => write!(out, "{} ms", ms(limit.0))?,
            FsyncTarget::Unlimited => return writeln!(out, "off"),
        }
        let Some(bound) = self.bound else {
            return writeln!(out, ", no fsync yet");
        };
        let shortest = self.shortest.iter().filter_map(WindowMin::get).min();
        let state = match self.caller(self.last_event) {
            Some(_) => "in force",
            None => "released",
        };
        writeln!(
            out,
            ", last {:.3} ms, shortest {:.3} ms, background bytes in the device at most {} ({state}), {} keep it busy, \
             background had {} % of the device's time",
            ms(self.last_took.0),
            ms(shortest.unwrap_or(0)),
            bound.max(self.bound_min()),
            self.bound_min(),
            self.hold.served_percent()
        )
    }
}

/// The bound after an fsync that took this time, where it would ideally have taken `ideal` and may take `target`. What
/// the async requests added is taken to be proportional to the bound.
fn adjusted(bound: u64, took: u64, ideal: u64, target: u64) -> u64 {
    let allowed = target.saturating_sub(ideal);
    let excess = took.saturating_sub(ideal);
    if excess > allowed {
        let wanted = u128::from(bound) * u128::from(allowed / 2) / u128::from(excess.max(1));
        u64::try_from(wanted).unwrap_or(u64::MAX).max(bound / 4)
    } else if excess <= allowed / 4 {
        bound.saturating_add(bound / 8)
    } else {
        bound
    }
}
