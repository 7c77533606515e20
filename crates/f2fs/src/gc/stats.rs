//! Counters of GC since the mount.

use std::fmt::Write as _;
use std::time::Duration;

use super::timing::GcMode;
use crate::segment::Victim;

/// Buckets of waiting times: below 10 µs, 100 µs, 1 ms, … 10 s, and longer.
const BUCKETS: usize = 8;

/// Counters since the mount. Pairs are: all, and those of background GC.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Runs in the foreground and in the background.
    pub calls: [u64; 2],
    /// Data segments cleaned.
    pub data_segments: [u64; 2],
    /// Node segments cleaned.
    pub node_segments: [u64; 2],
    /// Data blocks moved or marked dirty.
    pub data_blocks: [u64; 2],
    /// Nodes marked dirty.
    pub node_blocks: [u64; 2],
    /// Segments emptied, by mode.
    pub reclaimed: [u64; GcMode::ALL.len()],
    /// Background rounds skipped because the volume was in use.
    pub skipped_in_use: u64,
    /// Background rounds skipped because another task was cleaning.
    pub skipped_busy: u64,
    /// Victims chosen.
    pub victims: u64,
    /// Victims that could not be emptied.
    pub in_vain: u64,
    /// Invalid blocks of the victims.
    pub garbage: u64,
    /// Candidates examined.
    pub scanned: u64,
    /// Checkpoints written to free space.
    pub checkpoints: u64,
    /// Waits of operations for GC, by time.
    waits: [u64; BUCKETS],
    waited: Duration,
    longest: Duration,
}

/// Result of cleaning a section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub data_segments: u64,
    pub node_segments: u64,
    /// Data blocks moved.
    pub data_blocks: u64,
    /// Directory blocks marked dirty; the next checkpoint moves them.
    pub marked_data: u64,
    /// Nodes marked dirty.
    pub marked_nodes: u64,
    /// Blocks that could not be moved.
    pub left: u64,
    /// Something could not be read, or contradicts itself.
    pub failed: bool,
}

impl Outcome {
    /// Whether the section is free after the next checkpoint.
    pub const fn is_emptied(&self) -> bool {
        self.left == 0
    }
}

impl Stats {
    /// Counts a cleaned section, or a part of it.
    pub fn count(&mut self, victim: Victim, size: u32, done: Outcome, mode: GcMode, back: bool) {
        if victim.resumed.is_none() {
            self.victims += 1;
            self.scanned += u64::from(victim.looked_at);
            self.garbage += u64::from(size.saturating_sub(victim.valid));
        }
        let pairs = [
            (&mut self.data_segments, done.data_segments),
            (&mut self.node_segments, done.node_segments),
            (&mut self.data_blocks, done.data_blocks + done.marked_data),
            (&mut self.node_blocks, done.marked_nodes),
        ];
        for (count, more) in pairs {
            count[0] += more;
            count[1] += if back { more } else { 0 };
        }
        if done.is_emptied() {
            let place = GcMode::ALL.iter().position(|m| *m == mode);
            let segments = done.data_segments + done.node_segments;
            self.reclaimed[place.expect("ALL has each mode")] += segments;
        } else {
            self.in_vain += 1;
        }
    }

    /// Counts an operation that waited for GC.
    pub fn count_wait(&mut self, time: Duration) {
        let mut limit = Duration::from_micros(10);
        let mut bucket = 0;
        while bucket + 1 < BUCKETS && time >= limit {
            limit *= 10;
            bucket += 1;
        }
        self.waits[bucket] += 1;
        self.waited += time;
        self.longest = self.longest.max(time);
    }

    /// Segments emptied in a mode.
    pub fn reclaimed_in(&mut self, mode: GcMode) -> &mut u64 {
        let place = GcMode::ALL.iter().position(|m| *m == mode);
        &mut self.reclaimed[place.expect("ALL has each mode")]
    }

    /// The waits as `status` shows them.
    pub fn show_waits(&self) -> String {
        let count: u64 = self.waits.iter().sum();
        let (waited, longest) = (self.waited.as_millis(), self.longest.as_millis());
        let mut text = format!("waits {count}, {waited} ms in all, {longest} ms the longest;");
        let names = [
            "<10us", "<100us", "<1ms", "<10ms", "<100ms", "<1s", "<10s", ">=10s",
        ];
        for (name, count) in names.iter().zip(self.waits) {
            let _ = write!(text, " {name}:{count}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_counted_by_bucket() {
        let mut stats = Stats::default();
        for micros in [3, 10, 999, 20_000_000, 90_000_000] {
            stats.count_wait(Duration::from_micros(micros));
        }
        assert_eq!(stats.waits, [1, 1, 1, 0, 0, 0, 0, 2]);
        let text = stats.show_waits();
        assert!(text.starts_with("waits 5, 110001 ms in all, 90000 ms the longest; <10us:1"));
    }
}
