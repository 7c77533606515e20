//! The engine over a file system in memory, which checks the rules at each step.

mod failures;
mod memory_fs;
mod steps;
mod test_device;
mod waiters;

use std::sync::Arc;
use std::time::Duration;

use steadfs_rt::{Random, now, sim, sleep, spawn};
use steadfs_vfs::FsError;

use crate::{DirtyEpoch, WriteError, WritebackFile, WritebackReason};
use memory_fs::MemFs;
use test_device::{BS, Event};

/// Runs `test` in a simulation, where the device takes `delay` for each write.
fn simulated<T: 'static>(delay: Duration, test: impl FnOnce(Arc<MemFs>) -> T + 'static) -> T {
    let run = move || {
        let fs = MemFs::new();
        fs.set_delay(delay);
        test(fs)
    };
    sim::run(sim::Config::new(7), run).value
}

const MILLI: Duration = Duration::from_millis(1);
