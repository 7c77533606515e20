//! Histories of runs in which operations failed for reasons that the model does not know: device errors, or a full
//! volume.

use steadfs_vfs::{FallocMode, FsError};

use super::history::{Divergence, History, OpOutcome, TaskHistory, after_setup, replay, who};
use super::verdict::{Explanation, Violation};
use crate::run::{Recording, Step, Value};
use crate::{Format, Observed, Op, State};

/// Maximum number of histories that are followed for one task, and for all tasks together: with more failures there is
/// no verdict.
const HISTORIES_OF_TASK: usize = 64;
const HISTORIES: usize = 512;
/// Maximum number of attempts to find the histories of one task.
const TRIES: usize = 2048;

/// The failures that are not the file system's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tolerance {
    /// No failure.
    Nothing,
    /// The device failed. Any operation may return an I/O error; it is then done or not done, or, if it changes
    /// content, some sectors are changed and some are not. Once the volume stops, nothing more is done.
    DeviceErrors,
    /// The volume is full. An operation that needs space may fail without effect, or do a part and report it; an
    /// operation that makes data durable never fails.
    NoSpace,
}

impl Tolerance {
    /// The possible outcomes of an operation with this result, the likelier first.
    fn outcomes(self, step: &Step) -> &'static [OpOutcome] {
        match (self, &step.result) {
            (Self::DeviceErrors, Err(FsError::Io(_))) if is_pure(&step.op) => &[OpOutcome::NotDone],
            (Self::DeviceErrors, Err(FsError::Io(_))) => &[OpOutcome::NotDone, OpOutcome::Done],
            (Self::DeviceErrors, Err(FsError::ReadOnly)) => &[OpOutcome::NotDone],
            (Self::DeviceErrors, Err(error)) if error.is_stop() => &[OpOutcome::NotDone],
            (Self::NoSpace, Err(FsError::NoSpace)) if !step.op.is_sync() => &[OpOutcome::NotDone],
            _ => &[OpOutcome::AsReported],
        }
    }

    /// The number of bytes that a write or copy did, if it was short.
    fn short(self, step: &Step) -> Option<u64> {
        let (Op::Write { span, .. } | Op::Copy { span, .. }) = &step.op else {
            return None;
        };
        match step.result {
            Ok(Value::Count(n)) if self != Self::Nothing && n < span.len => Some(n),
            _ => None,
        }
    }
}

/// Whether the volume stopped in a run, and whether a task noticed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The volume did not stop.
    Never,
    /// The task that met it got an error.
    Told,
    /// A task may have read from the volume before it got an error: a background task had stopped it.
    Unseen,
}

/// Whether an operation found the volume stopped.
fn has_stopped(step: &Step) -> bool {
    step.result.as_ref().is_err_and(FsError::is_stop)
}

fn has_failed_to_sync(step: &Step) -> bool {
    step.op.is_sync() && matches!(step.result, Err(FsError::Io(_)))
}

/// Whether an operation failed for a reason in names or files, not in the device.
fn is_refused(step: &Step) -> bool {
    matches!(&step.result, Err(error) if !matches!(error, FsError::Io(_)))
}

/// Whether an operation has opened a file.
fn is_open(step: &Step) -> bool {
    matches!(step.op, Op::Open { .. }) && step.result.is_ok()
}

/// Whether an operation may have changed a part of a file's content when it fails.
fn can_stop_half_way(op: &Op) -> bool {
    matches!(
        op,
        Op::Write { .. } | Op::Copy { .. } | Op::Truncate { .. } | Op::Fallocate { .. }
    )
}

