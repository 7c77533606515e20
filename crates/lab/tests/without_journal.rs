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
//! 3. What fsync(2) or fdatasync(2) covered is there, with its size, if the name was durable before.
//! 4. After a clean unmount no repair is needed, and everything is there.
//! 5. A volume that is marked clean needs no repair, whenever the power fails: otherwise a boot would skip e2fsck.
//!
//! Nothing is guaranteed for files that were being changed: a file may be in lost+found, truncated or missing, and an
//! fsynced new file may have no name, unless its directory was synced, too.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::{Path, PathBuf};

use steadfs_block::Op;
use steadfs_lab::crash::{Injection, Run, Subject, Tool, ext4, record, record_with};
use steadfs_lab::device::{Fault, Image, RequestFilter, Survivors};
use steadfs_workload::generate::{Shape, random};
use steadfs_workload::{Observed, Op as Call, Program, Target, TreePath};

use common::{KEPT, is_marked_clean, kept, look, repair};

/// Names that the setup makes durable, for files that a task writes and syncs one after the other.
const SYNCED_SETUP: &str = "mkdir /synced 755
create /synced/0 644
write /synced/0 0+9000 11
create /synced/1 644
create /synced/2 644
write /synced/2 0+5000 12
create /synced/3 644
truncate /synced/3 60000
create /synced/4 644
write /synced/4 0+9000 13
create /synced/5 644
create /synced/6 644
write /synced/6 0+5000 14
create /synced/7 644
truncate /synced/7 60000
";

/// Writes in place, into a new file, behind a hole and into one; each file is synced once and not changed again.
const SYNCED_TASK: &str = "task
write /synced/0 0+9000 21
fsync /synced/0
write /synced/1 0+20000 22
fsync /synced/1
write /synced/2 70000+3000 23
fsync /synced/2
write /synced/3 8000+9000 24
fsync /synced/3
write /synced/4 0+9000 25
fdatasync /synced/4
write /synced/5 0+20000 26
fdatasync /synced/5
write /synced/6 70000+3000 27
fdatasync /synced/6
write /synced/7 8000+9000 28
fdatasync /synced/7
";

/// The files that the task had synced before a cut.
fn synced_before(run: &Run, cut: usize) -> Vec<TreePath> {
    let steps = run.recording.tasks.iter().flatten();
    let returned = steps.filter(|step| step.ended <= run.marks[cut]);
    let files = returned.filter_map(|step| match &step.op {
        Call::Fsync { file } | Call::Fdatasync { file } => match file {
            Target::Path(path) => Some(path.clone()),
            Target::Handle(_) => None,
        },
        _ => None,
    });
    let dir: TreePath = "/synced".parse().unwrap();
    files.filter(|path| path.is_within(&dir)).collect()
}

/// The files among `synced` whose size and content are not those of the end: they were not changed after their sync.
fn missed(found: &Observed, synced: &[TreePath], end: &Observed) -> Vec<TreePath> {
    let content = |seen: &Observed, path: &TreePath| {
        let inode = seen.names.get(path).map(|ino| &seen.inodes[ino]);
        inode.map(|inode| (inode.size, inode.content.clone()))
    };
    let differs = |path: &&TreePath| content(found, path) != content(end, path);
    synced.iter().filter(differs).cloned().collect()
}

