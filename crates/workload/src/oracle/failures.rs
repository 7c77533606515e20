//! Histories of runs in which operations failed for reasons that the model does not know: a device
//! that answers with errors, a full volume.

use steadfs_vfs::{FallocMode, FsError};

use super::history::{Divergence, History, OpOutcome, TaskHistory, after_setup, replay, who};
use super::verdict::{Explanation, Violation};
use crate::run::{Recording, Step, Value};
use crate::{Format, Observed, Op, State};

/// Ways of one task, and of all together, that are followed: with more failures than that nothing can be
/// said.
const WAYS_OF_TASK: usize = 64;
const WAYS: usize = 512;
/// Attempts to find the ways of one task.
const TRIES: usize = 2048;

/// Which failures are no mistake of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tolerance {
    /// None.
    Nothing,
    /// The device failed. Any operation may return an I/O error; it is then done or it is not, or, if
    /// it changes content, some sectors are changed and some are not. From when the volume stops,
    /// nothing is done any more.
    DeviceErrors,
    /// The volume is full. An operation that needs space may fail, and is then not done, or do a part
    /// and say so; making things durable never fails.
    NoSpace,
}

impl Tolerance {
    /// What may have become of an operation that returned `result`, the likelier first.
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

    /// The bytes that a write or copy did, if those are fewer than it was asked for.
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

/// Whether the volume stopped in a run, and who has seen that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// It went on to the end.
    Never,
    /// A task that met it was told.
    Told,
    /// A task may have read from it before it was told: something in the background had stopped it.
    Unseen,
}

/// Whether an operation found the volume stopped.
fn has_stopped(step: &Step) -> bool {
    step.result.as_ref().is_err_and(FsError::is_stop)
}

fn has_failed_to_sync(step: &Step) -> bool {
    step.op.is_sync() && matches!(step.result, Err(FsError::Io(_)))
}

/// Whether an operation failed for a reason of the names' and files', not the device's.
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

/// For each operation that failed and may have stopped half-way: the states had it come out otherwise,
/// up to where a later result contradicts them that is not what a read saw.
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
                        // It saw what is half of one and half of the other, and changed nothing.
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

/// What else may in part have become of an operation that failed.
fn other_outcomes(outcome: OpOutcome, op: &Op) -> &'static [OpOutcome] {
    match outcome {
        _ if !can_stop_half_way(op) => &[],
        OpOutcome::Done => &[OpOutcome::NotDone],
        OpOutcome::NotDone if zeroes_and_grows(op) => &[OpOutcome::Done, OpOutcome::Inside],
        OpOutcome::NotDone => &[OpOutcome::Done],
        OpOutcome::AsReported | OpOutcome::Short(_) | OpOutcome::Inside => &[],
    }
}

/// Whether an operation first zeroes what is there, and then lets the file grow.
fn zeroes_and_grows(op: &Op) -> bool {
    let zeroes = FallocMode::ZeroRange { keep_size: false };
    matches!(op, Op::Fallocate { mode, .. } if *mode == zeroes)
}

/// Whether an operation only looks at content.
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

/// Everything that can have happened in a run: one of these histories.
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
    /// If there is none: the operation that none explains.
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
        let mut ways: Vec<Vec<TaskHistory>> = vec![Vec::new()];
        for (number, steps) in recording.tasks.iter().enumerate() {
            let ways_if = |stop| ways_of_task(&who(number), &base, steps, format, tolerance, stop);
            let of_task = ways_if(stop).or_else(|wrong| match stop {
                Stop::Told => ways_if(Stop::Unseen),
                Stop::Never | Stop::Unseen => Err(wrong),
            })?;
            let Some(of_task) = of_task.filter(|of_task| ways.len() * of_task.len() <= WAYS) else {
                return Ok(None);
            };
            ways = ways
                .iter()
                .flat_map(|way| {
                    let longer =
                        |task: &TaskHistory| [way.as_slice(), std::slice::from_ref(task)].concat();
                    of_task.iter().map(longer).collect::<Vec<_>>()
                })
                .collect();
        }
        let all = ways.into_iter();
        let all = all.map(|tasks| History {
            failing: tolerance == Tolerance::DeviceErrors,
            ..History::assemble(base.clone(), tasks, format)
        });
        Ok(Some(Self(all.collect())))
    }

    /// As [`History::observed_at`].
    pub fn observed_at(&mut self, mark: u64) {
        for history in &mut self.0 {
            history.observed_at(mark);
        }
    }

    /// As [`History::check`]: right if it is right for one of the histories.
    ///
    /// # Errors
    /// What is wrong with the likeliest.
    pub fn check(&self, found: &Observed, mark: u64) -> Result<Explanation, Box<Violation>> {
        self.any(|history| history.check(found, mark))
    }

    /// As [`History::check_live`]: right if it is right for one of the histories.
    ///
    /// # Errors
    /// What is wrong with the likeliest.
    pub fn check_live(&self, found: &Observed) -> Result<(), Box<Violation>> {
        self.any(|history| history.check_live(found))
    }

    fn any<T>(
        &self,
        check: impl Fn(&History) -> Result<T, Box<Violation>>,
    ) -> Result<T, Box<Violation>> {
        let (first, others) = self.0.split_first().expect("something happened");
        check(first).or_else(|violation| {
            let mut right = others.iter().filter_map(|history| check(history).ok());
            right.next().ok_or(violation)
        })
    }
}

/// Every way through a task's failures that explains its later results; `None` if there are too many.
fn ways_of_task(
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
            // The failure of a sync may have been what stopped it.
            let stopped =
                |step: &Step| has_stopped(step) || stop != Stop::Never && has_failed_to_sync(step);
            let may: &[OpOutcome] =
                match tolerance == Tolerance::DeviceErrors && before.iter().any(stopped) {
                    // It may have been opened before that, to be written to.
                    true if is_open(step) => &[OpOutcome::NotDone, OpOutcome::AsReported],
                    // What a volume shows that has stopped was never promised.
                    true if is_pure(&step.op) || is_refused(step) => &[OpOutcome::NotDone],
                    _ => tolerance.outcomes(step),
                };
            let (first, others) = may.split_first().expect("every operation has a outcome");
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
            // What a volume shows that has stopped was never promised.
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
        if found.len() > WAYS_OF_TASK || tries > TRIES {
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
