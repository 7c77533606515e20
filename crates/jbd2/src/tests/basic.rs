//! Tests with a single task.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{DevBlock, IoTag};
use steadfs_block::{Device, Fault, FaultDevice, MemDevice, Op};
use steadfs_rt::{sim, sleep, spawn};

use super::support::{Layout, buf, set};
use crate::{
    Checksum, Durable, JournalConfig, JournalError, OverlayDevice, ReclaimPolicy, Recover, recover,
};

const TAG: IoTag = IoTag::background();

fn configs() -> Vec<JournalConfig> {
    let mut all = Vec::new();
    for checksum in [Checksum::None, Checksum::V1, Checksum::V2, Checksum::V3] {
        for wide in [false, true] {
            all.push(JournalConfig {
                wide,
                checksum: Some(checksum),
                ..JournalConfig::default()
            });
        }
    }
    all
}

#[test]
fn exactly_the_committed_changes_are_replayed() {
    for config in configs() {
        for block_size in [1024, 4096] {
            let layout = Layout::new(block_size, 2048, 1024);
            let device = layout.device();
            let journal = layout.open(Arc::clone(&device) as _, config.clone());
            let tid = set(&journal, 1500, 1);
            assert_eq!(journal.commit(tid, TAG).unwrap(), Durable::Flushed);
            assert_eq!(journal.commit(tid, TAG).unwrap(), Durable::Already);
            let magic = 0xC03B_3998_u32.to_be_bytes();
            let mut handle = journal.begin(200).unwrap();
            for block in 1600..1800 {
                let buf = buf(&journal, block);
                handle.write(&buf).unwrap()[..4].copy_from_slice(&magic);
            }
            let tid = handle.tid();
            drop(handle);
            journal.commit(tid, TAG).unwrap();
            set(&journal, 1501, 1);
            let after = layout.recovered(&device);
            assert_eq!(layout.block(&after, 1500)[9], 1, "{config:?}");
            assert_eq!(layout.block(&after, 1501)[9], 0);
            for block in 1600..1800 {
                assert_eq!(layout.block(&after, block)[..4], magic);
            }
            assert!(
                matches!(layout.recover(device).summary, s if s.transactions == 2 && s.blocks == 201)
            );
        }
    }
}

#[test]
fn the_log_wraps_and_reclaim_writes_home() {
    let mut layout = Layout::new(1024, 4096, 0);
    layout.journal = vec![(DevBlock(100), 30), (DevBlock(50), 20), (DevBlock(300), 50)];
    let device = layout.device();
    let journal = layout.open(Arc::clone(&device) as _, JournalConfig::default());
    for round in 0..200_u64 {
        let tid = set(&journal, 1000 + round % 37, round as u8);
        if round % 3 != 0 {
            journal.commit(tid, TAG).unwrap();
            let after = layout.recovered(&device);
            assert_eq!(layout.block(&after, 1000 + round % 37)[9], round as u8);
        }
    }
    let stats = journal.stats();
    assert!(stats.tail_moves > 5, "{stats:?}");
    assert!(
        stats.waited_space.count > 0 && stats.dropped > 0,
        "{stats:?}"
    );
    journal.flush_all().unwrap();
    assert_eq!(
        layout
            .recover(Arc::clone(&device) as _)
            .summary
            .transactions,
        0
    );
    let image = device.to_bytes();
    for round in 163..200_u64 {
        assert_eq!(layout.block(&image, 1000 + round % 37)[9], round as u8);
    }
    // The journal works on after it was marked empty.
    let tid = set(&journal, 999, 7);
    journal.commit(tid, TAG).unwrap();
    assert_eq!(layout.block(&layout.recovered(&device), 999)[9], 7);
}

#[test]
fn a_freed_block_is_not_replayed_over_its_next_owner() {
    let layout = Layout::new(1024, 2048, 256);
    let device = layout.device();
    let journal = layout.open(Arc::clone(&device) as _, JournalConfig::default());
    let tid = set(&journal, 700, 1);
    journal.commit(tid, TAG).unwrap();
    let mut handle = journal.begin(1).unwrap();
    handle.forget(DevBlock(700)).unwrap();
    assert_eq!(handle.credits(), 0);
    let tid = handle.tid();
    drop(handle);
    journal.commit(tid, TAG).unwrap();
    device.write(700 * 1024, b"data");
    let after = layout.recovered(&device);
    assert_eq!(&layout.block(&after, 700)[..4], b"data");
    journal.flush_all().unwrap();
    assert_eq!(&layout.block(&device.to_bytes(), 700)[..4], b"data");
    // Metadata again: replayed again.
    let tid = set(&journal, 700, 2);
    journal.commit(tid, TAG).unwrap();
    assert_eq!(layout.block(&layout.recovered(&device), 700)[9], 2);
}

