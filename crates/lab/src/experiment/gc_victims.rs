//! f2fs `max_victim_search` (Linux 3.12, commit a26b7c8a): the number of dirty segments that GC or SSR examines to
//! choose a victim.
//!
//! A partition of 2 GB on an SDHC card: files of 32 KiB until it is full, then 100 000 synchronous writes of 4 KiB at
//! random positions of random files. With a limit of 20 segments: 341 s and 4227 s; with 4096, which is all of them:
//! 324 s and 2958 s.

mod published;

use std::collections::BTreeMap;
use std::time::Duration;

use steadfs_base::InodeNo;
use steadfs_block::{Queue, QueueSettings};
use steadfs_f2fs::format::{FormatOptions, format};
use steadfs_rt::{Random, now, sleep};
use steadfs_vfs::{Cx, FsError};

use super::acts::Evidence;
use super::files::Files;
use super::plan::{Arm, Attempt, Cell, Error, Plan, Sample, Settings, Unit};
use super::testbed::{CacheSizes, Mount, Testbed, World, prepare, run_on};
use crate::flash::{Parameters, Store};
use published::{checks, figures, notes};

/// Blocks per file: 32 KiB.
const BLOCKS: u64 = 8;
const BLOCK: usize = 4096;
/// Bytes per segment.
const SEGMENT: u64 = 2 << 20;
/// Files per directory.
const PER_DIR: u64 = 1000;
/// mkfs's overprovision at that time.
const OVERPROVISION: f64 = 5.0;
/// CPU time of a file's creation, and of a write with its sync.
const CPU: Duration = Duration::from_micros(200);
/// CPU time to examine a candidate. It is reported and not slept: at most 1 s per hour.
const CPU_PER_CANDIDATE_NS: f64 = 100.0;

/// The size of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Scale {
    volume: u64,
    rewrites: u64,
    /// Limits of the published cell.
    limits: &'static [u32],
}

const FULL: Scale = Scale {
    volume: 2 << 30,
    rewrites: 100_000,
    limits: &[20, 64, 256, 1024, 4096, ALL],
};
/// As many rewrites per block as published, on a volume of which 20 segments are still a small part.
const QUICK: Scale = Scale {
    volume: 1 << 30,
    rewrites: 50_000,
    limits: &[20, 4096],
};
/// Small enough for real time, and too small to show the effect: 20 segments are a third of the volume's.
const REAL: Scale = Scale {
    volume: 192 << 20,
    rewrites: 500,
    limits: &[20, 4096],
};

/// The device of the published experiment, and one that is calibrated by the same figures, but on which a small write
/// costs the same wherever it goes.
const BY_ERASE_UNITS: &str = "sdhc-2013";
const BY_COMMAND: &str = "sdhc-2013-by-command";

/// A condition.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    about: &'static str,
    device: &'static str,
    options: &'static str,
    /// `ipu_policy`, if it is set.
    in_place: Option<&'static str>,
    /// Percentage of the volume that is filled.
    fill: u64,
    /// One of this number of rewrites is run.
    part: u64,
    /// Limits; `None`: those of the scale.
    limits: Option<&'static [u32]>,
}

impl Case {
    fn limits(&self, scale: Scale) -> &'static [u32] {
        self.limits.unwrap_or(scale.limits)
    }
}

const ALL: u32 = u32::MAX;
/// The same in cells without published figures.
const PART: u64 = 5;
/// Linux 3.11 by gc_policy=2013, without later mechanisms.
const OF_2013: &str = "gc_policy=2013,alloc_mode=default,nodiscard,noinline_data,noinline_dentry,noinline_xattr,nocheckpoint_merge";
const OF_TODAY: &str = "nodiscard";

