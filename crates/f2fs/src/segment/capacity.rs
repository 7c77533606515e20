//! How many nodes and directory blocks can be allocated for certain: a checkpoint's snapshot must not run out of space.

use super::Segments;
use super::curseg::SegmentManager;
use super::policy::Mode;
use super::seglists::SegmentState;
use crate::disk::{LogType, SEGMENT_BLOCKS, SegNo};

/// With more free sections than this, dirty segments need not be counted.
const FREE_SECTIONS_PLENTY: u32 = 64;
/// Free sections left out of the count: each may be opened by another log and stay mostly empty.
const FREE_SECTIONS_SPREAD: u32 = 4;
/// Blocks left out of the count, for operations in progress before it is repeated.
const BLOCKS_HEADROOM: u64 = 1024;

const NODES: [LogType; 3] = [LogType::HotNode, LogType::WarmNode, LogType::ColdNode];
const DATA: [LogType; 3] = [LogType::HotData, LogType::WarmData, LogType::ColdData];

/// Blocks that can be allocated for certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// In free sections, for any type.
    pub free: u64,
    /// For nodes only.
    pub nodes: u64,
    /// For directory blocks only.
    pub dentries: u64,
}

impl Capacity {
    /// Number of nodes that can be allocated after `dentries` directory blocks, less a headroom.
    pub fn nodes_with(self, dentries: u64) -> u64 {
        let over = dentries.saturating_sub(self.dentries);
        let all = self.nodes.saturating_add(self.free.saturating_sub(over));
        assert!(
            all >= self.nodes,
            "directory blocks use no space that only nodes can use"
        );
        all - BLOCKS_HEADROOM.min(all / 2)
    }
}

impl Segments {
    /// Counts these blocks; with enough free sections, only those.
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
        // Each curseg can certainly be filled to its end.
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
                capacity.nodes += manager.prefree_blocks(true);
                capacity.dentries += manager.prefree_blocks(false);
            }
        }
        assert!(
            capacity.free + capacity.nodes + capacity.dentries
                <= u64::from(manager.sit.len()) * u64::from(SEGMENT_BLOCKS),
            "each block is counted once"
        );
        capacity
    }

    /// Invalid blocks of dirty segments, in data and in node segments: unusable for the other kind (the kernel's
    /// `f2fs_get_unusable_blocks`).
    pub fn holes(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        let sit = &inner.manager.sit;
        let of = |manager: [LogType; 3]| {
            let dirty = manager.into_iter().flat_map(|log| sit.dirty(log).ones());
            dirty
                .map(|n| {
                    let valid = sit.valid(SegNo(n));
                    debug_assert!(
                        valid > 0 && valid < SEGMENT_BLOCKS,
                        "a dirty segment has valid and invalid blocks"
                    );
                    u64::from(SEGMENT_BLOCKS - valid)
                })
                .sum()
        };
        (of(DATA), of(NODES))
    }
}

impl SegmentManager {
    /// Blocks that a curseg can still allocate in its segment.
    fn left_in_curseg(&self, log: LogType) -> u64 {
        let curseg = &self.cursegs[log.index()];
        let busy = self.sit.busy(curseg.segment);
        let behind = busy.ones().filter(|offset| *offset >= curseg.next).count() as u32;
        assert!(
            curseg.next + behind < SEGMENT_BLOCKS,
            "a curseg's next block may be written"
        );
        u64::from(SEGMENT_BLOCKS - curseg.next - behind)
    }

    /// Blocks that SSR can allocate in dirty segments of a type.
    fn ssr_blocks_of(&self, log: LogType) -> u64 {
        let dirty = self.sit.dirty(log).ones().map(SegNo);
        let open = |at: &SegNo| self.gc.victim != Some(self.sit.section_of(*at));
        dirty
            .filter(open)
            .map(|at| u64::from(SEGMENT_BLOCKS - self.sit.busy(at).count()))
            .sum()
    }

    /// Blocks that can be allocated in prefree segments of nodes or of data while checkpoints are disabled.
    fn prefree_blocks(&self, nodes: bool) -> u64 {
        assert!(
            self.sit.is_cp_disabled(),
            "prefree segments are used only while checkpoints are disabled"
        );
        let all = (0..self.sit.len()).map(SegNo);
        let is_usable = |at: &SegNo| {
            self.sit.state(*at) == SegmentState::Prefree && self.sit.kind(*at).is_node() == nodes
        };
        all.filter(is_usable)
            .map(|at| u64::from(SEGMENT_BLOCKS - self.sit.busy(at).count()))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_blocks_use_free_sections_after_their_own() {
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
