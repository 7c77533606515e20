//! UUIDs: text form, time-based UUIDs, and the option of mke2fs.

use uuid::Uuid;

use crate::Timestamp;

/// Seconds from 15 October 1582, the epoch of UUID time stamps, to 1970.
const UUID_EPOCH_SECONDS: i64 = 12_219_292_800;
const TICKS_PER_SECOND: u64 = 10_000_000;
const NANOS_PER_TICK: u32 = 100;

/// Parses the argument of mke2fs's `-U`: a UUID, `clear` or `null` (all zeros), `time` ([`time_uuid`] of `now`) or
/// `random`, which returns `None`: mkfs then chooses a random UUID. Upper and lower case are equal.
///
/// # Errors
/// The text is none of these; returns the message.
pub fn parse_uuid_option(
    text: &str,
    now: Timestamp,
    random: u64,
) -> Result<Option<[u8; 16]>, String> {
    match text.to_ascii_lowercase().as_str() {
        "clear" | "null" => Ok(Some([0; 16])),
        "random" => Ok(None),
        "time" => Ok(Some(time_uuid(now, random))),
        _ => parse_uuid(text)
            .map(Some)
            .ok_or_else(|| format!("'{text}' is not a UUID, clear, random or time")),
    }
}

/// Parses a UUID: 8-4-4-4-12 hexadecimal digits.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    const HYPHENATED: usize = 36;
    let parsed = Uuid::try_parse(text).ok()?;
    // Braces, URNs and digits without hyphens are no UUIDs for mke2fs.
    (text.len() == HYPHENATED).then_some(parsed.into_bytes())
}

/// A UUID of version 1 (RFC 9562): the time in units of 100 ns, and clock sequence and node from `random`. The multicast
/// bit of the node is set, since it is not the address of a network card. Times before 15 October 1582 become that day.
pub fn time_uuid(time: Timestamp, random: u64) -> [u8; 16] {
    const SEQUENCE_BITS: u16 = (1 << 14) - 1;
    const MULTICAST: u8 = 1;
    let seconds = u64::try_from(time.secs.saturating_add(UUID_EPOCH_SECONDS)).unwrap_or(0);
    let subsecond = u64::from(time.nanos / NANOS_PER_TICK);
    let ticks = seconds
        .wrapping_mul(TICKS_PER_SECOND)
        .wrapping_add(subsecond);
    let [high, low, mut node @ ..] = (random >> 2).to_be_bytes();
    node[0] |= MULTICAST;
    let sequence = u16::from_be_bytes([high, low]) & SEQUENCE_BITS;
    let time = uuid::Timestamp::from_gregorian_time(ticks, sequence);
    Uuid::new_v1(time, &node).into_bytes()
}

/// Formats a UUID: 8-4-4-4-12 hexadecimal digits.
pub fn uuid_text(bytes: &[u8; 16]) -> String {
    Uuid::from_bytes(*bytes).hyphenated().to_string()
}

/// A seed that is a function of a UUID: for random numbers that must be equal for equal UUIDs.
pub fn uuid_seed(uuid: [u8; 16]) -> u64 {
    let all = u128::from_be_bytes(uuid);
    (all >> 64) as u64 ^ all as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 9562, appendix A.1.
    #[test]
    fn time_uuid_of_the_example_in_rfc_9562() {
        let time = Timestamp {
            secs: 1_645_557_742,
            nanos: 0,
        };
        let random = 0x33C8_9F6B_DECE_D846 << 2;
        let uuid = time_uuid(time, random);
        let text: String = uuid.iter().map(|byte| format!("{byte:02X}")).collect();
        assert_eq!(text, "C232AB00941411ECB3C89F6BDECED846");
    }

    #[test]
    fn the_words_of_mke2fs_are_parsed() {
        let chosen = |text: &str| parse_uuid_option(text, Timestamp::default(), 0);
        assert_eq!(chosen("clear"), Ok(Some([0; 16])));
        assert_eq!(chosen("NULL"), Ok(Some([0; 16])));
        assert_eq!(chosen("Random"), Ok(None));
        assert_eq!(chosen("time").unwrap().unwrap()[6] >> 4, 1);
        let own = chosen("01234567-89ab-cdef-0123-456789ABCDEF");
        assert_eq!(
            own.unwrap().unwrap(),
            0x0123_4567_89AB_CDEF_0123_4567_89AB_CDEF_u128.to_be_bytes()
        );
        // The last text has groups of the right length in bytes, but not of hexadecimal digits.
        for text in [
            "",
            "0123",
            "01234567-89ab-cdef-0123-456789abcdeg",
            "é123456-89ab-cdef-0123-456789abcdef",
            "0123456789abcdef0123456789abcdef",
            "{01234567-89ab-cdef-0123-456789abcdef}",
            "urn:uuid:01234567-89ab-cdef-0123-456789abcdef",
            "01234567-89ab-cdef-0123456789abcdef-",
        ] {
            assert!(chosen(text).is_err(), "{text}");
        }
    }

    #[test]
    fn text_and_bytes_of_a_uuid() {
        let text = "01234567-89ab-cdef-0123-456789abcdef";
        assert_eq!(uuid_text(&parse_uuid(text).unwrap()), text);
    }

    #[test]
    fn every_time_has_a_uuid() {
        for secs in [i64::MIN, -1, 0, i64::MAX] {
            let uuid = time_uuid(
                Timestamp {
                    secs,
                    nanos: 999_999_999,
                },
                u64::MAX,
            );
            assert_eq!((uuid[6] >> 4, uuid[8] >> 6, uuid[10] & 1), (1, 2, 1));
        }
    }
}
