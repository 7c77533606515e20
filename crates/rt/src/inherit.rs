//! Priority inheritance: who holds what somebody else waits for works in his name as well.
//!
//! A task may hold a lock while it does I/O. If it is of a light group and somebody of a heavy one waits for
//! the lock, the heavy one gets no more than the light one. So locks under which tasks do I/O (`Gate::lends`)
//! know who holds them, and a task that has to wait *lends* its tag to the holder, and through him to whoever
//! he waits for. The holder's I/O is raised to the tags lent to him ([`effective_tag`]): what he submits, and what he
//! has queued and waits for ([`Boostable`]). With the wait the loan ends.
//!
//! A task's own tag is what it was told to act as ([`set_task_tag`]). What has no lock but a holder and somebody who
//! waits says so itself ([`wait_for`]).
//!
//! # Cost
//! Where nobody waits: to note a holder is a store or two to the lock's own words, to look for loans one load.
//! The table below is for those who wait.
//!
//! Of a lock that many share, four holders are known. The table is a host's lock, held for a few steps that
//! wait for nothing; no lock is taken below it but a task's record.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};

use steadfs_base::IoTag;

use crate::gate::Gate;
use crate::sim::world;

/// Holders that a lock knows.
pub(crate) const HOLDERS: usize = 4;
/// How far a loan is passed on.
const FARTHEST: usize = 8;
/// Tags lent to one task.
const MAX_TAGS: usize = 16;

/// Names a task while it lives; 0 is nobody.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TaskNo(pub(crate) u32);

/// Whoever has queued something for a task that waits for it.
pub trait Boostable: Send + Sync {
    /// Somebody of this tag waits for what `task` holds. Called by him, with his locks held.
    fn boost(self: Arc<Self>, task: TaskNo, tag: IoTag);
}

/// What is known of a task.
struct Record {
    number: u32,
    /// Whether anybody lends to it.
    lent: AtomicBool,
    inner: HostMutex<Inner>,
}

#[derive(Default)]
struct Inner {
    tags: Vec<IoTag>,
    /// Where what it waits for is queued.
    on: Option<Arc<dyn Boostable>>,
}

#[expect(clippy::disallowed_types, reason = "rt wraps the host's lock")]
type HostMutex<T> = parking_lot::Mutex<T>;

/// Somebody waits.
struct Wait {
    waiter: u32,
    /// Names the wait while it lasts.
    number: u64,
    /// The lock's address; 0: it is no lock.
    lock: usize,
    holders: [u32; HOLDERS],
    tag: Option<IoTag>,
}

/// Who lives and who waits, among tasks that can wait for each other: those of the process, or those of one
/// simulation. Simulations that run side by side must not feel each other.
#[derive(Default)]
pub(crate) struct Table(HostMutex<Inside>);

#[derive(Default)]
struct Inside {
    records: Vec<Option<Arc<Record>>>,
    waits: Vec<Wait>,
    numbers: u64,
}

/// The running task's table.
fn table() -> Arc<Table> {
    static PROCESS: LazyLock<Arc<Table>> = LazyLock::new(Arc::default);
    match world::simulated() {
        true => world::with(|world| Arc::clone(world.loans())),
        false => Arc::clone(&PROCESS),
    }
}

/// A task's own place, given back when it ends.
struct Own {
    record: Arc<Record>,
    table: Arc<Table>,
}

impl Drop for Own {
    fn drop(&mut self) {
        let mut table = self.table.0.lock();
        table.records[self.record.number as usize - 1] = None;
    }
}

/// What a task knows of itself. In simulation each task has its own, swapped in while it runs.
#[derive(Default)]
pub(crate) struct Person {
    number: u32,
    acting: Option<IoTag>,
    own: Option<Own>,
}

thread_local! {
    static NUMBER: Cell<u32> = const { Cell::new(0) };
    static ACTING: Cell<Option<IoTag>> = const { Cell::new(None) };
    static OWN: RefCell<Option<Own>> = const { RefCell::new(None) };
}

/// Puts the running task's self aside and `other` in its place.
pub(crate) fn swap(other: &mut Person) {
    other.number = NUMBER.replace(other.number);
    other.acting = ACTING.replace(other.acting);
    // A thread that is ending runs no simulation.
    let _ = OWN.try_with(|own| std::mem::swap(&mut *own.borrow_mut(), &mut other.own));
}

