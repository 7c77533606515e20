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
