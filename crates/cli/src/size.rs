//! Volume sizes in the notation of mke2fs, mkfs.f2fs and truncate(1).

use crate::failure::Failure;

/// Bytes that suffix `s` counts.
const SECTOR: u64 = 512;

/// Parses a size. `unit`: bytes per unit of a bare number.
pub fn parse(text: &str, unit: u64) -> Result<u64, Failure> {
    let fail = |why: &str| Failure::plain(format!("size {text}: {why}"));
    let bad = || {
        fail(
            "a number of blocks (f2fs: sectors), or with s (512 bytes), K, M, G, T, KiB, MiB, GiB, TiB or B (bytes)",
        )
    };
    let (whole, fraction, suffix) = split(text).ok_or_else(bad)?;
    let shift = match suffix {
        "k" | "K" | "KiB" => 10,
        "m" | "M" | "MiB" => 20,
        "g" | "G" | "GiB" => 30,
        "t" | "T" | "TiB" => 40,
        "" | "s" | "B" if !fraction.is_empty() => {
            return Err(fail("a fraction needs a unit, such as 0.5G"));
        }
        "" => return product(whole, unit).ok_or_else(bad),
        "s" => return product(whole, SECTOR).ok_or_else(bad),
        "B" => return product(whole, 1).ok_or_else(bad),
        "kB" | "KB" | "MB" | "GB" | "TB" => {
            return Err(fail(
                "powers of 1000 or of 1024? Write M or MiB for those of 1024, or bytes with B",
            ));
        }
        _ => return Err(bad()),
    };
    // Sizes have at most nine decimals.
    if fraction.len() > 9 {
        return Err(bad());
    }
    let parts = 10u128.pow(fraction.len() as u32);
    let fraction: u128 = if fraction.is_empty() {
        0
    } else {
        fraction.parse().map_err(|_| bad())?
    };
    let bytes = (u128::from(whole) << shift) + (fraction << shift) / parts;
    u64::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes > 0)
        .ok_or_else(bad)
}

/// Whether a size is a bare number, which counts blocks instead of bytes.
pub fn is_bare(text: &str) -> bool {
    split(text).is_some_and(|(.., suffix)| suffix.is_empty())
}

fn product(count: u64, unit: u64) -> Option<u64> {
    count.checked_mul(unit).filter(|bytes| *bytes > 0)
}

/// Number, decimals, suffix. As in mke2fs, 0x begins a hexadecimal number; a leading zero means octal there and decimal
/// elsewhere, so it is refused.
fn split(text: &str) -> Option<(u64, &str, &str)> {
    if let Some(hex) = text.strip_prefix("0x") {
        let end = hex
            .find(|c: char| !c.is_ascii_hexdigit())
            .unwrap_or(hex.len());
        return Some((u64::from_str_radix(&hex[..end], 16).ok()?, "", &hex[end..]));
    }
    let digits = |text: &str| {
        text.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len())
    };
    let (whole, rest) = text.split_at(digits(text));
    if whole.len() > 1 && whole.starts_with('0') {
        return None;
    }
    let number = whole.parse().ok()?;
    match rest.strip_prefix('.') {
        None => Some((number, "", rest)),
        Some(rest) => {
            let (fraction, suffix) = rest.split_at(digits(rest));
            (!fraction.is_empty()).then_some((number, fraction, suffix))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let size = |text| parse(text, 4096).unwrap();
        for (text, bytes) in [
            ("512", 512 * 4096),
            ("0x10", 16 * 4096),
            ("65536s", 32 << 20),
            ("4M", 4 << 20),
            ("4m", 4 << 20),
            ("64MiB", 64 << 20),
            ("0x4000k", 16 << 20),
            ("0.5G", 1 << 29),
            ("1.5k", 1536),
            ("16777216B", 1 << 24),
        ] {
            assert_eq!(size(text), bytes, "{text}");
        }
        for bad in [
            "",
            "0",
            "M",
            "12X",
            "-1",
            "99999999999T",
            "010M",
            "1.5",
            "1.M",
            ".5G",
            "64MB",
            "4 M",
            "18446744073709551615",
        ] {
            assert!(parse(bad, 4096).is_err(), "{bad}");
        }
        assert!(is_bare("64") && !is_bare("64M"));
    }
}
