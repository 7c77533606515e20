//! Tests the explorer with a toy file system that writes its whole tree at each sync, alternating between two places.
//! Nothing may be found in the correct one; a missing flush or a stale place must be found.

mod toy;

use std::fs;

use super::faults::{FAULT_KINDS, faults};
use super::sweep::{Options, Report, sweep};
use super::{Case, Effort, Problem, main_with};
use crate::device::Image;
use toy::{Flaw, subject};

fn options(dir: &std::path::Path, budget: usize) -> Options {
    Options {
        budget,
        seeds: 200,
        effort: Effort {
            images: 100,
            nested: 200,
            ..Effort::default()
        },
        shrink: 60,
        failures: 1,
        ..Options::new(dir.to_owned())
    }
}

fn explored(flaw: Flaw, budget: usize) -> (tempfile::TempDir, Report) {
    let dir = tempfile::tempdir().unwrap();
    let report = sweep(vec![subject(flaw)], options(dir.path(), budget)).unwrap();
    (dir, report)
}

#[test]
fn a_correct_toy_passes() {
    let (_dir, report) = explored(Flaw::None, 3000);
    if let Some((_, failure)) = report.failures.first() {
        panic!("{}\n{}", failure.problem, failure.detail);
    }
    assert!(report.stats.distinct.len() >= 3000);
    assert!(report.stats.nested > 0 && report.stats.verdicts >= report.stats.recoveries);
}

#[test]
fn a_missing_flush_is_found_kept_and_replayed() {
    let (dir, report) = explored(Flaw::NoFlush, 3000);
    let (case_dir, failure) = report.failures.first().expect("it is found");
    assert!(!failure.path.crashes.is_empty());
    let case = Case::load(case_dir).unwrap();
    assert!(case.program.len() <= 4, "{}", case.program);
    let crashed = Image::load(&case_dir.join("crashed.img")).unwrap();
    assert!(crashed.same_content(failure.crashed.as_ref().unwrap()));
    let scratch = dir.path();
    let again = case.replay(&subject(Flaw::NoFlush), scratch).unwrap_err();
    assert_eq!(again.problem.to_string(), failure.problem.to_string());
    case.replay(&subject(Flaw::None), scratch)
        .expect("the correct toy passes");
}

/// Other files in the same directory stay: those of a concurrent exploration, and cases kept earlier.
#[test]
fn other_files_are_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let theirs = ["scratch-0/judged.img", "scratch-1/x", "case-0-toy/ops.txt"].map(|name| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, name).unwrap();
        (path, name)
    });
    // Two workers may each find a failure.
    let options = Options {
        workers: 1,
        ..options(dir.path(), 3000)
    };
    let report = sweep(vec![subject(Flaw::NoFlush)], options).unwrap();
    let kept = &report.failures.first().expect("it is found").0;
    let mut out = Vec::new();
    let words = ["--replay", &kept.display().to_string(), "--out"].map(str::to_owned);
    let words = [&words[..], &[dir.path().display().to_string()]].concat();
    let code = main_with(&words, |_| Ok(vec![subject(Flaw::NoFlush)]), &mut out).unwrap();
    assert_eq!(code, 1, "{}", String::from_utf8(out).unwrap());
    for (path, name) in theirs {
        assert_eq!(fs::read_to_string(path).unwrap(), name);
    }
    let mut left: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    let left: Vec<_> = left.iter().map(|name| name.to_str().unwrap()).collect();
    assert_eq!(left, ["case-0-toy", "case-1-toy", "scratch-0", "scratch-1"]);
}

#[test]
fn a_sync_that_does_nothing_is_found() {
    let (_dir, report) = explored(Flaw::IdleFsync, 3000);
    let problem = &report.failures.first().expect("it is found").1.problem;
    assert!(matches!(problem, Problem::Oracle(_)), "{problem}");
}

#[test]
fn a_recovery_that_corrupts_the_volume_when_cut_is_found() {
    let (_dir, report) = explored(Flaw::CarelessRecovery, 20_000);
    let failure = &report.failures.first().expect("it is found").1;
    // Found by a second or third power cut, or by a device fault: the first to be found depends on the threads.
    let cut_again = failure.path.crashes.len() >= 2;
    let failed = failure
        .detail
        .contains("a recovery ran on a failing device");
    assert!(
        cut_again || failed,
        "{}\n{}",
        failure.problem,
        failure.detail
    );
}

