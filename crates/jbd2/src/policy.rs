//! When the background reclaimer writes committed blocks to their home locations. A pure function of a
//! [`LogView`].

use std::time::Duration;

/// When committed blocks are written to their home locations in the background, so that handles need not
/// wait for log space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReclaimPolicy {
    /// Whether the background reclaimer does anything.
    pub enabled: bool,
    /// Blocks of transactions committed longer ago are written.
    pub max_age: Duration,
    /// Reclaim starts if less than this percentage of the log is free (1 to 99, `async_checkpoint=`; `None`,
    /// `noasync_checkpoint`: never because of log space) …
    pub low_free_percent: Option<u8>,
    /// … and goes on until this percentage more is free.
    pub hysteresis_percent: u8,
    /// Most bytes of committed, unwritten blocks in memory.
    pub max_unwritten_bytes: u64,
    /// How often the log is checked.
    pub period: Duration,
}

impl Default for ReclaimPolicy {
    fn default() -> Self {
        Self {
            enabled: true,
            max_age: Duration::from_secs(30),
            low_free_percent: Some(50),
            hysteresis_percent: 6,
            max_unwritten_bytes: 32 << 20,
            period: Duration::from_secs(5),
        }
    }
}

/// The state of the log that a policy decides on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogView {
    /// Blocks in the log.
    pub capacity: u32,
    /// Blocks that no transaction uses.
    pub free: u32,
    /// Blocks that a move of the tail would free at once.
    pub freeable: u32,
    /// Age of the oldest transaction with unwritten blocks.
    pub oldest: Option<Duration>,
    /// Whether unwritten blocks take more memory than allowed.
    pub over_memory_limit: bool,
    /// Whether the last advice was to reclaim.
    pub reclaiming_space: bool,
    /// Log blocks of the largest transaction: if fewer are free a handle may have to wait.
    pub largest: u32,
}

/// What the background reclaimer should do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Advice {
    /// Nothing.
    Idle,
    /// Write the blocks of the oldest transactions, for log space or because of their age. Handles that
    /// wait for log space reclaim first.
    Write,
    /// Write blocks because they take too much memory: in large batches, even if handles wait.
    RelieveMemory,
    /// Enough is written: move the tail.
    MoveTail,
}

impl ReclaimPolicy {
    /// Whether less of the log is free than the threshold.
    pub(crate) fn is_low(&self, free: u32, capacity: u32) -> bool {
        let low = |percent: u8| u64::from(capacity) * u64::from(percent) / 100;
        self.enabled
            && self
                .low_free_percent
                .is_some_and(|p| u64::from(free) < low(p))
    }

    /// Free log blocks at which reclaim for log space ends.
    pub(crate) fn goal(&self, capacity: u32) -> u32 {
        let Some(low) = self.low_free_percent else {
            return 0;
        };
        let percent = u64::from(low) + u64::from(self.hysteresis_percent);
        let goal = u64::from(capacity) * percent.min(100) / 100;
        assert!(goal <= u64::from(capacity), "the goal is a part of the log");
        u32::try_from(goal).expect("a part of 32 bits")
    }

    /// The next step.
    pub(crate) fn advise(&self, view: &LogView) -> Advice {
        if !self.enabled {
            return Advice::Idle;
        }
        assert!(
            view.free <= view.capacity,
            "free blocks are blocks of the log"
        );
        let goal = u64::from(self.goal(view.capacity));
        let free = u64::from(view.free);
        let after_move = free + u64::from(view.freeable);
        let short = self.is_low(view.free, view.capacity) || (view.reclaiming_space && free < goal);
        let aged = view.oldest.is_some_and(|age| age >= self.max_age);
        // If little is free, a handle may have to wait soon. The tail then moves before the goal is reached,
        // each time by at least half of the largest transaction, so that the handle need not move it.
        let scarce = free < 2 * u64::from(view.largest) && view.freeable > view.largest / 2;
        let last = view.oldest.is_none() && view.freeable > 0;
        if short && (after_move >= goal || scarce || last) {
            return Advice::MoveTail;
        }
        if view.oldest.is_none() {
            return Advice::Idle;
        }
        if view.over_memory_limit {
            return Advice::RelieveMemory;
        }
        if short || aged {
            return Advice::Write;
        }
        Advice::Idle
    }

