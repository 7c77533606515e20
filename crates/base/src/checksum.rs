//! Checksums of the on-disk formats.

/// CRC-32C (Castagnoli) continued from `seed`, without the inversions at start and end: ext4 and jbd2 store the raw
/// register (Linux `crc32c()`, e2fsprogs `ext2fs_crc32c_le()`).
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    // The library inverts at start and end; undo both.
    !crc32c::crc32c_append(!seed, bytes)
}

/// CRC-32 (polynomial 0x04C11DB7, reflected 0xEDB88320) continued from `seed`, without the inversions at start and end,
/// as f2fs stores it (Linux `crc32_le()`).
pub fn crc32_le(seed: u32, bytes: &[u8]) -> u32 {
    // The library inverts at start and end; undo both.
    let mut hasher = crc32fast::Hasher::new_with_initial(!seed);
    hasher.update(bytes);
    !hasher.finalize()
}

/// The four bytes between `before` and `after` with which [`crc32c`] of all three is `target`. A CRC is linear, so they
/// exist and are unique.
pub fn crc32c_filler<const AFTER: usize>(
    seed: u32,
    before: &[u8],
    after: &[u8; AFTER],
    target: u32,
) -> [u8; 4] {
    let with_zeros = crc32c(crc32c(crc32c(seed, before), &[0; 4]), after);
    // Four bytes change the register like an XOR with them before four zero bytes. So the difference at the end, traced
    // back through the zero bits from there, is the filler.
    let back = const { bits_back(8 * (4 + AFTER)) };
    apply(&back, with_zeros ^ target).to_le_bytes()
}

/// A linear map of CRC registers, by the image of each bit.
type BitMap = [u32; 32];

const fn apply(map: &BitMap, register: u32) -> u32 {
    let (mut out, mut bit) = (0, 0);
    while bit < map.len() {
        if register >> bit & 1 == 1 {
            out ^= map[bit];
        }
        bit += 1;
    }
    out
}

/// The composition of two maps, `first` first.
const fn compose(first: &BitMap, second: &BitMap) -> BitMap {
    let (mut both, mut bit) = ([0; 32], 0);
    while bit < both.len() {
        both[bit] = apply(second, first[bit]);
        bit += 1;
    }
    both
}

/// The map from the register of [`crc32c`] after `count` zero bits to the register before them.
const fn bits_back(mut count: usize) -> BitMap {
    // The reflected Castagnoli polynomial. Its highest bit is set, so the highest bit of a register shows whether the
    // forward step added the polynomial.
    const POLYNOMIAL: u32 = 0x82F6_3B78;
    let (mut whole, mut power, mut bit) = ([0; 32], [0; 32], 0);
    while bit < whole.len() {
        whole[bit] = 1 << bit;
        power[bit] = 1 << bit << 1;
        bit += 1;
    }
    power[31] = POLYNOMIAL << 1 | 1;
    while count > 0 {
        if count % 2 == 1 {
            whole = compose(&whole, &power);
        }
        power = compose(&power, &power);
        count /= 2;
    }
    whole
}

/// CRC-16 (polynomial x^16 + x^15 + x^2 + 1, reflected 0xA001) continued from `seed`, as in group descriptors of
/// `uninit_bg` volumes (Linux `crc16()`).
pub fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    let mut crc = seed;
    for &byte in bytes {
        crc ^= u16::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ 0xA001
            } else {
                crc >> 1
            };
        }
    }
    crc
}

/// Big-endian CRC-32 (polynomial 0x04C11DB7, most significant bit first) continued from `seed`, as in commit blocks of
/// jbd2 with checksum version 1 (Linux `crc32_be()`).
pub fn crc32_be(seed: u32, bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = crc32_be_table();
    let mut crc = seed;
    for &byte in bytes {
        let index = (crc >> 24) as usize ^ usize::from(byte);
        crc = (crc << 8) ^ TABLE[index];
    }
    crc
}

const fn crc32_be_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = (i as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000_0000 != 0 {
                (crc << 1) ^ 0x04C1_1DB7
            } else {
                crc << 1
            };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_values_of_the_crc_catalogue() {
        // The check value in the CRC catalogue is the result for "123456789".
        assert_eq!(!crc32c(!0, b"123456789"), 0xE306_9283);
        assert_eq!(!crc32_le(!0, b"123456789"), 0xCBF4_3926);
        assert_eq!(crc16(0, b"123456789"), 0xBB3D);
        assert_eq!(!crc32_be(!0, b"123456789"), 0xFC89_1918);
    }

    fn check_filler<const AFTER: usize>(before: &[u8], after: &[u8; AFTER], target: u32) {
        let filler = crc32c_filler(7, before, after, target);
        let whole = [before, &filler, after].concat();
        assert_eq!(crc32c(7, &whole), target);
    }

    #[test]
    fn four_bytes_make_any_checksum() {
        check_filler(b"", b"", 0);
        check_filler(b"abc", b"", 0xDEAD_BEEF);
        check_filler(b"", b"xyz", 1);
        check_filler(b"some bytes before", b"and others after it", !0);
        check_filler(b"some bytes before", &[5; 1000], 0x1234_5678);
    }

    #[test]
    fn checksums_continue_from_a_seed() {
        assert_eq!(
            crc32c(crc32c(!0, b"1234"), b"56789"),
            crc32c(!0, b"123456789")
        );
        assert_eq!(
            crc32_le(crc32_le(7, b"1234"), b"56789"),
            crc32_le(7, b"123456789")
        );
        assert_eq!(crc16(crc16(!0, b"1234"), b"56789"), crc16(!0, b"123456789"));
        assert_eq!(
            crc32_be(crc32_be(!0, b"1234"), b"56789"),
            crc32_be(!0, b"123456789")
        );
    }
}
