//! Why a run failed, and what every task was doing then.

use std::fmt;

use crate::Instant;

/// Why a run failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FailureKind {
    /// A task (or a timed callback) panicked.
    Panic {
        /// The task's name.
        task: String,
        /// What it said.
        message: String,
    },
    /// Nothing can run, nothing is due, and the main task has not ended.
    Deadlock,
    /// A task waited for a lock or a condition longer than the stall bound.
    Stall {
        /// The task's name.
        task: String,
    },
    /// Tasks ran on and on while no time passed.
    Livelock,
    /// The main task had not ended when the virtual time was over.
    TimeLimit,
    /// Tasks were left when the main task had ended.
    Leaked,
}

/// What one task was doing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskReport {
    /// Its name.
    pub name: String,
    /// What it waited for.
    pub waits: String,
    /// Since when.
    pub since: Instant,
    /// Ranks of the locks it held, in the order it took them (builds with debug assertions).
    pub holds: Vec<String>,
}

/// A failed run. Displayed as a report of several lines.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The run's seed.
    pub seed: u64,
    /// The virtual time.
    pub at: Instant,
    /// Why.
    pub kind: FailureKind,
    /// Every task that had not ended.
    pub tasks: Vec<TaskReport>,
}

impl std::error::Error for Failure {}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panic { task, message } => write!(f, "task '{task}' panicked: {message}"),
            Self::Deadlock => write!(f, "deadlock: nothing can run and nothing is due"),
            Self::Stall { task } => write!(f, "stall: task '{task}' waits too long"),
            Self::Livelock => write!(f, "livelock: tasks run on while no time passes"),
            Self::TimeLimit => write!(f, "the virtual time is over"),
            Self::Leaked => write!(f, "tasks are left after the main task's end"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, at, kind, .. } = self;
        write!(f, "simulation of seed {seed} failed at {} ns: {kind}", at.0)?;
        for task in &self.tasks {
            let TaskReport { name, waits, .. } = task;
            let holds = match task.holds.is_empty() {
                true => "nothing".to_owned(),
                false => task.holds.join(", "),
            };
            let since = task.since.0;
            write!(f, "\n  '{name}': {waits} since {since} ns; holds {holds}")?;
        }
        Ok(())
    }
}
