//! What a mount did between two readings of its counters.

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;

use serde::Serialize;
use serde_json::Value;
use steadfs::tools::printable;

use super::sampler::{Answer, Sample, Waiting};
use crate::json::text;
use crate::umount::Mount;

/// Intervals whose fsyncs are in the histogram on the screen.
const RECENT_INTERVALS: usize = 10;

/// Upper end of a class in microseconds (the last has none), and the number of times in it.
pub(super) type Class = (Option<u64>, u64);

/// The fsync times of the last intervals.
#[derive(Default)]
pub(super) struct Recent(VecDeque<Vec<Class>>);

/// A mount in one interval: a line of JSON, and what the screen shows.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    time: String,
    pub mountpoint: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    mountpoint_hex: Option<String>,
    source: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_hex: Option<String>,
    #[serde(rename = "type")]
    pub format: Option<&'static str>,
    pub state: &'static str,
    errors: Vec<String>,
    /// Unless this is the first reading after the mount or after a time without an answer.
    pub activity: Option<Activity>,
    pub waiting: Vec<Waiting>,
    /// The path without control characters, for the screen.
    #[serde(skip)]
    pub label: String,
    /// More than the word that is the state.
    #[serde(skip)]
    pub detail: String,
    #[serde(skip)]
    pub recent: Vec<Class>,
}

/// Rates are per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Activity {
    pub seconds: f64,
    pub operations: f64,
    pub failed: f64,
    pub read_bytes: f64,
    pub written_bytes: f64,
    pub device_read_bytes: f64,
    pub device_written_bytes: f64,
    pub boosts: f64,
    /// Commits of the journal, or checkpoints of f2fs.
    pub commits: f64,
    /// Commits that waited for more callers, or requests that shared a checkpoint with another one.
    pub merged: f64,
    pub fsync: Fsync,
    /// Now, not per second.
    pub dirty_bytes: u64,
    pub queued: u64,
    pub in_flight: u64,
    pub log_free_percent: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Fsync {
    /// In the interval.
    pub count: u64,
    pub mean_us: Option<f64>,
    pub classes: Vec<Class>,
}

impl Row {
    /// The mount's row after an answer; `last`: the answer before it.
    pub fn of(mount: &Mount, last: Option<&Answer>, answer: &Answer, recent: &mut Recent) -> Self {
        let mut row = Self::empty(mount, "ok");
        match answer {
            Answer::Sample(sample) => {
                row.format = Some(sample.format.0);
                row.waiting.clone_from(&sample.waiting);
                if let Some(first) = sample.errors.first() {
                    (row.state, row.detail) = ("errors", printable(first.as_bytes()));
                    row.errors.clone_from(&sample.errors);
                }
                if let Some(Answer::Sample(before)) = last {
                    let activity = Activity::between(before, sample);
                    recent.add(activity.fsync.classes.clone());
                    row.activity = Some(activity);
                }
            }
            Answer::NoControl => row.is("no_control", "no control files (nocontrol)"),
            Answer::Gone => row.is("gone", "its server has ended: unmount it"),
            Answer::Silent => row.is("silent", "its server does not answer"),
            Answer::Closed => row.is("closed", "only its user may ask"),
            Answer::Failed(error) => row.is("failed", error),
        }
        row.recent = recent.sum();
        row
    }

    /// The last row of a mount.
    pub fn unmounted(mount: &Mount) -> Self {
        Self::empty(mount, "unmounted")
    }

    fn empty(mount: &Mount, state: &'static str) -> Self {
        let (mountpoint, mountpoint_hex) = text(mount.mountpoint.as_os_str().as_bytes());
        let (source, source_hex) = text(mount.source.as_os_str().as_bytes());
        Self {
            time: super::time(),
            mountpoint: mountpoint.into_owned(),
            mountpoint_hex,
            source: source.into_owned(),
            source_hex,
            format: None,
            state,
            errors: Vec::new(),
            activity: None,
            waiting: Vec::new(),
            label: printable(mount.mountpoint.as_os_str().as_bytes()),
            detail: state.to_owned(),
            recent: Vec::new(),
        }
    }

    fn is(&mut self, state: &'static str, detail: &str) {
        (self.state, self.detail) = (state, printable(detail.as_bytes()));
    }
}

