//! New volumes can be mounted, whatever their size and options.

use steadfs_vfs::{Cx, FileSystem};

use super::read_only;
use crate::format::{FormatOptions, image};
use crate::{CacheSizes, F2fs};

const ALL: &str = "extra_attr,project_quota,inode_checksum,flexible_inline_xattr,inode_crtime,\
                   lost_found,verity,encrypt,compression,sb_checksum";

/// Mounts a new volume. Returns the number of names in its root; `None` if mkfs refuses it.
fn names(options: &FormatOptions, mib: u64) -> Option<usize> {
    let device = image(mib << 20, options).ok()?;
    let (fs, _) = F2fs::open(device, read_only(), CacheSizes::of(64 << 20)).unwrap();
    let mut names = 0;
    fs.readdir(&Cx::default(), fs.root(), 0, &mut |entry| {
        assert!([&b"."[..], b"..", b"lost+found"].contains(&entry.name));
        names += 1;
        true
    })
    .unwrap();
    Some(names)
}

#[test]
fn every_size_is_mounted() {
    for mib in (52..=64).chain([
        100, 200, 300, 519, 520, 521, 522, 523, 600, 1000, 1777, 4096, 10_007, 65_536,
    ]) {
        for large_nat_bitmap in [false, true] {
            let options = FormatOptions {
                large_nat_bitmap,
                ..FormatOptions::default()
            };
            assert_eq!(names(&options, mib), Some(2), "{mib} MiB");
        }
    }
}

#[test]
fn every_set_of_features_is_mounted() {
    for features in [
        ALL,
        "lost_found",
        "verity,encrypt,sb_checksum",
        "extra_attr",
        "extra_attr,flexible_inline_xattr",
        "extra_attr,inode_checksum",
        "extra_attr,project_quota",
        "extra_attr,project_quota,lost_found",
        "extra_attr,inode_crtime",
        "extra_attr,compression,inode_checksum",
    ] {
        let mut options = FormatOptions::default();
        options.set_features(features).unwrap();
        let expected = if features.contains("lost_found") {
            3
        } else {
            2
        };
        for mib in [128, 1000] {
            assert_eq!(names(&options, mib), Some(expected), "{features}");
        }
    }
}

#[test]
fn every_size_of_sections_and_zones_is_mounted() {
    let mut mounted = 0;
    for (segments_per_section, sections_per_zone) in [
        (1, 2),
        (1, 3),
        (1, 7),
        (1, 16),
        (1, 40),
        (1, 60),
        (2, 1),
        (3, 1),
        (4, 2),
        (5, 1),
        (8, 1),
        (8, 4),
        (16, 1),
        (17, 3),
        (64, 1),
        (128, 2),
    ] {
        let options = FormatOptions {
            segments_per_section,
            sections_per_zone,
            ..FormatOptions::default()
        };
        for mib in [64, 256, 1024, 1500, 8192] {
            mounted += names(&options, mib).into_iter().count();
        }
    }
    assert_eq!(mounted, 50);
}
