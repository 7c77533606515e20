//! Counters of a mount: requests, bytes, and the times of fsync.
//!
//! Requests for control files are counted as requests, but neither their bytes nor their fsyncs: a program that reads
//! metrics every second would be most of what an idle mount shows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{Metrics, TimeHistogram};

use crate::waiting::WaitSources;
use crate::wire;

/// Upper bounds of the classes of fsync times, in microseconds.
const FSYNC_BOUNDS_US: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000,
];

/// Requests by operation since the mount.
pub struct Stats {
    requests: [AtomicU64; wire::OPCODES],
    errors: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    /// By [`FSYNC_BOUNDS_US`]; the last class has no bound.
    fsyncs: [AtomicU64; FSYNC_BOUNDS_US.len() + 1],
    fsync_nanos: AtomicU64,
    /// Those of the mount's session: a first one may fail before it serves.
    sources: Mutex<Option<Arc<WaitSources>>>,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            requests: [const { AtomicU64::new(0) }; wire::OPCODES],
            errors: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            fsyncs: [const { AtomicU64::new(0) }; FSYNC_BOUNDS_US.len() + 1],
            fsync_nanos: AtomicU64::new(0),
            sources: Mutex::new(Rank::Leaf, None),
        }
    }
}

impl Stats {
    pub(crate) fn set_sources(&self, sources: WaitSources) {
        *self.sources.lock() = Some(Arc::new(sources));
    }

    /// The requests that wait, as a table, or as a JSON array.
    pub fn waiting(&self, as_json: bool) -> String {
        let sources = self.sources.lock().clone();
        match (sources, as_json) {
            (Some(sources), true) => sources.json(),
            (Some(sources), false) => sources.table(),
            (None, _) => String::new(),
        }
    }