/// For each operation that failed and may have stopped half-way: the states with its other outcome, up to a later
/// result that contradicts them (results of reads excepted).
fn others(
    who: &str,
    base: &State,
    steps: &[Step],
    outcomes: &[OpOutcome],
    format: Format,
) -> Vec<Vec<State>> {
    let mut all = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        for outcome in other_outcomes(outcomes[index], &step.op) {
            let mut outcomes = outcomes.to_vec();
            outcomes[index] = *outcome;
            let states = loop {
                match replay(who, base, steps, &outcomes, format) {
                    Ok(task) => break task.states,
                    Err(wrong) => match &steps[wrong.index].op {
                        // The read saw a mix of both outcomes, and changed nothing.
                        Op::Read { .. } => outcomes[wrong.index] = OpOutcome::NotDone,
                        _ => outcomes.truncate(wrong.index),
                    },
                }
            };
            all.push(states);
        }
    }
    all
}

/// The other partial effects that a failed operation may have had.
fn other_outcomes(outcome: OpOutcome, op: &Op) -> &'static [OpOutcome] {
    match outcome {
        _ if !can_stop_half_way(op) => &[],
        OpOutcome::Done => &[OpOutcome::NotDone],
        OpOutcome::NotDone if zeroes_and_grows(op) => &[OpOutcome::Done, OpOutcome::Inside],
        OpOutcome::NotDone => &[OpOutcome::Done],
        OpOutcome::AsReported | OpOutcome::Short(_) | OpOutcome::Inside => &[],
    }
}

/// Whether an operation first zeroes existing bytes and then extends the file.
fn zeroes_and_grows(op: &Op) -> bool {
    let zeroes = FallocMode::ZeroRange { keep_size: false };
    matches!(op, Op::Fallocate { mode, .. } if *mode == zeroes)
}

/// Whether an operation only reads content.
fn is_read(op: &Op) -> bool {
    matches!(op, Op::Read { .. })
}

/// Whether an operation changes no name, content or attribute.
fn is_pure(op: &Op) -> bool {
    op.is_sync()
        || matches!(
            op,
            Op::Read { .. }
                | Op::Stat { .. }
                | Op::List { .. }
                | Op::GetXattr { .. }
                | Op::Readlink { .. }
                | Op::Open { .. }
                | Op::Close { .. }
                | Op::Sleep { .. }
        )
}

/// All histories that explain a run; one of them happened.
#[derive(Clone, Debug)]
pub struct Histories(Vec<History>);

impl From<History> for Histories {
    fn from(history: History) -> Self {
        Self(vec![history])
    }
}

impl Histories {
    /// All histories that explain the results of a run; `None` if there are too many.
    ///
    /// # Errors
    /// The operation whose result no history explains.
    ///
    /// # Panics
    /// As [`History::of`].
    pub fn of(
        base: &State,
        recording: &Recording,
        format: Format,
        tolerance: Tolerance,
    ) -> Result<Option<Self>, Box<Divergence>> {
        let base = after_setup(base, recording, format)?;
        let stop = match recording.tasks.iter().flatten().any(has_stopped) {
            true => Stop::Told,
            false => Stop::Never,
        };
        let mut combinations: Vec<Vec<TaskHistory>> = vec![Vec::new()];
        for (number, steps) in recording.tasks.iter().enumerate() {
            let ways_if =
                |stop| histories_of_task(&who(number), &base, steps, format, tolerance, stop);
            let of_task = ways_if(stop).or_else(|wrong| match stop {
                Stop::Told => ways_if(Stop::Unseen),
                Stop::Never | Stop::Unseen => Err(wrong),
            })?;
            let Some(of_task) =
                of_task.filter(|of_task| combinations.len() * of_task.len() <= HISTORIES)
            else {
                return Ok(None);
            };
            combinations = combinations
                .iter()
                .flat_map(|way| {
                    let longer =
                        |task: &TaskHistory| [way.as_slice(), std::slice::from_ref(task)].concat();
                    of_task.iter().map(longer).collect::<Vec<_>>()
                })
                .collect();
        }
        let all = combinations.into_iter();
        let all = all.map(|tasks| History {
            failing: tolerance == Tolerance::DeviceErrors,
            ..History::assemble(base.clone(), tasks, format)
        });
        Ok(Some(Self(all.collect())))
    }

