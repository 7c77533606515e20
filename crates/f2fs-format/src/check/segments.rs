//! Segments and counts: the cursegs against the SIT, and the counts of SIT and checkpoint against what was found.

use super::tables::Blocks;
use super::{Checker, Issue};
use crate::disk::checkpoint::ALLOC_LFS;
use crate::disk::{LogType, Nid, SEGMENT_BLOCKS, SegNo};

impl Checker<'_> {
    /// Checks the cursegs: their segments have the log's type, and their next blocks are invalid.
    pub(super) fn check_logs(&mut self) {
        for log in LogType::ALL {
            if !self.has_log(log) {
                continue;
            }
            let open = self.checkpoint.log(log);
            let (segment, next) = (open.segment, u32::from(open.offset));
            let mut wrong = Vec::new();
            if self.segments[segment.0 as usize].kind != log.number() {
                wrong.push("has another type in the SIT");
            }
            if self.valid.get(segment, next) {
                wrong.push("has a valid block at the position of the curseg");
            } else if open.alloc == ALLOC_LFS
                && (next..SEGMENT_BLOCKS).any(|offset| self.valid.get(segment, offset))
            {
                wrong.push("has valid blocks beyond the position of the curseg");
            }
            for why in wrong {
                self.issue(Issue::Log { log, segment, why });
            }
        }
    }

    /// Whether the segment is a curseg.
    fn is_open(&self, segment: SegNo) -> bool {
        let mut logs = LogType::ALL.into_iter().filter(|log| self.has_log(*log));
        logs.any(|log| self.checkpoint.log(log).segment == segment)
    }

    /// Compares the valid maps with the blocks in use.
    pub(super) fn check_segments(&mut self) {
        self.report_wrong_summaries();
        let mut free = 0;
        for number in 0..self.layout.main_segments {
            let segment = SegNo(number);
            let (valid, used) = (*self.valid.map(segment), *self.used.map(segment));
            if Blocks::count(&valid) == 0 && !self.is_open(segment) {
                free += 1;
            }
            if valid == used {
                continue;
            }
            let used_but_free = Blocks::without(&used, &valid);
            let free_but_used = Blocks::without(&valid, &used);
            let firsts = [Blocks::first(&used_but_free), Blocks::first(&free_but_used)];
            let first = firsts.into_iter().flatten().min().unwrap_or(0);
            self.issue(Issue::SitDiffers {
                segment,
                first: self.layout.block_in(segment, first),
                used_but_free: Blocks::count(&used_but_free),
                free_but_used: Blocks::count(&free_but_used),
            });
        }
        self.report.stats.free_segments = free;
    }

    /// Compares the checkpoint's counts.
    pub(super) fn check_counts(&mut self) {
        let (cp, stats) = (&self.checkpoint, &self.report.stats);
        let mut wrong = Vec::new();
        if cp.valid_blocks != stats.blocks_used {
            wrong.push(Issue::ValidBlocks {
                stored: cp.valid_blocks,
                counted: stats.blocks_used,
            });
        }
        if cp.valid_nodes != stats.nodes_used {
            wrong.push(Issue::ValidNodes {
                stored: cp.valid_nodes,
                counted: stats.nodes_used,
            });
        }
        if cp.valid_inodes != stats.inodes_used {
            wrong.push(Issue::ValidInodes {
                stored: cp.valid_inodes,
                counted: stats.inodes_used,
            });
        }
        if cp.free_segments != stats.free_segments {
            wrong.push(Issue::FreeSegments {
                stored: cp.free_segments,
                counted: stats.free_segments,
            });
        }
        for issue in wrong {
            self.issue(issue);
        }
    }

    /// Reports nodes that are in no tree. Their blocks count as used, so that there is only one issue.
    pub(super) fn check_unreached(&mut self) {
        let mut from = Nid(0);
        while let Some((nid, slot)) = self.nat.next_used(&self.layout, from) {
            from = Nid(nid.0 + 1);
            self.report.stats.nodes_used += 1;
            self.report.stats.inodes_used += u32::from(slot.ino == nid);
            if slot.has(super::tables::Slot::REACHED) {
                continue;
            }
            let ino = slot.ino;
            self.issue(Issue::NodeUnreached { nid, ino });
            self.record_node_block(ino, nid, slot.addr);
        }
    }
}
