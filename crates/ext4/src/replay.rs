//! Replay of the journal when a volume is opened: to the device, or into an overlay over a device that is only read.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::{Corruption, DevBlock, IoTag};
use steadfs_block::{Buf, Device, Queue, QueueOptions};
use steadfs_jbd2::{JournalMap, OverlayDevice, Recover, Recovered, log_fast_commits};
use steadfs_vfs::{FsError, Result};

use crate::disk::features::Incompat;
use crate::disk::superblock::{JournalPlace, SUPERBLOCK_OFFSET};
use crate::disk::{DiskError, Superblock};
use crate::external_journal::{self, JournalArea};
use crate::fast_commit;
use crate::mode::{ELSEWHERE, check_size, is_elsewhere};
use crate::options::MountOptions;
use crate::report::MountReport;
use crate::source::{Source, journal_map};
use crate::superblock::{self, Chosen, read_superblock, superblock_bytes};
use crate::txn::journal_error;

/// Whether the volume's journal, if it is there, may hold transactions. A copy of the superblock does not have this state.
pub(crate) fn may_have_log(chosen: &Chosen, external: Option<JournalArea>) -> bool {
    let features = chosen.sb.features();
    let is_there = match chosen.sb.journal() {
        JournalPlace::Inode(_) => true,
        JournalPlace::External(_) => external.is_some(),
        JournalPlace::None => false,
    };
    is_there && (chosen.is_copy() || features.incompat.contains(Incompat::NEEDS_RECOVERY))
}

/// How a journal is replayed.
#[derive(Clone, Copy)]
pub(crate) struct Replaying {
    pub(crate) how: Recover,
    /// Fast commits that cannot be replayed are left out.
    pub(crate) salvage: bool,
    /// Where an external journal begins on the device.
    pub(crate) external: Option<JournalArea>,
}

/// Replays the journal: to the device, or in memory.
pub(crate) fn replay(
    device: Arc<dyn Device>,
    queue: &Arc<Queue>,
    chosen: &Chosen,
    replaying: Replaying,
    report: &mut MountReport,
) -> Result<Source> {
    let before = &chosen.sb;
    let Replaying { how, external, .. } = replaying;
    if how == Recover::IntoMemory {
        let (over, unreplayed) = lay_over(device, queue, before, replaying, report)?;
        let queue = Arc::new(Queue::new(Arc::clone(&over) as _, QueueOptions::default()));
        return Ok(Source {
            sb: replayed_superblock(&queue, before, external, chosen.is_copy())?,
            queue,
            overlay: Some(over),
            unreplayed,
            // The device is unchanged.
            super_bytes: chosen.bytes.clone(),
            super_at: chosen.at,
        });
    }
    recover_to_device(queue, (before, external), None, || (), report)?;
    // A log that holds the first superblock repairs it.
    let super_at = match read_superblock(queue) {
        Ok(_) => SUPERBLOCK_OFFSET,
        Err(_) => chosen.at,
    };
    Ok(Source {
        queue: Arc::clone(queue),
        overlay: None,
        unreplayed: None,
        sb: replayed_superblock(queue, before, external, chosen.is_copy())?,
        super_bytes: superblock_bytes(queue, super_at)?,
        super_at,
    })
}

/// Blocks with the content that fast commits give them.
pub(crate) type ChangedBlocks = BTreeMap<DevBlock, Buf>;

/// Replays the journal to the device; an external one is behind the volume there. `changed` are the blocks
/// that its fast commits change, if they are known; `at_home` is called before the log is overwritten for them.
pub(crate) fn recover_to_device(
    queue: &Arc<Queue>,
    (sb, external): (&Superblock, Option<JournalArea>),
    changed: Option<&ChangedBlocks>,
    at_home: impl FnOnce(),
    report: &mut MountReport,
) -> Result<()> {
    let map = journal_map(queue, sb, external)?;
    crate::journal_inode::check_apart(queue, sb, &map)?;
    let recovered = recover_journal(queue, sb, &map, Recover::ToDevice, report)?;
    if recovered.fast_commits.is_empty() {
        return Ok(());
    }
    let size = sb.geometry().block_size;
    let changed = match changed {
        Some(changed) => changed.clone(),
        None => {
            let device = Arc::clone(queue.device());
            let view = Arc::new(OverlayDevice::new(device, size, recovered.overlay));
            fast_commit::changed_blocks(view, size, external, &recovered.fast_commits)?
        }
    };
    let logged = log_fast_commits(queue, size, &map, &changed, at_home, IoTag::default());
    logged.map_err(journal_error)?;
    recover_journal(queue, sb, &map, Recover::ToDevice, report)?;
    Ok(())
}

