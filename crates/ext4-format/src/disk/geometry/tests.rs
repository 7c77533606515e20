use super::super::test_images::Image;
use super::*;

/// `a-b` or `a` after `label` in a line of dumpe2fs.
fn range_after(line: &str, label: &str) -> Option<(u64, u64)> {
    let rest = &line[line.find(label)? + label.len()..];
    let text: String = rest
        .trim_start()
        .chars()
        .take_while(|c| c.is_ascii_digit() || *c == '-')
        .collect();
    let mut ends = text.split('-').map(|n| n.parse().unwrap());
    let first = ends.next()?;
    Some((first, ends.next().unwrap_or(first)))
}

/// Checks group positions and overheads against dumpe2fs.
fn compare(options: &[&str], size: &str) {
    let image = Image::make(options, size);
    let geo = image.superblock().geometry().clone();
    let dump = image.dumpe2fs();
    let mut groups = 0;
    for text in dump
        .split("\nGroup ")
        .filter(|text| text.contains(": (Blocks "))
    {
        let group = GroupNo(text.split(':').next().unwrap().parse().unwrap());
        groups += 1;
        let (first, last) = range_after(text, "(Blocks ").unwrap();
        assert_eq!(geo.first_block_of(group).0, first);
        assert_eq!(u64::from(geo.blocks_in(group)), last - first + 1);
        let overhead = geo.overhead(group);
        let head = text.split("Block bitmap").next().unwrap();
        assert_eq!(
            geo.has_super(group),
            head.contains("uperblock at"),
            "{options:?} {group}"
        );
        let descs = range_after(head, "Group descriptors at")
            .or_else(|| range_after(head, "Group descriptor at"));
        let count = descs.map_or(0, |(a, b)| b - a + 1);
        assert_eq!(
            u64::from(overhead.desc_blocks),
            count,
            "{options:?} group {group}"
        );
        let reserved = range_after(head, "Reserved GDT blocks at");
        assert_eq!(
            u64::from(overhead.reserved_blocks),
            reserved.map_or(0, |(a, b)| b - a + 1),
            "{options:?} group {group}"
        );
        if let Some((at, _)) = descs {
            assert_eq!(
                at,
                first + u64::from(overhead.super_blocks),
                "{options:?} group {group}"
            );
            let (n, offset) = geo.desc_slot(group);
            if geo.has_incompat(Incompat::META_BG) && offset == 0 && n >= geo.first_meta_bg {
                assert_eq!(geo.desc_block_at(n), DevBlock(at));
            }
            if group.0 == 0 {
                assert_eq!(geo.desc_block_at(0), DevBlock(at));
            }
        }
    }
    assert_eq!(groups, geo.group_count);
}

#[test]
fn groups_lie_where_dumpe2fs_sees_them() {
    compare(
        &[
            "-t",
            "ext2",
            "-b",
            "1024",
            "-g",
            "1024",
            "-O",
            "^sparse_super,^resize_inode",
        ],
        "20M",
    );
    compare(&["-t", "ext4", "-b", "1024", "-g", "1024"], "60M");
    compare(
        &[
            "-t",
            "ext4",
            "-b",
            "4096",
            "-g",
            "2048",
            "-O",
            "sparse_super2",
        ],
        "100M",
    );
    compare(
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-g",
            "512",
            "-N",
            "3000",
            "-O",
            "meta_bg,^resize_inode",
        ],
        "30M",
    );
    compare(
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-C",
            "4096",
            "-O",
            "bigalloc,^resize_inode",
        ],
        "60M",
    );
    compare(&["-t", "ext4", "-b", "65536"], "80M");
}

#[test]
fn inodes_and_blocks_find_their_group() {
    let image = Image::make(&["-t", "ext4", "-b", "1024", "-g", "1024"], "20M");
    let geo = image.superblock().geometry().clone();
    for group in geo.groups() {
        let first = geo.first_block_of(group);
        assert_eq!(geo.group_of_block(first), (group, 0));
        let last = geo.blocks_in(group) - 1;
        assert_eq!(geo.group_of_block(first.plus(last.into())), (group, last));
        for index in [0, geo.inodes_per_group - 1] {
            let ino = geo.inode_at(group, index);
            assert_eq!(geo.group_of_inode(ino), (group, index));
        }
    }
    assert_eq!(geo.group_of_inode(Ino(1)), (GroupNo(0), 0));
    assert!(geo.is_inode(Ino(geo.inodes_count)) && !geo.is_inode(Ino(geo.inodes_count + 1)));
    assert!(!geo.is_data_range(DevBlock(1), 1) && geo.is_data_range(DevBlock(2), 1));
    assert!(geo.is_data_range(DevBlock(2), geo.blocks_count - 2));
    assert!(!geo.is_data_range(DevBlock(2), geo.blocks_count - 1));
    assert!(!geo.is_data_range(DevBlock(2), u64::MAX));
    let (block, offset) = geo.inode_slot(DevBlock(100), 5);
    assert_eq!((block, offset), (DevBlock(101), 256));
    assert!(!geo.is_nameable(Ino(8)) && geo.is_nameable(Ino::ROOT) && geo.is_nameable(Ino(11)));
}

#[test]
fn sizes_are_limited_as_in_the_kernel() {
    let limit = |options: &[&str], extents| {
        Image::make(options, "16M")
            .superblock()
            .geometry()
            .max_file_size(extents)
    };
    // Known limits: 16 GiB and 4 TiB of indirect maps, 16 TiB less a block of extents.
    assert_eq!(limit(&["-t", "ext2", "-b", "1024"], false), 17_247_252_480);
    assert_eq!(
        limit(&["-t", "ext4", "-b", "4096"], true),
        (u64::from(u32::MAX)) << 12
    );
    assert_eq!(
        limit(&["-t", "ext4", "-b", "4096"], false),
        (12 + 1024 + 1024 * 1024 + 1024 * 1024 * 1024) << 12
    );
    // Without huge_file i_blocks ends at 2 TiB, map included.
    let small = limit(&["-t", "ext2", "-b", "4096"], false);
    assert!(small < 1 << 41 && small > (1 << 41) - (1 << 32));
}
