//! The background reclaimer's state: what it is doing, and who may say so. Pure.
//!
//! | state | true in it | leaves it |
//! |---|---|---|
//! | `Idle` | the policy asks for nothing; the task waits for its period | a trigger: `Queued`; the period: `RunningTransaction` |
//! | `Queued` | somebody wants the log looked at; the task has not begun | the task: `RunningTransaction` |
//! | `RunningTransaction` | the task works step by step, alone in each | nothing left: `Idle`; a trigger: `Retriggered` |
//! | `Retriggered` | as `RunningTransaction`, and what it last saw may be old | nothing left: `Queued` |
//!
//! All moves are made under one lock, so no trigger is lost and none is left over by an error: a run that
//! fails ends like any other.

/// What the background reclaimer is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ReclaimWorker {
    #[default]
    Idle,
    Queued,
    RunningTransaction,
    Retriggered,
}

impl ReclaimWorker {
    /// Somebody wants the log looked at; whether the task must be woken for it.
    pub(crate) fn trigger(&mut self) -> bool {
        let (next, wake) = match self {
            Self::Idle => (Self::Queued, true),
            Self::Queued => (Self::Queued, false),
            Self::RunningTransaction | Self::Retriggered => (Self::Retriggered, false),
        };
        *self = next;
        wake
    }

    /// The task begins, triggered or because its period is over.
    pub(crate) fn begin(&mut self) {
        assert!(!self.is_running(), "one task runs at a time");
        *self = Self::RunningTransaction;
    }

    /// The task found nothing more to do, or could not do it; whether it is to begin again at once.
    pub(crate) fn end(&mut self) -> bool {
        assert!(self.is_running(), "what ends was running");
        let again = *self == Self::Retriggered;
        *self = if again { Self::Queued } else { Self::Idle };
        again
    }

    /// Whether the task works.
    pub(crate) fn is_running(self) -> bool {
        matches!(self, Self::RunningTransaction | Self::Retriggered)
    }

    /// Its name, for readers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Queued => "queued",
            Self::RunningTransaction | Self::Retriggered => "running",
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
