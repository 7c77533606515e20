//! Admission control: which request enters the volume now, and which is queued.
//!
//! Problem: a request occupies its service thread until it is answered. 200 copies, throttled writes or fsyncs of one
//! user occupied all threads, and a look-up of another user waited for seconds.
//!
//! Rule: requests have five classes, and each class has its own slots ([`Limits`]). A request without a slot is queued:
//! without a thread on `/dev/fuse`, with only the thread of its ring entry on io_uring. So a look-up finds a slot
//! regardless of the number of long requests. Part of each class is reserved for users with fewer than
//! [`NEWCOMER_REQUESTS_MAX`] requests in service. A freed slot goes to the user with the fewest requests in service
//! (max-min fairness), and among equals in order of arrival.
//!
//! A queued request is answered EINTR as soon as its caller is being killed. INTERRUPT comes once, at the first signal of any
//! kind, and none comes when SIGKILL follows it. So the queue keeps which requests were interrupted; their callers are looked
//! at again before they are served, and every [`KILL_POLL`] while they wait ([`watch_interrupted`]).
//!
//! Cost: while less than half of a class's slots are taken, entering and leaving cost one atomic operation each, and
//! users are not counted. Slots of [`Class::Bulk`] are always counted by user.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use steadfs_rt::{Event, Instant, Mutex, Rank, now};
use zerocopy::FromBytes;

use crate::ioctl;
use crate::request::RawRequest;
use crate::waiting::WaitingRequest;
use crate::wire::{self, InHeader, opcode as op};

/// Classes of requests by how long they may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Reads names or attributes.
    Short,
    /// Changes names or attributes: it may wait for log space.
    Change,
    /// Reads or writes data: it may wait for the device or for the dirty limit.
    Io,
    /// Works through a whole file or volume.
    Bulk,
    /// Is for a control file: it shows why others wait, or ends their wait, so none of them takes its slot.
    Control,
}

impl Class {
    const ALL: [Self; CLASSES] = [
        Self::Short,
        Self::Change,
        Self::Io,
        Self::Bulk,
        Self::Control,
    ];

    /// A request's class; `None` if it is served at once in any case, because other requests wait for it.
    pub fn of(raw: &RawRequest<'_>, control: impl Fn(u64) -> bool) -> Option<Self> {
        Some(match raw.header.opcode {
            op::INIT | op::DESTROY | op::INTERRUPT => return None,
            _ if control(raw.header.nodeid) => Self::Control,
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 | op::FALLOCATE => Self::Bulk,
            op::IOCTL if ioctl::is_short(raw.op) => Self::Change,
            op::IOCTL => Self::Bulk,
            op::SETATTR => match wire::SetattrIn::read_from_prefix(raw.op) {
                Ok((arg, _)) if arg.valid & wire::fattr::SIZE != 0 => Self::Bulk,
                _ => Self::Change,
            },
            op::READ
            | op::WRITE
            | op::FSYNC
            | op::FSYNCDIR
            | op::SYNCFS
            | op::LSEEK
            | op::FORGET
            | op::BATCH_FORGET => Self::Io,
            op::MKNOD
            | op::MKDIR
            | op::SYMLINK
            | op::LINK
            | op::TMPFILE
            | op::UNLINK
            | op::RMDIR
            | op::RENAME
            | op::RENAME2
            | op::SETXATTR
            | op::REMOVEXATTR => Self::Change,
            _ => Self::Short,
        })
    }
}

const CLASSES: usize = 5;

/// How often the callers of interrupted requests in the queue are looked at.
const KILL_POLL: Duration = Duration::from_millis(100);

/// Slots of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    /// For all users.
    all: usize,
    /// In addition, for users with fewer than [`NEWCOMER_REQUESTS_MAX`] requests of the class in service.
    newcomers: usize,
}

/// A user with fewer requests of a class in service is a newcomer to that class.
const NEWCOMER_REQUESTS_MAX: usize = 2;

