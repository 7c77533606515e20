//! Conversions between widths of numbers, and little-endian access in slices.
#![expect(
    clippy::as_conversions,
    reason = "the only file of disk/ with numeric casts; the name of each function states the conversion"
)]

/// A 32-bit count as an index. All supported platforms have addresses of at least 32 bits.
pub(crate) const fn idx(n: u32) -> usize {
    const { assert!(usize::BITS >= 32) };
    n as usize
}

/// A 16-bit count as an index.
pub(crate) const fn idx16(n: u16) -> usize {
    n as usize
}

/// An index or length as a 64-bit number.
pub(crate) const fn wide(n: usize) -> u64 {
    n as u64
}

/// An index or length within a block as a 32-bit number.
pub(crate) const fn short(n: usize) -> u32 {
    n as u32
}

/// The low 32 bits.
pub(crate) const fn low32(n: u64) -> u32 {
    n as u32
}

/// The low 16 bits.
pub(crate) const fn low16(n: u32) -> u16 {
    n as u16
}

/// A 64-bit pattern read as a signed number.
pub(crate) const fn as_signed64(n: u64) -> i64 {
    n as i64
}

/// A signed number as a 64-bit pattern.
pub(crate) const fn as_unsigned64(n: i64) -> u64 {
    n as u64
}

/// Joins two 32-bit halves.
pub(crate) const fn join32(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

/// The 32-bit word at `at`; the caller has checked the bounds.
pub(crate) const fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Stores a 32-bit word at `at`.
pub(crate) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}
