//! Boosts the checkpoint in flight for the tasks that wait for it.
//!
//! **Problem.** A checkpoint is issued with its daemon's tag, or with its caller's if it is not merged. A more urgent
//! task may wait for it: an fsync whose own checkpoint comes after it, or whose nodes carry its version.
//!
//! **Rule.** All requests of the checkpoint, queued and later ones, are boosted to the waiter: their urgency becomes
//! that of awaited I/O, and a merged checkpoint is dispatched in the waiter's group, if that has a better I/O class
//! (real-time) or weighs more than the daemon. It has a queue of its own there, so the waiter's backlog does not delay it.
//!
//! A merged checkpoint's requests are queued for every task whose changes it makes durable, dispatched at the earliest
//! slice, and charged to all of them (`Queue::share`): its requesters, which were queued before it began, and fsyncs
//! that find their file's nodes in it. Charged to the daemon alone, all requesters together had the share that one of
//! them had without merging. A waiter whose own checkpoint comes next boosts this one and is charged for its own only:
//! otherwise a heavy group would pay for each checkpoint of a light one.
//!
//! With `nocheckpoint_merge` a checkpoint is charged to its caller, as in the kernel; merging is measured against that.

use steadfs_base::{IoTag, OwnerId, Urgency};
use steadfs_block::{IoHandle, Queue};
use steadfs_rt::{Mutex, Rank};

/// Tags and requests of the checkpoint in flight.
pub struct CheckpointInFlight(Mutex<InFlight>);

#[derive(Default)]
struct InFlight {
    /// The tag of its requests, boosted to its waiters; `None`: no checkpoint is in flight.
    tag: Option<IoTag>,
    /// The tag before boosts, which is charged.
    submitter: IoTag,
    /// Tags of the tasks that a merged checkpoint serves.
    requesters: Vec<IoTag>,
    ios: Vec<IoHandle>,
}

/// Requesters that are charged one by one.
const MAX_REQUESTERS: usize = 64;

impl CheckpointInFlight {
    pub fn new() -> Self {
        Self(Mutex::new(Rank::Table, InFlight::default()))
    }

    /// A checkpoint begins; `requesters`: those that a merged one serves.
    pub fn begin(&self, tag: IoTag, requesters: &[IoTag]) {
        let inner = &mut *self.0.lock();
        assert!(inner.tag.is_none(), "one checkpoint is in flight at a time");
        assert!(
            inner.ios.is_empty() && inner.requesters.is_empty(),
            "nothing is left of the one before"
        );
        (inner.tag, inner.submitter) = (Some(tag), tag);
        inner
            .requesters
            .extend(requesters.iter().take(MAX_REQUESTERS));
    }

    /// The checkpoint has ended.
    pub fn end(&self) {
        let ended = std::mem::take(&mut *self.0.lock());
        assert!(ended.tag.is_some(), "a checkpoint was in flight");
    }

    /// A task with this tag waits for it, if one is in flight. `merge`: `checkpoint_merge`.
    pub fn boost(&self, queue: &Queue, waiter: IoTag, merge: bool) {
        let inner = &mut *self.0.lock();
        let Some(now) = inner.tag else { return };
        let wanted = match merge {
            true => in_group_of(waiter),
            false => boosted_tag(now, waiter, merge),
        };
        let raised = queue.effective_tag(now, wanted);
        if raised != now {
            inner.tag = Some(raised);
            for io in &inner.ios {
                queue.boost(io, raised);
            }
        }
    }

    /// A merged checkpoint in flight makes changes of a task with this tag durable: the task is charged, too.
    pub fn add_requester(&self, queue: &Queue, requester: IoTag) {
        let inner = &mut *self.0.lock();
        let merged = !inner.requesters.is_empty();
        let counts = inner.requesters.len() < MAX_REQUESTERS;
        if merged && counts && !inner.requesters.contains(&requester) {
            inner.requesters.push(requester);
            queue.share(&inner.ios, &[requester]);
        }
        assert!(
            inner.requesters.len() <= MAX_REQUESTERS,
            "the number of charged requesters is bounded"
        );
    }

    /// Records its requests, submitted with `tag`, and boosts them if a waiter came since.
    pub fn record(&self, queue: &Queue, ios: &[IoHandle], tag: IoTag) {
        let inner = &mut *self.0.lock();
        assert!(
            inner.tag.is_some(),
            "requests belong to the checkpoint in flight"
        );
        assert!(
            inner.requesters.len() <= MAX_REQUESTERS,
            "a request is charged to a bounded number of requesters"
        );
        // Those that have ended need no boost, and would keep their blocks in memory.
        inner.ios.retain(|io| !io.is_done());
        inner.ios.extend_from_slice(ios);
        queue.share(ios, &inner.requesters);
        if let Some(now) = inner.tag.filter(|now| *now != tag) {
            for io in ios {
                queue.boost(io, now);
            }
        }
    }

    /// The tag that its requests are submitted with: [`CheckpointInFlight::record`] boosts them.
    pub fn tag(&self) -> IoTag {
        let inner = self.0.lock();
        assert!(
            inner.tag.is_some(),
            "requests are submitted while a checkpoint is in flight"
        );
        inner.submitter
    }
}

/// The tag of a checkpoint, now `now`, while `waiter` waits for it. A merged one keeps its daemon's owner and priority
/// unless the waiter's class is better; its urgency is at least that of awaited I/O.
pub(super) fn boosted_tag(now: IoTag, waiter: IoTag, merge: bool) -> IoTag {
    if merge && waiter.prio.class < now.prio.class {
        return in_group_of(waiter);
    }
    now.with_urgency(waiter.urgency.max(Urgency::Checkpoint))
}

/// The daemon's tag in the group of a waiter. The daemon stays the owner: the scheduler must not idle for a waiter that
/// may come only once.
fn in_group_of(waiter: IoTag) -> IoTag {
    IoTag {
        owner: OwnerId(0),
        urgency: waiter.urgency.max(Urgency::Checkpoint),
        ..waiter
    }
}

#[cfg(test)]
mod tests {
    use steadfs_base::{GroupId, IoPrio, PrioClass};

    use super::*;

    fn tag(class: PrioClass, urgency: Urgency, group: u32) -> IoTag {
        IoTag {
            urgency,
            prio: IoPrio { class, level: 4 },
            group: GroupId(group),
            owner: OwnerId(group),
        }
    }

    #[test]
    fn only_a_better_class_moves_a_merged_checkpoint_to_its_waiter() {
        let daemon = tag(PrioClass::BestEffort, Urgency::Background, 1);
        for (class, urgency) in [
            (PrioClass::BestEffort, Urgency::Waited),
            (PrioClass::Idle, Urgency::Waited),
        ] {
            let waiter = tag(class, urgency, 2);
            let boosted = boosted_tag(daemon, waiter, true);
            assert_eq!(boosted, daemon.with_urgency(Urgency::Checkpoint));
        }
        let waiter = tag(PrioClass::RealTime, Urgency::Waited, 2);
        let moved = IoTag {
            owner: OwnerId(0),
            urgency: Urgency::Checkpoint,
            ..waiter
        };
        assert_eq!(boosted_tag(daemon, waiter, true), moved);
        // One that is not merged stays its caller's.
        let own = daemon.with_urgency(Urgency::Checkpoint);
        assert_eq!(boosted_tag(daemon, waiter, false), own);
    }
}
