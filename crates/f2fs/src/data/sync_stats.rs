//! How fsyncs were served: by node chains or checkpoints, alone or clustered.

use std::sync::atomic::{AtomicU64, Ordering};

use steadfs_cache::FsyncClustering;

use super::cp_reason::CpReason;

/// Counters of how fsyncs were served, and what was learned from them.
#[derive(Default)]
pub struct SyncStats {
    /// fsyncs that took a checkpoint, by reason.
    reasons: [AtomicU64; CpReason::ALL.len()],
    /// fsyncs served by the file's own nodes, or by a FLUSH alone if none had changed.
    own: AtomicU64,
    /// Data blocks written in place.
    ipu: AtomicU64,
    /// Files made durable by another file's fsync (clustering).
    clustered: AtomicU64,
    /// The learned window of fsync clustering.
    clustering: FsyncClustering,
}

impl SyncStats {
    /// Which files' chains an fsync writes along.
    pub fn clustering(&self) -> &FsyncClustering {
        &self.clustering
    }

    /// Data blocks written in place (IPU).
    pub fn ipu(&self) -> u64 {
        self.ipu.load(Ordering::Relaxed)
    }

    pub(super) fn wrote_ipu(&self, blocks: u32) {
        self.ipu.fetch_add(blocks.into(), Ordering::Relaxed);
    }

    /// fsyncs that took a checkpoint, by reason; reasons that did not occur are left out.
    pub fn reasons(&self) -> Vec<(CpReason, u64)> {
        let counts = self.reasons.iter().map(|n| n.load(Ordering::Relaxed));
        let all = CpReason::ALL.into_iter().zip(counts);
        all.filter(|(_, count)| *count > 0).collect()
    }

    /// fsyncs that needed no checkpoint.
    pub fn own(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }

    /// Files whose nodes another file's fsync made durable.
    pub fn clustered(&self) -> u64 {
        self.clustered.load(Ordering::Relaxed)
    }

    /// Counts files whose nodes another file's fsync makes durable.
    pub(super) fn count_clustered(&self, files: usize) {
        self.clustered.fetch_add(files as u64, Ordering::Relaxed);
    }

    /// Counts an fsync: the reason for its checkpoint, or `None` if it needed none.
    pub(super) fn count(&self, reason: Option<CpReason>) {
        let counter = match reason {
            Some(reason) => {
                let known = CpReason::ALL.into_iter().position(|r| r == reason);
                &self.reasons[known.expect("every reason is in CpReason::ALL")]
            }
            None => &self.own,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
