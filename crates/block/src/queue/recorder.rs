//! Records the queue's statistics.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use steadfs_base::GroupId;
use steadfs_iosched::BoostOutcome;
use steadfs_rt::Instant;

use super::request::Request;
use super::stats::{BoostStats, GroupStats, Latency, LatencyBuckets, OpStats, QueueStats};
use crate::Op;

/// Resolution of times in nanoseconds.
const MIN_NANOS: u64 = 64;
/// Longer times are recorded as this one, in nanoseconds: one hour.
const MAX_NANOS: u64 = 3_600_000_000_000;
/// Significant digits of times: the error is at most 1 %.
const SIGNIFICANT_DIGITS: u8 = 2;
/// Most groups with statistics; later ones are counted in the root group.
const MAX_GROUPS: usize = 4096;

const OPS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

/// The counters, under the queue's lock.
#[derive(Default)]
pub(super) struct Recorder {
    ops: [OpRecorder; OPS.len()],
    pub merged: u64,
    pub flushes_joined: u64,
    boosts: BoostStats,
    groups: BTreeMap<GroupId, GroupStats>,
}

struct OpRecorder {
    count: u64,
    bytes: u64,
    errors: u64,
    requests: u64,
    queue_wait: Histogram<u64>,
    device: Histogram<u64>,
}

impl Default for OpRecorder {
    fn default() -> Self {
        let times = || {
            Histogram::new_with_bounds(MIN_NANOS, MAX_NANOS, SIGNIFICANT_DIGITS)
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
    pub(super) fn record_end(&mut self, request: &Request, op: Op, failed: bool, now: Instant) {
        self.count_group(request, op, failed, now);
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

    fn group(&mut self, group: GroupId) -> &mut GroupStats {
        let full = self.groups.len() >= MAX_GROUPS && !self.groups.contains_key(&group);
        let group = if full { GroupId(0) } else { group };
        self.groups.entry(group).or_insert(GroupStats {
            group,
            requests: 0,
            read: 0,
            written: 0,
            boosted: 0,
            latency: LatencyBuckets::default(),
        })
    }

    fn count_group(&mut self, request: &Request, op: Op, failed: bool, now: Instant) {
        let group = self.group(request.tag.group);
        group.requests += 1;
        for part in request.parts() {
            let took = now.0.saturating_sub(part.submitted.0);
            group.latency.add(took, 1);
            match op {
                _ if failed => {}
                Op::Read => group.read += part.len,
                Op::Write | Op::WriteZeroes => group.written += part.len,
                Op::Discard | Op::Flush => {}
            }
        }
    }

    /// A request was boosted by priority inheritance.
    pub(super) fn record_inherited(&mut self) {
        self.boosts.inherited += 1;
    }

    /// A group was removed.
    pub(super) fn forget_group(&mut self, group: GroupId) {
        self.groups.remove(&group);
    }

    /// A bio was refused before it became a request.
    pub(super) fn record_refused(&mut self, op: Op) {
        let recorder = self.op(op);
        recorder.count += 1;
        recorder.errors += 1;
    }

    /// Records a boost. `served`: the group in whose slices the request is served, and its bytes; `collateral`: those of
    /// them without a waiter.
    pub(super) fn record_boost(
        &mut self,
        boost: BoostOutcome,
        served: (GroupId, u64),
        collateral: u64,
    ) {
        match boost {
            BoostOutcome::Boosted { overtaken } => {
                self.boosts.raised += 1;
                self.boosts.positions_gained += overtaken;
                self.boosts.bytes += served.1;
                self.boosts.collateral_bytes += collateral;
                self.group(served.0).boosted += served.1;
            }
            BoostOutcome::AlreadyDispatched => self.boosts.already_dispatched += 1,
            BoostOutcome::AlreadyUrgent => self.boosts.already_urgent += 1,
        }
    }

    /// The statistics, without the fields that the queue fills in.
    pub(super) fn stats(&self) -> QueueStats {
        let ops = OPS.iter().zip(&self.ops).map(|(&op, recorder)| OpStats {
            op,
            count: recorder.count,
            bytes: recorder.bytes,
            errors: recorder.errors,
            requests: recorder.requests,
            queue_wait: Latency::of(&recorder.queue_wait),
            device: Latency::of(&recorder.device),
        });
        QueueStats {
            ops: ops.collect(),
            merged: self.merged,
            flushes_joined: self.flushes_joined,
            boosts: self.boosts,
            groups: self.groups.values().copied().collect(),
            ..QueueStats::default()
        }
    }
}
