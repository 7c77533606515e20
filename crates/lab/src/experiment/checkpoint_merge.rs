//! f2fs `checkpoint_merge` (Linux 5.12, commit 261eeb9c): fsync of a directory while another cgroup of low weight does
//! the same continuously.
//!
//! Thread A (cgroup fg, weight 100): 1000 times touch a file, fsync its directory. Thread B: one file written from
//! start to end repeatedly, 128 KiB at a time. Thread C (cgroup bg, weight 20): the same as A, continuously. BFQ with
//! strict_guarantees: one request in the device. A took 68 s without the option and 48 s with it.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{GroupId, InodeNo, IoPrio};
use steadfs_block::{Policy, QueueSettings};
use steadfs_f2fs::format::{FormatOptions, format};
use steadfs_rt::{Random, now, sleep};
use steadfs_vfs::{Cx, FsError};

use super::actors::{Background, make_file, writer};
use super::acts::Evidence;
use super::files::Files;
use super::plan::{
    Arm, Attempt, Cell, Check, Error, Figure, Plan, Role, Sample, Settings, Source, Unit,
};
use super::testbed::{CacheSizes, Cgroup, Mount, Testbed, World, prepare, process, run_on};
use crate::flash::{Counters, Parameters, Store};

/// Size of the volume. (The phone's had 256 GB; only the time of a mount depends on it.)
const VOLUME: u64 = 4 << 30;
/// B's file, created beforehand: so B overwrites the same blocks in both arms, and the final content is the same.
const FILE: u64 = 128 << 20;
/// CPU time of a process that does one call (`touch`, `fsync`), within 20 %.
const PROCESS_CPU: Duration = Duration::from_millis(1);
/// Time that B and C run before A begins.
const WARM_UP: Duration = Duration::from_secs(5);
/// A goes on for at least this long: B's write(2) calls are throttled in bursts of some MiB.
const MEASURED_MIN: Duration = Duration::from_secs(4);
/// Memory for dirty data: the flusher begins at a quarter, B is throttled at a half.
const DIRTY: u64 = 128 << 20;

const FG: GroupId = GroupId(1);
const BG: GroupId = GroupId(2);
/// The kernel's flusher, as BFQ sees it with cgroups of version 1, which do not account buffered writes: a queue of the
/// root, of priority be,4, which competes with the groups by its weight whether a task waits for it or not. With `fair`
/// only a group of that weight does this; the root's own background requests are dispatched last there.
const FLUSHER: GroupId = GroupId(3);
const GROUPS: [(GroupId, u32); 3] = [(FG, 100), (BG, 20), (FLUSHER, 40)];
const ROOT: GroupId = GroupId(0);

/// The largest number of requests that a checkpoint served.
const LARGEST: &str = "largest batch";

/// Why the kernel's merging deviates by more than a quarter.
const WHY_MERGED: &str = "A and C either share each checkpoint, or just miss the other's, so that an iteration waits for two; which of both is random \
                          and persists; the published run may have shared more often than ours.";

/// Why batching saves less than its aim.
const WHY_BATCHED: &str = "a checkpoint waits at most 15 ms for the usual requesters, and C may be back later than that; then A \
                           waits for two checkpoints again. Alone, A has no requester to wait for.";

/// Why the aim is missed.
const WHY_AIM: &str = "a checkpoint of C is in progress when A requests its own, so A waits for two instead of one, and B's data gets a ninth of the \
                       device meanwhile.";

/// Why the ratio differs in real time.
const WHY_REAL: &str = "the time of a call in the kernel, FUSE and the server is not modelled: about 0.1 ms per call, and more if other threads \
                        use the processors.";

/// Checkpoint merging in an arm.
#[derive(Clone, Copy)]
struct Merging {
    /// The merging task's I/O priority.
    prio: &'static str,
    /// Its longest wait for more requesters, in microseconds; the kernel does not wait.
    max_batch_time: &'static str,
}