    /// Whether `unwritten` bytes of committed blocks exceed the memory limit; with `relieving_memory`, the
    /// relief that is under way ends at half the limit.
    pub(crate) fn exceeds_memory_limit(&self, unwritten: u64, relieving_memory: bool) -> bool {
        let most = self.max_unwritten_bytes;
        self.enabled && unwritten > if relieving_memory { most / 2 } else { most }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(free: u32, freeable: u32, oldest: Option<u64>) -> LogView {
        LogView {
            capacity: 1000,
            free,
            freeable,
            oldest: oldest.map(Duration::from_secs),
            ..LogView::default()
        }
    }

    #[test]
    fn reclaim_starts_low_and_ends_high() {
        let policy = ReclaimPolicy::default();
        assert_eq!(policy.advise(&view(500, 0, Some(1))), Advice::Idle);
        assert_eq!(policy.advise(&view(499, 0, Some(1))), Advice::Write);
        let going = LogView {
            reclaiming_space: true,
            ..view(555, 0, Some(1))
        };
        assert_eq!(policy.advise(&going), Advice::Write);
        assert_eq!(policy.advise(&view(499, 61, Some(1))), Advice::MoveTail);
        let done = LogView {
            reclaiming_space: true,
            ..view(560, 0, Some(1))
        };
        assert_eq!(policy.advise(&done), Advice::Idle);
        // Everything is written, the committing transaction keeps the rest: move what can move.
        assert_eq!(policy.advise(&view(400, 10, None)), Advice::MoveTail);
        assert_eq!(policy.advise(&view(400, 0, None)), Advice::Idle);
    }

    #[test]
    fn where_little_is_free_the_tail_moves_before_the_goal() {
        let policy = ReclaimPolicy::default();
        let scarce = |free, freeable| LogView {
            largest: 200,
            ..view(free, freeable, Some(1))
        };
        assert_eq!(policy.advise(&scarce(399, 101)), Advice::MoveTail);
        assert_eq!(policy.advise(&scarce(399, 100)), Advice::Write);
        assert_eq!(policy.advise(&scarce(400, 101)), Advice::Write);
        assert_eq!(policy.advise(&scarce(600, 300)), Advice::Idle);
    }

    #[test]
    fn age_and_memory_start_it_too() {
        let policy = ReclaimPolicy::default();
        assert_eq!(policy.advise(&view(900, 0, Some(30))), Advice::Write);
        let over_memory_limit = LogView {
            over_memory_limit: true,
            ..view(900, 0, Some(0))
        };
        assert_eq!(policy.advise(&over_memory_limit), Advice::RelieveMemory);
        let off = ReclaimPolicy {
            enabled: false,
            ..policy
        };
        assert_eq!(off.advise(&over_memory_limit), Advice::Idle);
        assert_eq!(off.advise(&view(0, 0, Some(30))), Advice::Idle);
    }

    #[test]
    fn memory_comes_before_log_space() {
        let policy = ReclaimPolicy::default();
        let over_memory_limit = |freeable| LogView {
            over_memory_limit: true,
            ..view(100, freeable, Some(40))
        };
        assert_eq!(policy.advise(&view(100, 0, Some(40))), Advice::Write);
        assert_eq!(policy.advise(&over_memory_limit(0)), Advice::RelieveMemory);
        assert_eq!(policy.advise(&over_memory_limit(460)), Advice::MoveTail);
    }

    #[test]
    fn relief_of_memory_ends_at_half() {
        let policy = ReclaimPolicy::default();
        let over_memory_limit = |mib: u64, relieving_memory| {
            policy.exceeds_memory_limit((mib << 20) + 1, relieving_memory)
        };
        assert!(over_memory_limit(32, false) && !over_memory_limit(31, false));
        assert!(over_memory_limit(16, true) && !over_memory_limit(15, true));
    }

    #[test]
    fn without_a_threshold_space_starts_nothing() {
        let policy = ReclaimPolicy {
            low_free_percent: None,
            ..ReclaimPolicy::default()
        };
        let going = LogView {
            reclaiming_space: true,
            ..view(0, 900, Some(1))
        };
        assert_eq!(policy.advise(&going), Advice::Idle);
        assert_eq!(policy.advise(&view(0, 0, Some(30))), Advice::Write);
        assert!(!policy.is_low(0, 1000));
    }

    #[test]
    fn the_highest_threshold_ends_when_nothing_is_left() {
        let policy = ReclaimPolicy {
            low_free_percent: Some(99),
            ..ReclaimPolicy::default()
        };
        assert_eq!(policy.advise(&view(1000, 0, None)), Advice::Idle);
        assert_eq!(policy.advise(&view(900, 0, None)), Advice::Idle);
        assert_eq!(policy.advise(&view(900, 10, None)), Advice::MoveTail);
        assert_eq!(policy.advise(&view(900, 10, Some(0))), Advice::Write);
    }
}
