//! The table of f2fs's mount options: every name that Linux knows, and our own (`gc_policy`).

use std::fmt::Display;
use std::path::PathBuf;

use steadfs_vfs::options::Section::F2fs;
use steadfs_vfs::options::Shown::{Always, Changed};
use steadfs_vfs::options::{
    Common, ERRORS, Entry, QUOTA_FORMATS, Table, choice, item, name_of, number, parse_errors, word,
};

use super::values::{
    AllocMode, BackgroundGc, CompressMode, DiscardUnit, FsyncMode, LookupMode, Mode, MountOptions,
    Unusable,
};
use crate::disk::inode::{CompressAlgorithm, Compression, XATTR_WORDS};
use crate::segment::rules::{GcRules, Linux618, Linux2013};

/// Bytes of an extension in the superblock, with its end.
const EXTENSION_BYTES: usize = 8;

/// The rules of GC without `gc_policy=`.
pub const GC_RULES_DEFAULT: &dyn GcRules = &Linux618;

/// The words for the values of an option.
type Names<V> = &'static [(&'static str, V)];

const BACKGROUND_GC: Names<BackgroundGc> = &[
    ("on", BackgroundGc::On),
    ("off", BackgroundGc::Off),
    ("sync", BackgroundGc::Sync),
];
const GC_POLICIES: Names<&dyn GcRules> = &[("default", GC_RULES_DEFAULT), ("2013", &Linux2013)];
const DISCARD_UNITS: Names<DiscardUnit> = &[
    ("block", DiscardUnit::Block),
    ("segment", DiscardUnit::Segment),
    ("section", DiscardUnit::Section),
];
const MODES: Names<Mode> = &[("adaptive", Mode::Adaptive), ("lfs", Mode::Lfs)];
const ALLOC_MODES: Names<AllocMode> =
    &[("default", AllocMode::Default), ("reuse", AllocMode::Reuse)];
const LOOKUP_MODES: Names<LookupMode> = &[
    ("perf", LookupMode::Perf),
    ("compat", LookupMode::Compat),
    ("auto", LookupMode::Auto),
];
const FSYNC_MODES: Names<FsyncMode> = &[
    ("posix", FsyncMode::Posix),
    ("strict", FsyncMode::Strict),
    ("nobarrier", FsyncMode::NoBarrier),
];

const COMPRESS_MODES: Names<CompressMode> =
    &[("fs", CompressMode::Fs), ("user", CompressMode::User)];
const ALGORITHMS: Names<CompressAlgorithm> = &[
    ("lzo", CompressAlgorithm::Lzo),
    ("lz4", CompressAlgorithm::Lz4),
    ("zstd", CompressAlgorithm::Zstd),
    ("lzo-rle", CompressAlgorithm::LzoRle),
];

const NAMED_QUOTA: &str = "quota files with names are not kept up, only those of the feature quota";
const GONE: &str = "Linux removed it, too";
const TIMES: &str = "times are written with the inode at each checkpoint";
const TESTING: &str = "is for testing kernels";

type Opt = Entry<MountOptions>;

/// Every option of f2fs that Linux knows, and our own.
pub const TABLE: Table<MountOptions> = Table(&[Common::<MountOptions>::ENTRIES, OWN]);

