//! Corrupt volumes that are read: an error, never a panic or a hang.

use std::fs;
use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_block::MemDevice;
use steadfs_vfs::{Cx, FileKind, FileSystem, Seek};

use super::mount_device;
use crate::F2fs;
use crate::disk::{BLOCK_SIZE, inode, node};
use steadfs_f2fs_format::test_support::tree::make_tree;
use steadfs_f2fs_format::test_support::{Image, LOAD_FEATURES, Opened};

/// Reads everything, ignoring errors, with at most `calls` calls.
fn walk(fs: &F2fs, calls: &mut u32) {
    let cx = Cx::default();
    let mut dirs = vec![fs.root()];
    while let Some(dir) = dirs.pop() {
        let mut found: Vec<(Vec<u8>, InodeNo)> = Vec::new();
        let _ = fs.readdir(&cx, dir, 0, &mut |entry| {
            found.push((entry.name.to_vec(), entry.ino));
            found.len() < 4000
        });
        for (name, ino) in found.into_iter().skip(2) {
            let Some(left) = calls.checked_sub(1) else {
                return;
            };
            *calls = left;
            let _ = fs.lookup(&cx, dir, &name);
            let Ok(attr) = fs.attach(&cx, ino) else {
                continue;
            };
            let _ = fs.listxattr(&cx, ino);
            let _ = fs.getxattr(&cx, ino, b"user.x");
            let _ = fs.readlink(&cx, ino);
            let _ = fs.seek(&cx, ino, 0, Seek::Hole);
            for offset in [0, 5 << 20, attr.size.saturating_sub(9000)] {
                let _ = fs.read(&cx, ino, offset, 20_000).map(|data| data.len());
            }
            if attr.kind == FileKind::Directory {
                dirs.push(ino);
            }
        }
    }
}

fn look(device: &Arc<MemDevice>) {
    if let Ok(fs) = mount_device(device) {
        walk(&fs, &mut 400);
    }
}

fn device(bytes: &[u8]) -> Arc<MemDevice> {
    let device = MemDevice::new(bytes.len() as u64);
    device.write(0, bytes);
    Arc::new(device)
}

/// A volume of few files with every structure, reduced to the blocks in use.
fn small() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    make_tree(dir.path());
    for i in 150..3000 {
        fs::remove_file(dir.path().join(format!("many/entry number {i}"))).unwrap();
    }
    let image = Image::make(&["-O", LOAD_FEATURES], 256);
    image.load(dir.path(), &[]);
    fs::read(image.path()).unwrap()
}

#[test]
fn flipped_bits_of_metadata() {
    let bytes = small();
    let device = device(&bytes);
    let opened = Opened::of(bytes);
    let layout = opened.layout().clone();
    // Both superblocks, packs, tables in use, all nodes, directory blocks.
    let mut blocks: Vec<u32> = vec![0, 1];
    blocks.extend(layout.cp_start..layout.cp_start + 8);
    blocks.extend(layout.cp_start + 512..layout.cp_start + 520);
    blocks.extend([layout.nat_start, layout.nat_start + 512]);
    blocks.extend(opened.nids().iter().map(|nid| opened.nat(*nid).addr.0));
    let mut seed = 12_345u32;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as usize % below
    };
    for _ in 0..60 {
        let mut undo = Vec::new();
        for _ in 0..1 + random(12) {
            let at = blocks[random(blocks.len())] as usize * BLOCK_SIZE;
            // The interesting bytes are mostly at the start and at the end of a block.
            let within = match random(3) {
                0 => random(512),
                1 => BLOCK_SIZE - 1 - random(128),
                _ => random(BLOCK_SIZE),
            };
            let at = at + within;
            undo.push(at);
            device.write(at as u64, &[opened.bytes[at] ^ 1 << random(8)]);
        }
        look(&device);
        for at in undo {
            device.write(at as u64, &opened.bytes[at..=at]);
        }
    }
}

/// With valid checksums: nodes that contradict each other.
#[test]
fn nodes_that_contradict_each_other() {
    let bytes = small();
    let device = device(&bytes);
    let opened = Opened::of(bytes);
    let layout = opened.layout().clone();
    let nids = opened.nids();
    let mut seed = 99u32;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as usize % below
    };
    for _ in 0..80 {
        let nid = nids[random(nids.len())];
        let at = opened.nat(nid).addr.0 as usize * BLOCK_SIZE;
        let old = &opened.bytes[at..at + BLOCK_SIZE];
        let mut block = old.to_vec();
        for _ in 0..1 + random(6) {
            let value: [u8; 4] = match random(5) {
                0 => [0xFF; 4],
                1 => nids[random(nids.len())].0.to_le_bytes(),
                2 => layout.main_start.to_le_bytes(),
                3 => nid.0.to_le_bytes(),
                _ => [random(256) as u8, 0, 0, 0],
            };
            let word = match random(3) {
                0 => random(90) * 4,
                1 => random(1000) * 4,
                _ => 4052 + random(10) * 4,
            };
            block[word..word + 4].copy_from_slice(&value);
        }
        if node::Footer::parse(&block).offset == 0 {
            inode::seal(&layout, &mut block);
        }
        device.write(at as u64, &block);
        look(&device);
        device.write(at as u64, old);
    }
}

#[test]
fn random_and_cut_off_volumes() {
    let bytes = small();
    for len in [0, 100, 5000, 10 << 20, bytes.len() - 4096] {
        look(&device(&bytes[..len / 4096 * 4096]));
    }
    let mut noise = bytes;
    let mut seed = 5u64;
    for (i, byte) in noise.iter_mut().enumerate().skip(8192) {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        if i % 3 == 0 {
            *byte = (seed >> 40) as u8;
        }
    }
    look(&device(&noise));
}
