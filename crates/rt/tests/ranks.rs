//! The order of locks is checked, on threads and in simulation.
#![cfg(debug_assertions)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use steadfs_rt::sim::{self, Config};
use steadfs_rt::{Condvar, Event, Mutex, Rank, RankScope, RwLock, spawn, yield_now};

/// The message of `f`'s panic.
fn panics(f: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("the closure panics");
    let text = panic.downcast_ref::<String>();
    text.expect("the message is formatted").clone()
}

/// Runs a body on a thread and in simulation.
fn both(f: fn()) {
    spawn("a-thread", f).join();
    sim::run(Config::new(0), f);
}

#[test]
fn ascending_ranks_are_allowed() {
    both(|| {
        let (inode, group) = (Mutex::new(Rank::Inode, ()), RwLock::new(Rank::Group, ()));
        let (leaf, event) = (Mutex::new(Rank::Leaf, ()), Event::new());
        let _a = inode.lock();
        let _b = group.read();
        event.set(1);
        assert_eq!(event.wait(), 1);
        let _c = leaf.lock();
    });
}

#[test]
fn a_descending_rank_panics_with_both_ranks_and_the_task() {
    spawn("a-thread", || {
        let (inode, group) = (Mutex::new(Rank::Inode, ()), Mutex::new(Rank::Group, ()));
        let _held = group.lock();
        let text = panics(|| drop(inode.lock()));
        assert_eq!(
            text,
            "lock order: task 'a-thread' takes Inode while it holds Group"
        );
    })
    .join();
    let failure = sim::try_run(Config::new(0), || {
        let (inode, group) = (RwLock::new(Rank::Inode, ()), RwLock::new(Rank::Group, ()));
        let _held = group.read();
        drop(inode.write());
    })
    .expect_err("the run fails");
    let text = failure.to_string();
    assert!(
        text.contains("task 'main' takes Inode while it holds Group"),
        "{text}"
    );
}

#[test]
fn locks_of_one_rank_are_ordered_by_key() {
    both(|| {
        let inode = |number| RwLock::with_key(Rank::Inode, number, ());
        let (three, four, four_again) = (inode(3), inode(4), inode(4));
        let unkeyed = Mutex::new(Rank::Inode, ());
        {
            let _three = three.write();
            let _four = four.write();
            assert!(panics(|| drop(four_again.write())).contains("Inode(4) while it holds"));
        }
        let _four = four.read();
        let text = panics(|| drop(three.read()));
        assert!(text.contains("takes Inode(3) while it holds Inode(4)"));
        assert!(panics(|| drop(unkeyed.lock())).contains("takes Inode while"));
        assert!(panics(|| drop(four.read())).contains("takes Inode(4)"));
    });
}

#[test]
fn no_lock_is_taken_below_a_leaf() {
    both(|| {
        let (one, two) = (Mutex::new(Rank::Leaf, ()), Mutex::new(Rank::Leaf, ()));
        let _one = one.lock();
        assert!(panics(|| drop(two.lock())).contains("takes Leaf while it holds Leaf"));
    });
}

#[test]
fn a_try_may_descend_and_the_lock_counts_as_held() {
    both(|| {
        let (mount, inode) = (Mutex::new(Rank::Mount, ()), Mutex::new(Rank::Inode, ()));
        let group = Mutex::new(Rank::Group, ());
        let _group = group.try_lock();
        let _mount = mount.try_lock();
        assert!(panics(|| drop(inode.lock())).contains("takes Inode while it holds Group"));
        drop(_group);
        drop(inode.lock());
    });
}

#[test]
fn waiting_with_a_later_lock_panics() {
    both(|| {
        let (inode, queue) = (
            Mutex::new(Rank::Inode, ()),
            Mutex::new(Rank::QueueState, ()),
        );
        let later = Mutex::new(Rank::DeviceInner, ());
        let condvar = Condvar::new();
        let brief = Duration::from_millis(1);
        let _earlier = inode.lock();
        let mut guard = queue.lock();
        assert!(condvar.wait_for(&mut guard, brief));
        let _later = later.lock();
        let text = panics(|| assert!(condvar.wait_for(&mut guard, brief)));
        assert!(text.contains("under QueueState while it holds DeviceInner"));
    });
}

#[test]
fn each_simulated_task_has_its_own_list() {
    sim::run(Config::new(0), || {
        let group = Mutex::new(Rank::Group, ());
        let _held = group.lock();
        let task = spawn("other", || drop(Mutex::new(Rank::Inode, ()).lock()));
        yield_now();
        task.join();
    });
    // A new task does not hold the locks of its spawner.
    let group = Mutex::new(Rank::Group, ());
    let _held = group.lock();
    sim::run(Config::new(0), || drop(Mutex::new(Rank::Inode, ()).lock()));
    let text = panics(|| drop(Mutex::new(Rank::Inode, ()).lock()));
    assert!(text.contains("while it holds Group"));
}

#[test]
fn a_rank_scope_counts_as_a_lock() {
    both(|| {
        let (scope, inode) = (RankScope::new(Rank::TxnHandle), Mutex::new(Rank::Inode, ()));
        let group = Mutex::new(Rank::Group, ());
        let held = group.lock();
        let text = panics(|| drop(scope.enter()));
        assert!(text.contains("takes TxnHandle while it holds Group"));
        assert!(panics(|| scope.check()).contains("takes TxnHandle"));
        drop(held);
        scope.check();
        let guard = scope.enter();
        drop(group.lock());
        assert!(panics(|| drop(inode.lock())).contains("takes Inode while it holds TxnHandle"));
        assert!(panics(|| drop(scope.enter())).contains("while it holds TxnHandle"));
        drop(guard);
        drop(inode.lock());
    });
}
