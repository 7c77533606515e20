//! From a calling process to the owner of its I/O: I/O priority and cgroup.
//!
//! Both are looked up once a second for each process (a few system calls) and remembered in a table
//! of fixed size without locks; a request of a known process costs a clock reading and a load. Weights
//! of groups are read again at such look-ups, at most every half second, so a change is followed
//! within a second while anybody does I/O.

mod cgroup;
mod groups;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use steadfs_base::{GroupId, InodeNo, IoPrio, IoTag, OwnerId, PrioClass, Urgency};

use crate::sys;
use groups::Table;

/// Says on whose account, and with which priority, a process's I/O runs.
pub trait Classifier: Send + Sync {
    /// The tag of process `pid` (as the daemon sees it; 0 when it cannot see it, or when no process
    /// stands behind the request).
    fn tag(&self, pid: u32) -> IoTag;

    /// A process reads or changes a file.
    fn uses(&self, ino: InodeNo, tag: IoTag) {
        let _ = (ino, tag);
    }

    /// Who used a file last: its pages that the kernel writes on nobody's account are on his.
    fn last_user(&self, ino: InodeNo) -> IoTag {
        let _ = ino;
        IoTag::default()
    }
}

/// Learns of the groups that there are. Groups come after their parents, with larger numbers.
pub trait Groups: Send + Sync {
    /// There is a group below `parent`, or it has another weight (1 to 1000).
    fn set(&self, group: GroupId, parent: GroupId, weight: u32);
    /// A group is gone.
    fn forget(&self, group: GroupId);
}

/// Owners by process: ioprio_get(2), and the cgroup in the blkio hierarchy of version 1 where there
/// is one, else in that of version 2.
pub struct Owners {
    /// One word for each slot, see [`Seen`].
    processes: Box<[AtomicU64]>,
    /// One word for each slot: inode number's low bits (34), priority (5), group (25).
    files: Box<[AtomicU64]>,
    /// Whether anybody orders by groups.
    by_group: AtomicBool,
    table: Option<Table>,
}

const SLOTS: usize = 1024;
const PID_BITS: u32 = 22;
const TIME_BITS: u32 = 12;
const PRIO_BITS: u32 = 5;
const GROUP_BITS: u32 = 25;
const FILE_BITS: u32 = 34;

/// What is known of a process: pid (22 bits: the kernel has no larger ones), when it was looked up
/// (12 bits: units of about a second), priority (5) and group (25).
#[derive(Clone, Copy)]
struct Seen(u64);

impl Seen {
    const EMPTY: u64 = 0;

    fn stamp(pid: u32, second: u64) -> u64 {
        let time = second & ((1 << TIME_BITS) - 1);
        (u64::from(pid) << TIME_BITS | time) << (PRIO_BITS + GROUP_BITS)
    }

    fn is_of(self, pid: u32, second: u64) -> bool {
        self.0 >> (PRIO_BITS + GROUP_BITS) == Self::stamp(pid, second) >> (PRIO_BITS + GROUP_BITS)
    }
}

/// Priority and group in the low bits of a word.
fn pack(prio: IoPrio, group: GroupId) -> u64 {
    let class = match prio.class {
        PrioClass::RealTime => 1,
        PrioClass::BestEffort => 2,
        PrioClass::Idle => 3,
    };
    // Numbers of groups are given out one after the other; one beyond the range is the root's.
    let group = match group.0 >> GROUP_BITS {
        0 => group.0,
        _ => 0,
    };
    (class << 3 | u64::from(prio.level & 7)) << GROUP_BITS | u64::from(group)
}