/// The running task.
#[inline]
pub fn current_task() -> TaskNo {
    match NUMBER.get() {
        0 => introduce(),
        number => TaskNo(number),
    }
}

#[cold]
fn introduce() -> TaskNo {
    let put = |own: &RefCell<Option<Own>>| {
        let home = table();
        let mut table = home.0.lock();
        let free = table.records.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            table.records.push(None);
            table.records.len() - 1
        });
        let number = u32::try_from(at + 1).expect("there are fewer tasks");
        let record = Arc::new(Record {
            number,
            lent: AtomicBool::new(false),
            inner: HostMutex::new(Inner::default()),
        });
        table.records[at] = Some(Arc::clone(&record));
        drop(table);
        *own.borrow_mut() = Some(Own {
            record,
            table: home,
        });
        NUMBER.set(number);
        number
    };
    // A thread that is ending is nobody any more.
    TaskNo(OWN.try_with(put).unwrap_or(0))
}

fn with_own<R>(f: impl FnOnce(&Record) -> R) -> Option<R> {
    if NUMBER.get() == 0 {
        introduce();
    }
    OWN.try_with(|own| own.borrow().as_ref().map(|own| f(&own.record)))
        .ok()
        .flatten()
}

/// Until it is dropped, the running task acts for somebody.
#[must_use]
pub struct TaskTagGuard(Option<IoTag>);

/// The running task acts for `tag`: what it waits for, it waits for in this name.
pub fn set_task_tag(tag: IoTag) -> TaskTagGuard {
    TaskTagGuard(ACTING.replace(Some(tag)))
}

impl Drop for TaskTagGuard {
    fn drop(&mut self) {
        ACTING.set(self.0);
    }
}

/// Whether anybody waits for what the running task holds.
#[inline]
pub fn has_waiters() -> bool {
    NUMBER.get() != 0 && with_own(|own| own.lent.load(Ordering::Relaxed)) == Some(true)
}

/// `tag`, raised by `raised` for each who waits for what the running task holds.
pub fn effective_tag(tag: IoTag, raised: impl FnMut(IoTag, IoTag) -> IoTag) -> IoTag {
    if !has_waiters() {
        return tag;
    }
    let tags = with_own(|own| own.inner.lock().tags.clone());
    tags.unwrap_or_default().into_iter().fold(tag, raised)
}

/// The running task waits for what is queued at `on`, until this is dropped.
#[must_use]
pub struct BlockedOn(Option<Arc<dyn Boostable>>);

/// The running task waits for what it has queued at `on`: whoever waits for it raises that.
pub fn blocked_on(on: Arc<dyn Boostable>) -> BlockedOn {
    BlockedOn(with_own(|own| own.inner.lock().on.replace(on)).flatten())
}

impl Drop for BlockedOn {
    fn drop(&mut self) {
        let before = self.0.take();
        let on = with_own(|own| std::mem::replace(&mut own.inner.lock().on, before));
        // Perhaps the last to know it: its end is not to happen under a record's lock.
        drop(on);
    }
}

/// The running task waits for others.
#[must_use]
pub struct WaitForEdge(u64);

/// The running task waits for something that these tasks alone can bring about.
pub fn wait_for(holders: &[TaskNo]) -> WaitForEdge {
    let mut known = [0; HOLDERS];
    for (place, holder) in known.iter_mut().zip(holders) {
        *place = holder.0;
    }
    begin(0, known)
}

/// The running task waits for a lock.
#[cold]
pub(crate) fn wait_at(gate: &Gate) -> WaitForEdge {
    gate.lending().waiting.fetch_add(1, Ordering::Relaxed);
    begin(gate.address(), gate.lending().holders())
}

/// The running task, which has waited for the lock, has it now. Whoever else waits for it waits for him.
#[cold]
pub(crate) fn got(gate: &Gate, waiting: WaitForEdge) {
    gate.lending().waiting.fetch_sub(1, Ordering::Relaxed);
    drop(waiting);
    took(gate);
}

/// The running task has taken a lock that others wait for.
#[cold]
pub(crate) fn took(gate: &Gate) {
    let (address, holders) = (gate.address(), gate.lending().holders());
    let table = table();
    let running = {
        let mut table = table.0.lock();
        let mut changed = false;
        for wait in &mut table.waits {
            if wait.lock == address && wait.holders != holders {
                wait.holders = holders;
                changed = true;
            }
        }
        if changed { table.settle() } else { Vec::new() }
    };
    drop(running);
}

