//! The commands of the laboratory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use steadfs_lab::crash;
use steadfs_lab::crash::faults::{FAULT_KINDS, FaultKind};
use steadfs_lab::experiment::{self, Report};
use steadfs_lab::flash::Parameters;
use steadfs_lab::{read_faults, trace};

use crate::args::{self, Command};
use crate::failure::{Failure, print};

/// Exit code if the system refuses a resource.
const SYSTEM: u8 = 2;

pub fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Crash(args) => crash(&args.args),
        Command::Faults(args) => faults(args),
        Command::Trace(args::Trace::Fsync(args)) => trace_fsync(args),
        Command::CheckpointMerge(args) => run_one("checkpoint-merge", args),
        Command::GcVictims(args) => run_one("gc-victims", args),
        Command::AsyncCheckpoint(args) => run_one("async-checkpoint", args),
        Command::UrgentWriteback(args) => run_one("urgent-writeback", args),
        Command::All(args) => run_all(args),
    }
}

type Plan = fn(&experiment::Settings) -> Result<experiment::Plan, experiment::Error>;

/// Runs an experiment and prints its report.
fn run_one(name: &str, args: &args::Experiment) -> Result<(), Failure> {
    let (_, plan) = experiment::ALL
        .iter()
        .find(|(known, _)| *known == name)
        .expect("every command has its experiment");
    let report = run_and_plot(plan, args)?;
    let text = match args.json {
        true => report.to_json(),
        false => report.to_text(),
    };
    print(&text)
}

/// Runs every experiment and prints the reports, as JSON in one array.
fn run_all(args: &args::AllExperiments) -> Result<(), Failure> {
    let mut reports = Vec::new();
    let begin = steadfs_rt::now();
    for (_, plan) in experiment::ALL {
        reports.push(run_and_plot(plan, &args.how)?);
    }
    if !args.how.real {
        let simulated: f64 = reports.iter().map(|r| r.simulated_ns as f64 / 1e9).sum();
        eprintln!("all: {}", speed(simulated, begin.elapsed().as_secs_f64()));
    }
    if let Some(path) = &args.html {
        write(path, &experiment::page(&reports))?;
    }
    let texts: Vec<_> = match args.how.json {
        true => reports.iter().map(Report::to_json).collect(),
        false => reports.iter().map(Report::to_text).collect(),
    };
    let text = match args.how.json {
        true => format!("[{}]\n", texts.join(",").trim_end()),
        false => texts.join("\n"),
    };
    print(&text)
}

/// Runs an experiment: in simulation, or with `--real` its checks in both simulated and real time.
fn run_plan(plan: &Plan, settings: &experiment::Settings) -> Result<Report, experiment::Error> {
    let mut plan = plan(settings)?;
    if !settings.real {
        return experiment::run(&plan, settings.seeds());
    }
    let real = experiment::check(&plan, settings.seeds())?;
    plan.cells.clear();
    plan.figures.clear();
    let report = experiment::run(&plan, settings.seeds())?;
    Ok(Report {
        source: "simulated and real",
        real: Some(real),
        ..report
    })
}

/// On a signal, unmounts the experiment's volume, whose failure then ends the program; without a mount the signal
/// ends the program.
fn end_by_signals(first: Arc<AtomicI32>) -> Result<(), Failure> {
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]);
    let mut signals = signals.map_err(|error| Failure::with_code(SYSTEM, error))?;
    let work = move || {
        for signal in signals.forever() {
            first.store(signal, Ordering::Release);
            if !experiment::unmount_on_signal() {
                let ended = signal_hook::low_level::emulate_default_handler(signal);
                tracing::debug!(?ended, "the signal did not end the process");
            }
        }
    };
    steadfs_rt::try_spawn("signals", work)
        .map(drop)
        .map_err(|error| Failure::with_code(SYSTEM, format!("cannot start a thread: {error}")))
}

/// Runs an experiment and writes its charts. The run time goes to standard error, so that equal runs print equal
/// reports.
fn run_and_plot(plan: &Plan, args: &args::Experiment) -> Result<Report, Failure> {
    let settings = experiment::Settings {
        device: args.device.clone(),
        seeds: args.seeds,
        quick: args.quick,
        real: args.real,
    };
    let begin = steadfs_rt::now();
    let signal = Arc::new(AtomicI32::new(0));
    if args.real {
        end_by_signals(Arc::clone(&signal))?;
    }
    let report =
        run_plan(plan, &settings).map_err(|error| match signal.load(Ordering::Acquire) {
            0 => Failure::new(error),
            signal => Failure::by_signal(signal, error),
        })?;
    if let Some(dir) = &args.plot {
        std::fs::create_dir_all(dir).map_err(|error| cannot_write(dir, &error))?;
        let name = &report.experiment;
        write(
            &dir.join(format!("{name}-figures.svg")),
            &report.figures_chart(),
        )?;
        if let Some(chart) = report.latency_chart() {
            write(&dir.join(format!("{name}-latency.svg")), &chart)?;
        }
        if let Some(chart) = report.timeline_chart() {
            write(&dir.join(format!("{name}-queue.svg")), &chart)?;
        }
    }
    let real = begin.elapsed().as_secs_f64();
    if report.real.is_some() {
        eprintln!(
            "{}: the simulated and the real run took {real:.0} s",
            report.experiment
        );
        return Ok(report);
    }
    let simulated = report.simulated_ns as f64 / 1e9;
    eprintln!("{}: {}", report.experiment, speed(simulated, real));
    Ok(report)
}

