//! Corruption that a read-only mount tolerates, and unsupported features, which are not corruption.

use std::sync::Arc;

use steadfs_block::MemDevice;
use steadfs_vfs::{Cx, FileSystem, FsError};

use steadfs_f2fs_format::check::{self, Refusal, check};
use steadfs_f2fs_format::test_support::corrupt::{BaseImage, CorruptVolume};
use steadfs_f2fs_format::test_support::words;

use crate::disk::Checkpoint;
use crate::disk::checkpoint::CpFlags;
use crate::disk::superblock::RawSuperblock;
use crate::disk::{LogType, SegNo};
use crate::mount::MountReport;
use crate::{CacheSizes, F2fs, MountOptions};

/// The name of a change, and the change.
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

/// The volume can be read, with a warning, and neither a mount nor a remount for writing succeeds.
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
fn wrong_counts_and_cursegs_prevent_writing_only() {
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
        let mut volume = CorruptVolume::new(BaseImage::Plain);
        volume.checkpoint(wrong);
        only_read(&volume.bytes, what);
    }
}

#[test]
fn a_missing_free_end_prevents_writing_only() {
    let mut volume = CorruptVolume::new(BaseImage::Plain);
    volume.bytes.truncate(96 << 20);
    only_read(&volume.bytes, "truncated");
}

#[test]
fn a_corrupt_sit_prevents_writing_only() {
    let mut volume = CorruptVolume::new(BaseImage::Plain);
    let second = volume.opened().checkpoint.sit_second(0);
    let table = volume.layout.sit_block(0, second);
    volume.block(table).fill(0x5a);
    assert!(open(&volume.bytes, false, false).is_err());
    let (fs, _) = open(&volume.bytes, true, false).unwrap();
    assert_eq!(small(&fs).unwrap(), [b's'; 30_000]);
}

#[test]
fn salvage_skips_a_corrupt_nat_journal() {
    let mut volume = CorruptVolume::new(BaseImage::Plain);
    let opened = volume.opened();
    let cp = &opened.checkpoint;
    // The journal's count: in compact summaries the first bytes, otherwise after the entries of the hot data
    // summary.
    let compacted = cp.flags.contains(CpFlags::COMPACT_SUMMARIES);
    let (n, at) = match compacted {
        true => (cp.start_sum, 0),
        false => (cp.summary_in_pack(LogType::HotData).unwrap(), 512 * 7),
    };
    let block = volume.layout.pack_start(opened.pack).plus(n);
    volume.block(block)[at..at + 2].fill(0xff);
    assert!(open(&volume.bytes, false, false).is_err());
    assert!(open(&volume.bytes, true, false).is_err());
    let (fs, report) = open(&volume.bytes, true, true).unwrap();
    assert!(report.warnings[0].contains("older state"), "{report:?}");
    fs.statfs(&Cx::default()).unwrap();
}

#[test]
fn unsupported_features_are_not_corruption() {
    let wrongs: [Wrong<RawSuperblock>; 6] = [
        ("packed_ssa", |raw| raw.feature.set(0x1_0000)),
        ("blkzoned", |raw| raw.feature.set(2)),
        ("device_alias", |raw| raw.feature.set(0x8000)),
        ("FEATURE_25", |raw| raw.feature.set(1 << 25)),
        ("blocks of 16 KiB", |raw| raw.log_blocksize.set(14)),
        // Fewer summary blocks than segments, as on such a volume.
        ("packed_ssa", |raw| {
            raw.feature.set(0x1_0000);
            raw.segment_count_ssa.set(0);
        }),
    ];
    for (name, wrong) in wrongs {
        let mut volume = CorruptVolume::new(BaseImage::Plain);
        volume.superblocks(wrong);
        let report = check(&volume.bytes, &check::Options::default());
        let Some(Refusal::Unsupported { names }) = &report.refused else {
            panic!("{name}: {:?}", words(&report));
        };
        assert_eq!(names, name);
        assert!(report.issues.is_empty() && !report.is_clean(), "{name}");
        let said = open(&volume.bytes, true, true).err().unwrap();
        assert!(matches!(said, FsError::BadOption(_)), "{name}: {said}");
        assert!(said.to_string().contains(name), "{name}: {said}");
    }
}
