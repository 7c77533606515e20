//! Mount options of ext2, ext3 and ext4, under the names mount(8) and ext4(5) give them.

mod defaults;
mod table;

use std::path::PathBuf;

use steadfs_vfs::options::{CommonOptions, HasCommon, Refusals, Shown};
use steadfs_vfs::{FsError, Result};

pub use defaults::Asked;
pub use steadfs_vfs::options::{Atime, OnError};
pub use table::TABLE;

use crate::disk::{Features, RoCompat};
use crate::external_journal::JournalArea;
use crate::node_lock::Protection;

/// `data=`: when file data is written relative to its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataMode {
    /// Data is on the device before the transaction that maps it commits.
    Ordered,
    /// No order in Linux, where new blocks may show old content after a crash.
    Writeback,
}

/// The mount options. `None`: the superblock's default, else that of Linux.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// The options that f2fs has, too.
    pub common: CommonOptions,
    /// `noload`: the journal is not replayed; needs `ro`.
    pub no_replay: bool,
    /// `journal_path=`, `journal_dev=`: the device of an external journal.
    pub journal_path: Option<PathBuf>,
    /// Where an external journal begins on the volume's device, which is joined with it, in bytes; no option of a list.
    pub external_journal: Option<JournalArea>,
    /// `sb=`: the superblock to use, in units of 1 KiB; `None`: the first one.
    pub sb: Option<u64>,
    /// `data=`.
    pub data: Option<DataMode>,
    /// `commit=`: seconds between commits; 0 means the default of 5.
    pub commit_secs: u32,
    /// `min_batch_time=`: microseconds that a synchronous commit waits for others to join.
    pub min_batch_us: u32,
    /// `max_batch_time=`: the longest such wait, in microseconds.
    pub max_batch_us: u32,
    /// `journal_ioprio=`: best-effort I/O priority of the journal, 0 the highest, 7 the lowest.
    pub journal_ioprio: u8,
    /// `journal_checksum`, `nojournal_checksum`: whether the log has checksums; by default if the volume's metadata
    /// has.
    pub journal_checksum: Option<bool>,
    /// `fast_commit`: an fsync writes a fast commit where the volume has the feature.
    pub fast_commit: bool,
    /// `barrier=`: whether commits flush the device's volatile cache.
    pub barrier: bool,
    /// `data_err=abort`: failing to write a file's data in ordered mode aborts the journal.
    pub abort_on_data_error: bool,
    /// `errors=`.
    pub errors: Option<OnError>,
    /// `async_checkpoint`: log space is reclaimed in the background.
    pub async_checkpoint: AsyncCheckpoint,
    /// `discard`: freed blocks are discarded when the transaction that freed them has committed.
    pub discard: bool,
    /// `grpid`: new files get their directory's group.
    pub grpid: Option<bool>,
    /// `delalloc`: blocks are allocated at write-back, not at write.
    pub delalloc: bool,
    /// `auto_da_alloc`: data of files that replace others by rename or truncate is written early.
    pub auto_da_alloc: bool,
    /// `inode_readahead_blks=`: inode table blocks read ahead; a power of two, 0 turns it off.
    pub inode_readahead_blocks: u32,
    /// `stripe=`: blocks of a RAID stripe, to which long allocations are aligned; 0 turns that off.
    pub stripe: Option<u32>,
    /// `max_dir_size_kb=`: the largest size of a directory, in KiB.
    pub max_dir_kib: Option<u64>,
    /// `minixdf`: statfs counts the file system's own structures as usable space.
    pub minixdf: bool,
    /// The mount point, recorded in the superblock; `None`: opened without being mounted.
    pub mounted_on: Option<Vec<u8>>,
    /// How multiple-mount protection is treated; no option of a list.
    pub protection: Protection,
    /// The options given by name.
    pub asked: Asked,
}

/// When log space is reclaimed in the background.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AsyncCheckpoint {
    /// Not given: [`AsyncCheckpoint::Below`] half of the log, if there is a journal.
    #[default]
    Default,
    /// When less than this percentage of the log is free (1 to 99).
    Below(u8),
    /// Not in the background: operations reclaim the log space that they need.
    Off,
}

impl AsyncCheckpoint {
    /// The threshold on a volume with a journal, in percent.
    pub fn percent(self) -> Option<u8> {
        match self {
            Self::Default => Some(DEFAULT_ASYNC_PERCENT),
            Self::Below(percent) => Some(percent),
            Self::Off => None,
        }
    }
}

impl HasCommon for MountOptions {
    const ATTRIBUTES_SHOWN: Shown = Shown::Changed;

