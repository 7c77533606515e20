//! The states that a run passed through, and what each operation changed and made durable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use steadfs_base::InodeNo;
use steadfs_vfs::{FallocMode, FsError, Result};
use thiserror::Error;

use super::roll_forward::{Chain, chains, windows};
use crate::model::{PAGE, State};
use crate::run::{Marker, Recording, Runner, Step, Value, run};
use crate::{Format, ModelFs, Op, Program, Recovery, Span, Target, TreePath};

/// An operation whose result differs from the model's.
#[derive(Clone, Debug, Error)]
#[error("{who}, operation {index} '{op}': expected {expected:?}, got {actual:?}")]
pub struct Divergence {
    /// `setup` or `task N`.
    pub who: String,
    /// Number of the operation, from 0.
    pub index: usize,
    /// The operation.
    pub op: Op,
    /// The model's result.
    pub expected: Result<Value>,
    /// The file system's result.
    pub actual: Result<Value>,
}

/// A change of a file's content or size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Bytes were written.
    Wrote(Span),
    /// The file was truncated to this size.
    Cut(u64),
    /// A range was punched: its blocks are free once that is committed.
    Punched(Span),
    /// A range was zeroed; it keeps its blocks.
    Zeroed(Span),
    /// Everything from here on was moved.
    Shifted(u64),
    /// Only the size was set.
    Sized,
}

/// What an operation has made durable when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ack {
    /// One inode, with everything its metadata needs.
    Inode(InodeNo),
    /// One inode's data.
    Data(InodeNo),
    /// Everything.
    All,
}

/// An executed operation and its effects.
#[derive(Clone, Debug)]
pub(super) struct OpRecord {
    pub(super) op: Op,
    pub(super) started: u64,
    pub(super) ended: u64,
    pub(super) ack: Option<Ack>,
    /// Inodes whose metadata it has certainly changed when it returns.
    pub(super) changed: BTreeSet<InodeNo>,
    /// The files whose content or size it changed, and how.
    pub(super) events: Vec<(InodeNo, Event)>,
    /// Files that it extended or mapped: their metadata changes when the data is written back.
    pub(super) grown: BTreeSet<InodeNo>,
    /// The inode that it created.
    pub(super) made: Option<InodeNo>,
    /// The inode that it was to make durable, whether it succeeded or not.
    pub(super) synced: Option<InodeNo>,
}

/// A task's states: `states[k]` is after `k` operations; `records[k]` leads from it to the next.
#[derive(Clone, Debug)]
pub(super) struct TaskHistory {
    pub(super) states: Vec<State>,
    /// The task's own paths in each state.
    pub(super) paths: Vec<BTreeMap<TreePath, InodeNo>>,
    pub(super) records: Vec<OpRecord>,
    /// Every path that this task created, changed or removed.
    pub(super) own: BTreeSet<TreePath>,
    /// For each operation that failed half-way, the states with its other outcome (up to a later result that
    /// contradicts them): single sectors may be from there.
    pub(super) others: Vec<Vec<State>>,
    /// The files that may be rolled forward, with [`Recovery::RollForward`].
    pub(super) chains: Vec<Chain>,
}

/// What happened on a volume: the state it started from and the histories of its tasks.
#[derive(Clone, Debug)]
pub struct History {
    pub(super) format: Format,
    pub(super) base: State,
    pub(super) base_paths: BTreeMap<TreePath, InodeNo>,
    pub(super) tasks: Vec<TaskHistory>,
    /// From this marker on an observer reads files: access times are unknown.
    pub(super) observed_from: u64,
    /// The device failed.
    pub(super) failing: bool,
}

impl History {
    /// Replays a run in the model. `base` is the volume's content before the setup.
    ///
    /// # Errors
    /// The first operation whose result differs from the model's.
    ///
    /// # Panics
    /// If two tasks change the same path: the result would depend on their order, which is unknown.
    pub fn of(
        base: &State,
        recording: &Recording,
        format: Format,
    ) -> Result<Self, Box<Divergence>> {
        let base = after_setup(base, recording, format)?;
        let mut tasks = Vec::new();
        for (number, steps) in recording.tasks.iter().enumerate() {
            let outcomes = vec![OpOutcome::AsReported; steps.len()];
            tasks.push(replay(&who(number), &base, steps, &outcomes, format)?);
        }
        Ok(Self::assemble(base, tasks, format))
    }

