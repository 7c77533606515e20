//! How many nodes and directory blocks surely find a place: what a checkpoint's snapshot may rest on.

use super::Segments;
use super::logs::Logs;
use super::policy::Mode;
use super::states::State;
use crate::disk::{LogType, SEGMENT_BLOCKS, SegNo};

/// Free sections that nobody has to look closely at.
const PLENTY: u32 = 64;
/// Free sections that may each be opened by another log and stay mostly empty.
const SPREAD: u32 = 4;
/// Places left that operations under way may use before anybody looks again.
const HEADROOM: u64 = 1024;

const NODES: [LogType; 3] = [LogType::HotNode, LogType::WarmNode, LogType::ColdNode];
const DATA: [LogType; 3] = [LogType::HotData, LogType::WarmData, LogType::ColdData];

/// Places that there surely are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// In free sections: for anything.
    pub free: u64,
    /// For nodes only.
    pub nodes: u64,
    /// For directory blocks only.
    pub dentries: u64,
}

impl Places {
    /// How many nodes find a place beside so many directory blocks, with some to spare.
    pub fn nodes_beside(self, dentries: u64) -> u64 {
        let over = dentries.saturating_sub(self.dentries);
        let all = self.nodes.saturating_add(self.free.saturating_sub(over));
        all - HEADROOM.min(all / 2)
    }
}

impl Segments {
    /// The places there are. Where there are plenty, not all are counted.
    pub fn places(&self) -> Places {
        let inner = self.inner.lock();
        let logs = &inner.logs;
        let free = logs.table.free_sections().count();
        let size = u64::from(logs.table.per_section() * SEGMENT_BLOCKS);
        let mut places = Places {
            free: u64::from(free.saturating_sub(SPREAD)) * size,
            nodes: 0,
            dentries: 0,
        };
        if free > PLENTY {
            return places;
        }
        // Each log can surely go on where it is.
        let rests = NODES.map(|log| logs.rest_of(log));
        places.nodes += rests.into_iter().min().unwrap_or(0);
        places.dentries += logs.rest_of(LogType::HotData);
        if logs.policy.mode == Mode::Adaptive {
            places.nodes += NODES.map(|log| logs.holes_of(log)).iter().sum::<u64>();
            places.dentries += DATA.map(|log| logs.holes_of(log)).iter().sum::<u64>();
            if logs.table.is_paused() {
                places.free += logs.emptied_places();
            }
        }
        places
    }

    /// Blocks in holes of closed segments that are partly valid, of data and of nodes: unusable for the other
    /// kind.
    pub fn holes(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        let table = &inner.logs.table;
        let of = |logs: [LogType; 3]| {
            let dirty = logs.into_iter().flat_map(|log| table.dirty(log).ones());
            dirty
                .map(|n| u64::from(SEGMENT_BLOCKS - table.valid(SegNo(n))))
                .sum()
        };
        (of(DATA), of(NODES))
    }
}

impl Logs {
    /// Blocks that a log can write where it is.
    fn rest_of(&self, log: LogType) -> u64 {
        let log = &self.logs[log.index()];
        let busy = self.table.busy(log.segment);
        let behind = busy.ones().filter(|offset| *offset >= log.next).count() as u32;
        u64::from(SEGMENT_BLOCKS - log.next - behind)
    }

    /// Blocks that may be written in closed segments of a type.
    fn holes_of(&self, log: LogType) -> u64 {
        let dirty = self.table.dirty(log).ones().map(SegNo);
        let open = |at: &SegNo| self.cleaning.victim != Some(self.table.section_of(*at));
        dirty
            .filter(open)
            .map(|at| u64::from(SEGMENT_BLOCKS - self.table.busy(at).count()))
            .sum()
    }

    /// The same in segments without a valid block that are not free because checkpoints are switched off.
    fn emptied_places(&self) -> u64 {
        let all = (0..self.table.len()).map(SegNo);
        all.filter(|at| self.table.state(*at) == State::Held)
            .map(|at| u64::from(SEGMENT_BLOCKS - self.table.busy(at).count()))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_take_from_what_both_can_use() {
        let places = Places {
            free: 4096,
            nodes: 512,
            dentries: 100,
        };
        assert_eq!(places.nodes_beside(0), 4096 + 512 - 1024);
        assert_eq!(places.nodes_beside(100), 4096 + 512 - 1024);
        assert_eq!(places.nodes_beside(1100), 3096 + 512 - 1024);
        assert_eq!(places.nodes_beside(9000), 256);
    }
}
