//! Superblocks with false content, in place and in the log.

use std::mem::offset_of;

use steadfs_block::MemDevice;
use steadfs_vfs::FileSystem;

use super::super::*;
use crate::disk::features::Incompat;
use crate::disk::superblock::RawSuperblock;
use crate::disk::test_images::{Image, judge};
use crate::replay::replayed_view;

const PLAIN: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^64bit"];

/// Changes a word of a superblock.
fn change(sb: &mut [u8], at: usize, change: impl FnOnce(u32) -> u32) {
    let word = &mut sb[at..at + 4];
    let old = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
    word.copy_from_slice(&change(old).to_le_bytes());
}

/// A volume whose log has a transaction with this superblock in it.
fn logged(edit: impl FnOnce(&mut [u8])) -> Image {
    let image = Image::make(PLAIN, "16M");
    let bytes = image.bytes();
    let mut sb = bytes[1024..2048].to_vec();
    edit(&mut sb);
    // As on a volume in use; the replay clears `needs_recovery`.
    let at = offset_of!(RawSuperblock, feature_incompat);
    change(&mut sb, at, |bits| bits | Incompat::NEEDS_RECOVERY.0);
    let (block, script) = (image.beside("block"), image.beside("script"));
    std::fs::write(&block, &sb).unwrap();
    std::fs::write(&script, format!("jo\njw -b 1 {}\njc\n", block.display())).unwrap();
    let mut debugfs = judge("debugfs");
    let done = debugfs.arg("-w").arg("-f").arg(&script).arg(image.path());
    assert!(done.output().unwrap().status.success());
    assert!(
        image.bytes()[1024..2048] != sb,
        "the log has it, not its home"
    );
    image
}

fn open(device: Arc<MemDevice>, options: &str) -> Result<(Arc<Ext4>, MountReport)> {
    let options = MountOptions::parse(options).unwrap();
    Ext4::open(device, options, CacheSizes::of(8 << 20))
}

#[test]
fn a_superblock_in_the_log_is_validated() {
    type Edit = fn(&mut [u8]);
    let incompat = offset_of!(RawSuperblock, feature_incompat);
    assert_eq!(incompat, 96);
    let edits: [(&str, Edit); 7] = [
        ("the device only", |sb| {
            // As a resize would: four times as large, with as many more groups and inodes.
            let blocks = offset_of!(RawSuperblock, blocks_count_lo);
            change(sb, blocks, |n| (n - 1) * 4 + 1);
            change(sb, offset_of!(RawSuperblock, inodes_count), |n| n * 4);
        }),
        ("number of inodes in a group", |sb| {
            for at in [
                offset_of!(RawSuperblock, inodes_per_group),
                offset_of!(RawSuperblock, inodes_count),
            ] {
                change(sb, at, |n| n / 2);
            }
        }),
        ("block size", |sb| {
            change(sb, offset_of!(RawSuperblock, log_block_size), |_| 2);
            change(sb, offset_of!(RawSuperblock, first_data_block), |_| 0);
            change(sb, offset_of!(RawSuperblock, blocks_count_lo), |n| n / 4);
            change(sb, offset_of!(RawSuperblock, inodes_count), |n| n / 2);
        }),
        ("number of blocks", |sb| {
            change(sb, offset_of!(RawSuperblock, blocks_count_lo), |n| n - 8);
        }),
        ("unsupported features", |sb| {
            change(sb, 96, |bits| bits | 0x8000_0000);
        }),
        ("place of the journal", |sb| {
            change(sb, offset_of!(RawSuperblock, journal_inum), |_| 7);
        }),
        ("magic", |sb| sb[56] = 0),
    ];
    for (words, edit) in edits {
        let image = logged(edit);
        let said = |opened: Result<_>| opened.err().map(|e: FsError| e.to_string());
        let viewed = said(replayed_view(image.device(), &MountOptions::default()).map(drop));
        let opened = said(open(image.device(), "").map(drop));
        // A read-only program may read volumes with unknown features.
        let looks = words == "unsupported features" && viewed.is_none();
        for said in [opened.clone(), if looks { opened } else { viewed }] {
            let there = said.as_ref().is_some_and(|said| said.contains(words));
            assert!(there, "{words}: {said:?}");
        }
    }
    // A superblock with the volume's own numbers, mounted once more.
    let mounts = offset_of!(RawSuperblock, mnt_count);
    let image = logged(|sb| sb[mounts] = 77);
    replayed_view(image.device(), &MountOptions::default()).unwrap();
    let (fs, report) = open(image.device(), "").unwrap();
    assert_eq!(report.replayed_blocks, 1);
    assert_eq!(fs.sb.lock().raw().mnt_count.get(), 78);
    fs.close().unwrap();
}

