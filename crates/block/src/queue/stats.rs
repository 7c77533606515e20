//! What a queue has done and how long it took.

use std::fmt::Write;

use hdrhistogram::Histogram;
use steadfs_iosched::Boost;
use steadfs_rt::Instant;

use super::request::Request;
use crate::Op;

/// Times are told apart from this many nanoseconds on.
const FINEST: u64 = 64;
/// Longer times count as this many nanoseconds: an hour.
const LONGEST: u64 = 3_600_000_000_000;
/// Two significant digits: a time is off by one percent at most.
const DIGITS: u8 = 2;

const OPS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

/// Counts and times since the queue was made.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// The policy's name.
    pub scheduler: &'static str,
    /// Most requests that the device has at a time.
    pub depth: usize,
    /// Requests that the device has.
    pub in_flight: usize,
    /// Requests in the policy's hands.
    pub queued: usize,
    /// Requests whose submitters have not waited yet.
    pub held: usize,
    /// By operation.
    pub ops: Vec<OpStats>,
    /// Bios that became part of another one's request.
    pub merged: u64,
    /// Flushes that shared another one's.
    pub flushes_joined: u64,
    /// What boosts found.
    pub boosts: BoostStats,
}

/// Counts and times of one operation.
#[derive(Clone, Debug)]
pub struct OpStats {
    /// The operation.
    pub op: Op,
    /// Bios that ended.
    pub count: u64,
    /// Bytes that were moved or changed.
    pub bytes: u64,
    /// Bios that failed.
    pub errors: u64,
    /// Requests that the device ended: less than `count` where bios were merged.
    pub requests: u64,
    /// From submission to the device, for each bio.
    pub queue_wait: Latency,
    /// From the device's start to its end, for each request.
    pub device: Latency,
}

/// How long something took, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Latency {
    /// How many times were measured.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// Half of them were at most this.
    pub p50: u64,
    /// Ninety of a hundred were at most this.
    pub p90: u64,
    /// Ninety-nine of a hundred were at most this.
    pub p99: u64,
    /// 999 of a thousand were at most this.
    pub p999: u64,
    /// The longest.
    pub max: u64,
}

/// What boosts found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BoostStats {
    /// Requests that were raised while they were queued.
    pub raised: u64,
    /// Requests that the device already had, or had ended.
    pub already_dispatched: u64,
    /// Requests that were as urgent before.
    pub already_urgent: u64,
    /// Queued requests that raised ones passed.
    pub positions_gained: u64,
    /// Bytes that were raised along: nobody waited for them, but they were in the same requests.
    pub collateral_bytes: u64,
}

impl Stats {
    /// As one JSON object. Times are in nanoseconds.
    pub fn to_json(&self) -> String {
        let mut out = String::with_capacity(2048);
        // Writing to a string does not fail.
        let _ = write!(
            out,
            "{{\"scheduler\":\"{}\",\"depth\":{},\"in_flight\":{},\"queued\":{},\"held\":{},\
             \"merged\":{},\"flushes_joined\":{},\"boosts\":{{\"raised\":{},\
             \"already_dispatched\":{},\"already_urgent\":{},\"positions_gained\":{},\
             \"collateral_bytes\":{}}},\"ops\":{{",
            self.scheduler,
            self.depth,
            self.in_flight,
            self.queued,
            self.held,
            self.merged,
            self.flushes_joined,
            self.boosts.raised,
            self.boosts.already_dispatched,
            self.boosts.already_urgent,
            self.boosts.positions_gained,
            self.boosts.collateral_bytes,
        );
        for (i, op) in self.ops.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            let _ = write!(
                out,
                "{comma}\"{}\":{{\"count\":{},\"bytes\":{},\"errors\":{},\"requests\":{},\
                 \"queue_wait\":{},\"device\":{}}}",
                name(op.op),
                op.count,
                op.bytes,
                op.errors,
                op.requests,
                op.queue_wait.to_json(),
                op.device.to_json(),
            );
        }
        out.push_str("}}");
        out
    }
}

