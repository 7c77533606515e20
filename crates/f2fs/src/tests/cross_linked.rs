//! Cross-linked files: crafted volumes with a file that refers to blocks of another. The other file must not lose
//! anything, and the volume can be mounted again after the corrupt file was used and removed.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_block::MemDevice;
use steadfs_vfs::{FileSystem, FsError};
use zerocopy::IntoBytes;

use crate::disk::{BLOCK_SIZE, BlockAddr, Inode, NatEntry, Nid, node};
use crate::test_world::{ROOT, World};
use steadfs_f2fs_format::test_support::Opened;
use steadfs_f2fs_format::test_support::tree::pattern;

/// A file block that the third direct node maps, and a file size.
const FAR: u64 = 3000;
const SIZE: usize = 40 * BLOCK_SIZE;

/// A volume of two files: a good one with content and a direct node, and one that `craft` corrupts. `craft` gets the
/// image, and the blocks of the good file's nodes: its inode's and the direct one's.
struct Crafted {
    device: Arc<MemDevice>,
    good: InodeNo,
    liar: InodeNo,
}

impl Crafted {
    fn make(craft: impl FnOnce(&mut Image, [Nid; 2], [BlockAddr; 2])) -> Self {
        let world = World::make("", 64);
        let [good, liar] = [&b"good"[..], b"liar"].map(|name| {
            let ino = world.file(ROOT, name).unwrap().ino;
            let fs = &world.fs;
            fs.write(&world.cx, ino, 0, &pattern(SIZE, name[0]), false)
                .unwrap();
            let far = FAR * BLOCK_SIZE as u64;
            fs.write(&world.cx, ino, far, &[7; 10], false).unwrap();
            ino
        });
        let device = world.close();
        let opened = Opened::of(device.to_bytes());
        let nids = [good, liar].map(|ino| Nid::from_vfs(ino).unwrap());
        let direct = |nid: Nid| {
            let its = |n: &Nid| *n != nid && opened.nat(*n).ino == nid;
            let found = opened.nids().into_iter().find(its).unwrap();
            assert_ne!(node::Footer::parse(opened.node(found)).offset, 0);
            found
        };
        let directs = nids.map(direct);
        let nodes = [nids[0], directs[0]].map(|nid| opened.nat(nid).addr);
        let mut image = Image {
            opened,
            nid: nids[1],
        };
        craft(&mut image, [nids[0], directs[1]], nodes);
        Self {
            device: Arc::new(MemDevice::from_bytes(&image.opened.bytes)),
            good,
            liar,
        }
    }

    fn mount(&self) -> World {
        World::of(Arc::clone(&self.device), "background_gc=off")
    }

    /// The good file is unchanged.
    fn check_good(&self, world: &World) {
        let got = world.fs.read(&world.cx, self.good, 0, SIZE).unwrap();
        assert!(got.to_vec() == pattern(SIZE, b'g'));
        let far = FAR * BLOCK_SIZE as u64;
        let got = world.fs.read(&world.cx, self.good, far, 10).unwrap();
        assert_eq!(got.to_vec(), [7; 10]);
    }

    /// Removes the corrupt file and others, and mounts the volume again.
    fn remove_and_mount_again(&self) {
        let world = self.mount();
        world.fs.unlink(&world.cx, ROOT, b"liar").unwrap();
        world.file(ROOT, b"another").unwrap();
        world.fs.close().unwrap();
        let world = self.mount();
        self.check_good(&world);
        assert!(matches!(
            world.lookup(ROOT, b"liar"),
            Err(FsError::NotFound)
        ));
        // Twice: what the first mount corrected stays correct.
        world.fs.unlink(&world.cx, ROOT, b"another").unwrap();
        world.fs.close().unwrap();
        let world = self.mount();
        self.check_good(&world);
        world.fs.close().unwrap();
    }
}

/// A volume's bytes with the inode of the corrupt file.
struct Image {
    opened: Opened,
    nid: Nid,
}

impl Image {
    /// Sets `n` slots of the inode from `first` on to these blocks.
    fn name(&mut self, first: u16, blocks: impl IntoIterator<Item = BlockAddr>) {
        let layout = self.opened.layout().clone();
        let block = self.block(self.opened.nat(self.nid).addr);
        let core = Inode::parse(&layout, self.nid, block).unwrap();
        let block = self.block_mut(self.opened.nat(self.nid).addr);
        for (slot, addr) in (first..).zip(blocks) {
            core.set_addr(&layout, block, slot, addr);
        }
    }