    fn common(&self) -> &CommonOptions {
        &self.common
    }

    fn common_mut(&mut self) -> &mut CommonOptions {
        &mut self.common
    }
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            common: CommonOptions::default(),
            no_replay: false,
            journal_path: None,
            external_journal: None,
            sb: None,
            data: None,
            commit_secs: DEFAULT_COMMIT_SECS,
            min_batch_us: 0,
            max_batch_us: 15_000,
            journal_ioprio: 3,
            journal_checksum: None,
            fast_commit: true,
            barrier: true,
            abort_on_data_error: false,
            errors: None,
            async_checkpoint: AsyncCheckpoint::Default,
            discard: false,
            grpid: None,
            delalloc: true,
            auto_da_alloc: true,
            inode_readahead_blocks: 32,
            stripe: None,
            max_dir_kib: None,
            minixdf: false,
            mounted_on: None,
            protection: Protection::default(),
            asked: Asked::default(),
        }
    }
}

const DEFAULT_COMMIT_SECS: u32 = 5;
const DEFAULT_ASYNC_PERCENT: u8 = 50;

impl MountOptions {
    /// The options in `list`, over the defaults.
    ///
    /// # Errors
    /// [`FsError::BadOption`], as [`MountOptions::set`], for unknown names and contradictions.
    pub fn parse(list: &str) -> Result<Self> {
        TABLE.changed(Self::default(), list, Self::set, Self::validate)
    }

    /// Applies one item. Returns whether the name is one of these file systems' options.
    ///
    /// # Errors
    /// [`FsError::BadOption`] for a value that makes no sense or an option that is not offered.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<bool> {
        let known = self.put(name, value)?;
        if known {
            self.asked.push(name, value);
        }
        Ok(known)
    }

    fn put(&mut self, name: &str, value: Option<&str>) -> Result<bool> {
        TABLE.apply(self, name, value)
    }

    /// The options in effect on a volume with a journal, or without.
    ///
    /// # Errors
    /// [`FsError::BadOption`] if they need a journal and the volume has none.
    pub fn on(mut self, journaled: bool) -> Result<Self> {
        let below = matches!(self.async_checkpoint, AsyncCheckpoint::Below(_));
        let without = [
            ("async_checkpoint", below),
            ("data_err=abort", self.abort_on_data_error),
        ];
        let mut refused = Refusals::default();
        for (option, _) in without.iter().filter(|(_, asked)| *asked && !journaled) {
            let why = "needs a journal, which the volume does not have";
            refused.push(FsError::BadOption(format!("option {option}: {why}")));
        }
        refused.into_result()?;
        if journaled && self.async_checkpoint == AsyncCheckpoint::Default {
            self.async_checkpoint = AsyncCheckpoint::Below(DEFAULT_ASYNC_PERCENT);
        }
        Ok(self)
    }

    /// Refuses contradictory options, once all are set.
    ///
    /// # Errors
    /// [`FsError::BadOption`] naming the options that do not go together.
    pub fn validate(&self) -> Result<()> {
        let mut refused = Refusals::default();
        let mut wrong = |why: &str| refused.push(FsError::BadOption(why.to_owned()));
        if self.no_replay && !self.common.read_only {
            wrong("option noload: needs ro, for a volume is only written after its journal");
        }
        if self.min_batch_us > self.max_batch_us {
            wrong("option min_batch_time: is longer than max_batch_time");
        }
        refused.into_result()
    }

    /// Refuses options that have no meaning without a feature of the volume.
    ///
    /// # Errors
    /// [`FsError::BadOption`] naming option and feature.
    pub(crate) fn check_features(&self, features: Features) -> Result<()> {
        if self.common.project_quota && !features.ro_compat.contains(RoCompat::PROJECT) {
            let why = "option prjquota: the volume does not have the feature project";
            return Err(FsError::BadOption(why.to_owned()));
        }
        Ok(())
    }

    /// These options changed by a remount's `list`.
    ///
    /// # Errors
    /// [`FsError::BadOption`] also for a change that needs a new mount; nothing is changed then.
    pub fn remounted(&self, list: &str) -> Result<Self> {
        let new = TABLE.changed(self.clone(), list, Self::set, Self::validate)?;
        TABLE.check_remount(self, &new).map(|()| new)
    }

    /// The options as /proc/mounts shows them: `ro` or `rw`, the kind of access times, and what differs from the
    /// default.
    pub fn show(&self) -> String {
        TABLE.show(self)
    }
}

#[cfg(test)]
mod tests;
