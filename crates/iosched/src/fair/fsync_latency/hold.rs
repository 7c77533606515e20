//! Keeps the steps of one fsync together: async requests wait while a step is in the device or the next one is
//! expected.
//!
//! The price is bounded by two accounts of each group, in time of the device:
//! - While async requests of a group are held back, the group earns its share, and a request that it has earned is not
//!   held back. So a group that streams has its share beside callers that call fsync without a pause, and waits for
//!   single fsyncs.
//! - A stream earns its *floor*, a quarter of the device or its share if that is less, all the time in which fsync callers
//!   are known. Up to [`CREDIT_NS_MAX`] of it is kept, so what it earns during a FLUSH of a device that serves one
//!   request at a time is not lost. A request that is due by the floor waits for no fsync, FLUSH or bound, and goes
//!   before sync requests of its group.

use steadfs_base::{GroupId, IoTag};

use crate::Nanos;

/// The next step of an fsync is expected in this time after the last one.
const STEP_GAP_NS: u64 = 1_000_000;
/// The largest excess of a group, in time of the device.
const EXCESS_NS_MAX: u64 = 25_000_000;
/// The largest part of its floor that a group keeps for later.
pub(super) const CREDIT_NS_MAX: u64 = EXCESS_NS_MAX;
/// Most groups that have an account.
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

    /// What a stream of this share keeps at least.
    fn floor(self) -> Self {
        match u64::from(self.part) * 4 < u64::from(self.of) {
            true => self,
            false => Self::QUARTER,
        }
    }

    /// The time of which this share is `part`.
    fn whole(self, part: u64) -> u64 {
        let whole = u128::from(part) * u128::from(self.of) / u128::from(self.part.max(1));
        u64::try_from(whole).unwrap_or(u64::MAX)
    }
}

/// What a group has had of the device's time, and has not earned.
#[derive(Clone, Copy, Debug)]
struct Account {
    group: GroupId,
    share: Share,
    /// Beside its share of the holding time.
    excess: u64,
    /// Holding time at which it was that.
    held_at: u64,
    /// What it has earned of its floor and not had; negative: what it has had and not earned.
    credit: i64,
    /// Floor time at which it was that.
    earned_at: u64,
    /// The cost of its last request.
    last_cost: u64,
}

impl Account {
    fn excess_left(&self, share: Share, held: u64) -> u64 {
        self.excess
            .saturating_sub(share.of(held.saturating_sub(self.held_at)))
    }

    fn credit_now(&self, share: Share, earning: u64) -> i64 {
        let earned = share.floor().of(earning.saturating_sub(self.earned_at));
        let earned = i64::try_from(earned).unwrap_or(i64::MAX);
        self.credit.saturating_add(earned).min(CREDIT_MAX)
    }
}

/// [`CREDIT_NS_MAX`] and [`EXCESS_NS_MAX`] as a credit.
const CREDIT_MAX: i64 = 25_000_000;
const _: () = assert!(CREDIT_MAX.unsigned_abs() == CREDIT_NS_MAX);

#[derive(Debug, Default)]
pub(super) struct Hold {
    /// Sync writes and FLUSHes in flight.
    in_flight: usize,
    last_step: Option<IoTag>,
    /// Until when the next step is expected.
    expected_until: Nanos,
    /// Until when fsync callers are known.
    known_until: Nanos,
    /// The time in which requests were held back, up to the last event.
    held: u64,
    /// The time in which requests were held back or fsync callers were known.
    earning: u64,
    /// The device's time that async requests had in it.
    served: u64,
    last_event: Nanos,
    accounts: Vec<Account>,
}

impl Hold {
    /// Whether a step is in the device, or the next one is expected.
    pub(super) fn is_active(&self, now: Nanos) -> bool {
        self.in_flight > 0 || now < self.expected_until
    }

    pub(super) fn last_step(&self) -> Option<IoTag> {
        self.last_step
    }

    fn since_last_event(&self, until: Nanos, now: Nanos) -> u64 {
        let until = match self.in_flight {
            0 => now.min(until),
            _ => now,
        };
        until.0.saturating_sub(self.last_event.0)
    }

    fn held_at(&self, now: Nanos) -> u64 {
        self.held + self.since_last_event(self.expected_until, now)
    }

    fn earning_at(&self, now: Nanos) -> u64 {
        let until = self.expected_until.max(self.known_until);
        self.earning + self.since_last_event(until, now)
    }

    fn advance(&mut self, now: Nanos) {
        self.held = self.held_at(now);
        self.earning = self.earning_at(now);
        self.last_event = now;
    }

    pub(super) fn step_begins(&mut self, tag: IoTag, now: Nanos) {
        self.advance(now);
        self.in_flight += 1;
        self.last_step = Some(tag);
    }

