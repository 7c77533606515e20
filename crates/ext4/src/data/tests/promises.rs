//! Delayed data on a volume that is almost full: nothing takes the room that it was promised.

use steadfs_rt::sim;
use steadfs_vfs::{Cx, FallocMode, FileSystem, FsError, SetXattr};

use crate::test_world::{ROOT, World};

/// Takes blocks for something until there are none.
type Taker = fn(&World, u32) -> Result<(), FsError>;

const TAKERS: [(&str, Taker); 4] = [
    ("mkdir", |world, n| {
        let name = format!("dir{n}");
        world.mkdir(ROOT, name.as_bytes()).map(drop)
    }),
    ("symlink", |world, n| {
        let (name, target) = (format!("link{n}"), [b'x'; 300]);
        let made = FileSystem::symlink(&*world.fs, &world.cx, ROOT, name.as_bytes(), &target);
        made.map(|attr| world.forget(attr.ino))
    }),
    ("setxattr", |world, n| {
        let file = world.file(ROOT, format!("file{n}").as_bytes())?.ino;
        let (name, value) = (b"user.large", [b'x'; 700]);
        FileSystem::setxattr(&*world.fs, &world.cx, file, name, &value, SetXattr::Any)
    }),
    ("fallocate", |world, n| {
        // Pieces, so that the map takes blocks, too.
        let file = world.file(ROOT, format!("pieces{}", n / 100).as_bytes());
        let file = file.or_else(|_| world.lookup(ROOT, format!("pieces{}", n / 100).as_bytes()));
        let (file, at) = (file?.ino, u64::from(n % 100) * 8192);
        let keep = FallocMode::Allocate { keep_size: true };
        FileSystem::fallocate(&*world.fs, &world.cx, file, keep, at, 1024)
    }),
];

/// A write that was acknowledged finds its place, however much is made on a volume that is almost full.
#[test]
fn what_is_delayed_keeps_its_promise() {
    for kind in ["ext4", "ext3", "ext2"] {
        for (what, take) in TAKERS {
            if (what, kind) == ("fallocate", "ext3") || (what, kind) == ("fallocate", "ext2") {
                continue; // only by extents
            }
            let run = move || keeps_its_promise(kind, take);
            sim::run(sim::Config::new(1), run);
        }
    }
}

fn keeps_its_promise(kind: &str, take: Taker) {
    let options = ["-t", kind, "-b", "1024", "-m", "0", "-N", "400"];
    let world = World::make(&options, "8M");
    let free = || world.fs.statfs(&Cx::default()).unwrap().blocks_free;
    let big = world.file(ROOT, b"big").unwrap().ino;
    let mut size = 0;
    while free() > 120 {
        let len = ((free() - 110) * 512).clamp(1024, 1 << 19) as usize;
        size += world
            .fs
            .write(&world.cx, big, size, &vec![7; len], false)
            .unwrap() as u64;
        world.fs.sync_all(&world.cx).unwrap();
    }
    let delayed = world.file(ROOT, b"delayed").unwrap().ino;
    let content = [5; 3000];
    assert_eq!(
        world.fs.write(&world.cx, delayed, 0, &content, false),
        Ok(3000)
    );
    let mut made = 0;
    let full = loop {
        match take(&world, made) {
            Ok(()) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full, FsError::NoSpace);
    assert!(made > 50, "{made}");
    world.fs.fsync(&world.cx, delayed, false).unwrap();
    let read = world.fs.read(&world.cx, delayed, 0, 4000).unwrap();
    assert_eq!(read.to_vec(), content);
    world.close();
}
