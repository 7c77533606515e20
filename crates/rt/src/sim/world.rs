//! The simulated side of every primitive: finds the running simulation, parks and wakes tasks.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::Timestamp;

use super::failure::FailureKind;
use super::observe::{Observer, TaskStep, Watch};
use super::stack;
use super::state::{Callback, ParkReason, State, TaskCoroutine, TaskId, TaskYielder};
use crate::gate::{Gate, held};
use crate::{Instant, Rank, inherit};

pub(crate) use super::lock_queue::Want;

/// How long a task waits for a condition.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Longer than the stall bound is a failure.
    Bounded,
    /// For ever.
    Endless,
    /// Until the time runs out.
    Until(Duration),
}

/// One simulation. No borrow of the state lasts over a switch or a call of foreign code.
pub(crate) struct World {
    state: RefCell<State>,
    now: Cell<Instant>,
    /// Who runs; none while the scheduler does.
    current: Cell<Option<TaskId>>,
    yielder: Cell<*const TaskYielder>,
    watch: Watch,
    /// Who of its tasks waits for whom.
    loans: Arc<inherit::Table>,
    /// Further tasks are refused.
    full: Cell<bool>,
    calendar: Option<Timestamp>,
    id: u64,
}

thread_local! {
    /// The simulation that runs on this thread.
    static WORLD: Cell<*const World> = const { Cell::new(std::ptr::null()) };
    /// How many simulations ran on this thread.
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
    // SAFETY: `enter_world` puts a pointer to a live World there and takes it out before it
    // returns, on this thread; a task left behind by then is never resumed, so no call of this
    // function is still under way.
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
    pub(crate) fn new(state: State) -> Self {
        WORLDS.set(WORLDS.get() + 1);
        Self {
            calendar: state.config.calendar,
            state: RefCell::new(state),
            now: Cell::new(Instant(0)),
            current: Cell::new(None),
            yielder: Cell::new(std::ptr::null()),
            watch: Watch::default(),
            loans: Arc::default(),
            full: Cell::new(false),
            id: WORLDS.get(),
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn loans(&self) -> &Arc<inherit::Table> {
        &self.loans
    }

    pub(crate) fn set_full(&self, full: bool) {
        self.full.set(full);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.full.get()
    }

    pub(crate) fn set_observer(&self, observer: Option<Observer>) {
        self.watch.set(observer);
    }

    /// The scheduler's state; not to be held over a switch or a call of foreign code.
    pub(crate) fn state<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.state.borrow_mut())
    }

    /// Runs task `id` until it parks or ends.
    pub(crate) fn resume(&self, id: TaskId) {
        let mut coroutine = self.state(|state| {
            let task = state.task(id);
            self.yielder.set(task.yielder);
            held::swap(&mut task.held);
            inherit::swap(&mut task.person);
            self.now.set(state.now());
            let task = state.task(id);
            task.coroutine.take().expect("a task runs once at a time")
        });
        self.current.set(Some(id));
        let ended = coroutine.resume(()).as_return().is_some();
        self.current.set(None);
        self.state(|state| {
            let task = state.task(id);
            held::swap(&mut task.held);
            inherit::swap(&mut task.person);
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
        me.expect("only tasks and callbacks run while a simulation does")
    }

    /// The running task, which is about to wait for `what` and must not be a callback.
    fn me_waiting(&self, what: &str) -> TaskId {
        let me = self.me();
        let callbacks = self.state.borrow().callbacks_task();
        assert!(callbacks != Some(me), "a timed callback must not {what}");
        me
    }

    /// Goes back to the scheduler until somebody wakes the task.
    #[expect(unsafe_code, reason = "coroutines are switched through a raw pointer")]
    pub(crate) fn suspend(&self) {
        debug_assert!(self.current.get().is_some(), "the scheduler does not wait");
        let yielder = self.yielder.get();
        // SAFETY: `resume` and `started` set it to the yielder of the coroutine that runs now; it
        // lies at the base of this coroutine's stack and lives until its body returns.
        unsafe { (*yielder).suspend(()) };
    }

    /// Waits until the lock is free for the running task and its turn has come; the caller takes
    /// it before anything else runs.
    fn wait_turn(&self, gate: &Gate, want: Want, is_free: &dyn Fn() -> bool) {
        let me = self.me();
        loop {
            let mine = self.state(|state| {
                let mine = state.may_enter(gate, Some(me), want) && is_free();
                match mine {
                    true => state.leave_lock_queue(gate, me),
                    false => state.join_lock_queue(gate, me, want),
                }
                mine
            });
            if mine {
                self.watch.tell(self, TaskStep::Locked(gate.rank()));
                return;
            }
            self.watch.tell(self, TaskStep::WaitsForLock(gate.rank()));
            self.suspend();
        }
    }

    fn yield_turn(&self) {
        let me = self.me();
        self.state(|state| state.park_runnable(me));
        self.suspend();
    }

    /// Calls `callback` at `time`, on the callbacks' task.
    pub(crate) fn call_at(&self, time: Instant, callback: Callback) {
        if self.state(|state| state.callbacks_task()).is_none() {
            let id = self.spawn("callbacks", || with(World::run_callbacks));
            self.state(|state| state.set_callbacks_task(id));
        }
        self.state(|state| state.call_at(time, callback));
    }

    /// The callbacks' task: one after another, for ever.
    fn run_callbacks(&self) {
        let me = self.me();
        loop {
            match self.state(State::next_callback) {
                Some(callback) => callback(),
                None => {
                    self.state(|state| state.park(me, ParkReason::Callback));
                    self.suspend();
                }
            }
        }
    }
}

/// What a panic said.
fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        return (*text).to_owned();
    }
    match panic.downcast_ref::<String>() {
        Some(text) => text.clone(),
        None => "a value that is no text".to_owned(),
    }
}

