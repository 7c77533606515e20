//! Allocation and cleaning while checkpoints are disabled, and in sections that are in use otherwise.

use super::space::{OWNER, fill, invalidate};
use super::*;
use crate::disk::SEGMENT_BLOCKS;

const SEGMENT: usize = SEGMENT_BLOCKS as usize;

/// Writes a checkpoint after which they are disabled.
fn disable(volume: &Volume) {
    let snapshot = volume.segments.snapshot();
    volume.segments.committed(&snapshot, true);
    volume.segments.check();
}

/// The section of a block, where sections are segments.
fn section(volume: &Volume, addr: BlockAddr) -> u32 {
    volume.layout.segment_of(addr).unwrap().0.0
}

/// Blocks of the last checkpoint are kept, whatever else happens to them; all others can be used.
#[test]
fn without_checkpoints_the_blocks_of_the_last_one_are_kept() {
    let mut volume = Volume::new(128 << 20, 1);
    let old = fill(&volume, 4 * SEGMENT + 100);
    let parts: Vec<&[BlockAddr]> = old.chunks(SEGMENT).collect();
    let [full, part, kept, ..] = parts[..] else {
        unreachable!("five segments are in use")
    };
    // Of the second segment 100 blocks stay.
    invalidate(&volume, &part[100..]);
    volume.checkpoint(false);
    disable(&volume);
    let before = volume.segments.capacity();
    let segments = &volume.segments;
    for addr in full.iter().chain(&part[..100]) {
        assert_eq!(segments.invalidate(*addr, BlockKind::Data), Ok(true));
    }
    let counts = segments.counts();
    assert_eq!(counts.prefree, 2, "both are needed after a crash");
    let capacity = segments.capacity();
    // SSR could use the second one before, and can now, as one without valid blocks.
    let room = (SEGMENT - 100) as u64;
    assert_eq!(capacity, before);
    assert!(capacity.dentries >= room);
    let new = fill(&volume, SEGMENT);
    assert_eq!(segments.may_overwrite(kept[0], 5), 0);
    assert_eq!(segments.may_overwrite(new[0], 5), 5);
    let last = *old.last().unwrap();
    assert_eq!(new[0], last.plus(1), "in the same segment");
    assert_eq!(segments.may_overwrite(last, 2), 0);
    assert_eq!(segments.invalidate(new[0], BlockKind::Data), Ok(false));
    // Only what was written since can be cleaned.
    let place = |addr| section(&volume, addr);
    let busy = segments.begin_cleaning_of(place(kept[0]));
    assert_eq!(busy, Err(FsError::Busy));
    let skip = BTreeSet::new();
    let search = VictimSearch {
        cost: VictimCost::Greedy,
        foreground: true,
        limit: None,
        skip: &skip,
    };
    assert_eq!(segments.begin_cleaning(search), None);
    let more = fill(&volume, 2 * SEGMENT);
    let whole = more
        .iter()
        .find(|addr| volume.layout.segment_of(**addr).unwrap().1 == 0);
    let whole = *whole.unwrap();
    invalidate(&volume, &[whole]);
    let victim = segments.begin_cleaning(search).unwrap();
    assert_eq!(victim.section, place(whole));
    segments.end_cleaning(victim.section);
    // All that is left, for any purpose.
    let mut rest = Vec::new();
    while let Ok(run) = segments.allocate(LogType::WarmData, SEGMENT_BLOCKS, Purpose::Reserved) {
        rest.extend(run.blocks());
        segments.check();
    }
    let is_old = |addr: &&BlockAddr| old.contains(addr) && !part[100..].contains(addr);
    assert_eq!(rest.iter().chain(&more).find(is_old), None);
    let reused = rest.iter().filter(|addr| part[100..].contains(addr));
    // The last block stays, so that the log has a position.
    assert!(reused.count() >= part.len() - 101);
    assert_eq!(segments.free_sections(), 0);
}

