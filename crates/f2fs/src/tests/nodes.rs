//! Nodes in memory: lookup, creation, freeing, and the counts.

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_cache::WritebackReason;
use steadfs_rt::sim;
use steadfs_vfs::{FileSystem, FsError, SetAttr};

use super::mount_device;

use crate::F2fs;
use crate::disk::node::NodeKind;
use crate::disk::superblock::StopReason;
use crate::disk::{self, BlockAddr, Nid};
use crate::format::{FormatOptions, image};
use crate::node::SlotLookup;
use crate::space::Need;
use crate::test_world::{ALL, ROOT, World};

/// A writable volume in memory.
fn writable() -> Arc<F2fs> {
    let device = image(64 << 20, &FormatOptions::default()).unwrap();
    let fs = mount_device(&device).unwrap();
    assert!(fs.stop_state.become_writable());
    fs
}

fn file(_: Nid, _: &mut [u8]) -> disk::Inode {
    disk::Inode {
        mode: 0o100_644,
        links: 1,
        blocks: 1,
        parent: Nid::ROOT,
        ..disk::Inode::default()
    }
}

/// A new inode, whose space is reserved first.
fn made(fs: &F2fs) -> Arc<crate::inode::Inode> {
    let need = Need {
        blocks: 2,
        nodes: 1,
    };
    fs.space.reserve(need, false).unwrap();
    let change = fs.change().unwrap();
    let inode = fs
        .new_inode(&change, (None, 0), file, IoTag::default())
        .unwrap();
    assert!(Arc::ptr_eq(
        &fs.inode(inode.nid(), IoTag::default()).unwrap(),
        &inode
    ));
    inode
}

/// Maps the last block that a file can have, through a double indirect, an indirect and a direct node, and block 3 of
/// the inode. Returns the last block.
fn grow(fs: &F2fs, inode: &crate::inode::Inode) -> u64 {
    let tag = IoTag::default();
    let far = inode.core.read().fanout(&fs.layout).max_blocks() - 1;
    // Requested twice, reserved once.
    fs.reserve_nodes(inode, Some(far..far + 1), false, tag)
        .unwrap()
        .keep();
    fs.reserve_nodes(inode, Some(far - 1..far + 1), false, tag)
        .unwrap()
        .keep();
    let reserved = fs.space.counts();
    assert_eq!(reserved.reserved, 2 + 3);
    assert_eq!(reserved.reserved_nodes, 3);

    let change = fs.change().unwrap();
    let mut core = inode.core.write();
    let slot = fs.make_slot(&change, inode, &mut core, far, tag).unwrap();
    assert_eq!(slot.left, 1);
    let addr = BlockAddr(fs.layout.main_start + 77);
    let old = fs
        .set_slot(&change, inode, &mut core, &slot, addr, tag)
        .unwrap();
    assert_eq!(old, BlockAddr::NULL);
    let near = fs.make_slot(&change, inode, &mut core, 3, tag).unwrap();
    fs.set_slot(&change, inode, &mut core, &near, BlockAddr::NEW, tag)
        .unwrap();
    assert_eq!(core.blocks, 1 + 3 + 2);
    far
}

#[test]
fn trees_grow_and_are_counted() {
    let fs = writable();
    let tag = IoTag::default();
    let before = fs.space.counts();
    let inode = made(&fs);
    let far = grow(&fs, &inode);
    let counts = fs.space.counts();
    assert_eq!(counts.reserved, 0);
    assert_eq!(counts.valid_blocks, before.valid_blocks + 6);
    assert_eq!(counts.valid_nodes, before.valid_nodes + 4);
    assert_eq!(counts.valid_inodes, before.valid_inodes + 1);
    let addr = BlockAddr(fs.layout.main_start + 77);
    assert_eq!(fs.slot(&inode, far, tag), Ok(addr));
    assert_eq!(fs.slot(&inode, 3, tag), Ok(BlockAddr::NEW));
    assert_eq!(fs.slot(&inode, far - 2000, tag), Ok(BlockAddr::NULL));
    let kinds: Vec<_> = fs
        .nodes
        .dirty_of(inode.nid())
        .iter()
        .map(|(offset, _)| NodeKind::at(*offset))
        .collect();
    use NodeKind::{Direct, DoubleIndirect, Indirect, Inode};
    assert_eq!(kinds, [Inode, DoubleIndirect, Indirect, Direct]);
}

/// A hole again, and the end of the nodes.
#[test]
fn nodes_and_inodes_are_freed_and_counted() {
    let fs = writable();
    let tag = IoTag::default();
    let before = fs.space.counts();
    let inode = made(&fs);
    let far = grow(&fs, &inode);
    let change = fs.change().unwrap();
    let mut core = inode.core.write();
    let SlotLookup::Slot(slot) = fs.find_slot(&inode, &core, far, tag).unwrap() else {
        panic!("just made");
    };
    fs.set_slot(&change, &inode, &mut core, &slot, BlockAddr::NULL, tag)
        .unwrap();
    let need = Need {
        blocks: 0,
        nodes: 1,
    };
    fs.space.reserve(need, false).unwrap();
    let xattr = fs.make_xattr_node(&change, &inode, &mut core, tag).unwrap();
    fs.free_xattr_node(&change, &inode, &mut core, tag).unwrap();
    assert!(xattr.data().is_err());
    fs.free_node(&change, &inode, &mut core, &slot.node);
    drop(core);
    fs.free_inode(&change, &inode, tag).unwrap();
    drop(change);
    let counts = fs.space.counts();
    assert_eq!(counts.freed_nodes, 3);
    assert_eq!(counts.valid_nodes, before.valid_nodes + 2);
    assert_eq!(fs.inode(inode.nid(), tag).err(), Some(FsError::Stale));
}