    /// Combines the histories of tasks that all start from `base`.
    pub(super) fn assemble(base: State, mut tasks: Vec<TaskHistory>, format: Format) -> Self {
        let base_paths = base.flatten();
        let mut owned = BTreeSet::new();
        let windows = windows(&tasks);
        for task in &mut tasks {
            task.claim(&base, &base_paths, &windows, format.recovery);
            for path in &task.own {
                assert!(owned.insert(path.clone()), "two tasks change {path}");
            }
        }
        Self {
            format,
            base,
            base_paths,
            tasks,
            observed_from: u64::MAX,
            failing: false,
        }
    }

    /// Records that from this marker on an observer which is no task of this history reads files, so that access times
    /// after later crashes are unknown.
    pub fn observed_from(&mut self, mark: u64) {
        self.observed_from = mark;
    }

    /// Replays a program in the model, one task after the other, with a marker before and after each operation: for
    /// tests.
    ///
    /// # Panics
    /// If two tasks change the same path.
    pub fn from_model(program: &Program, format: Format) -> Self {
        let base = State::new();
        let fs = ModelFs::new(base.clone(), format);
        let clock = AtomicU64::new(0);
        let marker: Marker = Arc::new(move || clock.fetch_add(1, Ordering::Relaxed));
        let setup = run(&fs, &program.setup, &marker);
        let ready = marker();
        let tasks = program
            .tasks
            .iter()
            .map(|ops| run(&fs, ops, &marker))
            .collect();
        let recording = Recording {
            setup,
            ready,
            tasks,
        };
        Self::of(&base, &recording, format).expect("the model agrees with itself")
    }

    /// Number of names at the start, the root included.
    pub fn base_names(&self) -> usize {
        self.base_paths.len()
    }

    /// The final state of a single task.
    pub fn last(&self) -> &State {
        match self.tasks.as_slice() {
            [] => &self.base,
            [only] => only.states.last().expect("a history has a first state"),
            _ => panic!("several tasks have no common last state"),
        }
    }
}

/// What an operation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpOutcome {
    /// What its result reports.
    AsReported,
    /// It failed, but had its full effect.
    Done,
    /// It failed, and had no effect.
    NotDone,
    /// It wrote only the first bytes, this number of them.
    Short(u64),
    /// It failed, and the part within the file was zeroed; the file did not grow.
    Inside,
}

/// The name of a task in reports.
pub(super) fn who(task: usize) -> String {
    format!("task {task}")
}

/// The state that the setup leads to.
pub(super) fn after_setup(
    base: &State,
    recording: &Recording,
    format: Format,
) -> Result<State, Box<Divergence>> {
    let outcomes = vec![OpOutcome::AsReported; recording.setup.len()];
    let mut setup = replay("setup", base, &recording.setup, &outcomes, format)?;
    Ok(setup.states.pop().expect("a history has a first state"))
}

/// Runs a task's steps in the model: all of them, or as many as there are outcomes.
pub(super) fn replay(
    who: &str,
    base: &State,
    steps: &[Step],
    outcomes: &[OpOutcome],
    format: Format,
) -> Result<TaskHistory, Box<Divergence>> {
    let fs = ModelFs::new(base.clone(), format);
    let mut runner = Runner::new(&fs);
    let mut states = vec![base.clone()];
    let mut records = Vec::new();
    for ((index, step), outcome) in steps.iter().enumerate().zip(outcomes) {
        let target = main_target(&step.op).and_then(|target| runner.resolve(target).ok());
        let expected = match (&step.op, outcome) {
            (Op::Sleep { .. }, _) => Ok(Value::None),
            (op, OpOutcome::NotDone) => {
                if let Some(read) = reading_of(op) {
                    let _ = runner.step(&read);
                }
                step.result.clone()
            }
            (op, OpOutcome::Short(bytes)) => runner.step(&shortened(op, *bytes)),
            (op, OpOutcome::Inside) => runner.step(&kept_size(op)),
            (op, OpOutcome::AsReported | OpOutcome::Done) => runner.step(op),
        };
        if !matches!(outcome, OpOutcome::Done | OpOutcome::Inside)
            && !agree(&expected, &step.result)
        {
            return Err(Box::new(Divergence {
                who: who.to_owned(),
                index,
                op: step.op.clone(),
                expected,
                actual: step.result.clone(),
            }));
        }
        let after = fs.state();
        let before = states.last().expect("a history has a first state");
        records.push(OpRecord::of(
            step,
            target,
            &expected,
            (before, &after),
            format,
        ));
        states.push(after);
    }
    let paths = vec![BTreeMap::new(); states.len()];
    Ok(TaskHistory {
        states,
        paths,
        records,
        own: BTreeSet::new(),
        others: Vec::new(),
        chains: Vec::new(),
    })
}

