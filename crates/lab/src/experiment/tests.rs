//! Whole experiments, reduced in size.

mod judging;
mod markup;

use super::*;
use markup::{assert_legible, assert_well_formed};

fn report(name: &str) -> Report {
    // The size that is run in real time.
    let settings = Settings {
        real: true,
        seeds: Some(2),
        ..Settings::default()
    };
    let (_, plan) = ALL.iter().find(|(known, _)| *known == name).unwrap();
    let mut plan = plan(&settings).unwrap();
    // One condition suffices, and takes 1 to 2 s.
    plan.cells.truncate(1);
    plan.timeline.0 = plan.cells[0].name.clone();
    plan.figures.clear();
    run(&plan, settings.seeds()).unwrap()
}

/// Reproducibility: the same program, device and seeds give the same report, byte for byte.
#[test]
fn the_same_seeds_give_the_same_report() {
    let mut charts = 0;
    for (name, _) in ALL {
        let (first, again) = (report(name), report(name));
        assert_eq!(first.to_json(), again.to_json());
        assert_eq!(first.to_text(), again.to_text());
        // Conditions with a measured latency.
        let queue = first.timeline_chart().expect("the queue was looked at");
        assert_eq!(Some(queue), again.timeline_chart());
        if let Some(chart) = first.latency_chart() {
            assert!(chart.starts_with("<svg") && chart.ends_with("</svg>\n"));
            charts += 1;
        }
        let once = page(std::slice::from_ref(&first));
        assert_well_formed(&once);
        assert_eq!(once, page(&[again]));
        let seeds: Vec<_> = first.cells[0].arms[0].traces.clone();
        assert_ne!(seeds[0], seeds[1], "seeds differ");
    }
    assert!(charts >= 2, "{charts}");
}

/// A report with figures, a timeline and a real run, whose texts contain characters that HTML escapes.
fn report_to_escape() -> Report {
    let figure = |what: &str, published, seeds: &[f64], predicted| FigureReport {
        what: what.to_owned(),
        published,
        ours: Some(Estimate::of(seeds)),
        deviation: Some(0.5),
        not_compared: None,
        predicted,
        aim: false,
        why: Some("a < b & c".to_owned()),
    };
    let one = |waited, device_waited| Depths {
        waited,
        device_waited,
        ..Depths::default()
    };
    let depths = vec![one(0, 0), one(1, 0), one(3, 4), one(3, 2)];
    Report {
        experiment: "x".to_owned(),
        title: "<why>?".to_owned(),
        source: "simulated",
        device: "d".to_owned(),
        seeds: 2,
        scale: Some("half".to_owned()),
        simulated_ns: 7,
        cells: Vec::new(),
        figures: vec![
            figure("one", 2.0, &[3.0, 3.2], true),
            figure("two", 1.0, &[9.0], false),
        ],
        notes: vec!["\"note\"".to_owned()],
        timeline: Some(Timeline {
            cell: "a cell".to_owned(),
            step_ns: 1_000_000,
            arms: vec![("<arm>".to_owned(), depths)],
        }),
        real: Some(real_report()),
    }
}

fn real_report() -> RealReport {
    RealReport {
        seeds: 3,
        processors: 2,
        load: "0.5".to_owned(),
        groups: "no groups".to_owned(),
        rows: vec![RealRow {
            what: "a ratio".to_owned(),
            unit: Unit::Ratio,
            simulated: Estimate::of(&[0.5]),
            real: Estimate::of(&[0.9]),
            ratio: 1.8,
            agrees: Some(false),
            why: Some("because".to_owned()),
        }],
    }
}

