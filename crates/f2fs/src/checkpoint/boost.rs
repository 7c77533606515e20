//! Who waits for the checkpoint under way.
//!
//! A checkpoint runs on its daemon's account and with its priority, an inline one on its caller's. Somebody
//! may wait for it who is more urgent: an fsync whose own checkpoint comes after it, or whose nodes carry its
//! version. Its requests, those queued and those to come, are then raised: one that nobody waited for becomes
//! one that somebody waits for, and a merged one goes to a waiter of a better class (real-time). Heavier groups
//! do not take it: the daemon comes and goes and is served at once, which their own backlog would not let it.
//!
//! What a merged one does is done for those who asked for it or wait for it: its writes and its FLUSHes go with
//! the turn of the best placed of them and of the daemon, and are on the account of all (`Queue::share`). On
//! the daemon's alone, all of them together had what one of them had without merging.
//!
//! With `nocheckpoint_merge` a checkpoint stays on its caller's account, as in the kernel: that is what
//! merging is measured against.

use steadfs_base::{IoTag, OwnerId, Urgency};
use steadfs_block::IoHandle;
use steadfs_rt::{Mutex, Rank};

use crate::fs::F2fs;

/// The checkpoint under way.
pub struct CheckpointInFlight(Mutex<InFlight>);

#[derive(Default)]
struct InFlight {
    /// What it is submitted as; `None`: there is none.
    tag: Option<IoTag>,
    /// For whom a task writes it.
    requesters: Vec<IoTag>,
    ios: Vec<IoHandle>,
}

/// How many of those are told apart.
const MAX_REQUESTERS: usize = 64;

impl CheckpointInFlight {
    /// None.
    pub fn new() -> Self {
        Self(Mutex::new(Rank::Table, InFlight::default()))
    }

    /// One begins; `requesters`: those who have asked a task for it.
    pub fn begin(&self, tag: IoTag, requesters: &[IoTag]) {
        let inner = &mut *self.0.lock();
        inner.tag = Some(tag);
        inner
            .requesters
            .extend(requesters.iter().take(MAX_REQUESTERS));
    }

    /// It has ended.
    pub fn end(&self) {
        *self.0.lock() = InFlight::default();
    }

    /// What its requests are submitted as by now.
    pub fn tag(&self) -> IoTag {
        self.0.lock().tag.unwrap_or_default()
    }
}

/// What a checkpoint of tag `now` is raised to when `waiter` waits for it. A merged one keeps its daemon's
/// account and priority, unless the waiter's class is better; what nobody waited for becomes waited for.
pub(super) fn boosted_tag(now: IoTag, waiter: IoTag, merge: bool) -> IoTag {
    if merge && waiter.prio.class < now.prio.class {
        // The daemon stays the owner: a waiter perhaps comes once, and is not to be waited for.
        return IoTag {
            owner: OwnerId(0),
            ..waiter
        };
    }
    now.with_urgency(waiter.urgency.max(Urgency::Checkpoint))
}

impl F2fs {
    /// Somebody of this tag waits for the checkpoint under way.
    pub(crate) fn boost_checkpoint(&self, waiter: IoTag) {
        let merge = self.options.read().checkpoint_merge;
        let inner = &mut *self.checkpoints.in_flight.0.lock();
        let Some(now) = inner.tag else { return };
        let by_task = !inner.requesters.is_empty();
        if by_task && inner.requesters.len() < MAX_REQUESTERS && !inner.requesters.contains(&waiter)
        {
            inner.requesters.push(waiter);
            self.queue.share(&inner.ios, &[waiter]);
        }
        let raised = self
            .queue
            .effective_tag(now, boosted_tag(now, waiter, merge));
        if raised != now {
            inner.tag = Some(raised);
            for io in &inner.ios {
                self.queue.boost(io, raised);
            }
        }
    }

    /// Notes requests of the checkpoint under way, submitted as `tag`; raises them if somebody has come
    /// since.
    pub(super) fn record_checkpoint_io(&self, ios: &[IoHandle], tag: IoTag) {
        let inner = &mut *self.checkpoints.in_flight.0.lock();
        inner.ios.extend_from_slice(ios);
        self.queue.share(ios, &inner.requesters);
        if let Some(now) = inner.tag.filter(|now| *now != tag) {
            for io in ios {
                self.queue.boost(io, now);
            }
        }
    }
}
