//! Mode, owner, times and flags.

use steadfs_base::Timestamp;
use steadfs_vfs::{
    Cx, FallocMode, FileSystem, FsError, InodeFlags, RenameFlags, SetAttr, SetTime, SetXattr,
};

use crate::test_world::{ALL, ROOT, World};

fn set() -> SetAttr {
    SetAttr::default()
}

#[test]
fn fields_are_kept() {
    let world = World::make(ALL, 64);
    let (fs, cx) = (&*world.fs, &world.cx);
    let file = world.file(ROOT, b"file").unwrap();
    assert_eq!(file.btime, Some(file.mtime));
    let at = |secs, nanos| Some(SetTime::At(Timestamp { secs, nanos }));
    let all = SetAttr {
        perm: Some(0o1640),
        uid: Some(70_000),
        gid: Some(80_000),
        atime: at(-5, 7),
        mtime: at(5_000_000_000, 999_999_999),
        ..set()
    };
    let now = fs.setattr(cx, file.ino, &all).unwrap();
    assert_eq!((now.perm, now.uid, now.gid), (0o1640, 70_000, 80_000));
    assert_eq!(
        now.mtime,
        Timestamp {
            secs: 5_000_000_000,
            nanos: 999_999_999
        }
    );
    assert!(now.ctime >= file.ctime);
    let before = fs.lookup(cx, ROOT, b"file").unwrap();
    let world = world.reopen();
    assert_eq!(world.lookup(ROOT, b"file").unwrap(), before);
    world.close();
}

#[test]
fn a_change_of_owner_removes_privileges() {
    let world = World::make(ALL, 64);
    let (fs, cx) = (&*world.fs, &world.cx);
    let file = fs.mknod(cx, ROOT, b"file", 0o106_755, 0).unwrap().ino;
    fs.setxattr(cx, file, b"security.capability", b"caps", SetXattr::Any)
        .unwrap();
    assert_eq!(
        fs.setattr(
            cx,
            file,
            &SetAttr {
                uid: Some(9),
                ..set()
            }
        )
        .unwrap()
        .perm,
        0o755
    );
    assert_eq!(
        fs.getxattr(cx, file, b"security.capability"),
        Err(FsError::NoData)
    );
    // Without group execution, set-group-ID has another meaning.
    fs.setattr(
        cx,
        file,
        &SetAttr {
            perm: Some(0o6745),
            ..set()
        },
    )
    .unwrap();
    assert_eq!(
        fs.setattr(
            cx,
            file,
            &SetAttr {
                gid: Some(9),
                ..set()
            }
        )
        .unwrap()
        .perm,
        0o2745
    );
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    fs.setattr(
        cx,
        dir,
        &SetAttr {
            perm: Some(0o6775),
            ..set()
        },
    )
    .unwrap();
    assert_eq!(
        fs.setattr(
            cx,
            dir,
            &SetAttr {
                uid: Some(9),
                ..set()
            }
        )
        .unwrap()
        .perm,
        0o6775
    );
    world.close();
}

#[test]
fn an_unprivileged_write_removes_privileges() {
    let world = World::make(ALL, 64);
    let (fs, cx) = (&*world.fs, &world.cx);
    let file = world.file(ROOT, b"file").unwrap().ino;
    let user = |gid| Cx {
        uid: 7,
        gid,
        fsetid: false,
        ..cx.clone()
    };
    let perm_after = |perm, cx: &Cx| {
        let own = SetAttr {
            gid: Some(50),
            perm: Some(perm),
            ..set()
        };
        fs.setattr(&world.cx, file, &own).unwrap();
        let mode = FallocMode::Allocate { keep_size: false };
        fs.fallocate(cx, file, mode, 0, 100).unwrap();
        fs.getattr(cx, file).unwrap().perm
    };
    assert_eq!(perm_after(0o6777, cx), 0o6777);
    assert_eq!(perm_after(0o6777, &user(7)), 0o777);
    assert_eq!(perm_after(0o6777, &user(50)), 0o777);
    // Without group execution, set-group-ID gives the group's members no privilege.
    assert_eq!(perm_after(0o6767, &user(7)), 0o767);
    assert_eq!(perm_after(0o6767, &user(50)), 0o2767);
    world.close();
}

