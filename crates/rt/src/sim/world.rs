//! The simulated implementation of all primitives: finds the running simulation, parks and wakes tasks.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::Timestamp;

use super::failure::FailureKind;
use super::observe::{Observer, ObserverSlot, TaskStep};
use super::stack;
use super::state::{Callback, ParkReason, SimState, TaskCoroutine, TaskId, TaskYielder};
use crate::lock_header::{LockHeader, held_locks};
use crate::{Instant, Rank, inherit};

pub(crate) use super::lock_queue::LockMode;

/// How long a task may wait for a condition.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitLimit {
    /// A wait longer than the stall bound fails the run.
    StallBound,
    /// Without a limit.
    Unlimited,
    /// The wait ends after this time.
    Timeout(Duration),
}

/// One simulation. No borrow of the state is held during a task switch or a call of a closure of the caller.
pub(crate) struct World {
    state: RefCell<SimState>,
    now: Cell<Instant>,
    /// The running task; `None` while the scheduler runs.
    current: Cell<Option<TaskId>>,
    yielder: Cell<*const TaskYielder>,
    observer: ObserverSlot,
    /// The wait-for edges between its tasks.
    wait_graph: Arc<inherit::WaitGraph>,
    refusing_tasks: Cell<bool>,
    calendar: Option<Timestamp>,
    id: u64,
}

thread_local! {
    /// The simulation that runs on this thread.
    static WORLD: Cell<*const World> = const { Cell::new(std::ptr::null()) };
    /// The number of simulations so far on this thread.
    static WORLDS: Cell<u64> = const { Cell::new(0) };
}

/// Whether the caller runs inside a simulation.
#[inline]
pub(crate) fn simulated() -> bool {
    !WORLD.get().is_null()
}

/// Calls `f` on the running simulation.
#[expect(unsafe_code, reason = "a thread-local cannot hold a reference")]
pub(crate) fn with<R>(f: impl FnOnce(&World) -> R) -> R {
    let world = WORLD.get();
    assert!(!world.is_null(), "no simulation runs on this thread");
    // SAFETY: `enter_world` stores a pointer to a live World there and removes it before it returns, on this thread. A
    // task that remains then is never resumed, so no call of this function is in progress.
    f(unsafe { &*world })
}

/// Runs `f` with `world` as this thread's simulation.
pub(crate) fn enter_world<R>(world: &World, f: impl FnOnce() -> R) -> R {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            WORLD.set(std::ptr::null());
        }
    }
    assert!(!simulated(), "a simulation cannot run inside another");
    WORLD.set(std::ptr::from_ref(world));
    let _leave = Leave;
    f()
}

