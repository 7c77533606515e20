//! Mount options of f2fs, as mount(8) and the kernel's Documentation/filesystems/f2fs.rst name them.

mod table;

use steadfs_vfs::options::{CommonOptions, HasCommon, Refusals, Shown, set_all};
use steadfs_vfs::{FsError, Result};

pub use steadfs_vfs::options::{Atime, OnError};
pub use table::{GC_RULES_DEFAULT, OWN, TABLE};

use crate::disk::Features;
use crate::segment::rules::GcRules;

/// `background_gc=`: cleaning while the volume is idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackgroundGc {
    /// It reads and marks dirty; write-back writes.
    #[default]
    On,
    /// Only where space is needed at once.
    Off,
    /// Each round writes what it moved itself.
    Sync,
}

/// `mode=`: where blocks go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// To free segments, into the holes of used ones, or in place.
    #[default]
    Adaptive,
    /// Always to free segments, one behind the other.
    Lfs,
}

/// `alloc_mode=`: which free segment is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocMode {
    /// The next one behind the last.
    Default,
    /// The first one of the volume.
    Reuse,
}

/// `fsync_mode=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FsyncMode {
    /// A file's own changes.
    #[default]
    Posix,
    /// The names it depends on, too.
    Strict,
    /// As `posix`, without a FLUSH.
    NoBarrier,
}

/// `discard_unit=`: smallest piece that is discarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiscardUnit {
    /// Blocks.
    #[default]
    Block,
    /// Whole segments.
    Segment,
    /// Whole sections.
    Section,
}

/// How much of the volume may be unusable while checkpoints are switched off (`checkpoint=disable:`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// A number of blocks.
    Blocks(u32),
    /// Percent of the blocks users may fill.
    Percent(u8),
}

impl Unusable {
    /// The limit in blocks, of `user_blocks` that users may fill; rounded as in the kernel.
    pub const fn blocks(self, user_blocks: u64) -> u64 {
        match self {
            Self::Blocks(blocks) => blocks as u64,
            Self::Percent(100) => user_blocks,
            Self::Percent(percent) => user_blocks / 100 * percent as u64,
        }
    }
}

/// Options of an f2fs volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// What ext4 has, too.
    pub common: CommonOptions,
    /// `norecovery`, `disable_roll_forward`: what fsync wrote after the checkpoint is not looked for.
    pub no_recovery: bool,
    /// `errors=`.
    pub errors: OnError,
    /// `background_gc=`.
    pub background_gc: BackgroundGc,
    /// `gc_policy=`: the kernel by whose rules segments are cleaned and filled.
    pub gc_policy: &'static dyn GcRules,
    /// `atgc`: background GC selects victims by age, and moves data to data of the same age.
    pub atgc: bool,
    /// `gc_merge`: tasks that need space wait for the GC task.
    pub gc_merge: bool,
    /// `discard`, `nodiscard`: freed blocks are discarded. `None`: if the device can.
    pub discard: Option<bool>,
    /// `discard_unit=`.
    pub discard_unit: DiscardUnit,
    /// `active_logs=`: 2, 4 or 6.
    pub active_logs: u8,
    /// Not `disable_ext_identify`: the superblock's list of file extensions says what is hot and cold.
    pub ext_identify: bool,
    /// `inline_xattr`: new inodes have room for attributes.
    pub inline_xattr: bool,
    /// `inline_xattr_size=`: words of that room, where inodes can say it. `None`: 50.
    pub inline_xattr_size: Option<u16>,
    /// `inline_data`: small files lie in their inodes.
    pub inline_data: bool,
    /// `inline_dentry`: so do small directories.
    pub inline_dentry: bool,
    /// `barrier`: not `nobarrier`, with which no FLUSH is sent.
    pub barrier: bool,
    /// `fastboot`: each fsync is a checkpoint, so that the next mount is quick.
    pub fastboot: bool,
    /// `data_flush`: background checkpoints write file data before.
    pub data_flush: bool,
    /// `reserve_root=`: blocks for the superuser, and for `resuid` and `resgid`.
    pub reserve_root: u32,
    /// `mode=`.
    pub mode: Mode,
    /// `alloc_mode=`. `None`: `reuse` up to 16 GiB, else `default`.
    pub alloc_mode: Option<AllocMode>,
    /// `fsync_mode=`.
    pub fsync_mode: FsyncMode,
    /// `checkpoint_merge`: those who need a checkpoint at one time share it.
    pub checkpoint_merge: bool,
    /// `checkpoint=disable`: none is written, and a power cut or an unmount brings back the last one; with how
    /// much of the volume may be unusable meanwhile.
    pub checkpoint_off: Option<Unusable>,
}

/// Logs in use unless `active_logs=` says otherwise.
const ALL_LOGS: u8 = 6;

