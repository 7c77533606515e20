//! When background GC works: Linux's rules as pure functions (`gc_thread_func`).

use std::time::Duration;

use steadfs_block::Depths;

use crate::segment::VictimCost;

/// Sleep of the GC task between rounds, in milliseconds (`gc_*_sleep_time`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepTimes {
    /// `gc_min_sleep_time`.
    pub min: u32,
    /// `gc_max_sleep_time`: while there are victims.
    pub max: u32,
    /// `gc_no_gc_sleep_time`: after a round without a victim.
    pub none: u32,
    /// `gc_urgent_sleep_time`.
    pub urgent: u32,
}

impl Default for SleepTimes {
    fn default() -> Self {
        Self {
            min: 30_000,
            max: 60_000,
            none: 300_000,
            urgent: 500,
        }
    }
}

/// How GC chooses victims and when it works (`gc_idle`, `gc_urgent`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GcMode {
    /// By cost-benefit, while the volume is idle.
    #[default]
    Normal,
    /// `gc_idle` 1: cost-benefit.
    IdleBenefit,
    /// `gc_idle` 2: greedy.
    IdleGreedy,
    /// `gc_idle` 3: by age (requires `atgc`).
    IdleAge,
    /// `gc_urgent` 1: greedy, also while the volume is in use; cursegs use SSR.
    UrgentHigh,
    /// `gc_urgent` 2: with the shortest sleep.
    UrgentLow,
    /// `gc_urgent` 3: cost-benefit, also while the volume is in use.
    UrgentMid,
}

impl GcMode {
    /// All modes, in the order of the counters of reclaimed segments.
    pub const ALL: [Self; 7] = [
        Self::Normal,
        Self::IdleBenefit,
        Self::IdleGreedy,
        Self::IdleAge,
        Self::UrgentHigh,
        Self::UrgentLow,
        Self::UrgentMid,
    ];

    /// The kernel's number, which reading `gc_urgent` and `gc_idle` returns.
    pub const fn number(self) -> u32 {
        match self {
            Self::Normal => 0,
            Self::IdleBenefit => 1,
            Self::IdleGreedy => 2,
            Self::IdleAge => 3,
            Self::UrgentHigh => 4,
            Self::UrgentLow => 5,
            Self::UrgentMid => 6,
        }
    }

    /// The kernel's name (`gc_mode`).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal => "GC_NORMAL",
            Self::IdleBenefit => "GC_IDLE_CB",
            Self::IdleGreedy => "GC_IDLE_GREEDY",
            Self::IdleAge => "GC_IDLE_AT",
            Self::UrgentHigh => "GC_URGENT_HIGH",
            Self::UrgentLow => "GC_URGENT_LOW",
            Self::UrgentMid => "GC_URGENT_MID",
        }
    }

    /// How victims are compared; `by_age`: `atgc` has an effect.
    pub const fn cost(self, foreground: bool, by_age: bool) -> VictimCost {
        match self {
            Self::IdleAge => VictimCost::Age,
            Self::IdleGreedy | Self::UrgentHigh => VictimCost::Greedy,
            _ if foreground => VictimCost::Greedy,
            Self::Normal if by_age => VictimCost::Age,
            _ => VictimCost::CostBenefit,
        }
    }

    const fn is_urgent(self) -> bool {
        matches!(self, Self::UrgentHigh | Self::UrgentMid)
    }
}

/// Which I/O in flight keeps background GC from working (`bggc_io_aware`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoAware {
    /// Any I/O.
    #[default]
    All,
    Reads,
    /// No I/O.
    Nothing,
}

impl IoAware {
    pub const ALL: [Self; 3] = [Self::All, Self::Reads, Self::Nothing];

    /// The kernel's number.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Whether this I/O in flight counts as use of the volume.
    pub const fn is_in_use(self, under_way: Depths) -> bool {
        match self {
            Self::All => under_way.all() > 0,
            Self::Reads => under_way.reads > 0,
            Self::Nothing => false,
        }
    }
}

