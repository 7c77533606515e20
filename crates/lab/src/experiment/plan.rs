//! What an experiment consists of: cells (conditions), arms (what is compared in them), and what a run of one seed
//! measures.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::testbed::Outcome;
use super::timeline::Depths;
use crate::flash::{ParameterError, Parameters};

/// Why an experiment did not come to an end.
#[derive(Debug, Error)]
pub enum Error {
    /// The device file is wrong.
    #[error("{0}")]
    Device(#[from] ParameterError),
    /// The volume for all runs could not be made.
    #[error("{0}")]
    Setup(String),
    /// A run failed, or left a damaged volume.
    #[error("{cell}, {arm}, seed {seed}: {why}")]
    Run {
        /// The cell.
        cell: String,
        /// The arm.
        arm: String,
        /// The seed.
        seed: u64,
        /// What happened.
        why: String,
    },
    /// Arms that do the same left different content.
    #[error("{cell}, seed {seed}: {arm} left other content than {first}")]
    Content {
        /// The cell.
        cell: String,
        /// The arms.
        first: String,
        /// The arms.
        arm: String,
        /// The seed.
        seed: u64,
    },
}

/// What a user may choose.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Another device: a built-in name or a file.
    pub device: Option<PathBuf>,
    /// How many seeds; ten, or with `quick` three, if none is given.
    pub seeds: Option<u64>,
    /// A smaller run, to see that all works.
    pub quick: bool,
    /// So small that it can be run in real time as well.
    pub real: bool,
}

impl Settings {
    /// The device: what the user named, or the experiment's own.
    ///
    /// # Errors
    /// A file that describes no device.
    pub fn device(&self, own: &str) -> Result<Parameters, ParameterError> {
        match &self.device {
            Some(path) => Parameters::find(path),
            None => Parameters::find(own.as_ref()),
        }
    }

    /// How many seeds are run: 1 to that.
    pub fn seeds(&self) -> u64 {
        let usual = match (self.real, self.quick) {
            (true, true) => 1,
            (true, false) | (false, true) => 3,
            (false, false) => 10,
        };
        self.seeds.unwrap_or(usual)
    }

    /// `full`, or where it has to be quick `quick`, or what is run in real time.
    pub fn scaled<T>(&self, full: T, quick: T, real: T) -> T {
        match (self.real, self.quick) {
            (true, _) => real,
            (false, true) => quick,
            (false, false) => full,
        }
    }

    /// Whether anything is smaller than published.
    pub fn is_smaller(&self) -> bool {
        self.quick || self.real
    }
}

/// How a value reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// A number of things.
    Count,
    /// Nanoseconds.
    Nanos,
    /// Bytes a second.
    BytesPerSecond,
    /// A number with two digits behind the point: ratios, amplification.
    Ratio,
    /// Things a second.
    PerSecond,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Count => "",
            Self::Nanos => "ns",
            Self::BytesPerSecond => "B/s",
            Self::Ratio => "ratio",
            Self::PerSecond => "1/s",
        })
    }
}

/// What one run of one arm measured.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Single values: name, unit, value. The same names in each run of an arm.
    pub values: Vec<(&'static str, Unit, f64)>,
    /// Times in nanoseconds, each by a name: they become p50, p99, max and mean.
    pub latencies: Vec<(&'static str, Vec<u64>)>,
    /// The content that was left.
    pub content: u64,
    /// Nanoseconds that were simulated.
    pub simulated: u64,
    /// Hash of all that happened.
    pub trace: u64,
    /// How full the queue was, where it was looked at.
    pub timeline: Vec<Depths>,
}

impl Sample {
    /// A sample with what each run has: content, simulated time, trace.
    pub fn of<T>(outcome: &Outcome<T>) -> Self {
        Self {
            content: outcome.content,
            simulated: u64::try_from(outcome.simulated.as_nanos()).unwrap_or(u64::MAX),
            trace: outcome.trace,
            timeline: outcome.timeline.clone(),
            ..Self::default()
        }
    }

    /// Adds a value.
    pub fn value(&mut self, name: &'static str, unit: Unit, value: f64) {
        self.values.push((name, unit, value));
    }

    /// Adds times.
    pub fn latency(&mut self, name: &'static str, nanos: Vec<u64>) {
        self.latencies.push((name, nanos));
    }
}

/// Where something runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Clock {
    /// In a simulation, in virtual time.
    #[default]
    Simulation,
    /// On a FUSE mount with real threads, on the host's clock.
    Mount,
}

/// One run of an arm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// Source of every choice.
    pub seed: u64,
    /// Where.
    pub place: Clock,
    /// Whether processes are in their groups; all are in one where the host has no cgroups for them.
    pub grouped: bool,
    /// How often the queue is looked at, if it is.
    pub sampled: Option<Duration>,
}