#[test]
fn a_block_freed_and_used_again_in_one_transaction_is_replayed() {
    let layout = Layout::new(1024, 2048, 256);
    let device = layout.device();
    let journal = layout.open(Arc::clone(&device) as _, JournalConfig::default());
    let tid = set(&journal, 700, 1);
    journal.commit(tid, TAG).unwrap();
    let mut handle = journal.begin(3).unwrap();
    handle.forget(DevBlock(700)).unwrap();
    handle.write(&journal.cache.get_new(DevBlock(700))).unwrap()[9] = 2;
    handle.write(&buf(&journal, 701)).unwrap()[9] = 2;
    handle.forget(DevBlock(701)).unwrap();
    let tid = handle.tid();
    drop(handle);
    journal.commit(tid, TAG).unwrap();
    let after = layout.recovered(&device);
    assert_eq!(layout.block(&after, 700)[9], 2);
    assert_eq!(layout.block(&after, 701)[9], 0);
}

#[test]
fn replay_in_memory_writes_nothing_and_shows_all() {
    let layout = Layout::new(1024, 2048, 256);
    let device = layout.device();
    let journal = layout.open(Arc::clone(&device) as _, JournalConfig::default());
    let mut handle = journal.begin(2).unwrap();
    handle.write(&buf(&journal, 700)).unwrap()[..4].copy_from_slice(&0xC03B_3998_u32.to_be_bytes());
    handle.write(&buf(&journal, 702)).unwrap()[1000] = 5;
    let tid = handle.tid();
    drop(handle);
    journal.commit(tid, TAG).unwrap();
    drop(journal);
    let before = device.to_bytes();
    let expected = layout.recovered(&device);
    let queue = layout.queue(Arc::clone(&device) as _);
    let map = layout.map();
    let found = recover(&queue, layout.block_size, &map, Recover::IntoMemory, TAG).unwrap();
    assert_eq!(device.to_bytes(), before);
    assert_eq!(
        found.overlay.blocks().collect::<Vec<_>>(),
        [DevBlock(700), DevBlock(702)]
    );
    let over = OverlayDevice::new(device, layout.block_size, found.overlay);
    assert!(over.geometry().read_only);
    let over = layout.queue(Arc::new(over));
    for (offset, len) in [
        (699 * 1024, 4096),
        (700 * 1024 + 512, 512),
        (702 * 1024 + 512, 2048),
    ] {
        for tag in [TAG, IoTag::default()] {
            let read = over.read(offset as u64, len, tag).unwrap();
            assert_eq!(read[..], expected[offset..offset + len]);
        }
    }
    assert!(
        over.write(0, vec![steadfs_block::Buf::zeroed(512)], TAG)
            .is_err()
    );
}

#[test]
fn credit_limits_are_reported() {
    let layout = Layout::new(1024, 2048, 256);
    let device = layout.device();
    let journal = layout.open(Arc::clone(&device) as _, JournalConfig::default());
    let max = journal.max_credits();
    assert!((55..64).contains(&max), "{max}");
    assert!(matches!(
        journal.begin(max + 1),
        Err(JournalError::TooManyCredits { .. })
    ));
    let mut handle = journal.begin(0).unwrap();
    assert!(!handle.extend(max + 3));
    assert!(handle.extend(max));
    assert_eq!(handle.credits(), max);
    let mut written = 0;
    let error = loop {
        match handle.write(&buf(&journal, 400 + written)) {
            Ok(mut content) => content[0] = 1,
            Err(error) => break error,
        }
        written += 1;
    };
    assert_eq!(error, JournalError::CreditsUsedUp);
    assert!((u64::from(max)..u64::from(max) + 3).contains(&written));
    // The handle commits the full transaction itself, because no commit task runs.
    let full = handle.tid();
    handle.restart(max).unwrap();
    assert_eq!(handle.tid(), full.next());
    assert_eq!(journal.durable_tid(), full);
    drop(handle);
    let after = layout.recovered(&device);
    assert!((400..400 + written).all(|block| layout.block(&after, block)[0] == 1));
    let read_only = JournalConfig {
        read_only: true,
        ..JournalConfig::default()
    };
    assert!(matches!(
        layout.open(layout.device(), read_only).begin(1),
        Err(JournalError::ReadOnly)
    ));
}

