//! Mount options of f2fs, as mount(8) and the kernel's Documentation/filesystems/f2fs.rst name them.

mod table;

use std::fmt::Write as _;

use steadfs_vfs::options::{Refusals, apply, cannot_change, set_all};
use steadfs_vfs::{FsError, Result};

pub use table::TABLE;

use crate::disk::Features;

/// What reads do to access times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atime {
    /// `relatime`.
    #[default]
    Relative,
    /// `noatime`.
    Never,
}

/// `errors=`: what happens when damage is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The call fails, the volume stays.
    #[default]
    Continue,
    /// Writing stops.
    RemountReadOnly,
}

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

/// `gc_policy=`: by whose rules segments are cleaned and filled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GcPolicy {
    /// Linux 6.18's.
    #[default]
    Linux618,
    /// Those of Linux 3.11, which `max_victim_search` was introduced to: every search ends at that
    /// limit, nothing is written in place, holes are filled below the overprovisioned sections, and who
    /// is short of the reserve cleans until it is there. For experiments.
    Linux2013,
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
    /// So many blocks.
    Blocks(u32),
    /// Percent of the blocks users may fill.
    Percent(u8),
}

impl Unusable {
    /// The same as blocks of a volume with so many for users, as the kernel rounds it.
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
    /// `ro`.
    pub read_only: bool,
    /// For programs that only read: what reading can do without may be damaged or missing. Needs `read_only`.
    pub salvage: bool,
    /// `norecovery`, `disable_roll_forward`: what fsync wrote after the checkpoint is not looked for.
    pub no_recovery: bool,
    /// `user_xattr`: attributes of users are offered.
    pub user_xattr: Option<bool>,
    /// `acl`: POSIX access control lists are offered.
    pub acl: Option<bool>,
    /// `errors=`.
    pub errors: OnError,
    /// `noatime`, `relatime`.
    pub atime: Atime,
    /// `nodiratime`.
    pub nodiratime: bool,
    /// `sync`: every change is durable before its call returns.
    pub sync: bool,
    /// `dirsync`: so is every change of a directory.
    pub dirsync: bool,
    /// `background_gc=`.
    pub background_gc: BackgroundGc,
    /// `gc_policy=`.
    pub gc_policy: GcPolicy,
    /// `atgc`: background cleaning chooses by age, and moves data to data as old.
    pub atgc: bool,
    /// `gc_merge`: who needs space lets the cleaning task make it.
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
    /// `resuid=`: the user who may use the reserved blocks.
    pub resuid: Option<u32>,
    /// `resgid=`: the group that may use the reserved blocks.
    pub resgid: Option<u32>,
    /// `prjquota`: counts nothing here, but Linux refuses it where projects have no numbers.
    pub project_quota: bool,
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
            read_only: false,
            salvage: false,
            no_recovery: false,
            user_xattr: None,
            acl: None,
            errors: OnError::default(),
            atime: Atime::default(),
            nodiratime: false,
            sync: false,
            dirsync: false,
            background_gc: BackgroundGc::default(),
            gc_policy: GcPolicy::default(),
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
            resuid: None,
            resgid: None,
            project_quota: false,
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
        apply(TABLE, self, name, value)
    }

    /// Contradictions between options, once all are set.
    ///
    /// # Errors
    /// [`FsError::BadOption`] naming the options that do not go together.
    pub fn validate(&self) -> Result<()> {
        let old_policy = self.gc_policy == GcPolicy::Linux2013;
        let wrong = [
            (
                self.no_recovery && !self.read_only,
                "option norecovery: needs ro, for a volume is only written after its recovery",
            ),
            (
                old_policy && self.atgc,
                "option atgc: is none of the rules of gc_policy=2013",
            ),
            (
                old_policy && self.mode == Mode::Lfs,
                "option gc_policy=2013: fills holes, which mode=lfs forbids",
            ),
            (
                self.checkpoint_off.is_some() && self.read_only,
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
                self.project_quota && no_projects,
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
        let fixed = [
            ("norecovery", self.no_recovery != new.no_recovery),
            ("discard_unit", self.discard_unit != new.discard_unit),
            ("active_logs", self.active_logs != new.active_logs),
            ("mode", self.mode != new.mode),
            ("atgc", self.atgc != new.atgc),
            // The kernel was told when the volume was mounted, and checks permissions by it.
            ("acl", self.acl.unwrap_or(true) != new.acl.unwrap_or(true)),
        ];
        let mut refused = Refusals::default();
        for (name, _) in fixed.iter().filter(|(_, changed)| *changed) {
            refused.push(cannot_change(name));
        }
        refused.into_result().map(|()| new)
    }

    fn set_list(&mut self, list: &str) -> Result<()> {
        let names = || TABLE.iter().map(|entry| entry.name);
        set_all(list, |name, value| self.set(name, value), names)
    }

    /// The options as /proc/mounts shows them: `ro` or `rw`, then what the kernel's f2fs always shows, and
    /// what differs from the default.
    pub fn show(&self) -> String {
        let mut out = String::from(if self.read_only { "ro" } else { "rw" });
        self.show_words(&mut out);
        self.show_values(&mut out);
        out
    }

    fn show_words(&self, out: &mut String) {
        let mut word = |shown: bool, name: &str| {
            if shown {
                out.push(',');
                out.push_str(name);
            }
        };
        word(self.sync, "sync");
        word(self.dirsync, "dirsync");
        word(self.atime == Atime::Never, "noatime");
        word(self.atime == Atime::Relative, "relatime");
        word(self.nodiratime, "nodiratime");
        word(self.no_recovery, "norecovery");
        word(self.atgc, "atgc");
        word(!self.ext_identify, "disable_ext_identify");
        word(self.fastboot, "fastboot");
        word(self.data_flush, "data_flush");
        // One of two, always.
        let mut either = |on: bool, name: &str| {
            out.push_str(if on { "," } else { ",no" });
            out.push_str(name);
        };
        either(self.gc_merge, "gc_merge");
        if let Some(discard) = self.discard {
            either(discard, "discard");
        }
        either(self.user_xattr != Some(false), "user_xattr");
        either(self.inline_xattr, "inline_xattr");
        either(self.acl != Some(false), "acl");
        either(self.inline_data, "inline_data");
        either(self.inline_dentry, "inline_dentry");
        either(true, "flush_merge");
        either(self.barrier, "barrier");
        either(true, "extent_cache");
        either(self.checkpoint_merge, "checkpoint_merge");
    }

    fn show_values(&self, out: &mut String) {
        let mut named = |name: &str, value: Option<&str>| {
            if let Some(value) = value {
                // Writing to a string cannot fail.
                let _ = write!(out, ",{name}={value}");
            }
        };
        named(
            "background_gc",
            table::name_of(self.background_gc, table::BACKGROUND_GC),
        );
        let policy = table::changed(self.gc_policy, table::GC_POLICIES);
        named("gc_policy", policy);
        named(
            "discard_unit",
            table::name_of(self.discard_unit, table::DISCARD_UNITS),
        );
        named("mode", table::name_of(self.mode, table::MODES));
        let alloc = self
            .alloc_mode
            .and_then(|mode| table::name_of(mode, table::ALLOC_MODES));
        named("alloc_mode", alloc);
        named(
            "fsync_mode",
            table::name_of(self.fsync_mode, table::FSYNC_MODES),
        );
        named("memory", Some("normal"));
        named("errors", table::name_of(self.errors, table::ON_ERROR));
        let mut pair = |name: &str, value: Option<u32>| {
            if let Some(value) = value {
                let _ = write!(out, ",{name}={value}");
            }
        };
        pair("active_logs", Some(self.active_logs.into()));
        let room = self.inline_xattr_size.map(u32::from);
        pair("inline_xattr_size", room);
        let reserved = self.reserve_root;
        pair("reserve_root", (reserved != 0).then_some(reserved));
        pair("resuid", self.resuid);
        pair("resgid", self.resgid);
        let _ = match self.checkpoint_off {
            None => Ok(()),
            Some(Unusable::Blocks(blocks)) => write!(out, ",checkpoint=disable:{blocks}"),
            Some(Unusable::Percent(percent)) => write!(out, ",checkpoint=disable:{percent}%"),
        };
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
