//! Free runs that are allocated for a discard, and the statistics of sections.

use super::*;
use crate::disk::SEGMENT_BLOCKS;

const OWNER: Owner = Owner {
    nid: Nid(4),
    version: 0,
    slot: 0,
};

/// Makes data segments valid, then invalidates the blocks of the first one that `freed` has; the next checkpoint makes
/// these free. Returns the first block of the first segment.
fn with_holes(volume: &mut Volume, freed: &[std::ops::Range<u32>]) -> BlockAddr {
    let segments = &volume.segments;
    let log = segments.curseg_rows()[LogType::WarmData.index()].open;
    let rest = SEGMENT_BLOCKS - u32::from(log.offset);
    let allocate = |want| segments.allocate(LogType::WarmData, want, Purpose::User);
    for addr in allocate(rest).unwrap().blocks() {
        segments.set_valid(addr, OWNER);
    }
    let run = allocate(SEGMENT_BLOCKS).unwrap();
    assert_eq!(run.len, SEGMENT_BLOCKS);
    for addr in run.blocks() {
        segments.set_valid(addr, OWNER);
    }
    for n in freed.iter().cloned().flatten() {
        let addr = run.start.plus(n);
        segments.invalidate(addr, BlockKind::Data).unwrap();
    }
    volume.checkpoint(false);
    run.start
}

/// Position of a block in the main area.
fn position(volume: &Volume, addr: BlockAddr) -> u32 {
    addr.0 - volume.layout.main_start
}

#[test]
fn free_runs_of_the_least_length_are_allocated_in_order() {
    let mut volume = Volume::new(128 << 20, 1);
    let start = with_holes(&mut volume, &[10..20, 100..130, 500..512]);
    let at = position(&volume, start);
    let segments = &volume.segments;
    let find = |from: u32, to: u32, min: u32| {
        let run = segments.allocate_free_run(at + from..at + to, min)?;
        let again = segments.allocate_free_run(at + from..at + to, min);
        assert_ne!(again, Some(run), "an allocated run is not free");
        again.into_iter().for_each(|run| segments.release(run));
        segments.release(run);
        segments.check();
        Some((run.start.0 - start.0, run.len))
    };
    assert_eq!(find(0, 512, 0), Some((10, 10)));
    assert_eq!(find(0, 512, 10), Some((10, 10)));
    assert_eq!(find(0, 512, 11), Some((100, 30)));
    assert_eq!(find(0, 512, 31), None);
    // The range cuts runs.
    assert_eq!(find(15, 18, 1), Some((15, 3)));
    assert_eq!(find(15, 512, 6), Some((100, 30)));
    assert_eq!(find(20, 100, 1), None);
    assert_eq!(find(110, 512, 13), Some((110, 20)));
    assert_eq!(find(125, 512, 12), Some((500, 12)));
    assert_eq!(find(130, 500, 1), None);
    assert_eq!(find(130, 501, 1), Some((500, 1)));
    assert_eq!(find(7, 7, 1), None);
}

#[test]
fn free_segments_are_allocated_one_by_one_outside_the_cursegs() {
    let volume = Volume::new(128 << 20, 1);
    let segments = &volume.segments;
    let free = segments.counts().free;
    let mut runs = Vec::new();
    // The end of the range is that of the main area.
    while let Some(run) = segments.allocate_free_run(0..u32::MAX, SEGMENT_BLOCKS) {
        assert_eq!(run.len, SEGMENT_BLOCKS);
        assert_eq!(position(&volume, run.start) % SEGMENT_BLOCKS, 0);
        let open = segments.curseg_rows().map(|row| row.open.segment);
        let (segment, _) = volume.layout.segment_of(run.start).unwrap();
        assert!(!open.contains(&segment));
        runs.push(run);
    }
    assert_eq!(runs.len() as u32, free);
    assert!(runs.windows(2).all(|pair| pair[0].start < pair[1].start));
    assert_eq!(segments.counts().free, 0);
    runs.into_iter().for_each(|run| segments.release(run));
    assert_eq!(segments.counts().free, free);
    segments.check();
}

