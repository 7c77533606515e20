//! Files that are mapped by tables, which have numbers of 32 bits, on a volume with more blocks than that.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use steadfs_block::{MemDevice, Queue, QueueOptions};
use steadfs_vfs::{Cx, FileSystem, FsError, InodeFlags};

use super::*;
use crate::disk::inode::I_BLOCK_SIZE;
use crate::disk::{GroupNo, Ino};
use crate::inode::Inode;
use crate::mballoc::table_groups;
use crate::{CacheSizes, MountOptions};
use steadfs_ext4_format::format::{FormatOptions, format};

const BLOCK: u32 = 64 << 10;

/// A volume of 2^32 blocks and two million more, in memory.
fn volume() -> Arc<Ext4> {
    let size = ((1 << 32) + (2 << 20)) * u64::from(BLOCK);
    let device = Arc::new(MemDevice::new(size));
    let options = FormatOptions {
        block_size: Some(BLOCK),
        inodes: Some(1 << 21),
        features: "^has_journal,^orphan_file".to_owned(),
        prezeroed: true,
        discard: false,
        ..FormatOptions::default()
    };
    let queue = Queue::new(Arc::clone(&device) as _, QueueOptions::default());
    format(&queue, size, &options).unwrap();
    let options = MountOptions::default();
    Ext4::open(device, options, CacheSizes::of(16 << 20))
        .unwrap()
        .0
}

/// A new file whose inode is beyond the groups that tables reach.
fn high_file(fs: &Ext4, dir: InodeNo, name: &[u8]) -> Arc<Inode> {
    let cx = Cx::default();
    let made = FileSystem::mknod(fs, &cx, dir, name, 0o100_644, 0).unwrap();
    let (group, _) = fs.geo().group_of_inode(Ino::from_vfs(made.ino).unwrap());
    assert!(group.0 > table_groups(fs.geo()), "{group:?}");
    fs.by_number(made.ino, cx.tag).unwrap()
}

/// [`high_file`], as it was made before the volume had extents.
fn file_with_tables(fs: &Ext4, dir: InodeNo, name: &[u8]) -> Arc<Inode> {
    let file = high_file(fs, dir, name);
    let mut core = file.core.write();
    core.flags = InodeFlags(core.flags.0 & !InodeFlags::EXTENTS.0);
    core.block = [0; I_BLOCK_SIZE];
    drop(core);
    file
}

#[test]
fn tables_and_their_blocks_have_numbers_of_32_bits() {
    let fs = volume();
    let (cx, geo) = (Cx::default(), fs.geo());
    let tables = table_groups(geo);
    assert!(
        tables + 30 < geo.group_count,
        "{tables} of {}",
        geo.group_count
    );
    let last = geo.first_block_of(GroupNo(tables)).0 - 1;
    assert!(last < 1 << 32 && last + u64::from(geo.clusters_per_group) >= 1 << 32);
    fs.alloc.next_top_dir.store(tables + 1, Ordering::Relaxed);
    let dir = FileSystem::mkdir(&*fs, &cx, ROOT, b"dir", 0o755)
        .unwrap()
        .ino;
    // Twelve blocks are mapped by the inode, the others by a table.
    let file = file_with_tables(&fs, dir, b"file");
    for block in 0..20 {
        let data = vec![block as u8; BLOCK as usize];
        fs.write_file(&cx, &file, block * u64::from(BLOCK), &data, false)
            .unwrap();
    }
    fs.fsync_inode(&cx, &file, false).unwrap();
    let core = file.core.read().clone();
    for block in 0..20 {
        let at = fs.map_block(&core, file.ino(), FileBlock(block), cx.tag);
        assert!(at.unwrap().unwrap().0 < 1 << 32);
    }
    // The near group is full, and no other has free blocks by its counts.
    let near = GroupNo((tables + 1) % tables);
    let first = geo.first_block_of(near);
    fs.alloc
        .allocate_given(&fs, first, geo.blocks_in(near).into())
        .unwrap();
    for no in (0..tables).map(GroupNo).filter(|&no| no != near) {
        let mut group = fs.alloc.group(no);
        (group.free, group.longest) = (0, 0);
    }
    let other = file_with_tables(&fs, dir, b"other");
    let written = fs.write_file(&cx, &other, 0, &[1; 1000], false);
    assert_eq!(written, Err(FsError::NoSpace));
    fs.fsync_inode(&cx, &other, false).unwrap();
    // Extents reach all groups.
    let extents = high_file(&fs, dir, b"extents");
    fs.write_file(&cx, &extents, 0, &[1; 1000], false).unwrap();
    fs.fsync_inode(&cx, &extents, false).unwrap();
    let core = extents.core.read().clone();
    let at = fs.map_block(&core, extents.ino(), FileBlock(0), cx.tag);
    assert!(at.unwrap().unwrap().0 >= 1 << 32);
    drop(extents);
    drop((file, other));
    fs.close().unwrap();
}
