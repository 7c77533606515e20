//! What a failing device and a full volume do: every [`FaultKind`] of injection in turn, each with its verdict.

use std::io;

use super::sweep::{Options, Report, sweep};
use super::{Subject, Trial};

/// A kind of injection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultKind {
    /// Its name on the command line.
    pub name: &'static str,
    /// What is tried.
    pub trial: Trial,
    /// In a sentence.
    pub about: &'static str,
}

/// Every kind, in the order of the report.
pub const FAULT_KINDS: [FaultKind; 4] = [
    FaultKind {
        name: "errors",
        trial: Trial::Faults,
        about: "EIO of each request: once, from then on, though it was done, and of a FLUSH with the loss of the cache",
    },
    FaultKind {
        name: "space",
        trial: Trial::Space,
        about: "ENOSPC: every amount of free_space, from none to enough",
    },
    FaultKind {
        name: "latency",
        trial: Trial::Latency,
        about: "requests that take up to a second longer, FLUSHes above all",
    },
    FaultKind {
        name: "lost-flush",
        trial: Trial::LostFlushes,
        about: "a device that says it flushed, and did not",
    },
];

/// What came of one kind.
pub struct Outcome {
    /// RequestFilter.
    pub kind: FaultKind,
    /// What was found.
    pub report: Report,
}

impl Outcome {
    /// Whether steadfs did something wrong. What a lying device lost is the device's doing.
    pub fn is_bad(&self) -> bool {
        !self.report.failures.is_empty()
    }
}

/// Tries `kinds` on `subjects`, each with the whole budget, and writes what came out as it comes. Failing cases are
/// kept below `options.out`, in a directory for each kind.
///
/// # Errors
/// If cases or `out` cannot be written.
pub fn faults(
    subjects: &[Subject],
    kinds: &[FaultKind],
    options: &Options,
    out: &mut dyn io::Write,
) -> io::Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for kind in kinds {
        let options = Options {
            trial: kind.trial,
            out: options.out.join(kind.name),
            ..options.clone()
        };
        let report = sweep(subjects.to_vec(), options)?;
        let outcome = Outcome {
            kind: *kind,
            report,
        };
        print_outcome(&outcome, out)?;
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

fn print_outcome(outcome: &Outcome, out: &mut dyn io::Write) -> io::Result<()> {
    let Outcome { kind, report } = outcome;
    let stats = &report.stats;
    writeln!(out, "{}: {}", kind.name, kind.about)?;
    writeln!(
        out,
        "  {} runs, {} of them met it, {} volumes stopped; {} crashes, {} recoveries judged",
        stats.runs, stats.troubled, stats.stopped, stats.images, stats.recoveries
    )?;
    if kind.trial == Trial::LostFlushes {
        let honest = "the same runs on honest devices lost nothing";
        match stats.lost_by_device {
            0 => writeln!(out, "  nothing that was promised was lost; {honest}")?,
            lost => writeln!(
                out,
                "  {lost} crashes lost what fsync had promised, or left a damaged volume: THE DEVICE'S DOING. It \
                 acknowledged FLUSHes that it did not do; {honest}"
            )?,
        }
    }
    for (dir, failure) in &report.failures {
        writeln!(out, "  BAD, in {}: {}", dir.display(), failure.problem)?;
        writeln!(
            out,
            "  see it again: steadfs lab crash --replay {}",
            dir.display()
        )?;
    }
    match report.failures.len() {
        0 => writeln!(out, "  nothing is wrong"),
        bad => writeln!(out, "  {bad} bad"),
    }
}
