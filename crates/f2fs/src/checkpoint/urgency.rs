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
pub struct UnderWay(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// What it is submitted as; `None`: there is none.
    tag: Option<IoTag>,
    /// For whom a task writes it.
    for_whom: Vec<IoTag>,
    ios: Vec<IoHandle>,
}

/// How many of those are told apart.
const MOST: usize = 64;

impl UnderWay {
    /// None.
    pub fn new() -> Self {
        Self(Mutex::new(Rank::Table, Inner::default()))
    }

    /// One begins; `for_whom`: those who have asked a task for it.
    pub fn begin(&self, tag: IoTag, for_whom: &[IoTag]) {
        let inner = &mut *self.0.lock();
        inner.tag = Some(tag);
        inner.for_whom.extend(for_whom.iter().take(MOST));
    }

    /// It has ended.
    pub fn end(&self) {
        *self.0.lock() = Inner::default();
    }

    /// What its requests are submitted as by now.
    pub fn tag(&self) -> IoTag {
        self.0.lock().tag.unwrap_or_default()
    }
}

/// What a checkpoint of tag `now` is raised to when `waiter` waits for it. A merged one keeps its daemon's
/// account and priority, unless the waiter's class is better; what nobody waited for becomes waited for.
pub(super) fn due(now: IoTag, waiter: IoTag, merge: bool) -> IoTag {
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
    pub(crate) fn raise_checkpoint(&self, waiter: IoTag) {
        let merge = self.options.read().checkpoint_merge;
        let inner = &mut *self.checkpoints.under_way.0.lock();
        let Some(now) = inner.tag else { return };
        let by_task = !inner.for_whom.is_empty();
        if by_task && inner.for_whom.len() < MOST && !inner.for_whom.contains(&waiter) {
            inner.for_whom.push(waiter);
            self.queue.share(&inner.ios, &[waiter]);
        }
        let raised = self.queue.raised(now, due(now, waiter, merge));
        if raised != now {
            inner.tag = Some(raised);
            for io in &inner.ios {
                self.queue.boost(io, raised);
            }
        }
    }

    /// Notes requests of the checkpoint under way, submitted as `tag`; raises them if somebody has come
    /// since.
    pub(super) fn note_checkpoint_io(&self, ios: &[IoHandle], tag: IoTag) {
        let inner = &mut *self.checkpoints.under_way.0.lock();
        inner.ios.extend_from_slice(ios);
        self.queue.share(ios, &inner.for_whom);
        if let Some(now) = inner.tag.filter(|now| *now != tag) {
            for io in ios {
                self.queue.boost(io, now);
            }
        }
    }
}