impl Limits {
    /// The slots of each class if about `threads` requests are to be served at a time.
    fn of(threads: usize) -> [Self; CLASSES] {
        let part =
            |numerator: usize, denominator: usize| (threads * numerator / denominator).max(1);
        let class = |all, newcomers| Self { all, newcomers };
        [
            class(part(1, 4), part(1, 8)),
            class(part(1, 4), part(1, 8)),
            class(part(1, 2), part(1, 4)),
            class(part(1, 16), part(1, 16)),
            class(part(1, 16), 0),
        ]
    }

    fn max(self) -> usize {
        self.all + self.newcomers
    }
}

/// Largest number of requests in service if there are slots for about `threads`.
pub fn max_in_service(threads: usize) -> usize {
    Limits::of(threads).iter().map(|limits| limits.max()).sum()
}

/// Permission to be in service, given back by [`Admission::leave`].
#[derive(Clone, Copy, Debug)]
#[must_use = "a slot is given back"]
pub struct Slot {
    class: Class,
    /// The user it is charged to, if users are counted.
    user: Option<u32>,
}

/// The end of a request's wait in the queue.
#[derive(Clone, Copy, Debug)]
pub enum Verdict {
    /// It has a slot.
    #[cfg_attr(
        not(feature = "io-uring"),
        allow(dead_code, reason = "a queued message gets its slot from the queue")
    )]
    Admitted {
        slot: Slot,
        /// Its caller got a signal meanwhile.
        interrupted: bool,
    },
    /// Its caller is being killed, or the connection is gone: it is answered EINTR.
    Interrupted,
}

/// A request that found no slot.
pub struct Queued {
    /// The kernel's number of the request.
    pub unique: u64,
    /// Its caller; 0 if the caller is not visible from here.
    pub pid: u32,
    pub opcode: u32,
    pub node: u64,
    pub since: Instant,
    pub waiter: Waiter,
    /// Its caller got a signal.
    interrupted: bool,
}

/// A request that was queued, and its slot.
#[must_use = "it is served"]
pub struct Waiting {
    queued: Queued,
    slot: Slot,
}

/// What serves a queued request.
pub enum Waiter {
    /// The thread that frees a slot calls this, which serves the request; that thread then gives back the new slot.
    Message(Box<dyn FnOnce(Verdict) + Send>),
    /// The thread of the request itself, which waits for this event: only requests of a ring have one.
    #[cfg_attr(
        not(feature = "io-uring"),
        allow(dead_code, reason = "there are no rings")
    )]
    Thread(Arc<Event<Verdict>>),
}

/// The slots of a mount, and the requests that wait for one.
pub struct Admission {
    in_service: [AtomicUsize; CLASSES],
    /// While fewer requests of a class are in service, users are not counted.
    uncounted: [AtomicUsize; CLASSES],
    queued: AtomicUsize,
    /// Whether a thread is being killed. Never called under the lock: a contained server asks its broker.
    is_dying: fn(u32) -> bool,
    /// About as many slots are there if no thread is refused.
    threads: usize,
    state: Mutex<AdmissionState>,
}

struct AdmissionState {
    limits: [Limits; CLASSES],
    users: [BTreeMap<u32, UserQueue>; CLASSES],
    /// Numbers the queued requests in order of arrival.
    arrivals: u64,
    closed: bool,
    /// A task polls the callers of interrupted requests.
    watched: bool,
}

#[derive(Default)]
struct UserQueue {
    in_service: usize,
    queue: VecDeque<(u64, Queued)>,
}

impl Admission {
    /// Slots for about `threads` requests. `is_dying`: whether a thread is being killed.
    pub fn new(threads: usize, is_dying: fn(u32) -> bool) -> Self {
        let limits = Limits::of(threads);
        let state = AdmissionState {
            limits,
            users: Default::default(),
            arrivals: 0,
            closed: false,
            watched: false,
        };
        Self {
            in_service: Default::default(),
            uncounted: uncounted(&limits).map(AtomicUsize::new),
            queued: AtomicUsize::new(0),
            is_dying,
            threads,
            state: Mutex::new(Rank::Leaf, state),
        }
    }

