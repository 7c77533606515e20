//! Files on volumes with clusters, compared with a model; the image is judged by e2fsck.

use std::sync::Arc;

use steadfs_base::{DevBlock, FileBlock, IoTag};
use steadfs_vfs::{FallocMode, FileSystem, FsError};

use crate::disk::Ino;
use crate::disk::test_images::Image;
use crate::inode::Inode;
use crate::options::MountOptions;
use crate::test_world::{ROOT, World};

/// Numbers that follow from a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A file and what it must contain.
struct Modelled {
    inode: Arc<Inode>,
    name: Vec<u8>,
    content: Vec<u8>,
}

impl Modelled {
    fn make(world: &World, name: &str) -> Self {
        let attr = world.file(ROOT, name.as_bytes()).unwrap();
        Self {
            inode: world.fs.by_number(attr.ino, IoTag::default()).unwrap(),
            name: name.as_bytes().to_vec(),
            content: Vec::new(),
        }
    }

    fn write(&mut self, world: &World, at: u64, data: &[u8]) -> Result<(), FsError> {
        let written = world
            .fs
            .write_file(&world.cx, &self.inode, at, data, false)?;
        let end = at as usize + written;
        if self.content.len() < end {
            self.content.resize(end, 0);
        }
        self.content[at as usize..end].copy_from_slice(&data[..written]);
        Ok(())
    }

    fn falloc(&mut self, world: &World, mode: FallocMode, at: u64, len: u64) {
        let done = world
            .fs
            .fallocate_file(&world.cx, &self.inode, mode, at, len);
        if done == Err(FsError::NoSpace) {
            return;
        }
        done.unwrap();
        let (at, end) = (at as usize, (at + len) as usize);
        match mode {
            FallocMode::Allocate { keep_size: false } if end > self.content.len() => {
                self.content.resize(end, 0);
            }
            FallocMode::PunchHole | FallocMode::ZeroRange { .. } => {
                let end = end.min(self.content.len());
                if at < end {
                    self.content[at..end].fill(0);
                }
            }
            _ => {}
        }
    }

    fn truncate(&mut self, world: &World, size: u64) {
        let _alone = self.inode.lock.write();
        world.fs.truncate(&world.cx, &self.inode, size).unwrap();
        self.content.resize(size as usize, 0);
    }

    fn check(&self, world: &World) {
        let ino = self.inode.ino().into();
        let read = FileSystem::read(&*world.fs, &world.cx, ino, 0, self.content.len() + 1);
        let read = read.unwrap().to_vec();
        let differs = read.iter().zip(&self.content).position(|(a, b)| a != b);
        assert_eq!(differs, None, "first byte that differs");
        assert_eq!(read.len(), self.content.len());
    }
}

/// One change of a file by chance.
fn change(world: &World, numbers: &mut Numbers, file: &mut Modelled, reach: u64) {
    let at = numbers.below(reach);
    let most = [1000, 9000, 70_000][numbers.below(3) as usize];
    let len = 1 + numbers.below(most);
    match numbers.below(12) {
        0..=4 => {
            let data = vec![1 + numbers.below(255) as u8; len as usize];
            match file.write(world, at, &data) {
                Ok(()) | Err(FsError::NoSpace) => {}
                Err(error) => panic!("{error}"),
            }
        }
        5 | 6 => file.falloc(world, FallocMode::PunchHole, at, len),
        7 => file.falloc(world, FallocMode::ZeroRange { keep_size: true }, at, len),
        8 => file.falloc(world, FallocMode::Allocate { keep_size: true }, at, len),
        9 => file.truncate(world, at),
        10 => match world.fs.fsync_inode(&world.cx, &file.inode, false) {
            Ok(()) | Err(FsError::NoSpace) => {}
            Err(error) => panic!("{error}"),
        },
        _ => world.fs.sync_volume(&world.cx).unwrap(),
    }
}

