//! INTERRUPT: which requests have a caller with a pending signal.
//!
//! The kernel sends INTERRUPT once for a request whose caller gets a signal, whichever signal that is, and then waits
//! for the reply: without one even SIGKILL takes as long as the request. Linux does not interrupt regular files by
//! signals with handlers (programs do not expect EINTR from write(2) or fsync(2), and Go's runtime sends itself signals
//! all the time). So only a caller that is being killed is answered EINTR, which no program sees. A copy ends early at
//! any signal: its caller expects short counts.
//!
//! A service thread records the request that it serves in a [`ServedRequest`], at the cost of two stores; INTERRUPT
//! searches all of them. INTERRUPT may overtake its request, or come between the queue and the thread: the last
//! [`EARLY_INTERRUPTS_MAX`] numbers that were not found are remembered for [`EARLY_INTERRUPT_AGE_MAX`]. Those of requests
//! that were answered meanwhile are never found; while there are none, a request costs one more load.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use steadfs_rt::waits::TaskWaits;
use steadfs_rt::{Instant, Mutex, Rank, now};
use steadfs_vfs::CallerState;

use crate::host::{self, Answer, Question};
use crate::waiting::WaitingRequest;
use crate::wire::InHeader;

/// Largest number of interrupted requests that are remembered before they arrive.
const EARLY_INTERRUPTS_MAX: usize = 256;
/// How long. A thread that has read a request serves or queues it at once, if it has a CPU.
const EARLY_INTERRUPT_AGE_MAX: Duration = Duration::from_secs(10);

/// The request that a service thread serves now. The kernel uses no request number 0.
#[derive(Debug, Default)]
pub(crate) struct ServedRequest {
    unique: AtomicU64,
    pid: AtomicU64,
    interrupted: AtomicU64,
    /// 0: the request is answered.
    opcode: AtomicU32,
    node: AtomicU64,
    /// The request for whose caller a group was asked last, and twice the group, plus 1 if the caller is in it: a request may ask
    /// several times.
    asked_of: AtomicU64,
    asked: AtomicU64,
}

impl ServedRequest {
    /// Records that the caller of this request, which is served now or next, got a signal.
    pub fn interrupt(&self, unique: u64) {
        self.interrupted.store(unique, Ordering::Release);
    }

    /// Whether the caller got a signal.
    pub fn is_interrupted(&self) -> bool {
        let unique = self.unique.load(Ordering::Acquire);
        unique != 0 && self.interrupted.load(Ordering::Acquire) == unique
    }
}

impl CallerState for ServedRequest {
    fn is_killed(&self) -> bool {
        self.is_interrupted() && is_dying(self.pid.load(Ordering::Relaxed) as u32)
    }

    fn is_in_group(&self, gid: u32) -> bool {
        let pid = self.pid.load(Ordering::Relaxed) as u32;
        if pid == 0 {
            return false;
        }
        let (unique, group) = (self.unique.load(Ordering::Relaxed), u64::from(gid) << 1);
        let asked = self.asked.load(Ordering::Relaxed);
        if self.asked_of.load(Ordering::Relaxed) == unique && asked & !1 == group {
            return asked & 1 != 0;
        }
        let is_in = host::is(Question::IsInGroup { pid, gid });
        self.asked
            .store(group | u64::from(is_in), Ordering::Relaxed);
        self.asked_of.store(unique, Ordering::Relaxed);
        is_in
    }

    fn process(&self) -> Option<u64> {
        let pid = self.pid.load(Ordering::Relaxed) as u32;
        match (pid != 0).then(|| host::ask(Question::ProcessOf(pid)))? {
            Answer::Word(process) => Some(process.into()),
            _ => None,
        }
    }

    fn has_ended(&self, process: u64) -> bool {
        u32::try_from(process).is_ok_and(|process| host::is(Question::HasEnded(process)))
    }
}

/// The requests that the service threads of a mount serve now.
pub(crate) struct Interrupts {
    state: Mutex<InterruptState>,
    /// Number of remembered interrupts.
    early: AtomicUsize,
}

struct ServiceThread {
    served: Arc<ServedRequest>,
    waits: Arc<TaskWaits>,
}

#[derive(Default)]
struct InterruptState {
    threads: Vec<ServiceThread>,
    early_interrupts: VecDeque<(u64, Instant)>,
}

impl InterruptState {
    /// Forgets a remembered interrupt; returns whether there is one.
    fn take_early(&mut self, unique: u64) -> bool {
        let is_old = |(_, since): &(u64, Instant)| since.elapsed() > EARLY_INTERRUPT_AGE_MAX;
        while self.early_interrupts.front().is_some_and(is_old) {
            self.early_interrupts.pop_front();
        }
        let mut early = self.early_interrupts.iter();
        let at = early.position(|&(one, _)| one == unique);
        at.and_then(|at| self.early_interrupts.remove(at)).is_some()
    }

    fn put_early(&mut self, unique: u64) {
        if self.early_interrupts.len() == EARLY_INTERRUPTS_MAX {
            self.early_interrupts.pop_front();
        }
        self.early_interrupts.push_back((unique, now()));
    }
}

impl Interrupts {
    pub fn new() -> Self {
        Self {
            state: Mutex::new(Rank::Leaf, InterruptState::default()),
            early: AtomicUsize::new(0),
        }
    }

