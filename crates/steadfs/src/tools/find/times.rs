//! The text of times in formats: `%TY`, `%t` and so on. All times are UTC.

use steadfs_base::Timestamp;

use super::super::list::civil;

const DAY: i64 = 86_400;
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The letters after `%A`, `%B`, `%C` and `%T`.
pub fn is_known(letter: u8) -> bool {
    b"@+aAbBdDeFhHIjklmMpSTuwyYZ".contains(&letter)
}

/// The part of a time that a letter names; seconds have ten digits after the point.
pub fn part(time: Timestamp, letter: u8) -> String {
    let Clock {
        year,
        month,
        day,
        of_day,
        weekday,
    } = clock(time);
    let (hour, minute) = (of_day / 3600, of_day / 60 % 60);
    let noon = (hour + 11) % 12 + 1;
    let seconds = format!("{:02}.{:09}0", of_day % 60, time.nanos);
    match letter {
        b'@' => format!("{}.{:09}0", time.secs, time.nanos),
        b'+' => format!("{year:04}-{month:02}-{day:02}+{hour:02}:{minute:02}:{seconds}"),
        b'a' => DAYS[weekday][..3].to_owned(),
        b'A' => DAYS[weekday].to_owned(),
        b'b' | b'h' => name_of(month)[..3].to_owned(),
        b'B' => name_of(month).to_owned(),
        b'd' => format!("{day:02}"),
        b'D' => format!("{month:02}/{day:02}/{:02}", year.rem_euclid(100)),
        b'e' => format!("{day:2}"),
        b'F' => format!("{year:04}-{month:02}-{day:02}"),
        b'H' => format!("{hour:02}"),
        b'I' => format!("{noon:02}"),
        b'j' => format!("{:03}", day_of_year(year, month, day)),
        b'k' => format!("{hour:2}"),
        b'l' => format!("{noon:2}"),
        b'm' => format!("{month:02}"),
        b'M' => format!("{minute:02}"),
        b'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
        b'S' => seconds,
        b'T' => format!("{hour:02}:{minute:02}:{seconds}"),
        b'u' => match weekday {
            0 => "7".to_owned(),
            day => day.to_string(),
        },
        b'w' => weekday.to_string(),
        b'y' => format!("{:02}", year.rem_euclid(100)),
        b'Y' => year.to_string(),
        _ => "UTC".to_owned(),
    }
}

/// A time as ctime(3) has it.
pub fn whole(time: Timestamp) -> String {
    let Clock { year, day, .. } = clock(time);
    let (weekday, month, clock) = (part(time, b'a'), part(time, b'b'), part(time, b'T'));
    format!("{weekday} {month} {day:2} {clock} {year}")
}

/// A time as ls(1) has it: with the year if it is more than half a year old or in the future.
pub fn short(time: Timestamp, now: Timestamp) -> String {
    const HALF_YEAR: i64 = 180 * DAY;
    const HOUR: i64 = 3600;
    let Clock {
        year, day, of_day, ..
    } = clock(time);
    let month = part(time, b'b');
    let recent = now.secs - HALF_YEAR <= time.secs && time.secs <= now.secs + HOUR;
    match recent {
        true => format!(
            "{month} {day:2} {:02}:{:02}",
            of_day / HOUR,
            of_day / 60 % 60
        ),
        false => format!("{month} {day:2}  {year}"),
    }
}

struct Clock {
    year: i64,
    /// 1 to 12.
    month: i64,
    day: i64,
    /// Seconds since midnight.
    of_day: i64,
    /// 0: Sunday.
    weekday: usize,
}

fn clock(time: Timestamp) -> Clock {
    let days = time.secs.div_euclid(DAY);
    let (year, month, day) = civil(days);
    // 1 January 1970 was a Thursday.
    let weekday = usize::try_from((days + 4).rem_euclid(7)).unwrap_or_default();
    Clock {
        year,
        month,
        day,
        of_day: time.secs.rem_euclid(DAY),
        weekday,
    }
}

fn name_of(month: i64) -> &'static str {
    let index = usize::try_from(month - 1).unwrap_or_default();
    MONTHS[index % MONTHS.len()]
}

fn day_of_year(year: i64, month: i64, day: i64) -> i64 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let before = match month {
        1 => 0,
        2 => 31,
        // The months from March on have 31 30 31 30 31 days, repeating.
        _ => 59 + i64::from(is_leap) + (153 * (month - 3) + 2) / 5,
    };
    before + day
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_numbered_in_their_year() {
        let days = |year, month, day| day_of_year(year, month, day);
        assert_eq!(days(2025, 12, 31), 365);
        assert_eq!(days(2024, 12, 31), 366);
        assert_eq!(
            [days(2024, 2, 29), days(2024, 3, 1), days(2100, 3, 1)],
            [60, 61, 60]
        );
    }

    #[test]
    fn times_are_shown_as_by_find_and_ls() {
        let time = Timestamp {
            secs: 1_763_696_527,
            nanos: 5,
        };
        assert_eq!(whole(time), "Fri Nov 21 03:42:07.0000000050 2025");
        let now = |days: i64| Timestamp {
            secs: time.secs + days * DAY,
            nanos: 0,
        };
        assert_eq!(short(time, now(100)), "Nov 21 03:42");
        assert_eq!(short(time, now(200)), "Nov 21  2025");
        assert_eq!(short(time, now(-1)), "Nov 21  2025");
    }
}
