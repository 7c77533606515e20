//! The blocks of the new volume that are in use, as a set of runs; of whole clusters, once all metadata of groups has its
//! place ([`Space::round`]).

use std::collections::BTreeMap;
use std::ops::Range;

/// The blocks in use, as disjoint runs that do not touch.
#[derive(Clone, Debug)]
pub(super) struct Space {
    /// The blocks there are.
    all: Range<u64>,
    /// Base-2 logarithm of the blocks in a cluster.
    cluster_bits: u32,
    /// Start and end of each run.
    runs: BTreeMap<u64, u64>,
}

impl Space {
    /// A volume of `all`, without blocks in use.
    pub(super) fn new(all: Range<u64>) -> Self {
        assert!(all.start < all.end, "a volume has blocks");
        Self {
            all,
            cluster_bits: 0,
            runs: BTreeMap::new(),
        }
    }

    /// From now on clusters of `1 << cluster_bits` blocks are in use or not, those with a block in use as wholes.
    pub(super) fn round(&mut self, cluster_bits: u32) {
        self.cluster_bits = cluster_bits;
        for (start, end) in std::mem::take(&mut self.runs) {
            let from = self.first_free(start);
            let end = end.next_multiple_of(1 << cluster_bits).min(self.all.end);
            if let Some(from) = from.filter(|&from| from < end) {
                self.take(from..end);
            }
        }
    }

    /// The first block of a block's cluster.
    fn cluster_start(&self, block: u64) -> u64 {
        block >> self.cluster_bits << self.cluster_bits
    }

    /// Marks the clusters of free blocks as in use.
    pub(super) fn take(&mut self, blocks: Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        let end = blocks.end.next_multiple_of(1 << self.cluster_bits);
        let blocks = self.cluster_start(blocks.start)..end.min(self.all.end);
        assert!(self.is_free(&blocks), "blocks are allocated once");
        assert!(blocks.start >= self.all.start && blocks.end <= self.all.end);
        let (mut start, mut end) = (blocks.start, blocks.end);
        if let Some((&before, &before_end)) = self.runs.range(..start).next_back()
            && before_end == start
        {
            start = before;
        }
        if let Some(after_end) = self.runs.remove(&end) {
            end = after_end;
        }
        self.runs.insert(start, end);
    }

    /// The last run that starts at or before `block`.
    fn run_at(&self, block: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.runs.range(..=block).next_back()?;
        Some(start..end)
    }

    fn is_free(&self, blocks: &Range<u64>) -> bool {
        self.run_at(blocks.end - 1)
            .is_none_or(|run| run.end <= blocks.start)
    }

    /// The first free block from the cluster of `from` on to the volume's end.
    pub(super) fn first_free(&self, from: u64) -> Option<u64> {
        let from = self.cluster_start(from).max(self.all.start);
        let free = match self.run_at(from) {
            Some(run) if run.end > from => run.end,
            _ => from,
        };
        (free < self.all.end).then_some(free)
    }

    /// The first free block from the cluster of `goal` on, else the first of the volume. A goal outside the volume
    /// (0 too, on volumes whose first block is 1) is its start.
    pub(super) fn near(&self, goal: u64) -> Option<u64> {
        let goal = if self.all.contains(&goal) {
            goal
        } else {
            self.all.start
        };
        self.first_free(goal)
            .or_else(|| self.first_free(self.all.start))
    }

    /// The end of the free run that starts at the free block `start`, at most `len` blocks on.
    pub(super) fn free_end(&self, start: u64, len: u64) -> u64 {
        let end = self.all.end.min(start.saturating_add(len));
        match self.runs.range(start..end).next() {
            Some((&used, _)) => used,
            None => end,
        }
    }

    /// The first block of a cluster in `start..finish` with which `len` free blocks begin; where `finish` is not
    /// after `start`, from `start` to the volume's end and then from its start to `finish`.
    pub(super) fn find(&self, start: u64, finish: u64, len: u64) -> Option<u64> {
        assert!(len > 0, "a run has blocks");
        let start = if start == 0 { self.all.start } else { start };
        let (start, finish) = (self.cluster_start(start), self.cluster_start(finish));
        if finish > start {
            return self.find_in(start..finish, len);
        }
        self.find_in(start..self.all.end, len)
            .or_else(|| self.find_in(self.all.start..finish, len))
    }

    fn find_in(&self, starts: Range<u64>, len: u64) -> Option<u64> {
        let mut at = starts.start;
        loop {
            at = self.first_free(at)?;
            if at >= starts.end || at + len > self.all.end {
                return None;
            }
            let end = self.free_end(at, len);
            if end == at + len {
                return Some(at);
            }
            at = end;
        }
    }

    /// The runs in use within `blocks`, cut to it.
    pub(super) fn used_in(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let reaching_in = self
            .run_at(blocks.start)
            .filter(|run| run.start < blocks.start && run.end > blocks.start)
            .map(|run| blocks.start..run.end.min(blocks.end));
        let end = blocks.end;
        let inside = self.runs.range(blocks).map(move |(&s, &e)| s..e.min(end));
        reaching_in.into_iter().chain(inside)
    }

    /// How many of `blocks` are in use.
    pub(super) fn count_used(&self, blocks: Range<u64>) -> u64 {
        self.used_in(blocks).map(|run| run.end - run.start).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_row_of_flags(
            takes in proptest::collection::vec((1u64..100, 1u64..20), 0..12),
            at in 0u64..110,
            finish in 1u64..100,
            len in 1u64..20,
        ) {
            let mut space = Space::new(1..100);
            let mut used = [false; 100];
            for (start, len) in takes {
                let range = start..(start + len).min(100);
                if range.clone().all(|b| !used[b as usize]) {
                    space.take(range.clone());
                    range.for_each(|b| used[b as usize] = true);
                }
            }
            let free = |b: u64| (1..100).contains(&b) && !used[b as usize];
            let fits = |b: &u64| (*b..*b + len).all(free);
            prop_assert_eq!(space.first_free(at), (at..100).find(|&b| free(b)));
            if let Some(b) = space.near(at) {
                prop_assert!(free(b));
                let end = space.free_end(b, len);
                prop_assert!((b..end).all(free) && (end == b + len || !free(end)));
            } else {
                prop_assert!(!(1..100).any(free));
            }
            let start = at.max(1);
            let expected = if finish > start {
                (start..finish).find(fits)
            } else {
                (start..100).chain(1..finish).find(fits)
            };
            prop_assert_eq!(space.find(start, finish, len), expected);
            let count = (start..100).filter(|&b| used[b as usize]).count() as u64;
            prop_assert_eq!(space.count_used(start..100.max(start)), count);
            for pair in space.runs.iter().collect::<Vec<_>>().windows(2) {
                prop_assert!(pair[0].1 < pair[1].0, "adjacent runs are merged");
            }
        }
    }
}
