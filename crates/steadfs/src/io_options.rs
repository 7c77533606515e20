//! Options of the I/O scheduler. A remount can change all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use steadfs_block::{DeviceModel, FsyncTarget, Policy, QueueSettings};
use steadfs_vfs::Result;
use steadfs_vfs::options::Section::Device;
use steadfs_vfs::options::Shown::Changed;
use steadfs_vfs::options::{Entry, Table, bytes, choice, number, word};

/// The options of the I/O scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoOptions {
    /// `io_scheduler=`, `queue_depth=`, `slice_idle=`, `low_latency`, `strict_guarantees`, `boost`,
    /// `fsync_latency_target=`.
    pub queue: QueueSettings,
    /// `cgroup_weight=PATH:WEIGHT`: weights that override the cgroups' own files.
    pub group_weights: BTreeMap<String, u32>,
}

/// Most requests in flight at the device.
const QUEUE_DEPTH_MAX: usize = 1024;

pub(crate) const IO_TABLE: Table<IoOptions> = Table(&[ENTRIES]);

type Opt = Entry<IoOptions>;

const ENTRIES: &[Opt] = &[
    Opt::value("io_scheduler", "=fair|fifo|cfq", |o, v| {
        let policies = Policy::ALL.map(|policy| (policy.name(), policy));
        choice(v, &policies).map(|policy| o.queue.policy = policy)
    })
    .help(
        Device,
        "the order of queued I/O: by the weights of cgroups and I/O priorities; first come, first served, with \
         synchronous requests first; by weights in CFQ's time slices",
    )
    .current(Changed, |o| {
        Some(format!("io_scheduler={}", o.queue.policy.name()))
    }),
    Opt::value("queue_depth", "=1..1024", |o, v| {
        number(v, 1..=QUEUE_DEPTH_MAX).map(|n| o.queue.depth = n)
    })
    .help(Device, "the most requests in flight at the device")
    .current(Changed, |o| Some(format!("queue_depth={}", o.queue.depth))),
    Opt::value("slice_idle", "=0..1000", |o, v| {
        number(v, 0..=1000).map(|n| o.queue.slice_idle = Some(Duration::from_millis(n)))
    })
    .help_with_default(
        Device,
        "fair, cfq: how many milliseconds the device idles for the next request of the process that is being served",
        "8",
    )
    .current(Changed, |o| {
        let idle = o.queue.slice_idle?.as_millis();
        Some(format!("slice_idle={idle}"))
    }),
    Opt::flag("low_latency", |o| o.queue.low_latency = true)
        .help(
            Device,
            "fair: a process that begins I/O after a pause gets a higher weight at first",
        )
        .current(Changed, |o| {
            word(o.queue.low_latency, "low_latency", "nolow_latency")
        }),
    Opt::flag("nolow_latency", |o| o.queue.low_latency = false).also(),
    Opt::flag("strict_guarantees", |o| o.queue.strict_guarantees = true)
        .help(Device, "fair, cfq: one request at a time, for exact shares")
        .current(Changed, |o| {
            let strict = o.queue.strict_guarantees;
            word(strict, "strict_guarantees", "nostrict_guarantees")
        }),
    Opt::flag("nostrict_guarantees", |o| o.queue.strict_guarantees = false).also(),
    Opt::flag("boost", |o| o.queue.boost = true)
        .help(
            Device,
            "a task that waits for queued I/O boosts it to its own priority and cgroup",
        )
        .current(Changed, |o| word(o.queue.boost, "boost", "noboost")),
    Opt::flag("noboost", |o| o.queue.boost = false).also(),
    Opt::value("fsync_latency_target", "=auto|off|MS", |o, v| {
        fsync_target(v).map(|target| o.queue.fsync_target = target)
    })
    .help_with_default(
        Device,
        "fair: while fsync is called, background I/O in the device is bounded so that an fsync takes at most this many \
         milliseconds; auto: twice as long as the shortest ones, at least 1 ms; it keeps a quarter of the device's time, or \
         its cgroup's share if that is less, except beside real-time callers",
        "auto",
    )
    .current(Changed, |o| {
        let target = match o.queue.fsync_target {
            FsyncTarget::Auto => "auto".to_owned(),
            FsyncTarget::Unlimited => "off".to_owned(),
            FsyncTarget::Within(time) => (time.0 / 1_000_000).to_string(),
        };
        Some(format!("fsync_latency_target={target}"))
    }),
    Opt::value("cgroup_weight", "=PATH:WEIGHT", set_group_weight)
        .help_with_default(
            Device,
            "fair, cfq: the weight of a cgroup, 1 to 1000, in place of its own file's; can be repeated; default removes it",
            "as the cgroup's file says",
        )
        .current(Changed, |o| {
            let weights = o.group_weights.iter();
            let items = weights.map(|(path, weight)| format!("cgroup_weight={path}:{weight}"));
            let items: Vec<_> = items.collect();
            (!items.is_empty()).then(|| items.join(","))
        }),
];

fn fsync_target(value: &str) -> Result<FsyncTarget, String> {
    match value {
        "auto" => Ok(FsyncTarget::Auto),
        "off" => Ok(FsyncTarget::Unlimited),
        _ => number(value, 1..=10_000)
            .map(FsyncTarget::of_millis)
            .map_err(|why| format!("is auto, off, or {why}")),
    }
}

