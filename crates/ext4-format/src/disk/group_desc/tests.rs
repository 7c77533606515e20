use super::super::test_images::Image;
use super::super::{bitmap, num};
use super::*;
use proptest::prelude::*;

fn slot_of<'a>(geo: &Geometry, bytes: &'a [u8], group: GroupNo) -> &'a [u8] {
    let (n, offset) = geo.desc_slot(group);
    let at = usize::try_from(geo.block_size.offset_of(geo.desc_block_at(n))).unwrap() + offset;
    &bytes[at..at + usize::from(geo.desc_size)]
}

fn block_of<'a>(geo: &Geometry, bytes: &'a [u8], block: DevBlock) -> &'a [u8] {
    let at = usize::try_from(geo.block_size.offset_of(block)).unwrap();
    &bytes[at..at + geo.block_size.bytes()]
}

/// `Free blocks:` of dumpe2fs as ranges.
fn free_ranges(text: &str) -> Vec<(u64, u64)> {
    let line = text
        .lines()
        .find_map(|l| l.trim().strip_prefix("Free blocks:"));
    line.unwrap_or("")
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(|part| match part.split_once('-') {
            Some((a, b)) => (a.parse().unwrap(), b.parse().unwrap()),
            None => (part.parse().unwrap(), part.parse().unwrap()),
        })
        .collect()
}

const MATRIX: &[(&[&str], &str)] = &[
    (&["-t", "ext2", "-b", "1024", "-g", "1024"], "10M"),
    (&["-t", "ext4", "-b", "1024", "-g", "1024"], "30M"),
    (
        &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "^flex_bg"],
        "30M",
    ),
    (
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-g",
            "1024",
            "-O",
            "^64bit,^flex_bg",
        ],
        "30M",
    ),
    (
        &["-t", "ext4", "-g", "4096", "-O", "^metadata_csum,uninit_bg"],
        "100M",
    ),
    (
        &[
            "-t",
            "ext4",
            "-g",
            "4096",
            "-O",
            "^metadata_csum,uninit_bg,^64bit,^flex_bg",
        ],
        "100M",
    ),
    (
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-g",
            "512",
            "-O",
            "meta_bg,^resize_inode",
        ],
        "20M",
    ),
    (
        &["-t", "ext4", "-b", "1024", "-C", "8192", "-O", "bigalloc"],
        "60M",
    ),
    (&["-t", "ext4", "-b", "65536"], "100M"),
];

/// A group of a volume that mke2fs made, and what dumpe2fs prints of it.
struct Group<'a> {
    /// What to name in a failure.
    at: String,
    geo: &'a Geometry,
    bytes: &'a [u8],
    no: GroupNo,
    desc: GroupDesc,
    text: &'a str,
}

impl Group<'_> {
    fn check_numbers(&self) {
        let (desc, text) = (&self.desc, self.text);
        for shown in [
            format!("\n  {} free ", desc.free_clusters),
            format!("Block bitmap at {} ", desc.block_bitmap),
            format!("Inode bitmap at {} ", desc.inode_bitmap),
            format!("Inode table at {}-", desc.inode_table),
            format!(" {} directories", desc.used_dirs),
        ] {
            assert!(text.contains(&shown), "{} {shown}", self.at);
        }
    }

    fn check_block_bitmap(&self) {
        let (geo, desc) = (self.geo, &self.desc);
        let mut made = vec![0x55; geo.block_size.bytes()];
        let read: &[u8] = if desc.block_uninit(geo) {
            init_block_bitmap(geo, self.no, desc, &mut made);
            &made
        } else {
            let read = block_of(geo, self.bytes, desc.block_bitmap);
            desc.verify_block_bitmap(geo, read).unwrap();
            read
        };
        let clusters = geo.clusters_in(self.no);
        let free = bitmap::count_zeros(read, 0..clusters);
        assert_eq!(free, desc.free_clusters, "{}", self.at);
        if geo.cluster_bits == 0 {
            let first = geo.first_block_of(self.no).0;
            let runs: Vec<_> = bitmap::zero_runs(read, 0..clusters)
                .map(|run| (first + u64::from(run.start), first + u64::from(run.end) - 1))
                .collect();
            assert_eq!(runs, free_ranges(self.text), "{}", self.at);
        }
    }

    fn check_inode_bitmap(&self) {
        let (geo, desc) = (self.geo, &self.desc);
        let mut made = vec![0x55; geo.block_size.bytes()];
        let inodes: &[u8] = if desc.inode_uninit(geo) {
            init_inode_bitmap(geo, &mut made);
            &made
        } else {
            let read = block_of(geo, self.bytes, desc.inode_bitmap);
            desc.verify_inode_bitmap(geo, read).unwrap();
            read
        };
        let free = bitmap::count_zeros(inodes, 0..geo.inodes_per_group);
        assert_eq!(free, desc.free_inodes, "{}", self.at);
    }
}