    /// A step has completed. After a durable one none is expected, and its caller is known until `known_until`.
    pub(super) fn step_ends(&mut self, known_until: Option<Nanos>, now: Nanos) {
        self.advance(now);
        self.in_flight -= 1;
        self.expected_until = match known_until {
            Some(_) => now,
            None => Nanos(now.0.saturating_add(STEP_GAP_NS)),
        };
        self.known_until = self.known_until.max(known_until.unwrap_or_default());
    }

    /// An async request of this cost is dispatched.
    pub(super) fn charge(&mut self, group: GroupId, cost: u64, share: Share, now: Nanos) {
        let (held, earning) = (self.held_at(now), self.earning_at(now));
        if self.is_active(now) || now < self.known_until {
            self.served += cost;
        }
        let at = self.account_of(group, share, now);
        let account = &mut self.accounts[at];
        let excess = account.excess_left(share, held).saturating_add(cost);
        let spent = i64::try_from(cost).unwrap_or(i64::MAX);
        let credit = account.credit_now(share, earning).saturating_sub(spent);
        *account = Account {
            group,
            share,
            excess: excess.min(EXCESS_NS_MAX),
            held_at: held,
            credit: credit.max(-CREDIT_MAX),
            earned_at: earning,
            last_cost: cost,
        };
    }

    fn account_of(&mut self, group: GroupId, share: Share, now: Nanos) -> usize {
        let of_group = |account: &Account| account.group == group;
        if let Some(at) = self.accounts.iter().position(of_group) {
            return at;
        }
        let (held, earning) = (self.held_at(now), self.earning_at(now));
        if self.accounts.len() == GROUPS_MAX {
            self.accounts
                .retain(|account| account.excess_left(account.share, held) > 0);
            self.accounts.truncate(GROUPS_MAX - 1);
        }
        self.accounts.push(Account {
            group,
            share,
            excess: 0,
            held_at: held,
            credit: 0,
            earned_at: earning,
            last_cost: 0,
        });
        self.accounts.len() - 1
    }

    fn account(&self, group: GroupId) -> Option<&Account> {
        self.accounts.iter().find(|account| account.group == group)
    }

    /// A group whose async requests had all been served queues one again: what it earned meanwhile is lost.
    pub(super) fn stream_begins(&mut self, group: GroupId, now: Nanos) {
        let earning = self.earning_at(now);
        let of_group = |account: &&mut Account| account.group == group;
        if let Some(account) = self.accounts.iter_mut().find(of_group) {
            account.credit = account.credit_now(account.share, earning).min(0);
            account.earned_at = earning;
        }
    }

    /// Whether a group has had more than its share.
    pub(super) fn exceeds_share(&self, group: GroupId, share: Share, now: Nanos) -> bool {
        let held = self.held_at(now);
        let account = self.account(group);
        account.is_some_and(|account| account.excess_left(share, held) > 0)
    }

    /// Whether a group has earned a request of this cost by its floor.
    pub(super) fn is_due(&self, group: GroupId, cost: u64, share: Share, now: Nanos) -> bool {
        let cost = i64::try_from(cost).unwrap_or(i64::MAX).min(CREDIT_MAX);
        let earning = self.earning_at(now);
        let account = self.account(group);
        account.is_some_and(|account| account.credit_now(share, earning) >= cost)
    }

    /// When the next held-back request may go unless a step begins or completes: the expected step has not come, or a
    /// group has earned a request.
    pub(super) fn ends_at(&self, now: Nanos) -> Option<Nanos> {
        let held = self.held_at(now);
        let earned = self.accounts.iter().filter_map(|account| {
            let left = account.excess_left(account.share, held);
            // One nanosecond more, because shares are rounded down.
            let wait = account.share.whole(left).saturating_add(1);
            (left > 0).then_some(Nanos(now.0.saturating_add(wait)))
        });
        let unexpected = (self.in_flight == 0).then_some(self.expected_until);
        earned.chain(unexpected).min()
    }

    /// When a group will have earned a request like its last one by its floor.
    pub(super) fn due_at(&self, now: Nanos) -> Option<Nanos> {
        let earning = self.earning_at(now);
        let due = self.accounts.iter().filter_map(|account| {
            let cost = i64::try_from(account.last_cost)
                .unwrap_or(i64::MAX)
                .min(CREDIT_MAX);
            let left = cost.saturating_sub(account.credit_now(account.share, earning));
            let left = u64::try_from(left).ok().filter(|left| *left > 0)?;
            let wait = account.share.floor().whole(left).saturating_add(1);
            Some(Nanos(now.0.saturating_add(wait)))
        });
        due.min()
    }

    /// The part of the device's time that async requests had while they could be held back, in percent.
    pub(super) fn served_percent(&self) -> u64 {
        self.served.saturating_mul(100) / self.earning.max(1)
    }
}
