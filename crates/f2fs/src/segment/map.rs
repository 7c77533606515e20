//! Bitmaps: one bit for each of the 512 blocks of a segment, and one for each segment or section.

use crate::disk::SEGMENT_BLOCKS;
use crate::disk::sit::MAP_SIZE;

const WORDS: usize = SEGMENT_BLOCKS as usize / 64;

/// One bit for each block of a segment. Bit 0 is the highest of the first word, as on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockBitmap([u64; WORDS]);

const _: () = assert!(
    MAP_SIZE == WORDS * 8,
    "a bitmap in memory has the size of one on disk"
);

const fn mask(bit: u32) -> u64 {
    1 << (63 - bit % 64)
}

impl BlockBitmap {
    pub const EMPTY: Self = Self([0; WORDS]);
    pub const FULL: Self = Self([u64::MAX; WORDS]);

    /// From the bitmap of a SIT entry.
    pub fn from_disk(bytes: &[u8; MAP_SIZE]) -> Self {
        let mut map = Self::EMPTY;
        for (word, chunk) in map.0.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_be_bytes(chunk.try_into().expect("a chunk of its size"));
        }
        map
    }

    /// As a SIT entry stores it.
    pub fn to_disk(self) -> [u8; MAP_SIZE] {
        let mut bytes = [0; MAP_SIZE];
        for (word, chunk) in self.0.iter().zip(bytes.chunks_exact_mut(8)) {
            chunk.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    pub const fn get(&self, bit: u32) -> bool {
        assert!(bit < SEGMENT_BLOCKS, "a block is within its segment");
        self.0[(bit / 64) as usize] & mask(bit) != 0
    }

    pub const fn set(&mut self, bit: u32) {
        assert!(bit < SEGMENT_BLOCKS, "a block is within its segment");
        self.0[(bit / 64) as usize] |= mask(bit);
    }

    pub const fn clear(&mut self, bit: u32) {
        assert!(bit < SEGMENT_BLOCKS, "a block is within its segment");
        self.0[(bit / 64) as usize] &= !mask(bit);
    }

    /// Number of set bits.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Bits set in either.
    #[must_use]
    pub fn or(mut self, other: Self) -> Self {
        for (a, b) in self.0.iter_mut().zip(other.0) {
            *a |= b;
        }
        self
    }

    /// Bits set in both.
    #[cfg(test)]
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        for (a, b) in self.0.iter_mut().zip(other.0) {
            *a &= b;
        }
        self
    }

    /// Bits that are not set in `other`.
    #[must_use]
    pub fn without(mut self, other: Self) -> Self {
        for (a, b) in self.0.iter_mut().zip(other.0) {
            *a &= !b;
        }
        self
    }

    /// The first clear bit from `from` on.
    pub fn next_clear(&self, from: u32) -> Option<u32> {
        self.find(from, u64::MAX)
    }

    /// The first set bit from `from` on.
    pub fn next_set(&self, from: u32) -> Option<u32> {
        self.find(from, 0)
    }

    fn find(&self, from: u32, flip: u64) -> Option<u32> {
        let mut from = from;
        while from < SEGMENT_BLOCKS {
            let word = (self.0[(from / 64) as usize] ^ flip) << (from % 64);
            if word != 0 {
                let found = from + word.leading_zeros();
                debug_assert!(
                    self.get(found) == (flip == 0),
                    "a search returns a block of the wanted state"
                );
                return Some(found);
            }
            from = (from / 64 + 1) * 64;
        }
        None
    }

    /// Positions of the set bits.
    pub fn ones(&self) -> impl Iterator<Item = u32> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let bit = self.next_set(at)?;
            at = bit + 1;
            Some(bit)
        })
    }
}

/// One bit for each segment or section, with a count of the set ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitSet {
    words: Vec<u64>,
    len: u32,
    ones: u32,
}

impl BitSet {
    pub fn new(len: u32) -> Self {
        Self {
            words: vec![0; len.div_ceil(64) as usize],
            len,
            ones: 0,
        }
    }

    /// Number of set bits.
    pub const fn count(&self) -> u32 {
        self.ones
    }

    pub fn get(&self, bit: u32) -> bool {
        assert!(bit < self.len, "a bit is within its set");
        self.words[(bit / 64) as usize] & (1 << (bit % 64)) != 0
    }

    pub fn put(&mut self, bit: u32, value: bool) {
        assert!(bit < self.len, "a bit is within its set");
        let word = &mut self.words[(bit / 64) as usize];
        let was = *word & (1 << (bit % 64)) != 0;
        if was != value {
            *word ^= 1 << (bit % 64);
            self.ones = if value { self.ones + 1 } else { self.ones - 1 };
            assert!(self.ones <= self.len, "at most all bits are set");
        }
    }

