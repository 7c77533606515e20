//! The fuzz targets on the inputs of earlier findings and on first inputs: what `make fuzz` runs by coverage, in short.
//!
//! `FUZZ_CASES=100000` runs more inputs of each target. `FUZZ_INPUT=ext4:FILE` runs one, with `FUZZ_TRACE=1` and its
//! operations printed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use steadfs_suite::fuzz::{TARGETS, run, seed};
use steadfs_suite::hostile::meter::Meter;
use steadfs_suite::judge;

#[global_allocator]
static METER: Meter = Meter;

/// First inputs of each target.
const CASES: u64 = 120;

fn fuzz_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}

/// Runs the inputs of a target; checks that they are neither all refused nor all harmless.
fn run_target(name: &str) {
    judge("mke2fs");
    judge("mkfs.f2fs");
    if let Ok(one) = std::env::var("FUZZ_INPUT") {
        if let Some(path) = one.strip_prefix(&format!("{name}:")) {
            println!("{:?}", run(name, &fs::read(path).unwrap()));
        }
        return;
    }
    let inputs = fuzz_dir().join("regressions").join(name);
    let found = fs::read_dir(inputs).into_iter().flatten();
    for entry in found {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        run(name, &fs::read(path).unwrap());
    }
    let cases = std::env::var("FUZZ_CASES").map_or(CASES, |n| n.parse().unwrap());
    let (mut writable, mut corrupt, mut reported) = (0, 0, 0);
    for n in 0..cases {
        let input = seed(name, n);
        // For FUZZ_INPUT, if this one fails.
        let path = std::env::temp_dir().join(format!("steadfs-fuzz-{name}"));
        fs::write(&path, &input).unwrap();
        let outcome = run(name, &input);
        writable += u64::from(outcome.mounted[1]);
        corrupt += u64::from(outcome.corrupt);
        reported += u64::from(outcome.reported);
    }
    println!("{name}: {cases} inputs, {writable} writable, {corrupt} corrupt, {reported} reported");
    if cases < CASES {
        return;
    }
    if let "ext4" | "f2fs" | "journal" | "roll_forward" = name {
        assert!(writable * 3 > cases, "too few volumes can be changed");
        assert!(corrupt * 2 < cases, "too few volumes are clean");
    }
    if let "ext4" | "f2fs" = name {
        assert!(corrupt * 10 > cases, "too few volumes are corrupt");
        assert!(reported > 0, "no corruption is reported");
    }
}

#[test]
fn every_target_has_a_program() {
    let manifest = fs::read_to_string(fuzz_dir().join("Cargo.toml")).unwrap();
    let paths = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("path = "));
    let programs: BTreeSet<_> = paths
        .map(|path| path.trim_matches('"').to_owned())
        .collect();
    let mut wanted: BTreeSet<_> = TARGETS
        .iter()
        .map(|target| format!("targets/{}.rs", target.name))
        .collect();
    for path in &wanted {
        let source = fs::read_to_string(fuzz_dir().join(path)).unwrap();
        let name = Path::new(path).file_stem().unwrap().to_str().unwrap();
        assert!(
            source.contains(&format!("run(\"{name}\", bytes)")),
            "{path}"
        );
    }
    wanted.insert("targets/seeds.rs".to_owned());
    assert_eq!(programs, wanted);
}

#[test]
fn ext4() {
    run_target("ext4");
}

#[test]
fn f2fs() {
    run_target("f2fs");
}

#[test]
fn journal() {
    run_target("journal");
}

#[test]
fn roll_forward() {
    run_target("roll_forward");
}

#[test]
fn fuse() {
    run_target("fuse");
}

#[test]
fn control() {
    run_target("control");
}

#[test]
fn options() {
    run_target("options");
}
