//! Mounts clean volumes on devices that fail during the mount: each request fails once, fails with all later ones, or
//! fails although it was done, and each FLUSH fails with the loss of the cache.
//!
//! A refused mount reports the device's error, and leaves the volume as it was. A mount that succeeds keeps its
//! guarantees: after a power cut, data that a sync covered is there, and so is everything from before the mount.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::{Path, PathBuf};
use std::time::Duration;

use steadfs_lab::crash::{Subject, ext4, f2fs};
use steadfs_lab::device::{Fault, Image, Log, Model, RequestFilter, Survivors};
use steadfs_rt::{Random, sim, sleep};
use steadfs_vfs::FsError;
use steadfs_workload::{Observed, Op, Program, Runner, TreePath};

use common::{KEPT, is_marked_clean, kept, look, repair};

/// Done on each volume before: files that are kept, and files that are removed later.
const BEFORE: &str = "mkdir /gone 755
create /gone/file 644
write /gone/file 0+60000 4
";

/// Done after the mount, until something fails.
const AFTER: &str = "setup
create /new 644
write /new 0+9000 7
unlink /gone/file
rmdir /gone
mkdir /room 755
create /room/more 600
write /room/more 0+50000 8
sync
";

fn ops(text: &str) -> Vec<Op> {
    let program: Program = text.parse().unwrap();
    program.setup
}

/// A mount attempt and its result.
struct Attempt {
    opened: bool,
    /// Number of requests until the mount.
    requests: u64,
    /// Position in the log of the sync; `None` if that failed.
    synced: Option<usize>,
    unmounted: bool,
    log: Log,
    content: Image,
}

fn attempt(
    subject: &Subject,
    image: &Image,
    text: &str,
    fault: Option<(RequestFilter, Fault)>,
) -> Attempt {
    let (image, todo) = (image.clone(), ops(text));
    let what = format!("{}, {fault:?}", subject.name);
    let subject = subject.clone();
    let ran = sim::run(sim::Config::new(1), move || {
        let (device, opened) = subject.open_on(&image, Model::default(), fault);
        let requests = device.counts().total();
        let (mut synced, mut unmounted) = (None, false);
        match &opened {
            Ok(fs) => {
                let mut runner = Runner::new(fs.as_ref());
                let done = todo.iter().try_for_each(|op| runner.step(op).map(drop));
                refused_by_device(done.as_ref(), &what);
                synced = done.ok().map(|()| device.log().len());
                drop(runner);
                let left = fs.unmount();
                refused_by_device(left.as_ref(), &what);
                unmounted = left.is_ok();
            }
            Err(error) => refused_by_device(Err(error), &what),
        }
        let opened = opened.is_ok();
        sleep(Duration::from_millis(1));
        Attempt {
            opened,
            requests,
            synced,
            unmounted,
            log: device.log(),
            content: device.content(),
        }
    });
    ran.value
}

/// Asserts that an error is the device's.
fn refused_by_device(result: Result<&(), &FsError>, what: &str) {
    if let Err(error) = result {
        let is = matches!(error, FsError::Io(_) | FsError::ReadOnly) || error.is_stop();
        assert!(is, "{what}: {error}");
    }
}

/// The content created after the mount, and whether the removed files are gone.
fn made(seen: &Observed) -> Vec<String> {
    let content = |path: &str| {
        let path: TreePath = path.parse().unwrap();
        let ino = seen.names.get(&path)?;
        let there = &seen.inodes[ino];
        Some(format!("{path} {} {:?}", there.size, there.content))
    };
    let paths = ["/new", "/room/more", "/gone"];
    paths.into_iter().filter_map(content).collect()
}

/// The volumes of a kind, and their judges.
struct Judge<'a> {
    subject: &'a Subject,
    dir: &'a Path,
    /// Without a journal e2fsck must run first.
    repairs: bool,
    kept: Vec<String>,
    made: Vec<String>,
}