impl Attempt {
    /// In a simulation.
    pub fn simulated(seed: u64) -> Self {
        Self {
            seed,
            place: Clock::Simulation,
            grouped: true,
            sampled: None,
        }
    }
}

/// Runs an arm.
pub type Run = Arc<dyn Fn(Attempt) -> Result<Sample, String> + Send + Sync>;

/// One of the things that are compared in a cell.
#[derive(Clone)]
pub struct Arm {
    /// Its name, such as `nocheckpoint_merge`.
    pub name: String,
    /// One run.
    pub run: Run,
    /// An earlier arm of the cell whose runs are this one's, provably, to the last command: it is not run again.
    pub like: Option<String>,
}

impl Arm {
    /// An arm.
    pub fn new(
        name: impl Into<String>,
        run: impl Fn(Attempt) -> Result<Sample, String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            run: Arc::new(run),
            like: None,
        }
    }

    /// The same, whose runs are those of `earlier`.
    #[must_use]
    pub fn like(self, earlier: Option<String>) -> Self {
        Self {
            like: earlier,
            ..self
        }
    }

    /// Whether it is run by itself.
    pub(super) fn is_run(&self) -> bool {
        self.like.is_none()
    }
}

/// A condition under which arms are compared. The arms of a cell do the same with the same seeds, and leave the
/// same content.
#[derive(Clone)]
pub struct Cell {
    /// Its name.
    pub name: String,
    /// What it is, in a sentence or two.
    pub about: String,
    /// What is compared.
    pub arms: Vec<Arm>,
    /// Whether the arms leave the same content (they do where they do the same, not where time ends them).
    pub same_content: bool,
}

/// What a figure was to the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Set a parameter.
    Calibrated,
    /// Predicted: the model has not seen it.
    Predicted,
    /// No published figure: what steadfs wants, with all mechanisms on. Ours is to be at most this.
    Aim,
}

/// A published figure beside ours.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What it is, such as `A's 1000 iterations, s`.
    pub what: String,
    /// Cell, arm and value that are ours.
    pub ours: Source,
    /// Ours is divided by this, to be in the published unit.
    pub scale: f64,
    /// What was published.
    pub published: f64,
    /// Whether the model has seen it.
    pub role: Role,
    /// Why ours differs by more than a quarter, where it does.
    pub why: Option<String>,
}

/// Where a number comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A value of an arm.
    Value {
        /// The cell.
        cell: String,
        /// The arm.
        arm: String,
        /// The value.
        value: String,
    },
    /// The ratio of a value of two arms of different cells, the second to the first.
    Across {
        /// Cell and arm below.
        before: [String; 2],
        /// Cell and arm above.
        after: [String; 2],
        /// The value.
        value: String,
    },
    /// The ratio of a value of two arms, `after` to `before`.
    Ratio {
        /// The cell.
        cell: String,
        /// The arm below.
        before: String,
        /// The arm above.
        after: String,
        /// The value.
        value: String,
    },
}

impl Source {
    /// A value of an arm.
    pub fn value(cell: &str, arm: &str, value: &str) -> Self {
        Self::Value {
            cell: cell.to_owned(),
            arm: arm.to_owned(),
            value: value.to_owned(),
        }
    }

    /// The ratio of a value of two cells' arms, the second's to the first's.
    pub fn across(before: [&str; 2], after: [&str; 2], value: &str) -> Self {
        Self::Across {
            before: before.map(str::to_owned),
            after: after.map(str::to_owned),
            value: value.to_owned(),
        }
    }

    /// The ratio of a value, the second arm's to the first's.
    pub fn ratio(cell: &str, before: &str, after: &str, value: &str) -> Self {
        Self::Ratio {
            cell: cell.to_owned(),
            before: before.to_owned(),
            after: after.to_owned(),
            value: value.to_owned(),
        }
    }
}

/// A whole experiment, ready to run.
pub struct Plan {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it asks, in a sentence.
    pub title: &'static str,
    /// The device's name.
    pub device: String,
    /// What was made smaller than published, if anything.
    pub scale: Option<String>,
    /// The conditions.
    pub cells: Vec<Cell>,
    /// Published figures and ours.
    pub figures: Vec<Figure>,
    /// What a reader must know, a sentence or two each.
    pub notes: Vec<String>,
    /// The cell whose queue is shown over time, and how often it is looked at.
    pub timeline: (String, Duration),
    /// What is compared with a run in real time.
    pub checks: Vec<Check>,
}

/// A value of two arms that is compared with a run in real time.
#[derive(Clone, Debug)]
pub struct Check {
    /// The cell.
    pub cell: String,
    /// The arms: without the mechanism, with it.
    pub arms: [String; 2],
    /// The value.
    pub value: &'static str,
    /// Why the ratio of both is another one in real time, where it is.
    pub why: &'static str,
}
