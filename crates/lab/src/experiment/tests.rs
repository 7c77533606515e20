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
    plan.figures.clear();
    run(&plan, settings.seeds()).unwrap()
}

/// What a reader is promised: the same program, device and seeds, the same report, byte for byte.
#[test]
fn the_same_seeds_give_the_same_report() {
    for (name, _) in ALL {
        let (first, again) = (report(name), report(name));
        assert_eq!(first.to_json(), again.to_json());
        assert_eq!(first.to_text(), again.to_text());
        let seeds: Vec<_> = first.cells[0].arms[0].traces.clone();
        assert_ne!(seeds[0], seeds[1], "seeds differ");
    }
}
