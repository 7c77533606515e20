//! Charts of a report, as SVG.

use std::fmt::Write as _;

use super::plan::Unit;
use super::report::{ArmReport, CellReport, Report};
use super::statistics::Estimate;
use super::text::estimate;

const WIDTH: f64 = 900.0;
/// The right end of labels, and the ends of the plot.
const LEFT: f64 = 390.0;
const RIGHT: f64 = 865.0;
const ROW: f64 = 22.0;
const TOP: f64 = 46.0;
/// Maximum number of labels below the plot that do not overlap.
const MOST_TICKS: f64 = 16.0;

/// Writing to a string does not fail.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {{ let _ = writeln!($out, $($arg)*); }};
}

/// Text inside an element.
pub(super) fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

/// An axis: maps values to positions.
#[derive(Clone, Copy)]
struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Axis {
    fn at(self, value: f64) -> f64 {
        let share = if self.logarithmic {
            let (low, high) = (self.low.ln(), self.high.ln());
            (value.max(self.low).ln() - low) / (high - low)
        } else {
            (value - self.low) / (self.high - self.low)
        };
        LEFT + share.clamp(0.0, 1.0) * (RIGHT - LEFT)
    }
}

struct Canvas {
    body: String,
    rows: usize,
    axis: Axis,
}

impl Canvas {
    fn new(axis: Axis) -> Self {
        Self {
            body: String::new(),
            rows: 0,
            axis,
        }
    }

    /// The centre of the next row, with its label.
    fn row(&mut self, label: &str, bold: bool) -> f64 {
        let y = TOP + ROW * self.rows as f64 + ROW / 2.0;
        self.rows += 1;
        let weight = if bold { " font-weight=\"bold\"" } else { "" };
        put!(
            self.body,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\"{weight}>{}</text>",
            LEFT - 10.0,
            y + 4.0,
            escaped(label)
        );
        y
    }

    fn line(&mut self, y: f64, from: f64, to: f64, class: &str) {
        let (a, b) = (self.axis.at(from), self.axis.at(to));
        put!(
            self.body,
            "<line class=\"{class}\" x1=\"{a:.1}\" y1=\"{y}\" x2=\"{b:.1}\" y2=\"{y}\"/>"
        );
    }

    fn tick(&mut self, y: f64, value: f64, class: &str) {
        let x = self.axis.at(value);
        put!(
            self.body,
            "<line class=\"{class}\" x1=\"{x:.1}\" y1=\"{}\" x2=\"{x:.1}\" y2=\"{}\"/>",
            y - 6.0,
            y + 6.0
        );
    }

    fn bar(&mut self, y: f64, value: f64, class: &str) {
        let (a, b) = (self.axis.at(self.axis.low), self.axis.at(value));
        put!(
            self.body,
            "<rect class=\"{class}\" x=\"{a:.1}\" y=\"{}\" width=\"{:.1}\" height=\"12\"/>",
            y - 6.0,
            (b - a).max(0.5)
        );
    }

    fn dot(&mut self, y: f64, value: f64) {
        let x = self.axis.at(value);
        put!(
            self.body,
            "<circle class=\"mean\" cx=\"{x:.1}\" cy=\"{y}\" r=\"4\"/>"
        );
    }

    /// Completes the picture, with grid lines at these values.
    fn finish(self, title: &str, grid: &[(f64, String)]) -> String {
        let bottom = TOP + ROW * self.rows as f64;
        let mut out = String::new();
        put!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" \
             font-family=\"sans-serif\" font-size=\"12\">",
            bottom + 30.0
        );
        out.push_str(
            "<style>.grid{stroke:#ddd}.range{stroke:#7a9cc6;stroke-width:5}\
             .rank{stroke:#1f4e8c;stroke-width:2}.ours{fill:#7a9cc6}.theirs{fill:#c9c9c9}\
             .interval{stroke:#1f4e8c;stroke-width:1.5}.mean{fill:#c0392b}</style>\n",
        );
        put!(out, "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>");
        put!(
            out,
            "<text x=\"10\" y=\"20\" font-size=\"14\" font-weight=\"bold\">{}</text>",
            escaped(title)
        );
        for (value, label) in grid {
            let x = self.axis.at(*value);
            put!(
                out,
                "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                bottom + 16.0,
                escaped(label)
            );
        }
        out.push_str(&self.body);
        out.push_str("</svg>\n");
        out
    }
}

