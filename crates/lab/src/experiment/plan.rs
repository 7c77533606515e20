//! The parts of an experiment: cells (conditions), arms (the variants compared in them), and the measurements of one
//! run.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::acts::Evidence;
use super::testbed::Outcome;
use super::timeline::Depths;
use crate::flash::{ParameterError, Parameters};

/// Why an experiment failed.
#[derive(Debug, Error)]
pub enum Error {
    /// The parameter file has an error.
    #[error("{0}")]
    Device(#[from] ParameterError),
    /// The volume for all runs could not be prepared.
    #[error("{0}")]
    Setup(String),
    /// A run failed, or left a corrupt volume.
    #[error("{cell}, {arm}, seed {seed}: {why}")]
    Run {
        /// The cell.
        cell: String,
        /// The arm.
        arm: String,
        /// The seed.
        seed: u64,
        /// The error.
        why: String,
    },
    /// Arms that do the same work left different content.
    #[error("{cell}, seed {seed}: the content of {arm} differs from that of {first}")]
    Content {
        /// The cell.
        cell: String,
        /// The first arm.
        first: String,
        /// The other arm.
        arm: String,
        /// The seed.
        seed: u64,
    },
}

/// The user's choices.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Device model: a built-in name or a file.
    pub device: Option<PathBuf>,
    /// Number of seeds; the default is ten, with `quick` three.
    pub seeds: Option<u64>,
    /// A smaller run: a smoke test.
    pub quick: bool,
    /// Small enough to run in real time as well.
    pub real: bool,
}

impl Settings {
    /// The device: the user's, or the experiment's own.
    ///
    /// # Errors
    /// The parameter file has an error.
    pub fn device(&self, own: &str) -> Result<Parameters, ParameterError> {
        match &self.device {
            Some(path) => Parameters::find(path),
            None => Parameters::find(own.as_ref()),
        }
    }

    /// The seeds are 1 to this number.
    pub fn seeds(&self) -> u64 {
        let usual = match (self.real, self.quick) {
            (true, true) => 1,
            (true, false) | (false, true) => 3,
            (false, false) => 10,
        };
        self.seeds.unwrap_or(usual)
    }

    /// `full`, or with --quick `quick`, or in real time `real`.
    pub fn scaled<T>(&self, full: T, quick: T, real: T) -> T {
        match (self.real, self.quick) {
            (true, _) => real,
            (false, true) => quick,
            (false, false) => full,
        }
    }

    /// Whether the run is smaller than the published one.
    pub fn is_smaller(&self) -> bool {
        self.quick || self.real
    }
}

/// The unit of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// A number.
    Count,
    /// Nanoseconds.
    Nanos,
    /// Bytes per second.
    BytesPerSecond,
    /// A ratio with two decimals, such as write amplification.
    Ratio,
    /// Operations per second.
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

/// The measurements of one run of one arm.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Name, unit, value; the same names in each run of an arm.
    pub values: Vec<(&'static str, Unit, f64)>,
    /// Latencies in nanoseconds by name; reported as p50, p99, max and mean.
    pub latencies: Vec<(&'static str, Vec<u64>)>,
    /// Hash of the final content.
    pub content: u64,
    /// Simulated nanoseconds.
    pub simulated: u64,
    /// Hash of all events.
    pub trace: u64,
    /// Queue depths, if they were sampled.
    pub timeline: Vec<Depths>,
}

impl Sample {
    /// A sample with content, simulated time and trace of a run.
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

    /// Adds latencies.
    pub fn latency(&mut self, name: &'static str, nanos: Vec<u64>) {
        self.latencies.push((name, nanos));
    }
}

/// The clock of a run.
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
    /// Seed of the random number generator.
    pub seed: u64,
    /// The clock.
    pub place: Clock,
    /// Whether processes are in their cgroups; without cgroups on the host all are in one.
    pub grouped: bool,
    /// Sampling interval of the queue, if it is sampled.
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

/// One of the variants compared in a cell.
#[derive(Clone)]
pub struct Arm {
    /// Its name, such as `nocheckpoint_merge`.
    pub name: String,
    /// Runs it once.
    pub run: Run,
    /// An earlier arm of the cell whose runs are provably identical, to the last command: this one is not run.
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

    /// The same arm, with runs identical to those of `earlier`.
    #[must_use]
    pub fn like(self, earlier: Option<String>) -> Self {
        Self {
            like: earlier,
            ..self
        }
    }

    /// Whether the arm is run.
    pub(super) fn is_run(&self) -> bool {
        self.like.is_none()
    }
}

/// A condition under which arms are compared. The arms of a cell do the same work with the same seeds, and leave the
/// same content.
#[derive(Clone)]
pub struct Cell {
    /// Its name.
    pub name: String,
    /// One or two sentences about it.
    pub about: String,
    /// The arms.
    pub arms: Vec<Arm>,
    /// Whether the arms leave the same content (true unless a time limit ends them).
    pub same_content: bool,
    /// What must be seen for the mechanism to have acted; otherwise the arms are not compared.
    pub evidence: Vec<Evidence>,
}

/// How the model used a figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It calibrated a parameter.
    Calibrated,
    /// It is predicted: the model did not use it.
    Predicted,
    /// It is not published but a goal of steadfs with all mechanisms on: ours must not exceed it.
    Aim,
}

/// A published figure and ours.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What it is, such as `A's 1000 iterations, s`.
    pub what: String,
    /// Our value.
    pub ours: Source,
    /// Ours is divided by this to get the published unit.
    pub scale: f64,
    /// The published value.
    pub published: f64,
    /// How the model used it.
    pub role: Role,
    /// Why ours deviates, if by more than a quarter.
    pub why: Option<String>,
}

/// Where our value comes from.
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
        /// Cell and arm of the denominator.
        before: [String; 2],
        /// Cell and arm of the numerator.
        after: [String; 2],
        /// The value.
        value: String,
    },
    /// The ratio of a value of two arms, `after` to `before`.
    Ratio {
        /// The cell.
        cell: String,
        /// The arm of the denominator.
        before: String,
        /// The arm of the numerator.
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

    /// The ratio of a value of arms of two cells, the second to the first.
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
    /// Its question, in one sentence.
    pub title: &'static str,
    /// The device's name.
    pub device: String,
    /// The reduction from the published size, if any.
    pub scale: Option<String>,
    /// The conditions.
    pub cells: Vec<Cell>,
    /// Published figures and ours.
    pub figures: Vec<Figure>,
    /// Notes for the reader, one or two sentences each.
    pub notes: Vec<String>,
    /// The cell whose queue is shown over time, and the sampling interval.
    pub timeline: (String, Duration),
    /// Values compared with a run in real time.
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
    /// Why the ratio differs in real time, if it does.
    pub why: &'static str,
}
