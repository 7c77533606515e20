//! Limits of ext4's directories, evicted inodes, and files that no name leads to.

mod casefold;
mod foreign;
mod leftover_index;

use steadfs_base::InodeNo;
use steadfs_vfs::{FileSystem, FsError, RenameFlags, SetAttr};

use crate::disk::Ino;
use crate::disk::superblock::STATE_ERROR;
use crate::disk::test_images::Image;
use crate::test_world::{ROOT, World};

#[test]
fn more_subdirectories_than_links() {
    for (features, limit) in [("dir_nlink", 65_020), ("^dir_nlink", 64_998)] {
        let options = ["-t", "ext4", "-b", "1024", "-N", "70000", "-O", features];
        let world = World::make(&options, "128M");
        let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
        let mut made = 0;
        while made < 65_020 {
            match world.mkdir(dir, format!("{made}").as_bytes()) {
                Ok(_) => made += 1,
                Err(error) => {
                    assert_eq!(error, FsError::TooManyLinks);
                    break;
                }
            }
        }
        assert_eq!(made, limit);
        let links = world.lookup(ROOT, b"dir").unwrap().nlink;
        assert_eq!(links, if limit > 65_000 { 1 } else { 65_000 });
        let plain = RenameFlags::default();
        let other = world.mkdir(ROOT, b"other").unwrap().ino;
        let into = world
            .fs
            .rename(&world.cx, (ROOT, b"other"), (dir, b"other"), plain);
        assert_eq!(into.is_ok(), limit > 65_000);
        world.fs.rmdir(&world.cx, dir, b"0").unwrap();
        // A subdirectory can always be renamed within its directory.
        world
            .fs
            .rename(&world.cx, (dir, b"1"), (dir, b"one"), plain)
            .unwrap();
        let nlink = world.lookup(ROOT, b"dir").unwrap().nlink;
        assert_eq!(nlink, if limit > 65_000 { 1 } else { 64_999 });
        assert_eq!(world.lookup(other, b".").unwrap().nlink, 2);
        world.close();
    }
}

#[test]
fn links_have_a_limit() {
    let world = World::make(&["-t", "ext4"], "16M");
    let (fs, cx) = (&world.fs, &world.cx);
    let file = world.file(ROOT, b"file").unwrap().ino;
    for n in 1..65_000 {
        fs.link(cx, file, ROOT, format!("l{n}").as_bytes()).unwrap();
        world.forget(file);
    }
    assert_eq!(fs.link(cx, file, ROOT, b"more"), Err(FsError::TooManyLinks));
    assert_eq!(world.lookup(ROOT, b"file").unwrap().nlink, 65_000);
    world.close();
}

#[test]
fn inodes_run_out() {
    let world = World::make(&["-t", "ext4", "-b", "1024", "-N", "128"], "8M");
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    let mut made = 0;
    while world.file(dir, format!("{made}").as_bytes()).is_ok() {
        made += 1;
    }
    assert_eq!(world.fs.alloc.totals().free_inodes, 0);
    assert_eq!(world.mkdir(dir, b"sub"), Err(FsError::NoSpace));
    world.fs.unlink(&world.cx, dir, b"0").unwrap();
    world.mkdir(dir, b"sub").unwrap();
    assert_eq!(world.names(dir).len(), made);
    world.close();
}

/// An inode that was changed, dropped from memory and read again is still made durable by fsync.
#[test]
fn fsync_covers_changes_from_before_an_eviction() {
    const MANY: u32 = 18_000;
    let name = |n: u32| format!("f{n}").into_bytes();
    let world = World::make(&["-t", "ext4", "-b", "4096", "-N", "20000"], "64M");
    for n in 0..MANY {
        world.file(ROOT, &name(n)).unwrap();
    }
    let world = world.reopen();
    let (fs, cx) = (&world.fs, &world.cx);
    let first = world.lookup(ROOT, &name(0)).unwrap().ino;
    let set = SetAttr {
        perm: Some(0o123),
        ..SetAttr::default()
    };
    fs.setattr(cx, first, &set).unwrap();
    for n in 1..MANY {
        world.lookup(ROOT, &name(n)).unwrap();
    }
    assert!(
        fs.inodes.get(Ino(first.0 as u32)).is_none(),
        "so many inodes drive the first one out"
    );
    assert_eq!(world.lookup(ROOT, &name(0)).unwrap().ino, first);
    let inode = fs.inode(Ino(first.0 as u32), cx.tag).unwrap();
    fs.fsync_inode(cx, &inode, false).unwrap();
    let left = world.cut_power_now();
    let world = world.recover(left);
    assert_eq!(world.lookup(ROOT, &name(0)).unwrap().perm, 0o123);
    world.close();
}