impl World {
    pub(crate) fn new(state: SimState) -> Self {
        WORLDS.set(WORLDS.get() + 1);
        Self {
            calendar: state.config.calendar,
            state: RefCell::new(state),
            now: Cell::new(Instant(0)),
            current: Cell::new(None),
            yielder: Cell::new(std::ptr::null()),
            observer: ObserverSlot::default(),
            wait_graph: Arc::default(),
            refusing_tasks: Cell::new(false),
            id: WORLDS.get(),
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn wait_graph(&self) -> &Arc<inherit::WaitGraph> {
        &self.wait_graph
    }

    pub(crate) fn set_refusing_tasks(&self, refuse: bool) {
        self.refusing_tasks.set(refuse);
    }

    pub(crate) fn is_refusing_tasks(&self) -> bool {
        self.refusing_tasks.get()
    }

    pub(crate) fn set_observer(&self, observer: Option<Observer>) {
        self.observer.set(observer);
    }

    /// Calls `f` on the scheduler's state. `f` must not switch tasks or call a closure of the caller.
    pub(crate) fn state<R>(&self, f: impl FnOnce(&mut SimState) -> R) -> R {
        f(&mut self.state.borrow_mut())
    }

    /// Runs task `id` until it parks or ends.
    pub(crate) fn resume(&self, id: TaskId) {
        let mut coroutine = self.state(|state| {
            let task = state.task(id);
            self.yielder.set(task.yielder);
            held_locks::swap(&mut task.held);
            inherit::swap(&mut task.context);
            self.now.set(state.now());
            let task = state.task(id);
            task.coroutine.take().expect("a task runs once at a time")
        });
        self.current.set(Some(id));
        let ended = coroutine.resume(()).as_return().is_some();
        self.current.set(None);
        self.state(|state| {
            let task = state.task(id);
            held_locks::swap(&mut task.held);
            inherit::swap(&mut task.context);
        });
        if ended {
            self.state(|state| state.end_task(id));
            stack::give_back(coroutine.into_stack());
        } else {
            self.state(|state| state.task(id).coroutine = Some(coroutine));
        }
    }

    /// Starts a task.
    pub(crate) fn spawn(&self, name: &str, f: impl FnOnce() + 'static) -> TaskId {
        // On the new stack a closure has at most 1 KiB.
        let f: Box<dyn FnOnce()> = Box::new(f);
        let body = move |yielder: &TaskYielder, ()| {
            with(|world| world.started(yielder));
            if let Err(panic) = catch_unwind(AssertUnwindSafe(f)) {
                let message = message_of(&*panic);
                with(|world| world.panicked(message));
            }
        };
        let coroutine = TaskCoroutine::with_stack(stack::take(), body);
        self.state(|state| state.add_task(name, coroutine))
    }

    fn started(&self, yielder: &TaskYielder) {
        let yielder = std::ptr::from_ref(yielder);
        let me = self.me();
        self.yielder.set(yielder);
        self.state(|state| state.task(me).yielder = yielder);
    }

    fn panicked(&self, message: String) {
        let me = self.me();
        self.state(|state| {
            let task = state.task(me).name.clone();
            if state.failure.is_none() {
                state.failure = Some(state.fail(FailureKind::Panic { task, message }));
            }
        });
    }

    pub(crate) fn me(&self) -> TaskId {
        let me = self.current.get();
        me.expect("inside a simulation a task or callback runs")
    }

    /// The running task, which is about to wait for `what` and must not be a callback.
    fn me_waiting(&self, what: &str) -> TaskId {
        let me = self.me();
        let callbacks = self.state.borrow().callback_task();
        assert!(callbacks != Some(me), "a timed callback must not {what}");
        me
    }

    /// Switches to the scheduler; returns after the task was woken.
    #[expect(unsafe_code, reason = "coroutines are switched through a raw pointer")]
    pub(crate) fn suspend(&self) {
        debug_assert!(self.current.get().is_some(), "only a task can be suspended");
        let yielder = self.yielder.get();
        // SAFETY: `resume` and `started` set it to the yielder of the running coroutine, which is at the base of this
        // coroutine's stack and lives until its body returns.
        unsafe { (*yielder).suspend(()) };
    }

    /// Waits until the lock is free and its queue lets the running task take it. The caller takes the lock before any
    /// other task runs.
    fn wait_for_lock(&self, header: &LockHeader, mode: LockMode, is_free: &dyn Fn() -> bool) {
        let me = self.me();
        loop {
            let mine = self.state(|state| {
                let mine = state.may_take(header, Some(me), mode) && is_free();
                match mine {
                    true => state.leave_lock_queue(header, me),
                    false => state.join_lock_queue(header, me, mode),
                }
                mine
            });
            if mine {
                self.observer.notify(self, TaskStep::Locked(header.rank()));
                return;
            }
            self.observer
                .notify(self, TaskStep::WaitsForLock(header.rank()));
            self.suspend();
        }
    }

    fn yield_to_others(&self) {
        let me = self.me();
        self.state(|state| state.park_runnable(me));
        self.suspend();
    }

    /// Calls `callback` at `time`, on the callback task.
    pub(crate) fn call_at(&self, time: Instant, callback: Callback) {
        if self.state(|state| state.callback_task()).is_none() {
            let id = self.spawn("callbacks", || with(World::run_callbacks));
            self.state(|state| state.set_callback_task(id));
        }
        self.state(|state| state.call_at(time, callback));
    }

    /// The body of the callback task, which never ends.
    fn run_callbacks(&self) {
        let me = self.me();
        loop {
            match self.state(SimState::next_callback) {
                Some(callback) => callback(),
                None => {
                    self.state(|state| state.park(me, ParkReason::Callback));
                    self.suspend();
                }
            }
        }
    }
}

/// The message of a panic.
fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        return (*text).to_owned();
    }
    match panic.downcast_ref::<String>() {
        Some(text) => text.clone(),
        None => "a panic value that is not text".to_owned(),
    }
}