    /// Has as many slots as `threads` threads can serve, one of which has to stay free, but not more than at first. Returns
    /// whether these are all. Requests that wait for new slots are left to [`Admission::next_waiting`].
    pub fn follow_threads(&self, threads: usize) -> bool {
        let enough = |&slots: &usize| slots == 1 || max_in_service(slots) < threads;
        let slots = (1..=self.threads).rev().find(enough).unwrap_or(1);
        let limits = Limits::of(slots);
        self.state.lock().limits = limits;
        for (bound, new) in self.uncounted.iter().zip(uncounted(&limits)) {
            bound.store(new, Ordering::Relaxed);
        }
        slots == self.threads
    }

    /// Whether there are as many slots as at first.
    pub fn has_all_slots(&self) -> bool {
        self.state.lock().limits == Limits::of(self.threads)
    }

    /// Slots for reads and writes of all users.
    #[cfg(test)]
    pub fn io_slots(&self) -> usize {
        self.state.lock().limits[Class::Io as usize].all
    }

    /// Takes a slot for a request of `user`. `None`: the request that `queued` returns is queued until there is one.
    pub fn enter(&self, class: Class, user: u32, queued: impl FnOnce() -> Queued) -> Option<Slot> {
        let bound = self.uncounted[class as usize].load(Ordering::Relaxed);
        if self.take(class, bound) {
            return Some(Slot { class, user: None });
        }
        let mut state = self.state.lock();
        // The last requests of a closed connection are served without a limit.
        let max = match state.closed {
            true => usize::MAX,
            false => state.max(class, user),
        };
        // Before the last look for a slot: a thread that frees one later sees it.
        self.queued.fetch_add(1, Ordering::SeqCst);
        if self.take(class, max) {
            self.queued.fetch_sub(1, Ordering::SeqCst);
            state.user(class, user).in_service += 1;
            let user = Some(user);
            return Some(Slot { class, user });
        }
        state.arrivals += 1;
        let arrival = state.arrivals;
        state.user(class, user).queue.push_back((arrival, queued()));
        None
    }