    /// The address in a slot of the inode.
    fn named(&self, slot: u16) -> BlockAddr {
        let layout = self.opened.layout();
        let block = self.block(self.opened.nat(self.nid).addr);
        let core = Inode::parse(layout, self.nid, block).unwrap();
        core.addr(layout, block, slot)
    }

    fn block(&self, at: BlockAddr) -> &[u8] {
        self.opened.blocks(at, 1)
    }

    fn block_mut(&mut self, at: BlockAddr) -> &mut [u8] {
        let at = at.0 as usize * BLOCK_SIZE;
        &mut self.opened.bytes[at..at + BLOCK_SIZE]
    }

    /// Sets a node's address wherever the volume has it, in a journal or in the NAT.
    fn move_node(&mut self, nid: Nid, to: BlockAddr) {
        let entry = self.opened.nat(nid);
        let entry_at = |addr: BlockAddr| {
            let raw = NatEntry { addr, ..entry }.encode();
            raw.as_bytes().to_vec()
        };
        let (old, new) = (entry_at(entry.addr), entry_at(to));
        let layout = self.opened.layout();
        let tables = [layout.cp_start, layout.ssa_start].map(|at| at as usize * BLOCK_SIZE);
        for at in tables[0]..tables[1] - old.len() {
            if self.opened.bytes[at..at + old.len()] == old {
                self.opened.bytes[at..at + new.len()].copy_from_slice(&new);
            }
        }
        self.opened = Opened::of(std::mem::take(&mut self.opened.bytes));
        assert_eq!(self.opened.nat(nid).addr, to);
    }
}

#[test]
fn writes_never_overwrite_nodes_of_another_file() {
    let crafted = Crafted::make(|image, _, nodes| image.name(1, nodes));
    for options in ["background_gc=off", "background_gc=off,mode=lfs"] {
        let world = World::of(Arc::clone(&crafted.device), options);
        let (fs, cx) = (&world.fs, &world.cx);
        fs.write(cx, crafted.liar, 4096, &[0xEE; 3 * BLOCK_SIZE], false)
            .unwrap();
        let written = fs.fsync(cx, crafted.liar, false);
        if options.ends_with("off") {
            assert!(matches!(written, Err(FsError::Corrupt(_))), "{written:?}");
        }
        // A new mount reads the nodes from the device, not from this mount's memory.
        let device = MemDevice::from_bytes(&world.bytes());
        let other = World::of(Arc::new(device), "ro");
        crafted.check_good(&other);
        drop(other);
        // What cannot be written is lost, which the unmount reports.
        let _ = fs.close();
        let world = crafted.mount();
        crafted.check_good(&world);
        world.fs.close().unwrap();
    }
}

#[test]
fn removing_a_corrupt_file_frees_no_nodes() {
    Crafted::make(|image, _, nodes| image.name(1, nodes)).remove_and_mount_again();
}

#[test]
fn blocks_mapped_twice_are_freed_once() {
    let crafted = Crafted::make(|image, _, _| {
        let twice = image.named(0);
        image.name(1, [twice; 30]);
    });
    crafted.remove_and_mount_again();
    // Blocks that the volume does not count: more than it has in use.
    let crafted = Crafted::make(|image, _, _| image.name(0, [BlockAddr::NEW; 873]));
    crafted.remove_and_mount_again();
}

#[test]
fn a_node_in_a_data_segment_is_refused() {
    // The copy in the file's own block has the same footer: only the SIT has the difference.
    let crafted = Crafted::make(|image, [_, direct], _| {
        let copy = image.opened.node(direct).to_vec();
        let at = image.named(5);
        image.block_mut(at).copy_from_slice(&copy);
        image.move_node(direct, at);
    });
    let world = crafted.mount();
    let far = FAR * BLOCK_SIZE as u64;
    let read = world.fs.read(&world.cx, crafted.liar, far, 10);
    assert!(matches!(read, Err(FsError::Corrupt(_))));
    world.fs.close().unwrap();
    crafted.remove_and_mount_again();
}