#[test]
fn groups_are_inherited() {
    let world = World::make(ALL, 64);
    let (fs, cx) = (&*world.fs, &world.cx);
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    let own = SetAttr {
        gid: Some(50),
        perm: Some(0o2777),
        ..set()
    };
    fs.setattr(cx, dir, &own).unwrap();
    let user = Cx {
        uid: 7,
        gid: 7,
        fsetid: false,
        ..cx.clone()
    };
    let sub = fs.mkdir(&user, dir, b"sub", 0o755).unwrap();
    assert_eq!((sub.uid, sub.gid, sub.perm), (7, 50, 0o2755));
    let file = fs.mknod(&user, dir, b"file", 0o102_755, 0).unwrap();
    assert_eq!((file.uid, file.gid, file.perm), (7, 50, 0o755));
    let kept = fs.mknod(&user, dir, b"kept", 0o102_745, 0).unwrap();
    assert_eq!(kept.perm, 0o2745);
    let plain = fs.mknod(&user, ROOT, b"plain", 0o100_644, 0).unwrap();
    assert_eq!((plain.uid, plain.gid), (7, 7));
    world.close();
}

#[test]
fn reads_update_atime() {
    let world = World::make(ALL, 64);
    let (fs, cx) = (&*world.fs, &world.cx);
    let flags = [
        (InodeFlags::default(), true),
        (InodeFlags::IMMUTABLE, true),
        (InodeFlags::NOATIME, false),
    ];
    for (flag, moves) in flags {
        for offset in [0, 9] {
            let name = format!("{flag:?} {offset}");
            let file = world.file(ROOT, name.as_bytes()).unwrap().ino;
            fs.write(cx, file, 0, b"few bytes", false).unwrap();
            fs.set_flags(cx, file, flag).unwrap();
            let atime = || fs.getattr(cx, file).unwrap().atime;
            let before = atime();
            let read = fs.read(cx, file, offset, 9).unwrap();
            assert_eq!(read.len() as u64, 9 - offset);
            assert_eq!(atime() > before, moves, "{name}");
        }
    }
    world.close();
}

#[test]
fn immutable_and_append_only() {
    let world = World::make(ALL, 64);
    let (fs, cx) = (&*world.fs, &world.cx);
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
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
        let chmod = SetAttr {
            perm: Some(0),
            ..set()
        };
        assert_eq!(fs.setattr(cx, file, &chmod), Err(denied.clone()));
        assert_eq!(
            fs.setattr(
                cx,
                file,
                &SetAttr {
                    size: Some(0),
                    ..set()
                }
            ),
            Err(denied.clone())
        );
        let xattr = fs.setxattr(cx, file, b"user.x", b"", SetXattr::Any);
        assert_eq!(xattr, Err(denied.clone()));
        let touch = SetAttr {
            mtime: Some(SetTime::Now),
            ..set()
        };
        assert_eq!(
            fs.setattr(cx, file, &touch).is_ok(),
            flag == InodeFlags::APPEND
        );
        flags(file, InodeFlags::default());
        flags(dir, flag);
        assert_eq!(fs.unlink(cx, dir, b"file"), Err(denied.clone()));
        assert_eq!(
            fs.rename(cx, (dir, b"file"), (ROOT, b"x"), none),
            Err(denied.clone())
        );
        assert_eq!(world.file(dir, b"new").is_ok(), flag == InodeFlags::APPEND);
        assert_eq!(fs.rmdir(cx, ROOT, b"dir"), Err(denied.clone()));
        flags(dir, InodeFlags::default());
    }
    fs.unlink(cx, dir, b"file").unwrap();
    world.close();
}

