//! Boosting urgent asynchronous writeback (RFC of August 2016, Linux 4.7): fsync of a page that the flusher has queued
//! already.
//!
//! ext4 and CFQ on a phone's UFS, with background I/O. Bench 1: 100 times write 4 KiB, wait 100 ms, fsync (the waits
//! are not counted). Bench 2: 50 times write 8 MiB, fsync. Without background 1.06 and 5.23 s; with it 21.78 and 14.61
//! s, with boost 3.24 and 11.28 s.
//! 21.78 and 14.61 s, boosted 3.24 and 11.28 s.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{GroupId, IoPrio, IoTag, OwnerId, Urgency};
use steadfs_block::{Bio, Buf, Depths, Policy, Queue, QueueSettings};
use steadfs_ext4::format::{FormatOptions, format};
use steadfs_rt::{now, sleep};
use steadfs_vfs::{Cx, FsError};

use super::actors::{Background, PIECE, WRITE_CPU, content, make_file, writer};
use super::acts::Evidence;
use super::plan::{
    Arm, Attempt, Cell, Check, Error, Figure, Plan, Role, Sample, Settings, Source, Unit,
};
use super::testbed::{CacheSizes, Mount, Testbed, World, prepare, process, run_on};
use crate::flash::{Parameters, Store};

const VOLUME: u64 = 4 << 30;
/// Number of background threads, which each write a file of this size repeatedly.
const WRITERS: u32 = 4;
const FILE: u64 = 64 << 20;
/// Memory for dirty data: the flusher begins at a quarter, writers are throttled at a half.
const DIRTY: u64 = 128 << 20;
/// Linux's nr_requests at that time, and the size of its requests; they go beyond the volume.
const NR_REQUESTS: usize = 128;
const REQUEST: u64 = 512 << 10;
const BEHIND: u64 = 1 << 30;
/// Time that the background runs before the measurement.
const WARM_UP: Duration = Duration::from_secs(5);

const ARMS: [(&str, bool); 2] = [("noboost", false), ("boost", true)];

/// The number of requests that were boosted.
const RAISED: &str = "raised";

/// A benchmark.
struct Bench {
    name: &'static str,
    about: &'static str,
    bytes: u64,
    hold: Duration,
    iterations: u64,
    quick: u64,
    /// Milliseconds per iteration: without background, with it, with boost.
    published: [f64; 3],
    /// Why ours differ: with background, and with boost.
    why: [&'static str; 2],
}

const BENCHES: [Bench; 2] = [
    Bench {
        name: "bench 1",
        about: "write 4 KiB, wait 100 ms (not counted), fsync",
        bytes: 4096,
        hold: Duration::from_millis(100),
        iterations: 100,
        quick: 20,
        published: [10.6, 217.8, 32.4],
        why: [
            "the published background I/O is unknown, and ours does not wait for CFQ's slices of async requests.",
            "steadfs's flusher writes one file at a time, so the page is seldom queued when fsync begins (see \
             \"raised\"): fsync submits it itself, in both arms. It waits for requests that are in the device already, \
             where no boost is possible: up to 24 background requests of 512 KiB (compare queue_depth=4).",
        ],
    },
    Bench {
        name: "bench 2",
        about: "write 8 MiB, fsync",
        bytes: 8 << 20,
        hold: Duration::ZERO,
        iterations: 50,
        quick: 10,
        published: [104.6, 292.2, 225.6],
        why: [
            "the cfq preset serves background requests of a group only while no task waits there; CFQ gave them slices. So \
             the background gets almost no service here, and costs little.",
            "as without boost; and the flusher had queued nothing of the 8 MiB, so there was nothing to boost.",
        ],
    },
];

/// Why an fsync beside a load takes longer than twice its time alone.
const WHY_AIM: &str = "fsync_latency_target bounds the background requests in the device by feedback; some fsyncs still wait behind \
                       them (see p99).";

/// Why the mechanism by itself gains more than was published.
const WHY_DEEP: &str = "128 requests of 512 KiB are 64 MiB, three quarters of a second at this device's speed; the published queue was \
                        shorter (CFQ's ramp, smaller requests), so there was less to gain.";

/// A condition.
struct Case {
    name: &'static str,
    about: &'static str,
    policy: Policy,
    depth: usize,
    background: Load,
}

/// The background load.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    /// No load.
    None,
    /// Threads that write files; the flusher queues their pages.
    Files,
    /// CFQ's maximum number of background requests is in the queue all the time; and the flusher writes the file's
    /// pages at once.
    Queue,
}