    /// Counts one more request of the class in service if there are fewer than `max`.
    fn take(&self, class: Class, max: usize) -> bool {
        let more = |n| (n < max).then_some(n + 1);
        self.in_service[class as usize]
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, more)
            .is_ok()
    }

    /// Gives a slot back, then serves the requests queued for it, or wakes the thread that does.
    pub fn leave(&self, slot: Slot) {
        if let Some(waiting) = self.release(slot) {
            self.serve(waiting);
        }
    }

    /// Serves a queued request and those that wait for its slot, or wakes the thread that does.
    pub fn serve(&self, waiting: Waiting) {
        let mut next = Some(waiting);
        while let Some(Waiting { queued, slot }) = next {
            let interrupted = queued.interrupted;
            if interrupted && (self.is_dying)(queued.pid) {
                queued.end();
                next = self.release(slot);
                continue;
            }
            let admitted = Verdict::Admitted { slot, interrupted };
            match queued.waiter {
                Waiter::Thread(thread) => return thread.set(admitted),
                Waiter::Message(serve) => serve(admitted),
            }
            next = self.release(slot);
        }
    }

    /// A queued request for which there is a slot.
    pub fn next_waiting(&self) -> Option<Waiting> {
        if self.queued.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut state = self.state.lock();
        Class::ALL
            .iter()
            .find_map(|&class| self.take_next(&mut state, class))
    }

    /// Gives a slot back; returns the next request with its slot.
    fn release(&self, slot: Slot) -> Option<Waiting> {
        let Slot { class, user } = slot;
        let in_service = &self.in_service[class as usize];
        let mut state = match user {
            Some(user) => {
                let mut state = self.state.lock();
                in_service.fetch_sub(1, Ordering::SeqCst);
                state.user(class, user).in_service -= 1;
                state.forget_idle(class as usize, user);
                state
            }
            None => {
                in_service.fetch_sub(1, Ordering::SeqCst);
                // A request that has found no slot before that is queued, or about to be under the lock.
                if self.queued.load(Ordering::SeqCst) == 0 {
                    return None;
                }
                self.state.lock()
            }
        };
        self.take_next(&mut state, class)
    }

    /// Takes the next request of the class out of the queue if there is a slot for it.
    fn take_next(&self, state: &mut AdmissionState, class: Class) -> Option<Waiting> {
        let user = state.next(class)?;
        if !self.take(class, state.max(class, user)) {
            return None;
        }
        let account = state.user(class, user);
        account.in_service += 1;
        let (_, queued) = account.queue.pop_front()?;
        self.queued.fetch_sub(1, Ordering::AcqRel);
        let user = Some(user);
        let slot = Slot { class, user };
        Some(Waiting { queued, slot })
    }

    /// Records that the caller of a queued request got a signal, and ends its wait if it is being killed; returns whether the
    /// request is queued.
    pub fn interrupt(&self, unique: u64) -> bool {
        let pid = {
            let mut state = self.state.lock();
            let Some(queued) = state.find(unique).and_then(|at| state.queued_mut(at)) else {
                return false;
            };
            queued.interrupted = true;
            queued.pid
        };
        if (self.is_dying)(pid) {
            self.end_wait(unique);
        }
        true
    }

    /// Ends the wait of a request if it is still queued.
    fn end_wait(&self, unique: u64) {
        let removed = {
            let mut state = self.state.lock();
            let Some((class, user, at)) = state.find(unique) else {
                return;
            };
            let queue = state.users[class].get_mut(&user);
            let removed = queue.and_then(|user| user.queue.remove(at));
            self.queued.fetch_sub(1, Ordering::AcqRel);
            state.forget_idle(class, user);
            removed
        };
        if let Some((_, queued)) = removed {
            queued.end();
        }
    }

    /// Whether interrupted requests are queued that no task watches; one has to from now on.
    fn begin_watch(&self) -> bool {
        let mut state = self.state.lock();
        let begins = !state.watched && state.interrupted().next().is_some();
        state.watched |= begins;
        begins
    }

    /// Ends the waits of interrupted requests whose callers are being killed. Returns whether others are left; if not, the
    /// watch has ended.
    fn end_killed(&self) -> bool {
        let interrupted: Vec<_> = {
            let mut state = self.state.lock();
            let interrupted: Vec<_> = state.interrupted().collect();
            state.watched = !interrupted.is_empty();
            interrupted
        };
        for &(unique, pid) in &interrupted {
            if (self.is_dying)(pid) {
                self.end_wait(unique);
            }
        }
        !interrupted.is_empty()
    }

    /// The queued requests.
    pub fn waiting(&self) -> Vec<WaitingRequest> {
        let state = self.state.lock();
        let users = state.users.iter().flat_map(BTreeMap::values);
        let waiting = |(_, queued): &(u64, Queued)| WaitingRequest {
            pid: queued.pid,
            opcode: queued.opcode,
            node: queued.node,
            steps: vec!["slot"],
            time: queued.since.elapsed(),
        };
        users
            .flat_map(|user| user.queue.iter().map(waiting))
            .collect()
    }

    /// The connection is gone: ends the wait of all queued requests.
    pub fn close(&self) {
        let queues: Vec<_> = {
            let mut state = self.state.lock();
            state.closed = true;
            let users = state.users.iter_mut().flat_map(BTreeMap::values_mut);
            users.map(|user| std::mem::take(&mut user.queue)).collect()
        };
        for (_, queued) in queues.into_iter().flatten() {
            self.queued.fetch_sub(1, Ordering::AcqRel);
            queued.end();
        }
    }
}