/// Repairs an image, which needs no more than e2fsck -p; returns whether it was needed, and the files.
fn after_repair(subject: &Subject, image: &Image, dir: &Path, what: &str) -> (bool, Observed) {
    let (code, repaired) = repair(image, dir);
    assert!(matches!(code, 0 | 1), "{what}: e2fsck ends with {code}");
    let hides_it = code == 1 && is_marked_clean(image);
    assert!(!hides_it, "{what}: it needs repair, and says it does not");
    let clean = Tool::E2fsck.check(&repaired, dir).unwrap();
    assert_eq!(clean, "", "{what}: after the repair");
    let check = subject.check.as_ref().unwrap();
    assert_eq!(check(&repaired), "", "{what}: after the repair");
    (code == 1, look(subject, &repaired).0)
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

/// A program of a seed, beside which files are kept and others are synced one after the other.
fn program_of(subject: &Subject, seed: u64) -> Program {
    let shape = Shape {
        tasks: 2,
        shared: seed.is_multiple_of(2),
        sync_percent: 20,
        sleep_percent: 10,
        ..Shape::default()
    };
    let fixed = format!("{KEPT}{SYNCED_SETUP}{SYNCED_TASK}");
    let mut program: Program = fixed.parse().unwrap();
    let beside = random(seed, shape, subject.format);
    program.setup.extend(beside.setup);
    program.tasks.extend(beside.tasks);
    program
}

/// The mount and the setup: a volume that is marked clean needs no repair.
fn judge_setup(subject: &Subject, run: &Run, seed: u64, dir: &Path, what: &str) {
    for at in (0..run.first_cut).step_by(run.first_cut.div_ceil(5).max(1)) {
        for survivors in run.log.at(at).choices(3, seed) {
            let image = run.log.image(at, &survivors);
            if is_marked_clean(&image) {
                let said = Tool::E2fsck.check(&image, dir).unwrap();
                let name = &subject.name;
                assert_eq!(said, "", "{name}: {what}, cut {at}, {survivors:?}");
            }
        }
    }
}

#[test]
fn synced_and_unchanged_files_survive_a_repair() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("journal-less");
    let (mut images, mut repaired, mut synced_files) = (0, 0, 0);
    for subject in ext4::without_journal(&dir).unwrap() {
        for seed in seeds() {
            let program = program_of(&subject, seed);
            let what = format!("{} with program {seed}", subject.name);
            let run = record(&subject, &program, seed);
            let run = run.unwrap_or_else(|f| panic!("{what}: {}\n{}", f.problem, f.detail));
            let first = run.log.image(run.first_cut, &Survivors::None);
            let wanted = kept(&after_repair(&subject, &first, &dir, &what).1);
            assert_eq!(wanted.len(), 8, "{wanted:#?}");
            let end = run.log.image(run.log.len(), &Survivors::None);
            let said = Tool::E2fsck.check(&end, &dir).unwrap();
            assert_eq!(said, "", "{what}: unmounted");
            let end = look(&subject, &end).0;
            assert_eq!(kept(&end), wanted, "{what}: unmounted");

            let mut cuts = run.log.last_cuts();
            cuts.retain(|cut| *cut >= run.first_cut);
            let every = cuts.len().div_ceil(10).max(1);
            for &at in cuts.iter().step_by(every) {
                let cut = run.log.at(at);
                let synced = synced_before(&run, at);
                for survivors in cut.choices(4, seed) {
                    let image = cut.image(&survivors);
                    let what = format!("{what}, cut {at}, {survivors:?}");
                    let (was_repaired, found) = after_repair(&subject, &image, &dir, &what);
                    assert_eq!(kept(&found), wanted, "{what}");
                    assert_eq!(missed(&found, &synced, &end), [], "{what}: synced before");
                    images += 1;
                    repaired += u32::from(was_repaired);
                    synced_files += synced.len();
                }
            }
            judge_setup(&subject, &run, seed, &dir, &what);
        }
    }
    assert!(images > 100 && repaired > 50, "{images}, {repaired}");
    assert!(
        synced_files > 300,
        "{synced_files} files that were synced before a cut"
    );
}

/// A device that does no FLUSH of the program's syncs loses files that these covered: the test notices it.
#[test]
fn lost_flushes_of_syncs_are_noticed() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("journal-less-syncs");
    let program: Program = format!("setup\n{SYNCED_SETUP}{SYNCED_TASK}")
        .parse()
        .unwrap();
    for subject in ext4::without_journal(&dir).unwrap() {
        let honest = record(&subject, &program, 1);
        let honest = honest.unwrap_or_else(|failure| panic!("{}", failure.problem));
        let lies = vec![(RequestFilter::From(honest.requests.start), Fault::LostFlush)];
        let run = record_with(&subject, &program, 1, &Injection::Faults(lies));
        let run = run.unwrap_or_else(|failure| panic!("{}", failure.problem));
        let run = run.expect("nothing failed");
        let end = look(&subject, &run.log.image(run.log.len(), &Survivors::All)).0;
        let after_last = |cut: &usize| synced_before(&run, *cut).len() == 8;
        let cut = (run.first_cut..run.log.len())
            .find(after_last)
            .expect("a cut");
        let lost = run.log.image(cut, &Survivors::None);
        let (_, found) = after_repair(&subject, &lost, &dir, &subject.name);
        let missed = missed(&found, &synced_before(&run, cut), &end);
        assert!(!missed.is_empty(), "{}", subject.name);
    }
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
        let found = kept(&after_repair(&subject, &image, &dir, &subject.name).1);
        assert!(found.is_empty(), "{}: {found:#?}", subject.name);
    }
}
