//! Mount options of f2fs, as mount(8) and the kernel's Documentation/filesystems/f2fs.rst name them.

mod table;
mod values;

use steadfs_vfs::options::{CommonOptions, HasCommon, Refusals, Shown};
use steadfs_vfs::{FsError, Result};

pub use steadfs_vfs::options::{Atime, OnError};
pub use table::{GC_RULES_DEFAULT, OWN, TABLE};
pub use values::{
    AllocMode, BackgroundGc, CompressMode, CompressOptions, DiscardUnit, FsyncMode, LookupMode,
    Mode, MountOptions, Unusable,
};

use crate::disk::Features;

impl HasCommon for MountOptions {
    const ATTRIBUTES_SHOWN: Shown = Shown::Always;

    fn common(&self) -> &CommonOptions {
        &self.common
    }

    fn common_mut(&mut self) -> &mut CommonOptions {
        &mut self.common
    }
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
            lookup_mode: LookupMode::default(),
            inline_data: true,
            inline_dentry: true,
            barrier: true,
            fastboot: false,
            atomic_write: false,
            data_flush: false,
            reserve_root: 0,
            mode: Mode::default(),
            alloc_mode: None,
            fsync_mode: FsyncMode::default(),
            checkpoint_merge: true,
            checkpoint_off: None,
            compress: CompressOptions::default(),
            devices: Vec::new(),
            is_joined: false,
        }
    }
}

impl MountOptions {
    /// The options in `list`, over the defaults.
    ///
    /// # Errors
    /// [`FsError::BadOption`], as [`MountOptions::set`], for unknown names and contradictions.
    pub fn parse(list: &str) -> Result<Self> {
        TABLE.changed(Self::default(), list, Self::set, Self::validate)
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
        let both = |ending: &&String| {
            let mut not = self.compress.not_extensions.iter();
            not.any(|other| other.eq_ignore_ascii_case(ending))
        };
        if let Some(ending) = self.compress.extensions.iter().find(both) {
            let why =
                format!("options compress_extension and nocompress_extension: both have {ending}");
            return all_wrong(&wrong).and(Err(FsError::BadOption(why)));
        }
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
        let new = TABLE.changed(self.clone(), list, Self::set, Self::validate)?;
        TABLE.check_remount(self, &new).map(|()| new)
    }

    /// The options as /proc/mounts shows them: `ro` or `rw`, what the kernel's f2fs always shows, and what differs from
    /// the default.
    pub fn show(&self) -> String {
        TABLE.show(self)
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