    /// As [`History::observed_from`].
    pub fn observed_from(&mut self, mark: u64) {
        for history in &mut self.0 {
            history.observed_from(mark);
        }
    }

    /// As [`History::check`]: accepts a state that one of the histories accepts.
    ///
    /// # Errors
    /// The violation of the likeliest history.
    pub fn check(&self, found: &Observed, mark: u64) -> Result<Explanation, Box<Violation>> {
        self.any(|history| history.check(found, mark))
    }

    /// As [`History::check_live`]: accepts a state that one of the histories accepts.
    ///
    /// # Errors
    /// The violation of the likeliest history.
    pub fn check_live(&self, found: &Observed) -> Result<(), Box<Violation>> {
        self.any(|history| history.check_live(found))
    }

    fn any<T>(
        &self,
        check: impl Fn(&History) -> Result<T, Box<Violation>>,
    ) -> Result<T, Box<Violation>> {
        let (first, others) = self.0.split_first().expect("at least one history");
        check(first).or_else(|violation| {
            let mut right = others.iter().filter_map(|history| check(history).ok());
            right.next().ok_or(violation)
        })
    }
}

/// All histories of a task's failures that explain its later results; `None` if there are too many.
fn histories_of_task(
    who: &str,
    base: &State,
    steps: &[Step],
    format: Format,
    tolerance: Tolerance,
    stop: Stop,
) -> Result<Option<Vec<TaskHistory>>, Box<Divergence>> {
    let mut tries = 0;
    let mut found = Vec::new();
    let mut unexplained: Option<Box<Divergence>> = None;
    let mut todo: Vec<Vec<OpOutcome>> = vec![Vec::new()];
    while let Some(mut outcomes) = todo.pop() {
        while let Some(step) = steps.get(outcomes.len()) {
            if let Some(bytes) = tolerance.short(step) {
                outcomes.push(OpOutcome::Short(bytes));
                continue;
            }
            let before = &steps[..outcomes.len()];
            // A failed sync may be what stopped the volume.
            let stopped =
                |step: &Step| has_stopped(step) || stop != Stop::Never && has_failed_to_sync(step);
            let may: &[OpOutcome] =
                match tolerance == Tolerance::DeviceErrors && before.iter().any(stopped) {
                    // The file may have been opened for writing before the volume stopped.
                    true if is_open(step) => &[OpOutcome::NotDone, OpOutcome::AsReported],
                    // The state that a stopped volume shows is not acknowledged.
                    true if is_pure(&step.op) || is_refused(step) => &[OpOutcome::NotDone],
                    _ => tolerance.outcomes(step),
                };
            let (first, others) = may.split_first().expect("every operation has an outcome");
            todo.extend(
                others
                    .iter()
                    .map(|outcome| [&outcomes[..], &[*outcome]].concat()),
            );
            outcomes.push(*first);
        }
        match replay(who, base, steps, &outcomes, format) {
            Ok(mut task) => {
                task.others = others(who, base, steps, &outcomes, format);
                found.push(task);
            }
            // The state that a stopped volume shows is not acknowledged.
            Err(wrong) if stop == Stop::Unseen && is_read(&steps[wrong.index].op) => {
                outcomes[wrong.index] = OpOutcome::NotDone;
                todo.push(outcomes);
            }
            Err(wrong) => {
                let further = |before: &Divergence| before.index < wrong.index;
                if unexplained.as_deref().is_none_or(further) {
                    unexplained = Some(wrong);
                }
            }
        }
        tries += 1;
        if found.len() > HISTORIES_OF_TASK || tries > TRIES {
            return Ok(None);
        }
    }
    match (found.is_empty(), unexplained) {
        (true, Some(wrong)) => Err(wrong),
        _ => Ok(Some(found)),
    }
}

#[cfg(test)]
mod tests;
