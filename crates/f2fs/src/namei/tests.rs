//! Operations on names, judged by fsck.f2fs, by our checker and by what is read back.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_rt::Random;
use steadfs_vfs::{FileKind, FileSystem, FsError, RenameFlags, Result, SetAttr, SetXattr};

use crate::disk::Nid;
use crate::disk::inode::Advise;
use crate::test_world::{ALL, ROOT, World, is_race};

#[test]
fn every_kind_of_inode() {
    for (features, options) in [
        ("", ""),
        (ALL, ""),
        ("", "active_logs=2"),
        (ALL, "active_logs=4,noinline_dentry"),
        (ALL, "noinline_dentry,noinline_data,inline_xattr_size=100"),
    ] {
        kinds(features, options);
    }
}

fn kinds(features: &str, options: &str) {
    let world = World::make_with(features, 64, options);
    let (fs, cx) = (&*world.fs, &world.cx);
    let dir = world.mkdir(ROOT, b"dir").unwrap();
    assert_eq!(
        (dir.nlink, dir.kind, dir.perm),
        (2, FileKind::Directory, 0o755)
    );
    assert_eq!(dir.btime.is_some(), features == ALL);
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
    let inline = !options.contains("noinline_data");
    let blocks = if inline { 0 } else { 8 };
    assert_eq!((short.size, short.blocks, short.perm), (10, blocks, 0o777));
    assert_eq!(fs.readlink(cx, short.ino).unwrap(), b"over/there");
    for len in [3000, 3400, 3500, 3700, 4095] {
        let target = vec![b't'; len];
        let name = format!("link{len}").into_bytes();
        let long = fs.symlink(cx, dir.ino, &name, &target).unwrap();
        assert_eq!(long.size, len as u64);
        assert_eq!(fs.readlink(cx, long.ino).unwrap(), target);
    }
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
    assert_eq!(world.names(dir.ino).len(), 12);
    assert_eq!(world.lookup(dir.ino, b"null").unwrap().rdev, 0x103);
    assert_eq!(world.lookup(dir.ino, b"big").unwrap().rdev, 0x0012_3456);
    world.close();
}

#[test]
fn names_go() {
    let world = World::make(ALL, 64);
    let (fs, cx) = (&*world.fs, &world.cx);
    let before = fs.space.counts();
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
    let after = fs.space.counts();
    assert_eq!(
        (after.valid_blocks, after.valid_inodes, after.reserved),
        (before.valid_blocks, before.valid_inodes, 0)
    );
    world.close();
}

#[test]
fn rename_moves() {
    let world = World::make(ALL, 64);
    let (fs, cx) = (&*world.fs, &world.cx);
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
    world.judge_now();
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
    world.reopen().close();
}

#[test]
fn open_files_outlive_their_names() {
    let world = World::make(ALL, 64);
    let (fs, cx) = (&*world.fs, &world.cx);
    let inodes = || fs.space.counts().valid_inodes;
    let before = inodes();
    let mut open = Vec::new();
    for i in 0..10 {
        let name = format!("f{i}");
        let attr = fs.mknod(cx, ROOT, name.as_bytes(), 0o100_600, 0).unwrap();
        open.push(attr.ino);
    }
    for i in 0..10 {
        fs.unlink(cx, ROOT, format!("f{i}").as_bytes()).unwrap();
    }
    assert_eq!((inodes(), fs.orphans.all().len()), (before + 10, 10));
    world.judge_now();
    for i in [5, 0, 9, 1, 8] {
        world.forget(open[i]);
    }
    assert_eq!((inodes(), fs.orphans.all().len()), (before + 5, 5));
    let tmp = fs.tmpfile(cx, ROOT, 0o600).unwrap();
    assert_eq!((tmp.nlink, fs.orphans.all().len()), (0, 6));
    world.judge_now();
    assert_eq!(fs.link(cx, open[3], ROOT, b"back"), Err(FsError::NotFound));
    let linked = fs.link(cx, tmp.ino, ROOT, b"tmp").unwrap();
    assert_eq!((linked.ino, linked.nlink), (tmp.ino, 1));
    for i in [2, 3, 4, 6, 7] {
        world.forget(open[i]);
    }
    assert_eq!(inodes(), before + 1);
    assert_eq!(world.names(ROOT), [&b"lost+found"[..], b"tmp"]);
    world.close();
}

