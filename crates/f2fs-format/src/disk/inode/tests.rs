//! Against images of f2fs-tools.

use std::fs;
use std::path::Path;

use super::super::node::{NodeKind, addr};
use super::super::{dentry, hash};
use super::*;
use crate::test_support::{Image, LOAD_FEATURES, Opened};

fn loaded(options: &[&str]) -> Opened {
    let image = Image::make(options, 256);
    let tree = image.beside("tree");
    fs::create_dir(&tree).unwrap();
    for i in 0..700 {
        fs::write(tree.join(format!("a rather long name, number {i}")), []).unwrap();
    }
    fs::create_dir(tree.join("sub")).unwrap();
    fs::write(tree.join("sub/small"), b"some content").unwrap();
    fs::write(tree.join("sub/large"), vec![0x5A; 5 << 20]).unwrap();
    std::os::unix::fs::symlink("target", tree.join("link")).unwrap();
    image.load(Path::new(&tree), &[]);
    image.open()
}

#[test]
fn inodes_of_sload_round_trip() {
    for options in [&[][..], &["-O", LOAD_FEATURES], &["-O", "extra_attr"]] {
        let opened = loaded(options);
        let layout = opened.layout();
        let mut kinds = 0;
        for nid in opened.nids() {
            let block = opened.node(nid);
            let entry = opened.nat(nid);
            let footer = Footer::parse(block);
            footer.check(nid, entry.ino).unwrap();
            let mut copy = block.to_vec();
            footer.encode_into(&mut copy);
            assert!(copy == block);
            if footer.kind() != NodeKind::Inode {
                continue;
            }
            let inode = Inode::parse(layout, nid, block).unwrap();
            inode.encode_into(layout, &mut copy).unwrap();
            seal(layout, &mut copy);
            assert!(copy == block, "inode {nid} {inode:?}");
            match inode.kind().unwrap() {
                FileKind::Directory => directory(&opened, &inode, block),
                FileKind::Regular => file(&opened, &inode, block),
                FileKind::Symlink => kinds += 1,
                _ => {}
            }
        }
        assert_eq!(kinds, 1);
    }
}

fn check_entries(opened: &Opened, layout: &DentryLayout, bytes: &[u8]) -> usize {
    let mut count = 0;
    for entry in dentry::entries(layout, bytes, 0) {
        let entry = entry.unwrap();
        assert_eq!(entry.hash, hash::of_name(entry.name));
        assert!(opened.nat(entry.ino).is_used());
        let found = dentry::find(layout, bytes, entry.hash, entry.name).unwrap();
        assert_eq!(found.slot, entry.slot);
        count += 1;
    }
    count
}

/// Every entry has the hash of its name and is in the bucket of its hash.
fn directory(opened: &Opened, inode: &Inode, block: &[u8]) {
    let layout = opened.layout();
    if inode.inline.contains(Inline::DENTRIES) {
        let bytes = &block[inode.inline_range(layout)];
        check_entries(opened, &inode.inline_dentries(layout), bytes);
        return;
    }
    let mut count = 0;
    let blocks = inode.size.div_ceil(4096);
    for number in 0..blocks.min(inode.fanout(layout).inode.into()) {
        let at = inode.addr(layout, block, u16::try_from(number).unwrap());
        if !at.is_block() {
            continue;
        }
        let bytes = opened.blocks(at, 1);
        count += check_entries(opened, &DentryLayout::BLOCK, bytes);
        for entry in dentry::entries(&DentryLayout::BLOCK, bytes, 0).flatten() {
            let home = |level| hash::bucket(level, inode.dir_level, entry.hash).contains(&number);
            assert!((0..inode.depth).any(home), "{:?}", entry.name);
        }
    }
    assert!(count >= 2);
}

fn file(opened: &Opened, inode: &Inode, block: &[u8]) {
    let layout = opened.layout();
    match (inode.inline.contains(Inline::DATA), inode.size) {
        (true, size) => {
            let start = inode.inline_range(layout).start;
            let end = start + usize::try_from(size).unwrap();
            assert!(size == 0 || &block[start..end] == b"some content");
        }
        (false, 0) => {}
        (false, size) => {
            for number in 0..size / 4096 {
                let path = inode.fanout(layout).path(number).unwrap();
                let at = match path.depth {
                    0 => inode.addr(layout, block, path.slots[0]),
                    1 => {
                        let node = opened.node(nid_at(block, path.slots[0]));
                        assert_eq!(Footer::parse(node).offset, path.offsets[1]);
                        addr(node, path.slots[1])
                    }
                    _ => unreachable!("5 MiB fit into direct nodes"),
                };
                let bytes = opened.blocks(at, 1);
                assert!(
                    bytes.iter().all(|&b| b == 0x5A),
                    "{number} {path:?} {at} {inode:?}"
                );
            }
        }
    }
}

#[test]
fn corruption_is_refused() {
    let opened = loaded(&["-O", LOAD_FEATURES]);
    let layout = opened.layout();
    let block = opened.node(Nid::ROOT);
    for bit in (0..BLOCK_SIZE * 8).step_by(101) {
        let mut copy = block.to_vec();
        copy[bit / 8] ^= 1 << (bit % 8);
        assert!(Inode::parse(layout, Nid::ROOT, &copy).is_err(), "bit {bit}");
    }
    // With a correct checksum: never a panic, whether or not it is accepted.
    for at in 0..FIXED + EXTRA {
        for value in [0, 1, 4, 0x7F, 0xA4, 0xFF] {
            let mut copy = block.to_vec();
            copy[at] = value;
            seal(layout, &mut copy);
            if let Ok(inode) = Inode::parse(layout, Nid::ROOT, &copy) {
                let range = inode.inline_range(layout);
                assert!(range.start <= range.end && range.end <= NIDS_AT);
                assert!(inode.xattr_range(layout).start >= range.start);
                inode.inline_dentries(layout);
                inode.fanout(layout).path(1 << 20);
            }
        }
    }
}

#[test]
fn device_numbers() {
    let opened = loaded(&[]);
    let layout = opened.layout();
    let inode = Inode::default();
    let mut block = vec![0; BLOCK_SIZE];
    for rdev in [0x0501, 0x0010_0503] {
        inode.set_rdev(layout, &mut block, rdev);
        assert_eq!(inode.rdev(layout, &block), rdev);
    }
}
