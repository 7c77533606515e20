//! Explores the crashes of volumes without a journal.
//!
//! # Guarantees
//! The writes of such a volume are not ordered: after a power cut its metadata may be inconsistent, and e2fsck must run
//! before the next mount (as with Linux). These guarantees remain, and are asserted for every cut and any subset of the
//! unflushed writes:
//!
//! 1. e2fsck can repair it without questions, and both e2fsck and our checker find the result clean.
//! 2. Files that a sync covered and that were not changed since are there, byte for byte, with their names and
//!    attributes, whatever other tasks did: no block of them was reallocated or overwritten.
//! 3. After a clean unmount no repair is needed, and everything is there.
//! 4. A volume that is marked clean needs no repair, whenever the power fails: otherwise a boot would skip e2fsck.
//!
//! Nothing is guaranteed for files that were being changed: a file may be in lost+found, truncated or missing, and an
//! fsynced new file may have no name, unless its directory was synced, too.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::{Path, PathBuf};

use steadfs_block::Op;
use steadfs_lab::crash::{Injection, Subject, Tool, ext4, record, record_with};
use steadfs_lab::device::{Fault, Image, RequestFilter, Survivors};
use steadfs_workload::Program;
use steadfs_workload::generate::{Shape, random};

use common::{KEPT, is_marked_clean, kept, look, repair};

/// Repairs an image, which needs no more than e2fsck -p; returns whether it was needed, and the kept files.
fn after_repair(subject: &Subject, image: &Image, dir: &Path, what: &str) -> (bool, Vec<String>) {
    let (code, repaired) = repair(image, dir);
    assert!(matches!(code, 0 | 1), "{what}: e2fsck ends with {code}");
    let hides_it = code == 1 && is_marked_clean(image);
    assert!(!hides_it, "{what}: it needs repair, and says it does not");
    let clean = Tool::E2fsck.check(&repaired, dir).unwrap();
    assert_eq!(clean, "", "{what}: after the repair");
    let check = subject.check.as_ref().unwrap();
    assert_eq!(check(&repaired), "", "{what}: after the repair");
    (code == 1, kept(&look(subject, &repaired).0))
}

/// Seeds of the programs for each kind of volume: `CRASH_PROGRAMS` of them from `CRASH_SEED` on, for longer runs.
fn seeds() -> std::ops::Range<u64> {
    let asked = |name, or| {
        let asked = std::env::var(name).ok();
        asked.map_or(or, |n| n.parse().expect("a number"))
    };
    let first = asked("CRASH_SEED", 0);
    first..first + asked("CRASH_PROGRAMS", 3)
}

#[test]
fn synced_and_unchanged_files_survive_a_repair() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("journal-less");
    let (mut images, mut repaired) = (0, 0);
    for subject in ext4::without_journal(&dir).unwrap() {
        for seed in seeds() {
            let shape = Shape {
                tasks: 2,
                shared: seed % 2 == 0,
                sync_percent: 20,
                sleep_percent: 10,
                ..Shape::default()
            };
            let mut program: Program = KEPT.parse().unwrap();
            let beside = random(seed, shape, subject.format);
            program.setup.extend(beside.setup);
            program.tasks = beside.tasks;
            let what = format!("{} with program {seed}", subject.name);
            let run = record(&subject, &program, seed);
            let run = run.unwrap_or_else(|f| panic!("{what}: {}\n{}", f.problem, f.detail));
            let first = run.log.image(run.first_cut, &Survivors::None);
            let (_, wanted) = after_repair(&subject, &first, &dir, &what);
            assert_eq!(wanted.len(), 8, "{wanted:#?}");

            let mut cuts = run.log.last_cuts();
            cuts.retain(|cut| *cut >= run.first_cut);
            let every = cuts.len().div_ceil(10).max(1);
            for &at in cuts.iter().step_by(every) {
                let cut = run.log.at(at);
                for survivors in cut.choices(4, seed) {
                    let image = cut.image(&survivors);
                    let what = format!("{what}, cut {at}, {survivors:?}");
                    let (was_repaired, found) = after_repair(&subject, &image, &dir, &what);
                    assert_eq!(found, wanted, "{what}");
                    images += 1;
                    repaired += u32::from(was_repaired);
                }
            }
            let end = run.log.image(run.log.len(), &Survivors::None);
            let said = Tool::E2fsck.check(&end, &dir).unwrap();
            assert_eq!(said, "", "{what}: unmounted");
            assert_eq!(kept(&look(&subject, &end).0), wanted, "{what}: unmounted");
            // The mount and the setup.
            for at in (0..run.first_cut).step_by(run.first_cut.div_ceil(5).max(1)) {
                for survivors in run.log.at(at).choices(3, seed) {
                    let image = run.log.image(at, &survivors);
                    if is_marked_clean(&image) {
                        let said = Tool::E2fsck.check(&image, &dir).unwrap();
                        assert_eq!(said, "", "{what}, cut {at}, {survivors:?}");
                    }
                }
            }
        }
    }
    assert!(images > 100 && repaired > 50, "{images}, {repaired}");
}

/// With lost FLUSHes nothing is kept: the test notices it.
#[test]
fn lost_flushes_are_noticed() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("journal-less-lies");
    let program: Program = format!("{KEPT}task\ncreate /beside 644\n").parse().unwrap();
    for subject in ext4::without_journal(&dir).unwrap() {
        let lies = [Op::Write, Op::Flush].map(|op| (RequestFilter::Every(op), Fault::LostFlush));
        let run = record_with(&subject, &program, 1, &Injection::Faults(lies.into()));
        let run = run.unwrap_or_else(|failure| panic!("{}", failure.problem));
        let run = run.expect("nothing failed");
        let image = run.log.image(run.first_cut, &Survivors::None);
        let (_, found) = after_repair(&subject, &image, &dir, &subject.name);
        assert!(found.is_empty(), "{}: {found:#?}", subject.name);
    }
}
