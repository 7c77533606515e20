//! How a journal works.

use std::time::Duration;

use steadfs_base::{IoPrio, IoTag, Urgency};

use crate::{Checksum, ReclaimPolicy};

const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);

/// What a remount may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalTuning {
    /// A transaction is committed when it is this old (`commit=`); zero means 5 s, as there.
    pub commit_interval: Duration,
    /// A synchronous handle waits at least this long for others to join (`min_batch_time=`).
    pub min_batch: Duration,
    /// … and at most this long; zero: it never waits (`max_batch_time=`).
    pub max_batch: Duration,
    /// Whether the device has a cache that must be flushed (`barrier`, `nobarrier`).
    pub barriers: bool,
    /// Priority of commits that nobody waits for (`journal_ioprio=`).
    pub prio: IoPrio,
}

impl Default for JournalTuning {
    fn default() -> Self {
        Self {
            commit_interval: DEFAULT_INTERVAL,
            min_batch: Duration::ZERO,
            max_batch: Duration::from_micros(15_000),
            barriers: true,
            prio: IoPrio::best_effort(3),
        }
    }
}

impl JournalTuning {
    /// When a transaction is old enough.
    pub(crate) fn max_transaction_age(&self) -> Duration {
        if self.commit_interval.is_zero() {
            return DEFAULT_INTERVAL;
        }
        self.commit_interval
    }

    /// The tag of commits that nobody waits for.
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
    /// What a remount may change.
    pub tuning: JournalTuning,
    /// When committed blocks are written home in the background.
    pub reclaim: ReclaimPolicy,
    /// Nothing is written and no handle begins.
    pub read_only: bool,
    /// Block numbers need more than 32 bits (ext4's `64bit`). Turns the journal's feature on, never
    /// off.
    pub wide: bool,
    /// The checksums the journal shall have from now on (ext4: version 3 where it has
    /// `metadata_csum`); `None`: as it is.
    pub checksum: Option<Checksum>,
    /// Most log blocks of a transaction, if less than a quarter of the log. Two transactions' blocks,
    /// the running and the committing one's, are held in memory besides what the reclaim policy
    /// allows: a large log on a small machine wants a limit here.
    pub max_transaction: Option<u32>,
}
