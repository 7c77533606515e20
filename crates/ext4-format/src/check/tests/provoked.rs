//! Each kind of issue, provoked: the checker reports it, and e2fsck reports the volume as inconsistent, too.

mod dirs;
mod inodes;
mod volume;

use std::collections::BTreeSet;

use super::damage::{Base, Damage};
use super::*;
use crate::disk::dir_entry::{self, DirLayout};
use crate::disk::mmp::SEQ_FSCK;
use crate::disk::num::{get16, get32, put16, put32};
use crate::disk::{GroupDesc, Ino, Mmp, indirect};

/// Defines `kind` and `KINDS` by the list of all kinds. A new kind does not compile until it is listed and provoked
/// here.
macro_rules! kinds {
    ($($name:ident),* $(,)?) => {
        /// The name of an issue's kind.
        fn kind(issue: &Issue) -> &'static str {
            match issue { $(Issue::$name { .. } => stringify!($name),)* }
        }

        /// Number of kinds.
        const KINDS: usize = [$(stringify!($name)),*].len();
    };
}

kinds!(
    Superblock,
    Unreplayed,
    ReservedBlocks,
    DeviceTooSmall,
    Unreadable,
    GroupDesc,
    MountProtection,
    MountProtectionOverlap,
    MountProtectionSequence,
    MetadataOverlap,
    BitmapChecksum,
    BlockBitmapDiffers,
    InodeBitmapDiffers,
    BitmapPadding,
    GroupFreeBlocks,
    GroupFreeInodes,
    GroupDirs,
    FreeBlocks,
    FreeInodes,
    Inode,
    InodeFlag,
    FieldNotZero,
    NoDeletionTime,
    LostOrphan,
    DeletionTime,
    SizeTooSmall,
    DirSize,
    BlockCount,
    ExtentNode,
    Unwritten,
    Misaligned,
    NoExtentsFlag,
    MapBlock,
    BlockUsedTwice,
    Symlink,
    Xattr,
    XattrHash,
    XattrOverlap,
    XattrRefcount,
    XattrInode,
    XattrInodeSize,
    XattrInodeReferences,
    XattrInodeContent,
    Encryption,
    EncryptedName,
    QuotaInode,
    QuotaFile,
    QuotaUsage,
    DirHole,
    DirBlock,
    DirDots,
    BadName,
    NotEncoded,
    BadTarget,
    EntryType,
    DuplicateName,
    SecondName,
    WrongParent,
    Htree,
    HtreeChild,
    HtreeBlockTwice,
    HtreeBlockUnnamed,
    HtreeHash,
    LinkCount,
    Unattached,
    DirLoop,
    NoRoot,
    OrphanList,
    OrphanFile,
    OrphansNotAnnounced,
    ReservedInUse,
    Journal,
    JournalNotEmpty,
    FeatureAlone,
    RecoveryWithoutJournal,
    ResizeInode,
);

/// The result required of e2fsck: an inconsistent volume, or (with the reason) any.
#[derive(Clone, Copy, PartialEq)]
enum Judge {
    Agrees,
    /// It does not check this, or its exit code does not show it.
    May(&'static str),
}
use Judge::{Agrees, May};

struct Case {
    kind: &'static str,
    base: Base,
    judge: Judge,
    damage: fn(&mut Damage),
}

const fn case(kind: &'static str, base: Base, judge: Judge, damage: fn(&mut Damage)) -> Case {
    Case {
        kind,
        base,
        judge,
        damage,
    }
}

/// Runs all cases; the kinds that were provoked, and what went wrong.
fn run_cases(cases: &[Case], failures: &mut Vec<String>) -> BTreeSet<&'static str> {
    let mut seen = BTreeSet::new();
    for (i, case) in cases.iter().enumerate() {
        let mut damage = Damage::new(case.base);
        (case.damage)(&mut damage);
        let report = check(&damage.bytes, &Options::default());
        let found = report.issues.iter().any(|issue| kind(issue) == case.kind);
        damage.image.fill(&damage.bytes);
        let (code, words) = e2fsck(&damage.image.path());
        let agrees = code != 0 || case.judge != Agrees;
        if !found || !agrees {
            let lines: Vec<_> = report.issues.iter().map(ToString::to_string).collect();
            failures.push(format!(
                "case {i} on {:?} for {}: {lines:#?}, e2fsck {code}: {words}",
                case.base, case.kind
            ));
        }
        seen.insert(case.kind);
    }
    seen
}