/// The kernel references every inode that it has seen: that must not keep all of them in memory, and the lookup count
/// of an evicted inode is kept.
#[test]
fn referenced_inodes_are_evicted_and_stay_in_use() {
    const MANY: u32 = 40_000;
    let world = World::make(&["-t", "ext4", "-N", "50000"], "64M");
    let (fs, cx) = (&world.fs, &world.cx);
    let name = |n: u32| format!("file {n}").into_bytes();
    let make = |n| fs.mknod(cx, ROOT, &name(n), 0o100_600, 0).unwrap().ino;
    let first = make(0);
    FileSystem::write(&**fs, cx, first, 0, b"content", false).unwrap();
    fs.sync_volume(cx).unwrap();
    let free = fs.alloc.totals().free_inodes;
    for n in 1..MANY {
        make(n);
    }
    assert!(fs.inodes.len() < 16_000, "{}", fs.inodes.len());
    let number = Ino(first.0 as u32);
    assert!(fs.inodes.get(number).is_none(), "the first one left");
    // Unlinked, it is in use until its last reference is dropped.
    fs.unlink(cx, ROOT, &name(0)).unwrap();
    let read = FileSystem::read(&**fs, cx, first, 0, 100).unwrap();
    assert_eq!(read.to_vec(), b"content");
    FileSystem::forget(&**fs, first, 1);
    assert!(fs.inode(number, cx.tag).is_err(), "freed");
    // References to an evicted inode are dropped without reading it.
    let second = world.lookup(ROOT, &name(1)).unwrap().ino;
    for n in 2..MANY {
        let ino = world.lookup(ROOT, &name(n)).unwrap().ino;
        FileSystem::forget(&**fs, ino, 1);
    }
    assert!(fs.inodes.get(Ino(second.0 as u32)).is_none());
    FileSystem::forget(&**fs, second, 1);
    for n in 1..MANY {
        fs.unlink(cx, ROOT, &name(n)).unwrap();
    }
    fs.sync_volume(cx).unwrap();
    assert_eq!(fs.alloc.totals().free_inodes, free + 1);
    world.close();
}

/// The journal, the reserved descriptors, quota and other hidden files: writing them through a file handle or a corrupt
/// name could change anything on the volume.
#[test]
fn the_volumes_own_files_are_inaccessible() {
    let image = Image::make(&["-t", "ext4", "-O", "orphan_file"], "16M");
    let orphans = image.superblock().orphan_file().unwrap();
    let entries = [(8, "journal"), (7, "resize"), (orphans.0, "orphans")];
    for (ino, name) in entries {
        image.debugfs(&format!("link <{ino}> {name}"));
    }
    let world = World::open(image);
    // Called as by the kernel: corruption is recorded.
    let (fs, cx): (&dyn FileSystem, _) = (&*world.fs, &world.cx);
    let beyond = world.fs.geo().inodes_count + 1;
    for ino in (1..=11).chain([orphans.0, beyond]) {
        let is_free_to_see = ino == 2 || ino == 11;
        let number = InodeNo(ino.into());
        match fs.attach(cx, number) {
            Ok(_) => {
                assert!(is_free_to_see, "inode {ino}");
                fs.forget(number, 1);
            }
            Err(error) => assert_eq!((error, is_free_to_see), (FsError::Stale, false), "{ino}"),
        }
        if !is_free_to_see {
            assert_eq!(
                fs.write(cx, number, 0, b"x", false).err(),
                Some(FsError::Stale)
            );
            assert_eq!(fs.read(cx, number, 0, 1).err(), Some(FsError::Stale));
            assert_eq!(
                fs.link(cx, number, ROOT, b"one more").err(),
                Some(FsError::Stale)
            );
        }
    }
    // A made-up inode number is no corruption, a name is.
    let errors = || world.fs.sb.lock().state() & STATE_ERROR;
    assert_eq!(errors(), 0);
    for (_, name) in entries {
        let found = fs.lookup(cx, ROOT, name.as_bytes());
        assert!(matches!(found, Err(FsError::Corrupt(_))), "{found:?}");
        let gone = fs.unlink(cx, ROOT, name.as_bytes());
        assert!(matches!(gone, Err(FsError::Corrupt(_))), "{gone:?}");
    }
    assert_ne!(errors(), 0);
    world.fs.close().unwrap();
}
