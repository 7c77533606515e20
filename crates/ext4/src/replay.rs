//! What the journal holds when a volume is opened: written home, or laid over a device that is only read.

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

/// What a volume is opened from.
pub(crate) struct Source {
    pub(crate) queue: Arc<Queue>,
    /// What lies over a device whose journal was replayed in memory.
    pub(crate) overlay: Option<Arc<OverlayDevice>>,
    pub(crate) sb: Superblock,
    /// The superblock's bytes as they lie on the device.
    pub(crate) super_bytes: Vec<u8>,
    /// Where they lie.
    pub(crate) super_at: u64,
}

impl Source {
    /// The volume as it lies on the device.
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

/// Whether there may be something to replay in the volume's own journal. A copy of the superblock does not know.
pub(crate) fn may_have_log(chosen: &Chosen) -> bool {
    let features = chosen.sb.features();
    matches!(chosen.sb.journal(), JournalPlace::Inode(_))
        && (chosen.is_copy() || features.incompat.contains(Incompat::NEEDS_RECOVERY))
}

/// The volume as it is after replay; a device that must not be written is left as it is, and so it is for programs
/// that only read.
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
            // Where the device is read, it is still as it was.
            super_bytes: chosen.bytes.clone(),
            super_at: chosen.at,
        });
    }
    recover_to_device(queue, before, report)?;
    // A log that holds the first superblock mends it.
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
    /// The device, with what the journal holds laid over it in memory.
    pub queue: Arc<Queue>,
    /// What was replayed, and what was passed over.
    pub report: MountReport,
    /// First byte of the superblock in use.
    pub super_at: u64,
    /// Why what the journal holds is left out, if it is.
    pub unreplayed: Option<FsError>,
    /// What is wrong with the first superblock on the device, where the journal holds a whole one.
    pub mended: Option<DiskError>,
}

/// Looks at the volume on `device` as the next mount would find it. With `salvage` damage of the first superblock or
/// of the journal does not prevent that look.
///
/// # Errors
/// There is no superblock that can be used, or the journal cannot be replayed.
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
    if !options.salvage {
        check_size(&chosen.sb, &queue)?;
    }
    if options.no_replay || !may_have_log(&chosen) {
        return Ok(view);
    }
    match replay(device, &queue, &chosen, true, &mut view.report) {
        Ok(replayed) => {
            view.queue = replayed.queue;
            // A log that holds the first superblock mends it.
            if read_superblock(&view.queue).is_ok() {
                view.super_at = SUPERBLOCK_OFFSET;
                let first = superblock_bytes(&queue, SUPERBLOCK_OFFSET);
                view.mended = first.ok().and_then(|first| Superblock::parse(&first).err());
            }
        }
        Err(error) if options.salvage => view.unreplayed = Some(error),
        Err(error) => return Err(error),
    }
    Ok(view)
}

/// The superblock that a replay may have brought, judged as one that was always there. It is of the volume that
/// the log was found in: a resize makes that larger, but nothing moves what has its place. Where the volume was found
/// by a copy and the log holds no other it is still that copy.
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
            "the superblock in the journal has another {what} than the one that led to it"
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

/// Where the journal's blocks lie. Read straight from the device: the journal inode is never part of
/// a transaction, so it is right before replay as after.
pub(crate) fn journal_map(queue: &Arc<Queue>, sb: &Superblock) -> Result<JournalMap> {
    let JournalPlace::Inode(ino) = sb.journal() else {
        return Err(Corruption::new("the volume has no journal").into());
    };
    let by_inode = crate::journal_inode::map(queue, sb, ino);
    // The superblock's copy of the map is for reading: a mount that writes needs the inode itself.
    match by_inode {
        Err(error) if queue.geometry().read_only => {
            match crate::journal_inode::map_of_backup(queue, sb, ino) {
                Some(Ok(map)) => {
                    tracing::warn!(%error, "the copy of the journal's map in the superblock is used");
                    Ok(map)
                }
                _ => Err(error),
            }
        }
        by_inode => by_inode,
    }
}