#[test]
fn every_kind_is_provoked_and_e2fsck_agrees() {
    let mut failures = Vec::new();
    let mut seen = run_cases(volume::VOLUME, &mut failures);
    seen.extend(run_cases(inodes::INODES, &mut failures));
    seen.extend(run_cases(dirs::DIRS, &mut failures));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // Provoked by separate tests.
    let own = [
        "Unreadable",
        "Unreplayed",
        "Encryption",
        "EncryptedName",
        "QuotaInode",
        "QuotaFile",
        "QuotaUsage",
        "MountProtection",
        "MountProtectionOverlap",
        "MountProtectionSequence",
    ];
    seen.extend(own);
    assert_eq!(seen.len(), KINDS, "{seen:?}");
}

/// A device of which one block cannot be read.
struct BadBlock {
    bytes: Vec<u8>,
    bad: u64,
}

impl BlockSource for BadBlock {
    fn size_bytes(&self) -> u64 {
        self.bytes.size_bytes()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if (offset..offset + buf.len() as u64).contains(&self.bad) {
            return Err(io::Error::other("bad block"));
        }
        self.bytes.read(offset, buf)
    }
}

#[test]
fn unreadable_blocks_are_named() {
    let mut damage = Damage::new(Base::Ext4);
    let ino = damage.ino("a/b");
    let dir = damage.mapped(ino, 0);
    let table = damage.desc(0).inode_table;
    for block in [dir, table, DevBlock(1), DevBlock(2)] {
        let source = BadBlock {
            bytes: damage.bytes.clone(),
            bad: damage.geo.block_size.offset_of(block),
        };
        let report = check(&source, &Options::default());
        let named = |issue: &Issue| kind(issue) == "Unreadable";
        assert!(
            report.issues.iter().any(named),
            "{block}: {:?}",
            report.issues
        );
    }
}

/// e2fsck compares names within one block only.
#[test]
fn equal_names_in_two_blocks() {
    let tree = tempfile::tempdir().unwrap();
    for i in 100..200 {
        fs::write(
            tree.path().join(format!("a name that is rather long {i}")),
            "",
        )
        .unwrap();
    }
    let options = [
        "-t",
        "ext2",
        "-b",
        "1024",
        "-d",
        tree.path().to_str().unwrap(),
    ];
    let image = Image::make(&options, "8M");
    let mut bytes = image.bytes();
    let find = |bytes: &[u8], name: &[u8]| bytes.windows(name.len()).position(|w| w == name);
    let names: Vec<_> = (100..200)
        .map(|i| find(&bytes, format!("a name that is rather long {i}").as_bytes()).unwrap())
        .collect();
    let (low, high) = (*names.iter().min().unwrap(), *names.iter().max().unwrap());
    assert!(high / 1024 > low / 1024);
    bytes.copy_within(low..low + 30, high);
    let report = check(&bytes, &Options::default());
    assert!(matches!(
        report.issues[..],
        [Issue::DuplicateName { dir: Ino::ROOT, .. }]
    ));
}

/// A source that counts what is read.
struct Counted {
    bytes: Vec<u8>,
    read: std::cell::Cell<u64>,
}

impl BlockSource for Counted {
    fn size_bytes(&self) -> u64 {
        self.bytes.size_bytes()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read.set(self.read.get() + buf.len() as u64);
        self.bytes.read(offset, buf)
    }
}

/// However often a directory maps a block, its names are read once.
#[test]
fn a_block_that_a_directory_maps_again_and_again_is_read_once() {
    const TIMES: u16 = 84;
    let mut damage = Damage::new(Base::Plain);
    let dir = damage.ino("a/b");
    let names = damage.mapped(dir, 0);
    // The leaf takes the place of a block of the large file.
    let large = damage.ino("large");
    let leaf = damage.mapped(large, 1);
    let block = damage.block(leaf);
    block.fill(0);
    block[..2].copy_from_slice(&0xF30A_u16.to_le_bytes());
    block[2..4].copy_from_slice(&TIMES.to_le_bytes());
    block[4..6].copy_from_slice(&TIMES.to_le_bytes());
    for n in 0..usize::from(TIMES) {
        let at = 12 + 12 * n;
        put32(block, at, n as u32);
        block[at + 4] = 1;
        put32(block, at + 8, names.0 as u32);
    }
    damage.set_inode(dir, |inode| {
        inode.flags.0 |= 0x8_0000;
        inode.block.fill(0);
        inode.block[..2].copy_from_slice(&0xF30A_u16.to_le_bytes());
        inode.block[2..8].copy_from_slice(&[1, 0, 4, 0, 1, 0]);
        put32(&mut inode.block, 16, leaf.0 as u32);
    });
    let source = Counted {
        bytes: damage.bytes.clone(),
        read: std::cell::Cell::new(0),
    };
    let report = check(&source, &Options::default());
    let found = |name: &str| {
        report
            .issues
            .iter()
            .filter(|issue| kind(issue) == name)
            .count()
    };
    assert!(found("BlockUsedTwice") > 0, "{:?}", report.issues);
    assert_eq!(found("DuplicateName"), 0, "{:?}", report.issues);
    let clean = Counted {
        bytes: Damage::new(Base::Plain).bytes,
        read: std::cell::Cell::new(0),
    };
    check(&clean, &Options::default());
    let more = source.read.get() as i64 - clean.read.get() as i64;
    assert!(
        more < 8 << 10,
        "{more} bytes more than for the whole volume"
    );
}

