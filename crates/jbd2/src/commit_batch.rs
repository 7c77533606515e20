//! Group commit: whether a commit waits briefly for more fsync callers.
//!
//! **Problem.** Tasks that call fsync in a loop split into two halves: one half waits for the commit under way,
//! the other was served by the commit before and calls fsync too late to join. Each commit serves half of them.
//!
//! **Rule.** The leader waits before it begins, until as many callers have joined as were seen at the last
//! commit. The wait is at most half an average commit, less than the commit that it saves, and at most
//! `max_batch_time`. After waits that no caller joins, the next commits begin without a wait, in a growing number.

use std::time::Duration;

use steadfs_rt::Instant;

/// A shorter wait costs more than it saves, because the leader sleeps and is woken.
const MIN_BATCH_WAIT: Duration = Duration::from_micros(50);
/// After the second failed wait 3 commits begin without a wait, then 15, 63, and 255 after this number.
const MAX_FAILED_WAITS: u32 = 5;

/// The number of recent fsync callers, and whether waits for them succeeded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommitBatch {
    /// Callers that the last commit served, plus those that waited for the next one when it ended.
    expected_callers: u32,
    /// End of the last commit.
    last_commit: Instant,
    /// Consecutive waits that too few callers joined.
    failed_waits: u32,
    /// Commits that will begin without a wait.
    skip: u32,
}

impl CommitBatch {
    /// A commit has ended that served `served` callers, while `waiting` callers wait for the next one.
    pub(crate) fn commit_ended(&mut self, served: u32, waiting: u32, now: Instant) {
        self.expected_callers = served.saturating_add(waiting);
        self.last_commit = now;
    }

    /// The number of callers that the leader waits for, and for how long at most, if `joined` callers wait for
    /// the commit already; `None`: it begins at once. A commit takes `average`; no wait is longer than
    /// `max_wait`.
    pub(crate) fn plan_wait(
        &mut self,
        joined: u32,
        average: Duration,
        max_wait: Duration,
        now: Instant,
    ) -> Option<(u32, Duration)> {
        if joined >= self.expected_callers || now.since(self.last_commit) > average * 2 {
            return None;
        }
        let wait = max_wait.min(average / 2);
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
    pub(crate) fn record_wait(&mut self, joined: u32, missing: u32) {
        assert!(missing > 0, "the leader waits only for missing callers");
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
    use super::*;

    const AVERAGE: Duration = Duration::from_micros(400);
    const MAX_WAIT: Duration = Duration::from_millis(15);
    const HALF: Duration = Duration::from_micros(200);

    fn at(micros: u64) -> Instant {
        Instant(micros * 1000)
    }

    fn after(served: u32, waiting: u32) -> CommitBatch {
        let mut batch = CommitBatch::default();
        batch.commit_ended(served, waiting, at(1000));
        batch
    }

    #[test]
    fn two_halves_of_the_callers_share_a_commit() {
        let mut batch = after(2, 2);
        let wait = batch.plan_wait(2, AVERAGE, MAX_WAIT, at(1000));
        assert_eq!(wait, Some((4, HALF)));
        assert_eq!(batch.plan_wait(4, AVERAGE, MAX_WAIT, at(1000)), None);
    }

    #[test]
    fn a_lone_caller_never_waits() {
        assert_eq!(after(1, 0).plan_wait(1, AVERAGE, MAX_WAIT, at(1000)), None);
        let first = CommitBatch::default().plan_wait(1, AVERAGE, MAX_WAIT, at(0));
        assert_eq!(first, None);
    }

    #[test]
    fn a_wait_is_at_most_half_a_commit_and_soon_after_the_last_one() {
        let wait = |usual, longest, micros| {
            let found = after(1, 1).plan_wait(1, usual, longest, at(micros));
            found.map(|(_, limit)| limit)
        };
        assert_eq!(wait(AVERAGE, MAX_WAIT, 1000), Some(HALF));
        assert_eq!(
            wait(AVERAGE, Duration::from_micros(90), 1000)
                .unwrap()
                .as_micros(),
            90
        );
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
    fn failed_waits_become_rare() {
        let mut batch = after(1, 1);
        let mut waits = 0;
        for _ in 0..1000 {
            if let Some((all, _)) = batch.plan_wait(1, AVERAGE, MAX_WAIT, at(1000)) {
                batch.record_wait(0, all - 1);
                waits += 1;
            }
        }
        assert!((4..10).contains(&waits), "{waits}");
        while batch.plan_wait(1, AVERAGE, MAX_WAIT, at(1000)).is_none() {}
        batch.record_wait(1, 1);
        for _ in 0..10 {
            let wait = batch.plan_wait(1, AVERAGE, MAX_WAIT, at(1000));
            assert!(wait.is_some());
            batch.record_wait(1, 1);
        }
    }
}
