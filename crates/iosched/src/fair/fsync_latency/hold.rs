//! Keeps the steps of one fsync together: async requests wait while a step is in the device or the next one is
//! expected.
//!
//! The price is bounded. While async requests of a group are held back, the group earns its share of the device's time,
//! and a request that it has earned is not held back. So a group that streams has its share beside callers that call
//! fsync without a pause, and waits for single fsyncs.

use steadfs_base::{GroupId, IoTag};

use crate::Nanos;

/// The next step of an fsync is expected in this time after the last one.
const STEP_GAP_NS: u64 = 1_000_000;
/// The largest excess of a group, in time of the device.
const EXCESS_NS_MAX: u64 = 25_000_000;
/// Most groups whose excess is recorded.
const GROUPS_MAX: usize = 64;

/// A part of the device's time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// The numerator.
    pub part: u32,
    /// The denominator.
    pub of: u32,
}

impl Share {
    /// What async requests get beside fsyncs of their own group.
    pub const QUARTER: Self = Self { part: 1, of: 4 };

    fn of(self, time: u64) -> u64 {
        let part = u128::from(time) * u128::from(self.part) / u128::from(self.of.max(1));
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    /// The time of which this share is `part`.
    fn whole(self, part: u64) -> u64 {
        let whole = u128::from(part) * u128::from(self.of) / u128::from(self.part.max(1));
        u64::try_from(whole).unwrap_or(u64::MAX)
    }
}

/// The device's time that a group has had and not earned.
#[derive(Clone, Copy, Debug)]
struct Excess {
    group: GroupId,
    ns: u64,
    /// Holding time at which it was that.
    at: u64,
    share: Share,
}

impl Excess {
    fn left(&self, share: Share, held: u64) -> u64 {
        self.ns
            .saturating_sub(share.of(held.saturating_sub(self.at)))
    }
}

#[derive(Debug, Default)]
pub(super) struct Hold {
    /// Sync writes and FLUSHes in flight.
    in_flight: usize,
    last_step: Option<IoTag>,
    /// Until when the next step is expected.
    expected_until: Nanos,
    /// The time in which requests were held back, up to the last event.
    held: u64,
    last_event: Nanos,
    excesses: Vec<Excess>,
}

impl Hold {
    /// Whether a step is in the device, or the next one is expected.
    pub(super) fn is_active(&self, now: Nanos) -> bool {
        self.in_flight > 0 || now < self.expected_until
    }

    pub(super) fn last_step(&self) -> Option<IoTag> {
        self.last_step
    }

    fn held_at(&self, now: Nanos) -> u64 {
        let until = match self.in_flight {
            0 => now.min(self.expected_until),
            _ => now,
        };
        self.held + until.0.saturating_sub(self.last_event.0)
    }

    fn advance(&mut self, now: Nanos) {
        self.held = self.held_at(now);
        self.last_event = now;
    }

    pub(super) fn step_begins(&mut self, tag: IoTag, now: Nanos) {
        self.advance(now);
        self.in_flight += 1;
        self.last_step = Some(tag);
    }

    /// A step has completed. After a durable one none is expected.
    pub(super) fn step_ends(&mut self, is_durable: bool, now: Nanos) {
        self.advance(now);
        self.in_flight -= 1;
        self.expected_until = match is_durable {
            true => now,
            false => Nanos(now.0.saturating_add(STEP_GAP_NS)),
        };
    }

    /// An async request of this cost is dispatched.
    pub(super) fn charge(&mut self, group: GroupId, cost: u64, share: Share, now: Nanos) {
        let held = self.held_at(now);
        let at = self
            .excesses
            .iter()
            .position(|excess| excess.group == group);
        let at = at.unwrap_or_else(|| {
            if self.excesses.len() == GROUPS_MAX {
                self.excesses
                    .retain(|excess| excess.left(excess.share, held) > 0);
                self.excesses.truncate(GROUPS_MAX - 1);
            }
            self.excesses.push(Excess {
                group,
                ns: 0,
                at: held,
                share,
            });
            self.excesses.len() - 1
        });
        let excess = &mut self.excesses[at];
        let ns = excess.left(share, held).saturating_add(cost);
        (excess.ns, excess.at, excess.share) = (ns.min(EXCESS_NS_MAX), held, share);
    }

    /// Whether a group has had more than its share.
    pub(super) fn exceeds_share(&self, group: GroupId, share: Share, now: Nanos) -> bool {
        let held = self.held_at(now);
        let excess = self.excesses.iter().find(|excess| excess.group == group);
        excess.is_some_and(|excess| excess.left(share, held) > 0)
    }

    /// When the next held-back request may go unless a step begins or completes: the expected step has not come, or a
    /// group has earned a request.
    pub(super) fn ends_at(&self, now: Nanos) -> Option<Nanos> {
        let held = self.held_at(now);
        let earned = self.excesses.iter().filter_map(|excess| {
            let left = excess.left(excess.share, held);
            // One nanosecond more, because shares are rounded down.
            let wait = excess.share.whole(left).saturating_add(1);
            (left > 0).then_some(Nanos(now.0.saturating_add(wait)))
        });
        let unexpected = (self.in_flight == 0).then_some(self.expected_until);
        earned.chain(unexpected).min()
    }
}
