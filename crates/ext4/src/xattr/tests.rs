//! Random attributes against a map in memory; shared blocks; attributes read by debugfs.

use std::collections::BTreeMap;

use steadfs_base::InodeNo;
use steadfs_rt::Random;
use steadfs_vfs::{FsError, SetXattr};

use crate::disk::test_images::{Image, run};
use crate::test_world::{ROOT, World};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn step(world: &World, random: &mut Random, file: InodeNo, model: &mut Model, largest: usize) {
    let (fs, cx) = (&world.fs, &world.cx);
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
        _ => random.below(largest),
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
        Err(FsError::NoSpace) => {
            let used: usize = model.values().map(|v| v.len() + 20).sum();
            assert!(used + len + name.len() > 200, "{used} + {len} should fit");
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

#[test]
fn random_attributes() {
    for (seed, (inode_size, block_size)) in [
        ("128", "1024"),
        ("256", "1024"),
        ("256", "4096"),
        ("1024", "4096"),
        ("512", "65536"),
    ]
    .into_iter()
    .enumerate()
    {
        let options = [
            "-t", "ext4", "-b", block_size, "-I", inode_size, "-N", "2048",
        ];
        let mut world = World::make(&options, "64M");
        let mut random = Random::new(seed as u64);
        let files = [&b"a"[..], b"b", b"c"].map(|name| world.file(ROOT, name).unwrap().ino);
        let mut models = [const { Model::new() }; 3];
        let largest = block_size.parse::<usize>().unwrap() / 2;
        for n in 0..900 {
            let i = random.below(3);
            step(&world, &mut random, files[i], &mut models[i], largest);
            if n % 300 == 150 {
                world = world.reopen();
            }
            if n % 100 == 0 {
                compare(&world, files[i], &models[i]);
            }
        }
        let free = world.fs.alloc.totals().free;
        for (file, model) in files.into_iter().zip(&models) {
            compare(&world, file, model);
        }
        for name in [&b"a"[..], b"b", b"c"] {
            world.fs.unlink(&world.cx, ROOT, name).unwrap();
        }
        assert!(world.fs.alloc.totals().free >= free);
        world.close();
    }
}

#[test]
fn names_values_and_kinds_that_are_refused() {
    let world = World::make(&["-t", "ext4", "-b", "4096"], "16M");
    let (fs, cx) = (&world.fs, &world.cx);
    let file = world.file(ROOT, b"file").unwrap().ino;
    let link = fs.symlink(cx, ROOT, b"link", b"file").unwrap().ino;
    let set = |ino, name: &[u8], value: &[u8]| fs.setxattr(cx, ino, name, value, SetXattr::Any);
    assert!(matches!(set(file, b"user.", b""), Err(FsError::Invalid(_))));
    for name in [&b"system.data"[..], b"foo.bar", b"gnu.translator", b"user"] {
        assert!(matches!(
            set(file, name, b""),
            Err(FsError::NotSupported(_))
        ));
    }
    assert_eq!(
        set(file, &[b"user.".to_vec(), vec![b'n'; 251]].concat(), b""),
        Err(FsError::Range)
    );
    set(file, &[b"user.".to_vec(), vec![b'n'; 250]].concat(), b"v").unwrap();
    assert_eq!(set(file, b"user.big", &[0; 65537]), Err(FsError::TooBig));
    assert_eq!(set(file, b"user.big", &[0; 4096]), Err(FsError::NoSpace));
    assert_eq!(set(link, b"user.x", b"v"), Err(FsError::NotPermitted));
    set(link, b"trusted.x", b"v").unwrap();
    assert_eq!(fs.getxattr(cx, file, b"user.none"), Err(FsError::NoData));
    let other = steadfs_vfs::Cx {
        uid: 1000,
        ..cx.clone()
    };
    assert_eq!(fs.listxattr(&other, link).unwrap(), Vec::<Vec<u8>>::new());
    world.close();
}

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
    let refused = world
        .fs
        .setxattr(&world.cx, file, b"user.x", b"", SetXattr::Any);
    assert_eq!(refused, Err(FsError::ReadOnly));
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