/// As for a device that discards no less.
#[test]
fn a_run_that_is_longer_than_a_segment_has_several() {
    let volume = Volume::new(128 << 20, 1);
    let segments = &volume.segments;
    let free = segments.counts().free;
    for number in [2, 3] {
        let min = number * SEGMENT_BLOCKS - 1;
        let run = segments.allocate_free_run(0..u32::MAX, min).unwrap();
        assert_eq!(run.len, number * SEGMENT_BLOCKS);
        assert_eq!(segments.counts().free, free - number);
        segments.release(run);
        let at = position(&volume, run.start);
        assert_eq!(
            segments.allocate_free_run(at..at + run.len - 1, min + 1),
            None
        );
        segments.check();
    }
    // The rest is left to those that write.
    let most = free / 4 + 1;
    let run = segments.allocate_free_run(0..u32::MAX, most * SEGMENT_BLOCKS);
    assert_eq!(run, None);
}

#[test]
fn many_free_segments_are_allocated_at_once() {
    let volume = Volume::new(2300 << 20, 1);
    let segments = &volume.segments;
    let free = segments.counts().free;
    assert!((1024 + 32..1200).contains(&free), "{free}");
    let first = segments.allocate_free_run(0..u32::MAX, 1).unwrap();
    assert_eq!(first.len, 16 * SEGMENT_BLOCKS);
    assert_eq!(segments.counts().free, free - 16);
    // Only those that are inside of the range as a whole.
    let from = position(&volume, first.start) + first.len;
    let part = from..from + 5 * SEGMENT_BLOCKS - 1;
    let second = segments.allocate_free_run(part, 1).unwrap();
    assert_eq!(second.start, first.start.plus(first.len));
    assert_eq!(second.len, 4 * SEGMENT_BLOCKS);
    let end = from + second.len;
    let third = segments.allocate_free_run(end..end + 2 * SEGMENT_BLOCKS, 1);
    assert_eq!(third.unwrap().len, 2 * SEGMENT_BLOCKS);
    // At 1024 free sections the others stay free.
    let mut last = 0;
    while segments.counts().free > 1024 {
        last = segments.allocate_free_run(0..u32::MAX, 1).unwrap().len;
    }
    assert_eq!(segments.counts().free, 1024);
    assert!(last <= 16 * SEGMENT_BLOCKS, "{last}");
    let single = segments.allocate_free_run(0..u32::MAX, 1).unwrap();
    assert_eq!(single.len, SEGMENT_BLOCKS);
}

#[test]
fn the_distribution_is_bimodal_if_sections_are_full_or_empty() {
    for per_section in [1, 3] {
        let volume = Volume::new(128 << 20, per_section);
        let (segments, layout) = (&volume.segments, &volume.layout);
        let size = i64::from(per_section * SEGMENT_BLOCKS);
        let expected = || {
            let sections = layout.main_segments / per_section;
            let first = layout.block_in(SegNo(0), 0);
            let valid_in = |n: u32| {
                let start = first.plus(n * size as u32);
                let blocks = (0..size as u32).map(|n| start.plus(n));
                blocks.filter(|at| segments.is_valid(*at)).count() as i64
            };
            let valid: Vec<_> = (0..sections).map(valid_in).collect();
            let spread: i64 = valid.iter().map(|n| (n - size / 2).pow(2)).sum();
            let most = i64::from(sections) * (size / 2).pow(2);
            let partly = valid.iter().filter(|n| **n > 0 && **n < size);
            let mean = partly.clone().sum::<i64>() / partly.count().max(1) as i64;
            ((spread * 100 / most) as u64, mean as u64)
        };
        let fresh = segments.distribution();
        assert_eq!(fresh, expected());
        assert!(fresh.0 > 90, "{fresh:?}");
        let sections = layout.main_segments / per_section / 4;
        let mut half = Vec::new();
        for n in 0..sections * per_section * SEGMENT_BLOCKS {
            let run = segments.allocate(LogType::WarmData, 1, Purpose::User);
            let addr = run.unwrap().start;
            segments.set_valid(addr, OWNER);
            half.extend((n % 2 == 0).then_some(addr));
        }
        let full = segments.distribution();
        assert_eq!(full, expected());
        assert!(full.0 > 90, "{full:?}");
        for addr in half {
            segments.invalidate(addr, BlockKind::Data).unwrap();
        }
        let halves = segments.distribution();
        assert_eq!(halves, expected());
        assert!(halves.0 < 85 && halves.1 > size as u64 / 4, "{halves:?}");
    }
}
