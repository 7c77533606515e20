//! The results as data. They are equal for equal seeds.

use serde::{Serialize, Serializer};

use super::plan::Unit;
use super::statistics::Estimate;
use super::timeline::Timeline;

/// An experiment's result.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Its name.
    pub experiment: String,
    /// Its question.
    pub title: String,
    /// `simulated`, or `simulated and real`.
    pub source: &'static str,
    /// The device's name.
    pub device: String,
    /// Number of seeds per arm.
    pub seeds: u64,
    /// The reduction from the published size.
    pub scale: Option<String>,
    /// Virtual time of all runs together, in nanoseconds.
    pub simulated_ns: u64,
    /// Results per condition.
    pub cells: Vec<CellReport>,
    /// Published figures and ours.
    pub figures: Vec<FigureReport>,
    /// Notes for the reader.
    pub notes: Vec<String>,
    /// Queue depths over time.
    pub timeline: Option<Timeline>,
    /// The same in real time, with `--real`; only this part differs from run to run.
    pub real: Option<RealReport>,
}

/// An experiment in real time beside its simulation.
#[derive(Clone, Debug, Serialize)]
pub struct RealReport {
    /// Number of seeds.
    pub seeds: u64,
    /// The host's processors.
    pub processors: usize,
    /// The host's load at the start: the first word of /proc/loadavg.
    pub load: String,
    /// How cgroups were created, or why there were none (on both clocks then).
    pub groups: String,
    /// The values.
    pub rows: Vec<RealRow>,
}

/// A value on both clocks.
#[derive(Clone, Debug, Serialize)]
pub struct RealRow {
    /// Its name.
    pub what: String,
    /// Its unit.
    #[serde(serialize_with = "as_text")]
    pub unit: Unit,
    /// In simulation.
    pub simulated: Estimate,
    /// In real time.
    pub real: Estimate,
    /// The real value divided by the simulated one.
    pub ratio: f64,
    /// For the ratio of two arms: whether both clocks agree within 20 %.
    pub agrees: Option<bool>,
    /// Why they do not agree.
    pub why: Option<String>,
}

/// A condition's results.
#[derive(Clone, Debug, Serialize)]
pub struct CellReport {
    /// Its name.
    pub name: String,
    /// One or two sentences about it.
    pub about: String,
    /// Its arms.
    pub arms: Vec<ArmReport>,
    /// Why the arms are not compared: the mechanism did not act.
    pub not_compared: Option<String>,
}

/// An arm's results.
#[derive(Clone, Debug, Serialize)]
pub struct ArmReport {
    /// Its name.
    pub name: String,
    /// The arm whose runs are provably identical; this one was not run.
    pub like: Option<String>,
    /// The measured values.
    pub measures: Vec<Measure>,
    /// A hash of each seed's run: the same for the same program, seed and device.
    #[serde(serialize_with = "as_hex")]
    pub traces: Vec<u64>,
}

/// A value over all seeds.
#[derive(Clone, Debug, Serialize)]
pub struct Measure {
    /// Its name.
    pub name: String,
    /// Its unit.
    #[serde(serialize_with = "as_text")]
    pub unit: Unit,
    /// The mean and its confidence interval.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// The value of each seed.
    pub seeds: Vec<f64>,
}

/// A published figure and ours.
#[derive(Clone, Debug, Serialize)]
pub struct FigureReport {
    /// Its name.
    pub what: String,
    /// The published value.
    pub published: f64,
    /// Our value, if it is compared.
    pub ours: Option<Estimate>,
    /// Relative deviation of our mean: 0.1 is ten percent above.
    pub deviation: Option<f64>,
    /// Why it is not compared: the mechanism did not act.
    pub not_compared: Option<String>,
    /// Whether the model did not use it.
    pub predicted: bool,
    /// Whether it is not published but an upper limit that we aim for.
    pub aim: bool,
    /// Why it deviates by more than a quarter.
    pub why: Option<String>,
}

fn as_text<S: Serializer>(unit: &Unit, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(unit)
}

fn as_hex<S: Serializer>(traces: &[u64], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(traces.iter().map(|trace| format!("{trace:016x}")))
}

impl Report {
    /// As one JSON object, with a newline.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("strings and finite numbers");
        text.push('\n');
        text
    }
}
