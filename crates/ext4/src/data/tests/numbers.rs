//! The block count in a file's attributes: maps, and blocks in flight.

use std::sync::Arc;

use steadfs_vfs::FileSystem;

use crate::inode::Inode;
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
