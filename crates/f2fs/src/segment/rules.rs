//! Rules of GC and segment allocation that differ between kernels (`gc_policy=`), behind one trait.
//!
//! **Problem.** `max_victim_search` was introduced to Linux 3.11, whose rules differ from today's in a dozen places. An
//! experiment that repeats its publication needs all of them, and the product must not branch on them.
//! **Rule.** A kernel's rules are one object without state. Only the option table (`options/table.rs`) names the
//! objects; all other code asks the object that the mount options select.

use std::fmt;

use crate::data::placement::IpuPolicy;
use crate::disk::{LogType, SEGMENT_BLOCKS};
use crate::victim::{self, Scan, ScanResult};

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

/// Free sections, and what they are kept for.
#[derive(Clone, Copy, Debug)]
pub struct Supply {
    /// Free sections.
    pub free: u32,
    /// Blocks that will be allocated.
    pub demand: Demand,
    /// Segments in a section.
    pub per_section: u32,
    /// Sections that only nodes and GC may use.
    pub reserved: u32,
    /// Sections that are not counted as users' space, the reserved ones included.
    pub overprovision: u32,
    /// `min_ssr_sections`.
    pub min_ssr: u32,
    /// `mode=lfs`: dirty data needs free segments, too.
    pub lfs: bool,
}

/// The rules of one kernel for GC and the choice of segments.
pub trait GcRules: fmt::Debug + Sync {
    /// The kernel whose rules these are.
    fn kernel(&self) -> &'static str;

    /// Whether the option `atgc` may be combined with these rules.
    fn allows_atgc(&self) -> bool;

    /// Whether `mode=lfs` may be combined with these rules.
    fn allows_lfs(&self) -> bool;

