//! Prints what the primitives cost, in nanoseconds: `cargo run --release -p steadfs-rt --example
//! cost`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use steadfs_rt::sim::{self, Config};
use steadfs_rt::{Mutex, Rank, RwLock, now, sleep, spawn, yield_now};

/// Nanoseconds for one of `n` calls of `f`, by the host's clock.
#[expect(clippy::disallowed_types, reason = "measures across both worlds")]
fn cost(what: &str, n: u32, f: impl FnOnce(u32)) {
    let begin = std::time::Instant::now();
    f(n);
    let nanos = begin.elapsed().as_nanos() as f64 / f64::from(n);
    println!("{what:<58} {nanos:>10.1} ns");
}

fn quiet() -> Config {
    Config {
        preempt: 0,
        ..Config::new(0)
    }
}

#[expect(
    clippy::disallowed_types,
    reason = "measures the host's lock beside ours"
)]
fn locks() {
    const N: u32 = 50_000_000;
    let host = parking_lot::Mutex::new(0u64);
    cost("lock and unlock, parking_lot alone", N, |n| {
        (0..n).for_each(|_| *black_box(&host).lock() += 1);
    });
    let mutex = Mutex::new(Rank::Inode, 0u64);
    cost("lock and unlock, rt::Mutex on threads", N, |n| {
        (0..n).for_each(|_| *black_box(&mutex).lock() += 1);
    });
    let host = parking_lot::RwLock::new(0u64);
    cost("read and release, parking_lot alone", N, |n| {
        (0..n).for_each(|_| _ = black_box(*black_box(&host).read()));
    });
    let shared = RwLock::new(Rank::Inode, 0u64);
    cost("read and release, rt::RwLock on threads", N, |n| {
        (0..n).for_each(|_| _ = black_box(*black_box(&shared).read()));
    });
    cost("lock and unlock, rt::Mutex in simulation", N / 5, |n| {
        sim::run(quiet(), move || {
            (0..n).for_each(|_| *black_box(&mutex).lock() += 1);
        });
    });
}

fn switches() {
    cost("switch of a coroutine, by yield_now", 5_000_000, |n| {
        sim::run(quiet(), move || {
            let other = spawn("other", move || (0..n / 2).for_each(|_| yield_now()));
            (0..n / 2).for_each(|_| yield_now());
            other.join();
        });
    });
    cost("sleep in simulation, four tasks", 4_000_000, |n| {
        sim::run(quiet(), move || {
            let sleeper = move || (0..n / 4).for_each(|_| sleep(Duration::from_nanos(100)));
            let tasks = [(); 4].map(|()| spawn("sleeper", sleeper));
            tasks.into_iter().for_each(|task| task.join());
        });
    });
    cost("timed callback", 2_000_000, |n| {
        sim::run(quiet(), move || {
            for _ in 0..n {
                sim::after(Duration::from_nanos(10), || _ = black_box(now()));
                sleep(Duration::from_nanos(20));
            }
        });
    });
}

fn tasks() {
    cost("spawn and join, threads", 20_000, |n| {
        (0..n).for_each(|_| spawn("thread", || ()).join());
    });
    cost("spawn and join, simulation", 1_000_000, |n| {
        sim::run(quiet(), move || {
            (0..n).for_each(|_| spawn("coroutine", || ()).join());
        });
    });
    cost(
        "whole simulation: 4 tasks, 100 contended locks each",
        20_000,
        |n| {
            for seed in 0..u64::from(n) {
                sim::run(Config::new(seed), || {
                    let lock = Arc::new(Mutex::new(Rank::Inode, 0u64));
                    let tasks = [(); 4].map(|()| {
                        let lock = Arc::clone(&lock);
                        spawn("task", move || {
                            for _ in 0..100 {
                                *lock.lock() += 1;
                                sleep(Duration::from_micros(10));
                            }
                        })
                    });
                    tasks.into_iter().for_each(|task| task.join());
                });
            }
        },
    );
}

fn main() {
    locks();
    switches();
    tasks();
}