/// State of the volume at the start of a round.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundInputs {
    pub read_only: bool,
    pub frozen: bool,
    /// Writers wait for space.
    pub foreground: bool,
    /// Another task is cleaning.
    pub busy: bool,
    /// I/O that counts by [`IoAware`] is in flight.
    pub in_use: bool,
    /// No request came for `gc_idle_interval`.
    pub quiet: bool,
    /// See [`many_invalid`].
    pub many_invalid: bool,
}

/// Action of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// None: nothing may be written.
    Rest,
    /// None: another task is cleaning.
    Busy,
    /// None: the volume is in use.
    InUse,
    /// Background GC.
    Clean,
    /// Foreground GC for waiting writers.
    Serve,
}

/// The sleep before the next round, in milliseconds; it adapts to what the rounds find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sleep(u32);

impl Sleep {
    pub const fn new(sleep_times: SleepTimes) -> Self {
        Self(sleep_times.min)
    }

    pub const fn time(self) -> Duration {
        Duration::from_millis(self.0 as u64)
    }

    fn longer(&mut self, sleep_times: SleepTimes) {
        if self.0 != sleep_times.none {
            self.0 = self
                .0
                .saturating_add(sleep_times.min)
                .min(sleep_times.max.max(sleep_times.min));
        }
    }

    fn shorter(&mut self, sleep_times: SleepTimes) {
        if self.0 == sleep_times.none {
            self.0 = sleep_times.max;
        }
        self.0 = self.0.saturating_sub(sleep_times.min).max(sleep_times.min);
    }

    /// Decides the action of the round that begins now.
    pub fn begin(&mut self, sleep_times: SleepTimes, mode: GcMode, inputs: RoundInputs) -> Round {
        if inputs.read_only {
            return Round::Rest;
        }
        if inputs.frozen {
            self.longer(sleep_times);
            return Round::Rest;
        }
        if inputs.foreground {
            return Round::Serve;
        }
        if mode.is_urgent() {
            self.0 = sleep_times.urgent;
            return Round::Clean;
        }
        if inputs.busy {
            return Round::Busy;
        }
        let quiet = inputs.quiet || mode == GcMode::UrgentLow;
        if inputs.in_use || !quiet {
            self.longer(sleep_times);
            return Round::InUse;
        }
        if inputs.many_invalid || mode == GcMode::UrgentLow {
            self.shorter(sleep_times);
        } else {
            self.longer(sleep_times);
        }
        Round::Clean
    }

    /// After a background round: `found` is whether there was a victim.
    pub fn end(&mut self, sleep_times: SleepTimes, found: bool) {
        if !found {
            self.0 = sleep_times.none;
        } else if self.0 == sleep_times.none {
            self.0 = sleep_times.min;
        }
    }
}

