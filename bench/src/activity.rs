//! What is done: one file for each kind of work.

mod fio;
mod fsmark;
mod growth;
mod latency;
mod mechanisms;
mod names;
mod tree;

use crate::Result;
use crate::report::Samples;
use crate::stage::{Bench, Stage};
use crate::subject::Subject;

/// Work that every subject does in turn.
pub struct Activity {
    /// The name for `--only`.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Who cannot or need not do it.
    pub without: &'static [Subject],
    /// Whether the floor can do it: nothing in it has to be read back or made durable.
    pub floor: bool,
    /// Whether steadfs gets a block device, and so a `fuseblk` mount, instead of the image file.
    pub block_device: bool,
    /// More arguments for mke2fs. (f2fs makes room for inodes as it needs them.)
    pub format: &'static [&'static str],
    /// Most rounds that are worth their time.
    pub rounds: usize,
    /// Does the work on a fresh mount.
    pub run: fn(&mut Stage) -> Result<()>,
}

impl Activity {
    const fn new(
        name: &'static str,
        about: &'static str,
        run: fn(&mut Stage) -> Result<()>,
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

    /// The same with the floor, which has neither content nor a device.
    const fn over_the_floor(mut self) -> Self {
        self.floor = true;
        self
    }

    /// The same for a mount of a block device, which alone makes sync(2) a durability point. fuse2fs
    /// would do nothing then.
    const fn on_block_device(mut self) -> Self {
        self.block_device = true;
        self.without = &[Subject::Fuse2fs];
        self
    }

    /// The same for what only this project has.
    const fn of_ours(mut self) -> Self {
        self.without = &[
            Subject::KernelDirect,
            Subject::KernelCached,
            Subject::Fuse2fs,
        ];
        self
    }

    /// The same with inodes for a million files, which takes a while.
    const fn with_many_inodes(mut self) -> Self {
        self.format = &["-N", "1100000"];
        self.rounds = 2;
        self
    }

    /// Does it once on `subject`. What fails is told and kept, and nothing else is.
    pub fn measure(&self, bench: &Bench, subject: Subject, samples: &mut Samples) {
        let done = Stage::new(bench, subject, self.block_device)
            .play(self.format, self.run)
            .and_then(|found| bench.judge(subject).map(|()| found));
        match done {
            Ok(found) => samples.add(self.name, subject, found),
            Err(error) => {
                eprintln!("bench: {}, {subject}: {error}", self.name);
                samples.fail(self.name, subject, error.to_string());
            }
        }
    }

    /// Whether `subject` does it.
    pub fn suits(&self, subject: Subject) -> bool {
        !self.without.contains(&subject) && (self.floor || subject.has_device())
    }
}

/// Everything that is measured, in the order it is done.
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
