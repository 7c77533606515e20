//! The largest file size. Linux's f2fs neither reads nor writes beyond it.

use steadfs_base::InodeNo;
use steadfs_vfs::{FileSystem, FsError, Result, SetAttr};

use crate::test_world::{ROOT, World};

/// As Linux counts it: 2 direct nodes, 2 indirect ones and a double indirect one, each with 1018 addresses or ids.
const LARGEST: u64 = 1018 * (2 + 2 * 1018 + 1018 * 1018) * 4096;

fn resize(world: &World, file: InodeNo, size: u64) -> Result<u64> {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    Ok(world.fs.setattr(&world.cx, file, &set)?.size)
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
