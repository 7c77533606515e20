//! Access lists and modes stay consistent.

use steadfs_conformance::{Kind, World};
use steadfs_vfs::{Cx, FsError, SetAttr, SetXattr};

on_every!(
    list_and_mode_stay_consistent,
    a_list_set_by_a_non_member_clears_set_group_id,
    new_files_inherit,
);

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const NO_ID: u32 = u32::MAX;

fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&perm.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    out
}

fn rich(owner: u16, user: u16, group: u16, mask: u16, other: u16) -> Vec<u8> {
    list(&[
        (1, owner, NO_ID),
        (2, user, 1000),
        (4, group, NO_ID),
        (16, mask, NO_ID),
        (32, other, NO_ID),
    ])
}

fn simple(owner: u16, group: u16, other: u16) -> Vec<u8> {
    list(&[(1, owner, NO_ID), (4, group, NO_ID), (32, other, NO_ID)])
}

fn list_and_mode_stay_consistent(kind: &'static Kind) {
    let world = World::make(kind);
    let (fs, cx) = (&world.fs, &world.cx);
    let file = world.file(world.root, b"file").unwrap().ino;
    let perm = || fs.lookup(cx, world.root, b"file").unwrap().perm;
    let set = |value: &[u8]| fs.setxattr(cx, file, ACCESS, value, SetXattr::Any);
    assert_eq!(fs.getxattr(cx, file, ACCESS), Err(FsError::NoData));
    set(&rich(7, 6, 5, 4, 1)).unwrap();
    assert_eq!(perm(), 0o741);
    assert_eq!(fs.getxattr(cx, file, ACCESS).unwrap(), rich(7, 6, 5, 4, 1));
    let chmod = |perm| {
        let perm = Some(perm);
        let all = SetAttr::default();
        world.set(file, SetAttr { perm, ..all })
    };
    assert_eq!(chmod(0o4620).unwrap().perm, 0o4620);
    assert_eq!(fs.getxattr(cx, file, ACCESS).unwrap(), rich(6, 6, 5, 2, 0));
    set(&simple(6, 4, 4)).unwrap();
    assert_eq!(perm(), 0o4644);
    assert_eq!(fs.getxattr(cx, file, ACCESS), Err(FsError::NoData));
    assert_eq!(fs.listxattr(cx, file).unwrap(), Vec::<Vec<u8>>::new());
    assert!(matches!(
        set(&rich(8, 0, 0, 0, 0)),
        Err(FsError::Invalid(_))
    ));
    assert!(matches!(set(b"nonsense"), Err(FsError::Invalid(_))));
    assert_eq!(
        fs.setxattr(cx, file, DEFAULT, &simple(7, 5, 5), SetXattr::Any),
        Err(FsError::Access)
    );
    world.reopen().close();
}

fn a_list_set_by_a_non_member_clears_set_group_id(kind: &'static Kind) {
    let world = World::make(kind);
    let (fs, cx, root) = (&world.fs, &world.cx, world.root);
    let file = fs.mknod(cx, root, b"file", 0o102_755, 0).unwrap().ino;
    let stranger = Cx {
        uid: 5,
        gid: 5,
        fsetid: false,
        ..cx.clone()
    };
    let member = Cx {
        groups: vec![0],
        ..stranger.clone()
    };
    fs.setxattr(&member, file, ACCESS, &rich(7, 7, 7, 7, 7), SetXattr::Any)
        .unwrap();
    assert_eq!(world.lookup(root, b"file").unwrap().perm, 0o2777);
    fs.setxattr(&stranger, file, ACCESS, &rich(7, 7, 7, 7, 0), SetXattr::Any)
        .unwrap();
    assert_eq!(world.lookup(root, b"file").unwrap().perm, 0o770);
    world.reopen().close();
}

fn new_files_inherit(kind: &'static Kind) {
    let world = World::make(kind);
    let fs = &world.fs;
    let cx = &Cx {
        umask: 0o077,
        ..world.cx.clone()
    };
    let dir = world.mkdir(world.root, b"dir").unwrap().ino;
    fs.setxattr(cx, dir, DEFAULT, &rich(7, 6, 5, 6, 0), SetXattr::Any)
        .unwrap();
    // The default list replaces the umask.
    let file = fs.mknod(cx, dir, b"file", 0o100_666, 0).unwrap();
    assert_eq!(file.perm, 0o660);
    assert_eq!(
        fs.getxattr(cx, file.ino, ACCESS).unwrap(),
        rich(6, 6, 5, 6, 0)
    );
    assert_eq!(fs.getxattr(cx, file.ino, DEFAULT), Err(FsError::NoData));
    let sub = fs.mkdir(cx, dir, b"sub", 0o755).unwrap();
    assert_eq!(sub.perm, 0o740);
    assert_eq!(
        fs.getxattr(cx, sub.ino, DEFAULT).unwrap(),
        rich(7, 6, 5, 6, 0)
    );
    assert_eq!(
        fs.getxattr(cx, sub.ino, ACCESS).unwrap(),
        rich(7, 6, 5, 4, 0)
    );
    // A copy gets its original's lists, and none of its directory's.
    let copying = &Cx {
        no_default_acl: true,
        umask: 0,
        ..cx.clone()
    };
    let copy = fs.mknod(copying, dir, b"copy", 0o100_640, 0).unwrap();
    let below = fs.mkdir(copying, dir, b"below", 0o750).unwrap();
    assert_eq!((copy.perm, below.perm), (0o640, 0o750));
    for ino in [copy.ino, below.ino] {
        assert_eq!(fs.listxattr(cx, ino).unwrap(), Vec::<Vec<u8>>::new());
    }
    let link = fs.symlink(cx, dir, b"link", b"x").unwrap();
    assert_eq!(link.perm, 0o777);
    fs.setxattr(cx, dir, DEFAULT, &simple(7, 5, 5), SetXattr::Any)
        .unwrap();
    let plain = fs.mknod(cx, dir, b"plain", 0o100_666, 0).unwrap();
    assert_eq!(plain.perm, 0o644);
    assert_eq!(fs.listxattr(cx, plain.ino).unwrap(), Vec::<Vec<u8>>::new());
    fs.removexattr(cx, dir, DEFAULT).unwrap();
    let masked = fs.mknod(cx, dir, b"masked", 0o100_666, 0).unwrap();
    assert_eq!(masked.perm, 0o600);
    world.reopen().close();
}