/// The operation that does only the first `bytes` of a write or copy.
fn shortened(op: &Op, bytes: u64) -> Op {
    let mut op = op.clone();
    if let Op::Write { span, .. } | Op::Copy { span, .. } = &mut op {
        span.len = bytes;
    }
    op
}

/// The read that an operation may have done before it failed, which changes the access time.
fn reading_of(op: &Op) -> Option<Op> {
    match op {
        Op::Copy { from, span, .. } => Some(Op::Read {
            file: from.clone(),
            span: *span,
        }),
        _ => None,
    }
}

/// The same zeroing of a file that keeps its size.
fn kept_size(op: &Op) -> Op {
    let mut op = op.clone();
    if let Op::Fallocate {
        mode: FallocMode::ZeroRange { keep_size },
        ..
    } = &mut op
    {
        *keep_size = true;
    }
    op
}

fn agree(expected: &Result<Value>, actual: &Result<Value>) -> bool {
    match (expected, actual) {
        (Ok(Value::Names(due)), Ok(Value::Names(got))) => {
            // An entry may lack its type.
            due.keys().eq(got.keys())
                && due
                    .iter()
                    .zip(got)
                    .all(|((_, due), (_, got))| got.is_none() || due == got)
        }
        (Ok(expected), Ok(actual)) => expected == actual,
        (Err(expected), Err(actual)) => expected.errno() == actual.errno(),
        _ => false,
    }
}

/// The existing file that an operation changes or reads.
fn main_target(op: &Op) -> Option<&Target> {
    match op {
        Op::Write { file, .. }
        | Op::Copy { to: file, .. }
        | Op::Truncate { file, .. }
        | Op::Fallocate { file, .. }
        | Op::Fsync { file }
        | Op::Fdatasync { file } => Some(file),
        _ => None,
    }
}

impl OpRecord {
    fn of(
        step: &Step,
        target: Option<InodeNo>,
        result: &Result<Value, FsError>,
        (before, after): (&State, &State),
        format: Format,
    ) -> Self {
        let mut record = Self {
            op: step.op.clone(),
            started: step.started,
            ended: step.ended,
            ack: None,
            changed: BTreeSet::new(),
            events: Vec::new(),
            grown: BTreeSet::new(),
            made: None,
            synced: target.filter(|_| matches!(step.op, Op::Fsync { .. } | Op::Fdatasync { .. })),
        };
        let Ok(value) = result else {
            return record;
        };
        record.record_changes(before, after);
        if step.op == Op::Sync {
            record.ack = Some(Ack::All);
        }
        let Some(ino) = target else {
            return record;
        };
        match &step.op {
            Op::Fsync { .. } => record.ack = Some(Ack::Inode(ino)),
            // A directory's names are its data.
            Op::Fdatasync { .. } if before.node(ino).is_ok_and(|node| node.is_dir()) => {
                record.ack = Some(Ack::Inode(ino));
            }
            Op::Fdatasync { .. } => record.ack = Some(Ack::Data(ino)),
            Op::Write { span, .. } => {
                let Value::Count(n) = value else {
                    panic!("a write returns a count");
                };
                record.wrote(ino, Span::new(span.offset, *n), (before, after), format);
            }
            Op::Copy { offset, .. } => {
                let Value::Count(n) = value else {
                    panic!("a copy returns a count");
                };
                record.wrote(ino, Span::new(*offset, *n), (before, after), format);
            }
            Op::Truncate { .. } | Op::Fallocate { .. } => record.reshaped(ino, before, after),
            _ => {}
        }
        record
    }

    /// The files whose content or size it changed.
    pub(super) fn reshapes(&self) -> impl Iterator<Item = InodeNo> {
        self.events.iter().map(|(ino, _)| *ino)
    }

