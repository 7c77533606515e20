//! Full volumes, recovery and inconsistent tables.

use super::*;

#[test]
fn a_full_volume_can_allocate_nodes() {
    let mut volume = Volume::new(128 << 20, 1);
    volume.segments.set_policy(|p| p.max_search = u32::MAX);
    let owner = Owner {
        nid: Nid(4),
        version: 0,
        slot: 0,
    };
    let mut allocated = Vec::new();
    while let Ok(run) = volume
        .segments
        .allocate(LogType::WarmData, 512, Purpose::User)
    {
        allocated.extend(run.blocks());
    }
    let counts = volume.segments.counts();
    assert_eq!(counts.free_sections, 6);
    volume.segments.check();
    for addr in &allocated {
        volume.segments.set_valid(*addr, owner);
    }
    // Nodes can be allocated up to the last segment, and each curseg keeps a position.
    let mut nodes = 0;
    while volume
        .segments
        .place_node(LogType::WarmNode, Nid(5))
        .is_ok()
    {
        nodes += 1;
    }
    assert!(nodes >= 512 * counts.free_sections);
    assert_eq!(volume.segments.free_sections(), 0);
    volume.segments.check();
    // What was written since the last checkpoint is kept until the next.
    for addr in &allocated {
        volume.segments.invalidate(*addr, BlockKind::Data).unwrap();
    }
    let prefree = volume.segments.counts();
    assert_eq!(prefree.free_sections, 0);
    assert!(prefree.prefree > 0);
    volume.checkpoint(false);
    let freed = volume.segments.counts();
    assert_eq!((freed.prefree, freed.free), (0, prefree.prefree));
}

#[test]
fn ssr_is_used_without_free_sections() {
    let mut volume = Volume::new(128 << 20, 1);
    volume.segments.set_policy(|p| p.force_ssr = true);
    let owner = Owner {
        nid: Nid(4),
        version: 0,
        slot: 0,
    };
    let mut named = Vec::new();
    // As many as users may have.
    while named.len() < 15_000
        && let Ok(run) = volume
            .segments
            .allocate(LogType::WarmData, 512, Purpose::User)
    {
        for addr in run.blocks() {
            volume.segments.set_valid(addr, owner);
            named.push(addr);
        }
    }
    for addr in named.iter().step_by(3) {
        volume.segments.invalidate(*addr, BlockKind::Data).unwrap();
    }
    // Not before a checkpoint without them.
    let early = volume
        .segments
        .allocate(LogType::WarmData, 512, Purpose::User);
    assert!(!named.contains(&early.unwrap().start));
    assert_eq!(volume.segments.usage().ssr_segments, 0);
    volume.checkpoint(true);
    let mut filled = BTreeSet::new();
    while filled.len() < 3000 {
        let run = volume
            .segments
            .allocate(LogType::WarmData, 9, Purpose::User);
        for addr in run.unwrap().blocks() {
            volume.segments.set_valid(addr, owner);
            assert!(filled.insert(addr.0));
        }
        volume.segments.check();
    }
    assert!(volume.segments.usage().ssr_segments > 0);
    let again = Volume::open(Arc::clone(&volume.device));
    assert!(
        filled
            .iter()
            .all(|n| !again.segments.is_valid(BlockAddr(*n)))
    );
    volume.checkpoint(false);
    let again = Volume::open(Arc::clone(&volume.device));
    assert!(
        filled
            .iter()
            .all(|n| again.segments.is_valid(BlockAddr(*n)))
    );
    let log = again.checkpoint.log(LogType::WarmData);
    assert_eq!(log.alloc, crate::disk::checkpoint::ALLOC_SSR);
}

#[test]
fn cursegs_skip_blocks_that_recovery_needs() {
    let volume = Volume::new(128 << 20, 1);
    let log = volume.checkpoint.log(LogType::WarmNode);
    let start = volume.layout.block_in(log.segment, log.offset.into());
    let owner = Owner {
        nid: Nid(7),
        version: 1,
        slot: 2,
    };
    // A chain of nodes from the curseg's position on, with a gap, and data in a segment that was free.
    let nodes = [start, start.plus(1), start.plus(3)];
    let data = volume.layout.block_in(SegNo(30), 5);
    for addr in nodes.into_iter().chain([data]) {
        assert_eq!(volume.segments.protect(addr), Ok(true));
        assert_eq!(volume.segments.protect(addr), Ok(false));
        volume.segments.skip_protected().unwrap();
        volume.segments.check();
    }
    assert!(volume.segments.protect(BlockAddr(1)).is_err());
    let placed = volume.segments.place_node(LogType::WarmNode, Nid(5));
    let placed = placed.unwrap();
    assert_eq!((placed.addr, placed.next), (start.plus(2), start.plus(4)));
    volume
        .segments
        .recover_block(data, owner, LogType::WarmData)
        .unwrap();
    assert!(
        volume
            .segments
            .recover_block(data, owner, LogType::WarmData)
            .is_err()
    );
    let other = volume.layout.block_in(SegNo(30), 6);
    volume.segments.protect(other).unwrap();
    let node = volume
        .segments
        .recover_block(other, owner, LogType::HotNode);
    assert!(node.is_err(), "a node in a data segment");
    volume.segments.check();
    let owners = volume.segments.owners(SegNo(30), &volume.queue, tag());
    assert_eq!(owners, Ok(vec![(5, owner)]));
    for addr in nodes {
        let len = 1;
        volume.segments.release(Run { start: addr, len });
    }
    volume.segments.check();
}

