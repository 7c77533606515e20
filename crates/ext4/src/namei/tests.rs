//! Operations on names, verified by e2fsck and by reading back.

mod foreign;
mod leftover_index;

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_rt::Random;
use steadfs_vfs::{FileKind, FileSystem, FsError, InodeFlags, RenameFlags, SetAttr, SetXattr};

use crate::disk::Ino;
use crate::disk::superblock::STATE_ERROR;
use crate::disk::test_images::Image;
use crate::test_world::{ROOT, World};

#[test]
fn every_kind_of_inode() {
    let world = World::make(&["-t", "ext4", "-b", "4096"], "16M");
    let (fs, cx) = (&world.fs, &world.cx);
    let dir = world.mkdir(ROOT, b"dir").unwrap();
    assert_eq!(
        (dir.nlink, dir.kind, dir.perm),
        (2, FileKind::Directory, 0o755)
    );
    let file = world.file(dir.ino, b"file").unwrap();
    assert_eq!(
        (file.nlink, file.kind, file.size),
        (1, FileKind::Regular, 0)
    );
    let null = fs.mknod(cx, dir.ino, b"null", 0o020_666, 0x103).unwrap();
    assert_eq!(
        (null.rdev, null.kind, null.perm),
        (0x103, FileKind::CharDevice, 0o666)
    );
    fs.mknod(cx, dir.ino, b"big", 0o060_600, 0x0012_3456)
        .unwrap();
    fs.mknod(cx, dir.ino, b"pipe", 0o010_600, 0).unwrap();
    fs.mknod(cx, dir.ino, b"sock", 0o140_600, 0).unwrap();
    let short = fs.symlink(cx, dir.ino, b"short", b"over/there").unwrap();
    assert_eq!((short.size, short.blocks, short.perm), (10, 0, 0o777));
    assert_eq!(fs.readlink(cx, short.ino).unwrap(), b"over/there");
    let target = vec![b't'; 3000];
    let long = fs.symlink(cx, dir.ino, b"long", &target).unwrap();
    assert_eq!((long.size, long.blocks), (3000, 8));
    assert_eq!(fs.readlink(cx, long.ino).unwrap(), target);
    assert_eq!(
        fs.symlink(cx, dir.ino, b"longer", &[b't'; 4096]),
        Err(FsError::NameTooLong)
    );
    assert_eq!(fs.mkdir(cx, dir.ino, b"file", 0o755), Err(FsError::Exists));
    assert_eq!(world.file(dir.ino, &[b'n'; 256]), Err(FsError::NameTooLong));
    world.file(dir.ino, &[b'n'; 255]).unwrap();
    assert_eq!(world.lookup(ROOT, b"dir").unwrap().nlink, 2);
    assert_eq!(world.lookup(dir.ino, b"..").unwrap().ino, ROOT);
    let world = world.reopen();
    let dir = world.lookup(ROOT, b"dir").unwrap();
    assert_eq!(world.names(dir.ino).len(), 8);
    let long = world.lookup(dir.ino, b"long").unwrap();
    assert_eq!(world.fs.readlink(&world.cx, long.ino).unwrap(), target);
    assert_eq!(world.lookup(dir.ino, b"null").unwrap().rdev, 0x103);
    world.close();
}

#[test]
fn names_are_removed() {
    let world = World::make(&["-t", "ext4"], "16M");
    let (fs, cx) = (&world.fs, &world.cx);
    let dir = world.mkdir(ROOT, b"dir").unwrap();
    world.file(dir.ino, b"file").unwrap();
    assert_eq!(fs.rmdir(cx, ROOT, b"dir"), Err(FsError::NotEmpty));
    assert_eq!(fs.rmdir(cx, dir.ino, b"file"), Err(FsError::NotDir));
    assert_eq!(fs.unlink(cx, ROOT, b"dir"), Err(FsError::IsDir));
    assert_eq!(fs.unlink(cx, ROOT, b"none"), Err(FsError::NotFound));
    fs.unlink(cx, dir.ino, b"file").unwrap();
    fs.rmdir(cx, ROOT, b"dir").unwrap();
    assert_eq!(world.lookup(ROOT, b"dir"), Err(FsError::NotFound));
    assert_eq!(world.names(ROOT), [b"lost+found"]);
    world.close();
}

