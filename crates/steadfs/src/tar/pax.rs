//! pax records: `LENGTH KEY=VALUE\n`, where the length counts all of it.

use steadfs_base::Timestamp;

/// Appends a record.
pub(crate) fn push(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + digits(rest);
    // The length's own digits may make it longer by one digit.
    len = rest + digits(len);
    records.extend(len.to_string().bytes());
    records.push(b' ');
    records.extend(key);
    records.push(b'=');
    records.extend(value);
    records.push(b'\n');
}

fn digits(number: usize) -> usize {
    number.to_string().len()
}

/// A time as pax has it: seconds with a fraction.
pub(crate) fn time_text(time: Timestamp) -> String {
    if time.nanos == 0 {
        return time.secs.to_string();
    }
    // The fraction counts away from zero.
    let (sign, secs, nanos) = match time.secs {
        secs if secs < 0 => ("-", -(i128::from(secs) + 1), 1_000_000_000 - time.nanos),
        secs => ("", secs.into(), time.nanos),
    };
    let text = format!("{sign}{secs}.{nanos:09}");
    text.trim_end_matches('0').to_owned()
}

/// A time as [`time_text`] writes it.
pub(crate) fn time_of_text(text: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?;
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let (secs, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let are_digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if secs.is_empty() || !are_digits(secs) || !are_digits(fraction) {
        return None;
    }
    let nanos: i128 = format!("{fraction:0<9}")[..9].parse().ok()?;
    let total = sign * (secs.parse::<i64>().map(i128::from).ok()? * 1_000_000_000 + nanos);
    Some(Timestamp {
        secs: i64::try_from(total.div_euclid(1_000_000_000)).ok()?,
        nanos: u32::try_from(total.rem_euclid(1_000_000_000)).ok()?,
    })
}

/// The name of an extended attribute in a key, where a `=` would end it; as GNU tar has it.
pub(crate) fn xattr_key(name: &[u8]) -> Vec<u8> {
    let mut key = super::XATTR.as_bytes().to_vec();
    for &byte in name {
        match byte {
            b'%' => key.extend(b"%25"),
            b'=' => key.extend(b"%3D"),
            byte => key.push(byte),
        }
    }
    key
}

/// The name in a key that [`xattr_key`] writes.
pub(crate) fn xattr_name(mut key: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(key.len());
    while let Some((&first, rest)) = key.split_first() {
        let (byte, rest) = match (first, rest) {
            (b'%', [b'2', b'5', rest @ ..]) => (b'%', rest),
            (b'%', [b'3', b'D', rest @ ..]) => (b'=', rest),
            (byte, rest) => (byte, rest),
        };
        name.push(byte);
        key = rest;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_counts_its_own_digits() {
        for len in (0..120).chain([990, 991, 992, 993, 994, 995, 996]) {
            let mut records = Vec::new();
            push(&mut records, b"k", &vec![b'v'; len]);
            let text = String::from_utf8(records).unwrap();
            let (count, _) = text.split_once(' ').unwrap();
            assert_eq!(count.parse(), Ok(text.len()), "{text}");
        }
    }

    #[test]
    fn times_have_their_fraction() {
        let text = |secs, nanos| {
            let time = Timestamp { secs, nanos };
            let text = time_text(time);
            assert_eq!(time_of_text(text.as_bytes()), Some(time));
            text
        };
        assert_eq!(text(5, 0), "5");
        assert_eq!(text(5, 120_000_000), "5.12");
        assert_eq!(text(-1, 0), "-1");
        assert_eq!(text(-1, 750_000_000), "-0.25");
        assert_eq!(text(-3, 999_999_999), "-2.000000001");
    }

    #[test]
    fn keys_of_attributes_are_escaped() {
        assert_eq!(xattr_key(b"user.a=b%c"), b"SCHILY.xattr.user.a%3Db%25c");
        assert_eq!(xattr_name(b"user.a%3Db%25c%41"), b"user.a=b%c%41");
    }
}
