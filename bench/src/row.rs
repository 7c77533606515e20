//! The rows of the report, and the goal of steadfs in each.

/// A row of the report.
pub struct Row {
    /// Name; activities record samples under it.
    pub key: &'static str,
    /// Unit of the values.
    pub unit: &'static str,
    /// Goal of steadfs on ext4.
    pub goal: Goal,
    /// Goal of steadfs on f2fs: at least this ratio to its own rate on ext4.
    pub f2fs: Option<f64>,
}

impl Row {
    const fn new(key: &'static str, unit: &'static str, goal: Goal) -> Self {
        Self {
            key,
            unit,
            goal,
            f2fs: None,
        }
    }

    /// Adds a goal for f2fs.
    const fn f2fs(mut self, least: f64) -> Self {
        self.f2fs = Some(least);
        self
    }
}

/// A goal.
#[derive(Clone, Copy)]
pub enum Goal {
    /// Shown for comparison only.
    None,
    /// A rate: at least this ratio to kernel ext4 with direct I/O.
    AtLeast(f64),
    /// A time: at most this ratio to kernel ext4 with direct I/O.
    AtMost(f64),
    /// A value that is a ratio already: at most this.
    Itself(f64),
    /// A cost that must not exceed steadfs's own value in another row.
    NoGrowthFrom(&'static str),
}

/// Ratio of two costs up to which the difference is noise.
const NOISE: f64 = 1.25;

impl Goal {
    /// The row that the goal compares with, if not the kernel's value.
    pub fn base(self) -> Option<&'static str> {
        match self {
            Self::NoGrowthFrom(base) => Some(base),
            Self::None | Self::AtLeast(_) | Self::AtMost(_) | Self::Itself(_) => None,
        }
    }

    /// Whether a ratio reaches the goal; `None` if there is no goal.
    pub fn reached(self, ratio: f64) -> Option<bool> {
        match self {
            Self::None => None,
            Self::AtLeast(least) => Some(ratio >= least),
            Self::AtMost(most) | Self::Itself(most) => Some(ratio <= most),
            Self::NoGrowthFrom(_) => Some(ratio <= NOISE),
        }
    }

    /// As the report shows it.
    pub fn text(self) -> String {
        match self {
            Self::None => String::new(),
            Self::AtLeast(least) => format!("≥ {least}"),
            Self::AtMost(most) | Self::Itself(most) => format!("≤ {most}"),
            Self::NoGrowthFrom(base) => format!("≤ {NOISE} × \"{base}\""),
        }
    }
}

/// A rate with its smallest acceptable ratio to the kernel's.
const fn rate(key: &'static str, unit: &'static str, least: f64) -> Row {
    Row::new(key, unit, Goal::AtLeast(least))
}

/// A time with its largest acceptable ratio to the kernel's.
const fn time(key: &'static str, unit: &'static str, most: f64) -> Row {
    Row::new(key, unit, Goal::AtMost(most))
}

/// Microseconds per file, not more than in the row `base`.
const fn flat(key: &'static str, base: &'static str) -> Row {
    Row::new(key, "µs", Goal::NoGrowthFrom(base))
}

/// The cost of a mechanism: the ratio of the time with it to the time without it.
const fn itself(key: &'static str) -> Row {
    Row::new(key, "×", Goal::Itself(1.03))
}

/// For comparison only.
const fn shown(key: &'static str, unit: &'static str) -> Row {
    Row::new(key, unit, Goal::None)
}

/// Every row, in the report's order.
pub const ROWS: &[Row] = &[
    rate("fs_mark 0", "files/s", 0.35),
    rate("fs_mark 1", "files/s", 1.0).f2fs(1.0),
    rate("fs_mark 2", "files/s", 0.6),
    rate("fs_mark 3", "files/s", 1.0).f2fs(1.0),
    rate("fs_mark 4", "files/s", 0.6),
    rate("fs_mark 5", "files/s", 1.0).f2fs(1.0),
    rate("fs_mark 6", "files/s", 0.6),
    rate("streaming write", "MiB/s", 0.8).f2fs(1.0),
    rate("streaming read, cold", "MiB/s", 1.0).f2fs(1.0),
    rate("streaming read, warm", "MiB/s", 0.9).f2fs(1.0),
    rate("random write, fsync every 1", "op/s", 1.0).f2fs(1.3),
    rate("random write, fsync every 32", "op/s", 1.0).f2fs(1.0),
    rate("random read, cold", "op/s", 0.9),
    shown("append + fsync, 2 processes", "op/s"),
    shown("append + fsync, 4 processes", "op/s"),
    shown("append + fsync, 8 processes", "op/s"),
    time("tar extract", "s", 2.5),
    time("unmount after tar extract", "s", 1.0),
    time("tree walk, cold", "s", 2.0),
    time("rm -rf", "s", 3.0),
    rate("20 000 creates", "files/s", 0.5),
    time("ls -l of 20 000, cold", "s", 2.0),
    time("unmount after ls -l", "s", 1.0),
    time("append + fsync beside a stream, p50", "ms", 1.0),
    time("append + fsync beside a stream, p99", "ms", 1.0),
    shown("append + fsync beside a stream, max", "ms"),
    time("rewrite + fsync beside a stream, p50", "ms", 1.0),
    time("rewrite + fsync beside a stream, p99", "ms", 1.0),
    shown("rewrite + fsync beside a stream, max", "ms"),
    shown("stream beside fsyncs", "MiB/s"),
    itself("lone fsync, fair to fifo"),
    itself("lone fsync, boost to noboost"),
    itself("lone fsync, async_checkpoint to none"),
    itself("lone fsync of a directory, checkpoint_merge to none"),
    shown(DIRECTORY, "µs"),
    flat("create, 10 000 in a directory", DIRECTORY),
    flat("create, 100 000 in a directory", DIRECTORY),
    flat("create, 1 000 000 in a directory", DIRECTORY),
    shown("lookup, cold, 1 000 in a directory", "µs"),
    shown("lookup, cold, 10 000 in a directory", "µs"),
    shown("lookup, cold, 100 000 in a directory", "µs"),
    shown("lookup, cold, 1 000 000 in a directory", "µs"),
    shown(VOLUME, "µs"),
    flat("create, 10 000 on the volume", VOLUME),
    flat("create, 100 000 on the volume", VOLUME),
    flat("create, 1 000 000 on the volume", VOLUME),
    shown("lookup, cold, 1 000 on the volume", "µs"),
    shown("lookup, cold, 10 000 on the volume", "µs"),
    shown("lookup, cold, 100 000 on the volume", "µs"),
    shown("lookup, cold, 1 000 000 on the volume", "µs"),
];

const DIRECTORY: &str = "create, 1 000 in a directory";
const VOLUME: &str = "create, 1 000 on the volume";

/// The row with this name.
pub fn row(key: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.key == key)
}
