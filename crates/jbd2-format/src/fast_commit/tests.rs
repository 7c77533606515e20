//! Valid areas, torn ones, and areas that are wrong with the right checksum.

use proptest::collection::vec;
use proptest::prelude::*;
use steadfs_base::Tid;

use super::builder::FastCommitBuilder;
use super::*;

const SIZE: usize = 1024;
const TID: Tid = Tid(7);

fn scan(area: &[u8]) -> Result<FastCommits, FormatError> {
    let mut scan = FastCommitScan::new(TID);
    for block in area.chunks(SIZE) {
        if !scan.block(block)? {
            break;
        }
    }
    Ok(scan.finish())
}

fn builder() -> FastCommitBuilder {
    FastCommitBuilder::new(TID, SIZE)
}

#[test]
fn every_tag_is_read_with_its_position() {
    let mut area = builder();
    area.inode(12, &[1; 160]).name(3, 2, 12, b"new");
    area.add_range(12, 0, 3, 900).del_range(13, 5, 6);
    area.name(4, 2, 13, b"more").name(5, 2, 13, b"less").tail();
    area.name(5, 2, 14, &[b'n'; 255]).tail();
    let found = scan(&area.finish()).unwrap();
    assert!(!found.is_torn);
    let names: Vec<Vec<&str>> = found
        .commits
        .iter()
        .map(|commit| commit.iter().map(|r| r.change.name()).collect())
        .collect();
    let first = [
        "inode",
        "create",
        "add range",
        "delete range",
        "link",
        "unlink",
    ];
    assert_eq!(names, [&first[..], &["unlink"]]);
    let at = found.commits[0][1].at;
    assert_eq!((at.block, at.offset), (0, 12 + 4 + 4 + 160));
    assert_eq!(at.to_string(), "fast-commit block 0, byte 180");
    assert_eq!(found.commits[1][0].at.block, 1);
    assert_eq!(
        found.commits[0][3].change,
        FastCommitChange::DelRange {
            ino: 13,
            first: 5,
            count: 6
        }
    );
}

#[test]
fn a_fast_commit_continues_in_the_next_block_after_a_pad() {
    let mut area = builder();
    for n in 0..40 {
        area.inode(12 + n, &[0; 156]);
    }
    let area = area.tail().finish();
    assert_eq!(area.len(), 7 * SIZE);
    assert_eq!(scan(&area).unwrap().commits[0].len(), 40);
}

#[test]
fn an_area_of_another_transaction_has_nothing() {
    let mut older = FastCommitBuilder::new(Tid(6), SIZE);
    older.del_range(12, 0, 1).tail();
    let mut headless = FastCommitBuilder::headless(TID, SIZE);
    headless.del_range(12, 0, 1).tail();
    for area in [
        older.finish(),
        headless.finish(),
        vec![0; SIZE],
        vec![0xFF; SIZE],
    ] {
        assert_eq!(scan(&area).unwrap(), FastCommits::default());
    }
}

#[test]
fn what_was_not_finished_is_ignored() {
    let whole = {
        let mut area = builder();
        area.del_range(12, 0, 1).tail();
        area
    };
    let ends: [fn(&mut FastCommitBuilder); 6] = [
        |area| {
            area.del_range(12, 1, 1);
        },
        |area| {
            area.del_range(12, 1, 1).tail_with(TID, 1);
        },
        |area| {
            area.del_range(12, 1, 1).tail_with(Tid(6), 0);
        },
        // Invalid tags of a fast commit without a valid tail are ignored.
        |area| {
            area.tag(99, b"").tail_with(TID, 1);
        },
        |area| {
            area.tag(TAIL, b"short");
        },
        |area| {
            area.tag(1, &[0; 3]);
        },
    ];
    for (n, end) in ends.into_iter().enumerate() {
        let mut area = builder();
        area.del_range(12, 0, 1).tail();
        end(&mut area);
        let found = scan(&area.finish()).unwrap();
        assert_eq!(found.commits, scan(&whole.finish()).unwrap().commits, "{n}");
    }
    // A length beyond the block.
    let mut area = whole.finish();
    area.extend([1, 0, 0xFF, 0xFF]);
    area.resize(2 * SIZE, 0);
    let found = scan(&area).unwrap();
    assert_eq!((found.commits.len(), found.is_torn), (1, true));
}

#[test]
fn a_wrong_tag_with_the_right_checksum_is_an_error_with_its_position() {
    let cases: [(u16, usize, &str); 14] = [
        (ADD_RANGE, 15, "add range"),
        (ADD_RANGE, 17, "add range"),
        (ADD_RANGE, 0, "add range"),
        (DEL_RANGE, 11, "delete range"),
        (DEL_RANGE, 16, "delete range"),
        (CREATE, 8, "name"),
        (CREATE, 7, "name"),
        (LINK, 8 + 256, "name"),
        (UNLINK, 0, "name"),
        (INODE, 3, "inode"),
        (INODE, 4 + 127, "inode"),
        (0, 0, "unknown"),
        (10, 4, "unknown"),
        (0xFFFF, 100, "unknown"),
    ];
    for (tag, len, what) in cases {
        let mut area = builder();
        area.del_range(12, 0, 1).tag(tag, &vec![1; len]).tail();
        let Err(FormatError::Corrupt(error)) = scan(&area.finish()) else {
            panic!("tag {tag} of {len} bytes is accepted");
        };
        assert!(error.contains(what), "{error}");
        assert!(error.starts_with("fast-commit block 0, byte 28"), "{error}");
    }
}

