//! The scheduler's state: tasks, timers, queues. Decides; switches nothing.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use corosensei::{Coroutine, Yielder};
use steadfs_base::FixedMap;

use super::Config;
use super::failure::{Failure, FailureKind, TaskReport};
use super::lock_queue::{LockQueue, Want};
use super::trace::Trace;
use crate::gate::{Gate, held};
use crate::{Instant, Random, Rank, inherit};

/// A task's place in the table; used again after its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TaskId(u32);

impl TaskId {
    /// The closure given to `run`.
    pub(crate) const MAIN: TaskId = TaskId(0);

    fn index(self) -> usize {
        self.0 as usize
    }
}

/// Switches at one virtual instant that can only be an endless loop.
const LIVELOCK: u64 = 10_000_000;
/// Yields in a row, by tasks that do nothing else, after which time passes.
const SPIN: u32 = 256;
/// How far the clock may run ahead of tasks that could still run: what their code "took".
const CODE_TIME: u64 = 1_000_000;

pub(crate) type TaskYielder = Yielder<(), ()>;
pub(crate) type TaskCoroutine = Coroutine<(), (), ()>;
pub(crate) type Callback = Box<dyn FnOnce()>;

/// What a task waits for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum ParkReason {
    /// Its turn.
    Turn,
    Lock {
        rank: Rank,
        address: usize,
    },
    Condvar {
        address: usize,
        rank: Rank,
        bounded: bool,
    },
    Sleep,
    Join(TaskId),
    /// The callbacks' task, without a callback.
    Callback,
    /// To be on a processor again after it was woken.
    Processor,
}

pub(crate) struct Task {
    pub(crate) name: String,
    serial: u64,
    pub(crate) coroutine: Option<TaskCoroutine>,
    /// Null until it has run for the first time.
    pub(crate) yielder: *const TaskYielder,
    pub(crate) held: held::List,
    pub(crate) person: inherit::Person,
    waiting: ParkReason,
    since: u64,
    timer: Option<(u64, u64)>,
    timed_out: bool,
    joiner: Option<TaskId>,
}

enum Timer {
    Wake(TaskId),
    /// The end of a wake-up.
    Awake(TaskId),
    Call(Callback),
}

/// What the scheduler does next.
pub(crate) enum Step {
    Run(TaskId),
    Done,
    Fail(Box<Failure>),
}

pub(crate) struct State {
    pub(crate) config: Config,
    choice: Random,
    pub(crate) numbers: Random,
    pub(crate) trace: Trace,
    now: u64,
    tasks: Vec<Option<Task>>,
    free: Vec<TaskId>,
    pub(crate) spawned: u64,
    runnable: Vec<TaskId>,
    timers: BTreeMap<(u64, u64), Timer>,
    timer_seq: u64,
    /// Only locks that somebody waits for.
    locks: FixedMap<usize, LockQueue>,
    /// Only conditions that somebody waits for.
    condvars: FixedMap<usize, Vec<TaskId>>,
    due: VecDeque<Callback>,
    /// The task that runs callbacks, once there is one.
    callbacks: Option<TaskId>,
    pub(crate) switches: u64,
    switches_before_advance: u64,
    spins: u32,
    next_stall_check: u64,
    /// The first panic's.
    pub(crate) failure: Option<Box<Failure>>,
    pub(crate) main_ended: Option<Instant>,
}

impl State {
    pub(crate) fn new(config: Config) -> Self {
        let mut choice = Random::new(config.seed);
        let numbers = Random::new(choice.next_u64());
        Self {
            trace: Trace::new(config.seed),
            config,
            choice,
            numbers,
            now: 0,
            tasks: Vec::new(),
            free: Vec::new(),
            spawned: 0,
            runnable: Vec::new(),
            timers: BTreeMap::new(),
            timer_seq: 0,
            locks: FixedMap::default(),
            condvars: FixedMap::default(),
            due: VecDeque::new(),
            callbacks: None,
            switches: 0,
            switches_before_advance: 0,
            spins: 0,
            next_stall_check: 0,
            failure: None,
            main_ended: None,
        }
    }

    pub(crate) fn now(&self) -> Instant {
        Instant(self.now)
    }

    pub(crate) fn task(&mut self, id: TaskId) -> &mut Task {
        let slot = self.tasks.get_mut(id.index());
        slot.and_then(Option::as_mut)
            .expect("a task's number is used until its end only")
    }

