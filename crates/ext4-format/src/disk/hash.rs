//! Hashes of names in indexed directories: legacy, half MD4 and TEA, each over signed or unsigned
//! bytes (what `char` was on the machine that made the volume), with the volume's seed.

use super::num::sign_extend;
use super::num::{high32, low32};

/// A hash function as the index root names it (`dx_root_info.hash_version`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashKind {
    /// The original function of ext2.
    Legacy,
    /// MD4 cut to three rounds of eight steps.
    HalfMd4,
    /// Tiny Encryption Algorithm.
    Tea,
    /// SipHash of encrypted, casefolded names: keyed with the encryption key, so not computed here.
    SipHash,
}

impl HashKind {
    /// The function with this number on disk. 3 to 5, the unsigned variants' numbers in memory, are
    /// not valid on disk.
    pub const fn from_disk(version: u8) -> Option<Self> {
        Some(match version {
            0 => Self::Legacy,
            1 => Self::HalfMd4,
            2 => Self::Tea,
            6 => Self::SipHash,
            _ => return None,
        })
    }

    /// Its number on disk.
    pub const fn to_disk(self) -> u8 {
        match self {
            Self::Legacy => 0,
            Self::HalfMd4 => 1,
            Self::Tea => 2,
            Self::SipHash => 6,
        }
    }
}

/// Everything a name's hash depends on besides the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashParams {
    /// The function.
    pub kind: HashKind,
    /// Whether bytes above 127 count as positive.
    pub unsigned: bool,
    /// `s_hash_seed`; all zero means the function's own start value.
    pub seed: [u32; 4],
}

/// A name's hash: `major` orders the index (lowest bit always 0), `minor` breaks ties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NameHash {
    /// The value the index is sorted by.
    pub major: u32,
    /// Second value; 0 with the legacy hash.
    pub minor: u32,
}

/// The largest hash, less one step, is kept free to mean "end of directory".
const END: u32 = 0xFFFF_FFFE;

impl NameHash {
    /// The hash of a name whose keyed hash ([`HashKind::SipHash`]) is this.
    pub const fn of_keyed(hash: u64) -> Self {
        Self::of_words(high32(hash), low32(hash))
    }

    const fn of_words(major: u32, minor: u32) -> Self {
        let even = major & !1;
        Self {
            major: if even == END { END - 2 } else { even },
            minor,
        }
    }
}

impl HashParams {
    /// These parameters with the hash function that an index root names.
    pub const fn with_kind(self, kind: HashKind) -> Self {
        Self { kind, ..self }
    }

    /// Hashes `name`; `None` with [`HashKind::SipHash`], which needs the directory's key.
    pub fn hash(&self, name: &[u8]) -> Option<NameHash> {
        let (major, minor) = match self.kind {
            HashKind::Legacy => (self.legacy(name), 0),
            HashKind::HalfMd4 => {
                let state = self.in_pieces::<8>(name, half_md4);
                (state[1], state[2])
            }
            HashKind::Tea => {
                let state = self.in_pieces::<4>(name, tea);
                (state[0], state[1])
            }
            HashKind::SipHash => return None,
        };
        Some(NameHash::of_words(major, minor))
    }

    fn byte(&self, byte: u8) -> u32 {
        if self.unsigned {
            byte.into()
        } else {
            sign_extend(byte)
        }
    }

    fn legacy(&self, name: &[u8]) -> u32 {
        let mut newest: u32 = 0x12A3_FE2D;
        let mut older: u32 = 0x37AB_E8F9;
        for &byte in name {
            let mixed = newest ^ self.byte(byte).wrapping_mul(7_152_373);
            let sum = older.wrapping_add(mixed);
            older = newest;
            newest = if sum & 0x8000_0000 != 0 {
                sum.wrapping_sub(0x7FFF_FFFF)
            } else {
                sum
            };
        }
        newest << 1
    }

    /// Passes the name in pieces of `WORDS` words to `mix`.
    fn in_pieces<const WORDS: usize>(
        &self,
        name: &[u8],
        mix: fn(&mut [u32; 4], &[u32; WORDS]),
    ) -> [u32; 4] {
        let mut state = if self.seed == [0; 4] {
            [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476]
        } else {
            self.seed
        };
        let mut left = name;
        while !left.is_empty() {
            mix(&mut state, &self.pack(left));
            left = &left[left.len().min(WORDS * 4)..];
        }
        state
    }

    /// The next words of a name: bytes high to low, padded with the remaining length.
    fn pack<const WORDS: usize>(&self, left: &[u8]) -> [u32; WORDS] {
        // A name has at most 255 bytes; only the low byte of a longer length would count twice.
        let len = super::num::low32(super::num::wide(left.len()));
        let half = len | len << 8;
        let pad = half | half << 16;
        let mut words = [pad; WORDS];
        for (word, bytes) in words.iter_mut().zip(left.chunks(4)) {
            *word = bytes
                .iter()
                .fold(pad, |word, &b| self.byte(b).wrapping_add(word << 8));
        }
        words
    }
}

fn half_md4(state: &mut [u32; 4], input: &[u32; 8]) {
    const ROUND2: u32 = 0x5A82_7999;
    const ROUND3: u32 = 0x6ED9_EBA1;
    type Mix = fn(u32, u32, u32) -> u32;
    let choose: Mix = |x, y, z| z ^ (x & (y ^ z));
    let majority: Mix = |x, y, z| (x & y).wrapping_add((x ^ y) & z);
    let parity: Mix = |x, y, z| x ^ y ^ z;
    let rounds: [(Mix, u32, [usize; 8], [u32; 4]); 3] = [
        (choose, 0, [0, 1, 2, 3, 4, 5, 6, 7], [3, 7, 11, 19]),
        (majority, ROUND2, [1, 3, 5, 7, 0, 2, 4, 6], [3, 5, 9, 13]),
        (parity, ROUND3, [3, 7, 2, 6, 1, 5, 0, 4], [3, 9, 11, 15]),
    ];
    let [mut a, mut b, mut c, mut d] = *state;
    for (mix, constant, order, shifts) in rounds {
        for (step, &word) in order.iter().enumerate() {
            let sum = a
                .wrapping_add(mix(b, c, d))
                .wrapping_add(input[word])
                .wrapping_add(constant);
            // The four registers rotate after each step.
            (a, b, c, d) = (d, sum.rotate_left(shifts[step % 4]), b, c);
        }
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(add);
    }
}

fn tea(state: &mut [u32; 4], input: &[u32; 4]) {
    const DELTA: u32 = 0x9E37_79B9;
    let [a, b, c, d] = *input;
    let (mut left, mut right) = (state[0], state[1]);
    let mut sum = 0u32;
    for _ in 0..16 {
        sum = sum.wrapping_add(DELTA);
        left = left.wrapping_add(
            (right << 4).wrapping_add(a) ^ right.wrapping_add(sum) ^ (right >> 5).wrapping_add(b),
        );
        right = right.wrapping_add(
            (left << 4).wrapping_add(c) ^ left.wrapping_add(sum) ^ (left >> 5).wrapping_add(d),
        );
    }
    state[0] = state[0].wrapping_add(left);
    state[1] = state[1].wrapping_add(right);
}

#[cfg(test)]
mod tests;
