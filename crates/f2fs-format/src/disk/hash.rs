//! Name hashes and the hash table of a directory: 2^n buckets on level n, each of two blocks (four from level 31
//! on); the levels follow each other in the directory's file.

use super::num::{low32, wide};

/// The highest number of levels (`MAX_DIR_HASH_DEPTH`).
pub const MAX_DEPTH: u32 = 63;
/// From this level on, tables do not grow and buckets have four blocks.
const WIDE_LEVEL: u32 = MAX_DEPTH / 2;

const START: [u32; 2] = [0x6745_2301, 0xEFCD_AB89];
const GOLDEN: u32 = 0x9E37_79B9;
const CHUNK: usize = 16;

/// Longest folded form of a name in a case-insensitive directory, in bytes, as in Linux: names with a longer one, or with
/// none at all, are hashed and compared by their bytes.
pub const FOLDED_MAX: usize = 254;

/// The hash of a name; 0 for `.` and `..`.
pub fn of_name(name: &[u8]) -> u32 {
    if name == b"." || name == b".." {
        return 0;
    }
    let mut state = START;
    let mut rest = name;
    loop {
        mix(&mut state, words(rest));
        if rest.len() <= CHUNK {
            return state[0];
        }
        rest = &rest[CHUNK..];
    }
}

/// The next 16 bytes as big-endian words; missing bytes are filled with the remaining length.
fn words(rest: &[u8]) -> [u32; 4] {
    let length = low32(wide(rest.len()));
    let pair = length | length << 8;
    let pad = pair | pair << 16;
    let mut out = [pad; 4];
    for (word, bytes) in out.iter_mut().zip(rest.chunks(4)) {
        *word = bytes.iter().fold(pad, |word, &b| word << 8 | u32::from(b));
    }
    out
}

/// 16 rounds of the Tiny Encryption Algorithm with the words as key, added to the state.
fn mix(state: &mut [u32; 2], key: [u32; 4]) {
    let [mut left, mut right] = *state;
    let mut sum = 0u32;
    let half = |value: u32, sum: u32, key: [u32; 2]| {
        (value << 4).wrapping_add(key[0])
            ^ value.wrapping_add(sum)
            ^ (value >> 5).wrapping_add(key[1])
    };
    for _ in 0..16 {
        sum = sum.wrapping_add(GOLDEN);
        left = left.wrapping_add(half(right, sum, [key[0], key[1]]));
        right = right.wrapping_add(half(left, sum, [key[2], key[3]]));
    }
    *state = [state[0].wrapping_add(left), state[1].wrapping_add(right)];
}

/// Number of buckets on a level of a directory with this `dir_level`.
pub const fn buckets(level: u32, dir_level: u8) -> u32 {
    let sum = level + widen(dir_level);
    if sum < WIDE_LEVEL {
        1 << sum
    } else {
        1 << (WIDE_LEVEL - 1)
    }
}

/// Blocks in a bucket of a level.
pub const fn bucket_blocks(level: u32) -> u32 {
    if level < WIDE_LEVEL { 2 } else { 4 }
}

/// The first block of a level in the directory's file.
pub fn level_start(level: u32, dir_level: u8) -> u64 {
    (0..level)
        .map(|l| u64::from(buckets(l, dir_level)) * u64::from(bucket_blocks(l)))
        .sum()
}

/// The blocks of the bucket that holds a name with this hash, if it is on this level.
pub fn bucket(level: u32, dir_level: u8, hash: u32) -> std::ops::Range<u64> {
    let number = hash % buckets(level, dir_level);
    let blocks = u64::from(bucket_blocks(level));
    let start = level_start(level, dir_level) + u64::from(number) * blocks;
    start..start + blocks
}

const fn widen(n: u8) -> u32 {
    u32::from_le_bytes([n, 0, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels() {
        assert_eq!(level_start(0, 0), 0);
        assert_eq!(level_start(3, 0), 2 + 4 + 8);
        assert_eq!(level_start(1, 2), 8);
        assert_eq!(bucket(1, 0, 5), 4..6);
        assert_eq!(buckets(62, 255), 1 << 30);
        assert_eq!(bucket_blocks(31), 4);
        assert!(level_start(MAX_DEPTH, 0) < 1 << 38);
    }
}
