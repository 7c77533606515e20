//! What the device has taken and has not made durable: a FLUSH waits for all of that, whoever wrote it.

use steadfs_base::IoTag;

use crate::Nanos;

/// FLUSHes are expected to go on for so long after one has ended.
const EXPECTED: u64 = 4_000_000;

/// Counts the bytes of writes that nobody waits for and that the next FLUSH has to make durable.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Volatile {
    /// Given to the device since a FLUSH began there, or in the device when it began.
    bytes: u64,
    /// In the device.
    in_flight: u64,
    /// FLUSHes in the device, those before and after writes included.
    flushing: usize,
    /// When the last of them ended.
    ended: Option<Nanos>,
    /// On whose account the last of them is.
    flusher: IoTag,
}

impl Volatile {
    /// A FLUSH goes to the device. It need not cover what is in flight there.
    pub(super) fn flush_begins(&mut self, tag: IoTag) {
        self.flusher = tag;
        self.bytes = self.in_flight;
        self.flushing += 1;
    }

    /// A FLUSH has ended.
    pub(super) fn flush_ends(&mut self, now: Nanos) {
        self.flushing -= 1;
        self.ended = Some(now);
    }

    /// Such a write goes to the device.
    pub(super) fn write_begins(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.in_flight += bytes;
    }

    /// It has ended.
    pub(super) fn write_ends(&mut self, bytes: u64) {
        self.in_flight -= bytes;
    }

    /// Whether there are FLUSHes that what is written now will hold up.
    pub(super) fn flushes_go_on(&self, now: Nanos) -> bool {
        self.flushing > 0 || self.expected_until().is_some_and(|until| now < until)
    }

    /// Who calls for FLUSHes.
    pub(super) fn flusher(&self) -> IoTag {
        self.flusher
    }

    /// Whether the next FLUSH has as much to make durable as it may have.
    pub(super) fn is_full(&self, room: u64, now: Nanos) -> bool {
        self.bytes >= room && self.flushes_go_on(now)
    }

    /// When FLUSHes are not expected any more, unless one begins. `None` while one is in the device: its
    /// end comes first.
    pub(super) fn lapses(&self) -> Option<Nanos> {
        self.expected_until().filter(|_| self.flushing == 0)
    }

    fn expected_until(&self) -> Option<Nanos> {
        self.ended.map(|at| Nanos(at.0.saturating_add(EXPECTED)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: u64 = 128 << 10;

    #[test]
    fn only_flushes_bound_what_is_written() {
        let mut volatile = Volatile::default();
        volatile.write_begins(1 << 30);
        volatile.write_ends(1 << 30);
        assert!(!volatile.is_full(ROOM, Nanos(0)));
        assert_eq!(volatile.lapses(), None);

        volatile.flush_begins(IoTag::default());
        assert!(!volatile.is_full(ROOM, Nanos(1)));
        volatile.write_begins(ROOM);
        assert!(volatile.is_full(ROOM, Nanos(EXPECTED * 9)));
        assert_eq!(volatile.lapses(), None, "the end of the FLUSH comes first");

        volatile.flush_ends(Nanos(100));
        assert!(volatile.is_full(ROOM, Nanos(99 + EXPECTED)));
        assert_eq!(volatile.lapses(), Some(Nanos(100 + EXPECTED)));
        assert!(!volatile.is_full(ROOM, Nanos(100 + EXPECTED)));
    }

    #[test]
    fn the_next_flush_covers_what_the_last_one_met_in_the_device() {
        let mut volatile = Volatile::default();
        volatile.write_begins(ROOM);
        volatile.flush_begins(IoTag::default());
        assert!(volatile.is_full(ROOM, Nanos(0)));
        volatile.write_ends(ROOM);
        volatile.flush_begins(IoTag::default());
        assert!(!volatile.is_full(ROOM, Nanos(0)));
    }
}
