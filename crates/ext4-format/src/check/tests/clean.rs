//! Consistent volumes: no issue.

use super::*;

/// Options of mke2fs and the size of the volume.
const WRITABLE: &[(&[&str], &str)] = &[
    (&["-t", "ext2", "-b", "1024"], "24M"),
    (&["-t", "ext2", "-b", "4096"], "24M"),
    (&["-t", "ext2", "-r", "0", "-b", "1024"], "24M"),
    (
        &[
            "-t",
            "ext2",
            "-b",
            "1024",
            "-g",
            "1024",
            "-O",
            "^sparse_super,^resize_inode",
        ],
        "24M",
    ),
    (&["-t", "ext3", "-b", "1024"], "24M"),
    (&["-t", "ext3", "-b", "4096", "-I", "128"], "40M"),
    (&["-t", "ext4", "-b", "1024"], "24M"),
    (&["-t", "ext4", "-b", "2048"], "24M"),
    (&["-t", "ext4", "-b", "4096"], "40M"),
    (&["-t", "ext4", "-b", "32768"], "120M"),
    (&["-t", "ext4", "-b", "65536"], "200M"),
    (&["-t", "ext4", "-O", "^metadata_csum"], "24M"),
    (&["-t", "ext4", "-O", "^64bit"], "24M"),
    (&["-t", "ext4", "-O", "^flex_bg"], "24M"),
    (&["-t", "ext4", "-O", "^metadata_csum,uninit_bg"], "24M"),
    (
        &[
            "-t",
            "ext4",
            "-O",
            "^metadata_csum,uninit_bg,^64bit,^flex_bg",
        ],
        "24M",
    ),
    (&["-t", "ext4", "-I", "128"], "24M"),
    (&["-t", "ext4", "-I", "1024"], "24M"),
    (&["-t", "ext4", "-O", "^extents,^64bit"], "24M"),
    (&["-t", "ext4", "-O", "^resize_inode"], "24M"),
    (&["-t", "ext4", "-O", "orphan_file"], "24M"),
    (&["-t", "ext4", "-O", "^has_journal"], "24M"),
    (
        &[
            "-t",
            "ext4",
            "-O",
            "metadata_csum_seed,sparse_super2,fast_commit",
        ],
        "24M",
    ),
    (&["-t", "ext4", "-O", "^filetype"], "24M"),
    (
        &[
            "-t",
            "ext4",
            "-O",
            "^dir_index,^dir_nlink,^huge_file,^extra_isize",
        ],
        "24M",
    ),
    (&["-t", "ext4", "-N", "20000"], "40M"),
    (&["-t", "ext4", "-b", "1024", "-g", "1024"], "24M"),
    (&["-t", "ext4", "-O", "ea_inode"], "24M"),
    (&["-t", "ext4", "-O", "quota,project"], "24M"),
];

const READABLE: &[(&[&str], &str)] = &[
    (&["-t", "ext4", "-O", "inline_data"], "24M"),
    (
        &["-t", "ext4", "-O", "bigalloc", "-b", "1024", "-C", "4096"],
        "40M",
    ),
    (
        &["-t", "ext4", "-O", "bigalloc", "-b", "4096", "-C", "65536"],
        "120M",
    ),
    (
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-g",
            "1024",
            "-O",
            "meta_bg,^resize_inode",
        ],
        "24M",
    ),
    (
        &["-t", "ext4", "-O", "casefold,encrypt,verity,large_dir"],
        "24M",
    ),
];

fn all_clean(matrix: &[(&[&str], &str)]) -> Vec<Report> {
    let check_one = |(options, size): &(&[&str], &str)| {
        let image = populated(options, size);
        if options.iter().any(|option| option.contains("quota")) {
            // debugfs does not update quota.
            judge("e2fsck", &["-fy", image.path().to_str().unwrap()]);
        }
        let report = assert_clean(&image, options);
        assert!(report.stats.files >= 306, "{:?}", report.stats);
        assert_eq!((report.stats.symlinks, report.stats.specials), (4, 3));
        assert_eq!(report.stats.dirs, 10);
        report
    };
    matrix.iter().map(check_one).collect()
}

#[test]
fn volumes_of_the_first_circle() {
    for report in all_clean(WRITABLE) {
        assert!(report.skipped.is_empty(), "{:?}", report.skipped);
    }
}

