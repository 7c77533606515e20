//! Panics in a process that does not end, as with the library: incomplete changes are not committed, and every wait
//! ends.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_rt::{PANICKED, sleep, task_name};

use super::support::{Layout, buf, set};
use crate::{Journal, JournalConfig, JournalError, JournalTuning};

const TAG: IoTag = IoTag::background();

/// Panics without a message.
fn panic_quietly() -> ! {
    resume_unwind(Box::new("quietly"))
}

fn stopped<T>(result: Result<T, JournalError>) -> bool {
    let cause = result.map(drop).expect_err("the journal is aborted");
    cause == JournalError::Aborted(PANICKED.to_owned())
}

#[test]
fn a_handle_dropped_by_a_panic_is_never_committed() {
    let layout = Layout::new(1024, 2048, 1024);
    let device = layout.device();
    let journal = layout.open(Arc::clone(&device) as _, JournalConfig::default());
    let tid = set(&journal, 1500, 1);
    journal.commit(tid, TAG).unwrap();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let mut handle = journal.begin(2).unwrap();
        handle.write(&buf(&journal, 1500)).unwrap()[9] = 2;
        panic_quietly();
    }));
    assert!(caught.is_err());
    assert!(stopped(journal.commit_all(TAG)));
    assert!(stopped(journal.begin(1)));
    let after = layout.recovered(&device);
    assert_eq!(layout.block(&after, 1500)[9], 1);
}

/// A journal in which the task with this name panics after a commit.
fn panics_in(task: &'static str, interval: Duration) -> Arc<Journal> {
    let layout = Layout::new(1024, 2048, 1024);
    let tuning = JournalTuning {
        commit_interval: interval,
        ..JournalTuning::default()
    };
    let config = JournalConfig {
        tuning,
        ..JournalConfig::default()
    };
    let journal = layout.open(layout.device(), config);
    journal.on_commit(Box::new(move |_| {
        if task_name() == task {
            panic_quietly();
        }
    }));
    journal
}

#[test]
fn a_panic_of_the_commit_task_ends_every_wait() {
    let journal = panics_in("jbd2", Duration::from_millis(5));
    journal.start_tasks().unwrap();
    set(&journal, 1500, 1);
    while journal.abort_reason().is_none() {
        sleep(Duration::from_millis(1));
    }
    assert!(stopped(journal.commit_all(TAG)));
    assert!(stopped(journal.flush_all()));
    // No handle waits for the task any more.
    let began = steadfs_rt::now();
    while journal.state.lock().has_commit_task {
        assert!(began.elapsed() < Duration::from_secs(5));
        sleep(Duration::from_millis(1));
    }
    journal.join_tasks();
}

#[test]
fn a_panic_of_the_leader_ends_the_waits_of_joined_callers() {
    let journal = panics_in("leader", Duration::from_secs(60));
    let tid = set(&journal, 1500, 1);
    let begun = Arc::new(AtomicBool::new(false));
    let leader = {
        let (journal, begun) = (Arc::clone(&journal), Arc::clone(&begun));
        steadfs_rt::spawn("leader", move || {
            begun.store(true, Ordering::Release);
            journal.commit(tid, TAG).map(drop)
        })
    };
    while !begun.load(Ordering::Acquire) {
        sleep(Duration::from_millis(1));
    }
    // This caller joined or arrived after the commit: the transaction is durable, or the journal is aborted.
    let joined = journal.commit(tid, TAG);
    assert!(joined.is_ok() || stopped(joined));
    let panicked = leader.join_panicked().is_none();
    assert_eq!(panicked, journal.abort_reason().is_some());
    let tid = set_if_open(&journal);
    assert!(!panicked || tid.is_none());
    assert!(!panicked || stopped(journal.flush_all()));
}

fn set_if_open(journal: &Journal) -> Option<steadfs_base::Tid> {
    journal.begin(1).ok().map(|handle| handle.tid())
}
