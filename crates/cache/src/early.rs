//! Overwrites that go to the device before the fsync that will ask for them.
//!
//! Who overwrites some blocks and calls fsync, again and again (databases), leaves the device idle until
//! the fsync and waits for all of them then. So the flusher is given the blocks of such a file in groups
//! while the next ones are being written. How many there will be is learnt from the last two fsyncs of the
//! file; the last group is the fsync's own, whose task writes it with the least delay. A block that is
//! written twice between two fsyncs would go to the device twice: where that happens to more than a few,
//! nothing goes early.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use steadfs_rt::{Mutex, Rank};

use crate::DirtyFile;

/// Blocks that go early together at least, and that are left to the fsync.
const GROUP: usize = 8;
/// Blocks between two fsyncs at most.
const MOST: usize = 256;
/// One block in so many may be written again.
const FEW: usize = 8;
/// Files remembered: those with the latest fsyncs.
const FILES: usize = 64;

/// What is known of the files that fsync was called for.
pub(crate) struct Early(Mutex<Files>);

#[derive(Default)]
struct Files {
    histories: BTreeMap<u64, History>,
    syncs: u64,
}

#[derive(Default)]
struct History {
    /// When fsync was called last, as its number.
    synced: u64,
    /// Blocks overwritten since then.
    blocks: BTreeSet<u64>,
    /// How often one of them was.
    again: usize,
    /// How many of them there were when the last group went.
    gone: usize,
    /// More than [`MOST`], or something else than an overwrite: nothing is expected any more.
    other: bool,
    /// How many there were at the last two fsyncs.
    counts: [usize; 2],
}

impl Early {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Rank::Leaf, Files::default()))
    }

    /// These blocks of a file are dirty now; whether what is dirty of it should go to the device.
    /// `overwrites`: the file does not grow by them.
    pub(crate) fn record_write(
        &self,
        file: DirtyFile,
        blocks: Range<u64>,
        overwrites: bool,
    ) -> bool {
        let mut files = self.0.lock();
        let history = files.histories.get_mut(&file.0);
        history.is_some_and(|history| history.record_write(blocks, overwrites))
    }

    /// fsync was called for a file.
    pub(crate) fn record_fsync(&self, file: DirtyFile) {
        let mut files = self.0.lock();
        files.syncs += 1;
        let now = files.syncs;
        let history = files.histories.entry(file.0).or_default();
        history.ended();
        history.synced = now;
        if files.histories.len() > FILES {
            let oldest = files.histories.iter().min_by_key(|(_, h)| h.synced);
            if let Some((&oldest, _)) = oldest {
                files.histories.remove(&oldest);
            }
        }
    }
}

impl History {
    fn record_write(&mut self, blocks: Range<u64>, overwrites: bool) -> bool {
        let few = blocks.end - blocks.start <= MOST as u64 && self.blocks.len() <= MOST;
        self.other |= !overwrites || !few;
        if self.other {
            return false;
        }
        for block in blocks {
            self.again += usize::from(!self.blocks.insert(block));
        }
        let count = self.blocks.len();
        let expected = self.counts[0].min(self.counts[1]);
        let due = count >= self.gone + GROUP && count + GROUP <= expected && self.is_once();
        if due {
            self.gone = count;
        }
        due
    }

    /// Whether hardly a block was written more than once.
    fn is_once(&self) -> bool {
        self.again * FEW <= self.blocks.len()
    }

    fn ended(&mut self) {
        let fits = !self.other && self.is_once();
        let count = if fits { self.blocks.len() } else { 0 };
        *self = Self {
            counts: [self.counts[1], count],
            ..Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: DirtyFile = DirtyFile(12);

    /// Overwrites these blocks one by one, then fsync: how many there were each time some went early.
    fn period(early: &Early, blocks: impl IntoIterator<Item = u64>) -> Vec<usize> {
        let mut went = Vec::new();
        for (n, block) in blocks.into_iter().enumerate() {
            if early.record_write(FILE, block..block + 1, true) {
                went.push(n + 1);
            }
        }
        early.record_fsync(FILE);
        went
    }

    /// A file of which so many blocks are expected.
    fn learnt(blocks: u64) -> Early {
        let early = Early::new();
        early.record_fsync(FILE);
        for _ in 0..2 {
            assert!(period(&early, 0..blocks).is_empty(), "nothing is known yet");
        }
        early
    }

    #[test]
    fn groups_go_early_but_for_the_last() {
        let early = learnt(32);
        assert_eq!(period(&early, 100..132), [8, 16, 24]);
        assert_eq!(period(&early, 7..39), [8, 16, 24]);
        let early = learnt(16);
        assert_eq!(period(&early, 0..40), [8]);
        let early = learnt(15);
        assert!(period(&early, 0..40).is_empty());
    }

    #[test]
    fn the_smaller_of_two_counts_is_expected() {
        let early = learnt(32);
        period(&early, 0..1);
        assert!(period(&early, 0..32).is_empty());
        assert!(period(&early, 0..32).is_empty());
        assert_eq!(period(&early, 0..32), [8, 16, 24]);
    }

    #[test]
    fn a_block_written_again_and_again_waits_for_the_fsync() {
        let early = learnt(32);
        let rounds = |n| (0..n).flat_map(|_| 0..16);
        // The first round is what was expected; from then on it is not.
        assert_eq!(period(&early, rounds(4)), [8, 16]);
        for _ in 0..4 {
            assert!(period(&early, rounds(4)).is_empty());
        }
    }

    #[test]
    fn who_appends_or_writes_much_waits_for_the_fsync() {
        let early = learnt(32);
        early.record_write(FILE, 40..41, false);
        assert!(period(&early, 0..32).is_empty());
        let early = learnt(32);
        assert!(!early.record_write(FILE, 0..1000, true));
        assert!(period(&early, 0..32).is_empty());
        let early = learnt(1000);
        assert!(period(&early, 0..1000).is_empty());
    }

    #[test]
    fn files_without_fsync_are_not_known() {
        let early = Early::new();
        assert!((0..100).all(|n| !early.record_write(FILE, n..n + 1, true)));
        assert!(early.0.lock().histories.is_empty());
    }

    #[test]
    fn the_files_with_the_latest_fsyncs_are_known() {
        let early = learnt(32);
        for other in 100..100 + FILES as u64 - 1 {
            early.record_fsync(DirtyFile(other));
        }
        assert_eq!(period(&early, 0..32), [8, 16, 24]);
        for other in 200..200 + FILES as u64 {
            early.record_fsync(DirtyFile(other));
        }
        assert_eq!(early.0.lock().histories.len(), FILES);
        assert!(period(&early, 0..32).is_empty());
    }
}