/// The arms.
const ARMS: [(&str, Option<Merging>); 4] = [
    ("nocheckpoint_merge", None),
    (
        "be,3, no batching",
        Some(Merging {
            prio: "be,3",
            max_batch_time: "0",
        }),
    ),
    (
        "be,3",
        Some(Merging {
            prio: "be,3",
            max_batch_time: "15000",
        }),
    ),
    (
        "rt,3",
        Some(Merging {
            prio: "rt,3",
            max_batch_time: "15000",
        }),
    ),
];
const UNMERGED: &str = ARMS[0].0;
const AS_KERNEL: &str = ARMS[1].0;
const MERGED: &str = ARMS[2].0;
const REAL_TIME: &str = ARMS[3].0;

/// A condition.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    about: &'static str,
    queue: fn(QueueSettings) -> QueueSettings,
    /// The groups of A, of B's data and of C.
    groups: [GroupId; 3],
    load: bool,
    antagonist: bool,
    /// One of this number of A's iterations is run.
    share: u64,
}

/// The same in cells without published figures, and with a fast B, which are slow to simulate.
const PART: u64 = 5;
const SMALL_PART: u64 = 10;

const fn published(queue: QueueSettings) -> QueueSettings {
    QueueSettings {
        policy: Policy::Fair,
        strict_guarantees: true,
        ..queue
    }
}

const PUBLISHED: Case = Case {
    name: "as published",
    about: "A in fg (100), C in bg (20), B's data with the weight of the root's flusher (40: cgroup v1, BFQ); one \
            request in the device (strict_guarantees), low_latency.",
    queue: published,
    groups: [FG, FLUSHER, BG],
    load: true,
    antagonist: true,
    share: 1,
};

const VARIANT: Case = Case {
    share: PART,
    ..PUBLISHED
};

const CASES: [Case; 9] = [
    PUBLISHED,
    Case {
        name: "without low_latency",
        about: "As published, without BFQ's preference for queues that become busy after a pause.",
        queue: |queue| QueueSettings {
            low_latency: false,
            ..published(queue)
        },
        ..VARIANT
    },
    Case {
        name: "B charged to fg",
        about: "As published, but B's data is charged to fg (as cgroup v2 does).",
        groups: [FG, FG, BG],
        ..VARIANT
    },
    Case {
        name: "B last",
        about: "As published, but B's data is charged to the root, where it is dispatched after all waited requests, except for \
                a ninth of the service: so it delays no checkpoint.",
        groups: [FG, ROOT, BG],
        ..VARIANT
    },
    Case {
        name: "one group",
        about: "A, B and C in one group: no priority inversion is left.",
        groups: [FG, FG, FG],
        ..VARIANT
    },
    Case {
        name: "without C",
        about: "A and B: no task holds a resource that A needs.",
        antagonist: false,
        ..VARIANT
    },
    Case {
        name: "A alone",
        about: "No contention: the cost of the wake-ups of the merging task.",
        load: false,
        antagonist: false,
        ..VARIANT
    },
    Case {
        name: "steadfs fair",
        about: "A, B and C as published; io_scheduler=fair with its defaults: the device's whole queue depth; \
                a tenth of the iterations.",
        groups: [FG, ROOT, BG],
        share: SMALL_PART,
        queue: |queue| QueueSettings {
            policy: Policy::Fair,
            ..queue
        },
        ..VARIANT
    },
    Case {
        name: "steadfs fifo",
        about: "The same with io_scheduler=fifo, which ignores groups.",
        groups: [FG, ROOT, BG],
        share: SMALL_PART,
        queue: |queue| QueueSettings {
            policy: Policy::Fifo,
            ..queue
        },
        ..VARIANT
    },
];

/// The plan.
///
/// # Errors
/// A parameter file with an error, or a volume that cannot be formatted.
pub fn plan(settings: &Settings) -> Result<Plan, Error> {
    let device = settings.device("ufs-2021")?;
    let iterations = settings.scaled(1000, 40, 100);
    let volume = volume().map_err(Error::Setup)?;
    let cells = CASES.iter().map(|case| Cell {
        name: case.name.to_owned(),
        about: case.about.to_owned(),
        same_content: true,
        evidence: evidence(case),
        arms: ARMS
            .iter()
            .map(|(name, merging)| {
                let (device, volume, merging) = (device.clone(), volume.clone(), *merging);
                Arm::new(*name, move |attempt| {
                    one_run(
                        case,
                        &device,
                        &volume,
                        merging,
                        (iterations / case.share).max(20),
                        attempt,
                    )
                })
            })
            .collect(),
    });
    Ok(Plan {
        name: "checkpoint-merge",
        title: "does fsync of a directory wait less if one task writes the merged checkpoints of all callers?",
        device: device.name.clone(),
        scale: settings
            .is_smaller()
            .then(|| format!("{iterations} iterations of A, published 1000")),
        cells: cells.collect(),
        figures: figures(),
        notes: notes(),
        timeline: (PUBLISHED.name.to_owned(), Duration::from_millis(2)),
        checks: checks(),
    })
}

