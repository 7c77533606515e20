//! Steps of write-back runs without failures: their order, what is mapped, and what is left for the next pass.

use super::Event::{Allocated, Completed, Ended, Mapped, Started};
use super::*;

#[test]
fn a_run_is_allocated_submitted_waited_for_mapped_and_completed() {
    let fs = MemFs::new();
    fs.write(1, 0..3, 5);
    fs.sync(1).unwrap();
    let steps = [
        Allocated(1, 0..3),
        Started(0..3),
        Ended(0..3),
        Mapped(1, 0..3),
        Completed(1),
    ];
    assert_eq!(fs.take_log(), steps);
    assert_eq!(fs.of(1).disk_size(), 3 * BS);
    fs.check();
    fs.sync(1).unwrap();
    assert_eq!(fs.take_log(), [], "nothing is dirty");
}

#[test]
fn mapped_blocks_are_overwritten_where_they_are() {
    let fs = MemFs::new();
    fs.write(1, 0..4, 5);
    fs.sync(1).unwrap();
    fs.take_log();
    fs.write(1, 1..3, 6);
    fs.sync(1).unwrap();
    let steps = [Allocated(1, 1..3), Started(1..3), Ended(1..3), Completed(1)];
    assert_eq!(fs.take_log(), steps, "mapping changes nothing");
    fs.check();
}

#[test]
fn preallocated_blocks_are_converted_once_they_are_written() {
    let fs = MemFs::new();
    fs.preallocate(1, 0..8);
    fs.write(1, 2..4, 5);
    fs.sync(1).unwrap();
    let log = fs.take_log();
    assert!(log.contains(&Mapped(1, 2..4)), "{log:?}");
    let written: Vec<u64> = {
        let disk = fs.of(1).disk.lock();
        let map = disk.map.iter().filter(|(_, (_, written))| *written);
        map.map(|(&block, _)| block).collect()
    };
    assert_eq!(written, [2, 3]);
    fs.check();
}

#[test]
fn a_gap_between_dirty_blocks_makes_two_pieces() {
    let fs = MemFs::new();
    fs.write(1, 0..1, 5);
    fs.write(1, 3..4, 6);
    fs.sync(1).unwrap();
    let mapped = fs.take_log().into_iter();
    let mapped: Vec<_> = mapped.filter(|step| matches!(step, Mapped(..))).collect();
    assert_eq!(mapped.len(), 2, "{mapped:?}");
    assert_eq!(fs.of(1).disk_size(), 4 * BS, "the hole is within the file");
    fs.check();
}

/// While the device writes a batch, the next one is allocated and submitted, and no more than these two are in flight.
#[test]
fn batches_of_new_blocks_overlap() {
    let log = simulated(MILLI, |fs| {
        fs.write(1, 0..12, 5);
        fs.sync(1).unwrap();
        fs.check();
        fs.take_log()
    });
    let at = |step: &Event| log.iter().position(|other| other == step).unwrap();
    assert!(at(&Started(5..9)) < at(&Ended(0..4)), "{log:?}");
    assert!(at(&Completed(1)) < at(&Started(10..14)), "{log:?}");
}

#[test]
fn batches_that_overwrite_overlap() {
    let log = simulated(MILLI, |fs| {
        fs.write(1, 0..8, 5);
        fs.sync(1).unwrap();
        fs.take_log();
        fs.write(1, 0..8, 6);
        fs.sync(1).unwrap();
        fs.check();
        fs.take_log()
    });
    let at = |step: &Event| log.iter().position(|other| other == step).unwrap();
    assert!(at(&Started(5..9)) < at(&Ended(0..4)), "{log:?}");
}

