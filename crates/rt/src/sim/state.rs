//! The state of the simulated scheduler: tasks, timers and wait queues. It makes the choices; `world` switches tasks.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use corosensei::{Coroutine, Yielder};
use steadfs_base::FixedMap;

use super::Config;
use super::failure::{Failure, FailureKind, TaskReport};
use super::lock_queue::{LockMode, LockQueue};
use super::trace::Trace;
use crate::lock_header::{LockHeader, held_locks};
use crate::{Instant, Random, Rank, inherit};

/// A task's index in the table; used again after the task's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TaskId(u32);

impl TaskId {
    /// The closure given to `run`.
    pub(crate) const MAIN: TaskId = TaskId(0);

    fn index(self) -> usize {
        self.0 as usize
    }
}

/// Task switches at one instant of virtual time after which the run fails: the tasks are in an endless loop.
const LIVELOCK_SWITCHES: u64 = 10_000_000;
/// Yields in a row without another step of a task, after which the clock advances: the tasks poll.
const SPIN_YIELDS: u32 = 256;
/// How far the clock may advance while tasks can run, in nanoseconds: the assumed duration of their code.
const CODE_TIME_NS: u64 = 1_000_000;

pub(crate) type TaskYielder = Yielder<(), ()>;
pub(crate) type TaskCoroutine = Coroutine<(), (), ()>;
pub(crate) type Callback = Box<dyn FnOnce()>;

/// Why a task does not run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum ParkReason {
    /// It waits for the scheduler's choice only.
    Runnable,
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
    /// The callback task has no callback.
    Callback,
    /// It was woken, and its wake-up latency has not passed.
    Waking,
}

pub(crate) struct Task {
    pub(crate) name: String,
    serial: u64,
    pub(crate) coroutine: Option<TaskCoroutine>,
    /// Null until it has run for the first time.
    pub(crate) yielder: *const TaskYielder,
    pub(crate) held: held_locks::HeldList,
    pub(crate) context: inherit::TaskContext,
    waiting: ParkReason,
    since: u64,
    timer: Option<(u64, u64)>,
    timed_out: bool,
    joiner: Option<TaskId>,
}

enum Timer {
    Timeout(TaskId),
    /// The end of a wake-up latency.
    WokenUp(TaskId),
    Call(Callback),
}

/// The scheduler's next action.
pub(crate) enum NextStep {
    Run(TaskId),
    Done,
    Fail(Box<Failure>),
}

pub(crate) struct SimState {
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
    /// The locks that have waiters, by address.
    locks: FixedMap<usize, LockQueue>,
    /// The waiters of conditions, by address.
    condvars: FixedMap<usize, Vec<TaskId>>,
    due: VecDeque<Callback>,
    /// The callback task, once it was needed.
    callback_task: Option<TaskId>,
    pub(crate) switches: u64,
    switches_before_advance: u64,
    spins: u32,
    next_stall_check: u64,
    /// The failure of the first task that panicked.
    pub(crate) failure: Option<Box<Failure>>,
    pub(crate) main_ended: Option<Instant>,
}

