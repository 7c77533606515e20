use steadfs_vfs::options::items;

use super::*;

#[track_caller]
fn fails(list: &str, sentence: &str) {
    match MountOptions::parse(list) {
        Err(FsError::BadOption(said)) => assert_eq!(said, sentence),
        other => panic!("{list}: {other:?}"),
    }
}

#[test]
fn nothing_means_the_defaults() {
    assert_eq!(MountOptions::parse(""), Ok(MountOptions::default()));
    let shown = MountOptions::default().show();
    assert_eq!(
        MountOptions::parse(&shown),
        MountOptions::parse("user_xattr,acl")
    );
}

#[test]
fn what_the_kernel_shows_is_the_default() {
    // /proc/mounts of Linux 6.18 on a volume of default features, without the words that say what the
    // device can (discard) and how large it is (alloc_mode).
    let shown = "rw,relatime,background_gc=on,nogc_merge,discard_unit=block,user_xattr,inline_xattr,\
                 acl,inline_data,inline_dentry,flush_merge,barrier,checkpoint=enable,extent_cache,mode=adaptive,\
                 active_logs=6,checkpoint_merge,fsync_mode=posix,memory=normal,errors=continue";
    let options = MountOptions::parse(shown).unwrap();
    let ours = options.show();
    let missing: Vec<_> = shown
        .split(',')
        .filter(|item| !ours.split(',').any(|our| our == *item))
        .collect();
    // That checkpoints are written is shown by their merging.
    assert_eq!(missing, ["checkpoint=enable"]);
    assert_eq!(MountOptions::parse(&ours), Ok(options));
}

#[test]
fn what_is_shown_is_read_back() {
    let lists = [
        "ro,noatime,norecovery,noacl,errors=remount-ro",
        "rw,sync,dirsync,relatime,nodiratime,nouser_xattr",
        "rw,relatime,gc_policy=2013,nodiscard",
        "rw,relatime,gc_merge,atgc,nodiscard,background_gc=off,discard_unit=section",
        "rw,relatime,discard,background_gc=sync,discard_unit=segment",
        "rw,relatime,disable_ext_identify,noinline_xattr,noinline_data,noinline_dentry",
        "rw,relatime,nobarrier,fastboot,atomic_write,data_flush,nocheckpoint_merge",
        "rw,relatime,mode=lfs,alloc_mode=reuse,fsync_mode=strict,active_logs=2",
        "rw,relatime,alloc_mode=default,fsync_mode=nobarrier,active_logs=4",
        "rw,relatime,inline_xattr_size=6,reserve_root=32768,resuid=0,resgid=1065",
        "rw,relatime,checkpoint=disable",
        "rw,relatime,checkpoint=disable:4096",
        "rw,relatime,checkpoint=disable:7%",
    ];
    for list in lists {
        let options = MountOptions::parse(list).expect(list);
        assert_ne!(options, MountOptions::default());
        let read = MountOptions::parse(&options.show()).expect(list);
        let mut shown = options;
        shown.common.user_xattr = read.common.user_xattr;
        shown.common.acl = read.common.acl;
        assert_eq!(read, shown, "{list}");
    }
}

#[test]
fn later_items_win() {
    let options = MountOptions::parse(
        "ro,sync,nobarrier,fsync_mode=strict,rw,async,barrier,fsync_mode=posix",
    );
    assert_eq!(options, Ok(MountOptions::default()));
}

/// Lists with mistakes, and the message.
const MISTAKES: [(&str, &str); 18] = [
    (
        "norecovery",
        "option norecovery: needs ro, for a volume is only written after its recovery",
    ),
    (
        "gc_policy=2014",
        "option gc_policy=2014: is one of default, 2013",
    ),
    (
        "gc_policy=2013,mode=lfs",
        "option gc_policy=2013: fills holes, which mode=lfs forbids",
    ),
    (
        "gc_policy=2013,atgc",
        "option atgc: is none of the rules of gc_policy=2013",
    ),
    ("noatme", "option noatme: unknown; did you mean noatime?"),
    (
        "errors=panic",
        "option errors=panic: a program cannot halt the machine; use errors=remount-ro",
    ),
    ("active_logs=3", "option active_logs=3: is one of 2, 4, 6"),
    (
        "inline_xattr_size=5",
        "option inline_xattr_size=5: needs a number from 6 to 903",
    ),
    (
        "checkpoint=disable:101%",
        "option checkpoint=disable:101%: needs a number from 0 to 100",
    ),
    (
        "ro,checkpoint=disable",
        "option checkpoint=disable: does not go with ro; checkpoint=enable comes first",
    ),
    (
        "compress_algorithm=lz5",
        "option compress_algorithm=lz5: is one of lzo, lz4, zstd, lzo-rle",
    ),
    (
        "compress_algorithm=lzo:3",
        "option compress_algorithm=lzo:3: has no levels",
    ),
    (
        "compress_log_size=9,compress_extension=too_long,norecovery",
        "option compress_log_size=9: needs a number from 2 to 8; \
         option compress_extension=too_long: is shorter than 8 bytes",
    ),
    (
        "nocompress_extension=*",
        "option nocompress_extension=*: is the ending of some names, not of all",
    ),
    (
        "compress_extension=txt,nocompress_extension=TXT",
        "options compress_extension and nocompress_extension: both have txt",
    ),
    (
        "norecovery,gc_policy=2013,atgc",
        "option norecovery: needs ro, for a volume is only written after its recovery; \
         option atgc: is none of the rules of gc_policy=2013",
    ),
    (
        "fsync_mode",
        "option fsync_mode: needs a value (fsync_mode=…)",
    ),
    (
        "mode=fragment:block",
        "option mode=fragment:block: is for experiments with kernels; use mode=adaptive",
    ),
];

