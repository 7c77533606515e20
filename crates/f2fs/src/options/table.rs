//! The table of f2fs's mount options: every name that Linux knows, with what it does, why it has no
//! effect or why it is not offered, and those of ours (`gc_policy`).

use steadfs_vfs::options::{
    Entry, already, choice, flag, no_effect, no_effect_but, no_effect_if, number, refused, value,
};

use super::{
    AllocMode, Atime, BackgroundGc, DiscardUnit, FsyncMode, GcPolicy, Mode, MountOptions, OnError,
    Unusable,
};
use crate::disk::inode::XATTR_WORDS;

/// Bytes of an extension in the superblock, with its end.
const EXTENSION_BYTES: usize = 8;

/// Names of the values of an option; the default is not shown.
pub(super) type Names<V> = &'static [(&'static str, V)];

pub(super) const ON_ERROR: Names<OnError> = &[
    ("continue", OnError::Continue),
    ("remount-ro", OnError::RemountReadOnly),
];
pub(super) const BACKGROUND_GC: Names<BackgroundGc> = &[
    ("on", BackgroundGc::On),
    ("off", BackgroundGc::Off),
    ("sync", BackgroundGc::Sync),
];
pub(super) const GC_POLICIES: Names<GcPolicy> = &[
    ("default", GcPolicy::Linux618),
    ("2013", GcPolicy::Linux2013),
];
pub(super) const DISCARD_UNITS: Names<DiscardUnit> = &[
    ("block", DiscardUnit::Block),
    ("segment", DiscardUnit::Segment),
    ("section", DiscardUnit::Section),
];
pub(super) const MODES: Names<Mode> = &[("adaptive", Mode::Adaptive), ("lfs", Mode::Lfs)];
pub(super) const ALLOC_MODES: Names<AllocMode> =
    &[("default", AllocMode::Default), ("reuse", AllocMode::Reuse)];
pub(super) const FSYNC_MODES: Names<FsyncMode> = &[
    ("posix", FsyncMode::Posix),
    ("strict", FsyncMode::Strict),
    ("nobarrier", FsyncMode::NoBarrier),
];

const NO_QUOTA: &str = "quota is neither counted nor enforced";
const GONE: &str = "Linux removed it, too";
const TIMES: &str = "times are written with the inode at each checkpoint";
const LOOKUP: &str = "names are found by their hash";
const TESTING: &str = "is for testing kernels";
const NOT_COMPRESSED: &str = "new files are written uncompressed; compressed ones can be read";

/// The name of a value.
pub(super) fn name_of<V: PartialEq + Copy>(value: V, names: Names<V>) -> Option<&'static str> {
    let found = names.iter().find(|(_, named)| *named == value);
    found.map(|(name, _)| *name)
}

/// The name of a value that is not the default.
pub(super) fn changed<V: PartialEq + Copy + Default>(
    value: V,
    names: Names<V>,
) -> Option<&'static str> {
    name_of(value, names).filter(|_| value != V::default())
}