impl Default for MountOptions {
    /// As the kernel has them.
    fn default() -> Self {
        Self {
            common: CommonOptions::default(),
            no_recovery: false,
            errors: OnError::default(),
            background_gc: BackgroundGc::default(),
            gc_policy: GC_RULES_DEFAULT,
            atgc: false,
            gc_merge: false,
            discard: None,
            discard_unit: DiscardUnit::default(),
            active_logs: ALL_LOGS,
            ext_identify: true,
            inline_xattr: true,
            inline_xattr_size: None,
            inline_data: true,
            inline_dentry: true,
            barrier: true,
            fastboot: false,
            data_flush: false,
            reserve_root: 0,
            mode: Mode::default(),
            alloc_mode: None,
            fsync_mode: FsyncMode::default(),
            checkpoint_merge: true,
            checkpoint_off: None,
        }
    }
}

impl MountOptions {
    /// The options in `list`, over the defaults.
    ///
    /// # Errors
    /// [`FsError::BadOption`], as [`MountOptions::set`], for unknown names and contradictions.
    pub fn parse(list: &str) -> Result<Self> {
        let mut options = Self::default();
        options.set_list(list)?;
        options.validate()?;
        Ok(options)
    }

    /// Applies one item. Returns whether the name is one of f2fs's options.
    ///
    /// # Errors
    /// [`FsError::BadOption`] for a value that makes no sense or an option that is not offered.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<bool> {
        TABLE.apply(self, name, value)
    }

    /// Contradictions between options, once all are set.
    ///
    /// # Errors
    /// [`FsError::BadOption`] naming the options that do not go together.
    pub fn validate(&self) -> Result<()> {
        let wrong = [
            (
                self.no_recovery && !self.common.read_only,
                "option norecovery: needs ro, for a volume is only written after its recovery",
            ),
            (
                !self.gc_policy.allows_atgc() && self.atgc,
                "option atgc: is none of the rules of gc_policy=2013",
            ),
            (
                !self.gc_policy.allows_lfs() && self.mode == Mode::Lfs,
                "option gc_policy=2013: fills holes, which mode=lfs forbids",
            ),
            (
                self.checkpoint_off.is_some() && self.common.read_only,
                "option checkpoint=disable: does not go with ro; checkpoint=enable comes first",
            ),
        ];
        all_wrong(&wrong)
    }

    /// Says in blocks what was asked for in percent.
    pub(crate) fn settle(&mut self, user_blocks: u64) {
        if let Some(unusable) = self.checkpoint_off {
            let blocks = unusable.blocks(user_blocks).min(u32::MAX.into());
            self.checkpoint_off = Some(Unusable::Blocks(blocks as u32));
        }
    }

    /// Refuses what the volume's features give no meaning.
    ///
    /// # Errors
    /// [`FsError::BadOption`] naming option and feature.
    pub(crate) fn check_features(&self, features: Features) -> Result<()> {
        let no_room = !features.contains(Features::FLEXIBLE_INLINE_XATTR);
        let no_projects = !features.contains(Features::PROJECT_QUOTA);
        let wrong = [
            (
                self.inline_xattr_size.is_some() && no_room,
                "option inline_xattr_size: the volume does not have the feature flexible_inline_xattr",
            ),
            (
                self.common.project_quota && no_projects,
                "option prjquota: the volume does not have the feature project_quota",
            ),
        ];
        all_wrong(&wrong)
    }

    /// These options changed by a remount's `list`.
    ///
    /// # Errors
    /// [`FsError::BadOption`] also for a change that needs a new mount; nothing is changed then.
    pub fn remounted(&self, list: &str) -> Result<Self> {
        let mut new = self.clone();
        new.set_list(list)?;
        new.validate()?;
        TABLE.check_remount(self, &new).map(|()| new)
    }

    fn set_list(&mut self, list: &str) -> Result<()> {
        set_all(list, |name, value| self.set(name, value), || TABLE.names())
    }

    /// The options as /proc/mounts shows them: `ro` or `rw`, what the kernel's f2fs always shows, and what differs from
    /// the default.
    pub fn show(&self) -> String {
        TABLE.show(self)
    }
}

impl HasCommon for MountOptions {
    const ATTRIBUTES_SHOWN: Shown = Shown::Always;

    fn common(&self) -> &CommonOptions {
        &self.common
    }

    fn common_mut(&mut self) -> &mut CommonOptions {
        &mut self.common
    }
}

/// The sentences whose conditions hold, as one error.
fn all_wrong(sentences: &[(bool, &str)]) -> Result<()> {
    let mut refused = Refusals::default();
    for (_, why) in sentences.iter().filter(|(wrong, _)| *wrong) {
        refused.push(FsError::BadOption((*why).to_owned()));
    }
    refused.into_result()
}

#[cfg(test)]
mod tests;
