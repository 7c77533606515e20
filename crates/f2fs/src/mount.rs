//! Opens a volume: superblock, checkpoint, roll-forward.

use std::sync::{Arc, OnceLock};

use steadfs_base::{BlockSize, Corruption, InodeNo, IoTag};
use steadfs_block::{Device, Queue, QueueOptions};
use steadfs_cache::{CacheSizes, MetaCache, Writeback, WritebackOptions};
use steadfs_fscrypt::Keyring;
use steadfs_rt::{Mutex, Rank, RwLock};
use steadfs_vfs::verity::VerityFiles;
use steadfs_vfs::{Clock, FsError, OrderlyDirs, PendingFrees, RemountState, Result, StopState};

use crate::atomic::AtomicWrites;
use crate::checkpoint::daemon::Daemon;
use crate::checkpoint::state::Checkpoints;
use crate::checkpoint::{self, Current};
use crate::cp_lock::CpLock;
use crate::data::sync_stats::SyncStats;
use crate::discard::Discards;
use crate::disk::checkpoint::CpFlags;
use crate::disk::{BLOCK_SIZE, Features, MountMode, Nid, Superblock, mount_mode};
use crate::error_log::ErrorLog;
use crate::fs::F2fs;
use crate::gc::Gc;
use crate::inode::table::InodeTable;
use crate::namei::extensions::Extensions;
use crate::nat::Nat;
use crate::node::cache::NodeCache;
use crate::node::neighbours::NeighbourReads;
use crate::node::writes::NodeWrites;
use crate::options::MountOptions;
use crate::orphan::Orphans;
use crate::quota::QuotaState;
use crate::read_superblock;
use crate::recovery::overlay::Recovered;
use crate::recovery::state::RecoveryState;
use crate::since_cp::SinceCp;
use crate::space::Space;

/// What opening a volume found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountReport {
    /// Files recovered from what fsync wrote after the checkpoint.
    pub recovered_files: u64,
    /// Nodes recovered for them.
    pub recovered_nodes: u64,
    /// Unlinked inodes that were open when the checkpoint was written.
    pub orphans: u64,
    /// Why the volume cannot be mounted for writing.
    pub read_only_because: Vec<String>,
    /// What is corrupt or missing and was ignored.
    pub warnings: Vec<String>,
}

impl F2fs {
    /// Opens the volume on `device` and recovers what fsync wrote after the last checkpoint. If it is to be written,
    /// also frees orphans and starts the tasks.
    ///
    /// # Errors
    /// Options or features that do not allow it, corruption, or a device error.
    pub fn open(
        device: Arc<dyn Device>,
        options: MountOptions,
        sizes: CacheSizes,
    ) -> Result<(Arc<Self>, MountReport)> {
        Self::open_handed_over(device, options, sizes, &[])
    }

