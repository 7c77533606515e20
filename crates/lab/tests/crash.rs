//! Explores the crashes of ext3 and ext4 volumes.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use steadfs_block::Op;
use steadfs_lab::crash::{
    Effort, Injection, Options, Problem, Report, Stats, Subject, Trial, explore, ext4, record,
    record_with, sweep,
};
use steadfs_lab::device::{Fault, Image, RequestFilter};
use steadfs_workload::Program;
use steadfs_workload::generate::{Shape, random};

/// Failing cases are kept after the test.
fn cases(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("crash")
        .join(name)
}

fn subjects(dir: &Path) -> Vec<Subject> {
    let mut all = ext4::subjects(dir).expect("mke2fs makes every kind of volume");
    all.retain(|subject| !subject.small);
    all
}

fn assert_clean(report: &Report) {
    if let Some((dir, failure)) = report.failures.first() {
        let text = format!("{}\n{}", failure.problem, failure.detail);
        panic!(
            "{} bad, the first in {}:\n{text}",
            report.failures.len(),
            dir.display()
        );
    }
}

/// e2fsck has replayed a sample of the logs by itself, and refused few of them.
fn assert_replayed(stats: &Stats) {
    let (done, refused) = (stats.replayed, stats.not_replayed);
    assert!(done > 100, "{done} logs replayed by e2fsck");
    assert!(
        refused * 5 < done,
        "{refused} logs refused, {done} replayed"
    );
}

#[test]
fn ext4_survives_power_cuts() {
    let out = cases("sweep");
    let options = Options {
        budget: 13_000,
        ..Options::new(out.clone())
    };
    let report = sweep(subjects(&out), options).unwrap();
    assert_clean(&report);
    let stats = &report.stats;
    assert!(
        stats.distinct.len() >= 13_000,
        "{} distinct images",
        stats.distinct.len()
    );
    assert!(stats.nested > 100, "{} crashes of recoveries", stats.nested);
    assert!(
        stats.retried > 400,
        "{} recoveries after one on a failing device",
        stats.retried
    );
    assert_eq!(
        stats.checked, stats.recoveries,
        "our checker judges every image"
    );
    assert!(
        stats.by_tool > 20,
        "{} images judged by e2fsck",
        stats.by_tool
    );
    assert_replayed(stats);
}

/// A disagreement of two judges is a failure, whichever of them is wrong.
#[test]
fn judges_that_disagree_are_reported() {
    let out = cases("judges");
    let mut subject = subjects(&out).swap_remove(0);
    let mut rotten = subject.image.clone();
    // Bitmaps and inode tables; the superblock stays.
    for at in (4 << 10..64 << 10).step_by(512) {
        rotten.write(at + 100, &[0xA5; 8]);
    }
    let judge = |subject: &Subject, image: &Image| subject.judge(image, true, &out).unwrap();
    assert!(judge(&subject, &subject.image).1.is_ok());
    let verdict = judge(&subject, &rotten).1.unwrap_err();
    assert!(matches!(&verdict, Problem::Damaged { .. }), "{verdict}");
    subject.check = Some(Arc::new(|_| String::new()));
    let (asked, verdict) = judge(&subject, &rotten);
    let verdict = verdict.unwrap_err().to_string();
    assert!(
        asked && verdict.starts_with("the checker finds nothing, but e2fsck"),
        "{verdict}"
    );
    subject.check = Some(Arc::new(|_| "nonsense".to_owned()));
    // Not in the sample, but a failure: the tool judges it, too.
    let (asked, verdict) = subject.judge(&subject.image, false, &out).unwrap();
    let verdict = verdict.unwrap_err().to_string();
    assert!(
        asked && verdict.starts_with("e2fsck finds nothing, but the checker"),
        "{verdict}"
    );
}

/// A device that fails at any request: acknowledged data is there, and no task panics or hangs.
#[test]
fn ext4_survives_a_failing_device() {
    let out = cases("faults");
    let options = Options {
        trial: Trial::Faults,
        budget: 4_000,
        effort: Effort {
            faults: 10,
            cuts: 3,
            nested: 16,
            by_tool: 8,
            replays: 12,
            ..Effort::default()
        },
        ..Options::new(out.clone())
    };
    let report = sweep(subjects(&out), options).unwrap();
    assert_clean(&report);
    let stats = &report.stats;
    assert!(stats.with_faults > 1000 && stats.stopped > 100, "{stats:?}");
    assert!(stats.undecided * 20 < stats.with_faults, "{stats:?}");
}

