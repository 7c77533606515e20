//! No-key names: names in encrypted directories as they are shown without the key
//! (Documentation/filesystems/fscrypt.rst), made of the encrypted bytes.
//!
//! A no-key name is the unpadded base64url encoding of: two directory hashes of the name (32 bits each, little endian;
//! 0 if the directory has none), up to 149 encrypted bytes, and for longer names the SHA-256 digest of the rest.

use steadfs_base::Corruption;

use sha2::{Digest, Sha256};

use crate::{FsError, Result};

/// Encrypted bytes that are included unhashed.
const UNHASHED_BYTES: usize = 149;
/// Length of the shortest encrypted name.
const ENCRYPTED_BYTES_MIN: usize = 16;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The no-key name of encrypted bytes with these hashes; `None` for fewer bytes than an encrypted name has.
pub fn show(hashes: [u32; 2], encrypted: &[u8]) -> Option<Vec<u8>> {
    if encrypted.len() < ENCRYPTED_BYTES_MIN {
        return None;
    }
    let mut raw = Vec::with_capacity(8 + UNHASHED_BYTES + 32);
    for hash in hashes {
        raw.extend_from_slice(&hash.to_le_bytes());
    }
    let (plain, rest) = encrypted.split_at(encrypted.len().min(UNHASHED_BYTES));
    raw.extend_from_slice(plain);
    if !rest.is_empty() {
        raw.extend_from_slice(&Sha256::digest(rest));
    }
    Some(base64url(&raw))
}

fn base64url(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut word = [0; 4];
        word[1..=chunk.len()].copy_from_slice(chunk);
        let word = u32::from_be_bytes(word);
        let digits = [18, 12, 6, 0].map(|shift| DIGITS[(word >> shift & 63) as usize]);
        out.extend_from_slice(&digits[..=chunk.len()]);
    }
    out
}

/// The first hash in a no-key name.
pub fn shown_hash(name: &[u8]) -> Option<u32> {
    let mut bits = 0u64;
    // Six digits hold the first 36 bits.
    for digit in name.get(..6)? {
        let value = DIGITS.iter().position(|d| d == digit)?;
        bits = bits << 6 | value as u64;
    }
    Some(((bits >> 4) as u32).swap_bytes())
}

/// The target of an encrypted symbolic link as it is shown without the key. `stored` is its content: a 16-bit length and
/// the encrypted bytes.
pub fn symlink_target(stored: &[u8]) -> Result<Vec<u8>> {
    let bad = || FsError::from(Corruption::new("encrypted symbolic link"));
    let (len, encrypted) = stored.split_first_chunk::<2>().ok_or_else(bad)?;
    let len = usize::from(u16::from_le_bytes(*len));
    let encrypted = encrypted.get(..len).ok_or_else(bad)?;
    show([0, 0], encrypted).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_and_hash() {
        assert_eq!(base64url(b"\xfb\xff"), b"-_8");
        assert_eq!(base64url(b"foobar"), b"Zm9vYmFy");
        let hash = [0x8765_4320, 7];
        let shown = show(hash, &[9; 16]).unwrap();
        assert_eq!(shown.len(), 32);
        assert_eq!(shown_hash(&shown), Some(0x8765_4320));
        assert_eq!(shown_hash(b"short"), None);
        assert_eq!(shown_hash(b"no/base64"), None);
    }

    #[test]
    fn long_names_end_with_the_digest_of_the_rest() {
        let hash = [2, 0];
        let a = show(hash, &[7; 255]).unwrap();
        assert_eq!(a.len(), 252);
        let mut other = [7; 255];
        other[254] = 8;
        let b = show(hash, &other).unwrap();
        assert_eq!(a[..208], b[..208]);
        assert_ne!(a, b);
        assert!(show(hash, &[7; 15]).is_none());
    }

    #[test]
    fn a_name_as_linux_shows_it() {
        // Encrypted name, its hashes, and what Linux 6.18 listed for it after the key was removed.
        let encrypted = concat!(
            "89f248c66d07a9ba1d554ed1ba7edf49d61837ff9d065d2a8dd03697cbb54ffcc966d9f8",
            "ddd91b0bb1e1d24316d6f03c0049ab64de02d9e885e067fdfa678e5e53ea2dc723901033",
            "69342bfb1cee04f742278d8afaffc37f3cdbe2529cf8ac62761556f692aea51fd6e08c0f",
            "a1547e49af183a1a56b9a858300ce17b533baef9208e702046d8d878903f946656d881e5",
            "cf5805efb2cb46431cab3fce12e2a2f6",
        );
        let shown = concat!(
            "2BPuC8TiNjuJ8kjGbQepuh1VTtG6ft9J1hg3_50GXSqN0DaXy7VP_Mlm2fjd2RsLseHSQxbW",
            "8DwASatk3gLZ6IXgZ_36Z45eU-otxyOQEDNpNCv7HO4E90InjYr6_8N_PNviUpz4rGJ2FVb2",
            "kq6lH9bgjA-hVH5Jrxg6Gla5qFgwDOF7Uzuu-SCOcCBG2Nh4kD-UZlbYgeXPWAXvsrLPID1W",
            "A_7vESz-Yx-zhQ7UlduipGHa_zbVTeM4a9u1",
        );
        let encrypted: Vec<u8> = (0..encrypted.len() / 2)
            .map(|i| u8::from_str_radix(&encrypted[2 * i..2 * i + 2], 16).unwrap())
            .collect();
        let hash = [0x0BEE_13D8, 0x3B36_E2C4];
        assert_eq!(show(hash, &encrypted).unwrap(), shown.as_bytes());
        assert_eq!(shown_hash(shown.as_bytes()), Some(hash[0]));
    }

    #[test]
    fn links() {
        let mut stored = vec![16, 0];
        stored.extend_from_slice(&[3; 20]);
        let shown = symlink_target(&stored).unwrap();
        assert_eq!(shown, show([0, 0], &[3; 16]).unwrap());
        assert!(symlink_target(&[17, 0, 1]).is_err());
        assert!(symlink_target(&[0]).is_err());
    }
}
