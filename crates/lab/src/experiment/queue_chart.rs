//! The queue over time, as SVG: one panel per arm.

use std::fmt::Write as _;

use super::chart::escaped;
use super::report::Report;
use super::timeline::{Depths, Timeline};

const WIDTH: f64 = 900.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 885.0;
const TOP: f64 = 66.0;
/// Height of a panel, and of the space below it for its name.
const PANEL: f64 = 110.0;
const GAP: f64 = 44.0;
/// Height of the strip below a panel that marks waited requests. One request of a hundred would not be visible above.
const STRIP: f64 = 9.0;

/// Writing to a string does not fail.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {{ let _ = writeln!($out, $($arg)*); }};
}

/// From the bottom of the stack to its top: name and colour.
const PARTS: [(&str, &str); 4] = [
    ("in the device, waited", "#1f4e8c"),
    ("in the device, background", "#9db7d5"),
    ("queued, waited", "#d9480f"),
    ("queued, background", "#f0d2b6"),
];

impl Report {
    /// Waited and background requests in the queue and in the device, over virtual time. `None` without samples.
    pub fn timeline_chart(&self) -> Option<String> {
        let timeline = self.timeline.as_ref()?;
        let longest = timeline.arms.iter().map(|(_, seen)| seen.len()).max()?;
        if longest < 2 {
            return None;
        }
        let bottom = TOP + (PANEL + GAP) * timeline.arms.len() as f64;
        let mut out = String::new();
        put!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {bottom}\" \
             font-family=\"sans-serif\" font-size=\"12\">"
        );
        put!(out, "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>");
        put!(
            out,
            "<text x=\"10\" y=\"20\" font-size=\"14\" font-weight=\"bold\">{}: requests in the queue and in the device, \
             {} (simulated)</text>",
            escaped(&self.experiment),
            escaped(&timeline.cell)
        );
        for (number, (name, colour)) in PARTS.iter().enumerate() {
            let x = LEFT + 205.0 * number as f64;
            put!(
                out,
                "<rect x=\"{x}\" y=\"34\" width=\"14\" height=\"14\" fill=\"{colour}\"/>\
                 <text x=\"{}\" y=\"45\">{name}</text>",
                x + 20.0
            );
        }
        let most = timeline.arms.iter().flat_map(|(_, seen)| seen);
        let most = most.map(total).max().unwrap_or(0).max(1);
        for (number, (arm, seen)) in timeline.arms.iter().enumerate() {
            let top = TOP + (PANEL + GAP) * number as f64;
            panel(&mut out, timeline, (arm, seen), (longest, most), top);
        }
        out.push_str("</svg>\n");
        Some(out)
    }
}

fn total(depths: &Depths) -> u32 {
    depths.parts().iter().sum()
}

fn panel(
    out: &mut String,
    timeline: &Timeline,
    (arm, seen): (&str, &[Depths]),
    (longest, most): (usize, u32),
    top: f64,
) {
    let bottom = top + PANEL;
    let x = |at: usize| LEFT + (RIGHT - LEFT) * at as f64 / (longest - 1) as f64;
    let y = |count: u32| bottom - (PANEL - 18.0) * f64::from(count) / f64::from(most);
    let mut shares = vec![0, most / 2, most];
    shares.dedup();
    for share in shares {
        put!(
            out,
            "<line stroke=\"#ddd\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{0:.1}\" y2=\"{0:.1}\"/>\
             <text x=\"{1}\" y=\"{2:.1}\" text-anchor=\"end\" fill=\"#555\">{share}</text>",
            y(share),
            LEFT - 6.0,
            y(share) + 4.0
        );
    }
    let from = longest - seen.len();
    for (part, (_, colour)) in PARTS.iter().enumerate() {
        let height = |depths: &Depths, parts: usize| depths.parts()[..parts].iter().sum::<u32>();
        if seen.iter().all(|depths| depths.parts()[part] == 0) {
            continue;
        }
        let upper = steps(seen.iter().map(|depths| height(depths, part + 1)));
        let lower = steps(seen.iter().map(|depths| height(depths, part)));
        let mut points = String::new();
        for (at, count) in upper.into_iter().chain(lower.into_iter().rev()) {
            let _ = write!(points, "{:.1},{:.1} ", x(from + at), y(count));
        }
        put!(
            out,
            "<polygon fill=\"{colour}\" points=\"{}\"/>",
            points.trim_end()
        );
    }
    put!(
        out,
        "<text x=\"{LEFT}\" y=\"{:.1}\" font-weight=\"bold\">{}</text>",
        top + 10.0,
        escaped(arm)
    );
    for (part, colour, y) in [
        (2, PARTS[2].1, bottom + 3.0),
        (0, PARTS[0].1, bottom + 3.0 + STRIP / 2.0),
    ] {
        let height = STRIP / 2.0;
        for (begin, end) in spans(seen, part) {
            let (a, b) = (x(from + begin), x(from + end));
            put!(
                out,
                "<rect fill=\"{colour}\" x=\"{a:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height}\"/>",
                (b - a).max(0.8)
            );
        }
    }
    let millis = (longest - 1) as f64 * timeline.step_ns as f64 / 1e6;
    put!(
        out,
        "<text x=\"{LEFT}\" y=\"{0:.1}\" fill=\"#555\">-{millis} ms</text>\
         <text x=\"{RIGHT}\" y=\"{0:.1}\" text-anchor=\"end\" fill=\"#555\">the bar marks waited requests; the measurement ends here</text>",
        bottom + 26.0
    );
}

/// The intervals with requests of a part.
fn spans(seen: &[Depths], part: usize) -> Vec<(usize, usize)> {
    let mut spans: Vec<(usize, usize)> = Vec::new();
    let there = (0..)
        .zip(seen)
        .filter(|(_, depths)| depths.parts()[part] > 0);
    for (at, _) in there {
        match spans.last_mut() {
            Some((_, end)) if *end == at => *end = at + 1,
            _ => spans.push((at, (at + 1).min(seen.len() - 1))),
        }
    }
    spans
}

/// The corners of a step line.
fn steps(counts: impl Iterator<Item = u32>) -> Vec<(usize, u32)> {
    let mut turns: Vec<(usize, u32)> = Vec::new();
    let mut last = (0, 0);
    for (at, count) in counts.enumerate() {
        match turns.last() {
            None => turns.push((at, count)),
            Some((_, known)) if *known != count => turns.extend([(at, last.1), (at, count)]),
            Some(_) => {}
        }
        last = (at, count);
    }
    turns.push(last);
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_steps_turns_where_the_count_changes() {
        let turns = steps([3, 3, 5, 5, 1].into_iter());
        assert_eq!(turns, [(0, 3), (2, 3), (2, 5), (4, 5), (4, 1), (4, 1)]);
        assert_eq!(steps([].into_iter()), [(0, 0)]);
    }
}
