//! Shared blocks of attributes, values that are inodes, and attributes read by debugfs.

use steadfs_base::InodeNo;
use steadfs_vfs::{FsError, SetXattr};

use crate::disk::test_images::{Image, run};
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