#[test]
fn volumes_that_can_only_be_read() {
    let skipped = |report: &Report| report.skipped.join("; ");
    let reports: Vec<_> = all_clean(READABLE).iter().map(skipped).collect();
    assert!(reports[4].contains("casefold") && reports[4].contains("verity"));
}

/// Directories that e2fsck indexed, with every hash and both kinds of `char`.
#[test]
fn indexed_directories() {
    let tree = tempfile::tempdir().unwrap();
    let dir = tree.path().join("dir");
    fs::create_dir(&dir).unwrap();
    for i in 0..1500 {
        let name = format!("{}grüße-ÿþ-{i}", "x".repeat(i % 180));
        fs::write(dir.join(name), "").unwrap();
    }
    for hash in ["legacy", "half_md4", "tea"] {
        for flags in ["1", "2"] {
            for (block, csum) in [("1024", "metadata_csum"), ("4096", "^metadata_csum")] {
                let options = ["-t", "ext4", "-b", block, "-O", csum, "-N", "3000", "-d"];
                let mut options = options.to_vec();
                options.push(tree.path().to_str().unwrap());
                let image = Image::make(&options, "40M");
                image.debugfs(&format!("set_super_value flags {flags}"));
                let path = image.path();
                let path = path.to_str().unwrap();
                run("tune2fs", &["-E", &format!("hash_alg={hash}"), path]);
                let (code, words) = judge("e2fsck", &["-fyD", path]);
                assert!(code <= 1, "{words}");
                let what = (hash, flags, block);
                let report = assert_clean(&image, &what);
                assert_eq!(report.stats.indexed_dirs, 1, "{what:?}");
            }
        }
    }
}

/// Deep trees and large files, which mke2fs does not make: a file written with many holes.
#[test]
fn fragmented_files() {
    for options in [
        &["-t", "ext4", "-b", "1024"][..],
        &["-t", "ext2", "-b", "1024"],
        &["-t", "ext4", "-b", "4096", "-O", "^metadata_csum"],
    ] {
        let block: u64 = options[3].parse().unwrap();
        let tree = tempfile::tempdir().unwrap();
        let file = fs::File::create(tree.path().join("holes")).unwrap();
        for i in 0..2000 {
            std::os::unix::fs::FileExt::write_at(&file, b"data", i * 2 * block).unwrap();
        }
        // Beyond what a doubly indirect block of 1 KiB reaches.
        std::os::unix::fs::FileExt::write_at(&file, b"data", 100_000 * block).unwrap();
        let mut options = options.to_vec();
        options.extend_from_slice(&["-d", tree.path().to_str().unwrap()]);
        let image = Image::make(&options, "40M");
        assert_clean(&image, &options);
    }
}

#[test]
fn memory_and_issues_are_bounded() {
    let image = populated(&["-t", "ext4"], "24M");
    let tight = Options {
        memory_limit: 1000,
        ..Options::default()
    };
    let report = check(&image.bytes(), &tight);
    assert!(matches!(report.refused, Some(Refusal::TooLarge { .. })));
    assert!(!report.is_clean() && report.issues.is_empty());
    // Enough for the list of groups, and too little for what is in use there.
    let tight = Options {
        memory_limit: 2000,
        ..Options::default()
    };
    let report = check(&image.bytes(), &tight);
    assert!(matches!(report.refused, Some(Refusal::TooLarge { .. })));
    let mut bytes = image.bytes();
    bytes.truncate(100 << 10);
    let few = Options {
        max_issues: 3,
        ..Options::default()
    };
    let report = check(&bytes, &few);
    assert_eq!(report.issues.len(), 3);
    assert!(report.more > 0);
    assert!(matches!(report.issues[0], Issue::DeviceTooSmall { .. }));
    assert!(!check(&Vec::new(), &few).is_clean());
}

/// Its tables would have 9 GB if all its inodes were in use.
#[test]
fn an_empty_volume_of_any_size_is_checked() {
    let options = crate::format::FormatOptions {
        inode_ratio: Some(16 << 10),
        ..crate::format::FormatOptions::default()
    };
    let device = crate::format::image(16 << 40, &options).unwrap();
    let report = check(&*device, &Options::default());
    assert!(
        report.is_clean(),
        "{:?} {:?}",
        report.refused,
        report.issues
    );
    assert!(report.stats.inodes > 1_000_000_000);
}

