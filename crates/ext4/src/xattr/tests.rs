//! Shared blocks of attributes, values that are inodes, and attributes read by debugfs.

use steadfs_base::InodeNo;
use steadfs_vfs::{FileSystem, FsError, InodeFlags, SetXattr};

use super::INDEX_USER;
use crate::disk::test_images::{Image, run};
use crate::disk::xattr::{AttrList, InodeAttrs, OwnedValue, Value};
use crate::disk::{self, Ino};
use crate::test_world::{ROOT, World};

#[test]
fn debugfs_reads_ours() {
    let world = World::make(&["-t", "ext4", "-b", "1024"], "16M");
    let file = world.file(ROOT, b"file").unwrap().ino;
    let large = "value ".repeat(100);
    let set = |name: &[u8], value: &[u8]| {
        let how = SetXattr::Create;
        world
            .fs
            .setxattr(&world.cx, file, name, value, how)
            .unwrap();
    };
    set(b"user.small", b"in the inode");
    set(b"user.large", large.as_bytes());
    let image = world.close();
    let path = image.path();
    let get = |name| {
        run(
            "debugfs",
            &[
                "-R",
                &format!("ea_get -r file {name}"),
                path.to_str().unwrap(),
            ],
        )
    };
    assert!(get("user.small").contains("(12) = \"in the inode\""));
    assert!(get("user.large").contains(&format!("({}) = \"{large}\"", large.len())));
}

/// Two files that share a block of attributes, as the kernel makes them.
fn shared() -> (World, [InodeNo; 2]) {
    let world = World::make(
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-I",
            "128",
            "-O",
            "^metadata_csum",
        ],
        "16M",
    );
    let files = [&b"a"[..], b"b"].map(|name| world.file(ROOT, name).unwrap().ino);
    world
        .fs
        .setxattr(&world.cx, files[0], b"user.x", b"shared", SetXattr::Any)
        .unwrap();
    let block = {
        let inode = world.fs.by_number(files[0], world.cx.tag).unwrap();
        let core = inode.core.read();
        core.file_acl.unwrap().0
    };
    let image = world.close();
    image.debugfs(&format!("sif b file_acl {block}"));
    image.debugfs("sif b blocks 2");
    let mut bytes = image.bytes();
    bytes[block as usize * 1024 + 4] = 2;
    std::fs::write(image.path(), bytes).unwrap();
    crate::test_world::check(&image);
    (World::open(image), files)
}

#[test]
fn shared_blocks_are_copied_on_write_and_counted() {
    let (world, [a, b]) = shared();
    let (fs, cx) = (&world.fs, &world.cx);
    let free = fs.alloc.totals().free;
    fs.setxattr(cx, a, b"user.x", b"own", SetXattr::Replace)
        .unwrap();
    assert_eq!(fs.getxattr(cx, b, b"user.x").unwrap(), b"shared");
    assert_eq!(fs.getxattr(cx, a, b"user.x").unwrap(), b"own");
    assert_eq!(fs.alloc.totals().free, free - 1);
    world.close();
    let (world, [a, b]) = shared();
    world.fs.removexattr(&world.cx, b, b"user.x").unwrap();
    assert_eq!(
        world.fs.getxattr(&world.cx, a, b"user.x").unwrap(),
        b"shared"
    );
    world.close();
    let (world, [a, _]) = shared();
    world.fs.unlink(&world.cx, ROOT, b"b").unwrap();
    assert_eq!(
        world.fs.getxattr(&world.cx, a, b"user.x").unwrap(),
        b"shared"
    );
    world.fs.unlink(&world.cx, ROOT, b"a").unwrap();
    world.close();
}

#[test]
fn values_that_are_inodes_are_read() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("v"), vec![b'v'; 1024]).unwrap();
    let image = Image::make(&["-t", "ext4", "-b", "1024", "-O", "ea_inode"], "16M");
    image.debugfs("write /dev/null file");
    let source = dir.path().join("v");
    image.debugfs(&format!("ea_set -f {} file user.large", source.display()));
    let options = crate::options::MountOptions::parse("ro").unwrap();
    let world = World::open_with(image, options);
    let file = world.lookup(ROOT, b"file").unwrap().ino;
    let value = world.fs.getxattr(&world.cx, file, b"user.large").unwrap();
    assert!(value == vec![b'v'; 1024], "{} bytes", value.len());
    assert_eq!(
        world.fs.listxattr(&world.cx, file).unwrap(),
        [b"user.large"]
    );
    // Not checked by e2fsck: debugfs leaves the inode's block count wrong.
    world.fs.close().unwrap();
}

