//! Puts a volume together from its device and superblock.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use steadfs_block::Queue;
use steadfs_cache::{CacheSizes, FsyncClustering, MetaCache, Writeback, WritebackOptions};
use steadfs_fscrypt::Keyring;
use steadfs_rt::{Mutex, Rank, RwLock};
use steadfs_vfs::verity::VerityFiles;
use steadfs_vfs::{Clock, OrderlyDirs, PendingFrees, RemountState, Result, StopState};

use crate::disk::Superblock;
use crate::disk::features::RoCompat;
use crate::disk::superblock::{JournalPlace, SUPERBLOCK_OFFSET};
use crate::error_log::ErrorLog;
use crate::fast_commit::FastCommitTracker;
use crate::fs::Ext4;
use crate::inode::InodeTable;
use crate::mballoc::{Allocator, Descriptors};
use crate::options::MountOptions;
use crate::orphan::Orphans;
use crate::report::MountReport;
use crate::source::{Source, journal_map};
use crate::super_origin::SuperOrigin;
use crate::tuning::stripe;
use crate::txn::Txns;
use crate::xattr::Values;

impl Ext4 {
    /// The volume of `source`, not served yet. Without `journaled` its journal is not used, and changes are written in
    /// place.
    pub(crate) fn assemble(
        source: Source,
        options: MountOptions,
        sizes: CacheSizes,
        journaled: bool,
        report: &mut MountReport,
    ) -> Result<Arc<Self>> {
        let Source {
            queue,
            overlay,
            sb,
            super_bytes,
            super_at,
            ..
        } = source;
        let geo = sb.geometry().clone();
        let meta_budget = usize::try_from(sizes.metadata).unwrap_or(usize::MAX);
        let meta = Arc::new(MetaCache::new(
            Arc::clone(&queue),
            geo.block_size,
            meta_budget,
        ));
        let needed = needed_descriptors(&options, super_at);
        let (mut alloc, unwritable) = Allocator::load(&geo, &meta, needed)?;
        report.warnings.extend(unwritable.clone());
        let set_up = set_up_allocator(&mut alloc, &queue, &sb, &options);
        report.pass_over(set_up, options.common.salvage)?;
        let overhead = geo.first_data_block.0 + alloc.own_blocks();
        // After the overhead, which does not contain it in Linux.
        let added = add_mount_protection(&mut alloc, &sb);
        report.pass_over(added, options.common.salvage)?;
        let limits = WritebackOptions::for_cache(sizes.dirty_data);
        queue.set_read_ahead_limit(sizes.read_ahead);
        Ok(Arc::new_cyclic(|me| Self {
            me: me.clone(),
            txns: Txns::new(Arc::clone(&meta), journaled, &geo),
            geo,
            queue,
            meta,
            fast_commits: FastCommitTracker::default(),
            writeback: Arc::new(Writeback::new(limits)),
            inodes: InodeTable::new(),
            alloc,
            orphans: Orphans::new(),
            freeing: PendingFrees::new(),
            quota: OnceLock::new(),
            values: Values::new(),
            verities: VerityFiles::default(),
            keyring: Keyring::default(),
            orderly_dirs: OrderlyDirs::default(),
            replaced: Mutex::new(Rank::Leaf, BTreeSet::new()),
            stop_state: StopState::new(options.common.read_only),
            options: RwLock::new(Rank::Leaf, options),
            fsync_clustering: FsyncClustering::default(),
            clock: Clock::default(),
            rename: Mutex::new(Rank::Rename, ()),
            large_file: AtomicBool::new(sb.features().ro_compat.contains(RoCompat::LARGE_FILE)),
            hidden: sb.own_files(),
            sb: Mutex::new(Rank::Super, sb),
            overhead,
            remount_state: RemountState::new(),
            meta_budget: sizes.metadata,
            overlay,
            super_origin: SuperOrigin::new(super_at, super_bytes),
            errors: ErrorLog::new(),
            unwritable,
            node_lock: Mutex::new(Rank::Leaf, None),
            was_clean: AtomicBool::new(true),
        }))
    }
}

fn add_mount_protection(alloc: &mut Allocator, sb: &Superblock) -> Result<()> {
    match sb.mmp_block() {
        Some(block) => alloc.add_mount_protection(block),
        None => Ok(()),
    }
}

/// What an open with these options, by the superblock at `super_at`, needs of the group descriptors.
fn needed_descriptors(options: &MountOptions, super_at: u64) -> Descriptors {
    let by_copy = super_at != SUPERBLOCK_OFFSET;
    match options.common.read_only {
        false => Descriptors::Valid,
        true if options.common.salvage || by_copy => Descriptors::Nothing,
        true => Descriptors::Places,
    }
}

/// Sets what superblock and options say of the allocator, and keeps the blocks of the journal in use.
fn set_up_allocator(
    alloc: &mut Allocator,
    queue: &Arc<Queue>,
    sb: &Superblock,
    options: &MountOptions,
) -> Result<()> {
    alloc.set_discard(options.discard);
    alloc.set_stripe(sb.geometry(), stripe(sb, options));
    match journal_map(queue, sb, None) {
        Ok(map) if matches!(sb.journal(), JournalPlace::Inode(_)) => alloc.add_journal(&map),
        _ => Ok(()),
    }
}