/// The options that ext4 does not have, or has with other values.
pub const OWN: &[Entry<MountOptions>] = &[
    Opt::flag("norecovery", |o| o.no_recovery = true)
        .help(
            F2fs,
            "what fsync wrote after the last checkpoint is not recovered (roll-forward); only with ro",
        )
        .current(Changed, |o| o.no_recovery.then(|| "norecovery".into()))
        .fixed(),
    Opt::flag("disable_roll_forward", |o| o.no_recovery = true)
        .also()
        .fixed(),
    Opt::flag("atgc", |o| o.atgc = true)
        .help(
            F2fs,
            "background GC selects victims by age, on a volume that was mounted for a week in its life; .steadfs/f2fs/atgc_* tunes it",
        )
        .current(Changed, |o| o.atgc.then(|| "atgc".into()))
        .fixed(),
    Opt::flag("disable_ext_identify", |o| o.ext_identify = false)
        .help(F2fs, "file names do not select hot and cold segments")
        .current(Changed, |o| {
            (!o.ext_identify).then(|| "disable_ext_identify".into())
        }),
    Opt::flag("fastboot", |o| o.fastboot = true)
        .help(
            F2fs,
            "each fsync writes a checkpoint, so the next mount has nothing to recover",
        )
        .current(Changed, |o| o.fastboot.then(|| "fastboot".into())),
    Opt::flag("atomic_write", |o| o.atomic_write = true)
        .help(
            F2fs,
            "files can be written atomically (SQLite's batch commit); opens and closes cost more",
        )
        .current(Changed, |o| {
            o.atomic_write.then(|| "atomic_write".into())
        })
        .fixed(),
    Opt::flag("data_flush", |o| o.data_flush = true)
        .help(F2fs, "background checkpoints write file data first")
        .current(Changed, |o| o.data_flush.then(|| "data_flush".into())),
    Opt::flag("gc_merge", |o| o.gc_merge = true)
        .help(
            F2fs,
            "a task that needs free segments waits for the GC thread, or runs GC itself",
        )
        .current(Always, |o| word(o.gc_merge, "gc_merge", "nogc_merge")),
    Opt::flag("nogc_merge", |o| o.gc_merge = false).also(),
    Opt::flag("discard", |o| o.discard = Some(true))
        .help_with_default(
            F2fs,
            "freed blocks are discarded after the checkpoint that freed them",
            "if the device supports it",
        )
        .current(Changed, |o| word(o.discard?, "discard", "nodiscard")),
    Opt::flag("nodiscard", |o| o.discard = Some(false)).also(),
    Opt::flag("inline_xattr", |o| o.inline_xattr = true)
        .help(F2fs, "new inodes reserve space for attributes")
        .current(Always, |o| {
            word(o.inline_xattr, "inline_xattr", "noinline_xattr")
        }),
    Opt::flag("noinline_xattr", |o| o.inline_xattr = false).also(),
    Opt::flag("inline_data", |o| o.inline_data = true)
        .help(F2fs, "small files are stored in their inodes")
        .current(Always, |o| {
            word(o.inline_data, "inline_data", "noinline_data")
        }),
    Opt::flag("noinline_data", |o| o.inline_data = false).also(),
    Opt::flag("inline_dentry", |o| o.inline_dentry = true)
        .help(F2fs, "small directories are stored in their inodes")
        .current(Always, |o| {
            word(o.inline_dentry, "inline_dentry", "noinline_dentry")
        }),
    Opt::flag("noinline_dentry", |o| o.inline_dentry = false).also(),
    Opt::already("flush_merge").current(Always, |_| Some("flush_merge".into())),
    Opt::flag("barrier", |o| o.barrier = true)
        .help(
            F2fs,
            "checkpoints and fsync flush the device's cache; without it a power cut can corrupt the volume",
        )
        .current(Always, |o| word(o.barrier, "barrier", "nobarrier")),
    Opt::flag("nobarrier", |o| o.barrier = false).also(),
    Opt::already("extent_cache").current(Always, |_| Some("extent_cache".into())),
    Opt::flag("checkpoint_merge", |o| o.checkpoint_merge = true)
        .help(F2fs, "concurrent requests for a checkpoint share one")
        .current(Always, |o| {
            word(o.checkpoint_merge, "checkpoint_merge", "nocheckpoint_merge")
        }),
    Opt::flag("nocheckpoint_merge", |o| o.checkpoint_merge = false).also(),
    Opt::value("background_gc", "=on|off|sync", |o, v| {
        choice(v, BACKGROUND_GC).map(|gc| o.background_gc = gc)
    })
    .help(
        F2fs,
        "GC while the volume is idle; sync: it writes what it moves at once",
    )
    .current(Always, |o| {
        named("background_gc", name_of(o.background_gc, BACKGROUND_GC))
    }),
    Opt::value("gc_policy", "=default|2013", |o, v| {
        choice(v, GC_POLICIES).map(|policy| o.gc_policy = policy)
    })
    .help(
        F2fs,
        "GC and segment allocation as in Linux 6.18, or as in Linux 3.11, which max_victim_search was measured on; for experiments",
    )
    .current(Changed, |o| {
        named("gc_policy", name_of(o.gc_policy, GC_POLICIES))
    }),
    Opt::value("discard_unit", "=block|segment|section", |o, v| {
        choice(v, DISCARD_UNITS).map(|unit| o.discard_unit = unit)
    })
    .help(F2fs, "the smallest unit that is discarded")
    .current(Always, |o| {
        named("discard_unit", name_of(o.discard_unit, DISCARD_UNITS))
    })
    .fixed(),
    Opt::value("mode", "=adaptive|lfs", set_mode)
        .help(
            F2fs,
            "blocks are written where it costs least (free segments, SSR, IPU), or always to free segments",
        )
        .current(Always, |o| named("mode", name_of(o.mode, MODES)))
        .fixed(),
    Opt::value("alloc_mode", "=default|reuse", |o, v| {
        choice(v, ALLOC_MODES).map(|mode| o.alloc_mode = Some(mode))
    })
    .help_with_default(
        F2fs,
        "the next free segment is the one after the last, or the first of the volume",
        "reuse up to 16 GiB",
    )
    .current(Changed, |o| {
        named("alloc_mode", name_of(o.alloc_mode?, ALLOC_MODES))
    }),
    Opt::value("fsync_mode", "=posix|strict|nobarrier", |o, v| {
        choice(v, FSYNC_MODES).map(|mode| o.fsync_mode = mode)
    })
    .help(
        F2fs,
        "what fsync makes durable: the file; also the names that lead to it; the file, without a FLUSH",
    )
    .current(Always, |o| {
        named("fsync_mode", name_of(o.fsync_mode, FSYNC_MODES))
    }),
    Opt::value("lookup_mode", "=perf|compat|auto", |o, v| {
        choice(v, LOOKUP_MODES).map(|mode| o.lookup_mode = mode)
    })
    .help(
        F2fs,
        "names in casefolded directories are found by their hash; also those that Linux 6.12 put elsewhere; the latter unless the superblock rules it out",
    )
    .current(Always, |o| {
        named("lookup_mode", name_of(o.lookup_mode, LOOKUP_MODES))
    }),
    Opt::no_effect_but(
        "memory",
        "normal",
        "cache_size= says how much memory is used",
        |_, v| choice(v.unwrap_or_default(), &[("normal", ()), ("low", ())]),
    )
    .current(Always, |_| named("memory", "normal")),
    Opt::value("errors", "=continue|remount-ro", |o, v| {
        parse_errors(v).map(|on| o.errors = on)
    })
    .help(F2fs, "what the volume does when it finds corruption")
    .current(Always, |o| named("errors", name_of(o.errors, ERRORS))),
    Opt::value("active_logs", "=2|4|6", |o, v| {
        choice(v, &[("2", 2), ("4", 4), ("6", 6)]).map(|logs| o.active_logs = logs)
    })
    .help(F2fs, "logs (cursegs) that are written side by side")
    .current(Always, |o| named("active_logs", o.active_logs))
    .fixed(),
    Opt::value("inline_xattr_size", "=WORDS", |o, v| {
        number(v, XATTR_WORDS).map(|words| o.inline_xattr_size = Some(words))
    })
    .help_with_default(
        F2fs,
        "space for attributes in new inodes, in units of 4 bytes; needs the feature flexible_inline_xattr",
        "50",
    )
    .current(Changed, |o| named("inline_xattr_size", o.inline_xattr_size?)),
    Opt::value("reserve_root", "=BLOCKS", |o, v| {
        number(v, 0..=u32::MAX).map(|blocks| o.reserve_root = blocks)
    })
    .help(F2fs, "blocks reserved for root, resuid= and resgid=")
    .current(Changed, |o| named("reserve_root", o.reserve_root)),
    Opt::value(
        "checkpoint",
        "=enable|disable[:BLOCKS|:PERCENT%]",
        set_checkpoint,
    )
    .help_with_default(
        F2fs,
        "disable: nothing is durable until checkpoint=enable, and an unmount or a power cut restores the last checkpoint; \
         at most BLOCKS or PERCENT of the volume may become unusable meanwhile",
        "enable",
    )
    .current(Changed, |o| match o.checkpoint_off? {
        Unusable::Blocks(blocks) => named("checkpoint", format_args!("disable:{blocks}")),
        Unusable::Percent(percent) => named("checkpoint", format_args!("disable:{percent}%")),
    }),
    Opt::value("compress_algorithm", "=lz4|zstd|lzo|lzo-rle[:LEVEL]", set_algorithm)
        .help_with_default(
            F2fs,
            "how new compressed files are compressed (feature compression); levels are stored for Linux, here each algorithm has one",
            "lz4",
        )
        .current(Changed, |o| {
            let name = name_of(o.compress.algorithm, ALGORITHMS);
            match o.compress.level {
                0 => named("compress_algorithm", name),
                level => named("compress_algorithm", format_args!("{name}:{level}")),
            }
        }),
    Opt::value("compress_log_size", "=LOG2", |o, v| {
        number(v, Compression::LOG_CLUSTERS).map(|log| o.compress.log_cluster = log)
    })
    .help(F2fs, "log2 of the blocks that new compressed files compress together (clusters), 2 to 8")
    .current(Changed, |o| named("compress_log_size", o.compress.log_cluster)),
    Opt::value("compress_extension", "=EXT", |o, v| {
        add_extension(v, &mut o.compress.extensions)
    })
    .help_with_default(
        F2fs,
        "new files whose names end so are compressed, * for all; can be repeated. Others are in directories with the flag (chattr +c)",
        "none",
    )
    .current(Changed, |o| listed("compress_extension", &o.compress.extensions)),
    Opt::value("nocompress_extension", "=EXT", |o, v| match v {
        "*" => Err("is the ending of some names, not of all".to_owned()),
        v => add_extension(v, &mut o.compress.not_extensions),
    })
    .help_with_default(F2fs, "new files whose names end so are not compressed; can be repeated", "none")
    .current(Changed, |o| listed("nocompress_extension", &o.compress.not_extensions)),
    Opt::flag("compress_chksum", |o| o.compress.checksum = true)
        .help(F2fs, "clusters of new compressed files have a checksum")
        .current(Changed, |o| o.compress.checksum.then(|| "compress_chksum".into())),
    Opt::value("compress_mode", "=fs|user", |o, v| {
        choice(v, COMPRESS_MODES).map(|mode| o.compress.mode = mode)
    })
    .help(
        F2fs,
        "when files with the flag are compressed: as they are written, or by F2FS_IOC_COMPRESS_FILE only",
    )
    .current(Changed, |o| named("compress_mode", name_of(o.compress.mode, COMPRESS_MODES))),
    Opt::value("device", "=PATH", |o, v| {
        if v.is_empty() {
            return Err("needs the path of a device or image".to_owned());
        }
        o.devices.push(PathBuf::from(v));
        Ok(())
    })
    .help_with_default(
        F2fs,
        "another device of a volume on several: one item for each but the first, in the order that inspect shows",
        "none",
    )
    .current(Changed, |o| {
        let paths: Vec<String> = o.devices.iter().map(|path| path.display().to_string()).collect();
        listed("device", &paths)
    })
    .fixed(),
    // These hold in any case.
    Opt::already("offusrjquota"),
    Opt::already("offgrpjquota"),
    Opt::already("offprjjquota"),
    // Accepted: they request speed only, or have no effect in Linux either.
    Opt::no_effect("lazytime", TIMES),
    Opt::no_effect(
        "noextent_cache",
        "where blocks lie is always kept in memory",
    ),
    Opt::no_effect("noflush_merge", "concurrent flushes are always merged"),
    Opt::no_effect("age_extent_cache", "the age of blocks is not followed"),
    Opt::no_effect("nat_bits", "mounting reads the table without them"),
    Opt::no_effect(
        "compress_cache",
        "read blocks of compressed files are cached anyway",
    ),
    Opt::no_effect("io_bits", GONE).arg("="),
    Opt::no_effect("heap", GONE),
    Opt::no_effect("no_heap", GONE),
    Opt::no_effect("whint_mode", GONE).arg("="),
    Opt::no_effect("usrjquota", NAMED_QUOTA).arg("="),
    Opt::no_effect("grpjquota", NAMED_QUOTA).arg("="),
    Opt::no_effect("prjjquota", NAMED_QUOTA).arg("="),
    Opt::no_effect_if("jqfmt", "=", NAMED_QUOTA, |_, v| {
        choice(v.unwrap_or_default(), QUOTA_FORMATS)
    }),
    // Refused.
    Opt::refused("reserve_node", "only blocks are reserved (reserve_root)"),
    Opt::refused("fault_injection", TESTING),
    Opt::refused("fault_type", TESTING),
];

