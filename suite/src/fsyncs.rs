//! Changes made durable by fsync alone, file by file, and what a volume must still have if it is cut off afterwards.
//! The same changes are made on our mounts and, inside the judge, on the kernel's.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;

use crate::generate::Numbers;
use crate::tree::set_xattr;

const BLOCK: u64 = 4096;

/// Makes the files that exist before, durably.
///
/// # Panics
/// If one cannot be made.
pub fn prepare(top: &Path) {
    let mut numbers = Numbers::new(1);
    for dir in ["d", "d/deep"] {
        fs::create_dir(top.join(dir)).unwrap();
    }
    for name in [
        "in place",
        "grows",
        "shrinks",
        "to inline",
        "punched",
        "zeroed",
        "collapsed",
        "inserted",
        "replaced",
        "attributes",
        "unsynced",
        "long",
        "allocated",
        "copied to",
        "d/removed",
        "d/moved",
    ] {
        fs::write(top.join(name), numbers.bytes(200_000)).unwrap();
    }
    for name in ["tiny", "to blocks", "d/tiny", "touched"] {
        fs::write(top.join(name), b"in the inode").unwrap();
    }
    let holes = File::create(top.join("holes")).unwrap();
    holes.write_all_at(b"far away", 700 << 20).unwrap();
    let dir = File::open(top).unwrap();
    rustix::fs::syncfs(&dir).unwrap();
}

/// Makes changes of many kinds, each followed by fsync, and then some without. Returns the files that must survive as
/// they are now.
///
/// # Panics
/// If a change fails.
pub fn change(top: &Path) -> Vec<PathBuf> {
    let mut work = Work {
        top,
        numbers: Numbers::new(2),
        durable: Vec::new(),
    };
    // Renames make an fsync write a checkpoint, so they precede the changes that roll forward.
    work.names();
    work.content();
    work.attributes();
    work.new_files();
    work.pieces();
    work.shifted();
    work.again();
    let Work {
        mut numbers,
        durable,
        ..
    } = work;
    fs::write(top.join("d/lost"), numbers.bytes(50_000)).unwrap();
    let unsynced = File::options()
        .write(true)
        .open(top.join("unsynced"))
        .unwrap();
    unsynced.write_all_at(&numbers.bytes(9000), 12_345).unwrap();
    durable
}

struct Work<'t> {
    top: &'t Path,
    numbers: Numbers,
    durable: Vec<PathBuf>,
}

