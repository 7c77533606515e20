//! Which of a group's lines a request stands in, by its tag.

use steadfs_base::{IoTag, PrioClass, Urgency};

use super::options::{CLASSES, class_of};

/// Lines of a group: for each class one of those that somebody waits for, one of the others.
pub(super) const LANES: usize = 2 * CLASSES;

/// The class that a tag is served in.
pub(super) fn class(tag: IoTag) -> PrioClass {
    if tag.urgency == Urgency::Idle {
        PrioClass::Idle
    } else {
        tag.prio.class
    }
}

/// Whether somebody waits for requests of this tag.
pub(super) fn is_sync(tag: IoTag) -> bool {
    tag.urgency <= Urgency::Checkpoint
}

/// The line for requests of this tag.
pub(super) fn lane_of(tag: IoTag) -> usize {
    2 * class_of(class(tag)) + usize::from(!is_sync(tag))
}

/// Whether a line is of those that somebody waits for.
pub(super) const fn is_sync_lane(lane: usize) -> bool {
    lane.is_multiple_of(2)
}

/// The line of what nobody waits for, of the same class.
pub(super) const fn async_lane(lane: usize) -> usize {
    lane | 1
}
