//! The block count in a file's attributes, and the largest file size.

use std::sync::Arc;

use steadfs_vfs::{FallocMode, FileSystem, FsError};

use crate::inode::Inode;
use crate::map::has_extents;
use crate::test_world::{ROOT, World};

const BS: u64 = 4096;

struct Case {
    world: World,
    file: Arc<Inode>,
}

impl Case {
    fn new(options: &[&str]) -> Self {
        let world = World::make(options, "32M");
        let ino = world.file(ROOT, b"file").unwrap().ino;
        let file = world.fs.by_number(ino, world.cx.tag).unwrap();
        Self { world, file }
    }

    fn write(&self, block: u64, blocks: u64) {
        let data = vec![1; (blocks * BS) as usize];
        self.write_at(block * BS, &data).unwrap();
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> steadfs_vfs::Result<usize> {
        let (fs, cx) = (&self.world.fs, &self.world.cx);
        fs.write_file(cx, &self.file, offset, data, false)
    }

    fn sync(&self) {
        let (fs, cx) = (&self.world.fs, &self.world.cx);
        fs.fsync_inode(cx, &self.file, false).unwrap();
    }

    /// `st_blocks`, in blocks of the volume.
    fn blocks(&self) -> u64 {
        let ino = self.file.ino().into();
        let attr = FileSystem::getattr(&*self.world.fs, &self.world.cx, ino);
        attr.unwrap().blocks * 512 / BS
    }
}

#[test]
fn delayed_blocks_are_counted_in_st_blocks() {
    for kind in ["ext4", "ext2"] {
        let case = Case::new(&["-t", kind, "-b", "4096"]);
        case.write(0, 2);
        assert_eq!(case.blocks(), 2, "{kind}");
        case.sync();
        assert_eq!(case.blocks(), 2);
        // Over existing data, beyond the end, and after a hole.
        case.write(1, 3);
        assert_eq!(case.blocks(), 4);
        case.write(8, 1);
        assert_eq!(case.blocks(), 5);
        case.write(6, 3);
        assert_eq!(case.blocks(), 7);
        case.sync();
        assert_eq!(case.blocks(), 7);
        case.write(0, 9);
        assert_eq!(case.blocks(), 9);
        case.world.close();
    }
}

#[test]
fn delayed_blocks_are_counted_in_any_number_of_pieces() {
    // One leaf of extents holds 340, one block of block numbers 1024.
    const PIECES: u64 = 400;
    for kind in ["ext4", "ext2"] {
        let case = Case::new(&["-t", kind, "-b", "4096"]);
        let every = |step: usize, from: u64| (from..4 * PIECES).step_by(step);
        every(4, 1).for_each(|block| case.write(block, 1));
        assert_eq!(case.blocks(), PIECES, "{kind}, all of it delayed");
        case.sync();
        // Maps count too.
        let (mapped, maps) = (PIECES, case.blocks() - PIECES);
        assert!(maps > 1, "{kind}: {maps} blocks of maps");
        // Before existing data, half over it, and in a hole.
        every(8, 0).for_each(|block| case.write(block, 2));
        case.write(5 * PIECES, 7);
        assert_eq!(case.blocks(), mapped + maps + PIECES / 2 + 7, "{kind}");
        every(2, 0).for_each(|block| case.write(block, 2));
        let all = 4 * PIECES + 7;
        assert_eq!(case.blocks(), all + maps, "{kind}");
        case.world.close();
    }
}

#[test]
fn a_block_rewritten_in_flight_is_counted_once() {
    let case = Case::new(&["-t", "ext4", "-b", "4096"]);
    case.write(0, 3);
    let taken = case.file.pages.collect(0..2, 2);
    assert_eq!((taken.len(), case.blocks()), (2, 3));
    case.write(1, 1);
    assert_eq!(case.blocks(), 3);
    let reserved = taken.iter().filter(|taken| taken.reserved).count() as u64;
    let per_block = case.world.fs.reserve_per_block(&case.file);
    let kept = case.file.pages.redirty(0..2, true);
    let alloc = &case.world.fs.alloc;
    alloc.with_totals(|t| t.adjust(reserved * per_block, kept * per_block));
    assert_eq!(case.blocks(), 3);
    case.sync();
    assert_eq!(case.blocks(), 3);
    case.world.close();
}

#[test]
fn a_write_ends_at_the_largest_file_size() {
    for options in [
        &["-t", "ext4", "-b", "4096"][..],
        &["-t", "ext4", "-b", "1024", "-O", "^huge_file"],
        &["-t", "ext2", "-b", "1024"],
    ] {
        let case = Case::new(options);
        let most = {
            let extents = has_extents(&case.file.core.read());
            case.world.fs.geo().max_file_size(extents)
        };
        let data = vec![3; 5000];
        assert_eq!(case.write_at(most - 3000, &data), Ok(3000), "{options:?}");
        assert_eq!(case.file.size(), most);
        assert_eq!(case.write_at(most, b"x"), Err(FsError::FileTooBig));
        assert_eq!(case.write_at(u64::MAX, b"xy"), Err(FsError::FileTooBig));
        case.sync();
        case.world.close();
    }
}

/// As Linux: one limit for the whole volume, and for every mode.
#[test]
fn fallocate_ends_at_the_largest_file_size() {
    let keep_size = true;
    for options in [
        &["-t", "ext4", "-b", "4096"][..],
        &["-t", "ext4", "-b", "1024", "-O", "^huge_file"],
        &["-t", "ext2", "-b", "1024"],
    ] {
        let case = Case::new(options);
        let (fs, cx) = (&*case.world.fs, &case.world.cx);
        let file = case.file.ino().into();
        case.write(0, 1);
        let most = fs.geo().max_file_size(true);
        let ranges = [
            (0, most + 1),
            (most, 1),
            (most - 1, 2),
            (1, u64::MAX),
            (u64::MAX, u64::MAX),
        ];
        for mode in [
            FallocMode::Allocate { keep_size },
            FallocMode::Allocate { keep_size: false },
            FallocMode::ZeroRange { keep_size },
            FallocMode::PunchHole,
        ] {
            for (offset, len) in ranges {
                let said = FileSystem::fallocate(fs, cx, file, mode, offset, len);
                let range = format!("{options:?} {mode:?} {offset} {len}");
                assert_eq!(said, Err(FsError::FileTooBig), "{range}");
            }
        }
        let hole = FileSystem::fallocate(fs, cx, file, FallocMode::PunchHole, most - 1, 1);
        assert_eq!(hole, Ok(()), "{options:?}");
        let end = fs.geo().max_file_size(has_extents(&case.file.core.read()));
        for (from, to) in [(0, end), (0, u64::MAX), (end, end)] {
            let said = FileSystem::copy_range(fs, cx, (file, from), (file, to), 9);
            assert_eq!(said, Err(FsError::FileTooBig), "{options:?} {from} {to}");
        }
        case.world.close();
    }
}
