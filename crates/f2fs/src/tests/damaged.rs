//! What reading can do without, and what is no damage but not supported.

use std::sync::Arc;

use steadfs_block::MemDevice;
use steadfs_vfs::{Cx, FileSystem, FsError};

use steadfs_f2fs_format::check::{self, Refusal, check};
use steadfs_f2fs_format::test_support::damage::{Base, Damage};
use steadfs_f2fs_format::test_support::words;

use crate::disk::Checkpoint;
use crate::disk::checkpoint::CpFlags;
use crate::disk::superblock::RawSuperblock;
use crate::disk::{LogType, SegNo};
use crate::mount::MountReport;
use crate::{CacheSizes, F2fs, MountOptions};

/// A name, and the change that makes it wrong.
type Wrong<T> = (&'static str, fn(&mut T));

type Opened = Result<(Arc<F2fs>, MountReport), FsError>;

fn open(bytes: &[u8], read_only: bool, salvage: bool) -> Opened {
    let mut options = MountOptions::default();
    options.common.read_only = read_only;
    options.common.salvage = salvage;
    let device = Arc::new(MemDevice::from_bytes(bytes));
    F2fs::open(device, options, CacheSizes::of(8 << 20))
}

fn small(fs: &F2fs) -> Result<Vec<u8>, FsError> {
    let cx = Cx::default();
    let ino = fs.lookup(&cx, fs.root(), b"small")?.ino;
    Ok(fs.read(&cx, ino, 0, 99_999)?.to_vec())
}

/// It can be read, with a warning, and is not written, neither by a mount nor by a remount.
#[track_caller]
fn only_read(bytes: &[u8], what: &str) {
    assert!(open(bytes, false, false).is_err(), "{what}");
    let (fs, report) = open(bytes, true, false).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(small(&fs).unwrap(), [b's'; 30_000], "{what}");
    assert!(!report.warnings.is_empty(), "{what}");
    fs.statfs(&Cx::default()).unwrap();
    assert!(fs.remount(&Cx::default(), "rw").is_err(), "{what}");
    assert_eq!(small(&fs).unwrap(), [b's'; 30_000], "{what}");
}

#[test]
fn wrong_counts_and_logs_are_in_the_way_of_writing_only() {
    let wrongs: [Wrong<Checkpoint>; 9] = [
        ("user_blocks", |cp| cp.user_blocks = 5),
        ("user_blocks", |cp| cp.user_blocks = u64::MAX),
        ("valid_blocks", |cp| cp.valid_blocks = u64::MAX),
        ("valid_nodes", |cp| cp.valid_nodes = u32::MAX),
        ("valid_inodes", |cp| cp.valid_inodes = 1 << 20),
        ("free_segments", |cp| cp.free_segments = u32::MAX),
        ("a segment", |cp| {
            cp.logs[LogType::WarmNode.index()].segment = SegNo(u32::MAX);
        }),
        ("an offset", |cp| {
            cp.logs[LogType::WarmNode.index()].offset = 700;
        }),
        ("a data log", |cp| cp.logs[0].offset = u16::MAX),
    ];
    for (what, wrong) in wrongs {
        let mut damage = Damage::new(Base::Plain);
        damage.checkpoint(wrong);
        only_read(&damage.bytes, what);
    }
}

#[test]
fn the_free_end_of_a_dump_is_in_the_way_of_writing_only() {
    let mut damage = Damage::new(Base::Plain);
    damage.bytes.truncate(96 << 20);
    only_read(&damage.bytes, "truncated");
}

#[test]
fn a_damaged_segment_table_is_in_the_way_of_writing_only() {
    let mut damage = Damage::new(Base::Plain);
    let second = damage.opened().checkpoint.sit_second(0);
    let table = damage.layout.sit_block(0, second);
    damage.block(table).fill(0x5a);
    assert!(open(&damage.bytes, false, false).is_err());
    let (fs, _) = open(&damage.bytes, true, false).unwrap();
    assert_eq!(small(&fs).unwrap(), [b's'; 30_000]);
}

#[test]
fn a_damaged_journal_of_nodes_is_passed_over_by_programs_that_read() {
    let mut damage = Damage::new(Base::Plain);
    let opened = damage.opened();
    let cp = &opened.checkpoint;
    // The journal's count: in a compacted pack the first bytes, else behind the entries of the hot data's summary.
    let compacted = cp.flags.contains(CpFlags::COMPACT_SUMMARIES);
    let (n, at) = match compacted {
        true => (cp.start_sum, 0),
        false => (cp.summary_in_pack(LogType::HotData).unwrap(), 512 * 7),
    };
    let block = damage.layout.pack_start(opened.pack).plus(n);
    damage.block(block)[at..at + 2].fill(0xff);
    assert!(open(&damage.bytes, false, false).is_err());
    assert!(open(&damage.bytes, true, false).is_err());
    let (fs, report) = open(&damage.bytes, true, true).unwrap();
    assert!(report.warnings[0].contains("older state"), "{report:?}");
    fs.statfs(&Cx::default()).unwrap();
}

#[test]
fn what_is_not_supported_is_not_called_damaged() {
    let wrongs: [Wrong<RawSuperblock>; 6] = [
        ("packed_ssa", |raw| raw.feature.set(0x1_0000)),
        ("blkzoned", |raw| raw.feature.set(2)),
        ("device_alias", |raw| raw.feature.set(0x8000)),
        ("FEATURE_25", |raw| raw.feature.set(1 << 25)),
        ("blocks of 16 KiB", |raw| raw.log_blocksize.set(14)),
        // Fewer summaries than segments, as such a volume has.
        ("packed_ssa", |raw| {
            raw.feature.set(0x1_0000);
            raw.segment_count_ssa.set(0);
        }),
    ];
    for (name, wrong) in wrongs {
        let mut damage = Damage::new(Base::Plain);
        damage.superblocks(wrong);
        let report = check(&damage.bytes, &check::Options::default());
        let Some(Refusal::Unsupported { names }) = &report.refused else {
            panic!("{name}: {:?}", words(&report));
        };
        assert_eq!(names, name);
        assert!(report.issues.is_empty() && !report.is_clean(), "{name}");
        let said = open(&damage.bytes, true, true).err().unwrap();
        assert!(matches!(said, FsError::BadOption(_)), "{name}: {said}");
        assert!(said.to_string().contains(name), "{name}: {said}");
    }
}
