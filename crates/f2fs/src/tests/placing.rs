//! What a checkpoint places and writes: counts of it, and what stays dirty when it fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use steadfs_base::IoTag;
use steadfs_block::Op;
use steadfs_vfs::FsError;

use super::chains::with_faults;
use super::checkpoints::{check_file, make_file, writable};
use super::{mount_device, read_only};
use crate::checkpoint::Reason;
use crate::disk::{self, BLOCK_SIZE, LogType, Nid, SEGMENT_BLOCKS};
use crate::format::{FormatOptions, image};
use crate::segment::{Purpose, Run};
use crate::space::Need;
use crate::test_world::fsck;
use crate::{CacheSizes, F2fs};

fn tag() -> IoTag {
    IoTag::default()
}

/// Allocates all sections, and all that a log can have. Returns what was allocated.
fn use_up(fs: &F2fs, log: LogType) -> Vec<Run> {
    let segments = fs.segments();
    let sections = std::iter::from_fn(|| segments.allocate_free_run(0..u32::MAX, 1));
    let mut used: Vec<Run> = sections.collect();
    let own = || segments.allocate(log, SEGMENT_BLOCKS, Purpose::Reserved);
    used.extend(std::iter::from_fn(|| own().ok()));
    used
}

fn release(fs: &F2fs, used: Vec<Run>) {
    for run in used {
        fs.segments().release(run);
    }
}

/// Directory blocks that have no address yet.
fn unwritten(fs: &F2fs) -> u64 {
    fs.inode(Nid::ROOT, tag()).unwrap().pages.unwritten()
}

/// Creates an inode without a name.
fn make_inode(fs: &F2fs) {
    let need = Need {
        blocks: 0,
        nodes: 1,
    };
    fs.space.reserve(need, false).unwrap();
    let core = |_, _: &mut [u8]| disk::Inode {
        mode: 0o100_644,
        blocks: 1,
        ..disk::Inode::default()
    };
    let made = fs.new_inode(&fs.change().unwrap(), (None, 0), core, tag());
    made.unwrap();
}

/// Half of the free sections, and what the logs have in any case.
#[test]
fn a_checkpoint_is_due_when_dirty_nodes_need_half_of_the_free_space() {
    for per_section in [1, 2] {
        let format = FormatOptions {
            segments_per_section: per_section,
            ..FormatOptions::default()
        };
        let fs = writable(&image(128 << 20, &format).unwrap());
        let segments = fs.segments();
        while segments.free_sections() > 1 {
            segments.allocate_free_run(0..u32::MAX, 1).unwrap();
        }
        let limit = u64::from(SEGMENT_BLOCKS * per_section / 2 + SEGMENT_BLOCKS / 2);
        for n in 0.. {
            let (nodes, inodes) = (fs.nodes.dirty_count(), fs.inodes.dirty_count());
            assert_eq!(fs.nodes_to_place(), nodes + inodes);
            assert!(n == 0 || (nodes > 0 && inodes > 0), "{nodes} {inodes}");
            let is_excess = fs.excess_of_free_space();
            assert_eq!(
                is_excess,
                (nodes + inodes) as u64 > limit,
                "{nodes} {inodes}"
            );
            assert_eq!(fs.excess_dirty_nodes(), is_excess);
            if is_excess {
                break;
            }
            make_inode(&fs);
        }
    }
}

/// Operations wait for a checkpoint when four times the nodes are dirty for which one is due.
#[test]
fn operations_leave_a_bounded_number_of_dirty_nodes() {
    let device = image(64 << 20, &FormatOptions::default()).unwrap();
    let (fs, _) = F2fs::open(device, read_only(), CacheSizes::of(2 << 20)).unwrap();
    fs.read_segments(tag()).unwrap();
    assert!(fs.stop_state.become_writable());
    let most = 4 * fs.node_limit();
    loop {
        let dirty = fs.nodes.dirty_count();
        assert!(!fs.excess_of_free_space(), "{dirty} of {most}");
        assert_eq!(fs.excess_dirty_nodes(), dirty > most, "{dirty} of {most}");
        if dirty > most {
            break;
        }
        make_inode(&fs);
    }
}

