//! Admission control: which request enters the volume now, and which is queued.
//!
//! Problem: a request keeps its service thread until it is answered. 200 copies, throttled writes or fsyncs of one user
//! took all threads, and a look-up of any other user waited for seconds.
//!
//! Rule: requests have four classes, and each class has slots of its own ([`Limits`]). A request for which there is no
//! slot is queued without a service thread (`/dev/fuse`) or keeps only the thread of its ring entry. So however many
//! requests that take long have come, a look-up finds a slot. Of each class a part is kept for users who have next to
//! nothing in service, and a slot that becomes free goes to the queued request of the user who has fewest (max-min
//! fairness), in order of arrival.
//!
//! Cost: where less than half of a class's slots are taken, entering and leaving is one atomic operation each; only then
//! are users counted. Slots of [`Class::Bulk`] are always counted.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use steadfs_rt::{Event, Mutex, Rank};
use zerocopy::FromBytes;

use crate::ioctl;
use crate::request::RawRequest;
use crate::wire::{self, opcode as op};

/// How long a request may take.
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
}

impl Class {
    /// A request's class; `None`: it is served at once whatever else is, since others wait for it.
    pub fn of(raw: &RawRequest<'_>, control: impl Fn(u64) -> bool) -> Option<Self> {
        Some(match raw.header.opcode {
            op::INIT | op::DESTROY | op::INTERRUPT => return None,
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 | op::FALLOCATE => Self::Bulk,
            op::IOCTL if ioctl::is_short(raw.op) => Self::Change,
            op::IOCTL => Self::Bulk,
            op::SETATTR => match wire::SetattrIn::read_from_prefix(raw.op) {
                Ok((arg, _)) if arg.valid & wire::fattr::SIZE != 0 => Self::Bulk,
                _ => Self::Change,
            },
            // A control file may be what ends the wait of others.
            op::READ | op::WRITE | op::FSYNC if control(raw.header.nodeid) => Self::Short,
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

const CLASSES: usize = 4;

/// Slots of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    /// For every user.
    all: usize,
    /// For users with fewer than [`FEW`] of the class in service, besides.
    newcomers: usize,
}

/// A user with fewer requests of a class in service is a newcomer there.
const FEW: usize = 2;

impl Limits {
    /// The slots of the classes where `threads` requests are to be served at a time, by most users.
    fn of(threads: usize) -> [Self; CLASSES] {
        let part =
            |numerator: usize, denominator: usize| (threads * numerator / denominator).max(1);
        let class = |all, newcomers| Self { all, newcomers };
        [
            class(part(1, 4), part(1, 8)),
            class(part(1, 4), part(1, 8)),
            class(part(1, 2), part(1, 4)),
            class(part(1, 16), part(1, 16)),
        ]
    }

    fn most(self) -> usize {
        self.all + self.newcomers
    }
}

/// The requests that are in service at a time, at most, where there are slots for `threads`.
pub fn most_in_service(threads: usize) -> usize {
    Limits::of(threads).iter().map(|limits| limits.most()).sum()
}

/// A place in service, given back by [`Admission::leave`].
#[derive(Clone, Copy, Debug)]
#[must_use = "a slot is given back"]
pub struct Slot {
    class: Class,
    /// The user on whose account it is, where users are counted.
    user: Option<u32>,
}

/// What becomes of a queued request.
#[derive(Clone, Copy, Debug)]
pub enum Verdict {
    /// It has a slot.
    Admitted(Slot),
    /// Its caller is being killed, or the connection is gone: it is answered EINTR.
    Interrupted,
}

/// A request that found no slot.
pub struct Queued {
    /// The kernel's number for it.
    pub unique: u64,
    /// Its caller, 0 where that is not seen from here.
    pub pid: u32,
    /// What serves it.
    pub waiter: Waiter,
}

/// What serves a queued request.
pub enum Waiter {
    /// The thread that gives its slot back calls this, which serves the request. The slot is given back by the caller.
    Message(Box<dyn FnOnce(Verdict) + Send>),
    /// A thread of its own, which waits for this.
    Thread(Arc<Event<Verdict>>),
}

/// The slots of a mount, and the requests that wait for one.
pub struct Admission {
    in_service: [AtomicUsize; CLASSES],
    /// As long as fewer of a class are in service, users are not counted.
    uncounted: [AtomicUsize; CLASSES],
    queued: AtomicUsize,
    state: Mutex<State>,
}

struct State {
    limits: [Limits; CLASSES],
    users: [BTreeMap<u32, User>; CLASSES],
    /// Numbers requests in order of arrival.
    arrivals: u64,
    closed: bool,
}

#[derive(Default)]
struct User {
    in_service: usize,
    queue: VecDeque<(u64, Queued)>,
}

impl Admission {
    /// Slots for about `threads` requests.
    pub fn new(threads: usize) -> Self {
        let limits = Limits::of(threads);
        let state = State {
            limits,
            users: Default::default(),
            arrivals: 0,
            closed: false,
        };
        Self {
            in_service: Default::default(),
            uncounted: uncounted(&limits).map(AtomicUsize::new),
            queued: AtomicUsize::new(0),
            state: Mutex::new(Rank::Leaf, state),
        }
    }

    /// The host allows no more than `threads` threads, one of which has to stay free.
    pub fn shrink(&self, threads: usize) {
        let mut slots = threads;
        while slots > 1 && most_in_service(slots) >= threads {
            slots -= 1;
        }
        let limits = Limits::of(slots);
        let mut state = self.state.lock();
        if limits[Class::Io as usize].all < state.limits[Class::Io as usize].all {
            state.limits = limits;
            for (bound, new) in self.uncounted.iter().zip(uncounted(&limits)) {
                bound.store(new, Ordering::Relaxed);
            }
        }
    }

    /// A slot for a request of `user`, or `None`: then what `queued` returns is served when there is one.
    pub fn enter(&self, class: Class, user: u32, queued: impl FnOnce() -> Queued) -> Option<Slot> {
        let bound = self.uncounted[class as usize].load(Ordering::Relaxed);
        if self.take(class, bound) {
            return Some(Slot { class, user: None });
        }
        let mut state = self.state.lock();
        // What is still read from a connection that is gone is served as it comes.
        let most = match state.closed {
            true => usize::MAX,
            false => state.most(class, user),
        };
        if self.take(class, most) {
            state.user(class, user).in_service += 1;
            let user = Some(user);
            return Some(Slot { class, user });
        }
        state.arrivals += 1;
        let arrival = state.arrivals;
        state.user(class, user).queue.push_back((arrival, queued()));
        self.queued.fetch_add(1, Ordering::AcqRel);
        None
    }

    /// Counts one more of the class in service, if there are fewer than `most`.
    fn take(&self, class: Class, most: usize) -> bool {
        let more = |n| (n < most).then_some(n + 1);
        self.in_service[class as usize]
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .is_ok()
    }

    /// Gives a slot back, and serves what was queued for it, or wakes the thread that does.
    pub fn leave(&self, slot: Slot) {
        let mut slot = slot;
        while let Some((queued, next)) = self.release(slot) {
            match queued.waiter {
                Waiter::Thread(thread) => return thread.set(Verdict::Admitted(next)),
                Waiter::Message(serve) => serve(Verdict::Admitted(next)),
            }
            slot = next;
        }
    }

    /// Gives a slot back; the next request, which has one now.
    fn release(&self, slot: Slot) -> Option<(Queued, Slot)> {
        let Slot { class, user } = slot;
        if user.is_none() && self.queued.load(Ordering::Acquire) == 0 {
            self.in_service[class as usize].fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        let mut state = self.state.lock();
        self.in_service[class as usize].fetch_sub(1, Ordering::AcqRel);
        if let Some(user) = user {
            state.user(class, user).in_service -= 1;
            state.forget_idle(class, user);
        }
        let user = state.next(class)?;
        if !self.take(class, state.most(class, user)) {
            return None;
        }
        let account = state.user(class, user);
        account.in_service += 1;
        let (_, queued) = account.queue.pop_front()?;
        self.queued.fetch_sub(1, Ordering::AcqRel);
        let user = Some(user);
        Some((queued, Slot { class, user }))
    }

    /// Ends the wait of a queued request if its caller `is_dying`; whether it is or was queued.
    pub fn interrupt(&self, unique: u64, is_dying: impl Fn(u32) -> bool) -> bool {
        let found = {
            let mut state = self.state.lock();
            let Some((class, user, at)) = state.find(unique) else {
                return false;
            };
            let queue = &mut state.users[class]
                .get_mut(&user)
                .map(|user| &mut user.queue);
            let Some(queue) = queue else {
                return false;
            };
            if !is_dying(queue[at].1.pid) {
                return true;
            }
            let removed = queue.remove(at);
            self.queued.fetch_sub(1, Ordering::AcqRel);
            removed
        };
        if let Some((_, queued)) = found {
            queued.end();
        }
        true
    }

    /// The connection is gone: nothing is queued any more.
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

impl Queued {
    fn end(self) {
        match self.waiter {
            Waiter::Message(serve) => serve(Verdict::Interrupted),
            Waiter::Thread(thread) => thread.set(Verdict::Interrupted),
        }
    }
}

/// Half of each class's slots, but none of bulk requests'.
fn uncounted(limits: &[Limits; CLASSES]) -> [usize; CLASSES] {
    let mut bounds = limits.map(|limits| limits.all / 2);
    bounds[Class::Bulk as usize] = 0;
    bounds
}

impl State {
    fn user(&mut self, class: Class, user: u32) -> &mut User {
        self.users[class as usize].entry(user).or_default()
    }

    /// Slots that requests of this user may fill.
    fn most(&self, class: Class, user: u32) -> usize {
        let limits = self.limits[class as usize];
        match self.users[class as usize].get(&user) {
            Some(user) if user.in_service >= FEW => limits.all,
            _ => limits.most(),
        }
    }

    /// The user whose request is next: the one with fewest in service, then the one that has waited longest.
    fn next(&self, class: Class) -> Option<u32> {
        let users = self.users[class as usize].iter();
        let waiting = users.filter_map(|(&number, user)| {
            let (arrival, _) = user.queue.front()?;
            Some((user.in_service, *arrival, number))
        });
        waiting.min().map(|(.., number)| number)
    }

    fn forget_idle(&mut self, class: Class, user: u32) {
        let users = &mut self.users[class as usize];
        if users
            .get(&user)
            .is_some_and(|user| user.in_service == 0 && user.queue.is_empty())
        {
            users.remove(&user);
        }
    }

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