const CASES: [Case; 5] = [
    Case {
        name: "as published",
        about: "The rules of Linux 3.11 (gc_policy=2013), the volume full.",
        device: BY_ERASE_UNITS,
        options: OF_2013,
        in_place: None,
        fill: 100,
        part: 1,
        limits: None,
    },
    Case {
        name: "as published, cost by command",
        about: "The same on a card without erase units, where each command costs the same: how much of the effect is the \
                model's choice.",
        device: BY_COMMAND,
        options: OF_2013,
        in_place: None,
        fill: 100,
        part: 1,
        limits: Some(&[20, 4096]),
    },
    Case {
        name: "half full",
        about: "The same, half full, a fifth of the rewrites: there is always a free segment, and no victim to choose.",
        device: BY_ERASE_UNITS,
        options: OF_2013,
        in_place: None,
        fill: 50,
        part: PART,
        limits: Some(&[20, 4096]),
    },
    Case {
        name: "today's rules, OPU",
        about: "Linux 6.18's rules and ipu_policy=0, full, a fifth of the rewrites: foreground GC examines every section, \
                SSR as many segments as the limit allows.",
        device: BY_ERASE_UNITS,
        options: OF_TODAY,
        in_place: Some("0"),
        fill: 100,
        part: PART,
        limits: Some(&[20, 4096]),
    },
    Case {
        name: "today's defaults",
        about: "As a volume of up to 16 GiB is mounted today, full, a fifth of the rewrites: all overwrites are in place (IPU).",
        device: BY_ERASE_UNITS,
        options: OF_TODAY,
        in_place: None,
        fill: 100,
        part: PART,
        limits: Some(&[20, 4096]),
    },
];

/// The first of these limits with which every search equals that of `limit`, if it is another one. A search goes from
/// its cursor to the end and, with the rules of 2013, over all segments once more: it examines at most twice the number
/// of segments, so that any two limits above that are never reached.
fn same_as(limit: u32, limits: &[u32], volume: u64) -> Option<u32> {
    let never_reached = |limit: u32| u64::from(limit) > 2 * (volume / SEGMENT);
    let first = limits.iter().find(|first| never_reached(**first))?;
    (*first != limit && never_reached(limit)).then_some(*first)
}

fn arm_name(limit: u32) -> String {
    match limit {
        ALL => "all".to_owned(),
        limit => format!("limit {limit}"),
    }
}

/// The plan.
///
/// # Errors
/// A parameter file with an error, or a volume that cannot be formatted.
pub fn plan(settings: &Settings) -> Result<Plan, Error> {
    let scale = settings.scaled(FULL, QUICK, REAL);
    let volume = volume(scale.volume).map_err(Error::Setup)?;
    // With a device of the user there is one device.
    let is_run = |case: &&Case| settings.device.is_none() || case.device == BY_ERASE_UNITS;
    let cases: Vec<&'static Case> = CASES.iter().filter(is_run).collect();
    let (mut cells, mut devices) = (Vec::new(), Vec::new());
    for case in cases {
        let device = settings.device(case.device)?;
        if !devices.contains(&device.name) {
            devices.push(device.name.clone());
        }
        let limits = case.limits(scale);
        let arms = limits.iter().map(|limit| {
            let (device, volume, limit) = (device.clone(), volume.clone(), *limit);
            Arm::new(arm_name(limit), move |attempt| {
                one_run(case, &device, &volume, scale, limit, attempt)
            })
            .like(same_as(limit, limits, scale.volume).map(arm_name))
        });
        cells.push(Cell {
            name: case.name.to_owned(),
            about: case.about.to_owned(),
            same_content: true,
            evidence: evidence(case),
            arms: arms.collect(),
        });
    }
    Ok(Plan {
        name: "gc-victims",
        title: "how many dirty segments should GC and SSR examine to choose a victim?",
        device: devices.join(", "),
        scale: (scale != FULL).then(|| {
            format!(
                "a volume of {} MiB, published 2 GB; {} rewrites, published 100 000",
                scale.volume >> 20,
                scale.rewrites
            )
        }),
        figures: figures(scale, settings.device.is_none()),
        cells,
        notes: notes(),
        timeline: (CASES[0].name.to_owned(), Duration::from_millis(5)),
        checks: checks(),
    })
}

/// The limit acts where searches go far beyond 20 segments without it, and sections are cleaned. Half full and with
/// today's defaults there is nothing to choose by intention.
fn evidence(case: &Case) -> Vec<Evidence> {
    if case.fill < 100 || case.options == OF_TODAY {
        return Vec::new();
    }
    let evidence = |limit, value, at_least, otherwise| Evidence {
        arm: arm_name(limit),
        value,
        at_least,
        otherwise,
    };
    vec![
        evidence(
            4096,
            PER_SEARCH,
            60.0,
            "too small to show, the searches are hardly longer than with the limit",
        ),
        evidence(
            20,
            VICTIMS,
            20.0,
            "too small to show, hardly a section was cleaned",
        ),
    ]
}