impl SimState {
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
            callback_task: None,
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
            .expect("a task's id is used until the task ends")
    }

    /// Adds a runnable task.
    pub(crate) fn add_task(&mut self, name: &str, coroutine: TaskCoroutine) -> TaskId {
        let task = Task {
            name: name.to_owned(),
            serial: self.spawned,
            coroutine: Some(coroutine),
            yielder: std::ptr::null(),
            held: held_locks::HeldList::default(),
            context: inherit::TaskContext::default(),
            waiting: ParkReason::Runnable,
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

    /// Removes an ended task and wakes the task that joins it.
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

    /// Records why the running task is about to be suspended.
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

    /// Makes the running task, which is about to be suspended, runnable.
    pub(crate) fn park_runnable(&mut self, id: TaskId) {
        let now = self.now;
        self.task(id).since = now;
        self.runnable.push(id);
    }

    /// Sets a timeout: parked task `id` is woken after `delay` at the latest.
    pub(crate) fn set_timer(&mut self, id: TaskId, delay: Duration) {
        let key = self.add_timer(Instant(self.now) + delay, Timer::Timeout(id));
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
            ParkReason::Runnable,
            "only a parked task is woken"
        );
        task.waiting = ParkReason::Runnable;
        task.since = now;
        let timer = task.timer.take();
        if let Some(key) = timer {
            self.timers.remove(&key);
        }
        self.spins = 0;
        self.runnable.push(id);
    }

    /// Wakes a task after the wake-up latency, since another task has ended its wait. The callback task, which models
    /// interrupts, has no latency.
    fn wake_with_latency(&mut self, id: TaskId) {
        if self.config.wake.is_zero() || self.callback_task == Some(id) {
            self.wake(id);
            return;
        }
        let key = self.add_timer(self.now() + self.config.wake, Timer::WokenUp(id));
        let now = self.now;
        let task = self.task(id);
        task.waiting = ParkReason::Waking;
        task.since = now;
        if let Some(before) = task.timer.replace(key) {
            self.timers.remove(&before);
        }
    }

    /// Whether the task's last wait timed out.
    pub(crate) fn timed_out(&mut self, id: TaskId) -> bool {
        self.task(id).timed_out
    }

    /// Chooses whether other tasks run before the running task takes a lock.
    pub(crate) fn preempts(&mut self) -> bool {
        let per_1024 = self.config.preempt;
        self.choice.chance(per_1024)
    }

    // Locks.

    /// Whether a task is in this lock's queue.
    pub(crate) fn has_waiters(&self, header: &LockHeader) -> bool {
        !self.locks.is_empty() && self.locks.contains_key(&header.address())
    }

    pub(crate) fn may_take(&self, header: &LockHeader, me: Option<TaskId>, mode: LockMode) -> bool {
        if self.locks.is_empty() {
            return true;
        }
        match self.locks.get(&header.address()) {
            Some(queue) => queue.may_take(me, mode),
            None => true,
        }
    }

    pub(crate) fn join_lock_queue(&mut self, header: &LockHeader, me: TaskId, mode: LockMode) {
        let address = header.address();
        self.locks.entry(address).or_default().join(me, mode);
        let rank = header.rank();
        self.park(me, ParkReason::Lock { rank, address });
    }

    pub(crate) fn leave_lock_queue(&mut self, header: &LockHeader, me: TaskId) {
        let address = header.address();
        if let Some(queue) = self.locks.get_mut(&address) {
            queue.leave(me);
            if queue.is_empty() {
                self.locks.remove(&address);
            }
        }
    }

    pub(crate) fn released(&mut self, header: &LockHeader) {
        if self.locks.is_empty() {
            return;
        }
        let address = header.address();
        let Some(mut queue) = self.locks.remove(&address) else {
            return;
        };
        let reserve = self.choice.next_u64() & 1 == 0;
        queue.release(reserve, |task| self.wake_with_latency(task));
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

    /// Wakes up to `count` waiters, chosen by the seed.
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
            self.wake_with_latency(task);
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

    pub(crate) fn callback_task(&self) -> Option<TaskId> {
        self.callback_task
    }

    pub(crate) fn set_callback_task(&mut self, id: TaskId) {
        self.callback_task = Some(id);
    }

    pub(crate) fn next_callback(&mut self) -> Option<Callback> {
        self.due.pop_front()
    }

    /// Takes the callbacks that were never called, to be dropped after the run.
    pub(crate) fn take_callbacks(&mut self) -> (VecDeque<Callback>, Vec<Callback>) {
        let timers = std::mem::take(&mut self.timers).into_values();
        let calls = timers.filter_map(|timer| match timer {
            Timer::Call(callback) => Some(callback),
            Timer::Timeout(_) | Timer::WokenUp(_) => None,
        });
        (std::mem::take(&mut self.due), calls.collect())
    }

    // Choices.

    /// Chooses the task that runs next; advances the clock if no task can run.
    pub(crate) fn next(&mut self) -> NextStep {
        if let Some(failure) = self.failure.take() {
            return NextStep::Fail(failure);
        }
        match self.choose() {
            Ok(Some(id)) => NextStep::Run(id),
            Ok(None) => NextStep::Done,
            Err(kind) => NextStep::Fail(self.fail(kind)),
        }
    }

    /// The task that runs next; `None` when the main task has ended and no other task can run.
    fn choose(&mut self) -> Result<Option<TaskId>, FailureKind> {
        if self.switches - self.switches_before_advance > LIVELOCK_SWITCHES {
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

    /// Whether the clock advances to the next timer although tasks can run: because their code takes time, or because
    /// they only poll.
    fn time_passes_early(&mut self) -> bool {
        let per_1024 = self.config.preempt;
        let Some(((time, _), _)) = self.timers.first_key_value() else {
            return false;
        };
        if self.spins > SPIN_YIELDS {
            self.spins = 0;
            return true;
        }
        time - self.now <= CODE_TIME_NS && self.choice.chance(per_1024)
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
                Timer::Timeout(id) => self.time_out(id),
                Timer::WokenUp(id) => self.wake(id),
                Timer::Call(callback) => {
                    self.due.push_back(callback);
                    let id = self.callback_task.expect("the first callback spawned it");
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

    /// Fails if a task waits longer than the stall bound; sets the time of the next check, before which no task can
    /// exceed the bound.
    fn check_stalls(&mut self) -> Result<(), FailureKind> {
        let bound = u64::try_from(self.config.stall_bound.as_nanos()).unwrap_or(u64::MAX);
        let mut oldest = self.now;
        for task in self.tasks.iter().flatten() {
            let is_bounded = match task.waiting {
                ParkReason::Lock { .. } => true,
                ParkReason::Condvar { bounded, .. } => bounded,
                ParkReason::Runnable
                | ParkReason::Sleep
                | ParkReason::Join(_)
                | ParkReason::Callback
                | ParkReason::Waking => false,
            };
            if !is_bounded {
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

    /// Whether a task was woken and its wake-up latency has not passed.
    fn is_waking(&self) -> bool {
        let mut tasks = self.tasks.iter().flatten();
        tasks.any(|task| task.waiting == ParkReason::Waking)
    }

    /// Whether tasks other than the callback task remain.
    pub(crate) fn has_leftovers(&self) -> bool {
        let mut tasks = self.tasks.iter().flatten();
        tasks.any(|task| task.waiting != ParkReason::Callback)
    }

    pub(crate) fn take_tasks(&mut self) -> Vec<Option<Task>> {
        std::mem::take(&mut self.tasks)
    }

    /// The report of a failed run.
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
            ParkReason::Runnable => "can run".to_owned(),
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
            ParkReason::Waking => "wakes up".to_owned(),
        }
    }
}