    /// Scans for the candidate with the least cost, as [`victim`] describes it. `cost` is `None` for candidates that
    /// must not be taken.
    fn scan(&self, scan: Scan<'_>, cost: &mut dyn FnMut(u32) -> Option<u64>) -> ScanResult;

    /// Whether cursegs use SSR (`f2fs_need_SSR`) where the mode allows both and nothing forces it.
    fn needs_ssr(&self, supply: &Supply) -> bool;

    /// Whether GC has to free space before more is changed (`has_not_enough_free_secs`): the free sections do not cover
    /// the dirty blocks and the reserve. `room(log)`: blocks that a log can still allocate in its section.
    fn is_short(&self, supply: &Supply, room: &dyn Fn(LogType) -> u32) -> bool;

    /// Types of segments in which a log uses SSR, in the order of the search.
    fn ssr_types(&self, log: LogType, supply: &Supply) -> &'static [LogType];

    /// Whether a search by [`GcRules::ssr_types`] has examined every segment that a log may use by SSR.
    fn ssr_search_is_complete(&self) -> bool;

    /// Whether a log uses free segments only while there are any.
    fn always_lfs(&self, log: LogType) -> bool;

    /// Whether the search for an SSR segment begins where the last one ended. `small`: the log is one of the short ones
    /// (hot data, nodes), which are kept at the start of the volume.
    fn ssr_from_cursor(&self, small: bool) -> bool;

    /// When data is written in place, unless `ipu_policy` is set.
    fn ipu_policy(&self, main_segments: u32, lfs: bool) -> IpuPolicy;

    /// Whether temperature decides about the placement of data: cold files are written in place, and files with few
    /// dirty blocks are hot.
    fn places_by_temperature(&self) -> bool;

    /// Whether foreground GC cleans another section although there is enough space, after cleaning `cleaned` sections
    /// in `round` rounds.
    fn cleans_beyond_need(&self, cleaned: u32, round: u64) -> bool;

    /// Sections that an operation cleans at most for the reserve; `None`: until the reserve is there.
    fn sections_per_operation(&self) -> Option<u32>;

    /// Candidates that foreground GC examines at most; `None`: all. `max_search`: `max_victim_search`.
    fn foreground_limit(&self, max_search: u32) -> Option<u32>;

    /// Whether cleaning a section of `size` blocks with `valid` ones is worth its I/O while SSR can use other segments.
    fn is_worth_cleaning(&self, valid: u32, size: u32) -> bool;
}

impl PartialEq for dyn GcRules {
    fn eq(&self, other: &Self) -> bool {
        self.kernel() == other.kernel()
    }
}

impl Eq for dyn GcRules {}

/// Rules of Linux 6.18.
#[derive(Debug)]
pub struct Linux618;

/// Rules of Linux 3.11 (2013), before `max_victim_search`: each search ends at that limit, nothing is written in place,
/// SSR is used below the overprovisioned sections, and a task that is short of the reserve cleans until it is there.
#[derive(Debug)]
pub struct Linux2013;

/// Sections that an operation cleans at most where the reserve is short.
const SECTIONS_PER_OPERATION: u32 = 16;

/// Sections that this number of blocks may need.
pub(super) const fn sections(blocks: u32, per_section: u32) -> u32 {
    assert!(per_section > 0, "a section has segments");
    blocks.div_ceil(per_section * SEGMENT_BLOCKS)
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

impl GcRules for Linux618 {
    fn kernel(&self) -> &'static str {
        "Linux 6.18"
    }

    fn allows_atgc(&self) -> bool {
        true
    }

    fn allows_lfs(&self) -> bool {
        true
    }

    fn scan(&self, scan: Scan<'_>, cost: &mut dyn FnMut(u32) -> Option<u64>) -> ScanResult {
        victim::scan(scan, cost)
    }

    fn needs_ssr(&self, supply: &Supply) -> bool {
        let demand = supply.demand;
        let nodes = sections(demand.nodes, supply.per_section);
        let dentries = sections(demand.dentries, supply.per_section);
        let inodes = sections(demand.inodes, supply.per_section);
        let kept = supply.min_ssr.saturating_add(supply.reserved);
        let needed = nodes.saturating_add(2 * dentries).saturating_add(inodes);
        supply.free <= needed.saturating_add(kept)
    }

    fn is_short(&self, supply: &Supply, room: &dyn Fn(LogType) -> u32) -> bool {
        let demand = supply.demand;
        let size = supply.per_section * SEGMENT_BLOCKS;
        let nodes = demand.nodes.saturating_add(demand.inodes);
        let nodes = nodes.saturating_add(demand.dentries);
        let data = if supply.lfs { demand.data } else { 0 };
        let parts = [nodes, demand.dentries, data];
        let lower = parts
            .iter()
            .fold(0u32, |n, part| n.saturating_add(part / size));
        let partly = parts.iter().filter(|part| *part % size > 0).count() as u32;
        let lower = lower.saturating_add(supply.reserved);
        if supply.free > lower.saturating_add(partly) {
            return false;
        }
        if supply.free <= lower {
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

    fn ssr_types(&self, log: LogType, _supply: &Supply) -> &'static [LogType] {
        ssr_types(log)
    }

    fn ssr_search_is_complete(&self) -> bool {
        true
    }

    fn always_lfs(&self, _log: LogType) -> bool {
        false
    }

    fn ssr_from_cursor(&self, small: bool) -> bool {
        !small
    }

    fn ipu_policy(&self, main_segments: u32, lfs: bool) -> IpuPolicy {
        IpuPolicy::default_for(main_segments, lfs)
    }

    fn places_by_temperature(&self) -> bool {
        true
    }

    fn cleans_beyond_need(&self, _cleaned: u32, _round: u64) -> bool {
        false
    }

    fn sections_per_operation(&self) -> Option<u32> {
        Some(SECTIONS_PER_OPERATION)
    }

    fn foreground_limit(&self, _max_search: u32) -> Option<u32> {
        None
    }

    fn is_worth_cleaning(&self, valid: u32, size: u32) -> bool {
        debug_assert!(valid <= size, "a section has no more blocks than its size");
        size - valid >= size / 16
    }
}

/// Sections that may be needed by Linux 3.11's count: dirty nodes and directories, and the reserve.
fn needed_2013(supply: &Supply) -> u32 {
    let nodes = supply.demand.nodes.saturating_add(supply.demand.inodes);
    let dentries = sections(supply.demand.dentries, supply.per_section);
    sections(nodes, supply.per_section)
        .saturating_add(dentries.saturating_mul(2))
        .saturating_add(supply.reserved)
}

impl GcRules for Linux2013 {
    fn kernel(&self) -> &'static str {
        "Linux 3.11"
    }

    fn allows_atgc(&self) -> bool {
        false
    }

    /// It uses SSR, which `mode=lfs` forbids.
    fn allows_lfs(&self) -> bool {
        false
    }

    fn scan(&self, scan: Scan<'_>, cost: &mut dyn FnMut(u32) -> Option<u64>) -> ScanResult {
        victim::scan_2013(scan, cost)
    }

    fn needs_ssr(&self, supply: &Supply) -> bool {
        supply.free < supply.overprovision
    }

    fn is_short(&self, supply: &Supply, _room: &dyn Fn(LogType) -> u32) -> bool {
        supply.free <= needed_2013(supply)
    }

    /// Data only while space is short, from colder to hotter; nodes never.
    fn ssr_types(&self, log: LogType, supply: &Supply) -> &'static [LogType] {
        let all = ssr_types(log);
        match log {
            log if log.is_node() || supply.free > needed_2013(supply) => &all[..1],
            LogType::HotData => &all[..1],
            LogType::WarmData => &[LogType::WarmData, LogType::HotData],
            _ => all,
        }
    }

