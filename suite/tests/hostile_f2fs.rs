//! Corrupt f2fs volumes through the library, read-only: no panic, no hang, no access outside the device, no write, and
//! no memory beyond the budget.
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
/// Largest memory of one case: caches of 4 MiB, at most 32 MiB of the checker, and the image.
const BUDGET: usize = 48 << 20;
/// Longest time of one case.
const LIMIT: Duration = Duration::from_secs(120);

fn case(bases: &[F2fsBase], family: Family, n: u64) -> (String, Outcome) {
    let base = &bases[usize::try_from(n).unwrap() % bases.len()];
    let began = Instant::now();
    let mut outcome = exercise_f2fs(&base.corrupt_copy(family, n));
    if began.elapsed() > LIMIT {
        outcome
            .violations
            .push(format!("took {:?}", began.elapsed()));
    }
    if outcome.peak > BUDGET {
        outcome
            .violations
            .push(format!("{} bytes of memory", outcome.peak));
    }
    (format!("{}:{}:{n}", family.name(), base.name), outcome)
}

/// Runs a family's cases; returns the numbers of mounted and of corrupt volumes.
fn run(bases: &[F2fsBase], family: Family, cases: u64) -> (u64, u64) {
    let (mut mounted, mut corrupt, mut reported, mut peak) = (0, 0, 0, 0);
    let mut failures = Vec::new();
    for n in 0..cases {
        let (name, outcome) = case(bases, family, n);
        mounted += u64::from(outcome.mounted[0]);
        corrupt += u64::from(outcome.corrupt);
        reported += u64::from(outcome.reported);
        peak = peak.max(outcome.peak);
        failures.extend(
            outcome
                .violations
                .iter()
                .map(|violation| format!("{name}: {violation}")),
        );
    }
    let name = family.name();
    println!(
        "{cases} {name}, {mounted} mounted, {corrupt} corrupt, {reported} reported, peak {peak}"
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    (mounted, corrupt)
}

#[test]
fn corrupt_f2fs_volumes_are_handled() {
    let scratch = tempfile::tempdir().unwrap();
    let bases = F2fsBase::all(scratch.path());
    for base in &bases {
        let outcome = exercise_f2fs(&base.image);
        let fine = outcome.violations.is_empty() && outcome.mounted[0] && !outcome.corrupt;
        assert!(fine, "{}: {outcome:?}", base.name);
    }
    if let Ok(one) = std::env::var("HOSTILE") {
        let (name, n) = one.split_once(':').unwrap();
        let family = Family::ALL.into_iter().find(|f| f.name() == name).unwrap();
        let (name, outcome) = case(&bases, family, n.parse().unwrap());
        eprintln!("{name}: {outcome:#?}");
        assert!(outcome.violations.is_empty());
        return;
    }
    let cases = std::env::var("HOSTILE_CASES").map_or(CASES, |n| n.parse().unwrap());
    for family in Family::ALL {
        let (mounted, corrupt) = run(&bases, family, cases);
        // The corruption is neither so coarse that nothing mounts nor so fine that nothing is found.
        assert!(corrupt * 2 > cases, "{}", family.name());
        assert!(mounted * 3 > cases || family != Family::Flipped);
    }
}
