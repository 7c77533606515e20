//! What a file's attributes say of its blocks, and how long it can be.

use std::sync::Arc;

use steadfs_vfs::{FileSystem, FsError};

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
fn blocks_without_a_place_count_as_if_they_had_one() {
    for kind in ["ext4", "ext2"] {
        let case = Case::new(&["-t", kind, "-b", "4096"]);
        case.write(0, 2);
        assert_eq!(case.blocks(), 2, "{kind}");
        case.sync();
        assert_eq!(case.blocks(), 2);
        // Over what is there, behind the end, and behind a hole.
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
fn a_write_ends_where_files_end() {
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