/// A checkpoint after the disabled ones makes everything usable that it does not have.
#[test]
fn an_enabled_checkpoint_frees_what_was_kept() {
    let mut volume = Volume::new(128 << 20, 1);
    let old = fill(&volume, SEGMENT + 10);
    volume.checkpoint(false);
    disable(&volume);
    invalidate(&volume, &old[..SEGMENT]);
    let again = fill(&volume, 20);
    let free = volume.segments.free_sections();
    assert_eq!(volume.segments.counts().prefree, 1);
    volume.checkpoint(false);
    assert_eq!(volume.segments.counts().prefree, 0);
    assert_eq!(volume.segments.free_sections(), free + 1);
    let segments = &volume.segments;
    assert_eq!(segments.may_overwrite(again[0], 3), 3);
    assert_eq!(segments.invalidate(again[0], BlockKind::Data), Ok(false));
}

/// What is in the snapshot of that checkpoint is kept from then on.
#[test]
fn the_enabling_checkpoint_keeps_what_it_has() {
    let volume = Volume::new(128 << 20, 1);
    disable(&volume);
    let blocks = fill(&volume, SEGMENT + 10);
    let segments = &volume.segments;
    let snapshot = segments.snapshot();
    // As no checkpoint had them, the only trace is in the snapshot.
    invalidate(&volume, &blocks);
    let own = || segments.allocate(LogType::WarmData, SEGMENT_BLOCKS, Purpose::Reserved);
    for run in std::iter::from_fn(|| own().ok()).collect::<Vec<_>>() {
        assert!(run.blocks().all(|addr| !blocks.contains(&addr)), "{run:?}");
        segments.release(run);
    }
    segments.committed(&snapshot, false);
    segments.check();
    assert_eq!(segments.counts().prefree, 2, "both segments are kept");
    let snapshot = segments.snapshot();
    segments.committed(&snapshot, false);
    assert_eq!(segments.counts().prefree, 0);
}

/// A search by age ignores its threshold only on a volume that has not been mounted for that long.
#[test]
fn young_sections_are_not_cleaned_by_age_on_an_old_volume() {
    for (mounted, found) in [(500, true), (1500, false)] {
        sim::run(sim::Config::new(1), move || {
            let mut volume = Volume::new(128 << 20, 1);
            let rules = AgeRules {
                threshold: 1000,
                ..AgeRules::default()
            };
            volume.segments.set_age_rules(rules);
            steadfs_rt::sleep(Duration::from_secs(mounted));
            let blocks = fill(&volume, 2 * SEGMENT);
            invalidate(&volume, &blocks[..50]);
            volume.checkpoint(false);
            let skip = BTreeSet::new();
            let search = VictimSearch {
                cost: VictimCost::Age,
                foreground: true,
                limit: None,
                skip: &skip,
            };
            assert_eq!(volume.segments.begin_cleaning(search).is_some(), found);
        });
    }
}

/// Allocated blocks of a section become valid or are released soon: it is not cleaned until then.
#[test]
fn a_section_with_allocated_blocks_is_not_cleaned() {
    let volume = Volume::new(128 << 20, 1);
    let blocks = fill(&volume, SEGMENT - 5);
    let segments = &volume.segments;
    let run = segments
        .allocate(LogType::WarmData, 5, Purpose::User)
        .unwrap();
    assert_eq!(section(&volume, run.start), section(&volume, blocks[0]));
    fill(&volume, 10);
    invalidate(&volume, &blocks[..7]);
    let at = section(&volume, blocks[0]);
    assert_eq!(segments.begin_cleaning_of(at), Err(FsError::Busy));
    for addr in run.blocks().take(4) {
        segments.set_valid(addr, OWNER);
    }
    assert_eq!(segments.begin_cleaning_of(at), Err(FsError::Busy));
    segments.release(Run {
        start: run.start.plus(4),
        len: 1,
    });
    let victim = segments.begin_cleaning_of(at).unwrap().unwrap();
    assert_eq!(victim.valid, SEGMENT_BLOCKS - 7 - 1);
    // One at a time.
    assert_eq!(segments.begin_cleaning_of(at + 1), Err(FsError::Busy));
    assert_eq!(segments.end_cleaning(at), victim.valid);
    let open = segments.curseg_rows()[LogType::WarmData.index()].open;
    let in_use = segments.begin_cleaning_of(open.segment.0);
    assert_eq!(in_use, Err(FsError::Busy), "a curseg is in it");
}