const FILES: &str = "files";
const CREATE: &str = "create time";
const REWRITE: &str = "rewrite time";
const VICTIMS: &str = "cleaned";
const GARBAGE: &str = "garbage blocks";
const PER_SEARCH: &str = "candidates per search";

/// An empty volume as mkfs.f2fs formatted it at that time.
fn volume(size: u64) -> Result<Store, String> {
    let make = move |queue: &Queue| {
        let options = FormatOptions {
            uuid: Some([0x13; 16]),
            overprovision: Some(OVERPROVISION),
            checkpoint_version: Some(1),
            time: Some(1_378_000_000),
            ..FormatOptions::default()
        };
        let made = format(queue, size, &options);
        made.map(|_| ()).map_err(|error| error.to_string())
    };
    prepare(size, &Mount::f2fs(OF_2013)?, make, |_| Ok(()))
}

/// Counts of `.steadfs/f2fs/status`.
#[derive(Clone, Copy, Default)]
struct Counts {
    victims: u64,
    garbage: u64,
    examined: u64,
    moved: u64,
    checkpoints: u64,
    filled: u64,
}

impl Counts {
    fn of(fs: &dyn Files) -> Result<Self, FsError> {
        let text = fs.control("f2fs/status")?;
        let text = String::from_utf8_lossy(&text);
        let mut numbers = BTreeMap::new();
        for line in text.lines() {
            let digits = line.split(|c: char| !c.is_ascii_digit());
            let found: Vec<u64> = digits.filter_map(|n| n.parse().ok()).collect();
            let label = line.split([':', ' ']).take(2).collect::<Vec<_>>().join(" ");
            numbers.entry(label).or_insert(found);
        }
        let get = |label: &str, n: usize| -> u64 {
            let line = numbers.get(label).and_then(|found| found.get(n));
            *line.unwrap_or_else(|| panic!("the status has no {label}"))
        };
        Ok(Self {
            victims: get("GC victims", 0),
            garbage: get("GC victims", 2),
            examined: get("GC victims", 3) + get("SSR candidates", 0),
            moved: get("Try to", 0),
            checkpoints: get("CP count", 0),
            filled: get("SSR ", 1),
        })
    }
}

/// Measurements of a run.
struct Measured {
    files: u64,
    create: u64,
    rewrites: Vec<u64>,
    rewrite: u64,
    written: u64,
    opened: u64,
    commands: u64,
    before: Counts,
    after: Counts,
}

fn one_run(
    case: &'static Case,
    device: &Parameters,
    volume: &Store,
    scale: Scale,
    limit: u32,
    attempt: Attempt,
) -> Result<Sample, String> {
    let seed = attempt.seed;
    let opening = device
        .erase
        .as_ref()
        .map_or(Duration::ZERO, |erase| erase.opening);
    let world = World {
        attempt,
        device: device.clone(),
        mount: Mount::f2fs(case.options)?,
        queue: QueueSettings::default(),
        groups: Vec::new(),
        memory: CacheSizes {
            // Space for all inodes, as in the page cache of a machine of 1 GB.
            metadata: 320 << 20,
            dirty_data: 32 << 20,
            read_ahead: 8 << 20,
        },
    };
    let outcome = run_on(world, volume, move |testbed| {
        measure(case, testbed, scale, limit, seed)
    })?;
    let mut sample = Sample::of(&outcome);
    let asked = scale.rewrites / case.part * BLOCK as u64;
    add_values(&mut sample, outcome.value, asked, opening);
    Ok(sample)
}

