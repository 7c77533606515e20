//! The same work on kernel ext4, fuse2fs and steadfs (on ext4 and on f2fs), side by side, and on a server that does
//! nothing.
//!
//! Every activity (`activity/`) runs on every subject (`subject.rs`) in turn, A B C, A B C, so that a slow phase of the
//! machine affects all of them. Each run starts with a freshly formatted image of the same size, every block of which
//! was written before. It ends with an unmount and `e2fsck -fn` or `fsck.f2fs --dry-run`: a result counts only if the
//! volume is clean. An activity yields samples for one or several rows (`row.rs`); the report shows their medians, the
//! ratio to kernel ext4 with direct I/O, and whether the row reaches its goal.

#![forbid(unsafe_code)]

mod activity;
mod activity_run;
mod command;
mod dirty_bound;
mod measure;
mod report;
mod row;
mod subject;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;

use activity::{ACTIVITIES, Activity};
use activity_run::{Bench, Size};
use report::Samples;
use subject::Subject;

/// The message of a failure; a benchmark does not handle errors.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Compares kernel ext4 (direct and through the page cache), fuse2fs and steadfs; needs root.
#[derive(Parser)]
struct Args {
    /// Smaller amounts and fewer rounds: minutes instead of an hour
    #[arg(long)]
    quick: bool,
    /// Runs of each activity on each subject [default: 5, with --quick 3]
    #[arg(long)]
    rounds: Option<usize>,
    /// Only activities whose names contain one of these words
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only these subjects
    #[arg(long, value_delimiter = ',', value_enum)]
    subjects: Vec<Subject>,
    /// Writes every sample as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keeps the images in this folder, for the next run [default: a temporary folder]
    #[arg(long, value_name = "FOLDER")]
    images: Option<PathBuf>,
    /// The tree that is packed, extracted, walked and removed
    #[arg(long, value_name = "FOLDER", default_value = "/usr/share/doc")]
    tree: PathBuf,
    /// The program to measure [default: the `steadfs` beside this program]
    #[arg(long, value_name = "PROGRAM")]
    steadfs: Option<PathBuf>,
    /// Lists the activities and ends
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.list {
        for activity in ACTIVITIES {
            println!("{:<16} {}", activity.name, activity.about);
        }
        return ExitCode::SUCCESS;
    }
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures and reports; returns whether every volume of the kernel and of steadfs was clean.
fn run(args: &Args) -> Result<bool> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let subjects = if args.subjects.is_empty() {
        Subject::ALL.to_vec()
    } else {
        args.subjects.clone()
    };
    let size = if args.quick { Size::QUICK } else { Size::FULL };
    let rounds = args.rounds.unwrap_or(if args.quick { 3 } else { 5 });
    let program = steadfs_program(args.steadfs.as_deref())?;
    let bench = Bench::prepare(
        size,
        &program,
        args.images.as_deref(),
        &args.tree,
        &subjects,
    )?;

    let mut samples = Samples::default();
    'all: for activity in chosen(&args.only)? {
        let rounds = rounds.min(activity.rounds);
        for round in 1..=rounds {
            for &subject in subjects.iter().filter(|s| activity.supports(**s)) {
                if stop.load(Ordering::Relaxed) {
                    eprintln!("bench: interrupted; results so far:");
                    break 'all;
                }
                eprintln!("{}, round {round} of {rounds}: {subject}", activity.name);
                activity.measure(&bench, subject, &mut samples);
            }
        }
    }
    print!("{}", report::markdown(&samples, &subjects));
    if let Some(path) = &args.json {
        std::fs::write(path, report::json(&samples))?;
    }
    Ok(samples.complete())
}

fn chosen(words: &[String]) -> Result<Vec<&'static Activity>> {
    let wanted = |a: &&Activity| words.is_empty() || words.iter().any(|w| a.name.contains(&**w));
    let result: Vec<_> = ACTIVITIES.iter().filter(wanted).collect();
    if result.is_empty() {
        return Err("--only: no activity matches (see --list)".into());
    }
    Ok(result)
}

fn steadfs_program(given: Option<&Path>) -> Result<PathBuf> {
    let path = match given {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()?.with_file_name("steadfs"),
    };
    path.canonicalize()
        .map_err(|error| format!("{}: {error} (build steadfs-cli first)", path.display()).into())
}
