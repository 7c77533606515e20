//! Statistics of a queue.

use std::fmt::Write;

use hdrhistogram::Histogram;
use steadfs_base::{GroupId, json_text};

use crate::Op;

/// Counts and times since the queue was created.
#[derive(Clone, Debug, Default)]
pub struct QueueStats {
    /// The policy's name.
    pub scheduler: &'static str,
    /// Most requests that the device has at a time.
    pub depth: usize,
    /// Requests that the device has.
    pub in_flight: usize,
    /// Requests in the scheduler.
    pub queued: usize,
    /// Held requests: their submitters have not waited yet.
    pub held: usize,
    /// By operation.
    pub ops: Vec<OpStats>,
    /// Bios that became part of another one's request.
    pub merged: u64,
    /// Flushes that shared another one's.
    pub flushes_joined: u64,
    /// Boosts.
    pub boosts: BoostStats,
    /// Read-aheads.
    pub read_ahead: ReadAheadStats,
    /// By group, for groups that had requests.
    pub groups: Vec<GroupStats>,
}

/// Requests at one moment, by place and kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Depths {
    /// Waited-for requests in the queue.
    pub waited: usize,
    /// Background requests in the queue.
    pub background: usize,
    /// Waited-for requests in the device.
    pub device_waited: usize,
    /// Background requests in the device.
    pub device_background: usize,
    /// Reads among all of these.
    pub reads: usize,
}

impl Depths {
    /// All requests.
    pub const fn all(self) -> usize {
        self.waited + self.background + self.device_waited + self.device_background
    }
}

/// Counts and times of one group's requests.
#[derive(Clone, Copy, Debug)]
pub struct GroupStats {
    /// The group.
    pub group: GroupId,
    /// Requests that the device ended.
    pub requests: u64,
    /// Bytes that they read.
    pub read: u64,
    /// Bytes that they wrote or changed.
    pub written: u64,
    /// Bytes of boosted requests that were served in the slices of this group; some are charged to other groups.
    pub boosted: u64,
    /// From submission to the device's end.
    pub latency: LatencyBuckets,
}

/// Histogram of times by powers of two of a microsecond.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LatencyBuckets([u64; CLASSES]);

/// The last class takes what is longer than about 35 minutes.
const CLASSES: usize = 32;

impl LatencyBuckets {
    pub(super) fn add(&mut self, nanos: u64, count: u64) {
        let class = (u64::BITS - (nanos / 1000).leading_zeros()) as usize;
        let slot = &mut self.0[class.min(CLASSES - 1)];
        *slot = slot.saturating_add(count);
    }

    /// The classes that are not empty: exclusive upper ends in microseconds, and counts.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let ends = (0..).map(|class| 1u64 << class);
        ends.zip(self.0).filter(|(_, count)| *count > 0)
    }

    fn to_json(self) -> String {
        let pairs: Vec<_> = self.iter().map(|(end, n)| format!("[{end},{n}]")).collect();
        format!("[{}]", pairs.join(","))
    }
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

/// Statistics of a time, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Latency {
    /// Number of measurements.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// The longest.
    pub max: u64,
    /// Histogram.
    pub classes: LatencyBuckets,
}

/// Outcomes of boosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BoostStats {
    /// Requests that were boosted while they were queued.
    pub raised: u64,
    /// Requests that were boosted, or submitted with an effective tag, because another task waited for a lock that
    /// their task held.
    pub inherited: u64,
    /// Requests that were dispatched or had ended already.
    pub already_dispatched: u64,
    /// Requests that were as urgent already.
    pub already_urgent: u64,
    /// Queued requests that boosted ones overtook.
    pub positions_gained: u64,
    /// Bytes of boosted requests.
    pub bytes: u64,
    /// … of them bytes without a waiter that were merged into the same requests.
    pub collateral_bytes: u64,
}

