//! The oracle's verdict.

use std::fmt;

use crate::TreePath;

/// A history that explains the state found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Per task: the moment found, as a number of operations.
    pub moments: Vec<usize>,
    /// Number of files that are not as at these moments, but were rolled forward to a later one.
    pub rolled: usize,
}

/// A state that the history does not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A name that no task created, or a name or file that differs although no task changed it.
    Untouched {
        /// The path.
        path: TreePath,
        /// What differs.
        what: String,
    },
    /// The state of one task's paths is none that the task passed through.
    NoMoment {
        /// The task.
        task: usize,
        /// For each moment that would be allowed, the nearest last, why the state is not that moment's.
        why: Vec<(usize, String)>,
    },
    /// Each task's state is allowed by itself, but not together with the others'.
    NoCommonMoment {
        /// Per task: the moments that fit.
        candidates: Vec<Vec<usize>>,
        /// Per task: why no other moment fits.
        why: Vec<Vec<(usize, String)>>,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Untouched { path, what } => write!(f, "{path}: {what}"),
            Self::NoMoment { task, why } => {
                write!(
                    f,
                    "task {task} is in none of the states that it passed through:"
                )?;
                for (moment, reason) in why {
                    write!(f, "\n  not the state after {moment} operations: {reason}")?;
                }
                Ok(())
            }
            Self::NoCommonMoment { candidates, why } => {
                write!(
                    f,
                    "the tasks' states never existed together: {candidates:?}"
                )?;
                for (task, why) in why.iter().enumerate() {
                    for (moment, reason) in why {
                        let not = format!("not the state after {moment} operations");
                        write!(f, "\n  task {task}: {not}: {reason}")?;
                    }
                }
                Ok(())
            }
        }
    }
}
