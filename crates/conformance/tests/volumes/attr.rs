//! Mode, owner, times and flags.

use steadfs_base::{InodeNo, Timestamp};
use steadfs_conformance::{Kind, World};
use steadfs_vfs::{Cx, FallocMode, FsError, InodeFlags, RenameFlags, SetAttr, SetTime, SetXattr};

on_every!(
    fields_are_kept,
    a_change_of_owner_clears_privileges,
    unprivileged_changes_clear_privileges,
    groups_are_inherited,
    immutable_and_append_only,
    reads_update_the_access_time_unless_a_flag_forbids_it,
    flags_are_inherited_and_refused,
    a_directory_keeps_its_capability_when_its_owner_changes,
);

on!((ext4_large_inodes) projects_are_inherited_and_kept_apart);

on!((ext4_4k f2fs) volumes_without_projects_have_only_project_0);

fn set() -> SetAttr {
    SetAttr::default()
}

fn fields_are_kept(kind: &'static Kind) {
    let world = World::make(kind);
    let (fs, cx) = (&world.fs, &world.cx);
    let file = world.file(world.root, b"file").unwrap();
    assert_eq!(file.btime, kind.has_birth_time().then_some(file.mtime));
    assert_eq!(file.mtime, kind.stored(file.mtime));
    let time = |secs, nanos| Timestamp { secs, nanos };
    let at = |time| Some(SetTime::At(time));
    let (old, new) = (time(-5, 7), time(5_000_000_000, 999_999_999));
    let all = SetAttr {
        perm: Some(0o1640),
        uid: Some(70_000),
        gid: Some(80_000),
        atime: at(old),
        mtime: at(new),
        ..set()
    };
    let now = world.set(file.ino, all).unwrap();
    assert_eq!((now.perm, now.uid, now.gid), (0o1640, 70_000, 80_000));
    assert_eq!((now.atime, now.mtime), (kind.stored(old), kind.stored(new)));
    assert!(now.ctime >= file.ctime);
    for far in [time(1 << 33, 5), time(i64::MAX, 0), time(-(1 << 40), 1)] {
        let times = SetAttr {
            atime: at(far),
            mtime: at(far),
            ..set()
        };
        let now = world.set(file.ino, times).unwrap();
        let stored = kind.stored(far);
        assert_eq!((now.atime, now.mtime), (stored, stored));
        let there = world.after_power_cut(true, |w| w.lookup(w.root, b"file").unwrap());
        assert_eq!((there.atime, there.mtime), (stored, stored));
    }
    let again = SetAttr {
        atime: at(old),
        ..set()
    };
    world.set(file.ino, again).unwrap();
    let before = fs.lookup(cx, world.root, b"file").unwrap();
    let world = world.reopen();
    assert_eq!(world.lookup(world.root, b"file").unwrap(), before);
    world.close();
}

fn a_change_of_owner_clears_privileges(kind: &'static Kind) {
    let world = World::make(kind);
    let (fs, cx, root) = (&world.fs, &world.cx, world.root);
    let file = fs.mknod(cx, root, b"file", 0o106_755, 0).unwrap().ino;
    fs.setxattr(cx, file, b"security.capability", b"caps", SetXattr::Any)
        .unwrap();
    let perm = |ino, perm| {
        let perm = Some(perm);
        world.set(ino, SetAttr { perm, ..set() }).unwrap()
    };
    let uid = Some(9);
    let owned = world.set(file, SetAttr { uid, ..set() }).unwrap();
    assert_eq!(owned.perm, 0o755);
    assert_eq!(
        fs.getxattr(cx, file, b"security.capability"),
        Err(FsError::NoData)
    );
    // Without group execution set-group-ID means mandatory locking.
    perm(file, 0o6745);
    let gid = Some(9);
    let owned = world.set(file, SetAttr { gid, ..set() }).unwrap();
    assert_eq!(owned.perm, 0o2745);
    let dir = world.mkdir(root, b"dir").unwrap().ino;
    perm(dir, 0o6775);
    let owned = world.set(dir, SetAttr { uid, ..set() }).unwrap();
    assert_eq!(owned.perm, 0o6775);
    world.close();
}

fn user(world: &World, gid: u32) -> Cx {
    Cx {
        uid: 7,
        gid,
        fsetid: false,
        ..world.cx.clone()
    }
}

