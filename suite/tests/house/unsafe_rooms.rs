//! Unsafe code: where it may be.
//!
//! Rule: the root of every crate forbids it, so that no attribute below can allow it, except the roots of [`ROOMS`]. Those,
//! and tests (which are crates of their own), deny it by the workspace's lints; [`FILES`] are the files that allow it
//! for themselves.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Crates that have unsafe code, and what it is for.
const ROOMS: &[(&str, &str)] = &[
    ("rt", "coroutines, and system calls on threads"),
    ("block", "aligned buffers, the device's io_uring and ioctls"),
    ("fuse", "FUSE's io_uring and its ioctls"),
    ("suite", "an allocator that counts"),
];

/// Files with unsafe code; those below a `tests` folder are crates of their own.
const FILES: &[&str] = &[
    "crates/block/src/buf/mod.rs",
    "crates/block/src/buf/slab.rs",
    "crates/block/src/file/ioctl.rs",
    "crates/block/src/file/ring.rs",
    "crates/contain/tests/attempts.rs",
    "crates/fuse/src/sys.rs",
    "crates/fuse/src/transport/uring/entry.rs",
    "crates/fuse/src/transport/uring/ring.rs",
    "crates/fuse/tests/raw.rs",
    "crates/rt/src/cpu/ioprio.rs",
    "crates/rt/src/cpu/policy.rs",
    "crates/rt/src/cpu/slice.rs",
    "crates/rt/src/descriptors.rs",
    "crates/rt/src/interruptible.rs",
    "crates/rt/src/memory.rs",
    "crates/rt/src/namespace.rs",
    "crates/rt/src/sim/mod.rs",
    "crates/rt/src/sim/world.rs",
    "suite/src/hostile/meter.rs",
];

/// The attribute of a crate's root.
const FORBIDS: &str = "#![forbid(unsafe_code)]";

#[test]
fn every_crate_outside_the_rooms_forbids_unsafe_code() {
    let rooms: BTreeSet<_> = ROOMS.iter().map(|(name, _)| *name).collect();
    let mut without = BTreeSet::new();
    for package in super::metadata()["packages"].as_array().expect("a list") {
        let name = super::short(package["name"].as_str().expect("a package has a name"));
        for target in package["targets"].as_array().expect("a list of targets") {
            let kind = target["kind"][0].as_str().expect("a target has a kind");
            let source = target["src_path"].as_str().expect("a target has a source");
            if matches!(kind, "lib" | "bin" | "proc-macro" | "custom-build") {
                let text = std::fs::read_to_string(source).expect("a source file is text");
                if !text.lines().any(|line| line == FORBIDS) {
                    without.insert(name.to_owned());
                }
            }
        }
    }
    let without: BTreeSet<_> = without.iter().map(String::as_str).collect();
    assert_eq!(without, rooms, "crates whose root has no {FORBIDS}");
}

#[test]
fn unsafe_code_is_in_the_listed_files_only() {
    let root = super::root();
    let mut found = Vec::new();
    for top in ["crates", "suite", "bench"] {
        collect(&root.join(top), &root, &mut found);
    }
    found.sort();
    assert_eq!(found, FILES);
}

/// Collects the sources below `dir` that allow unsafe code; names are relative to `root`.
fn collect(dir: &Path, root: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).expect("a folder of the tree") {
        let path: PathBuf = entry.expect("an entry").path();
        let name = path.strip_prefix(root).expect("below the root");
        let name = name.to_str().expect("names are UTF-8").to_owned();
        if path.is_dir() {
            // The rules themselves name the lint.
            if name != "suite/tests/house" {
                collect(&path, root, found);
            }
        } else if name.ends_with(".rs") {
            let text = std::fs::read_to_string(&path).expect("a source file is text");
            let allows = |line: &str| line.contains("unsafe_code") && line != FORBIDS;
            if text.lines().any(allows) {
                found.push(name);
            }
        }
    }
}
