//! Bitmaps in the two bit orders that the format uses. Bits beyond the slice read as 0.

use super::num::wide;

/// Order of the bits in a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Bit 0 is the highest of the first byte: version bitmaps, `valid_map`.
    HighFirst,
    /// Bit 0 is the lowest of the first byte: directories, `nat_bits`.
    LowFirst,
}

const fn bit_position(order: Order, bit: usize) -> (usize, u8) {
    let mask = match order {
        Order::HighFirst => 0x80 >> (bit % 8),
        Order::LowFirst => 1 << (bit % 8),
    };
    (bit / 8, mask)
}

/// Whether a bit is set.
pub fn get(order: Order, map: &[u8], bit: usize) -> bool {
    let (byte, mask) = bit_position(order, bit);
    map.get(byte).is_some_and(|b| b & mask != 0)
}

/// Sets or clears a bit that exists.
pub fn put(order: Order, map: &mut [u8], bit: usize, value: bool) {
    let (byte, mask) = bit_position(order, bit);
    if value {
        map[byte] |= mask;
    } else {
        map[byte] &= !mask;
    }
}

/// Number of set bits.
pub fn count(map: &[u8]) -> u64 {
    map.iter().map(|b| u64::from(b.count_ones())).sum()
}

/// The first bit in `start..end` with this value.
pub fn find(order: Order, map: &[u8], start: usize, end: usize, value: bool) -> Option<usize> {
    debug_assert!(
        wide(end) <= wide(map.len()) * 8,
        "the range ends within the map"
    );
    let skip = if value { 0x00 } else { 0xFF };
    let mut bit = start;
    while bit < end {
        if bit.is_multiple_of(8) && map[bit / 8] == skip {
            bit += 8;
            continue;
        }
        if get(order, map, bit) == value {
            return Some(bit);
        }
        bit += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders() {
        let mut map = [0; 4];
        put(Order::HighFirst, &mut map, 0, true);
        put(Order::LowFirst, &mut map, 8, true);
        assert_eq!(map, [0x80, 1, 0, 0]);
        assert!(get(Order::HighFirst, &map, 0) && get(Order::HighFirst, &map, 15));
        assert!(!get(Order::HighFirst, &map, 1000));
        assert_eq!(count(&map), 2);
        assert_eq!(find(Order::LowFirst, &map, 0, 32, true), Some(7));
        assert_eq!(find(Order::LowFirst, &map, 8, 32, true), Some(8));
        assert_eq!(find(Order::LowFirst, &map, 9, 32, true), None);
        put(Order::LowFirst, &mut map, 8, false);
        assert_eq!(
            find(Order::HighFirst, &[0xFF, 0xFE], 0, 16, false),
            Some(15)
        );
        assert_eq!(map, [0x80, 0, 0, 0]);
    }
}