/// Adds what a run measured that was asked to write `asked` bytes, on a device that opens an erase unit in `opening`.
fn add_values(sample: &mut Sample, m: Measured, asked: u64, opening: Duration) {
    let (before, after) = (m.before, m.after);
    let count = |n: u64| n as f64;
    sample.value(FILES, Unit::Count, count(m.files));
    sample.value(CREATE, Unit::Nanos, count(m.create));
    sample.value(REWRITE, Unit::Nanos, count(m.rewrite));
    sample.latency("a rewrite", m.rewrites);
    let victims = after.victims - before.victims;
    sample.value(VICTIMS, Unit::Count, count(victims));
    let garbage = after.garbage - before.garbage;
    sample.value(GARBAGE, Unit::Count, count(garbage));
    let per_victim = count(garbage) / count(victims.max(1));
    sample.value("garbage per cleaned", Unit::Count, per_victim);
    let moved = count(after.moved - before.moved);
    sample.value("blocks moved", Unit::Count, moved);
    let filled = count(after.filled - before.filled);
    sample.value("segments reused (SSR)", Unit::Count, filled);
    let checkpoints = count(after.checkpoints - before.checkpoints);
    sample.value("checkpoints", Unit::Count, checkpoints);
    let amplification = count(m.written) / count(asked);
    sample.value("write amplification", Unit::Ratio, amplification);
    sample.value("erase units opened", Unit::Count, count(m.opened));
    let share = opening.as_nanos() as f64 * count(m.opened) / count(m.rewrite);
    sample.value("share of opening them in the time", Unit::Ratio, share);
    sample.value("commands", Unit::Count, count(m.commands));
    let examined = count(after.examined - before.examined);
    sample.value("candidates examined", Unit::Count, examined);
    let searches = count(victims) + filled;
    sample.value(PER_SEARCH, Unit::Count, examined / searches.max(1.0));
    let cpu = examined * CPU_PER_CANDIDATE_NS;
    sample.value("CPU of candidates", Unit::Nanos, cpu);
}

fn word(n: u64) -> Vec<u8> {
    (n + 1).to_le_bytes().repeat(BLOCK / 8)
}

fn measure(
    case: &Case,
    testbed: &Testbed,
    scale: Scale,
    limit: u32,
    seed: u64,
) -> Result<Measured, FsError> {
    let fs = &*testbed.fs;
    fs.set_control("f2fs/max_victim_search", limit.to_string().as_bytes())?;
    if let Some(policy) = case.in_place {
        fs.set_control("f2fs/ipu_policy", policy.as_bytes())?;
    }
    let cx = Cx::default();
    let begin = now();
    let files = fill(fs, case.fill)?;
    fs.sync_all(&cx)?;
    let create = now().0 - begin.0;
    let (before, counters) = (Counts::of(fs)?, testbed.device.counters());
    let mut random = Random::new(seed ^ 0x6763_7669_6374_696d);
    let begin = now();
    let rewrites = scale.rewrites / case.part;
    let mut times = Vec::with_capacity(rewrites as usize);
    for n in 0..rewrites {
        let file = files[random.below(files.len())];
        let block = random.below(BLOCKS as usize) * BLOCK;
        let start = now();
        sleep(CPU);
        fs.write(&cx, file, block as u64, &word(n))?;
        fs.fsync(&cx, file)?;
        times.push(now().0 - start.0);
    }
    testbed.measured();
    let rewrite = now().0 - begin.0;
    let done = testbed.device.counters().since(&counters);
    Ok(Measured {
        files: files.len() as u64,
        create,
        rewrites: times,
        rewrite,
        written: done.written_bytes,
        opened: done.units_opened,
        commands: done.reads + done.writes,
        before,
        after: Counts::of(fs)?,
    })
}

/// Creates files up to this fill level.
fn fill(fs: &dyn Files, percent: u64) -> Result<Vec<InodeNo>, FsError> {
    let cx = Cx::default();
    let blocks = fs.blocks_free()?;
    let wanted = match percent {
        100 => u64::MAX,
        percent => blocks * percent / 100 / (BLOCKS + 1),
    };
    let mut files = Vec::new();
    let mut data = Vec::with_capacity(BLOCKS as usize * BLOCK);
    let mut dir = fs.root();
    while (files.len() as u64) < wanted {
        let n = files.len() as u64;
        sleep(CPU);
        if n.is_multiple_of(PER_DIR) {
            let name = format!("d{:02}", n / PER_DIR);
            match fs.mkdir(&cx, fs.root(), name.as_bytes()) {
                Ok(made) => dir = made,
                Err(FsError::NoSpace) => break,
                Err(error) => return Err(error),
            }
        }
        let name = format!("f{n:05}");
        let file = match fs.make(&cx, dir, name.as_bytes()) {
            Ok(made) => made,
            Err(FsError::NoSpace) => break,
            Err(error) => return Err(error),
        };
        data.clear();
        for block in 0..BLOCKS {
            data.extend_from_slice(&word(n * BLOCKS + block));
        }
        match fs.write(&cx, file, 0, &data) {
            Ok(written) if written == data.len() => files.push(file),
            Ok(_) | Err(FsError::NoSpace) => {
                fs.unlink(&cx, dir, name.as_bytes())?;
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests;
