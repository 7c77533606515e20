//! Fast commits of the running transaction: what they make durable, and when the whole transaction is committed instead.

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use steadfs_base::endian::Be32;
use steadfs_base::{DevBlock, IoTag, Tid};
use steadfs_block::{DeviceModel, Fault, FaultDevice, MemDevice, ModelDevice, Op};
use steadfs_jbd2_format::RawSuperblock;
use steadfs_rt::{Mutex, Rank, sim, sleep, spawn, yield_now};
use zerocopy::{FromBytes, IntoBytes};

use super::support::{Layout, buf, set};
use crate::{
    Durable, FastCommitChange, FastCommitStats, Journal, JournalConfig, JournalTuning, Recover,
    recover,
};

const TAG: IoTag = IoTag::background();
const SIZE: u64 = 1024;
/// Blocks behind the log; the first of them stays unused.
const AREA: u32 = 8;

/// A volume whose journal, of 100 blocks, ends with an area for fast commits.
fn layout(journal: &[(u64, u64)]) -> Layout {
    Layout {
        journal: journal
            .iter()
            .map(|&(at, len)| (DevBlock(at), len))
            .collect(),
        ..Layout::new(SIZE as u32, 400, 100)
    }
}

fn device(layout: &Layout, area: u32) -> Arc<MemDevice> {
    let mut image = layout.device().to_bytes();
    let at = layout.block_size.offset_of(layout.journal[0].0) as usize;
    let mut raw = RawSuperblock::read_from_bytes(&image[at..at + 1024]).unwrap();
    raw.mark_fast_commits(true);
    raw.fast_commit_blocks = Be32::new(area);
    image[at..at + 1024].copy_from_slice(raw.as_bytes());
    Arc::new(MemDevice::from_bytes(&image))
}

/// Opened on a device with an area; its first transaction has committed block 300.
fn opened(journal: &[(u64, u64)]) -> (Layout, Arc<FaultDevice>, Arc<Journal>) {
    let layout = layout(journal);
    let device = FaultDevice::new(device(&layout, AREA));
    let journal = layout.open(Arc::clone(&device) as _, JournalConfig::default());
    let tid = set(&journal, 300, 1);
    journal.commit(tid, TAG).unwrap();
    (layout, device, journal)
}

/// A change of inode `ino` that takes about `len` bytes.
fn change(ino: u32, len: usize) -> FastCommitChange {
    let raw = vec![0x5A; len].into();
    FastCommitChange::Inode { ino, raw }
}

/// A fast commit with changes of 130 bytes of these inodes.
fn fast(journal: &Journal, tid: Tid, inos: &[u32]) -> Option<Durable> {
    let changes: Vec<_> = inos.iter().map(|&ino| change(ino, 130)).collect();
    let take = |of| {
        assert_eq!(of, tid);
        Ok(changes.clone())
    };
    journal.fast_commit(tid, TAG, &take).unwrap()
}

/// The fast commits that a recovery finds behind the empty one at the area's head, as inode numbers.
fn found(layout: &Layout, memory: &MemDevice) -> Vec<Vec<u32>> {
    let copy = Arc::new(MemDevice::from_bytes(&memory.to_bytes()));
    let (queue, how) = (layout.queue(copy), Recover::IntoMemory);
    let found = recover(&queue, layout.block_size, &layout.map(), how, TAG).unwrap();
    let ino = |record: &crate::FastCommitRecord| match record.change {
        FastCommitChange::Inode { ino, .. } => ino,
        _ => panic!("only inodes are recorded: {record:?}"),
    };
    let commits = found.fast_commits.commits.iter();
    let mut commits = commits.map(|c| c.iter().map(ino).collect());
    let head: Option<Vec<u32>> = commits.next();
    assert!(head.is_none_or(|changes| changes.is_empty()));
    commits.collect()
}

