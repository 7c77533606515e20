//! Sizes as users write them: the one parser of all commands, options and scripts.
//!
//! A size is a number and perhaps a unit, without a space between them; letters are of either case.
//!
//! | unit | counts |
//! |---|---|
//! | none | what the place says: bytes, or as in mke2fs blocks or KiB |
//! | `B` | bytes |
//! | `s` | sectors of 512 bytes, as in e2fsprogs |
//! | `K`, `KiB` and so on to `E`, `EiB` | powers of 1024 |
//! | `KB` and so on to `EB` | powers of 1000, as in coreutils |
//!
//! **Rule.** A size means one number of bytes or is refused with the reason: nothing wraps, and what another program reads as
//! another size is no size (`b` alone, octal numbers). A fraction needs a unit of more than a byte and is rounded down to whole
//! bytes; one of less than a byte is refused. `0x` begins a hexadecimal number, as in mke2fs.

use std::fmt;

/// Bytes in a sector, which the unit `s` counts.
const SECTOR: u64 = 512;
/// Letters of the powers, from the first on.
const POWERS: &str = "KMGTPE";
/// Decimals that are read; a binary power has no size that needs more of them to be exact to a byte.
const DECIMALS_MAX: usize = 18;

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SizeError {
    /// There is no text.
    Empty,
    /// A minus is before it.
    Negative,
    /// No digit begins it.
    NoNumber,
    /// A leading zero: an octal number for some programs, a decimal one for others.
    LeadingZero,
    /// What follows the number is no unit.
    Unit(String),
    /// `b` alone is 512 bytes to some programs and one byte to others.
    SmallB,
    /// A fraction of bytes, of sectors or of what a bare number counts.
    FractionOfBytes,
    /// A point without digits after it, or more digits than are read.
    Decimals,
    /// A fraction that is less than a byte.
    NoWholeByte,
    /// 2^64 bytes or more.
    TooLarge,
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "needs a size, such as 4096, 512K or 2G"),
            Self::Negative => write!(f, "a size is not negative"),
            Self::NoNumber => write!(f, "needs a number before the unit, such as 512K or 2G"),
            Self::LeadingZero => {
                write!(
                    f,
                    "begins with 0, which is octal for mke2fs: leave the 0 out"
                )
            }
            Self::Unit(unit) => write!(
                f,
                "{unit} is no unit: those are B (bytes), s (512 bytes), K, M, G, T, P, E or KiB to EiB (powers of 1024) \
                 and KB to EB (powers of 1000)"
            ),
            Self::SmallB => write!(f, "b alone is no unit: write B for bytes, s for 512 bytes"),
            Self::FractionOfBytes => write!(f, "a fraction needs a larger unit, such as 0.5G"),
            Self::Decimals => write!(
                f,
                "needs between 1 and {DECIMALS_MAX} digits after the point, such as 0.5G"
            ),
            Self::NoWholeByte => write!(f, "is less than a byte"),
            Self::TooLarge => write!(f, "is too large: the largest size is 2^64 - 1 bytes"),
        }
    }
}

impl std::error::Error for SizeError {}

/// Parses a size in bytes. `bare`: bytes per unit of a number without a unit.
///
/// # Errors
/// The text is not a size.
///
/// ```
/// use steadfs_base::size::parse;
///
/// assert_eq!(parse("64MiB", 1), Ok(64 << 20));
/// assert_eq!(parse("64m", 1), Ok(64 << 20));
/// assert_eq!(parse("64MB", 1), Ok(64_000_000));
/// assert_eq!(parse("0.5G", 1), Ok(512 << 20));
/// assert_eq!(parse("8", 1024), Ok(8192));
/// ```
pub fn parse(text: &str, bare: u64) -> Result<u64, SizeError> {
    let written = split(text)?;
    let unit = match written.unit {
        "" => bare,
        unit => unit_bytes(unit).ok_or_else(|| match unit {
            "b" => SizeError::SmallB,
            _ => SizeError::Unit(unit.to_owned()),
        })?,
    };
    let whole = written.whole.ok_or(SizeError::TooLarge)?;
    let bytes = u128::from(whole) * u128::from(unit);
    let Some(decimals) = written.decimals else {
        return u64::try_from(bytes).map_err(|_| SizeError::TooLarge);
    };
    if matches!(written.unit, "" | "B" | "s" | "S") {
        return Err(SizeError::FractionOfBytes);
    }
    let count = decimals.len();
    if count == 0 || count > DECIMALS_MAX {
        return Err(SizeError::Decimals);
    }
    let mut parts: u128 = 0;
    let mut all: u128 = 1;
    for digit in decimals.bytes() {
        parts = parts * 10 + u128::from(digit - b'0');
        all *= 10;
    }
    let sum = bytes + parts * u128::from(unit) / all;
    if sum == 0 && parts > 0 {
        return Err(SizeError::NoWholeByte);
    }
    u64::try_from(sum).map_err(|_| SizeError::TooLarge)
}

/// Whether a size is a number without a unit.
pub fn is_bare(text: &str) -> bool {
    split(text).is_ok_and(|written| written.unit.is_empty())
}

