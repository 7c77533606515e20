//! Numbers of blocks that can be allocated, and of blocks that a checkpoint frees.

use super::*;
use crate::disk::SEGMENT_BLOCKS;

pub(super) const OWNER: Owner = Owner {
    nid: Nid(4),
    version: 0,
    slot: 0,
};

/// Allocates up to this number of data blocks and makes them valid.
pub(super) fn fill(volume: &Volume, blocks: usize) -> Vec<BlockAddr> {
    let mut filled = Vec::new();
    while filled.len() < blocks {
        let want = (blocks - filled.len()) as u32;
        let log = LogType::WarmData;
        let Ok(run) = volume.segments.allocate(log, want, Purpose::User) else {
            break;
        };
        filled.extend(run.blocks());
    }
    for addr in &filled {
        volume.segments.set_valid(*addr, OWNER);
    }
    filled
}

pub(super) fn invalidate(volume: &Volume, blocks: &[BlockAddr]) {
    for addr in blocks {
        volume.segments.invalidate(*addr, BlockKind::Data).unwrap();
    }
}

#[test]
fn capacity_is_what_free_sections_cursegs_and_dirty_segments_have() {
    let mut volume = Volume::new(128 << 20, 1);
    let before = volume.segments.capacity();
    let blocks = fill(&volume, 3 * SEGMENT_BLOCKS as usize);
    invalidate(&volume, &blocks[600..700]);
    volume.checkpoint(false);
    let segments = &volume.segments;
    let (free, rows) = (segments.free_sections(), segments.curseg_rows());
    assert!(free < 64);
    let left = |log: LogType| u64::from(SEGMENT_BLOCKS) - u64::from(rows[log.index()].open.offset);
    let nodes = [LogType::HotNode, LogType::WarmNode, LogType::ColdNode].map(left);
    let capacity = segments.capacity();
    assert_eq!(
        capacity.free,
        u64::from(free - 4) * u64::from(SEGMENT_BLOCKS)
    );
    assert_eq!(Some(&capacity.nodes), nodes.iter().min());
    // SSR uses the blocks that became free.
    let own = left(LogType::HotData);
    assert_eq!((before.dentries, capacity.dentries), (own, own + 100));
    assert_eq!(segments.holes(), (100, 0));
    segments.set_policy(|policy| policy.mode = policy::Mode::Lfs);
    assert_eq!(segments.capacity().dentries, own);
}

#[test]
fn with_many_free_sections_only_these_are_counted() {
    let volume = Volume::new(256 << 20, 1);
    let free = volume.segments.free_sections();
    assert!(free > 64);
    let capacity = volume.segments.capacity();
    assert_eq!(
        capacity.free,
        u64::from(free - 4) * u64::from(SEGMENT_BLOCKS)
    );
    assert_eq!((capacity.nodes, capacity.dentries), (0, 0));
}

#[test]
fn users_have_space_in_free_sections_and_by_ssr() {
    let volume = Volume::new(128 << 20, 1);
    volume
        .segments
        .set_policy(|policy| policy.max_search = u32::MAX);
    let has_space = |volume: &Volume, more| volume.segments.has_space(SpaceGoal::Users, more);
    assert!(has_space(&volume, 0));
    let blocks = fill(&volume, usize::MAX);
    // Six sections are kept for nodes.
    assert_eq!(volume.segments.free_sections(), 6);
    assert!(!has_space(&volume, 0) && has_space(&volume, 1));
    assert_eq!(volume.segments.sections_for_users(), 0);
    invalidate(&volume, &blocks[1000..1050]);
    let snapshot = volume.segments.snapshot();
    volume.segments.committed(&snapshot, false);
    assert_eq!(volume.segments.free_sections(), 6);
    assert!(has_space(&volume, 0), "in the segment with free blocks");
    assert_eq!(fill(&volume, usize::MAX).len(), 50);
}

#[test]
fn invalid_blocks_are_counted_since_the_mount_and_the_snapshot() {
    let mut volume = Volume::new(128 << 20, 1);
    let counts = |volume: &Volume| {
        let segments = &volume.segments;
        (segments.invalidated(), segments.freed_by_checkpoint())
    };
    let blocks = fill(&volume, 50);
    assert_eq!(counts(&volume), (0, 0));
    invalidate(&volume, &blocks[..7]);
    assert_eq!(counts(&volume), (7, 7));
    volume.checkpoint(false);
    assert_eq!(counts(&volume), (7, 0));
    invalidate(&volume, &blocks[7..10]);
    assert_eq!(counts(&volume), (10, 3));
}