impl Recent {
    fn add(&mut self, classes: Vec<Class>) {
        if self.0.len() == RECENT_INTERVALS {
            self.0.pop_front();
        }
        self.0.push_back(classes);
    }

    fn sum(&self) -> Vec<Class> {
        let mut sum: Vec<Class> = Vec::new();
        for classes in &self.0 {
            if sum.len() < classes.len() {
                sum.clone_from(classes);
                continue;
            }
            for ((_, all), (_, one)) in sum.iter_mut().zip(classes) {
                *all += one;
            }
        }
        sum
    }
}

/// A number at `path` in a document, 0 if there is none.
fn number(value: &Value, path: &[&str]) -> u64 {
    let found = path.iter().try_fold(value, |at, key| at.get(key));
    found.and_then(Value::as_u64).unwrap_or(0)
}

/// The growth of a counter. A server that has been replaced counts from zero.
const fn growth(before: u64, after: u64) -> u64 {
    match after.checked_sub(before) {
        Some(growth) => growth,
        None => after,
    }
}

impl Activity {
    fn between(before: &Sample, after: &Sample) -> Self {
        let seconds = after.at.since(before.at).as_secs_f64().max(1e-6);
        let grown = |of: &dyn Fn(&Sample) -> u64| growth(of(before), of(after));
        let rate = |of: &dyn Fn(&Sample) -> u64| grown(of) as f64 / seconds;
        let sum = |sample: &Sample| {
            let all = sample.fuse["requests"].as_object();
            all.into_iter()
                .flat_map(|all| all.values())
                .filter_map(Value::as_u64)
                .sum()
        };
        let log = &after.format.1;
        let size = number(log, &["log_blocks"]);
        let free = number(log, &["log_free"]) as f64 * 100.0;
        Self {
            seconds,
            operations: rate(&sum),
            failed: rate(&|sample| number(&sample.fuse, &["errors"])),
            read_bytes: rate(&|sample| number(&sample.fuse, &["read_bytes"])),
            written_bytes: rate(&|sample| number(&sample.fuse, &["written_bytes"])),
            device_read_bytes: rate(&|sample| number(&sample.io, &["ops", "read", "bytes"])),
            device_written_bytes: rate(&|sample| number(&sample.io, &["ops", "write", "bytes"])),
            boosts: rate(&|sample| {
                let boosts = &sample.io["boosts"];
                number(boosts, &["raised"]) + number(boosts, &["inherited"])
            }),
            commits: rate(&commits),
            merged: rate(&merged),
            fsync: Fsync::between(&before.fuse["fsync"], &after.fuse["fsync"]),
            dirty_bytes: number(&after.cache, &["dirty_bytes"]),
            queued: number(&after.io, &["queued"]) + number(&after.io, &["held"]),
            in_flight: number(&after.io, &["in_flight"]),
            log_free_percent: (size > 0).then(|| free / size as f64),
        }
    }
}

fn commits(sample: &Sample) -> u64 {
    match &sample.format {
        ("f2fs", stats) => number(stats, &["checkpoint", "written"]),
        (_, stats) => {
            number(stats, &["transactions"]) + number(stats, &["fast_commits", "commits"])
        }
    }
}

fn merged(sample: &Sample) -> u64 {
    match &sample.format {
        ("f2fs", stats) => {
            let merge = &stats["checkpoint"]["merge"];
            number(merge, &["total"]).saturating_sub(number(merge, &["issued"]))
        }
        (_, stats) => number(stats, &["waits", "group_commit", "count"]),
    }
}

