//! Experiments as a whole, small.

use super::*;

fn report(name: &str) -> Report {
    let settings = Settings {
        quick: true,
        seeds: Some(2),
        ..Settings::default()
    };
    let (_, plan) = ALL.iter().find(|(known, _)| *known == name).unwrap();
    let mut plan = plan(&settings).unwrap();
    // A condition is enough for this, and takes a second or two.
    plan.cells.truncate(1);
    plan.timeline.0 = plan.cells[0].name.clone();
    plan.figures.clear();
    run(&plan, settings.seeds()).unwrap()
}

/// What a reader is promised: the same program, device and seeds, the same report, byte for byte.
#[test]
fn the_same_seeds_give_the_same_report() {
    let mut charts = 0;
    for (name, _) in ALL {
        let (first, again) = (report(name), report(name));
        assert_eq!(first.to_json(), again.to_json());
        assert_eq!(first.to_text(), again.to_text());
        // Where somebody waits for single operations.
        let queue = first.timeline_chart().expect("the queue was looked at");
        assert_eq!(Some(queue), again.timeline_chart());
        if let Some(chart) = first.latency_chart() {
            assert!(chart.starts_with("<svg") && chart.ends_with("</svg>\n"));
            charts += 1;
        }
        assert_eq!(page(std::slice::from_ref(&first)), page(&[again]));
        let seeds: Vec<_> = first.cells[0].arms[0].traces.clone();
        assert_ne!(seeds[0], seeds[1], "seeds differ");
    }
    assert!(charts >= 2, "{charts}");
}

/// Charts and pages show what a report says, whatever its texts hold.
#[test]
fn charts_and_pages_hold_the_figures_and_escape_texts() {
    let figure = |what: &str, published, seeds: &[f64], predicted| FigureReport {
        what: what.to_owned(),
        published,
        ours: Estimate::of(seeds),
        deviation: 0.5,
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
    let report = Report {
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
        real: Some(RealReport {
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
        }),
    };
    assert_eq!(report.latency_chart(), None);
    let queue = report.timeline_chart().unwrap();
    for said in ["&lt;arm&gt;", "-3 ms", "queued, waited for", ">7<"] {
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
