//! When and where new segments are opened: the kernel's rules as pure functions.

use crate::disk::{LogType, SEGMENT_BLOCKS};
pub use crate::options::{AllocMode, GcPolicy, Mode};

/// What the choice of segments depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `gc_policy=`.
    pub rules: GcPolicy,
    /// `mode=`.
    pub mode: Mode,
    /// `alloc_mode=`.
    pub alloc: AllocMode,
    /// Sections that only nodes and GC may use.
    pub reserved_sections: u32,
    /// Sections that are not counted as users' space, the reserved ones included.
    pub overprovision_sections: u32,
    /// `min_ssr_sections`: with at most this many free sections beyond the reserve, SSR is used.
    pub min_ssr_sections: u32,
    /// SSR is always used (`gc_urgent` 1).
    pub force_ssr: bool,
    /// `max_victim_search`.
    pub max_search: u32,
}

/// Dirty blocks in memory that will be allocated, by type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Dirty nodes.
    pub nodes: u32,
    /// Dirty directory blocks.
    pub dentries: u32,
    /// Inodes that are dirty in memory only.
    pub inodes: u32,
    /// Dirty data of files, where it is not written in place.
    pub data: u32,
}

/// Why a block is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Data of a user: must not use the reserved sections.
    User,
    /// Data moved by GC: leaves some sections to nodes and directories.
    Moved,
    /// A block of a checkpoint or an fsync: may use all sections.
    Reserved,
}

const fn sections(blocks: u32, per_section: u32) -> u32 {
    assert!(per_section > 0, "a section has segments");
    blocks.div_ceil(per_section * SEGMENT_BLOCKS)
}

/// Sections that users' data always leaves to nodes and GC, however small the reserve: one for each log.
const SECTIONS_KEPT_MIN: u32 = LogType::ALL.len() as u32;

/// Free sections that GC leaves for the checkpoint that ends it.
pub const SECTIONS_KEPT_FROM_GC: u32 = 2;

impl Policy {
    /// Whether cursegs use SSR (`f2fs_need_SSR`).
    pub const fn needs_ssr(&self, free: u32, demand: Demand, per_section: u32) -> bool {
        if matches!(self.mode, Mode::Lfs) {
            return false;
        }
        if self.force_ssr {
            return true;
        }
        if matches!(self.rules, GcPolicy::Linux2013) {
            return free < self.overprovision_sections;
        }
        let nodes = sections(demand.nodes, per_section);
        let dentries = sections(demand.dentries, per_section);
        let inodes = sections(demand.inodes, per_section);
        let kept = self.min_ssr_sections.saturating_add(self.reserved_sections);
        let needed = nodes.saturating_add(2 * dentries).saturating_add(inodes);
        free <= needed.saturating_add(kept)
    }

    /// Free sections that users' data must not use: for dirty nodes and directories, and some for GC, up to the
    /// reserve.
    pub fn kept_from_users(&self, demand: Demand, per_section: u32) -> u32 {
        let nodes = demand.nodes.saturating_add(demand.inodes);
        let needed = sections(nodes, per_section) + 2 * sections(demand.dentries, per_section);
        self.reserved_sections
            .min(SECTIONS_KEPT_MIN.saturating_add(needed))
    }

    /// Whether GC has to free space before more is changed (`has_not_enough_free_secs`): `free` sections do not cover
    /// the dirty blocks and the reserve. `room(log)`: blocks that a log can still allocate in its section.
    pub fn is_short(
        &self,
        free: u32,
        demand: Demand,
        per_section: u32,
        room: impl Fn(LogType) -> u32,
    ) -> bool {
        let size = per_section * SEGMENT_BLOCKS;
        if self.rules == GcPolicy::Linux2013 {
            return free <= self.needed_2013(demand, per_section);
        }
        let nodes = demand.nodes.saturating_add(demand.inodes);
        let nodes = nodes.saturating_add(demand.dentries);
        let data = match self.mode {
            Mode::Lfs => demand.data,
            Mode::Adaptive => 0,
        };
        let parts = [nodes, demand.dentries, data];
        let lower = parts
            .iter()
            .fold(0u32, |n, part| n.saturating_add(part / size));
        let partly = parts.iter().filter(|part| *part % size > 0).count() as u32;
        let lower = lower.saturating_add(self.reserved_sections);
        if free > lower.saturating_add(partly) {
            return false;
        }
        if free <= lower {
            return true;
        }
        let fits = |log: LogType| {
            let part = match log {
                LogType::HotData => demand.dentries.saturating_add(data),
                log if log.is_node() => nodes,
                _ => data,
            };
            part % size <= room(log)
        };
        !LogType::ALL.into_iter().all(fits)
    }

    /// Sections that may be needed by Linux 3.11's count: dirty nodes and directories, and the reserve.
    fn needed_2013(&self, demand: Demand, per_section: u32) -> u32 {
        let nodes = demand.nodes.saturating_add(demand.inodes);
        let dentries = sections(demand.dentries, per_section);
        sections(nodes, per_section)
            .saturating_add(dentries.saturating_mul(2))
            .saturating_add(self.reserved_sections)
    }

