//! Values at their limits, and calls that have nothing to do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{DevBlock, IoTag};
use steadfs_block::{Bio, Device, Fault, FaultDevice, MemDevice, Op};
use steadfs_rt::{now, sim, sleep, spawn};

use super::support::{Layout, buf, set};
use crate::overlay::blocks_of;
use crate::worker::ReclaimWorker;
use crate::{
    Checksum, Durable, Journal, JournalConfig, JournalError, JournalTuning, Overlay, OverlayDevice,
    ReclaimPolicy, Recover, recover,
};

const TAG: IoTag = IoTag::background();
const SIZE: u32 = 1024;

fn opened(config: JournalConfig) -> (Layout, Arc<FaultDevice>, Arc<Journal>) {
    let layout = Layout::new(SIZE, 2048, 400);
    let device = FaultDevice::new(layout.device());
    let journal = layout.open(Arc::clone(&device) as _, config);
    (layout, device, journal)
}

#[test]
fn log_blocks_written_ahead_are_used_only_if_nothing_differs() {
    enum Later {
        Nothing,
        Content,
        OneMoreBlock,
        Revoke,
    }
    use Later::{Content, Nothing, OneMoreBlock, Revoke};
    for later in [Nothing, Content, OneMoreBlock, Revoke] {
        let (layout, device, journal) = opened(JournalConfig {
            checksum: Some(Checksum::V3),
            ..JournalConfig::default()
        });
        let tid = set(&journal, 1400, 1);
        journal.commit(tid, TAG).unwrap();
        let begun = journal.commit_beside(3, TAG, |mut handle| {
            handle.write(&buf(&journal, 1501)).unwrap()[9] = 2;
            handle.write_log_ahead();
            match later {
                Nothing => {}
                Content => handle.write(&buf(&journal, 1501)).unwrap()[9] = 3,
                OneMoreBlock => handle.write(&buf(&journal, 1502)).unwrap()[9] = 4,
                Revoke => handle.forget(DevBlock(1400)).unwrap(),
            }
            true
        });
        assert_eq!(begun, Ok(true));
        let is_used = matches!(later, Nothing);
        assert_eq!(journal.stats().beside_data, u64::from(is_used));
        let after = layout.recovered(&device.memory);
        let values = [1400, 1501, 1502].map(|block| layout.block(&after, block)[9]);
        let expected = match later {
            Nothing => [1, 2, 0],
            Content => [1, 3, 0],
            OneMoreBlock => [1, 2, 4],
            Revoke => [0, 2, 0],
        };
        assert_eq!(values, expected);
    }
}

#[test]
fn a_commit_beside_data_has_the_credits_of_any_handle_and_needs_a_writable_journal() {
    let (_, _, journal) = opened(JournalConfig::default());
    let max = journal.max_credits();
    let run = |journal: &Journal, credits| journal.commit_beside(credits, TAG, |_| true);
    assert_eq!(run(&journal, max), Ok(true));
    assert_eq!(run(&journal, max + 1), Ok(false));
    let (_, _, journal) = opened(JournalConfig {
        read_only: true,
        ..JournalConfig::default()
    });
    assert_eq!(run(&journal, 1), Ok(false));
}

#[test]
fn an_empty_transaction_is_not_committed() {
    let (_, device, journal) = opened(JournalConfig::default());
    let tid = set(&journal, 1500, 1);
    journal.commit(tid, TAG).unwrap();
    let tid = journal.begin(1).unwrap().tid();
    let writes = device.changes();
    assert_eq!(journal.commit(tid, TAG), Ok(Durable::Already));
    assert_eq!(
        (device.changes(), journal.stats().transactions),
        (writes, 1)
    );
}

#[test]
fn a_handle_gets_credits_up_to_the_limit_of_its_transaction() {
    let (_, _, journal) = opened(JournalConfig::default());
    let mut handle = journal.begin(1).unwrap();
    for block in 1500..1503 {
        handle.write(&buf(&journal, block)).unwrap()[9] = 1;
        assert_eq!(
            handle.credits(),
            0,
            "each further block reserves its credit"
        );
    }
    while handle.extend(1) {}
    let all = handle.credits() + 3;
    let blocks = |n| journal.costs.log_blocks(n, 0);
    assert!(blocks(all) <= journal.costs.max_transaction);
    assert!(blocks(all + 1) > journal.costs.max_transaction);
}

