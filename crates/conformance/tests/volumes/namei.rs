//! Operations on names.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_conformance::{Kind, Setup, World};
use steadfs_rt::Random;
use steadfs_vfs::{FileKind, FsError, RenameFlags, SetXattr};

on_every!(
    every_kind_of_inode,
    names_are_removed,
    rename_moves_names,
    open_files_outlive_their_names,
    a_full_volume_reports_enospc_and_keeps_names,
    many_tasks_in_few_directories,
    names_match_a_model,
);

fn every_kind_of_inode(kind: &'static Kind) {
    let world = World::make(kind);
    let (fs, cx, root) = (&world.fs, &world.cx, world.root);
    let dir = world.mkdir(root, b"dir").unwrap();
    assert_eq!(
        (dir.nlink, dir.kind, dir.perm),
        (2, FileKind::Directory, 0o755)
    );
    assert_eq!(dir.btime.is_some(), kind.has_birth_time());
    let file = world.file(dir.ino, b"file").unwrap();
    assert_eq!(
        (file.nlink, file.kind, file.size, file.blocks),
        (1, FileKind::Regular, 0, 0)
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
    let blocks = match kind.is_ext() || kind.has_inline_data() {
        true => 0,
        false => 8,
    };
    assert_eq!((short.size, short.blocks, short.perm), (10, blocks, 0o777));
    assert_eq!(fs.readlink(cx, short.ino).unwrap(), b"over/there");
    let longest = kind.longest_link();
    let mut lengths = vec![500, 1000, 3000, 3400, 3500, 3700, longest];
    lengths.retain(|len| *len <= longest);
    for &len in &lengths {
        let target = vec![b't'; len];
        let name = format!("link{len}").into_bytes();
        let long = fs.symlink(cx, dir.ino, &name, &target).unwrap();
        assert_eq!(long.size, len as u64);
        if kind.is_ext() {
            assert_eq!(long.blocks, kind.sectors(len as u64));
        }
        assert_eq!(fs.readlink(cx, long.ino).unwrap(), target);
    }
    assert_eq!(
        fs.symlink(cx, dir.ino, b"longer", &vec![b't'; longest + 1]),
        Err(FsError::NameTooLong)
    );
    assert_eq!(fs.mkdir(cx, dir.ino, b"file", 0o755), Err(FsError::Exists));
    assert_eq!(world.file(dir.ino, &[b'n'; 256]), Err(FsError::NameTooLong));
    world.file(dir.ino, &[b'n'; 255]).unwrap();
    assert_eq!(world.lookup(root, b"dir").unwrap().nlink, 2);
    assert_eq!(world.lookup(dir.ino, b"..").unwrap().ino, root);
    let world = world.reopen();
    let dir = world.lookup(root, b"dir").unwrap();
    assert_eq!(world.names(dir.ino).len(), 7 + lengths.len());
    assert_eq!(world.lookup(dir.ino, b"null").unwrap().rdev, 0x103);
    assert_eq!(world.lookup(dir.ino, b"big").unwrap().rdev, 0x0012_3456);
    world.close();
}

fn names_are_removed(kind: &'static Kind) {
    let world = World::make(kind);
    let (fs, cx, root) = (&world.fs, &world.cx, world.root);
    let before = world.free();
    let dir = world.mkdir(root, b"dir").unwrap();
    world.file(dir.ino, b"file").unwrap();
    assert_eq!(fs.rmdir(cx, root, b"dir"), Err(FsError::NotEmpty));
    assert_eq!(fs.rmdir(cx, dir.ino, b"file"), Err(FsError::NotDir));
    assert_eq!(fs.unlink(cx, root, b"dir"), Err(FsError::IsDir));
    assert_eq!(fs.unlink(cx, root, b"none"), Err(FsError::NotFound));
    fs.unlink(cx, dir.ino, b"file").unwrap();
    fs.rmdir(cx, root, b"dir").unwrap();
    assert_eq!(world.lookup(root, b"dir"), Err(FsError::NotFound));
    assert!(world.new_names().is_empty());
    assert_eq!(world.free(), before);
    world.close();
}

fn rename_moves_names(kind: &'static Kind) {
    let world = World::make(kind);
    let (fs, cx, root) = (&world.fs, &world.cx, world.root);
    let plain = RenameFlags::default();
    let a = world.mkdir(root, b"a").unwrap().ino;
    let b = world.mkdir(root, b"b").unwrap().ino;
    let sub = world.mkdir(a, b"sub").unwrap().ino;
    let deep = world.mkdir(sub, b"deep").unwrap().ino;
    world.file(a, b"file").unwrap();
    fs.rename(cx, (a, b"file"), (b, b"moved"), plain).unwrap();
    assert_eq!(world.names(b), [b"moved"]);
    let into_itself = fs.rename(cx, (root, b"a"), (deep, b"x"), plain);
    assert!(matches!(into_itself, Err(FsError::Invalid(_))));
    assert_eq!(
        fs.rename(cx, (sub, b"deep"), (root, b"a"), plain),
        Err(FsError::NotEmpty)
    );
    assert_eq!(
        fs.rename(cx, (root, b"a"), (b, b"moved"), plain),
        Err(FsError::NotDir)
    );
    assert_eq!(
        fs.rename(cx, (b, b"moved"), (root, b"a"), plain),
        Err(FsError::IsDir)
    );
    fs.rename(cx, (a, b"sub"), (b, b"sub"), plain).unwrap();
    assert_eq!(world.lookup(sub, b"..").unwrap().ino, b);
    assert_eq!(world.lookup(root, b"a").unwrap().nlink, 2);
    assert_eq!(world.lookup(root, b"b").unwrap().nlink, 3);
    // An empty directory is replaced.
    fs.rename(cx, (b, b"sub"), (root, b"a"), plain).unwrap();
    assert_eq!(world.lookup(root, b"a").unwrap().ino, sub);
    assert_eq!(world.lookup(root, b"b").unwrap().nlink, 2);
    world.judge_now();
    let keep = RenameFlags {
        no_replace: true,
        ..plain
    };
    assert_eq!(
        fs.rename(cx, (root, b"a"), (root, b"b"), keep),
        Err(FsError::Exists)
    );
    let swap = RenameFlags {
        exchange: true,
        ..plain
    };
    fs.rename(cx, (sub, b"deep"), (b, b"moved"), swap).unwrap();
    assert_eq!(world.lookup(b, b"moved").unwrap().ino, deep);
    assert_eq!(world.lookup(deep, b"..").unwrap().ino, b);
    assert_eq!(world.lookup(root, b"b").unwrap().nlink, 3);
    assert_eq!(world.lookup(root, b"a").unwrap().nlink, 2);
    let white = RenameFlags {
        whiteout: true,
        ..plain
    };
    fs.rename(cx, (sub, b"deep"), (sub, b"shallow"), white)
        .unwrap();
    let left = world.lookup(sub, b"deep").unwrap();
    assert_eq!((left.kind, left.rdev), (FileKind::CharDevice, 0));
    assert_eq!(world.names(sub), [&b"deep"[..], b"shallow"]);
    world.reopen().close();
}

fn open_files_outlive_their_names(kind: &'static Kind) {
    let world = World::make(kind);
    let (fs, cx, root) = (&world.fs, &world.cx, world.root);
    let inodes = || world.free().1;
    let name = |i: usize| format!("f{i}").into_bytes();
    let before = inodes();
    let make = |i| fs.mknod(cx, root, &name(i), 0o100_600, 0).unwrap().ino;
    let open: Vec<_> = (0..10).map(make).collect();
    for i in 0..10 {
        fs.unlink(cx, root, &name(i)).unwrap();
    }
    assert_eq!(inodes(), before - 10);
    world.judge_now();
    // From the middle, the end and the start of a list of orphans.
    for i in [5, 0, 9, 1, 8] {
        world.forget(open[i]);
    }
    assert_eq!(inodes(), before - 5);
    let tmp = fs.tmpfile(cx, root, 0o600).unwrap();
    assert_eq!((tmp.nlink, inodes()), (0, before - 6));
    world.judge_now();
    assert_eq!(fs.link(cx, open[3], root, b"back"), Err(FsError::NotFound));
    let linked = fs.link(cx, tmp.ino, root, b"tmp").unwrap();
    assert_eq!((linked.ino, linked.nlink), (tmp.ino, 1));
    if kind.recovers {
        world.after_power_cut(true, |there| {
            assert_eq!(there.free().1, before - 1);
            assert_eq!(there.new_names(), [b"tmp"]);
        });
    }
    for i in [2, 3, 4, 6, 7] {
        world.forget(open[i]);
    }
    assert_eq!(inodes(), before - 1);
    assert_eq!(world.new_names(), [b"tmp"]);
    world.close();
}

/// Directories, long links and attributes until nothing fits, then everything is removed.
fn a_full_volume_reports_enospc_and_keeps_names(kind: &'static Kind) {
    let (mib, mount) = match (kind.is_ext(), kind.block) {
        (true, 1024) => (4, ""),
        (true, 65_536) => (128, ""),
        (true, _) => (16, ""),
        (false, _) => (52, "noinline_dentry"),
    };
    let setup = Setup {
        mib,
        mke2fs: &["-N", "4096", "-m", "0"],
        mount,
        ..Setup::default()
    };
    let world = World::with(kind, &setup);
    let (target, least) = match kind.is_ext() {
        true => (500, 300),
        false => (4000, 500),
    };
    for round in 0..3 {
        let made = fill(&world, &vec![b't'; target]);
        assert!(made.len() > least, "round {round}: {}", made.len());
        let mut names: Vec<_> = made.iter().map(|(_, name)| name.clone()).collect();
        names.sort();
        assert_eq!(world.new_names(), names);
        world.judge_now();
        for (n, name) in made {
            if n % 3 == 0 {
                world.fs.rmdir(&world.cx, world.root, &name).unwrap();
            } else {
                world.fs.unlink(&world.cx, world.root, &name).unwrap();
            }
        }
        world.judge_now();
    }
    world.close();
}

/// Makes names in the root directory until 20 attempts were refused; returns their numbers and the names.
fn fill(world: &World, target: &[u8]) -> Vec<(usize, Vec<u8>)> {
    let (fs, cx, root) = (&world.fs, &world.cx, world.root);
    let mut made = Vec::new();
    let mut refused = 0;
    for n in 0.. {
        let name = format!("{n}-{}", "n".repeat(n % 200)).into_bytes();
        let result = match n % 3 {
            0 => world.mkdir(root, &name).map(|_| ()),
            1 => fs
                .symlink(cx, root, &name, target)
                .map(|a| world.forget(a.ino)),
            _ => world.file(root, &name).and_then(|file| {
                made.push((n, name.clone()));
                fs.setxattr(cx, file.ino, b"user.x", &[n as u8; 700], SetXattr::Any)
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
    made
}

fn many_tasks_in_few_directories(kind: &'static Kind) {
    let setup = Setup {
        mib: 64,
        mke2fs: &["-N", "16384"],
        ..Setup::default()
    };
    let world = Arc::new(World::with(kind, &setup));
    let dirs = [&b"a"[..], b"b", b"c"].map(|name| world.mkdir(world.root, name).unwrap().ino);
    let tasks = [0, 1, 2, 3].map(|seed| {
        let world = Arc::clone(&world);
        steadfs_rt::spawn("names", move || {
            let mut random = Random::new(seed);
            for n in 0..3000 {
                busy_step(&world, &mut random, &dirs);
                if n % 300 == 0 {
                    world.checkpoint();
                }
            }
        })
    });
    for task in tasks {
        task.join();
    }
    let world = Arc::into_inner(world).expect("all tasks have ended");
    let world = world.reopen();
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

/// Random operations in one directory, compared with a map of its expected content.
fn names_match_a_model(kind: &'static Kind) {
    for seed in [kind.seed(0), kind.seed(1)] {
        let setup = Setup {
            mke2fs: &["-N", "4096"],
            ..Setup::default()
        };
        let world = World::with(kind, &setup);
        let mut random = Random::new(seed);
        let dir = world.mkdir(world.root, b"dir").unwrap().ino;
        let mut model: BTreeMap<Vec<u8>, InodeNo> = BTreeMap::new();
        for step in 0..4000 {
            model_step(&world, &mut random, dir, &mut model);
            if step % 1000 == 999 {
                world.judge_now();
                let listed: Vec<_> = world.names(dir);
                assert_eq!(listed, model.keys().cloned().collect::<Vec<_>>());
                for (name, ino) in &model {
                    assert_eq!(world.lookup(dir, name).unwrap().ino, *ino);
                }
            }
        }
        world.reopen().close();
    }
}

fn model_step(
    world: &World,
    random: &mut Random,
    dir: InodeNo,
    model: &mut BTreeMap<Vec<u8>, InodeNo>,
) {
    let (fs, cx) = (&world.fs, &world.cx);
    let mut pick = || {
        let n = random.below(400);
        format!("{n}{}", "-".repeat(n * 31 % 250)).into_bytes()
    };
    let (a, b) = (pick(), pick());
    match random.below(4) {
        0 | 1 => {
            let made = world.file(dir, &a);
            assert_eq!(made.is_ok(), !model.contains_key(&a));
            if let Ok(attr) = made {
                model.insert(a, attr.ino);
            }
        }
        2 => {
            let gone = fs.unlink(cx, dir, &a);
            assert_eq!(gone.is_ok(), model.remove(&a).is_some());
        }
        _ => {
            let moved = fs.rename(cx, (dir, &a), (dir, &b), RenameFlags::default());
            assert_eq!(moved.is_ok(), model.contains_key(&a));
            if a != b
                && let Some(ino) = model.remove(&a)
            {
                model.insert(b, ino);
            }
        }
    }
}
