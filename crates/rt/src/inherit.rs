//! Priority inheritance over wait-for edges.
//!
//! Problem: a task may do I/O while it holds a lock. If the task is in a cgroup of small weight, and a task in a cgroup
//! of large weight waits for the lock, the second task proceeds no faster than the first (priority inversion).
//!
//! Rule: a waiter *donates* its I/O tag to the owner of the lock for as long as it waits, and through the owner to the
//! tasks for which the owner waits (a chain of wait-for edges). The owner's I/O is issued at its effective priority: a
//! request that it submits gets the donated tags ([`effective_tag`]), and a request that it has queued and waits for is
//! boosted ([`Boostable`]).
//!
//! The locks that take part are those under which tasks do I/O (`LockHeader::inherits`): they record their owners. For
//! anything else for which a task waits and other tasks work, the waiter names these tasks ([`wait_for`]). The tag that
//! a task donates is the one it was given with [`set_task_tag`]; a task without a tag donates nothing.
//!
//! # Cost
//! Without waiters: one or two stores to the lock's own words to record an owner, one load to look for donations. The
//! wait-for graph is used by tasks that wait only. It is protected by a host lock, which is held for a few steps
//! without a wait; below it only the lock of one task's donations is taken.
//!
//! A shared lock records four owners; other owners inherit nothing.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};

use steadfs_base::IoTag;

use crate::lock_header::LockHeader;
use crate::sim::world;
use crate::waits::{self, WaitGuard, WaitStep};

/// Owners that a lock records.
pub(crate) const OWNERS_MAX: usize = 4;
/// Wait-for edges over which a tag is donated.
const CHAIN_EDGES_MAX: usize = 8;
/// Tags donated to one task.
const DONATED_TAGS_MAX: usize = 16;

/// The number of a task, valid until the task ends; 0 is no task.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TaskNo(pub(crate) u32);

/// A request queue whose requests a task waits for.
pub trait Boostable: Send + Sync {
    /// Boosts the requests for which `task` waits: a task with this tag waits for `task`. Called by that waiter, which
    /// may hold locks.
    fn boost(self: Arc<Self>, task: TaskNo, tag: IoTag);
}

/// A task's entry in the wait-for graph.
struct TaskRecord {
    number: u32,
    has_donations: AtomicBool,
    donations: HostMutex<Donations>,
}

#[derive(Default)]
struct Donations {
    tags: Vec<IoTag>,
    /// The queue for whose requests the task waits.
    blocked_on: Option<Arc<dyn Boostable>>,
}

#[expect(clippy::disallowed_types, reason = "rt wraps the host's lock")]
type HostMutex<T> = parking_lot::Mutex<T>;

/// A task waits for other tasks.
struct Edge {
    waiter: u32,
    number: u64,
    /// The lock's address; 0 if the waiter named the tasks itself.
    lock: usize,
    owners: [u32; OWNERS_MAX],
    tag: Option<IoTag>,
}

/// The tasks that can wait for each other, and the edges between them: all tasks of the process, or those of one
/// simulation. Simulations that run at the same time must not influence each other.
#[derive(Default)]
pub(crate) struct WaitGraph(HostMutex<WaitGraphState>);

#[derive(Default)]
struct WaitGraphState {
    /// By task number minus 1.
    tasks: Vec<Option<Arc<TaskRecord>>>,
    edges: Vec<Edge>,
    last_edge: u64,
}

/// The running task's wait-for graph.
fn wait_graph() -> Arc<WaitGraph> {
    static PROCESS: LazyLock<Arc<WaitGraph>> = LazyLock::new(Arc::default);
    match world::simulated() {
        true => world::with(|world| Arc::clone(world.wait_graph())),
        false => Arc::clone(&PROCESS),
    }
}

/// A task's membership in its wait-for graph, until the task ends.
struct Registration {
    record: Arc<TaskRecord>,
    graph: Arc<WaitGraph>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut graph = self.graph.0.lock();
        graph.tasks[self.record.number as usize - 1] = None;
    }
}

/// The thread-locals below of a simulated task, while it does not run.
#[cfg(feature = "sim")]
#[derive(Default)]
pub(crate) struct TaskContext {
    number: u32,
    tag: Option<IoTag>,
    registration: Option<Registration>,
}

thread_local! {
    static NUMBER: Cell<u32> = const { Cell::new(0) };
    static TASK_TAG: Cell<Option<IoTag>> = const { Cell::new(None) };
    static REGISTRATION: RefCell<Option<Registration>> = const { RefCell::new(None) };
}

/// Swaps the running task's context with `other`.
#[cfg(feature = "sim")]
pub(crate) fn swap(other: &mut TaskContext) {
    other.number = NUMBER.replace(other.number);
    other.tag = TASK_TAG.replace(other.tag);
    // Fails on a thread that is ending, and such a thread runs no simulation.
    let _ = REGISTRATION
        .try_with(|own| std::mem::swap(&mut *own.borrow_mut(), &mut other.registration));
}

/// The number of the running task.
#[inline]
pub fn current_task() -> TaskNo {
    match NUMBER.get() {
        0 => register(),
        number => TaskNo(number),
    }
}

