//! The table of f2fs's mount options: every name that Linux knows, with what it does or why it is not
//! offered, and those of ours (`gc_policy`).

use steadfs_vfs::options::{Entry, already, choice, flag, number, refused, value};

use super::{
    AllocMode, Atime, BackgroundGc, DiscardUnit, FsyncMode, GcPolicy, Mode, MountOptions, OnError,
    Unusable,
};
use crate::disk::inode::XATTR_WORDS;

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

const NO_QUOTA: &str = "quota limits are not enforced";
const GONE: &str = "was removed from Linux; leave it out";
const TESTING: &str = "is for testing kernels";
const NOT_COMPRESSED: &str = "compressed files are read, and none are made";

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
    already("extent_cache"),
    already("flush_merge"),
    value("checkpoint", set_checkpoint),
    value("memory", |_, v| {
        choice(v, &[("normal", ())]).map_err(|_| "cache_size= says how much there is".to_owned())
    }),
    // What is not offered.
    refused(
        "lazytime",
        "times are written with the inode at each checkpoint",
    ),
    refused(
        "noextent_cache",
        "where blocks lie is always kept in memory",
    ),
    refused(
        "noflush_merge",
        "those who need a flush at one time always share it",
    ),
    refused("age_extent_cache", "the age of blocks is not followed"),
    refused("reserve_node", "only blocks are reserved (reserve_root)"),
    refused("nat_bits", "mounting reads the table without them"),
    refused("compress_algorithm", NOT_COMPRESSED),
    refused("compress_log_size", NOT_COMPRESSED),
    refused("compress_extension", NOT_COMPRESSED),
    refused("nocompress_extension", NOT_COMPRESSED),
    refused("compress_chksum", NOT_COMPRESSED),
    refused("compress_mode", NOT_COMPRESSED),
    refused("compress_cache", NOT_COMPRESSED),
    refused("io_bits", GONE),
    refused("heap", GONE),
    refused("no_heap", GONE),
    refused("whint_mode", GONE),
    refused("lookup_mode", "names are found by their hash and bytes"),
    refused("inlinecrypt", "encrypted files have no key here"),
    refused("quota", NO_QUOTA),
    refused("usrquota", NO_QUOTA),
    refused("grpquota", NO_QUOTA),
    refused("prjquota", NO_QUOTA),
    refused("usrjquota", NO_QUOTA),
    refused("grpjquota", NO_QUOTA),
    refused("prjjquota", NO_QUOTA),
    refused("offusrjquota", NO_QUOTA),
    refused("offgrpjquota", NO_QUOTA),
    refused("offprjjquota", NO_QUOTA),
    refused("jqfmt", NO_QUOTA),
    refused("fault_injection", TESTING),
    refused("fault_type", TESTING),
    refused("test_dummy_encryption", TESTING),
    refused(
        "strictatime",
        "reads served by the kernel's page cache are not seen; use relatime",
    ),
    refused("norelatime", "the other choice is noatime"),
];

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
