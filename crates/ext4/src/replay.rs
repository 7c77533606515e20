//! Replay of the journal when a volume is opened: to the device, or into an overlay over a device that is only read.

use std::sync::Arc;

use steadfs_base::{Corruption, IoTag};
use steadfs_block::{Device, Queue, QueueOptions};
use steadfs_jbd2::{JournalMap, Overlay, OverlayDevice, Recover};
use steadfs_vfs::{FsError, Result};

use crate::disk::features::Incompat;
use crate::disk::superblock::{JournalPlace, SUPERBLOCK_OFFSET};
use crate::disk::{DiskError, Superblock};
use crate::mount::{MountReport, check_size};
use crate::options::MountOptions;
use crate::superblock::{self, Chosen, read_superblock, superblock_bytes};
use crate::txn::journal_error;

/// The device and superblock from which a volume is opened.
pub(crate) struct Source {
    pub(crate) queue: Arc<Queue>,
    /// The overlay over a device whose journal was replayed in memory.
    pub(crate) overlay: Option<Arc<OverlayDevice>>,
    pub(crate) sb: Superblock,
    /// The superblock's bytes as they are on the device.
    pub(crate) super_bytes: Vec<u8>,
    /// First byte of the superblock.
    pub(crate) super_at: u64,
}

impl Source {
    /// The volume as it is on the device.
    pub(crate) fn unreplayed(queue: Arc<Queue>, chosen: &Chosen) -> Self {
        Self {
            queue,
            overlay: None,
            sb: chosen.sb.clone(),
            super_bytes: chosen.bytes.clone(),
            super_at: chosen.at,
        }
    }
}

/// Whether the volume's internal journal may hold transactions. A copy of the superblock does not have this state.
pub(crate) fn may_have_log(chosen: &Chosen) -> bool {
    let features = chosen.sb.features();
    matches!(chosen.sb.journal(), JournalPlace::Inode(_))
        && (chosen.is_copy() || features.incompat.contains(Incompat::NEEDS_RECOVERY))
}

/// Replays the journal: to the device, or in memory if the device is read-only or with `salvage`.
pub(crate) fn replay(
    device: Arc<dyn Device>,
    queue: &Arc<Queue>,
    chosen: &Chosen,
    salvage: bool,
    report: &mut MountReport,
) -> Result<Source> {
    let before = &chosen.sb;
    if salvage || queue.geometry().read_only {
        let over = lay_over(device, queue, before, report)?;
        let queue = Arc::new(Queue::new(Arc::clone(&over) as _, QueueOptions::default()));
        return Ok(Source {
            sb: replayed_superblock(&queue, before, chosen.is_copy())?,
            queue,
            overlay: Some(over),
            // The device is unchanged.
            super_bytes: chosen.bytes.clone(),
            super_at: chosen.at,
        });
    }
    recover_to_device(queue, before, report)?;
    // A log that holds the first superblock repairs it.
    let super_at = match read_superblock(queue) {
        Ok(_) => SUPERBLOCK_OFFSET,
        Err(_) => chosen.at,
    };
    Ok(Source {
        queue: Arc::clone(queue),
        overlay: None,
        sb: replayed_superblock(queue, before, chosen.is_copy())?,
        super_bytes: superblock_bytes(queue, super_at)?,
        super_at,
    })
}

pub(crate) fn recover_to_device(
    queue: &Arc<Queue>,
    sb: &Superblock,
    report: &mut MountReport,
) -> Result<()> {
    let map = journal_map(queue, sb)?;
    crate::journal_inode::check_apart(queue, sb, &map)?;
    recover_journal(queue, sb, &map, Recover::ToDevice, report)?;
    Ok(())
}

/// The volume as it will be after replay, without writing the device.
fn lay_over(
    device: Arc<dyn Device>,
    queue: &Arc<Queue>,
    sb: &Superblock,
    report: &mut MountReport,
) -> Result<Arc<OverlayDevice>> {
    let map = journal_map(queue, sb)?;
    crate::journal_inode::check_apart(queue, sb, &map)?;
    let overlay = recover_journal(queue, sb, &map, Recover::IntoMemory, report)?;
    let size = sb.geometry().block_size;
    Ok(Arc::new(OverlayDevice::new(device, size, overlay)))
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
    let mut view = View {
        queue: Arc::clone(&queue),
        report: MountReport::default(),
        super_at: chosen.at,
        unreplayed: None,
        mended: None,
    };
    view.report.warnings.extend(chosen.warning.take());
    if !options.common.salvage {
        check_size(&chosen.sb, &queue)?;
    }
    if options.no_replay || !may_have_log(&chosen) {
        return Ok(view);
    }
    match replay(device, &queue, &chosen, true, &mut view.report) {
        Ok(replayed) => {
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
    is_copy: bool,
) -> Result<Superblock> {
    let sb = match read_superblock(queue) {
        Ok(sb) => sb,
        Err(_) if is_copy => return Ok(before.clone().of_copy()),
        Err(error) => return Err(error),
    };
    if check_size(before, queue).is_ok() {
        check_size(&sb, queue)?;
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
) -> Result<Overlay> {
    let size = sb.geometry().block_size;
    let recovered = steadfs_jbd2::recover(queue, size, map, how, IoTag::default());
    let recovered = recovered.map_err(journal_error)?;
    report.replayed_blocks = recovered.summary.blocks;
    report.replayed_transactions = recovered.summary.transactions.into();
    Ok(recovered.overlay)
}

/// Maps the journal's blocks, from the device: no transaction contains the journal inode, so it is the same before and
/// after replay.
pub(crate) fn journal_map(queue: &Arc<Queue>, sb: &Superblock) -> Result<JournalMap> {
    let JournalPlace::Inode(ino) = sb.journal() else {
        return Err(Corruption::new("the volume has no journal").into());
    };
    let by_inode = crate::journal_inode::map(queue, sb, ino);
    // The superblock's copy of the map is used for reading only: a mount for writing needs the inode itself.
    match by_inode {
        Err(error) if queue.geometry().read_only => {
            match crate::journal_inode::map_of_backup(queue, sb, ino) {
                Some(Ok(map)) => {
                    tracing::warn!(%error, "using the copy of the journal's map in the superblock");
                    Ok(map)
                }
                _ => Err(error),
            }
        }
        by_inode => by_inode,
    }
}
