//! Names of case-insensitive directories (`casefold`): two names are the same if their case-folded canonical
//! decompositions, without default-ignorable code points, are ("NFDICF" in Linux's `fs/unicode`).
//!
//! **Rule.** The tables are those of Unicode 12.1, the only version that volumes have: hashes on the volume depend on
//! them. A code point that 12.1 does not assign has no case and no combining class. A name that is not UTF-8 has no folded
//! form: it is the same as equal bytes only, and in strict mode it is refused.
//!
//! An ignored code point is removed after combining marks are ordered, so marks never move across it, as in Linux.

mod folded;
mod marks;

use steadfs_vfs::names::is_dots;
use steadfs_vfs::{FsError, Result};

use folded::{MOVED, REPLACED};
use marks::{CLASSES, IGNORED};

/// `s_encoding` of UTF-8 with Unicode 12.1.
const UTF8_12_1: u16 = 1;
/// Bit of `s_encoding_flags`: names without a folded form are refused.
const STRICT: u16 = 1;
/// Another one (`SB_ENC_NO_COMPAT_FALLBACK_FL`): no kernel with other rules of folding has written the volume.
const HASH_ONLY: u16 = 2;

/// How a volume encodes the names of its case-insensitive directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// Whether names that are not valid are refused.
    pub is_strict: bool,
    /// Whether each name certainly is where its hash leads to; otherwise one that is not found there is looked for in
    /// the whole directory.
    pub hash_only: bool,
}

impl Encoding {
    /// The encoding with these numbers in the superblock; `None` if there is none. Other flags have no effect.
    pub const fn from_disk(number: u16, flags: u16) -> Option<Self> {
        match number {
            UTF8_12_1 => Some(Self {
                is_strict: flags & STRICT != 0,
                hash_only: flags & HASH_ONLY != 0,
            }),
            _ => None,
        }
    }

    /// Its numbers in the superblock.
    pub const fn to_disk(self) -> (u16, u16) {
        let strict = if self.is_strict { STRICT } else { 0 };
        let hash_only = if self.hash_only { HASH_ONLY } else { 0 };
        (UTF8_12_1, strict | hash_only)
    }

    /// Refuses a name that this encoding has not.
    ///
    /// # Errors
    /// `Invalid`, in strict mode only.
    pub fn check(self, name: &FoldedName<'_>) -> Result<()> {
        match self.is_strict && name.folded.is_none() {
            true => Err(FsError::Invalid(
                "the name is not UTF-8, as the encoding of the volume requires",
            )),
            false => Ok(()),
        }
    }
}

/// A name that is searched for in a case-insensitive directory.
#[derive(Clone, Debug)]
pub struct FoldedName<'a> {
    given: &'a [u8],
    folded: Option<Vec<u8>>,
}

impl<'a> FoldedName<'a> {
    /// Folds a name.
    pub fn new(given: &'a [u8]) -> Self {
        let folded = fold(given);
        Self { given, folded }
    }

    /// The same if a folded form is neither empty nor longer than `max` bytes; otherwise the name has none.
    pub fn within(given: &'a [u8], max: usize) -> Self {
        let folded = fold(given).filter(|folded| (1..=max).contains(&folded.len()));
        Self { given, folded }
    }

    /// Refuses a new name that is the same as `.` or `..`.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn check_dots(&self) -> Result<()> {
        match is_dots(self.hashed()) {
            true => Err(FsError::Invalid(
                "in this directory the name is the same as . or ..",
            )),
            false => Ok(()),
        }
    }

    /// The folded form; `None` if the name is not valid.
    pub fn folded(&self) -> Option<&[u8]> {
        self.folded.as_deref()
    }

    /// The bytes that are hashed: the folded form, or an invalid name itself.
    pub fn hashed(&self) -> &[u8] {
        self.folded().unwrap_or(self.given)
    }

    /// Whether a name in a directory is the same. `.` and `..` have no other spelling.
    pub fn is_same(&self, other: &[u8]) -> bool {
        if self.given == other {
            return true;
        }
        let Some(folded) = self.folded().filter(|_| !is_dots(other)) else {
            return false;
        };
        match other.is_ascii() {
            true => {
                folded.len() == other.len()
                    && folded
                        .iter()
                        .zip(other)
                        .all(|(folded, byte)| *folded == byte.to_ascii_lowercase())
            }
            false => fold(other).is_some_and(|other| folded == other),
        }
    }
}