fn unprivileged_changes_clear_privileges(kind: &'static Kind) {
    type Change = fn(&World, &Cx, InodeNo);
    // The transport knows whether the writer is privileged; fallocate(2) decides by the caller.
    let write: Change = |world, cx, file| {
        let unprivileged = !cx.fsetid;
        let written = world.fs.write(cx, file, 0, b"x", unprivileged);
        assert_eq!(written, Ok(1));
    };
    let fallocate: Change = |world, cx, file| {
        let mode = FallocMode::Allocate { keep_size: false };
        world.fs.fallocate(cx, file, mode, 0, 100).unwrap();
    };
    let mut changes = vec![write];
    changes.extend(kind.has_fallocate().then_some(fallocate));
    let world = World::make(kind);
    let file = world.file(world.root, b"file").unwrap().ino;
    for change in changes {
        let perm_after = |perm, cx: &Cx| {
            let own = SetAttr {
                gid: Some(50),
                perm: Some(perm),
                ..set()
            };
            world.set(file, own).unwrap();
            change(&world, cx, file);
            world.attr(file).perm
        };
        let user = |gid| user(&world, gid);
        assert_eq!(perm_after(0o6777, &world.cx), 0o6777);
        assert_eq!(perm_after(0o6777, &user(7)), 0o777);
        assert_eq!(perm_after(0o6777, &user(50)), 0o777);
        // Without group execution set-group-ID gives no privilege to members of the group.
        assert_eq!(perm_after(0o6767, &user(7)), 0o767);
        assert_eq!(perm_after(0o6767, &user(50)), 0o2767);
    }
    world.close();
}

fn groups_are_inherited(kind: &'static Kind) {
    let world = World::make(kind);
    let fs = &world.fs;
    let dir = world.mkdir(world.root, b"dir").unwrap().ino;
    let own = SetAttr {
        gid: Some(50),
        perm: Some(0o2777),
        ..set()
    };
    world.set(dir, own).unwrap();
    let user = user(&world, 7);
    let sub = fs.mkdir(&user, dir, b"sub", 0o755).unwrap();
    assert_eq!((sub.uid, sub.gid, sub.perm), (7, 50, 0o2755));
    let file = fs.mknod(&user, dir, b"file", 0o102_755, 0).unwrap();
    assert_eq!((file.uid, file.gid, file.perm), (7, 50, 0o755));
    let kept = fs.mknod(&user, dir, b"kept", 0o102_745, 0).unwrap();
    assert_eq!(kept.perm, 0o2745);
    let plain = fs.mknod(&user, world.root, b"plain", 0o100_644, 0).unwrap();
    assert_eq!((plain.uid, plain.gid), (7, 7));
    world.close();
}

fn immutable_and_append_only(kind: &'static Kind) {
    let world = World::make(kind);
    let (fs, cx, root) = (&world.fs, &world.cx, world.root);
    let dir = world.mkdir(root, b"dir").unwrap().ino;
    let file = world.file(dir, b"file").unwrap().ino;
    let denied = FsError::NotPermitted;
    let flags = |ino, flag: InodeFlags| {
        let now = fs.flags(cx, ino).unwrap().flags;
        let kept = InodeFlags::IMMUTABLE.union(InodeFlags::APPEND).0;
        fs.set_flags(cx, ino, InodeFlags(now.0 & !kept | flag.0))
            .unwrap();
    };
    let none = RenameFlags::default();
    for flag in [InodeFlags::IMMUTABLE, InodeFlags::APPEND] {
        flags(file, flag);
        assert_eq!(fs.unlink(cx, dir, b"file"), Err(denied.clone()));
        assert_eq!(
            fs.rename(cx, (dir, b"file"), (dir, b"x"), none),
            Err(denied.clone())
        );
        assert_eq!(fs.link(cx, file, dir, b"x"), Err(denied.clone()));
        let perm = Some(0);
        let chmod = world.set(file, SetAttr { perm, ..set() });
        assert_eq!(chmod, Err(denied.clone()));
        assert_eq!(world.resize(file, 0), Err(denied.clone()));
        let xattr = fs.setxattr(cx, file, b"user.x", b"", SetXattr::Any);
        assert_eq!(xattr, Err(denied.clone()));
        let mtime = Some(SetTime::Now);
        let touch = world.set(file, SetAttr { mtime, ..set() });
        assert_eq!(touch.is_ok(), flag == InodeFlags::APPEND);
        flags(file, InodeFlags::default());
        flags(dir, flag);
        assert_eq!(fs.unlink(cx, dir, b"file"), Err(denied.clone()));
        assert_eq!(
            fs.rename(cx, (dir, b"file"), (root, b"x"), none),
            Err(denied.clone())
        );
        assert_eq!(world.file(dir, b"new").is_ok(), flag == InodeFlags::APPEND);
        assert_eq!(fs.rmdir(cx, root, b"dir"), Err(denied.clone()));
        flags(dir, InodeFlags::default());
    }
    fs.unlink(cx, dir, b"file").unwrap();
    world.close();
}