/// Whether more than 40 % of users' blocks are invalid and the free ones are fewer than 40 % of the invalid ones
/// (`has_enough_invalid_blocks`).
pub fn many_invalid(user_blocks: u64, valid: u64, free: u64) -> bool {
    let unused = user_blocks.saturating_sub(valid);
    let free = free.min(unused);
    let invalid = unused - free;
    u128::from(invalid) * 100 > u128::from(user_blocks) * 40
        && u128::from(free) * 100 < u128::from(invalid) * 40
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: RoundInputs = RoundInputs {
        read_only: false,
        frozen: false,
        foreground: false,
        busy: false,
        in_use: false,
        quiet: true,
        many_invalid: false,
    };

    #[test]
    fn sleep_adapts_to_what_rounds_find() {
        let sleep_times = SleepTimes::default();
        let mut sleep = Sleep::new(sleep_times);
        assert_eq!(sleep.begin(sleep_times, GcMode::Normal, IDLE), Round::Clean);
        assert_eq!(sleep.time().as_secs(), 60);
        sleep.end(sleep_times, true);
        assert_eq!(sleep.begin(sleep_times, GcMode::Normal, IDLE), Round::Clean);
        assert_eq!(sleep.time().as_secs(), 60);
        sleep.end(sleep_times, false);
        assert_eq!(sleep.time().as_secs(), 300);
        // It stays long until a victim is found, or many blocks are invalid.
        let in_use = RoundInputs {
            in_use: true,
            ..IDLE
        };
        assert_eq!(
            sleep.begin(sleep_times, GcMode::Normal, in_use),
            Round::InUse
        );
        let lately = RoundInputs {
            quiet: false,
            ..IDLE
        };
        assert_eq!(
            sleep.begin(sleep_times, GcMode::Normal, lately),
            Round::InUse
        );
        assert_eq!(sleep.time().as_secs(), 300);
        let full = RoundInputs {
            many_invalid: true,
            ..IDLE
        };
        assert_eq!(sleep.begin(sleep_times, GcMode::Normal, full), Round::Clean);
        assert_eq!(sleep.time().as_secs(), 30);
        sleep.end(sleep_times, true);
        assert_eq!(sleep.begin(sleep_times, GcMode::Normal, full), Round::Clean);
        assert_eq!(sleep.time().as_secs(), 30);
        sleep.end(sleep_times, false);
        assert_eq!(sleep.begin(sleep_times, GcMode::Normal, IDLE), Round::Clean);
        sleep.end(sleep_times, true);
        assert_eq!(sleep.time().as_secs(), 30);
    }

    #[test]
    fn urgency_and_writers_come_first() {
        let sleep_times = SleepTimes::default();
        let mut sleep = Sleep::new(sleep_times);
        let in_use = RoundInputs {
            in_use: true,
            quiet: false,
            busy: true,
            ..IDLE
        };
        assert_eq!(
            sleep.begin(sleep_times, GcMode::UrgentHigh, in_use),
            Round::Clean
        );
        assert_eq!(sleep.time().as_millis(), 500);
        assert_eq!(
            sleep.begin(sleep_times, GcMode::Normal, in_use),
            Round::Busy
        );
        let foreground = RoundInputs {
            foreground: true,
            ..in_use
        };
        assert_eq!(
            sleep.begin(sleep_times, GcMode::Normal, foreground),
            Round::Serve
        );
        let read_only = RoundInputs {
            read_only: true,
            ..foreground
        };
        assert_eq!(
            sleep.begin(sleep_times, GcMode::UrgentHigh, read_only),
            Round::Rest
        );
        assert_eq!(sleep.time().as_millis(), 500, "unchanged");
        let frozen = RoundInputs {
            frozen: true,
            ..foreground
        };
        assert_eq!(
            sleep.begin(sleep_times, GcMode::UrgentHigh, frozen),
            Round::Rest
        );
        assert_eq!(sleep.time().as_millis(), 30_500);
        let lately = RoundInputs {
            quiet: false,
            ..IDLE
        };
        let mut sleep = Sleep::new(sleep_times);
        assert_eq!(
            sleep.begin(sleep_times, GcMode::UrgentLow, lately),
            Round::Clean
        );
        assert_eq!(sleep.time().as_secs(), 30);
        // It does not wait for idle requests, but for I/O.
        let in_use = RoundInputs {
            in_use: true,
            ..lately
        };
        assert_eq!(
            sleep.begin(sleep_times, GcMode::UrgentLow, in_use),
            Round::InUse
        );
    }

    #[test]
    fn io_in_flight_counts_by_kind() {
        let nothing = Depths::default();
        let write = Depths {
            device_background: 1,
            ..nothing
        };
        let read = Depths {
            waited: 1,
            reads: 1,
            ..nothing
        };
        for (io_aware, number, seen) in [
            (IoAware::All, 0, [false, true, true]),
            (IoAware::Reads, 1, [false, false, true]),
            (IoAware::Nothing, 2, [false; 3]),
        ] {
            assert_eq!(io_aware.number(), number);
            let in_use = [nothing, write, read].map(|now| io_aware.is_in_use(now));
            assert_eq!(in_use, seen, "{io_aware:?}");
        }
    }

    #[test]
    fn many_invalid_blocks() {
        // 1000 blocks of users: 500 valid, 100 free, 400 invalid: not more than 40 %.
        assert!(!many_invalid(1000, 500, 100));
        assert!(many_invalid(1000, 450, 100));
        assert!(!many_invalid(1000, 300, 250));
        assert!(!many_invalid(1000, 2000, 100));
    }
}
