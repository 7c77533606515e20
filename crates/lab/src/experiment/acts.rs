//! Whether the mechanism of a cell acted. A run may be too small for it: a log that never fills shows nothing about
//! reclaim. A ratio of its arms would be read as "no effect", so none is printed.

use super::plan::{Cell, Source};
use super::report::{ArmReport, CellReport};

/// What an arm of a cell must show for the mechanism to have acted.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// The arm.
    pub arm: String,
    /// A value of it.
    pub value: &'static str,
    /// The smallest mean of the value over the seeds.
    pub at_least: f64,
    /// What did not happen if the value is smaller, such as "no task waited for log space".
    pub otherwise: &'static str,
}

impl Evidence {
    /// The reason why the arms are not compared, if the value is too small.
    fn missing_in(&self, arms: &[ArmReport]) -> Option<String> {
        let arm = arms.iter().find(|arm| arm.name == self.arm);
        let measure = arm.and_then(|arm| arm.measures.iter().find(|m| m.name == self.value));
        let mean = measure
            .unwrap_or_else(|| panic!("{self:?} is not measured"))
            .estimate
            .mean;
        (mean < self.at_least).then(|| {
            let (what, arm, value) = (self.otherwise, &self.arm, self.value);
            format!("{what} ({arm}: {value} {mean:.2})")
        })
    }
}

/// Why the arms of a cell are not compared: the first missing evidence.
pub(super) fn why_not_compared(cell: &Cell, arms: &[ArmReport]) -> Option<String> {
    let missing = cell.evidence.iter().find_map(|e| e.missing_in(arms));
    missing.map(|why| format!("not compared: {why}"))
}

/// Why a figure is not compared with the published one. A value of a cell's first arm, which is without the mechanism,
/// always is, and so are two conditions.
pub(super) fn why_figure_not_compared(source: &Source, cells: &[CellReport]) -> Option<String> {
    let why = |name: &str, arm: &str| {
        let cell = cells.iter().find(|cell| cell.name == name)?;
        let is_first = cell.arms.first().is_some_and(|first| first.name == arm);
        cell.not_compared.clone().filter(|_| !is_first)
    };
    match source {
        Source::Value { cell, arm, .. } => why(cell, arm),
        Source::Ratio { cell, after, .. } => why(cell, after),
        Source::Across { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use std::time::Duration;

    fn plan(waits: f64, at_least: f64) -> Plan {
        let arm = |name: &str, rate: f64| {
            Arm::new(name, move |_| {
                let mut sample = Sample::default();
                sample.value("rate", Unit::PerSecond, rate);
                sample.value("waits", Unit::Count, waits);
                Ok(sample)
            })
        };
        let figure = |what: &str, ours| Figure {
            what: what.to_owned(),
            ours,
            scale: 1.0,
            published: 1.5,
            role: Role::Predicted,
            why: None,
        };
        Plan {
            name: "x",
            title: "?",
            device: "d".to_owned(),
            scale: None,
            cells: vec![Cell {
                name: "cell".to_owned(),
                about: String::new(),
                arms: vec![arm("off", 2.0), arm("on", 3.0)],
                same_content: true,
                evidence: vec![Evidence {
                    arm: "off".to_owned(),
                    value: "waits",
                    at_least,
                    otherwise: "too small to show, no task waited",
                }],
            }],
            figures: vec![
                figure("without", Source::value("cell", "off", "rate")),
                figure("with", Source::value("cell", "on", "rate")),
                figure("ratio", Source::ratio("cell", "off", "on", "rate")),
                figure(
                    "across",
                    Source::across(["cell", "off"], ["cell", "on"], "rate"),
                ),
            ],
            notes: Vec::new(),
            timeline: (String::new(), Duration::from_millis(1)),
            checks: Vec::new(),
        }
    }

    #[test]
    fn arms_are_compared_only_if_the_mechanism_acted() {
        let acted = run(&plan(4.0, 4.0), 2).unwrap();
        assert_eq!(acted.cells[0].not_compared, None);
        assert!(acted.figures.iter().all(|f| f.not_compared.is_none()));
        assert!(!acted.to_text().contains("too small"));

        let idle = run(&plan(3.0, 4.0), 2).unwrap();
        let why = "not compared: too small to show, no task waited (off: waits 3.00)";
        assert_eq!(idle.cells[0].not_compared.as_deref(), Some(why));
        let reasons: Vec<_> = idle
            .figures
            .iter()
            .map(|f| f.not_compared.as_deref())
            .collect();
        assert_eq!(reasons, [None, Some(why), Some(why), None]);
        let text = idle.to_text();
        let ratio = text.lines().find(|line| line.contains("ratio  ")).unwrap();
        assert!(ratio.contains("not compared"), "{text}");
        assert!(
            text.contains(why) && text.matches("+0 %").count() == 1,
            "{text}"
        );
        let page = page(&[idle]);
        assert!(page.contains("1 of 2"), "two figures count");
        assert!(page.contains(why), "{page}");
    }
}