    /// Types of segments in which a log uses SSR, in the order of the search.
    pub fn ssr_types(
        &self,
        log: LogType,
        free: u32,
        demand: Demand,
        per_section: u32,
    ) -> &'static [LogType] {
        let all = ssr_types(log);
        match self.rules {
            GcPolicy::Linux618 => all,
            // Data only while space is short, from colder to hotter; nodes never.
            GcPolicy::Linux2013 if log.is_node() => &all[..1],
            GcPolicy::Linux2013 if free > self.needed_2013(demand, per_section) => &all[..1],
            GcPolicy::Linux2013 => match log {
                LogType::HotData => &all[..1],
                LogType::WarmData => &[LogType::WarmData, LogType::HotData],
                _ => all,
            },
        }
    }

    /// Whether a log uses free segments only while there are any: in 2013 the log of fsync's node chain, because
    /// roll-forward could not distinguish its nodes from older ones in the same segment.
    pub fn always_lfs(&self, log: LogType) -> bool {
        self.rules == GcPolicy::Linux2013 && log == LogType::WarmNode
    }
}

/// Types of segments in which a log may use SSR, in the order of the search: its own, then those of the same kind,
/// nearest in temperature.
pub const fn ssr_types(log: LogType) -> &'static [LogType; 3] {
    use LogType::{ColdData, ColdNode, HotData, HotNode, WarmData, WarmNode};
    match log {
        HotData => &[HotData, WarmData, ColdData],
        WarmData => &[WarmData, ColdData, HotData],
        ColdData => &[ColdData, WarmData, HotData],
        HotNode => &[HotNode, WarmNode, ColdNode],
        WarmNode => &[WarmNode, ColdNode, HotNode],
        ColdNode => &[ColdNode, WarmNode, HotNode],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssr_is_used_when_few_sections_are_free() {
        let policy = Policy {
            rules: GcPolicy::Linux618,
            overprovision_sections: 30,
            mode: Mode::Adaptive,
            alloc: AllocMode::Default,
            reserved_sections: 10,
            min_ssr_sections: 5,
            force_ssr: false,
            max_search: 4096,
        };
        let demand = Demand {
            nodes: 513,
            dentries: 1,
            inodes: 0,
            data: 9999,
        };
        assert!(policy.needs_ssr(15, Demand::default(), 1));
        assert!(!policy.needs_ssr(16, Demand::default(), 1));
        assert!(policy.needs_ssr(19, demand, 1));
        assert!(!policy.needs_ssr(20, demand, 1));
        assert!(policy.needs_ssr(18, demand, 2));
        assert!(!policy.needs_ssr(19, demand, 2));
        let lfs = Policy {
            mode: Mode::Lfs,
            ..policy
        };
        assert!(!lfs.needs_ssr(0, demand, 1));
        let room = |_: LogType| 100;
        assert!(!policy.is_short(11, Demand::default(), 1, room));
        assert!(policy.is_short(10, Demand::default(), 1, room));
        // One section of nodes for sure, and perhaps two more.
        assert!(!policy.is_short(14, demand, 1, room));
        assert!(policy.is_short(11, demand, 1, room));
        assert!(!policy.is_short(12, demand, 1, room));
        assert!(policy.is_short(12, demand, 1, |_| 1));
        assert!(lfs.is_short(29, demand, 1, room));
        assert_eq!(policy.kept_from_users(demand, 1), 10);
        assert_eq!(policy.kept_from_users(Demand::default(), 1), 6);
        let forced = Policy {
            force_ssr: true,
            ..policy
        };
        assert!(forced.needs_ssr(1000, demand, 1));
    }

    #[test]
    fn rules_of_linux_3_11() {
        let policy = Policy {
            rules: GcPolicy::Linux2013,
            mode: Mode::Adaptive,
            alloc: AllocMode::Default,
            reserved_sections: 10,
            overprovision_sections: 30,
            min_ssr_sections: 5,
            force_ssr: false,
            max_search: 20,
        };
        let demand = Demand {
            nodes: 512,
            dentries: 1,
            inodes: 1,
            data: 9999,
        };
        assert!(policy.needs_ssr(29, Demand::default(), 1));
        assert!(!policy.needs_ssr(30, demand, 1));
        let short = |free, demand| policy.is_short(free, demand, 1, |_| 0);
        assert!(short(10, Demand::default()) && !short(11, Demand::default()));
        // Two sections of nodes, and two for directories.
        assert!(short(14, demand) && !short(15, demand));
        let types = |log, free| policy.ssr_types(log, free, Demand::default(), 1);
        use LogType::{ColdData, ColdNode, HotData, WarmData, WarmNode};
        assert_eq!(types(WarmData, 11), [WarmData]);
        assert_eq!(types(WarmData, 10), [WarmData, HotData]);
        assert_eq!(types(HotData, 10), [HotData]);
        assert_eq!(types(ColdData, 10), [ColdData, WarmData, HotData]);
        assert_eq!(types(ColdNode, 10), [ColdNode]);
        assert!(policy.always_lfs(WarmNode) && !policy.always_lfs(ColdNode));
    }
}