#[test]
fn unknown_features_are_refused_by_number() {
    let mut area = FastCommitBuilder::headless(TID, SIZE);
    let head = [4u32.to_le_bytes(), TID.0.to_le_bytes()].concat();
    area.tag(HEAD, &head).del_range(12, 0, 1).tail();
    let Err(FormatError::Unsupported(error)) = scan(&area.finish()) else {
        panic!("the features are accepted");
    };
    assert!(error.contains("0x4"), "{error}");
}

#[test]
fn no_bytes_make_the_scan_panic() {
    let mut area = builder();
    area.inode(12, &[7; 160]).name(3, 2, 12, b"new").tail();
    area.add_range(12, 0, 3, 900).tail();
    let area = area.finish();
    // The first fast commit; what follows its tail in the block has no checksum.
    for at in 0..207 {
        for value in [0, 1, 8, 9, 0x7F, 0xFF] {
            let mut changed = area.clone();
            changed[at] = value;
            let found = scan(&changed);
            if changed != area {
                // A changed byte never adds a fast commit.
                assert!(
                    found.is_ok_and(|found| found.commits.len() < 2),
                    "byte {at}"
                );
            }
            drop(scan(&changed[..at]));
        }
    }
}

/// Any change that fits a block of 1 KiB.
fn any_change() -> impl Strategy<Value = FastCommitChange> {
    let extent = any::<[u8; EXTENT_LEN]>();
    const KINDS: [NameChange; 3] = [NameChange::Create, NameChange::Link, NameChange::Unlink];
    let name = (
        prop::sample::select(&KINDS[..]),
        any::<u32>(),
        any::<u32>(),
        vec(any::<u8>(), 1..=NAME_LEN_MAX),
    );
    prop_oneof![
        (any::<u32>(), extent).prop_map(|(ino, extent)| FastCommitChange::AddRange { ino, extent }),
        any::<(u32, u32, u32)>().prop_map(|(ino, first, count)| FastCommitChange::DelRange {
            ino,
            first,
            count
        }),
        name.prop_map(|(change, parent, ino, name)| FastCommitChange::Name {
            change,
            parent,
            ino,
            name: name.into(),
        }),
        (any::<u32>(), vec(any::<u8>(), INODE_LEN_MIN..=900)).prop_map(|(ino, raw)| {
            FastCommitChange::Inode {
                ino,
                raw: raw.into(),
            }
        }),
    ]
}

proptest! {
    #[test]
    fn what_is_encoded_is_read_again(
        size in prop::sample::select(&[1024usize, 4096, 65_536][..]),
        commits in vec(vec(any_change(), 0..30), 1..4),
    ) {
        let mut area = Vec::new();
        for (n, changes) in commits.iter().enumerate() {
            let encoded = encode_fast_commit(TID, size, n == 0, changes).unwrap();
            prop_assert_eq!(encoded.len() % size, 0);
            area.extend(encoded);
        }
        let mut scan = FastCommitScan::new(TID);
        for block in area.chunks(size) {
            prop_assert!(scan.block(block).unwrap());
        }
        let found = scan.finish();
        prop_assert!(!found.is_torn);
        let changes = |commit: Vec<FastCommitRecord>| {
            commit.into_iter().map(|record| record.change).collect::<Vec<_>>()
        };
        let found: Vec<_> = found.commits.into_iter().map(changes).collect();
        prop_assert_eq!(found, commits);
    }
}

#[test]
fn a_change_that_fits_no_block_is_not_encoded() {
    let inode = |len| FastCommitChange::Inode {
        ino: 12,
        raw: vec![0; len].into(),
    };
    let encode = |len| encode_fast_commit(TID, SIZE, false, &[inode(len)]);
    let longest = SIZE - 2 * TAG_LEN - 4 - 1;
    assert_eq!(encode(longest).unwrap().len(), 2 * SIZE);
    assert!(encode(longest + 1).is_none());
}

#[test]
fn unused_blocks_end_the_area() {
    let mut area = builder();
    area.del_range(12, 0, 1).tail();
    let mut scan = FastCommitScan::new(TID);
    for block in area.finish().chunks(SIZE) {
        assert!(scan.block(block).unwrap());
    }
    assert!(!scan.block(&[0; SIZE]).unwrap());
    let found = scan.finish();
    assert_eq!((found.commits.len(), found.is_torn), (1, false));
}

#[test]
fn an_area_that_never_ends_is_not_read_to_its_end() {
    let mut scan = FastCommitScan::new(TID);
    let head = FastCommitBuilder::new(TID, SIZE).tag(99, b"").finish();
    let mut blocks = 0;
    while scan.block(&head).unwrap() {
        blocks += 1;
    }
    assert!(blocks < 20_000);
    assert!(scan.finish().is_torn);
    let mut scan = FastCommitScan::new(TID);
    let mut area = builder();
    for n in 0..40 {
        area.del_range(12, n, 1);
    }
    let again = area.tail().finish();
    let error = loop {
        match scan.block(&again[..SIZE]) {
            Ok(goes_on) => assert!(goes_on),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("changes"), "{error}");
}