#[test]
fn a_volume_of_revision_0_becomes_one_with_features() {
    for large in [false, true] {
        let world = World::make(&["-t", "ext2", "-r", "0"], "16M");
        let file = world.file(ROOT, b"file").unwrap().ino;
        if large {
            let inode = world.fs.by_number(file, world.cx.tag).unwrap();
            let (fs, cx) = (&world.fs, &world.cx);
            fs.write_file(cx, &inode, 3 << 30, b"far", false).unwrap();
        } else {
            let set = world
                .fs
                .setxattr(&world.cx, file, b"user.a", b"1", SetXattr::Any);
            set.unwrap();
        }
        let image = world.close();
        let said = run("dumpe2fs", &["-h", image.path().to_str().unwrap()]);
        let feature = if large { "large_file" } else { "ext_attr" };
        assert!(said.contains("1 (dynamic)"), "{said}");
        assert!(said.contains(feature), "{said}");
        World::open(image).close();
    }
}

/// mke2fs's options, a size, and the size of values.
const WITH_VALUE_INODES: [(&[&str], &str); 4] = [
    (
        &["-t", "ext4", "-b", "4096", "-O", "ea_inode,orphan_file"],
        "32M",
    ),
    (
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-J",
            "size=1",
            "-O",
            "ea_inode,^extent,^64bit,^metadata_csum",
        ],
        "16M",
    ),
    (
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-I",
            "128",
            "-O",
            "ea_inode,fast_commit",
        ],
        "24M",
    ),
    (
        &["-t", "ext4", "-b", "2048", "-O", "ea_inode,^has_journal"],
        "16M",
    ),
];

fn value(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 13 + i / 241 + seed) as u8).collect()
}

fn set(world: &World, file: InodeNo, name: &str, value: &[u8]) -> Result<(), FsError> {
    let how = SetXattr::Any;
    world
        .fs
        .setxattr(&world.cx, file, name.as_bytes(), value, how)
}

fn get(world: &World, file: InodeNo, name: &str) -> Result<Vec<u8>, FsError> {
    world.fs.getxattr(&world.cx, file, name.as_bytes())
}

#[test]
fn equal_values_are_stored_once_and_freed_with_the_last_reference() {
    for (options, size) in WITH_VALUE_INODES {
        let world = World::make(options, size);
        let inodes = || world.fs.alloc.totals().free_inodes;
        let [a, b] = [&b"a"[..], b"b"].map(|name| world.file(ROOT, name).unwrap().ino);
        let empty = inodes();
        let large = value(1, 60_000);
        for file in [a, b] {
            set(&world, file, "user.x", &large).unwrap();
            set(&world, file, "user.y", &large).unwrap();
        }
        assert_eq!(inodes(), empty - 1, "{options:?}");
        set(&world, a, "user.x", &value(2, 65_536)).unwrap();
        set(&world, a, "user.y", b"short").unwrap();
        assert_eq!(inodes(), empty - 2, "{options:?}");
        let world = world.reopen();
        let inodes = || world.fs.alloc.totals().free_inodes;
        assert_eq!(get(&world, b, "user.y").unwrap(), large);
        assert_eq!(get(&world, a, "user.x").unwrap(), value(2, 65_536));
        // Known since it was read.
        set(&world, a, "user.y", &large).unwrap();
        assert_eq!(inodes(), empty - 2, "{options:?}");
        world.fs.removexattr(&world.cx, b, b"user.x").unwrap();
        world.fs.removexattr(&world.cx, b, b"user.y").unwrap();
        assert_eq!(inodes(), empty - 2, "{options:?}");
        world.fs.unlink(&world.cx, ROOT, b"a").unwrap();
        assert_eq!(inodes(), empty + 1, "{options:?}");
        world.close();
    }
}

/// A file with more values than are dropped in one transaction, in the inode and in its block.
#[test]
fn a_file_with_many_values_is_freed() {
    for (options, size) in WITH_VALUE_INODES {
        let world = World::make(options, size);
        let before = world.fs.alloc.totals();
        let file = world.file(ROOT, b"file").unwrap().ino;
        for n in 0..15 {
            set(&world, file, &format!("user.{n}"), &value(n, 1500 + n)).unwrap();
        }
        let world = world.reopen();
        for n in 0..15 {
            let read = get(&world, file, &format!("user.{n}")).unwrap();
            assert_eq!(read, value(n, 1500 + n));
        }
        world.fs.unlink(&world.cx, ROOT, b"file").unwrap();
        let world = world.reopen();
        let after = world.fs.alloc.totals();
        assert_eq!(
            (after.free, after.free_inodes),
            (before.free, before.free_inodes)
        );
        world.close();
    }
}

