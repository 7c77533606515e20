//! What an f2fs volume adds to `.steadfs/metrics`.

use std::time::Duration;

use steadfs_vfs::{Metrics, TimeHistogram};

use crate::checkpoint::daemon::CLASSES;
use crate::disk::BLOCK_SIZE;
use crate::fs::F2fs;

/// Values of the foreground and of the background have this label.
const BY: &str = "by";

impl F2fs {
    pub(crate) fn add_metrics(&self, metrics: &mut Metrics) {
        self.writeback.add_metrics(metrics);
        self.add_space(metrics);
        self.add_checkpoints(metrics);
        self.add_syncs(metrics);
        self.add_cleaning(metrics);
        let (_, blocks, _) = self.discards.counts();
        let help = "Bytes discarded on the device.";
        let bytes = blocks * BLOCK_SIZE as u64;
        metrics.counter("steadfs_f2fs_discarded_bytes_total", help, &[], bytes);
    }

    fn add_space(&self, metrics: &mut Metrics) {
        let counts = self.space.counts();
        let bytes = |blocks: u64| blocks * BLOCK_SIZE as u64;
        let help = "Space for users, nodes included.";
        let all = bytes(counts.user_blocks);
        metrics.gauge("steadfs_f2fs_user_bytes", help, &[], all);
        let help = "Space in use: data, nodes and what fallocate has allocated.";
        let used = bytes(counts.valid_blocks);
        metrics.gauge("steadfs_f2fs_valid_bytes", help, &[], used);
        if let Some(segments) = self.segments.get() {
            let counts = segments.counts();
            let states = [
                ("free", counts.free),
                ("prefree", counts.prefree),
                ("dirty", counts.dirty),
                ("full", counts.full),
            ];
            for (state, number) in states {
                let help = "Segments of the main area.";
                let number = u64::from(number);
                metrics.gauge("steadfs_f2fs_segments", help, &[("state", state)], number);
            }
        }
    }

    fn add_checkpoints(&self, metrics: &mut Metrics) {
        let help = "Checkpoints written.";
        let written = self.checkpoints.written();
        metrics.counter("steadfs_f2fs_checkpoints_total", help, &[], written);
        let merge = self.daemon.stats();
        let help = "Checkpoints written for one or more merged requests.";
        let name = "steadfs_f2fs_merged_checkpoints_total";
        metrics.counter(name, help, &[], merge.issued);
        let help = "Requests for checkpoints that merged ones have answered.";
        let name = "steadfs_f2fs_merged_requests_total";
        metrics.counter(name, help, &[], merge.total);
        let help = "Requests for checkpoints that are not answered yet.";
        let name = "steadfs_f2fs_queued_checkpoint_requests";
        metrics.gauge(name, help, &[], merge.queued);
        let help = "Time for which checkpoints waited for more requests (group commit).";
        let name = "steadfs_f2fs_batch_wait_seconds_total";
        let waited = Duration::from_micros(merge.batch_waited_us);
        metrics.counter(name, help, &[], waited);
        let help = "Waits of requests for a merged checkpoint.";
        let [classes @ .., above] = merge.waits;
        let times = TimeHistogram {
            buckets: CLASSES
                .map(Duration::from_millis)
                .into_iter()
                .zip(classes)
                .collect(),
            above,
            sum: Duration::from_millis(merge.waited),
        };
        let name = "steadfs_f2fs_checkpoint_wait_seconds";
        metrics.histogram(name, help, &[], &times);
    }

    fn add_syncs(&self, metrics: &mut Metrics) {
        let help = "fsyncs that needed no checkpoint.";
        let name = "steadfs_f2fs_fsyncs_without_checkpoint_total";
        metrics.counter(name, help, &[], self.syncs.own());
        let help = "fsyncs that needed a checkpoint, by reason.";
        let name = "steadfs_f2fs_fsync_checkpoints_total";
        for (reason, count) in self.syncs.reasons() {
            metrics.counter(name, help, &[("reason", reason.name())], count);
        }
    }

    fn add_cleaning(&self, metrics: &mut Metrics) {
        let stats = self.gc.stats();
        let [foreground, background] = stats.calls;
        let help = "Runs of garbage collection.";
        let name = "steadfs_f2fs_gc_calls_total";
        metrics.counter(name, help, &[(BY, "foreground")], foreground);
        metrics.counter(name, help, &[(BY, "background")], background);
        for (kind, [all, background]) in [("data", stats.data_blocks), ("node", stats.node_blocks)]
        {
            let help = "Bytes moved by garbage collection.";
            let name = "steadfs_f2fs_gc_moved_bytes_total";
            let parts = [
                ("foreground", all.saturating_sub(background)),
                ("background", background),
            ];
            for (by, blocks) in parts {
                let bytes = blocks * BLOCK_SIZE as u64;
                metrics.counter(name, help, &[("kind", kind), (BY, by)], bytes);
            }
        }
    }
}
