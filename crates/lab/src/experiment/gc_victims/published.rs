//! The published figures of the experiment, and what a reader has to know.

use super::super::plan::{Check, Figure, Role, Source};
use super::{CASES, CREATE, FILES, FULL, GARBAGE, REWRITE, Scale, VICTIMS, arm_name};

/// Why a figure deviates by more than a quarter.
const WHY: &str = "what a small write costs is the model's choice: with sdhc-2013 most of it is opening erase units, of which a higher \
                   limit saves most (see their share in the time), with sdhc-2013-by-command each command costs the same. The number of \
                   cleaned sections can differ by a factor of two between runs: GC runs before each checkpoint or before every \
                   second one, as decided at the start.";

/// A published figure: its name, our value, what it is divided by, the limits that it is of and the published values
/// at the limits 20 and 4096, with the role of the first; figures at limit 4096 are predicted.
struct Published {
    value: &'static str,
    per: f64,
    at_20: (&'static str, f64, Role),
    at_4096: Option<(&'static str, f64)>,
    /// The names of the ratio of both on the two devices, where it is a figure.
    ratios: Option<[&'static str; 2]>,
}

const SECONDS: f64 = 1e9;

const PUBLISHED: [Published; 5] = [
    Published {
        value: FILES,
        per: 1.0,
        at_20: ("files until full", 52_023.0, Role::Predicted),
        at_4096: None,
        ratios: None,
    },
    Published {
        value: CREATE,
        per: SECONDS,
        at_20: ("create, limit 20, s", 341.0, Role::Calibrated),
        at_4096: Some(("create, limit 4096, s", 324.0)),
        ratios: None,
    },
    Published {
        value: REWRITE,
        per: SECONDS,
        at_20: ("rewrite, limit 20, s", 4227.0, Role::Calibrated),
        at_4096: Some(("rewrite, limit 4096, s", 2958.0)),
        ratios: Some([
            "rewrite, 4096 to 20",
            "rewrite, 4096 to 20, cost by command",
        ]),
    },
    Published {
        value: VICTIMS,
        per: 1.0,
        at_20: ("cleaned, limit 20", 1174.0, Role::Predicted),
        at_4096: Some(("cleaned, limit 4096", 645.0)),
        ratios: Some([
            "cleaned, 4096 to 20",
            "cleaned, 4096 to 20, cost by command",
        ]),
    },
    Published {
        value: GARBAGE,
        per: 1.0,
        at_20: ("garbage, limit 20", 174_840.0, Role::Predicted),
        at_4096: Some(("garbage, limit 4096", 106_682.0)),
        ratios: None,
    },
];

/// The published figures; of a smaller run the ratios only. `by_command`: the second device is run, too.
pub(super) fn figures(scale: Scale, by_command: bool) -> Vec<Figure> {
    let devices = if by_command { 2 } else { 1 };
    let of_each = PUBLISHED
        .iter()
        .map(|of| figures_of(of, scale == FULL, devices));
    of_each.flatten().collect()
}

fn figures_of(of: &Published, full: bool, devices: usize) -> Vec<Figure> {
    let (before, after) = (arm_name(20), arm_name(4096));
    let figure = |what: &str, ours, scale, published, role| Figure {
        what: what.to_owned(),
        ours,
        scale,
        published,
        role,
        why: Some(WHY.to_owned()),
    };
    let mut figures = Vec::new();
    let (what, published, role) = of.at_20;
    let value = |arm| Source::value(CASES[0].name, arm, of.value);
    if full {
        figures.push(figure(what, value(&before), of.per, published, role));
    }
    let Some((what, later)) = of.at_4096 else {
        return figures;
    };
    if full {
        figures.push(figure(what, value(&after), of.per, later, Role::Predicted));
    }
    for (what, case) in of.ratios.iter().flatten().zip(&CASES).take(devices) {
        let ours = Source::ratio(case.name, &before, &after, of.value);
        figures.push(figure(what, ours, 1.0, later / published, Role::Predicted));
    }
    figures
}

pub(super) fn checks() -> Vec<Check> {
    let check = |value| Check {
        cell: CASES[0].name.to_owned(),
        arms: [arm_name(20), arm_name(4096)],
        value,
        why: "the volume is small here, so few segments are cleaned, and the result varies.",
    };
    vec![check(CREATE), check(REWRITE), check(VICTIMS)]
}

pub(super) fn notes() -> Vec<String> {
    [
        "A search looks at no more than twice as many candidates as the volume has segments (2 GB: 1024): limits above that are \
         run once. 1024 is run by itself.",
        "The share of opening erase units in the rewriting time is the model's choice: both devices are calibrated by the same \
         published times with limit 20, and divide a small write's cost differently.",
        "Examining candidates is reported as CPU time (100 ns each) and not added to the times.",
    ]
    .map(str::to_owned)
    .to_vec()
}
