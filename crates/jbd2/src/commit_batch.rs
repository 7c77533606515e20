//! Whether a commit waits a little for more callers.
//!
//! Those who sync again and again fall into two groups otherwise: one waits for the commit under way, the other,
//! served by the one before, is back too late for it. Each commit then serves half of them. A short wait when a
//! commit is about to begin brings them together; it is kept shorter than what the commit saved would take, and
//! is given up for a while where nobody comes.

use std::time::Duration;

use steadfs_rt::Instant;

/// Shorter waits than this cost more than they bring: the leader sleeps and is woken.
const SHORTEST: Duration = Duration::from_micros(50);
/// After a second wait in vain 3 commits are begun at once, then 15, 63, and 255 from so many on.
const MOST_VAIN: u32 = 5;

/// Who has called for commits lately, and whether waiting for them was of use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommitBatch {
    /// Callers that the last commit served, and those who waited for the next one when it ended.
    regulars: u32,
    /// When that was.
    ended: Instant,
    /// WaitStats in vain, one after the other.
    vain: u32,
    /// Commits that are begun without a wait.
    skip: u32,
}

impl CommitBatch {
    /// A commit has ended that served some callers, while others wait for the next one.
    pub(crate) fn commit_ended(&mut self, served: u32, waiting: u32, now: Instant) {
        self.regulars = served.saturating_add(waiting);
        self.ended = now;
    }

    /// For how many callers a commit waits that has some of them, and how long; `None`: it begins at once.
    /// A commit takes `usual`; no wait is longer than `longest`.
    pub(crate) fn wait_for(
        &mut self,
        here: u32,
        usual: Duration,
        longest: Duration,
        now: Instant,
    ) -> Option<(u32, Duration)> {
        if here >= self.regulars || now.since(self.ended) > usual * 2 {
            return None;
        }
        let patience = longest.min(usual / 2);
        if patience < SHORTEST {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        Some((self.regulars, patience))
    }

    /// A wait has ended that so many of those who were missing have come to.
    pub(crate) fn waited(&mut self, came: u32, missing: u32) {
        if came > 0 && came >= missing.div_ceil(2) {
            (self.vain, self.skip) = (0, 0);
        } else {
            self.vain = (self.vain + 1).min(MOST_VAIN);
            self.skip = (1 << (2 * (self.vain - 1))) - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Duration = Duration::from_micros(400);
    const LONGEST: Duration = Duration::from_millis(15);
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
    fn two_halves_are_brought_together() {
        let mut batch = after(2, 2);
        let wait = batch.wait_for(2, USUAL, LONGEST, at(1000));
        assert_eq!(wait, Some((4, HALF)));
        assert_eq!(batch.wait_for(4, USUAL, LONGEST, at(1000)), None);
    }

    #[test]
    fn a_lone_caller_never_waits() {
        assert_eq!(after(1, 0).wait_for(1, USUAL, LONGEST, at(1000)), None);
        let nobody = CommitBatch::default().wait_for(1, USUAL, LONGEST, at(0));
        assert_eq!(nobody, None);
    }

    #[test]
    fn a_wait_is_short_and_soon_or_not_at_all() {
        let wait = |usual, longest, micros| {
            let found = after(1, 1).wait_for(1, usual, longest, at(micros));
            found.map(|(_, patience)| patience)
        };
        assert_eq!(wait(USUAL, LONGEST, 1000), Some(HALF));
        assert_eq!(
            wait(USUAL, Duration::from_micros(90), 1000)
                .unwrap()
                .as_micros(),
            90
        );
        assert_eq!(wait(USUAL, Duration::ZERO, 1000), None);
        assert_eq!(wait(Duration::from_micros(99), LONGEST, 1000), None);
        assert_eq!(wait(USUAL, LONGEST, 1800), Some(HALF));
        assert_eq!(wait(USUAL, LONGEST, 1801), None, "they are gone");
    }

    #[test]
    fn waits_in_vain_get_rare() {
        let mut batch = after(1, 1);
        let mut waits = 0;
        for _ in 0..1000 {
            if let Some((all, _)) = batch.wait_for(1, USUAL, LONGEST, at(1000)) {
                batch.waited(0, all - 1);
                waits += 1;
            }
        }
        assert!((4..10).contains(&waits), "{waits}");
        while batch.wait_for(1, USUAL, LONGEST, at(1000)).is_none() {}
        batch.waited(1, 1);
        for _ in 0..10 {
            let wait = batch.wait_for(1, USUAL, LONGEST, at(1000));
            assert!(wait.is_some());
            batch.waited(1, 1);
        }
    }
}