// The slow paths of the primitives.

/// Waits until the caller can take a lock; the caller takes it before any other task runs. Returns the wait-for edge if
/// the caller had to wait.
#[cold]
pub(crate) fn enter(
    header: &LockHeader,
    mode: LockMode,
    is_free: &dyn Fn() -> bool,
) -> Option<inherit::WaitForEdge> {
    with(|world| {
        if world.state(SimState::preempts) {
            world.yield_to_others();
        }
        // The common case; the slow path below would have the same result.
        if world.state(|state| !state.has_waiters(header)) && is_free() {
            world
                .observer
                .notify(world, TaskStep::Locked(header.rank()));
            return None;
        }
        let me = world.me();
        let mine = || world.state(|state| state.may_take(header, Some(me), mode)) && is_free();
        // The edge may boost a request, which may itself wait for a lock: at that time the task is not queued yet.
        let edge = (header.inherits() && !mine()).then(|| inherit::wait_for_lock(header));
        world.wait_for_lock(header, mode, is_free);
        edge
    })
}

/// Whether a task that does not wait may take a lock if it is free: no waiter has a reservation.
#[cold]
pub(crate) fn may_try(header: &LockHeader, mode: LockMode) -> bool {
    with(|world| {
        if world.state(SimState::preempts) {
            world.yield_to_others();
        }
        world.state(|state| state.may_take(header, None, mode))
    })
}

/// A lock was released.
#[cold]
pub(crate) fn released(header: &LockHeader) {
    with(|world| world.state(|state| state.released(header)));
}

/// The caller has released the lock of `header`: waits for the condition at `address`, and then until the caller can
/// take the lock. Returns whether the wait timed out.
#[cold]
pub(crate) fn wait(
    address: usize,
    header: &LockHeader,
    limit: WaitLimit,
    is_free: &dyn Fn() -> bool,
) -> bool {
    with(|world| {
        let me = world.me_waiting("wait for a condition");
        let rank: Rank = header.rank();
        world.state(|state| {
            state.released(header);
            let bounded = limit == WaitLimit::StallBound;
            state.join_condvar(address, me, rank, bounded);
            if let WaitLimit::Timeout(limit) = limit {
                state.set_timer(me, limit);
            }
        });
        world
            .observer
            .notify(world, TaskStep::WaitsForCondition(rank));
        world.suspend();
        world.observer.notify(world, TaskStep::Resumes);
        let timed_out = world.state(|state| state.timed_out(me));
        world.wait_for_lock(header, LockMode::Exclusive, is_free);
        timed_out
    })
}

/// Wakes up to `count` waiters of a condition.
#[cold]
pub(crate) fn notify(address: usize, count: usize) {
    with(|world| world.state(|state| state.notify(address, count)));
}

#[cold]
pub(crate) fn yield_now() {
    with(|world| {
        world.me_waiting("yield");
        world.state(SimState::count_spin);
        world.yield_to_others();
    });
}

#[cold]
pub(crate) fn sleep(d: Duration) {
    with(|world| {
        let me = world.me_waiting("sleep");
        world.state(|state| {
            state.park(me, ParkReason::Sleep);
            state.set_timer(me, d);
        });
        world.observer.notify(world, TaskStep::Sleeps);
        world.suspend();
    });
}

/// Waits for the end of task `id`.
pub(crate) fn wait_for_end(id: TaskId) {
    with(|world| {
        let me = world.me_waiting("join a task");
        world.state(|state| state.park(me, ParkReason::Join(id)));
        world.suspend();
    });
}

pub(crate) fn now() -> Instant {
    with(|world| world.now.get())
}

/// The fixed wall clock, if the run has one.
pub(crate) fn calendar() -> Option<Timestamp> {
    with(|world| world.calendar)
}

pub(crate) fn random() -> u64 {
    with(|world| world.state(|state| state.numbers.next_u64()))
}

/// The running task's name.
pub(crate) fn task_name() -> String {
    with(|world| {
        let me = world.me();
        world.state(|state| state.task(me).name.clone())
    })
}
