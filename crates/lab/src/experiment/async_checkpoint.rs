//! ext4 `async_checkpoint` (RFC of September 2019): log space is reclaimed before a task must wait for it.
//!
//! fs_mark on an NVMe drive: 32 threads, each creates 500 000 files of 4 KiB in 16 directories, with seven ways to make
//! them durable. With an fsync per file the rate grew by 6 to 15 %, with fewer and larger transactions; without fsync
//! nothing changed.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::InodeNo;
use steadfs_block::{Queue, QueueSettings};
use steadfs_ext4::format::{FormatOptions, format};
use steadfs_rt::{Random, now, sleep, spawn};
use steadfs_vfs::{Cx, FsError};

use super::acts::Evidence;
use super::files::Files;
use super::plan::{
    Arm, Attempt, Cell, Check, Error, Figure, Plan, Role, Sample, Settings, Source, Unit,
};
use super::testbed::{CacheSizes, Mount, Testbed, World, prepare, run_on};
use crate::flash::{Parameters, Store};

/// fs_mark's `-t`.
const THREADS: u64 = 32;
/// fs_mark's `-D`: directories, shared by all threads.
const DIRS: u64 = 16;
/// fs_mark's `-N`: files created in a directory before the next directory is used.
const TURN: u64 = 256;
/// fs_mark's `-s`.
const SIZE: usize = 4096;
/// Published number of files per thread.
const PUBLISHED_FILES: u64 = 500_000;
/// CPU time to create a file (open, write, close): 32 threads create 96 898 per second (mode 0 without the mechanism).
const MAKE_CPU: Duration = Duration::from_micros(330);
/// CPU time to reopen it, and of an fsync.
const SYNC_CPU: Duration = Duration::from_micros(20);
const VOLUME: u64 = 1 << 30;

/// fs_mark's `-S` modes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Durable {
    /// 0: nothing.
    None,
    /// 1: an fsync before each close.
    InBand,
    /// 2: sync(2) and one fsync, after all files are created.
    All,
    /// 3: after all are created, each is reopened and fsynced, the last one first.
    Reverse,
    /// 4: sync(2), then as 3.
    AllReverse,
    /// 5: as 3, the first one first.
    InOrder,
    /// 6: sync(2), then as 5.
    AllInOrder,
}

struct Mode {
    number: u32,
    sync: Durable,
    about: &'static str,
    /// Files per second and transactions, without and with the mechanism.
    published: [(f64, f64); 2],
}

const MODES: [Mode; 7] = [
    Mode {
        number: 0,
        sync: Durable::None,
        about: "no sync at all",
        published: [(96_898.0, 177.0), (97_727.0, 177.0)],
    },
    Mode {
        number: 1,
        sync: Durable::InBand,
        about: "fsync before each close",
        published: [(46_780.0, 1_210_422.0), (49_510.0, 1_053_905.0)],
    },
    Mode {
        number: 2,
        sync: Durable::All,
        about: "sync(2) and one fsync at the end",
        published: [(71_072.0, 190.0), (72_464.0, 189.0)],
    },
    Mode {
        number: 3,
        sync: Durable::Reverse,
        about: "all files, then fsync of each, the last one first",
        published: [(61_977.0, 282_973.0), (70_962.0, 88_148.0)],
    },
    Mode {
        number: 4,
        sync: Durable::AllReverse,
        about: "sync(2), then as mode 3",
        published: [(69_796.0, 190.0), (70_708.0, 190.0)],
    },
    Mode {
        number: 5,
        sync: Durable::InOrder,
        about: "all files, then fsync of each, the first one first",
        published: [(61_523.0, 411_394.0), (66_785.0, 280_367.0)],
    },
    Mode {
        number: 6,
        sync: Durable::AllInOrder,
        about: "sync(2), then as mode 5",
        published: [(70_129.0, 189.0), (69_194.0, 190.0)],
    },
];

const OFF: &str = "noasync_checkpoint";
const ON: &str = "async_checkpoint=50";

