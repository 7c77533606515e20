//! `steadfs lab`.

use std::io;
use std::path::{Path, PathBuf};

use steadfs_lab::crash;
use steadfs_lab::experiment::{self, Report};

use crate::args;
use crate::failure::Failure;
use crate::output::print;

pub fn run(args: &args::Lab) -> Result<(), Failure> {
    match args {
        args::Lab::Crash(args) => crash(&args.words),
        args::Lab::CheckpointMerge(args) => one("checkpoint-merge", args),
        args::Lab::GcVictims(args) => one("gc-victims", args),
        args::Lab::AsyncCheckpoint(args) => one("async-checkpoint", args),
        args::Lab::UrgentWriteback(args) => one("urgent-writeback", args),
        args::Lab::All(args) => all(args),
    }
}

type Plan = fn(&experiment::Settings) -> Result<experiment::Plan, experiment::Error>;

/// Runs an experiment and prints its report.
fn one(name: &str, args: &args::Experiment) -> Result<(), Failure> {
    let (_, plan) = experiment::ALL
        .iter()
        .find(|(known, _)| *known == name)
        .expect("every command has its experiment");
    let report = measured(plan, args)?;
    let text = match args.json {
        true => report.to_json(),
        false => report.to_text(),
    };
    print(|out| out.write_all(text.as_bytes()))
}

/// Runs all of them; as JSON they are the lines of an array.
fn all(args: &args::AllExperiments) -> Result<(), Failure> {
    if let Some(device) = &args.how.device {
        let device = device.display();
        return Err(Failure::plain(format!(
            "--device {device}: each experiment has its own device; give it to one of them"
        )));
    }
    let mut reports = Vec::new();
    for (_, plan) in experiment::ALL {
        reports.push(measured(plan, &args.how)?);
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
    print(|out| out.write_all(text.as_bytes()))
}

/// Runs an experiment and writes its charts. How long it took goes to standard error: the report is the same each
/// time.
fn measured(plan: &Plan, args: &args::Experiment) -> Result<Report, Failure> {
    let settings = experiment::Settings {
        device: args.device.clone(),
        seeds: args.seeds,
        quick: args.quick,
    };
    let begin = steadfs_rt::now();
    let report = plan(&settings)
        .and_then(|plan| experiment::run(&plan, settings.seeds()))
        .map_err(Failure::plain)?;
    if let Some(dir) = &args.plot {
        std::fs::create_dir_all(dir).map_err(|error| unwritable(dir, &error))?;
        let name = &report.experiment;
        write(
            &dir.join(format!("{name}-figures.svg")),
            &report.figures_chart(),
        )?;
        if let Some(chart) = report.latency_chart() {
            write(&dir.join(format!("{name}-latency.svg")), &chart)?;
        }
    }
    let real = begin.elapsed().as_secs_f64();
    let simulated = report.simulated_ns as f64 / 1e9;
    eprintln!(
        "{}: {simulated:.0} s were simulated in {real:.1} s ({:.0} times as fast)",
        report.experiment,
        simulated / real
    );
    Ok(report)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::plain(format!("{}: {error}", path.display()))
}

/// The explorer has a grammar of its own, and prints itself.
fn crash(words: &[String]) -> Result<(), Failure> {
    let scratch = Scratch::new().map_err(Failure::plain)?;
    let mut subjects = crash::ext4::subjects(&scratch.0).map_err(Failure::plain)?;
    subjects.extend(crash::f2fs::subjects().map_err(Failure::plain)?);
    let code = crash::main_with(words, subjects, &mut io::stdout()).map_err(Failure::plain)?;
    match u8::try_from(code) {
        Ok(0) => Ok(()),
        code => Err(Failure::new(code.unwrap_or(u8::MAX), "")),
    }
}

/// A directory that goes when it is not needed any more.
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
            tracing::debug!(%error, "scratch directory stays");
        }
    }
}
