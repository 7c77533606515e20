//! File content from which its origin can be computed.
//!
//! Every write carries a *fill* number. The byte at file offset `o` of fill `f` is byte `o % 8` of a reversibly mixed
//! word of `f` and `o / 8`. It looks random, no two fills agree over more than a few bytes, and from eight aligned
//! bytes found in a wrong place [`origin`] computes fill and offset. In every fourth fill all words of 64 bytes are the
//! first one, so that volumes that compress have something to compress.

/// Bits of the word number in the mixed word; above them the fill number, above that a magic number.
const WORD_BITS: u32 = 30;
const MARK: u64 = 0x2A7;
const MARK_SHIFT: u32 = 54;
const FILL_MASK: u64 = (1 << (MARK_SHIFT - WORD_BITS)) - 1;
const WORD_MASK: u64 = (1 << WORD_BITS) - 1;

/// Words of which all are the first one, in fills that can be compressed.
const REPEATED_WORDS: u64 = 8;

/// The largest fill number.
pub const FILL_MAX: u32 = FILL_MASK as u32;

/// Mixes a word reversibly so that every input bit reaches every output bit.
const fn mix(word: u64) -> u64 {
    let mut z = word;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Undoes [`mix`].
const fn unmix(word: u64) -> u64 {
    // The multipliers are the inverses of mix's modulo 2^64; a xor-shift by n is undone by
    // repeating it until the shift passes 64.
    let mut z = word;
    z = z ^ (z >> 31) ^ (z >> 62);
    z = z.wrapping_mul(0x3196_42B2_D24D_8EC3);
    z = z ^ (z >> 27) ^ (z >> 54);
    z = z.wrapping_mul(0x96DE_1B17_3F11_9089);
    z ^ (z >> 30) ^ (z >> 60)
}

fn word(fill: u32, index: u64) -> [u8; 8] {
    let index = match fill % 4 {
        3 => index / REPEATED_WORDS * REPEATED_WORDS,
        _ => index,
    };
    mix(MARK << MARK_SHIFT | (u64::from(fill) & FILL_MASK) << WORD_BITS | index & WORD_MASK)
        .to_le_bytes()
}

/// Writes fill `fill` for file offset `offset` over `out`. Fill 0 is all zeros.
pub fn fill_at(fill: u32, offset: u64, out: &mut [u8]) {
    if fill == 0 {
        out.fill(0);
        return;
    }
    let mut done = 0;
    while done < out.len() {
        let at = offset + done as u64;
        let within = (at % 8) as usize;
        let n = (8 - within).min(out.len() - done);
        out[done..done + n].copy_from_slice(&word(fill, at / 8)[within..within + n]);
        done += n;
    }
}

/// `len` bytes of fill `fill` for file offset `offset`.
pub fn bytes(fill: u32, offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    fill_at(fill, offset, &mut out);
    out
}

/// The write that bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Fill number.
    pub fill: u32,
    /// File offset for which the fill made them, modulo 8 GiB; that of the first of equal words.
    pub offset: u64,
}

/// The fill of the eight bytes at the start of `bytes`, if a fill made them.
pub fn origin(bytes: &[u8]) -> Option<Origin> {
    let first: [u8; 8] = bytes.get(..8)?.try_into().ok()?;
    let word = unmix(u64::from_le_bytes(first));
    let fill = (word >> WORD_BITS & FILL_MASK) as u32;
    (word >> MARK_SHIFT == MARK && fill != 0).then_some(Origin {
        fill,
        offset: (word & WORD_MASK) * 8,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixing_is_undone() {
        let mut random = steadfs_rt::Random::new(3);
        for _ in 0..1000 {
            let word = random.next_u64();
            assert_eq!(unmix(mix(word)), word);
        }
    }

    #[test]
    fn pieces_join_to_the_whole() {
        let whole = bytes(5, 0, 100);
        for cut in 0..100 {
            let mut pieces = bytes(5, 0, cut);
            pieces.extend(bytes(5, cut as u64, 100 - cut));
            assert_eq!(pieces, whole);
        }
    }

    #[test]
    fn content_names_its_origin() {
        let at = bytes(77, 8192, 512);
        assert_eq!(
            origin(&at),
            Some(Origin {
                fill: 77,
                offset: 8192
            })
        );
        assert_eq!(origin(&[0; 8]), None);
        assert_eq!(origin(b"short"), None);
        assert_eq!(origin(b"some text in a file"), None);
    }

    #[test]
    fn every_fourth_fill_repeats_its_words() {
        let words = |fill| {
            let bytes = bytes(fill, 4096, 512);
            let words: std::collections::BTreeSet<_> = bytes.chunks(8).collect();
            words.len()
        };
        assert_eq!([words(4), words(5), words(6), words(7)], [64, 64, 64, 8]);
        assert_eq!(
            origin(&bytes(7, 4096 + 56, 8)),
            Some(Origin {
                fill: 7,
                offset: 4096
            })
        );
    }

    #[test]
    fn fill_zero_is_zeros() {
        assert_eq!(bytes(0, 3, 9), [0; 9]);
    }
}