#[test]
fn a_journal_in_use_must_be_recovered_first() {
    let layout = Layout::new(1024, 2048, 256);
    let device = layout.device();
    let journal = layout.open(Arc::clone(&device) as _, JournalConfig::default());
    let tid = set(&journal, 700, 1);
    journal.commit(tid, TAG).unwrap();
    let image = device.to_bytes();
    let again = Arc::new(MemDevice::from_bytes(&image));
    let cache = steadfs_cache::MetaCache::new(layout.queue(again), layout.block_size, 1 << 20);
    let opened = crate::Journal::open(Arc::new(cache), layout.map(), JournalConfig::default());
    assert!(matches!(opened, Err(JournalError::NeedsRecovery)));
}

#[test]
fn an_abort_keeps_its_first_cause_and_is_recorded() {
    let layout = Layout::new(1024, 2048, 256);
    let device = layout.device();
    let journal = layout.open(Arc::clone(&device) as _, JournalConfig::default());
    let reported = Arc::new(steadfs_rt::Event::<String>::new());
    let event = Arc::clone(&reported);
    journal.on_abort(Box::new(move |cause| event.set(cause.to_owned())));
    let tid = set(&journal, 700, 1);
    journal.abort("first");
    journal.abort("second");
    assert_eq!(reported.get().as_deref(), Some("first"));
    assert_eq!(journal.abort_reason().as_deref(), Some("first"));
    let aborted = JournalError::Aborted("first".into());
    assert_eq!(journal.commit(tid, TAG), Err(aborted.clone()));
    assert_eq!(journal.flush_all(), Err(aborted.clone()));
    assert!(matches!(journal.begin(1), Err(error) if error == aborted));
    let summary = layout.recover(Arc::clone(&device) as _).summary;
    assert_eq!((summary.transactions, summary.recorded_errno), (0, Some(5)));
    let again = layout.open(Arc::clone(&device) as _, JournalConfig::default());
    again.clear_errno().unwrap();
    assert_eq!(layout.recover(device).summary.recorded_errno, None);
}

#[test]
fn the_info_page_has_the_kernels_lines_and_ours() {
    let layout = Layout::new(1024, 2048, 257);
    let config = JournalConfig {
        reclaim: ReclaimPolicy {
            enabled: false,
            ..ReclaimPolicy::default()
        },
        ..JournalConfig::default()
    };
    let journal = layout.open(layout.device(), config);
    let first = journal.info();
    assert_eq!(
        first.lines().next(),
        Some("0 transactions (0 requested), each up to 63 blocks")
    );
    assert_eq!(first.lines().nth(1), Some("waits: "));
    let tid = set(&journal, 700, 1);
    journal.commit(tid, TAG).unwrap();
    let info = journal.info();
    let lines: Vec<&str> = info.lines().collect();
    assert_eq!(
        lines[0],
        "1 transactions (1 requested), each up to 63 blocks"
    );
    assert_eq!(lines[1], "average: ");
    assert_eq!(lines[9], "  1 handles per transaction");
    assert_eq!(lines[10], "  1 blocks per transaction");
    assert_eq!(lines[11], "  3 logged blocks per transaction");
    assert_eq!(
        lines[13],
        "  0 for locked transaction, 0us in total, 0us the longest"
    );
}

/// A handle that waits while the log is emptied is not admitted behind the caller's clean mark.
#[test]
fn a_closed_journal_refuses_handles_that_have_waited() {
    sim::run(sim::Config::new(1), || {
        let layout = Layout::new(1024, 2048, 1024);
        let device = FaultDevice::new(layout.device());
        let journal = layout.open(Arc::clone(&device) as _, JournalConfig::default());
        set(&journal, 1500, 1);
        device.set(|bio| match bio.op {
            Op::Write => Fault::Delay(Duration::from_millis(10)),
            _ => Fault::None,
        });
        let closer = spawn("closer", {
            let journal = Arc::clone(&journal);
            move || journal.close(JournalError::Frozen)
        });
        sleep(Duration::from_millis(1));
        let refused = journal.begin(1).map(drop);
        assert_eq!(refused, Err(JournalError::Frozen));
        assert_eq!(closer.join(), Ok(()));
        assert_eq!(journal.running_tid(), None);
        let changes = device.changes();
        journal.commit_all(TAG).unwrap();
        assert_eq!(device.changes(), changes);
        journal.reopen();
        let tid = set(&journal, 1500, 2);
        journal.commit(tid, TAG).unwrap();
        let after = layout.recovered(&device.memory);
        assert_eq!(layout.block(&after, 1500)[9], 2);
    });
}
