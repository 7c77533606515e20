//! The failure report of a run: the cause, and the state of every task.

use std::fmt;

use crate::Instant;

/// Why a run failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FailureKind {
    /// A task (or a timed callback) panicked.
    Panic {
        /// The task's name.
        task: String,
        /// The panic's message.
        message: String,
    },
    /// No task can run, no timer is set, and the main task has not ended.
    Deadlock,
    /// A task waited for a lock or a condition longer than the stall bound.
    Stall {
        /// The task's name.
        task: String,
    },
    /// Tasks made 10 000 000 switches at one instant of virtual time.
    Livelock,
    /// The main task had not ended when the virtual time was over.
    TimeLimit,
    /// Tasks remained when the main task had ended.
    Leaked,
}

/// The state of one task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskReport {
    /// The task's name.
    pub name: String,
    /// What the task waits for.
    pub waits: String,
    /// Virtual time at which the wait began.
    pub since: Instant,
    /// Ranks of the locks that the task holds, in the order in which it took them (builds with debug assertions).
    pub holds: Vec<String>,
}

/// A failed run. Displayed as a report of several lines.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The run's seed.
    pub seed: u64,
    /// The virtual time.
    pub at: Instant,
    /// The cause.
    pub kind: FailureKind,
    /// Every task that had not ended.
    pub tasks: Vec<TaskReport>,
}

impl std::error::Error for Failure {}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panic { task, message } => write!(f, "task '{task}' panicked: {message}"),
            Self::Deadlock => write!(f, "deadlock: no task can run and no timer is set"),
            Self::Stall { task } => {
                write!(f, "stall: task '{task}' waits longer than the stall bound")
            }
            Self::Livelock => write!(f, "livelock: tasks run while no time passes"),
            Self::TimeLimit => write!(f, "the virtual time is over"),
            Self::Leaked => write!(f, "tasks remain after the end of the main task"),
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