/// The bytes of a unit other than the empty one.
pub fn unit_bytes(unit: &str) -> Option<u64> {
    match unit {
        "B" => return Some(1),
        "s" | "S" => return Some(SECTOR),
        _ => {}
    }
    let upper = unit.to_ascii_uppercase();
    let letter = upper.chars().next()?;
    let power = POWERS.find(letter)? as u32 + 1;
    match &upper[letter.len_utf8()..] {
        "" | "IB" | "I" => 1024_u64.checked_pow(power),
        "B" => 1000_u64.checked_pow(power),
        _ => None,
    }
}

/// A size in its parts.
struct Written<'a> {
    /// `None`: it does not fit 64 bits.
    whole: Option<u64>,
    /// The digits after a point.
    decimals: Option<&'a str>,
    unit: &'a str,
}

fn split(text: &str) -> Result<Written<'_>, SizeError> {
    if text.is_empty() {
        return Err(SizeError::Empty);
    }
    if text.starts_with('-') {
        return Err(SizeError::Negative);
    }
    if let Some(hex) = text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        let end = end_of(hex, |c| c.is_ascii_hexdigit());
        if end == 0 {
            return Err(SizeError::NoNumber);
        }
        return Ok(Written {
            whole: u64::from_str_radix(&hex[..end], 16).ok(),
            decimals: None,
            unit: &hex[end..],
        });
    }
    let (whole, rest) = text.split_at(end_of(text, |c| c.is_ascii_digit()));
    if whole.is_empty() {
        return Err(SizeError::NoNumber);
    }
    if whole.len() > 1 && whole.starts_with('0') {
        return Err(SizeError::LeadingZero);
    }
    let (decimals, unit) = match rest.strip_prefix('.') {
        None => (None, rest),
        Some(rest) => {
            let (decimals, unit) = rest.split_at(end_of(rest, |c| c.is_ascii_digit()));
            (Some(decimals), unit)
        }
    };
    Ok(Written {
        whole: whole.parse().ok(),
        decimals,
        unit,
    })
}

/// Where the characters end that `is_part` accepts.
fn end_of(text: &str, is_part: impl Fn(char) -> bool) -> usize {
    text.find(|c: char| !is_part(c)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_usual_spellings() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512 * 4096),
            ("0x10", 16 * 4096),
            ("65536s", 32 << 20),
            ("16777216B", 1 << 24),
            ("64k", 64 << 10),
            ("64K", 64 << 10),
            ("64M", 64 << 20),
            ("64m", 64 << 20),
            ("64Mi", 64 << 20),
            ("64MiB", 64 << 20),
            ("64mib", 64 << 20),
            ("64MB", 64_000_000),
            ("64kB", 64_000),
            ("1G", 1 << 30),
            ("2TB", 2_000_000_000_000),
            ("3T", 3 << 40),
            ("1P", 1 << 50),
            ("15E", 15 << 60),
            ("0x4000k", 16 << 20),
            ("0.5G", 1 << 29),
            ("1.5GiB", 3 << 29),
            ("1.5k", 1536),
            ("1.5kB", 1500),
            ("0.1K", 102),
            ("0.0E", 0),
            ("18446744073709551615B", u64::MAX),
            ("15.999999999999999999E", 18_446_744_073_709_551_614),
        ] {
            assert_eq!(parse(text, 4096), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_the_reason() {
        let unit = |unit: &str| SizeError::Unit(unit.to_owned());
        for (text, why) in [
            ("", SizeError::Empty),
            ("-1", SizeError::Negative),
            ("-64M", SizeError::Negative),
            ("G", SizeError::NoNumber),
            (".5G", SizeError::NoNumber),
            ("+5", SizeError::NoNumber),
            ("0x", SizeError::NoNumber),
            ("0xG", SizeError::NoNumber),
            (" 4M", SizeError::NoNumber),
            ("010M", SizeError::LeadingZero),
            ("00", SizeError::LeadingZero),
            ("12X", unit("X")),
            ("4 M", unit(" M")),
            ("4M ", unit("M ")),
            ("4MM", unit("MM")),
            ("4iB", unit("iB")),
            ("4Z", unit("Z")),
            ("1.5.5M", unit(".5M")),
            ("4\u{212a}", unit("\u{212a}")),
            ("512b", SizeError::SmallB),
            ("1.5", SizeError::FractionOfBytes),
            ("1.5B", SizeError::FractionOfBytes),
            ("1.5s", SizeError::FractionOfBytes),
            ("1.M", SizeError::Decimals),
            ("1.1234567890123456789M", SizeError::Decimals),
            ("0.0001K", SizeError::NoWholeByte),
            ("16E", SizeError::TooLarge),
            ("15.9999999999999999999E", SizeError::Decimals),
            ("99999999999T", SizeError::TooLarge),
            ("18446744073709551615", SizeError::TooLarge),
            ("18446744073709551616B", SizeError::TooLarge),
            (
                "99999999999999999999999999999999999999999K",
                SizeError::TooLarge,
            ),
        ] {
            assert_eq!(parse(text, 4096), Err(why), "{text}");
        }
    }

    #[test]
    fn a_number_without_a_unit_is_bare() {
        assert!(is_bare("64") && is_bare("0x40"));
        assert!(!is_bare("64M") && !is_bare("") && !is_bare("-1"));
    }
}
