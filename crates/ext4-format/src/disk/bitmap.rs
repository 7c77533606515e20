//! Bitmaps: bit `n` is bit `n % 8` of byte `n / 8`, set where a block or inode is in use. Searches
//! and counts work on 64-bit words.
//!
//! Bit numbers and ranges are 32 bits (a group has at most 524 288). A range beyond the bitmap's end
//! is the caller's mistake and panics.

use std::ops::Range;

use super::num::{idx, low32, wide};

const WORD_BITS: u32 = u64::BITS;

/// The word that holds bit `bit`, its bytes beyond the bitmap's end zero.
fn word_at(bitmap: &[u8], word: u32) -> u64 {
    let start = idx(word) * 8;
    match bitmap[start..].first_chunk::<8>() {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => {
            let mut bytes = [0; 8];
            bytes[..bitmap.len() - start].copy_from_slice(&bitmap[start..]);
            u64::from_le_bytes(bytes)
        }
    }
}

fn check(bitmap: &[u8], range: &Range<u32>) {
    assert!(
        u64::from(range.end) <= wide(bitmap.len()) * 8,
        "bit range beyond the bitmap"
    );
}

/// Bits `from..to` of a word (`from < 64`, `from < to <= 64`).
const fn mask(from: u32, to: u32) -> u64 {
    (u64::MAX >> (WORD_BITS - (to - from))) << from
}

/// Calls `visit` with each word that `range` touches and the mask of its bits in the range, until
/// `visit` returns a result.
fn words<R>(
    bitmap: &[u8],
    range: Range<u32>,
    mut visit: impl FnMut(u32, u64, u64) -> Option<R>,
) -> Option<R> {
    check(bitmap, &range);
    let mut at = range.start;
    while at < range.end {
        let base = at / WORD_BITS * WORD_BITS;
        let end = (base + WORD_BITS).min(range.end);
        let found = visit(
            base,
            word_at(bitmap, base / WORD_BITS),
            mask(at - base, end - base),
        );
        if found.is_some() {
            return found;
        }
        at = end;
    }
    None
}

/// Whether bit `n` is set.
pub fn test(bitmap: &[u8], n: u32) -> bool {
    bitmap[idx(n / 8)] & (1 << (n % 8)) != 0
}

/// Sets bit `n`; returns whether it was set before.
pub fn set(bitmap: &mut [u8], n: u32) -> bool {
    let byte = &mut bitmap[idx(n / 8)];
    let before = *byte & (1 << (n % 8)) != 0;
    *byte |= 1 << (n % 8);
    before
}

/// Clears bit `n`; returns whether it was set before.
pub fn clear(bitmap: &mut [u8], n: u32) -> bool {
    let byte = &mut bitmap[idx(n / 8)];
    let before = *byte & (1 << (n % 8)) != 0;
    *byte &= !(1 << (n % 8));
    before
}

/// First clear bit in `range`.
pub fn find_next_zero(bitmap: &[u8], range: Range<u32>) -> Option<u32> {
    check(bitmap, &range);
    let full = full_words(bitmap, range.start / WORD_BITS, range.end / WORD_BITS);
    let start = range.start.max(full * WORD_BITS);
    words(bitmap, start..range.end, |base, word, mask| {
        let free = !word & mask;
        (free != 0).then(|| base + free.trailing_zeros())
    })
}

/// The end of the words that are all ones, of the words `from..to`: inodes of files are mostly allocated after those in
/// use.
fn full_words(bitmap: &[u8], from: u32, to: u32) -> u32 {
    let (words, _) = bitmap.as_chunks::<8>();
    let row = words.iter().take(idx(to)).skip(idx(from));
    from + low32(wide(row.take_while(|word| **word == [0xff; 8]).count()))
}

/// First set bit in `range`.
pub fn find_next_set(bitmap: &[u8], range: Range<u32>) -> Option<u32> {
    words(bitmap, range, |base, word, mask| {
        let used = word & mask;
        (used != 0).then(|| base + used.trailing_zeros())
    })
}

/// Number of set bits in `range`.
pub fn count_ones(bitmap: &[u8], range: Range<u32>) -> u32 {
    let mut count = 0;
    words(bitmap, range, |_, word, mask| {
        count += (word & mask).count_ones();
        None::<()>
    });
    count
}

/// Number of clear bits in `range`.
pub fn count_zeros(bitmap: &[u8], range: Range<u32>) -> u32 {
    let len = range.end.saturating_sub(range.start);
    len - count_ones(bitmap, range)
}

/// Whether every bit in `range` is clear.
pub fn all_zero(bitmap: &[u8], range: Range<u32>) -> bool {
    find_next_set(bitmap, range).is_none()
}

/// Whether every bit in `range` is set.
pub fn all_set(bitmap: &[u8], range: Range<u32>) -> bool {
    find_next_zero(bitmap, range).is_none()
}