#[test]
fn a_panic_is_found() {
    let (_dir, report) = explored(Flaw::Panics, 3000);
    let problem = &report.failures.first().expect("it is found").1.problem;
    assert!(matches!(problem, Problem::Simulation(_)), "{problem}");
}

#[test]
fn one_seed_explores_the_same_twice() {
    let fingerprints = || {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            workers: 1,
            ..options(dir.path(), 300)
        };
        let report = sweep(vec![subject(Flaw::None)], options).unwrap();
        let mut all: Vec<u64> = report.stats.distinct.into_iter().collect();
        all.sort_unstable();
        all
    };
    assert_eq!(fingerprints(), fingerprints());
}

#[test]
fn the_command_prints_its_result() {
    let dir = tempfile::tempdir().unwrap();
    let out_dir = dir.path().join("cases").display().to_string();
    let run = |flaw, args: &[&str]| {
        let mut out = Vec::new();
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let code = main_with(&args, |_| Ok(vec![subject(flaw)]), &mut out).unwrap();
        (code, String::from_utf8(out).unwrap())
    };
    let usual = ["--budget", "200", "--seeds", "5", "--out", &out_dir];
    let (code, text) = run(Flaw::None, &usual);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("0 failures"), "{text}");
    let (code, text) = run(Flaw::NoFlush, &["--budget", "9000", "--out", &out_dir]);
    assert_eq!(code, 1, "{text}");
    let case = format!("{out_dir}/case-0-toy");
    assert_eq!(
        run(Flaw::NoFlush, &["--replay", &case, "--out", &out_dir]).0,
        1
    );
    assert_eq!(
        run(Flaw::None, &["--replay", &case, "--out", &out_dir]).0,
        0
    );
    assert_eq!(run(Flaw::None, &["--replay", &out_dir]).0, 2);
    // The small program that was kept fails again when it runs alone, and reports the cut.
    let ops = format!("{case}/ops.txt");
    let alone = ["--ops", &ops, "--out", &out_dir];
    let (code, text) = run(Flaw::NoFlush, &alone);
    assert!(code == 1 && text.contains("before "), "{text}");
    let (code, text) = run(Flaw::None, &alone);
    assert!(
        code == 0 && text.contains("programs                20"),
        "{text}"
    );
    let (code, text) = run(Flaw::None, &["--ops", &format!("{case}/case.txt")]);
    assert!(code == 2 && text.contains("case.txt"), "{text}");
    assert_eq!(run(Flaw::None, &["--fs", "f2fs"]).0, 2);
    let (code, text) = run(
        Flaw::None,
        &["--fs", "ext4", "--ops", &ops, "--out", &out_dir],
    );
    assert_eq!(code, 0, "{text}");
    assert_eq!(run(Flaw::None, &["--fs", "fat"]).0, 2);
    assert_eq!(run(Flaw::None, &["--subject", "nothing"]).0, 2);
    assert_eq!(run(Flaw::None, &["--frob", "1"]).0, 2);
    assert_eq!(run(Flaw::None, &["--seed"]).0, 2);
    assert_eq!(run(Flaw::None, &["--seed", "x"]).0, 2);
    assert_eq!(run(Flaw::None, &["--help"]).0, 0);
}

/// Data lost by a dropped FLUSH is reported as the device's fault; no other problem is excused by it.
#[test]
fn data_lost_by_a_dropped_flush_is_the_devices_fault() {
    let run = |flaw, kind: &str| {
        let dir = tempfile::tempdir().unwrap();
        let kind = FAULT_KINDS
            .into_iter()
            .find(|known| known.name == kind)
            .unwrap();
        let mut out = Vec::new();
        let options = options(dir.path(), 300);
        let outcomes = faults(&[subject(flaw)], &[kind], &options, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let stats = &outcomes[0].report.stats;
        assert!(stats.with_faults > 0 || outcomes[0].is_bad(), "{text}");
        (outcomes[0].is_bad(), stats.lost_by_device, text)
    };
    let (bad, lost, text) = run(Flaw::None, "lost-flush");
    assert!(!bad && lost > 0, "{text}");
    assert!(text.contains("THE DEVICE'S FAULT") && text.contains("no failure found"));
    let (bad, lost, text) = run(Flaw::None, "latency");
    assert_eq!((bad, lost), (false, 0), "{text}");
    for kind in ["lost-flush", "latency"] {
        let (bad, _, text) = run(Flaw::NoFlush, kind);
        assert!(bad && text.contains("  FAILURE, case in "), "{text}");
    }
}
