//! Describing a volume without opening it.

use std::fmt;
use std::path::Path;

use serde::Serialize;

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
