//! The table of mount options of ext2, ext3 and ext4: every name that Linux knows.

use std::fmt::Display;
use std::path::PathBuf;

use steadfs_vfs::options::Section::Ext4;
use steadfs_vfs::options::Shown::Changed;
use steadfs_vfs::options::{
    Common, ERRORS, Entry, QUOTA_FORMATS, Table, choice, item, name_of, number, parse_errors, word,
};

use super::{AsyncCheckpoint, DEFAULT_ASYNC_PERCENT, DEFAULT_COMMIT_SECS, DataMode, MountOptions};

/// `sb=` of the first superblock.
const FIRST_SB: u64 = 1;
/// Longest commit interval: a day.
const COMMIT_SECS_MAX: u32 = 86_400;
/// Longest wait of a commit for others to join: a minute.
const BATCH_US_MAX: u32 = 60_000_000;
const DATA_MODES: &[(&str, DataMode)] = &[
    ("ordered", DataMode::Ordered),
    ("writeback", DataMode::Writeback),
];
const DATA_ERRORS: &[(&str, bool)] = &[("ignore", false), ("abort", true)];
const NAMED_QUOTA: &str = "quota files with names are not kept up, only those of the feature quota";
const GONE: &str = "Linux removed it, too";
const INODE_TABLES: &str = "inode tables are initialised when their groups are first used";
const NEVER_STALE: &str = "direct reads never see what is not written";

type Opt = Entry<MountOptions>;

/// Every option of ext2, ext3 and ext4 that Linux knows.
pub const TABLE: Table<MountOptions> = Table(&[Common::<MountOptions>::ENTRIES, OWN]);

