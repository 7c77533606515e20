//! What an exploration counts.

use std::collections::BTreeMap;

use steadfs_base::FixedSet;

use super::Subject;
use super::record::Run;

/// Counts of an exploration.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Executed programs.
    pub runs: u64,
    /// Runs in which the device failed or the volume was full.
    pub with_faults: u64,
    /// Of these, runs whose volume stopped.
    pub stopped: u64,
    /// Runs with too many failures for a verdict.
    pub undecided: u64,
    /// Crash positions.
    pub cuts: u64,
    /// Images built.
    pub images: u64,
    /// Images that were recovered.
    pub recoveries: u64,
    /// Of these, images left by a crash during a recovery.
    pub nested: u64,
    /// Of these, images left by a recovery on a failing device.
    pub retried: u64,
    /// Recovered volumes that our checker judged.
    pub checked: u64,
    /// Of these, volumes that the format's own tool judged as well.
    pub by_tool: u64,
    /// Crash images that the tool replayed to the same files.
    pub replayed: u64,
    /// Crash images whose log the tool refused.
    pub not_replayed: u64,
    /// Verdicts of the oracle: one per distinct marker of each image.
    pub verdicts: u64,
    /// Files that verdicts found rolled forward beyond the checkpoint.
    pub rolled: u64,
    /// Crashes after which data was missing or corrupt because the device had dropped a FLUSH.
    pub lost_by_device: u64,
    /// Background work of the volumes in all runs, by subject.
    pub work: BTreeMap<(String, &'static str), u64>,
    /// Recovered images by the event that the crash preceded.
    pub before: BTreeMap<&'static str, u64>,
    /// Recovered images by the kind of survivors.
    pub survivors: BTreeMap<&'static str, u64>,
    /// Fingerprints of all recovered images.
    pub distinct: FixedSet<u64>,
}

impl Stats {
    /// Adds a volume's background work in a run.
    pub fn add_work(&mut self, subject: &Subject, run: &Run) {
        for (what, count) in &run.work {
            let entry = self.work.entry((subject.name.clone(), what));
            *entry.or_default() += count;
        }
    }

    /// The background work of all volumes of a subject.
    pub fn work_of(&self, subject: &str, what: &'static str) -> u64 {
        let count = self.work.get(&(subject.to_owned(), what));
        count.copied().unwrap_or(0)
    }

    /// Adds another exploration's counts.
    pub fn add(&mut self, other: Stats) {
        self.runs += other.runs;
        self.with_faults += other.with_faults;
        self.stopped += other.stopped;
        self.undecided += other.undecided;
        self.cuts += other.cuts;
        self.images += other.images;
        self.recoveries += other.recoveries;
        self.nested += other.nested;
        self.retried += other.retried;
        self.checked += other.checked;
        self.by_tool += other.by_tool;
        self.replayed += other.replayed;
        self.not_replayed += other.not_replayed;
        self.verdicts += other.verdicts;
        self.rolled += other.rolled;
        self.lost_by_device += other.lost_by_device;
        for (what, count) in other.work {
            *self.work.entry(what).or_default() += count;
        }
        for (what, count) in other.before {
            *self.before.entry(what).or_default() += count;
        }
        for (what, count) in other.survivors {
            *self.survivors.entry(what).or_default() += count;
        }
        self.distinct.extend(other.distinct);
    }
}