/// Starts a task that polls the callers of interrupted requests while there are any in the queue, if there is none.
pub fn watch_interrupted(admission: &Arc<Admission>) {
    if !admission.begin_watch() {
        return;
    }
    let watched = Arc::clone(admission);
    let watch = move || {
        while watched.end_killed() {
            steadfs_rt::sleep(KILL_POLL);
        }
    };
    if let Err(error) = steadfs_rt::try_spawn("fuse-killed", watch) {
        tracing::debug!(%error, "a killed caller waits for its turn in the queue");
        admission.state.lock().watched = false;
    }
}

impl Queued {
    /// A request that arrives now.
    pub fn of(header: &InHeader, waiter: Waiter) -> Self {
        Self {
            unique: header.unique,
            pid: header.pid,
            opcode: header.opcode,
            node: header.nodeid,
            since: now(),
            waiter,
            interrupted: false,
        }
    }

    fn end(self) {
        match self.waiter {
            Waiter::Message(serve) => serve(Verdict::Interrupted),
            Waiter::Thread(thread) => thread.set(Verdict::Interrupted),
        }
    }
}

/// Half of each class's slots, but 0 for bulk requests.
fn uncounted(limits: &[Limits; CLASSES]) -> [usize; CLASSES] {
    let mut bounds = limits.map(|limits| limits.all / 2);
    bounds[Class::Bulk as usize] = 0;
    bounds
}

impl AdmissionState {
    fn user(&mut self, class: Class, user: u32) -> &mut UserQueue {
        self.users[class as usize].entry(user).or_default()
    }

    /// Number of slots that requests of this user may fill.
    fn max(&self, class: Class, user: u32) -> usize {
        let limits = self.limits[class as usize];
        match self.users[class as usize].get(&user) {
            Some(user) if user.in_service >= NEWCOMER_REQUESTS_MAX => limits.all,
            _ => limits.max(),
        }
    }

    /// The user whose request is next: the one with the fewest in service, then the one that has waited longest.
    fn next(&self, class: Class) -> Option<u32> {
        let users = self.users[class as usize].iter();
        let waiting = users.filter_map(|(&number, user)| {
            let (arrival, _) = user.queue.front()?;
            Some((user.in_service, *arrival, number))
        });
        waiting.min().map(|(.., number)| number)
    }

    fn forget_idle(&mut self, class: usize, user: u32) {
        let users = &mut self.users[class];
        if users
            .get(&user)
            .is_some_and(|user| user.in_service == 0 && user.queue.is_empty())
        {
            users.remove(&user);
        }
    }

    /// Number and caller of each queued request whose caller got a signal.
    fn interrupted(&self) -> impl Iterator<Item = (u64, u32)> {
        let users = self.users.iter().flat_map(BTreeMap::values);
        let queued = users.flat_map(|user| user.queue.iter().map(|(_, queued)| queued));
        queued
            .filter(|queued| queued.interrupted)
            .map(|queued| (queued.unique, queued.pid))
    }

    fn queued_mut(&mut self, (class, user, at): (usize, u32, usize)) -> Option<&mut Queued> {
        let queue = &mut self.users[class].get_mut(&user)?.queue;
        queue.get_mut(at).map(|(_, queued)| queued)
    }

    /// Class, user and place in the queue of a request.
    fn find(&self, unique: u64) -> Option<(usize, u32, usize)> {
        self.users.iter().enumerate().find_map(|(class, users)| {
            users.iter().find_map(|(&number, user)| {
                let at = user
                    .queue
                    .iter()
                    .position(|(_, one)| one.unique == unique)?;
                Some((class, number, at))
            })
        })
    }
}

#[cfg(test)]
mod tests;