/// Blocks and segments used by LFS, by SSR, and segments examined for SSR.
fn usage(volume: &Volume) -> [u64; 5] {
    let usage = volume.segments.usage();
    [
        usage.lfs_blocks,
        usage.lfs_segments,
        usage.ssr_blocks,
        usage.ssr_segments,
        usage.scanned,
    ]
}

/// The same since then.
fn since(volume: &Volume, before: [u64; 5]) -> [u64; 5] {
    let now = usage(volume);
    std::array::from_fn(|n| now[n] - before[n])
}

/// What is moved by age goes to segments of its own, or to dirty segments of that age.
#[test]
fn data_moved_by_age_has_a_log_of_its_own() {
    let mut volume = Volume::new(128 << 20, 1);
    let blocks = fill(&volume, 3 * SEGMENT);
    let layout = volume.layout.clone();
    let place = |addr| layout.segment_of(addr).unwrap().0.0;
    let moved = |volume: &Volume, want| volume.segments.allocate_atgc(blocks[0], want).unwrap();
    let before = usage(&volume);
    // No segment is dirty.
    let first = moved(&volume, 10);
    let rest = moved(&volume, 2 * SEGMENT_BLOCKS);
    assert_eq!((first.len, rest.len), (10, SEGMENT_BLOCKS - 10));
    assert_eq!(rest.start, first.start.plus(10));
    assert_eq!(since(&volume, before), [512, 1, 0, 0, 0]);
    let next = moved(&volume, 5);
    assert_ne!(place(next.start), place(first.start), "the segment is full");
    assert_eq!(since(&volume, before), [517, 2, 0, 0, 0]);
    for addr in first.blocks().chain(rest.blocks()).chain(next.blocks()) {
        volume.segments.set_valid_atgc(addr, OWNER, blocks[0]);
    }
    // A checkpoint closes the log: its segment is dirty from then on, like the one with 90 holes.
    invalidate(&volume, &blocks[SEGMENT..SEGMENT + 90]);
    volume.checkpoint(false);
    assert_eq!(volume.segments.counts().dirty, 2);
    let before = usage(&volume);
    let holes = moved(&volume, 50);
    assert_eq!(since(&volume, before), [0, 0, 50, 1, 2]);
    let used = place(holes.start);
    assert!([place(next.start), place(blocks[SEGMENT])].contains(&used));
    for addr in holes.blocks() {
        volume.segments.release(Run {
            start: addr,
            len: 1,
        });
    }
    // The victim of GC is not filled while it is emptied.
    volume.checkpoint(false);
    for at in [place(next.start), place(blocks[SEGMENT])] {
        volume.segments.begin_cleaning_of(at).unwrap().unwrap();
        let run = moved(&volume, 1);
        assert_ne!(place(run.start), at);
        volume.segments.release(run);
        volume.segments.end_cleaning(at);
        volume.checkpoint(false);
    }
    // No dirty segment is used with `mode=lfs`, and the sections that nodes need are not either.
    volume
        .segments
        .set_policy(|policy| policy.mode = policy::Mode::Lfs);
    let before = usage(&volume);
    volume.segments.release(moved(&volume, 1));
    assert_eq!(since(&volume, before), [1, 1, 0, 0, 0]);
    volume.checkpoint(false);
    while volume
        .segments
        .allocate(LogType::WarmData, SEGMENT_BLOCKS, Purpose::User)
        .is_ok()
    {}
    assert_eq!(volume.segments.free_sections(), 6);
    assert_eq!(volume.segments.allocate_atgc(blocks[0], 1), None);
}

