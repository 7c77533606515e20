//! What each mechanism costs where it cannot help: one process calls fsync, nobody else does anything, and
//! the mechanism is switched on and off under it, so often that what else happens on the machine meets both.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::Result;
use crate::measure::{median, seconds};
use crate::stage::Stage;

/// Times of each arm before the next switch, and those before them that do not count.
const TIMES: u64 = 10;
const BEFORE: u64 = 3;
/// Pairs of them whose ratios' median is one sample.
const PAIRS: usize = 120;

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
        let folder = stage.root().join("folder");
        fs::create_dir(&folder)?;
        let mut place = Place::new(&folder)?;
        let mut ratios = Vec::new();
        for n in 0..PAIRS {
            // The first of two is not always the same.
            let mut medians = [0.0; 2];
            for arm in [n % 2, (n + 1) % 2] {
                stage.remount(pair.options[arm])?;
                medians[arm] = median(&place.times(pair.work)?);
            }
            ratios.push(medians[0] / medians[1]);
        }
        stage.record(pair.key, median(&ratios));
        drop(place);
        fs::remove_dir_all(&folder)?;
        stage.remount(pair.options[0])?;
    }
    Ok(())
}

/// Where the work is done.
struct Place<'a> {
    folder: &'a Path,
    directory: File,
    log: File,
    /// How often something was made durable.
    count: u64,
}

impl<'a> Place<'a> {
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
    fn times(&mut self, work: Work) -> Result<Vec<f64>> {
        let mut times = Vec::new();
        for n in 0..BEFORE + TIMES {
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
            if n >= BEFORE {
                times.push(took);
            }
        }
        Ok(times)
    }
}
