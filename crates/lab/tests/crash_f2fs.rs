//! Explores the crashes of f2fs volumes.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use steadfs_block::Device;

use steadfs_lab::crash::subject::Open;
use steadfs_lab::crash::{
    Case, Effort, Injection, Options, Report, Stats, Trial, explore, f2fs, record, record_with,
    sweep, try_program,
};
use steadfs_lab::device::{Event, Fault, Image, Log, Model, RequestFilter, SimDevice, Survivors};
use steadfs_rt::{Random, sim, sleep, spawn};
use steadfs_vfs::Cx;
use steadfs_workload::Program;
use steadfs_workload::generate::{Shape, random};

/// Failing cases are kept after the test.
fn cases(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("crash-f2fs")
        .join(name)
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

/// Number of distinct images, if `CRASH_IMAGES` sets none.
const USUAL_IMAGES: usize = 15_000;

/// Number of distinct images: `CRASH_IMAGES`, for longer runs or short ones that judge a mutant.
fn images() -> usize {
    let asked = std::env::var("CRASH_IMAGES").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(USUAL_IMAGES)
}

/// What a run has at least, if one of the usual length has `usual`.
fn at_least(usual: u64) -> u64 {
    usual * images() as u64 / USUAL_IMAGES as u64
}

/// Programs of each subject: one for `each` images.
fn rounds(each: usize) -> usize {
    images().div_ceil(each)
}

#[test]
fn f2fs_survives_power_cuts() {
    let out = cases("sweep");
    let budget = images();
    let options = Options {
        budget,
        ..Options::new(out)
    };
    let report = sweep(f2fs::subjects().unwrap(), options).unwrap();
    assert_clean(&report);
    let stats = &report.stats;
    assert!(stats.distinct.len() >= budget, "{stats:?}");
    assert!(
        stats.rolled > at_least(100),
        "{} files rolled forward",
        stats.rolled
    );
    assert!(
        stats.retried > at_least(200),
        "{} recoveries after errors",
        stats.retried
    );
    assert!(
        stats.nested > at_least(10),
        "{} crashes of recoveries",
        stats.nested
    );
    assert_eq!(
        stats.checked, stats.recoveries,
        "our checker judges every image"
    );
    // About 58 are expected of the usual number; shorter runs only show that it was asked.
    let few = if budget < USUAL_IMAGES { 0 } else { 30 };
    assert!(
        stats.by_tool > few,
        "{} images judged by fsck.f2fs",
        stats.by_tool
    );
    for (subject, what) in [
        ("f2fs-worn", f2fs::IN_HOLES),
        ("f2fs-worn-urgent", f2fs::CLEANED),
        ("f2fs-worn-urgent", f2fs::IN_HOLES),
        ("f2fs-urgent-lfs", f2fs::CLEANED),
    ] {
        let count = stats.work_of(subject, what);
        assert!(count > at_least(20), "{subject}: {count} {what}");
    }
}

#[test]
fn f2fs_survives_slow_requests_and_loses_only_what_the_device_lost() {
    let subject = f2fs::subjects().unwrap().swap_remove(0);
    common::slow_and_lying_devices(&subject, &cases("slow"));
}

/// Several files are changed and fsynced one by one later, some after a rename: the settled ones are clustered with the
/// first fsync.
fn late_fsyncs(seed: u64) -> Program {
    let mut random = Random::new(seed ^ 0xC0_4071);
    let mut text = String::from("setup\n");
    let dirs = ["/a", "/b"].map(|dir| {
        text += &format!("mkdir {dir} 755\n");
        dir
    });
    let mut tasks = Vec::new();
    for task in 0..1 + random.below(2) {
        let mut ops = String::new();
        let mut names: Vec<String> = Vec::new();
        for n in 0..3 + random.below(6) {
            let name = format!("{}/{task}-{n}", dirs[random.below(2)]);
            let old = random.chance(256);
            let to = if old { &mut text } else { &mut ops };
            *to += &format!("create {name} 644\n");
            if old {
                text += &format!("write {name} 0+9000 {n}\n");
            }
            ops += &format!("write {name} 0+{} 1{n}\n", 1 + random.below(20_000));
            names.push(name);
        }
        ops += "sleep 20\n";
        for n in 0..3 * names.len() {
            let at = random.below(names.len());
            let name = names[at].clone();
            match random.below(12) {
                0 => {
                    names[at] = format!("{}/{task}-r{n}", dirs[random.below(2)]);
                    ops += &format!("rename {name} {} replace\n", names[at]);
                }
                1 => ops += &format!("write {name} {}+3000 2{n}\n", random.below(9000)),
                2 => ops += &format!("truncate {name} {}\n", random.below(12_000)),
                3 => ops += &format!("chmod {name} 60{}\n", random.below(8)),
                4 => ops += &format!("link {name} /a/{task}-l{n}\n"),
                5 => ops += &format!("unlink {name}\ncreate {name} 600\nwrite {name} 0+50 3{n}\n"),
                6 => ops += "sleep 20\n",
                7 => ops += &format!("fdatasync {name}\n"),
                _ => ops += &format!("fsync {name}\n"),
            }
        }
        tasks.push(ops);
    }
    for ops in tasks {
        text += &format!("task\n{ops}");
    }
    text.parse().expect("one line is one operation")
}

/// Explores the crashes of the programs of many seeds, on volumes that are not small.
fn explore_programs(out: &Path, rounds: usize, make: fn(u64) -> Program) -> (Vec<String>, Stats) {
    std::fs::create_dir_all(out).expect("the folder of failing cases");
    let mut subjects = f2fs::subjects().expect("formatted volumes");
    subjects.retain(|subject| !subject.small);
    let effort = Effort {
        images: 60,
        ..Effort::default()
    };
    let mut stats = Stats::default();
    for number in 0..rounds as u64 {
        for (subject, seed) in subjects.iter().zip(100 * number..) {
            let program = make(seed);
            let (of_run, failure) =
                try_program(Trial::Crashes, subject, &program, seed, effort, out);
            stats.add(of_run);
            if let Some(failure) = failure {
                let case = Case {
                    subject: subject.name.clone(),
                    seed,
                    program,
                    injection: failure.injection.clone(),
                    path: failure.path.clone(),
                };
                case.save(out, &failure).expect("the failing case is kept");
                let text = format!("{}\n{}", failure.problem, failure.detail);
                panic!("seed {seed} on {}: {text}", subject.name);
            }
        }
    }
    let names = subjects.into_iter().map(|subject| subject.name).collect();
    (names, stats)
}

/// Files that are clustered with an fsync are as if they had been synced too, or as in the last checkpoint; and they
/// never prevent the recovery of the synced file.
#[test]
fn a_file_clustered_with_an_fsync_survives_whole() {
    let (subjects, stats) = explore_programs(&cases("along"), rounds(4_000), late_fsyncs);
    let along = |name: &str| stats.work_of(name, f2fs::CLUSTERED);
    assert!(along("f2fs-plain") > 0, "{:?}", stats.work);
    assert_eq!(along("f2fs-fastboot") + along("f2fs-two-logs"), 0);
    let all: u64 = subjects.iter().map(|name| along(name)).sum();
    let rolled = stats.rolled;
    assert!(
        all > at_least(20) && rolled > at_least(100),
        "{all}, {rolled}"
    );
}

/// Several tasks append to files of their own, or write behind holes so that chains have several nodes, and call fsync
/// each time.
fn concurrent_fsyncs(seed: u64) -> Program {
    let mut random = Random::new(seed ^ 0x6E0_0F5);
    let tasks = 2 + random.below(4);
    let mut text = String::from("setup\n");
    for task in 0..tasks {
        if random.chance(512) {
            text += &format!("create /{task} 644\nwrite /{task} 0+5000 {task}\n");
        }
    }
    for task in 0..tasks {
        text += &format!("task\ncreate /{task} 644\n");
        let mut size = 5000;
        for n in 0..6 + random.below(8) {
            match random.below(8) {
                0 => size += 4 << 20,
                1 => text += &format!("write /{task} 0+3000 2{n}\n"),
                2 => text += &format!("create /{task}-{n} 600\nfsync /{task}-{n}\n"),
                _ => {}
            }
            let len = 1 + random.below(9000);
            text += &format!("write /{task} {size}+{len} 1{n}\n");
            size += len;
            let sync = ["fsync", "fdatasync"][usize::from(random.chance(256))];
            text += &format!("{sync} /{task}\n");
        }
    }
    text.parse().expect("one line is one operation")
}

/// fsyncs that share a FLUSH are durable when they return; a crash leaves a prefix of the node log.
#[test]
fn concurrent_fsyncs_survive_as_a_group() {
    let (subjects, stats) = explore_programs(&cases("groups"), rounds(10_000), concurrent_fsyncs);
    let grouped = |name: &str| stats.work_of(name, f2fs::GROUPED);
    assert_eq!(grouped("f2fs-fastboot") + grouped("f2fs-two-logs"), 0);
    let all: u64 = subjects.iter().map(|name| grouped(name)).sum();
    let rolled = stats.rolled;
    assert!(
        all > at_least(100) && rolled > at_least(100),
        "{all}, {rolled}"
    );
}

#[test]
fn regressions_pass() {
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
                Err(failure) => panic!("{}: {}", path.display(), failure.problem),
            };
            let (_, failures) = explore(subject, &run, effort, seed, &out);
            if let Some(failure) = failures.first() {
                let text = format!("{}\n{}", failure.problem, failure.detail);
                panic!("{} on {}: {text}", path.display(), subject.name);
            }
        }
    }
    assert!(seen >= 9, "{seen} programs");
}