impl Report {
    /// Every published figure as a bar of length 1, with ours beside it and its interval; figures that are not compared
    /// are omitted.
    pub fn figures_chart(&self) -> String {
        let share = |value: f64, published: f64| value / published;
        let highest = self
            .figures
            .iter()
            .filter_map(|figure| Some(share(figure.ours.as_ref()?.high, figure.published)))
            .fold(1.25, f64::max);
        let axis = Axis {
            low: 0.0,
            high: (highest * 4.0).ceil() / 4.0,
            logarithmic: false,
        };
        let mut canvas = Canvas::new(axis);
        for figure in &self.figures {
            let Some(Estimate { mean, low, high }) = figure.ours else {
                continue;
            };
            let role = match (figure.aim, figure.predicted) {
                (true, _) => "aim",
                (false, true) => "predicted",
                (false, false) => "calibrated",
            };
            let y = canvas.row(&format!("{} ({role})", figure.what), false);
            canvas.bar(y - 4.0, 1.0, "theirs");
            let of = |value| share(value, figure.published);
            canvas.bar(y + 4.0, of(mean), "ours");
            canvas.line(y + 4.0, of(low), of(high), "interval");
        }
        let mut step = 0.25;
        while axis.high / step > MOST_TICKS {
            step *= 2.0;
        }
        let steps = (axis.high / step).floor() as u32;
        let grid: Vec<_> = (0..=steps)
            .map(|n| f64::from(n) * step)
            .map(|value| (value, format!("{value}")))
            .collect();
        let title = format!(
            "{}: published or aim (grey) as 1, ours simulated (blue) with 95 % interval",
            self.experiment
        );
        canvas.finish(&title, &grid)
    }

    /// The latency of each arm: from p50 to the maximum, with p99 and the mean. Conditions without such a latency are
    /// omitted; `None` if there is none.
    pub fn latency_chart(&self) -> Option<String> {
        let all = self.cells.iter().flat_map(|cell| &cell.arms);
        let name = all
            .flat_map(|arm| &arm.measures)
            .find_map(|measure| measure.name.strip_suffix(" p50"))?;
        let of = |arm: &ArmReport, rank: &str| {
            let wanted = format!("{name} {rank}");
            let found = arm.measures.iter().find(|measure| measure.name == wanted);
            found.map(|measure| measure.estimate.mean.max(1.0))
        };
        let arms = || self.cells.iter().flat_map(|cell| &cell.arms);
        let low = arms()
            .filter_map(|arm| of(arm, "p50"))
            .fold(f64::MAX, f64::min);
        let high = arms().filter_map(|arm| of(arm, "max")).fold(1.0, f64::max);
        let power = |value: f64| 10f64.powf(value);
        let (first, last) = (
            low.log10().floor(),
            high.log10().ceil().max(low.log10().floor() + 1.0),
        );
        let axis = Axis {
            low: power(first),
            high: power(last),
            logarithmic: true,
        };
        let mut canvas = Canvas::new(axis);
        let measured = |cell: &&CellReport| cell.arms.iter().any(|arm| of(arm, "p50").is_some());
        for cell in self.cells.iter().filter(measured) {
            canvas.row(&cell.name, true);
            for arm in &cell.arms {
                let y = canvas.row(&arm.name, false);
                let all = (
                    of(arm, "p50"),
                    of(arm, "p99"),
                    of(arm, "max"),
                    of(arm, "mean"),
                );
                if let (Some(p50), Some(p99), Some(max), Some(mean)) = all {
                    canvas.line(y, p50, max, "range");
                    canvas.tick(y, p50, "rank");
                    canvas.tick(y, p99, "rank");
                    canvas.dot(y, mean);
                }
            }
        }
        let decades = (last - first) as u32;
        let grid: Vec<_> = (0..=decades)
            .map(|n| power(first + f64::from(n)))
            .map(|value| (value, estimate(Unit::Nanos, &Estimate::of(&[value]))))
            .collect();
        let title = format!(
            "{}: {name}, simulated: from p50 to the maximum with p99, the mean as a dot",
            self.experiment
        );
        Some(canvas.finish(&title, &grid))
    }
}