#[test]
fn inconsistent_tables_are_refused() {
    let volume = Volume::new(128 << 20, 1);
    let current = checkpoint::load(&volume.queue, &volume.layout).unwrap();
    let try_with = |change: &dyn Fn(&mut Checkpoint)| {
        let mut cp = current.checkpoint.clone();
        change(&mut cp);
        let (layout, queue) = (&volume.layout, &volume.queue);
        let loaded = Segments::load(layout, &cp, 0, &current.sit_journal, queue, tag());
        loaded.err()
    };
    assert_eq!(try_with(&|_| ()), None);
    let bad: [&dyn Fn(&mut Checkpoint); 6] = [
        &|cp| cp.valid_nodes += 1,
        &|cp| cp.valid_blocks = 0,
        &|cp| cp.logs[1].segment = cp.logs[0].segment,
        &|cp| cp.logs[1].alloc = 2,
        &|cp| cp.logs[3].offset = 0,
        &|cp| cp.logs[0].segment = cp.logs[3].segment,
    ];
    for (n, change) in bad.into_iter().enumerate() {
        let error = try_with(change);
        assert!(matches!(error, Some(FsError::Corrupt(_))), "{n}: {error:?}");
    }
}

/// The main area may end with a section that is shorter than the others, and a checkpoint may place a log there.
#[test]
fn a_log_in_a_shorter_last_section_has_space_up_to_the_last_segment() {
    let volume = Volume::new(128 << 20, 4);
    let (queue, mut layout) = (&volume.queue, volume.layout.clone());
    let current = checkpoint::load(queue, &layout).unwrap();
    layout.main_segments -= 2;
    let mut cp = current.checkpoint;
    let log = &mut cp.logs[LogType::WarmData.index()];
    (log.segment, log.offset) = (SegNo(layout.main_segments - 1), 0);
    let load = Segments::load(
        &layout,
        &cp,
        current.pack,
        &current.sit_journal,
        queue,
        tag(),
    );
    let segments = load.unwrap();
    segments.check();
    segments.set_policy(|policy| {
        policy.mode = policy::Mode::Lfs;
        policy.reserved_sections = 1;
    });
    // Dirty data needs all free sections but one, so that the space left in each log's section decides.
    let segment = crate::disk::SEGMENT_BLOCKS;
    let whole = (segments.free_sections() - 2) * 4 * segment;
    let has_space = |data| {
        segments.set_demand(Demand {
            data,
            ..Demand::default()
        });
        segments.has_space(SpaceGoal::Reserve, 0)
    };
    assert!(has_space(whole + segment), "the last segment has space");
    assert!(!has_space(whole + segment + 1), "no segment follows it");
}

#[test]
fn statistics_count_the_valid_blocks_of_each_section() {
    for per_section in [1, 2] {
        let volume = Volume::new(128 << 20, per_section);
        let owner = Owner {
            nid: Nid(4),
            version: 0,
            slot: 0,
        };
        let mut blocks = Vec::new();
        while blocks.len() < 12_000 {
            let run = volume
                .segments
                .allocate(LogType::WarmData, 512, Purpose::User);
            blocks.extend(run.unwrap().blocks());
        }
        let mut valid = 0;
        for (n, &addr) in blocks.iter().enumerate() {
            volume.segments.set_valid(addr, owner);
            valid += 1;
            // Of the second half, each third block is freed.
            if n > 6000 && n % 3 == 0 {
                volume.segments.invalidate(addr, BlockKind::Data).unwrap();
                valid -= 1;
            }
        }
        let counts = volume.segments.counts();
        let rows = volume.segments.curseg_rows();
        let sum = |of: fn(&CursegRow) -> u32| rows.iter().map(of).sum::<u32>();
        assert!(counts.dirty > 5 && counts.full > 5, "{counts:?}");
        assert_eq!(sum(|row| row.dirty), counts.dirty);
        assert_eq!(sum(|row| row.full), counts.full);
        let data = &rows[LogType::WarmData.index()];
        assert_eq!((data.full, data.valid), (counts.full, valid));

        let size = 512 * per_section;
        let first = volume.layout.block_in(SegNo(0), 0);
        let valid_in = |section: u32| {
            let blocks = (section * size..(section + 1) * size).map(|n| first.plus(n));
            blocks.filter(|&at| volume.segments.is_valid(at)).count()
        };
        let sections = volume.layout.main_segments / per_section;
        let valid: Vec<_> = (0..sections).map(valid_in).collect();
        let partly = valid.iter().filter(|&&n| n > 0 && n < size as usize);
        let average = partly.clone().sum::<usize>() / partly.count();
        let share = |&n: &usize| (2.0 * n as f64 / f64::from(size) - 1.0).powi(2);
        let bimodal = 100.0 * valid.iter().map(share).sum::<f64>() / f64::from(sections);
        let (found, mean) = volume.segments.distribution();
        assert_eq!(mean, average as u64);
        assert!((found as f64 - bimodal).abs() < 1.0, "{found}, {bimodal}");
        assert!((20..90).contains(&found), "neither all halves nor all full");
    }
}
