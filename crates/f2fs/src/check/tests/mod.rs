//! The checker against f2fs-tools: both must find the same volumes clean, and the same damaged.

mod clean;
mod damage;
mod flips;
mod provoked;
mod reading;

use std::path::Path;

use super::*;
use crate::disk::test_images::{Image, LOAD_FEATURES, judge};

/// What `fsck.f2fs --dry-run` says of an image file: its exit code (0 is clean) and its words.
fn fsck(path: &Path) -> (i32, String) {
    let output = judge("fsck.f2fs")
        .args(["--dry-run", path.to_str().unwrap()])
        .output()
        .unwrap();
    let code = output.status.code().unwrap_or(-1);
    (code, String::from_utf8_lossy(&output.stdout).into_owned())
}

fn words(report: &Report) -> Vec<String> {
    report.issues.iter().map(ToString::to_string).collect()
}

#[track_caller]
fn assert_clean(image: &Image, what: &dyn std::fmt::Debug) -> Report {
    let file = std::fs::File::open(image.path()).unwrap();
    let report = check(&file, &Options::default());
    assert!(report.is_clean(), "{what:?}: {:#?}", words(&report));
    let (code, words) = fsck(&image.path());
    assert_eq!(code, 0, "{what:?}: {words}");
    report
}
