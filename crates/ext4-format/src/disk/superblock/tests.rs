use super::super::features::{self, MountMode};
use super::super::test_images::Image;
use super::*;
use proptest::prelude::*;

fn start() -> usize {
    usize::try_from(SUPERBLOCK_OFFSET).unwrap()
}

fn raw_bytes(image: &Image) -> Vec<u8> {
    image.bytes()[start()..start() + SUPERBLOCK_SIZE].to_vec()
}

/// Value of a line `name: value` of dumpe2fs.
fn field(dump: &str, name: &str) -> String {
    dump.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .unwrap_or_else(|| panic!("dumpe2fs shows {name}"))
        .trim()
        .to_string()
}

const MATRIX: &[&[&str]] = &[
    &["-t", "ext2", "-b", "1024"],
    &["-t", "ext3", "-b", "2048"],
    &["-t", "ext4"],
    &["-t", "ext4", "-b", "1024", "-m", "12"],
    &["-t", "ext4", "-b", "65536"],
    &["-t", "ext4", "-O", "^metadata_csum,uninit_bg", "-I", "128"],
    &["-t", "ext4", "-O", "^64bit,^flex_bg,^resize_inode"],
    &["-t", "ext4", "-O", "orphan_file,metadata_csum_seed"],
    &["-t", "ext4", "-O", "bigalloc", "-C", "16384"],
    &["-t", "ext4", "-O", "bigalloc", "-b", "1024", "-C", "4096"],
    &["-t", "ext4", "-O", "meta_bg,^resize_inode", "-b", "1024"],
    &[
        "-t",
        "ext4",
        "-O",
        "sparse_super2,quota,project,inline_data,ea_inode,casefold,encrypt",
    ],
    &[
        "-t",
        "ext4",
        "-O",
        "large_dir,verity,stable_inodes,fast_commit,mmp",
    ],
    &["-t", "ext2", "-r", "0", "-b", "1024"],
];

#[test]
fn reads_what_dumpe2fs_reads() {
    for options in MATRIX {
        let image = Image::make(options, "48M");
        let dump = image.dumpe2fs();
        let sb = image.superblock();
        let geo = sb.geometry();
        for (name, value) in [
            ("Inode count", u64::from(geo.inodes_count)),
            ("Block count", geo.blocks_count),
            ("Reserved block count", sb.reserved_blocks()),
            ("Free blocks", sb.free_blocks()),
            ("Free inodes", sb.free_inodes().into()),
            ("First block", geo.first_data_block.0),
            ("Block size", geo.block_size.bytes_u64()),
            ("Blocks per group", geo.blocks_per_group.into()),
            ("Inodes per group", geo.inodes_per_group.into()),
            ("Inode blocks per group", geo.itable_blocks().into()),
        ] {
            assert_eq!(
                field(&dump, name),
                value.to_string(),
                "{name} of {options:?}"
            );
        }
        if sb.raw().rev_level.get() > 0 {
            let names = sb.features().names().join(" ");
            let mut shown: Vec<String> = field(&dump, "Filesystem features")
                .split_whitespace()
                .map(str::to_string)
                .collect();
            let mut ours: Vec<String> = names.split(' ').map(str::to_string).collect();
            shown.sort();
            ours.sort();
            assert_eq!(ours, shown, "{options:?}");
            assert_eq!(field(&dump, "Inode size"), geo.inode_size.to_string());
        }
        assert_eq!(sb.state(), STATE_CLEAN);
        assert_eq!(
            dump.matches(": (Blocks ").count(),
            usize::try_from(geo.group_count).unwrap()
        );
    }
}

#[test]
fn default_volumes_are_writable_and_others_named() {
    for kind in ["ext2", "ext3", "ext4"] {
        let sb = Image::make(&["-t", kind], "8M").superblock();
        assert_eq!(features::mount_mode(sb.features()), MountMode::ReadWrite);
    }
    let image = Image::make(&["-t", "ext4", "-O", "bigalloc,quota"], "8M");
    image.debugfs("feature FEATURE_R30");
    assert_eq!(
        features::mount_mode(image.superblock().features()),
        MountMode::ReadOnly {
            because: vec!["FEATURE_R30".into()]
        }
    );
}

#[test]
fn sealing_what_was_read_changes_nothing() {
    for options in MATRIX {
        let image = Image::make(options, "48M");
        let before = raw_bytes(&image);
        let mut after = vec![0; SUPERBLOCK_SIZE];
        Superblock::parse(&before).unwrap().seal_into(&mut after);
        assert!(before == after, "{options:?}");
    }
}