#[test]
fn descriptors_and_bitmaps_of_real_volumes() {
    for (options, size) in MATRIX {
        let image = Image::make(options, size);
        let bytes = image.bytes();
        let geo = image.superblock().geometry().clone();
        let dump = image.dumpe2fs();
        let mut uninit = 0;
        for text in dump
            .split("\nGroup ")
            .filter(|text| text.contains(": (Blocks "))
        {
            let no = GroupNo(text.split(':').next().unwrap().parse().unwrap());
            let at = format!("{options:?} group {no}");
            let slot = slot_of(&geo, &bytes, no);
            let desc = GroupDesc::parse(&geo, no, slot).unwrap_or_else(|e| panic!("{at}: {e}"));
            uninit += u32::from(desc.block_uninit(&geo));
            let mut again = slot.to_vec();
            desc.encode_into(&geo, no, &mut again);
            assert!(again == slot, "{at} changes when written back");
            let group = Group {
                at,
                geo: &geo,
                bytes: &bytes,
                no,
                desc,
                text,
            };
            group.check_numbers();
            group.check_block_bitmap();
            group.check_inode_bitmap();
        }
        assert_eq!(
            uninit > 0,
            geo.has_group_checksums() && geo.group_count > 4,
            "{options:?}"
        );
    }
}

#[test]
fn bitmap_checksums_follow_the_bitmap() {
    for options in [&["-t", "ext4"][..], &["-t", "ext4", "-O", "^64bit"]] {
        let geo = Image::make(options, "8M").superblock().geometry().clone();
        let mut desc = GroupDesc::default();
        let mut block = vec![0; geo.block_size.bytes()];
        desc.seal_block_bitmap(&geo, &block);
        desc.seal_inode_bitmap(&geo, &block);
        desc.verify_block_bitmap(&geo, &block).unwrap();
        bitmap::set(&mut block, 9);
        assert!(desc.verify_block_bitmap(&geo, &block).is_err());
        assert!(desc.verify_inode_bitmap(&geo, &block).is_err());
        desc.seal_block_bitmap(&geo, &block);
        desc.seal_inode_bitmap(&geo, &block);
        desc.verify_inode_bitmap(&geo, &block).unwrap();
        // And through the slot, where 32 bytes hold half of each checksum.
        let mut slot = vec![0; usize::from(geo.desc_size)];
        desc.encode_into(&geo, GroupNo(0), &mut slot);
        let read = GroupDesc::decode(&geo, &slot);
        read.verify_block_bitmap(&geo, &block).unwrap();
        assert_eq!(read, desc);
    }
}

proptest! {
    #[test]
    fn any_bytes_parse_or_fail(bytes in proptest::collection::vec(any::<u8>(), 64), group in 0u32..3) {
        use std::sync::OnceLock;
        static GEO: OnceLock<Geometry> = OnceLock::new();
        let geo = GEO.get_or_init(|| {
            Image::make(&["-t", "ext4", "-b", "1024"], "20M").superblock().geometry().clone()
        });
        let group = GroupNo(group);
        prop_assert!(GroupDesc::parse(geo, group, &bytes).is_err());
        let desc = GroupDesc::decode(geo, &bytes);
        let mut block = vec![0; 1024];
        init_block_bitmap(geo, group, &desc, &mut block);
        let mut sealed = bytes.clone();
        desc.encode_into(geo, group, &mut sealed);
        GroupDesc::verify_checksum(geo, group, &sealed).unwrap();
        prop_assert_eq!(GroupDesc::decode(geo, &sealed), desc);
        prop_assert!(num::idx(group.0) < 3);
    }
}
