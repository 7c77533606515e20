//! Group commit: whether a commit waits briefly for more fsync callers. jbd2's commits and f2fs's merged checkpoints use
//! it; "commit" means either here.
//!
//! **Problem.** Tasks that call fsync in a loop split into two halves: one half waits for the commit under way,
//! the other was served by the commit before and calls fsync too late to join. Each commit serves half of them.
//!
//! **Rule.** The leader waits before it begins, until as many callers have joined as were seen at the last
//! commit. The wait is at most half an average commit, less than the commit that it saves, and at most the limit
//! of the mount (`max_batch_time`, 15 ms unless it is set). After waits that no caller joins, the next commits begin
//! without a wait, in a growing number. A caller that is alone never waits.
//!
//! [`CommitBatch`] decides, without clock or lock; [`wait_for_callers`] waits under the lock of the commit's state.

use std::time::Duration;

use steadfs_rt::{Condvar, Instant, MutexGuard, now};

/// A shorter wait costs more than it saves, because the leader sleeps and is woken.
const MIN_BATCH_WAIT: Duration = Duration::from_micros(50);
/// After the second failed wait 3 commits begin without a wait, then 15, 63, and 255 after this number.
const MAX_FAILED_WAITS: u32 = 5;

/// The state in which callers join a commit.
pub trait BatchedCommit {
    /// Its batch.
    fn batch(&mut self) -> &mut CommitBatch;
    /// The number of callers that the next commit will serve.
    fn callers(&self) -> u32;
    /// The leader must begin now: an abort, or the end of the task.
    fn is_stopping(&self) -> bool;
}

/// Waits briefly for the usual callers to join. The task that calls this is the leader of the next commit, and `full` is
/// notified when [`CommitBatch::joined`] returns true and when [`BatchedCommit::is_stopping`] becomes true. No wait is
/// longer than `max_wait`. Returns the time waited; `None`: the commit begins at once.
pub fn wait_for_callers<S: BatchedCommit>(
    full: &Condvar,
    state: &mut MutexGuard<'_, S>,
    max_wait: Duration,
) -> Option<Duration> {
    let (joined, began) = (state.callers(), now());
    let (all, wait) = state.batch().plan_wait(joined, max_wait, began)?;
    state.batch().target = Some(all);
    while state.batch().target.is_some() && !state.is_stopping() {
        let Some(rest) = wait.checked_sub(began.elapsed()).filter(|d| !d.is_zero()) else {
            break;
        };
        full.wait_for(state, rest);
    }
    let came = state.callers().saturating_sub(joined);
    state.batch().end_wait(came, all - joined);
    Some(began.elapsed())
}

/// The number of recent fsync callers, the time of a commit, and whether waits for callers succeeded.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommitBatch {
    /// Callers that the last commit served, plus those that waited for the next one when it ended.
    expected_callers: u32,
    /// Number of callers that the leader waits for now.
    target: Option<u32>,
    /// End of the last commit.
    last_commit: Instant,
    /// Moving average of a commit's time, each new one with a weight of a quarter.
    average: Duration,
    /// Consecutive waits that too few callers joined.
    failed_waits: u32,
    /// Commits that will begin without a wait.
    skip: u32,
}

impl CommitBatch {
    /// A commit has ended that took `time` and served `served` callers, while `waiting` callers wait for the next one.
    pub fn commit_ended(&mut self, served: u32, waiting: u32, time: Duration, now: Instant) {
        self.expected_callers = served.saturating_add(waiting);
        self.last_commit = now;
        self.average = match self.average.is_zero() {
            true => time,
            false => (time + self.average * 3) / 4,
        };
    }

    /// Moving average of a commit's time.
    pub const fn average(&self) -> Duration {
        self.average
    }

    /// Whether the leader waits for callers.
    pub const fn is_waiting(&self) -> bool {
        self.target.is_some()
    }

    /// A caller has joined the next commit, which has `callers` now. Returns whether that ends the leader's wait: it
    /// must be woken.
    #[must_use]
    pub fn joined(&mut self, callers: u32) -> bool {
        self.target.take_if(|all| callers >= *all).is_some()
    }

    /// Whether more than `joined` callers are expected at the next commit.
    #[must_use]
    pub fn expects_more(&self, joined: u32, now: Instant) -> bool {
        joined < self.expected_callers && now.since(self.last_commit) <= self.average * 2
    }