/// The volume is full at every step of setting a value; nothing is left of what failed.
/// Waiting for free space helps neither.
#[test]
fn limits_are_refused_without_writing_anything_out() {
    let world = World::make(&["-t", "ext4", "-b", "1024", "-O", "^ea_inode"], "16M");
    world.fs.remount(&world.cx, "max_dir_size_kb=1").unwrap();
    let file = world.file(ROOT, b"file").unwrap().ino;
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    world
        .fs
        .write(&world.cx, file, 0, &[7; 1 << 20], false)
        .unwrap();
    let dirty = world.fs.writeback.dirty_bytes();
    assert!(dirty >= 1 << 20);
    let refused = set(&world, dir, "user.x", &value(1, 8000));
    assert!(matches!(refused, Err(FsError::NoRoom(_))), "{refused:?}");
    let full = (0..200).find_map(|n| world.file(dir, format!("{n}").as_bytes()).err());
    assert!(matches!(full, Some(FsError::NoRoom(_))), "{full:?}");
    assert_eq!(full.unwrap().errno(), FsError::NoSpace.errno());
    assert_eq!(world.fs.writeback.dirty_bytes(), dirty);
    world.close();
}

#[test]
fn a_value_that_finds_no_space_leaves_nothing() {
    for (options, size) in WITH_VALUE_INODES {
        let world = World::make(options, size);
        let file = world.file(ROOT, b"file").unwrap().ino;
        let mut refused = 0;
        for n in 0..2000 {
            let name = format!("f{n}");
            let Ok(attr) = world.file(ROOT, name.as_bytes()) else {
                break;
            };
            match set(&world, attr.ino, "user.x", &value(n, 65_000 - n)) {
                Ok(()) => {}
                Err(FsError::NoSpace) => {
                    refused += 1;
                    assert_eq!(get(&world, attr.ino, "user.x"), Err(FsError::NoData));
                    if refused > 3 {
                        break;
                    }
                }
                Err(error) => panic!("{options:?}: {error}"),
            }
        }
        assert!(refused > 0, "{options:?}");
        set(&world, file, "user.short", b"1").unwrap();
        world.close();
    }
}

/// The inode that is the value of `user.x`.
fn value_inode(world: &World, file: InodeNo) -> Ino {
    let inode = world.fs.by_number(file, world.cx.tag).unwrap();
    let core = inode.core.read();
    let attrs = InodeAttrs::parse(&core.xattr_area).unwrap();
    match attrs.get(INDEX_USER, b"x").unwrap().value {
        Value::Inode { ino, .. } => ino,
        Value::Here(_) => panic!("the value is in the inode"),
    }
}

/// A volume on which two files share a value, whose inode (or that of the first file) is changed then.
fn tampered(of_value: bool, edit: &dyn Fn(&mut disk::Inode)) -> (World, [InodeNo; 2]) {
    let world = World::make(&["-t", "ext4", "-b", "1024", "-O", "ea_inode"], "16M");
    let files = [&b"a"[..], b"b"].map(|name| world.file(ROOT, name).unwrap().ino);
    for file in files {
        set(&world, file, "user.x", &value(1, 3000)).unwrap();
    }
    let ino = match of_value {
        true => value_inode(&world, files[0]),
        false => Ino::from_vfs(files[0]).unwrap(),
    };
    let (block, at) = {
        let (buf, at) = world.fs.inode_slot(ino, world.cx.tag).unwrap();
        (buf.block(), at)
    };
    let geo = world.fs.geo().clone();
    let image = world.close();
    let mut bytes = image.bytes();
    let start = geo.block_size.offset_of(block) as usize + at;
    let slot = &mut bytes[start..start + usize::from(geo.inode_size)];
    let mut core = disk::Inode::decode(&geo, slot).unwrap();
    edit(&mut core);
    core.encode_into(&geo, ino, slot).unwrap();
    image.fill(&bytes);
    (World::open(image), files)
}

/// Sets what the entry `user.x` refers to.
fn refer_to(core: &mut disk::Inode, ino: Ino, size: u32) {
    let mut list: AttrList = InodeAttrs::parse(&core.xattr_area)
        .unwrap()
        .iter()
        .collect();
    let hash = 0;
    list.put(INDEX_USER, b"x", OwnedValue::Inode { ino, size, hash });
    core.xattr_area = list.to_inode_area(core.xattr_area.len());
}