    pub(crate) fn count(&self, opcode: u32) {
        // Slot 0 belongs to no operation: it counts unknown ones.
        let slot = self
            .requests
            .get(opcode as usize)
            .unwrap_or(&self.requests[0]);
        slot.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_written(&self, bytes: usize) {
        self.written_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// An fsync or sync of a file system has been served, in this time from the beginning of its service to its reply.
    pub(crate) fn count_fsync(&self, took: Duration) {
        let bounds = FSYNC_BOUNDS_US.map(Duration::from_micros);
        let class = bounds.partition_point(|bound| *bound < took);
        self.fsyncs[class].fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.fsync_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Times of fsync(2), fdatasync(2) and syncfs(2) since the mount.
    pub fn fsync_times(&self) -> TimeHistogram {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (above, classes) = self.fsyncs.split_last().expect("there is a last class");
        TimeHistogram {
            buckets: FSYNC_BOUNDS_US
                .map(Duration::from_micros)
                .into_iter()
                .zip(classes.iter().map(load))
                .collect(),
            above: load(above),
            sum: Duration::from_nanos(load(&self.fsync_nanos)),
        }
    }

    /// One JSON object. Sums of times and the ends of classes are in microseconds.
    pub fn to_json(&self) -> String {
        let requests = self.requests();
        let requests: Vec<_> = requests
            .iter()
            .map(|(name, count)| format!("\"{}\":{count}", name.to_ascii_lowercase()))
            .collect();
        let times = self.fsync_times();
        let ends = times
            .buckets
            .iter()
            .map(|(end, _)| end.as_micros().to_string());
        let ends = ends.chain(["null".to_owned()]);
        let counts = times.buckets.iter().map(|(_, count)| *count);
        let classes: Vec<_> = ends
            .zip(counts.chain([times.above]))
            .map(|(end, count)| format!("[{end},{count}]"))
            .collect();
        format!(
            "{{\"requests\":{{{}}},\"errors\":{},\"read_bytes\":{},\"written_bytes\":{},\
             \"fsync\":{{\"count\":{},\"total_us\":{},\"classes\":[{}]}}}}",
            requests.join(","),
            self.errors(),
            self.read_bytes.load(Ordering::Relaxed),
            self.written_bytes.load(Ordering::Relaxed),
            times.count(),
            times.sum.as_micros(),
            classes.join(",")
        )
    }

    /// Adds the counters to the metrics of a mount.
    pub fn add_to(&self, metrics: &mut Metrics) {
        for (name, count) in self.requests() {
            let help = "Requests of the kernel since the server started.";
            let name = name.to_ascii_lowercase();
            metrics.counter(
                "steadfs_requests_total",
                help,
                &[("operation", &name)],
                count,
            );
        }
        let help = "Requests answered with an error.";
        metrics.counter("steadfs_request_errors_total", help, &[], self.errors());
        let help = "Bytes read from files. Reads from the kernel's page cache are not counted.";
        let read = self.read_bytes.load(Ordering::Relaxed);
        metrics.counter("steadfs_read_bytes_total", help, &[], read);
        let help = "Bytes written to files.";
        let written = self.written_bytes.load(Ordering::Relaxed);
        metrics.counter("steadfs_written_bytes_total", help, &[], written);
        let help = "Times of fsync, fdatasync and syncfs.";
        metrics.histogram("steadfs_fsync_seconds", help, &[], &self.fsync_times());
    }

    /// Operations with at least one request, by their names in the kernel, and the number of requests.
    pub fn requests(&self) -> Vec<(&'static str, u64)> {
        (0_u32..)
            .zip(&self.requests)
            .map(|(opcode, n)| (wire::op_name(opcode), n.load(Ordering::Relaxed)))
            .filter(|&(_, n)| n > 0)
            .collect()
    }

    /// Number of requests of the operation with the kernel's name `name`.
    pub fn of(&self, name: &str) -> u64 {
        self.requests()
            .iter()
            .filter(|(op, _)| *op == name)
            .map(|(_, n)| n)
            .sum()
    }

    /// Number of all requests.
    pub fn total(&self) -> u64 {
        self.requests
            .iter()
            .map(|n| n.load(Ordering::Relaxed))
            .sum()
    }

    /// Requests answered with an error (a negative entry is none).
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_classes_are_inclusive() {
        let stats = Stats::default();
        for us in [0, 100, 101, 10_000_000, 10_000_001] {
            stats.count_fsync(Duration::from_micros(us));
        }
        let times = stats.fsync_times();
        let counts: Vec<_> = times.buckets.iter().map(|(_, count)| *count).collect();
        assert_eq!(
            (counts[0], counts[1], counts[15], times.above),
            (2, 1, 1, 1)
        );
        assert_eq!((times.count(), times.sum.as_micros()), (5, 20_000_202));
        let json = stats.to_json();
        let end = "[10000000,1],[null,1]]}}";
        assert!(json.ends_with(end), "{json}");
        assert!(
            json.contains(
                "\"fsync\":{\"count\":5,\"total_us\":20000202,\"classes\":[[100,2],[250,1]"
            )
        );
    }

    /// Where io_uring is not available, /dev/fuse is tried with the same counters.
    #[test]
    fn a_second_session_takes_the_place_of_one_that_failed() {
        let stats = Stats::default();
        assert_eq!(stats.waiting(false), "");
        for _ in 0..2 {
            stats.set_sources(WaitSources {
                admission: Arc::new(crate::admission::Admission::new(4, |_| false)),
                interrupts: Arc::new(crate::interrupt::Interrupts::new()),
                ids: crate::reply::NodeIds::new(steadfs_base::InodeNo(2)),
            });
            assert!(stats.waiting(false).starts_with("PID "));
        }
    }

    #[test]
    fn requests_have_metrics_by_operation() {
        let stats = Stats::default();
        stats.count(wire::opcode::LOOKUP);
        stats.count(wire::opcode::LOOKUP);
        stats.count_read(4096);
        let mut metrics = Metrics::default();
        stats.add_to(&mut metrics);
        let text = metrics.to_string();
        assert!(
            text.contains("\nsteadfs_requests_total{operation=\"lookup\"} 2\n"),
            "{text}"
        );
        assert!(text.contains("\nsteadfs_read_bytes_total 4096\n"), "{text}");
        assert!(text.ends_with("steadfs_fsync_seconds_count 0\n"), "{text}");
    }
}