/// Also a read at the end of the file, which returns nothing, as in Linux (`filemap_read`).
fn reads_update_the_access_time_unless_a_flag_forbids_it(kind: &'static Kind) {
    let world = World::make(kind);
    let (fs, cx, root) = (&world.fs, &world.cx, world.root);
    let long_ago = Timestamp { secs: 5, nanos: 0 };
    let atime_before = |ino, long| {
        if long {
            let atime = Some(SetTime::At(long_ago));
            world.set(ino, SetAttr { atime, ..set() }).unwrap();
        }
        world.attr(ino).atime
    };
    let set_flag = |ino, flag| {
        let flags = fs.flags(cx, ino).unwrap().flags;
        fs.set_flags(cx, ino, flags.union(flag)).unwrap();
    };
    let cases = [
        (InodeFlags::default(), true),
        (InodeFlags::IMMUTABLE, true),
        (InodeFlags::NOATIME, false),
    ];
    // Whole seconds do not show that a time has advanced since the file was made.
    let ages = match kind.stored(Timestamp { secs: 0, nanos: 1 }).nanos {
        0 => &[true][..],
        _ => &[true, false],
    };
    for (flag, moves) in cases {
        for (&long, offset) in ages.iter().flat_map(|age| [(age, 0), (age, 9)]) {
            let name = format!("{flag:?} {offset} {long}");
            let file = world.written(name.as_bytes(), b"few bytes").unwrap();
            let before = atime_before(file, long);
            set_flag(file, flag);
            assert_eq!(world.read(file, offset, 9).len() as u64, 9 - offset);
            assert_eq!(world.attr(file).atime > before, moves, "{name}");
        }
    }
    let dir = world.mkdir(root, b"dir").unwrap().ino;
    for moves in [true, false] {
        let before = atime_before(dir, true);
        fs.readdir(cx, dir, 0, &mut |_| true).unwrap();
        assert_eq!(world.attr(dir).atime > before, moves);
        set_flag(dir, InodeFlags::NOATIME);
    }
    world.close();
}

fn flags_are_inherited_and_refused(kind: &'static Kind) {
    let world = World::make(kind);
    let (fs, cx) = (&world.fs, &world.cx);
    let dir = world.mkdir(world.root, b"dir").unwrap().ino;
    let flags = fs.flags(cx, dir).unwrap().flags;
    let common = InodeFlags::NOATIME
        .union(InodeFlags::DIRSYNC)
        .union(InodeFlags::NODUMP)
        .union(InodeFlags::SYNC);
    // Flags of directories only: ext4 does not pass this one on, f2fs has no such flag, but inherits projects.
    let (own, passed) = match kind.is_ext() {
        true => (InodeFlags::TOPDIR, InodeFlags(0)),
        false => (InodeFlags::PROJINHERIT, InodeFlags::PROJINHERIT),
    };
    let more = common.union(own);
    fs.set_flags(cx, dir, flags.union(more)).unwrap();
    let of = |ino| fs.flags(cx, ino).unwrap().flags;
    assert!(of(dir).contains(more));
    let sub = world.mkdir(dir, b"sub").unwrap().ino;
    assert_eq!(InodeFlags(of(sub).0 & more.0), common.union(passed));
    if !kind.is_ext() {
        assert_eq!(of(sub), of(dir));
    }
    let file = world.file(dir, b"file").unwrap().ino;
    assert!(of(file).contains(InodeFlags::NOATIME.union(InodeFlags::SYNC)));
    assert!(!of(file).contains(InodeFlags::DIRSYNC));
    let pipe = fs.mknod(cx, dir, b"pipe", 0o010_600, 0).unwrap().ino;
    assert_eq!(of(pipe), InodeFlags::NOATIME.union(InodeFlags::NODUMP));
    let mut refused = vec![
        InodeFlags::VERITY,
        InodeFlags::ENCRYPTED,
        InodeFlags(0x4000),
        // Only directories have these.
        InodeFlags::DIRSYNC,
        own,
    ];
    if !kind.is_ext() {
        refused.push(InodeFlags::CASEFOLD);
    }
    for refused in refused {
        let result = fs.set_flags(cx, file, of(file).union(refused));
        assert!(
            matches!(result, Err(FsError::NotSupported(_))),
            "{refused:?}"
        );
    }
    if kind.is_ext() {
        let other_map = InodeFlags(of(file).0 ^ InodeFlags::EXTENTS.0);
        assert!(fs.set_flags(cx, file, other_map).is_err());
    }
    world.close();
}