/// Regressions on a full volume: with every number of free blocks.
#[test]
fn regressions_on_full_volumes_pass() {
    let out = cases("on-full-volume");
    std::fs::create_dir_all(&out).unwrap();
    let mut subjects = f2fs::subjects().unwrap();
    subjects.retain(|subject| subject.small);
    let seen = common::regressions_on_full_volume(&subjects, &out);
    assert!(seen >= 16, "{seen} runs");
}

/// Regressions with device faults: an error at each request, and at all later ones.
#[test]
fn regressions_with_device_faults_pass() {
    let out = cases("with-faults");
    std::fs::create_dir_all(&out).unwrap();
    let mut subjects = f2fs::subjects().unwrap();
    subjects.retain(|subject| !subject.small);
    let with_faults = common::regressions_with_faults(subjects.iter().zip(0..), &out);
    assert!(with_faults > 200, "{with_faults} runs met an error");
}

/// An fsync of which only the end survived, and a recovery that is cut while it writes before that.
#[test]
fn a_cut_recovery_never_links_a_torn_chain() {
    let out = cases("torn");
    std::fs::create_dir_all(&out).unwrap();
    let program: Program =
        "create /g 644\nsetxattr /g user.0 29 5 any\nsetxattr /g user.1 153 6 any\nfsync /g\n\
        zero-keep /g 2+32\ntruncate /g 8\nfsync /g\nsetxattr /g user.1 99 7 any\nfsync /g\n"
            .parse()
            .unwrap();
    let effort = Effort {
        nested: 1024,
        ..Effort::default()
    };
    let mut nested = 0;
    let mut subjects = f2fs::subjects().unwrap();
    subjects.retain(|subject| ["f2fs-plain", "f2fs-extra"].contains(&subject.name.as_str()));
    for (subject, seed) in subjects.iter().flat_map(|s| [(s, 1), (s, 2)]) {
        let run = record(subject, &program, seed).unwrap_or_else(|f| panic!("{}", f.problem));
        let (stats, failures) = explore(subject, &run, effort, seed, &out);
        if let Some(failure) = failures.first() {
            panic!("{}: {}\n{}", subject.name, failure.problem, failure.detail);
        }
        nested += stats.nested;
    }
    assert!(nested > 500, "{nested}");
}

