//! Verity files made with the tree and the descriptor of `fsverity digest`.

use std::fs;

use steadfs_vfs::{FileSystem, FsError, InodeFlags};

use crate::disk::test_images::{Image, run};
use crate::options::MountOptions;
use crate::test_world::{ROOT, World};

const FLAGS: u32 = InodeFlags::EXTENTS.0 | InodeFlags::VERITY.0;

struct Sealed {
    image: Image,
    content: Vec<u8>,
    digest: Vec<u8>,
    /// The descriptor's place in the file.
    descriptor: u64,
}

/// A volume with a verity file named `file`.
fn seal(block_size: u64, how: &[&str], size: usize) -> Sealed {
    let options = ["-t", "ext4", "-b", &block_size.to_string(), "-O", "verity"];
    let image = Image::make(&options, "16M");
    let content: Vec<u8> = (0..size).map(|i| (i * 7 + i / 251) as u8).collect();
    let [file, tree, descriptor] = ["file", "tree", "descriptor"].map(|name| image.beside(name));
    fs::write(&file, &content).unwrap();
    let outputs = [
        format!("--out-merkle-tree={}", tree.display()),
        format!("--out-descriptor={}", descriptor.display()),
    ];
    let mut args = vec!["digest", "--compact", file.to_str().unwrap()];
    args.extend(outputs.iter().map(String::as_str));
    args.extend(how);
    let digest = run("fsverity", &args);
    let digest: Vec<u8> = (0..digest.trim().len() / 2)
        .map(|i| u8::from_str_radix(&digest[2 * i..2 * i + 2], 16).unwrap())
        .collect();
    let mut stored = content.clone();
    stored.resize(size.next_multiple_of(64 << 10), 0);
    stored.extend(fs::read(&tree).unwrap());
    stored.resize(stored.len().next_multiple_of(block_size as usize), 0);
    let at = stored.len() as u64;
    let descriptor = fs::read(&descriptor).unwrap();
    stored.extend(&descriptor);
    let end = (stored.len() + 4).next_multiple_of(block_size as usize);
    stored.resize(end - 4, 0);
    stored.extend((descriptor.len() as u32).to_le_bytes());
    fs::write(&file, &stored).unwrap();
    image.debugfs(&format!("write {} file", file.display()));
    image.debugfs(&format!("sif file size {size}"));
    image.debugfs(&format!("sif file flags {FLAGS}"));
    Sealed {
        image,
        content,
        digest,
        descriptor: at,
    }
}

impl Sealed {
    fn open(&self) -> World {
        World::open_with(
            Image::of(&self.image.bytes()),
            MountOptions::parse("ro").unwrap(),
        )
    }

    /// The volume with a byte of the file's blocks changed.
    fn changed(&self, at: u64) -> World {
        let world = self.open();
        let file = world.lookup(ROOT, b"file").unwrap().ino;
        let inode = world.fs.by_number(file, world.cx.tag).unwrap();
        let bs = world.fs.geo().block_size;
        let block = {
            let core = inode.core.read();
            let mapped = world
                .fs
                .map_block(&core, inode.ino(), bs.file_block(at), world.cx.tag);
            mapped.unwrap().unwrap()
        };
        let mut bytes = self.image.bytes();
        bytes[bs.offset_of(block) as usize + bs.offset_in_block(at)] ^= 0x10;
        World::open_with(Image::of(&bytes), MountOptions::parse("ro").unwrap())
    }
}

fn read(world: &World, at: u64, len: usize) -> Result<Vec<u8>, FsError> {
    let file = world.lookup(ROOT, b"file").unwrap().ino;
    let fs: &dyn FileSystem = &*world.fs;
    Ok(fs.read(&world.cx, file, at, len)?.to_vec())
}

fn open(world: &World, write: bool) -> Result<(), FsError> {
    let file = world.lookup(ROOT, b"file").unwrap().ino;
    FileSystem::open(&*world.fs, &world.cx, file, write)
}

#[test]
fn data_that_matches_its_hashes_is_read_and_measured() {
    for (block_size, how, size) in [
        (4096, &[][..], 700_000),
        (4096, &["--salt=0102", "--block-size=1024"], 700_001),
        (1024, &["--hash-alg=sha512", "--block-size=1024"], 100_000),
        (4096, &[], 4096),
        (4096, &[], 1),
    ] {
        let sealed = seal(block_size, how, size);
        run("e2fsck", &["-fn", sealed.image.path().to_str().unwrap()]);
        let world = sealed.open();
        assert!(world.fs.checks_opens());
        open(&world, false).unwrap();
        assert_eq!(open(&world, true), Err(FsError::NotPermitted));
        assert!(
            read(&world, 0, size + 10).unwrap() == sealed.content,
            "{how:?}"
        );
        for at in [0, 1, size / 3, size - 1] {
            let end = size.min(at + 5000);
            assert!(read(&world, at as u64, 5000).unwrap() == sealed.content[at..end]);
        }
        assert!(read(&world, size as u64, 10).unwrap().is_empty());
        let file = world.lookup(ROOT, b"file").unwrap().ino;
        let digest = world.fs.verity_digest(&world.cx, file).unwrap();
        assert_eq!(digest.bytes, sealed.digest);
        let root = world.fs.verity_digest(&world.cx, ROOT);
        assert_eq!(root, Err(FsError::NoData));
    }
}

#[test]
fn data_that_does_not_match_is_never_returned() {
    let size = 700_000;
    let sealed = seal(4096, &[], size);
    let tree = size.next_multiple_of(64 << 10) as u64;
    // Content: the block alone.
    let world = sealed.changed(300_000);
    open(&world, false).unwrap();
    assert!(matches!(read(&world, 300_500, 10), Err(FsError::Io(_))));
    assert!(matches!(read(&world, 0, size), Err(FsError::Io(_))));
    assert!(read(&world, 0, 200_000).unwrap() == sealed.content[..200_000]);
    // The root of the tree, then the block with the hashes of the first half of the file.
    for (at, first_half, rest) in [(tree, false, false), (tree + 4096 + 31, false, true)] {
        let world = sealed.changed(at);
        assert_eq!(read(&world, 1000, 10).is_ok(), first_half);
        assert_eq!(read(&world, 600_000, 10).is_ok(), rest);
    }
    // The root hash; a size of another file; the descriptor's own size.
    let world = sealed.changed(sealed.descriptor + 16);
    open(&world, false).unwrap();
    assert!(matches!(read(&world, 0, 1), Err(FsError::Io(_))));
    let world = sealed.changed(sealed.descriptor + 8);
    assert!(matches!(open(&world, false), Err(FsError::Invalid(_))));
    assert!(matches!(read(&world, 0, 1), Err(FsError::Invalid(_))));
    for (byte, damage) in [(4093, false), (4094, true), (4095, true)] {
        let world = sealed.changed(sealed.descriptor + byte);
        let refused = open(&world, false).unwrap_err();
        assert_eq!(refused.is_corruption(), damage, "{refused}");
        assert!(read(&world, 0, 1).is_err());
    }
}

#[test]
fn a_file_without_its_hashes_cannot_be_read() {
    let image = Image::make(&["-t", "ext4", "-b", "4096", "-O", "verity"], "16M");
    let content = image.beside("content");
    fs::write(&content, vec![7; 9000]).unwrap();
    image.debugfs(&format!("write {} file", content.display()));
    image.debugfs(&format!("sif file flags {FLAGS}"));
    let world = World::open_with(image, MountOptions::parse("ro").unwrap());
    assert!(open(&world, false).unwrap_err().is_corruption());
    assert!(read(&world, 0, 1).unwrap_err().is_corruption());
}