/// A cell with two fsync callers shows batching if checkpoints serve more than one request. As in the kernel, without
/// batching, the callers miss each other's checkpoints; there only the task's tag acts.
fn evidence(case: &Case) -> Vec<Evidence> {
    let merged = [MERGED, REAL_TIME].map(|arm| Evidence {
        arm: arm.to_owned(),
        value: LARGEST,
        at_least: 2.0,
        otherwise: "too small to show, no checkpoint served more than one request",
    });
    let merged = merged.into_iter().filter(|_| case.antagonist);
    merged.collect()
}

fn figures() -> Vec<Figure> {
    let iteration = "A's iteration mean";
    let of = |what: &str, ours, scale, published, role, why: &str| Figure {
        what: what.to_owned(),
        ours,
        scale,
        published,
        role,
        why: Some(why.to_owned()),
    };
    let value = |arm| Source::value(PUBLISHED.name, arm, iteration);
    let ratio = |cell, arm| Source::ratio(cell, UNMERGED, arm, iteration);
    let (calibrated, predicted) = (Role::Calibrated, Role::Predicted);
    vec![
        of(
            "A's iteration without merging, ms",
            value(UNMERGED),
            1e6,
            68.0,
            calibrated,
            WHY_MERGED,
        ),
        of(
            "A's iteration, be,3, no batching, ms",
            value(AS_KERNEL),
            1e6,
            48.0,
            predicted,
            WHY_MERGED,
        ),
        of(
            "no batching to without merging",
            ratio(PUBLISHED.name, AS_KERNEL),
            1.0,
            48.0 / 68.0,
            predicted,
            WHY_MERGED,
        ),
        of(
            "batching (be,3) to without merging",
            ratio(PUBLISHED.name, MERGED),
            1.0,
            0.6,
            Role::Aim,
            WHY_BATCHED,
        ),
        of(
            "A alone: batching to without merging",
            ratio("A alone", MERGED),
            1.0,
            1.03,
            Role::Aim,
            WHY_BATCHED,
        ),
        of(
            "A's fsync, fair, rt,3, under load, to A alone",
            Source::across(
                ["A alone", REAL_TIME],
                ["steadfs fair", REAL_TIME],
                "A's fsync mean",
            ),
            1.0,
            2.0,
            Role::Aim,
            WHY_AIM,
        ),
    ]
}

fn checks() -> Vec<Check> {
    let check = |cell: &str, arm: &str, value| Check {
        cell: cell.to_owned(),
        arms: [UNMERGED, arm].map(str::to_owned),
        value,
        why: WHY_REAL,
    };
    let iteration = "A's iteration mean";
    vec![
        check(PUBLISHED.name, AS_KERNEL, iteration),
        check(PUBLISHED.name, MERGED, iteration),
        check(PUBLISHED.name, MERGED, "C's iterations"),
        check("A alone", MERGED, iteration),
    ]
}

fn notes() -> Vec<String> {
    [
        "Cells without published figures run a fifth of A's iterations, with a fast B a tenth.",
        "Published is one figure per arm, without variance or number of runs; the fill level, B's file and the dirty \
         limits are unknown.",
        "The scheduler is steadfs's fair, not BFQ: weights and strict_guarantees mean the same, and the flusher has BFQ's weight; \
         budgets, weight raising and preemption differ.",
        "B's data competes with C's own checkpoint at 40 to 20; a merged one at the highest weight among its requesters (100, \
         20) and the task (be,3: 50; rt,3: first). Where B is dispatched last anyway (cell \"B last\") less priority inversion is left.",
        "Where B's data is charged to A's group, B is served after the group's awaited requests, except for a small part. \
         Without merging it has the group's whole share while A waits for a checkpoint of C; a checkpoint that serves A, \
         too, leaves B the small part, as in \"one group\".",
        "fair charges bytes, and for a FLUSH the bytes that the device could have transferred in that time; BFQ charges slow queues by time.",
        "Without batching two threads that fsync just miss each other's checkpoints, for a long time: each waits for two.",
    ]
    .map(str::to_owned)
    .to_vec()
}