#[test]
fn flags_are_inherited_and_refused() {
    let world = World::make(ALL, 64);
    let (fs, cx) = (&*world.fs, &world.cx);
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    let flags = fs.flags(cx, dir).unwrap().flags;
    let more = InodeFlags::NOATIME
        .union(InodeFlags::DIRSYNC)
        .union(InodeFlags::NODUMP)
        .union(InodeFlags::SYNC)
        .union(InodeFlags::PROJINHERIT);
    fs.set_flags(cx, dir, flags.union(more)).unwrap();
    let of = |ino| fs.flags(cx, ino).unwrap().flags;
    let sub = world.mkdir(dir, b"sub").unwrap().ino;
    assert_eq!(of(sub), of(dir));
    let file = world.file(dir, b"file").unwrap().ino;
    assert!(of(file).contains(InodeFlags::NOATIME.union(InodeFlags::SYNC)));
    assert!(!of(file).contains(InodeFlags::DIRSYNC));
    let pipe = fs.mknod(cx, dir, b"pipe", 0o010_600, 0).unwrap().ino;
    assert_eq!(of(pipe), InodeFlags::NOATIME.union(InodeFlags::NODUMP));
    for refused in [
        InodeFlags::VERITY,
        InodeFlags::ENCRYPTED,
        InodeFlags(0x4000),
        InodeFlags::COMPRESSED,
        InodeFlags::CASEFOLD,
        // Only directories have these.
        InodeFlags::DIRSYNC,
        InodeFlags::PROJINHERIT,
    ] {
        let result = fs.set_flags(cx, file, of(file).union(refused));
        assert!(
            matches!(result, Err(FsError::NotSupported(_))),
            "{refused:?}"
        );
    }
    world.close();
}

/// `chattr =A DIR` passes that one flag, without those that only report the state of the inode.
#[test]
fn fixed_flags_can_be_omitted() {
    let world = World::make(ALL, 64);
    let (fs, cx) = (&*world.fs, &world.cx);
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    let before = fs.flags(cx, dir).unwrap().flags;
    assert!(before.contains(InodeFlags::INDEX));
    fs.set_flags(cx, dir, InodeFlags::NOATIME).unwrap();
    let now = fs.flags(cx, dir).unwrap().flags;
    assert_eq!(now, before.union(InodeFlags::NOATIME));
    fs.set_flags(cx, dir, InodeFlags(0)).unwrap();
    assert_eq!(fs.flags(cx, dir).unwrap().flags, before);
    world.close();
}

#[test]
fn flags_report_how_a_file_is_stored() {
    const SET_PIN_FILE: u32 = 0x4004_f50d;
    let world = World::make(ALL, 64);
    let (fs, cx) = (&*world.fs, &world.cx);
    let file = world.file(ROOT, b"file").unwrap().ino;
    let of = |ino| fs.flags(cx, ino).unwrap().flags;
    let (inline, pinned) = (InodeFlags::INLINE_DATA, InodeFlags::NOCOW);
    fs.write(cx, file, 0, b"few bytes", false).unwrap();
    assert!(of(file).contains(inline));
    assert!(of(world.mkdir(ROOT, b"dir").unwrap().ino).contains(inline));
    // As chattr(1) does: flags that were read are set again, with one added or removed.
    fs.set_flags(cx, file, of(file).union(InodeFlags::NODUMP))
        .unwrap();
    assert_eq!(of(file), InodeFlags::NODUMP.union(inline));
    fs.set_flags(cx, file, InodeFlags::NOATIME).unwrap();
    assert_eq!(of(file), InodeFlags::NOATIME.union(inline));
    // A file cannot be pinned by a flag.
    fs.set_flags(cx, file, of(file).union(pinned)).unwrap();
    assert_eq!(of(file), InodeFlags::NOATIME.union(inline));
    // (Its only block is the inode.)
    fs.ioctl(cx, file, SET_PIN_FILE, &1u32.to_ne_bytes())
        .unwrap();
    assert_eq!(of(file), InodeFlags::NOATIME.union(pinned));
    fs.sync_all(cx).unwrap();
    assert_eq!(
        world.look_at_again("ro").fs.flags(cx, file).unwrap().flags,
        of(file)
    );
    fs.ioctl(cx, file, SET_PIN_FILE, &0u32.to_ne_bytes())
        .unwrap();
    fs.write(cx, file, 0, &[7; 9000], false).unwrap();
    assert_eq!(of(file), InodeFlags::NOATIME);
    world.close();
}

/// The kernel calls `security_inode_killpriv` only for inodes other than directories.
#[test]
fn a_directory_keeps_its_capability_when_its_owner_changes() {
    let world = World::make(ALL, 64);
    let (fs, cx) = (&*world.fs, &world.cx);
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
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
        fs.setattr(cx, dir, &chown).unwrap();
        assert_eq!(fs.getxattr(cx, dir, b"security.capability").unwrap(), value);
    }
    world.close();
}
