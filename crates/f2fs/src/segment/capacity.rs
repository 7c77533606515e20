//! How many nodes and directory blocks surely find a place: what a checkpoint's snapshot may rest on.

use super::Segments;
use super::curseg::SegmentManager;
use super::policy::Mode;
use super::seglists::SegmentState;
use crate::disk::{LogType, SEGMENT_BLOCKS, SegNo};

/// Free sections that nobody has to look closely at.
const FREE_SECTIONS_PLENTY: u32 = 64;
/// Free sections that may each be opened by another log and stay mostly empty.
const FREE_SECTIONS_SPREAD: u32 = 4;
/// Places left that operations under way may use before anybody looks again.
const BLOCKS_HEADROOM: u64 = 1024;

const NODES: [LogType; 3] = [LogType::HotNode, LogType::WarmNode, LogType::ColdNode];
const DATA: [LogType; 3] = [LogType::HotData, LogType::WarmData, LogType::ColdData];

/// Places that there surely are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// In free sections: for anything.
    pub free: u64,
    /// For nodes only.
    pub nodes: u64,
    /// For directory blocks only.
    pub dentries: u64,
}

impl Capacity {
    /// How many nodes find a place beside so many directory blocks, with some to spare.
    pub fn nodes_with(self, dentries: u64) -> u64 {
        let over = dentries.saturating_sub(self.dentries);
        let all = self.nodes.saturating_add(self.free.saturating_sub(over));
        all - BLOCKS_HEADROOM.min(all / 2)
    }
}

impl Segments {
    /// The places there are. Where there are plenty, not all are counted.
    pub fn capacity(&self) -> Capacity {
        let inner = self.inner.lock();
        let manager = &inner.manager;
        let free = manager.sit.free_sections().count();
        let size = u64::from(manager.sit.per_section() * SEGMENT_BLOCKS);
        let mut capacity = Capacity {
            free: u64::from(free.saturating_sub(FREE_SECTIONS_SPREAD)) * size,
            nodes: 0,
            dentries: 0,
        };
        if free > FREE_SECTIONS_PLENTY {
            return capacity;
        }
        // Each log can surely go on where it is.
        let rests = NODES.map(|log| manager.left_in_curseg(log));
        capacity.nodes += rests.into_iter().min().unwrap_or(0);
        capacity.dentries += manager.left_in_curseg(LogType::HotData);
        if manager.policy.mode == Mode::Adaptive {
            capacity.nodes += NODES
                .map(|log| manager.ssr_blocks_of(log))
                .iter()
                .sum::<u64>();
            capacity.dentries += DATA
                .map(|log| manager.ssr_blocks_of(log))
                .iter()
                .sum::<u64>();
            if manager.sit.is_cp_disabled() {
                capacity.free += manager.prefree_blocks();
            }
        }
        capacity
    }

    /// Blocks in holes of closed segments that are partly valid, of data and of nodes: unusable for the other
    /// kind.
    pub fn holes(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        let sit = &inner.manager.sit;
        let of = |manager: [LogType; 3]| {
            let dirty = manager.into_iter().flat_map(|log| sit.dirty(log).ones());
            dirty
                .map(|n| u64::from(SEGMENT_BLOCKS - sit.valid(SegNo(n))))
                .sum()
        };
        (of(DATA), of(NODES))
    }
}

impl SegmentManager {
    /// Blocks that a log can write where it is.
    fn left_in_curseg(&self, log: LogType) -> u64 {
        let log = &self.cursegs[log.index()];
        let busy = self.sit.busy(log.segment);
        let behind = busy.ones().filter(|offset| *offset >= log.next).count() as u32;
        u64::from(SEGMENT_BLOCKS - log.next - behind)
    }

    /// Blocks that may be written in closed segments of a type.
    fn ssr_blocks_of(&self, log: LogType) -> u64 {
        let dirty = self.sit.dirty(log).ones().map(SegNo);
        let open = |at: &SegNo| self.gc.victim != Some(self.sit.section_of(*at));
        dirty
            .filter(open)
            .map(|at| u64::from(SEGMENT_BLOCKS - self.sit.busy(at).count()))
            .sum()
    }

    /// The same in segments without a valid block that are not free because checkpoints are switched off.
    fn prefree_blocks(&self) -> u64 {
        let all = (0..self.sit.len()).map(SegNo);
        all.filter(|at| self.sit.state(*at) == SegmentState::Prefree)
            .map(|at| u64::from(SEGMENT_BLOCKS - self.sit.busy(at).count()))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_take_from_what_both_can_use() {
        let capacity = Capacity {
            free: 4096,
            nodes: 512,
            dentries: 100,
        };
        assert_eq!(capacity.nodes_with(0), 4096 + 512 - 1024);
        assert_eq!(capacity.nodes_with(100), 4096 + 512 - 1024);
        assert_eq!(capacity.nodes_with(1100), 3096 + 512 - 1024);
        assert_eq!(capacity.nodes_with(9000), 256);
    }
}
