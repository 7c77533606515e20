//! Commits whose log blocks are written ahead.

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::{FaultDevice, Op};
use steadfs_rt::{sim, spawn, yield_now};

use super::support::{Layout, buf, set};
use crate::{Checksum, JournalConfig};

const TAG: IoTag = IoTag::background();

fn config(checksum: Checksum) -> JournalConfig {
    JournalConfig {
        checksum: Some(checksum),
        ..JournalConfig::default()
    }
}

#[test]
fn log_blocks_written_ahead_are_written_once() {
    for checksum in [Checksum::None, Checksum::V1, Checksum::V2, Checksum::V3] {
        let layout = Layout::new(1024, 2048, 200);
        let device = FaultDevice::new(layout.device());
        let journal = layout.open(Arc::clone(&device) as _, config(checksum));
        set(&journal, 1500, 1);
        let before = device.changes();
        let begun = journal.commit_beside(1, TAG, |mut handle| {
            handle.write(&buf(&journal, 1501)).unwrap()[9] = 2;
            handle.write_log_ahead();
            true
        });
        assert_eq!(begun, Ok(true));
        // The log's blocks in one request, the superblock that marks the log as used with its FLUSH, the record.
        assert!(device.changes() - before <= 4, "{checksum:?}");
        assert_eq!(journal.stats().beside_data, 1);
        let after = layout.recovered(&device.memory);
        assert_eq!(layout.block(&after, 1500)[9], 1, "{checksum:?}");
        assert_eq!(layout.block(&after, 1501)[9], 2, "{checksum:?}");
    }
}

#[test]
fn a_change_after_the_log_was_written_ahead_is_committed() {
    let layout = Layout::new(1024, 2048, 200);
    let device = layout.device();
    let journal = layout.open(Arc::clone(&device) as _, config(Checksum::V3));
    let begun = journal.commit_beside(2, TAG, |mut handle| {
        handle.write(&buf(&journal, 1501)).unwrap()[9] = 2;
        handle.write_log_ahead();
        handle.write(&buf(&journal, 1501)).unwrap()[9] = 3;
        handle.write(&buf(&journal, 1502)).unwrap()[9] = 4;
        true
    });
    assert_eq!(begun, Ok(true));
    assert_eq!(journal.stats().beside_data, 0, "the log was written again");
    let after = layout.recovered(&device);
    assert_eq!(layout.block(&after, 1501)[9], 3);
    assert_eq!(layout.block(&after, 1502)[9], 4);
}

#[test]
fn without_the_data_nothing_is_committed_and_the_journal_goes_on() {
    let layout = Layout::new(1024, 2048, 200);
    let device = FaultDevice::new(layout.device());
    let journal = layout.open(Arc::clone(&device) as _, config(Checksum::V3));
    // The log cannot be written either: the next commit writes it again.
    device.fail(|bio| bio.op == Op::Write);
    let begun = journal.commit_beside(1, TAG, |mut handle| {
        handle.write(&buf(&journal, 1501)).unwrap()[9] = 2;
        handle.write_log_ahead();
        handle.write(&buf(&journal, 1501)).unwrap()[9] = 0;
        false
    });
    device.fail(|_| false);
    assert_eq!(begun, Ok(true));
    let after = layout.recovered(&device.memory);
    assert_eq!(layout.block(&after, 1501)[9], 0);
    let tid = set(&journal, 1502, 5);
    journal.commit(tid, TAG).unwrap();
    let after = layout.recovered(&device.memory);
    assert_eq!(layout.block(&after, 1501)[9], 0);
    assert_eq!(layout.block(&after, 1502)[9], 5);
}

/// While a task has the transaction locked, others wait for it; with a handle of another task it is not locked.
#[test]
fn a_task_is_alone_in_its_transaction_or_does_not_begin() {
    for seed in 0..30 {
        let run = || {
            let layout = Layout::new(1024, 2048, 200);
            let journal = layout.open(layout.device() as _, config(Checksum::V3));
            let tasks: Vec<_> = (0..3_u64)
                .map(|n| {
                    let journal = Arc::clone(&journal);
                    spawn("writer", move || {
                        for round in 0..20 {
                            let block = 1500 + n;
                            let begun = journal.commit_beside(1, TAG, |mut handle| {
                                handle.write(&buf(&journal, block)).unwrap()[9] = round;
                                yield_now();
                                handle.write_log_ahead();
                                yield_now();
                                round % 5 > 0
                            });
                            if begun == Ok(false) || round % 5 == 0 {
                                let tid = set(&journal, block, round);
                                journal.commit(tid, TAG).unwrap();
                            }
                        }
                    })
                })
                .collect();
            tasks.into_iter().for_each(|task| task.join());
            let stats = journal.stats();
            (stats.beside_data, stats.transactions)
        };
        let (beside, all) = sim::run(sim::Config::new(seed), run).value;
        assert!(beside > 0 && beside < all, "seed {seed}: {beside} of {all}");
    }
}
