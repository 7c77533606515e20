//! The owner of a request's I/O: I/O priority and cgroup of the calling process.
//!
//! Both are looked up at most once a second for each process (a few system calls) and cached in a lock-free table of
//! fixed size. A request of a known process costs a clock reading and a load. Such a look-up also refreshes the weights
//! of the groups above it if they are older than 400 ms, so a changed weight takes effect within about a second of I/O.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use steadfs_base::{GroupId, InodeNo, IoPrio, IoTag, OwnerId, PrioClass, Urgency};

use steadfs_rt::groups::{Cgroups, GroupTable, Groups, Weight};

use crate::host::{self, Answer, Question};
use crate::sys;

/// The cgroups that this process's host shows.
struct HostCgroups;

impl Cgroups for HostCgroups {
    fn group_of(&self, pid: u32) -> Option<String> {
        match host::ask(Question::GroupOf(pid)) {
            Answer::Group(group) => Some(group),
            _ => None,
        }
    }

    fn weight(&self, group: &str) -> Weight {
        match host::ask(Question::WeightOf(group.to_owned())) {
            Answer::Weight(weight) => weight,
            _ => Weight::Gone,
        }
    }
}

/// A table of the host's cgroups. A group is reported to `groups` when a process in it makes its first request.
pub fn host_groups(groups: Arc<dyn Groups>) -> GroupTable {
    GroupTable::new(Box::new(HostCgroups), groups)
}

/// Finds the I/O tag of a process: its priority and the group its I/O is charged to.
pub trait Classifier: Send + Sync {
    /// The tag of process `pid` as seen by the server; 0 if the process is not visible from here, or if the kernel
    /// itself makes the request.
    fn tag(&self, pid: u32) -> IoTag;

    /// Records that a process reads or changes a file.
    fn uses(&self, ino: InodeNo, tag: IoTag) {
        let _ = (ino, tag);
    }

    /// The tag of a file's last user: the kernel's write-back of its mapped pages is charged to that user.
    fn last_user(&self, ino: InodeNo) -> IoTag {
        let _ = ino;
        IoTag::default()
    }
}

/// Looks up owners by process: ioprio_get(2), and the cgroup in the blkio hierarchy of cgroup v1 if there is one, in
/// cgroup v2 otherwise.
pub struct Owners {
    /// A [`CachedOwner`] in each slot.
    processes: Box<[AtomicU64]>,
    /// In each slot: low bits of the inode number (34), priority (5), group (25).
    files: Box<[AtomicU64]>,
    /// Whether the scheduler distinguishes groups.
    by_group: AtomicBool,
    table: Option<Arc<GroupTable>>,
}

const SLOTS: usize = 1024;
const PID_BITS: u32 = 22;
const TIME_BITS: u32 = 12;
const PRIO_BITS: u32 = 5;
const GROUP_BITS: u32 = 25;
const FILE_BITS: u32 = 34;

/// The cached owner of a process: pid (22 bits, as many as the kernel uses), time of the look-up (12 bits, in units of
/// about a second), priority (5) and group (25).
#[derive(Clone, Copy)]
struct CachedOwner(u64);

impl CachedOwner {
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
    // Group numbers are assigned in sequence; one beyond the range counts as the root group.
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

/// The value of ioprio_get: class from bit 13 on (1 real-time, 2 best-effort, 3 idle, 0 none), level in the low 3 bits.
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
        let words = || {
            (0..SLOTS)
                .map(|_| AtomicU64::new(CachedOwner::EMPTY))
                .collect()
        };
        Self {
            processes: words(),
            files: words(),
            by_group: AtomicBool::new(false),
            table: None,
        }
    }
}

impl Owners {
    /// With groups, which are looked up once [`Owners::use_groups`] is set.
    pub fn with_groups(table: Arc<GroupTable>) -> Self {
        Self {
            table: Some(table),
            ..Self::default()
        }
    }

    /// Sets whether groups matter; otherwise the group of a process is not looked up.
    pub fn use_groups(&self, on: bool) {
        let on = on && self.table.is_some();
        if self.by_group.swap(on, Ordering::Relaxed) != on {
            for slot in &self.processes {
                slot.store(CachedOwner::EMPTY, Ordering::Relaxed);
            }
        }
    }

    fn look_up(&self, pid: u32) -> (IoPrio, GroupId) {
        // A process that has exited gets the default priority and the root group.
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
        // 2^30 ns: about a second. A stale slot looks fresh again after 4096 of them, about an hour.
        let second = steadfs_rt::now().0 >> 30;
        let slot = &self.processes[pid as usize % SLOTS];
        let seen = CachedOwner(slot.load(Ordering::Relaxed));
        let (prio, group) = if seen.is_of(pid, second) && seen.0 != CachedOwner::EMPTY {
            unpack(seen.0)
        } else {
            let (prio, group) = self.look_up(pid);
            if pid >> PID_BITS == 0 {
                let word = CachedOwner::stamp(pid, second) | pack(prio, group);
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
        if word == CachedOwner::EMPTY
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
    fn packed_words_keep_priority_and_group() {
        for class in [PrioClass::RealTime, PrioClass::BestEffort, PrioClass::Idle] {
            for level in 0..8 {
                for group in [0, 1, (1 << GROUP_BITS) - 1].map(GroupId) {
                    let prio = IoPrio { class, level };
                    assert_eq!(unpack(pack(prio, group)), (prio, group));
                    let word = CachedOwner::stamp(u32::MAX >> 10, 4095) | pack(prio, group);
                    assert!(CachedOwner(word).is_of(u32::MAX >> 10, 4095 + 4096));
                    assert!(!CachedOwner(word).is_of(u32::MAX >> 10, 4094));
                    assert!(!CachedOwner(word).is_of(1, 4095));
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
    fn the_owner_of_a_process_is_cached() {
        let owners = Owners::default();
        let me = std::process::id();
        let first = owners.tag(me);
        assert_eq!(first, owners.tag(me));
        assert_eq!(first.owner, OwnerId(me));
        assert_eq!(owners.tag(0), IoTag::default());
    }

    #[test]
    fn pages_without_an_owner_are_charged_to_the_files_last_user() {
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
        // A request without an owner does not change the last user.
        owners.uses(InodeNo(12), IoTag::default());
        assert_eq!(owners.last_user(InodeNo(12)).group, GroupId(9));
    }

    #[test]
    fn a_cached_owner_costs_less_than_3_us() {
        let owners = Owners::default();
        let me = std::process::id();
        const ROUNDS: u32 = 100;
        // The fastest of many batches: other programs use the CPU, too.
        let batch = || {
            let start = steadfs_rt::now();
            for _ in 0..ROUNDS {
                std::hint::black_box(owners.tag(std::hint::black_box(me)));
            }
            start.elapsed() / ROUNDS
        };
        let each = (0..1000).map(|_| batch()).min().unwrap();
        // System calls would take tens of microseconds.
        assert!(each.as_nanos() < 3000, "{each:?}");
    }
}
