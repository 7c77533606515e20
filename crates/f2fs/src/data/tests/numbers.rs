//! The block count of a file.

use std::sync::Arc;

use steadfs_vfs::{FallocMode, FileSystem};

use super::super::BLOCK;
use crate::inode::Inode;
use crate::test_world::{ALL, ROOT, World};

struct Case {
    world: World,
    file: Arc<Inode>,
}

impl Case {
    fn new(options: &str) -> Self {
        let world = World::make_with(ALL, 64, options);
        let ino = world.file(ROOT, b"file").unwrap().ino;
        let file = world.fs.by_number(ino, world.cx.tag).unwrap();
        Self { world, file }
    }

    fn write(&self, block: u64, blocks: u64) {
        let data = vec![1; (blocks * BLOCK) as usize];
        self.write_at(block * BLOCK, &data);
    }

    fn write_at(&self, offset: u64, data: &[u8]) {
        let (fs, cx) = (&self.world.fs, &self.world.cx);
        let written = fs.write_file(cx, &self.file, offset, data, false).unwrap();
        assert_eq!(written, data.len());
    }

    fn sync(&self) {
        let (fs, cx) = (&self.world.fs, &self.world.cx);
        fs.fsync_inode(cx, &self.file, false).unwrap();
    }

    /// `st_blocks`.
    fn sectors(&self) -> u64 {
        self.sectors_of(self.file.nid().into())
    }

    fn sectors_of(&self, ino: steadfs_base::InodeNo) -> u64 {
        let (fs, cx) = (&*self.world.fs, &self.world.cx);
        FileSystem::getattr(fs, cx, ino).unwrap().blocks
    }

    /// The file has this many blocks of 4 KiB, before and after write-back.
    #[track_caller]
    fn counts(&self, blocks: u64) {
        assert_eq!(self.sectors(), blocks * 8, "delayed");
        self.sync();
        assert_eq!(self.sectors(), blocks * 8, "written");
    }
}

#[test]
fn nodes_that_delayed_blocks_need_count_too() {
    let case = Case::new("");
    // In the first direct node, twice in the second, and in one of the double indirect tree.
    case.write(1500, 1);
    assert_eq!(case.sectors(), 2 * 8);
    case.write(2500, 1);
    case.write(2504, 1);
    assert_eq!(case.sectors(), 5 * 8);
    case.write(3_000_000, 2);
    case.counts(5 + 5);
    case.world.close();
}

#[test]
fn inline_content_counts_in_sectors() {
    let case = Case::new("");
    assert_eq!(case.sectors(), 0);
    case.write_at(0, b"little");
    assert_eq!(case.sectors(), 1);
    case.write_at(1000, b"a bit more");
    assert_eq!(case.sectors(), 2);
    case.sync();
    assert_eq!(case.sectors(), 2);
    case.write_at(5000, b"too much");
    case.counts(2);
    let dir = case.world.mkdir(ROOT, b"dir").unwrap();
    assert_eq!(case.sectors_of(dir.ino), dir.size.div_ceil(512));
    for n in 0..300 {
        let name = format!("some name of a file {n}");
        case.world.file(dir.ino, name.as_bytes()).unwrap();
    }
    let now = case.sectors_of(dir.ino);
    assert!(now.is_multiple_of(8) && now > 0, "{now}");
    case.world.judge_now();
    assert_eq!(case.sectors_of(dir.ino), now);
    case.world.close();
}

/// As in Linux's f2fs: a hole that begins before the end of the file may extend beyond it.
#[test]
fn a_hole_frees_blocks_beyond_the_end() {
    let case = Case::new("");
    let (fs, cx) = (&*case.world.fs, &case.world.cx);
    let ino = case.file.nid().into();
    case.write_at(0, &[7; 3600]);
    let keep = FallocMode::Allocate { keep_size: true };
    FileSystem::fallocate(fs, cx, ino, keep, BLOCK, 16 * BLOCK).unwrap();
    case.counts(17);
    let punch = |start, len| FileSystem::fallocate(fs, cx, ino, FallocMode::PunchHole, start, len);
    // Beyond the end there is nothing to punch.
    punch(3600, 1 << 20).unwrap();
    case.counts(17);
    punch(0, 2 * BLOCK + 1).unwrap();
    case.counts(15);
    punch(3000, 12 * BLOCK).unwrap();
    case.counts(5);
    punch(3599, 1 << 40).unwrap();
    case.counts(0);
    assert_eq!(FileSystem::getattr(fs, cx, ino).unwrap().size, 3600);
    case.world.close();
}