/// One twentieth of the images, with `faults` faults per run.
fn with_faults(trial: Trial, faults: usize, out: PathBuf) -> Options {
    Options {
        trial,
        budget: images().div_ceil(20),
        effort: Effort {
            faults,
            cuts: 3,
            nested: 16,
            by_tool: 8,
            ..Effort::default()
        },
        ..Options::new(out)
    }
}

/// A device that fails at any request: acknowledged data is there, and no task panics or hangs.
#[test]
fn f2fs_survives_a_failing_device() {
    let options = with_faults(Trial::Faults, 10, cases("faults"));
    let report = sweep(f2fs::subjects().unwrap(), options).unwrap();
    assert_clean(&report);
    let stats = &report.stats;
    assert!(
        stats.with_faults > at_least(100) && stats.stopped > at_least(10),
        "{stats:?}"
    );
    assert!(stats.undecided * 20 < stats.with_faults, "{stats:?}");
}

/// A volume that is full at any allocation: errors are exact, no acknowledged data is lost, and all space can be freed
/// again.
#[test]
fn f2fs_survives_a_full_volume() {
    let options = with_faults(Trial::Space, 6, cases("space"));
    let report = sweep(f2fs::subjects().unwrap(), options).unwrap();
    assert_clean(&report);
    let stats = &report.stats;
    assert!(stats.with_faults > at_least(10), "{stats:?}");
}