    /// The number of callers that the leader waits for, and for how long at most, if `joined` callers wait for
    /// the commit already; `None`: it begins at once. No wait is longer than `max_wait`.
    fn plan_wait(
        &mut self,
        joined: u32,
        max_wait: Duration,
        now: Instant,
    ) -> Option<(u32, Duration)> {
        assert!(self.target.is_none(), "only one leader waits for callers");
        if !self.expects_more(joined, now) {
            return None;
        }
        let wait = max_wait.min(self.average / 2);
        if wait < MIN_BATCH_WAIT {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        Some((self.expected_callers, wait))
    }

    /// A wait for `missing` callers has ended, and `joined` of them have joined.
    fn end_wait(&mut self, joined: u32, missing: u32) {
        assert!(missing > 0, "the leader waits only for missing callers");
        self.target = None;
        if joined > 0 && joined >= missing.div_ceil(2) {
            (self.failed_waits, self.skip) = (0, 0);
        } else {
            self.failed_waits = (self.failed_waits + 1).min(MAX_FAILED_WAITS);
            self.skip = (1 << (2 * (self.failed_waits - 1))) - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use steadfs_rt::{Mutex, Rank, sim, sleep, spawn};

    use super::*;

    const AVERAGE: Duration = Duration::from_micros(400);
    const MAX_WAIT: Duration = Duration::from_millis(15);
    const HALF: Duration = Duration::from_micros(200);

    fn at(micros: u64) -> Instant {
        Instant(micros * 1000)
    }

    fn after(served: u32, waiting: u32) -> CommitBatch {
        let mut batch = CommitBatch::default();
        batch.commit_ended(served, waiting, AVERAGE, at(1000));
        batch
    }

    #[test]
    fn two_halves_of_the_callers_share_a_commit() {
        let mut batch = after(2, 2);
        let wait = batch.plan_wait(2, MAX_WAIT, at(1000));
        assert_eq!(wait, Some((4, HALF)));
        assert_eq!(batch.plan_wait(4, MAX_WAIT, at(1000)), None);
    }

    #[test]
    fn a_lone_caller_never_waits() {
        assert_eq!(after(1, 0).plan_wait(1, MAX_WAIT, at(1000)), None);
        let first = CommitBatch::default().plan_wait(1, MAX_WAIT, at(0));
        assert_eq!(first, None);
    }

    #[test]
    fn a_wait_is_at_most_half_a_commit_and_soon_after_the_last_one() {
        let wait = |average, longest, micros| {
            let mut batch = CommitBatch::default();
            batch.commit_ended(1, 1, average, at(1000));
            let found = batch.plan_wait(1, longest, at(micros));
            found.map(|(_, limit)| limit)
        };
        assert_eq!(wait(AVERAGE, MAX_WAIT, 1000), Some(HALF));
        let short = Duration::from_micros(90);
        assert_eq!(wait(AVERAGE, short, 1000), Some(short));
        assert_eq!(wait(AVERAGE, Duration::ZERO, 1000), None);
        assert_eq!(wait(Duration::from_micros(99), MAX_WAIT, 1000), None);
        assert_eq!(wait(AVERAGE, MAX_WAIT, 1800), Some(HALF));
        assert_eq!(
            wait(AVERAGE, MAX_WAIT, 1801),
            None,
            "the callers have stopped"
        );
    }

    #[test]
    fn the_average_follows_the_last_commits() {
        let mut batch = after(1, 0);
        assert_eq!(batch.average(), AVERAGE);
        batch.commit_ended(1, 0, AVERAGE * 5, at(2000));
        assert_eq!(batch.average(), AVERAGE * 2);
    }

    #[test]
    fn failed_waits_become_rare() {
        let mut batch = after(1, 1);
        let mut waits = 0;
        for _ in 0..1000 {
            if let Some((all, _)) = batch.plan_wait(1, MAX_WAIT, at(1000)) {
                batch.end_wait(0, all - 1);
                waits += 1;
            }
        }
        assert!((4..10).contains(&waits), "{waits}");
        while batch.plan_wait(1, MAX_WAIT, at(1000)).is_none() {}
        batch.end_wait(1, 1);
        for _ in 0..10 {
            let wait = batch.plan_wait(1, MAX_WAIT, at(1000));
            assert!(wait.is_some());
            batch.end_wait(1, 1);
        }
    }

    struct Joining {
        batch: CommitBatch,
        callers: u32,
        stopping: bool,
    }

    impl BatchedCommit for Joining {
        fn batch(&mut self) -> &mut CommitBatch {
            &mut self.batch
        }

        fn callers(&self) -> u32 {
            self.callers
        }

        fn is_stopping(&self) -> bool {
            self.stopping
        }
    }

    /// A leader that expects two callers, while another task does `other` after `delay` microseconds. Returns how long
    /// the leader waited, in microseconds, and whether the next leader would wait.
    fn wait_beside(delay: u64, other: fn(&mut Joining, &Condvar)) -> (u64, bool) {
        let run = move || {
            let mut batch = CommitBatch::default();
            batch.commit_ended(2, 0, AVERAGE, now());
            let joining = Joining {
                batch,
                callers: 1,
                stopping: false,
            };
            let shared = Arc::new((Mutex::new(Rank::Leaf, joining), Condvar::new()));
            let task = {
                let shared = Arc::clone(&shared);
                spawn("other", move || {
                    sleep(Duration::from_micros(delay));
                    other(&mut shared.0.lock(), &shared.1);
                })
            };
            let mut state = shared.0.lock();
            let waited =
                wait_for_callers(&shared.1, &mut state, MAX_WAIT).expect("a caller is missing");
            assert!(!state.batch.is_waiting());
            let again = state.batch.plan_wait(1, MAX_WAIT, now()).is_some();
            let again = again && state.batch.failed_waits == 0;
            drop(state);
            task.join();
            (waited.as_micros() as u64, again)
        };
        // A simulation that preempts may fire timers early.
        let config = sim::Config {
            preempt: 0,
            ..sim::Config::new(1)
        };
        sim::run(config, run).value
    }

    fn join(state: &mut Joining, full: &Condvar) {
        state.callers += 1;
        if state.batch.joined(state.callers) {
            full.notify_one();
        }
    }

    #[test]
    fn the_leader_waits_until_the_usual_callers_have_joined_or_half_a_commit() {
        assert_eq!(wait_beside(70, join), (70, true));
        assert_eq!(wait_beside(201, join), (200, false), "too late");
        let stop = |state: &mut Joining, full: &Condvar| {
            state.stopping = true;
            full.notify_one();
        };
        assert_eq!(wait_beside(70, stop), (70, false));
        assert_eq!(wait_beside(70, |_, full| full.notify_one()), (200, false));
    }
}
