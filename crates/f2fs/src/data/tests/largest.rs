//! The largest file size. Linux's f2fs neither reads nor writes beyond it.

use steadfs_base::InodeNo;
use steadfs_vfs::{FallocMode, FileSystem, FsError, Result, SetAttr};

use crate::test_world::{ALL, ROOT, World};

/// As Linux counts it: 2 direct nodes, 2 indirect ones and a double indirect one, each with 1018 addresses or ids.
const LARGEST: u64 = 1018 * (2 + 2 * 1018 + 1018 * 1018) * 4096;

fn resize(world: &World, file: InodeNo, size: u64) -> Result<u64> {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    Ok(world.fs.setattr(&world.cx, file, &set)?.size)
}

#[test]
fn no_file_exceeds_the_size_that_linux_reads() {
    for features in ["", ALL] {
        let world = World::make(features, 60);
        let (fs, cx) = (&world.fs, &world.cx);
        let file = world.file(ROOT, b"file").unwrap().ino;
        let write = |offset, len| fs.write(cx, file, offset, &vec![7; len], false);
        assert_eq!(write(LARGEST - 5000, 10_000), Ok(5000));
        assert_eq!(write(LARGEST, 1), Err(FsError::FileTooBig));
        assert_eq!(write(LARGEST, 0), Ok(0));
        for keep_size in [false, true] {
            for mode in [
                FallocMode::Allocate { keep_size },
                FallocMode::ZeroRange { keep_size },
                FallocMode::PunchHole,
            ] {
                for (offset, len) in [
                    (LARGEST - 4096, 4097),
                    (LARGEST, 1),
                    (0, u64::MAX),
                    (u64::MAX, u64::MAX),
                ] {
                    let beyond = fs.fallocate(cx, file, mode, offset, len);
                    assert_eq!(beyond, Err(FsError::FileTooBig), "{mode:?} {offset} {len}");
                }
            }
        }
        let punched = fs.fallocate(cx, file, FallocMode::PunchHole, LARGEST - 1, 1);
        assert_eq!(punched, Ok(()));
        assert_eq!(write(LARGEST - 1, 1), Ok(1));
        for (from, len) in [(0, 5000), (LARGEST, 1)] {
            for to in [LARGEST, u64::MAX] {
                let copied = fs.copy_range(cx, (file, from), (file, to), len);
                assert_eq!(copied, Err(FsError::FileTooBig), "{from} {to}");
            }
        }
        assert_eq!(resize(&world, file, LARGEST + 1), Err(FsError::FileTooBig));
        let world = world.reopen();
        let (fs, cx) = (&world.fs, &world.cx);
        let end = fs.read(cx, file, LARGEST - 6000, 10_000).unwrap().to_vec();
        assert_eq!(end.len(), 6000);
        assert!(end[..1000].iter().all(|byte| *byte == 0));
        assert!(end[1000..].iter().all(|byte| *byte == 7));
        assert_eq!(resize(&world, file, LARGEST), Ok(LARGEST));
        world.close();
    }
}

/// Earlier versions created such files.
#[test]
fn a_larger_file_can_be_read_and_truncated() {
    let world = World::make("", 60);
    let (fs, cx) = (&world.fs, &world.cx);
    let file = world.file(ROOT, b"file").unwrap().ino;
    fs.write(cx, file, LARGEST - 3, &[7; 3], false).unwrap();
    fs.fsync(cx, file, false).unwrap();
    {
        let inode = fs.by_number(file, cx.tag).unwrap();
        let change = fs.change().unwrap();
        let mut core = inode.core.write();
        fs.mark_dirty(&change, &inode, cx.tag).unwrap();
        core.size = LARGEST + 9000;
        inode.set_size(core.size);
    }
    let world = world.reopen();
    let (fs, cx) = (&world.fs, &world.cx);
    let end = fs.read(cx, file, LARGEST - 3, 100_000).unwrap().to_vec();
    assert_eq!((end.len(), &end[..4]), (9003, &[7, 7, 7, 0][..]));
    assert_eq!(
        fs.write(cx, file, LARGEST + 1, b"x", false),
        Err(FsError::FileTooBig)
    );
    for size in [LARGEST + 8000, LARGEST, 10] {
        assert_eq!(resize(&world, file, size), Ok(size));
    }
    world.close();
}