/// Every option of f2fs that Linux knows.
pub const TABLE: &[Entry<MountOptions>] = &[
    flag("ro", |o| o.read_only = true),
    flag("rw", |o| o.read_only = false),
    flag("norecovery", |o| o.no_recovery = true),
    flag("disable_roll_forward", |o| o.no_recovery = true),
    flag("user_xattr", |o| o.user_xattr = Some(true)),
    flag("nouser_xattr", |o| o.user_xattr = Some(false)),
    flag("acl", |o| o.acl = Some(true)),
    flag("noacl", |o| o.acl = Some(false)),
    value("errors", set_errors),
    flag("noatime", |o| o.atime = Atime::Never),
    flag("atime", |o| o.atime = Atime::Relative),
    flag("relatime", |o| o.atime = Atime::Relative),
    flag("nodiratime", |o| o.nodiratime = true),
    flag("diratime", |o| o.nodiratime = false),
    flag("sync", |o| o.sync = true),
    flag("async", |o| o.sync = false),
    flag("dirsync", |o| o.dirsync = true),
    value("background_gc", |o, v| {
        choice(v, BACKGROUND_GC).map(|gc| o.background_gc = gc)
    }),
    value("gc_policy", |o, v| {
        choice(v, GC_POLICIES).map(|policy| o.gc_policy = policy)
    }),
    flag("atgc", |o| o.atgc = true),
    flag("gc_merge", |o| o.gc_merge = true),
    flag("nogc_merge", |o| o.gc_merge = false),
    flag("discard", |o| o.discard = Some(true)),
    flag("nodiscard", |o| o.discard = Some(false)),
    value("discard_unit", |o, v| {
        choice(v, DISCARD_UNITS).map(|unit| o.discard_unit = unit)
    }),
    value("active_logs", |o, v| {
        choice(v, &[("2", 2), ("4", 4), ("6", 6)]).map(|logs| o.active_logs = logs)
    }),
    flag("disable_ext_identify", |o| o.ext_identify = false),
    flag("inline_xattr", |o| o.inline_xattr = true),
    flag("noinline_xattr", |o| o.inline_xattr = false),
    value("inline_xattr_size", |o, v| {
        number(v, XATTR_WORDS).map(|words| o.inline_xattr_size = Some(words))
    }),
    flag("inline_data", |o| o.inline_data = true),
    flag("noinline_data", |o| o.inline_data = false),
    flag("inline_dentry", |o| o.inline_dentry = true),
    flag("noinline_dentry", |o| o.inline_dentry = false),
    flag("barrier", |o| o.barrier = true),
    flag("nobarrier", |o| o.barrier = false),
    flag("fastboot", |o| o.fastboot = true),
    flag("data_flush", |o| o.data_flush = true),
    value("reserve_root", |o, v| {
        number(v, 0..=u32::MAX).map(|blocks| o.reserve_root = blocks)
    }),
    value("resuid", |o, v| {
        number(v, 0..=u32::MAX - 1).map(|id| o.resuid = Some(id))
    }),
    value("resgid", |o, v| {
        number(v, 0..=u32::MAX - 1).map(|id| o.resgid = Some(id))
    }),
    value("mode", set_mode),
    value("alloc_mode", |o, v| {
        choice(v, ALLOC_MODES).map(|mode| o.alloc_mode = Some(mode))
    }),
    value("fsync_mode", |o, v| {
        choice(v, FSYNC_MODES).map(|mode| o.fsync_mode = mode)
    }),
    flag("checkpoint_merge", |o| o.checkpoint_merge = true),
    flag("nocheckpoint_merge", |o| o.checkpoint_merge = false),
    // What is so anyway.
    already("nolazytime"),
    already("nostrictatime"),
    already("noquota"),
    already("offusrjquota"),
    already("offgrpjquota"),
    already("offprjjquota"),
    already("extent_cache"),
    already("flush_merge"),
    value("checkpoint", set_checkpoint),
    no_effect_but(
        "memory",
        "normal",
        "cache_size= says how much memory is used",
        |_, v| choice(v.unwrap_or_default(), &[("normal", ()), ("low", ())]),
    ),
    // Accepted, for they ask for speed, or Linux has them without effect, too.
    no_effect("lazytime", TIMES),
    no_effect("norelatime", "Linux has relatime in its place, too"),
    no_effect(
        "noextent_cache",
        "where blocks lie is always kept in memory",
    ),
    no_effect("noflush_merge", "concurrent flushes are always merged"),
    no_effect("age_extent_cache", "the age of blocks is not followed"),
    no_effect("nat_bits", "mounting reads the table without them"),
    no_effect_but("lookup_mode", "perf", LOOKUP, |_, v| {
        let modes = ["perf", "compat", "auto"].map(|name| (name, ()));
        choice(v.unwrap_or_default(), &modes)
    }),
    no_effect_if("compress_algorithm", NOT_COMPRESSED, |_, v| {
        check_algorithm(v.unwrap_or_default())
    }),
    no_effect_if("compress_log_size", NOT_COMPRESSED, |_, v| {
        number(v.unwrap_or_default(), 2..=8).map(|_: u32| ())
    }),
    no_effect_if("compress_extension", NOT_COMPRESSED, |_, v| {
        check_extension(v)
    }),
    no_effect_if("nocompress_extension", NOT_COMPRESSED, |_, v| {
        check_extension(v)
    }),
    no_effect("compress_chksum", NOT_COMPRESSED),
    no_effect_if("compress_mode", NOT_COMPRESSED, |_, v| {
        choice(v.unwrap_or_default(), &[("fs", ()), ("user", ())])
    }),
    no_effect(
        "compress_cache",
        "read blocks of compressed files are cached anyway",
    ),
    no_effect("io_bits", GONE),
    no_effect("heap", GONE),
    no_effect("no_heap", GONE),
    no_effect("whint_mode", GONE),
    no_effect("inlinecrypt", "encrypted files have no key here"),
    // The kernel counts nothing either until quotaon(8) is run, which fails on a FUSE mount.
    no_effect("quota", NO_QUOTA),
    no_effect("usrquota", NO_QUOTA),
    no_effect("grpquota", NO_QUOTA),
    no_effect("usrjquota", NO_QUOTA),
    no_effect("grpjquota", NO_QUOTA),
    no_effect_if("prjquota", NO_QUOTA, |o, _| {
        o.project_quota = true;
        Ok(())
    }),
    no_effect_if("prjjquota", NO_QUOTA, |o, _| {
        o.project_quota = true;
        Ok(())
    }),
    no_effect_if("jqfmt", NO_QUOTA, |_, v| {
        let formats = ["vfsold", "vfsv0", "vfsv1"].map(|name| (name, ()));
        choice(v.unwrap_or_default(), &formats)
    }),
    // What is not offered.
    refused("reserve_node", "only blocks are reserved (reserve_root)"),
    refused("fault_injection", TESTING),
    refused("fault_type", TESTING),
    refused("test_dummy_encryption", TESTING),
    refused(
        "strictatime",
        "reads served by the kernel's page cache are not seen; use relatime",
    ),
];

