//! Runs every kind of fault in turn, each with its verdict.

use std::io;

use super::sweep::{Options, Report, sweep};
use super::{Subject, Trial};

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultKind {
    /// Its name on the command line.
    pub name: &'static str,
    /// The trial that injects it.
    pub trial: Trial,
    /// One sentence for the report.
    pub about: &'static str,
}

/// Every kind, in the order of the report.
pub const FAULT_KINDS: [FaultKind; 4] = [
    FaultKind {
        name: "errors",
        trial: Trial::Faults,
        about: "EIO at each request: once, at all later ones, after it was done, and at a FLUSH with the loss of the cache",
    },
    FaultKind {
        name: "space",
        trial: Trial::Space,
        about: "ENOSPC: every number of free blocks, from none to enough",
    },
    FaultKind {
        name: "latency",
        trial: Trial::Latency,
        about: "requests that take up to 1 s longer, mostly FLUSHes",
    },
    FaultKind {
        name: "lost-flush",
        trial: Trial::LostFlushes,
        about: "a device that acknowledges a FLUSH and does not do it",
    },
];

/// The result for one kind.
pub struct Outcome {
    /// The kind of fault.
    pub kind: FaultKind,
    /// The sweep's report.
    pub report: Report,
}

impl Outcome {
    /// Whether steadfs is at fault. Data lost by a device that drops FLUSHes is not its fault.
    pub fn is_bad(&self) -> bool {
        !self.report.failures.is_empty()
    }
}

/// Runs `kinds` on `subjects`, each with the whole budget, and writes each result as it is known. Failing cases are
/// kept below `options.out`, in one directory per kind.
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
        "  {} runs, {} with a fault, {} volumes stopped; {} crashes, {} recoveries judged",
        stats.runs, stats.with_faults, stats.stopped, stats.images, stats.recoveries
    )?;
    if kind.trial == Trial::LostFlushes {
        let control = "the same runs without the fault lost nothing";
        match stats.lost_by_device {
            0 => writeln!(out, "  no acknowledged data was lost; {control}")?,
            lost => writeln!(
                out,
                "  {lost} crashes lost data that fsync had acknowledged, or left a corrupt volume: THE DEVICE'S FAULT. It \
                 acknowledged FLUSHes that it did not do; {control}"
            )?,
        }
    }
    for (dir, failure) in &report.failures {
        writeln!(
            out,
            "  FAILURE, case in {}: {}",
            dir.display(),
            failure.problem
        )?;
        writeln!(
            out,
            "  replay it with: steadfs lab crash --replay {}",
            dir.display()
        )?;
    }
    match report.failures.len() {
        0 => writeln!(out, "  no failure found"),
        bad => writeln!(out, "  {bad} failures"),
    }
}