/// Charts and pages show the report's values, whatever characters its texts contain.
#[test]
fn charts_and_pages_hold_the_figures_and_escape_texts() {
    let report = report_to_escape();
    assert_eq!(report.latency_chart(), None);
    let queue = report.timeline_chart().unwrap();
    for said in ["&lt;arm&gt;", "-3 ms", "queued, waited", ">7<"] {
        assert!(queue.contains(said), "{said}: {queue}");
    }
    assert_eq!(queue.matches("<polygon").count(), 2, "{queue}");
    let text = report.to_text();
    for said in ["REAL", "1.80", "NO", "a ratio: because", "no groups"] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let chart = report.figures_chart();
    for said in ["one (predicted)", "two (calibrated)", ">9<"] {
        assert!(chart.contains(said), "{said}: {chart}");
    }
    let page = page(&[report]);
    assert_well_formed(&page);
    assert_legible(&chart);
    assert_legible(&queue);
    for said in [
        "&lt;why&gt;?",
        "a &lt; b &amp; c",
        "&quot;note&quot;",
        "Scaled down: half",
        "+50 %",
    ] {
        assert!(page.contains(said), "{said}: {page}");
    }
}

/// A report with all names of a plan, and some values.
fn nominal(plan: &Plan) -> Report {
    let ranks = [("mean", 2e6), ("p50", 1e6), ("p99", 3e8), ("max", 2e9)];
    let arm = |arm: &Arm| ArmReport {
        name: arm.name.clone(),
        like: arm.like.clone(),
        measures: ranks
            .iter()
            .map(|(rank, nanos)| Measure {
                name: format!("an operation {rank}"),
                unit: Unit::Nanos,
                estimate: Estimate::of(&[*nanos]),
                seeds: vec![*nanos],
            })
            .collect(),
        traces: vec![1],
    };
    let cell = |cell: &Cell| CellReport {
        name: cell.name.clone(),
        about: cell.about.clone(),
        arms: cell.arms.iter().map(arm).collect(),
        not_compared: None,
    };
    let figure = |figure: &Figure| FigureReport {
        what: figure.what.clone(),
        published: figure.published,
        ours: Some(Estimate::of(&[figure.published * 7.0])),
        deviation: Some(6.0),
        not_compared: None,
        predicted: figure.role == Role::Predicted,
        aim: figure.role == Role::Aim,
        why: figure.why.clone(),
    };
    let depths = vec![Depths::default(); 3];
    let shown = plan.cells.iter().find(|cell| cell.name == plan.timeline.0);
    let arms = shown.expect("the cell is there").arms.iter();
    Report {
        experiment: plan.name.to_owned(),
        title: plan.title.to_owned(),
        source: "simulated",
        device: plan.device.clone(),
        seeds: 10,
        scale: plan.scale.clone(),
        simulated_ns: 1,
        cells: plan.cells.iter().map(cell).collect(),
        figures: plan.figures.iter().map(figure).collect(),
        notes: plan.notes.clone(),
        timeline: Some(Timeline {
            cell: plan.timeline.0.clone(),
            step_ns: 1_000_000,
            arms: arms.map(|arm| (arm.name.clone(), depths.clone())).collect(),
        }),
        real: None,
    }
}

/// With the names of the real cells, arms and figures: no text leaves its chart or overlaps another, and the page can
/// be parsed.
#[test]
fn charts_and_pages_of_every_experiment_can_be_read() {
    let settings = Settings {
        quick: true,
        ..Settings::default()
    };
    let mut reports = Vec::new();
    for (name, plan) in ALL {
        let plan = plan(&settings).unwrap();
        let held_back = plan.figures.iter();
        let mut held_back = held_back.filter(|figure| figure.role == Role::Predicted);
        assert!(held_back.next().is_some(), "{name} predicts something");
        let explains = |figure: &Figure| figure.role == Role::Calibrated || figure.why.is_some();
        let mute = plan.figures.iter().find(|figure| !explains(figure));
        assert!(mute.is_none(), "{mute:?} could be off and not say why");
        let report = nominal(&plan);
        let charts = [
            Some(report.figures_chart()),
            report.latency_chart(),
            report.timeline_chart(),
        ];
        for chart in charts {
            let chart = chart.unwrap_or_else(|| panic!("{name} has all three"));
            assert_well_formed(&chart);
            assert_legible(&chart);
        }
        reports.push(report);
    }
    let page = page(&reports);
    assert_well_formed(&page);
    for said in ["predicted", "calibrated", "95 %", "published"] {
        assert!(page.contains(said), "{said}");
    }
}