/// Nodes are not moved by age.
#[test]
fn nodes_are_not_moved_by_age() {
    let volume = Volume::new(128 << 20, 1);
    let node = volume
        .segments
        .place_node(LogType::WarmNode, Nid(9))
        .unwrap();
    assert_eq!(volume.segments.allocate_atgc(node.addr, 1), None);
    let outside = BlockAddr(volume.layout.main_start - 1);
    assert_eq!(volume.segments.allocate_atgc(outside, 1), None);
}

/// A block that is moved by age keeps the age of the segment that it comes from.
#[test]
fn moved_blocks_keep_their_age() {
    sim::run(sim::Config::new(1), || {
        let volume = Volume::new(128 << 20, 1);
        steadfs_rt::sleep(Duration::from_secs(100));
        let old = fill(&volume, SEGMENT);
        steadfs_rt::sleep(Duration::from_secs(1000));
        let stamp = |addr| {
            let inner = volume.segments.inner.lock();
            inner
                .manager
                .sit
                .stamp(volume.layout.segment_of(addr).unwrap().0)
        };
        let age = stamp(old[0]);
        assert!((100..1100).contains(&age), "{age}");
        let run = volume.segments.allocate_atgc(old[0], 3).unwrap();
        for addr in run.blocks() {
            volume.segments.set_valid_atgc(addr, OWNER, old[0]);
        }
        assert_eq!(stamp(run.start), age);
        let new = fill(&volume, 3);
        assert_eq!(stamp(new[0]), volume.segments.elapsed());
    });
}

/// The summary block of a segment, which the next checkpoint overwrites, is that of one kind of blocks.
#[test]
fn without_checkpoints_a_prefree_segment_keeps_its_kind() {
    let mut volume = Volume::new(128 << 20, 1);
    let nodes = |volume: &Volume, want: u32| -> Vec<BlockAddr> {
        let run = |left: usize| {
            let left = left as u32;
            volume
                .segments
                .allocate(LogType::ColdNode, left, Purpose::User)
        };
        let mut all = Vec::new();
        while all.len() < want as usize {
            let run = run(want as usize - all.len()).unwrap();
            for addr in run.blocks() {
                volume.segments.set_valid(addr, OWNER);
                all.push(addr);
            }
        }
        all
    };
    let old = nodes(&volume, 3 * SEGMENT_BLOCKS);
    // Its segments keep a hundred valid blocks each in the checkpoint.
    let gone: Vec<BlockAddr> = old
        .chunks(SEGMENT)
        .flat_map(|part| part[100..].to_vec())
        .collect();
    let invalidate_nodes = |volume: &Volume, blocks: &[BlockAddr]| {
        for addr in blocks {
            volume.segments.invalidate(*addr, BlockKind::Node).unwrap();
        }
    };
    invalidate_nodes(&volume, &gone);
    volume.checkpoint(false);
    disable(&volume);
    let kept: Vec<BlockAddr> = old
        .iter()
        .copied()
        .filter(|addr| !gone.contains(addr))
        .collect();
    invalidate_nodes(&volume, &kept);
    let segments = &volume.segments;
    assert!(segments.counts().prefree >= 2);
    let places: BTreeSet<u32> = old.iter().map(|addr| section(&volume, *addr)).collect();
    while let Ok(run) = segments.allocate(LogType::WarmData, SEGMENT_BLOCKS, Purpose::Reserved) {
        assert!(!places.contains(&section(&volume, run.start)), "{run:?}");
    }
    let again = segments.allocate(LogType::ColdNode, SEGMENT_BLOCKS, Purpose::Reserved);
    assert!(again.is_ok(), "nodes use them");
}