#[cold]
fn register() -> TaskNo {
    let put = |own: &RefCell<Option<Registration>>| {
        let graph = wait_graph();
        let mut state = graph.0.lock();
        let free = state.tasks.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            state.tasks.push(None);
            state.tasks.len() - 1
        });
        let number = u32::try_from(at + 1).expect("a process has fewer than 2^32 tasks");
        let record = Arc::new(TaskRecord {
            number,
            has_donations: AtomicBool::new(false),
            donations: HostMutex::new(Donations::default()),
        });
        state.tasks[at] = Some(Arc::clone(&record));
        drop(state);
        *own.borrow_mut() = Some(Registration { record, graph });
        NUMBER.set(number);
        number
    };
    // A thread whose thread-locals are gone has no number any more.
    TaskNo(REGISTRATION.try_with(put).unwrap_or(0))
}

fn with_record<R>(f: impl FnOnce(&TaskRecord) -> R) -> Option<R> {
    if NUMBER.get() == 0 {
        register();
    }
    REGISTRATION
        .try_with(|own| own.borrow().as_ref().map(|own| f(&own.record)))
        .ok()
        .flatten()
}

/// Restores the running task's previous tag when it is dropped.
#[must_use]
pub struct TaskTagGuard(Option<IoTag>);

/// Sets the tag that the running task donates when it waits, until the guard is dropped.
pub fn set_task_tag(tag: IoTag) -> TaskTagGuard {
    TaskTagGuard(TASK_TAG.replace(Some(tag)))
}

impl Drop for TaskTagGuard {
    fn drop(&mut self) {
        TASK_TAG.set(self.0);
    }
}

/// Whether a tag is donated to the running task: another task waits for it.
#[inline]
pub fn has_waiters() -> bool {
    NUMBER.get() != 0 && with_record(|own| own.has_donations.load(Ordering::Relaxed)) == Some(true)
}

/// The effective tag of a request of the running task: `tag`, boosted by `boost` to each donated tag in turn.
pub fn effective_tag(tag: IoTag, boost: impl FnMut(IoTag, IoTag) -> IoTag) -> IoTag {
    if !has_waiters() {
        return tag;
    }
    let tags = with_record(|own| own.donations.lock().tags.clone());
    tags.unwrap_or_default().into_iter().fold(tag, boost)
}

/// The running task waits for its requests in a queue until this is dropped.
#[must_use]
pub struct BlockedOn(Option<Arc<dyn Boostable>>);

/// Records that the running task waits for requests that it has queued at `queue`: new waiters boost them.
pub fn blocked_on(queue: Arc<dyn Boostable>) -> BlockedOn {
    BlockedOn(with_record(|own| own.donations.lock().blocked_on.replace(queue)).flatten())
}

impl Drop for BlockedOn {
    fn drop(&mut self) {
        let outer = self.0.take();
        let queue =
            with_record(|own| std::mem::replace(&mut own.donations.lock().blocked_on, outer));
        // This may be the last reference to the queue, which is not dropped under the lock of the donations.
        drop(queue);
    }
}

/// The running task waits for other tasks until this is dropped.
#[must_use]
pub struct WaitForEdge {
    number: u64,
    /// If it waits for a lock.
    _step: Option<WaitGuard>,
}

/// Records that the running task waits for a result that only `owners` can produce.
pub fn wait_for(owners: &[TaskNo]) -> WaitForEdge {
    let mut recorded = [0; OWNERS_MAX];
    for (slot, owner) in recorded.iter_mut().zip(owners) {
        *slot = owner.0;
    }
    add_edge(0, recorded)
}

/// The running task has produced the results for which other tasks wait ([`wait_for`]): they donate nothing to it any
/// more, even before they run again. Otherwise its next requests would have their tags.
pub fn end_waits() {
    if !has_waiters() {
        return;
    }
    let me = NUMBER.get();
    let graph = wait_graph();
    let boosts = {
        let mut state = graph.0.lock();
        for edge in state.edges.iter_mut().filter(|edge| edge.lock == 0) {
            for owner in edge.owners.iter_mut().filter(|owner| **owner == me) {
                *owner = 0;
            }
        }
        state.update_donations()
    };
    drop(boosts);
}

/// Records that the running task waits for a lock.
#[cold]
pub(crate) fn wait_for_lock(header: &LockHeader) -> WaitForEdge {
    header.owners().waiters.fetch_add(1, Ordering::Relaxed);
    add_edge(header.address(), header.owners().numbers())
}

/// The running task has waited for the lock and owns it now: the other waiters wait for this task.
#[cold]
pub(crate) fn acquired_after_wait(header: &LockHeader, edge: WaitForEdge) {
    header.owners().waiters.fetch_sub(1, Ordering::Relaxed);
    drop(edge);
    owner_changed(header);
}