#[test]
fn a_handle_gets_credits_up_to_the_last_free_block_of_the_log() {
    let (_, _, journal) = opened(JournalConfig::default());
    let free = || journal.state.lock().log.free();
    // Transactions of one block, which nothing writes to its home location.
    let mut block = 1500;
    while free() > 40 {
        let tid = set(&journal, block, 1);
        journal.commit(tid, TAG).unwrap();
        block += 1;
    }
    assert!(free() < journal.costs.max_transaction);
    let mut handle = journal.begin(1).unwrap();
    while handle.extend(1) {}
    assert_eq!(journal.costs.log_blocks(handle.credits(), 0), free());
}

#[test]
fn a_freed_block_costs_a_credit_only_if_the_log_has_a_copy() {
    let (_, _, journal) = opened(JournalConfig::default());
    set(&journal, 1500, 1);
    let tid = set(&journal, 1501, 1);
    journal.commit(tid, TAG).unwrap();
    let mut handle = journal.begin(1).unwrap();
    handle.forget(DevBlock(1600)).unwrap();
    assert_eq!(handle.credits(), 1, "it was never logged");
    handle.forget(DevBlock(1500)).unwrap();
    assert_eq!(handle.credits(), 0);
    handle.forget(DevBlock(1500)).unwrap();
    assert_eq!(handle.credits(), 0, "it is revoked already");
    // No credit is left: one is reserved.
    handle.forget(DevBlock(1501)).unwrap();
    assert_eq!(handle.credits(), 0);
    let tid = handle.tid();
    drop(handle);
    journal.commit(tid, TAG).unwrap();
    assert_eq!(journal.stats().dropped, 2);
    // Nor can one be reserved.
    let tid = set(&journal, 1700, 1);
    journal.commit(tid, TAG).unwrap();
    let mut handle = journal.begin(0).unwrap();
    let mut block = 1800;
    while handle.write(&buf(&journal, block)).is_ok() {
        block += 1;
    }
    let refused = handle.forget(DevBlock(1700));
    assert_eq!(refused, Err(JournalError::CreditsUsedUp));
}

#[test]
fn a_task_with_an_open_handle_must_not_wait_for_the_journal() {
    let (_, _, journal) = opened(JournalConfig::default());
    let handle = journal.begin(1).unwrap();
    let tid = handle.tid();
    let begun = catch_unwind(AssertUnwindSafe(|| journal.begin(1).map(drop)));
    assert!(begun.is_err());
    let committed = catch_unwind(AssertUnwindSafe(|| journal.commit(tid, TAG)));
    assert!(committed.is_err());
    drop(handle);
    assert!(journal.begin(1).is_ok());
}

#[test]
fn only_an_abort_of_a_writable_journal_writes_and_only_a_record_is_cleared() {
    let (_, device, journal) = opened(JournalConfig::default());
    journal.clear_errno().unwrap();
    assert_eq!(device.changes(), 0);
    journal.shutdown("over");
    assert_eq!((device.changes(), journal.recorded_errno()), (0, None));
    let read_only = JournalConfig {
        read_only: true,
        ..JournalConfig::default()
    };
    let (layout, device, journal) = opened(JournalConfig::default());
    journal.abort("over");
    assert_eq!(device.changes(), 1);
    let journal = layout.open(Arc::clone(&device) as _, read_only);
    assert_eq!(journal.recorded_errno(), Some(5));
    journal.clear_errno().unwrap();
    journal.abort("again");
    assert_eq!((device.changes(), journal.recorded_errno()), (1, Some(5)));
    let journal = layout.open(Arc::clone(&device) as _, JournalConfig::default());
    journal.clear_errno().unwrap();
    assert_eq!((device.changes(), journal.recorded_errno()), (2, None));
}

#[test]
fn settings_are_those_that_were_set() {
    let (_, _, journal) = opened(JournalConfig::default());
    let tuning = JournalTuning {
        max_batch: Duration::from_millis(3),
        barriers: false,
        ..JournalTuning::default()
    };
    journal.set_tuning(tuning.clone());
    assert_eq!(journal.tuning(), tuning);
}

/// A policy that allows this number of unwritten blocks.
fn memory_of(blocks: u64) -> ReclaimPolicy {
    ReclaimPolicy {
        max_unwritten_bytes: blocks * u64::from(SIZE),
        ..ReclaimPolicy::default()
    }
}