fn begin(lock: usize, holders: [u32; HOLDERS]) -> WaitForEdge {
    let waiter = current_task().0;
    let table = table();
    let (number, to_raise) = {
        let mut table = table.0.lock();
        table.numbers += 1;
        let number = table.numbers;
        table.waits.push(Wait {
            waiter,
            number,
            lock,
            holders,
            tag: ACTING.get(),
        });
        (number, table.settle())
    };
    for (on, task, tag) in to_raise {
        on.boost(TaskNo(task), tag);
    }
    WaitForEdge(number)
}

impl Drop for WaitForEdge {
    fn drop(&mut self) {
        let table = table();
        let running = {
            let mut table = table.0.lock();
            table.waits.retain(|wait| wait.number != self.0);
            table.settle()
        };
        // Nothing is raised where a wait ends or another holder is waited for: the new holder runs, and raises
        // what he submits. What is dropped here may be the last to know its queue: not under the table's lock.
        drop(running);
    }
}

type ToRaise = Vec<(Arc<dyn Boostable>, u32, IoTag)>;

impl Inside {
    /// Tells all tasks what is lent to them now: a wait has begun or ended, or another holder is waited for.
    /// What comes back was not lent to them before, and they wait for what they have queued. A loan that goes
    /// on is never gone in between, since its holder looks without the table's lock.
    fn settle(&mut self) -> ToRaise {
        let mut to_raise = Vec::new();
        for (record, tags) in self.records.iter().zip(self.loans()) {
            let Some(record) = record else { continue };
            if tags.is_empty() && !record.lent.load(Ordering::Relaxed) {
                continue;
            }
            let mut inner = record.inner.lock();
            if let Some(on) = &inner.on {
                let new = tags.iter().filter(|tag| !inner.tags.contains(tag));
                to_raise.extend(new.map(|tag| (Arc::clone(on), record.number, *tag)));
            }
            record.lent.store(!tags.is_empty(), Ordering::Relaxed);
            inner.tags = tags;
        }
        to_raise
    }

    /// The tags lent to each task.
    fn loans(&self) -> Vec<Vec<IoTag>> {
        let mut loans = vec![Vec::new(); self.records.len()];
        for wait in &self.waits {
            if let Some(tag) = wait.tag {
                self.lend(wait.waiter, tag, FARTHEST, &mut loans);
            }
        }
        loans
    }

    /// Those for whom `waiter` waits get `tag`.
    fn lend(&self, waiter: u32, tag: IoTag, steps: usize, loans: &mut [Vec<IoTag>]) {
        if steps == 0 {
            return;
        }
        let own = self.waits.iter().filter(|wait| wait.waiter == waiter);
        for holder in own.flat_map(|wait| wait.holders) {
            let at = (holder as usize).wrapping_sub(1);
            let Some(tags) = loans.get_mut(at).filter(|_| holder != waiter) else {
                continue;
            };
            if tags.contains(&tag) || tags.len() == MAX_TAGS {
                continue;
            }
            tags.push(tag);
            self.lend(holder, tag, steps - 1, loans);
        }
    }
}

/// Who holds a lock, and how many wait for it.
pub(crate) struct Lending {
    holders: [AtomicU32; HOLDERS],
    pub(crate) waiting: AtomicU32,
}

impl Lending {
    pub(crate) const fn new() -> Self {
        Self {
            holders: [const { AtomicU32::new(0) }; HOLDERS],
            waiting: AtomicU32::new(0),
        }
    }

    fn holders(&self) -> [u32; HOLDERS] {
        std::array::from_fn(|at| self.holders[at].load(Ordering::Relaxed))
    }

    /// The running task holds the lock.
    #[inline]
    pub(crate) fn enter(&self) {
        let me = current_task().0;
        for holder in &self.holders {
            let free = holder.load(Ordering::Relaxed) == 0;
            let put = || holder.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed);
            if free && put().is_ok() {
                return;
            }
        }
    }

    /// It does no longer.
    #[inline]
    pub(crate) fn leave(&self) {
        let me = NUMBER.get();
        for holder in &self.holders {
            if holder.load(Ordering::Relaxed) == me {
                holder.store(0, Ordering::Relaxed);
                return;
            }
        }
    }

    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}
