//! Verity files: what matches its hashes is read, and nothing else.

use steadfs_base::InodeNo;
use steadfs_conformance::{Kind, Place, Sealed, World, location};
use steadfs_vfs::{FallocMode, FsError};

on!((ext4_1k ext4_4k ext4_unindexed ext4_large_inodes f2fs_all f2fs_four_logs f2fs_not_inline)
    data_that_matches_its_hashes_is_read_and_measured,
    data_that_does_not_match_is_never_returned,
);

on!((ext4_1k ext4_4k ext4_unindexed ext4_large_inodes) a_file_without_its_hashes_cannot_be_read);

on!((ext4_4k ext4_large_inodes) a_descriptor_of_a_wrong_size_is_refused);

on!((f2fs_all f2fs_four_logs f2fs_not_inline) a_misplaced_descriptor_is_corruption);

fn file_of(world: &World) -> InodeNo {
    world.lookup(world.root, b"file").unwrap().ino
}

fn read(world: &World, at: u64, len: usize) -> Result<Vec<u8>, FsError> {
    let read = world.fs.read(&world.cx, file_of(world), at, len)?;
    Ok(read.to_vec())
}

fn open(world: &World, write: bool) -> Result<(), FsError> {
    world.fs.open(&world.cx, file_of(world), write)
}

/// An option of `fsverity` where the volume's blocks are smaller than its usual ones.
fn block_size(kind: &Kind) -> Option<&'static str> {
    match kind.block {
        1024 => Some("--block-size=1024"),
        2048 => Some("--block-size=2048"),
        _ => None,
    }
}

fn data_that_matches_its_hashes_is_read_and_measured(kind: &'static Kind) {
    for (how, size) in [
        (&[][..], 700_000),
        (&["--salt=0102", "--block-size=1024"], 700_001),
        (&["--hash-alg=sha512"], 100_000),
        (&["--hash-alg=sha512", "--block-size=1024"], 100_000),
        (&[], 4096),
        (&[], 1),
    ] {
        let mut how = how.to_vec();
        if !how.contains(&"--block-size=1024") {
            how.extend(block_size(kind));
        }
        let sealed = Sealed::new(kind, &how, size);
        let world = sealed.open();
        assert!(world.fs.checks_opens());
        open(&world, false).unwrap();
        assert_eq!(open(&world, true), Err(FsError::NotPermitted));
        let content = &sealed.content;
        assert!(read(&world, 0, size + 10).unwrap() == *content, "{how:?}");
        for at in [0, 1, size / 3, size - 1] {
            let end = size.min(at + 5000);
            assert!(read(&world, at as u64, 5000).unwrap() == content[at..end]);
        }
        assert!(read(&world, size as u64, 10).unwrap().is_empty());
        let (fs, cx, file) = (&world.fs, &world.cx, file_of(&world));
        let digest = fs.verity_digest(cx, file).unwrap();
        assert_eq!(digest.bytes, sealed.digest);
        let root = fs.verity_digest(cx, world.root);
        assert_eq!(root, Err(FsError::NoData));
        let cut = world.resize(file, 0);
        assert_eq!(cut.err(), Some(FsError::NotPermitted));
        assert_eq!(world.write(file, 0, b"x"), Err(FsError::NotPermitted));
        let punched = fs.fallocate(cx, file, FallocMode::PunchHole, 0, 1);
        assert_eq!(punched, Err(FsError::NotPermitted));
        // Its blocks beyond the end are not allocated to other files.
        world.written(b"other", &[7; 100_000]).unwrap();
        let world = World::open(kind, world.close(), &Default::default());
        assert!(read(&world, 0, size).unwrap() == *content);
        world.close();
    }
}

fn data_that_does_not_match_is_never_returned(kind: &'static Kind) {
    let size = 700_000;
    let how: Vec<_> = block_size(kind).into_iter().collect();
    let sealed = Sealed::new(kind, &how, size);
    // Content: the block alone.
    let world = sealed.changed(300_000);
    open(&world, false).unwrap();
    assert!(matches!(read(&world, 300_001, 10), Err(FsError::Io(_))));
    assert!(matches!(read(&world, 0, size), Err(FsError::Io(_))));
    assert!(read(&world, 0, 200_000).unwrap() == sealed.content[..200_000]);
    // The root of the tree, then a block of hashes of the first part of the file.
    let second = kind.block.min(4096);
    for (at, rest) in [(sealed.tree, false), (sealed.tree + second + 31, true)] {
        let world = sealed.changed(at);
        assert!(matches!(read(&world, 1000, 10), Err(FsError::Io(_))));
        assert_eq!(read(&world, 600_000, 10).is_ok(), rest);
        assert!(matches!(read(&world, 0, size), Err(FsError::Io(_))));
    }
    // The root hash; a size of another file.
    let world = sealed.changed(sealed.descriptor + 16);
    open(&world, false).unwrap();
    assert!(matches!(read(&world, 0, 1), Err(FsError::Io(_))));
    let world = sealed.changed(sealed.descriptor + 8);
    assert!(matches!(open(&world, false), Err(FsError::Invalid(_))));
    assert!(matches!(read(&world, 0, 1), Err(FsError::Invalid(_))));
}

/// ext4 stores the size of the descriptor in the last bytes of the file's last block.
fn a_descriptor_of_a_wrong_size_is_refused(kind: &'static Kind) {
    let how: Vec<_> = block_size(kind).into_iter().collect();
    let sealed = Sealed::new(kind, &how, 700_000);
    let last = sealed.descriptor + kind.block - 4;
    for (byte, is_corruption) in [(1, false), (2, true), (3, true)] {
        let world = sealed.changed(last + byte);
        let refused = open(&world, false).unwrap_err();
        assert_eq!(refused.is_corruption(), is_corruption, "{refused}");
        assert!(read(&world, 0, 1).is_err());
    }
}

fn a_file_without_its_hashes_cannot_be_read(kind: &'static Kind) {
    let world = Sealed::without_hashes(kind, 9000);
    assert!(open(&world, false).unwrap_err().is_corruption());
    assert!(read(&world, 0, 1).unwrap_err().is_corruption());
}

/// f2fs stores size and position of the descriptor in an attribute.
fn a_misplaced_descriptor_is_corruption(kind: &'static Kind) {
    const PLACES: &[(Place, bool)] = &[
        (|_, _| None, true),
        (|len, at| Some(location(2, len, at)), true),
        (|len, _| Some(location(1, len, 65_535)), true),
        (|len, _| Some(location(1, len, u64::MAX - 100)), true),
        (|len, at| Some(location(1, len, at)[..15].to_vec()), true),
        (|_, at| Some(location(1, u32::MAX, at)), false),
        (|_, at| Some(location(1, 255, at)), false),
    ];
    for (n, (place, is_corruption)) in PLACES.iter().enumerate() {
        let sealed = Sealed::placed(kind, &[], 9000, *place);
        let world = sealed.open();
        let refused = open(&world, false).unwrap_err();
        assert_eq!(refused.is_corruption(), *is_corruption, "{n}: {refused}");
        assert_eq!(read(&world, 0, 1), Err(refused), "{n}");
    }
}
