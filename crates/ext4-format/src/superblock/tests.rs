use steadfs_block::QueueOptions;

use super::*;
use crate::disk::test_images::Image;

fn queue(image: &Image) -> Queue {
    Queue::new(image.device(), QueueOptions::default())
}

#[test]
fn copies_are_found_where_mke2fs_puts_them() {
    for (options, size, blocks) in [
        (&["-t", "ext4", "-b", "1024"][..], "40M", &[8193, 24577][..]),
        (
            &[
                "-t",
                "ext2",
                "-b",
                "1024",
                "-O",
                "^sparse_super,^resize_inode",
            ],
            "40M",
            &[8193, 24577],
        ),
        (&["-t", "ext4", "-b", "2048"], "80M", &[16384]),
        (&["-t", "ext4", "-b", "4096"], "150M", &[32768]),
        (&["-t", "ext4", "-b", "1024"], "4M", &[]),
    ] {
        let image = Image::make(options, size);
        let found = copies_on(&queue(&image), None);
        let found: Vec<u64> = found.iter().map(BackupSuperblock::block).collect();
        assert!(found.starts_with(blocks), "{options:?}: {found:?}");
        assert_eq!(
            found.is_empty(),
            blocks.is_empty(),
            "{options:?}: {found:?}"
        );
    }
    // Groups of another size are found by what is left of the first one.
    let image = Image::make(&["-t", "ext4", "-b", "1024", "-g", "4096"], "16M");
    assert!(copies_on(&queue(&image), None).is_empty());
    let geo = image.superblock().geometry().clone();
    let found = copies_on(&queue(&image), Some(&geo));
    assert_eq!(found[0].block(), 4097);
}

/// Linux before 6.2 copies the first superblock whole when it enlarges a mounted volume.
#[test]
fn copies_with_the_group_number_of_the_first_superblock_count() {
    let image = Image::make(&["-t", "ext4", "-b", "1024"], "40M");
    let mut bytes = image.bytes();
    let places = [8193 << 10, 24577 << 10];
    for at in places {
        bytes.copy_within(1024..2048, at);
    }
    bytes[1024..2048].fill(0);
    std::fs::write(image.path(), bytes).unwrap();
    let queue = queue(&image);
    let found = copies_on(&queue, None);
    let found: Vec<u64> = found.iter().map(BackupSuperblock::block).collect();
    assert_eq!(found, [8193, 24577]);
    for at in places {
        assert_eq!(choose_copy(&queue, at as u64).unwrap().at, at as u64);
    }
    let elsewhere = choose_copy(&queue, 1024);
    assert!(elsewhere.is_err());
}
