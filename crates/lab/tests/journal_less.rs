//! Explores the crashes of volumes without a journal.
//!
//! # What is promised there
//! Nothing orders the writes of such a volume: after a power cut its metadata may contradict itself, and
//! e2fsck has to be asked before it is mounted again (so does Linux). What is left to promise, and is
//! asserted here for every cut and whatever subset of the unflushed writes survives:
//!
//! 1. e2fsck can repair it without asking anybody, and what it leaves is clean to it and to our checker.
//! 2. What a sync covered and nobody has touched since is there, byte for byte, with its names and
//!    attributes, whatever went on beside it: no block of it was given away or written over.
//! 3. After a clean unmount nothing needs repair, and everything is there.
//!
//! Nothing is said of what was being changed: a file may be in lost+found, be cut off or be gone, and a new
//! file that fsync was called for may be found without its name, unless its directory was synced too.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use steadfs_block::{Device, Op};
use steadfs_lab::crash::{Subject, Tool, Trouble, ext4, record, record_with};
use steadfs_lab::device::{Fault, Image, Model, SimDevice, Survivors, Which};
use steadfs_rt::{sim, sleep};
use steadfs_workload::generate::{Shape, random};
use steadfs_workload::{Observed, Program, TreePath, observe};

/// Made and synced before the crash, and not touched by what runs then.
const KEPT: &str = "setup
mkdir /kept 755
mkdir /kept/deep 700
create /kept/small 640
write /kept/small 0+700 1
create /kept/large 644
write /kept/large 0+150000 2
create /kept/deep/holes 600
write /kept/deep/holes 90000+5000 3
symlink /kept/link /kept/large
link /kept/small /kept/deep/twin
create /kept/deep/empty 600
truncate /kept/deep/empty 40000
";

/// What is below the directory that is kept, in words.
fn kept(seen: &Observed) -> Vec<String> {
    let dir: TreePath = "/kept".parse().unwrap();
    let inside = seen.names.iter().filter(|(path, _)| path.is_within(&dir));
    inside
        .map(|(path, ino)| {
            let mut there = seen.inodes[ino].clone();
            // Looking changes it.
            there.atime = there.mtime;
            format!("{path} {ino:?} {there:?}")
        })
        .collect()
}

/// Has e2fsck repair an image: its exit code (0: nothing to repair; 1: repaired), and what is left.
fn repair(image: &Image, dir: &Path) -> (i32, Image) {
    let path = dir.join("repaired.img");
    image.save(&path).unwrap();
    let said = Command::new("e2fsck")
        .env("E2FSPROGS_FAKE_TIME", "1700000000")
        .arg("-fy")
        .arg(&path)
        .output()
        .expect("e2fsck is needed by this test");
    let repaired = Image::load(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    (said.status.code().unwrap(), repaired)
}

/// Mounts an image, looks at everything, unmounts.
fn look(subject: &Subject, image: &Image) -> Observed {
    let (open, image) = (Arc::clone(&subject.open), image.clone());
    let seen = sim::run(sim::Config::new(1), move || {
        let device: Arc<dyn Device> = Arc::new(SimDevice::new(&image, Model::default()));
        let fs = open(device).unwrap();
        let seen = observe(fs.as_ref()).unwrap();
        fs.unmount().unwrap();
        sleep(Duration::from_millis(1));
        seen
    });
    seen.value
}

/// Whether an image needed repair, which is no more than e2fsck does by itself; what is kept in it then.
fn after_repair(subject: &Subject, image: &Image, dir: &Path, what: &str) -> (bool, Vec<String>) {
    let (code, repaired) = repair(image, dir);
    assert!(matches!(code, 0 | 1), "{what}: e2fsck ends with {code}");
    let clean = Tool::E2fsck.check(&repaired, dir).unwrap();
    assert_eq!(clean, "", "{what}: after the repair");
    let check = subject.check.as_ref().unwrap();
    assert_eq!(check(&repaired), "", "{what}: after the repair");
    (code == 1, kept(&look(subject, &repaired)))
}

/// Programs for each kind of volume: `CRASH_PROGRAMS` of them, for longer runs.
fn programs() -> u64 {
    let asked = std::env::var("CRASH_PROGRAMS").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(3)
}

#[test]
fn what_was_synced_and_left_alone_survives_a_repair() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("journal-less");
    let (mut images, mut repaired) = (0, 0);
    for subject in ext4::without_journal(&dir).unwrap() {
        for seed in 0..programs() {
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
            let run = run.unwrap_or_else(|f| panic!("{what}: {}\n{}", f.complaint, f.detail));
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
            assert_eq!(kept(&look(&subject, &end)), wanted, "{what}: unmounted");
        }
    }
    assert!(images > 100 && repaired > 50, "{images}, {repaired}");
}

/// The test would notice: on a device that only says that it flushed, nothing is kept.
#[test]
fn a_device_that_lies_about_flushes_is_noticed() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("journal-less-lies");
    let program: Program = format!("{KEPT}task\ncreate /beside 644\n").parse().unwrap();
    for subject in ext4::without_journal(&dir).unwrap() {
        let lies = [Op::Write, Op::Flush].map(|op| (Which::Every(op), Fault::Lie));
        let run = record_with(&subject, &program, 1, &Trouble::Faults(lies.into()));
        let run = run.unwrap_or_else(|failure| panic!("{}", failure.complaint));
        let run = run.expect("nothing failed");
        let image = run.log.image(run.first_cut, &Survivors::None);
        let (_, found) = after_repair(&subject, &image, &dir, &subject.name);
        assert!(found.is_empty(), "{}: {found:#?}", subject.name);
    }
}