impl Fsync {
    fn between(before: &Value, after: &Value) -> Self {
        let grown = |path: &str| growth(number(before, &[path]), number(after, &[path]));
        let (count, total) = (grown("count"), grown("total_us"));
        let classes = after["classes"].as_array().into_iter().flatten();
        let classes = classes.enumerate().map(|(n, class)| {
            let count = |class: &Value| class[1].as_u64().unwrap_or(0);
            let grown = growth(count(&before["classes"][n]), count(class));
            (class[0].as_u64(), grown)
        });
        Self {
            count,
            mean_us: (count > 0).then(|| total as f64 / count as f64),
            classes: classes.collect(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use serde_json::json;
    use steadfs_rt::Instant;

    use super::*;

    pub(in crate::top) fn mount(mountpoint: &str) -> Mount {
        Mount {
            id: 1,
            device: "0:1".to_owned(),
            mountpoint: PathBuf::from(mountpoint),
            kind: "fuse.steadfs".to_owned(),
            source: PathBuf::from("/images/a.img"),
            options: Vec::new(),
        }
    }

    pub(in crate::top) fn sample(second: u64, fsyncs: u64) -> Answer {
        Answer::Sample(Box::new(Sample {
            at: Instant(second * 1_000_000_000),
            io: json!({"queued": 3, "held": 1, "in_flight": 2,
                "ops": {"read": {"bytes": 0}, "write": {"bytes": second * 4096}},
                "boosts": {"raised": fsyncs, "inherited": 0}}),
            fuse: json!({"requests": {"fsync": fsyncs, "write": 10}, "errors": 0, "read_bytes": second << 20,
                "written_bytes": 4096, "fsync": {"count": fsyncs, "total_us": fsyncs * 700,
                "classes": [[500, 0], [1000, fsyncs], [null, 0]]}}),
            cache: json!({"dirty_bytes": 1 << 20}),
            format: (
                "ext4",
                json!({"transactions": fsyncs, "log_blocks": 1000, "log_free": 250,
                "waits": {"group_commit": {"count": 2}}}),
            ),
            waiting: vec![Waiting {
                pid: 77,
                command: Some("dd".to_owned()),
                cgroup: Some("/".to_owned()),
                operation: "fsync".to_owned(),
                inode: 12,
                steps: vec!["commit".to_owned(), "device".to_owned()],
                milliseconds: 1234.5,
            }],
            errors: Vec::new(),
        }))
    }

    #[test]
    fn rates_are_differences_per_second() {
        let (mount, mut recent) = (mount("/mnt"), Recent::default());
        let first = Row::of(&mount, None, &sample(1, 100), &mut recent);
        assert_eq!((first.state, first.activity), ("ok", None));
        let row = Row::of(&mount, Some(&sample(1, 100)), &sample(3, 400), &mut recent);
        let activity = row.activity.unwrap();
        assert_eq!((activity.seconds, activity.operations), (2.0, 150.0));
        assert_eq!(activity.read_bytes, f64::from(1 << 20));
        assert_eq!(
            (activity.fsync.count, activity.fsync.mean_us),
            (300, Some(700.0))
        );
        assert_eq!(
            activity.fsync.classes,
            [(Some(500), 0), (Some(1000), 300), (None, 0)]
        );
        assert_eq!(activity.log_free_percent, Some(25.0));
        assert_eq!(
            (activity.queued, activity.commits, activity.merged),
            (4, 150.0, 0.0)
        );
        assert_eq!(row.recent, activity.fsync.classes);
    }

    #[test]
    fn counters_of_a_successor_begin_at_zero() {
        let (mount, mut recent) = (mount("/mnt"), Recent::default());
        let row = Row::of(&mount, Some(&sample(1, 100)), &sample(2, 40), &mut recent);
        assert_eq!(row.activity.unwrap().fsync.count, 40);
    }

    #[test]
    fn a_silent_server_has_no_figures() {
        let (mount, mut recent) = (mount("/mnt\n\u{1b}"), Recent::default());
        let row = Row::of(&mount, Some(&sample(1, 1)), &Answer::Silent, &mut recent);
        let shown = serde_json::to_value(&row).unwrap();
        assert_eq!(
            (&shown["state"], &shown["activity"]),
            (&json!("silent"), &Value::Null)
        );
        assert!(!row.label.contains(char::is_control), "{}", row.label);
        let row = Row::of(&mount, Some(&Answer::Silent), &sample(9, 9), &mut recent);
        assert_eq!((row.state, row.activity), ("ok", None));
    }

    #[test]
    fn the_histogram_forgets() {
        let mut recent = Recent::default();
        for n in 0..100 {
            recent.add(vec![(Some(1), n)]);
        }
        assert_eq!(recent.sum(), [(Some(1), (90..100).sum())]);
    }
}
