//! `.steadfs/f2fs/status`: the values that the kernel shows in debugfs, with its labels.

mod flags;
mod json;
mod metrics;

use std::fmt::Write as _;

use crate::checkpoint::daemon::{BATCHES, CLASSES};
use crate::disk::{LogType, SEGMENT_BLOCKS};
use crate::fs::F2fs;
use crate::gc::GcMode;
use crate::segment::Segments;

/// Logs with their labels, in the kernel's order.
const LOGS: [(LogType, &str); 6] = [
    (LogType::ColdData, "COLD   data"),
    (LogType::WarmData, "WARM   data"),
    (LogType::HotData, "HOT    data"),
    (LogType::HotNode, "Dir   dnode"),
    (LogType::WarmNode, "File  dnode"),
    (LogType::ColdNode, "Indir nodes"),
];

/// Modes with their labels, in the kernel's order.
const MODES: [(GcMode, &str); 7] = [
    (GcMode::Normal, "Normal"),
    (GcMode::IdleBenefit, "Idle CB"),
    (GcMode::IdleGreedy, "Idle Greedy"),
    (GcMode::IdleAge, "Idle AT"),
    (GcMode::UrgentHigh, "Urgent High"),
    (GcMode::UrgentMid, "Urgent Mid"),
    (GcMode::UrgentLow, "Urgent Low"),
];

macro_rules! line {
    ($out:expr, $($arg:tt)*) => {
        // Writing to a string cannot fail.
        let _ = writeln!($out, $($arg)*);
    };
}

impl F2fs {
    pub(crate) fn status(&self) -> String {
        let mut out = String::new();
        let mode = if self.stop_state.is_read_only() {
            "RO"
        } else {
            "RW"
        };
        let state = if self.stop_state.is_stopped() {
            "Error"
        } else if self.is_cp_disabled() {
            "Disabled"
        } else {
            "Good"
        };
        line!(
            out,
            "=====[ partition info(steadfs). #0, {mode}, CP: {state}]====="
        );
        let flags = self.sb_status_names();
        if !flags.is_empty() {
            line!(out, "[SBI: {}]", flags.join(" "));
        }
        self.show_areas(&mut out);
        self.show_usage(&mut out);
        if let Some(segments) = self.segments.get() {
            self.show_main_area(&mut out, segments);
            self.show_checkpoints(&mut out);
            self.show_cleaning_done(&mut out);
            self.show_logs(&mut out, segments);
            self.show_discards(&mut out);
        }
        out
    }

    fn show_areas(&self, out: &mut String) {
        let (layout, last) = (&self.layout, self.checkpoints.last());
        let segments = |blocks: u32| blocks / SEGMENT_BLOCKS;
        line!(
            out,
            "[SB: 1] [CP: {}] [SIT: {}] [NAT: {}] [SSA: {}] [MAIN: {}(OverProv:{} Resv:{})]\n",
            segments(layout.sit_start - layout.cp_start),
            segments(layout.nat_start - layout.sit_start),
            segments(layout.ssa_start - layout.nat_start),
            segments(layout.main_start - layout.ssa_start),
            layout.main_segments,
            last.overprovision_segments,
            last.reserved_segments,
        );
    }

    fn show_usage(&self, out: &mut String) {
        let counts = self.space.counts();
        let percent = (counts.valid_blocks * 100).checked_div(counts.user_blocks);
        line!(
            out,
            "Utilization: {}% ({} valid blocks)",
            percent.unwrap_or(0),
            counts.valid_blocks
        );
        let others = counts.valid_nodes.saturating_sub(counts.valid_inodes);
        line!(
            out,
            "  - Node: {} (Inode: {}, Other: {others})",
            counts.valid_nodes,
            counts.valid_inodes
        );
        let data = counts.valid_blocks.saturating_sub(counts.valid_nodes);
        line!(out, "  - Data: {data}");
        line!(out, "  - Orphan Inode: {}\n", self.orphans.all().len());
    }

    fn show_main_area(&self, out: &mut String, segments: &Segments) {
        let counts = segments.counts();
        let zones = counts.sections / self.layout.sections_per_zone;
        line!(
            out,
            "Main area: {} segs, {} secs {zones} zones",
            counts.segments,
            counts.sections
        );
        line!(
            out,
            "    TYPE         {:>8} {:>8} {:>8} {:>8} {:>10} {:>8} {:>9}",
            "blkoff",
            "segno",
            "secno",
            "zoneno",
            "dirty_seg",
            "full_seg",
            "valid_blk"
        );
        let rows = segments.curseg_rows();
        for (log, label) in LOGS {
            let row = rows[log.index()];
            let section = row.open.segment.0 / self.layout.segments_per_section;
            line!(
                out,
                "  - {label}: {:8} {:8} {section:8} {:8} {:10} {:8} {:9}",
                row.open.offset,
                row.open.segment.0,
                section / self.layout.sections_per_zone,
                row.dirty,
                row.full,
                row.valid
            );
        }
        line!(out, "\n  - Valid: {}", counts.full);
        line!(out, "  - Dirty: {}", counts.dirty);
        line!(out, "  - Prefree: {}", counts.prefree);
        line!(
            out,
            "  - Free: {} ({})\n",
            counts.free,
            counts.free_sections
        );
    }