const OWN: &[Entry<MountOptions>] = &[
    Opt::flag("noload", |o| o.no_replay = true)
        .help(Ext4, "the journal is not replayed; only with ro")
        .current(Changed, |o| o.no_replay.then(|| "norecovery".into()))
        .fixed(),
    Opt::flag("norecovery", |o| o.no_replay = true).also().fixed(),
    Opt::either("barrier", "[=0|1]", |o, v| switch(v).map(|on| o.barrier = on))
        .help(
            Ext4,
            "commits flush the device's cache; without it a power cut can corrupt the volume",
        )
        .current(Changed, |o| word(o.barrier, "barrier", "nobarrier")),
    Opt::flag("nobarrier", |o| o.barrier = false).also(),
    Opt::flag("fast_commit", |o| o.fast_commit = true)
        .help(
            Ext4,
            "an fsync writes a fast commit if the volume has that feature, or commits the whole transaction",
        )
        .current(Changed, |o| word(o.fast_commit, "fast_commit", "nofast_commit")),
    Opt::flag("nofast_commit", |o| o.fast_commit = false).also(),
    Opt::value("data_err", "=ignore|abort", |o, v| {
        choice(v, DATA_ERRORS).map(|abort| o.abort_on_data_error = abort)
    })
    .help(
        Ext4,
        "abort: a failed write of file data also aborts the journal",
    )
    .current(Changed, |o| {
        named("data_err", name_of(o.abort_on_data_error, DATA_ERRORS))
    }),
    Opt::flag("journal_checksum", |o| o.journal_checksum = Some(true))
        .help_with_default(
            Ext4,
            "whether log blocks have checksums",
            "if the volume's metadata has them",
        )
        .current(Changed, |o| {
            let on = o.journal_checksum?;
            word(on, "journal_checksum", "nojournal_checksum")
        })
        .fixed(),
    Opt::flag("nojournal_checksum", |o| o.journal_checksum = Some(false))
        .also()
        .fixed(),
    Opt::flag("discard", |o| o.discard = true)
        .help(
            Ext4,
            "freed blocks are discarded after the commit that freed them",
        )
        .current(Changed, |o| word(o.discard, "discard", "nodiscard")),
    Opt::flag("nodiscard", |o| o.discard = false).also(),
    Opt::flag("grpid", |o| o.grpid = Some(true))
        .help_with_default(
            Ext4,
            "new files get the group of their directory, or the caller's",
            "nogrpid",
        )
        .current(Changed, |o| {
            (o.grpid == Some(true)).then(|| "grpid".into())
        }),
    Opt::flag("bsdgroups", |o| o.grpid = Some(true)).also(),
    Opt::flag("nogrpid", |o| o.grpid = Some(false)).also(),
    Opt::flag("sysvgroups", |o| o.grpid = Some(false)).also(),
    Opt::flag("delalloc", |o| o.delalloc = true)
        .help(
            Ext4,
            "blocks are allocated at write-back (delayed allocation), or at write",
        )
        .current(Changed, |o| word(o.delalloc, "delalloc", "nodelalloc")),
    Opt::flag("nodelalloc", |o| o.delalloc = false).also(),
    Opt::either("auto_da_alloc", "[=0|1]", |o, v| {
        switch(v).map(|on| o.auto_da_alloc = on)
    })
    .help(
        Ext4,
        "a file that replaces another by rename is written before it does; one that replaces by truncate within seconds",
    )
    .current(Changed, |o| {
        word(o.auto_da_alloc, "auto_da_alloc", "noauto_da_alloc")
    }),
    Opt::flag("noauto_da_alloc", |o| o.auto_da_alloc = false).also(),
    Opt::flag("minixdf", |o| o.minixdf = true)
        .help(
            Ext4,
            "statfs counts the volume's own metadata as space, or not",
        )
        .current(Changed, |o| word(o.minixdf, "minixdf", "bsddf")),
    Opt::flag("bsddf", |o| o.minixdf = false).also(),
    Opt::value("commit", "=SECONDS", |o, v| {
        number(v, 0..=COMMIT_SECS_MAX).map(|secs| {
            o.commit_secs = if secs == 0 { DEFAULT_COMMIT_SECS } else { secs };
        })
    })
    .help(Ext4, "time between two commits of the journal")
    .current(Changed, |o| named("commit", o.commit_secs)),
    Opt::value("min_batch_time", "=US", |o, v| {
        number(v, 0..=BATCH_US_MAX).map(|us| o.min_batch_us = us)
    })
    .help(
        Ext4,
        "how long a synchronous commit waits for others to join (group commit), in microseconds",
    )
    .current(Changed, |o| named("min_batch_time", o.min_batch_us)),
    Opt::value("max_batch_time", "=US", |o, v| {
        number(v, 0..=BATCH_US_MAX).map(|us| o.max_batch_us = us)
    })
    .also()
    .current(Changed, |o| named("max_batch_time", o.max_batch_us)),
    Opt::value("journal_ioprio", "=0..7", |o, v| {
        number(v, 0..=7).map(|prio| o.journal_ioprio = prio)
    })
    .help(Ext4, "the I/O priority of the journal; 0 is the highest")
    .current(Changed, |o| named("journal_ioprio", o.journal_ioprio)),
    Opt::either("async_checkpoint", "[=PERCENT]", set_async_checkpoint)
        .help_with_default(
            Ext4,
            "log space is reclaimed in the background if less than PERCENT (1 to 99) of it are free, or only when it runs out",
            "50",
        )
        .current(Changed, |o| match o.async_checkpoint {
            AsyncCheckpoint::Default => None,
            AsyncCheckpoint::Below(percent) => named("async_checkpoint", percent),
            AsyncCheckpoint::Off => Some("noasync_checkpoint".into()),
        }),
    Opt::flag("noasync_checkpoint", |o| {
        o.async_checkpoint = AsyncCheckpoint::Off;
    })
    .also(),
    Opt::value("inode_readahead_blks", "=N", set_inode_readahead)
        .help(
            Ext4,
            "inode table blocks that are read ahead: 0 or a power of two",
        )
        .current(Changed, |o| {
            named("inode_readahead_blks", o.inode_readahead_blocks)
        }),
    Opt::value("stripe", "=BLOCKS", |o, v| {
        number(v, 0..=u32::MAX).map(|blocks| o.stripe = Some(blocks))
    })
    .help_with_default(
        Ext4,
        "long allocations begin at multiples of BLOCKS; 0: anywhere",
        "as the superblock says",
    )
    .current(Changed, |o| named("stripe", o.stripe?)),
    Opt::value("max_dir_size_kb", "=KIB", |o, v| {
        number(v, 0..=u64::MAX >> 10).map(|n| o.max_dir_kib = (n > 0).then_some(n))
    })
    .help_with_default(Ext4, "the largest size of a directory", "unlimited")
    .current(Changed, |o| named("max_dir_size_kb", o.max_dir_kib?)),
    Opt::value("sb", "=N", |o, v| {
        number(v, 0..=u64::MAX >> 10).map(|n| o.sb = (n != FIRST_SB).then_some(n))
    })
    .help_with_default(
        Ext4,
        "the superblock to use, in units of 1 KiB: a backup if the first one is corrupt",
        "1",
    )
    .current(Changed, |o| named("sb", o.sb?))
    .fixed(),
    Opt::value("journal_path", "=PATH", |o, v| {
        o.journal_path = match v {
            "" => return Err("needs the path of a device or image".to_owned()),
            path => Some(PathBuf::from(path)),
        };
        Ok(())
    })
    .help_with_default(
        Ext4,
        "the device or image of the volume's external journal",
        "none",
    )
    .current(Changed, |o| {
        Some(named("journal_path", o.journal_path.as_ref()?.display()))?
    })
    .fixed(),
    Opt::value("journal_dev", "=NUMBER", |o, v| {
        o.journal_path = Some(device_of_number(v)?);
        Ok(())
    })
    .help_with_default(
        Ext4,
        "the same by the number of a block device, as stat(2) has it",
        "none",
    )
    .fixed(),
    Opt::value("errors", "=continue|remount-ro", |o, v| {
        parse_errors(v).map(|on| o.errors = Some(on))
    })
    .help_with_default(
        Ext4,
        "what the volume does when it finds corruption",
        "as the superblock says",
    )
    .current(Changed, |o| named("errors", name_of(o.errors?, ERRORS))),
    Opt::value("data", "=ordered|writeback", set_data)
        .help_with_default(
            Ext4,
            "with both, no committed file ever shows blocks that were not written",
            "as the superblock says, else ordered",
        )
        .current(Changed, |o| named("data", name_of(o.data?, DATA_MODES)))
        .fixed(),
    // Always in effect.
    Opt::already("block_validity"),
    Opt::already("noinit_itable"),
    Opt::already("no_prefetch_block_bitmaps"),
    Opt::already("nombcache"),
    Opt::already("no_mbcache"),
    Opt::already("dioread_nolock"),
    Opt::already("nowarn_on_error"),
    Opt::either("dax", "=never|inode", |_, v| match v {
        Some("never" | "inode") => Ok(()),
        _ => Err(DAX.to_owned()),
    }),
    // Accepted: they request speed only, or have no effect in Linux either.
    Opt::no_effect(
        "lazytime",
        "times are written with the inode at each commit",
    ),
    Opt::no_effect(
        "journal_async_commit",
        "a commit record is always written last",
    ),
    Opt::no_effect_if("init_itable", "=", INODE_TABLES, |_, v| {
        v.map_or(Ok(()), |v| number(v, 0..=u32::MAX).map(drop))
    }),
    Opt::no_effect(
        "noblock_validity",
        "structures are always checked against each other",
    ),
    Opt::no_effect("dioread_lock", NEVER_STALE),
    Opt::no_effect("nodioread_nolock", NEVER_STALE),
    Opt::no_effect_if(
        "mb_optimize_scan",
        "=",
        "the allocator has one search",
        |_, v| {
            let value = v.ok_or("needs a value (mb_optimize_scan=…)")?;
            number(value, 0..=1).map(|_: u32| ())
        },
    ),
    Opt::no_effect(
        "prefetch_block_bitmaps",
        "bitmaps are read when they are needed",
    ),
    Opt::no_effect("i_version", "FUSE does not show a change counter"),
    Opt::no_effect("debug", "steadfs inspect shows the volume's parameters"),
    Opt::no_effect("warn_on_error", "errors are always logged"),
    Opt::no_effect("bh", GONE),
    Opt::no_effect("nobh", GONE),
    Opt::no_effect("mblk_io_submit", GONE),
    Opt::no_effect("nomblk_io_submit", GONE),
    Opt::no_effect("oldalloc", GONE),
    Opt::no_effect("orlov", GONE),
    Opt::no_effect("reservation", GONE),
    Opt::no_effect("noreservation", GONE),
    Opt::no_effect("journal", GONE).arg("="),
    Opt::no_effect("check", GONE).arg("="),
    Opt::no_effect("nocheck", GONE),
    Opt::no_effect("usrjquota", NAMED_QUOTA).arg("="),
    Opt::no_effect("grpjquota", NAMED_QUOTA).arg("="),
    Opt::no_effect_if("jqfmt", "=", NAMED_QUOTA, |_, v| {
        choice(v.unwrap_or_default(), QUOTA_FORMATS)
    }),
    // Refused.
    Opt::refused("nouid32", "owners are always kept with 32 bits"),
    Opt::refused(
        "abort",
        "is for testing kernels; the shutdown ioctl stops a volume",
    ),
    Opt::refused("debug_want_extra_isize", "is for testing kernels"),
];

const DAX: &str = "pages of the volume cannot be mapped into processes";

/// The block device of a number in decimal or, after 0x, in hexadecimal digits (`makedev` in 32 bits: 12 bits of the major
/// number from bit 8 on).
fn device_of_number(value: &str) -> Result<PathBuf, String> {
    let parsed = match value.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => value.parse(),
    };
    let wrong = |_| format!("{value:?} is no number of a device");
    let number = parsed.map_err(wrong)?;
    let (major, minor) = (number >> 8 & 0xFFF, number & 0xFF | number >> 12 & 0xFFF00);
    Ok(PathBuf::from(format!("/dev/block/{major}:{minor}")))
}

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

fn set_inode_readahead(options: &mut MountOptions, value: &str) -> Result<(), String> {
    let blocks = number(value, 0..=1 << 30)?;
    if blocks != 0 && !u32::is_power_of_two(blocks) {
        return Err("needs 0 or a power of two".to_owned());
    }
    options.inode_readahead_blocks = blocks;
    Ok(())
}

/// The item of an option with a value.
fn named(name: &str, value: impl Display) -> Option<String> {
    Some(item(name, Some(&value.to_string())))
}
