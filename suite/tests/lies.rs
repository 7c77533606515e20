//! Volumes that lie, one lie at a time, each by name; with right checksums.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use steadfs_lab::device::Image;
use steadfs_suite::hostile::meter::Meter;
use steadfs_suite::hostile::survey::Spot;
use steadfs_suite::hostile::{Base, Part, exercise};

#[global_allocator]
static METER: Meter = Meter;

/// Most memory that a volume may take, in bytes.
const BUDGET: usize = 48 << 20;

/// Where a lie is told.
#[derive(Clone, Copy, Debug)]
enum At {
    /// Byte of the superblock.
    Super(u64),
    /// Byte of the inode of this size, its `i_size` as the tree of the base has it.
    Inode(u64, u64),
    /// Byte of the inode of this number.
    Number(u32, u64),
    /// Byte of the first block of this kind.
    First(Part, u64),
}

use At::{First, Inode, Number, Super};

/// What is told there.
#[derive(Clone, Copy, Debug)]
enum Say {
    Half(u16),
    Word(u32),
    /// The block's own number.
    Itself,
    /// Bytes over and over.
    Fill(u8, usize),
}

use Say::{Fill, Half, Itself, Word};

type Lie = (&'static str, &'static str, &'static [(At, Say)]);

const LARGE: u64 = 400_000;
const SCATTERED: u64 = 29 * 140_000 + 4;
const LONG_LINK: u64 = 900;
const SHORT_LINK: u64 = 5;
/// Of `i_block` in an inode, of `i_size`, of `i_links_count`, of `i_dtime` and of `i_file_acl`.
const MAP: u64 = 0x28;
const SIZE: u64 = 4;
const LINKS: u64 = 26;
const DTIME: u64 = 20;
const ACL: u64 = 0x68;

const LIES: &[Lie] = &[
    (
        "blocks without end",
        "ext4-1k",
        &[(Super(4), Word(!0)), (Super(0x150), Word(0xFFFF))],
    ),
    ("no blocks", "ext4-1k", &[(Super(4), Word(0))]),
    ("inodes without end", "ext4-1k", &[(Super(0), Word(!0))]),
    (
        "inodes of 65535 bytes",
        "ext4-1k",
        &[(Super(0x58), Half(!0))],
    ),
    ("inodes of 1 byte", "ext4-1k", &[(Super(0x58), Half(1))]),
    (
        "inodes of 3000 bytes",
        "ext4-1k",
        &[(Super(0x58), Half(3000))],
    ),
    (
        "groups without inodes",
        "ext4-1k",
        &[(Super(0x28), Word(0))],
    ),
    (
        "groups of endless inodes",
        "ext2-1k",
        &[(Super(0x28), Word(!0))],
    ),
    (
        "groups without blocks",
        "ext4-1k",
        &[(Super(0x20), Word(0))],
    ),
    (
        "groups of endless blocks",
        "ext2-1k",
        &[(Super(0x20), Word(!0))],
    ),
    (
        "blocks of 2^87 bytes",
        "ext4-1k",
        &[(Super(0x18), Word(77))],
    ),
    (
        "descriptors of 1 byte",
        "ext4-1k",
        &[(Super(0xFE), Half(1))],
    ),
    (
        "descriptors of 65535 bytes",
        "ext4-1k",
        &[(Super(0xFE), Half(!0))],
    ),
    (
        "data far away",
        "ext4-1k",
        &[(Super(0x14), Word(0xFFFF_FFF0))],
    ),
    (
        "reserved descriptors",
        "ext4-1k",
        &[(Super(0xCE), Half(!0))],
    ),
    (
        "a flex group of 2^255",
        "ext4-1k",
        &[(Super(0x174), Half(0xFF))],
    ),
    ("a cluster of 2^77", "bigalloc", &[(Super(0x1C), Word(77))]),
    (
        "a deep extent root",
        "ext4-1k",
        &[(Inode(SCATTERED, MAP + 6), Half(5))],
    ),
    (
        "a bottomless extent root",
        "ext4-1k",
        &[(Inode(SCATTERED, MAP + 6), Half(!0))],
    ),
    (
        "a shallow extent root",
        "ext4-1k",
        &[(Inode(SCATTERED, MAP + 6), Half(0))],
    ),
    (
        "an extent node below itself",
        "ext4-1k",
        &[
            (Inode(SCATTERED, MAP + 6), Half(2)),
            (First(Part::Extents, 6), Half(1)),
            (First(Part::Extents, 16), Itself),
        ],
    ),
    (
        "an extent node too full",
        "ext4-1k",
        &[(First(Part::Extents, 2), Half(!0))],
    ),
    (
        "an extent node too large",
        "ext4-1k",
        &[(First(Part::Extents, 4), Half(!0))],
    ),
    (
        "an empty extent node",
        "ext4-1k",
        &[(First(Part::Extents, 2), Half(0))],
    ),
    (
        "extents outside",
        "ext4-1k",
        &[(Inode(LARGE, MAP + 20), Word(0xFFFF_FFF0))],
    ),
    (
        "an extent of no blocks",
        "ext4-1k",
        &[(Inode(LARGE, MAP + 16), Half(0))],
    ),
    (
        "an extent at the last block",
        "ext4-1k",
        &[(Inode(LARGE, MAP + 12), Word(!0))],
    ),
    (
        "an indirect block below itself",
        "ext2-1k",
        &[(First(Part::Indirect, 0), Itself)],
    ),
    (
        "indirect numbers at the edge",
        "ext2-1k",
        &[(First(Part::Indirect, 0), Fill(0xFF, 1024))],
    ),
    (
        "one block twice in a file",
        "ext2-1k",
        &[
            (Inode(LARGE, MAP), Word(900)),
            (Inode(LARGE, MAP + 4), Word(900)),
            (Inode(LARGE, MAP + 8), Word(900)),
        ],
    ),
    (
        "a file on the superblock",
        "ext2-1k",
        &[(Inode(LARGE, MAP), Word(1))],
    ),
    (
        "a file of 2^63 bytes",
        "ext4-1k",
        &[(Inode(LARGE, 0x6C), Word(0x7FFF_FFFF))],
    ),
    (
        "a file of 2^64 bytes",
        "ext2-1k",
        &[(Inode(LARGE, 0x6C), Word(!0))],
    ),
    (
        "an endless root",
        "ext4-1k",
        &[(Number(2, SIZE), Word(0xFFFF_FC00))],
    ),
    ("an empty root", "ext4-1k", &[(Number(2, SIZE), Word(0))]),
    (
        "a root that is a file",
        "ext4-1k",
        &[(Number(2, 0), Half(0o100_644))],
    ),
    (
        "a root without names",
        "ext4-1k",
        &[(Number(2, LINKS), Half(0))],
    ),
    (
        "entries of no length",
        "ext4-1k",
        &[(First(Part::Entries, 28), Half(0))],
    ),
    (
        "entries past the block",
        "ext4-1k",
        &[(First(Part::Entries, 28), Half(0xFFFC))],
    ),
    (
        "a directory within itself",
        "ext4-1k",
        &[(First(Part::Entries, 24), Word(2))],
    ),
    (
        "an index root below itself",
        "ext4-1k",
        &[(First(Part::Index, 36), Word(0))],
    ),
    (
        "an index without end",
        "ext4-1k",
        &[(First(Part::Index, 34), Half(!0))],
    ),
    (
        "an index without entries",
        "ext4-1k",
        &[(First(Part::Index, 34), Half(0))],
    ),
    (
        "an index of many levels",
        "ext4-1k",
        &[(First(Part::Index, 30), Half(0x00C8))],
    ),
    (
        "an index of an unknown hash",
        "ext4-1k",
        &[(First(Part::Index, 28), Half(0x08FF))],
    ),
    (
        "an index far outside",
        "ext4-1k",
        &[(First(Part::Index, 36), Word(0x0FFF_FFFF))],
    ),
    (
        "an endless link",
        "ext4-1k",
        &[(Inode(LONG_LINK, SIZE), Word(!0))],
    ),
    (
        "a short link that is long",
        "ext4-1k",
        &[(Inode(SHORT_LINK, SIZE), Word(1000))],
    ),
    (
        "an empty link",
        "ext4-1k",
        &[(Inode(SHORT_LINK, SIZE), Word(0))],
    ),
    (
        "attributes of nobody",
        "ext4-1k",
        &[(First(Part::Attributes, 4), Word(0))],
    ),
    (
        "attributes of everybody",
        "ext4-1k",
        &[(First(Part::Attributes, 4), Word(!0))],
    ),
    (
        "an endless attribute",
        "ext4-1k",
        &[(First(Part::Attributes, 40), Word(!0))],
    ),
    (
        "an attribute outside",
        "ext4-1k",
        &[(First(Part::Attributes, 34), Half(!0))],
    ),
    (
        "an attribute's long name",
        "ext4-1k",
        &[(First(Part::Attributes, 32), Half(0x01FF))],
    ),
    (
        "attributes in the superblock",
        "ext4-1k",
        &[(Inode(LARGE, ACL), Word(1))],
    ),
    (
        "attributes outside",
        "ext4-1k",
        &[(Inode(LARGE, ACL), Word(!0))],
    ),
    (
        "an endless journal",
        "dirty-ext4",
        &[(First(Part::JournalSuper, 16), Word(!0))],
    ),
    (
        "a log in the superblock",
        "dirty-ext4",
        &[(First(Part::JournalSuper, 20), Word(0))],
    ),
    (
        "a log that begins outside",
        "dirty-ext4",
        &[(First(Part::JournalSuper, 28), Word(!0))],
    ),
    (
        "a journal of large blocks",
        "dirty-ext4",
        &[(First(Part::JournalSuper, 12), Word(!0))],
    ),
    (
        "a journal that is the root",
        "dirty-ext4",
        &[(Super(0xE0), Word(2))],
    ),
    (
        "a journal that does not exist",
        "dirty-ext4",
        &[(Super(0xE0), Word(!0))],
    ),
    (
        "a log about itself",
        "dirty-ext4",
        &[(First(Part::Log, 12), Itself)],
    ),
    (
        "a journal mapped on itself",
        "dirty-ext3",
        &[(Number(8, MAP + 4), Itself)],
    ),
    (
        "a journal of holes",
        "dirty-ext3",
        &[(Number(8, MAP), Fill(0, 60))],
    ),
    (
        "an orphan after itself",
        "dirty-ext4",
        &[(Super(0xE8), Word(12)), (Number(12, DTIME), Word(12))],
    ),
    (
        "the root as orphan",
        "dirty-ext4",
        &[(Super(0xE8), Word(2))],
    ),
    (
        "the journal as orphan",
        "dirty-ext4",
        &[(Super(0xE8), Word(8))],
    ),
    (
        "an orphan outside",
        "dirty-ext4",
        &[(Super(0xE8), Word(!0))],
    ),
    (
        "an orphan file of nonsense",
        "dirty-orphan-file",
        &[(First(Part::Orphans, 0), Fill(0xFF, 8))],
    ),
    (
        "an orphan file of the root",
        "dirty-orphan-file",
        &[(First(Part::Orphans, 8), Word(2))],
    ),
    (
        "an orphan file that is the root",
        "dirty-orphan-file",
        &[(Super(0x280), Word(2))],
    ),
    (
        "all blocks free",
        "ext4-1k",
        &[(First(Part::BlockBitmap, 0), Fill(0, 1024))],
    ),
    (
        "all blocks used",
        "ext4-1k",
        &[(First(Part::BlockBitmap, 0), Fill(0xFF, 1024))],
    ),
    (
        "all inodes free",
        "ext4-1k",
        &[(First(Part::InodeBitmap, 0), Fill(0, 64))],
    ),
    (
        "a bitmap in the superblock",
        "ext4-1k",
        &[(First(Part::Descriptors, 0), Word(1))],
    ),
    (
        "an inode table outside",
        "ext4-1k",
        &[(First(Part::Descriptors, 8), Word(!0))],
    ),
    (
        "an inode table in the root",
        "ext2-1k",
        &[(First(Part::Descriptors, 8), Word(2))],
    ),
    (
        "more free than there is",
        "ext4-1k",
        &[(First(Part::Descriptors, 12), Word(!0))],
    ),
];

fn tell(base: &Base, image: &mut Image, at: At, say: Say) {
    let survey = &base.survey;
    let size = survey.geo.block_size.bytes_u64();
    let of_inode = |image: &Image, ino| {
        let (block, start) = survey.inode_place(image, ino);
        let spots = survey.spots.iter();
        let spot = spots
            .clone()
            .find(|s| s.part == Part::Inodes && s.block == block);
        (*spot.expect("it is in use"), start)
    };
    let first = |part| -> Spot {
        let spot = survey.spots.iter().find(|spot| spot.part == part);
        *spot.unwrap_or_else(|| panic!("{} has no {part:?}", base.name))
    };
    let (spot, offset) = match at {
        Super(byte) => (first(Part::Super), 1024 + byte),
        First(part, byte) => (first(part), first(part).block * size + byte),
        Number(ino, byte) => {
            let (spot, start) = of_inode(image, ino);
            (spot, start + byte)
        }
        Inode(len, byte) => {
            let ino = survey.find_inode(&base.image, |inode| inode.size == len);
            let (spot, start) = of_inode(image, ino.expect("the tree has it"));
            (spot, start + byte)
        }
    };
    match say {
        Half(value) => image.write(offset, &value.to_le_bytes()),
        Word(value) => image.write(offset, &value.to_le_bytes()),
        Itself => image.write(offset, &(spot.block as u32).to_le_bytes()),
        Fill(byte, len) => image.write(offset, &vec![byte; len]),
    }
    if matches!(at, First(Part::JournalSuper, _)) {
        // The journal's numbers are big-endian: all ones and zero are the same either way.
        assert!(matches!(say, Word(0 | u32::MAX)));
    }
    survey.seal(image, &spot);
}

#[test]
fn every_lie_is_borne() {
    let scratch = tempfile::tempdir().unwrap();
    let bases = Base::all(scratch.path());
    let mut failures = Vec::new();
    for (name, of, lies) in LIES {
        let base = bases.iter().find(|base| base.name == *of).unwrap();
        let mut image = base.image.clone();
        for (at, say) in *lies {
            tell(base, &mut image, *at, *say);
        }
        assert!(!image.same_content(&base.image), "{name}: nothing is told");
        let began = std::time::Instant::now();
        let outcome = exercise(&image);
        if outcome.peak > BUDGET {
            failures.push(format!("{name}: {} bytes of memory", outcome.peak));
        }
        if began.elapsed().as_secs() > 20 {
            failures.push(format!("{name}: took {:?}", began.elapsed()));
        }
        for wrong in outcome.wrong {
            failures.push(format!("{name}: {wrong}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
