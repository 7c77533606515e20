//! What came out, as data. Holds nothing that differs between two runs of the same seeds.

use serde::{Serialize, Serializer};

use super::plan::Unit;
use super::statistics::Estimate;
use super::timeline::Timeline;

/// An experiment's result.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Its name.
    pub experiment: String,
    /// What it asks.
    pub title: String,
    /// Where the numbers come from: `simulated`.
    pub source: &'static str,
    /// The device's name.
    pub device: String,
    /// How many seeds each arm ran with.
    pub seeds: u64,
    /// What was made smaller than published.
    pub scale: Option<String>,
    /// Virtual time of all runs together, in nanoseconds.
    pub simulated_ns: u64,
    /// Results by condition.
    pub cells: Vec<CellReport>,
    /// Published figures beside ours.
    pub figures: Vec<FigureReport>,
    /// What a reader must know.
    pub notes: Vec<String>,
    /// How full the queue was over time.
    pub timeline: Option<Timeline>,
    /// The same in real time, if it was asked for; only this part differs from run to run.
    pub real: Option<RealReport>,
}

/// An experiment in real time beside its simulation.
#[derive(Clone, Debug, Serialize)]
pub struct RealReport {
    /// How many seeds.
    pub seeds: u64,
    /// The host's processors.
    pub processors: usize,
    /// What else wanted them when it began: the first word of /proc/loadavg.
    pub load: String,
    /// How groups were made, or why there were none (in both worlds then).
    pub groups: String,
    /// The values.
    pub rows: Vec<RealRow>,
}

/// A value in both worlds.
#[derive(Clone, Debug, Serialize)]
pub struct RealRow {
    /// What.
    pub what: String,
    /// Its unit.
    #[serde(serialize_with = "as_text")]
    pub unit: Unit,
    /// In simulation.
    pub simulated: Estimate,
    /// In real time.
    pub real: Estimate,
    /// Real to simulated.
    pub ratio: f64,
    /// Of the ratio of two arms: whether both worlds agree within 20 %.
    pub agrees: Option<bool>,
    /// Why they do not.
    pub why: Option<String>,
}

/// A condition's results.
#[derive(Clone, Debug, Serialize)]
pub struct CellReport {
    /// Its name.
    pub name: String,
    /// What it is.
    pub about: String,
    /// Its arms.
    pub arms: Vec<ArmReport>,
}

/// An arm's results.
#[derive(Clone, Debug, Serialize)]
pub struct ArmReport {
    /// Its name.
    pub name: String,
    /// The arm whose runs are this one's, provably; it was not run again.
    pub like: Option<String>,
    /// What was measured.
    pub measures: Vec<Measure>,
    /// A hash of each seed's whole run: the same for the same program, seed and device.
    #[serde(serialize_with = "as_hex")]
    pub traces: Vec<u64>,
}

/// One value over all seeds.
#[derive(Clone, Debug, Serialize)]
pub struct Measure {
    /// Its name.
    pub name: String,
    /// Its unit.
    #[serde(serialize_with = "as_text")]
    pub unit: Unit,
    /// The mean and its interval.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// Each seed's.
    pub seeds: Vec<f64>,
}

/// A published figure and ours.
#[derive(Clone, Debug, Serialize)]
pub struct FigureReport {
    /// What it is.
    pub what: String,
    /// What was published.
    pub published: f64,
    /// What came out.
    pub ours: Estimate,
    /// How far the mean is from what was published: 0.1 is ten percent more.
    pub deviation: f64,
    /// Whether the model had not seen it.
    pub predicted: bool,
    /// Whether it is no published figure but an aim: ours is to be at most this.
    pub aim: bool,
    /// Why it is off by more than a quarter.
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