/// A device may write either sector and lose the other.
#[test]
fn a_torn_write_is_the_old_superblock_or_the_new_one() {
    for options in MATRIX {
        let image = Image::make(options, "48M");
        let mut disk = raw_bytes(&image);
        let mut sb = Superblock::parse(&disk).unwrap();
        for round in 1..20u32 {
            let old = disk.clone();
            sb.set_free_blocks(1000 + u64::from(round));
            sb.set_needs_recovery(round % 2 == 1);
            let now = Timestamp {
                secs: 1_800_000_000 + i64::from(round),
                nanos: 0,
            };
            sb.note_mount(now, Some(b"/mnt"));
            sb.seal_into(&mut disk);
            if round == 1 {
                // The first may have to set the times' high bits.
                continue;
            }
            for torn in [[&disk[..512], &old[512..]], [&old[..512], &disk[512..]]] {
                let left = Superblock::parse(&torn.concat()).unwrap();
                let blocks = left.free_blocks();
                let round = u64::from(round);
                assert!(
                    (999 + round..=1000 + round).contains(&blocks),
                    "{options:?}"
                );
            }
            assert_eq!(
                Superblock::parse(&disk).unwrap().free_blocks(),
                sb.free_blocks()
            );
        }
        let mut bytes = image.bytes();
        bytes[start()..start() + SUPERBLOCK_SIZE].copy_from_slice(&disk);
        std::fs::write(image.path(), &bytes).unwrap();
        assert_eq!(field(&image.dumpe2fs(), "Last mounted on").trim(), "/mnt");
    }
}

#[test]
fn a_long_name_of_the_mount_point_leaves_room_for_the_checksums_bytes() {
    let image = Image::make(&["-t", "ext4"], "48M");
    let mut disk = raw_bytes(&image);
    let old = disk.clone();
    let mut sb = Superblock::parse(&disk).unwrap();
    let name = "/".repeat(64);
    sb.note_mount(Timestamp::default(), Some(name.as_bytes()));
    sb.seal_into(&mut disk);
    let left = Superblock::parse(&disk).unwrap();
    assert_eq!(left.raw().last_mounted[..59], name.as_bytes()[..59]);
    assert_eq!(left.raw().last_mounted[59], 0);
    assert_eq!(disk[512..], old[512..]);
    // Opening a volume without mounting it keeps the directory.
    sb.note_mount(Timestamp::default(), None);
    sb.seal_into(&mut disk);
    let left = Superblock::parse(&disk).unwrap();
    assert_eq!(left.raw().last_mounted[..59], name.as_bytes()[..59]);
}

#[test]
fn copies_are_equal_but_for_their_group() {
    let image = Image::make(&["-t", "ext4", "-b", "1024"], "48M");
    let bytes = image.bytes();
    let sb = image.superblock();
    let geo = sb.geometry();
    let mut copies = 0;
    for group in geo.groups().filter(|&g| g.0 > 0 && geo.has_super(g)) {
        let at = usize::try_from(geo.block_size.offset_of(geo.first_block_of(group))).unwrap();
        let mut ours = vec![0; SUPERBLOCK_SIZE];
        sb.seal_copy_into(group, &mut ours);
        let copy = Superblock::parse(&bytes[at..at + SUPERBLOCK_SIZE]).unwrap();
        assert_eq!(u32::from(copy.raw().block_group_nr.get()), group.0);
        // mke2fs leaves counts in copies as they were at some point: compare the identity.
        assert_eq!(copy.raw().uuid, sb.raw().uuid);
        assert_eq!(
            Superblock::parse(&ours).unwrap().raw().block_group_nr,
            copy.raw().block_group_nr
        );
        copies += 1;
    }
    assert_eq!(copies, 3);
}

#[test]
fn edits_are_seen_by_dumpe2fs() {
    let image = Image::make(&["-t", "ext4"], "48M");
    let mut bytes = image.bytes();
    let mut sb = image.superblock();
    let now = Timestamp {
        secs: (1 << 32) + 100_000_000,
        nanos: 5,
    };
    sb.set_free_blocks(77);
    sb.set_free_inodes(66);
    sb.set_last_orphan(Some(Ino(13)));
    sb.set_state(STATE_CLEAN | STATE_ERROR);
    sb.set_large_file();
    sb.set_needs_recovery(true);
    sb.note_mount(now, Some(b"/mnt/somewhere"));
    sb.set_write_time(now);
    for line in [7, 8] {
        sb.record_error(&ErrorRecord {
            time: now,
            inode: Some(Ino(99)),
            block: Some(DevBlock(1234)),
            function: "a_name_that_is_longer_than_the_field_for_it",
            line,
            code: 5,
        });
    }
    sb.seal_into(&mut bytes[start()..start() + SUPERBLOCK_SIZE]);
    std::fs::write(image.path(), &bytes).unwrap();
    let dump = image.dumpe2fs();
    for (name, value) in [
        ("Free blocks", "77"),
        ("Free inodes", "66"),
        ("First orphan inode", "13"),
        ("Filesystem state", "clean with errors"),
        ("FS Error count", "2"),
        ("First error line #", "7"),
        ("Last error line #", "8"),
        ("First error inode #", "99"),
        ("Last error block #", "1234"),
        ("Last mounted on", "/mnt/somewhere"),
        ("Mount count", "1"),
    ] {
        assert_eq!(field(&dump, name), value, "{name}");
    }
    assert!(field(&dump, "Filesystem features").contains("needs_recovery"));
    let again = image.superblock();
    assert_eq!(again.last_orphan(), Some(Ino(13)));
    assert_eq!(again.times()[1], Timestamp { nanos: 0, ..now });
    assert_eq!(again.error_count(), 2);
}