impl Load {
    /// Memory for dirty data.
    const fn memory(self, bench: &Bench) -> u64 {
        match self {
            Self::None | Self::Files => DIRTY,
            // The flusher begins above a quarter of it; writers are throttled above a half.
            Self::Queue => 2 * bench.bytes,
        }
    }
}

/// Default queue depth of a volume.
const DEPTH: usize = 32;

const CASES: [Case; 8] = [
    Case {
        name: "cfq",
        about: "as published: background I/O, CFQ's rules.",
        policy: Policy::Cfq,
        depth: DEPTH,
        background: Load::Files,
    },
    Case {
        name: "cfq, no background",
        about: "nothing else runs.",
        policy: Policy::Cfq,
        depth: DEPTH,
        background: Load::None,
    },
    Case {
        name: "fair",
        about: "background I/O, io_scheduler=fair.",
        policy: Policy::Fair,
        depth: DEPTH,
        background: Load::Files,
    },
    Case {
        name: "fair, queue_depth=4",
        about: "background I/O, io_scheduler=fair, at most four requests in the device, three of them in the background.",
        policy: Policy::Fair,
        depth: 4,
        background: Load::Files,
    },
    Case {
        name: "cfq, queue_depth=4",
        about: "background I/O, CFQ's rules, at most four requests in the device.",
        policy: Policy::Cfq,
        depth: 4,
        background: Load::Files,
    },
    Case {
        name: "fifo",
        about: "background I/O, io_scheduler=fifo.",
        policy: Policy::Fifo,
        depth: DEPTH,
        background: Load::Files,
    },
    Case {
        name: "deep queue",
        about: "as a kernel of that time fills it: 128 background requests of 512 KiB are queued all the time, and the flusher \
                takes the file's pages up at once; CFQ's rules. The mechanism by itself.",
        policy: Policy::Cfq,
        depth: DEPTH,
        background: Load::Queue,
    },
    Case {
        name: "deep queue, fair",
        about: "the same with io_scheduler=fair: all mechanisms at once.",
        policy: Policy::Fair,
        depth: DEPTH,
        background: Load::Queue,
    },
];

fn cell_name(bench: &Bench, case: &Case) -> String {
    format!("{}, {}", bench.name, case.name)
}

/// The plan.
///
/// # Errors
/// A parameter file with an error, or a volume that cannot be formatted.
pub fn plan(settings: &Settings) -> Result<Plan, Error> {
    let device = settings.device("ufs-2016")?;
    let volume = volume().map_err(Error::Setup)?;
    let mut cells = Vec::new();
    let mut figures = Vec::new();
    for bench in &BENCHES {
        let iterations = settings.scaled(bench.iterations, bench.quick, bench.quick);
        for case in &CASES {
            let arms = ARMS.iter().map(|(name, boost)| {
                let (device, volume, boost) = (device.clone(), volume.clone(), *boost);
                Arm::new(*name, move |attempt| {
                    one_run(
                        (bench, case),
                        (&device, &volume),
                        boost,
                        iterations,
                        attempt,
                    )
                })
            });
            cells.push(Cell {
                name: cell_name(bench, case),
                about: format!("{}; {}", bench.about, case.about),
                same_content: true,
                evidence: evidence(case),
                arms: arms.collect(),
            });
        }
        figures.extend(figures_of(bench));
    }
    Ok(Plan {
        name: "urgent-writeback",
        title: "does fsync wait less if the queued writes that it waits for are boosted?",
        device: device.name.clone(),
        scale: settings
            .is_smaller()
            .then(|| "20 and 10 iterations, published 100 and 50".to_owned()),
        cells,
        figures,
        notes: notes(),
        timeline: ("bench 1, deep queue".to_owned(), Duration::from_millis(2)),
        checks: checks(),
    })
}

/// Boost acts where requests are queued that a task waits for.
fn evidence(case: &Case) -> Vec<Evidence> {
    let boosted = Evidence {
        arm: ARMS[1].0.to_owned(),
        value: RAISED,
        at_least: 1.0,
        otherwise: "no queued request was boosted",
    };
    let boosted = Some(boosted).filter(|_| case.background != Load::None);
    boosted.into_iter().collect()
}

