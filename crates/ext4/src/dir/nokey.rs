//! Names of encrypted directories as they show without the key: what the kernel calls no-key names
//! (Documentation/filesystems/fscrypt.rst), made of the encrypted bytes.
//!
//! A shown name is the unpadded base64url of: the name's two directory hashes (32 bits each, little
//! endian; 0 where the directory has no index), up to 149 encrypted bytes, and for longer names the
//! SHA-256 of the rest.

mod sha256;

use steadfs_vfs::{FsError, InodeFlags, Result};

use super::Dir;
use crate::disk::dir_entry::{self, RawEntry};
use crate::disk::hash::NameHash;
use crate::disk::{self, Ino};

/// Encrypted bytes that are shown as they are.
const PLAIN: usize = 149;
/// Shortest encrypted name.
const MIN_LEN: usize = 16;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// What to show for encrypted bytes with this hash.
fn show(hash: NameHash, encrypted: &[u8]) -> Option<Vec<u8>> {
    if encrypted.len() < MIN_LEN {
        return None;
    }
    let mut raw = Vec::with_capacity(8 + PLAIN + 32);
    raw.extend_from_slice(&hash.major.to_le_bytes());
    raw.extend_from_slice(&hash.minor.to_le_bytes());
    let (plain, rest) = encrypted.split_at(encrypted.len().min(PLAIN));
    raw.extend_from_slice(plain);
    if !rest.is_empty() {
        raw.extend_from_slice(&sha256::digest(rest));
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

/// The first hash in a shown name.
fn shown_hash(name: &[u8]) -> Option<u32> {
    let mut bits = 0u64;
    // Six digits hold the first 36 bits.
    for digit in name.get(..6)? {
        let value = DIGITS.iter().position(|d| d == digit)?;
        bits = bits << 6 | value as u64;
    }
    Some(((bits >> 4) as u32).swap_bytes())
}

/// The name to show for an entry of an encrypted directory; `block` is where the entry lies.
pub(super) fn shown_name(
    dir: &Dir<'_>,
    core: &disk::Inode,
    block: &[u8],
    entry: &RawEntry<'_>,
) -> Result<Vec<u8>> {
    let hash = if core.has(InodeFlags::CASEFOLD) {
        stored_hash(block, entry)
    } else if dir.is_dx(core) {
        dir.hash(dir.hash_kind(core)?, entry.name)?
    } else {
        NameHash { major: 0, minor: 0 }
    };
    show(hash, entry.name).ok_or_else(|| dir.corrupt("an encrypted name is too short"))
}

/// The hash behind the name: directories that are encrypted and ignore case hash the plain name, so
/// it is stored.
fn stored_hash(block: &[u8], entry: &RawEntry<'_>) -> NameHash {
    let at = entry.offset + dir_entry::entry_size(entry.name.len());
    let word = |at: usize| {
        let bytes = block
            .get(at..at + 4)
            .filter(|_| at + 4 <= entry.offset + entry.rec_len);
        bytes.map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    };
    NameHash {
        major: word(at),
        minor: word(at + 4),
    }
}

/// Finds a shown name.
pub(super) fn lookup(dir: &Dir<'_>, core: &disk::Inode, name: &[u8]) -> Result<Option<Ino>> {
    let Some(major) = shown_hash(name) else {
        return Ok(None);
    };
    if !dir.is_indexed(core) {
        for n in 0..dir.block_count(core) {
            if let Some(ino) = find_shown(dir, core, n, name)? {
                return Ok(Some(ino));
            }
        }
        return Ok(None);
    }
    let mut path = dir.descend(core, major)?;
    for _ in 0..dir.block_count(core) {
        if let Some(ino) = find_shown(dir, core, path.leaf, name)? {
            return Ok(Some(ino));
        }
        if dir.bound(&path)? != Some(major | 1) {
            return Ok(None);
        }
        dir.advance(core, &mut path)?;
    }
    Ok(None)
}

fn find_shown(dir: &Dir<'_>, core: &disk::Inode, n: u32, name: &[u8]) -> Result<Option<Ino>> {
    let buf = dir.leaf(core, n)?;
    let data = buf.data();
    for entry in dir_entry::entries(&dir.layout, &data) {
        let entry = entry.map_err(dir.bad(buf.block()))?;
        let dot = entry.name == b"." || entry.name == b"..";
        if entry.ino.is_some() && !dot && shown_name(dir, core, &data, &entry)? == name {
            return Ok(entry.ino);
        }
    }
    Ok(None)
}

/// The target of an encrypted symbolic link as it shows without the key; `stored` is its content:
/// a 16-bit length and the encrypted bytes.
pub(crate) fn symlink_target(stored: &[u8]) -> Result<Vec<u8>> {
    let bad = || FsError::Corrupt("encrypted symbolic link".to_owned());
    let (len, encrypted) = stored.split_first_chunk::<2>().ok_or_else(bad)?;
    let len = usize::from(u16::from_le_bytes(*len));
    let encrypted = encrypted.get(..len).ok_or_else(bad)?;
    show(NameHash { major: 0, minor: 0 }, encrypted).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_and_hash() {
        assert_eq!(base64url(b"\xfb\xff"), b"-_8");
        assert_eq!(base64url(b"foobar"), b"Zm9vYmFy");
        let hash = NameHash {
            major: 0x8765_4320,
            minor: 7,
        };
        let shown = show(hash, &[9; 16]).unwrap();
        assert_eq!(shown.len(), 32);
        assert_eq!(shown_hash(&shown), Some(0x8765_4320));
        assert_eq!(shown_hash(b"short"), None);
        assert_eq!(shown_hash(b"no/base64"), None);
    }

    #[test]
    fn long_names_end_with_the_digest_of_the_rest() {
        let hash = NameHash { major: 2, minor: 0 };
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
    fn links() {
        let mut stored = vec![16, 0];
        stored.extend_from_slice(&[3; 20]);
        let shown = symlink_target(&stored).unwrap();
        assert_eq!(
            shown,
            show(NameHash { major: 0, minor: 0 }, &[3; 16]).unwrap()
        );
        assert!(symlink_target(&[17, 0, 1]).is_err());
        assert!(symlink_target(&[0]).is_err());
    }
}
