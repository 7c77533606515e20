//! Where a volume is read from: its device or the overlay over it, its superblock, its journal's blocks.

use std::sync::Arc;

use steadfs_base::Corruption;
use steadfs_block::Queue;
use steadfs_jbd2::{JournalMap, OverlayDevice};
use steadfs_vfs::{FsError, Result};

use crate::disk::Superblock;
use crate::disk::superblock::JournalPlace;
use crate::external_journal::JournalArea;
use crate::superblock::Chosen;

/// The device and superblock from which a volume is opened.
pub(crate) struct Source {
    pub(crate) queue: Arc<Queue>,
    /// The overlay over a device whose journal was replayed in memory.
    pub(crate) overlay: Option<Arc<OverlayDevice>>,
    pub(crate) sb: Superblock,
    /// Why fast commits were left out of the overlay, if so.
    pub(crate) unreplayed: Option<FsError>,
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
            unreplayed: None,
            sb: chosen.sb.clone(),
            super_bytes: chosen.bytes.clone(),
            super_at: chosen.at,
        }
    }
}

/// Maps the journal's blocks, from the device: no transaction contains the journal inode, so it is the same before and
/// after replay.
///
/// `external`: where an external journal begins on the device.
pub(crate) fn journal_map(
    queue: &Arc<Queue>,
    sb: &Superblock,
    external: Option<JournalArea>,
) -> Result<JournalMap> {
    if let Some(area) = external {
        return crate::external_journal::map(queue, sb, area);
    }
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
