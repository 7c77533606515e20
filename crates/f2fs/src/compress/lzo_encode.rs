//! LZO1X compression: a stream without run-length encoding, which every LZO1X decoder reads (see [`super::lzo`]).
//!
//! Repetitions are found by a table of the last position of each hash of four bytes. A match is written as the
//! shortest instruction that reaches it; up to three literals after it go into its two low bits.

/// Shortest repetition that is looked for.
const MATCH_MIN: usize = 4;
const TABLE_BITS: u32 = 13;
/// Farthest distance of a match with up to 8 bytes (two bytes), of one with any length (three bytes), and of all.
const NEAR: usize = 2048;
const MIDDLE: usize = 16_384;
const FAR: usize = 49_151;
/// Distance that the instruction for far matches begins with; it alone, with length 3, is the end.
const FAR_FROM: usize = 16_384;

struct Encoder {
    out: Vec<u8>,
    /// Where the last match put the number of literals after it; none at the beginning.
    low_bits: Option<usize>,
}

impl Encoder {
    /// A length that does not fit its instruction: 255 for each zero byte, then the rest.
    fn long(&mut self, mut length: usize) {
        while length > 255 {
            self.out.push(0);
            length -= 255;
        }
        self.out.push(length as u8);
    }

    fn literals(&mut self, bytes: &[u8]) {
        let count = bytes.len();
        match (count, self.low_bits) {
            (0, _) => return,
            (1..=3, Some(at)) => self.out[at] |= count as u8,
            // Only at the beginning of a stream.
            (1..=238, None) => self.out.push(17 + count as u8),
            (4..=18, Some(_)) => self.out.push(count as u8 - 3),
            _ => {
                self.out.push(0);
                self.long(count - 18);
            }
        }
        self.out.extend_from_slice(bytes);
    }

    /// A copy of `length` bytes, at least [`MATCH_MIN`], from this distance.
    fn copy(&mut self, distance: usize, length: usize) {
        if length <= 8 && distance <= NEAR {
            let back = distance - 1;
            self.out.push(((length - 1) << 5 | (back & 7) << 2) as u8);
            self.low_bits = Some(self.out.len() - 1);
            self.out.push((back >> 3) as u8);
            return;
        }
        let (code, most, back) = if distance <= MIDDLE {
            (32, 33, distance - 1)
        } else {
            let back = distance - FAR_FROM;
            (16 | (back >> 14 & 1) << 3, 9, back & 0x3FFF)
        };
        if length <= most {
            self.out.push((code | (length - 2)) as u8);
        } else {
            self.out.push(code as u8);
            self.long(length - most);
        }
        self.low_bits = Some(self.out.len());
        self.out
            .extend_from_slice(&((back << 2) as u16).to_le_bytes());
    }
}

/// Compresses `input`; the result may be longer.
pub(super) fn compress(input: &[u8]) -> Vec<u8> {
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| input[at + i]));
    let hash = |word: u32| (word.wrapping_mul(0x9E37_79B1) >> (32 - TABLE_BITS)) as usize;
    // Positions by hash, each plus one.
    let mut table = vec![0_u32; 1 << TABLE_BITS];
    let mut encoder = Encoder {
        out: Vec::with_capacity(input.len()),
        low_bits: None,
    };
    let (mut at, mut done) = (0, 0);
    let mut misses = 0;
    while at + MATCH_MIN <= input.len() {
        let here = word(at);
        let before = std::mem::replace(&mut table[hash(here)], at as u32 + 1) as usize;
        let found = before
            .checked_sub(1)
            .filter(|&from| at - from <= FAR && word(from) == here);
        let Some(from) = found else {
            // Where nothing repeats, fewer positions are tried.
            misses += 1;
            at += 1 + (misses >> 6);
            continue;
        };
        misses = 0;
        let same = |n: &usize| input[from + n] == input[at + n];
        let length = (MATCH_MIN..input.len() - at).take_while(same).count() + MATCH_MIN;
        encoder.literals(&input[done..at]);
        encoder.copy(at - from, length);
        at += length;
        done = at;
    }
    encoder.literals(&input[done..]);
    encoder.out.extend_from_slice(&[17, 0, 0]);
    encoder.out
}

#[cfg(test)]
mod tests {
    use super::super::lzo::decompress;
    use super::compress;

    fn round(input: &[u8]) -> usize {
        let packed = compress(input);
        let plain = decompress(&packed, input.len());
        assert!(plain.as_deref() == Some(input), "{} bytes", input.len());
        packed.len()
    }

    #[test]
    fn what_is_compressed_comes_back() {
        let mut seed = 7_u32;
        let mut random = move || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed >> 8
        };
        for len in (1..600).chain([4096, 16_384, 70_000, 1 << 20]) {
            let noise: Vec<u8> = (0..len).map(|_| random() as u8).collect();
            round(&noise);
            let few: Vec<u8> = (0..len).map(|_| random() as u8 & 1).collect();
            round(&few);
            let zeros = vec![0; len];
            assert!(round(&zeros) <= len / 200 + 20);
        }
        // Repetitions at every distance, with every number of literals between them.
        for distance in [
            5, 2047, 2048, 2049, 16_383, 16_384, 16_385, 32_768, 49_151, 49_152,
        ] {
            for length in [4, 8, 9, 33, 34, 300] {
                for between in [0, 1, 3, 4, 18, 19, 300] {
                    let mut input: Vec<u8> = (0..distance).map(|_| random() as u8).collect();
                    for _ in 0..3 {
                        let start = input.len() - distance;
                        input.extend_from_within(start..start + length.min(distance));
                        input.extend((0..between).map(|_| random() as u8));
                    }
                    round(&input);
                }
            }
        }
    }
}