/// `lz4`, `zstd:6` and the like.
fn check_algorithm(value: &str) -> Result<(), String> {
    let (name, level) = match value.split_once(':') {
        Some((name, level)) => (name, Some(level)),
        None => (value, None),
    };
    let names = ["lzo", "lz4", "zstd", "lzo-rle"].map(|name| (name, ()));
    choice(name, &names)?;
    match level {
        Some(_) if name.starts_with("lzo") => Err("has no levels".to_owned()),
        Some(level) => number(level, 1..=22).map(|_: u32| ()),
        None => Ok(()),
    }
}

/// An ending of file names; `*` stands for all.
fn check_extension(value: Option<&str>) -> Result<(), String> {
    match value {
        None | Some("") => Err("needs the ending of file names, or *".to_owned()),
        Some(ending) if ending.len() >= EXTENSION_BYTES => {
            Err(format!("is shorter than {EXTENSION_BYTES} bytes"))
        }
        Some(_) => Ok(()),
    }
}

fn set_errors(options: &mut MountOptions, value: &str) -> Result<(), String> {
    if value == "panic" {
        return Err("a program cannot halt the machine; use errors=remount-ro".to_owned());
    }
    options.errors = choice(value, ON_ERROR)?;
    Ok(())
}

/// `enable`, `disable`, `disable:BLOCKS`, `disable:PERCENT%`.
fn set_checkpoint(options: &mut MountOptions, value: &str) -> Result<(), String> {
    options.checkpoint_off = match value.split_once(':') {
        None if value == "enable" => None,
        // What was said before of how much may be unusable holds on.
        None if value == "disable" => options.checkpoint_off.or(Some(Unusable::Blocks(0))),
        Some(("disable", cap)) => Some(match cap.strip_suffix('%') {
            Some(percent) => Unusable::Percent(number(percent, 0..=100)?),
            None => Unusable::Blocks(number(cap, 0..=u32::MAX)?),
        }),
        _ => return Err("is one of enable, disable, disable:BLOCKS, disable:PERCENT%".to_owned()),
    };
    Ok(())
}

fn set_mode(options: &mut MountOptions, value: &str) -> Result<(), String> {
    if value.starts_with("fragment:") {
        return Err("is for experiments with kernels; use mode=adaptive".to_owned());
    }
    options.mode = choice(value, MODES)?;
    Ok(())
}
