//! Consistent volumes: no issue.

use super::*;
use crate::test_support::tree::{MATRIX, make_tree};

#[test]
fn empty_volumes() {
    let kinds: &[(&[&str], u64)] = &[
        (&[], 64),
        (&["-i"], 64),
        (&["-s", "2"], 300),
        (&["-s", "4", "-z", "2"], 512),
        (&["-o", "30"], 100),
        (&["-O", LOAD_FEATURES], 128),
        (&["-O", "extra_attr,project_quota,quota"], 128),
        (&["-O", "extra_attr,casefold", "-C", "utf8"], 128),
        (&["-l", "a label"], 4096),
        (&["-i"], 1 << 20),
    ];
    for (options, mib) in kinds {
        let image = Image::make(options, *mib);
        let report = assert_clean(&image, options);
        assert!(report.stats.unmounted && report.stats.dirs >= 1);
    }
}

#[test]
fn loaded_volumes() {
    let tree = tempfile::tempdir().unwrap();
    make_tree(tree.path());
    for options in MATRIX {
        let image = Image::make(options, 300);
        image.load(tree.path(), &[]);
        let report = assert_clean(&image, options);
        assert!(report.stats.files > 3000, "{:?}", report.stats);
        assert!(report.stats.names > 3000 && report.stats.symlinks == 2);
    }
}