/// The measurement that all figures are of.
const MEAN: &str = "iteration mean";

fn figures_of(bench: &Bench) -> Vec<Figure> {
    let mut figures = published_figures(bench);
    let (quiet, fair) = (cell_name(bench, &CASES[1]), cell_name(bench, &CASES[2]));
    let (noboost, boost) = (ARMS[0].0, ARMS[1].0);
    figures.push(Figure {
        what: format!("{}: fair, boost, background, to idle", bench.name),
        ours: Source::across([&quiet, noboost], [&fair, boost], MEAN),
        scale: 1.0,
        published: 2.0,
        role: Role::Aim,
        why: Some(WHY_AIM.to_owned()),
    });
    figures
}

/// The figures of the publication; those with a reason for their deviation are predicted.
fn published_figures(bench: &Bench) -> Vec<Figure> {
    let [idle, before, after] = bench.published;
    let [busy, quiet, deep] = [0, 1, 6].map(|case| cell_name(bench, &CASES[case]));
    let figure = |what: &str, ours, scale, published, why: Option<&str>| Figure {
        what: format!("{}: {what}", bench.name),
        ours,
        scale,
        published,
        role: if why.is_some() {
            Role::Predicted
        } else {
            Role::Calibrated
        },
        why: why.map(str::to_owned),
    };
    let [why_busy, why_boosted] = bench.why.map(Some);
    let why_deep = Some(WHY_DEEP).filter(|_| !bench.hold.is_zero());
    let (noboost, boost) = (ARMS[0].0, ARMS[1].0);
    let millis = |what, cell, arm, published, why| {
        figure(what, Source::value(cell, arm, MEAN), 1e6, published, why)
    };
    let to_noboost = |what, cell, why| {
        let ours = Source::ratio(cell, noboost, boost, MEAN);
        figure(what, ours, 1.0, after / before, why)
    };
    vec![
        millis("no background, ms", &quiet, noboost, idle, None),
        millis("background, ms", &busy, noboost, before, why_busy),
        millis("background, boost, ms", &busy, boost, after, why_boosted),
        to_noboost("boost to noboost", &busy, why_boosted),
        to_noboost(
            "deep queue: boost to noboost",
            &deep,
            why_deep.or(why_boosted),
        ),
    ]
}

fn checks() -> Vec<Check> {
    let check = |bench: usize, case: &str| Check {
        cell: format!("{}, {case}", BENCHES[bench].name),
        arms: ARMS.map(|(name, _)| name.to_owned()),
        value: "iteration mean",
        why: "what threads wait for a processor is no part of the model. Each fsync has three requests one after the other and a \
              thread wakes for each, beside the server's, so processors that others use add milliseconds.",
    };
    vec![
        check(0, "cfq"),
        check(0, "cfq, no background"),
        check(1, "cfq"),
    ]
}

