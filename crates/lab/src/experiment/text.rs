//! A report as text.

use std::fmt::Write as _;

use super::plan::Unit;
use super::report::{CellReport, FigureReport, Measure, RealReport, Report};
use super::statistics::Estimate;

/// A number with three significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The divisor of a value of this size, and its unit.
fn readable(unit: Unit, size: f64) -> (f64, &'static str) {
    match unit {
        Unit::Nanos if size >= 1e10 => (1e9, "s"),
        Unit::Nanos if size >= 1e6 => (1e6, "ms"),
        Unit::Nanos => (1e3, "us"),
        Unit::BytesPerSecond => (1_048_576.0, "MiB/s"),
        Unit::PerSecond => (1.0, "/s"),
        Unit::Count | Unit::Ratio => (1.0, ""),
    }
}

/// A mean with its interval, such as `47.9 (47.1-48.7) ms`.
pub(super) fn estimate(unit: Unit, of: &Estimate) -> String {
    let (divisor, word) = readable(unit, of.mean.abs());
    let show = |value: f64| short(value / divisor);
    let (mean, low, high) = (show(of.mean), show(of.low), show(of.high));
    let space = if word.is_empty() { "" } else { " " };
    match low == high {
        true => format!("{mean}{space}{word}"),
        false => format!("{mean} ({low}-{high}){space}{word}"),
    }
}

/// Rows of columns as wide as their content; the first is aligned left, the others right.
fn table(out: &mut String, rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let mut line = String::from("  ");
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // Writing to a string does not fail.
            let _ = match column {
                0 => write!(line, "{cell:<width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

impl Report {
    /// The whole report for a terminal.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        let seconds = self.simulated_ns as f64 / 1e9;
        let _ = match &self.real {
            None => writeln!(
                out,
                "{}: {}\nEvery number that is ours is simulated: device {}, {} seeds, {seconds:.0} s of virtual time; \
                 in brackets 95 % intervals over the seeds.",
                self.experiment, self.title, self.device, self.seeds
            ),
            Some(_) => writeln!(
                out,
                "{}: {}\nIn simulation and in real time: device {} (modelled in both), {} seeds; in brackets 95 % \
                 intervals over the seeds.",
                self.experiment, self.title, self.device, self.seeds
            ),
        };
        if let Some(scale) = &self.scale {
            let _ = writeln!(out, "Scaled down: {scale}.");
        }
        if !self.figures.is_empty() {
            out.push_str("\nPublished and ours\n");
            table(&mut out, &figure_rows(&self.figures));
            for figure in &self.figures {
                if let Some(why) = figure.not_compared.as_ref().or(figure.why.as_ref()) {
                    let _ = writeln!(out, "  {}: {why}", figure.what);
                }
            }
        }
        if let Some(real) = &self.real {
            real.add_to(&mut out);
        }
        for cell in &self.cells {
            let _ = writeln!(out, "\n{}: {}", cell.name, cell.about);
            table(&mut out, &cell_rows(cell));
            for line in remarks(cell) {
                let _ = writeln!(out, "  {line}");
            }
        }
        if !self.notes.is_empty() {
            out.push_str("\nNotes\n");
            for note in &self.notes {
                let _ = writeln!(out, "- {note}");
            }
        }
        out
    }
}

impl RealReport {
    fn add_to(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "\nSimulated and real: {} seeds in both worlds; real is a FUSE mount of the modelled device on the host's clock, \
             {} processors (load average {} when it began), {}",
            self.seeds, self.processors, self.load, self.groups
        );
        table(out, &real_rows(self));
        for row in &self.rows {
            if let Some(why) = &row.why {
                let _ = writeln!(out, "  {}: {why}", row.what);
            }
        }
    }
}

pub(super) fn real_rows(real: &RealReport) -> Vec<Vec<String>> {
    let head = ["", "simulated", "REAL", "real to simulated", "within 20 %"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for row in &real.rows {
        let agrees = row
            .agrees
            .map_or("", |agrees| if agrees { "yes" } else { "NO" });
        rows.push(vec![
            row.what.clone(),
            estimate(row.unit, &row.simulated),
            estimate(row.unit, &row.real),
            short(row.ratio),
            agrees.to_owned(),
        ]);
    }
    rows
}

pub(super) fn figure_rows(figures: &[FigureReport]) -> Vec<Vec<String>> {
    let head = [
        "",
        "published, or aim",
        "ours (simulated)",
        "off by",
        "the model",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for figure in figures {
        rows.push(vec![
            figure.what.clone(),
            short(figure.published),
            match &figure.ours {
                Some(ours) => estimate(Unit::Ratio, ours),
                None => "not compared".to_owned(),
            },
            figure.deviation.map_or_else(String::new, |deviation| {
                format!("{:+.0} %", deviation * 100.0)
            }),
            match (figure.aim, figure.predicted) {
                (true, _) => "upper limit",
                (false, true) => "predicted",
                (false, false) => "calibrated by it",
            }
            .to_owned(),
        ]);
    }
    rows
}

/// The arms that were not run, and why the arms are not compared.
pub(super) fn remarks(cell: &CellReport) -> impl Iterator<Item = String> {
    let arms = cell.arms.iter();
    let run_once = arms.filter_map(|arm| {
        let like = arm.like.as_ref()?;
        Some(format!(
            "{}: identical to {like} by construction, not run again",
            arm.name
        ))
    });
    run_once.chain(cell.not_compared.clone())
}

pub(super) fn cell_rows(cell: &CellReport) -> Vec<Vec<String>> {
    let mut head = vec![String::new()];
    head.extend(cell.arms.iter().map(|arm| arm.name.clone()));
    let mut rows = vec![head];
    let names: Vec<&Measure> =
        cell.arms
            .iter()
            .flat_map(|arm| &arm.measures)
            .fold(Vec::new(), |mut names, measure| {
                if names
                    .iter()
                    .all(|known: &&Measure| known.name != measure.name)
                {
                    names.push(measure);
                }
                names
            });
    for measure in names {
        let mut row = vec![measure.name.clone()];
        for arm in &cell.arms {
            let found = arm.measures.iter().find(|m| m.name == measure.name);
            row.push(found.map_or_else(String::new, |m| estimate(m.unit, &m.estimate)));
        }
        rows.push(row);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_about_three_digits_and_a_unit() {
        let of = |mean: f64| Estimate {
            mean,
            low: mean * 0.9,
            high: mean * 1.1,
        };
        assert_eq!(estimate(Unit::Nanos, &of(4.8e7)), "48.0 (43.2-52.8) ms");
        assert_eq!(estimate(Unit::Nanos, &of(6.8e10)), "68.0 (61.2-74.8) s");
        assert_eq!(estimate(Unit::Count, &of(1174.0)), "1174 (1057-1291)");
        let exact = Estimate::of(&[0.5, 0.5]);
        assert_eq!(estimate(Unit::Ratio, &exact), "0.50");
        assert_eq!(
            estimate(Unit::BytesPerSecond, &Estimate::of(&[1048576.0])),
            "1.00 MiB/s"
        );
    }

    #[test]
    fn columns_stand_below_each_other() {
        let rows = [vec!["a", "bb"], vec!["ccc", "d"]];
        let rows = rows.map(|row| row.into_iter().map(str::to_owned).collect());
        let mut out = String::new();
        table(&mut out, &rows);
        assert_eq!(out, "  a    bb\n  ccc   d\n");
    }
}
