//! Recognises blocks of zeros.

/// Bytes compared at a time.
static ZEROS: [u8; 4096] = [0; 4096];

/// Whether every byte is zero. Compares with memory instead of a loop over bytes: also fast where the compiler optimises
/// little.
pub fn is_zero(bytes: &[u8]) -> bool {
    bytes
        .chunks(ZEROS.len())
        .all(|part| part == &ZEROS[..part.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_makes_the_difference() {
        for len in [0, 1, 63, 4096, 4097, 9000] {
            let mut bytes = vec![0; len];
            assert!(is_zero(&bytes));
            for at in [0, len / 2, len.saturating_sub(1)] {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = 1;
                    assert!(!is_zero(&bytes), "byte {at} of {len}");
                    bytes[at] = 0;
                }
            }
        }
    }
}
