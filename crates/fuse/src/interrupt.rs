//! INTERRUPT: which requests have a caller who got a signal.
//!
//! The kernel sends INTERRUPT once for a request whose caller gets a signal, whatever signal that is, and then waits
//! for the answer: without one even SIGKILL takes as long as the request. Files are not interrupted by signals that have
//! handlers (programs do not expect EINTR from write(2) or fsync(2), and Go's runtime sends itself signals all the
//! time). So only a caller that is being killed is answered EINTR, which no program sees; a copy, whose caller expects
//! short counts, ends early at any signal.
//!
//! A service thread notes the request that it serves in a [`Served`], which costs two stores; INTERRUPT looks through
//! them all. It may overtake its request: numbers that are not found are remembered for a while.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::Interruption;

use crate::wire::InHeader;

/// Requests that were interrupted before they were seen, at most.
const EARLY_MAX: usize = 256;

/// The request that a service thread serves now. The kernel numbers no request 0.
#[derive(Debug, Default)]
pub(crate) struct Served {
    unique: AtomicU64,
    pid: AtomicU64,
    interrupted: AtomicU64,
}

impl Served {
    /// Whether the caller got a signal.
    pub fn is_interrupted(&self) -> bool {
        let unique = self.unique.load(Ordering::Acquire);
        unique != 0 && self.interrupted.load(Ordering::Acquire) == unique
    }
}

impl Interruption for Served {
    fn is_killed(&self) -> bool {
        self.is_interrupted() && is_dying(self.pid.load(Ordering::Relaxed) as u32)
    }
}

/// What the service threads of a mount serve now.
pub(crate) struct Interrupts {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    threads: Vec<Arc<Served>>,
    early: VecDeque<u64>,
}

impl Interrupts {
    pub fn new() -> Self {
        Self {
            state: Mutex::new(Rank::Leaf, State::default()),
        }
    }

    /// A place for a service thread, until it drops it.
    pub fn join(&self) -> Arc<Served> {
        let served = Arc::new(Served::default());
        let mut state = self.state.lock();
        // The only other reference of a thread that is gone is ours.
        state.threads.retain(|thread| Arc::strong_count(thread) > 1);
        state.threads.push(served.clone());
        served
    }

    /// From now on the thread serves this request. `long`: an interruption that came before is looked for.
    pub fn begin(&self, served: &Served, header: &InHeader, long: bool) {
        served.pid.store(header.pid.into(), Ordering::Relaxed);
        served.unique.store(header.unique, Ordering::SeqCst);
        if long {
            let mut state = self.state.lock();
            if let Some(at) = state.early.iter().position(|&one| one == header.unique) {
                state.early.remove(at);
                served.interrupted.store(header.unique, Ordering::Release);
            }
        }
    }

    /// The caller of this request got a signal. Requests are looked for in `queue` first.
    pub fn interrupt(&self, unique: u64, queue: impl FnOnce() -> bool) {
        if queue() {
            return;
        }
        let mut state = self.state.lock();
        let serves = |thread: &&Arc<Served>| thread.unique.load(Ordering::SeqCst) == unique;
        match state.threads.iter().find(serves) {
            Some(thread) => thread.interrupted.store(unique, Ordering::Release),
            None => {
                if state.early.len() == EARLY_MAX {
                    state.early.pop_front();
                }
                state.early.push_back(unique);
            }
        }
    }
}

/// Whether a thread is being killed: every thread of a process that a signal ends has SIGKILL pending.
pub(crate) fn is_dying(pid: u32) -> bool {
    const SIGKILL: u64 = 1 << 8;
    if pid == 0 {
        return false;
    }
    // A caller waits for its answer: it is there, if it can be seen at all.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    pending(&status).is_some_and(|set| set & SIGKILL != 0)
}

/// The signals that are pending for a thread, by its proc_pid_status(5).
fn pending(status: &str) -> Option<u64> {
    let set = status
        .lines()
        .find_map(|line| line.strip_prefix("SigPnd:"))?;
    u64::from_str_radix(set.trim(), 16).ok()
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
        let (one, other) = (interrupts.join(), interrupts.join());
        interrupts.begin(&one, &header(2), false);
        interrupts.begin(&other, &header(4), false);
        interrupts.interrupt(4, || false);
        assert_eq!(
            (one.is_interrupted(), other.is_interrupted()),
            (false, true)
        );
        assert!(!other.is_killed(), "this process lives");
        interrupts.begin(&other, &header(6), false);
        assert!(!other.is_interrupted());
        interrupts.interrupt(6, || true);
        assert!(!other.is_interrupted(), "it is answered by the queue");
    }

    #[test]
    fn an_interruption_that_overtakes_its_request_is_found() {
        let interrupts = Interrupts::new();
        let served = interrupts.join();
        for unique in 0..10_000 {
            interrupts.interrupt(100 + 2 * unique, || false);
        }
        interrupts.begin(&served, &header(100 + 2 * 9_999), true);
        assert!(served.is_interrupted());
        interrupts.begin(&served, &header(100), true);
        assert!(!served.is_interrupted(), "forgotten since");
        assert!(interrupts.state.lock().early.len() < EARLY_MAX);
    }

    #[test]
    fn threads_that_are_gone_are_forgotten() {
        let interrupts = Interrupts::new();
        for _ in 0..100 {
            drop(interrupts.join());
        }
        let _last = interrupts.join();
        assert_eq!(interrupts.state.lock().threads.len(), 1);
    }

    #[test]
    fn signals_are_read_from_a_status() {
        let status = "Name:\tcp\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000004000\n";
        assert_eq!(pending(status), Some(0x100));
        assert_eq!(pending(""), None);
        assert!(!is_dying(std::process::id()));
        assert!(!is_dying(0));
    }
}
