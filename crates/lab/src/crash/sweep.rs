//! Explores the crashes of many programs on several subjects, in several threads, up to a budget.

use std::fs;
use std::io;
use std::mem::discriminant;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use steadfs_rt::{self as rt, Mutex, Random, Rank};
use steadfs_workload::generate::{Shape, pairs, random, singles};
use steadfs_workload::{Program, shrink};

use super::explore::Effort;
use super::stats::Stats;
use super::trial::{Trial, try_program};
use super::{Case, Failure, Subject};

/// Programs, subjects and limits of a sweep.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed of the random number generator.
    pub seed: u64,
    /// Number of random programs per subject.
    pub seeds: u64,
    /// Number of distinct images after which the sweep ends; 0: after all programs.
    pub budget: usize,
    /// Number of threads.
    pub workers: usize,
    /// Directory for failing cases and scratch files.
    pub out: PathBuf,
    /// The trial of each program.
    pub trial: Trial,
    /// The effort per run.
    pub effort: Effort,
    /// Number of failing programs after which the sweep ends.
    pub failures: usize,
    /// Number of runs to shrink a failing program.
    pub shrink: usize,
    /// Only this program, with `seeds` seeds.
    pub program: Option<Program>,
}

impl Options {
    /// All core programs and 1000 random ones, in two threads, with cases below `out`.
    pub fn new(out: PathBuf) -> Self {
        Self {
            seed: 1,
            seeds: 1000,
            budget: 0,
            workers: 2,
            out,
            trial: Trial::Crashes,
            effort: Effort::default(),
            failures: 3,
            shrink: 200,
            program: None,
        }
    }
}

/// The result of a sweep.
#[derive(Default)]
pub struct Report {
    /// Counts of everything that was done.
    pub stats: Stats,
    /// The failures, each with the directory of its case.
    pub failures: Vec<(PathBuf, Failure)>,
}

/// The origin of a program.
#[derive(Clone, Copy)]
enum Source {
    Single(usize),
    Pair(usize),
    Seed(u64),
    Given,
}

struct Job {
    subject: usize,
    source: Source,
}

struct Shared {
    subjects: Vec<Subject>,
    /// Core programs of each subject: singles and pairs.
    core: Vec<(Vec<Program>, Vec<Program>)>,
    jobs: Vec<Job>,
    next: AtomicUsize,
    stop: AtomicBool,
    options: Options,
    report: Mutex<Report>,
}

/// Explores `subjects`.
///
/// # Errors
/// If the output directory cannot be written, or a judging tool cannot be run.
pub fn sweep(subjects: Vec<Subject>, options: Options) -> io::Result<Report> {
    fs::create_dir_all(&options.out)?;
    let mut subjects = subjects;
    subjects.retain(|subject| subject.small == (options.trial == Trial::Space));
    subjects.iter().try_for_each(Subject::has_tool)?;
    let core: Vec<_> = subjects
        .iter()
        .map(|subject| (singles(subject.format), pairs(subject.format)))
        .collect();
    let jobs = plan(&core, &options);
    let workers = options.workers.max(1);
    let shared = Arc::new(Shared {
        subjects,
        core,
        jobs,
        next: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        options,
        report: Mutex::new(Rank::Leaf, Report::default()),
    });
    let started: Vec<_> = (0..workers)
        .map(|_| {
            let shared = Arc::clone(&shared);
            rt::spawn("crash", move || shared.work())
        })
        .collect();
    let ends: Vec<io::Result<()>> = started.into_iter().map(rt::JoinHandle::join).collect();
    ends.into_iter().collect::<io::Result<()>>()?;
    Ok(std::mem::take(&mut *shared.report.lock()))
}

/// All programs of all subjects in a random order: any prefix is a sample.
fn plan(core: &[(Vec<Program>, Vec<Program>)], options: &Options) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (subject, (singles, pairs)) in core.iter().enumerate() {
        if options.program.is_some() {
            let source = Source::Given;
            jobs.extend((0..options.seeds).map(|_| Job { subject, source }));
            continue;
        }
        let sources = (0..singles.len()).map(Source::Single);
        let sources = sources.chain((0..pairs.len()).map(Source::Pair));
        let sources = sources.chain((0..options.seeds).map(Source::Seed));
        jobs.extend(sources.map(|source| Job { subject, source }));
    }
    let mut random = Random::new(options.seed);
    for at in (1..jobs.len()).rev() {
        jobs.swap(at, random.below(at + 1));
    }
    jobs
}

