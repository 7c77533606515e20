//! Dates as touch(1) takes the unambiguous ones. Without a zone they are UTC, as all times that are shown.

use steadfs_base::Timestamp;

const DAY: i64 = 86_400;

/// Parses `@SECONDS`, `YYYY-MM-DD` or `YYYY-MM-DD HH:MM[:SS]` (also with a `T`), with a fraction and a zone (`Z`, `UTC`,
/// `+01:00`).
pub fn parse_date(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    if let Some(seconds) = text.strip_prefix('@') {
        let (whole, nanos) = seconds_of(seconds)?;
        return at(whole, nanos);
    }
    let (date, rest) = text.split_at_checked("YYYY-MM-DD".len())?;
    let mut numbers = date.split('-').map(number);
    let (year, month, day) = (numbers.next()??, numbers.next()??, numbers.next()??);
    let midnight = days(year, month, day)?.checked_mul(DAY)?;
    let rest = rest.strip_prefix(['T', ' ']).unwrap_or(rest).trim();
    let end = rest.find(|c: char| !matches!(c, '0'..='9' | ':' | '.'));
    let (time, zone) = rest.split_at(end.unwrap_or(rest.len()));
    let (seconds, nanos) = if time.is_empty() {
        (0, 0)
    } else {
        of_day(time)?
    };
    at(midnight + seconds - offset(zone.trim())?, nanos)
}

/// Parses `[[CC]YY]MMDDhhmm[.ss]`, the form of `touch -t`; `this_year` is that of a text without one.
pub fn parse_stamp(text: &str, this_year: i64) -> Option<Timestamp> {
    let (digits, second) = match text.split_once('.') {
        Some((digits, second)) if second.len() == 2 => (digits, number(second)?),
        Some(_) => return None,
        None => (text, 0),
    };
    number(digits)?;
    let (year, rest) = digits.split_at(digits.len().checked_sub("MMDDhhmm".len())?);
    let year = match (year.len(), number(year)) {
        (0, _) => this_year,
        (2, Some(year)) if year < 69 => 2000 + year,
        (2, Some(year)) => 1900 + year,
        (4, Some(year)) => year,
        _ => return None,
    };
    let part = |at: usize| number(rest.get(2 * at..2 * at + 2)?);
    let (hour, minute) = (part(2)?, part(3)?);
    let valid = hour < 24 && minute < 60 && second <= 60;
    let day = days(year, part(0)?, part(1)?).filter(|_| valid)?;
    at(day * DAY + hour * 3600 + minute * 60 + second, 0)
}

/// The year of a time.
pub fn year_of(time: Timestamp) -> i64 {
    super::super::list::civil(time.secs.div_euclid(DAY)).0
}

fn at(secs: i64, nanos: u32) -> Option<Timestamp> {
    Some(Timestamp { secs, nanos })
}

fn number(text: &str) -> Option<i64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// Seconds with a fraction; of a negative number the fraction counts upwards from the second before.
fn seconds_of(text: &str) -> Option<(i64, u32)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    number(fraction)?;
    let nanos: u32 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    match whole.strip_prefix('-') {
        Some(digits) if nanos > 0 => Some((-number(digits)? - 1, 1_000_000_000 - nanos)),
        Some(digits) => Some((-number(digits)?, 0)),
        None => Some((number(whole)?, nanos)),
    }
}

/// `HH:MM[:SS[.fraction]]` in seconds after midnight.
fn of_day(text: &str) -> Option<(i64, u32)> {
    let mut parts = text.splitn(3, ':');
    let (hour, minute) = (number(parts.next()?)?, number(parts.next()?)?);
    let (second, nanos) = parts.next().map_or(Some((0, 0)), seconds_of)?;
    let valid = hour < 24 && minute < 60 && second <= 60;
    valid.then_some((hour * 3600 + minute * 60 + second, nanos))
}

/// Seconds that a zone is ahead of UTC.
fn offset(zone: &str) -> Option<i64> {
    if matches!(zone, "" | "Z" | "z" | "UTC" | "GMT") {
        return Some(0);
    }
    let (sign, rest) = match zone.strip_prefix('+') {
        Some(rest) => (1, rest),
        None => (-1, zone.strip_prefix('-')?),
    };
    let digits: String = rest.chars().filter(|c| *c != ':').collect();
    if !digits.is_ascii() {
        return None;
    }
    let (hours, minutes) = match digits.len() {
        2 => (number(&digits)?, 0),
        4 => (number(&digits[..2])?, number(&digits[2..])?),
        _ => return None,
    };
    Some(sign * (hours * 3600 + minutes * 60))
}

/// Days from 1970-01-01 to a date; `None` if there is no such date.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years that begin in March, so that the leap day comes last.
    let year_from_march = if month > 2 { year } else { year - 1 };
    let months = (month + 9) % 12;
    let era = year_from_march.div_euclid(400);
    let of_era = year_from_march.rem_euclid(400);
    let of_year = (153 * months + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    let found = super::super::list::civil(days);
    (found == (year, month, day)).then_some(days)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results are those of date(1) with TZ=UTC.
    #[test]
    fn dates_are_read_as_by_touch() {
        for (text, secs, nanos) in [
            ("@0", 0, 0),
            ("@-1.5", -3 + 1, 500_000_000),
            ("@1763696527.25", 1_763_696_527, 250_000_000),
            ("2025-11-21", 1_763_683_200, 0),
            ("2025-11-21 03:42:07", 1_763_696_527, 0),
            ("2025-11-21T03:42:07.5Z", 1_763_696_527, 500_000_000),
            ("2025-11-21 03:42 UTC", 1_763_696_520, 0),
            ("2025-11-21 03:42:07 +0100", 1_763_692_927, 0),
            ("2025-11-21T03:42:07-05:30", 1_763_716_327, 0),
            ("1960-02-29", -310_521_600, 0),
        ] {
            assert_eq!(parse_date(text), at(secs, nanos), "{text}");
        }
        for text in [
            "",
            "yesterday",
            "2025-02-29",
            "2025-13-01",
            "2025-01-01 25:00",
            "@",
            "@x",
            "2025-1-1",
            "2025-01-01 1:2x",
            "2025-01-01 é",
            "2025-01-01 00:00 é",
            "2025-01-01 00:00 +1é2",
        ] {
            assert_eq!(parse_date(text), None, "{text}");
        }
    }

    #[test]
    fn stamps_are_read_as_by_touch() {
        for (text, wanted) in [
            ("202511210342.07", Some(1_763_696_527)),
            ("2511210342", Some(1_763_696_520)),
            ("11210342", Some(1_763_696_520)),
            ("7001010000", Some(0)),
            ("1121", None),
            ("13210342", None),
            ("112103é2", None),
        ] {
            let read = parse_stamp(text, 2025).map(|time| time.secs);
            assert_eq!(read, wanted, "{text}");
        }
        assert_eq!(
            year_of(Timestamp {
                secs: 1_763_696_527,
                nanos: 0
            }),
            2025
        );
    }
}
