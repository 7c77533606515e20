//! Verity files, built with the tree and the descriptor of `fsverity digest`.

use std::fs;
use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_block::MemDevice;
use steadfs_vfs::{FileSystem, FsError, SetAttr};

use super::VERITY_XATTR;
use crate::disk::BLOCK_SIZE;
use crate::disk::inode::Advise;
use crate::disk::xattr::{XattrChange, index};
use crate::test_world::{ALL, ROOT, World};
use steadfs_f2fs_format::test_support::run;

struct Sealed {
    device: Arc<MemDevice>,
    content: Vec<u8>,
    digest: Vec<u8>,
    tree: u64,
    descriptor: u64,
}

/// A volume with a verity file named `file`, whose attribute is `place` of the descriptor's size and position.
fn seal_at(how: &[&str], size: usize, place: impl FnOnce(u32, u64) -> Option<Vec<u8>>) -> Sealed {
    let content: Vec<u8> = (0..size).map(|i| (i * 7 + i / 251) as u8).collect();
    let dir = tempfile::tempdir().unwrap();
    let [file, tree, descriptor] = ["file", "tree", "descriptor"].map(|name| dir.path().join(name));
    fs::write(&file, &content).unwrap();
    let outputs = [
        format!("--out-merkle-tree={}", tree.display()),
        format!("--out-descriptor={}", descriptor.display()),
    ];
    let mut args = vec!["digest", "--compact", file.to_str().unwrap()];
    args.extend(outputs.iter().map(String::as_str));
    args.extend(how);
    let digest = run("fsverity", &args);
    let digest = (0..digest.trim().len() / 2)
        .map(|i| u8::from_str_radix(&digest[2 * i..2 * i + 2], 16).unwrap())
        .collect();
    let mut stored = content.clone();
    stored.resize(size.next_multiple_of(64 << 10), 0);
    let tree_at = stored.len() as u64;
    stored.extend(fs::read(&tree).unwrap());
    let at = stored.len() as u64;
    let descriptor = fs::read(&descriptor).unwrap();
    stored.extend(&descriptor);

    let world = World::make(ALL, 64);
    let (volume, cx) = (&world.fs, &world.cx);
    let file = world.file(ROOT, b"file").unwrap().ino;
    volume.write(cx, file, 0, &stored, false).unwrap();
    volume.fsync(cx, file, false).unwrap();
    let inode = volume.by_number(file, cx.tag).unwrap();
    let value = place(descriptor.len() as u32, at);
    let change = value.as_deref().map(|value| XattrChange {
        index: index::VERITY,
        name: VERITY_XATTR,
        value: Some(value),
    });
    let changes: Vec<_> = change.into_iter().collect();
    volume
        .store_fields(cx, &inode, &changes, |core, _| {
            core.advise = core.advise.union(Advise::VERITY);
            core.size = size as u64;
        })
        .unwrap();
    inode.set_size(size as u64);
    drop(inode);
    volume.close().unwrap();
    let device = Arc::new(MemDevice::from_bytes(&world.bytes()));
    Sealed {
        device,
        content,
        digest,
        tree: tree_at,
        descriptor: at,
    }
}

fn seal(how: &[&str], size: usize) -> Sealed {
    seal_at(how, size, |len, at| Some(location(1, len, at)))
}

fn location(version: u32, size: u32, at: u64) -> Vec<u8> {
    let words = [version, size].map(u32::to_le_bytes).concat();
    [words, at.to_le_bytes().to_vec()].concat()
}

impl Sealed {
    fn open(&self) -> World {
        World::of(Arc::clone(&self.device), "")
    }

    /// The volume with one byte of the file's blocks changed.
    fn changed(&self, at: u64) -> World {
        let world = self.open();
        let inode = world.fs.by_number(file_of(&world), world.cx.tag).unwrap();
        let block = at / BLOCK_SIZE as u64;
        let addr = world.fs.slot(&inode, block, world.cx.tag).unwrap();
        drop(inode);
        let mut bytes = self.device.to_bytes();
        bytes[addr.0 as usize * BLOCK_SIZE + at as usize % BLOCK_SIZE] ^= 0x10;
        World::of(Arc::new(MemDevice::from_bytes(&bytes)), "ro")
    }
}

