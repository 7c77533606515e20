//! Mount options of ext2, ext3 and ext4, under the names mount(8) and ext4(5) give them.

mod defaults;

use std::fmt::Write as _;

use steadfs_vfs::options::{
    Entry, already, apply, choice, either, flag, items, number, refused, unknown, value,
};
use steadfs_vfs::{FsError, Result};

pub use defaults::Asked;

/// `data=`: when file data goes to the device relative to its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataMode {
    /// Data is on the device before the transaction that makes it reachable commits.
    Ordered,
    /// Data goes when it goes; after a crash new blocks may show old content.
    Writeback,
}

/// `errors=`: what a damaged structure does to the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// The call fails, the volume goes on.
    Continue,
    /// The volume becomes read-only.
    RemountReadOnly,
}

/// When reading updates the time of last access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atime {
    /// Never.
    Never,
    /// If it is not newer than the last change, or a day old (`relatime`). Reads that the kernel
    /// serves from its page cache are not seen.
    Relative,
}

/// What the owner asked for at mount time. `None`: as the superblock says, else as Linux has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// `ro`: nothing is changed by calls (the journal is still replayed if the device allows it).
    pub read_only: bool,
    /// `noload`: the journal is not replayed; needs `ro`.
    pub no_replay: bool,
    /// `data=`.
    pub data: Option<DataMode>,
    /// `commit=`: seconds between commits; 0 stands for the default of 5.
    pub commit_secs: u32,
    /// `min_batch_time=`: microseconds a synchronous commit waits for company.
    pub min_batch_us: u32,
    /// `max_batch_time=`: the longest such wait, in microseconds.
    pub max_batch_us: u32,
    /// `journal_ioprio=`: best-effort I/O priority of the journal, 0 the highest, 7 the lowest.
    pub journal_ioprio: u8,
    /// `journal_checksum`, `nojournal_checksum`: whether what is logged has checksums; by default as
    /// the volume's metadata.
    pub journal_checksum: Option<bool>,
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
    /// `user_xattr`: `user.*` attributes are offered.
    pub user_xattr: Option<bool>,
    /// `acl`: POSIX access control lists are offered.
    pub acl: Option<bool>,
    /// `grpid`: new files get their directory's group.
    pub grpid: Option<bool>,
    /// `resuid=`: the user who may use the reserved blocks.
    pub resuid: Option<u32>,
    /// `resgid=`: the group that may use the reserved blocks.
    pub resgid: Option<u32>,
    /// `delalloc`: blocks are chosen at write-back, not at write.
    pub delalloc: bool,
    /// `auto_da_alloc`: data of files that replace others by rename or truncate goes out at once.
    pub auto_da_alloc: bool,
    /// `inode_readahead_blks=`: inode table blocks read ahead; a power of two, 0 turns it off.
    pub inode_readahead_blocks: u32,
    /// `stripe=`: blocks of a RAID stripe, to which long allocations are aligned; 0 turns that off.
    pub stripe: Option<u32>,
    /// `max_dir_size_kb=`: size no directory outgrows, in KiB.
    pub max_dir_kib: Option<u64>,
    /// `minixdf`: statfs counts the file system's own structures as usable space.
    pub minixdf: bool,
    /// `noatime`, `relatime`.
    pub atime: Atime,
    /// `nodiratime`: reading directories does not update their access time.
    pub nodiratime: bool,
    /// `sync`: every change is durable before its call returns.
    pub sync: bool,
    /// `dirsync`: so is every change of a directory.
    pub dirsync: bool,
    /// Where it is mounted, which the superblock notes; `None`: it is opened without being mounted.
    pub mounted_on: Option<Vec<u8>>,
    /// What of all this was asked for by name.
    pub asked: Asked,
}

/// When log space is reclaimed in the background.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AsyncCheckpoint {
    /// Nothing was said: as [`AsyncCheckpoint::Below`] half of the log where there is one.
    #[default]
    Default,
    /// When less than so many percent of the log are free (1 to 99).
    Below(u8),
    /// Never for want of space: who needs some reclaims it.
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

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            no_replay: false,
            data: None,
            commit_secs: DEFAULT_COMMIT_SECS,
            min_batch_us: 0,
            max_batch_us: 15_000,
            journal_ioprio: 3,
            journal_checksum: None,
            barrier: true,
            abort_on_data_error: false,
            errors: None,
            async_checkpoint: AsyncCheckpoint::Default,
            discard: false,
            user_xattr: None,
            acl: None,
            grpid: None,
            resuid: None,
            resgid: None,
            delalloc: true,
            auto_da_alloc: true,
            inode_readahead_blocks: 32,
            stripe: None,
            max_dir_kib: None,
            minixdf: false,
            atime: Atime::Relative,
            nodiratime: false,
            sync: false,
            dirsync: false,
            mounted_on: None,
            asked: Asked::default(),
        }
    }
}

