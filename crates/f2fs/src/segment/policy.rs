//! When and where new segments are opened: the kernel's rules as pure functions.

use super::rules::{Demand, GcRules, Supply, sections};
use crate::disk::LogType;
pub use crate::options::{AllocMode, Mode};

/// What the choice of segments depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `gc_policy=`.
    pub rules: &'static dyn GcRules,
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

/// Sections that users' data always leaves to nodes and GC, however small the reserve: one for each log.
const SECTIONS_KEPT_MIN: u32 = LogType::ALL.len() as u32;

/// Free sections that GC leaves for the checkpoint that ends it.
pub const SECTIONS_KEPT_FROM_GC: u32 = 2;

impl Policy {
    /// Free sections, and what these rules keep them for.
    fn supply(&self, free: u32, demand: Demand, per_section: u32) -> Supply {
        Supply {
            free,
            demand,
            per_section,
            reserved: self.reserved_sections,
            overprovision: self.overprovision_sections,
            min_ssr: self.min_ssr_sections,
            lfs: self.mode == Mode::Lfs,
        }
    }

    /// Whether cursegs use SSR (`f2fs_need_SSR`).
    pub fn needs_ssr(&self, free: u32, demand: Demand, per_section: u32) -> bool {
        if self.mode == Mode::Lfs {
            return false;
        }
        self.force_ssr
            || self
                .rules
                .needs_ssr(&self.supply(free, demand, per_section))
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
        let supply = self.supply(free, demand, per_section);
        self.rules.is_short(&supply, &room)
    }

    /// Types of segments in which a log uses SSR, in the order of the search.
    pub fn ssr_types(
        &self,
        log: LogType,
        free: u32,
        demand: Demand,
        per_section: u32,
    ) -> &'static [LogType] {
        let supply = self.supply(free, demand, per_section);
        let types = self.rules.ssr_types(log, &supply);
        assert!(
            types.first() == Some(&log),
            "SSR begins with segments of the log's own type"
        );
        assert!(
            types.iter().all(|other| other.is_node() == log.is_node()),
            "SSR never puts data and nodes into one segment"
        );
        types
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::rules::{Linux618, Linux2013};

    #[test]
    fn ssr_is_used_when_few_sections_are_free() {
        let policy = Policy {
            rules: &Linux618,
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
        let large = Policy {
            reserved_sections: 100,
            ..policy
        };
        let dirty = |nodes, dentries, inodes| Demand {
            nodes,
            dentries,
            inodes,
            data: 9999,
        };
        assert_eq!(large.kept_from_users(dirty(512, 0, 1), 1), 8);
        assert_eq!(large.kept_from_users(dirty(1025, 513, 0), 1), 6 + 3 + 4);
        assert_eq!(large.kept_from_users(dirty(1025, 513, 0), 2), 6 + 2 + 2);
        let forced = Policy {
            force_ssr: true,
            ..policy
        };
        assert!(forced.needs_ssr(1000, demand, 1));
    }

    #[test]
    fn rules_of_linux_3_11() {
        let policy = Policy {
            rules: &Linux2013,
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
        assert!(policy.rules.always_lfs(WarmNode) && !policy.rules.always_lfs(ColdNode));
    }
}