/// A directory whose block another file has, too, has its names.
#[test]
fn the_names_in_a_block_of_two_files_are_read() {
    let mut damage = Damage::new(Base::Ext4);
    let (large, dir) = (damage.ino("large"), damage.ino("a/b"));
    let names = damage.mapped(dir, 0);
    damage.set_inode(large, |inode| put32(&mut inode.block, 20, names.0 as u32));
    let report = check(&damage.bytes, &Options::default());
    let kinds: BTreeSet<&str> = report.issues.iter().map(kind).collect();
    assert!(kinds.contains("BlockUsedTwice"), "{kinds:?}");
    for other in ["DirHole", "Unattached", "LinkCount"] {
        assert!(!kinds.contains(other), "{kinds:?}");
    }
}

/// A type of 0 was never stored: Linux takes it from the inode, and `e2fsck -n` does not report it. Any other wrong
/// type is an issue.
#[test]
fn wrong_types_of_entries_are_issues_and_missing_ones_none() {
    let others = [8, 9, 15, 16, 0x7F, 0x80, 0x81, 0xDE, 0xFF];
    for base in [Base::Plain, Base::Ext4] {
        let mut damage = Damage::new(base);
        let (geo, ino) = (damage.geo.clone(), damage.ino("a/b"));
        let (layout, seed) = (DirLayout::of(&geo), damage.inode(ino).seed(&geo, ino));
        let whole = damage.dir_block("a/b", 0).to_vec();
        for (at, right) in [(7, 2), (19, 2), (31, 2)] {
            assert_eq!(whole[at], right);
            for stored in (0..8).chain(others) {
                let block = damage.dir_block("a/b", 0);
                block.copy_from_slice(&whole);
                block[at] = stored;
                dir_entry::seal(&layout, seed, block);
                let issues = check(&damage.bytes, &Options::default()).issues;
                let what = format!("{base:?}, {stored} at {at}: {issues:?}");
                damage.image.fill(&damage.bytes);
                let (code, words) = e2fsck(&damage.image.path());
                assert_eq!(code == 0, issues.is_empty(), "{what}, e2fsck: {words}");
                assert_eq!(issues.is_empty(), [0, right].contains(&stored), "{what}");
                let named = |issue: &Issue| kind(issue) == "EntryType";
                assert!(issues.iter().all(named), "{what}");
            }
        }
    }
}

/// Orphans are in use: on the list with and without links, and in the orphan file.
#[test]
fn orphans_are_no_issue() {
    let mut damage = Damage::new(Base::Ext4);
    let (large, sparse) = (damage.ino("sparse"), damage.ino("empty"));
    damage.debugfs("unlink empty");
    damage.set_inode(large, |inode| inode.dtime = sparse.0);
    damage.set_inode(sparse, |inode| inode.links = 0);
    damage.set_superblock(|raw| raw.last_orphan.set(large.0));
    let report = check(&damage.bytes, &Options::default());
    assert!(report.is_clean(), "{:?}", report.issues);
    assert_eq!(report.stats.orphans, 2);

    let mut damage = Damage::new(Base::OrphanFile);
    let empty = damage.ino("empty");
    damage.debugfs("unlink empty");
    damage.set_inode(empty, |inode| inode.links = 0);
    let file = damage.image.superblock().orphan_file().unwrap();
    let at = damage.mapped(file, 0);
    put32(damage.block(at), 8, empty.0);
    assert!(
        !damage
            .features()
            .ro_compat
            .contains(RoCompat::ORPHAN_PRESENT)
    );
    damage.set_superblock(|raw| {
        raw.feature_ro_compat
            .set(raw.feature_ro_compat.get() | 0x1_0000)
    });
    let report = check(&damage.bytes, &Options::default());
    assert!(report.is_clean(), "{:?}", report.issues);
    assert_eq!(report.stats.orphans, 1);
}

