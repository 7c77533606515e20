//! Time stamps: 32 bits of seconds, widened by two epoch bits and 30 bits of nanoseconds where the
//! inode has room (`i_xtime_extra`). With the extra word 1901-12-13 to 2446-05-10, without it to
//! 2038-01-19.

use std::fmt::{self, Display, Formatter};

use steadfs_base::Timestamp;

use super::num::{as_signed, low32_signed};

/// First second that can be stored.
pub const MIN_SECS: i64 = -(1 << 31);
/// Last second that can be stored with the extra word.
pub const MAX_SECS: i64 = (1 << 34) - 1 - (1 << 31);
/// Last second that can be stored without the extra word.
pub const MAX_SECS_SMALL: i64 = (1 << 31) - 1;

const NANOS_LIMIT: u32 = 1_000_000_000;

/// The stored time: `secs` as in `i_xtime`, `extra` as in `i_xtime_extra` where the inode has it.
/// A nanosecond count of a second or more (corruption, or a very old writer) is read as 999 999 999.
pub fn decode(secs: u32, extra: Option<u32>) -> Timestamp {
    let base = i64::from(as_signed(secs));
    match extra {
        None => Timestamp {
            secs: base,
            nanos: 0,
        },
        Some(extra) => Timestamp {
            secs: base + (i64::from(extra & 3) << 32),
            nanos: (extra >> 2).min(NANOS_LIMIT - 1),
        },
    }
}

/// The words to store for `time`: seconds and extra. What does not fit is stored as the nearest
/// time that does; `with_extra`: the inode has room for the second word.
pub fn encode(time: Timestamp, with_extra: bool) -> (u32, u32) {
    let time = clamp(time, with_extra);
    let low = low32_signed(time.secs);
    // What remains above the sign-extended low word is 0 to 3 times 2^32.
    let epoch = low32_signed((time.secs - i64::from(as_signed(low))) >> 32) & 3;
    (low, epoch | time.nanos << 2)
}

/// The nearest time that can be stored: what a file system must show after a change, so that a
/// cached and a re-read inode agree.
pub fn clamp(time: Timestamp, with_extra: bool) -> Timestamp {
    let max = if with_extra { MAX_SECS } else { MAX_SECS_SMALL };
    if time.secs < MIN_SECS {
        return Timestamp {
            secs: MIN_SECS,
            nanos: 0,
        };
    }
    if time.secs > max {
        return Timestamp {
            secs: max,
            nanos: 0,
        };
    }
    Timestamp {
        secs: time.secs,
        nanos: if with_extra {
            time.nanos.min(NANOS_LIMIT - 1)
        } else {
            0
        },
    }
}

/// Seconds since 1970, displayed as a date and time of day in UTC.
///
/// The calendar repeats every 400 years of 146 097 days; years are counted from March, so that the leap day is a year's
/// last.
#[derive(Clone, Copy, Debug)]
pub struct Date(pub i64);

impl Display for Date {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        const DAY: i64 = 86_400;
        const ERA_DAYS: i64 = 146_097;
        // 719 468 days lie between 0000-03-01 and 1970-01-01.
        let days = self.0.div_euclid(DAY) + 719_468;
        let (era, day) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let of_year = day - (365 * year + year / 4 - year / 100);
        let month = (5 * of_year + 2) / 153;
        let of_month = of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = era * 400 + year + i64::from(month <= 2);
        let second = self.0.rem_euclid(DAY);
        write!(
            f,
            "{year:04}-{month:02}-{of_month:02} {:02}:{:02}:{:02} UTC",
            second / 3600,
            second / 60 % 60,
            second % 60
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_epochs() {
        // The table of "Inode Timestamps" in the kernel's documentation of the format.
        for (extra, secs, expected) in [
            (0, 0x8000_0000, -0x8000_0000_i64),
            (0, 0xffff_ffff, -1),
            (0, 0, 0),
            (0, 0x7fff_ffff, 0x7fff_ffff),
            (1, 0x8000_0000, 0x8000_0000),
            (1, 0x7fff_ffff, 0x1_7fff_ffff),
            (2, 0x8000_0000, 0x1_8000_0000),
            (3, 0x7fff_ffff, 0x3_7fff_ffff),
        ] {
            let time = decode(secs, Some(extra));
            assert_eq!(time.secs, expected);
            assert_eq!(encode(time, true), (secs, extra));
        }
    }

    #[test]
    fn dates() {
        for (secs, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (-1, "1969-12-31 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_700_000_000, "2023-11-14 22:13:20 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (1 << 39, "19391-01-25 12:18:08 UTC"),
        ] {
            assert_eq!(Date(secs).to_string(), text);
        }
    }

    #[test]
    fn out_of_range_is_clamped() {
        let far = Timestamp {
            secs: i64::MAX,
            nanos: 5,
        };
        assert_eq!(clamp(far, true).secs, MAX_SECS);
        assert_eq!(clamp(far, false).secs, MAX_SECS_SMALL);
        let past = Timestamp {
            secs: i64::MIN,
            nanos: 5,
        };
        let (secs, extra) = encode(past, true);
        assert_eq!(decode(secs, Some(extra)).secs, MIN_SECS);
        assert!(decode(0, Some(u32::MAX)).nanos < NANOS_LIMIT);
    }
}
