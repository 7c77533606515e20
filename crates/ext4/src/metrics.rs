//! What an ext volume adds to `.steadfs/metrics`: its journal and its dirty data.

use std::time::Duration;

use steadfs_jbd2::{Journal, JournalStats, WaitStats};
use steadfs_vfs::Metrics;

use crate::fs::Ext4;

impl Ext4 {
    pub(crate) fn add_metrics(&self, metrics: &mut Metrics) {
        self.writeback.add_metrics(metrics);
        if let Some(journal) = self.txns.journal() {
            let block_bytes = self.geo.block_size.bytes() as u64;
            add_log(journal, block_bytes, metrics);
            let stats = journal.stats();
            add_commits(&stats, metrics);
            add_waits(&stats, metrics);
            add_reclaim(&stats, block_bytes, metrics);
        }
    }
}

fn add_log(journal: &Journal, block_bytes: u64, metrics: &mut Metrics) {
    let (free, capacity) = journal.log_space();
    let bytes = |blocks: u32| u64::from(blocks) * block_bytes;
    let help = "Size of the journal's log.";
    metrics.gauge("steadfs_jbd2_log_bytes", help, &[], bytes(capacity));
    let help = "Free space of the journal's log.";
    metrics.gauge("steadfs_jbd2_log_free_bytes", help, &[], bytes(free));
    let fast = journal.fast_commit_stats();
    let help = "Fast commits.";
    metrics.counter("steadfs_jbd2_fast_commits_total", help, &[], fast.commits);
    let help = "Blocks written by fast commits.";
    let name = "steadfs_jbd2_fast_commit_bytes_total";
    metrics.counter(name, help, &[], fast.blocks * block_bytes);
}

fn add_commits(stats: &JournalStats, metrics: &mut Metrics) {
    let help = "Commits of the journal.";
    metrics.counter("steadfs_jbd2_commits_total", help, &[], stats.transactions);
    let help = "Commits for which a caller waited.";
    let name = "steadfs_jbd2_requested_commits_total";
    metrics.counter(name, help, &[], stats.requested);
    let help = "Commits whose log blocks were written at the same time as file data.";
    let name = "steadfs_jbd2_commits_beside_data_total";
    metrics.counter(name, help, &[], stats.beside_data);
    let help = "Handles begun in committed transactions.";
    metrics.counter("steadfs_jbd2_handles_total", help, &[], stats.handles);
    let help = "Blocks written to the log.";
    metrics.counter("steadfs_jbd2_logged_blocks_total", help, &[], stats.logged);
    let steps = [
        ("request_delay", stats.request_delay),
        ("running", stats.running),
        ("locked", stats.locked),
        ("logging", stats.logging),
    ];
    for (step, time) in steps {
        let help = "Times of the steps of commits.";
        let name = "steadfs_jbd2_commit_step_seconds_total";
        metrics.counter(name, help, &[("step", step)], time);
    }
}

fn add_waits(stats: &JournalStats, metrics: &mut Metrics) {
    let causes = [
        ("locked_transaction", stats.waited_locked),
        ("log_space", stats.waited_space),
        ("reserved_credits", stats.waited_credits),
        ("group_commit", stats.waited_batch),
    ];
    for (cause, WaitStats { count, total, max }) in causes {
        let labels = [("cause", cause)];
        let help = "Waits for the journal.";
        metrics.counter("steadfs_jbd2_waits_total", help, &labels, count);
        let help = "Time of waits for the journal.";
        metrics.counter("steadfs_jbd2_wait_seconds_total", help, &labels, total);
        let help = "The longest wait for the journal since the mount.";
        metrics.gauge("steadfs_jbd2_wait_max_seconds", help, &labels, max);
    }
}

fn add_reclaim(stats: &JournalStats, block_bytes: u64, metrics: &mut Metrics) {
    let help = "Blocks that reclaim wrote to their home locations.";
    let name = "steadfs_jbd2_reclaimed_bytes_total";
    metrics.counter(name, help, &[], stats.written_home * block_bytes);
    let freed = [
        ("background", stats.freed_in_background),
        ("waiter", stats.freed_by_waiters),
    ];
    for (by, blocks) in freed {
        let help =
            "Log space freed by the background reclaimer and by handles that waited for space.";
        let name = "steadfs_jbd2_log_freed_bytes_total";
        metrics.counter(name, help, &[("by", by)], blocks * block_bytes);
    }
    let help = "Time of the background reclaimer.";
    let time: Duration = stats.background.total;
    metrics.counter("steadfs_jbd2_reclaim_seconds_total", help, &[], time);
}
