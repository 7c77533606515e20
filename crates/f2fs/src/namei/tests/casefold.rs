//! Case-insensitive directories.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_block::MemDevice;
use steadfs_vfs::{FileSystem, FsError, InodeFlags, RenameFlags};

use crate::format::{FormatOptions, image};
use crate::test_world::{ROOT, World};

/// One of 23 names is misplaced.
const STEP: u32 = 23;

/// A volume with names that a kernel placed which did not ignore the soft hyphen.
fn with_misplaced_names(count: u32, hash_only: bool) -> (Arc<MemDevice>, InodeNo) {
    let mut format = FormatOptions::default();
    format.set_encoding("utf8").unwrap();
    if let Some(encoding) = &mut format.encoding {
        encoding.hash_only = hash_only;
    }
    let world = World::of(image(64 << 20, &format).unwrap(), "");
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    let flags = InodeFlags::CASEFOLD;
    world.fs.set_flags(&world.cx, dir, flags).unwrap();
    for n in 0..count {
        world.file(dir, format!("ä{n:03}").as_bytes()).unwrap();
    }
    let mut bytes = world.close().to_bytes();
    // In entries and in inodes.
    for at in 0..bytes.len() - 5 {
        let number = str::from_utf8(&bytes[at..at + 5])
            .ok()
            .and_then(|name| name.strip_prefix('ä')?.parse::<u32>().ok());
        if number.is_some_and(|n| n % STEP == 0) {
            bytes[at..at + 2].copy_from_slice("\u{AD}".as_bytes());
        }
    }
    (Arc::new(MemDevice::from_bytes(&bytes)), dir)
}

#[test]
fn names_that_another_kernel_placed_are_found() {
    for (count, mode) in [(10, "compat"), (400, "auto")] {
        let (device, dir) = with_misplaced_names(count, false);
        let world = World::of(device, &format!("lookup_mode={mode}"));
        for n in 0..count {
            let (left, right) = (format!("{n:03}"), format!("A\u{308}{n:03}"));
            let is_left = n % STEP == 0;
            assert_eq!(world.lookup(dir, left.as_bytes()).is_ok(), is_left, "{n}");
            assert_eq!(world.lookup(dir, right.as_bytes()).is_ok(), !is_left, "{n}");
            let made = world.file(dir, if is_left { &left } else { &right }.as_bytes());
            assert_eq!(made, Err(FsError::Exists), "{n}");
        }
        assert!(!world.fs.orderly_dirs.contains(dir));
        for n in (0..count).step_by(STEP as usize) {
            let name = format!("{n:03}\u{200D}");
            world.fs.unlink(&world.cx, dir, name.as_bytes()).unwrap();
            let found = world.lookup(dir, name.as_bytes());
            assert_eq!(found, Err(FsError::NotFound));
            world.file(dir, name.as_bytes()).unwrap();
        }
        // Nothing is left to be found by reading the whole directory.
        assert_eq!(world.lookup(dir, b"missing"), Err(FsError::NotFound));
        assert!(world.fs.orderly_dirs.contains(dir));
        world.close();
    }
}

#[test]
fn misplaced_names_are_not_looked_for_where_none_can_be_or_should() {
    for (hash_only, mode) in [(false, "perf"), (true, "auto")] {
        let (device, dir) = with_misplaced_names(10, hash_only);
        let world = World::of(device, &format!("lookup_mode={mode}"));
        assert_eq!(world.lookup(dir, b"000"), Err(FsError::NotFound));
        assert!(world.lookup(dir, "Ä001".as_bytes()).is_ok());
        world.fs.close().unwrap();
    }
}

/// Roll-forward does not know a file's new name: an fsync of a file that has the old one now needs a checkpoint.
#[test]
fn a_misplaced_name_that_moved_is_not_replaced_by_roll_forward() {
    let (device, dir) = with_misplaced_names(10, false);
    let options = "lookup_mode=compat";
    let world = World::of(device, options);
    let (fs, cx) = (&world.fs, &world.cx);
    let moved = world.lookup(dir, b"000").unwrap().ino;
    let flags = RenameFlags::default();
    fs.rename(cx, (dir, b"000"), (ROOT, b"other"), flags)
        .unwrap();
    let new = world.file(dir, b"000").unwrap().ino;
    fs.fsync(cx, new, false).unwrap();
    let device = MemDevice::from_bytes(&world.bytes());
    let again = World::of(Arc::new(device), options);
    assert_eq!(again.lookup(dir, b"000").unwrap().ino, new);
    assert_eq!(again.lookup(ROOT, b"other").unwrap().ino, moved);
    again.close();
}
