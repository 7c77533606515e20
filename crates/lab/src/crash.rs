//! Crash exploration: runs programs on a modelled device, builds the images that a power cut may
//! leave, recovers each, and asks judges.
//!
//! **One run.** A program runs in a simulation against a freshly formatted volume ([`record`]); the
//! device logs everything, with a mark before and after each operation. Before the crash is explored
//! the run itself is judged: every result as in the model, the tree at the end as in the model, a
//! clean unmount.
//!
//! **Its crashes.** For every cut that [`Log::last_cuts`](crate::device::Log::last_cuts) names, and
//! for some in between, images are built for subsets of what the cut puts in doubt ([`explore`]).
//! Equal images are recovered once. Each distinct image is opened in a simulation of its own, looked
//! at, and unmounted; it must recover without an error, the oracle must accept what is seen for every
//! cut that can leave this image, and the checker must find nothing afterwards. For some images the
//! recovery is cut as well, or meets a device that fails at one request, from then on, or at a FLUSH with
//! the loss of its cache, and what that leaves is judged by the same history.
//!
//! **Failures** are kept as directories that say everything needed to see them again, with a smaller
//! program where one was found ([`case`]).
//!
//! Everything follows from the program, the subject and a seed.

pub mod case;
pub mod explore;
pub mod ext4;
pub mod f2fs;
pub mod faults;
pub mod free_space;
pub mod record;
pub mod subject;
mod sweep;
#[cfg(test)]
mod tests;
pub mod trial;

pub use case::Case;
pub use explore::{Effort, Stats, explore};
pub use free_space::FreeSpace;
pub use record::{Injection, Run, record, record_with};
pub use subject::{Subject, Tool};
pub use sweep::{Options, Report, main_with, sweep};
pub use trial::{Trial, try_program};

use std::fmt;
use std::time::Duration;

use steadfs_rt::sim;
use steadfs_vfs::FsError;
use steadfs_workload::observe::Unreadable;
use steadfs_workload::{Divergence, Op, Violation};

use crate::device::{Image, Survivors};

/// Does something with a volume and waits until the last of its tasks has noticed that it is gone (a queue's
/// timer is told, but nobody waits for it), and until the slowest device has answered what nobody waits for (blocks
/// read ahead).
fn run_until_idle<T>(act: impl FnOnce() -> T) -> T {
    let done = act();
    steadfs_rt::sleep(Duration::from_secs(60));
    done
}

/// A crash, and where a recovery from it was cut again.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CrashPath {
    /// Each crash: how many events of the device came before it, and what survived. The second is of
    /// the device on which the recovery from the first ran, and so on.
    pub crashes: Vec<(usize, Survivors)>,
}

/// What is wrong.
#[derive(Debug)]
pub enum Problem {
    /// A simulation failed: a panic, a deadlock, a stall, a leaked task.
    Simulation(Box<sim::Failure>),
    /// The volume could not be opened.
    Open(FsError),
    /// An operation returned something else than it should have.
    Result(Box<Divergence>),
    /// The volume could not be read, or contradicts itself.
    Unreadable(Unreadable),
    /// The running volume shows something else than it should.
    Live(Box<Violation>),
    /// After a crash something is there that may not be, or is missing.
    Oracle(Box<Violation>),
    /// Making the start durable, or unmounting, failed.
    Sync(FsError),
    /// The checker or the format's own tool found the volume damaged.
    Damaged {
        /// Who says so.
        judge: &'static str,
        /// What.
        findings: String,
    },
    /// A volume that was emptied has not the room that it had when it was new.
    Leaked {
        /// Blocks and inodes that were free when it was new.
        new: (u64, u64),
        /// Those that are free now.
        emptied: (u64, u64),
    },
    /// An operation found no room on a volume that has enough for it.
    TooEarly {
        /// What found none.
        op: Op,
        /// Blocks that were free right after it.
        free: u64,
        /// Blocks of which one more step of it needs fewer.
        enough: u64,
    },
    /// One judge finds the volume damaged, the other does not: one of them is wrong.
    Disagreement {
        /// Who finds nothing.
        content: &'static str,
        /// Who finds something.
        judge: &'static str,
        /// What.
        findings: String,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simulation(failure) => failure.fmt(f),
            Self::Open(error) => write!(f, "opening the volume failed: {error}"),
            Self::Result(divergence) => divergence.fmt(f),
            Self::Unreadable(unreadable) => unreadable.fmt(f),
            Self::Live(violation) => write!(f, "while it ran: {violation}"),
            Self::Oracle(violation) => write!(f, "after the crash: {violation}"),
            Self::Sync(error) => write!(f, "sync or unmount failed: {error}"),
            Self::Damaged { judge, findings } => write!(f, "{judge}: {findings}"),
            Self::Leaked { new, emptied } => write!(
                f,
                "emptied, the volume has {emptied:?} free blocks and inodes; new it had {new:?}"
            ),
            Self::TooEarly { op, free, enough } => write!(
                f,
                "'{op}' found no free_space, though {free} blocks are free and {enough} would do"
            ),
            Self::Disagreement {
                content,
                judge,
                findings,
            } => write!(f, "{content} finds nothing, but {judge}: {findings}"),
        }
    }
}

/// Something wrong, and where it was found.
#[derive(Debug)]
pub struct Failure {
    /// The crash; none if the run itself went wrong.
    pub path: CrashPath,
    /// What is wrong.
    pub problem: Problem,
    /// Everything about the crash that a reader wants: what survived of each change in doubt.
    pub detail: String,
    /// What went wrong besides.
    pub injection: Injection,
    /// What the last crash left; none if the run itself went wrong.
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
