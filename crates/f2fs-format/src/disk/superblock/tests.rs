//! Against mkfs.f2fs and dump.f2fs.

use super::*;
use crate::test_support::{ALL_FEATURES, Image};

fn first_copy(image: &Image) -> Vec<u8> {
    std::fs::read(image.path()).unwrap()[1024..4096].to_vec()
}

#[test]
fn reads_and_writes_what_mkfs_made() {
    for options in [
        &["-l", "läbel"][..],
        &["-O", ALL_FEATURES],
        &["-i", "-O", "extra_attr,quota,project_quota"],
        &["-s", "2", "-z", "2"],
    ] {
        let image = Image::make(options, 128);
        let bytes = first_copy(&image);
        let mut superblock = Superblock::parse(&bytes).unwrap();
        assert!(Superblock::has_magic(&bytes));
        assert_eq!(superblock.encode(), bytes);
        let second = std::fs::read(image.path()).unwrap()[5120..8192].to_vec();
        assert_eq!(second, bytes);
        assert_eq!(superblock.devices(), []);
        assert!(!superblock.has_errors());
        if options[0] == "-l" {
            assert_eq!(superblock.label(), "läbel");
            let mut raw = superblock.raw().clone();
            assert!(put_label(&mut raw, "läbel"));
            assert_eq!(raw.as_bytes(), bytes);
            assert!(!put_label(&mut raw, &"x".repeat(512)));
        }
        let (cold, hot) = superblock.extensions();
        assert!(cold.contains(&"mkv".into()), "{cold:?}");
        assert!(hot.contains(&"db".into()), "{hot:?}");
    }
}

#[test]
fn layout_is_what_dump_prints() {
    let image = Image::make(&["-s", "2"], 300);
    let superblock = Superblock::parse(&first_copy(&image)).unwrap();
    let layout = superblock.layout();
    let dump = image.dump(&["-d", "1"]);
    let field = |name: &str| -> u32 {
        let line = dump.lines().find(|line| line.starts_with(name)).unwrap();
        let number = line.rsplit(": ").next().unwrap().trim_end_matches(']');
        number.trim().parse().unwrap()
    };
    for (name, value) in [
        ("cp_blkaddr", layout.cp_start),
        ("sit_blkaddr", layout.sit_start),
        ("nat_blkaddr", layout.nat_start),
        ("ssa_blkaddr", layout.ssa_start),
        ("main_blkaddr", layout.main_start),
        ("segment_count_main", layout.main_segments),
        ("segs_per_sec", layout.segments_per_section),
        ("segment_count_sit", layout.sit_blocks / 256),
        ("segment_count_nat", layout.nat_blocks / 256),
    ] {
        assert_eq!(value, field(name), "{name}");
    }
}

#[test]
fn corruption_is_refused() {
    let image = Image::make(&["-O", ALL_FEATURES], 64);
    let bytes = first_copy(&image);
    for bit in (0..SUPERBLOCK_SIZE * 8).step_by(61) {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Superblock::parse(&bytes).is_err(), "bit {bit}");
    }
    assert!(Superblock::parse(&bytes[..100]).is_err());
    // Without a checksum: no panic, and accepted values compute without overflow.
    for at in (0..108).chain([1148, 1664, 2757]) {
        for value in [0, 1, 0x7F, 0xFF] {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            if let Ok(superblock) = Superblock::parse_lenient(&bytes) {
                let layout = superblock.layout();
                assert!(
                    u64::from(layout.main_start) + u64::from(layout.main_blocks())
                        <= layout.block_count
                );
                superblock.extensions();
            }
        }
    }
}
