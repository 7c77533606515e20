//! Zstandard: decompression in bounded memory, and compression to frames that Linux decompresses.
//!
//! A decoder keeps as much output as the frame's window requires, which may be terabytes, and a block of a few
//! bytes can expand to 128 KiB. So a corrupt cluster could exhaust memory. As in Linux, a frame with a larger
//! window than any cluster needs is refused before decoding.

use std::io::Read;

use super::CLUSTER_BYTES_MAX;

const MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

/// Decompresses a frame to `plain` bytes; one byte more indicates that there is more output. `None` if it is
/// corrupt or needs more memory than a cluster.
pub fn decompress(bytes: &[u8], plain: usize) -> Option<Vec<u8>> {
    if window(bytes)? > CLUSTER_BYTES_MAX as u64 {
        return None;
    }
    let decoder = ruzstd::decoding::StreamingDecoder::new(bytes).ok()?;
    let mut out = Vec::with_capacity(plain);
    decoder.take(plain as u64 + 1).read_to_end(&mut out).ok()?;
    Some(out)
}

/// Compresses to a frame whose window is its content: Linux allows no larger one. (The encoder's frames have a window of
/// 128 KiB, also for less content, which the header alone says.) `None`: the encoder's frame is another one than this
/// knows.
pub fn compress(plain: &[u8]) -> Option<Vec<u8>> {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    /// Magic number, descriptor and window.
    const THEIR_HEADER: usize = 6;
    /// One segment, with the content's size in four bytes; no checksum, no dictionary.
    const DESCRIPTOR: u8 = 2 << 6 | 1 << 5;
    let theirs = compress_to_vec(plain, CompressionLevel::Fastest);
    // Their header has a window and nothing else.
    if !theirs.starts_with(&MAGIC) || theirs.get(MAGIC.len()) != Some(&0) {
        return None;
    }
    let mut frame = MAGIC.to_vec();
    frame.push(DESCRIPTOR);
    frame.extend_from_slice(&(plain.len() as u32).to_le_bytes());
    frame.extend_from_slice(theirs.get(THEIR_HEADER..)?);
    Some(frame)
}

/// The window size that a frame requires (RFC 8878, 3.1.1.1).
fn window(frame: &[u8]) -> Option<u64> {
    let rest = frame.strip_prefix(&MAGIC)?;
    let (&flags, rest) = rest.split_first()?;
    let single_segment = flags & 0x20 != 0;
    if !single_segment {
        let (exponent, mantissa) = (rest.first()? >> 3, rest.first()? & 7);
        let base = 1u64 << (10 + exponent);
        return Some(base + base / 8 * u64::from(mantissa));
    }
    // Single segment: the window is the content.
    let dictionary = [0, 1, 2, 4][usize::from(flags & 3)];
    let field = rest.get(dictionary..)?;
    let len = 1 << (flags >> 6);
    let mut size = [0; 8];
    size[..len].copy_from_slice(field.get(..len)?);
    let size = u64::from_le_bytes(size);
    Some(if len == 2 { size + 256 } else { size })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: usize = 16 << 10;

    /// A frame with this header, of blocks that each expand to one byte repeated `size` times.
    fn repeating(header: &[u8], size: u32, blocks: usize) -> Vec<u8> {
        let mut frame = [&MAGIC, header].concat();
        for n in 1..=blocks {
            let last = u32::from(n == blocks);
            let block = size << 3 | 1 << 1 | last;
            frame.extend(&block.to_le_bytes()[..3]);
            frame.push(7);
        }
        frame
    }

    #[test]
    fn windows_match_headers() {
        for (header, wanted) in [
            (&[0x00, 0x00][..], 1 << 10),
            (&[0x00, 0xFF], (1 << 41) + 7 * (1 << 38)),
            (&[0x00, 0x53], (1 << 20) + 3 * (1 << 17)),
            (&[0x20, 9], 9),
            (&[0x61, 0, 1, 0], 257),
            (&[0xA0, 0, 0, 1, 0], 1 << 16),
            (&[0xE2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80], 1 << 63),
        ] {
            assert_eq!(window(&[&MAGIC, header].concat()), Some(wanted));
            assert_eq!(window(&[&MAGIC, &header[..1]].concat()), None);
        }
        assert_eq!(window(b"anything else"), None);
    }

    #[test]
    fn frames_up_to_the_largest_cluster_decode() {
        let wanted = Some(vec![7; PLAIN]);
        let size = PLAIN as u32 / 4;
        for header in [&[0x00, 0x20][..], &[0x00, 0x50], &[0xA0, 0, 0x40, 0, 0]] {
            assert!(decompress(&repeating(header, size, 4), PLAIN) == wanted);
        }
    }

    #[test]
    fn frames_have_the_window_of_their_content() {
        let text: Vec<u8> = (0..300_000_u32)
            .flat_map(|n| (n / 7 % 1000).to_le_bytes())
            .collect();
        for len in [4096, PLAIN, 1 << 17, 1 << 20] {
            let frame = compress(&text[..len]).expect("the frames are those it knows");
            assert_eq!(window(&frame), Some(len as u64));
            assert!(frame.len() < len / 2);
            assert!(decompress(&frame, len).as_deref() == Some(&text[..len]));
        }
    }

    /// Each would expand to 256 MiB; a megabyte of such blocks to 32 GiB.
    #[test]
    fn a_frame_cannot_exceed_the_memory_limit() {
        let size = 128 << 10;
        for header in [
            &[0x00, 0xFF][..],
            &[0x00, 0x90],
            &[0x00, 0x51],
            &[0xE0, 0, 0, 0, 0, 0, 1, 0, 0],
        ] {
            let frame = repeating(header, size, 2048);
            assert!(decompress(&frame, PLAIN).is_none());
        }
        // A window within the limit ends it early.
        let frame = repeating(&[0x00, 0x50], size, 2048);
        assert!(decompress(&frame, PLAIN) == Some(vec![7; PLAIN + 1]));
    }
}