const DEFAULT_COMMIT_SECS: u32 = 5;
const DEFAULT_ASYNC_PERCENT: u8 = 50;
/// Longest commit interval: a day.
const MAX_COMMIT_SECS: u32 = 86_400;
/// Longest wait for company: a minute.
const MAX_BATCH_US: u32 = 60_000_000;
const DATA_MODES: &[(&str, DataMode)] = &[
    ("ordered", DataMode::Ordered),
    ("writeback", DataMode::Writeback),
];
const ON_ERROR: &[(&str, OnError)] = &[
    ("continue", OnError::Continue),
    ("remount-ro", OnError::RemountReadOnly),
];
const NO_QUOTA: &str = "quota limits are not enforced; volumes with quota files mount read-only";
const EXTERNAL: &str = "external journals are not supported; only one inside the volume is";
const ALWAYS_CHECKED: &str = "structures are always checked against each other";

/// Every option of ext2, ext3 and ext4 that Linux knows.
pub const TABLE: &[Entry<MountOptions>] = &[
    flag("ro", |o| o.read_only = true),
    flag("rw", |o| o.read_only = false),
    flag("noload", |o| o.no_replay = true),
    flag("norecovery", |o| o.no_replay = true),
    value("data", set_data),
    value("commit", |o, v| {
        number(v, 0..=MAX_COMMIT_SECS).map(|secs| {
            o.commit_secs = if secs == 0 { DEFAULT_COMMIT_SECS } else { secs };
        })
    }),
    value("min_batch_time", |o, v| {
        number(v, 0..=MAX_BATCH_US).map(|us| o.min_batch_us = us)
    }),
    value("max_batch_time", |o, v| {
        number(v, 0..=MAX_BATCH_US).map(|us| o.max_batch_us = us)
    }),
    value("journal_ioprio", |o, v| {
        number(v, 0..=7).map(|prio| o.journal_ioprio = prio)
    }),
    flag("journal_checksum", |o| o.journal_checksum = Some(true)),
    flag("nojournal_checksum", |o| o.journal_checksum = Some(false)),
    either("barrier", |o, v| switch(v).map(|on| o.barrier = on)),
    flag("nobarrier", |o| o.barrier = false),
    value("data_err", |o, v| {
        choice(v, &[("ignore", false), ("abort", true)]).map(|abort| o.abort_on_data_error = abort)
    }),
    value("errors", set_errors),
    either("async_checkpoint", set_async_checkpoint),
    flag("noasync_checkpoint", |o| {
        o.async_checkpoint = AsyncCheckpoint::Off;
    }),
    flag("discard", |o| o.discard = true),
    flag("nodiscard", |o| o.discard = false),
    flag("user_xattr", |o| o.user_xattr = Some(true)),
    flag("nouser_xattr", |o| o.user_xattr = Some(false)),
    flag("acl", |o| o.acl = Some(true)),
    flag("noacl", |o| o.acl = Some(false)),
    flag("grpid", |o| o.grpid = Some(true)),
    flag("bsdgroups", |o| o.grpid = Some(true)),
    flag("nogrpid", |o| o.grpid = Some(false)),
    flag("sysvgroups", |o| o.grpid = Some(false)),
    value("resuid", |o, v| {
        number(v, 0..=u32::MAX - 1).map(|id| o.resuid = Some(id))
    }),
    value("resgid", |o, v| {
        number(v, 0..=u32::MAX - 1).map(|id| o.resgid = Some(id))
    }),
    flag("delalloc", |o| o.delalloc = true),
    flag("nodelalloc", |o| o.delalloc = false),
    either("auto_da_alloc", |o, v| {
        switch(v).map(|on| o.auto_da_alloc = on)
    }),
    flag("noauto_da_alloc", |o| o.auto_da_alloc = false),
    value("inode_readahead_blks", set_inode_readahead),
    value("stripe", |o, v| {
        number(v, 0..=u32::MAX).map(|blocks| o.stripe = Some(blocks))
    }),
    value("max_dir_size_kb", |o, v| {
        number(v, 0..=u64::MAX >> 10).map(|n| o.max_dir_kib = (n > 0).then_some(n))
    }),
    flag("minixdf", |o| o.minixdf = true),
    flag("bsddf", |o| o.minixdf = false),
    flag("noatime", |o| o.atime = Atime::Never),
    flag("atime", |o| o.atime = Atime::Relative),
    flag("relatime", |o| o.atime = Atime::Relative),
    flag("nodiratime", |o| o.nodiratime = true),
    flag("diratime", |o| o.nodiratime = false),
    flag("sync", |o| o.sync = true),
    flag("async", |o| o.sync = false),
    flag("dirsync", |o| o.dirsync = true),
    // What is so anyway.
    already("block_validity"),
    already("nocheck"),
    already("nolazytime"),
    already("nostrictatime"),
    already("noinit_itable"),
    already("noquota"),
    already("orlov"),
    already("dioread_nolock"),
    value("check", |_, v| choice(v, &[("none", ())])),
    either("dax", |_, v| match v {
        Some("never") => Ok(()),
        _ => Err(DAX.to_owned()),
    }),
    // What is not offered.
    refused(
        "strictatime",
        "reads served by the kernel's page cache are not seen; use relatime",
    ),
    refused("norelatime", "the other choice is noatime"),
    refused(
        "lazytime",
        "times are written with the inode at each commit",
    ),
    refused(
        "journal_async_commit",
        "a commit record is written when what it covers is on the device",
    ),
    refused("journal_dev", EXTERNAL),
    refused("journal_path", EXTERNAL),
    refused(
        "init_itable",
        "inode tables are initialised when their groups are first used",
    ),
    refused("noblock_validity", ALWAYS_CHECKED),
    refused(
        "dioread_lock",
        "direct reads never see what is not written; leave it out",
    ),
    refused(
        "nodioread_nolock",
        "direct reads never see what is not written; leave it out",
    ),
    refused("i_version", "FUSE does not show a change counter"),
    refused("nouid32", "owners are always kept with 32 bits"),
    refused(
        "oldalloc",
        "the allocator of ext2's first years is gone; leave it out",
    ),
    refused(
        "mb_optimize_scan",
        "the allocator has one search; leave it out",
    ),
    refused(
        "prefetch_block_bitmaps",
        "bitmaps are read when they are needed; leave it out",
    ),
    refused(
        "no_prefetch_block_bitmaps",
        "bitmaps are read when needed anyway; leave it out",
    ),
    refused(
        "nombcache",
        "attribute blocks are not shared through a cache; leave it out",
    ),
    refused(
        "no_mbcache",
        "attribute blocks are not shared through a cache; leave it out",
    ),
    refused(
        "sb",
        "the primary superblock is used; e2fsck -b repairs it from a copy",
    ),
    refused("quota", NO_QUOTA),
    refused("usrquota", NO_QUOTA),
    refused("grpquota", NO_QUOTA),
    refused("prjquota", NO_QUOTA),
    refused("usrjquota", NO_QUOTA),
    refused("grpjquota", NO_QUOTA),
    refused("jqfmt", NO_QUOTA),
    refused("debug", "steadfs inspect shows the volume's parameters"),
    refused(
        "abort",
        "is for testing kernels; the shutdown ioctl stops a volume",
    ),
    refused("warn_on_error", "is for testing kernels"),
    refused("test_dummy_encryption", "is for testing kernels"),
    refused("debug_want_extra_isize", "is for testing kernels"),
    refused("inlinecrypt", "encrypted files have no key here"),
    refused("bh", "was removed from Linux; leave it out"),
    refused("nobh", "was removed from Linux; leave it out"),
    refused("mblk_io_submit", "was removed from Linux; leave it out"),
    refused("nomblk_io_submit", "was removed from Linux; leave it out"),
];