/// The volume as it will be after replay, without writing the device. With `salvage`, the error of fast commits that
/// cannot be replayed is returned beside the overlay without them.
fn lay_over(
    device: Arc<dyn Device>,
    queue: &Arc<Queue>,
    sb: &Superblock,
    Replaying {
        salvage, external, ..
    }: Replaying,
    report: &mut MountReport,
) -> Result<(Arc<OverlayDevice>, Option<FsError>)> {
    let map = journal_map(queue, sb, external)?;
    crate::journal_inode::check_apart(queue, sb, &map)?;
    let Recovered {
        mut overlay,
        fast_commits,
        ..
    } = recover_journal(queue, sb, &map, Recover::IntoMemory, report)?;
    let size = sb.geometry().block_size;
    let mut unreplayed = None;
    if !fast_commits.is_empty() {
        let view = OverlayDevice::new(Arc::clone(&device), size, overlay.clone());
        match fast_commit::changed_blocks(Arc::new(view), size, external, &fast_commits) {
            Ok(changed) => overlay = overlay.with_changed(changed),
            Err(error) if salvage => unreplayed = Some(error),
            Err(error) => return Err(error),
        }
    }
    let over = Arc::new(OverlayDevice::new(device, size, overlay));
    Ok((over, unreplayed))
}

/// A volume as the next mount would find it, for programs that only read.
pub struct View {
    /// The device, with the replayed blocks in an overlay in memory.
    pub queue: Arc<Queue>,
    /// What was replayed, and what was ignored.
    pub report: MountReport,
    /// First byte of the superblock in use.
    pub super_at: u64,
    /// Why the journal was not replayed, if so.
    pub unreplayed: Option<FsError>,
    /// Error of the first superblock on the device, where the log holds a valid one.
    pub mended: Option<DiskError>,
}

/// The volume on `device` as the next mount would find it. With `salvage`, corruption of the first superblock or of the
/// journal is not an error.
///
/// # Errors
/// No superblock is valid, or the journal cannot be replayed.
pub fn replayed_view(device: Arc<dyn Device>, options: &MountOptions) -> Result<View> {
    let queue = Arc::new(Queue::new(Arc::clone(&device), QueueOptions::default()));
    let mut chosen = superblock::choose(&queue, &options.superblock_choice())?;
    let external = options.external_journal;
    let mut view = View {
        queue: Arc::clone(&queue),
        report: MountReport::default(),
        super_at: chosen.at,
        unreplayed: None,
        mended: None,
    };
    view.report.warnings.extend(chosen.warning.take());
    if !options.common.salvage {
        check_size(&chosen.sb, &queue, external)?;
    }
    if let Some(area) = external {
        external_journal::map(&queue, &chosen.sb, area)?;
    }
    let is_dirty = chosen
        .sb
        .features()
        .incompat
        .contains(Incompat::NEEDS_RECOVERY);
    if is_elsewhere(&chosen.sb, options) && is_dirty && !options.no_replay {
        view.unreplayed = Some(FsError::BadOption(ELSEWHERE.to_owned()));
    }
    if options.no_replay || !may_have_log(&chosen, external) {
        return Ok(view);
    }
    let replaying = Replaying {
        how: Recover::IntoMemory,
        salvage: options.common.salvage,
        external,
    };
    match replay(device, &queue, &chosen, replaying, &mut view.report) {
        Ok(replayed) => {
            view.unreplayed = replayed.unreplayed;
            view.queue = replayed.queue;
            // A log that holds the first superblock repairs it.
            if read_superblock(&view.queue).is_ok() {
                view.super_at = SUPERBLOCK_OFFSET;
                let first = superblock_bytes(&queue, SUPERBLOCK_OFFSET);
                view.mended = first.ok().and_then(|first| Superblock::parse(&first).err());
            }
        }
        Err(error) if options.common.salvage => view.unreplayed = Some(error),
        Err(error) => return Err(error),
    }
    Ok(view)
}

/// The superblock after replay, validated like one read from the device. It must belong to the same volume: a resize
/// makes a volume larger but moves nothing. If the volume was found by a copy and the log holds no superblock, that
/// copy is returned.
pub(crate) fn replayed_superblock(
    queue: &Queue,
    before: &Superblock,
    external: Option<JournalArea>,
    is_copy: bool,
) -> Result<Superblock> {
    let sb = match read_superblock(queue) {
        Ok(sb) => sb,
        Err(_) if is_copy => return Ok(before.clone().of_copy()),
        Err(error) => return Err(error),
    };
    if check_size(before, queue, external).is_ok() {
        check_size(&sb, queue, external)?;
    }
    let (old, new) = (before.geometry(), sb.geometry());
    let other = match new.places_differ(old) {
        None if sb.journal() != before.journal() => Some("place of the journal"),
        None if new.blocks_count < old.blocks_count => Some("number of blocks"),
        other => other,
    };
    match other {
        None => Ok(sb),
        Some(what) => Err(Corruption::new(format!(
            "the superblock in the journal has a different {what} than the one on the device"
        ))
        .into()),
    }
}

fn recover_journal(
    queue: &Arc<Queue>,
    sb: &Superblock,
    map: &JournalMap,
    how: Recover,
    report: &mut MountReport,
) -> Result<Recovered> {
    let size = sb.geometry().block_size;
    let recovered = steadfs_jbd2::recover(queue, size, map, how, IoTag::default());
    let recovered = recovered.map_err(journal_error)?;
    report.replayed_blocks = report.replayed_blocks.max(recovered.summary.blocks);
    let transactions = u64::from(recovered.summary.transactions);
    report.replayed_transactions = report.replayed_transactions.max(transactions);
    let fast_commits = recovered.fast_commits.commits.len() as u64;
    report.replayed_fast_commits = report.replayed_fast_commits.max(fast_commits);
    Ok(recovered)
}
