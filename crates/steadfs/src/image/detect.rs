//! Detects the format of what is no volume: by magic numbers at the start, further in and at the end.

use super::formats::{
    AVB, BEFORE_A_TABLE, BZIP2, DMG, Format, LZMA, Magic, RAID, START, TEXT, VHD, WITHIN, ZFS,
};

fn search(list: &'static [Magic], bytes: &[u8]) -> Option<&'static Format> {
    let fits = |magic: &&Magic| {
        bytes
            .get(magic.at..)
            .is_some_and(|b| b.starts_with(magic.bytes))
    };
    list.iter().find(fits).map(|magic| &magic.format)
}

/// Recognises a format by its start.
pub(super) fn at_start(head: &[u8]) -> Option<&'static Format> {
    search(START, head)
        .or_else(|| is_bzip2(head).then_some(&BZIP2))
        .or_else(|| is_lzma(head).then_some(&LZMA))
        .or_else(|| is_text(head).then_some(&TEXT))
}

/// Recognises a format that fills the device although its first sector can have a partition table.
pub(super) fn before_a_table(head: &[u8]) -> Option<&'static Format> {
    search(BEFORE_A_TABLE, head)
}

/// Recognises a format by a magic number further in.
pub(super) fn within(head: &[u8]) -> Option<&'static Format> {
    search(WITHIN, head).or_else(|| is_zfs(head).then_some(&ZFS))
}

/// Recognises a format by the end of a device of `size` bytes.
pub(super) fn at_end(tail: &[u8], size: u64) -> Option<&'static Format> {
    let from = size - tail.len() as u64;
    let is_at = |at: Option<u64>, magic: &[u8]| {
        let at = at.and_then(|at| usize::try_from(at.checked_sub(from)?).ok());
        at.and_then(|at| tail.get(at..))
            .is_some_and(|bytes| bytes.starts_with(magic))
    };
    const RAID_MAGIC: &[u8] = b"\xfc\x4e\x2b\xa9";
    // Version 1.0: 8 KiB before the end, at a multiple of 4 KiB. Version 0.90: the last whole 64 KiB.
    let version_1 = (size / 512)
        .checked_sub(16)
        .map(|sector| (sector & !7) * 512);
    let version_0 = (size & !0xFFFF).checked_sub(0x1_0000);
    if is_at(version_1, RAID_MAGIC) || is_at(version_0, RAID_MAGIC) {
        return Some(&RAID);
    }
    [
        (512, &b"conectix"[..], &VHD),
        (512, b"koly", &DMG),
        (64, b"AVBf", &AVB),
    ]
    .into_iter()
    .find(|(before, magic, _)| is_at(size.checked_sub(*before), magic))
    .map(|(_, _, format)| format)
}

fn is_bzip2(head: &[u8]) -> bool {
    head.starts_with(b"BZh") && head.get(4..10) == Some(b"\x31\x41\x59\x26\x53\x59")
}

/// The old form without a magic number: properties, a dictionary size that is a power of two, a length.
fn is_lzma(head: &[u8]) -> bool {
    let Some(header) = head.first_chunk::<13>() else {
        return false;
    };
    let dictionary = u32::from_le_bytes([header[1], header[2], header[3], header[4]]);
    let length = header[5..]
        .iter()
        .rev()
        .fold(0, |n, &byte| n << 8 | u64::from(byte));
    header[0] == 0x5d
        && dictionary.is_power_of_two()
        && dictionary >= 1 << 12
        && (length == u64::MAX || length < 1 << 40)
}

/// An uberblock in the first label.
fn is_zfs(head: &[u8]) -> bool {
    const FIRST: usize = 128 << 10;
    const MAGIC: [u8; 8] = [0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0];
    let blocks = head.get(FIRST..).unwrap_or_default().chunks(1024);
    blocks.into_iter().any(|block| {
        let word = block.first_chunk::<8>();
        word.is_some_and(|word| *word == MAGIC || word.iter().rev().eq(MAGIC.iter()))
    })
}

/// Printable, with lines: a list, a script, a note in place of the file.
fn is_text(head: &[u8]) -> bool {
    const LOOK: usize = 1024;
    let start = &head[..head.len().min(LOOK)];
    let is_plain = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | 0x20..=0x7e | 0x80..);
    start.len() >= 8
        && start.iter().all(is_plain)
        && std::str::from_utf8(start).map_or_else(
            // A character may be cut off at the end of what was looked at.
            |error| error.error_len().is_none(),
            |_| true,
        )
}
