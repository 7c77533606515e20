//! Crash exploration: runs programs on a simulated device, builds the images that a power cut may leave, recovers each
//! image, and judges the result.
//!
//! **One run.** A program runs in a simulation on a freshly formatted volume ([`record`]). The device logs every
//! request, with a mark before and after each operation. The run itself is judged first: every result and the final
//! tree must be the model's, and the unmount must be clean.
//!
//! **Its crashes.** For every cut of [`Log::last_cuts`](crate::device::Log::last_cuts), and for some cuts in between,
//! images are built from subsets of the writes that the cut leaves undecided ([`explore`]). Equal images are recovered
//! once. Each distinct image is mounted in a simulation of its own, read, and unmounted. The recovery must succeed, the
//! oracle must accept the state for every cut that can leave this image, and the checker must find nothing afterwards.
//! For a sample of images the recovery is cut, too, or runs on a device that fails at one request, from one request on,
//! or at a FLUSH with the loss of its cache; the result is judged by the same history.
//!
//! **Failures** are kept as directories that hold everything needed to replay them, with a smaller program if the
//! shrinker found one ([`case`]).
//!
//! Everything is a function of the program, the subject and a seed.

pub mod by_tool;
mod case;
pub mod explore;
pub mod ext4;
pub mod f2fs;
pub mod faults;
pub mod free_space;
pub mod record;
mod stats;
pub mod subject;
mod sweep;
#[cfg(test)]
mod tests;
pub mod trial;

pub use case::Case;
pub use explore::{Effort, explore};
pub use free_space::FreeSpace;
pub use record::{Injection, Run, record, record_with};
pub use stats::Stats;
pub use subject::{Repair, Subject, Tool, ToolReplay};
pub use sweep::{Options, Report, main_with, sweep};
pub use trial::{Trial, try_program};

use std::fmt;
use std::time::Duration;

use steadfs_rt::sim;
use steadfs_vfs::FsError;
use steadfs_workload::observe::Unreadable;
use steadfs_workload::{Divergence, Op, Violation};

use crate::device::{Image, Survivors};

/// Runs `act` on a volume, then waits 60 s of virtual time: until the last of the volume's tasks has ended (a queue's
/// timer is not joined), and until the slowest device has completed requests that no task waits for (read-ahead).
fn run_until_idle<T>(act: impl FnOnce() -> T) -> T {
    let done = act();
    steadfs_rt::sleep(Duration::from_secs(60));
    done
}

/// A crash, followed by crashes of the recoveries from it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CrashPath {
    /// For each crash: the number of device events before it, and what survived. The second crash is of the device on
    /// which the recovery from the first ran, and so on.
    pub crashes: Vec<(usize, Survivors)>,
}

/// A defect that the exploration found.
#[derive(Debug)]
pub enum Problem {
    /// A simulation failed: a panic, a deadlock, a stall, a leaked task.
    Simulation(Box<sim::Failure>),
    /// The volume could not be opened.
    Open(FsError),
    /// The result of an operation differs from the model's.
    Result(Box<Divergence>),
    /// The volume could not be read, or its answers contradict each other.
    Unreadable(Unreadable),
    /// The mounted volume shows a state that is not allowed.
    Live(Box<Violation>),
    /// After a crash the volume shows a state that is not allowed.
    Oracle(Box<Violation>),
    /// Syncing the setup, or unmounting, failed.
    Sync(FsError),
    /// The checker or the format's own tool found corruption.
    Damaged {
        /// The judge that found it.
        judge: &'static str,
        /// Its findings.
        findings: String,
    },
    /// A volume that was emptied has less free space than when it was new.
    Leaked {
        /// Free blocks and inodes of the new volume.
        new: (u64, u64),
        /// Free blocks and inodes of the emptied volume.
        emptied: (u64, u64),
    },
    /// An operation failed with ENOSPC although the volume has enough space for it.
    TooEarly {
        /// The operation.
        op: Op,
        /// Number of free blocks right after it.
        free: u64,
        /// Number of blocks that suffice for one more step of it.
        enough: u64,
    },
    /// One judge finds corruption, the other does not: one of them is wrong.
    Disagreement {
        /// The judge that finds nothing.
        content: &'static str,
        /// The judge that finds something.
        judge: &'static str,
        /// Its findings.
        findings: String,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simulation(failure) => failure.fmt(f),
            Self::Open(error) => write!(f, "cannot mount the volume: {error}"),
            Self::Result(divergence) => divergence.fmt(f),
            Self::Unreadable(unreadable) => unreadable.fmt(f),
            Self::Live(violation) => write!(f, "on the running volume: {violation}"),
            Self::Oracle(violation) => write!(f, "after the crash: {violation}"),
            Self::Sync(error) => write!(f, "sync or unmount failed: {error}"),
            Self::Damaged { judge, findings } => write!(f, "{judge}: {findings}"),
            Self::Leaked { new, emptied } => write!(
                f,
                "the emptied volume has {emptied:?} free blocks and inodes, the new one had {new:?}"
            ),
            Self::TooEarly { op, free, enough } => write!(
                f,
                "'{op}' failed with ENOSPC although {free} blocks are free and {enough} suffice"
            ),
            Self::Disagreement {
                content,
                judge,
                findings,
            } => write!(f, "{content} finds nothing, but {judge}: {findings}"),
        }
    }
}

/// A problem and the crash that shows it.
#[derive(Debug)]
pub struct Failure {
    /// The crashes; empty if the run itself failed.
    pub path: CrashPath,
    /// The problem.
    pub problem: Problem,
    /// What survived of each undecided write.
    pub detail: String,
    /// The faults that were injected.
    pub injection: Injection,
    /// The image that the last crash left; `None` if the run itself failed.
    pub crashed: Option<Image>,
}

impl Failure {
    fn of_run(problem: Problem) -> Self {
        Self {
            path: CrashPath::default(),
            problem,
            detail: String::new(),
            injection: Injection::None,
            crashed: None,
        }
    }
}