fn set_group_weight(options: &mut IoOptions, value: &str) -> Result<(), String> {
    let (path, weight) = value
        .rsplit_once(':')
        .ok_or("needs PATH:WEIGHT, such as /backup:20")?;
    let from_root = path.starts_with('/');
    let path = path.trim_end_matches('/').to_owned();
    if !from_root || path.is_empty() {
        return Err("needs a cgroup's path from the root, such as /backup:20".to_owned());
    }
    if weight == "default" {
        options.group_weights.remove(&path);
    } else {
        let weight = number(weight, 1..=1000).map_err(|why| format!("the weight {why}"))?;
        options.group_weights.insert(path, weight);
    }
    Ok(())
}

/// `device_model=BYTES[:MICROSECONDS[:DEPTH[:FLUSH_MICROSECONDS]]]`.
pub(crate) fn device_model(text: &str) -> Result<DeviceModel, String> {
    let mut parts = text.split(':');
    let bytes_per_second = bytes(parts.next().unwrap_or_default())?;
    if bytes_per_second < 1 << 16 {
        return Err("is at least 64K bytes a second".to_owned());
    }
    let latency = parts
        .next()
        .map_or(Ok(0), |us| number(us, 0..=10_000_000))?;
    let depth = parts
        .next()
        .map_or(Ok(1), |n| number(n, 1..=QUEUE_DEPTH_MAX))?;
    let flush = parts
        .next()
        .map_or(Ok(0), |us| number(us, 0..=10_000_000))?;
    if parts.next().is_some() {
        let form = "is BYTES_PER_SECOND[:MICROSECONDS[:DEPTH[:FLUSH_MICROSECONDS]]]";
        return Err(form.to_owned());
    }
    Ok(DeviceModel {
        bytes_per_second,
        latency: Duration::from_micros(latency),
        flush: Duration::from_micros(flush),
        depth,
    })
}

/// A device model as [`device_model`] takes it.
pub(crate) fn show_device_model(model: &DeviceModel) -> String {
    let (latency, flush) = (model.latency.as_micros(), model.flush.as_micros());
    let (bytes, depth) = (model.bytes_per_second, model.depth);
    format!("{bytes}:{latency}:{depth}:{flush}")
}

impl IoOptions {
    /// Applies one item. Returns whether the name is one of these options.
    pub(crate) fn set(&mut self, name: &str, value: Option<&str>) -> Result<bool> {
        IO_TABLE.apply(self, name, value)
    }

    /// What differs from the defaults, as a list.
    pub fn show(&self) -> String {
        IO_TABLE.show(self)
    }
}

#[cfg(test)]
mod tests {
    use steadfs_vfs::options::items;

    use super::*;

    fn parse(list: &str) -> Result<IoOptions> {
        let mut options = IoOptions::default();
        for (name, value) in items(list) {
            assert!(options.set(name, value)?, "{name}");
        }
        Ok(options)
    }

    #[test]
    fn every_option_is_taken_and_shown_back() {
        let lists = [
            "",
            "io_scheduler=fifo",
            "io_scheduler=cfq,queue_depth=4",
            "slice_idle=0,nolow_latency,strict_guarantees,noboost",
            "fsync_latency_target=off",
            "fsync_latency_target=15",
            "cgroup_weight=/a/b:20,cgroup_weight=/c:1000",
        ];
        for list in lists {
            let options = parse(list).unwrap();
            assert_eq!(options.show(), list);
            assert_eq!(parse(&options.show()), Ok(options));
        }
        let undone = "strict_guarantees,nostrict_guarantees,noboost,boost,nolow_latency,low_latency,\
                      cgroup_weight=/a:5,cgroup_weight=/a:default,\
                      fsync_latency_target=5,fsync_latency_target=auto,io_scheduler=fifo,io_scheduler=fair";
        assert_eq!(parse(undone), parse(""));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let bad = [
            "io_scheduler=bfq",
            "io_scheduler",
            "queue_depth=0",
            "queue_depth=1025",
            "slice_idle=-1",
            "low_latency=1",
            "fsync_latency_target",
            "fsync_latency_target=0",
            "fsync_latency_target=10001",
            "fsync_latency_target=2ms",
            "cgroup_weight=/a",
            "cgroup_weight=a:5",
            "cgroup_weight=/:5",
            "cgroup_weight=//:5",
            "cgroup_weight=/a:0",
            "cgroup_weight=/a:1001",
        ];
        for list in bad {
            assert!(parse(list).is_err(), "{list}");
        }
        for model in ["", "1", "20M:x", "20M:5:0", "20M:5:1:x", "20M:5:1:1:1", "M"] {
            assert!(device_model(model).is_err(), "{model}");
        }
    }

    #[test]
    fn a_device_model_has_a_speed_and_perhaps_more() {
        let model = device_model("20M:500:4").unwrap();
        assert_eq!(model.bytes_per_second, 20 << 20);
        assert_eq!((model.latency.as_micros(), model.depth), (500, 4));
        assert_eq!(device_model("64K").unwrap().depth, 1);
        let slow = device_model("20M:0:4:5000").unwrap();
        assert_eq!(slow.flush.as_micros(), 5000);
    }
}
