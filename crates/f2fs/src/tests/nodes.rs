//! Nodes in memory: lookup, creation, freeing, and the counts.

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_vfs::FsError;

use super::mount_device;
use crate::F2fs;
use crate::disk::node::NodeKind;
use crate::disk::superblock::StopReason;
use crate::disk::{self, BlockAddr, Nid};
use crate::format::{FormatOptions, image};
use crate::node::SlotLookup;
use crate::space::Need;

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
    let inode = fs.new_inode(&change, 0, file, IoTag::default()).unwrap();
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
    fs.reserve_nodes(inode, far..far + 1, false, tag).unwrap();
    fs.reserve_nodes(inode, far - 1..far + 1, false, tag)
        .unwrap();
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