#[test]
fn impossible_fields_are_refused() {
    let good = raw_bytes(&Image::make(&["-t", "ext4", "-b", "4096"], "48M"));
    type Edit = fn(&mut RawSuperblock);
    let edits: &[(&str, Edit)] = &[
        ("s_log_block_size", |raw| raw.log_block_size.set(7)),
        ("s_blocks_count", |raw| raw.blocks_count_lo.set(0)),
        ("s_inodes_count", |raw| raw.inodes_count.set(1)),
        ("s_inodes_count", |raw| raw.blocks_count_hi.set(9)),
        ("s_inodes_per_group", |raw| raw.inodes_per_group.set(0)),
        ("s_inodes_per_group", |raw| {
            raw.inodes_per_group.set(u32::MAX - 7)
        }),
        ("s_blocks_per_group", |raw| raw.blocks_per_group.set(0)),
        ("s_blocks_per_group", |raw| raw.blocks_per_group.set(1001)),
        ("s_blocks_per_group", |raw| {
            raw.blocks_per_group.set(1 << 20)
        }),
        ("s_first_data_block", |raw| raw.first_data_block.set(1)),
        ("s_inode_size", |raw| raw.inode_size.set(100)),
        ("s_inode_size", |raw| raw.inode_size.set(8192)),
        ("s_first_ino", |raw| raw.first_ino.set(3)),
        ("s_first_ino", |raw| raw.first_ino.set(u32::MAX)),
        ("s_desc_size", |raw| raw.desc_size.set(48)),
        ("s_desc_size", |raw| raw.desc_size.set(2048)),
        ("s_reserved_gdt_blocks", |raw| {
            raw.reserved_gdt_blocks.set(9999)
        }),
        ("s_rev_level", |raw| raw.rev_level.set(2)),
        ("s_checksum_type", |raw| raw.checksum_type = 2),
        ("s_journal_inum", |raw| raw.journal_inum.set(u32::MAX)),
        ("s_orphan_file_inum", |raw| {
            raw.feature_compat.set(raw.feature_compat.get() | 0x1000);
        }),
    ];
    for (name, edit) in edits {
        let mut raw = RawSuperblock::read_from_bytes(&good[..]).unwrap();
        edit(&mut raw);
        match Superblock::from_raw(raw).map_err(|e| e.kind) {
            Err(CorruptKind::Field { field, .. }) => assert_eq!(field, *name),
            other => panic!("{name}: {other:?}"),
        }
    }
    let mut no_magic = good.clone();
    no_magic[0x38] = 0;
    assert!(matches!(
        Superblock::parse(&no_magic).map_err(|e| e.kind),
        Err(CorruptKind::Magic { .. })
    ));
    let mut flipped = good.clone();
    flipped[0x78] ^= 1;
    assert!(matches!(
        Superblock::parse(&flipped).map_err(|e| e.kind),
        Err(CorruptKind::Checksum { .. })
    ));
    assert!(Superblock::parse(&good[..1023]).is_err());
}

proptest! {
    #[test]
    fn any_bytes_parse_or_fail(
        mut bytes in proptest::collection::vec(any::<u8>(), 1024),
        plausible in any::<[u8; 8]>(),
    ) {
        bytes[0x38] = 0x53;
        bytes[0x39] = 0xEF;
        // Small numbers, as large ones are always refused.
        bytes[0x18] = plausible[0] % 8;
        bytes[0x4C..0x50].copy_from_slice(&[plausible[1] % 3, 0, 0, 0]);
        bytes[0x19..0x1C].fill(0);
        if let Ok(sb) = Superblock::parse_lenient(&bytes) {
            let geo = sb.geometry();
            let last = GroupNo(geo.group_count - 1);
            prop_assert!(geo.blocks_in(last) > 0);
            geo.overhead(last);
            sb.verify_checksum().ok();
        }
    }

    #[test]
    fn one_wrong_byte_is_found(at in 0usize..1024, flip in 1u8..) {
        static GOOD: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        let mut bytes = GOOD.get_or_init(|| raw_bytes(&Image::make(&["-t", "ext4"], "8M"))).clone();
        bytes[at] ^= flip;
        // Only the bits that switch checksums off are not covered by them.
        let disabled = RawSuperblock::read_from_bytes(&bytes[..]).unwrap().features();
        let still = disabled.ro_compat.contains(RoCompat::METADATA_CSUM);
        prop_assert!(Superblock::parse(&bytes).is_err() || !still);
    }
}
