//! `steadfs lab`.

use std::io;
use std::path::PathBuf;

use steadfs_lab::{crash, experiment};

use crate::args;
use crate::failure::Failure;
use crate::output::print;

pub fn run(args: &args::Lab) -> Result<(), Failure> {
    match args {
        args::Lab::Crash(args) => crash(&args.words),
        args::Lab::CheckpointMerge(args) => experiment("checkpoint-merge", args),
        args::Lab::UrgentWriteback(args) => experiment("urgent-writeback", args),
    }
}

/// Runs an experiment and prints its report. How long it took goes to standard error: the report is the same each
/// time.
fn experiment(name: &str, args: &args::Experiment) -> Result<(), Failure> {
    let settings = experiment::Settings {
        device: args.device.clone(),
        seeds: args.seeds,
        quick: args.quick,
    };
    let begin = steadfs_rt::now();
    let (_, plan) = experiment::ALL
        .iter()
        .find(|(known, _)| *known == name)
        .expect("every command has its experiment");
    let report = plan(&settings)
        .and_then(|plan| experiment::run(&plan, settings.seeds()))
        .map_err(Failure::plain)?;
    let text = match args.json {
        true => report.to_json(),
        false => report.to_text(),
    };
    print(|out| out.write_all(text.as_bytes()))?;
    let real = begin.elapsed().as_secs_f64();
    let simulated = report.simulated_ns as f64 / 1e9;
    eprintln!(
        "{simulated:.0} s were simulated in {real:.1} s ({:.0} times as fast)",
        simulated / real
    );
    Ok(())
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
