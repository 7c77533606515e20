//! Hostile values, one case at a time, each with a name and with correct checksums: `values.txt` lists the values and
//! their effect. e2fsck checks each image, too: it and our checker agree on which volumes are corrupt.
//!
//! `HOSTILE_VALUES="a deep extent root"` runs one case and prints everything; `HOSTILE_IMAGE=file` keeps its image.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use steadfs_lab::device::Image;
use steadfs_suite::hostile::meter::Meter;
use steadfs_suite::hostile::values::{Effect, HostileCase, ValueWriter, table};
use steadfs_suite::hostile::{Base, Outcome, exercise, save};
use steadfs_suite::{judge, run};

#[global_allocator]
static METER: Meter = Meter;

/// Largest memory of a case, in bytes.
const BUDGET: usize = 48 << 20;
/// Longest time of a case; they take milliseconds.
const LIMIT: Duration = Duration::from_secs(120);

fn effect_of(outcome: &Outcome) -> Effect {
    if !outcome.mounted[0] && !outcome.mounted[1] {
        Effect::Refused
    } else if outcome.reported {
        Effect::Reported
    } else if outcome.corrupt {
        Effect::Found
    } else {
        Effect::Harmless
    }
}

/// Whether e2fsck finds corruption, and its output. The log is replayed first, as our checker does.
fn e2fsck(image: &Image, path: &Path) -> (bool, String) {
    save(image, path);
    let path = path.to_str().unwrap();
    let replay = run("e2fsck", ["-E", "journal_only", "-y", path]);
    if replay.code() != 0 {
        return (true, format!("{}{}", replay.out, replay.err));
    }
    let check = run("e2fsck", ["-fn", path]);
    (check.code() != 0, format!("{}{}", check.out, check.err))
}

fn run_case(case: &HostileCase, base: &Base, judged: &Path) -> Vec<String> {
    let mut image = base.image.clone();
    ValueWriter::new(base).write(&mut image, case.values);
    assert!(!image.same_content(&base.image), "{}: nothing", case.name);
    let began = Instant::now();
    let outcome = exercise(&image);
    let took = began.elapsed();
    let (corrupt, words) = e2fsck(&image, judged);
    if std::env::var("HOSTILE_VALUES").is_ok() {
        eprintln!("{}: {outcome:#?}\ne2fsck: {words}", case.name);
    }
    let mut violations = Vec::new();
    if outcome.peak > BUDGET {
        violations.push(format!("{} bytes of memory", outcome.peak));
    }
    if took > LIMIT {
        violations.push(format!("took {took:?}"));
    }
    let effect = effect_of(&outcome);
    if effect != case.effect {
        violations.push(format!("is {effect:?}, not {:?}", case.effect));
    }
    if (corrupt == outcome.corrupt) == case.e2fsck.is_some() {
        let ours = outcome.corrupt;
        violations.push(format!(
            "our checker: corrupt {ours}; e2fsck: corrupt {corrupt}: {words}"
        ));
    }
    violations.extend(outcome.violations);
    violations
}

#[test]
fn every_hostile_value_has_its_expected_effect() {
    judge("e2fsck");
    let scratch = tempfile::tempdir().unwrap();
    let bases = Arc::new(Base::all(scratch.path()));
    let only = std::env::var("HOSTILE_VALUES").ok();
    let judged = scratch.path().join("judged");
    let mut failures = Vec::new();
    let cases = table();
    let mut names: Vec<_> = cases.iter().map(|case| case.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), cases.len(), "names are unique");
    for case in &cases {
        if only.as_ref().is_some_and(|only| only != case.name) {
            continue;
        }
        let base = bases.iter().find(|base| base.name == case.base);
        let base = base.unwrap_or_else(|| panic!("{}: no base {}", case.name, case.base));
        for violation in run_case(case, base, &judged) {
            failures.push(format!("{}: {violation}", case.name));
        }
        if let Ok(path) = std::env::var("HOSTILE_IMAGE") {
            let mut image = base.image.clone();
            ValueWriter::new(base).write(&mut image, case.values);
            save(&image, Path::new(&path));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
