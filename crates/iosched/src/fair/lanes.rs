//! Lanes: a group serves its owners by I/O class, and in each class sync requests before async ones.

use steadfs_base::{IoTag, PrioClass, Urgency};

use super::options::{CLASSES, class_of};

/// Lanes of a group: a sync and an async one for each class, in the order of service.
pub(super) const LANES: usize = 2 * CLASSES;

/// The class in which requests of this tag are served.
pub(super) fn class(tag: IoTag) -> PrioClass {
    if tag.urgency == Urgency::Idle {
        PrioClass::Idle
    } else {
        tag.prio.class
    }
}

/// Whether requests of this tag are sync: a task waits for them.
pub(super) fn is_sync(tag: IoTag) -> bool {
    tag.urgency <= Urgency::Checkpoint
}

/// The lane of requests of this tag.
pub(super) fn lane_of(tag: IoTag) -> usize {
    2 * class_of(class(tag)) + usize::from(!is_sync(tag))
}

/// Whether this is a sync lane.
pub(super) const fn is_sync_lane(lane: usize) -> bool {
    lane.is_multiple_of(2)
}

/// The async lane of the same class.
pub(super) const fn async_lane(lane: usize) -> usize {
    lane | 1
}
