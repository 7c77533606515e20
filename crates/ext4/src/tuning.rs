//! Parameters of the allocator and of the journal that follow from mount options.

use std::time::Duration;

use steadfs_base::IoPrio;
use steadfs_jbd2::{Checksum, Journal, JournalConfig, JournalTuning, ReclaimPolicy};

use crate::disk::Superblock;
use crate::disk::features::{Compat, RoCompat};
use crate::options::{AsyncCheckpoint, MountOptions};

/// Smallest limit of a transaction in blocks, whatever the memory: every operation fits.
const TRANSACTION_BLOCKS_MIN: u32 = 256;

/// The alignment of long allocations in blocks: the option's, else the superblock's; 1: none. A stripe that does not
/// fit a group is ignored.
pub(crate) fn stripe(sb: &Superblock, options: &MountOptions) -> u32 {
    let raw = sb.raw();
    let written = [raw.raid_stripe_width.get(), raw.raid_stride.get().into()];
    let asked = options.stripe.map_or(written, |blocks| [blocks, blocks]);
    let fits = |blocks: &u32| (1..=sb.geometry().blocks_per_group).contains(blocks);
    asked.into_iter().find(fits).unwrap_or(1)
}

/// The journal's tuning by the options.
pub(crate) fn tuning(options: &MountOptions) -> JournalTuning {
    JournalTuning {
        commit_interval: Duration::from_secs(options.commit_secs.into()),
        min_batch: Duration::from_micros(options.min_batch_us.into()),
        max_batch: Duration::from_micros(options.max_batch_us.into()),
        barriers: options.barrier,
        fast_commit: options.fast_commit,
        prio: IoPrio::best_effort(options.journal_ioprio),
    }
}

/// The running and the committing transaction hold their blocks in memory; blocks not checkpointed may fill two more
/// shares before a commit is throttled, and that commit adds one. So the share of one transaction is such that five
/// stay below the memory for metadata.
fn share_of(meta_budget: u64) -> u64 {
    meta_budget / 6
}

/// The journal's configuration with `meta_budget` bytes of memory for metadata.
pub(crate) fn journal_config(
    sb: &Superblock,
    options: &MountOptions,
    meta_budget: u64,
) -> JournalConfig {
    let share = share_of(meta_budget);
    let blocks = share >> sb.geometry().block_size.bits();
    let features = sb.geometry().features;
    // The log has checksums if the volume's metadata has.
    let sums = features.ro_compat.contains(RoCompat::METADATA_CSUM);
    let checksum = match (options.journal_checksum, sums) {
        (Some(false), _) => Some(Checksum::None),
        (_, true) => Some(Checksum::V3),
        (Some(true), false) => Some(Checksum::V1),
        (None, false) => None,
    };
    JournalConfig {
        tuning: tuning(options),
        wide: sb.geometry().has_64bit(),
        fast_commit: features.compat.contains(Compat::FAST_COMMIT),
        checksum,
        max_transaction: Some(
            u32::try_from(blocks)
                .unwrap_or(u32::MAX)
                .max(TRANSACTION_BLOCKS_MIN),
        ),
        reclaim: ReclaimPolicy {
            max_unwritten_bytes: share,
            low_free_percent: options.async_checkpoint.percent(),
            ..ReclaimPolicy::default()
        },
        ..JournalConfig::default()
    }
}

/// Logs a warning if the threshold is so low that operations wait for log space before it.
pub(crate) fn warn_of_idle_threshold(journal: &Journal, asked: AsyncCheckpoint) {
    let forced = journal.forced_reclaim_percent();
    if let Some(percent) = asked.percent()
        && percent <= forced
    {
        tracing::warn!(
            "async_checkpoint={percent} does little here: operations wait for log space from {forced}% free on"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use steadfs_cache::CacheSizes;

    use super::*;
    use crate::Ext4;
    use crate::disk::test_images::Image;

    #[test]
    fn transactions_of_a_large_log_fit_a_small_memory() {
        let options = ["-t", "ext4", "-b", "4096", "-J", "size=32"];
        let image = Image::make(&options, "96M");
        let device = image.device();
        let credits = |cache: u64| {
            let device = Arc::clone(&device) as _;
            let opened = Ext4::open(device, MountOptions::default(), CacheSizes::of(cache));
            let (fs, _) = opened.unwrap();
            let credits = fs.txns.journal().unwrap().max_credits();
            fs.close().unwrap();
            u64::from(credits) << 12
        };
        assert!(credits(8 << 20) <= 1 << 20);
        let large = credits(256 << 20);
        assert!(large > 7 << 20 && large <= 8 << 20, "a quarter of the log");
    }
}