#[test]
fn mistakes_name_the_option() {
    for (list, message) in MISTAKES {
        fails(list, message);
    }
    for value in [
        "off",
        "disable:",
        "disable:%",
        "disable:-1",
        "disable:1x",
        "enable:3",
        "",
    ] {
        let list = format!("checkpoint={value}");
        assert!(MountOptions::parse(&list).is_err(), "{list}");
    }
}

#[test]
fn some_need_a_feature_or_a_new_mount() {
    let options = MountOptions::parse("inline_xattr_size=20").unwrap();
    assert!(options.check_features(Features::EXTRA_ATTR).is_err());
    let flexible = Features::FLEXIBLE_INLINE_XATTR;
    assert_eq!(options.check_features(flexible), Ok(()));
    let projects = MountOptions::parse("prjquota,inline_xattr_size=20").unwrap();
    let said = projects.check_features(Features::default());
    let said = said.unwrap_err().to_string();
    assert!(
        said.contains("flexible_inline_xattr; option prjquota: "),
        "{said}"
    );
    let all = flexible.union(Features::PROJECT_QUOTA);
    assert_eq!(projects.check_features(all), Ok(()));
    for list in [
        "norecovery",
        "active_logs=2",
        "mode=lfs",
        "atgc",
        "noacl",
        "discard_unit=section",
    ] {
        assert!(options.remounted(list).is_err(), "{list}");
    }
    let new = options.remounted("noatime,acl,fsync_mode=strict").unwrap();
    let shown = new.show();
    for item in ["rw", "noatime", "fsync_mode=strict", "inline_xattr_size=20"] {
        assert!(
            shown.split(',').any(|shown| shown == item),
            "{item}: {shown}"
        );
    }
}

#[test]
fn percents_become_blocks() {
    let mut options = MountOptions::parse("checkpoint=disable:7%").unwrap();
    options.settle(1050);
    assert!(options.show().ends_with(",checkpoint=disable:70"));
    let mut all = MountOptions::parse("checkpoint=disable:100%").unwrap();
    all.settle(1050);
    assert_eq!(all.checkpoint_off, Some(Unusable::Blocks(1050)));
    let on = options.remounted("checkpoint=enable").unwrap();
    assert_eq!(on.checkpoint_off, None);
    let again = options.remounted("checkpoint=disable").unwrap();
    assert_eq!(again.checkpoint_off, Some(Unusable::Blocks(70)));
    assert!(options.remounted("ro").is_err());
}

