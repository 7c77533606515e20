//! What the oracle says.

use std::fmt;

use crate::TreePath;

/// Where a right answer was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Each task's moment: how many of its operations are there.
    pub moments: Vec<usize>,
    /// Files that are not as they were at these moments, but as they were made durable later.
    pub rolled: usize,
}

/// What is there but may not be, or is not there but must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A name that nobody ever made, or that is gone though nobody touched it, or what it names has
    /// changed though nobody changed it.
    Untouched {
        /// The name.
        path: TreePath,
        /// What is wrong with it.
        what: String,
    },
    /// What one task left is none of the states it passed through.
    NoMoment {
        /// Which task.
        task: usize,
        /// For each moment that would be allowed, the nearest last, why it is not this one.
        why: Vec<(usize, String)>,
    },
    /// Each task's part is right by itself, but together they never were.
    NoCommonMoment {
        /// Moments that each task's part could be.
        candidates: Vec<Vec<usize>>,
        /// Of each task, why it is at no other moment.
        why: Vec<Vec<(usize, String)>>,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Untouched { path, what } => write!(f, "{path}: {what}"),
            Self::NoMoment { task, why } => {
                write!(f, "task {task} shows none of the states it passed through:")?;
                for (moment, reason) in why {
                    write!(f, "\n  not that after {moment} operations: {reason}")?;
                }
                Ok(())
            }
            Self::NoCommonMoment { candidates, why } => {
                write!(f, "the tasks' states never were together: {candidates:?}")?;
                for (task, why) in why.iter().enumerate() {
                    for (moment, reason) in why {
                        let not = format!("not that after {moment} operations");
                        write!(f, "\n  task {task}: {not}: {reason}")?;
                    }
                }
                Ok(())
            }
        }
    }
}
