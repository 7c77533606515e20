//! The conformance suite: each function is a test of the trait for one kind of volume, and `on!` and `on_every!`
//! list the kinds that it runs for.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use steadfs_conformance::KINDS;

/// A test for each of these functions and kinds; its name is that of the function, then that of the kind.
macro_rules! on {
    ($kinds:tt $($test:ident),+ $(,)?) => { $(on!(@one $kinds $test);)+ };
    (@one ($($kind:ident)+) $test:ident) => {
        mod $test {
            $(#[test]
            fn $kind() {
                super::$test(steadfs_conformance::kind(stringify!($kind)));
            })+
        }
    };
}

/// Tests for every kind.
macro_rules! on_every {
    ($($tests:tt)+) => {
        on!((
            ext2 ext3 ext4_1k ext4_4k ext4_no_journal ext4_indirect ext4_unindexed ext4_orphan_file ext4_small_inodes
            ext4_large_inodes ext4_64k
            f2fs f2fs_all f2fs_two_logs f2fs_four_logs f2fs_not_inline f2fs_xattr_nodes f2fs_small_xattrs f2fs_lfs
        ) $($tests)+);
    };
}

mod acl;
mod attr;
mod data;
mod faults;
mod freeze;
mod hand_over;
mod namei;
mod numbers;
mod options;
mod release;
mod remount;
mod sealing;
mod sync;
mod verity;
mod xattr;

/// `on_every!` is the table of kinds.
mod table {
    fn named(kind: &'static steadfs_conformance::Kind) {
        assert!(super::KINDS.iter().any(|one| std::ptr::eq(one, kind)));
    }
    on_every!(named);

    #[test]
    fn every_kind_is_tested() {
        let source = include_str!("main.rs");
        let list = source.split("on!((").nth(1).unwrap();
        let list = list.split(')').next().unwrap();
        let listed: Vec<_> = list.split_whitespace().collect();
        let all: Vec<_> = super::KINDS.iter().map(|kind| kind.name).collect();
        assert_eq!(listed, all);
    }
}