/// With a failing device and GC, too.
#[test]
fn runs_are_functions_of_their_seed() {
    let mut subjects = f2fs::subjects().unwrap();
    subjects.retain(|subject| !subject.small);
    for (subject, seed) in subjects.iter().zip(0..) {
        let shape = Shape {
            tasks: 3,
            shared: seed % 2 == 0,
            sync_percent: 30,
            ..Shape::default()
        };
        let program = random(seed, shape, subject.format);
        let request = RequestFilter::Nth(60 + 7 * seed);
        let injection = |fault| Injection::Faults(vec![(request.clone(), fault)]);
        // A failed read of a file's data is a finding: the same one in each run.
        let events = |injection: &Injection| {
            let run = record_with(subject, &program, seed, injection);
            let run = run.map_err(|failure| failure.problem.to_string())?;
            Ok::<_, String>(run.map(|run| {
                let texts = run.log.events().iter().map(|event| format!("{event:?}"));
                texts.collect::<Vec<_>>()
            }))
        };
        assert!(events(&Injection::None).is_ok(), "{}", subject.name);
        // The request that fails must be the one that was counted in the run without faults.
        let nothing = injection(Fault::Delay(Duration::ZERO));
        let fails = injection(Fault::Fail);
        for (one, other) in [(&Injection::None, &nothing), (&fails, &fails)] {
            assert!(
                events(one) == events(other),
                "{} with seed {seed}: {one:?} and {other:?} differ",
                subject.name
            );
        }
    }
}

/// Requested checkpoints and their results.
struct CheckpointRequests {
    log: Log,
    /// Directories whose creation was synced, with the mark set then.
    made: Vec<(u64, String)>,
}

/// Several tasks create and sync directories concurrently, while f2fs_ckpt starts and stops, the volume is frozen and
/// thawed, and at the end, for odd seeds, unmounted while they run.
fn ask(open: &Open, image: &Image, seed: u64) -> CheckpointRequests {
    let model = Model {
        atomic_unit: 4096,
        seed,
        ..Model::solid_state()
    };
    let device = SimDevice::new(image, model);
    let fs = open(Arc::new(device.clone())).expect("a new volume");
    let clients: Vec<_> = (0..5u64)
        .map(|number| {
            let (fs, device) = (Arc::clone(&fs), device.clone());
            spawn("client", move || {
                let cx = Cx::default();
                let mut made = Vec::new();
                for round in 0..6 {
                    sleep(Duration::from_micros(97 * number + 1));
                    let name = format!("{number}-{round}");
                    let root = fs.root();
                    let done = fs.mkdir(&cx, root, name.as_bytes(), 0o755);
                    if done.is_ok() && fs.fsync(&cx, root, false).is_ok() {
                        let mark = number * 100 + round + 1;
                        device.mark(mark);
                        made.push((mark, name));
                    }
                }
                made
            })
        })
        .collect();
    let control = |value: &[u8]| {
        let files = fs.control().expect("f2fs has control files");
        files.write("f2fs/freeze", value).expect("nothing fails");
    };
    for round in 0..4 {
        sleep(Duration::from_micros(300 + seed * 41));
        let merge = ["nocheckpoint_merge", "checkpoint_merge"][round % 2];
        fs.remount(&Cx::default(), merge).expect("nothing fails");
        control(b"1");
        sleep(Duration::from_micros(50));
        control(b"0");
    }
    if seed % 2 == 1 {
        fs.unmount().expect("nothing fails");
    }
    let made = clients.into_iter().flat_map(|client| client.join());
    let made = made.collect();
    if seed.is_multiple_of(2) {
        fs.unmount().expect("nothing fails");
    }
    drop(fs);
    sleep(Duration::from_millis(1));
    CheckpointRequests {
        log: device.log(),
        made,
    }
}

/// A request is completed only by a checkpoint that began after it: it is durable at a power cut right then, and every
/// request completes.
#[test]
fn a_merged_checkpoint_covers_every_requester() {
    let mut subjects = f2fs::subjects().unwrap();
    let subject = subjects.swap_remove(0);
    let mut answered = 0;
    for seed in 0..10 {
        let (open, image) = (Arc::clone(&subject.open), subject.image.clone());
        let config = sim::Config::new(seed);
        let asked = sim::run(config, move || ask(&open, &image, seed)).value;
        for (mark, name) in asked.made {
            answered += 1;
            let is_set = |event: &Event| matches!(event, Event::Mark(set) if *set == mark);
            let cut = asked.log.events().iter().position(is_set);
            let left = asked.log.at(cut.unwrap()).image(&Survivors::None);
            let open = Arc::clone(&subject.open);
            let found = sim::run(sim::Config::new(1), move || {
                let device: Arc<dyn Device> = Arc::new(SimDevice::new(&left, Model::default()));
                let fs = open(device).unwrap();
                let found = fs.lookup(&Cx::default(), fs.root(), name.as_bytes());
                fs.unmount().unwrap();
                found.map(drop)
            });
            assert_eq!(found.value, Ok(()), "seed {seed}, mark {mark}");
        }
    }
    assert!(answered > 100, "{answered}");
}