/// The speed of a simulation; both times in seconds.
fn speed(simulated: f64, real: f64) -> String {
    let times = simulated / real;
    format!("{simulated:.0} s simulated in {real:.1} s ({times:.0} times real time)")
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| cannot_write(path, &error))
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("cannot write {}: {error}", path.display()))
}

/// The explorer parses its own options and prints its report itself.
fn crash(args: &[String]) -> Result<(), Failure> {
    let made = crash::main_with(args, subjects, &mut io::stdout());
    let code = made.map_err(Failure::new)?;
    match u8::try_from(code) {
        Ok(0) => Ok(()),
        code => Err(Failure::with_code(code.unwrap_or(u8::MAX), "")),
    }
}

/// The volumes of the explorer: of f2fs, of the other formats, or all. mke2fs is needed for the others only.
fn subjects(f2fs: Option<bool>) -> io::Result<Vec<crash::Subject>> {
    let mut subjects = Vec::new();
    if f2fs != Some(true) {
        let scratch = Scratch::new()?;
        subjects.extend(crash::ext4::subjects(&scratch.0)?);
    }
    if f2fs != Some(false) {
        subjects.extend(crash::f2fs::subjects()?);
    }
    Ok(subjects)
}

fn trace_fsync(args: &args::TraceFsync) -> Result<(), Failure> {
    let device = Parameters::find(&args.device).map_err(Failure::new)?;
    let kind = match args.fs.as_str() {
        "f2fs" => trace::Kind::F2fs,
        _ => trace::Kind::Ext4,
    };
    let what = match args.of.as_str() {
        "overwrite" => trace::FsyncTarget::Overwrite,
        "directory" => trace::FsyncTarget::Directory,
        _ => trace::FsyncTarget::Append,
    };
    let text = trace::fsync(kind, what, &device, args.seed).map_err(Failure::new)?;
    print(&text)
}

/// Injects each kind of fault in turn.
fn faults(args: &args::Faults) -> Result<(), Failure> {
    let system = |error: io::Error| Failure::with_code(SYSTEM, error);
    let mut subjects = subjects(args.fs.as_deref().map(|fs| fs == "f2fs")).map_err(system)?;
    subjects.retain(|subject| subject.name.contains(&args.subject));
    let kinds: Vec<_> = FAULT_KINDS
        .into_iter()
        .filter(|kind| args.kinds.is_empty() || args.kinds.iter().any(|name| name == kind.name))
        .collect();
    let space = |kind: &FaultKind| kind.trial == crash::Trial::Space;
    if let Some(kind) = kinds
        .iter()
        .find(|kind| subjects.iter().all(|subject| subject.small != space(kind)))
    {
        return Err(no_volume(kind.name, &args.subject));
    }
    let options = crash::Options {
        seed: args.seed,
        seeds: args.seeds,
        budget: args.budget,
        workers: steadfs_rt::cpu::processors(),
        ..crash::Options::new(args.out.clone())
    };
    let outcomes = crash::faults::faults(&subjects, &kinds, &options, &mut io::stdout());
    let outcomes = outcomes.map_err(system)?;
    let mut bad = outcomes.iter().any(crash::faults::Outcome::is_bad);
    let named = args.kinds.iter().any(|name| name == "reads");
    if args.kinds.is_empty() || named {
        let fs = args.fs.as_deref();
        let found = read_faults::faults(fs, &args.subject, &mut io::stdout());
        match found.map_err(system)? {
            Some(found) => bad |= found > 0,
            None if named => return Err(no_volume("reads", &args.subject)),
            None => {}
        }
    }
    match bad {
        true => Err(Failure::new("")),
        false => Ok(()),
    }
}

fn no_volume(kind: &str, subject: &str) -> Failure {
    Failure::new(format!(
        "--subject {subject}: no volume for the faults '{kind}' has this in its name"
    ))
}

/// A temporary directory, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Self> {
        let name = format!("steadfs-lab-{:016x}", steadfs_rt::random_u64());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::debug!(%error, "cannot remove the scratch directory");
        }
    }
}
