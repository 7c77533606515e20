//! What each mechanism costs where it cannot help: one process calls fsync, nobody else does anything, and
//! the mechanism is switched on and off under it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::Result;
use crate::measure::{median, seconds};
use crate::stage::Stage;

/// Times of each arm that make one sample, and those before them that do not count.
const TIMES: u64 = 60;
const BEFORE: u64 = 6;
/// Samples of each pair in one run.
const PAIRS: usize = 10;

/// What is switched, and where the outcome is told: the time with the first option in parts of that with
/// the second.
struct Pair {
    key: &'static str,
    options: [&'static str; 2],
    work: Work,
}

/// Both are done so that what they need is there when the clock runs.
#[derive(Clone, Copy)]
enum Work {
    /// 4 KiB appended to a file, which is then made durable.
    File,
    /// A file made in a directory, which is then made durable.
    Directory,
}

const SCHEDULER: Pair = Pair {
    key: "lone fsync, fair to fifo",
    options: ["io_scheduler=fair", "io_scheduler=fifo"],
    work: Work::File,
};
const BOOST: Pair = Pair {
    key: "lone fsync, boost to noboost",
    options: ["boost", "noboost"],
    work: Work::File,
};
const RECLAIM: Pair = Pair {
    key: "lone fsync, async_checkpoint to none",
    options: ["async_checkpoint", "noasync_checkpoint"],
    work: Work::File,
};
const MERGE: Pair = Pair {
    key: "lone fsync of a directory, checkpoint_merge to none",
    options: ["checkpoint_merge", "nocheckpoint_merge"],
    work: Work::Directory,
};

/// Every mechanism of the format's.
pub fn run(stage: &mut Stage) -> Result<()> {
    let own = if stage.subject().is_f2fs() {
        MERGE
    } else {
        RECLAIM
    };
    for pair in [SCHEDULER, BOOST, own] {
        for n in 0..PAIRS {
            // The first of two is not always the same.
            let mut medians = [0.0; 2];
            for arm in [n % 2, (n + 1) % 2] {
                stage.remount(pair.options[arm])?;
                let folder = stage.root().join("folder");
                fs::create_dir(&folder)?;
                medians[arm] = median(&times(&folder, pair.work)?);
                fs::remove_dir_all(&folder)?;
            }
            stage.record(pair.key, medians[0] / medians[1]);
        }
        stage.remount(pair.options[0])?;
    }
    Ok(())
}

/// The seconds of each fsync.
fn times(folder: &Path, work: Work) -> Result<Vec<f64>> {
    let directory = File::open(folder)?;
    let path = folder.join("log");
    let log = OpenOptions::new().create_new(true).write(true).open(path)?;
    log.sync_all()?;
    directory.sync_all()?;
    let mut times = Vec::new();
    for n in 0..BEFORE + TIMES {
        let synced = match work {
            Work::File => {
                log.write_all_at(&[n as u8; 4096], n * 4096)?;
                &log
            }
            Work::Directory => {
                File::create(folder.join(n.to_string()))?;
                &directory
            }
        };
        let ((), took) = seconds(|| Ok(synced.sync_all()?))?;
        if n >= BEFORE {
            times.push(took);
        }
    }
    Ok(times)
}
