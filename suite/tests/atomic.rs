//! f2fs's atomic writes through a mount, as SQLite's batch commit uses them: compared with the kernel, in a User-Mode Linux.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use steadfs_suite::f2fs::{check_clean, mkfs};
use steadfs_suite::uml::{TOP, boot};
use steadfs_suite::{Scratch, SteadMount, succeed};

/// Prints what it observes in a folder.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/atomic.pl");

fn observe(folder: &Path) -> String {
    succeed("perl", [SCRIPT.as_ref(), folder.as_os_str()]).out
}

/// Differences by line, so that a failure shows what differs.
#[track_caller]
fn same(ours: &str, theirs: &str) {
    let pairs: Vec<_> = ours.lines().zip(theirs.lines()).collect();
    for (ours, theirs) in pairs {
        assert_eq!(ours, theirs, "steadfs and Linux");
    }
    assert_eq!(ours.lines().count(), theirs.lines().count());
}

#[test]
fn a_program_observes_what_it_does_on_linux() {
    let scratch = Scratch::new();
    let options = "-O extra_attr,inode_checksum";
    let ours = mkfs(&scratch, "ours.img", 128 << 20, options);
    let theirs = mkfs(&scratch, "theirs.img", 128 << 20, options);
    let mount = SteadMount::new(&scratch, ours.path(), "atomic_write");
    let folder = mount.join("folder");
    fs::create_dir(&folder).unwrap();
    let seen = observe(&folder);
    let last = fs::read(folder.join("db")).unwrap();
    mount.unmount();
    check_clean(ours.path(), "after atomic writes");
    // The kernel observes the same, and reads what was committed here.
    let script = format!(
        "mount -t f2fs /dev/ubda {TOP}\nmkdir {TOP}/folder\nperl {SCRIPT} {TOP}/folder\numount {TOP}\n\
         mount -t f2fs /dev/ubdb {TOP}\nmd5sum < {TOP}/folder/db\numount {TOP}"
    );
    let said = boot(&scratch, &[theirs.path(), ours.path()], &script);
    let (linux, read) = said.trim_end().rsplit_once('\n').unwrap();
    same(&seen, linux);
    let copy = scratch.join("db");
    fs::write(&copy, last).unwrap();
    assert_eq!(
        succeed("md5sum", [&copy]).out.split(' ').next(),
        read.split(' ').next()
    );
}