/// A condition.
#[derive(Clone)]
struct Case {
    name: String,
    about: String,
    sync: Durable,
    /// Size of the journal in MiB.
    journal: u32,
    options: &'static [&'static str],
    /// Whether an fsync writes other files along, as the program does unless `fsync_cluster_files` is 0.
    clustering: bool,
    /// Pause after each of a thread's files: long enough for old transactions to be reclaimed in the background.
    pause: Duration,
}

/// The size of a run.
#[derive(Clone, Copy)]
struct Scale {
    /// Files of each thread.
    files: u64,
    /// The journal of the modes, in MiB: small enough to be filled several times.
    journal: u32,
}

const FULL: Scale = Scale {
    files: 512,
    journal: 16,
};
const QUICK: Scale = Scale {
    files: 96,
    journal: 4,
};
const REAL: Scale = Scale {
    files: 128,
    journal: 16,
};

/// Modes with an fsync of each file, which are also run without fsync clustering: the mechanism by itself.
const SYNCED: [usize; 3] = [1, 3, 5];

fn without_clustering(mode: usize) -> String {
    format!("mode {mode}, alone")
}

fn cases(scale: Scale) -> Vec<Case> {
    let mode = |n: usize| &MODES[n];
    let case = |name: String, about: String, n: usize| Case {
        name,
        about,
        sync: mode(n).sync,
        journal: scale.journal,
        options: &[OFF, ON],
        clustering: true,
        pause: Duration::ZERO,
    };
    let mut cases: Vec<Case> = (0..MODES.len())
        .map(|n| {
            case(
                format!("mode {n}"),
                format!("fs_mark -S {n}: {}.", mode(n).about),
                n,
            )
        })
        .collect();
    cases.extend(SYNCED.map(|n| {
        let about = format!(
            "fs_mark -S {n} with fsync_cluster_files=0: an fsync writes only its own file, so the mechanism acts alone."
        );
        Case {
            clustering: false,
            ..case(without_clustering(n), about, n)
        }
    }));
    let thresholds = "Mode 3 with other thresholds of reclaim. At 30 and below the largest transaction forces it first.";
    cases.push(Case {
        options: &[OFF, "async_checkpoint=30", ON, "async_checkpoint=70"],
        ..case("mode 3, thresholds".to_owned(), thresholds.to_owned(), 3)
    });
    for journal in [4, 64] {
        let about = format!("Mode 3 with a journal of {journal} MiB.");
        cases.push(Case {
            journal,
            ..case(format!("mode 3, journal {journal} MiB"), about, 3)
        });
    }
    let clean = "Mode 1 with pauses, so that the log is reclaimed by its age (30 s) long before it is full.";
    cases.push(Case {
        pause: Duration::from_secs(2),
        ..case("mode 1, with pauses".to_owned(), clean.to_owned(), 1)
    });
    cases
}

const RATE: &str = "files a second";
const TRANSACTIONS: &str = "transactions";
const WAITS: &str = "waits for log space";

/// The plan.
///
/// # Errors
/// A parameter file with an error, or a volume that cannot be formatted.
pub fn plan(settings: &Settings) -> Result<Plan, Error> {
    let device = settings.device("nvme-2019")?;
    let scale = settings.scaled(FULL, QUICK, REAL);
    let files = scale.files;
    let mut volumes = Vec::new();
    for journal in [16, 4, 64] {
        volumes.push((journal, volume(journal).map_err(Error::Setup)?));
    }
    let mut cells = Vec::new();
    for case in cases(scale) {
        let found = volumes.iter().find(|(journal, _)| *journal == case.journal);
        let volume = found.expect("one for each size").1.clone();
        let arms = case.options.iter().map(|options| {
            let (case, device, volume) = (case.clone(), device.clone(), volume.clone());
            Arm::new(*options, move |attempt| {
                one_run(&case, &device, &volume, options, files, attempt)
            })
        });
        cells.push(Cell {
            name: case.name.clone(),
            about: case.about.clone(),
            same_content: true,
            evidence: evidence(&case),
            arms: arms.collect(),
        });
    }
    Ok(Plan {
        name: "async-checkpoint",
        title: "does reclaiming log space in advance make files durable faster?",
        device: device.name.clone(),
        scale: Some(format!(
            "{files} files of each of {THREADS} threads, published {PUBLISHED_FILES}; a journal of {} MiB, \
             published 1024",
            scale.journal
        )),
        cells,
        figures: figures(),
        notes: notes(),
        timeline: ("mode 1".to_owned(), Duration::from_micros(50)),
        checks: checks(),
    })
}