/// Both directories with their files, and B's file.
fn volume() -> Result<Store, String> {
    let make = |queue: &steadfs_block::Queue| {
        let options = FormatOptions {
            uuid: Some([0x1A; 16]),
            ..FormatOptions::default()
        };
        format(queue, VOLUME, &options)
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    prepare(VOLUME, &Mount::f2fs("")?, make, |testbed| {
        let (fs, cx) = (&*testbed.fs, Cx::default());
        for dir in [&b"test_dir1"[..], b"test_dir2"] {
            let dir = fs.mkdir(&cx, fs.root(), dir)?;
            fs.make(&cx, dir, b"file")?;
        }
        make_file(fs, b"test_img", FILE)?;
        fs.sync_all(&cx)
    })
}

/// The processes of one thread: their group, CPU times and numbers.
struct Actor {
    fs: Arc<dyn Files>,
    group: GroupId,
    random: Random,
    next: u32,
}

impl Actor {
    /// Actors have numbers 1, 2 and 3.
    fn new(fs: &Arc<dyn Files>, number: u32, group: GroupId, seed: u64) -> Self {
        Self {
            fs: Arc::clone(fs),
            group,
            random: Random::new(seed.wrapping_mul(31).wrapping_add(number.into())),
            next: number << 24,
        }
    }

    /// Starts a process, which takes its CPU time.
    fn process(&mut self) -> Cx {
        let part = self.random.below(2048) as u64;
        let nanos = u64::try_from(PROCESS_CPU.as_nanos()).expect("a millisecond");
        sleep(Duration::from_nanos(
            nanos * 9 / 10 + nanos / 5 * part / 2048,
        ));
        self.next += 1;
        process(self.group, IoPrio::default(), self.next)
    }

    /// `touch FILE; fsync DIR`, two processes. Returns the time of the fsync.
    fn touch_and_sync(&mut self, (dir, file): (InodeNo, InodeNo)) -> Result<u64, FsError> {
        let cx = self.process();
        self.fs.touch(&cx, file)?;
        let cx = self.process();
        let begin = now();
        self.fs.fsync(&cx, dir)?;
        Ok(now().0 - begin.0)
    }
}

/// Measurements of the threads.
struct Measured {
    iterations: Vec<u64>,
    syncs: Vec<u64>,
    elapsed: u64,
    by_c: u64,
    by_b: u64,
    checkpoints: u64,
    largest: u64,
    device: Counters,
}

fn one_run(
    case: &'static Case,
    device: &Parameters,
    volume: &Store,
    merging: Option<Merging>,
    iterations: u64,
    attempt: Attempt,
) -> Result<Sample, String> {
    let merge = if merging.is_some() {
        "checkpoint_merge"
    } else {
        "nocheckpoint_merge"
    };
    let seed = attempt.seed;
    let grouped = attempt.grouped;
    let world = World {
        attempt,
        device: device.clone(),
        mount: Mount::f2fs(merge)?,
        queue: (case.queue)(QueueSettings::default()),
        groups: GROUPS.map(|(id, weight)| Cgroup { id, weight }).to_vec(),
        memory: CacheSizes {
            metadata: 64 << 20,
            dirty_data: DIRTY,
            read_ahead: 8 << 20,
        },
    };
    let outcome = run_on(world, volume, move |testbed| {
        let groups = case.groups.map(|group| if grouped { group } else { ROOT });
        measure(case, groups, testbed, merging, (iterations, seed))
    })?;
    let mut sample = Sample::of(&outcome);
    let Measured {
        iterations,
        syncs,
        elapsed,
        by_c,
        by_b,
        checkpoints,
        largest,
        device,
    } = outcome.value;
    let seconds = elapsed as f64 / 1e9;
    sample.latency("A's iteration", iterations);
    sample.latency("A's fsync", syncs);
    if case.antagonist {
        sample.value("C's iterations", Unit::PerSecond, by_c as f64 / seconds);
    }
    if case.load {
        sample.value(
            "B's throughput",
            Unit::BytesPerSecond,
            by_b as f64 / seconds,
        );
    }
    sample.value("checkpoints", Unit::PerSecond, checkpoints as f64 / seconds);
    sample.value(LARGEST, Unit::Count, largest as f64);
    let written = device.written_bytes as f64 / seconds;
    sample.value("device writes", Unit::BytesPerSecond, written);
    Ok(sample)
}

/// Runs threads A, B and C until A has done its iterations.
fn measure(
    case: &Case,
    groups: [GroupId; 3],
    testbed: &Testbed,
    merging: Option<Merging>,
    (iterations, seed): (u64, u64),
) -> Result<Measured, FsError> {
    let fs = &testbed.fs;
    // As on a volume of more than 16 GiB.
    fs.set_control("f2fs/ipu_policy", b"16")?;
    if let Some(merging) = merging {
        fs.set_control("f2fs/ckpt_thread_ioprio", merging.prio.as_bytes())?;
        fs.set_control("f2fs/max_batch_time", merging.max_batch_time.as_bytes())?;
    }
    let cx = Cx::default();
    let place = |name: &[u8]| -> Result<(InodeNo, InodeNo), FsError> {
        let dir = fs.lookup(&cx, fs.root(), name)?;
        Ok((dir, fs.lookup(&cx, dir, b"file")?))
    };
    let (mine, theirs) = (place(b"test_dir1")?, place(b"test_dir2")?);
    let image = fs.lookup(&cx, fs.root(), b"test_img")?;
    let [of_a, of_b, of_c] = groups;
    let load = case.load.then(|| {
        let cx = Actor::new(fs, 2, of_b, seed).process();
        writer(fs, cx, image, FILE)
    });
    let antagonist = case
        .antagonist
        .then(|| antagonist(Actor::new(fs, 3, of_c, seed), theirs));
    if case.load || case.antagonist {
        sleep(WARM_UP);
    }
    let mut actor = Actor::new(fs, 1, of_a, seed);
    let before = status(&**fs, "CP count: ")?;
    let device = testbed.device.counters();
    let count = |thread: &Option<Background>| thread.as_ref().map_or(0, Background::count);
    let (by_b, by_c) = (count(&load), count(&antagonist));
    let begin = now();
    let mut measured = Measured {
        iterations: Vec::new(),
        syncs: Vec::new(),
        elapsed: 0,
        by_c: 0,
        by_b: 0,
        checkpoints: 0,
        largest: 0,
        device: Counters::default(),
    };
    let mut last = begin;
    while (measured.syncs.len() as u64) < iterations || begin.elapsed() < MEASURED_MIN {
        measured.syncs.push(actor.touch_and_sync(mine)?);
        let end = now();
        measured.iterations.push(end.0 - last.0);
        last = end;
    }
    testbed.measured();
    measured.elapsed = last.0 - begin.0;
    measured.checkpoints = status(&**fs, "CP count: ")? - before;
    measured.largest = status(&**fs, "  - Largest batch :")?;
    measured.by_b = count(&load) - by_b;
    measured.by_c = count(&antagonist) - by_c;
    measured.device = testbed.device.counters().since(&device);
    for thread in [load, antagonist].into_iter().flatten() {
        thread.end()?;
    }
    Ok(measured)
}

fn antagonist(mut actor: Actor, place: (InodeNo, InodeNo)) -> Background {
    Background::spawn("C", move || {
        actor.touch_and_sync(place)?;
        Ok(1)
    })
}

/// The number of the status line that begins with `label`.
fn status(fs: &dyn Files, label: &str) -> Result<u64, FsError> {
    let text = fs.control("f2fs/status")?;
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find_map(|line| line.strip_prefix(label));
    let count = line.and_then(|count| count.trim().parse().ok());
    Ok(count.unwrap_or_else(|| panic!("the status has no number {label:?}")))
}