    /// The first set bit in `from..end`.
    pub fn next(&self, from: u32, end: u32) -> Option<u32> {
        let end = end.min(self.len);
        let mut from = from;
        while from < end {
            let word = self.words[(from / 64) as usize] >> (from % 64);
            if word != 0 {
                let bit = from + word.trailing_zeros();
                debug_assert!(bit >= end || self.get(bit), "a search returns a set bit");
                return (bit < end).then_some(bit);
            }
            from = (from / 64 + 1) * 64;
        }
        None
    }

    /// Positions of the set bits.
    pub fn ones(&self) -> impl Iterator<Item = u32> {
        std::iter::successors(self.next(0, self.len), |bit| self.next(bit + 1, self.len))
    }

    /// The first set bit from `from` on; if there is none, the first of all.
    pub fn next_around(&self, from: u32) -> Option<u32> {
        let found = self.next(from, self.len).or_else(|| self.next(0, from));
        debug_assert!(
            found.is_some() == (self.ones > 0),
            "a search of all bits fails only if none is set"
        );
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::bits::{self, Order};

    #[test]
    fn bitmaps_have_the_order_of_the_disk() {
        let mut bytes = [0; MAP_SIZE];
        let mut map = BlockBitmap::EMPTY;
        for bit in [0, 7, 8, 63, 64, 200, 511] {
            bits::put(Order::HighFirst, &mut bytes, bit as usize, true);
            map.set(bit);
        }
        assert_eq!(BlockBitmap::from_disk(&bytes), map);
        assert_eq!(map.to_disk(), bytes);
        assert_eq!(map.count(), 7);
        assert_eq!(map.ones().collect::<Vec<_>>(), [0, 7, 8, 63, 64, 200, 511]);
        assert_eq!(map.next_clear(7), Some(9));
        assert_eq!(map.next_clear(511), None);
        assert_eq!(map.next_set(201), Some(511));
        assert_eq!(BlockBitmap::FULL.next_clear(0), None);
        map.clear(511);
        assert_eq!(map.next_set(201), None);
    }

    #[test]
    fn searches_wrap_around() {
        let mut set = BitSet::new(130);
        assert_eq!(set.next_around(5), None);
        set.put(3, true);
        set.put(129, true);
        set.put(129, true);
        assert_eq!(set.count(), 2);
        assert_eq!(set.ones().collect::<Vec<_>>(), [3, 129]);
        assert_eq!(set.next_around(4), Some(129));
        assert_eq!(set.next(4, 129), None);
        set.put(129, false);
        assert_eq!((set.next_around(4), set.count()), (Some(3), 1));
    }

    #[test]
    fn searches_find_the_next_bit_from_each_position() {
        let mut map = BlockBitmap::EMPTY;
        let mut set = BitSet::new(200);
        let model: Vec<bool> = (0..512).map(|n| n % 7 == 3 || n / 70 == 2).collect();
        for (bit, value) in (0..).zip(&model) {
            if *value {
                map.set(bit);
            }
            if bit < 200 {
                set.put(bit, *value);
            }
        }
        let next = |from: u32, end: u32, value| {
            let mut bits = from..end;
            bits.find(|bit| model[*bit as usize] == value)
        };
        for from in 0..=512 {
            assert_eq!(map.next_set(from), next(from, 512, true), "{from}");
            assert_eq!(map.next_clear(from), next(from, 512, false), "{from}");
        }
        for from in 0..200 {
            for end in [from, from + 1, from + 5, from + 64, 300] {
                let found = set.next(from, end);
                assert_eq!(found, next(from, end.min(200), true), "{from}..{end}");
            }
        }
        let set_bits = model.iter().filter(|value| **value).count();
        assert_eq!(map.count() as usize, set_bits);
        assert!(!map.is_empty() && BlockBitmap::EMPTY.is_empty());
    }

    #[test]
    fn bitmaps_are_joined_and_subtracted() {
        let of = |bits: &[u32]| {
            let mut map = BlockBitmap::EMPTY;
            bits.iter().for_each(|bit| map.set(*bit));
            map
        };
        let (a, b) = (of(&[1, 70, 300]), of(&[70, 301]));
        assert_eq!(a.or(b), of(&[1, 70, 300, 301]));
        assert_eq!(a.and(b), of(&[70]));
        assert_eq!(a.without(b), of(&[1, 300]));
        assert_eq!(b.without(a), of(&[301]));
    }
}
