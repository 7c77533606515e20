//! The cost of each mechanism where it cannot help: one process calls fsync on an otherwise idle machine, and the
//! mechanism is switched on and off so often that other activity of the machine affects both equally.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::Result;
use crate::activity_run::ActivityRun;
use crate::measure::{median, seconds};

/// Measured fsyncs after each switch, and unmeasured ones before them.
const FSYNCS_PER_SWITCH: u64 = 10;
const WARM_UP_FSYNCS: u64 = 3;
/// Pairs of switches; the median of their ratios is one sample.
const PAIRS: usize = 120;

/// The two options, and the row: the time with the first option relative to that with the second.
struct Pair {
    key: &'static str,
    options: [&'static str; 2],
    work: Work,
}

/// Both kinds are prepared outside of the measured time.
#[derive(Clone, Copy)]
enum Work {
    /// 4 KiB are appended to a file, which is then synced.
    File,
    /// A file is created in a directory, which is then synced.
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

/// All mechanisms of the format.
pub fn run(run: &mut ActivityRun) -> Result<()> {
    let own = if run.subject().is_f2fs() {
        MERGE
    } else {
        RECLAIM
    };
    for pair in [SCHEDULER, BOOST, own] {
        let folder = run.root().join("folder");
        fs::create_dir(&folder)?;
        let mut target = SyncTarget::new(&folder)?;
        let mut ratios = Vec::new();
        for n in 0..PAIRS {
            // The order alternates.
            let mut medians = [0.0; 2];
            for arm in [n % 2, (n + 1) % 2] {
                run.remount(pair.options[arm])?;
                medians[arm] = median(&target.measure_fsyncs(pair.work)?);
            }
            ratios.push(medians[0] / medians[1]);
        }
        run.record(pair.key, median(&ratios));
        drop(target);
        fs::remove_dir_all(&folder)?;
        run.remount(pair.options[0])?;
    }
    Ok(())
}

/// The file and the directory that are synced.
struct SyncTarget<'a> {
    folder: &'a Path,
    directory: File,
    log: File,
    /// Number of fsyncs so far.
    count: u64,
}

impl<'a> SyncTarget<'a> {
    fn new(folder: &'a Path) -> Result<Self> {
        let path = folder.join("log");
        let log = OpenOptions::new().create_new(true).write(true).open(path)?;
        let directory = File::open(folder)?;
        log.sync_all()?;
        directory.sync_all()?;
        Ok(Self {
            folder,
            directory,
            log,
            count: 0,
        })
    }

    /// The seconds of some fsyncs.
    fn measure_fsyncs(&mut self, work: Work) -> Result<Vec<f64>> {
        let mut times = Vec::new();
        for n in 0..WARM_UP_FSYNCS + FSYNCS_PER_SWITCH {
            let count = self.count;
            self.count += 1;
            let synced = match work {
                Work::File => {
                    self.log.write_all_at(&[count as u8; 4096], count * 4096)?;
                    &self.log
                }
                Work::Directory => {
                    File::create(self.folder.join(count.to_string()))?;
                    &self.directory
                }
            };
            let ((), took) = seconds(|| Ok(synced.sync_all()?))?;
            if n >= WARM_UP_FSYNCS {
                times.push(took);
            }
        }
        Ok(times)
    }
}