/// Creates the first directory of these names below `dir` that does not exist: another sweep may run in `dir`, or may
/// have kept cases there.
fn own_dir(dir: &Path, name: impl Fn(usize) -> String) -> io::Result<PathBuf> {
    let mut number = 0;
    loop {
        let path = dir.join(name(number));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Creates a directory for the files of one worker.
fn scratch(out: &Path) -> io::Result<PathBuf> {
    own_dir(out, |number| format!("scratch-{number}"))
}

/// The parameters of the random program of a seed.
fn shape_of(seed: u64) -> Shape {
    let mut random = Random::new(seed ^ 0x5A9E);
    Shape {
        tasks: [1, 1, 2, 3, 4][random.below(5)],
        ops: [8, 20, 40][random.below(3)],
        shared: random.chance(512),
        sync_percent: [5, 15, 30][random.below(3)],
        sleep_percent: [0, 5][random.below(2)],
        max_file: [16 << 10, 128 << 10][random.below(2)],
        space: 256 << 10,
    }
}

impl Shared {
    fn work(&self) -> io::Result<()> {
        let scratch = scratch(&self.options.out)?;
        while !self.stop.load(Ordering::Relaxed) {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = self.jobs.get(index) else {
                break;
            };
            self.run(job, index, &scratch)?;
        }
        fs::remove_dir_all(&scratch)
    }

    fn run(&self, job: &Job, index: usize, scratch: &Path) -> io::Result<()> {
        let subject = &self.subjects[job.subject];
        let seed = self
            .options
            .seed
            .wrapping_mul(0x9E37_79B9)
            .wrapping_add(index as u64);
        let program = match job.source {
            Source::Single(number) => self.core[job.subject].0[number].clone(),
            Source::Pair(number) => self.core[job.subject].1[number].clone(),
            Source::Seed(number) => {
                let seed = self.options.seed ^ number << 20;
                random(seed, shape_of(seed), subject.format)
            }
            Source::Given => {
                let given = self.options.program.as_ref();
                given.expect("a job of it").clone()
            }
        };
        let (stats, failure) = self.attempt(subject, &program, seed, scratch);
        if let Some(failure) = failure {
            self.keep(subject, program, seed, failure, scratch)?;
        }
        let mut report = self.report.lock();
        report.stats.add(stats);
        let enough = self.options.budget > 0 && report.stats.distinct.len() >= self.options.budget;
        if enough || report.failures.len() >= self.options.failures {
            self.stop.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn attempt(
        &self,
        subject: &Subject,
        program: &Program,
        seed: u64,
        scratch: &Path,
    ) -> (Stats, Option<Failure>) {
        let Options { trial, effort, .. } = self.options;
        try_program(trial, subject, program, seed, effort, scratch)
    }

    /// Shrinks the program and writes the case.
    fn keep(
        &self,
        subject: &Subject,
        program: Program,
        seed: u64,
        failure: Failure,
        scratch: &Path,
    ) -> io::Result<()> {
        let kind = discriminant(&failure.problem);
        let mut latest = (program.clone(), failure);
        let small = shrink(program, self.options.shrink, &mut |smaller| match self
            .attempt(subject, smaller, seed, scratch)
            .1
        {
            Some(failure) if discriminant(&failure.problem) == kind => {
                latest = (smaller.clone(), failure);
                true
            }
            _ => false,
        });
        let (program, failure) = latest;
        assert_eq!(small, program, "the last failing program is the smallest");
        let case = Case {
            subject: subject.name.clone(),
            seed,
            program,
            injection: failure.injection.clone(),
            path: failure.path.clone(),
        };
        let mut report = self.report.lock();
        let name = |number| format!("case-{number}-{}", subject.name);
        let dir = own_dir(&self.options.out, name)?;
        case.save(&dir, &failure)?;
        report.failures.push((dir, failure));
        Ok(())
    }
}

const HELP: &str = "\
Explores crashes: runs programs on simulated devices, cuts the power at every point, recovers, checks.
  --seed N       seed of the random number generator (1)
  --seeds N      number of random programs per subject (1000)
  --budget N     stop after this number of distinct images (0: after all programs)
  --workers N    number of threads (2)
  --faults       an error at each request of the device, then power cuts
  --space        a full volume at each allocation, and power cuts
  --fs KIND      only subjects of this file system: ext4 (with ext2 and ext3), f2fs
  --subject S    only subjects whose name contains S
  --ops FILE     only the program in this file, with 20 seeds unless --seeds says otherwise: one operation per
                 line, as in ops.txt of a failing case and in crates/lab/regressions
  --out DIR      directory for failing cases (crash-cases)
  --replay DIR   replay the case in this directory, and nothing else
";

struct Arguments {
    options: Options,
    subject: String,
    /// Whether only f2fs, or only other formats.
    f2fs: Option<bool>,
    replay: Option<PathBuf>,
}

fn trial_of(option: &str) -> Option<Trial> {
    match option {
        "--faults" => Some(Trial::Faults),
        "--space" => Some(Trial::Space),
        _ => None,
    }
}

fn parse(args: &[String]) -> Result<Option<Arguments>, String> {
    let mut parsed = Arguments {
        options: Options::new(PathBuf::from("crash-cases")),
        subject: String::new(),
        f2fs: None,
        replay: None,
    };
    let mut seeds = None;
    let mut args = args.iter();
    while let Some(name) = args.next() {
        if name == "--help" {
            return Ok(None);
        }
        if let Some(trial) = trial_of(name) {
            parsed.options.trial = trial;
            continue;
        }
        let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || -> Result<u64, String> {
            let wrong = |_| format!("{name} needs a number, not '{value}'");
            value.parse().map_err(wrong)
        };
        let size = || -> Result<usize, String> {
            usize::try_from(number()?).map_err(|_| format!("{name} {value} is too large"))
        };
        match name.as_str() {
            "--seed" => parsed.options.seed = number()?,
            "--seeds" => seeds = Some(number()?),
            "--budget" => parsed.options.budget = size()?,
            "--workers" => parsed.options.workers = size()?,
            "--fs" => parsed.f2fs = Some(is_f2fs(value)?),
            "--subject" => parsed.subject.clone_from(value),
            "--ops" => parsed.options.program = Some(program_in(Path::new(value))?),
            "--out" => parsed.options.out = PathBuf::from(value),
            "--replay" => parsed.replay = Some(PathBuf::from(value)),
            _ => return Err(format!("{name}: no such option (--help lists them)")),
        }
    }
    let usual = match parsed.options.program {
        Some(_) => 20,
        None => parsed.options.seeds,
    };
    parsed.options.seeds = seeds.unwrap_or(usual);
    Ok(Some(parsed))
}

fn is_f2fs(fs: &str) -> Result<bool, String> {
    match fs {
        "ext4" => Ok(false),
        "f2fs" => Ok(true),
        _ => Err(format!("--fs needs ext4 or f2fs, not '{fs}'")),
    }
}

fn program_in(file: &Path) -> Result<Program, String> {
    let text = fs::read_to_string(file).map_err(|error| error.to_string());
    let program = text.and_then(|text| text.parse().map_err(|error| format!("{error}")));
    program.map_err(|why: String| format!("{}: {why}", file.display()))
}

/// The command `steadfs lab crash`: explores the subjects that `make` returns, prints the report, and returns the exit
/// code: 0 no failure, 1 failures, 2 wrong arguments or a system error. `make` gets what is wanted: only f2fs, only other
/// formats, or all.
///
/// # Errors
/// If `out` cannot be written.
pub fn main_with(
    args: &[String],
    make: impl FnOnce(Option<bool>) -> io::Result<Vec<Subject>>,
    out: &mut dyn io::Write,
) -> io::Result<i32> {
    let mut arguments = match parse(args) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            out.write_all(HELP.as_bytes())?;
            return Ok(0);
        }
        Err(mistake) => {
            writeln!(out, "{mistake}")?;
            return Ok(2);
        }
    };
    let case = match arguments.replay.as_deref().map(case_in).transpose() {
        Ok(case) => case,
        Err(mistake) => {
            writeln!(out, "{mistake}")?;
            return Ok(2);
        }
    };
    let f2fs = match &case {
        Some(case) => Some(case.subject.contains("f2fs")),
        None => arguments.f2fs,
    };
    let mut subjects = match make(f2fs) {
        Ok(subjects) => subjects,
        Err(error) => {
            writeln!(out, "cannot make the volumes: {error}")?;
            return Ok(2);
        }
    };
    if let Some(case) = &case {
        return replay(case, &subjects, &arguments.options.out, out);
    }
    let space = arguments.options.trial == Trial::Space;
    let (name, f2fs) = (&arguments.subject, arguments.f2fs);
    subjects.retain(|subject| {
        let of_fs = f2fs.is_none_or(|f2fs| subject.name.contains("f2fs") == f2fs);
        subject.name.contains(name) && of_fs && subject.small == space
    });
    if subjects.is_empty() {
        writeln!(
            out,
            "--subject {name}: no subject for this trial has this in its name"
        )?;
        return Ok(2);
    }
    arguments.options.workers = arguments.options.workers.clamp(1, 64);
    match sweep(subjects, arguments.options) {
        Ok(report) => {
            print_report(&report, out)?;
            Ok(i32::from(!report.failures.is_empty()))
        }
        Err(error) => {
            writeln!(out, "the exploration stopped: {error}")?;
            Ok(2)
        }
    }
}

fn case_in(dir: &Path) -> Result<Case, String> {
    Case::load(dir).map_err(|error| format!("{}: {error}", dir.display()))
}

fn replay(
    case: &Case,
    subjects: &[Subject],
    cases: &Path,
    out: &mut dyn io::Write,
) -> io::Result<i32> {
    let Some(subject) = subjects.iter().find(|subject| subject.name == case.subject) else {
        writeln!(
            out,
            "the case needs the subject '{}', which does not exist",
            case.subject
        )?;
        return Ok(2);
    };
    if let Err(error) = subject.has_tool() {
        writeln!(out, "{error}")?;
        return Ok(2);
    }
    fs::create_dir_all(cases)?;
    let scratch = scratch(cases)?;
    let replayed = case.replay(subject, &scratch);
    fs::remove_dir_all(&scratch)?;
    match replayed {
        Ok(()) => {
            writeln!(out, "no failure found")?;
            Ok(0)
        }
        Err(failure) => {
            writeln!(out, "{}\n{}", failure.problem, failure.detail)?;
            Ok(1)
        }
    }
}

fn print_report(report: &Report, out: &mut dyn io::Write) -> io::Result<()> {
    let stats = &report.stats;
    writeln!(out, "programs        {:>10}", stats.runs)?;
    if stats.with_faults > 0 {
        writeln!(out, "  with faults   {:>10}", stats.with_faults)?;
        writeln!(out, "  stopped       {:>10}", stats.stopped)?;
        writeln!(out, "  undecided     {:>10}", stats.undecided)?;
    }
    writeln!(out, "cuts            {:>10}", stats.cuts)?;
    writeln!(out, "images          {:>10}", stats.images)?;
    writeln!(out, "  distinct      {:>10}", stats.distinct.len())?;
    writeln!(out, "recoveries      {:>10}", stats.recoveries)?;
    writeln!(out, "  nested        {:>10}", stats.nested)?;
    writeln!(out, "  after errors  {:>10}", stats.retried)?;
    writeln!(out, "verdicts        {:>10}", stats.verdicts)?;
    writeln!(out, "  rolled files  {:>10}", stats.rolled)?;
    writeln!(out, "checked         {:>10}", stats.checked)?;
    writeln!(out, "  by a tool     {:>10}", stats.by_tool)?;
    writeln!(out, "  its replay    {:>10}", stats.replayed)?;
    writeln!(out, "  refused logs  {:>10}", stats.not_replayed)?;
    for (what, count) in &stats.before {
        writeln!(out, "before {what}: {count}")?;
    }
    for (what, count) in &stats.survivors {
        writeln!(out, "survived {what}: {count}")?;
    }
    for ((subject, what), count) in &stats.work {
        writeln!(out, "{subject} {what}: {count}")?;
    }
    for (dir, failure) in &report.failures {
        writeln!(out, "\n{}:\n{}", dir.display(), failure.problem)?;
    }
    writeln!(out, "{} failures", report.failures.len())
}