/// Directory blocks for which there was no space are written by the next checkpoint.
#[test]
fn directories_stay_dirty_without_space() {
    let device = image(64 << 20, &FormatOptions::default()).unwrap();
    let fs = writable(&device);
    make_file(&fs, b"first", 0);
    fs.checkpoint(Reason::Sync, tag()).unwrap();
    make_file(&fs, b"second", 0);
    let dirty = unwritten(&fs);
    assert!(dirty > 0);
    let used = use_up(&fs, LogType::HotData);
    for _ in 0..2 {
        let result = fs.checkpoint(Reason::Sync, tag());
        assert_eq!(result, Err(FsError::NoSpace));
        assert_eq!((unwritten(&fs), fs.abort_cause()), (dirty, None));
    }
    release(&fs, used);
    fs.checkpoint(Reason::Sync, tag()).unwrap();
    assert_eq!(unwritten(&fs), 0);
    let copy = Arc::new(device.copy());
    fsck(&copy);
    check_file(&mount_device(&copy).unwrap(), b"second", 0);
}

/// Those that were placed are written although the nodes behind them are not.
#[test]
fn placed_directories_are_written_without_space_for_nodes() {
    let device = image(64 << 20, &FormatOptions::default()).unwrap();
    let fs = writable(&device);
    make_file(&fs, b"first", 0);
    let used = use_up(&fs, LogType::WarmNode);
    let result = fs.checkpoint(Reason::Sync, tag());
    assert_eq!(result, Err(FsError::NoSpace));
    assert_eq!((unwritten(&fs), fs.abort_cause()), (0, None));
    release(&fs, used);
    fs.checkpoint(Reason::Sync, tag()).unwrap();
    let copy = Arc::new(device.copy());
    fsck(&copy);
    check_file(&mount_device(&copy).unwrap(), b"first", 0);
}

/// The state in memory can still be read; no later checkpoint succeeds.
#[test]
fn a_failed_checkpoint_aborts_and_keeps_directories_dirty() {
    let (device, fs) = with_faults();
    make_file(&fs, b"file", 0);
    let dirty = unwritten(&fs);
    device.fail_writes(true);
    let result = fs.checkpoint(Reason::Sync, tag());
    assert!(matches!(result, Err(FsError::Io(_))), "{result:?}");
    let cause = fs.abort_cause().unwrap();
    assert!(cause.starts_with("a checkpoint failed: "), "{cause}");
    assert_eq!(unwritten(&fs), dirty);
    check_file(&fs, b"file", 0);
    device.fail_writes(false);
    let again = fs.checkpoint(Reason::Sync, tag());
    assert_eq!(again, Err(FsError::Stopped(cause)));
    let begun = fs.checkpoints.node_version().1;
    let waited = fs.wait_checkpoint(begun, tag());
    assert!(matches!(waited, Err(FsError::Stopped(_))), "{waited:?}");
}

/// The counts of metadata writes are those that the device sees.
#[test]
fn metadata_writes_are_counted_by_area() {
    let (device, fs) = with_faults();
    let layout = fs.layout.clone();
    let areas = [
        ("cp", layout.cp_start),
        ("sit", layout.sit_start),
        ("nat", layout.nat_start),
        ("ssa", layout.ssa_start),
    ];
    let seen = Arc::new(areas.map(|_| AtomicU64::new(0)));
    let counts = Arc::clone(&seen);
    device.fail(move |bio| {
        let block = (bio.offset / BLOCK_SIZE as u64) as u32;
        if bio.op == Op::Write && block < layout.main_start {
            let area = areas.iter().rposition(|(_, start)| block >= *start);
            let len: usize = bio.bufs.iter().map(|buf| buf.len()).sum();
            let area = area.expect("nothing is written before the packs");
            counts[area].fetch_add((len / BLOCK_SIZE) as u64, Ordering::Relaxed);
        }
        false
    });
    let written = || {
        let counts = seen.iter().map(|count| count.load(Ordering::Relaxed));
        areas
            .iter()
            .map(|area| area.0)
            .zip(counts)
            .collect::<Vec<_>>()
    };
    let counted = || fs.checkpoints.meta_writes().collect::<Vec<_>>();
    // With more changed entries than the journals have.
    for n in 0..150 {
        make_file(&fs, format!("{n}").as_bytes(), u64::from(n < 4) * 400);
    }
    for _ in 0..2 {
        make_file(
            &fs,
            format!("after {}", fs.checkpoints.written()).as_bytes(),
            0,
        );
        fs.checkpoint(Reason::Sync, tag()).unwrap();
        assert_eq!(counted(), written());
    }
    fs.checkpoint(Reason::Unmount, tag()).unwrap();
    assert_eq!(counted(), written());
    assert!(
        written().iter().all(|(_, count)| *count > 0),
        "{:?}",
        written()
    );
}