/// The running task has taken a lock for which other tasks wait: updates their edges.
#[cold]
pub(crate) fn owner_changed(header: &LockHeader) {
    let (address, owners) = (header.address(), header.owners().numbers());
    let graph = wait_graph();
    let boosts = {
        let mut state = graph.0.lock();
        let mut changed = false;
        for edge in &mut state.edges {
            if edge.lock == address && edge.owners != owners {
                edge.owners = owners;
                changed = true;
            }
        }
        if changed {
            state.update_donations()
        } else {
            Vec::new()
        }
    };
    drop(boosts);
}

fn add_edge(lock: usize, owners: [u32; OWNERS_MAX]) -> WaitForEdge {
    let waiter = current_task().0;
    let graph = wait_graph();
    let (number, boosts) = {
        let mut state = graph.0.lock();
        state.last_edge += 1;
        let number = state.last_edge;
        state.edges.push(Edge {
            waiter,
            number,
            lock,
            owners,
            tag: TASK_TAG.get(),
        });
        (number, state.update_donations())
    };
    for (queue, task, tag) in boosts {
        queue.boost(TaskNo(task), tag);
    }
    WaitForEdge {
        number,
        _step: (lock != 0).then(|| waits::during(WaitStep::Lock)),
    }
}

impl Drop for WaitForEdge {
    fn drop(&mut self) {
        let graph = wait_graph();
        let boosts = {
            let mut state = graph.0.lock();
            state.edges.retain(|edge| edge.number != self.number);
            state.update_donations()
        };
        // Nothing is boosted when a wait ends or a lock changes its owner: the new owner runs, and gives its effective
        // tag to what it submits. These may be the last references to a queue, which is not dropped under the graph's
        // lock.
        drop(boosts);
    }
}

/// Queues in which the requests of a task must be boosted to a tag.
type PendingBoosts = Vec<(Arc<dyn Boostable>, u32, IoTag)>;

impl WaitGraphState {
    /// Recomputes every task's donations after an edge was added, removed or changed. Returns the tags that are new to
    /// a task which waits for its requests in a queue. A donation that remains is never missing in between, since its
    /// task reads the donations without the graph's lock.
    fn update_donations(&mut self) -> PendingBoosts {
        let mut boosts = Vec::new();
        for (record, tags) in self.tasks.iter().zip(self.donations()) {
            let Some(record) = record else { continue };
            if tags.is_empty() && !record.has_donations.load(Ordering::Relaxed) {
                continue;
            }
            let mut donations = record.donations.lock();
            if let Some(queue) = &donations.blocked_on {
                let new = tags.iter().filter(|tag| !donations.tags.contains(tag));
                boosts.extend(new.map(|tag| (Arc::clone(queue), record.number, *tag)));
            }
            record
                .has_donations
                .store(!tags.is_empty(), Ordering::Relaxed);
            donations.tags = tags;
        }
        boosts
    }

    /// The tags that are donated to each task.
    fn donations(&self) -> Vec<Vec<IoTag>> {
        let mut donations = vec![Vec::new(); self.tasks.len()];
        for edge in &self.edges {
            if let Some(tag) = edge.tag {
                self.donate(edge.waiter, tag, CHAIN_EDGES_MAX, &mut donations);
            }
        }
        donations
    }

    /// Donates `tag` to the tasks for which `waiter` waits, directly and over at most `edges_left` edges.
    fn donate(&self, waiter: u32, tag: IoTag, edges_left: usize, donations: &mut [Vec<IoTag>]) {
        if edges_left == 0 {
            return;
        }
        let own = self.edges.iter().filter(|edge| edge.waiter == waiter);
        for owner in own.flat_map(|edge| edge.owners) {
            let at = (owner as usize).wrapping_sub(1);
            let Some(tags) = donations.get_mut(at).filter(|_| owner != waiter) else {
                continue;
            };
            if tags.contains(&tag) || tags.len() == DONATED_TAGS_MAX {
                continue;
            }
            tags.push(tag);
            self.donate(owner, tag, edges_left - 1, donations);
        }
    }
}

/// The owners of a lock, and the number of its waiters.
pub(crate) struct LockOwners {
    owners: [AtomicU32; OWNERS_MAX],
    waiters: AtomicU32,
}

impl LockOwners {
    pub(crate) const fn new() -> Self {
        Self {
            owners: [const { AtomicU32::new(0) }; OWNERS_MAX],
            waiters: AtomicU32::new(0),
        }
    }

    fn numbers(&self) -> [u32; OWNERS_MAX] {
        std::array::from_fn(|at| self.owners[at].load(Ordering::Relaxed))
    }

    /// Records the running task as an owner, if a slot is free.
    #[inline]
    pub(crate) fn add_current(&self) {
        let me = current_task().0;
        for owner in &self.owners {
            let free = owner.load(Ordering::Relaxed) == 0;
            let put = || owner.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed);
            if free && put().is_ok() {
                return;
            }
        }
    }

    /// Removes the running task from the owners.
    #[inline]
    pub(crate) fn remove_current(&self) {
        let me = NUMBER.get();
        for owner in &self.owners {
            if owner.load(Ordering::Relaxed) == me {
                owner.store(0, Ordering::Relaxed);
                return;
            }
        }
    }

    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }
}
