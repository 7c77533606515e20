//! Directories with an index that `tune2fs -O ^dir_index` left behind.

use steadfs_vfs::InodeFlags;

use super::*;

/// A change of a directory.
type Way = fn(&World, InodeNo);

/// Ways to make the name `new`.
const WAYS: &[(&[u8], Way)] = &[
    (b"create", |world, dir| {
        world.file(dir, b"new").unwrap();
    }),
    (b"mkdir", |world, dir| {
        world.mkdir(dir, b"new").unwrap();
    }),
    (b"symlink", |world, dir| {
        world.fs.symlink(&world.cx, dir, b"new", b"target").unwrap();
    }),
    (b"link", |world, dir| {
        let file = world.lookup(ROOT, b"file").unwrap().ino;
        world.fs.link(&world.cx, file, dir, b"new").unwrap();
    }),
    (b"tmpfile", |world, dir| {
        let file = world.fs.tmpfile(&world.cx, dir, 0o600).unwrap().ino;
        world.fs.link(&world.cx, file, dir, b"new").unwrap();
    }),
    (b"rename", |world, dir| {
        let flags = RenameFlags::default();
        world.file(ROOT, b"moved").unwrap();
        world
            .fs
            .rename(&world.cx, (ROOT, b"moved"), (dir, b"new"), flags)
            .unwrap();
    }),
    (b"within", |world, dir| {
        let flags = RenameFlags::default();
        world
            .fs
            .rename(&world.cx, (dir, b"name-7"), (dir, b"new"), flags)
            .unwrap();
    }),
    (b"many", |world, dir| {
        for n in 0..100 {
            world.file(dir, format!("new-{n}").as_bytes()).unwrap();
        }
        world.file(dir, b"new").unwrap();
    }),
];

/// These replace a name by another, or remove it.
const KEEP: &[(&[u8], Way)] = &[
    (b"remove", |world, dir| {
        world.fs.unlink(&world.cx, dir, b"name-7").unwrap()
    }),
    (b"replace", |world, dir| {
        let flags = RenameFlags::default();
        world.file(ROOT, b"other").unwrap();
        world
            .fs
            .rename(&world.cx, (ROOT, b"other"), (dir, b"name-7"), flags)
            .unwrap();
    }),
    (b"exchange", |world, dir| {
        let flags = RenameFlags {
            exchange: true,
            ..RenameFlags::default()
        };
        world
            .fs
            .rename(&world.cx, (ROOT, b"file"), (dir, b"name-7"), flags)
            .unwrap();
    }),
    (b"parent", |world, dir| {
        let flags = RenameFlags::default();
        let below = world.mkdir(ROOT, b"below").unwrap().ino;
        world
            .fs
            .rename(&world.cx, (ROOT, b"parent"), (below, b"parent"), flags)
            .unwrap();
        assert_eq!(world.lookup(dir, b"..").unwrap().ino, below);
    }),
];

/// A volume with a directory of 300 names for each way, whose indexes `tune2fs -O ^dir_index` left behind.
fn with_leftover_indexes(block_size: &str) -> World {
    let options = ["-t", "ext4", "-b", block_size, "-O", "^metadata_csum"];
    let world = World::make(&options, "64M");
    world.file(ROOT, b"file").unwrap();
    for (name, _) in WAYS.iter().chain(KEEP) {
        let dir = world.mkdir(ROOT, name).unwrap().ino;
        for n in 0..300 {
            world.file(dir, format!("name-{n}").as_bytes()).unwrap();
        }
    }
    let image = world.close();
    let path = image.path();
    crate::disk::test_images::run("tune2fs", &["-O", "^dir_index", path.to_str().unwrap()]);
    World::open(image)
}

/// Names go into a directory whose index `tune2fs -O ^dir_index` left after; one is over the index's root.
#[test]
fn a_new_name_drops_a_leftover_index() {
    for block_size in ["1024", "4096"] {
        let world = with_leftover_indexes(block_size);
        let has_index = |dir| {
            let flags = world.fs.flags(&world.cx, dir).unwrap().flags;
            flags.contains(InodeFlags::INDEX)
        };
        for (name, way) in WAYS {
            let dir = world.lookup(ROOT, name).unwrap().ino;
            assert!(has_index(dir));
            way(&world, dir);
            assert!(!has_index(dir), "{}", String::from_utf8_lossy(name));
            world.lookup(dir, b"new").unwrap();
        }
        for (name, way) in KEEP {
            let dir = world.fs.lookup(&world.cx, ROOT, name).map(|dir| dir.ino);
            let dir = dir.unwrap();
            way(&world, dir);
            assert!(has_index(dir), "{}", String::from_utf8_lossy(name));
            // e2fsck accepts no index here.
            world.file(dir, b"new").unwrap();
            assert!(!has_index(dir));
        }
        let world = world.reopen();
        for (name, _) in WAYS {
            let dir = world.lookup(ROOT, name).unwrap().ino;
            world.lookup(dir, b"new").unwrap();
            world.lookup(dir, b"name-299").unwrap();
        }
        world.close();
    }
}