/// On a damaged volume two blocks of a file may be mapped to one device block; no two writes of it are in flight.
#[test]
fn a_batch_that_overwrites_blocks_in_flight_waits_for_them() {
    let log = simulated(MILLI, |fs| {
        fs.write(1, 0..8, 5);
        fs.sync(1).unwrap();
        fs.take_log();
        fs.of(1).disk.lock().map.insert(6, (2, true));
        fs.write(1, 0..8, 6);
        fs.sync(1).unwrap();
        fs.take_log()
    });
    let second = |step: &Event| matches!(step, Started(blocks) if blocks.start == 2);
    let at = |step: &Event| log.iter().position(|other| other == step).unwrap();
    assert!(
        at(&Ended(0..4)) < log.iter().position(second).unwrap(),
        "{log:?}"
    );
    assert!(at(&Allocated(1, 4..8)) < at(&Ended(0..4)), "{log:?}");
}

#[test]
fn a_block_changed_in_flight_is_written_again() {
    simulated(10 * MILLI, |fs| {
        fs.write(1, 0..2, 5);
        let other = Arc::clone(&fs);
        let writer = spawn("writer", move || {
            sleep(5 * MILLI);
            other.write(1, 1..2, 6);
        });
        let epoch = fs.writeback.end_epoch();
        fs.sync_epoch(1, epoch).unwrap();
        writer.join();
        assert_eq!(fs.of(1).pages().dirty_bytes(), BS, "the later content");
        fs.check();
        fs.sync(1).unwrap();
        assert!(fs.of(1).pages().is_empty());
        fs.check();
    });
}

#[test]
fn a_pass_ends_at_what_was_dirty_when_it_began() {
    let fs = MemFs::new();
    fs.write(1, 0..8, 5);
    fs.sync(1).unwrap();
    fs.write(1, 0..2, 6);
    let epoch = fs.writeback.end_epoch();
    fs.write(1, 5..6, 7);
    fs.sync_epoch(1, epoch).unwrap();
    assert_eq!(fs.of(1).pages().dirty_bytes(), BS, "block 5 is newer");
    fs.check();
    fs.sync_epoch(1, DirtyEpoch::ALL).unwrap();
    assert!(fs.of(1).pages().is_empty());
    fs.check();
}

/// Otherwise the size on disk would cover a block that is not written.
#[test]
fn newer_blocks_behind_the_size_on_disk_are_written_along() {
    let fs = MemFs::new();
    fs.write(1, 0..1, 5);
    fs.write(1, 2..3, 5);
    let epoch = fs.writeback.end_epoch();
    fs.write(1, 1..2, 6);
    fs.sync_epoch(1, epoch).unwrap();
    assert_eq!(fs.of(1).disk_size(), 3 * BS);
    fs.check();
}

/// Space is checked and the flush lock is released between two turns.
#[test]
fn a_long_pass_is_divided_into_turns() {
    let fs = MemFs::new();
    fs.state.lock().turn = (4, 2);
    fs.write(1, 0..32, 5);
    fs.flush_in_background(1).unwrap();
    assert_eq!(fs.state.lock().turns, 4);
    assert!(fs.of(1).pages().is_empty());
    fs.check();
}

/// All are in flight together, and one call maps them.
#[test]
fn small_files_are_written_by_one_run_and_mapped_together() {
    let log = simulated(MILLI, |fs| {
        for number in 1..=3 {
            fs.write(number, 0..2, number as u8);
        }
        fs.sync_files(&[3, 1, 2], WritebackReason::Sync).unwrap();
        fs.check();
        fs.take_log()
    });
    let starts = |step: &Event| matches!(step, Allocated(..) | Started(..));
    let first_end = log.iter().position(|step| matches!(step, Ended(..)));
    let started = log.iter().rposition(starts);
    assert!(started < first_end, "{log:?}");
    let last_end = log.iter().rposition(|step| matches!(step, Ended(..)));
    let first_mapped = log.iter().position(|step| matches!(step, Mapped(..)));
    assert!(last_end < first_mapped, "{log:?}");
    let last_mapped = log.iter().rposition(|step| matches!(step, Mapped(..)));
    let completed = log.iter().position(|step| matches!(step, Completed(..)));
    assert!(last_mapped < completed, "one call maps all: {log:?}");
}

