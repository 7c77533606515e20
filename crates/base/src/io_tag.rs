//! Who asked for an I/O, and why: travels with every dirty page and every bio.

/// Why an I/O is issued. Ordered: a smaller value is more urgent. Only ever raised.
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
    /// Only when the device has nothing else to do.
    Idle,
}

/// I/O priority class, as ioprio_set(2) has it; ordered from the first served.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PrioClass {
    /// Served before every other class.
    RealTime,
    /// The normal class.
    BestEffort,
    /// Served when no other class wants the device.
    Idle,
}

/// I/O priority: class and level (0 first to 7 last).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IoPrio {
    /// Class of service.
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
    /// Best-effort 4: what a process has that never set a priority.
    fn default() -> Self {
        Self::best_effort(4)
    }
}

/// A cgroup as the scheduler knows it; 0 is the root group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct GroupId(pub u32);

/// The process (as the kernel counts them: the thread) behind an I/O; 0 is nobody in particular.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OwnerId(pub u32);

/// Owner and urgency of an I/O.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct IoTag {
    /// Why it is issued.
    pub urgency: Urgency,
    /// With which priority.
    pub prio: IoPrio,
    /// On whose account.
    pub group: GroupId,
    /// For whom inside the group.
    pub owner: OwnerId,
}

impl IoTag {
    /// The same account, with another urgency. What nobody waits for is no single process's, so that
    /// neighbours on the device become one request.
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

    /// A background tag of nobody in particular: flusher, read-ahead, reclaim.
    pub const fn background() -> Self {
        Self {
            urgency: Urgency::Background,
            prio: IoPrio::best_effort(4),
            group: GroupId(0),
            owner: OwnerId(0),
        }
    }

    /// This tag raised to `waiter`'s: the more urgent of both urgencies and the better priority.
    /// The account moves to the waiter if anything was raised. Never lowers.
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
    fn raising_never_lowers() {
        let bg = IoTag::background();
        let waited = IoTag {
            group: GroupId(3),
            ..IoTag::default()
        };
        let raised = bg.boosted_to(waited);
        assert_eq!(raised.urgency, Urgency::Waited);
        assert_eq!(raised.group, GroupId(3));
        assert_eq!(raised.boosted_to(bg), raised);
    }
}
