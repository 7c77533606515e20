//! Operations on names, judged by e2fsck and by what is read back.

use steadfs_vfs::{FileKind, FsError, RenameFlags};

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
fn names_go() {
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
fn rename_moves() {
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
    // From the middle, the end and the start of the list.
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