/// Reclaim in advance acts where tasks wait for log space without it. With pauses the log never fills by intention.
fn evidence(case: &Case) -> Vec<Evidence> {
    let filled = Evidence {
        arm: OFF.to_owned(),
        value: WAITS,
        at_least: 1.0,
        otherwise: "too small to show, no task waited for log space",
    };
    let filled = Some(filled).filter(|_| case.pause.is_zero());
    filled.into_iter().collect()
}

/// Why a figure deviates by more than a quarter.
const WHY: &str = "an fsync of steadfs writes other settled files, too (fsync clustering), so the number of commits depends on the \
                   order of files, and differs between seeds by half in both arms; and reclaim writes snapshots, so no \
                   hot buffer forces the commits that the RFC saved.";

/// The same without fsync clustering.
const WHY_ALONE: &str = "reclaim of steadfs writes snapshots, so no hot buffer forces the commits that the RFC saved, and fsync \
                         callers share commits in both arms (group commit).";

fn figures() -> Vec<Figure> {
    let mut figures = Vec::new();
    for mode in &MODES {
        // The figures that calibrated CPU and FLUSH times; see the device's file.
        let role = match mode.number {
            0 | 1 => Role::Calibrated,
            _ => Role::Predicted,
        };
        let cell = format!("mode {}", mode.number);
        let of = |what: String, ours, published, role, why: &str| Figure {
            what,
            ours,
            scale: 1.0,
            published,
            role,
            why: Some(why.to_owned()),
        };
        let [before, after] = mode.published;
        let what = format!("{cell}: files a second without");
        let ours = Source::value(&cell, OFF, RATE);
        figures.push(of(what, ours, before.0, role, WHY));
        let alone = SYNCED.map(without_clustering);
        let alone = alone.iter().filter(|name| name.starts_with(&cell));
        let shipped = [(&cell, WHY)];
        for (cell, why) in alone.map(|name| (name, WHY_ALONE)).chain(shipped) {
            let ratio = |value| Source::ratio(cell, OFF, ON, value);
            let what = format!("{cell}: rate, with to without");
            let published = after.0 / before.0;
            figures.push(of(what, ratio(RATE), published, Role::Predicted, why));
            let what = format!("{cell}: transactions, with to without");
            let published = after.1 / before.1;
            let ours = ratio(TRANSACTIONS);
            figures.push(of(what, ours, published, Role::Predicted, why));
        }
    }
    figures
}

const WHY_REAL: &str = "32 threads share the host's processors; the model has one for each: fewer files are in progress at a time. With \
                        few files there are few transactions, and their number depends on the order of files.";

fn checks() -> Vec<Check> {
    let check = |cell: &str, value| Check {
        cell: cell.to_owned(),
        arms: [OFF, ON].map(str::to_owned),
        value,
        why: WHY_REAL,
    };
    vec![
        check("mode 1", RATE),
        check("mode 1", TRANSACTIONS),
        check("mode 3, journal 4 MiB", RATE),
        check("mode 3, journal 4 MiB", TRANSACTIONS),
    ]
}