impl Work<'_> {
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        self.numbers.bytes(len)
    }

    /// Changes a file, which is created if missing, and syncs it.
    fn file(&mut self, name: &str, change: impl FnOnce(&File)) {
        let path = self.top.join(name);
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let file = file.unwrap_or_else(|error| panic!("{name}: {error}"));
        change(&file);
        file.sync_all().unwrap();
        if !self.durable.contains(&PathBuf::from(name)) {
            self.durable.push(name.into());
        }
    }

    fn write(&mut self, name: &str, len: usize, at: u64) {
        let bytes = self.bytes(len);
        self.file(name, |file| file.write_all_at(&bytes, at).unwrap());
    }

    fn names(&mut self) {
        fs::rename(self.top.join("d/moved"), self.top.join("d/deep/moved")).unwrap();
        self.write("d/deep/moved", 10_000, 5000);
        fs::hard_link(self.top.join("touched"), self.top.join("d/link")).unwrap();
        self.write("touched", 20, 3);
        fs::remove_file(self.top.join("d/removed")).unwrap();
        self.write("d/removed", 30_000, 0);
    }

    fn content(&mut self) {
        self.write("in place", 70_000, 81_920);
        self.write("grows", 100_000, 200_000);
        self.file("shrinks", |file| file.set_len(100_001).unwrap());
        self.file("to inline", |file| file.set_len(10).unwrap());
        self.write("tiny", 20, 4);
        self.write("to blocks", 9000, 6);
        self.write("holes", 9000, 14 << 20);
        self.write("holes", 9000, 300 << 20);
        self.write("holes", 5, 701 << 20);
        self.write("long", 600_000, 200_000);
        self.write("long", 900_000, 3 << 20);
    }

    fn attributes(&mut self) {
        let path = self.top.join("attributes");
        set_xattr(&path, "user.small", b"value");
        self.file("attributes", |_| ());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        chown(&path, Some(5), Some(6)).unwrap();
        self.file("attributes", |_| ());
        let value = self.bytes(2000);
        set_xattr(&path, "user.big", &value);
        self.file("attributes", |_| ());
        set_xattr(&self.top.join("d/tiny"), "user.small", b"value");
        self.file("d/tiny", |_| ());
    }

    fn new_files(&mut self) {
        self.write("d/new tiny", 50, 0);
        self.write("d/new", 30_000, 0);
        // Its map needs the inode, direct nodes, and indirect nodes.
        self.write("d/new huge", 100_000, 0);
        self.write("d/new huge", 600_000, 7 << 19);
        self.write("d/new huge", 600_000, 12 << 20);
        self.write("d/new far", 5000, 5 << 30);
        self.file("d/empty", |_| ());
        self.write("d/with attributes", 20, 0);
        let value = self.bytes(1500);
        set_xattr(&self.top.join("d/with attributes"), "user.big", &value);
        self.write("d/with attributes", 20, 0);
        for n in 0..20 {
            self.write(&format!("d/deep/one of many {n}"), 10 + n * 500, 0);
        }
    }

    fn pieces(&mut self) {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.file("punched", |f| fallocate(f, punch, 5000, 100_000).unwrap());
        let zero = FallocateFlags::ZERO_RANGE;
        self.file("zeroed", |f| fallocate(f, zero, 10_000, 70_000).unwrap());
        let keep = FallocateFlags::KEEP_SIZE;
        self.file("allocated", |f| {
            fallocate(f, keep, 210_000, 90_000).unwrap()
        });
        self.write("allocated", 20_000, 250_000);
        let none = FallocateFlags::empty();
        self.file("d/allocated", |f| {
            fallocate(f, none, 4096, 200_000).unwrap()
        });
        self.write("d/allocated", 8192, 40_960);
        let from = File::open(self.top.join("in place")).unwrap();
        self.file("copied to", |to| {
            let (mut at, mut into) = (8192, 20_480);
            while into < 100_000 {
                let left = 100_000 - into as usize;
                let n =
                    rustix::fs::copy_file_range(&from, Some(&mut at), to, Some(&mut into), left);
                assert!(n.unwrap() > 0);
            }
        });
        let flags = OFlags::WRONLY | OFlags::DSYNC;
        let path = self.top.join("in place");
        let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).unwrap();
        assert_eq!(
            rustix::io::pwrite(&file, &self.bytes(8192), 170_000),
            Ok(8192)
        );
        self.file("in place", |_| ());
    }

    /// Blocks that move within their file without being written: some from the checkpoint, some written since and
    /// durable, some written since and not durable. We do not support this; the kernel does not on every volume.
    fn shifted(&mut self) {
        let collapse = FallocateFlags::COLLAPSE_RANGE;
        let insert = FallocateFlags::INSERT_RANGE;
        self.shift("collapsed", collapse, 3, 5);
        self.shift("inserted", insert, 2, 9);
        // The last one is shifted beyond the addresses in the inode itself.
        for (name, first, synced) in [
            ("d/shifted", 0, true),
            ("d/shifted early", 0, false),
            ("d/shifted far", 900, true),
        ] {
            let bytes = self.bytes(60 * 4096);
            let file = File::create(self.top.join(name)).unwrap();
            file.write_all_at(&bytes, first * BLOCK).unwrap();
            if synced {
                self.file(name, |_| ());
            }
            self.shift(name, collapse, first + 1, 7);
            self.shift(name, insert, 3, 2);
            self.write(name, 5000, 4 * BLOCK);
            self.shift(name, insert, first + 11, 12);
            self.shift(name, collapse, first + 20, 2);
        }
        // A write to the place that a block was moved away from.
        self.write("collapsed", 30_000, 2 * BLOCK);
        self.write("inserted", 30_000, BLOCK);
        self.shift("inserted", collapse, 0, 4);
    }

    fn shift(&mut self, name: &str, how: FallocateFlags, at: u64, count: u64) {
        self.file(name, |file| {
            let done = fallocate(file, how, at * BLOCK, count * BLOCK);
            assert!(
                matches!(done, Ok(()) | Err(Errno::OPNOTSUPP)),
                "{name}: {done:?}"
            );
        });
    }

    fn again(&mut self) {
        self.write("d/new", 6000, 28_000);
        self.write("d/new tiny", 6000, 0);
        self.file("d/new huge", |file| file.set_len(4 << 20).unwrap());
        self.file("grows", |file| file.set_len(250_000).unwrap());
        self.write("in place", 100, 0);
    }
}
