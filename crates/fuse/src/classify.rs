//! From a calling process to the owner of its I/O.

use std::sync::atomic::{AtomicU64, Ordering};

use steadfs_base::{GroupId, IoPrio, IoTag, OwnerId, PrioClass, Urgency};

use crate::sys;

/// Says on whose account, and with which priority, a process's I/O runs.
pub trait Classifier: Send + Sync {
    /// The tag of process `pid` (as the daemon sees it; 0 when it cannot see it, or when no process
    /// stands behind the request).
    fn tag(&self, pid: u32) -> IoTag;
}

/// I/O priority from ioprio_get(2), remembered per process for a second; one group for all.
pub struct ByPriority {
    /// One word for each slot: process (32 bits), second of the look (24), priority (8).
    slots: [AtomicU64; SLOTS],
}

const SLOTS: usize = 256;

impl Default for ByPriority {
    fn default() -> Self {
        Self {
            slots: [const { AtomicU64::new(0) }; SLOTS],
        }
    }
}

impl Classifier for ByPriority {
    fn tag(&self, pid: u32) -> IoTag {
        let prio = if pid == 0 {
            IoPrio::default()
        } else {
            self.priority(pid)
        };
        IoTag {
            urgency: Urgency::Waited,
            prio,
            group: GroupId(0),
            owner: OwnerId(pid),
        }
    }
}

impl ByPriority {
    fn priority(&self, pid: u32) -> IoPrio {
        // 2^30 ns: about a second. The wrap after half a year hits a slot at most once a wrap.
        let second = (steadfs_rt::now().0 >> 30) & 0xff_ffff;
        let slot = &self.slots[pid as usize % SLOTS];
        let stamp = (u64::from(pid) << 32) | (second << 8);
        let seen = slot.load(Ordering::Relaxed);
        if seen & !0xff == stamp {
            return unpack(seen as u8);
        }
        // A process that is gone has the normal priority.
        let prio = sys::ioprio_of(pid).map_or(IoPrio::default(), from_kernel);
        slot.store(stamp | u64::from(pack(prio)), Ordering::Relaxed);
        prio
    }
}

/// ioprio_get's value: class in the bits from 13 on (1 real-time, 2 best-effort, 3 idle, 0 none),
/// level in the low 3 bits.
fn from_kernel(value: u32) -> IoPrio {
    let class = match value >> 13 {
        1 => PrioClass::RealTime,
        2 => PrioClass::BestEffort,
        3 => PrioClass::Idle,
        _ => return IoPrio::default(),
    };
    IoPrio {
        class,
        level: (value & 7) as u8,
    }
}

fn pack(prio: IoPrio) -> u8 {
    let class = match prio.class {
        PrioClass::RealTime => 1,
        PrioClass::BestEffort => 2,
        PrioClass::Idle => 3,
    };
    (class << 4) | (prio.level & 7)
}

fn unpack(byte: u8) -> IoPrio {
    from_kernel((u32::from(byte >> 4) << 13) | u32::from(byte & 7))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_survive_packing() {
        for class in [PrioClass::RealTime, PrioClass::BestEffort, PrioClass::Idle] {
            for level in 0..8 {
                let prio = IoPrio { class, level };
                assert_eq!(unpack(pack(prio)), prio);
            }
        }
        assert_eq!(from_kernel(0), IoPrio::best_effort(4));
        assert_eq!(from_kernel((2 << 13) | 7), IoPrio::best_effort(7));
    }

    #[test]
    fn a_process_is_looked_up_and_remembered() {
        let by = ByPriority::default();
        let me = std::process::id();
        let first = by.tag(me);
        assert_eq!(first, by.tag(me));
        assert_eq!(by.tag(0), IoTag::default());
    }
}