fn unpack(word: u64) -> (IoPrio, GroupId) {
    let prio = (word >> GROUP_BITS) as u32 & ((1 << PRIO_BITS) - 1);
    let group = GroupId(word as u32 & ((1 << GROUP_BITS) - 1));
    (from_kernel(prio >> 3 << 13 | prio & 7), group)
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

impl Default for Owners {
    /// By priority only.
    fn default() -> Self {
        let words = || (0..SLOTS).map(|_| AtomicU64::new(Seen::EMPTY)).collect();
        Self {
            processes: words(),
            files: words(),
            by_group: AtomicBool::new(false),
            table: None,
        }
    }
}

impl Owners {
    /// Tells `groups` of cgroups as processes in them appear, once [`Owners::use_groups`] says so.
    pub fn with_groups(groups: Arc<dyn Groups>) -> Self {
        Self {
            table: Some(Table::new(cgroup::Hierarchy::find(), groups)),
            ..Self::default()
        }
    }

    /// Whether groups matter; while not, processes are not looked up in them.
    pub fn use_groups(&self, on: bool) {
        let on = on && self.table.is_some();
        if self.by_group.swap(on, Ordering::Relaxed) != on {
            for slot in &self.processes {
                slot.store(Seen::EMPTY, Ordering::Relaxed);
            }
        }
    }

    /// Weights by path that count more than the groups' own files.
    pub fn set_weights(&self, weights: BTreeMap<String, u32>) {
        if let Some(table) = &self.table {
            table.set_weights(weights);
        }
    }

    /// The group at a path (from the hierarchy's root), whether or not a process is in it.
    pub fn group(&self, path: &str) -> GroupId {
        match &self.table {
            Some(table) => table.group(path),
            None => GroupId(0),
        }
    }

    /// The paths of all groups, with their numbers and weights.
    pub fn groups(&self) -> Vec<(String, GroupId, u32)> {
        self.table.as_ref().map(Table::list).unwrap_or_default()
    }

    fn look_up(&self, pid: u32) -> (IoPrio, GroupId) {
        // A process that is gone has the normal priority, and the root's account.
        let prio = sys::ioprio_of(pid).map_or(IoPrio::default(), from_kernel);
        let group = match &self.table {
            Some(table) if self.by_group.load(Ordering::Relaxed) => table.group_of(pid),
            _ => GroupId(0),
        };
        (prio, group)
    }
}

impl Classifier for Owners {
    fn tag(&self, pid: u32) -> IoTag {
        if pid == 0 {
            return IoTag::default();
        }
        // 2^30 ns: about a second. A wrap of the time hits a slot at most once in an hour.
        let second = steadfs_rt::now().0 >> 30;
        let slot = &self.processes[pid as usize % SLOTS];
        let seen = Seen(slot.load(Ordering::Relaxed));
        let (prio, group) = if seen.is_of(pid, second) && seen.0 != Seen::EMPTY {
            unpack(seen.0)
        } else {
            let (prio, group) = self.look_up(pid);
            if pid >> PID_BITS == 0 {
                let word = Seen::stamp(pid, second) | pack(prio, group);
                slot.store(word, Ordering::Relaxed);
            }
            (prio, group)
        };
        IoTag {
            urgency: Urgency::Waited,
            prio,
            group,
            owner: OwnerId(pid),
        }
    }

    fn uses(&self, ino: InodeNo, tag: IoTag) {
        if self.by_group.load(Ordering::Relaxed) && tag.owner != OwnerId(0) {
            let word = ino.0 << (64 - FILE_BITS) | pack(tag.prio, tag.group);
            self.files[ino.0 as usize % SLOTS].store(word, Ordering::Relaxed);
        }
    }

    fn last_user(&self, ino: InodeNo) -> IoTag {
        let word = self.files[ino.0 as usize % SLOTS].load(Ordering::Relaxed);
        if word == Seen::EMPTY
            || word >> (64 - FILE_BITS) != ino.0 << (64 - FILE_BITS) >> (64 - FILE_BITS)
        {
            return IoTag::default();
        }
        let (prio, group) = unpack(word);
        IoTag {
            prio,
            group,
            ..IoTag::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_priority_and_group() {
        for class in [PrioClass::RealTime, PrioClass::BestEffort, PrioClass::Idle] {
            for level in 0..8 {
                for group in [0, 1, (1 << GROUP_BITS) - 1].map(GroupId) {
                    let prio = IoPrio { class, level };
                    assert_eq!(unpack(pack(prio, group)), (prio, group));
                    let word = Seen::stamp(u32::MAX >> 10, 4095) | pack(prio, group);
                    assert!(Seen(word).is_of(u32::MAX >> 10, 4095 + 4096));
                    assert!(!Seen(word).is_of(u32::MAX >> 10, 4094));
                    assert!(!Seen(word).is_of(1, 4095));
                }
            }
        }
        assert_eq!(
            unpack(pack(IoPrio::default(), GroupId(1 << GROUP_BITS))).1,
            GroupId(0)
        );
        assert_eq!(from_kernel(0), IoPrio::best_effort(4));
        assert_eq!(from_kernel((2 << 13) | 7), IoPrio::best_effort(7));
    }

    #[test]
    fn a_process_is_looked_up_and_remembered() {
        let owners = Owners::default();
        let me = std::process::id();
        let first = owners.tag(me);
        assert_eq!(first, owners.tag(me));
        assert_eq!(first.owner, OwnerId(me));
        assert_eq!(owners.tag(0), IoTag::default());
    }

    #[test]
    fn pages_of_nobody_are_their_last_users() {
        let owners = Owners::default();
        owners.by_group.store(true, Ordering::Relaxed);
        let tag = IoTag {
            prio: IoPrio::best_effort(6),
            group: GroupId(9),
            owner: OwnerId(77),
            ..IoTag::default()
        };
        owners.uses(InodeNo(12), tag);
        let found = owners.last_user(InodeNo(12));
        assert_eq!((found.prio, found.group), (tag.prio, tag.group));
        assert_eq!(
            owners.last_user(InodeNo(12 + SLOTS as u64)),
            IoTag::default()
        );
        assert_eq!(owners.last_user(InodeNo(13)), IoTag::default());
        // What nobody does tells nothing.
        owners.uses(InodeNo(12), IoTag::default());
        assert_eq!(owners.last_user(InodeNo(12)).group, GroupId(9));
    }

    #[test]
    fn a_known_process_costs_next_to_nothing() {
        let owners = Owners::default();
        let me = std::process::id();
        const ROUNDS: u32 = 100;
        // The best of many: other programs want the processor, too.
        let batch = || {
            let start = steadfs_rt::now();
            for _ in 0..ROUNDS {
                std::hint::black_box(owners.tag(std::hint::black_box(me)));
            }
            start.elapsed() / ROUNDS
        };
        let each = (0..1000).map(|_| batch()).min().unwrap();
        // Asking the kernel takes tens of microseconds.
        assert!(each.as_nanos() < 3000, "{each:?}");
    }
}
