//! Explores the crashes of f2fs volumes.

use std::path::{Path, PathBuf};

use steadfs_lab::crash::{Effort, Options, Report, Trial, explore, f2fs, record, sweep};
use steadfs_workload::Program;

/// Cases of failures outlive the test: that is what they are for.
fn cases(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("crash-f2fs")
        .join(name)
}

fn assert_clean(report: &Report) {
    if let Some((dir, failure)) = report.failures.first() {
        let text = format!("{}\n{}", failure.complaint, failure.detail);
        panic!(
            "{} bad, the first in {}:\n{text}",
            report.failures.len(),
            dir.display()
        );
    }
}

/// As many distinct images as `CRASH_IMAGES` says, for longer runs.
fn images(otherwise: usize) -> usize {
    let asked = std::env::var("CRASH_IMAGES").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn f2fs_survives_twenty_thousand_power_cuts() {
    let out = cases("sweep");
    let budget = images(20_000);
    let options = Options {
        budget,
        ..Options::new(out)
    };
    let report = sweep(f2fs::subjects().unwrap(), options).unwrap();
    assert_clean(&report);
    let stats = &report.stats;
    assert!(stats.distinct.len() >= budget, "{stats:?}");
    assert!(stats.rolled > 100, "{} files rolled forward", stats.rolled);
    assert!(stats.nested > 10, "{} crashes of recoveries", stats.nested);
    assert_eq!(
        stats.checked, stats.recoveries,
        "our checker judges every image"
    );
    assert!(
        stats.by_tool > 3,
        "{} images judged by fsck.f2fs",
        stats.by_tool
    );
}

#[test]
fn what_once_failed_does_not_fail_again() {
    let out = cases("regressions");
    std::fs::create_dir_all(&out).unwrap();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions");
    let mut subjects = f2fs::subjects().unwrap();
    subjects.retain(|subject| !subject.small);
    let effort = Effort {
        images: 60,
        ..Effort::default()
    };
    let mut seen = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|kind| kind != "txt") {
            continue;
        }
        seen += 1;
        let program: Program = std::fs::read_to_string(&path).unwrap().parse().unwrap();
        for (seed, subject) in (0..).zip(&subjects) {
            let run = match record(subject, &program, seed) {
                Ok(run) => run,
                Err(failure) => panic!("{}: {}", path.display(), failure.complaint),
            };
            let (_, failures) = explore(subject, &run, effort, seed, &out);
            if let Some(failure) = failures.first() {
                let text = format!("{}\n{}", failure.complaint, failure.detail);
                panic!("{} on {}: {text}", path.display(), subject.name);
            }
        }
    }
    assert!(seen >= 9, "{seen} programs");
}

/// A device that fails at any request: what is acknowledged is there all the same, and nothing panics
/// or hangs.
#[test]
fn f2fs_survives_a_failing_device() {
    let out = cases("faults");
    let options = Options {
        trial: Trial::Faults,
        budget: images(20_000) / 20,
        effort: Effort {
            troubles: 10,
            cuts: 3,
            nested: 16,
            by_tool: 8,
            ..Effort::default()
        },
        ..Options::new(out)
    };
    let report = sweep(f2fs::subjects().unwrap(), options).unwrap();
    assert_clean(&report);
    let stats = &report.stats;
    assert!(stats.troubled > 100 && stats.stopped > 10, "{stats:?}");
}

/// A volume that fills up at any allocation: exact errors, nothing acknowledged is lost, and all room
/// comes back.
#[test]
fn f2fs_survives_a_full_volume() {
    let out = cases("space");
    let options = Options {
        trial: Trial::Space,
        budget: images(20_000) / 20,
        effort: Effort {
            troubles: 6,
            cuts: 3,
            nested: 16,
            by_tool: 8,
            ..Effort::default()
        },
        ..Options::new(out)
    };
    let report = sweep(f2fs::subjects().unwrap(), options).unwrap();
    assert_clean(&report);
    assert!(report.stats.troubled > 10, "{:?}", report.stats);
}