#[test]
fn unwritten_blocks_are_bounded_by_twice_the_limit() {
    let (layout, device, journal) = opened(JournalConfig::default());
    journal.set_reclaim_policy(memory_of(5));
    let exceeds = || {
        let lists = journal.lists.lock();
        let size = layout.block_size;
        (
            lists.exceeds_memory_limit(size),
            lists.exceeds_memory_limit_twice(size),
        )
    };
    let commit = |blocks: u64| {
        for block in 0..blocks {
            set(&journal, 1500 + block, 1);
        }
        let tid = set(&journal, 1500, 2);
        journal.commit(tid, TAG).unwrap();
    };
    commit(5);
    assert_eq!(exceeds(), (false, false));
    commit(6);
    assert_eq!(exceeds(), (true, false));
    commit(10);
    assert_eq!(exceeds(), (true, false));
    let writes = device.changes();
    journal.bound_memory().unwrap();
    assert_eq!(device.changes(), writes, "twice the limit is allowed");
    commit(11);
    assert_eq!(exceeds(), (true, true));
    journal.bound_memory().unwrap();
    assert_eq!(exceeds(), (false, false));
    assert_eq!(layout.block(&device.memory.to_bytes(), 1500)[9], 2);
    // Nothing is left, so that even no memory is enough.
    journal.flush_all().unwrap();
    journal.set_reclaim_policy(memory_of(0));
    assert_eq!(exceeds(), (false, false));
}

#[test]
fn the_background_frees_log_space_if_it_is_awake_and_little_is_free() {
    let (_, _, journal) = opened(JournalConfig::default());
    let mut lists = journal.lists.lock();
    for (worker, free, frees) in [
        (ReclaimWorker::Idle, 10, false),
        (ReclaimWorker::Running, 10, true),
        (ReclaimWorker::Running, 900, false),
        (ReclaimWorker::Idle, 900, false),
    ] {
        lists.worker = worker;
        assert_eq!(
            lists.background_frees(free, 1000),
            frees,
            "{worker:?} {free}"
        );
    }
    lists.worker = ReclaimWorker::Idle;
}

#[test]
fn a_flush_writes_more_blocks_home_than_one_batch_has() {
    // 64 blocks of 64 KiB are a batch.
    let layout = Layout::new(64 << 10, 600, 400);
    let device = layout.device();
    let journal = layout.open(Arc::clone(&device) as _, JournalConfig::default());
    for block in 420..560 {
        let tid = set(&journal, block, 7);
        if block % 50 == 0 {
            journal.commit(tid, TAG).unwrap();
        }
    }
    journal.flush_all().unwrap();
    let mut byte = [0];
    for block in 420..560 {
        device.read((block << 16) + 9, &mut byte);
        assert_eq!(byte, [7]);
    }
}

#[test]
fn a_request_touches_the_blocks_that_it_has_a_byte_of() {
    let size = Layout::new(SIZE, 400, 100).block_size;
    let blocks = |offset, len| {
        let mut bio = Bio::read(0, 1);
        (bio.offset, bio.len) = (offset, len);
        blocks_of(&bio, size)
    };
    let range = |first, last| Some(DevBlock(first)..=DevBlock(last));
    assert_eq!(blocks(1024, 1024), range(1, 1));
    assert_eq!(blocks(1023, 1), range(0, 0));
    assert_eq!(blocks(1023, 2), range(0, 1));
    assert_eq!(blocks(4096, 8193), range(4, 12));
    assert_eq!(blocks(4096, 0), None);
    assert_eq!(blocks(u64::MAX, 2), None);
}

/// A device over which the newest copy of block 1500 is in the log.
fn overlaid() -> (Layout, Arc<FaultDevice>, Arc<OverlayDevice>) {
    let (layout, device, journal) = opened(JournalConfig::default());
    let tid = set(&journal, 1500, 7);
    journal.commit(tid, TAG).unwrap();
    let (queue, how) = (layout.queue(Arc::clone(&device) as _), Recover::IntoMemory);
    let found = recover(&queue, layout.block_size, &layout.map(), how, TAG).unwrap();
    let overlay = OverlayDevice::new(Arc::clone(&device) as _, layout.block_size, found.overlay);
    (layout, device, Arc::new(overlay))
}

#[test]
fn an_overlay_is_disabled_after_its_reads_of_the_log() {
    let run = || {
        let (layout, device, overlay) = overlaid();
        device.set(|_| Fault::Delay(Duration::from_millis(20)));
        let queue = layout.queue(Arc::clone(&overlay) as _);
        let reader = spawn("reader", move || {
            let block = queue.read(1500 << 10, SIZE as usize, TAG).unwrap();
            (block[9], now())
        });
        sleep(Duration::from_millis(5));
        overlay.disable_overlay();
        let disabled = now();
        let (value, read) = reader.join();
        assert_eq!(value, 7);
        assert!(disabled >= read, "{disabled:?} {read:?}");
    };
    sim::run(sim::Config::new(1), run);
}

