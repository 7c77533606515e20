//! Flags that report how f2fs stores a file.

use steadfs_vfs::{FileSystem, InodeFlags};

use crate::test_world::{ALL, ROOT, World};

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
