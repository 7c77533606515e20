//! The queue if the host refuses threads.

use std::collections::VecDeque;

use steadfs_iosched::{BoostOutcome, Io as Asked, IoId, Nanos};
use steadfs_rt::now;

use super::*;

const PAUSE: Duration = Duration::from_millis(8);

/// A policy that holds every request back for a time.
#[derive(Default)]
struct Late {
    queued: VecDeque<(IoId, Nanos)>,
    again: Option<Nanos>,
}

impl Scheduler for Late {
    fn name(&self) -> &'static str {
        "late"
    }

    fn insert(&mut self, id: IoId, _: Asked, now: Nanos) {
        let due = now.0 + PAUSE.as_nanos() as u64;
        self.queued.push_back((id, Nanos(due)));
    }

    fn grow(&mut self, _: IoId, _: u64) {}

    fn boost(&mut self, _: IoId, _: IoTag, _: Nanos) -> BoostOutcome {
        BoostOutcome::AlreadyUrgent
    }

    fn next(&mut self, now: Nanos) -> Option<IoId> {
        self.again = None;
        let &(id, due) = self.queued.front()?;
        if now < due {
            self.again = Some(due);
            return None;
        }
        self.queued.pop_front();
        Some(id)
    }

    fn complete(&mut self, _: IoId, _: Nanos) {}

    fn queued(&self) -> usize {
        self.queued.len()
    }

    fn rerun_at(&self) -> Option<Nanos> {
        self.again
    }
}

#[test]
fn without_a_timer_nothing_is_held_back() {
    let run = || {
        let device = Arc::new(MemDevice::new(SIZE));
        let late = Box::<Late>::default();
        let queue = Queue::with_scheduler(device, QueueOptions { depth: 4 }, late);
        let several = || {
            let begun = now();
            let ios: Vec<_> = (0..3)
                .map(|n| queue.submit(block(2 * n, 1), WAITED))
                .collect();
            wait_all(&ios).unwrap();
            begun.elapsed()
        };
        sim::refuse_tasks(true);
        assert_eq!(several(), Duration::ZERO);
        assert_eq!(several(), Duration::ZERO);
        // The thread is tried again each time.
        sim::refuse_tasks(false);
        assert_eq!(several(), PAUSE);
        sim::refuse_tasks(true);
        assert_eq!(several(), PAUSE);
        assert_eq!(queue.stats().queued, 0);
    };
    sim::run(sim::Config::new(1), run);
}
