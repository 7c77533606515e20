//! Sections that background GC has begun.

use super::*;

/// Half full sections of four segments, without those of the log; their blocks.
fn half_full() -> (Volume, Vec<BlockAddr>) {
    let mut volume = Volume::new(512 << 20, 4);
    volume.segments.set_policy(|p| p.alloc = AllocMode::Reuse);
    let named = fill(&volume, 6 * 4 * 512);
    for addr in named.iter().step_by(2) {
        volume.segments.invalidate(*addr, BlockKind::Data).unwrap();
    }
    volume.checkpoint(false);
    (volume, named)
}

fn fill(volume: &Volume, blocks: usize) -> Vec<BlockAddr> {
    let owner = Owner {
        nid: Nid(4),
        version: 0,
        slot: 0,
    };
    let mut named = Vec::new();
    while named.len() < blocks {
        let run = volume
            .segments
            .allocate(LogType::WarmData, 512, Purpose::User);
        for addr in run.unwrap().blocks() {
            volume.segments.set_valid(addr, owner);
            named.push(addr);
        }
    }
    named
}

/// A round that moves nothing: its victim. It ends before segment `next`, if given.
fn round(volume: &Volume, foreground: bool, next: Option<u32>) -> Option<Victim> {
    let victim = volume.segments.begin_cleaning(VictimSearch {
        cost: VictimCost::Greedy,
        foreground,
        limit: Some(u32::MAX),
        skip: &BTreeSet::new(),
    })?;
    if let Some(next) = next {
        let next = SegNo(victim.section * 4 + next);
        volume.segments.resume_at(victim.section, next);
    }
    volume.segments.end_cleaning(victim.section);
    Some(victim)
}

#[test]
fn background_gc_continues_where_its_last_round_ended() {
    let (volume, _) = half_full();
    let first = round(&volume, false, Some(1)).unwrap();
    assert_eq!(first.resumed, None);
    for (next, from) in [(Some(3), 1), (None, 3)] {
        let again = round(&volume, false, next).unwrap();
        assert_eq!(again.section, first.section);
        assert_eq!(again.resumed, Some(SegNo(first.section * 4 + from)));
    }
    // That section is done; a waiting writer takes all of the next one.
    let other = round(&volume, false, Some(2)).unwrap();
    assert!(other.section != first.section && other.resumed.is_none());
    let waited: BTreeSet<u32> = (0..2)
        .map(|_| {
            let victim = round(&volume, true, None).unwrap();
            assert_eq!(victim.resumed, None);
            victim.section
        })
        .collect();
    assert_eq!(waited, BTreeSet::from([first.section, other.section]));
    // The background does not continue in the writer's section.
    assert_eq!(round(&volume, false, None).unwrap().resumed, None);
}

#[test]
fn a_section_that_became_free_is_no_longer_begun() {
    let (mut volume, named) = half_full();
    let victim = round(&volume, false, Some(2)).unwrap();
    let of_victim = |addr: &BlockAddr| {
        let (segment, _) = volume.layout.segment_of(*addr).unwrap();
        segment.0 / 4 == victim.section
    };
    let left: Vec<BlockAddr> = named
        .iter()
        .copied()
        .filter(|addr| of_victim(addr) && volume.segments.is_valid(*addr))
        .collect();
    for addr in left {
        volume.segments.invalidate(addr, BlockKind::Data).unwrap();
    }
    volume.checkpoint(false);
    // Until the section has been written again and is an ordinary candidate.
    let again = loop {
        let more = fill(&volume, 4 * 512);
        for addr in more.iter().step_by(2) {
            volume.segments.invalidate(*addr, BlockKind::Data).unwrap();
        }
        volume.checkpoint(false);
        let free = volume.segments.free_sections();
        let used = volume.segments.segments_of(victim.section);
        let written = used
            .iter()
            .all(|(at, _)| volume.segments.valid_in_segment(*at) > 0);
        if written || free < 8 {
            break written;
        }
    };
    assert!(again, "the section is used again");
    let mut found = BTreeSet::new();
    while let Some(victim) = round(&volume, false, None) {
        assert_eq!(victim.resumed, None);
        assert!(found.insert(victim.section));
    }
    assert!(found.contains(&victim.section), "{found:?}");
}