/// What becomes of an option of the kernel's page here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Here {
    /// It changes something, and is shown.
    Does,
    /// It is the default, or what is always so.
    IsSo,
    /// Accepted without effect, with a reason that begins so.
    Idle(&'static str),
    /// Refused by name, with a reason or a way out that begins so.
    Not(&'static str),
}

use Here::{Does, Idle, IsSo, Not};

const NAMED_QUOTAS: Here = Idle("quota files with names are not kept up");
const FOR_TESTS: Here = Not("is for testing kernels");
const IS_GONE: Here = Idle("Linux removed it, too");

/// Every option of Documentation/filesystems/f2fs.rst of Linux 6.18, line by line, with each value that it names; at the
/// end the options that fs/f2fs/super.c accepts and the page lacks.
#[rustfmt::skip]
const PAGE: &[(&str, Here)] = &[
    ("background_gc=on", IsSo), ("background_gc=off", Does), ("background_gc=sync", Does),
    ("gc_merge", Does), ("nogc_merge", IsSo),
    ("ro,disable_roll_forward", Does), ("ro,norecovery", Does),
    ("discard", Does), ("nodiscard", Does),
    ("heap", IS_GONE), ("no_heap", IS_GONE),
    ("nouser_xattr", Does), ("noacl", Does),
    ("active_logs=2", Does), ("active_logs=4", Does), ("active_logs=6", IsSo),
    ("disable_ext_identify", Does),
    ("inline_xattr", IsSo), ("noinline_xattr", Does), ("inline_xattr_size=100", Does),
    ("inline_data", IsSo), ("noinline_data", Does), ("inline_dentry", IsSo), ("noinline_dentry", Does),
    ("flush_merge", IsSo), ("noflush_merge", Idle("concurrent flushes are always merged")),
    ("nobarrier", Does), ("barrier", IsSo),
    ("fastboot", Does),
    ("extent_cache", IsSo), ("noextent_cache", Idle("where blocks lie is always kept")),
    ("data_flush", Does),
    ("reserve_root=4096", Does), ("resuid=7", Does), ("resgid=7", Does),
    ("fault_injection=3", FOR_TESTS), ("fault_type=3", FOR_TESTS),
    ("mode=adaptive", IsSo), ("mode=lfs", Does),
    ("mode=fragment:segment", Not("is for experiments")), ("mode=fragment:block", Not("is for experiments")),
    ("usrquota", Does), ("grpquota", Does), ("prjquota", Does),
    ("usrjquota=file", NAMED_QUOTAS), ("grpjquota=file", NAMED_QUOTAS), ("prjjquota=file", NAMED_QUOTAS),
    ("jqfmt=vfsv1", NAMED_QUOTAS),
    ("offusrjquota", IsSo), ("offgrpjquota", IsSo), ("offprjjquota", IsSo),
    ("quota", Does), ("noquota", IsSo),
    ("alloc_mode=reuse", Does), ("alloc_mode=default", Does),
    ("fsync_mode=posix", IsSo), ("fsync_mode=strict", Does), ("fsync_mode=nobarrier", Does),
    ("test_dummy_encryption", FOR_TESTS), ("test_dummy_encryption=v2", FOR_TESTS),
    ("checkpoint=enable", IsSo), ("checkpoint=disable", Does), ("checkpoint=disable:7", Does),
    ("checkpoint=disable:7%", Does),
    ("checkpoint_merge", IsSo), ("nocheckpoint_merge", Does),
    ("compress_algorithm=lz4", IsSo), ("compress_algorithm=zstd:3", Does), ("compress_log_size=4", Does),
    ("compress_extension=txt", Does), ("nocompress_extension=txt", Does),
    ("compress_chksum", Does), ("compress_mode=fs", IsSo), ("compress_mode=user", Does),
    ("compress_cache", Idle("read blocks of compressed files are cached")),
    ("inlinecrypt", Idle("encrypted files have no key")),
    ("atgc", Does),
    ("discard_unit=block", IsSo), ("discard_unit=segment", Does), ("discard_unit=section", Does),
    ("memory=normal", IsSo), ("memory=low", Idle("cache_size= says")),
    ("age_extent_cache", Idle("the age of blocks is not followed")),
    ("errors=continue", IsSo), ("errors=remount-ro", Does), ("errors=panic", Not("a program cannot halt")),
    ("nat_bits", Idle("mounting reads the table")),
    // Not on the page.
    ("user_xattr", Does), ("acl", Does),
    ("io_bits=1", IS_GONE), ("whint_mode=off", IS_GONE),
    ("reserve_node=7", Not("only blocks are reserved")),
    ("lookup_mode=perf", IsSo), ("lookup_mode=auto", Does), ("lookup_mode=compat", Does),
    ("lazytime", Idle("times are written with the inode")), ("nolazytime", IsSo),
];

/// What mount(8) has for every file system, and what is only ours.
const OTHERS: &[&str] = &[
    "device",
    "atomic_write",
    "ro",
    "rw",
    "noatime",
    "atime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "nodiratime",
    "diratime",
    "sync",
    "async",
    "dirsync",
    "gc_policy",
];

#[test]
fn every_option_of_the_kernels_page_is_taken_or_refused_by_name() {
    for &(list, here) in PAGE {
        let found = MountOptions::parse(list);
        let found = match (&found, here) {
            (Ok(_), Idle(reason)) => {
                let (name, value) = items(list).next().unwrap();
                let said = TABLE.no_effect_because(name, value);
                assert!(
                    said.is_some_and(|said| said.starts_with(reason)),
                    "{list}: {said:?}"
                );
                here
            }
            (Ok(options), _) if *options == MountOptions::default() => {
                let all: Vec<_> = items(list).collect();
                let idle = all
                    .iter()
                    .any(|(n, v)| TABLE.no_effect_because(n, *v).is_some());
                assert!(!idle, "{list}");
                IsSo
            }
            (Ok(options), _) => {
                let again = MountOptions::parse(&options.show()).unwrap();
                assert_eq!(again.show(), options.show(), "{list}");
                Does
            }
            (Err(FsError::BadOption(said)), Not(reason)) => {
                let begin = format!("option {list}: {reason}");
                assert!(said.starts_with(&begin), "{said}");
                here
            }
            (error, _) => panic!("{list}: {error:?}"),
        };
        assert_eq!(found, here, "{list}");
    }
}

#[test]
fn no_option_is_offered_that_nobody_knows() {
    let name = |list: &'static str| {
        let item = list.strip_prefix("ro,").unwrap_or(list);
        item.split_once('=').map_or(item, |(name, _)| name)
    };
    let known: Vec<&str> = PAGE.iter().map(|(list, _)| name(list)).collect();
    for entry in TABLE.entries() {
        let is_known = known.contains(&entry.name) != OTHERS.contains(&entry.name);
        assert!(is_known, "{}", entry.name);
    }
}
