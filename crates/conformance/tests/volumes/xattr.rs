//! Extended attributes.

use std::collections::BTreeMap;

use steadfs_base::InodeNo;
use steadfs_conformance::{Kind, Setup, World};
use steadfs_rt::Random;
use steadfs_vfs::{Cx, FsError, SetXattr};

on_every!(
    random_attributes,
    names_values_and_kinds_that_are_refused,
    attributes_that_are_switched_off_are_refused,
);

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn step(world: &World, random: &mut Random, file: InodeNo, model: &mut Model) {
    let (fs, cx, is_ext) = (&world.fs, &world.cx, world.kind.is_ext());
    let space = ["user.", "trusted.", "security."][random.below(3)];
    let tail = "x".repeat([1, 3, 17, 100][random.below(4)]);
    let name = format!("{space}{}{tail}", random.below(4)).into_bytes();
    let known = model.contains_key(&name);
    if random.below(4) == 0 {
        let removed = fs.removexattr(cx, file, &name);
        assert_eq!(removed.is_ok(), model.remove(&name).is_some());
        return;
    }
    let len = match random.below(3) {
        0 => random.below(8),
        1 => random.below(60),
        _ => random.below(world.kind.block as usize / 2),
    };
    let value: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
    let how = [SetXattr::Any, SetXattr::Create, SetXattr::Replace][random.below(3)];
    // What an attribute may take beside its value, in bytes, and what must always fit.
    let used = |beside: usize| model.values().map(|v| v.len() + beside).sum::<usize>();
    match fs.setxattr(cx, file, &name, &value, how) {
        Ok(()) => {
            assert!(how == SetXattr::Any || known == (how == SetXattr::Replace));
            model.insert(name, value);
        }
        Err(FsError::Exists) => assert!(how == SetXattr::Create && known),
        Err(FsError::NoData) => assert!(how == SetXattr::Replace && !known),
        Err(FsError::NoSpace | FsError::NoRoom(_)) if is_ext => {
            let used = used(20);
            assert!(used + len + name.len() > 200, "{used} + {len} should fit");
        }
        Err(FsError::TooBig) if !is_ext => {
            let used = used(110);
            assert!(used + len + name.len() > 3900, "{used} + {len} should fit");
        }
        Err(other) => panic!("{other}"),
    }
}

fn compare(world: &World, file: InodeNo, model: &Model) {
    let (fs, cx) = (&world.fs, &world.cx);
    let mut names = fs.listxattr(cx, file).unwrap();
    names.sort();
    assert_eq!(names, model.keys().cloned().collect::<Vec<_>>());
    for (name, value) in model {
        assert_eq!(&fs.getxattr(cx, file, name).unwrap(), value);
    }
}

/// Compared with a map in memory.
fn random_attributes(kind: &'static Kind) {
    let mut world = World::make(kind);
    let empty = world.free();
    let mut random = Random::new(kind.seed(0));
    let file = |name| world.file(world.root, name).unwrap().ino;
    let dir = world.mkdir(world.root, b"dir").unwrap().ino;
    let inodes = [file(b"a"), file(b"b"), dir];
    let mut models = [const { Model::new() }; 3];
    for n in 0..1200 {
        let i = random.below(3);
        step(&world, &mut random, inodes[i], &mut models[i]);
        if n % 300 == 150 {
            world = world.reopen();
        }
        if n % 100 == 0 {
            compare(&world, inodes[i], &models[i]);
            world.judge_now();
        }
    }
    let world = world.reopen();
    for (ino, model) in inodes.into_iter().zip(&models) {
        compare(&world, ino, model);
    }
    // All space is freed again.
    let (fs, cx, root) = (&world.fs, &world.cx, world.root);
    for name in models[0].keys() {
        fs.removexattr(cx, inodes[0], name).unwrap();
    }
    assert_eq!(world.lookup(root, b"a").unwrap().blocks, 0);
    fs.unlink(cx, root, b"a").unwrap();
    fs.unlink(cx, root, b"b").unwrap();
    fs.rmdir(cx, root, b"dir").unwrap();
    assert_eq!(world.free(), empty);
    world.close();
}

fn names_values_and_kinds_that_are_refused(kind: &'static Kind) {
    let world = World::make(kind);
    let (fs, cx, root) = (&world.fs, &world.cx, world.root);
    let file = world.file(root, b"file").unwrap().ino;
    let link = fs.symlink(cx, root, b"link", b"file").unwrap().ino;
    let set = |ino, name: &[u8], value: &[u8]| fs.setxattr(cx, ino, name, value, SetXattr::Any);
    for name in [&b"user."[..], b"trusted."] {
        assert!(matches!(set(file, name, b""), Err(FsError::Invalid(_))));
    }
    for name in [
        &b"system.data"[..],
        b"system.other",
        b"foo.bar",
        b"gnu.translator",
        b"user",
    ] {
        let refused = set(file, name, b"");
        assert!(
            matches!(refused, Err(FsError::NotSupported(_))),
            "{refused:?}"
        );
    }
    let long = |len| [b"user.".to_vec(), vec![b'n'; len]].concat();
    assert_eq!(set(file, &long(251), b""), Err(FsError::Range));
    set(file, &long(250), b"v").unwrap();
    assert_eq!(set(file, b"user.big", &[0; 65_537]), Err(FsError::TooBig));
    assert_eq!(set(file, b"trusted.a", &[0; 70_000]), Err(FsError::TooBig));
    // Larger than the space for attributes, and not larger than any value.
    let large = vec![0; (2 * kind.block as usize).min(65_536)];
    let full = match kind.is_ext() {
        true => FsError::NoSpace,
        false => FsError::TooBig,
    };
    let refused = set(file, b"user.big", &large).unwrap_err();
    assert_eq!(refused.errno(), full.errno(), "{refused}");
    assert_eq!(set(link, b"user.x", b"v"), Err(FsError::NotPermitted));
    set(link, b"trusted.x", b"v").unwrap();
    assert_eq!(fs.getxattr(cx, file, b"user.none"), Err(FsError::NoData));
    let other = Cx {
        uid: 1000,
        admin: false,
        ..cx.clone()
    };
    assert_eq!(fs.listxattr(&other, link).unwrap(), Vec::<Vec<u8>>::new());
    world.reopen().close();
}

fn attributes_that_are_switched_off_are_refused(kind: &'static Kind) {
    let setup = Setup {
        mount: "nouser_xattr,noacl",
        ..Setup::default()
    };
    let world = World::with(kind, &setup);
    let (fs, cx) = (&world.fs, &world.cx);
    let file = world.file(world.root, b"file").unwrap().ino;
    let set = |name: &[u8]| fs.setxattr(cx, file, name, b"1", SetXattr::Any);
    for name in [&b"user.a"[..], b"system.posix_acl_access"] {
        assert!(matches!(set(name), Err(FsError::NotSupported(_))));
        let got = fs.getxattr(cx, file, name);
        assert!(matches!(got, Err(FsError::NotSupported(_))));
    }
    set(b"trusted.a").unwrap();
    world.reopen().close();
}