/// Batches of small files have at most 12 blocks here, and a file of more than 4 blocks is no small one.
#[test]
fn large_files_and_full_batches_are_written_by_themselves() {
    let fs = MemFs::new();
    for number in 1..=5 {
        fs.write(number, 0..4, number as u8);
    }
    fs.write(6, 0..9, 6);
    fs.sync_files(&[1, 2, 3, 4, 5, 6], WritebackReason::Sync)
        .unwrap();
    let log = fs.take_log();
    let at = |step: &Event| log.iter().position(|other| other == step).unwrap();
    assert!(at(&Completed(3)) < at(&Allocated(6, 0..4)), "{log:?}");
    assert!(at(&Allocated(6, 0..4)) < at(&Allocated(4, 0..4)), "{log:?}");
    fs.check();
}

/// The fsync that is expected writes what early write-back leaves.
#[test]
fn early_write_back_is_optional_and_leaves_the_rest() {
    let fs = MemFs::new();
    fs.write(1, 0..2, 5);
    fs.state.lock().early = false;
    fs.sync_files(&[1], WritebackReason::Early).unwrap();
    assert_eq!(fs.take_log(), []);
    fs.state.lock().early = true;
    fs.sync_files(&[1], WritebackReason::Early).unwrap();
    assert!(fs.of(1).pages().is_empty());
    fs.check();
}

#[test]
fn an_fsync_writes_its_cluster_and_marks_the_other_files() {
    simulated(MILLI, |fs| {
        for number in [2, 3, 7] {
            fs.write(number, 0..1, number as u8);
        }
        sleep(50 * MILLI);
        let engine = fs.engine();
        let intent = engine.intent(WritebackReason::Sync, Default::default());
        let group = engine.write_cluster(fs.of(2), intent);
        let numbers: Vec<u64> = group.iter().map(|file| file.number().0).collect();
        assert_eq!(numbers, [3], "the window begins with one file");
        assert!(fs.of(2).pages().is_empty() && fs.of(3).pages().is_empty());
        assert!(!fs.of(7).pages().is_empty());
        assert!(fs.of(3).cluster_mark().take() && !fs.of(2).cluster_mark().take());
        fs.check();
    });
}

/// Tasks write, sync and flush files at random while the device fails some writes: the file system checks each step.
#[test]
fn random_runs_keep_the_rules() {
    for seed in 0..200 {
        let run = move || {
            let fs = MemFs::new();
            fs.set_delay(MILLI);
            fs.state.lock().turn = (3, 2);
            let mut random = Random::new(seed);
            let tasks = (0..3_u64).map(|task| {
                let (fs, mut random) = (Arc::clone(&fs), Random::new(seed * 3 + task));
                spawn("caller", move || {
                    for step in 0..40 {
                        one_call(&fs, &mut random, (task * 40 + step) as u8 | 1);
                    }
                })
            });
            let tasks: Vec<_> = tasks.collect();
            for _ in 0..20 {
                sleep(5 * MILLI);
                let mut faults = Random::new(random.next_u64());
                fs.fail_writes(move |_| faults.chance(200));
            }
            tasks.into_iter().for_each(|task| task.join());
            fs.fail_writes(|_| false);
            for number in 1..=3 {
                fs.sync(number).unwrap();
                let _earlier = fs.of(number).pages().take_error();
            }
            fs.check();
        };
        sim::run(sim::Config::new(seed), run);
    }
}

/// Files of the tasks are their own as far as writes go: the caller holds no inode lock here.
fn one_call(fs: &MemFs, random: &mut Random, byte: u8) {
    let number = 1 + u64::from(byte / 40).min(2);
    let mut below = |bound: usize| random.below(bound) as u64;
    let from = below(20);
    // Failures are the test's own.
    let _ = match below(6) {
        0 => fs.sync(number),
        1 => fs.sync(1 + below(3)),
        2 => fs.flush_in_background(1 + below(3)),
        3 => fs.sync_files(&[1, 2, 3], WritebackReason::Sync),
        _ => {
            fs.write(number, from..from + 1 + below(6), byte);
            Ok(())
        }
    };
}