/// debugfs would wait for 11 s before each change of such a volume.
#[test]
fn the_block_of_mount_protection_is_checked() {
    let image = Image::make(&["-t", "ext4", "-b", "1024", "-O", "mmp"], "8M");
    let sb = image.superblock();
    let (seed, at) = (sb.geometry().seed, sb.mmp_block().unwrap());
    let good = image.bytes();
    let bitmap = GroupDesc::decode(sb.geometry(), &good[2048..2112]).block_bitmap;
    let with_seq = |seq: u32| {
        let mut bytes = good.clone();
        let block = &mut bytes[at.0 as usize * 1024..];
        let mut mmp = Mmp::parse(seed, at, block).unwrap();
        mmp.set_seq(seq);
        mmp.seal_into(seed, block);
        bytes
    };
    let with_byte = |offset: usize| {
        let mut bytes = good.clone();
        bytes[at.0 as usize * 1024 + offset] ^= 1;
        bytes
    };
    let with_place = |place: DevBlock| {
        let mut bytes = good.clone();
        let mut raw = sb.raw().clone();
        raw.mmp_block.set(place.0);
        let moved = Superblock::from_raw(raw).unwrap();
        moved.seal_into(&mut bytes[1024..2048]);
        bytes
    };
    for (bytes, expected) in [
        (good.clone(), None),
        (with_seq(7), None),
        (with_seq(SEQ_FSCK), Some("MountProtectionSequence")),
        (with_seq(SEQ_FSCK + 1), Some("MountProtectionSequence")),
        (with_byte(0), Some("MountProtection")),
        (with_byte(16), Some("MountProtection")),
        (with_byte(1000), Some("MountProtection")),
        (with_place(DevBlock(1)), Some("Superblock")),
        (with_place(DevBlock(8192)), Some("Superblock")),
        (with_place(bitmap), Some("MountProtectionOverlap")),
    ] {
        let report = check(&bytes, &Options::default());
        let kinds: BTreeSet<_> = report.issues.iter().map(kind).collect();
        image.fill(&bytes);
        let (code, words) = e2fsck(&image.path());
        assert_eq!(code == 0, kinds.is_empty(), "{kinds:?}, e2fsck: {words}");
        let found = expected.is_none_or(|expected| kinds.contains(expected));
        assert!(found, "{expected:?}: {:?}", report.issues);
        assert_eq!(kinds.is_empty(), expected.is_none(), "{:?}", report.issues);
        assert!(report.skipped.is_empty(), "{:?}", report.skipped);
    }
}

/// After a crash the superblock's counts may be out of date, and differences are not reported.
#[test]
fn old_counts_after_a_crash() {
    let mut damage = Damage::new(Base::Ext4);
    damage.set_superblock(|raw| raw.free_inodes_count.set(5));
    let options = Options {
        after_crash: true,
        ..Options::default()
    };
    let report = check(&damage.bytes, &options);
    assert!(report.is_clean());
    assert!(report.stats.free_inodes_off < 0 && report.stats.free_blocks_off == 0);
    damage.debugfs("feature needs_recovery");
    assert!(check(&damage.bytes, &Options::default()).is_clean());
}

/// A volume of revision 0 should have no features, but e2fsck and Linux use the bits that are set.
#[test]
fn features_of_revision_0_count() {
    let tree = tempfile::tempdir().unwrap();
    for n in 0..20 {
        fs::create_dir(tree.path().join(format!("dir{n}"))).unwrap();
        fs::write(tree.path().join(format!("dir{n}/file")), [7; 3000]).unwrap();
    }
    let from = tree.path().to_str().unwrap();
    let image = Image::make(&["-t", "ext2", "-r", "0", "-b", "1024", "-d", from], "8M");
    assert_clean(&image, &"no features");
    let whole = image.bytes();
    let (mut failures, mut faults) = (Vec::new(), 0);
    for bit in 0..96 {
        let (word, bit) = (bit / 32, bit % 32);
        let mut bytes = whole.clone();
        let at = 1024 + 0x5C + 4 * word;
        bytes[at + bit / 8] |= 1 << (bit % 8);
        let report = check(&bytes, &Options::default());
        image.fill(&bytes);
        let (code, words) = e2fsck(&image.path());
        let finds = words.contains("? no");
        if code != 0 && !finds {
            // e2fsck does not know the feature.
            continue;
        }
        faults += u32::from(finds);
        // Parts that are not checked are named.
        if report.is_clean() == finds && report.skipped.is_empty() {
            let issues = report.issues;
            failures.push(format!(
                "word {word}, bit {bit}: {issues:?}, e2fsck {code}: {words}"
            ));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(faults > 5, "{faults}");
}
