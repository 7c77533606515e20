//! The table of ext4's mount options: every name that Linux knows, with what it does, why it has no effect or why it
//! is not offered.

use steadfs_vfs::options::{
    Entry, already, choice, either, flag, no_effect, no_effect_if, number, refused, value,
};

use super::{
    AsyncCheckpoint, Atime, DEFAULT_ASYNC_PERCENT, DEFAULT_COMMIT_SECS, DataMode, MountOptions,
    OnError,
};

/// `sb=` of the first superblock.
const FIRST_SB: u64 = 1;
/// Longest commit interval: a day.
const MAX_COMMIT_SECS: u32 = 86_400;
/// Longest wait for company: a minute.
const MAX_BATCH_US: u32 = 60_000_000;
pub(super) const DATA_MODES: &[(&str, DataMode)] = &[
    ("ordered", DataMode::Ordered),
    ("writeback", DataMode::Writeback),
];
pub(super) const ON_ERROR: &[(&str, OnError)] = &[
    ("continue", OnError::Continue),
    ("remount-ro", OnError::RemountReadOnly),
];
const NO_QUOTA: &str = "quota is neither counted nor enforced";
const EXTERNAL: &str = "external journals are not supported; only one inside the volume is";
const GONE: &str = "Linux removed it, too";
const TIMES: &str = "times are written with the inode at each commit";
const INODE_TABLES: &str = "inode tables are initialised when their groups are first used";
const NEVER_STALE: &str = "direct reads never see what is not written";

/// Every option of ext2, ext3 and ext4 that Linux knows.
pub const TABLE: &[Entry<MountOptions>] = &[
    flag("ro", |o| o.read_only = true),
    flag("rw", |o| o.read_only = false),
    flag("noload", |o| o.no_replay = true),
    flag("norecovery", |o| o.no_replay = true),
    value("sb", |o, v| {
        number(v, 0..=u64::MAX >> 10).map(|n| o.sb = (n != FIRST_SB).then_some(n))
    }),
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
    already("nolazytime"),
    already("nostrictatime"),
    already("noinit_itable"),
    already("no_prefetch_block_bitmaps"),
    already("nombcache"),
    already("no_mbcache"),
    already("noquota"),
    already("dioread_nolock"),
    already("nowarn_on_error"),
    either("dax", |_, v| match v {
        Some("never" | "inode") => Ok(()),
        _ => Err(DAX.to_owned()),
    }),
    // Accepted, for they ask for speed, or Linux has them without effect, too.
    no_effect("lazytime", TIMES),
    no_effect("norelatime", "Linux has relatime in its place, too"),
    no_effect(
        "journal_async_commit",
        "a commit record is always written last",
    ),
    no_effect_if("init_itable", INODE_TABLES, |_, v| {
        v.map_or(Ok(()), |v| number(v, 0..=u32::MAX).map(drop))
    }),
    no_effect(
        "noblock_validity",
        "structures are always checked against each other",
    ),
    no_effect("dioread_lock", NEVER_STALE),
    no_effect("nodioread_nolock", NEVER_STALE),
    no_effect_if(
        "mb_optimize_scan",
        "the allocator has one search",
        |_, v| {
            let value = v.ok_or("needs a value (mb_optimize_scan=…)")?;
            number(value, 0..=1).map(|_: u32| ())
        },
    ),
    no_effect(
        "prefetch_block_bitmaps",
        "bitmaps are read when they are needed",
    ),
    no_effect("i_version", "FUSE does not show a change counter"),
    no_effect("debug", "steadfs inspect shows the volume's parameters"),
    no_effect("warn_on_error", "errors are always logged"),
    no_effect("inlinecrypt", "encrypted files have no key here"),
    no_effect("bh", GONE),
    no_effect("nobh", GONE),
    no_effect("mblk_io_submit", GONE),
    no_effect("nomblk_io_submit", GONE),
    no_effect("oldalloc", GONE),
    no_effect("orlov", GONE),
    no_effect("reservation", GONE),
    no_effect("noreservation", GONE),
    no_effect("journal", GONE),
    no_effect("check", GONE),
    no_effect("nocheck", GONE),
    // The kernel counts nothing either until quotaon(8) is run, which fails on a FUSE mount.
    no_effect("quota", NO_QUOTA),
    no_effect("usrquota", NO_QUOTA),
    no_effect("grpquota", NO_QUOTA),
    no_effect("usrjquota", NO_QUOTA),
    no_effect("grpjquota", NO_QUOTA),
    no_effect_if("jqfmt", NO_QUOTA, |_, v| {
        let formats = ["vfsold", "vfsv0", "vfsv1"].map(|name| (name, ()));
        choice(v.unwrap_or_default(), &formats)
    }),
    no_effect_if("prjquota", NO_QUOTA, |o, _| {
        o.project_quota = true;
        Ok(())
    }),
    // What is not offered.
    refused(
        "strictatime",
        "reads served by the kernel's page cache are not seen; use relatime",
    ),
    refused("journal_dev", EXTERNAL),
    refused("journal_path", EXTERNAL),
    refused("nouid32", "owners are always kept with 32 bits"),
    refused(
        "abort",
        "is for testing kernels; the shutdown ioctl stops a volume",
    ),
    refused("test_dummy_encryption", "is for testing kernels"),
    refused("debug_want_extra_isize", "is for testing kernels"),
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