#[test]
fn searches_count_the_sections_that_they_examine() {
    let mut volume = Volume::new(128 << 20, 1);
    let blocks = fill(&volume, 7 * SEGMENT_BLOCKS as usize);
    // The later a segment, the fewer valid blocks it has.
    for n in 0..6 {
        let first = (n + 1) * SEGMENT_BLOCKS as usize - 100;
        invalidate(&volume, &blocks[first..first + 10 + n]);
    }
    volume.checkpoint(false);
    let segments = &volume.segments;
    let mut skip = BTreeSet::new();
    let mut valid = 0;
    for examined in 1..=4 {
        let search = |cost| VictimSearch {
            cost,
            foreground: true,
            limit: None,
            skip: &skip,
        };
        let victim = segments.begin_cleaning(search(VictimCost::Greedy)).unwrap();
        assert_eq!(victim.looked_at, examined);
        assert!(victim.valid >= valid);
        segments.end_cleaning(victim.section);
        let by_age = segments.begin_cleaning(search(VictimCost::Age)).unwrap();
        let dirty = segments.counts().dirty;
        assert_eq!(by_age.looked_at, dirty);
        segments.end_cleaning(by_age.section);
        valid = victim.valid;
        skip.insert(victim.section);
    }
}

/// `alloc_mode=`: data goes on behind its last segment, or to the first free one. Hot data stays at the start.
#[test]
fn a_log_opens_its_next_segment_by_the_mode() {
    for (mode, at_start) in [(AllocMode::Default, false), (AllocMode::Reuse, true)] {
        let volume = Volume::new(128 << 20, 1);
        let segments = &volume.segments;
        segments.set_policy(|policy| policy.alloc = mode);
        let row = |log: LogType| segments.curseg_rows()[log.index()].open.segment;
        let (first, hot) = (row(LogType::WarmData), row(LogType::HotData));
        assert!(hot < first);
        let mut last = first;
        for _ in 0..3 {
            fill(&volume, SEGMENT_BLOCKS as usize + 1);
            let opened = row(LogType::WarmData);
            assert!(opened > last || (at_start && last == first), "{opened}");
            assert_eq!(opened < first, at_start, "{opened}");
            last = opened;
        }
        while row(LogType::HotData) == hot {
            let run = segments.allocate(LogType::HotData, SEGMENT_BLOCKS, Purpose::User);
            segments.release(run.unwrap());
        }
        assert!(row(LogType::HotData) < first);
    }
}

/// A crash before the checkpoint is durable returns to the copies of SIT blocks that it did not write.
#[test]
fn each_checkpoint_writes_the_other_copy_of_a_sit_block() {
    let mut volume = Volume::new(128 << 20, 1);
    let mut before = BTreeSet::new();
    for _ in 0..3 {
        // More segments of one SIT block than the journal has entries.
        fill(&volume, 8 * SEGMENT_BLOCKS as usize);
        let mut snapshot = volume.segments.snapshot();
        volume.write_pack(&mut snapshot, false);
        volume.segments.committed(&snapshot, false);
        let writes = snapshot.sit_writes().iter().map(|(at, _)| *at);
        let places: BTreeSet<BlockAddr> = writes.collect();
        assert!(!places.is_empty() && places.is_disjoint(&before));
        before = places;
    }
}

/// Logs of nodes and directories open the first free segment, so that these stay together.
#[test]
fn small_logs_return_to_the_first_free_segment() {
    use LogType::{ColdNode, HotData, HotNode, WarmNode};
    for log in [HotData, HotNode, WarmNode, ColdNode] {
        let volume = Volume::new(128 << 20, 1);
        let segments = &volume.segments;
        let opened = || segments.curseg_rows()[log.index()].open.segment;
        let next = || {
            let old = opened();
            while opened() == old {
                let run = segments.allocate(log, SEGMENT_BLOCKS, Purpose::User);
                segments.release(run.unwrap());
            }
            opened()
        };
        let moves = [next(), next(), next()];
        assert_ne!(moves[1], moves[0]);
        assert_eq!(moves[2], moves[0], "it is free again");
    }
}
