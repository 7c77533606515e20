//! What an open journal reports about itself.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{DevBlock, IoTag};

use super::support::{Layout, buf, set};
use crate::{JournalConfig, ReclaimPolicy};

const TAG: IoTag = IoTag::background();

#[test]
fn a_recorded_abort_is_reported_by_the_next_mount() {
    let layout = Layout::new(1024, 2048, 256);
    let device = layout.device();
    let journal = layout.open(Arc::clone(&device) as _, JournalConfig::default());
    assert_eq!(journal.recorded_errno(), None);
    journal.abort("a test");
    drop(journal);
    let journal = layout.open(device, JournalConfig::default());
    assert_eq!(journal.recorded_errno(), Some(5));
}

#[test]
fn the_policy_in_effect_is_the_one_that_was_set() {
    let layout = Layout::new(1024, 2048, 256);
    let journal = layout.open(layout.device(), JournalConfig::default());
    let policy = ReclaimPolicy {
        max_age: Duration::from_secs(77),
        low_free_percent: Some(13),
        ..ReclaimPolicy::default()
    };
    assert_ne!(journal.reclaim_policy(), policy);
    journal.set_reclaim_policy(policy.clone());
    assert_eq!(journal.reclaim_policy(), policy);
}

#[test]
fn only_a_transaction_with_changes_has_an_age() {
    let layout = Layout::new(1024, 2048, 256);
    let journal = layout.open(layout.device(), JournalConfig::default());
    assert_eq!(journal.running_age(), None);
    drop(journal.begin(1).unwrap());
    assert_eq!(journal.running_age(), None);
    let tid = set(&journal, 700, 1);
    assert!(journal.running_age().is_some_and(|age| !age.is_zero()));
    journal.commit(tid, TAG).unwrap();
    assert_eq!(journal.running_age(), None);
}

#[test]
fn the_counters_are_one_object_with_the_numbers_of_the_journal() {
    let layout = Layout::new(1024, 2048, 256);
    let journal = layout.open(layout.device(), JournalConfig::default());
    let tid = set(&journal, 700, 1);
    journal.commit(tid, TAG).unwrap();
    let json = journal.stats_json();
    assert!(json.starts_with('{') && json.ends_with('}'), "{json}");
    let (free, capacity) = journal.log_space();
    // A descriptor, the block and the commit record.
    assert_eq!(capacity - free, 3);
    for part in [
        "\"transactions\":1,".to_owned(),
        format!("\"durable\":{tid},"),
        format!("\"log_blocks\":{capacity},"),
        format!("\"log_free\":{free},"),
        "\"handles\":1,".to_owned(),
    ] {
        assert!(json.contains(&part), "{part} in {json}");
    }
}

#[test]
fn a_locked_transaction_gives_credits_to_a_rollback_only() {
    let layout = Layout::new(1024, 2048, 256);
    let journal = layout.open(layout.device(), JournalConfig::default());
    let max = journal.max_credits();
    let lock = |locked| {
        let mut state = journal.state.lock();
        state.running.as_mut().unwrap().locked = locked;
    };
    let mut handle = journal.begin(1).unwrap();
    lock(true);
    assert!(!handle.extend(1));
    assert!(handle.extend_while_locked(2));
    assert_eq!(handle.credits(), 3);
    assert!(!handle.extend_while_locked(max));
    assert_eq!(handle.credits(), 3);
    handle.write(&buf(&journal, 700)).unwrap()[0] = 1;
    lock(false);
    journal.abort("a test");
    assert!(!handle.extend_while_locked(1));
    drop(handle);
}

#[test]
fn a_revoke_takes_a_credit_once() {
    let layout = Layout::new(1024, 2048, 256);
    let journal = layout.open(layout.device(), JournalConfig::default());
    let tid = set(&journal, 700, 1);
    journal.commit(tid, TAG).unwrap();
    let mut handle = journal.begin(1).unwrap();
    handle.forget(DevBlock(700)).unwrap();
    assert_eq!(handle.credits(), 0);
    handle.forget(DevBlock(700)).unwrap();
    assert_eq!(handle.credits(), 0);
    // A block without a copy in the log needs no revoke.
    handle.forget(DevBlock(701)).unwrap();
}