#[test]
fn an_overlay_flushes_nothing_and_is_empty_without_blocks() {
    let (layout, _, overlay) = overlaid();
    assert!(Overlay::default().is_empty() && !overlay.overlay().is_empty());
    let below = MemDevice::new(1 << 20);
    assert_eq!(overlay.background_depth(), below.background_depth());
    let queue = layout.queue(Arc::clone(&overlay) as _);
    let request = |op| {
        let mut bio = Bio::flush();
        bio.op = op;
        queue.submit(bio, TAG).wait()
    };
    assert!(request(Op::Flush).is_ok());
}

/// A handle that needs log space frees half as much again for the next one, and no more.
#[test]
fn a_waiting_handle_frees_what_it_needs_and_half_of_that() {
    let layout = Layout::new(SIZE, 400, 100);
    let config = JournalConfig {
        reclaim: ReclaimPolicy {
            enabled: false,
            ..ReclaimPolicy::default()
        },
        ..JournalConfig::default()
    };
    let journal = layout.open(layout.device(), config);
    // 27 transactions of three log blocks and two of four, in a log of 98.
    for n in 0..29 {
        if n >= 27 {
            set(&journal, 350 + n, 1);
        }
        let tid = set(&journal, 200 + n, 1);
        journal.commit(tid, TAG).unwrap();
    }
    let free = || journal.state.lock().log.free();
    assert_eq!(free(), 9);
    journal.reclaim_space(9, TAG).unwrap();
    assert_eq!(free(), 9, "that is enough");
    // 10 and 5, of which 9 are free: two transactions.
    journal.reclaim_space(10, TAG).unwrap();
    assert_eq!(free(), 15);
    let stats = journal.stats();
    assert_eq!((stats.freed_by_waiters, stats.written_home), (6, 2));
}

/// The commit task finds a transaction by its age, also while its only handle is open and has changed nothing.
#[test]
fn an_open_transaction_of_the_commit_intervals_age_is_committed_when_its_handle_ends() {
    let run = || {
        let (_, _, journal) = opened(JournalConfig::default());
        journal.start_tasks().unwrap();
        let mut handle = journal.begin(1).unwrap();
        let tid = handle.tid();
        sleep(Duration::from_secs(6));
        handle.write(&buf(&journal, 1500)).unwrap()[9] = 1;
        drop(handle);
        sleep(Duration::from_millis(100));
        assert_eq!(journal.durable_tid(), tid);
        // Without a change there is nothing to commit at any age.
        drop(journal.begin(1).unwrap());
        sleep(Duration::from_secs(20));
        assert_eq!(
            (journal.durable_tid(), journal.stats().transactions),
            (tid, 1)
        );
        journal.join_tasks();
    };
    sim::run(sim::Config::new(1), run);
}

#[test]
fn a_caller_of_a_commit_under_way_requests_no_other_one() {
    let run = || {
        let layout = Layout::new(SIZE, 2048, 400);
        let device = FaultDevice::new(layout.device());
        let journal = layout.open(Arc::clone(&device) as _, JournalConfig::default());
        device.set(|bio| match bio.op {
            Op::Write => Fault::Delay(Duration::from_millis(10)),
            _ => Fault::None,
        });
        let buffers = [1500, 1501].map(|block| buf(&journal, block));
        let first = set(&journal, 1500, 1);
        let committer = |tid| {
            let journal = Arc::clone(&journal);
            spawn("caller", move || journal.commit(tid, TAG).unwrap())
        };
        let leader = committer(first);
        sleep(Duration::from_millis(3));
        let next = set(&journal, 1501, 1);
        assert_eq!(next, first.next(), "the first commit is under way");
        let joined = committer(first);
        leader.join();
        // Its FLUSH is that before the commit record.
        assert_eq!(joined.join(), Durable::Flushed);
        assert_eq!(journal.durable_tid(), first);
        // No caller waits for the next one.
        journal.commit_as(next, TAG, false).unwrap();
        let stats = journal.stats();
        assert_eq!((stats.transactions, stats.requested), (2, 1));
        drop(buffers);
    };
    sim::run(sim::Config::new(1), run);
}
