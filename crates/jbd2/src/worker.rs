//! The state machine of the background reclaimer. Pure.
//!
//! | state | what is true in it | transitions |
//! |---|---|---|
//! | `Idle` | the policy advises nothing; the task waits for its period | a trigger: `Queued`; the period: `Running` |
//! | `Queued` | triggered; the task has not begun | the task begins: `Running` |
//! | `Running` | the task reclaims step by step | nothing left: `Idle`; a trigger: `Retriggered` |
//! | `Retriggered` | as `Running`, but the task's view of the log may be old | nothing left: `Queued` |
//!
//! All transitions are made under one lock, so no trigger is lost, and an error leaves none behind: a run that
//! fails ends like any other.

/// State of the background reclaimer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ReclaimWorker {
    #[default]
    Idle,
    Queued,
    Running,
    Retriggered,
}

impl ReclaimWorker {
    /// The log should be checked; returns whether the task must be woken.
    pub(crate) fn trigger(&mut self) -> bool {
        let (next, wake) = match self {
            Self::Idle => (Self::Queued, true),
            Self::Queued => (Self::Queued, false),
            Self::Running | Self::Retriggered => (Self::Retriggered, false),
        };
        *self = next;
        wake
    }

    /// The task begins, because it was triggered or its period is over.
    pub(crate) fn begin(&mut self) {
        assert!(!self.is_running(), "one reclaimer runs at a time");
        *self = Self::Running;
    }

    /// The task has nothing left to do, or has failed; returns whether it begins again at once.
    pub(crate) fn end(&mut self) -> bool {
        assert!(self.is_running(), "only a running reclaimer ends");
        let again = *self == Self::Retriggered;
        *self = if again { Self::Queued } else { Self::Idle };
        again
    }

    /// Whether the task reclaims.
    pub(crate) fn is_running(self) -> bool {
        matches!(self, Self::Running | Self::Retriggered)
    }

    /// Its name in `jbd2/info`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Queued => "queued",
            Self::Running | Self::Retriggered => "running",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_trigger_is_lost() {
        let mut worker = ReclaimWorker::default();
        assert!(worker.trigger());
        assert!(!worker.trigger(), "woken once");
        worker.begin();
        assert!(!worker.trigger(), "it is awake");
        assert_eq!(worker.name(), "running");
        assert!(worker.end(), "what came while it ran is looked at");
        assert_eq!(worker, ReclaimWorker::Queued);
        worker.begin();
        assert!(!worker.end());
        assert_eq!(worker, ReclaimWorker::Idle);
        worker.begin();
        assert!(worker.is_running() && !worker.end(), "its period was over");
    }
}
