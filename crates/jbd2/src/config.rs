//! Settings of a journal.

use std::time::Duration;

use steadfs_base::{IoPrio, IoTag, Urgency};

use crate::{Checksum, ReclaimPolicy};

const DEFAULT_COMMIT_INTERVAL: Duration = Duration::from_secs(5);

/// Settings that a remount may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalTuning {
    /// Age at which a transaction is committed (`commit=`); zero means 5 s, as in Linux.
    pub commit_interval: Duration,
    /// Shortest wait of a synchronous operation for others to join its commit (`min_batch_time=`).
    pub min_batch: Duration,
    /// Longest wait for others to join a commit; zero: none (`max_batch_time=`).
    pub max_batch: Duration,
    /// Whether the device has a cache that must be flushed (`barrier`, `nobarrier`).
    pub barriers: bool,
    /// Whether fast commits are written, if the journal has an area for them.
    pub fast_commit: bool,
    /// Priority of commits without a waiter (`journal_ioprio=`).
    pub prio: IoPrio,
}

impl Default for JournalTuning {
    fn default() -> Self {
        Self {
            commit_interval: DEFAULT_COMMIT_INTERVAL,
            min_batch: Duration::ZERO,
            max_batch: Duration::from_micros(15_000),
            barriers: true,
            fast_commit: true,
            prio: IoPrio::best_effort(3),
        }
    }
}

impl JournalTuning {
    /// Age at which a transaction is committed.
    pub(crate) fn max_transaction_age(&self) -> Duration {
        if self.commit_interval.is_zero() {
            return DEFAULT_COMMIT_INTERVAL;
        }
        self.commit_interval
    }

    /// The tag of commits without a waiter.
    pub(crate) fn commit_tag(&self) -> IoTag {
        IoTag {
            urgency: Urgency::Journal,
            prio: self.prio,
            ..IoTag::default()
        }
    }
}

/// How a journal is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalConfig {
    /// Settings that a remount may change.
    pub tuning: JournalTuning,
    /// When committed blocks are written to their home locations in the background.
    pub reclaim: ReclaimPolicy,
    /// Nothing is written and no handle begins.
    pub read_only: bool,
    /// Block numbers need more than 32 bits (ext4's `64bit`). Sets the journal's feature, never clears
    /// it.
    pub wide: bool,
    /// The volume has fast commits (ext4's `fast_commit`): the end of the journal is their area.
    pub fast_commit: bool,
    /// The checksum version to set (ext4: version 3 with `metadata_csum`); `None`: unchanged.
    pub checksum: Option<Checksum>,
    /// Limit of a transaction in log blocks, if less than a quarter of the log. The blocks of two
    /// transactions, the running and the committing one, are in memory in addition to the limit of the
    /// reclaim policy: a large log on a machine with little memory needs a limit here.
    pub max_transaction: Option<u32>,
}
