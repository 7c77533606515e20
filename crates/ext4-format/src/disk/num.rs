//! Conversions between number widths, and little-endian reads and writes in a slice.
#![expect(
    clippy::as_conversions,
    reason = "the one file of disk/ that narrows and widens numbers, each function saying which way"
)]

/// A 32-bit count as an index. Every supported platform has addresses of at least 32 bits.
pub const fn idx(n: u32) -> usize {
    const { assert!(usize::BITS >= 32) };
    n as usize
}

/// An index or length as a 64-bit number.
pub const fn wide(n: usize) -> u64 {
    n as u64
}

/// The low half.
pub const fn low32(n: u64) -> u32 {
    n as u32
}

/// The high half.
pub const fn high32(n: u64) -> u32 {
    (n >> 32) as u32
}

/// The lowest 16 bits.
pub const fn low16(n: u32) -> u16 {
    n as u16
}

/// The high half.
pub const fn high16(n: u32) -> u16 {
    (n >> 16) as u16
}

/// Bits 32 to 47: the high part of a 48-bit block number.
pub const fn mid16(n: u64) -> u16 {
    (n >> 32) as u16
}

/// The lowest 8 bits.
pub const fn low8(n: u32) -> u8 {
    n as u8
}

/// A byte as a signed `char` widened to 32 bits, kept as its two's-complement pattern.
pub const fn sign_extend(byte: u8) -> u32 {
    byte as i8 as i32 as u32
}

/// A 32-bit pattern read as a signed number.
pub const fn as_signed(n: u32) -> i32 {
    n as i32
}

/// The low 32 bits of a signed number, as a pattern.
pub const fn low32_signed(n: i64) -> u32 {
    n as u32
}

/// Two 16-bit halves.
pub const fn join16(high: u16, low: u16) -> u32 {
    (high as u32) << 16 | low as u32
}

/// Two 32-bit halves.
pub const fn join32(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

/// 16-bit word at `at`; the caller has checked the bounds.
pub const fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// 32-bit word at `at`; the caller has checked the bounds.
pub const fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Stores a 16-bit word at `at`.
pub fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// Stores a 32-bit word at `at`.
pub fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}