/// A directory that grows from inline entries to one block and many levels, and shrinks again.
#[test]
fn large_directories() {
    for (options, dir_level) in [("", 0), ("noinline_dentry", 0), ("", 3)] {
        let world = World::make_with(ALL, 128, options);
        let (fs, cx) = (&*world.fs, &world.cx);
        let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
        {
            let inode = fs.by_number(dir, cx.tag).unwrap();
            let change = fs.change().unwrap();
            let mut core = inode.core.write();
            fs.mark_dirty(&change, &inode, cx.tag).unwrap();
            core.dir_level = dir_level;
        }
        let name = |n: usize| format!("{n} {}", "x".repeat(n * 7 % 90)).into_bytes();
        const MANY: usize = 6000;
        let first = world.file(dir, &name(0)).unwrap().ino;
        for n in 1..MANY {
            fs.link(cx, first, dir, &name(n)).unwrap();
            if n == 50 || n == 2500 {
                world.judge_now();
            }
        }
        assert_eq!(fs.link(cx, first, dir, &name(77)), Err(FsError::Exists));
        assert_eq!(world.list(dir, 13).len(), MANY + 2);
        let levels = fs.by_number(dir, cx.tag).unwrap().core.read().depth;
        assert!(levels > if dir_level == 0 { 5 } else { 2 }, "{levels}");
        fs.put(first, MANY as u64 - 1).unwrap();
        let world = world.reopen();
        let (fs, cx) = (&*world.fs, &world.cx);
        let blocks = || world.lookup(ROOT, b"dir").unwrap().blocks;
        let before = blocks();
        for n in (0..MANY).filter(|n| n % 3 != 0) {
            fs.unlink(cx, dir, &name(n)).unwrap();
        }
        assert_eq!(world.list(dir, 500).len(), MANY / 3 + 2);
        for n in (0..MANY).filter(|n| n % 3 == 0) {
            assert_eq!(fs.rmdir(cx, ROOT, b"dir"), Err(FsError::NotEmpty));
            fs.unlink(cx, dir, &name(n)).unwrap();
        }
        // Blocks without entries are freed.
        assert!(blocks() < 100 && before > 500, "{} of {before}", blocks());
        world.judge_now();
        fs.rmdir(cx, ROOT, b"dir").unwrap();
        world.close();
    }
}

#[test]
fn inodes_know_their_last_name() {
    let world = World::make(ALL, 64);
    let (fs, cx) = (&*world.fs, &world.cx);
    let plain = RenameFlags::default();
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    let file = world.file(ROOT, b"clip.mp4").unwrap().ino;
    let core = |ino| fs.by_number(ino, cx.tag).unwrap().core.read().clone();
    let new = core(file);
    assert_eq!((new.parent, &new.name[..]), (Nid::ROOT, &b"clip.mp4"[..]));
    assert_eq!(new.advise, Advise::COLD);
    fs.rename(cx, (ROOT, b"clip.mp4"), (dir, b"other"), plain)
        .unwrap();
    let moved = core(file);
    assert_eq!(
        (moved.parent, &moved.name[..]),
        (Nid::from_vfs(dir).unwrap(), &b"other"[..])
    );
    assert_eq!(moved.advise, Advise::COLD.union(Advise::LOST_PARENT));
    let sub = world.mkdir(ROOT, b"sub").unwrap().ino;
    fs.rename(cx, (ROOT, b"sub"), (dir, b"sub"), plain).unwrap();
    assert_eq!(
        (core(sub).parent, core(sub).advise),
        (Nid::from_vfs(dir).unwrap(), Advise::default())
    );
    // Recovery must not let a new file under the old name replace the inode that moved.
    let again = world.file(ROOT, b"clip.mp4").unwrap().ino;
    let unrelated = world.file(ROOT, b"unrelated").unwrap().ino;
    let needs_checkpoint = |ino| {
        let nid = Nid::from_vfs(ino).unwrap();
        fs.since_cp.needs_checkpoint(nid)
    };
    assert!(needs_checkpoint(again) && !needs_checkpoint(unrelated));
    world.judge_now();
    assert!(!needs_checkpoint(again));
    world.close();
}