fn file_of(world: &World) -> InodeNo {
    world.lookup(ROOT, b"file").unwrap().ino
}

fn read(world: &World, at: u64, len: usize) -> Result<Vec<u8>, FsError> {
    let fs: &dyn FileSystem = &*world.fs;
    Ok(fs.read(&world.cx, file_of(world), at, len)?.to_vec())
}

fn open(world: &World, write: bool) -> Result<(), FsError> {
    FileSystem::open(&*world.fs, &world.cx, file_of(world), write)
}

#[test]
fn verified_content_is_read_and_measured() {
    for (how, size) in [
        (&[][..], 700_000),
        (&["--salt=0102", "--block-size=1024"], 700_001),
        (&["--hash-alg=sha512"], 100_000),
        (&[], 4096),
        (&[], 1),
    ] {
        let sealed = seal(how, size);
        let world = sealed.open();
        world.judge_device();
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
        let (fs, cx, file) = (&*world.fs, &world.cx, file_of(&world));
        let digest = fs.verity_digest(cx, file).unwrap();
        assert_eq!(digest.bytes, sealed.digest);
        assert_eq!(fs.verity_digest(cx, ROOT), Err(FsError::NoData));
        let cut = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        assert_eq!(
            fs.setattr(cx, file, &cut).err(),
            Some(FsError::NotPermitted)
        );
        assert_eq!(
            FileSystem::write(fs, cx, file, 0, b"x", false),
            Err(FsError::NotPermitted)
        );
        // Its blocks beyond the end are not allocated to other files.
        world.file(ROOT, b"other").unwrap();
        let world = World::of(world.close(), "");
        assert!(read(&world, 0, size).unwrap() == sealed.content);
        world.close();
    }
}

#[test]
fn corrupt_content_is_not_returned() {
    let size = 700_000;
    let sealed = seal(&[], size);
    // Content: only the corrupt block fails.
    let world = sealed.changed(300_000);
    open(&world, false).unwrap();
    assert!(matches!(read(&world, 300_500, 10), Err(FsError::Io(_))));
    assert!(matches!(read(&world, 0, size), Err(FsError::Io(_))));
    assert!(read(&world, 0, 200_000).unwrap() == sealed.content[..200_000]);
    // The root of the tree, then a block that covers the first part of the file.
    for (at, rest) in [(sealed.tree, false), (sealed.tree + 4096 + 31, true)] {
        let world = sealed.changed(at);
        assert!(matches!(read(&world, 1000, 10), Err(FsError::Io(_))));
        assert_eq!(read(&world, 600_000, 10).is_ok(), rest);
    }
    // A wrong root hash, and the size of another file.
    let world = sealed.changed(sealed.descriptor + 16);
    open(&world, false).unwrap();
    assert!(matches!(read(&world, 0, 1), Err(FsError::Io(_))));
    let world = sealed.changed(sealed.descriptor + 8);
    assert!(matches!(open(&world, false), Err(FsError::Invalid(_))));
    assert!(matches!(read(&world, 0, 1), Err(FsError::Invalid(_))));
}

#[test]
fn a_misplaced_descriptor_is_corruption() {
    type Place = fn(u32, u64) -> Option<Vec<u8>>;
    const PLACES: &[(Place, bool)] = &[
        (|_, _| None, true),
        (|len, at| Some(location(2, len, at)), true),
        (|len, _| Some(location(1, len, 65_535)), true),
        (|len, _| Some(location(1, len, u64::MAX - 100)), true),
        (|len, at| Some(location(1, len, at)[..15].to_vec()), true),
        (|_, at| Some(location(1, u32::MAX, at)), false),
        (|_, at| Some(location(1, 255, at)), false),
    ];
    for (n, (place, damage)) in PLACES.iter().enumerate() {
        let sealed = seal_at(&[], 9000, place);
        let world = World::of(Arc::clone(&sealed.device), "ro");
        let refused = open(&world, false).unwrap_err();
        assert_eq!(refused.is_corruption(), *damage, "{n}: {refused}");
        assert_eq!(read(&world, 0, 1), Err(refused), "{n}");
    }
}