impl Judge<'_> {
    fn judge(&self, image: &Image, synced: bool, what: &str) {
        let repaired;
        let image = match self.repairs {
            true => {
                let clean = is_marked_clean(image);
                let (code, after) = repair(image, self.dir);
                assert!(
                    code == 0 || code == 1 && !clean,
                    "{what}: e2fsck: {code}, {clean}"
                );
                repaired = after;
                &repaired
            }
            false => image,
        };
        let (seen, after) = look(self.subject, image);
        assert_eq!(kept(&seen), self.kept, "{what}");
        if synced {
            assert_eq!(made(&seen), self.made, "{what}");
        }
        let check = self.subject.check.as_ref().unwrap();
        assert_eq!(check(&after), "", "{what}");
    }

    fn judge_attempt(&self, attempt: &Attempt, random: &mut Random, what: &str) {
        if attempt.unmounted {
            let check = self.subject.check.as_ref().unwrap();
            assert_eq!(check(&attempt.content), "", "{what}: unmounted");
        }
        let synced = attempt.synced;
        self.judge(&attempt.content, synced.is_some(), what);
        for _ in 0..3 {
            let at = random.below(attempt.log.len() + 1);
            let survivors = Survivors::Seeded(random.next_u64());
            let image = attempt.log.image(at, &survivors);
            let what = format!("{what}, cut {at}, {survivors:?}");
            self.judge(&image, synced.is_some_and(|synced| synced <= at), &what);
        }
    }
}

/// All faults of a mount; returns the number of mounts, and of those that succeeded.
fn all_mounts(subject: &Subject, dir: &Path, repairs: bool) -> (u32, u32) {
    let setup = attempt(
        subject,
        &subject.image,
        &format!("{KEPT}{BEFORE}sync\n"),
        None,
    );
    assert!(setup.unmounted, "{}", subject.name);
    let start = setup.content;
    let quiet = attempt(subject, &start, AFTER, None);
    let (seen, _) = look(subject, &quiet.content);
    let judge = Judge {
        subject,
        dir,
        repairs,
        kept: kept(&seen),
        made: made(&seen),
    };
    assert_eq!(
        (judge.kept.len(), judge.made.len()),
        (8, 2),
        "{}",
        subject.name
    );
    let mut faults = Vec::new();
    for request in 0..quiet.requests {
        faults.push((RequestFilter::Nth(request), Fault::Fail));
        faults.push((RequestFilter::From(request), Fault::Fail));
        faults.push((RequestFilter::Nth(request), Fault::Misreport));
    }
    for (number, request) in (0..).zip(quiet.log.flushes()) {
        if request < quiet.requests {
            faults.push((RequestFilter::NthFlushing(number), Fault::LoseCache));
        }
    }
    let mut random = Random::new(quiet.requests);
    let (mut tried, mut went_on) = (0, 0);
    for fault in faults {
        let what = format!("{}, {fault:?}", subject.name);
        let attempt = attempt(subject, &start, AFTER, Some(fault));
        judge.judge_attempt(&attempt, &mut random, &what);
        tried += 1;
        went_on += u32::from(attempt.opened);
    }
    (tried, went_on)
}

fn scratch(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn try_all(subjects: &[Subject], dir: &Path, repairs: bool) {
    let (mut tried, mut went_on) = (0, 0);
    for subject in subjects.iter().filter(|subject| !subject.small) {
        let of_this = all_mounts(subject, dir, repairs);
        tried += of_this.0;
        went_on += of_this.1;
    }
    assert!(tried > 40 && went_on < tried, "{tried}, {went_on}");
}

#[test]
fn journaled_volumes_survive_mounts_on_failing_devices() {
    let dir = scratch("mounting-ext4");
    try_all(&ext4::subjects(&dir).unwrap(), &dir, false);
}

#[test]
fn volumes_without_a_journal_survive_mounts_on_failing_devices() {
    let dir = scratch("mounting-unjournaled");
    try_all(&ext4::without_journal(&dir).unwrap(), &dir, true);
}

#[test]
fn f2fs_volumes_survive_mounts_on_failing_devices() {
    let dir = scratch("mounting-f2fs");
    try_all(&f2fs::subjects().unwrap(), &dir, false);
}