#[test]
fn unknown_features_are_named() {
    let image = Image::make(&["-t", "ext4"], "8M");
    image.debugfs("feature FEATURE_I28");
    let report = check_image(&image);
    let names = "FEATURE_I28".to_string();
    assert_eq!(report.refused, Some(Refusal::Unsupported { names }));
    assert!(!report.is_clean() && report.issues.is_empty());
}

/// Both e2fsck -fn and this checker report the words.
#[track_caller]
fn both_find(image: &Image, words: &str) {
    let (code, said) = e2fsck(&image.path());
    assert_ne!(code, 0, "{said}");
    let report = check_image(image);
    let there = report
        .issues
        .iter()
        .any(|issue| issue.to_string().contains(words));
    assert!(there, "{words}: {:?}", report.issues);
}

#[test]
fn contexts_and_names_of_what_is_encrypted_are_checked() {
    let make = || {
        let image = Image::make(&["-t", "ext4", "-O", "encrypt"], "16M");
        let content = image.beside("content");
        std::fs::write(&content, b"x").unwrap();
        let write = format!("write {} ", content.display());
        image.debugfs(&format!("{write} f"));
        image.debugfs("mkdir d");
        image.debugfs(&format!("{write} d/motd"));
        image.debugfs(&format!("{write} d/long-enough-for-one"));
        image
    };
    let image = make();
    assert_clean(&image, &"encrypt");
    let skipped = check_image(&image).skipped;
    assert!(
        skipped.iter().any(|what| what.contains("encrypt")),
        "{skipped:?}"
    );
    image.debugfs("set_inode_field f flags 0x80800");
    both_find(&image, "has no encryption context");
    let image = make();
    image.debugfs("set_inode_field d flags 0x80800");
    both_find(&image, "\"motd\" is shorter than an encrypted name");
    both_find(
        &image,
        "\"long-enough-for-one\" names an inode that is not encrypted",
    );
}

#[test]
fn quota_files_have_numbers_that_they_can_have() {
    for (field, number) in [("usr_quota_inum", 1), ("grp_quota_inum", 9999)] {
        let image = Image::make(&["-t", "ext4", "-O", "quota"], "16M");
        image.debugfs(&format!("set_super_value {field} {number}"));
        both_find(&image, "which no quota file is");
    }
}

#[test]
fn usage_in_quota_files_is_compared() {
    let image = populated(&["-t", "ext4", "-O", "quota,project,ea_inode"], "24M");
    both_find(&image, "quota of user 0: ");
    judge("e2fsck", &["-fy", image.path().to_str().unwrap()]);
    assert_clean(&image, &"quota");
    image.debugfs("set_inode_field <11> uid 70000");
    both_find(
        &image,
        "quota of user 70000: 0 bytes and 0 inodes, counted ",
    );
    image.debugfs("set_inode_field <11> uid 0");
    image.debugfs("zap_block -f <4> 0");
    both_find(
        &image,
        "quota file 4 does not have the magic number of its kind",
    );
}

/// Each inode that shares an attribute block counts the inodes that are values in it, too.
#[test]
fn values_of_a_shared_attribute_block_count_for_each_owner() {
    let make = [
        "-t",
        "ext4",
        "-b",
        "1024",
        "-I",
        "128",
        "-O",
        "ea_inode,quota,^metadata_csum",
    ];
    let image = Image::make(&make, "16M");
    let value = image.beside("value");
    std::fs::write(&value, vec![b'v'; 3000]).unwrap();
    for name in ["a", "b"] {
        image.debugfs(&format!("write /dev/null {name}"));
    }
    image.debugfs(&format!("ea_set -f {} a user.large", value.display()));
    let shown = image.debugfs("stat a");
    let block = shown.split_once("File ACL: ").expect("a block").1;
    let block = block.split_whitespace().next().unwrap();
    image.debugfs(&format!("sif b file_acl {block}"));
    // e2fsck counts the reference, the blocks and the usage.
    let (code, said) = judge("e2fsck", &["-fy", image.path().to_str().unwrap()]);
    assert_eq!(code, 1, "{said}");
    let report = check(&*image.device(), &Options::default());
    assert!(report.is_clean(), "{:?}", report.issues);
}
