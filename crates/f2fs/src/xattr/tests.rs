//! Random attributes, compared with a map in memory.

use std::collections::BTreeMap;

use steadfs_base::InodeNo;
use steadfs_rt::Random;
use steadfs_vfs::{FileSystem, FsError, SetXattr};

use crate::test_world::{ALL, ROOT, World};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn step(world: &World, random: &mut Random, file: InodeNo, model: &mut Model) {
    let (fs, cx) = (&*world.fs, &world.cx);
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
        _ => random.below(2000),
    };
    let value: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
    let how = [SetXattr::Any, SetXattr::Create, SetXattr::Replace][random.below(3)];
    match fs.setxattr(cx, file, &name, &value, how) {
        Ok(()) => {
            assert!(how == SetXattr::Any || known == (how == SetXattr::Replace));
            model.insert(name, value);
        }
        Err(FsError::Exists) => assert!(how == SetXattr::Create && known),
        Err(FsError::NoData) => assert!(how == SetXattr::Replace && !known),
        Err(FsError::TooBig) => {
            let used: usize = model.values().map(|v| v.len() + 110).sum();
            assert!(used + len + name.len() > 3900, "{used} + {len} should fit");
        }
        Err(other) => panic!("{other}"),
    }
}

fn compare(world: &World, file: InodeNo, model: &Model) {
    let (fs, cx) = (&*world.fs, &world.cx);
    let mut names = fs.listxattr(cx, file).unwrap();
    names.sort();
    assert_eq!(names, model.keys().cloned().collect::<Vec<_>>());
    for (name, value) in model {
        assert_eq!(&fs.getxattr(cx, file, name).unwrap(), value);
    }
}

#[test]
fn random_attributes() {
    for (seed, (features, options)) in [
        ("", ""),
        (ALL, ""),
        (ALL, "noinline_xattr"),
        ("", "noinline_xattr,noinline_dentry"),
        (ALL, "inline_xattr_size=6"),
    ]
    .into_iter()
    .enumerate()
    {
        let world = World::make_with(features, 64, options);
        let file = world.file(ROOT, b"file").unwrap().ino;
        let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
        let mut random = Random::new(seed as u64);
        let mut models = [Model::new(), Model::new()];
        for n in 0..400 {
            for (ino, model) in [file, dir].into_iter().zip(&mut models) {
                step(&world, &mut random, ino, model);
            }
            if n % 100 == 0 {
                world.judge_now();
            }
        }
        let world = world.reopen();
        for (ino, model) in [file, dir].into_iter().zip(&models) {
            compare(&world, ino, model);
        }
        // All space is freed again.
        let (fs, cx) = (&*world.fs, &world.cx);
        for name in models[0].keys() {
            fs.removexattr(cx, file, name).unwrap();
        }
        assert_eq!(world.lookup(ROOT, b"file").unwrap().blocks, 0);
        fs.unlink(cx, ROOT, b"file").unwrap();
        fs.rmdir(cx, ROOT, b"dir").unwrap();
        world.close();
    }
}

#[test]
fn namespaces_have_their_rules() {
    let world = World::make_with(ALL, 64, "nouser_xattr");
    let (fs, cx) = (&*world.fs, &world.cx);
    let file = world.file(ROOT, b"file").unwrap().ino;
    let set = |ino, name: &[u8], value: &[u8]| fs.setxattr(cx, ino, name, value, SetXattr::Any);
    assert!(matches!(
        set(file, b"user.a", b"1"),
        Err(FsError::NotSupported(_))
    ));
    assert!(matches!(
        set(file, b"trusted.", b"1"),
        Err(FsError::Invalid(_))
    ));
    assert!(matches!(
        set(file, b"system.other", b"1"),
        Err(FsError::NotSupported(_))
    ));
    assert_eq!(set(file, b"trusted.a", &[0; 70_000]), Err(FsError::TooBig));
    set(file, b"system.advise", &[0x20]).unwrap();
    assert_eq!(fs.getxattr(cx, file, b"system.advise").unwrap(), [0x20]);
    assert!(matches!(
        set(file, b"system.advise", &[0x40]),
        Err(FsError::Invalid(_))
    ));
    let stranger = steadfs_vfs::Cx {
        uid: 9,
        ..cx.clone()
    };
    let hint = fs.setxattr(&stranger, file, b"system.advise", &[1], SetXattr::Any);
    assert_eq!(hint, Err(FsError::NotPermitted));
    world.reopen().close();
}

/// As in Linux, no space is kept free after the last attribute.
#[test]
fn attributes_fill_their_areas() {
    // Header and entry have 28 bytes, the name one.
    for (options, room) in [("noinline_xattr", 4072), ("", 4072 + 200)] {
        let world = World::make_with("", 64, options);
        let (fs, cx) = (&*world.fs, &world.cx);
        let file = world.file(ROOT, b"file").unwrap().ino;
        let set = |len, fill| {
            let value = vec![fill; len];
            fs.setxattr(cx, file, b"trusted.b", &value, SetXattr::Any)
        };
        let most = room - 29;
        assert_eq!(set(most + 1, 1), Err(FsError::TooBig));
        set(most, 1).unwrap();
        set(most, 2).unwrap();
        let more = fs.setxattr(cx, file, b"user.x", b"", SetXattr::Any);
        assert_eq!(more, Err(FsError::TooBig));
        let world = world.reopen();
        let (fs, cx) = (&*world.fs, &world.cx);
        assert_eq!(fs.getxattr(cx, file, b"trusted.b").unwrap(), vec![2; most]);
        fs.removexattr(cx, file, b"trusted.b").unwrap();
        assert!(fs.listxattr(cx, file).unwrap().is_empty());
        world.close();
    }
}