fn work(options: &[&str], size: &str, mount: &str, seed: u64, steps: u32) {
    let image = Image::make(options, size);
    let world = World::open_with(image, MountOptions::parse(mount).unwrap());
    let free = world.fs.alloc.totals().free;
    let mut numbers = Numbers(seed);
    let names = ["a", "b", "c"];
    let mut files = names.map(|name| Modelled::make(&world, name));
    let reach = [40_000, 400_000, 3_000_000];
    for _ in 0..steps {
        let n = numbers.below(3) as usize;
        change(&world, &mut numbers, &mut files[n], reach[n]);
    }
    for file in &files {
        file.check(&world);
    }
    world.fs.sync_volume(&world.cx).unwrap();
    assert_eq!(world.fs.alloc.held_clusters(), 0, "all of them are mapped");
    let files = files.map(|file| (file.inode.ino(), file.name, file.content));
    let world = world.reopen();
    for (ino, name, content) in files {
        let inode = world.fs.inode(ino, IoTag::default()).unwrap();
        let file = Modelled {
            inode,
            name,
            content,
        };
        file.check(&world);
        FileSystem::unlink(&*world.fs, &world.cx, ROOT, &file.name).unwrap();
        let inode = Arc::clone(&file.inode);
        drop(file);
        world.fs.evict(&inode).unwrap();
    }
    world.fs.sync_volume(&world.cx).unwrap();
    assert_eq!(
        world.fs.alloc.totals().free,
        free,
        "all clusters are free again"
    );
    world.close();
}

#[test]
fn files_on_clusters_have_what_was_written() {
    let four = ["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "4096"];
    let sixteen = ["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "16384"];
    for seed in 0..3 {
        work(&four, "16M", "", seed, 400);
        work(&sixteen, "16M", "nodelalloc", seed, 300);
        work(&sixteen, "32M", "", seed, 400);
    }
}

/// Nearly full, so that writes allocate at once and some fail.
#[test]
fn a_full_volume_with_clusters_stays_sound() {
    let full = [
        "-t",
        "ext4",
        "-b",
        "1024",
        "-O",
        "bigalloc,^has_journal",
        "-C",
        "8192",
        "-m",
        "0",
    ];
    for seed in 0..4 {
        work(&full, "1500K", "", seed, 500);
    }
}

#[test]
fn blocks_of_a_cluster_share_it() {
    let options = ["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "16384"];
    let world = World::make(&options, "32M");
    let fs = &world.fs;
    let mut file = Modelled::make(&world, "file");
    let free = fs.alloc.totals().free;
    let place = |file: &Modelled, block| {
        let core = file.inode.core.read();
        fs.map_block(&core, file.inode.ino(), FileBlock(block), IoTag::default())
            .unwrap()
    };
    // Two pieces of one cluster in one write-back, and one of another.
    for block in [3, 9, 20] {
        file.write(&world, block << 10, &[7; 1024]).unwrap();
    }
    fs.fsync_inode(&world.cx, &file.inode, false).unwrap();
    let first = place(&file, 3).unwrap();
    assert_eq!(first.0 % 16, 3);
    assert_eq!(place(&file, 9), Some(first.plus(6)));
    assert_eq!(place(&file, 20).unwrap().0 % 16, 4);
    assert_eq!(fs.alloc.totals().free, free - 2);
    assert_eq!(file.inode.core.read().blocks, 64);
    // Another block of the first cluster allocates nothing; a hole in it frees nothing.
    file.write(&world, 0, &[8; 1024]).unwrap();
    fs.fsync_inode(&world.cx, &file.inode, false).unwrap();
    assert_eq!(place(&file, 0), Some(DevBlock(first.0 - 3)));
    file.falloc(&world, FallocMode::PunchHole, 3 << 10, 1024);
    assert_eq!((place(&file, 3), file.inode.core.read().blocks), (None, 64));
    // The last block of it frees it.
    file.falloc(&world, FallocMode::PunchHole, 0, 12 << 10);
    fs.sync_volume(&world.cx).unwrap();
    assert_eq!(file.inode.core.read().blocks, 32);
    assert_eq!(fs.alloc.totals().free, free - 1);
    file.check(&world);
    drop(file);
    world.close();
}

#[test]
fn files_mapped_by_indirect_blocks_are_refused() {
    let options = ["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "16384"];
    let world = World::make(&options, "32M");
    let attr = world.file(ROOT, b"file").unwrap();
    let inode = world
        .fs
        .inode(Ino(attr.ino.0 as u32), IoTag::default())
        .unwrap();
    {
        let mut core = inode.core.write();
        core.flags.0 &= !steadfs_vfs::InodeFlags::EXTENTS.0;
        core.block.fill(0);
    }
    world
        .fs
        .write_file(&world.cx, &inode, 0, &[1; 100], false)
        .unwrap();
    let failed = world.fs.fsync_inode(&world.cx, &inode, false);
    assert!(matches!(failed, Err(FsError::Corrupt(_))), "{failed:?}");
}