    /// The same for a volume that another server handed over ([`FileSystem::hand_over`](steadfs_vfs::FileSystem)) with
    /// these lookup counts: orphans among these inodes stay in use.
    ///
    /// # Errors
    /// As [`F2fs::open`].
    pub fn open_handed_over(
        device: Arc<dyn Device>,
        options: MountOptions,
        sizes: CacheSizes,
        lookups: &[(InodeNo, u64)],
    ) -> Result<(Arc<Self>, MountReport)> {
        let mut report = MountReport::default();
        let queue = Arc::new(Queue::new(device, QueueOptions::default()));
        let superblock = read_superblock(&queue)?;
        let device_read_only = queue.geometry().read_only;
        check_mountable(&superblock, &options, device_read_only, &mut report)?;
        options.check_features(superblock.features())?;
        let mut options = options;
        let current = load(&superblock, &queue, &options, &mut report)?;
        options.settle(current.checkpoint.user_blocks);
        let files = superblock.quota_inodes().map(|nid| nid.is_some());
        let missing = options.common.warn_of_missing_limits(files);
        report.warnings.extend(missing);
        report.orphans = current.orphans.len() as u64;
        let flags = current.checkpoint.flags;
        warn_of_state(&superblock, flags);
        let recover = !options.no_recovery && !was_cp_disabled(flags);
        queue.set_read_ahead_limit(sizes.read_ahead);
        let mut fs = Self::assemble(queue, superblock, current, options, sizes);
        if recover && fs.stop_state.is_read_only() {
            let found = match fs.find_fsynced(IoTag::default()) {
                Err(error) if fs.options.read().common.salvage => {
                    report.warnings.push(format!(
                        "what fsync wrote after the last checkpoint cannot be recovered ({error}): files are in the \
                         state of the checkpoint"
                    ));
                    Recovered::default()
                }
                found => found?,
            };
            report.recovered_files = found.files();
            report.recovered_nodes = found.nodes();
            // The caches have content of the checkpoint without the overlay.
            fs.inodes = InodeTable::new();
            fs.nodes = NodeCache::new(metadata_budget(sizes) / 2);
            fs.recovery = RecoveryState::new(found);
        }
        fs.inodes.adopt_lookups(lookups);
        // Roll-forward must not give the number of an inode that is to be restored to another node.
        let numbers = lookups.iter().filter_map(|(ino, _)| Nid::from_vfs(*ino));
        fs.nat.keep(numbers);
        let fs = Arc::new(fs);
        assert!(
            fs.weak_self.set(Arc::downgrade(&fs)).is_ok(),
            "the volume is opened once"
        );
        if !fs.stop_state.is_read_only() {
            let reserved = fs.options.read().reserve_root;
            fs.space.set_root_reserved(reserved.into());
            if let Err(error) = fs.start_writable(&mut report) {
                fs.join_tasks();
                return Err(error);
            }
        }
        fs.nat.release_kept();
        Ok((fs, report))
    }

    /// The volume in the state of its last checkpoint, before any task knows of it.
    fn assemble(
        queue: Arc<Queue>,
        superblock: Superblock,
        current: Current,
        options: MountOptions,
        sizes: CacheSizes,
    ) -> Self {
        let layout = superblock.layout().clone();
        let block_size = BlockSize::new(BLOCK_SIZE as u32).expect("4096 is a block size");
        // Half of the budget is for nodes, half for tables and directories.
        let share = metadata_budget(sizes) / 2;
        let meta = Arc::new(MetaCache::new(Arc::clone(&queue), block_size, share));
        let nat = Nat::new(&layout, &meta, &current.checkpoint, current.nat_journal);
        let limits = WritebackOptions::for_cache(sizes.dirty_data);
        Self {
            weak_self: OnceLock::new(),
            daemon: Arc::new(Daemon::new()),
            nat,
            nodes: NodeCache::new(share),
            node_reads: NeighbourReads::new(),
            dir_reads: NeighbourReads::new(),
            node_writes: NodeWrites::new(),
            space: Space::new(&layout, &current.checkpoint),
            writeback: Arc::new(Writeback::new(limits)),
            cp_lock: CpLock::new(),
            since_cp: SinceCp::new(),
            extensions: Extensions::of(&superblock),
            freeing: PendingFrees::new(),
            atomic_writes: AtomicWrites::new(),
            verities: VerityFiles::default(),
            keyring: Keyring::default(),
            orderly_dirs: OrderlyDirs::default(),
            clock: Clock::default(),
            rename: Mutex::new(Rank::Rename, ()),
            stop_state: StopState::new(options.common.read_only),
            errors: ErrorLog::new(superblock.clone()),
            superblock,
            checkpoints: Checkpoints::new(current.checkpoint, current.pack),
            segments: OnceLock::new(),
            syncs: SyncStats::default(),
            orphans: Orphans::new(&layout, current.orphans),
            quota: QuotaState::default(),
            gc: Gc::new(),
            discards: Arc::new(Discards::new()),
            queue,
            meta,
            inodes: InodeTable::new(),
            recovery: RecoveryState::new(Recovered::default()),
            options: RwLock::new(Rank::Leaf, options),
            remount: RemountState::new(),
            layout,
        }
    }
}