    /// Adds a task that can run.
    pub(crate) fn add_task(&mut self, name: &str, coroutine: TaskCoroutine) -> TaskId {
        let task = Task {
            name: name.to_owned(),
            serial: self.spawned,
            coroutine: Some(coroutine),
            yielder: std::ptr::null(),
            held: held::List::default(),
            person: inherit::Person::default(),
            waiting: ParkReason::Turn,
            since: self.now,
            timer: None,
            timed_out: false,
            joiner: None,
        };
        self.spawned += 1;
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                self.tasks.push(None);
                TaskId((self.tasks.len() - 1) as u32)
            }
        };
        self.tasks[id.index()] = Some(task);
        self.runnable.push(id);
        id
    }

    /// Forgets a task that has ended and wakes who joins it.
    pub(crate) fn end_task(&mut self, id: TaskId) {
        let task = self.tasks[id.index()].take();
        self.free.push(id);
        self.spins = 0;
        if id == TaskId::MAIN {
            self.main_ended = Some(self.now());
        }
        if let Some(joiner) = task.and_then(|task| task.joiner) {
            self.wake(joiner);
        }
    }

    /// Notes what the running task waits for; it has to be suspended then.
    pub(crate) fn park(&mut self, id: TaskId, waiting: ParkReason) {
        let now = self.now;
        let task = self.task(id);
        task.waiting = waiting;
        task.since = now;
        task.timed_out = false;
        self.spins = 0;
        if let ParkReason::Join(other) = waiting {
            self.task(other).joiner = Some(id);
        }
    }

    /// Lets the running task go on later.
    pub(crate) fn park_runnable(&mut self, id: TaskId) {
        let now = self.now;
        self.task(id).since = now;
        self.runnable.push(id);
    }

    /// Wakes parked task `id` after `delay` unless somebody does so before.
    pub(crate) fn set_timer(&mut self, id: TaskId, delay: Duration) {
        let key = self.add_timer(Instant(self.now) + delay, Timer::Wake(id));
        self.task(id).timer = Some(key);
    }

    pub(crate) fn call_at(&mut self, time: Instant, callback: Callback) {
        self.add_timer(time, Timer::Call(callback));
    }

    fn add_timer(&mut self, time: Instant, timer: Timer) -> (u64, u64) {
        let key = (time.0.max(self.now), self.timer_seq);
        self.timer_seq += 1;
        self.timers.insert(key, timer);
        key
    }

    pub(crate) fn wake(&mut self, id: TaskId) {
        let now = self.now;
        let task = self.task(id);
        debug_assert_ne!(
            task.waiting,
            ParkReason::Turn,
            "a parked task is woken once"
        );
        task.waiting = ParkReason::Turn;
        task.since = now;
        let timer = task.timer.take();
        if let Some(key) = timer {
            self.timers.remove(&key);
        }
        self.spins = 0;
        self.runnable.push(id);
    }

    /// Wakes a task that somebody else's deed lets go on: it takes what a wake-up costs. (The callbacks are no
    /// thread.)
    fn wake_up(&mut self, id: TaskId) {
        if self.config.wake.is_zero() || self.callbacks == Some(id) {
            self.wake(id);
            return;
        }
        let key = self.add_timer(self.now() + self.config.wake, Timer::Awake(id));
        let now = self.now;
        let task = self.task(id);
        task.waiting = ParkReason::Processor;
        task.since = now;
        if let Some(before) = task.timer.replace(key) {
            self.timers.remove(&before);
        }
    }

    /// Whether the wait that has just ended ended by its timer.
    pub(crate) fn timed_out(&mut self, id: TaskId) -> bool {
        self.task(id).timed_out
    }

    /// Whether the running task shall let others run before it takes a lock.
    pub(crate) fn preempts(&mut self) -> bool {
        let per_1024 = self.config.preempt;
        self.choice.chance(per_1024)
    }

    // Locks.

    /// Whether anybody stands in line for this lock.
    pub(crate) fn is_awaited(&self, gate: &Gate) -> bool {
        !self.locks.is_empty() && self.locks.contains_key(&gate.address())
    }

    pub(crate) fn may_enter(&self, gate: &Gate, me: Option<TaskId>, want: Want) -> bool {
        if self.locks.is_empty() {
            return true;
        }
        match self.locks.get(&gate.address()) {
            Some(queue) => queue.may_enter(me, want),
            None => true,
        }
    }

    pub(crate) fn join_lock_queue(&mut self, gate: &Gate, me: TaskId, want: Want) {
        let address = gate.address();
        self.locks.entry(address).or_default().join(me, want);
        let rank = gate.rank();
        self.park(me, ParkReason::Lock { rank, address });
    }

    pub(crate) fn leave_lock_queue(&mut self, gate: &Gate, me: TaskId) {
        let address = gate.address();
        if let Some(queue) = self.locks.get_mut(&address) {
            queue.leave(me);
            if queue.is_empty() {
                self.locks.remove(&address);
            }
        }
    }

    pub(crate) fn released(&mut self, gate: &Gate) {
        if self.locks.is_empty() {
            return;
        }
        let address = gate.address();
        let Some(mut queue) = self.locks.remove(&address) else {
            return;
        };
        let reserve = self.choice.next_u64() & 1 == 0;
        queue.release(reserve, |task| self.wake_up(task));
        self.locks.insert(address, queue);
    }

    // Conditions.

    pub(crate) fn join_condvar(&mut self, address: usize, me: TaskId, rank: Rank, bounded: bool) {
        self.condvars.entry(address).or_default().push(me);
        let waiting = ParkReason::Condvar {
            address,
            rank,
            bounded,
        };
        self.park(me, waiting);
    }

    /// Wakes up to `count` waiters, in an order the seed chooses.
    pub(crate) fn notify(&mut self, address: usize, count: usize) {
        if self.condvars.is_empty() {
            return;
        }
        let Some(mut waiters) = self.condvars.remove(&address) else {
            return;
        };
        for _ in 0..count.min(waiters.len()) {
            let at = self.choice.below(waiters.len());
            let task = waiters.swap_remove(at);
            self.wake_up(task);
        }
        if !waiters.is_empty() {
            self.condvars.insert(address, waiters);
        }
    }

    fn leave_condvar(&mut self, address: usize, me: TaskId) {
        if let Some(waiters) = self.condvars.get_mut(&address) {
            waiters.retain(|waiter| *waiter != me);
            if waiters.is_empty() {
                self.condvars.remove(&address);
            }
        }
    }

    // Callbacks.

    pub(crate) fn callbacks_task(&self) -> Option<TaskId> {
        self.callbacks
    }

    pub(crate) fn set_callbacks_task(&mut self, id: TaskId) {
        self.callbacks = Some(id);
    }

    pub(crate) fn next_callback(&mut self) -> Option<Callback> {
        self.due.pop_front()
    }

    /// Takes out what was never called, to be dropped when the run is over.
    pub(crate) fn take_unused(&mut self) -> (VecDeque<Callback>, Vec<Callback>) {
        let timers = std::mem::take(&mut self.timers).into_values();
        let calls = timers.filter_map(|timer| match timer {
            Timer::Call(callback) => Some(callback),
            Timer::Wake(_) | Timer::Awake(_) => None,
        });
        (std::mem::take(&mut self.due), calls.collect())
    }

    // Decisions.

    /// Chooses what runs next, and lets time pass where nothing can.
    pub(crate) fn next(&mut self) -> Step {
        if let Some(failure) = self.failure.take() {
            return Step::Fail(failure);
        }
        match self.choose() {
            Ok(Some(id)) => Step::Run(id),
            Ok(None) => Step::Done,
            Err(kind) => Step::Fail(self.fail(kind)),
        }
    }

    /// The task that runs next; none when the main one has ended and no other can run.
    fn choose(&mut self) -> Result<Option<TaskId>, FailureKind> {
        if self.switches - self.switches_before_advance > LIVELOCK {
            return Err(FailureKind::Livelock);
        }
        self.fire_due();
        while self.runnable.is_empty() {
            if self.main_ended.is_some() && !self.is_waking() {
                return Ok(None);
            }
            self.advance()?;
        }
        if self.main_ended.is_none() && self.time_passes_early() {
            self.advance()?;
        }
        let at = match self.runnable.len() {
            1 => 0,
            len => self.choice.below(len),
        };
        let id = self.runnable.swap_remove(at);
        self.switches += 1;
        let serial = self.task(id).serial;
        self.trace.mix(serial);
        Ok(Some(id))
    }

    /// Whether the next timer goes off although tasks could run: because their code takes a little
    /// time, or because they only spin.
    fn time_passes_early(&mut self) -> bool {
        let per_1024 = self.config.preempt;
        let Some(((time, _), _)) = self.timers.first_key_value() else {
            return false;
        };
        if self.spins > SPIN {
            self.spins = 0;
            return true;
        }
        time - self.now <= CODE_TIME && self.choice.chance(per_1024)
    }

    /// Counts a yield of a task.
    pub(crate) fn count_spin(&mut self) {
        self.spins += 1;
    }

    /// Moves the clock to the next timer.
    fn advance(&mut self) -> Result<(), FailureKind> {
        let Some(((time, _), _)) = self.timers.first_key_value() else {
            return Err(FailureKind::Deadlock);
        };
        let time = *time;
        if u128::from(time) > self.config.max_time.as_nanos() {
            return Err(FailureKind::TimeLimit);
        }
        self.now = time;
        self.switches_before_advance = self.switches;
        self.trace.mix(time);
        if time >= self.next_stall_check {
            self.check_stalls()?;
        }
        self.fire_due();
        Ok(())
    }

    fn fire_due(&mut self) {
        while let Some(entry) = self.timers.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            match entry.remove() {
                Timer::Wake(id) => self.time_out(id),
                Timer::Awake(id) => self.wake(id),
                Timer::Call(callback) => {
                    self.due.push_back(callback);
                    let id = self.callbacks.expect("made with the first callback");
                    if self.task(id).waiting == ParkReason::Callback {
                        self.wake(id);
                    }
                }
            }
        }
    }

    fn time_out(&mut self, id: TaskId) {
        let task = self.task(id);
        task.timer = None;
        task.timed_out = true;
        if let ParkReason::Condvar { address, .. } = task.waiting {
            self.leave_condvar(address, id);
        }
        self.wake(id);
    }

    /// Finds a task that waits too long, and when to look again: nobody can be late before.
    fn check_stalls(&mut self) -> Result<(), FailureKind> {
        let bound = u64::try_from(self.config.stall_bound.as_nanos()).unwrap_or(u64::MAX);
        let mut oldest = self.now;
        for task in self.tasks.iter().flatten() {
            let impatient = match task.waiting {
                ParkReason::Lock { .. } => true,
                ParkReason::Condvar { bounded, .. } => bounded,
                ParkReason::Turn
                | ParkReason::Sleep
                | ParkReason::Join(_)
                | ParkReason::Callback
                | ParkReason::Processor => false,
            };
            if !impatient {
                continue;
            }
            if self.now - task.since > bound {
                let task = task.name.clone();
                return Err(FailureKind::Stall { task });
            }
            oldest = oldest.min(task.since);
        }
        self.next_stall_check = oldest.saturating_add(bound);
        Ok(())
    }

    /// Whether a task was woken and does not run yet.
    fn is_waking(&self) -> bool {
        let mut tasks = self.tasks.iter().flatten();
        tasks.any(|task| task.waiting == ParkReason::Processor)
    }

    /// Whether tasks other than the callbacks' are left.
    pub(crate) fn has_leftovers(&self) -> bool {
        let mut tasks = self.tasks.iter().flatten();
        tasks.any(|task| task.waiting != ParkReason::Callback)
    }

    pub(crate) fn take_tasks(&mut self) -> Vec<Option<Task>> {
        std::mem::take(&mut self.tasks)
    }

    /// The failed run's report.
    pub(crate) fn fail(&self, kind: FailureKind) -> Box<Failure> {
        let tasks = self.tasks.iter().flatten();
        let reports = tasks
            .filter(|task| task.waiting != ParkReason::Callback)
            .map(|task| TaskReport {
                name: task.name.clone(),
                waits: self.describe(task.waiting),
                since: Instant(task.since),
                holds: task.held.names(),
            });
        Box::new(Failure {
            seed: self.config.seed,
            at: self.now(),
            kind,
            tasks: reports.collect(),
        })
    }

    fn describe(&self, waiting: ParkReason) -> String {
        match waiting {
            ParkReason::Turn => "can run".to_owned(),
            ParkReason::Lock { rank, address } => {
                let holder = self.tasks.iter().flatten().find(|t| t.held.holds(address));
                match holder {
                    Some(holder) => {
                        format!("waits for the lock {rank:?} that '{}' holds", holder.name)
                    }
                    None => format!("waits for the lock {rank:?}"),
                }
            }
            ParkReason::Condvar { rank, bounded, .. } => {
                let what = if bounded { "a condition" } else { "work" };
                format!("waits for {what} under {rank:?}")
            }
            ParkReason::Sleep => "sleeps".to_owned(),
            ParkReason::Join(id) => match &self.tasks[id.index()] {
                Some(task) => format!("waits for the end of '{}'", task.name),
                None => "waits for an ended task".to_owned(),
            },
            ParkReason::Callback => "waits for a callback".to_owned(),
            ParkReason::Processor => "wakes up".to_owned(),
        }
    }
}