    fn ssr_search_is_complete(&self) -> bool {
        false
    }

    /// The log of fsync's node chain: roll-forward could not distinguish its nodes from older ones in the same segment.
    fn always_lfs(&self, log: LogType) -> bool {
        log == LogType::WarmNode
    }

    fn ssr_from_cursor(&self, _small: bool) -> bool {
        true
    }

    /// Above 100 % utilisation, so never.
    fn ipu_policy(&self, _main_segments: u32, _lfs: bool) -> IpuPolicy {
        IpuPolicy(0)
    }

    fn places_by_temperature(&self) -> bool {
        false
    }

    /// Each run cleans something, even if a checkpoint alone frees enough.
    fn cleans_beyond_need(&self, cleaned: u32, round: u64) -> bool {
        cleaned == 0 && round < 2
    }

    fn sections_per_operation(&self) -> Option<u32> {
        None
    }

    fn foreground_limit(&self, max_search: u32) -> Option<u32> {
        Some(max_search)
    }

    fn is_worth_cleaning(&self, _valid: u32, _size: u32) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUPPLY: Supply = Supply {
        free: 20,
        demand: Demand {
            nodes: 0,
            dentries: 0,
            inodes: 0,
            data: 0,
        },
        per_section: 1,
        reserved: 10,
        overprovision: 30,
        min_ssr: 5,
        lfs: false,
    };

    #[test]
    fn a_demand_takes_whole_sections() {
        assert_eq!(sections(0, 1), 0);
        assert_eq!(sections(1, 1), 1);
        assert_eq!(sections(512, 1), 1);
        assert_eq!(sections(513, 1), 2);
        assert_eq!(sections(1536, 3), 1);
        assert_eq!(sections(1537, 3), 2);
    }

