//! The background reclaimer's state: what it is doing, and who may say so. Pure.
//!
//! | state | true in it | leaves it |
//! |---|---|---|
//! | `Idle` | the policy asks for nothing; the task waits for its period | a trigger: `Queued`; the period: `Running` |
//! | `Queued` | somebody wants the log looked at; the task has not begun | the task: `Running` |
//! | `Running` | the task works step by step, alone in each | nothing left: `Idle`; a trigger: `Again` |
//! | `Again` | as `Running`, and what it last saw may be old | nothing left: `Queued` |
//!
//! All moves are made under one lock, so no trigger is lost and none is left over by an error: a run that
//! fails ends like any other.

/// What the background reclaimer is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Worker {
    #[default]
    Idle,
    Queued,
    Running,
    Again,
}

impl Worker {
    /// Somebody wants the log looked at; whether the task must be woken for it.
    pub(crate) fn trigger(&mut self) -> bool {
        let (next, wake) = match self {
            Self::Idle => (Self::Queued, true),
            Self::Queued => (Self::Queued, false),
            Self::Running | Self::Again => (Self::Again, false),
        };
        *self = next;
        wake
    }

    /// The task begins, triggered or because its period is over.
    pub(crate) fn begin(&mut self) {
        assert!(!self.is_running(), "one task runs at a time");
        *self = Self::Running;
    }

    /// The task found nothing more to do, or could not do it; whether it is to begin again at once.
    pub(crate) fn end(&mut self) -> bool {
        assert!(self.is_running(), "what ends was running");
        let again = *self == Self::Again;
        *self = if again { Self::Queued } else { Self::Idle };
        again
    }

    /// Whether the task works.
    pub(crate) fn is_running(self) -> bool {
        matches!(self, Self::Running | Self::Again)
    }

    /// Its name, for readers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Queued => "queued",
            Self::Running | Self::Again => "running",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_trigger_is_lost() {
        let mut worker = Worker::default();
        assert!(worker.trigger());
        assert!(!worker.trigger(), "woken once");
        worker.begin();
        assert!(!worker.trigger(), "it is awake");
        assert_eq!(worker.name(), "running");
        assert!(worker.end(), "what came while it ran is looked at");
        assert_eq!(worker, Worker::Queued);
        worker.begin();
        assert!(!worker.end());
        assert_eq!(worker, Worker::Idle);
        worker.begin();
        assert!(worker.is_running() && !worker.end(), "its period was over");
    }
}
