//! Volumes that lie, one lie at a time, each by name and with right checksums: `lies.txt` says what is
//! told and what comes of it. e2fsck is asked too: it and our checker agree on what is damaged.
//!
//! `LIE="a deep extent root"` tries one and prints everything; `LIE_IMAGE=file` keeps its image.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use steadfs_lab::device::Image;
use steadfs_suite::hostile::meter::Meter;
use steadfs_suite::hostile::tell::{Fate, Lie, Teller, table};
use steadfs_suite::hostile::{Base, Outcome, exercise, save};
use steadfs_suite::{judge, run};

#[global_allocator]
static METER: Meter = Meter;

/// Most memory that a volume may take, in bytes.
const BUDGET: usize = 48 << 20;
/// Longest time that a lie may cost us; they take milliseconds.
const LIMIT: Duration = Duration::from_secs(120);

fn fate_of(outcome: &Outcome) -> Fate {
    if !outcome.mounted[0] && !outcome.mounted[1] {
        Fate::Refused
    } else if outcome.told {
        Fate::Told
    } else if outcome.damaged {
        Fate::Found
    } else {
        Fate::Harmless
    }
}

/// Whether e2fsck finds damage, and what it says. The log is replayed first, as our checker does.
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

fn try_lie(lie: &Lie, base: &Base, judged: &Path) -> Vec<String> {
    let mut image = base.image.clone();
    Teller::new(base).tell(&mut image, lie.told);
    assert!(!image.same_content(&base.image), "{}: nothing", lie.name);
    let began = Instant::now();
    let outcome = exercise(&image);
    let took = began.elapsed();
    let (damaged, words) = e2fsck(&image, judged);
    if std::env::var("LIE").is_ok() {
        eprintln!("{}: {outcome:#?}\ne2fsck: {words}", lie.name);
    }
    let mut wrong = Vec::new();
    if outcome.peak > BUDGET {
        wrong.push(format!("{} bytes of memory", outcome.peak));
    }
    if took > LIMIT {
        wrong.push(format!("took {took:?}"));
    }
    let fate = fate_of(&outcome);
    if fate != lie.fate {
        wrong.push(format!("is {fate:?}, not {:?}", lie.fate));
    }
    if (damaged == outcome.damaged) == lie.e2fsck.is_some() {
        let ours = outcome.damaged;
        wrong.push(format!("damaged: we say {ours}, e2fsck {damaged}: {words}"));
    }
    wrong.extend(outcome.wrong);
    wrong
}

#[test]
fn every_lie_is_borne() {
    judge("e2fsck");
    let scratch = tempfile::tempdir().unwrap();
    let bases = Arc::new(Base::all(scratch.path()));
    let only = std::env::var("LIE").ok();
    let judged = scratch.path().join("judged");
    let mut failures = Vec::new();
    let lies = table();
    let mut names: Vec<_> = lies.iter().map(|lie| lie.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), lies.len(), "names are unique");
    for lie in &lies {
        if only.as_ref().is_some_and(|only| only != lie.name) {
            continue;
        }
        let base = bases.iter().find(|base| base.name == lie.base);
        let base = base.unwrap_or_else(|| panic!("{}: no base {}", lie.name, lie.base));
        for wrong in try_lie(lie, base, &judged) {
            failures.push(format!("{}: {wrong}", lie.name));
        }
        if let Ok(path) = std::env::var("LIE_IMAGE") {
            let mut image = base.image.clone();
            Teller::new(base).tell(&mut image, lie.told);
            save(&image, Path::new(&path));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