/// `lz4`, `zstd:6` and the like.
fn set_algorithm(options: &mut MountOptions, value: &str) -> Result<(), String> {
    let (name, level) = match value.split_once(':') {
        Some((name, level)) => (name, Some(level)),
        None => (value, None),
    };
    let algorithm = choice(name, ALGORITHMS)?;
    let level = match (level, algorithm) {
        (Some(_), CompressAlgorithm::Lzo | CompressAlgorithm::LzoRle) => {
            return Err("has no levels".to_owned());
        }
        (Some(level), _) => number(level, 1..=22)?,
        // Linux stores its default for this one.
        (None, CompressAlgorithm::Zstd) => 1,
        (None, _) => 0,
    };
    (options.compress.algorithm, options.compress.level) = (algorithm, level);
    Ok(())
}

/// Adds an ending of file names to a list; `*` stands for all.
fn add_extension(value: &str, list: &mut Vec<String>) -> Result<(), String> {
    /// `COMPRESS_EXT_NUM`.
    const MOST: usize = 16;
    if value.is_empty() {
        return Err("needs the ending of file names, or *".to_owned());
    }
    if value.len() >= EXTENSION_BYTES {
        return Err(format!("is shorter than {EXTENSION_BYTES} bytes"));
    }
    if list.iter().any(|known| known.eq_ignore_ascii_case(value)) {
        return Ok(());
    }
    if list.len() == MOST {
        return Err(format!("is given at most {MOST} times"));
    }
    list.push(value.to_owned());
    Ok(())
}

/// An item for each value of an option that can be repeated.
fn listed(name: &str, values: &[String]) -> Option<String> {
    let items: Vec<_> = values
        .iter()
        .filter_map(|value| named(name, value))
        .collect();
    (!items.is_empty()).then(|| items.join(","))
}

/// `enable`, `disable`, `disable:BLOCKS`, `disable:PERCENT%`.
fn set_checkpoint(options: &mut MountOptions, value: &str) -> Result<(), String> {
    options.checkpoint_off = match value.split_once(':') {
        None if value == "enable" => None,
        // The limit of an earlier item stays.
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

/// The item of an option with a value.
fn named(name: &str, value: impl Display) -> Option<String> {
    Some(item(name, Some(&value.to_string())))
}