fn notes() -> Vec<String> {
    [
        "The background I/O is not specified (\"intensive\"). Here: four threads that each write a file of 64 MiB from \
         start to end repeatedly, buffered.",
        "The measured file grows with each write.",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn writer_name(number: u32) -> Vec<u8> {
    format!("background{number}").into_bytes()
}

fn volume() -> Result<Store, String> {
    let make = |queue: &Queue| {
        let options = FormatOptions {
            uuid: Some([0x2A; 16]),
            hash_seed: Some([0x2B; 16]),
            ..FormatOptions::default()
        };
        format(queue, VOLUME, &options)
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    prepare(VOLUME + BEHIND, &Mount::ext4("")?, make, |testbed| {
        for number in 0..WRITERS {
            make_file(&*testbed.fs, &writer_name(number), FILE)?;
        }
        make_file(&*testbed.fs, b"file", 0)?;
        testbed.fs.sync_all(&Cx::default())
    })
}

/// Keeps [`NR_REQUESTS`] background writes in the queue.
fn queue_filler(queue: &Arc<Queue>) -> Background {
    let (queue, data) = (Arc::clone(queue), Buf::copy_of(&content(0, REQUEST)));
    let tag = IoTag {
        urgency: Urgency::Background,
        owner: OwnerId(9),
        ..IoTag::default()
    };
    let (mut at, mut waiting) = (0, VecDeque::new());
    Background::spawn("filler", move || {
        while waiting.len() < NR_REQUESTS {
            waiting.push_back(queue.submit(Bio::write(VOLUME + at, vec![data.clone()]), tag));
            at = (at + REQUEST) % BEHIND;
        }
        let first = waiting.pop_front().expect("there are some");
        let ended = first.wait();
        ended.map_err(|error| FsError::Io(error.to_string()))?;
        Ok(REQUEST)
    })
}

/// Measurements of a run.
struct Measured {
    iterations: Vec<u64>,
    syncs: Vec<u64>,
    elapsed: u64,
    background: u64,
}

fn one_run(
    (bench, case): (&'static Bench, &'static Case),
    (device, volume): (&Parameters, &Store),
    boost: bool,
    iterations: u64,
    attempt: Attempt,
) -> Result<Sample, String> {
    let world = World {
        attempt,
        device: device.clone(),
        mount: Mount::ext4("")?,
        queue: QueueSettings {
            policy: case.policy,
            depth: case.depth,
            boost,
            ..QueueSettings::default()
        },
        groups: Vec::new(),
        memory: CacheSizes {
            metadata: 64 << 20,
            dirty_data: case.background.memory(bench),
            read_ahead: 8 << 20,
        },
    };
    let outcome = run_on(world, volume, move |testbed| {
        measure(bench, case, testbed, iterations)
    })?;
    let mut sample = Sample::of(&outcome);
    let measured = outcome.value;
    sample.latency("iteration", measured.iterations);
    sample.latency("fsync", measured.syncs);
    if case.background != Load::None {
        let seconds = measured.elapsed as f64 / 1e9;
        let speed = measured.background as f64 / seconds;
        sample.value("background", Unit::BytesPerSecond, speed);
    }
    let boosts = outcome.queue.boosts;
    for (name, count) in [
        (RAISED, boosts.raised),
        ("already dispatched", boosts.already_dispatched),
        ("already urgent", boosts.already_urgent),
    ] {
        sample.value(name, Unit::Count, count as f64);
    }
    let along = boosts.collateral_bytes as f64 / 1_048_576.0;
    sample.value("boosted with them, MiB", Unit::Ratio, along);
    Ok(sample)
}

fn measure(
    bench: &Bench,
    case: &Case,
    testbed: &Testbed,
    iterations: u64,
) -> Result<Measured, FsError> {
    let fs = &testbed.fs;
    let root = |owner| process(GroupId(0), IoPrio::default(), owner);
    let cx = root(1);
    let file = fs.lookup(&cx, fs.root(), b"file")?;
    let mut writers = Vec::new();
    for number in (0..WRITERS).filter(|_| case.background == Load::Files) {
        let other = fs.lookup(&cx, fs.root(), &writer_name(number))?;
        writers.push(writer(&Arc::clone(fs), root(10 + number), other, FILE));
    }
    if case.background == Load::Queue {
        writers.push(queue_filler(&testbed.queue));
    }
    if case.background != Load::None {
        sleep(WARM_UP);
    }
    let done = || writers.iter().map(|writer| writer.count()).sum::<u64>();
    let (before, begin) = (done(), now());
    let mut measured = Measured {
        iterations: Vec::new(),
        syncs: Vec::new(),
        elapsed: 0,
        background: 0,
    };
    for n in 0..iterations {
        let at = n * bench.bytes;
        let data = content(at, bench.bytes);
        let begin = now();
        let pieces = u32::try_from(bench.bytes.div_ceil(PIECE)).expect("a few");
        sleep(WRITE_CPU * pieces);
        fs.write(&cx, file, at, &data)?;
        let wrote = now();
        sleep(bench.hold);
        let held = now();
        fs.fsync(&cx, file)?;
        let sync = now().0 - held.0;
        measured.syncs.push(sync);
        measured.iterations.push(sync + (wrote.0 - begin.0));
    }
    testbed.measured();
    measured.elapsed = now().0 - begin.0;
    measured.background = done() - before;
    for writer in writers {
        writer.end()?;
    }
    // The requests that fill the queue are no write-back of the volume: they end before it is unmounted.
    while case.background == Load::Queue && testbed.queue.depths() != Depths::default() {
        sleep(Duration::from_millis(1));
    }
    Ok(measured)
}