fn stats(commits: u64, blocks: u64, refused: &[(&'static str, u64)]) -> FastCommitStats {
    FastCommitStats {
        commits,
        blocks,
        refused: refused.iter().copied().collect::<BTreeMap<_, _>>(),
    }
}

#[test]
fn a_transaction_stays_open_after_its_fast_commits_and_its_own_commit_ends_them() {
    let (layout, device, journal) = opened(&[(10, 100)]);
    assert!(journal.has_fast_commit_area() && journal.has_fast_commits());
    let first = journal.durable_tid();
    let tid = set(&journal, 301, 1);
    assert_eq!(fast(&journal, tid, &[11]), Some(Durable::Flushed));
    assert_eq!(found(&layout, &device.memory), [[11]]);
    // The head of the area, and the change.
    assert_eq!(journal.fast_commit_stats(), stats(1, 2, &[]));
    assert!(journal.info().contains("1 fast commits, 2 blocks\n"));
    assert_eq!(journal.durable_tid(), first);

    // No handle since: nothing is written.
    let writes = device.changes();
    let none = |_| -> Result<_, _> { panic!("there are no changes to take") };
    let again = journal.fast_commit(tid, TAG, &none).unwrap();
    assert_eq!(again, Some(Durable::Already));
    // A handle that changed nothing that a fast commit describes.
    assert_eq!(set(&journal, 302, 1), tid);
    assert_eq!(fast(&journal, tid, &[]), Some(Durable::Already));
    assert_eq!(device.changes(), writes);

    assert_eq!(set(&journal, 301, 2), tid);
    assert!(journal.has_fast_commits());
    assert_eq!(fast(&journal, tid, &[12, 13]), Some(Durable::Flushed));
    assert_eq!(found(&layout, &device.memory), [vec![11], vec![12, 13]]);
    assert_eq!(journal.fast_commit_stats(), stats(2, 3, &[]));

    journal.commit(tid, TAG).unwrap();
    assert!(found(&layout, &device.memory).is_empty());
    let after = layout.recovered(&device.memory);
    assert_eq!(layout.block(&after, 301)[9], 2);
    let area = device.memory.to_bytes();
    let area = layout.block(&area, 10 + 100 - u64::from(AREA) + 1);
    assert!(area.iter().all(|&byte| byte == 0), "the head is removed");
    assert_eq!(fast(&journal, tid, &[14]), None, "it is durable already");

    // The next transaction has the whole area.
    let tid = set(&journal, 303, 1);
    assert_eq!(fast(&journal, tid, &[15]), Some(Durable::Flushed));
    assert_eq!(found(&layout, &device.memory), [[15]]);
    assert_eq!(journal.fast_commit_stats(), stats(3, 5, &[]));
    // No transaction of this number has begun.
    assert_eq!(fast(&journal, tid.next(), &[16]), None);
}

#[test]
fn a_fast_commit_is_one_write_with_a_flush_before_it() {
    let (_, device, journal) = opened(&[(10, 100)]);
    let (sender, bios) = mpsc::channel();
    let tid = set(&journal, 301, 1);
    device.fail(move |bio| {
        let _ = sender.send((bio.op, bio.len, bio.preflush, bio.fua));
        false
    });
    let changes = |_| Ok((0..3).map(|ino| change(ino, 900)).collect());
    let done = journal.fast_commit(tid, TAG, &changes);
    assert_eq!(done, Ok(Some(Durable::Flushed)));
    // The head and three blocks.
    let written: Vec<_> = bios.try_iter().collect();
    assert_eq!(written, [(Op::Write, 4 * SIZE, true, true)]);
    assert_eq!(journal.fast_commit_stats(), stats(1, 4, &[]));

    journal.set_tuning(JournalTuning {
        barriers: false,
        ..journal.tuning()
    });
    set(&journal, 301, 2);
    assert!(fast(&journal, tid, &[9]).is_some());
    let written: Vec<_> = bios.try_iter().collect();
    assert_eq!(written, [(Op::Write, SIZE, false, false)]);
}

/// Changes of one block each, whose area has 7 blocks.
#[test]
fn a_transaction_whose_changes_do_not_fit_the_area_is_committed_as_a_whole() {
    for (sizes, fit) in [
        (vec![1; 7], 6),
        (vec![6, 1], 1),
        (vec![7], 0),
        (vec![3, 3, 1], 2),
    ] {
        let (layout, device, journal) = opened(&[(10, 100)]);
        let mut tid = Tid(0);
        for (n, &blocks) in sizes.iter().enumerate() {
            tid = set(&journal, 301, n as u8);
            let changes = |_| Ok((0..blocks).map(|ino| change(ino, 900)).collect());
            let done = journal.fast_commit(tid, TAG, &changes).unwrap();
            assert_eq!(done.is_some(), n < fit, "{sizes:?}, {n}");
            assert_eq!(journal.has_fast_commits(), n < fit, "{sizes:?}, {n}");
        }
        assert_eq!(found(&layout, &device.memory).len(), fit, "{sizes:?}");
        // Later ones of this transaction do not try again.
        let none = |_| -> Result<_, _> { panic!("its changes are not taken again") };
        set(&journal, 302, 1);
        assert_eq!(journal.fast_commit(tid, TAG, &none), Ok(None));
        journal.commit(tid, TAG).unwrap();
        assert_eq!(
            journal.fast_commit_stats().refused,
            stats(0, 0, &[("area full", 1)]).refused
        );
        // The next transaction can have fast commits.
        let tid = set(&journal, 302, 2);
        assert!(journal.has_fast_commits());
        assert!(fast(&journal, tid, &[1]).is_some());
    }
}

#[test]
fn a_transaction_that_no_fast_commit_describes_is_counted_by_its_first_reason() {
    let (_, device, journal) = opened(&[(10, 100)]);
    let refuse = |why| {
        let mut handle = journal.begin(1).unwrap();
        handle.write(&buf(&journal, 301)).unwrap()[9] = 1;
        handle.refuse_fast_commits(why);
        handle.tid()
    };
    let (tid, writes) = (refuse("truncate"), device.changes());
    refuse("rename");
    assert!(!journal.has_fast_commits());
    assert_eq!(fast(&journal, tid, &[1]), None);
    assert_eq!(device.changes(), writes);
    journal.commit(tid, TAG).unwrap();
    // No caller waits: not counted.
    let tid = refuse("rename");
    journal.commit_as(tid, TAG, false).unwrap();
    assert_eq!(journal.fast_commit_stats(), stats(0, 0, &[("truncate", 1)]));

    // The file system finds that it cannot describe the changes.
    for round in 1..=2 {
        let tid = set(&journal, 302, round);
        assert!(journal.has_fast_commits());
        assert_eq!(
            journal.fast_commit(tid, TAG, &|_| Err("new directory")),
            Ok(None)
        );
        assert!(!journal.has_fast_commits());
        journal.commit(tid, TAG).unwrap();
    }
    let refused = [("truncate", 1), ("new directory", 2)];
    assert_eq!(journal.fast_commit_stats(), stats(0, 0, &refused));

    let line = "2 commits for waiting callers instead: new directory\n";
    assert!(journal.info().contains(line));

    // Off: nothing is written or counted.
    journal.set_tuning(JournalTuning {
        fast_commit: false,
        ..journal.tuning()
    });
    let tid = refuse("truncate");
    assert!(!journal.has_fast_commits() && journal.has_fast_commit_area());
    assert_eq!(fast(&journal, tid, &[1]), None);
    journal.commit(tid, TAG).unwrap();
    assert!(!journal.has_fast_commits());
    assert_eq!(fast(&journal, set(&journal, 302, 3), &[1]), None);
    assert_eq!(journal.fast_commit_stats(), stats(0, 0, &refused));
}

#[test]
fn a_journal_without_an_area_has_no_fast_commits() {
    let layout = Layout::new(SIZE as u32, 400, 100);
    let journal = layout.open(layout.device(), JournalConfig::default());
    let tid = set(&journal, 301, 1);
    assert!(!journal.has_fast_commit_area() && !journal.has_fast_commits());
    assert_eq!(fast(&journal, tid, &[1]), None);
    assert!(journal.abort_reason().is_none());
}

/// The area goes on in another part of the device: a power cut leaves all blocks of a fast commit, or none counts.
#[test]
fn a_fast_commit_in_two_extents_is_all_there_or_not_at_all_after_any_write() {
    let extents = [(10, 96), (200, 4)];
    let mut ends = Vec::new();
    for writes in 0..8 {
        let (layout, device, journal) = opened(&extents);
        let tid = set(&journal, 301, 1);
        assert!(fast(&journal, tid, &[1]).is_some());
        set(&journal, 301, 2);
        let before = device.memory.to_bytes();
        device.fail_after(writes);
        let changes = |_| Ok((20..23).map(|ino| change(ino, 900)).collect());
        let done = journal.fast_commit(tid, TAG, &changes);
        let all = found(&layout, &device.memory);
        assert_eq!(all[0], [1]);
        assert_eq!(all.get(1).is_some_and(|c| *c == [20, 21, 22]), done.is_ok());
        assert_eq!(all.len(), 1 + usize::from(done.is_ok()));
        let after = device.memory.to_bytes();
        let outside = |image: &[u8]| image[110 * 1024..200 * 1024].to_vec();
        assert!(outside(&before) == outside(&after));
        ends.push(done.is_ok());
    }
    // Blocks in the first extent, those in the second, and the last block after them.
    assert_eq!(ends, [false, false, false, true, true, true, true, true]);
}

/// Tasks that fsync at the same time share fast commits; each has its change in one when its call returns.
#[test]
fn an_acknowledged_fast_commit_has_the_callers_change() {
    for seed in 0..6 {
        let run = move || {
            let layout = layout(&[(10, 100)]);
            let memory = device(&layout, 40);
            let model = DeviceModel {
                bytes_per_second: 500 << 20,
                latency: Duration::from_micros(40),
                flush: Duration::from_micros(200),
                depth: 8,
            };
            let model = Arc::new(ModelDevice::new(Arc::clone(&memory) as _, model));
            let journal = layout.open(model as _, JournalConfig::default());
            let pending = Arc::new(Mutex::new(Rank::Leaf, Vec::new()));
            let tasks: Vec<_> = (0..4_u32)
                .map(|task| {
                    let (journal, pending) = (Arc::clone(&journal), Arc::clone(&pending));
                    let (layout, memory) = (layout.clone(), Arc::clone(&memory));
                    spawn("caller", move || {
                        for round in 0..6 {
                            let ino = 100 * task + round;
                            let mut handle = journal.begin(1).unwrap();
                            let block = 300 + u64::from(task);
                            handle.write(&buf(&journal, block)).unwrap()[9] = round as u8;
                            yield_now();
                            // The change is complete only when the handle ends.
                            pending.lock().push(change(ino, 130));
                            let tid = handle.tid();
                            drop(handle);
                            let changes = |_| Ok(std::mem::take(&mut *pending.lock()));
                            let done = journal.fast_commit(tid, TAG, &changes).unwrap();
                            if done.is_none() {
                                journal.commit(tid, TAG).unwrap();
                            } else if !journal.durable_tid().at_least(tid) {
                                let all = found(&layout, &memory).concat();
                                assert!(all.contains(&ino), "{ino}: {all:?}");
                            }
                            sleep(Duration::from_micros(60));
                        }
                    })
                })
                .collect();
            tasks.into_iter().for_each(|task| task.join());
            journal.fast_commit_stats()
        };
        let stats = sim::run(sim::Config::new(seed), run).value;
        let commits = stats.commits;
        assert!((6..16).contains(&commits), "seed {seed}: {stats:?}");
        assert_eq!(
            stats.blocks,
            commits + 1,
            "one head, a block each: {stats:?}"
        );
    }
}

/// While the area is cleared after a commit, callers may wait for a transaction in which nothing will be changed: each
/// of them returns.
#[test]
fn all_waiters_for_an_empty_transaction_return() {
    let run = || {
        let (_, device, journal) = opened(&[(10, 100)]);
        let tid = set(&journal, 301, 1);
        fast(&journal, tid, &[11]).unwrap();
        device.set(|bio| match bio.op {
            Op::Write => Fault::Delay(Duration::from_millis(10)),
            _ => Fault::None,
        });
        let ended = Arc::new(Mutex::new(Rank::Leaf, 0));
        let commit_beside = || {
            let (journal, ended) = (Arc::clone(&journal), Arc::clone(&ended));
            spawn("commit", move || {
                journal.commit_all(TAG).unwrap();
                *ended.lock() += 1;
            })
        };
        let first = commit_beside();
        while !journal.durable_tid().at_least(tid) {
            sleep(Duration::from_millis(1));
        }
        let handle = journal.begin(1).unwrap();
        let others = [commit_beside(), commit_beside(), commit_beside()];
        sleep(Duration::from_millis(1));
        assert_eq!(*ended.lock(), 0, "the area is being cleared");
        drop(handle);
        sleep(Duration::from_secs(1));
        assert_eq!(*ended.lock(), 4);
        first.join();
        others.into_iter().for_each(|other| other.join());
    };
    for seed in 0..20 {
        sim::run(sim::Config::new(seed), run);
    }
}
