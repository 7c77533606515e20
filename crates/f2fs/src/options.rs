//! Mount options of f2fs, as mount(8) and the kernel's Documentation/filesystems/f2fs.rst name them.

mod table;

use std::fmt::Write as _;

use steadfs_vfs::options::{apply, items, unknown};
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

/// Options of an f2fs volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// `ro`.
    pub read_only: bool,
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
    /// `mode=`.
    pub mode: Mode,
    /// `alloc_mode=`. `None`: `reuse` up to 16 GiB, else `default`.
    pub alloc_mode: Option<AllocMode>,
    /// `fsync_mode=`.
    pub fsync_mode: FsyncMode,
    /// `checkpoint_merge`: those who need a checkpoint at one time share it.
    pub checkpoint_merge: bool,
}

/// Logs in use unless `active_logs=` says otherwise.
const ALL_LOGS: u8 = 6;

impl Default for MountOptions {
    /// As the kernel has them.
    fn default() -> Self {
        Self {
            read_only: false,
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
            mode: Mode::default(),
            alloc_mode: None,
            fsync_mode: FsyncMode::default(),
            checkpoint_merge: true,
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
        if self.no_recovery && !self.read_only {
            return Err(FsError::BadOption(
                "option norecovery: needs ro, for a volume is only written after its recovery"
                    .to_owned(),
            ));
        }
        if self.gc_policy == GcPolicy::Linux2013 && self.atgc {
            return Err(FsError::BadOption(
                "option atgc: is none of the rules of gc_policy=2013".to_owned(),
            ));
        }
        if self.gc_policy == GcPolicy::Linux2013 && self.mode == Mode::Lfs {
            return Err(FsError::BadOption(
                "option gc_policy=2013: fills holes, which mode=lfs forbids".to_owned(),
            ));
        }
        Ok(())
    }

    /// Refuses what the volume's features give no meaning.
    ///
    /// # Errors
    /// [`FsError::BadOption`] naming option and feature.
    pub(crate) fn check_features(&self, features: Features) -> Result<()> {
        if self.inline_xattr_size.is_some() && !features.contains(Features::FLEXIBLE_INLINE_XATTR) {
            return Err(FsError::BadOption(
                "option inline_xattr_size: the volume has not the feature flexible_inline_xattr"
                    .to_owned(),
            ));
        }
        Ok(())
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
        match fixed.iter().find(|(_, changed)| *changed) {
            None => Ok(new),
            Some((name, _)) => Err(FsError::BadOption(format!(
                "option {name}: cannot change while mounted; unmount and mount again"
            ))),
        }
    }

    fn set_list(&mut self, list: &str) -> Result<()> {
        for (name, value) in items(list) {
            if !self.set(name, value)? {
                return Err(unknown(name, TABLE.iter().map(|entry| entry.name)));
            }
        }
        Ok(())
    }

    /// The options as /proc/mounts shows them: `ro` or `rw`, then what differs from the default.
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
        word(self.gc_merge, "gc_merge");
        word(self.atgc, "atgc");
        word(self.discard == Some(true), "discard");
        word(self.discard == Some(false), "nodiscard");
        word(self.user_xattr == Some(false), "nouser_xattr");
        word(self.acl == Some(false), "noacl");
        word(!self.ext_identify, "disable_ext_identify");
        word(!self.inline_xattr, "noinline_xattr");
        word(!self.inline_data, "noinline_data");
        word(!self.inline_dentry, "noinline_dentry");
        word(!self.barrier, "nobarrier");
        word(self.fastboot, "fastboot");
        word(self.data_flush, "data_flush");
        word(!self.checkpoint_merge, "nocheckpoint_merge");
    }

    fn show_values(&self, out: &mut String) {
        let mut named = |name: &str, value: Option<&str>| {
            if let Some(value) = value {
                // Writing to a string cannot fail.
                let _ = write!(out, ",{name}={value}");
            }
        };
        named("errors", table::changed(self.errors, table::ON_ERROR));
        let gc = table::changed(self.background_gc, table::BACKGROUND_GC);
        named("background_gc", gc);
        let policy = table::changed(self.gc_policy, table::GC_POLICIES);
        named("gc_policy", policy);
        let unit = table::changed(self.discard_unit, table::DISCARD_UNITS);
        named("discard_unit", unit);
        named("mode", table::changed(self.mode, table::MODES));
        let alloc = self
            .alloc_mode
            .and_then(|mode| table::name_of(mode, table::ALLOC_MODES));
        named("alloc_mode", alloc);
        let fsync = table::changed(self.fsync_mode, table::FSYNC_MODES);
        named("fsync_mode", fsync);
        let mut pair = |name: &str, value: Option<u32>| {
            if let Some(value) = value {
                let _ = write!(out, ",{name}={value}");
            }
        };
        let logs = u32::from(self.active_logs);
        pair("active_logs", (logs != ALL_LOGS.into()).then_some(logs));
        let room = self.inline_xattr_size.map(u32::from);
        pair("inline_xattr_size", room);
        let reserved = self.reserve_root;
        pair("reserve_root", (reserved != 0).then_some(reserved));
        pair("resuid", self.resuid);
        pair("resgid", self.resgid);
    }
}

#[cfg(test)]
mod tests;