/// Memory for nodes, tables and directories, in bytes.
fn metadata_budget(sizes: CacheSizes) -> usize {
    usize::try_from(sizes.metadata).unwrap_or(usize::MAX)
}

/// Loads the checkpoint: for writing all of it must be valid, for reading what reads depend on.
fn load(
    superblock: &Superblock,
    queue: &Queue,
    options: &MountOptions,
    report: &mut MountReport,
) -> Result<Current> {
    let size = check_size(superblock, queue);
    let current = checkpoint::load(queue, superblock.layout())?;
    if !options.common.read_only {
        size?;
        return current.for_writing();
    }
    if let Some(error) = &current.unreadable {
        if !options.common.salvage {
            return Err(error.clone());
        }
        report.warnings.push(format!(
            "{error}: files that changed last may be in an older state"
        ));
    }
    let passed = size.err().into_iter().chain(current.unwritable.clone());
    report
        .warnings
        .extend(passed.map(|error| error.to_string()));
    Ok(current)
}

pub(crate) fn check_size(superblock: &Superblock, queue: &Queue) -> Result<()> {
    let blocks = superblock.needed_blocks();
    let size = queue.geometry().size;
    if blocks > size / BLOCK_SIZE as u64 {
        let what = format!(
            "the volume has {blocks} blocks of {BLOCK_SIZE} bytes, the device only {size} bytes"
        );
        return Err(Corruption::new(what).into());
    }
    Ok(())
}

/// Why the volume can only be read, one phrase for each reason; empty if it can be written.
pub(crate) fn read_only_reasons(superblock: &Superblock) -> Vec<String> {
    let features = superblock.features();
    let mut why = Vec::new();
    if features.contains(Features::READ_ONLY) {
        why.push("made to be read only (ro)".to_owned());
    }
    if let MountMode::ReadOnly { because } = mount_mode(features.without(Features::READ_ONLY)) {
        let names = because.join(", ");
        why.push(format!("features not supported for writing: {names}"));
    }
    why
}

/// Fails if the volume cannot be mounted with these options.
fn check_mountable(
    superblock: &Superblock,
    options: &MountOptions,
    device_read_only: bool,
    report: &mut MountReport,
) -> Result<()> {
    let refuse = |why: String| Err(FsError::BadOption(why));
    if let MountMode::Refused { features } = mount_mode(superblock.features()) {
        let names = features.join(", ");
        return refuse(format!("unsupported features: {names}"));
    }
    if let Some((number, _)) = superblock.encoding()
        && superblock.layout().encoding.is_none()
    {
        return refuse(format!(
            "the names of casefolded directories have an unknown encoding (s_encoding {number})"
        ));
    }
    if let Some(why) = superblock.missing_devices().filter(|_| !options.is_joined) {
        return refuse(why);
    }
    let why = read_only_reasons(superblock);
    options.common.check_mode(&why, device_read_only)?;
    report.read_only_because = why;
    Ok(())
}

/// Whether checkpoints were disabled: what was written after this one is not recovered.
pub(crate) fn was_cp_disabled(flags: CpFlags) -> bool {
    flags.contains(CpFlags::DISABLED)
}

fn warn_of_state(superblock: &Superblock, flags: CpFlags) {
    if superblock.has_errors() || flags.contains(CpFlags::ERROR) || flags.contains(CpFlags::FSCK) {
        tracing::warn!("the superblock or the checkpoint records errors; run fsck.f2fs");
    }
    if was_cp_disabled(flags) {
        tracing::info!(
            "checkpoints were disabled; the volume is in the state of its last checkpoint"
        );
    }
    if flags.contains(CpFlags::RESIZE) {
        tracing::warn!("a resize of the volume was not completed");
    }
}