#[test]
fn ids_are_allocated_once_between_checkpoints() {
    let fs = writable();
    let tag = IoTag::default();
    fs.nat.build_free_nids(tag).unwrap();
    let change = fs.change().unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..1200 {
        let (nid, entry) = fs.nat.alloc_nid(&change, None, tag).unwrap();
        assert!(fs.layout.is_nid(nid) && nid != Nid::ROOT && seen.insert(nid));
        fs.nat.remove(&change, nid, entry);
    }
    // All ids of a small NAT.
    let mut left = u64::from(fs.layout.max_nid) - 1200;
    while fs.nat.alloc_nid(&change, None, tag).is_ok() {
        left -= 1;
    }
    let used = fs.space.counts().valid_nodes;
    assert_eq!(left, crate::space::RESERVED_NODES + used);
    assert_eq!(
        fs.nat.alloc_nid(&change, None, tag).err(),
        Some(FsError::NoSpace)
    );
}

#[test]
fn a_read_only_or_aborted_volume_refuses_changes() {
    let fs = writable();
    fs.abort(StopReason::SHUTDOWN, "the first cause");
    fs.abort(StopReason::SHUTDOWN, "another");
    let error = fs.change().err().unwrap();
    assert_eq!(error, FsError::Stopped("the first cause".to_owned()));
    let device = image(64 << 20, &FormatOptions::default()).unwrap();
    let fs = mount_device(&device).unwrap();
    assert_eq!(fs.change().err(), Some(FsError::ReadOnly));
}

/// Many new files do not stay in memory until the next checkpoint, and are as they were written.
#[test]
fn unused_dirty_inodes_are_stored_in_packed_nodes() {
    const FILES: u64 = 3000;
    sim::run(sim::Config::new(1), || {
        let world = World::make(ALL, 128);
        let name = |n: u64| format!("{n}").into_bytes();
        let perm = |n: u64| 0o400 | (n as u32 & 0o77);
        let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
        let before = world.fs.checkpoints.written();
        for n in 0..FILES {
            let file = world.file(dir, &name(n)).unwrap().ino;
            let data = vec![1; 4000 + n as usize % 500];
            (world.fs.write(&world.cx, file, 0, &data, false)).unwrap();
            let set = SetAttr {
                perm: Some(perm(n)),
                ..SetAttr::default()
            };
            world.fs.setattr(&world.cx, file, &set).unwrap();
            if n % 100 == 99 {
                let dirty = world.fs.writeback.dirty_files();
                let sync = WritebackReason::Sync;
                (world.fs.write_out_files(&dirty, sync, IoTag::default())).unwrap();
            }
        }
        assert_eq!(world.fs.checkpoints.written(), before);
        let (inodes, nodes) = (world.fs.inodes.dirty_count(), world.fs.nodes.dirty_count());
        assert!(inodes < 1024 + 512, "{inodes} dirty inodes");
        assert!(nodes as u64 > FILES, "{nodes} dirty nodes");
        // Nodes of stored inodes are packed, those of the others are whole blocks.
        let memory = world.fs.nodes.memory();
        assert!(
            memory < nodes * 1024 + inodes * 4096,
            "{memory} bytes of {nodes} nodes"
        );
        world.fs.forget_clean();
        let look = |world: &World| {
            for n in 0..FILES {
                let attr = world.lookup(dir, &name(n)).unwrap();
                assert_eq!((attr.size, attr.perm), (4000 + n % 500, perm(n)), "{n}");
            }
        };
        look(&world);
        let world = world.reopen();
        look(&world);
        world.close();
    });
}

/// Nodes for blocks that find no space are not kept from other files.
#[test]
fn a_failed_call_leaves_no_node_reserved() {
    steadfs_rt::sim::run(steadfs_rt::sim::Config::new(1), || {
        let world = crate::test_world::World::make("", 64);
        let (fs, cx) = (&*world.fs, &world.cx);
        let file = world.file(crate::test_world::ROOT, b"file").unwrap().ino;
        steadfs_vfs::FileSystem::write(fs, cx, file, 0, &[1; 5000], false).unwrap();
        fs.sync_volume(cx).unwrap();
        // Another page of the file is dirty.
        steadfs_vfs::FileSystem::write(fs, cx, file, 0, &[2; 5000], false).unwrap();
        let inode = fs.by_number(file, cx.tag).unwrap();
        let far = inode.core.read().fanout(&fs.layout).max_blocks() - 5000;
        let one = crate::space::Need {
            blocks: 1,
            nodes: 0,
        };
        let taken = std::cell::Cell::new(0);
        let leave_three_blocks = || {
            while fs.space.reserve(one, true).is_ok() {
                taken.set(taken.get() + 1);
            }
            fs.space.release(crate::space::Need {
                blocks: 3,
                nodes: 0,
            });
            taken.set(taken.get() - 3);
        };
        leave_three_blocks();
        let before = fs.space.counts();
        let mode = steadfs_vfs::FallocMode::Allocate { keep_size: true };
        let full = Err(FsError::NoSpace);
        assert_eq!(
            fs.fallocate_file(cx, &inode, mode, far * 4096, 16 << 20),
            full
        );
        assert_eq!(fs.space.counts().reserved_nodes, before.reserved_nodes);
        leave_three_blocks();
        let data = [3; 65_536];
        let written = steadfs_vfs::FileSystem::write(fs, cx, file, far * 4096, &data, false);
        assert_eq!(written.map(|_| ()), full);
        assert_eq!(fs.space.counts().reserved_nodes, before.reserved_nodes);
        assert_eq!(inode.reserved_nodes(), 0);
        fs.space.release(crate::space::Need {
            blocks: taken.get(),
            nodes: 0,
        });
        drop(inode);
        world.close();
    });
}