/// `security_inode_killpriv` is not called for directories.
fn a_directory_keeps_its_capability_when_its_owner_changes(kind: &'static Kind) {
    let world = World::make(kind);
    let (fs, cx) = (&world.fs, &world.cx);
    let dir = world.mkdir(world.root, b"dir").unwrap().ino;
    let value = [1; 20];
    fs.setxattr(cx, dir, b"security.capability", &value, SetXattr::Any)
        .unwrap();
    for (uid, gid, kill_priv) in [
        (Some(9), None, false),
        (None, Some(9), true),
        (Some(0), Some(0), true),
    ] {
        let chown = SetAttr {
            uid,
            gid,
            kill_priv,
            ..set()
        };
        world.set(dir, chown).unwrap();
        assert_eq!(fs.getxattr(cx, dir, b"security.capability").unwrap(), value);
    }
    world.close();
}

fn projects_are_inherited_and_kept_apart(kind: &'static Kind) {
    let world = World::make(kind);
    let (fs, cx, root) = (&world.fs, &world.cx, world.root);
    let project_of = |ino| fs.flags(cx, ino).unwrap().project;
    let dir = world.mkdir(root, b"dir").unwrap().ino;
    let plain = world.file(root, b"plain").unwrap().ino;
    fs.set_project(cx, dir, 70_000).unwrap();
    let before = world.file(dir, b"before").unwrap().ino;
    assert_eq!((project_of(dir), project_of(before)), (70_000, 0));
    let flags = fs.flags(cx, dir).unwrap().flags;
    fs.set_flags(cx, dir, flags.union(InodeFlags::PROJINHERIT))
        .unwrap();
    let sub = world.mkdir(dir, b"sub").unwrap().ino;
    let file = world.file(sub, b"file").unwrap().ino;
    let link = fs.symlink(cx, sub, b"link", b"x").unwrap().ino;
    for ino in [sub, file, link] {
        assert_eq!(project_of(ino), 70_000);
    }
    // Into a directory that passes its project on, only files of that project.
    assert_eq!(
        fs.link(cx, plain, dir, b"in").err(),
        Some(FsError::CrossDevice)
    );
    let rename = |from: (InodeNo, &[u8]), to: (InodeNo, &[u8]), exchange| {
        let flags = RenameFlags {
            exchange,
            ..RenameFlags::default()
        };
        fs.rename(cx, from, to, flags)
    };
    for exchange in [false, true] {
        let moved = rename((root, b"plain"), (sub, b"file"), exchange);
        assert_eq!(moved, Err(FsError::CrossDevice));
    }
    let moved = rename((sub, b"file"), (root, b"plain"), true);
    assert_eq!(moved, Err(FsError::CrossDevice));
    rename((sub, b"file"), (root, b"out"), false).unwrap();
    assert_eq!(project_of(file), 70_000);
    rename((root, b"out"), (dir, b"back"), false).unwrap();
    fs.set_project(cx, plain, 70_000).unwrap();
    rename((root, b"plain"), (sub, b"plain"), false).unwrap();
    fs.set_project(cx, plain, 0).unwrap();
    world.forget(link);
    let world = world.reopen();
    let project = |ino| world.fs.flags(&world.cx, ino).unwrap().project;
    assert_eq!(
        [dir, sub, file, plain].map(project),
        [70_000, 70_000, 70_000, 0]
    );
    world.close();
}

fn volumes_without_projects_have_only_project_0(kind: &'static Kind) {
    let world = World::make(kind);
    let file = world.file(world.root, b"file").unwrap().ino;
    world.fs.set_project(&world.cx, file, 0).unwrap();
    let refused = world.fs.set_project(&world.cx, file, 1);
    assert!(matches!(refused, Err(FsError::NotSupported(_))));
    world.close();
}
