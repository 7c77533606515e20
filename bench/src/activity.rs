//! The activities: one file for each kind of work.

mod fio;
mod fsmark;
mod growth;
mod latency;
mod mechanisms;
mod names;
mod tree;

use crate::Result;
use crate::activity_run::{ActivityRun, Bench};
use crate::report::Samples;
use crate::subject::Subject;

/// Work that every subject does in turn.
pub struct Activity {
    /// Name for `--only`.
    pub name: &'static str,
    /// Description.
    pub about: &'static str,
    /// Subjects that cannot do it, or for which it is pointless.
    pub without: &'static [Subject],
    /// Whether the floor can do it: nothing has to be read back or made durable.
    pub floor: bool,
    /// Whether steadfs gets a block device, and so a `fuseblk` mount, instead of the image file.
    pub block_device: bool,
    /// Further arguments for mke2fs. (f2fs allocates inodes on demand.)
    pub format: &'static [&'static str],
    /// Largest useful number of rounds.
    pub rounds: usize,
    /// Does the work on a fresh mount.
    pub run: fn(&mut ActivityRun) -> Result<()>,
}

impl Activity {
    const fn new(
        name: &'static str,
        about: &'static str,
        run: fn(&mut ActivityRun) -> Result<()>,
    ) -> Self {
        Self {
            name,
            about,
            without: &[],
            floor: false,
            block_device: false,
            format: &[],
            rounds: usize::MAX,
            run,
        }
    }

    /// Adds the floor, which has neither content nor a device.
    const fn over_the_floor(mut self) -> Self {
        self.floor = true;
        self
    }

    /// On a mount of a block device, for which alone sync(2) is a durability point. Without fuse2fs, which would do
    /// nothing then.
    const fn on_block_device(mut self) -> Self {
        self.block_device = true;
        self.without = &[Subject::Fuse2fs];
        self
    }

    /// For steadfs only.
    const fn of_ours(mut self) -> Self {
        self.without = &[
            Subject::KernelDirect,
            Subject::KernelCached,
            Subject::Fuse2fs,
        ];
        self
    }

    /// With inodes for a million files, which take some time to make.
    const fn with_many_inodes(mut self) -> Self {
        self.format = &["-N", "1100000"];
        self.rounds = 2;
        self
    }

    /// Does it once on `subject`; reports and records a failure.
    pub fn measure(&self, bench: &Bench, subject: Subject, samples: &mut Samples) {
        let done = ActivityRun::new(bench, subject, self.block_device)
            .execute(self.format, self.run)
            .and_then(|result| bench.judge(subject).map(|()| result));
        match done {
            Ok(result) => samples.add(self.name, subject, result),
            Err(error) => {
                eprintln!("bench: {}, {subject}: {error}", self.name);
                samples.fail(self.name, subject, error.to_string());
            }
        }
    }

    /// Whether `subject` does it.
    pub fn supports(&self, subject: Subject) -> bool {
        !self.without.contains(&subject) && (self.floor || subject.has_device())
    }
}

/// All activities, in the order in which they run.
pub const ACTIVITIES: &[Activity] = &[
    Activity::new(
        "fs_mark-0",
        "4 threads make 4 KiB files; no sync",
        fsmark::run::<0>,
    )
    .over_the_floor(),
    Activity::new("fs_mark-1", "fsync before close", fsmark::run::<1>),
    Activity::new("fs_mark-2", "sync(2), then one fsync", fsmark::run::<2>)
        .on_block_device()
        .over_the_floor(),
    Activity::new("fs_mark-3", "fsync in reverse order", fsmark::run::<3>),
    Activity::new(
        "fs_mark-4",
        "sync(2), then fsync in reverse order",
        fsmark::run::<4>,
    )
    .on_block_device(),
    Activity::new("fs_mark-5", "fsync in order", fsmark::run::<5>),
    Activity::new(
        "fs_mark-6",
        "sync(2), then fsync in order",
        fsmark::run::<6>,
    )
    .on_block_device(),
    Activity::new(
        "fio-stream",
        "a stream written, read cold, read warm",
        fio::stream,
    )
    .over_the_floor(),
    Activity::new(
        "fio-random",
        "4 KiB random: written and synced, read cold",
        fio::random,
    ),
    Activity::new(
        "appenders",
        "processes that append 4 KiB and sync it, each to a file of its own",
        fio::appenders,
    ),
    Activity::new("tree", "tar extract, unmount, walk cold, rm -rf", tree::run).over_the_floor(),
    Activity::new(
        "names",
        "20 000 files in a directory: made, listed cold",
        names::run,
    )
    .over_the_floor(),
    Activity::new(
        "latency",
        "fsync of 4 KiB while another process streams",
        latency::run,
    ),
    Activity::new(
        "mechanisms",
        "a lone fsync with each mechanism on and off, in turn",
        mechanisms::run,
    )
    .of_ours(),
    Activity::new(
        "growth-directory",
        "up to a million files in one directory",
        growth::in_one,
    )
    .with_many_inodes(),
    Activity::new(
        "growth-volume",
        "up to a million files, 1000 in each directory",
        growth::spread,
    )
    .with_many_inodes(),
];
