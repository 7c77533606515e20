//! Samples and their report.

use std::collections::BTreeMap;

use crate::activity_run::RunResult;
use crate::measure::median;
use crate::row::{Goal, ROWS, Row, row};
use crate::subject::{CACHE_SIZE, Subject};

/// Memory that a server may use beside its cache, in bytes.
const MEMORY_BESIDE_CACHE: u64 = 64 << 20;

/// All samples.
#[derive(Default)]
pub struct Samples {
    values: BTreeMap<(&'static str, Subject), Vec<f64>>,
    used: BTreeMap<(&'static str, Subject), Vec<RunResult>>,
    failures: Vec<Failure>,
}

/// A run that failed.
struct Failure {
    activity: &'static str,
    subject: Subject,
    why: String,
}

impl Samples {
    /// Adds the result of a run of `activity`.
    pub fn add(&mut self, activity: &'static str, subject: Subject, mut result: RunResult) {
        for (key, value) in result.values.drain(..) {
            assert!(row(key).is_some(), "{activity} records unknown row {key}");
            self.values.entry((key, subject)).or_default().push(value);
        }
        self.used
            .entry((activity, subject))
            .or_default()
            .push(result);
    }

    /// Records a failed run.
    pub fn fail(&mut self, activity: &'static str, subject: Subject, why: String) {
        self.failures.push(Failure {
            activity,
            subject,
            why,
        });
    }

    /// Whether no run of steadfs and the kernel failed. Failures of fuse2fs are only shown.
    pub fn complete(&self) -> bool {
        self.failures
            .iter()
            .all(|failure| failure.subject == Subject::Fuse2fs)
    }

    fn cell(&self, key: &'static str, subject: Subject) -> Option<&[f64]> {
        self.values.get(&(key, subject)).map(Vec::as_slice)
    }

    fn middle(&self, key: &'static str, subject: Subject) -> Option<f64> {
        self.cell(key, subject).map(median)
    }

    /// Rows with samples.
    fn rows(&self) -> impl Iterator<Item = &'static Row> {
        ROWS.iter().filter(|row| {
            Subject::ALL
                .iter()
                .any(|s| self.cell(row.key, *s).is_some())
        })
    }

    /// A subject's value relative to the base of the row's goal.
    fn ratio(&self, row: &Row, subject: Subject) -> Option<f64> {
        let base = match (row.goal, row.goal.base()) {
            (Goal::Itself(_), _) => Some(1.0),
            (_, Some(key)) => self.middle(key, subject),
            (_, None) => self.middle(row.key, Subject::KernelDirect),
        };
        Some(self.middle(row.key, subject)? / base?)
    }

    /// steadfs on f2fs relative to steadfs on ext4.
    fn f2fs_ratio(&self, row: &Row) -> Option<f64> {
        let ours = |subject| self.middle(row.key, subject);
        Some(ours(Subject::SteadfsF2fs)? / ours(Subject::Steadfs)?)
    }
}

/// The whole report: spread, resources, failures, and the table of rows at the end.
pub fn markdown(samples: &Samples, subjects: &[Subject]) -> String {
    let mut text = spread(samples, subjects);
    text += &resources(samples, subjects);
    for failure in &samples.failures {
        let Failure {
            activity,
            subject,
            why,
        } = failure;
        text += &format!("FAILED: {activity}, {subject}: {why}\n");
    }
    text + &table(samples, subjects)
}

/// Smallest, median and largest sample of each cell.
fn spread(samples: &Samples, subjects: &[Subject]) -> String {
    let mut text = String::from("Samples: median (smallest to largest)\n\n");
    for row in samples.rows() {
        text += &format!("{}, {}:", row.key, row.unit);
        for &subject in subjects {
            let Some(values) = samples.cell(row.key, subject) else {
                continue;
            };
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let (middle, least, most) = (short(median(values)), short(least), short(most));
            text += &format!("  {subject} {middle} ({least} to {most})");
        }
        text.push('\n');
    }
    text.push('\n');
    text
}

/// CPU time and memory of each activity.
fn resources(samples: &Samples, subjects: &[Subject]) -> String {
    let mut text = format!(
        "Processor seconds of the machine / of the server, and the server's peak memory (steadfs: \
         cache_size {} MiB)\n\n",
        CACHE_SIZE >> 20
    );
    for ((activity, subject), runs) in &samples.used {
        if !subjects.contains(subject) {
            continue;
        }
        let machine: Vec<f64> = runs.iter().map(|run| run.machine.as_secs_f64()).collect();
        let server: Vec<f64> = runs
            .iter()
            .map(|run| run.server.cpu.as_secs_f64())
            .collect();
        let peak = runs.iter().map(|run| run.server.peak).max().unwrap_or(0);
        text += &format!("{activity}, {subject}: {}", short(median(&machine)));
        if peak > 0 {
            text += &format!(" / {}, {} MiB", short(median(&server)), peak >> 20);
        }
        if subject.is_ours() && peak > CACHE_SIZE + MEMORY_BESIDE_CACHE {
            text += " (misses its goal: cache_size + 64 MiB)";
        }
        text.push('\n');
    }
    text.push('\n');
    text
}

/// Medians, ratios and goals.
fn table(samples: &Samples, subjects: &[Subject]) -> String {
    let mut text = String::from("| row | unit |");
    for subject in subjects {
        text += &format!(" {subject} |");
    }
    text += " ratio | goal | |";
    let f2fs = subjects.contains(&Subject::SteadfsF2fs);
    if f2fs {
        text += " f2fs to ext4 | goal | |";
    }
    text += "\n|---|---|";
    text += &"--:|".repeat(subjects.len());
    text += "--:|---|---|";
    text += if f2fs { "--:|---|---|\n" } else { "\n" };
    for row in samples.rows() {
        text += &line(samples, row, subjects);
    }
    text
}

fn line(samples: &Samples, row: &Row, subjects: &[Subject]) -> String {
    let mut text = format!("| {} | {} |", row.key, row.unit);
    for &subject in subjects {
        let middle = samples
            .middle(row.key, subject)
            .map_or_else(String::new, short);
        let compared = subject != Subject::KernelDirect && !matches!(row.goal, Goal::Itself(_));
        let ratio = samples
            .ratio(row, subject)
            .filter(|_| compared)
            .map_or_else(String::new, |ratio| format!(" ({ratio:.2})"));
        text += &format!(" {middle}{ratio} |");
    }
    let ratio = samples.ratio(row, Subject::Steadfs);
    let reached = ratio.and_then(|ratio| row.goal.reached(ratio));
    text += &verdict(ratio, &row.goal.text(), reached);
    if subjects.contains(&Subject::SteadfsF2fs) {
        text += &f2fs_verdict(samples, row);
    }
    text + "\n"
}

/// The same for f2fs: relative to ext4, unless the value is a ratio already.
fn f2fs_verdict(samples: &Samples, row: &Row) -> String {
    if let Goal::Itself(_) = row.goal {
        let ratio = samples.middle(row.key, Subject::SteadfsF2fs);
        let reached = ratio.and_then(|ratio| row.goal.reached(ratio));
        return verdict(ratio, &row.goal.text(), reached);
    }
    let ratio = samples.f2fs_ratio(row);
    let goal = row
        .f2fs
        .map_or_else(String::new, |least| format!("≥ {least}"));
    let reached = row.f2fs.zip(ratio).map(|(least, ratio)| ratio >= least);
    verdict(ratio, &goal, reached)
}

/// A ratio, its goal, and whether it is reached.
fn verdict(ratio: Option<f64>, goal: &str, reached: Option<bool>) -> String {
    let shown = ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
    let verdict = match reached {
        Some(true) => "meets",
        Some(false) => "**misses**",
        None => "",
    };
    format!(" {shown} | {goal} | {verdict} |")
}

/// Every sample, for other programs.
pub fn json(samples: &Samples) -> String {
    let rows: Vec<_> = samples
        .values
        .iter()
        .map(|((key, subject), values)| {
            serde_json::json!({
                "row": key,
                "unit": row(key).map(|row| row.unit),
                "subject": subject.name(),
                "median": median(values),
                "samples": values,
            })
        })
        .collect();
    serde_json::json!({ "rows": rows }).to_string()
}

/// Three or four significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(kernel: &[f64], ours: &[f64]) -> Samples {
        let mut samples = Samples::default();
        for (subject, values) in [(Subject::KernelDirect, kernel), (Subject::Steadfs, ours)] {
            for value in values {
                let result = RunResult {
                    values: vec![("fs_mark 0", *value)],
                    ..RunResult::default()
                };
                samples.add("fs_mark-0", subject, result);
            }
        }
        samples
    }

    #[test]
    fn the_table_shows_medians_ratios_and_goals() {
        let subjects = [Subject::KernelDirect, Subject::Steadfs];
        let result = table(
            &samples(&[900.0, 1000.0, 5000.0], &[400.0, 1.0, 500.0]),
            &subjects,
        );
        let line = result.lines().nth(2).unwrap();
        assert_eq!(
            line,
            "| fs_mark 0 | files/s | 1000 | 400 (0.40) | 0.40 | ≥ 0.35 | meets |"
        );
        let result = table(&samples(&[1000.0], &[349.0]), &subjects);
        assert!(result.contains("**misses**"), "{result}");
    }

    #[test]
    fn f2fs_is_measured_by_ext4() {
        let subjects = [Subject::Steadfs, Subject::SteadfsF2fs];
        let mut samples = Samples::default();
        for (subject, value) in [(Subject::Steadfs, 100.0), (Subject::SteadfsF2fs, 120.0)] {
            for key in ["random write, fsync every 1", "fs_mark 1"] {
                let result = RunResult {
                    values: vec![(key, value)],
                    ..RunResult::default()
                };
                samples.add("some", subject, result);
            }
        }
        let result = table(&samples, &subjects);
        let lines: Vec<_> = result.lines().collect();
        assert!(lines[2].ends_with("| 1.20 | ≥ 1 | meets |"), "{result}");
        assert!(
            lines[3].ends_with("| 1.20 | ≥ 1.3 | **misses** |"),
            "{result}"
        );
    }

    #[test]
    fn a_ratio_is_measured_by_itself() {
        let subjects = [
            Subject::KernelDirect,
            Subject::Steadfs,
            Subject::SteadfsF2fs,
        ];
        let mut samples = Samples::default();
        for (subject, value) in [(Subject::Steadfs, 1.01), (Subject::SteadfsF2fs, 1.2)] {
            let result = RunResult {
                values: vec![("lone fsync, boost to noboost", value)],
                ..RunResult::default()
            };
            samples.add("mechanisms", subject, result);
        }
        let result = table(&samples, &subjects);
        let line = result.lines().nth(2).unwrap();
        assert_eq!(
            line,
            "| lone fsync, boost to noboost | × |  | 1.01 | 1.20 | 1.01 | ≤ 1.03 | meets | \
             1.20 | ≤ 1.03 | **misses** |"
        );
    }

    #[test]
    fn a_failure_of_ours_is_a_failure_of_the_run() {
        let mut samples = samples(&[1.0], &[1.0]);
        samples.fail("fs_mark-0", Subject::Fuse2fs, "out of memory".to_owned());
        assert!(samples.complete());
        samples.fail("fs_mark-0", Subject::Steadfs, "not clean".to_owned());
        assert!(!samples.complete());
        assert!(
            markdown(&samples, &Subject::ALL).contains("FAILED: fs_mark-0, steadfs: not clean")
        );
    }
}