    #[test]
    fn rules_of_linux_6_18() {
        let rules: &dyn GcRules = &Linux618;
        assert_eq!(rules.kernel(), "Linux 6.18");
        assert!(rules.allows_atgc() && rules.allows_lfs());
        assert!(rules.places_by_temperature() && rules.ssr_search_is_complete());
        assert!(LogType::ALL.iter().all(|log| !rules.always_lfs(*log)));
        assert!(rules.ssr_from_cursor(false) && !rules.ssr_from_cursor(true));
        assert!(!rules.cleans_beyond_need(0, 0));
        assert_eq!(rules.sections_per_operation(), Some(16));
        assert_eq!(rules.foreground_limit(4096), None);
        assert_eq!(rules.ipu_policy(8193, false), IpuPolicy::FSYNC);
        // A sixteenth of the section must be invalid.
        assert!(rules.is_worth_cleaning(480, 512) && !rules.is_worth_cleaning(481, 512));
        assert!(rules.is_worth_cleaning(0, 512));
        for log in LogType::ALL {
            let types = rules.ssr_types(log, &SUPPLY);
            let kinds = LogType::ALL
                .into_iter()
                .filter(|t| t.is_node() == log.is_node());
            assert_eq!((types[0], types.len()), (log, 3));
            assert!(kinds.into_iter().all(|kind| types.contains(&kind)));
        }
    }

    #[test]
    fn rules_of_linux_3_11() {
        let rules: &dyn GcRules = &Linux2013;
        assert_eq!(rules.kernel(), "Linux 3.11");
        let newer: &dyn GcRules = &Linux618;
        assert!(rules != newer && rules == rules);
        assert!(!rules.allows_atgc() && !rules.allows_lfs());
        assert!(!rules.places_by_temperature() && !rules.ssr_search_is_complete());
        assert!(rules.ssr_from_cursor(false) && rules.ssr_from_cursor(true));
        let beyond =
            [(0, 0), (0, 1), (0, 2), (1, 0)].map(|(n, round)| rules.cleans_beyond_need(n, round));
        assert_eq!(beyond, [true, true, false, false]);
        assert_eq!(rules.sections_per_operation(), None);
        assert_eq!(rules.foreground_limit(20), Some(20));
        assert_eq!(rules.ipu_policy(8193, false), IpuPolicy(0));
        assert!(rules.is_worth_cleaning(512, 512));
    }

    #[test]
    fn a_volume_is_short_if_what_is_dirty_does_not_fit() {
        let short = |free, demand, lfs, room: &dyn Fn(LogType) -> u32| {
            let supply = Supply {
                free,
                demand,
                per_section: 2,
                lfs,
                ..SUPPLY
            };
            Linux618.is_short(&supply, room)
        };
        // With two segments a section: 1 section and 76 blocks of nodes, inodes and directory blocks; 100 directory
        // blocks; with `mode=lfs` 2 sections and 5 blocks of data.
        let demand = Demand {
            nodes: 600,
            dentries: 100,
            inodes: 400,
            data: 2053,
        };
        let none = |_: LogType| 0;
        assert!(short(11, demand, false, &|_| 9999));
        assert!(short(12, demand, false, &none) && short(13, demand, false, &none));
        assert!(!short(14, demand, false, &none));
        assert!(short(13, demand, true, &|_| 9999));
        assert!(short(16, demand, true, &none) && !short(17, demand, true, &none));
        // Between these limits what is left in the logs' sections decides.
        let room = |nodes: u32, hot: u32, others: u32| {
            move |log: LogType| match log {
                LogType::HotData => hot,
                log if log.is_node() => nodes,
                _ => others,
            }
        };
        assert!(!short(12, demand, false, &room(76, 100, 0)));
        assert!(short(12, demand, false, &room(75, 100, 0)));
        assert!(short(12, demand, false, &room(76, 99, 0)));
        // Directory blocks and data share the log for hot data: 2153 blocks, which are 105 beyond two sections.
        assert!(!short(15, demand, true, &room(76, 105, 5)));
        assert!(short(15, demand, true, &room(76, 104, 5)));
        assert!(short(15, demand, true, &room(76, 105, 4)));
    }
}
