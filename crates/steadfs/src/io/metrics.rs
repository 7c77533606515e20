//! What a volume's queue adds to `.steadfs/metrics`.

use std::time::Duration;

use steadfs_base::GroupId;
use steadfs_block::{Latency, OpStats, QueueStats};
use steadfs_vfs::{Metrics, TimeHistogram};

/// Every second power of two of a microsecond is a bound, up to about 17 s: the queue's classes are powers of two.
const BOUNDS: u32 = 13;

/// Adds the statistics of a queue; `label`: the paths and weights of groups.
pub(super) fn add(
    stats: &QueueStats,
    label: impl Fn(GroupId) -> Option<(String, u32)>,
    metrics: &mut Metrics,
) {
    let help = "The policy of the queue.";
    let labels = [("scheduler", stats.scheduler)];
    metrics.gauge("steadfs_io_info", help, &labels, 1);
    for (place, number) in [
        ("held", stats.held),
        ("queue", stats.queued),
        ("device", stats.in_flight),
    ] {
        let help = "Requests by where they are: not started by their submitters, in the queue, in the device.";
        let number = number as u64;
        metrics.gauge("steadfs_io_requests", help, &[("place", place)], number);
    }
    for op in &stats.ops {
        add_operation(op, metrics);
    }
    let help = "Requests that became part of others.";
    metrics.counter("steadfs_io_merged_total", help, &[], stats.merged);
    let help = "FLUSHes that shared another one.";
    let name = "steadfs_io_flushes_joined_total";
    metrics.counter(name, help, &[], stats.flushes_joined);
    add_boosts(stats, metrics);
    add_read_ahead(stats, metrics);
    add_groups(stats, label, metrics);
}

fn add_operation(op: &OpStats, metrics: &mut Metrics) {
    let labels = [("operation", op.op.name())];
    let help = "Reads, writes, FLUSHes and discards that ended.";
    metrics.counter("steadfs_io_operations_total", help, &labels, op.count);
    let help = "Bytes that they moved or changed.";
    metrics.counter("steadfs_io_bytes_total", help, &labels, op.bytes);
    let help = "Those that failed.";
    metrics.counter("steadfs_io_errors_total", help, &labels, op.errors);
    let help = "Requests that the device ended: fewer than operations where these were merged.";
    let name = "steadfs_io_device_requests_total";
    metrics.counter(name, help, &labels, op.requests);
    let help = "Times from submission to the device.";
    let times = histogram(&op.queue_wait);
    metrics.histogram("steadfs_io_queue_seconds", help, &labels, &times);
    let help = "Times of requests in the device.";
    let times = histogram(&op.device);
    metrics.histogram("steadfs_io_device_seconds", help, &labels, &times);
}

/// Times of the queue with fixed bounds. Their sum is as exact as their mean.
fn histogram(latency: &Latency) -> TimeHistogram {
    let ends = (0..BOUNDS).map(|n| 1u64 << (2 * n));
    let mut counts: Vec<_> = ends.map(|end| (end, 0)).collect();
    let mut above = 0;
    for (end, count) in latency.classes.iter() {
        let slot = counts.partition_point(|(bound, _)| *bound < end);
        match counts.get_mut(slot) {
            Some((_, all)) => *all += count,
            None => above += count,
        }
    }
    let sum = latency.mean * latency.count as f64;
    TimeHistogram {
        buckets: counts
            .into_iter()
            .map(|(end, count)| (Duration::from_micros(end), count))
            .collect(),
        above,
        // A float becomes the nearest whole number of nanoseconds.
        sum: Duration::from_nanos(sum as u64),
    }
}

fn add_boosts(stats: &QueueStats, metrics: &mut Metrics) {
    let boosts = &stats.boosts;
    for (outcome, count) in [
        ("raised", boosts.raised),
        ("inherited", boosts.inherited),
        ("already_dispatched", boosts.already_dispatched),
        ("already_urgent", boosts.already_urgent),
    ] {
        let help = "Boosts of requests for which a task began to wait.";
        let labels = [("outcome", outcome)];
        metrics.counter("steadfs_io_boosts_total", help, &labels, count);
    }
    let help = "Bytes of boosted requests.";
    metrics.counter("steadfs_io_boosted_bytes_total", help, &[], boosts.bytes);
}

fn add_read_ahead(stats: &QueueStats, metrics: &mut Metrics) {
    let ahead = &stats.read_ahead;
    for (outcome, count) in [
        ("started", ahead.started),
        ("used", ahead.used),
        ("dropped", ahead.dropped),
    ] {
        let help = "Read-aheads.";
        let labels = [("outcome", outcome)];
        metrics.counter("steadfs_io_read_aheads_total", help, &labels, count);
    }
}

fn add_groups(
    stats: &QueueStats,
    label: impl Fn(GroupId) -> Option<(String, u32)>,
    metrics: &mut Metrics,
) {
    for group in &stats.groups {
        let (path, weight) = match label(group.group) {
            Some((path, weight)) => (path, Some(weight)),
            None => (format!("#{}", group.group.0), None),
        };
        let labels = [("group", &*path)];
        if let Some(weight) = weight {
            let help = "Weights of cgroups.";
            let weight = u64::from(weight);
            metrics.gauge("steadfs_group_weight", help, &labels, weight);
        }
        let help = "Requests that the device ended for a cgroup.";
        metrics.counter(
            "steadfs_group_requests_total",
            help,
            &labels,
            group.requests,
        );
        let help = "Bytes that a cgroup read from the device.";
        metrics.counter("steadfs_group_read_bytes_total", help, &labels, group.read);
        let help = "Bytes that a cgroup wrote to the device.";
        let name = "steadfs_group_written_bytes_total";
        metrics.counter(name, help, &labels, group.written);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use steadfs_base::IoTag;
    use steadfs_block::{MemDevice, Queue, QueueOptions};

    use super::*;

    #[test]
    fn each_time_is_in_one_bucket() {
        let queue = Queue::new(Arc::new(MemDevice::new(1 << 20)), QueueOptions::default());
        for _ in 0..5 {
            queue.flush(IoTag::default()).wait().unwrap();
        }
        let stats = queue.stats();
        let mut metrics = Metrics::default();
        add(&stats, |_| None, &mut metrics);
        let text = metrics.to_string();
        let line = |line: &str| assert!(text.contains(&format!("\n{line}\n")), "{line} {text}");
        line("steadfs_io_operations_total{operation=\"flush\"} 5");
        line("steadfs_io_device_seconds_bucket{operation=\"flush\",le=\"16.777216\"} 5");
        line("steadfs_io_device_seconds_count{operation=\"flush\"} 5");
        line("steadfs_io_device_seconds_count{operation=\"read\"} 0");
        line("steadfs_group_requests_total{group=\"#0\"} 5");
    }
}