// The primitives' slow paths.

/// Waits until a lock is free for the caller, who takes it before anything else runs.
#[cold]
pub(crate) fn enter(
    gate: &Gate,
    want: Want,
    is_free: &dyn Fn() -> bool,
) -> Option<inherit::WaitForEdge> {
    with(|world| {
        if world.state(State::preempts) {
            world.yield_turn();
        }
        // As mostly: the rest would come to the same.
        if world.state(|state| !state.is_awaited(gate)) && is_free() {
            world.watch.tell(world, TaskStep::Locked(gate.rank()));
            return None;
        }
        let me = world.me();
        let mine = || world.state(|state| state.may_enter(gate, Some(me), want)) && is_free();
        // Whom it raises may wait itself; nothing of this wait has begun by then.
        let waiting = (gate.lends() && !mine()).then(|| inherit::wait_at(gate));
        world.wait_turn(gate, want, is_free);
        waiting
    })
}

/// Whether somebody who does not wait may take a lock that is free: nobody has it reserved.
#[cold]
pub(crate) fn may_try(gate: &Gate, want: Want) -> bool {
    with(|world| {
        if world.state(State::preempts) {
            world.yield_turn();
        }
        world.state(|state| state.may_enter(gate, None, want))
    })
}

/// A lock was released.
#[cold]
pub(crate) fn released(gate: &Gate) {
    with(|world| world.state(|state| state.released(gate)));
}

/// The caller has released the lock behind `gate` and waits for the condition at `address`, then
/// until the lock is free for it. True if the time ran out.
#[cold]
pub(crate) fn wait(
    address: usize,
    gate: &Gate,
    patience: Patience,
    is_free: &dyn Fn() -> bool,
) -> bool {
    with(|world| {
        let me = world.me_waiting("wait for a condition");
        let rank: Rank = gate.rank();
        world.state(|state| {
            state.released(gate);
            let bounded = patience == Patience::Bounded;
            state.join_condvar(address, me, rank, bounded);
            if let Patience::Until(limit) = patience {
                state.set_timer(me, limit);
            }
        });
        world.watch.tell(world, TaskStep::WaitsForCondition(rank));
        world.suspend();
        world.watch.tell(world, TaskStep::Resumes);
        let timed_out = world.state(|state| state.timed_out(me));
        world.wait_turn(gate, Want::Alone, is_free);
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
        world.state(State::count_spin);
        world.yield_turn();
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
        world.watch.tell(world, TaskStep::Sleeps);
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

/// What the calendar shows throughout, if it stands still.
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
