//! What the primitives call of a simulation, where none can be: the feature `sim` is off.
//!
//! [`world::simulated`] is false, so no other function here is reached, and the compiler removes the calls.

/// The simulated implementation of the primitives.
pub(crate) mod world {
    use std::sync::Arc;
    use std::time::Duration;

    use steadfs_base::Timestamp;

    use crate::lock_header::LockHeader;
    use crate::{Instant, inherit};

    /// How a lock is taken.
    pub(crate) enum LockMode {
        Shared,
        Exclusive,
    }

    /// How long a task may wait for a condition.
    #[derive(Clone, Copy)]
    pub(crate) enum WaitLimit {
        StallBound,
        Unlimited,
        Timeout(Duration),
    }

    /// A simulation.
    pub(crate) struct World(());

    impl World {
        pub(crate) fn wait_graph(&self) -> &Arc<inherit::WaitGraph> {
            absent()
        }

        pub(crate) fn is_refusing_tasks(&self) -> bool {
            absent()
        }
    }

    /// Whether the caller runs inside a simulation.
    #[inline(always)]
    pub(crate) const fn simulated() -> bool {
        false
    }

    #[cold]
    pub(super) fn absent() -> ! {
        unreachable!("no task is simulated without the feature sim")
    }

    pub(crate) fn with<R>(_: impl FnOnce(&World) -> R) -> R {
        absent()
    }

    pub(crate) fn enter(
        _: &LockHeader,
        _: LockMode,
        _: &dyn Fn() -> bool,
    ) -> Option<inherit::WaitForEdge> {
        absent()
    }

    pub(crate) fn may_try(_: &LockHeader, _: LockMode) -> bool {
        absent()
    }

    pub(crate) fn released(_: &LockHeader) {
        absent()
    }

    pub(crate) fn wait(_: usize, _: &LockHeader, _: WaitLimit, _: &dyn Fn() -> bool) -> bool {
        absent()
    }

    pub(crate) fn notify(_: usize, _: usize) {
        absent()
    }

    pub(crate) fn yield_now() {
        absent()
    }

    pub(crate) fn sleep(_: Duration) {
        absent()
    }

    pub(crate) fn now() -> Instant {
        absent()
    }

    pub(crate) fn calendar() -> Option<Timestamp> {
        absent()
    }

    pub(crate) fn random() -> u64 {
        absent()
    }

    pub(crate) fn task_name() -> String {
        absent()
    }
}

/// The handle of a simulated task.
pub(crate) mod task {
    use std::marker::PhantomData;

    use super::world::absent;

    pub(crate) struct SimJoin<T>(PhantomData<T>);

    impl<T> SimJoin<T> {
        pub(crate) fn spawn(_: &str, _: impl FnOnce() -> T) -> Self {
            absent()
        }

        pub(crate) fn join(self) -> T {
            absent()
        }

        pub(crate) fn is_finished(&self) -> bool {
            absent()
        }
    }
}