/// The folded form of a name; `None` if it is not UTF-8.
pub fn fold(name: &[u8]) -> Option<Vec<u8>> {
    if name.is_ascii() {
        return Some(name.to_ascii_lowercase());
    }
    let mut folding = Folding {
        done: Vec::with_capacity(name.len() + name.len() / 2),
        marks: Vec::new(),
    };
    for c in str::from_utf8(name).ok()?.chars() {
        folding.add(c);
    }
    folding.flush();
    Some(folding.done)
}

/// A name while it is folded.
struct Folding {
    done: Vec<u8>,
    /// Combining marks since the last code point of class 0, with their classes.
    marks: Vec<(u8, char)>,
}

impl Folding {
    fn add(&mut self, c: char) {
        let code = u32::from(c);
        if is_in(IGNORED, c) {
            self.flush();
        } else if let Some(by) = moved(code) {
            self.push(
                code.checked_add_signed(by)
                    .and_then(char::from_u32)
                    .unwrap_or(c),
            );
        } else if let Ok(at) = REPLACED.binary_search_by_key(&code, |(code, _)| *code) {
            REPLACED[at].1.chars().for_each(|c| self.push(c));
        } else if let Some(parts) = hangul(code) {
            parts.into_iter().flatten().for_each(|c| self.push(c));
        } else {
            self.push(c);
        }
    }

    fn push(&mut self, c: char) {
        match class(c) {
            0 => {
                self.flush();
                self.write(c);
            }
            class => self.marks.push((class, c)),
        }
    }

    /// Ends a run of marks, in the order of their classes.
    fn flush(&mut self) {
        let mut marks = std::mem::take(&mut self.marks);
        marks.sort_by_key(|(class, _)| *class);
        marks.drain(..).for_each(|(_, c)| self.write(c));
        self.marks = marks;
    }

    fn write(&mut self, c: char) {
        self.done
            .extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    }
}

fn is_in(ranges: &[(u32, u32)], c: char) -> bool {
    let code = u32::from(c);
    let after = ranges.partition_point(|(first, _)| *first <= code);
    after > 0 && code <= ranges[after - 1].1
}

fn moved(code: u32) -> Option<i32> {
    let after = MOVED.partition_point(|(first, ..)| *first <= code);
    let (first, last, distance, by) = MOVED[after.checked_sub(1)?];
    (code <= last && (code - first).is_multiple_of(distance)).then_some(by)
}

fn class(c: char) -> u8 {
    let code = u32::from(c);
    let after = CLASSES.partition_point(|(first, ..)| *first <= code);
    match after.checked_sub(1).map(|at| CLASSES[at]) {
        Some((_, last, class)) if code <= last => class,
        _ => 0,
    }
}

/// The Jamo of a Hangul syllable.
fn hangul(code: u32) -> Option<[Option<char>; 3]> {
    const VOWELS: u32 = 21;
    const TRAILING: u32 = 28;
    let n = code
        .checked_sub(0xAC00)
        .filter(|n| *n < 19 * VOWELS * TRAILING)?;
    let trailing = Some(n % TRAILING).filter(|n| *n > 0);
    Some([
        char::from_u32(0x1100 + n / (VOWELS * TRAILING)),
        char::from_u32(0x1161 + n / TRAILING % VOWELS),
        trailing.and_then(|n| char::from_u32(0x11A7 + n)),
    ])
}

#[cfg(test)]
mod tests;