fn notes() -> Vec<String> {
    [
        "Each published figure is from one run; its author considers 1.3 % in either direction noise.",
        "steadfs differs from jbd2 where it counts: reclaim writes committed snapshots, so it never forces or awaits a \
         commit; an fsync takes settled neighbours along, so later fsyncs of them cost nothing.",
        "The number of processors is not published; here each thread has its own.",
        "A virtual second of this experiment has up to 97 000 files in it, each made by the real code on one processor: that \
         cannot be a hundred times as fast as 32 processors were. The other experiments are.",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn volume(journal: u32) -> Result<Store, String> {
    let make = move |queue: &Queue| {
        let options = FormatOptions {
            uuid: Some([0x19; 16]),
            hash_seed: Some([0x91; 16]),
            journal_size: Some(journal),
            lazy_itable_init: false,
            time: Some(Default::default()),
            ..FormatOptions::default()
        };
        let made = format(queue, VOLUME, &options);
        made.map(|_| ()).map_err(|error| error.to_string())
    };
    prepare(VOLUME, &Mount::ext4("")?, make, |testbed| {
        let (fs, cx) = (&*testbed.fs, Cx::default());
        for n in 0..DIRS {
            fs.mkdir(&cx, fs.root(), format!("{n:02}").as_bytes())?;
        }
        fs.sync_all(&cx)
    })
}

struct Measured {
    elapsed: u64,
    syncs: Vec<u64>,
    transactions: u64,
    space_waits: u64,
    space_waited_us: u64,
    by_background: u64,
    by_waiters: u64,
}

fn one_run(
    case: &Case,
    device: &Parameters,
    volume: &Store,
    options: &str,
    files: u64,
    attempt: Attempt,
) -> Result<Sample, String> {
    let seed = attempt.seed;
    let world = World {
        attempt,
        device: device.clone(),
        mount: Mount::ext4(options)?,
        queue: QueueSettings::default(),
        groups: Vec::new(),
        memory: CacheSizes {
            metadata: 64 << 20,
            dirty_data: 256 << 20,
            read_ahead: 8 << 20,
        },
    };
    let (sync, pause, clustering) = (case.sync, case.pause, case.clustering);
    // With pauses a few files suffice.
    let files = if pause.is_zero() {
        files
    } else {
        files.min(48)
    };
    let outcome = run_on(world, volume, move |testbed| {
        if !clustering {
            testbed.fs.set_control("ext4/fsync_cluster_files", b"0")?;
        }
        measure(testbed, sync, pause, files, seed)
    })?;
    let mut sample = Sample::of(&outcome);
    let m = outcome.value;
    let total = (files * THREADS) as f64;
    sample.value(RATE, Unit::PerSecond, total * 1e9 / m.elapsed as f64);
    sample.value(TRANSACTIONS, Unit::Count, m.transactions as f64);
    if !m.syncs.is_empty() {
        sample.latency("an fsync", m.syncs);
    }
    sample.value(WAITS, Unit::Count, m.space_waits as f64);
    sample.value("time of these", Unit::Nanos, m.space_waited_us as f64 * 1e3);
    sample.value(
        "log blocks freed in advance",
        Unit::Count,
        m.by_background as f64,
    );
    sample.value(
        "log blocks freed by waiters",
        Unit::Count,
        m.by_waiters as f64,
    );
    let written = outcome.device.written_bytes as f64;
    sample.value(
        "written to made",
        Unit::Ratio,
        written / (total * SIZE as f64),
    );
    Ok(sample)
}

/// A thread of fs_mark.
struct Thread {
    fs: Arc<dyn Files>,
    cx: Cx,
    number: u64,
    files: u64,
    sync: Durable,
    pause: Duration,
    random: Random,
    made: Vec<InodeNo>,
    syncs: Vec<u64>,
}

impl Thread {
    /// CPU time, within 10 %.
    fn work(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).expect("short");
        let part = self.random.below(2048) as u64;
        sleep(Duration::from_nanos(
            nanos * 9 / 10 + nanos / 5 * part / 2048,
        ));
    }

    fn fsync(&mut self, file: InodeNo) -> Result<(), FsError> {
        self.work(SYNC_CPU);
        let begin = now();
        self.fs.fsync(&self.cx, file)?;
        self.syncs.push(now().0 - begin.0);
        Ok(())
    }

    fn make(&mut self, dirs: &[InodeNo]) -> Result<(), FsError> {
        for n in 0..self.files {
            if !self.pause.is_zero() {
                self.work(self.pause);
            }
            self.work(MAKE_CPU);
            let dir = dirs[(n / TURN + self.number) as usize % dirs.len()];
            let name = format!("{:02}~{n:06}", self.number);
            let file = self.fs.make(&self.cx, dir, name.as_bytes())?;
            let word = (self.number << 32 | n) + 1;
            let data = word.to_le_bytes().repeat(SIZE / 8);
            self.fs.write(&self.cx, file, 0, &data)?;
            if self.sync == Durable::InBand {
                self.fsync(file)?;
            }
            self.made.push(file);
        }
        Ok(())
    }

    fn run(mut self, dirs: &[InodeNo]) -> Result<Vec<u64>, FsError> {
        self.make(dirs)?;
        if matches!(
            self.sync,
            Durable::All | Durable::AllReverse | Durable::AllInOrder
        ) {
            self.fs.sync_all(&self.cx)?;
        }
        let mut again = std::mem::take(&mut self.made);
        match self.sync {
            Durable::None | Durable::InBand => again.clear(),
            Durable::All => again.truncate(1),
            Durable::Reverse | Durable::AllReverse => again.reverse(),
            Durable::InOrder | Durable::AllInOrder => {}
        }
        for file in again {
            self.fsync(file)?;
        }
        Ok(self.syncs)
    }
}

fn measure(
    testbed: &Testbed,
    sync: Durable,
    pause: Duration,
    files: u64,
    seed: u64,
) -> Result<Measured, FsError> {
    let (fs, cx) = (&testbed.fs, Cx::default());
    let mut dirs = Vec::new();
    for n in 0..DIRS {
        dirs.push(fs.lookup(&cx, fs.root(), format!("{n:02}").as_bytes())?);
    }
    let dirs = Arc::new(dirs);
    let before = Journal::of(&**fs)?;
    let begin = now();
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let dirs = Arc::clone(&dirs);
            let thread = Thread {
                fs: Arc::clone(fs),
                cx: cx.clone(),
                number,
                files,
                sync,
                pause,
                random: Random::new(seed.wrapping_mul(1009).wrapping_add(number)),
                made: Vec::new(),
                syncs: Vec::new(),
            };
            spawn("fs_mark", move || thread.run(&dirs))
        })
        .collect();
    let mut syncs = Vec::new();
    for thread in threads {
        syncs.extend(thread.join()?);
    }
    testbed.measured();
    let elapsed = now().0 - begin.0;
    let after = Journal::of(&**fs)?;
    Ok(Measured {
        elapsed,
        syncs,
        transactions: after.transactions - before.transactions,
        space_waits: after.waits - before.waits,
        space_waited_us: after.waited_us - before.waited_us,
        by_background: after.ahead - before.ahead,
        by_waiters: after.by_waiters - before.by_waiters,
    })
}

/// Counts of `.steadfs/jbd2/info`.
struct Journal {
    transactions: u64,
    waits: u64,
    waited_us: u64,
    ahead: u64,
    by_waiters: u64,
}

impl Journal {
    fn of(fs: &dyn Files) -> Result<Self, FsError> {
        let text = fs.control("jbd2/info")?;
        let text = String::from_utf8_lossy(&text);
        let get = |words: &str, n: usize| -> u64 {
            let line = text.lines().find(|line| line.contains(words));
            let line = line.unwrap_or_else(|| panic!("the journal reports no {words}"));
            let digits = line.split(|c: char| !c.is_ascii_digit());
            let mut numbers = digits.filter_map(|n| n.parse().ok());
            numbers.nth(n).expect("a number in this line")
        };
        Ok(Self {
            transactions: get(" transactions (", 0),
            waits: get(" for log space", 0),
            waited_us: get(" for log space", 1),
            ahead: get(" log blocks freed in the background", 0),
            by_waiters: get(" log blocks freed in the background", 1),
        })
    }
}