impl Latency {
    fn of(times: &Histogram<u32>) -> Self {
        if times.is_empty() {
            return Self::default();
        }
        Self {
            count: times.len(),
            mean: times.mean(),
            p50: times.value_at_quantile(0.5),
            p90: times.value_at_quantile(0.9),
            p99: times.value_at_quantile(0.99),
            p999: times.value_at_quantile(0.999),
            max: times.max(),
        }
    }

    fn to_json(self) -> String {
        format!(
            "{{\"count\":{},\"mean\":{:.0},\"p50\":{},\"p90\":{},\"p99\":{},\"p999\":{},\"max\":{}}}",
            self.count, self.mean, self.p50, self.p90, self.p99, self.p999, self.max
        )
    }
}

fn name(op: Op) -> &'static str {
    match op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Flush => "flush",
        Op::Discard => "discard",
        Op::WriteZeroes => "write_zeroes",
    }
}

/// Takes the numbers down, under the queue's lock.
#[derive(Default)]
pub(super) struct Recorder {
    ops: [OpRecorder; OPS.len()],
    pub merged: u64,
    pub flushes_joined: u64,
    boosts: BoostStats,
}

struct OpRecorder {
    count: u64,
    bytes: u64,
    errors: u64,
    requests: u64,
    queue_wait: Histogram<u32>,
    device: Histogram<u32>,
}

impl Default for OpRecorder {
    fn default() -> Self {
        let times = || {
            Histogram::new_with_bounds(FINEST, LONGEST, DIGITS)
                .expect("the bounds are in order and the digits few")
        };
        Self {
            count: 0,
            bytes: 0,
            errors: 0,
            requests: 0,
            queue_wait: times(),
            device: times(),
        }
    }
}

impl Recorder {
    fn op(&mut self, op: Op) -> &mut OpRecorder {
        &mut self.ops[op as usize]
    }

    /// The device has ended a request.
    pub(super) fn ended(&mut self, request: &Request, op: Op, failed: bool, now: Instant) {
        let recorder = self.op(op);
        recorder.requests += 1;
        let device = request.dispatched.0.max(now.0) - request.dispatched.0;
        recorder.device.saturating_record(device);
        for part in request.parts() {
            recorder.count += 1;
            if failed {
                recorder.errors += 1;
            } else {
                recorder.bytes += part.len;
            }
            // A bio that joined a FLUSH, or a request, was submitted before its dispatch.
            let waited = request.dispatched.0.saturating_sub(part.submitted.0);
            recorder.queue_wait.saturating_record(waited);
        }
    }

    /// A bio was refused before it became a request.
    pub(super) fn refused(&mut self, op: Op) {
        let recorder = self.op(op);
        recorder.count += 1;
        recorder.errors += 1;
    }

    /// A boost's outcome; `along`: the request's bytes besides those that were waited for.
    pub(super) fn boosted(&mut self, boost: Boost, along: u64) {
        match boost {
            Boost::Raised { gained } => {
                self.boosts.raised += 1;
                self.boosts.positions_gained += gained;
                self.boosts.collateral_bytes += along;
            }
            Boost::AlreadyDispatched => self.boosts.already_dispatched += 1,
            Boost::AlreadyUrgent => self.boosts.already_urgent += 1,
        }
    }

    /// The numbers; what the queue knows better is left out.
    pub(super) fn stats(&self) -> Stats {
        let ops = OPS.iter().zip(&self.ops).map(|(&op, recorder)| OpStats {
            op,
            count: recorder.count,
            bytes: recorder.bytes,
            errors: recorder.errors,
            requests: recorder.requests,
            queue_wait: Latency::of(&recorder.queue_wait),
            device: Latency::of(&recorder.device),
        });
        Stats {
            ops: ops.collect(),
            merged: self.merged,
            flushes_joined: self.flushes_joined,
            boosts: self.boosts,
            ..Stats::default()
        }
    }
}
