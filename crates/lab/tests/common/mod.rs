//! Shared by several explorations: files kept on a volume during a crash, how they are read, and regressions with
//! faults.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test uses a part, and fails by panicking"
)]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use steadfs_ext4::disk::Superblock;
use steadfs_ext4::disk::superblock::{STATE_CLEAN, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use steadfs_lab::crash::trial::try_injection;
use steadfs_lab::crash::{
    Effort, FreeSpace, Injection, Options, Subject, Trial, sweep, try_program,
};
use steadfs_lab::device::{Image, Model};
use steadfs_rt::{sim, sleep};
use steadfs_workload::{Observed, Program, TreePath, observe};

/// Created and synced before the crash, and not changed by the program.
pub const KEPT: &str = "setup
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

/// A description of everything below the kept directory.
pub fn kept(seen: &Observed) -> Vec<String> {
    let dir: TreePath = "/kept".parse().unwrap();
    let inside = seen.names.iter().filter(|(path, _)| path.is_within(&dir));
    inside
        .map(|(path, ino)| {
            let mut there = seen.inodes[ino].clone();
            // Observing changes the access time.
            there.atime = there.mtime;
            format!("{path} {ino:?} {there:?}")
        })
        .collect()
}

/// Repairs an image with e2fsck; returns its exit code (0: nothing to repair; 1: repaired) and the image.
pub fn repair(image: &Image, dir: &Path) -> (i32, Image) {
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

/// Whether an ext volume is marked clean.
pub fn is_marked_clean(image: &Image) -> bool {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    image.read(SUPERBLOCK_OFFSET, &mut bytes);
    Superblock::parse(&bytes).is_ok_and(|sb| sb.state() & STATE_CLEAN != 0)
}

/// Mounts an image, reads everything, unmounts; returns what it read, and the image.
pub fn look(subject: &Subject, image: &Image) -> (Observed, Image) {
    let (subject, image) = (subject.clone(), image.clone());
    let seen = sim::run(sim::Config::new(1), move || {
        let (device, fs) = subject.open_on(&image, Model::default(), None);
        let fs = fs.unwrap();
        let seen = observe(fs.as_ref()).unwrap();
        fs.unmount().unwrap();
        sleep(Duration::from_millis(1));
        (seen, device.content())
    });
    seen.value
}

/// Some programs on a device with slow requests, and on one that acknowledges FLUSHes and does none of them.
pub fn slow_and_lying_devices(subject: &Subject, out: &Path) {
    for trial in [Trial::Latency, Trial::LostFlushes] {
        let options = Options {
            trial,
            budget: 200,
            ..Options::new(out.to_owned())
        };
        let report = sweep(vec![subject.clone()], options).unwrap();
        if let Some((dir, failure)) = report.failures.first() {
            panic!("{trial:?}, {}: {}", dir.display(), failure.problem);
        }
        let stats = &report.stats;
        assert!(stats.with_faults > 0, "{trial:?}: {stats:?}");
        let loses = trial == Trial::LostFlushes;
        assert_eq!(stats.lost_by_device > 0, loses, "{trial:?}: {stats:?}");
    }
}

/// Runs the regressions with device faults on each of these subjects with its seed: an error at each request, and at
/// all later ones. Returns the number of runs with an error.
pub fn regressions_with_faults<'a>(
    runs: impl Iterator<Item = (&'a Subject, u64)> + Clone,
    out: &Path,
) -> u64 {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions/with-faults");
    let effort = Effort {
        images: 20,
        cuts: 4,
        ..Effort::default()
    };
    let mut with_faults = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let program: Program = std::fs::read_to_string(&path).unwrap().parse().unwrap();
        for (subject, seed) in runs.clone() {
            let (stats, failure) = try_program(Trial::Faults, subject, &program, seed, effort, out);
            with_faults += stats.with_faults;
            if let Some(failure) = failure {
                let text = format!("{}\n{}", failure.problem, failure.detail);
                let (path, name) = (path.display(), &subject.name);
                panic!("{path} on {name}, {:?}: {text}", failure.injection);
            }
        }
    }
    with_faults
}

/// Runs the regressions on a full volume on each of these subjects, with every number of free blocks. Returns the
/// number of runs.
pub fn regressions_on_full_volume(subjects: &[Subject], out: &Path) -> u64 {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions/on-full-volume");
    let mut seen = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let program: Program = std::fs::read_to_string(&path).unwrap().parse().unwrap();
        for subject in subjects {
            for blocks in 0..4 {
                seen += 1;
                let room = Injection::Space(FreeSpace {
                    blocks: Some(blocks),
                    inodes: None,
                });
                let effort = Effort::default();
                if let Err(failure) = try_injection(subject, &program, blocks, &room, effort, out) {
                    let text = format!("{}\n{}", failure.problem, failure.detail);
                    let (path, name) = (path.display(), &subject.name);
                    panic!("{path} on {name} with {blocks} blocks: {text}");
                }
            }
        }
    }
    seen
}