/// Outcomes of read-aheads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadAheadStats {
    /// Number of read-aheads.
    pub started: u64,
    /// … that a read has used.
    pub used: u64,
    /// … that were dropped: the range has changed, the read failed, or they were unused for long.
    pub dropped: u64,
    /// … that can still be used, in flight or ended.
    pub kept: u64,
    /// Memory of these and of dropped ones in flight, in bytes.
    pub bytes: u64,
}

impl QueueStats {
    /// One JSON object. Times are in nanoseconds, the ends of classes in microseconds.
    pub fn to_json(&self) -> String {
        self.to_json_with(|_| None)
    }

    /// The same with the paths and weights of groups that `label` knows.
    pub fn to_json_with(&self, label: impl Fn(GroupId) -> Option<(String, u32)>) -> String {
        let mut out = String::with_capacity(2048);
        // Writing to a string does not fail.
        let _ = write!(
            out,
            "{{\"scheduler\":\"{}\",\"depth\":{},\"in_flight\":{},\"queued\":{},\"held\":{},\
             \"merged\":{},\"flushes_joined\":{},\"boosts\":{{\"raised\":{},\"inherited\":{},\
             \"already_dispatched\":{},\"already_urgent\":{},\"positions_gained\":{},\
             \"bytes\":{},\"collateral_bytes\":{}}},\
             \"read_ahead\":{{\"started\":{},\"used\":{},\"dropped\":{},\"kept\":{},\"bytes\":{}}},\
             \"ops\":{{",
            self.scheduler,
            self.depth,
            self.in_flight,
            self.queued,
            self.held,
            self.merged,
            self.flushes_joined,
            self.boosts.raised,
            self.boosts.inherited,
            self.boosts.already_dispatched,
            self.boosts.already_urgent,
            self.boosts.positions_gained,
            self.boosts.bytes,
            self.boosts.collateral_bytes,
            self.read_ahead.started,
            self.read_ahead.used,
            self.read_ahead.dropped,
            self.read_ahead.kept,
            self.read_ahead.bytes,
        );
        for (i, op) in self.ops.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            let _ = write!(
                out,
                "{comma}\"{}\":{{\"count\":{},\"bytes\":{},\"errors\":{},\"requests\":{},\
                 \"queue_wait\":{},\"device\":{}}}",
                op.op.name(),
                op.count,
                op.bytes,
                op.errors,
                op.requests,
                op.queue_wait.to_json(),
                op.device.to_json(),
            );
        }
        out.push_str("},\"groups\":[");
        for (i, group) in self.groups.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            let (path, weight) = label(group.group).unzip();
            let _ = write!(
                out,
                "{comma}{{\"group\":{},\"path\":{},\"weight\":{},\"requests\":{},\"read\":{},\
                 \"written\":{},\"boosted\":{},\"latency\":{}}}",
                group.group.0,
                path.map_or("null".to_owned(), |path| json_text(&path)),
                weight.map_or("null".to_owned(), |weight| weight.to_string()),
                group.requests,
                group.read,
                group.written,
                group.boosted,
                group.latency.to_json(),
            );
        }
        out.push_str("]}");
        out
    }
}

impl Latency {
    pub(super) fn of(times: &Histogram<u64>) -> Self {
        if times.is_empty() {
            return Self::default();
        }
        let mut classes = LatencyBuckets::default();
        for value in times.iter_recorded() {
            classes.add(value.value_iterated_to(), value.count_at_value());
        }
        Self {
            count: times.len(),
            mean: times.mean(),
            p50: times.value_at_quantile(0.5),
            p90: times.value_at_quantile(0.9),
            p99: times.value_at_quantile(0.99),
            p999: times.value_at_quantile(0.999),
            max: times.max(),
            classes,
        }
    }

    fn to_json(self) -> String {
        format!(
            "{{\"count\":{},\"mean\":{:.0},\"p50\":{},\"p90\":{},\"p99\":{},\"p999\":{},\"max\":{},\
             \"classes\":{}}}",
            self.count,
            self.mean,
            self.p50,
            self.p90,
            self.p99,
            self.p999,
            self.max,
            self.classes.to_json()
        )
    }
}
