//! Early write-back: overwrites go to the device before the fsync that will wait for them.
//!
//! Problem: a program that overwrites some blocks and calls fsync, again and again (databases), leaves the device idle
//! until the fsync, which then waits for all of them. Rule: the flusher writes the blocks of such a file in groups of
//! at least [`GROUP_BLOCKS_MIN`] while the program writes the next ones. The expected number of blocks is learned
//! from the last two fsyncs of the file. The last group is left to the fsync, whose task submits it without delay.
//!
//! A block that is written twice between two fsyncs would be written to the device twice. If more than one block in
//! [`REWRITE_SHARE`] is, nothing is written early.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use steadfs_rt::{Mutex, Rank};

use crate::DirtyFile;

/// Fewest blocks that are written early at once, and that are left to the fsync.
const GROUP_BLOCKS_MIN: usize = 8;
/// Most blocks between two fsyncs; a file with more is not written early.
const PERIOD_BLOCKS_MAX: usize = 256;
/// At most one block in this many may be written twice between two fsyncs.
const REWRITE_SHARE: usize = 8;
/// Files with a history: those with the latest fsyncs.
const FILES_MAX: usize = 64;

/// The write history of the files that fsync was called for.
pub(crate) struct EarlyWriteback(Mutex<Histories>);

#[derive(Default)]
struct Histories {
    files: BTreeMap<u64, FileHistory>,
    fsyncs: u64,
}

/// One file's writes since its last fsync.
#[derive(Default)]
struct FileHistory {
    /// The number of the last fsync.
    last_fsync: u64,
    /// Blocks overwritten since then.
    blocks: BTreeSet<u64>,
    /// Overwrites of a block that was in `blocks` already.
    rewrites: usize,
    /// The number of blocks when the last group was written.
    submitted: usize,
    /// More than [`PERIOD_BLOCKS_MAX`] blocks, or another write than an overwrite: the period is not predictable.
    unpredictable: bool,
    /// The number of blocks at the last two fsyncs.
    counts: [usize; 2],
}

impl EarlyWriteback {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Rank::Leaf, Histories::default()))
    }

    /// Records that these blocks of a file are dirty. Returns whether the flusher is to write the file's dirty blocks.
    /// `overwrites`: the file does not grow.
    pub(crate) fn record_write(
        &self,
        file: DirtyFile,
        blocks: Range<u64>,
        overwrites: bool,
    ) -> bool {
        let mut files = self.0.lock();
        let history = files.files.get_mut(&file.0);
        history.is_some_and(|history| history.record_write(blocks, overwrites))
    }

    /// Records an fsync of a file.
    pub(crate) fn record_fsync(&self, file: DirtyFile) {
        let mut files = self.0.lock();
        files.fsyncs += 1;
        let now = files.fsyncs;
        let history = files.files.entry(file.0).or_default();
        history.end_period();
        history.last_fsync = now;
        if files.files.len() > FILES_MAX {
            let oldest = files.files.iter().min_by_key(|(_, h)| h.last_fsync);
            if let Some((&oldest, _)) = oldest {
                files.files.remove(&oldest);
            }
        }
    }
}

impl FileHistory {
    fn record_write(&mut self, blocks: Range<u64>, overwrites: bool) -> bool {
        let few = blocks.end - blocks.start <= PERIOD_BLOCKS_MAX as u64
            && self.blocks.len() <= PERIOD_BLOCKS_MAX;
        self.unpredictable |= !overwrites || !few;
        if self.unpredictable {
            return false;
        }
        for block in blocks {
            self.rewrites += usize::from(!self.blocks.insert(block));
        }
        let count = self.blocks.len();
        let expected = self.counts[0].min(self.counts[1]);
        let group = GROUP_BLOCKS_MIN;
        let is_group = count >= self.submitted + group && count + group <= expected;
        let due = is_group && self.has_few_rewrites();
        if due {
            self.submitted = count;
        }
        due
    }

    fn has_few_rewrites(&self) -> bool {
        self.rewrites * REWRITE_SHARE <= self.blocks.len()
    }

    /// Begins a new period with the count of the last one.
    fn end_period(&mut self) {
        let is_predictable = !self.unpredictable && self.has_few_rewrites();
        let count = if is_predictable { self.blocks.len() } else { 0 };
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

    /// Overwrites these blocks one by one, then calls fsync. Returns the block counts at which a group was written.
    fn period(early: &EarlyWriteback, blocks: impl IntoIterator<Item = u64>) -> Vec<usize> {
        let mut groups = Vec::new();
        for (n, block) in blocks.into_iter().enumerate() {
            if early.record_write(FILE, block..block + 1, true) {
                groups.push(n + 1);
            }
        }
        early.record_fsync(FILE);
        groups
    }

    /// A history that expects `blocks` blocks.
    fn learned(blocks: u64) -> EarlyWriteback {
        let early = EarlyWriteback::new();
        early.record_fsync(FILE);
        for _ in 0..2 {
            assert!(period(&early, 0..blocks).is_empty(), "not learned yet");
        }
        early
    }

    #[test]
    fn all_groups_but_the_last_are_written_early() {
        let early = learned(32);
        assert_eq!(period(&early, 100..132), [8, 16, 24]);
        assert_eq!(period(&early, 7..39), [8, 16, 24]);
        let early = learned(16);
        assert_eq!(period(&early, 0..40), [8]);
        let early = learned(15);
        assert!(period(&early, 0..40).is_empty());
    }

    #[test]
    fn the_smaller_of_two_counts_is_expected() {
        let early = learned(32);
        period(&early, 0..1);
        assert!(period(&early, 0..32).is_empty());
        assert!(period(&early, 0..32).is_empty());
        assert_eq!(period(&early, 0..32), [8, 16, 24]);
    }

    #[test]
    fn rewritten_blocks_are_left_to_the_fsync() {
        let early = learned(32);
        let rounds = |n| (0..n).flat_map(|_| 0..16);
        // The first round is as expected; the later ones are not.
        assert_eq!(period(&early, rounds(4)), [8, 16]);
        for _ in 0..4 {
            assert!(period(&early, rounds(4)).is_empty());
        }
    }

    #[test]
    fn appends_and_long_periods_are_left_to_the_fsync() {
        let early = learned(32);
        early.record_write(FILE, 40..41, false);
        assert!(period(&early, 0..32).is_empty());
        let early = learned(32);
        assert!(!early.record_write(FILE, 0..1000, true));
        assert!(period(&early, 0..32).is_empty());
        let early = learned(1000);
        assert!(period(&early, 0..1000).is_empty());
    }

    #[test]
    fn files_without_fsync_have_no_history() {
        let early = EarlyWriteback::new();
        assert!((0..100).all(|n| !early.record_write(FILE, n..n + 1, true)));
        assert!(early.0.lock().files.is_empty());
    }

    #[test]
    fn only_files_with_the_latest_fsyncs_have_a_history() {
        let early = learned(32);
        for other in 100..100 + FILES_MAX as u64 - 1 {
            early.record_fsync(DirtyFile(other));
        }
        assert_eq!(period(&early, 0..32), [8, 16, 24]);
        for other in 200..200 + FILES_MAX as u64 {
            early.record_fsync(DirtyFile(other));
        }
        assert_eq!(early.0.lock().files.len(), FILES_MAX);
        assert!(period(&early, 0..32).is_empty());
    }
}