#[test]
fn rename_moves_names() {
    let world = World::make(&["-t", "ext4"], "16M");
    let (fs, cx) = (&world.fs, &world.cx);
    let plain = RenameFlags::default();
    let a = world.mkdir(ROOT, b"a").unwrap().ino;
    let b = world.mkdir(ROOT, b"b").unwrap().ino;
    let sub = world.mkdir(a, b"sub").unwrap().ino;
    let deep = world.mkdir(sub, b"deep").unwrap().ino;
    world.file(a, b"file").unwrap();
    fs.rename(cx, (a, b"file"), (b, b"moved"), plain).unwrap();
    assert_eq!(world.names(b), [b"moved"]);
    let into_itself = fs.rename(cx, (ROOT, b"a"), (deep, b"x"), plain);
    assert!(matches!(into_itself, Err(FsError::Invalid(_))));
    assert_eq!(
        fs.rename(cx, (sub, b"deep"), (ROOT, b"a"), plain),
        Err(FsError::NotEmpty)
    );
    assert_eq!(
        fs.rename(cx, (ROOT, b"a"), (b, b"moved"), plain),
        Err(FsError::NotDir)
    );
    assert_eq!(
        fs.rename(cx, (b, b"moved"), (ROOT, b"a"), plain),
        Err(FsError::IsDir)
    );
    fs.rename(cx, (a, b"sub"), (b, b"sub"), plain).unwrap();
    assert_eq!(world.lookup(sub, b"..").unwrap().ino, b);
    assert_eq!(world.lookup(ROOT, b"a").unwrap().nlink, 2);
    assert_eq!(world.lookup(ROOT, b"b").unwrap().nlink, 3);
    // An empty directory is replaced.
    fs.rename(cx, (b, b"sub"), (ROOT, b"a"), plain).unwrap();
    assert_eq!(world.lookup(ROOT, b"a").unwrap().ino, sub);
    assert_eq!(world.lookup(ROOT, b"b").unwrap().nlink, 2);
    let keep = RenameFlags {
        no_replace: true,
        ..plain
    };
    assert_eq!(
        fs.rename(cx, (ROOT, b"a"), (ROOT, b"b"), keep),
        Err(FsError::Exists)
    );
    let swap = RenameFlags {
        exchange: true,
        ..plain
    };
    fs.rename(cx, (sub, b"deep"), (b, b"moved"), swap).unwrap();
    assert_eq!(world.lookup(b, b"moved").unwrap().ino, deep);
    assert_eq!(world.lookup(deep, b"..").unwrap().ino, b);
    assert_eq!(world.lookup(ROOT, b"b").unwrap().nlink, 3);
    assert_eq!(world.lookup(ROOT, b"a").unwrap().nlink, 2);
    let white = RenameFlags {
        whiteout: true,
        ..plain
    };
    fs.rename(cx, (sub, b"deep"), (sub, b"shallow"), white)
        .unwrap();
    let left = world.lookup(sub, b"deep").unwrap();
    assert_eq!((left.kind, left.rdev), (FileKind::CharDevice, 0));
    assert_eq!(world.names(sub), [&b"deep"[..], b"shallow"]);
    world.close();
}

#[test]
fn open_files_outlive_their_names() {
    let world = World::make(&["-t", "ext4"], "16M");
    let (fs, cx) = (&world.fs, &world.cx);
    let free = fs.alloc.totals().free_inodes;
    let mut open = Vec::new();
    for i in 0..10 {
        let name = format!("f{i}");
        open.push(
            fs.mknod(cx, ROOT, name.as_bytes(), 0o100_600, 0)
                .unwrap()
                .ino,
        );
    }
    for i in 0..10 {
        fs.unlink(cx, ROOT, format!("f{i}").as_bytes()).unwrap();
    }
    assert_eq!(fs.alloc.totals().free_inodes, free - 10);
    // From the middle, the end and the start of the orphan list.
    for i in [5, 0, 9, 1, 8] {
        world.forget(open[i]);
    }
    assert_eq!(fs.alloc.totals().free_inodes, free - 5);
    let tmp = fs.tmpfile(cx, ROOT, 0o600).unwrap();
    assert_eq!(tmp.nlink, 0);
    assert_eq!(fs.link(cx, open[3], ROOT, b"back"), Err(FsError::NotFound));
    let linked = fs.link(cx, tmp.ino, ROOT, b"tmp").unwrap();
    assert_eq!((linked.ino, linked.nlink), (tmp.ino, 1));
    let left = world.cut_power();
    let world = world.recover(left);
    assert_eq!(world.fs.alloc.totals().free_inodes, free - 1);
    assert_eq!(world.names(ROOT), [&b"lost+found"[..], b"tmp"]);
    world.close();
}

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
fn inodes_and_blocks_run_out() {
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
    for options in [
        &["-t", "ext4", "-b", "1024", "-N", "4096", "-m", "0"][..],
        &["-t", "ext2", "-b", "1024", "-N", "4096", "-m", "0"],
        &[
            "-t", "ext4", "-b", "1024", "-N", "4096", "-m", "0", "-I", "128",
        ],
    ] {
        let world = World::make(options, "4M");
        fill(&world);
        world.close();
    }
}

