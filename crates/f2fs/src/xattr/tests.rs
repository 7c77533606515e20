//! Attributes that only f2fs has, and the areas for all of them.

use steadfs_vfs::{Cx, FileSystem, FsError, InodeFlags, SetXattr};

use crate::test_world::{ALL, ROOT, World};

#[test]
fn hints_are_an_attribute_of_the_owner() {
    let world = World::make(ALL, 64);
    let (fs, cx) = (&*world.fs, &world.cx);
    let file = world.file(ROOT, b"file").unwrap().ino;
    let set = |hints: &[u8]| fs.setxattr(cx, file, b"system.advise", hints, SetXattr::Any);
    set(&[0x20]).unwrap();
    assert_eq!(fs.getxattr(cx, file, b"system.advise").unwrap(), [0x20]);
    assert!(matches!(set(&[0x40]), Err(FsError::Invalid(_))));
    let stranger = Cx {
        uid: 9,
        ..cx.clone()
    };
    let hint = fs.setxattr(&stranger, file, b"system.advise", &[1], SetXattr::Any);
    assert_eq!(hint, Err(FsError::NotPermitted));
    for flag in [InodeFlags::IMMUTABLE, InodeFlags::APPEND] {
        fs.set_flags(cx, file, flag).unwrap();
        assert_eq!(set(&[1]), Err(FsError::NotPermitted));
    }
    fs.set_flags(cx, file, InodeFlags::default()).unwrap();
    set(&[1]).unwrap();
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
