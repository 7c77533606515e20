//! How fast the device is, and what making data durable takes of it.

use crate::Nanos;

/// What is remembered of speed is halved whenever it covers so much time.
const MEMORY: u64 = 200_000_000;
/// Less time than this tells nothing.
const ENOUGH: u64 = 1_000_000;
/// So many of those that make data durable are one window.
const WINDOW: u32 = 32;
/// Nothing of the kind is charged less or more than this many bytes.
const LEAST: u64 = 4 << 10;
const MOST: u64 = 16 << 20;
/// … or nanoseconds.
const LONGEST: u64 = 100_000_000;

/// Measures a device from the begins and ends of its requests.
///
/// *Speed* is what it moved in the time in which it had data and nothing to make durable. What a FLUSH
/// takes is the *shortest* that one took lately: what another takes longer is data that others had
/// written, or requests beside it, and no concern of whoever asked for it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    bytes: u64,
    time: u64,
    /// The last begin or end.
    seen: Nanos,
    /// Of data in the device.
    moving: usize,
    /// In the device, to make something durable.
    flushing: usize,
    /// Shortest of this window, and of the last full one.
    shortest: Option<u64>,
    before: Option<u64>,
    count: u32,
}

impl Pace {
    fn pass(&mut self, now: Nanos) {
        if self.moving > 0 && self.flushing == 0 {
            self.time += now.0.saturating_sub(self.seen.0);
        }
        self.seen = now;
    }

    /// A request goes to the device; `flushes`: how many times data is made durable for it.
    pub(super) fn begin(&mut self, flushes: u8, now: Nanos) {
        self.pass(now);
        match flushes {
            0 => self.moving += 1,
            _ => self.flushing += 1,
        }
    }

    /// A request has ended that began at `began`.
    pub(super) fn end(&mut self, flushes: u8, bytes: u64, began: Nanos, now: Nanos) {
        self.pass(now);
        if flushes == 0 {
            self.moving -= 1;
            if self.flushing == 0 {
                self.bytes += bytes;
            }
            if self.time >= MEMORY {
                self.time /= 2;
                self.bytes /= 2;
            }
            return;
        }
        self.flushing -= 1;
        let took = now.0.saturating_sub(began.0) / u64::from(flushes);
        self.shortest = Some(self.shortest.map_or(took, |least| least.min(took)));
        self.count += 1;
        if self.count == WINDOW {
            (self.before, self.shortest, self.count) = (self.shortest, None, 0);
        }
    }

    /// What making data durable takes; `None` before any was.
    pub(super) fn flush_time(&self) -> Option<u64> {
        let both = [self.shortest, self.before].into_iter().flatten().min();
        both.map(|time| time.min(LONGEST))
    }

    /// How many bytes the device could have moved in that time; `None` while nobody knows.
    pub(super) fn flush_bytes(&self) -> Option<u64> {
        if self.time < ENOUGH || self.bytes == 0 {
            return None;
        }
        let time = u128::from(self.flush_time()?);
        let bytes = time * u128::from(self.bytes) / u128::from(self.time);
        Some(u64::try_from(bytes).unwrap_or(MOST).clamp(LEAST, MOST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_flush_is_worth_what_could_have_been_moved() {
        let mut pace = Pace::default();
        assert_eq!((pace.flush_time(), pace.flush_bytes()), (None, None));
        let mut now = 0;
        for n in 0..100 {
            // 1 MiB in 10 ms; the FLUSH takes 5 ms, and more where others have written.
            pace.begin(0, Nanos(now));
            pace.end(0, 1 << 20, Nanos(now), Nanos(now + 10 * MS));
            now += 10 * MS;
            let took = if n % 20 == 7 { 5 * MS } else { 40 * MS };
            pace.begin(1, Nanos(now));
            pace.end(1, 0, Nanos(now), Nanos(now + took));
            now += took + 3 * MS;
        }
        assert_eq!(pace.flush_time(), Some(5 * MS));
        assert_eq!(pace.flush_bytes(), Some(512 << 10));
    }

    #[test]
    fn what_moves_beside_a_flush_says_nothing_of_speed() {
        let mut pace = Pace::default();
        pace.begin(0, Nanos(0));
        pace.begin(2, Nanos(10 * MS));
        pace.end(0, 1 << 20, Nanos(0), Nanos(50 * MS));
        pace.end(2, 4096, Nanos(10 * MS), Nanos(60 * MS));
        assert_eq!(pace.flush_time(), Some(25 * MS));
        assert_eq!(pace.flush_bytes(), None);
        pace.begin(0, Nanos(60 * MS));
        pace.end(0, 1 << 20, Nanos(60 * MS), Nanos(70 * MS));
        assert_eq!(pace.flush_bytes(), Some((1 << 20) * 25 / 20));
    }

    #[test]
    fn it_is_bounded() {
        let mut pace = Pace::default();
        pace.begin(0, Nanos(0));
        pace.end(0, 4 << 30, Nanos(0), Nanos(MS));
        pace.begin(1, Nanos(MS));
        pace.end(1, 0, Nanos(MS), Nanos(MS));
        assert_eq!(pace.flush_bytes(), Some(LEAST));
        for _ in 0..2 * WINDOW {
            pace.begin(1, Nanos(MS));
            pace.end(1, 0, Nanos(MS), Nanos(MS + (1 << 40)));
        }
        assert_eq!(pace.flush_time(), Some(LONGEST));
        assert_eq!(pace.flush_bytes(), Some(MOST));
    }
}
