//! LZO1X decompression, with and without run-length encoding, as the kernel's Documentation/staging/lzo.rst
//! describes the stream.
//!
//! An instruction copies bytes from the output so far (or emits zeros, in version 1), then up to three literals.
//! The meaning of an instruction below 16 depends on the number of literals before it.

/// State after a long run of literals.
const LONG_RUN: u8 = 4;
/// Distance of the end instruction.
const END: usize = 16384;

struct Stream<'a> {
    input: &'a [u8],
    out: Vec<u8>,
    limit: usize,
}

impl Stream<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.input.split_first()?;
        self.input = rest;
        Some(*first)
    }

    fn word(&mut self) -> Option<usize> {
        Some(usize::from(u16::from_le_bytes([
            self.byte()?,
            self.byte()?,
        ])))
    }

    /// Decodes a length that has the bits `all` in the instruction. If they are 0 the length continues in bytes;
    /// each zero byte adds 255.
    fn length(&mut self, bits: u8, all: u8) -> Option<usize> {
        if bits != 0 {
            return Some(bits.into());
        }
        let mut length = usize::from(all);
        loop {
            match self.byte()? {
                0 => length += 255,
                last => return Some(length + usize::from(last)),
            }
            if length > self.limit {
                return None;
            }
        }
    }

    fn literals(&mut self, count: usize) -> Option<()> {
        if self.out.len() + count > self.limit {
            return None;
        }
        let (now, rest) = self.input.split_at_checked(count)?;
        self.out.extend_from_slice(now);
        self.input = rest;
        Some(())
    }

    fn copy(&mut self, distance: usize, count: usize) -> Option<()> {
        let start = self.out.len().checked_sub(distance)?;
        if self.out.len() + count > self.limit {
            return None;
        }
        if distance >= count {
            self.out.extend_from_within(start..start + count);
        } else {
            // Source and destination overlap: the pattern repeats.
            for at in start..start + count {
                self.out.push(self.out[at]);
            }
        }
        Some(())
    }

    fn zeros(&mut self, count: usize) -> Option<()> {
        if self.out.len() + count > self.limit {
            return None;
        }
        self.out.resize(self.out.len() + count, 0);
        Some(())
    }
}

/// Decompresses a stream to at most `limit` bytes; `None` if it is corrupt or longer.
pub(super) fn decompress(input: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut stream = Stream {
        input,
        out: Vec::with_capacity(limit),
        limit,
    };
    let mut runs = false;
    if input.len() >= 5 && input[0] == 17 {
        runs = input[1] != 0;
        stream.input = &input[2..];
    }
    let mut before = 0;
    if let Some(first @ 18..) = stream.input.first().copied() {
        stream.byte();
        let count = first - 17;
        stream.literals(count.into())?;
        before = count.min(LONG_RUN);
    }
    loop {
        let code = stream.byte()?;
        let literals = match code {
            0..=15 => match low_code(&mut stream, code, before)? {
                None => {
                    before = LONG_RUN;
                    continue;
                }
                Some(literals) => literals,
            },
            16..=31 => match far_code(&mut stream, code, runs)? {
                // Only the end instruction has length 3 at this distance.
                None => return (code & 7 == 1 && stream.input.is_empty()).then_some(stream.out),
                Some(literals) => literals,
            },
            32..=63 => {
                let count = 2 + stream.length(code & 31, 31)?;
                let word = stream.word()?;
                stream.copy((word >> 2) + 1, count)?;
                (word & 3) as u8
            }
            64..=255 => {
                let count = if code < 128 {
                    3 + (code >> 5 & 1)
                } else {
                    5 + (code >> 5 & 3)
                };
                let high = usize::from(stream.byte()?);
                stream.copy((high << 3) + usize::from(code >> 2 & 7) + 1, count.into())?;
                code & 3
            }
        };
        stream.literals(literals.into())?;
        before = literals;
    }
}

/// An instruction from 0 to 15: a long run of literals (`None`), or a short copy and the number of literals after
/// it.
fn low_code(stream: &mut Stream<'_>, code: u8, before: u8) -> Option<Option<u8>> {
    if before == 0 {
        let count = 3 + stream.length(code, 15)?;
        stream.literals(count)?;
        return Some(None);
    }
    let near = (usize::from(stream.byte()?) << 2) + usize::from(code >> 2);
    if before == LONG_RUN {
        stream.copy(near + 2049, 3)?;
    } else {
        stream.copy(near + 1, 2)?;
    }
    Some(Some(code & 3))
}

/// An instruction from 16 to 31: a far copy or a run of zeros, and the number of literals after it; `None` for the
/// end.
fn far_code(stream: &mut Stream<'_>, code: u8, runs: bool) -> Option<Option<u8>> {
    if runs && code & 8 != 0 && stream.input.len() >= 3 {
        let word = u16::from_le_bytes([stream.input[0], stream.input[1]]);
        if word & 0xFFFC == 0xFFFC {
            stream.word()?;
            let count = (usize::from(stream.byte()?) << 3 | usize::from(code & 7)) + 4;
            stream.zeros(count)?;
            return Some(Some((word & 3) as u8));
        }
    }
    let count = 2 + stream.length(code & 7, 7)?;
    let word = stream.word()?;
    let distance = END + (usize::from(code & 8) << 11) + (word >> 2);
    if distance == END {
        return Some(None);
    }
    stream.copy(distance, count)?;
    Some(Some((word & 3) as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_copies_and_the_end() {
        // 4 literals, then 8 bytes from distance 4 (an overlapping copy), then the end.
        let stream = [17 + 4, b'a', b'b', b'c', b'd', 0b1110_1100, 0, 17, 0, 0];
        assert_eq!(decompress(&stream, 12).unwrap(), b"abcdabcdabcd");
        assert_eq!(decompress(&stream, 11), None, "more than wanted");
        for cut in 0..stream.len() {
            assert_eq!(decompress(&stream[..cut], 12), None);
        }
        assert_eq!(decompress(&[&stream[..], &[0]].concat(), 12), None);
    }

    #[test]
    fn runs_of_zeros() {
        // Version 1: a literal, then 4 + 8 * 2 + 3 zeros.
        let stream = [17, 1, 18, b'x', 0b0001_1011, 0xFC, 0xFF, 2, 17, 0, 0];
        let out = decompress(&stream, 64).unwrap();
        assert_eq!(out[0], b'x');
        assert_eq!(out[1..], [0; 23]);
    }

    #[test]
    fn nothing_panics() {
        let mut seed = 1u32;
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..24)
                .map(|_| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (seed >> 24) as u8
                })
                .collect();
            if let Some(out) = decompress(&bytes, 4096) {
                assert!(out.len() <= 4096);
            }
        }
    }
}
