//! The tag of an I/O: its urgency, priority, cgroup and owner. Every dirty page and every bio has one.

/// The urgency of an I/O. A smaller value is more urgent; a boost only makes it smaller.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Urgency {
    /// A task waits for it.
    #[default]
    Waited,
    /// Part of a journal commit.
    Journal,
    /// Part of an f2fs checkpoint.
    Checkpoint,
    /// Background write-back, read-ahead, journal reclaim.
    Background,
    /// Only while the device is idle.
    Idle,
}

/// I/O priority class of ioprio_set(2), in the order of service.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PrioClass {
    /// Served before every other class.
    RealTime,
    /// The normal class.
    BestEffort,
    /// Served when no other class has requests.
    Idle,
}

/// I/O priority: class and level.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IoPrio {
    /// The class.
    pub class: PrioClass,
    /// Level inside the class, 0 to 7; a smaller level is served first.
    pub level: u8,
}

impl IoPrio {
    /// Best-effort priority at `level` (0 to 7).
    pub const fn best_effort(level: u8) -> Self {
        Self {
            class: PrioClass::BestEffort,
            level,
        }
    }
}

impl Default for IoPrio {
    /// Best-effort 4, the default of a process.
    fn default() -> Self {
        Self::best_effort(4)
    }
}

/// The number of a cgroup in the scheduler; 0 is the root group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct GroupId(pub u32);

/// The number of the kernel task (thread) that an I/O belongs to; 0 is no single task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OwnerId(pub u32);

/// Owner and urgency of an I/O.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct IoTag {
    /// How urgent it is.
    pub urgency: Urgency,
    /// The I/O priority of its owner.
    pub prio: IoPrio,
    /// The cgroup that is charged.
    pub group: GroupId,
    /// The owner inside the cgroup.
    pub owner: OwnerId,
}

impl IoTag {
    /// The same tag with another urgency. Background and idle I/O has no owner, so that adjacent requests of different
    /// owners can be merged.
    pub const fn with_urgency(self, urgency: Urgency) -> Self {
        let owner = match urgency {
            Urgency::Waited | Urgency::Journal | Urgency::Checkpoint => self.owner,
            Urgency::Background | Urgency::Idle => OwnerId(0),
        };
        Self {
            urgency,
            owner,
            ..self
        }
    }

    /// A background tag of the root group, without an owner: for the flusher, read-ahead and reclaim.
    pub const fn background() -> Self {
        Self {
            urgency: Urgency::Background,
            prio: IoPrio::best_effort(4),
            group: GroupId(0),
            owner: OwnerId(0),
        }
    }

    /// This tag boosted to the waiter's: the more urgent of both urgencies, and the better of both priorities. If one of
    /// them changes, the I/O is charged to the waiter. Never makes an I/O less urgent.
    pub fn boosted_to(self, waiter: IoTag) -> IoTag {
        if waiter.urgency >= self.urgency && waiter.prio >= self.prio {
            return self;
        }
        IoTag {
            urgency: self.urgency.min(waiter.urgency),
            prio: self.prio.min(waiter.prio),
            group: waiter.group,
            owner: waiter.owner,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boost_never_lowers_a_tag() {
        let background = IoTag::background();
        let waited = IoTag {
            group: GroupId(3),
            ..IoTag::default()
        };
        let boosted = background.boosted_to(waited);
        assert_eq!(boosted.urgency, Urgency::Waited);
        assert_eq!(boosted.group, GroupId(3));
        assert_eq!(boosted.boosted_to(background), boosted);
    }
}