/// Directories, long links and attributes until nothing fits, then everything is removed.
fn fill(world: &World) {
    let (fs, cx) = (&world.fs, &world.cx);
    let target = [b't'; 500];
    for round in 0..3 {
        let mut made = Vec::new();
        let mut refused = 0;
        for n in 0.. {
            let name = format!("{n}-{}", "n".repeat(n % 200)).into_bytes();
            let result = match n % 3 {
                0 => world.mkdir(ROOT, &name).map(|_| ()),
                1 => fs
                    .symlink(cx, ROOT, &name, &target)
                    .map(|a| world.forget(a.ino)),
                _ => world.file(ROOT, &name).and_then(|file| {
                    made.push((n, name.clone()));
                    let value = [n as u8; 700];
                    fs.setxattr(cx, file.ino, b"user.x", &value, SetXattr::Any)
                }),
            };
            match result {
                Ok(()) if n % 3 != 2 => made.push((n, name)),
                Ok(()) => {}
                Err(FsError::NoSpace) => refused += 1,
                Err(other) => panic!("{other}"),
            }
            if refused > 20 {
                break;
            }
        }
        assert!(made.len() > 300, "round {round}: {}", made.len());
        let mut names: Vec<_> = made.iter().map(|(_, name)| name.clone()).collect();
        names.push(b"lost+found".to_vec());
        names.sort();
        assert_eq!(world.names(ROOT), names);
        for (n, name) in made {
            if n % 3 == 0 {
                fs.rmdir(cx, ROOT, &name).unwrap();
            } else {
                fs.unlink(cx, ROOT, &name).unwrap();
            }
        }
    }
}

#[test]
fn many_tasks_in_few_directories() {
    let options = ["-t", "ext4", "-b", "1024", "-N", "16384"];
    let world = Arc::new(World::make(&options, "64M"));
    let dirs = [&b"a"[..], b"b", b"c"].map(|name| world.mkdir(ROOT, name).unwrap().ino);
    let tasks = [0, 1, 2, 3].map(|seed| {
        let world = Arc::clone(&world);
        steadfs_rt::spawn("names", move || {
            let mut random = Random::new(seed);
            for _ in 0..3000 {
                busy_step(&world, &mut random, &dirs);
            }
        })
    });
    for task in tasks {
        task.join();
    }
    let world = Arc::into_inner(world)
        .expect("all tasks have ended")
        .reopen();
    let count: usize = dirs.iter().map(|&dir| world.names(dir).len()).sum();
    assert!(count > 10);
    world.close();
}

/// An operation that may fail because another task was faster.
fn busy_step(world: &World, random: &mut Random, dirs: &[InodeNo; 3]) {
    let (fs, cx) = (&world.fs, &world.cx);
    let mut pick = || {
        let dir = dirs[random.below(3)];
        (dir, format!("name-{}", random.below(60)).into_bytes())
    };
    let (a, b) = (pick(), pick());
    let result = match random.below(10) {
        0..3 => fs
            .mknod(cx, a.0, &a.1, 0o100_600, 0)
            .map(|x| world.forget(x.ino)),
        3 => fs.mkdir(cx, a.0, &a.1, 0o700).map(|x| world.forget(x.ino)),
        4 => fs.lookup(cx, a.0, &a.1).and_then(|found| {
            let linked = fs.link(cx, found.ino, b.0, &b.1);
            world.forget(found.ino);
            linked.map(|x| world.forget(x.ino))
        }),
        5..7 => fs.unlink(cx, a.0, &a.1),
        7 => fs.rmdir(cx, a.0, &a.1),
        _ => {
            let flags = RenameFlags {
                exchange: random.below(2) == 0,
                ..RenameFlags::default()
            };
            fs.rename(cx, (a.0, &a.1), (b.0, &b.1), flags)
        }
    };
    if let Err(error) = result {
        let expected = matches!(
            error,
            FsError::Exists
                | FsError::NotFound
                | FsError::IsDir
                | FsError::NotDir
                | FsError::NotEmpty
                | FsError::NotPermitted
                | FsError::Invalid(_)
        );
        assert!(expected, "{error}");
    }
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
