//! Read-ahead of nodes and directory blocks: by neighbourhood in the log.
//!
//! **Problem.** A walk or `ls -l` needs the inode of each name, each a block of its own, in an order that is neither
//! that of the names nor that of the blocks: one request of 4 KiB after the other.
//!
//! **Rule.** Files that were made together have their inodes side by side in the node log, because a checkpoint writes
//! nodes in the order of their ids. The log is divided into *neighbourhoods* of 32 blocks. One is read whole when a
//! second block of it is asked for, or when a neighbouring one was read whole before; then up to three unread ones behind
//! it are read by the same request. Each node that the NAT refers to is kept, without its zeros ([`super::content`]).
//!
//! A pause follows if memory is too small: if more than seven of eight nodes that were read ahead are evicted unused.

use std::sync::atomic::{AtomicU32, Ordering};

use steadfs_base::FixedMap;
use steadfs_rt::{Mutex, Rank};

use crate::disk::SEGMENT_BLOCKS;

/// Blocks of a neighbourhood; a segment has a whole number of them.
pub const BLOCKS: u32 = 32;
/// Neighbourhoods of one request.
const MAX_AT_ONCE: u32 = 4;
const _: () = assert!(
    SEGMENT_BLOCKS.is_multiple_of(BLOCKS * MAX_AT_ONCE),
    "a request ends with its segment at the latest"
);

/// Neighbourhoods in a generation of the memory; two generations are kept.
const GENERATION: usize = 512;
/// Nodes read ahead that were used or evicted, between two judgements.
const JUDGED: u32 = 2048;
/// Blocks asked for in a pause.
const PAUSE: u32 = 1024;

/// What was asked for lately.
pub struct NeighbourReads {
    state: Mutex<Neighbourhoods>,
    /// Nodes read ahead and used since the last judgement, and those evicted unused.
    used: AtomicU32,
    unused: AtomicU32,
}

#[derive(Default)]
struct Neighbourhoods {
    /// Whether each was read whole; the others were asked for once.
    young: FixedMap<u32, bool>,
    old: FixedMap<u32, bool>,
    /// Blocks that will be asked for until the pause ends.
    pause: u32,
}

impl Neighbourhoods {
    fn get(&self, number: u32) -> Option<bool> {
        let found = self.young.get(&number).or_else(|| self.old.get(&number));
        found.copied()
    }

    fn set(&mut self, number: u32, read: bool) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(number, read);
        debug_assert!(
            self.young.len() <= GENERATION,
            "a generation has a limited number of neighbourhoods"
        );
    }
}

impl NeighbourReads {
    pub fn new() -> Self {
        Self {
            state: Mutex::new(Rank::Leaf, Neighbourhoods::default()),
            used: AtomicU32::new(0),
            unused: AtomicU32::new(0),
        }
    }

    /// A node that was read ahead is used.
    pub fn record_use(&self) {
        self.used.fetch_add(1, Ordering::Relaxed);
    }

    /// Nodes that were read ahead have been evicted unused.
    pub fn record_unused(&self, count: u32) {
        self.unused.fetch_add(count, Ordering::Relaxed);
    }

    /// A block of this neighbourhood is asked for and not in memory. Returns how many are to be read from this one on.
    pub fn ask(&self, number: u32) -> u32 {
        let state = &mut *self.state.lock();
        let [used, unused] = [&self.used, &self.unused].map(|n| n.load(Ordering::Relaxed));
        if used.saturating_add(unused) >= JUDGED {
            self.used.store(0, Ordering::Relaxed);
            self.unused.store(0, Ordering::Relaxed);
            if unused / 7 > used {
                state.pause = PAUSE;
            }
        }
        if state.pause > 0 {
            state.pause -= 1;
            return 0;
        }
        let known = state.get(number);
        let was_read = |near: u32| state.get(near) == Some(true);
        let near = was_read(number.wrapping_sub(1)) || was_read(number + 1);
        let read = known == Some(false) || known.is_none() && near;
        if !read {
            if known.is_none() {
                state.set(number, false);
            }
            return 0;
        }
        // Requests do not go beyond a multiple of their length, so they end with the segment.
        let end = if near {
            (number / MAX_AT_ONCE + 1) * MAX_AT_ONCE
        } else {
            number + 1
        };
        let unread = (number..end).take_while(|n| *n == number || state.get(*n) != Some(true));
        let count = unread.count() as u32;
        debug_assert!(
            (1..=MAX_AT_ONCE).contains(&count),
            "a request reads the neighbourhood that is asked for and few others"
        );
        for number in number..number + count {
            state.set(number, true);
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_block_or_a_neighbour_reads_the_neighbourhood() {
        let reads = NeighbourReads::new();
        let asked = [10, 10, 10, 11, 9, 20, 12, 13, 20].map(|n| reads.ask(n));
        assert_eq!(asked, [0, 1, 0, 1, 1, 0, 4, 0, 1]);
        assert_eq!([8, 7].map(|n| reads.ask(n)), [1, 1], "9 was read");
    }

    #[test]
    fn reads_that_are_not_used_pause() {
        let reads = NeighbourReads::new();
        let whole = |range: std::ops::Range<u32>| range.filter(|n| reads.ask(n * 2) > 0).count();
        assert_eq!(whole(0..10) + whole(0..10), 10);
        for _ in 0..JUDGED / 4 {
            reads.record_use();
        }
        reads.record_unused(JUDGED);
        assert_eq!(whole(100..110) + whole(100..110), 10, "a fifth was used");
        reads.record_unused(JUDGED);
        assert_eq!(reads.ask(2000), 0);
        assert_eq!(whole(2000..2000 + PAUSE), 0);
        assert_eq!(whole(2000..2010) + whole(2000..2010), 10);
    }

    #[test]
    fn asks_long_ago_are_forgotten() {
        let reads = NeighbourReads::new();
        for n in 0..2 * GENERATION as u32 + 1 {
            assert_eq!(reads.ask(n * 2), 0);
        }
        assert_eq!(reads.ask(0), 0);
    }
}
