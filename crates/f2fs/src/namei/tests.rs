//! What operations on names do to counts, orphans and inodes of f2fs, judged by fsck.f2fs and by our checker.

mod casefold;

use steadfs_base::InodeNo;
use steadfs_vfs::{FileSystem, FsError, RenameFlags, Result, SetAttr, SetXattr};

use crate::disk::Nid;
use crate::disk::inode::Advise;
use crate::test_world::{ALL, ROOT, World};

#[test]
fn unlinked_files_in_use_are_orphans() {
    let world = World::make(ALL, 64);
    let (fs, cx) = (&*world.fs, &world.cx);
    let counts = || (fs.space.counts().valid_inodes, fs.orphans.all().len());
    let (before, none) = counts();
    assert_eq!(none, 0);
    let name = |i: usize| format!("f{i}").into_bytes();
    let make = |i| fs.mknod(cx, ROOT, &name(i), 0o100_600, 0).unwrap().ino;
    let open: Vec<_> = (0..10).map(make).collect();
    for i in 0..10 {
        fs.unlink(cx, ROOT, &name(i)).unwrap();
    }
    assert_eq!(counts(), (before + 10, 10));
    world.judge_now();
    for i in [5, 0, 9, 1, 8] {
        world.forget(open[i]);
    }
    assert_eq!(counts(), (before + 5, 5));
    let tmp = fs.tmpfile(cx, ROOT, 0o600).unwrap();
    assert_eq!(counts(), (before + 6, 6));
    world.judge_now();
    fs.link(cx, tmp.ino, ROOT, b"tmp").unwrap();
    assert_eq!(counts(), (before + 6, 5));
    for i in [2, 3, 4, 6, 7] {
        world.forget(open[i]);
    }
    assert_eq!(counts(), (before + 1, 0));
    world.close();
}

/// What a checkpoint has written is dropped from memory as long as nothing needs it.
#[test]
fn a_tmpfile_is_in_memory_until_it_has_a_name_or_is_freed() {
    let world = World::make(ALL, 64);
    let (fs, cx) = (&*world.fs, &world.cx);
    let before = fs.space.counts().valid_inodes;
    let [named, unnamed] = [(); 2].map(|()| {
        let file = fs.tmpfile(cx, ROOT, 0o600).unwrap().ino;
        fs.write(cx, file, 0, &[7; 9000], false).unwrap();
        file
    });
    fs.sync_all(cx).unwrap();
    fs.forget_clean();
    fs.link(cx, named, ROOT, b"named").unwrap();
    world.forget(unnamed);
    assert!(fs.orphans.all().is_empty());
    assert_eq!(fs.space.counts().valid_inodes, before + 1);
    world.forget(named);
    world.close();
}

/// Also where many calls were refused.
#[test]
fn no_reservation_is_left_by_names() {
    let world = World::make_with(ALL, 52, "noinline_dentry");
    let (fs, cx) = (&*world.fs, &world.cx);
    let before = fs.space.counts();
    let mut made = Vec::new();
    let mut refused = 0;
    for n in 0.. {
        let name = format!("{n}-{}", "n".repeat(n % 200)).into_bytes();
        let result = match n % 3 {
            0 => world.mkdir(ROOT, &name).map(|_| ()),
            1 => fs
                .symlink(cx, ROOT, &name, &[b't'; 4000])
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
    assert_eq!(fs.space.counts().reserved, 0);
    assert!(made.len() > 500, "{}", made.len());
    for (n, name) in made {
        match n % 3 {
            0 => fs.rmdir(cx, ROOT, &name).unwrap(),
            _ => fs.unlink(cx, ROOT, &name).unwrap(),
        }
    }
    let after = fs.space.counts();
    assert_eq!(
        (after.valid_inodes, after.reserved),
        (before.valid_inodes, 0)
    );
    world.judge_now();
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

/// A directory with two files and a directory, all encrypted, and a directory that is not. No key is known.
struct Encrypted {
    world: World,
    dir: InodeNo,
    file: InodeNo,
    plain: InodeNo,
    /// The names in `dir` as they are shown without the key.
    shown: [Vec<u8>; 3],
}

impl Encrypted {
    fn new() -> Self {
        use crate::disk::hash;
        use steadfs_vfs::nokey::show;

        let world = World::make(ALL, 64);
        let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
        let names = [
            &b"sixteen bytes it"[..],
            b"a name to remove",
            b"a directory name",
        ];
        let [file, other] = [0, 1].map(|n| world.file(dir, names[n]).unwrap().ino);
        let sub = world.mkdir(dir, names[2]).unwrap().ino;
        let fs: &dyn FileSystem = &*world.fs;
        fs.write(&world.cx, file, 0, &[7; 9000], false).unwrap();
        let plain = world.mkdir(ROOT, b"plain").unwrap().ino;
        for ino in [dir, file, other, sub] {
            encrypt(&world, ino);
        }
        let shown = names.map(|name| show([hash::of_name(name), 0], name).unwrap());
        assert_eq!(world.names(dir).len(), 3);
        for (name, ino) in shown.iter().zip([file, other, sub]) {
            assert_eq!(world.lookup(dir, name).unwrap().ino, ino);
        }
        Self {
            world,
            dir,
            file,
            plain,
            shown,
        }
    }
}

fn encrypt(world: &World, ino: InodeNo) {
    use crate::disk::xattr::{XattrChange, index};

    // Its dirty data would need the key.
    world.fs.sync_all(&world.cx).unwrap();
    let inode = world.fs.by_number(ino, world.cx.tag).unwrap();
    let context = XattrChange {
        index: index::ENCRYPTION,
        name: b"c",
        value: Some(&[2; 40]),
    };
    let stored = world
        .fs
        .store_fields(&world.cx, &inode, &[context], |core, _| {
            core.advise = core.advise.union(Advise::ENCRYPTED);
        });
    stored.unwrap();
}

/// As in the kernel.
#[test]
fn without_the_key_content_and_new_names_are_refused() {
    let all = Encrypted::new();
    let (world, dir, file, shown) = (&all.world, all.dir, all.file, &all.shown);
    let (fs, cx): (&dyn FileSystem, _) = (&*world.fs, &world.cx);
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
}

/// What the kernel allows without the key is allowed.
#[test]
fn without_the_key_files_can_be_removed_and_keep_their_content() {
    let Encrypted {
        world,
        dir,
        file,
        plain,
        shown,
    } = Encrypted::new();
    let (fs, cx): (&dyn FileSystem, _) = (&*world.fs, &world.cx);
    fs.link(cx, file, plain, b"one more").unwrap();
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
    fs.unlink(cx, plain, b"one more").unwrap();
    fs.rmdir(cx, ROOT, b"dir").unwrap();
    world.close();
}