/// A sparse file can have any size: 2^28 groups would need tens of gigabytes of memory.
#[test]
fn no_memory_is_allocated_by_the_group_count_alone() {
    const GROUPS: u32 = 1 << 28;
    let image = Image::make(&["-t", "ext2", "-b", "1024"], "4M");
    let device = MemDevice::new(1 << 47);
    let mut sb = image.bytes()[1024..2048].to_vec();
    for (at, value) in [
        (offset_of!(RawSuperblock, blocks_count_lo), (GROUPS - 1) * 8),
        (offset_of!(RawSuperblock, blocks_per_group), 8),
        (offset_of!(RawSuperblock, clusters_per_group), 8),
        (offset_of!(RawSuperblock, inodes_per_group), 8),
        (offset_of!(RawSuperblock, inodes_count), (GROUPS - 1) * 8),
    ] {
        change(&mut sb, at, |_| value);
    }
    device.write(1024, &sb);
    let geo = Superblock::parse(&sb).unwrap().geometry().clone();
    assert_eq!(geo.group_count, GROUPS - 1);
    let device = Arc::new(device);
    let said = open(Arc::clone(&device), "ro").err().unwrap();
    assert!(matches!(said, FsError::Corrupt(_)), "{said}");
    let said = open(device, "").err().unwrap();
    assert!(matches!(said, FsError::Corrupt(_)), "{said}");
}

/// A few tables that name each other would make an endless map of the log.
#[test]
fn a_table_twice_in_the_journals_map_is_refused() {
    const BLOCK: usize = 1024;
    const JOURNAL_INO: usize = 8;
    let image = Image::make(&["-t", "ext3", "-b", "1024", "-J", "size=4"], "32M");
    let mut bytes = image.bytes();
    let word = |bytes: &[u8], at: usize| {
        u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize
    };
    let inode_size = usize::from(u16::from_le_bytes([bytes[BLOCK + 88], bytes[BLOCK + 89]]));
    let inode = word(&bytes, 2 * BLOCK + 8) * BLOCK + (JOURNAL_INO - 1) * inode_size;
    // i_block is 40 bytes into the inode, and the table of tables its thirteenth word.
    let tables = word(&bytes, inode + 40 + 13 * 4) * BLOCK;
    assert!(
        word(&bytes, tables + 4) != 0,
        "the log needs several tables"
    );
    bytes.copy_within(tables..tables + 4, tables + 4);
    let said = open(Arc::new(MemDevice::from_bytes(&bytes)), "").err();
    let said = said.expect("nothing is logged there").to_string();
    assert!(said.contains("twice in the journal's map"), "{said}");
}

/// The superblock may reserve the inodes of whole groups.
#[test]
fn inodes_reserved_beyond_the_first_group_are_neither_allocated_nor_freed() {
    const FIRST: u64 = 100;
    let mkfs = &["-t", "ext2", "-b", "1024", "-N", "256"];
    let image = Image::make(mkfs, "32M");
    assert_eq!(image.superblock().geometry().inodes_per_group, 64);
    let mut bytes = image.bytes();
    let at = offset_of!(RawSuperblock, first_ino);
    change(&mut bytes[1024..2048], at, |_| FIRST as u32);
    let (fs, _) = open(Arc::new(MemDevice::from_bytes(&bytes)), "").unwrap();
    let (cx, root) = (Cx::default(), InodeNo(2));
    let mut made = Vec::new();
    let full = loop {
        let name = format!("file{}", made.len());
        match FileSystem::mknod(&*fs, &cx, root, name.as_bytes(), 0o100_644, 0) {
            Ok(attr) => made.push((name, attr.ino)),
            Err(error) => break error,
        }
    };
    // By its descriptor the second group has more.
    assert!(
        matches!(full, FsError::NoSpace | FsError::Corrupt(_)),
        "{full}"
    );
    let numbers: Vec<_> = made.iter().map(|(_, ino)| ino.0).collect();
    assert_eq!(numbers, (FIRST..=256).collect::<Vec<_>>());
    for (name, ino) in made {
        FileSystem::unlink(&*fs, &cx, root, name.as_bytes()).unwrap();
        FileSystem::forget(&*fs, ino, 1);
    }
    let unnamed = FileSystem::tmpfile(&*fs, &cx, root, 0o600).unwrap().ino;
    assert_eq!(unnamed.0, FIRST);
    FileSystem::forget(&*fs, unnamed, 1);
    fs.close().unwrap();
}