    /// Registers the running service thread, until it drops the result.
    pub fn register_thread(&self) -> Arc<ServedRequest> {
        let served = Arc::new(ServedRequest::default());
        let mut state = self.state.lock();
        // The only other reference of a thread that has exited is ours.
        state
            .threads
            .retain(|thread| Arc::strong_count(&thread.served) > 1);
        state.threads.push(ServiceThread {
            served: served.clone(),
            waits: TaskWaits::of_task(),
        });
        served
    }

    /// Records that the thread now serves this request.
    pub fn begin(&self, served: &ServedRequest, header: &InHeader) {
        served.pid.store(header.pid.into(), Ordering::Relaxed);
        served.node.store(header.nodeid, Ordering::Relaxed);
        served.opcode.store(header.opcode, Ordering::Release);
        served.unique.store(header.unique, Ordering::SeqCst);
        if self.forget_early(header.unique) {
            served.interrupt(header.unique);
        }
    }

    /// Records that the thread has served its request.
    pub fn end(&self, served: &ServedRequest) {
        served.opcode.store(0, Ordering::Release);
    }

    /// The requests in service whose threads wait.
    pub fn waiting(&self) -> Vec<WaitingRequest> {
        let waiting = |thread: &ServiceThread| {
            let served = &thread.served;
            let opcode = served.opcode.load(Ordering::Acquire);
            let wait = thread.waits.wait().filter(|_| opcode != 0)?;
            Some(WaitingRequest {
                pid: served.pid.load(Ordering::Relaxed) as u32,
                opcode,
                node: served.node.load(Ordering::Relaxed),
                steps: wait.steps,
                time: wait.time,
            })
        };
        // A copy: a queue is asked, whose lock comes before this one.
        let threads: Vec<_> = {
            let state = self.state.lock();
            let copy = |thread: &ServiceThread| ServiceThread {
                served: thread.served.clone(),
                waits: thread.waits.clone(),
            };
            state.threads.iter().map(copy).collect()
        };
        threads.iter().filter_map(waiting).collect()
    }

    /// Records that the caller of this request got a signal. `queue` searches the queued requests.
    pub fn interrupt(&self, unique: u64, queue: impl Fn() -> bool) {
        if queue() {
            return;
        }
        {
            let mut state = self.state.lock();
            // Before the threads are searched: one that begins the request later sees it, and waits for the lock.
            self.early.fetch_add(1, Ordering::SeqCst);
            let serves =
                |thread: &&ServiceThread| thread.served.unique.load(Ordering::SeqCst) == unique;
            match state.threads.iter().find(serves) {
                Some(thread) => thread.served.interrupt(unique),
                None => state.put_early(unique),
            }
            self.early
                .store(state.early_interrupts.len(), Ordering::SeqCst);
        }
        // A request that was queued after the first search and before it was remembered was not found by
        // `forget_early` either.
        if self.early.load(Ordering::SeqCst) > 0 && queue() {
            self.forget_early(unique);
        }
    }

    /// Forgets an interrupt that came before its request; returns whether there is one.
    pub fn forget_early(&self, unique: u64) -> bool {
        if self.early.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let mut state = self.state.lock();
        let is_early = state.take_early(unique);
        self.early
            .store(state.early_interrupts.len(), Ordering::SeqCst);
        is_early
    }
}

/// Whether a thread is being killed. It waits for its reply, so it exists, if it is visible from here at all.
pub(crate) fn is_dying(pid: u32) -> bool {
    pid != 0 && host::is(Question::IsDying(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(unique: u64) -> InHeader {
        InHeader {
            unique,
            pid: std::process::id(),
            ..InHeader::default()
        }
    }

    #[test]
    fn an_interrupted_request_is_found_and_the_next_one_is_not() {
        let interrupts = Interrupts::new();
        let (one, other) = (interrupts.register_thread(), interrupts.register_thread());
        interrupts.begin(&one, &header(2));
        interrupts.begin(&other, &header(4));
        interrupts.interrupt(4, || false);
        assert_eq!(
            (one.is_interrupted(), other.is_interrupted()),
            (false, true)
        );
        assert!(!other.is_killed(), "this process lives");
        interrupts.begin(&other, &header(6));
        assert!(!other.is_interrupted());
        interrupts.interrupt(8, || true);
        interrupts.begin(&other, &header(8));
        assert!(!other.is_interrupted(), "the queue has recorded it");
        other.interrupt(10);
        assert!(!other.is_interrupted(), "the next request");
        interrupts.begin(&other, &header(10));
        assert!(other.is_interrupted());
    }

    #[test]
    fn an_interruption_that_overtakes_its_request_is_found() {
        let interrupts = Interrupts::new();
        let served = interrupts.register_thread();
        for unique in 0..10_000 {
            interrupts.interrupt(100 + 2 * unique, || false);
        }
        interrupts.begin(&served, &header(100 + 2 * 9_999));
        assert!(served.is_interrupted());
        interrupts.begin(&served, &header(100));
        assert!(!served.is_interrupted(), "the oldest numbers are forgotten");
        assert!(interrupts.state.lock().early_interrupts.len() < EARLY_INTERRUPTS_MAX);
    }

    #[test]
    fn threads_that_are_gone_are_forgotten() {
        let interrupts = Interrupts::new();
        for _ in 0..100 {
            drop(interrupts.register_thread());
        }
        let _last = interrupts.register_thread();
        assert_eq!(interrupts.state.lock().threads.len(), 1);
    }
}