    fn show_checkpoints(&self, out: &mut String) {
        let (calls, background) = self.checkpoints.calls();
        line!(out, "CP calls: {calls} (BG: {background})");
        line!(out, "CP count: {}", self.checkpoints.written());
        for (area, count) in self.checkpoints.meta_writes() {
            line!(out, "  - {area} blocks : {count}");
        }
        if let Some(steps) = self.checkpoints.last_steps() {
            let total = steps.total().as_millis();
            line!(out, "  - last one : {total} ms ({steps})");
        }
        if let Some((count, last)) = self.checkpoints.slow.last() {
            line!(out, "  - slow ones : {count}, the last: {last}");
        }
        if let Some((count, last)) = self.checkpoints.slow_waits.last() {
            line!(out, "  - slow waits : {count}, the last: {last}");
        }
        self.show_merging(out);
        self.show_syncs(out);
    }

    fn show_merging(&self, out: &mut String) {
        let stats = self.daemon.stats();
        line!(out, "CP merge:");
        for (label, number) in [
            ("Queued", stats.queued),
            ("Issued", stats.issued),
            ("Total", stats.total),
        ] {
            line!(out, "  - {label} : {number:4}");
        }
        line!(out, "  - Cur time : {:4}(ms)", stats.cur_time);
        line!(out, "  - Peak time : {:4}(ms)", stats.peak_time);
        line!(out, "  - Largest batch : {:4}", stats.largest);
        let (waits, micros) = (stats.batch_waits, stats.batch_waited_us);
        line!(out, "  - Batch waits : {waits:4}, {micros} us");
        let ends = CLASSES.iter().map(|end| format!("<{end}"));
        let waits = ends.chain(["more".to_owned()]).zip(stats.waits);
        let waits: Vec<_> = waits.map(|(class, n)| format!("{class}: {n}")).collect();
        line!(out, "  - Waits (ms) : {}", waits.join(", "));
        let ends = BATCHES.iter().map(|most| format!("<={most}"));
        let sizes = ends.chain(["more".to_owned()]).zip(stats.batches);
        let sizes: Vec<_> = sizes.map(|(class, n)| format!("{class}: {n}")).collect();
        line!(out, "  - Batches : {}", sizes.join(", "));
    }

    fn show_syncs(&self, out: &mut String) {
        line!(out, "fsync without a checkpoint: {}", self.syncs.own());
        line!(out, "  - along with others' : {}", self.syncs.clustered());
        let members = self.node_writes.members();
        line!(out, "  - in the group of another's : {members}");
        for (reason, count) in self.syncs.reasons() {
            line!(out, "  - checkpoint for {} : {count}", reason.name());
        }
    }

    fn show_discards(&self, out: &mut String) {
        let (runs, blocks, waiting) = self.discards.counts();
        line!(
            out,
            "Discard: {blocks} blocks in {runs} runs, {waiting} segments wait"
        );
    }

    fn show_cleaning_done(&self, out: &mut String) {
        let mut stats = self.gc.stats();
        let calls = stats.calls[0] + stats.calls[1];
        line!(out, "GC calls: {calls} (gc_thread: {})", stats.calls[1]);
        let [all, back] = stats.data_segments;
        line!(out, "  - data segments : {all} ({back})");
        let [all, back] = stats.node_segments;
        line!(out, "  - node segments : {all} ({back})");
        line!(out, "  - Reclaimed segs :");
        for (mode, label) in MODES {
            line!(out, "    - {label} : {}", stats.reclaimed_in(mode));
        }
        let (data, nodes) = (stats.data_blocks, stats.node_blocks);
        let (all, back) = (data[0] + nodes[0], data[1] + nodes[1]);
        line!(out, "Try to move {all} blocks (BG: {back})");
        line!(out, "  - data blocks : {} ({})", data[0], data[1]);
        line!(out, "  - node blocks : {} ({})", nodes[0], nodes[1]);
        let (in_use, busy) = (stats.skipped_in_use, stats.skipped_busy);
        line!(out, "BG skip : IO: {in_use}, Other: {busy}");
        line!(
            out,
            "GC victims: {}, in vain {}, garbage {} blocks, {} candidates looked at",
            stats.victims,
            stats.in_vain,
            stats.garbage,
            stats.scanned
        );
        line!(out, "GC checkpoints: {}", stats.checkpoints);
        line!(out, "GC {}\n", stats.show_waits());
    }

    fn show_logs(&self, out: &mut String, segments: &Segments) {
        let usage = segments.usage();
        line!(out, "IPU: {} blocks", self.syncs.ipu());
        line!(
            out,
            "SSR: {} blocks in {} segments",
            usage.ssr_blocks,
            usage.ssr_segments
        );
        line!(
            out,
            "LFS: {} blocks in {} segments",
            usage.lfs_blocks,
            usage.lfs_segments
        );
        line!(out, "SSR candidates looked at: {}", usage.scanned);
        let (bimodal, average) = segments.distribution();
        line!(out, "BDF: {bimodal}, avg. vblocks: {average}");
    }
}