    /// Records the effect of a truncate or fallocate.
    fn reshaped(&mut self, ino: InodeNo, before: &State, after: &State) {
        let (Ok(old), Ok(new)) = (before.node(ino), after.node(ino)) else {
            return;
        };
        let event = match &self.op {
            Op::Truncate { size, .. } if *size < old.size => Some(Event::Cut(*size)),
            Op::Fallocate { mode, span, .. } => match mode {
                FallocMode::Allocate { .. } => None,
                FallocMode::PunchHole => Some(Event::Punched(*span)),
                FallocMode::ZeroRange { .. } => Some(Event::Zeroed(*span)),
                FallocMode::CollapseRange | FallocMode::InsertRange => {
                    Some(Event::Shifted(span.offset))
                }
            },
            _ => None,
        };
        // An operation that changed nothing may be absent from the journal.
        if old.content != new.content || old.size != new.size {
            self.events.extend(event.map(|event| (ino, event)));
        }
        if old.size != new.size {
            self.events.push((ino, Event::Sized));
        }
    }

    /// Records the inodes in which the states differ, written content apart.
    fn record_changes(&mut self, before: &State, after: &State) {
        for (ino, node) in after.nodes() {
            match before.node(ino) {
                Ok(old) if old.changed == node.changed => {}
                Ok(_) => {
                    self.changed.insert(ino);
                }
                Err(_) => {
                    self.changed.insert(ino);
                    // The only inode that a rename creates is a whiteout, which cannot be open.
                    self.made = Some(ino);
                }
            }
        }
    }

    fn wrote(
        &mut self,
        ino: InodeNo,
        span: Span,
        (before, after): (&State, &State),
        format: Format,
    ) {
        let (Ok(old), Ok(new)) = (before.node(ino), after.node(ino)) else {
            return;
        };
        if span.len == 0 {
            return;
        }
        self.events.push((ino, Event::Wrote(span)));
        if new.size > old.size || !unmapped_blocks(&old.content, span, format).is_empty() {
            self.grown.insert(ino);
        }
    }
}

/// The pages that hold any byte of the blocks of `span`.
pub(super) fn pages_of_blocks(span: Span, format: Format) -> std::ops::Range<u64> {
    let block = u64::from(format.block_size);
    let first = span.offset / block * block;
    let end = span.end().div_ceil(block).saturating_mul(block);
    first / PAGE as u64..end.div_ceil(PAGE as u64)
}

/// Offsets of the blocks of `span` that were certainly not mapped: nothing near them was ever written.
fn unmapped_blocks(content: &crate::model::Content, span: Span, format: Format) -> Vec<u64> {
    let block = u64::from(format.block_size);
    let first = span.offset / block;
    let last = span.end().div_ceil(block);
    (first..last)
        .map(|index| index * block)
        .filter(|offset| {
            pages_of_blocks(Span::new(*offset, block), format)
                .all(|page| content.page(page).is_none())
        })
        .collect()
}

impl TaskHistory {
    /// Determines this task's paths: those that in any of its states differ from the base state.
    fn claim(
        &mut self,
        base: &State,
        base_paths: &BTreeMap<TreePath, InodeNo>,
        windows: &[(u64, u64)],
        recovery: Recovery,
    ) {
        let all: Vec<_> = self.states.iter().map(State::flatten).collect();
        if let Recovery::RollForward { strict } = recovery {
            self.chains = chains(self, &all, windows, strict);
            let names = self.chains.iter().flat_map(|chain| &chain.places);
            self.own.extend(names.filter_map(Clone::clone));
        }
        let others = self.others.iter().flatten();
        let of_others: Vec<_> = others.map(|state| (state, state.flatten())).collect();
        let of_others = of_others.iter().map(|(state, paths)| (*state, paths));
        for (state, paths) in self.states.iter().zip(&all).chain(of_others) {
            for (path, ino) in paths {
                if base_paths.get(path) != Some(ino) || !same(base, state, *ino) {
                    self.own.insert(path.clone());
                }
            }
            let gone = base_paths.keys().filter(|path| !paths.contains_key(path));
            self.own.extend(gone.cloned());
        }
        self.paths = all
            .into_iter()
            .map(|paths| {
                paths
                    .into_iter()
                    .filter(|(path, _)| self.own.contains(path))
                    .collect()
            })
            .collect();
    }
}

/// Whether an inode looks the same in both states, a directory's entries apart.
fn same(a: &State, b: &State, ino: InodeNo) -> bool {
    match (a.node(ino), b.node(ino)) {
        (Ok(a), Ok(b)) => {
            Arc::ptr_eq(a, b) || a.same_attributes(b) && a.size == b.size && a.content == b.content
        }
        _ => false,
    }
}