const DAX: &str = "pages of the volume cannot be mapped into processes";

fn switch(value: Option<&str>) -> Result<bool, String> {
    value.map_or(Ok(1), |v| number(v, 0..=1)).map(|n| n == 1)
}

fn set_data(options: &mut MountOptions, value: &str) -> Result<(), String> {
    if value == "journal" {
        return Err("data is not journaled; use data=ordered".to_owned());
    }
    options.data = Some(choice(value, DATA_MODES)?);
    Ok(())
}

fn set_async_checkpoint(options: &mut MountOptions, value: Option<&str>) -> Result<(), String> {
    let percent = match value {
        None => DEFAULT_ASYNC_PERCENT,
        Some(value) => number(value, 1..=99)?,
    };
    options.async_checkpoint = AsyncCheckpoint::Below(percent);
    Ok(())
}

fn set_errors(options: &mut MountOptions, value: &str) -> Result<(), String> {
    if value == "panic" {
        return Err("a program cannot halt the machine; use errors=remount-ro".to_owned());
    }
    options.errors = Some(choice(value, ON_ERROR)?);
    Ok(())
}

fn set_inode_readahead(options: &mut MountOptions, value: &str) -> Result<(), String> {
    let blocks = number(value, 0..=1 << 30)?;
    if blocks != 0 && !u32::is_power_of_two(blocks) {
        return Err("needs 0 or a power of two".to_owned());
    }
    options.inode_readahead_blocks = blocks;
    Ok(())
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
        apply(TABLE, self, name, value)
    }

    /// What they come to on a volume with a journal, or without.
    ///
    /// # Errors
    /// [`FsError::BadOption`] if they ask for something that a volume without a journal has not.
    pub fn on(mut self, journaled: bool) -> Result<Self> {
        let without = match self.async_checkpoint {
            AsyncCheckpoint::Below(_) => Some("async_checkpoint"),
            _ if self.abort_on_data_error => Some("data_err=abort"),
            _ => None,
        };
        if let (false, Some(option)) = (journaled, without) {
            let why = "needs a journal, which the volume has not";
            return Err(FsError::BadOption(format!("option {option}: {why}")));
        }
        if journaled && self.async_checkpoint == AsyncCheckpoint::Default {
            self.async_checkpoint = AsyncCheckpoint::Below(DEFAULT_ASYNC_PERCENT);
        }
        Ok(self)
    }

    /// Contradictions between options, once all are set.
    ///
    /// # Errors
    /// [`FsError::BadOption`] naming the options that do not go together.
    pub fn validate(&self) -> Result<()> {
        let wrong = |why: &str| Err(FsError::BadOption(why.to_owned()));
        if self.no_replay && !self.read_only {
            return wrong(
                "option noload: needs ro, for a volume is only written after its journal",
            );
        }
        if self.min_batch_us > self.max_batch_us {
            return wrong("option min_batch_time: is longer than max_batch_time");
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
            ("data", self.data != new.data),
            ("noload", self.no_replay != new.no_replay),
            (
                "journal_checksum",
                self.journal_checksum != new.journal_checksum,
            ),
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
        let default = Self::default();
        let mut out = String::from(if self.read_only { "ro" } else { "rw" });
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
        word(self.no_replay, "norecovery");
        word(!self.barrier, "nobarrier");
        word(self.abort_on_data_error, "data_err=abort");
        word(self.journal_checksum == Some(true), "journal_checksum");
        word(self.journal_checksum == Some(false), "nojournal_checksum");
        word(self.discard, "discard");
        word(self.user_xattr == Some(false), "nouser_xattr");
        word(self.acl == Some(false), "noacl");
        word(self.grpid == Some(true), "grpid");
        word(!self.delalloc, "nodelalloc");
        word(!self.auto_da_alloc, "noauto_da_alloc");
        word(self.minixdf, "minixdf");
        let off = self.async_checkpoint == AsyncCheckpoint::Off;
        word(off, "noasync_checkpoint");
        let differs = |own: u32, default: u32| (own != default).then_some(u64::from(own));
        let readahead = differs(self.inode_readahead_blocks, default.inode_readahead_blocks);
        let percent = match self.async_checkpoint {
            AsyncCheckpoint::Below(percent) => Some(percent.into()),
            _ => None,
        };
        let numbers = [
            ("commit", differs(self.commit_secs, default.commit_secs)),
            (
                "min_batch_time",
                differs(self.min_batch_us, default.min_batch_us),
            ),
            (
                "max_batch_time",
                differs(self.max_batch_us, default.max_batch_us),
            ),
            (
                "journal_ioprio",
                differs(self.journal_ioprio.into(), default.journal_ioprio.into()),
            ),
            ("async_checkpoint", percent),
            ("inode_readahead_blks", readahead),
            ("stripe", self.stripe.map(u64::from)),
            ("resuid", self.resuid.map(u64::from)),
            ("resgid", self.resgid.map(u64::from)),
            ("max_dir_size_kb", self.max_dir_kib),
        ];
        for (name, value) in numbers {
            if let Some(value) = value {
                // Writing to a string cannot fail.
                let _ = write!(out, ",{name}={value}");
            }
        }
        let mut named = |name: &str, value: Option<&str>| {
            if let Some(value) = value {
                let _ = write!(out, ",{name}={value}");
            }
        };
        named("errors", self.errors.and_then(|v| name_of(v, ON_ERROR)));
        named("data", self.data.and_then(|v| name_of(v, DATA_MODES)));
        out
    }
}

fn name_of<V: PartialEq + Copy>(value: V, names: &[(&'static str, V)]) -> Option<&'static str> {
    names
        .iter()
        .find(|(_, v)| *v == value)
        .map(|(name, _)| *name)
}

#[cfg(test)]
mod tests;