/// A volume that is full at any allocation: errors are exact, no acknowledged data is lost, and all space can be freed
/// again.
#[test]
fn ext4_survives_a_full_volume() {
    let out = cases("space");
    let options = Options {
        trial: Trial::Space,
        budget: 4_000,
        effort: Effort {
            faults: 6,
            cuts: 3,
            nested: 16,
            by_tool: 8,
            replays: 4,
            ..Effort::default()
        },
        ..Options::new(out.clone())
    };
    let all = ext4::subjects(&out).expect("mke2fs makes every kind of volume");
    let report = sweep(all, options).unwrap();
    assert_clean(&report);
    assert!(report.stats.with_faults > 60, "{:?}", report.stats);
}

#[test]
fn regressions_pass() {
    let out = cases("regressions");
    let subjects = subjects(&out);
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions");
    let effort = Effort {
        replays: 6,
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
        for subject in &subjects {
            for seed in 0..6 {
                let run = match record(subject, &program, seed) {
                    Ok(run) => run,
                    Err(failure) => panic!("{}: {}", path.display(), failure.problem),
                };
                let (_, failures) = explore(subject, &run, effort, seed, &out);
                if let Some(failure) = failures.first() {
                    let text = format!("{}\n{}", failure.problem, failure.detail);
                    panic!(
                        "{} on {}, seed {seed}: {text}",
                        path.display(),
                        subject.name
                    );
                }
            }
        }
    }
    assert!(seen >= 6, "{seen} programs");
}

/// Regressions on a full volume: with every number of free blocks.
#[test]
fn regressions_on_full_volumes_pass() {
    let out = cases("on-full-volume");
    let mut subjects = ext4::subjects(&out).expect("mke2fs makes every kind of volume");
    subjects.retain(|subject| subject.small);
    subjects.retain(|subject| subject.format.extents);
    let seen = common::regressions_on_full_volume(&subjects, &out);
    assert!(seen >= 8, "{seen} runs");
}

/// Regressions with device faults: an error at each request, and at all later ones.
#[test]
fn regressions_with_device_faults_pass() {
    let out = cases("with-faults");
    let subjects = subjects(&out);
    let runs = subjects.iter().flat_map(|s| [(s, 0), (s, 1)]);
    let with_faults = common::regressions_with_faults(runs, &out);
    assert!(with_faults > 500, "{with_faults} runs met an error");
}

#[test]
fn ext4_survives_slow_requests_and_loses_only_what_the_device_lost() {
    let out = cases("slow");
    common::slow_and_lying_devices(&subjects(&out)[0], &out);
}

/// The explorer notices a lost FLUSH: acknowledged data is lost.
#[test]
fn lost_flushes_are_noticed() {
    let out = cases("lost-flush");
    let subjects = subjects(&out);
    let program: Program = "create /f 644\nwrite /f 0+9000 1\nfsync /f\n"
        .parse()
        .unwrap();
    for subject in &subjects {
        let lies = [Op::Write, Op::Flush].map(|op| (RequestFilter::Every(op), Fault::LostFlush));
        let run = record_with(subject, &program, 1, &Injection::Faults(lies.into()))
            .unwrap_or_else(|failure| panic!("{}", failure.problem))
            .expect("nothing failed");
        let (_, failures) = explore(subject, &run, Effort::default(), 1, &out);
        assert!(!failures.is_empty(), "{}", subject.name);
    }
}

#[test]
fn runs_are_functions_of_their_seed() {
    let out = cases("twice");
    for subject in &subjects(&out) {
        for seed in 0..20 {
            let shape = Shape {
                tasks: 3,
                shared: seed % 2 == 0,
                ..Shape::default()
            };
            let program = random(seed, shape, subject.format);
            let events = || {
                let run =
                    record(subject, &program, seed).unwrap_or_else(|f| panic!("{}", f.problem));
                let texts = run.log.events().iter().map(|event| format!("{event:?}"));
                texts.collect::<Vec<_>>()
            };
            let (first, second) = (events(), events());
            let same = first
                .iter()
                .zip(&second)
                .take_while(|(a, b)| a == b)
                .count();
            assert!(
                same == first.len() && first.len() == second.len(),
                "{} with seed {seed}: runs differ from event {same} on: {:.300} {:.300}",
                subject.name,
                first.get(same).map_or("", |event| event),
                second.get(same).map_or("", |event| event),
            );
        }
    }
}
