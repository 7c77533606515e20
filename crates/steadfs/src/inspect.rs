//! Describing a volume without opening it.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use steadfs_ext4::inspect::{Journal, StoredChecksum};

use crate::Options;
use crate::probe::{Kind, failed};
use crate::volume::{Error, VolumeDevice};

/// The description of a volume of either kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Inspection {
    /// ext2, ext3 or ext4.
    Ext4(Box<steadfs_ext4::inspect::Inspection>),
    /// f2fs.
    F2fs(Box<steadfs_f2fs::inspect::Inspection>),
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ext4(inspection) => inspection.fmt(f),
            Self::F2fs(inspection) => inspection.fmt(f),
        }
    }
}

/// What a volume's own marks say of it. They are believed as by e2fsck and fsck.f2fs: only a check sees more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// It was unmounted cleanly, and no error is recorded.
    Clean,
    /// Each mount for writing recovers it: its journal, its orphans, or what fsync wrote after f2fs's last checkpoint. No error
    /// is recorded.
    ToRecover,
    /// It was not unmounted cleanly and has no journal, or an error is recorded.
    ToCheck,
}

impl Inspection {
    /// What the volume's marks say.
    pub fn marks(&self) -> Marks {
        match self {
            Self::Ext4(volume) => {
                let state = &volume.state;
                let has_orphans = state.orphans || state.first_orphan.is_some();
                match state {
                    state if state.has_errors || !state.clean => Marks::ToCheck,
                    _ if is_damaged(volume) => Marks::ToCheck,
                    state if state.needs_recovery || has_orphans => Marks::ToRecover,
                    _ => Marks::Clean,
                }
            }
            Self::F2fs(volume) => {
                let Some(numbers) = volume.checkpoint.numbers() else {
                    return Marks::ToCheck;
                };
                let has = |flag: &str| numbers.flags.contains(&flag);
                let is_wrong = numbers.wrong.is_some()
                    || has("fsck")
                    || has("error")
                    || has("quota_need_fsck");
                match volume.has_errors || is_wrong {
                    true => Marks::ToCheck,
                    false if !has("unmount") || has("orphan_inodes") => Marks::ToRecover,
                    false => Marks::Clean,
                }
            }
        }
    }
}

/// Whether the superblock, the group descriptors or the journal's superblock are wrong.
fn is_damaged(volume: &steadfs_ext4::inspect::Inspection) -> bool {
    let is_wrong = |sum: &StoredChecksum| !sum.is_right;
    let journal = match &volume.journal {
        Journal::Internal { log, .. } => !log.checksum_is_right || log.aborted.is_some(),
        Journal::Unreadable { .. } => true,
        Journal::None | Journal::External { .. } => false,
    };
    let usage = &volume.usage;
    volume.checksum.as_ref().is_some_and(is_wrong)
        || usage.damaged > 0
        || usage.unreadable.is_some()
        || journal
}

/// Describes a volume; see [`VolumeDevice::inspect`].
pub fn inspect(path: &Path, options: &Options) -> Result<Inspection, Error> {
    VolumeDevice::open_salvage(path, options)?.inspect()
}

impl VolumeDevice {
    /// Describes the volume by its superblock, and by the group descriptors and the journal's superblock, or by the
    /// checkpoint. Nothing is replayed or written.
    pub fn inspect(&self) -> Result<Inspection, Error> {
        let queue = self.queue()?;
        let inspected = match self.kind()? {
            Kind::F2fs => steadfs_f2fs::inspect::inspect(&queue)
                .map(Box::new)
                .map(Inspection::F2fs),
            Kind::Ext2 | Kind::Ext3 | Kind::Ext4 => {
                let choice = self.options().ext4.superblock_choice();
                let seen = steadfs_ext4::inspect::inspect(&queue, &choice);
                seen.map(Box::new).map(Inspection::Ext4)
            }
        };
        inspected.map_err(|error| failed(self.path(), error))
    }
}