/// Splits `range` into the bits before the first whole byte, the whole bytes, and the bits after.
fn by_bytes(range: Range<u32>) -> (Range<u32>, Range<usize>, Range<u32>) {
    let first = range.start.div_ceil(8);
    let last = range.end / 8;
    if first >= last {
        return (range.clone(), 0..0, range.end..range.end);
    }
    (
        range.start..first * 8,
        idx(first)..idx(last),
        last * 8..range.end,
    )
}

/// Sets every bit in `range`.
pub fn set_range(bitmap: &mut [u8], range: Range<u32>) {
    check(bitmap, &range);
    let (head, bytes, tail) = by_bytes(range);
    for n in head.chain(tail) {
        set(bitmap, n);
    }
    bitmap[bytes].fill(0xFF);
}

/// Clears every bit in `range`.
pub fn clear_range(bitmap: &mut [u8], range: Range<u32>) {
    check(bitmap, &range);
    let (head, bytes, tail) = by_bytes(range);
    for n in head.chain(tail) {
        clear(bitmap, n);
    }
    bitmap[bytes].fill(0);
}

/// The maximal runs of clear bits in `range`, in order.
pub fn zero_runs(bitmap: &[u8], range: Range<u32>) -> impl Iterator<Item = Range<u32>> {
    check(bitmap, &range);
    let Range { mut start, end } = range;
    std::iter::from_fn(move || {
        let first = find_next_zero(bitmap, start..end)?;
        let after = find_next_set(bitmap, first..end).unwrap_or(end);
        start = after;
        Some(first..after)
    })
}

/// The first run of at least `len` clear bits in `range`: the whole run. `len` is at least 1.
pub fn find_zero_run(bitmap: &[u8], range: Range<u32>, len: u32) -> Option<Range<u32>> {
    assert!(len > 0, "a run has a length");
    zero_runs(bitmap, range).find(|run| run.end - run.start >= len)
}

/// Calls `visit` with the first bit of each 64-bit word and the bits in which two bitmaps of one
/// length differ, for every word in `range` where they do.
pub fn differences(a: &[u8], b: &[u8], range: Range<u32>, mut visit: impl FnMut(u32, u64)) {
    check(b, &range);
    words(a, range, |base, word, mask| {
        let differ = (word ^ word_at(b, base / WORD_BITS)) & mask;
        if differ != 0 {
            visit(base, differ);
        }
        None::<()>
    });
}

/// Bits in a bitmap of `bytes` bytes.
pub const fn bits_in(bytes: usize) -> u32 {
    low32(wide(bytes) * 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_one_bit_at_a_time(
            bytes in proptest::collection::vec(prop_oneof![Just(0u8), Just(0xFF), any::<u8>()], 1..40),
            a: u32,
            b: u32,
            len in 1u32..80,
        ) {
            let bits = bits_in(bytes.len());
            let (a, b) = (a % (bits + 1), b % (bits + 1));
            let range = a.min(b)..a.max(b);
            let naive = |want: bool| range.clone().find(|&n| test(&bytes, n) == want);
            prop_assert_eq!(find_next_zero(&bytes, range.clone()), naive(false));
            prop_assert_eq!(find_next_set(&bytes, range.clone()), naive(true));
            let ones = range.clone().filter(|&n| test(&bytes, n)).count();
            prop_assert_eq!(idx(count_ones(&bytes, range.clone())), ones);
            prop_assert_eq!(idx(count_zeros(&bytes, range.clone())), range.len() - ones);

            let mut free: Vec<u32> = zero_runs(&bytes, range.clone()).flatten().collect();
            prop_assert_eq!(&free, &range.clone().filter(|&n| !test(&bytes, n)).collect::<Vec<_>>());
            free.dedup();
            if let Some(run) = find_zero_run(&bytes, range.clone(), len) {
                prop_assert!(run.end - run.start >= len);
                prop_assert!(all_zero(&bytes, run));
            }

            let mut changed = bytes.clone();
            set_range(&mut changed, range.clone());
            prop_assert!(all_set(&changed, range.clone()));
            let mut differing = 0;
            differences(&bytes, &changed, 0..bits, |_, bits| differing += bits.count_ones());
            prop_assert_eq!(idx(differing), range.len() - ones);
            clear_range(&mut changed, range.clone());
            prop_assert!(all_zero(&changed, range.clone()));
            for n in (0..bits).filter(|n| !range.contains(n)) {
                prop_assert_eq!(test(&changed, n), test(&bytes, n));
            }
        }
    }

    #[test]
    fn one_bit() {
        let mut bytes = [0; 3];
        assert!(!set(&mut bytes, 17));
        assert!(set(&mut bytes, 17));
        assert_eq!(bytes, [0, 0, 2]);
        assert!(clear(&mut bytes, 17));
        assert!(!clear(&mut bytes, 17));
    }
}