#[test]
fn a_full_volume_reports_enospc_and_keeps_data() {
    let world = World::make_with(ALL, 52, "noinline_dentry");
    let (fs, cx) = (&*world.fs, &world.cx);
    let target = vec![b't'; 4000];
    for round in 0..2 {
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
        let counts = fs.space.counts();
        assert_eq!(counts.reserved, 0);
        assert!(made.len() > 500, "round {round}: {}", made.len());
        let mut names: Vec<_> = made.iter().map(|(_, name)| name.clone()).collect();
        names.push(b"lost+found".to_vec());
        names.sort();
        assert_eq!(world.names(ROOT), names);
        world.judge_now();
        for (n, name) in made {
            if n % 3 == 0 {
                fs.rmdir(cx, ROOT, &name).unwrap();
            } else {
                fs.unlink(cx, ROOT, &name).unwrap();
            }
        }
        world.judge_now();
    }
    world.close();
}

#[test]
fn many_tasks_in_few_directories() {
    let world = Arc::new(World::make(ALL, 64));
    let dirs = [&b"a"[..], b"b", b"c"].map(|name| world.mkdir(ROOT, name).unwrap().ino);
    let tasks = [0, 1, 2, 3].map(|seed| {
        let world = Arc::clone(&world);
        steadfs_rt::spawn("names", move || {
            let mut random = Random::new(seed);
            for n in 0..2000 {
                busy_step(&world, &mut random, &dirs);
                if n % 300 == 0 {
                    let reason = crate::checkpoint::Reason::Sync;
                    world.fs.checkpoint(reason, world.cx.tag).unwrap();
                }
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

/// A random operation that may fail because another task was faster.
fn busy_step(world: &World, random: &mut Random, dirs: &[InodeNo; 3]) {
    let (fs, cx) = (&*world.fs, &world.cx);
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
        assert!(is_race(&error), "{error}");
    }
}

/// Random operations in one directory, compared with a map of its expected content.
#[test]
fn names_match_a_model() {
    for seed in 0..4 {
        let world = World::make_with(ALL, 64, ["", "noinline_dentry"][seed % 2]);
        let mut random = Random::new(seed as u64);
        let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
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
    let (fs, cx) = (&*world.fs, &world.cx);
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

/// Quota files and the kernel's internal inode numbers cannot be reached by a file handle or a corrupt name.
#[test]
fn internal_inodes_are_hidden() {
    let world = World::make_with("extra_attr,project_quota", 64, "ro");
    let (fs, cx) = (&*world.fs, &world.cx);
    let quota = fs.superblock.quota_inodes()[2].unwrap();
    let root = fs.by_number(ROOT, cx.tag).unwrap();
    for nid in [Nid::NODE, Nid::META, quota, Nid(fs.layout.max_nid)] {
        assert_eq!(fs.attach(cx, nid.into()).err(), Some(FsError::Stale));
        assert_eq!(fs.read(cx, nid.into(), 0, 1).err(), Some(FsError::Stale));
        let named = fs.inode_of_entry(&root, nid, cx.tag).err();
        assert!(matches!(named, Some(FsError::Corrupt(_))), "{named:?}");
    }
    fs.attach(cx, ROOT).unwrap();
    fs.forget(ROOT, 1);
}

/// Encrypted inodes without keys: what the kernel allows without the key is allowed.
#[test]
fn without_the_key_files_can_be_removed_and_keep_their_content() {
    use crate::disk::hash;
    use crate::disk::xattr::{XattrChange, index};
    use steadfs_vfs::nokey::show;

    let world = World::make(ALL, 64);
    let (fs, cx): (&dyn FileSystem, _) = (&*world.fs, &world.cx);
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    let names = [
        &b"sixteen bytes it"[..],
        b"a name to remove",
        b"a directory name",
    ];
    let [file, other] = [0, 1].map(|n| world.file(dir, names[n]).unwrap().ino);
    let sub = world.mkdir(dir, names[2]).unwrap().ino;
    fs.write(cx, file, 0, &[7; 9000], false).unwrap();
    let link = world.mkdir(ROOT, b"plain").unwrap().ino;
    for ino in [dir, file, other, sub] {
        let inode = world.fs.by_number(ino, cx.tag).unwrap();
        let context = XattrChange {
            index: index::ENCRYPTION,
            name: b"c",
            value: Some(&[2; 40]),
        };
        let encrypt = world.fs.store_fields(cx, &inode, &[context], |core, _| {
            core.advise = core.advise.union(Advise::ENCRYPTED);
        });
        encrypt.unwrap();
    }
    let shown = names.map(|name| show([hash::of_name(name), 0], name).unwrap());
    assert_eq!(world.names(dir).len(), 3);
    for (name, ino) in shown.iter().zip([file, other, sub]) {
        assert_eq!(world.lookup(dir, name).unwrap().ino, ino);
    }
    let no_key = |result: Result<(), FsError>| assert_eq!(result, Err(FsError::NoKey));
    // Content.
    for write in [false, true] {
        no_key(fs.open(cx, file, write));
    }
    no_key(fs.read(cx, file, 0, 1).map(drop));
    no_key(fs.write(cx, file, 0, b"x", false).map(drop));
    let cut = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    no_key(fs.setattr(cx, file, &cut).map(drop));
    // Names.
    no_key(world.file(dir, b"new").map(drop));
    no_key(world.mkdir(dir, b"new").map(drop));
    no_key(fs.symlink(cx, dir, b"new", b"target").map(drop));
    no_key(fs.tmpfile(cx, dir, 0o600).map(drop));
    let plain = RenameFlags::default();
    world.file(ROOT, b"outside").unwrap();
    no_key(fs.rename(cx, (ROOT, b"outside"), (dir, b"new"), plain));
    no_key(fs.rename(cx, (dir, &shown[0]), (ROOT, b"new"), plain));
    no_key(fs.rename(cx, (dir, &shown[0]), (dir, &shown[1]), plain));
    no_key(fs.link(cx, file, dir, b"new").map(drop));
    // Operations that need no key.
    fs.link(cx, file, link, b"one more").unwrap();
    let owner = SetAttr {
        uid: Some(7),
        perm: Some(0o640),
        ..SetAttr::default()
    };
    assert_eq!(fs.setattr(cx, file, &owner).unwrap().perm, 0o640);
    fs.setxattr(cx, file, b"user.x", b"y", SetXattr::Any)
        .unwrap();
    fs.unlink(cx, dir, &shown[1]).unwrap();
    fs.rmdir(cx, dir, &shown[2]).unwrap();
    let world = world.reopen();
    let (fs, cx): (&dyn FileSystem, _) = (&*world.fs, &world.cx);
    assert_eq!(world.names(dir), [shown[0].clone()]);
    assert_eq!(world.lookup(dir, &shown[0]).unwrap().size, 9000);
    fs.unlink(cx, dir, &shown[0]).unwrap();
    fs.unlink(cx, link, b"one more").unwrap();
    fs.rmdir(cx, ROOT, b"dir").unwrap();
    world.close();
}