#[test]
fn values_that_are_no_values_are_corruption() {
    type Edit = fn(&mut disk::Inode);
    let of_value: [Edit; 8] = [
        |core| core.flags.0 &= !disk::inode::EA_INODE.0,
        |core| core.size = 2999,
        |core| core.size = 1 << 40,
        |core| core.links = 0,
        |core| core.mode = 0o040_700,
        |core| core.file_acl = Some(steadfs_base::DevBlock(5000)),
        |core| disk::ea_inode::set_hash(core, 7),
        |core| core.flags.0 &= !InodeFlags::EXTENTS.0,
    ];
    let of_file: [Edit; 5] = [
        // The first file has number 12, its value 14.
        |core| refer_to(core, Ino(12), 3000),
        |core| refer_to(core, Ino::ROOT, 3000),
        |core| refer_to(core, Ino(8), 3000),
        |core| refer_to(core, Ino(u32::MAX), 3000),
        |core| refer_to(core, Ino(14), 0),
    ];
    let cases = of_value.iter().map(|edit| (true, edit));
    for (n, (of_value, edit)) in cases.chain(of_file.iter().map(|e| (false, e))).enumerate() {
        let (world, [a, b]) = tampered(of_value, edit);
        let read = get(&world, a, "user.x");
        assert!(matches!(read, Err(FsError::Corrupt(_))), "{n}: {read:?}");
        // The value of the other file is the same inode, or was not changed.
        assert_eq!(get(&world, b, "user.x").is_ok(), !of_value, "{n}");
        match set(&world, a, "user.x", &value(2, 5000)) {
            Ok(()) => assert_eq!(get(&world, a, "user.x").unwrap(), value(2, 5000)),
            Err(error) => assert!(matches!(error, FsError::Corrupt(_)), "{n}: {error}"),
        }
        for name in [&b"a"[..], b"b"] {
            world.fs.unlink(&world.cx, ROOT, name).unwrap();
        }
        world.file(ROOT, b"c").unwrap();
        world.fs.close().unwrap();
    }
}

#[test]
fn a_count_that_is_too_small_frees_a_value_once() {
    for count in [0, 1] {
        let edit = |core: &mut disk::Inode| disk::ea_inode::set_references(core, count);
        let (world, [_, b]) = tampered(true, &edit);
        world.fs.unlink(&world.cx, ROOT, b"a").unwrap();
        let read = get(&world, b, "user.x");
        assert_eq!(read.is_ok(), count == 0, "{read:?}");
        // Another inode has its number, perhaps.
        for name in ["c", "d", "e"] {
            let file = world.file(ROOT, name.as_bytes()).unwrap().ino;
            set(&world, file, "user.x", &value(name.len(), 3000)).unwrap();
        }
        world.fs.unlink(&world.cx, ROOT, b"b").unwrap();
        for name in ["c", "d", "e"] {
            let file = world.lookup(ROOT, name.as_bytes()).unwrap().ino;
            assert_eq!(
                get(&world, file, "user.x").unwrap(),
                value(name.len(), 3000)
            );
        }
        world.fs.close().unwrap();
    }
}

#[test]
fn a_value_with_a_name_is_not_found_by_it() {
    let world = World::make(&["-t", "ext4", "-O", "ea_inode"], "16M");
    let file = world.file(ROOT, b"file").unwrap().ino;
    set(&world, file, "user.x", &value(1, 5000)).unwrap();
    let ino = value_inode(&world, file);
    let image = world.close();
    image.debugfs(&format!("ln <{ino}> value"));
    let world = World::open(image);
    let found = world.lookup(ROOT, b"value");
    assert!(matches!(found, Err(FsError::Corrupt(_))), "{found:?}");
    let number = world.fs.by_number(ino.into(), world.cx.tag);
    assert!(matches!(number, Err(FsError::Stale)));
    world.fs.close().unwrap();
}

/// The kernel knows such links by their size. Not judged by e2fsck 1.47, which takes the target for block numbers.
#[test]
fn a_short_link_with_a_large_value_keeps_its_target() {
    let world = World::make(&["-t", "ext4", "-O", "ea_inode"], "16M");
    let link = world.fs.symlink(&world.cx, ROOT, b"link", b"target");
    let link = link.unwrap().ino;
    world.forget(link);
    set(&world, link, "trusted.x", &value(1, 30_000)).unwrap();
    world.fs.close().unwrap();
    let device = std::sync::Arc::new(world.device().copy());
    let report = crate::check::check(&*device, &crate::check::Options::default());
    assert!(report.is_clean(), "{:?}", report.issues);
    let world = world.recover(device);
    assert_eq!(world.fs.readlink(&world.cx, link).unwrap(), b"target");
    assert_eq!(get(&world, link, "trusted.x").unwrap(), value(1, 30_000));
    world.fs.unlink(&world.cx, ROOT, b"link").unwrap();
    world.fs.close().unwrap();
}
