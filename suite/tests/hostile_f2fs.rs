//! Damaged f2fs volumes through the library, as far as they are read: nothing panics, hangs, reads past
//! the device, writes, or takes memory beyond its budget.
//!
//! `HOSTILE=flipped:17` runs one case; `HOSTILE_CASES=100000` runs more of each family.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use steadfs_suite::hostile::f2fs::{F2fsBase, exercise_f2fs};
use steadfs_suite::hostile::meter::Meter;
use steadfs_suite::hostile::{Family, Outcome};

#[global_allocator]
static METER: Meter = Meter;

/// Cases of each family in CI.
const CASES: u64 = 1000;
/// Most memory one case may take: caches of 4 MiB, the checker's 32 MiB at most, and the image.
const BUDGET: usize = 48 << 20;
/// Longest time one case may take.
const LIMIT: Duration = Duration::from_secs(120);

fn case(bases: &[F2fsBase], family: Family, n: u64) -> (String, Outcome) {
    let base = &bases[usize::try_from(n).unwrap() % bases.len()];
    let began = Instant::now();
    let mut outcome = exercise_f2fs(&base.damage(family, n));
    if began.elapsed() > LIMIT {
        outcome.wrong.push(format!("took {:?}", began.elapsed()));
    }
    if outcome.peak > BUDGET {
        outcome
            .wrong
            .push(format!("{} bytes of memory", outcome.peak));
    }
    (format!("{}:{}:{n}", family.name(), base.name), outcome)
}

/// Runs a family's cases. Returns how many could be mounted, and how many the checker found damaged.
fn run(bases: &[F2fsBase], family: Family, cases: u64) -> (u64, u64) {
    let (mut mounted, mut damaged, mut told, mut peak) = (0, 0, 0, 0);
    let mut failures = Vec::new();
    for n in 0..cases {
        let (name, outcome) = case(bases, family, n);
        mounted += u64::from(outcome.mounted[0]);
        damaged += u64::from(outcome.damaged);
        told += u64::from(outcome.told);
        peak = peak.max(outcome.peak);
        failures.extend(outcome.wrong.iter().map(|wrong| format!("{name}: {wrong}")));
    }
    let name = family.name();
    println!("{cases} {name}, {mounted} mounted, {damaged} damaged, {told} told, peak {peak}");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    (mounted, damaged)
}

#[test]
fn damaged_f2fs_volumes() {
    let scratch = tempfile::tempdir().unwrap();
    let bases = F2fsBase::all(scratch.path());
    for base in &bases {
        let outcome = exercise_f2fs(&base.image);
        let fine = outcome.wrong.is_empty() && outcome.mounted[0] && !outcome.damaged;
        assert!(fine, "{}: {outcome:?}", base.name);
    }
    if let Ok(one) = std::env::var("HOSTILE") {
        let (name, n) = one.split_once(':').unwrap();
        let family = Family::ALL.into_iter().find(|f| f.name() == name).unwrap();
        let (name, outcome) = case(&bases, family, n.parse().unwrap());
        eprintln!("{name}: {outcome:#?}");
        assert!(outcome.wrong.is_empty());
        return;
    }
    let cases = std::env::var("HOSTILE_CASES").map_or(CASES, |n| n.parse().unwrap());
    for family in Family::ALL {
        let (mounted, damaged) = run(&bases, family, cases);
        // The damage is neither too coarse to be looked at nor too fine to be seen.
        assert!(damaged * 2 > cases, "{}", family.name());
        assert!(mounted * 3 > cases || family != Family::Flipped);
    }
}
