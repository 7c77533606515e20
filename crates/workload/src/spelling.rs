//! Names in directories that ignore case: each call spells a name in another way, and the model sees one spelling.

use std::borrow::Cow;
use std::cell::Cell;

use steadfs_vfs::{Attr, InodeFlags};

/// A soft hyphen, which such directories ignore; here it also marks the letters whose case was changed.
const MARK: &[u8] = "\u{AD}".as_bytes();
/// The most bytes of a name.
const LIMIT: usize = 255;

/// Spells names, each time in another way.
#[derive(Debug, Default)]
pub(crate) struct Speller(Cell<u64>);

impl Speller {
    /// A spelling of `name` in this directory.
    pub(crate) fn spell<'a>(&self, dir: &Attr, name: &'a [u8]) -> Cow<'a, [u8]> {
        if !ignores_case(dir) {
            return Cow::Borrowed(name);
        }
        // Multiples of an odd number: their upper bits differ from call to call.
        let bits = self.0.get().wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.0.set(bits);
        let mut room = LIMIT.saturating_sub(name.len());
        let mut spelled = Vec::with_capacity(LIMIT);
        for (at, &byte) in name.iter().enumerate() {
            let chosen = bits.rotate_left(at as u32) >> 63 == 1;
            if chosen && byte.is_ascii_alphabetic() && room >= MARK.len() {
                room -= MARK.len();
                spelled.extend_from_slice(MARK);
                spelled.push(swapped(byte));
            } else {
                spelled.push(byte);
            }
        }
        Cow::Owned(spelled)
    }
}

/// The name that was spelled like this, if `dir` ignores case.
pub(crate) fn plain(dir: &Attr, name: &[u8]) -> Vec<u8> {
    if !ignores_case(dir) {
        return name.to_vec();
    }
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&byte, after)) = rest.split_first() {
        match rest.strip_prefix(MARK) {
            Some([letter, after @ ..]) => {
                plain.push(swapped(*letter));
                rest = after;
            }
            _ => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    plain
}

fn ignores_case(dir: &Attr) -> bool {
    dir.flags.contains(InodeFlags::CASEFOLD)
}

const fn swapped(letter: u8) -> u8 {
    match letter.is_ascii_alphabetic() {
        true => letter ^ 0x20,
        false => letter,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use steadfs_vfs::{Cx, FileSystem};

    use super::*;
    use crate::{Format, ModelFs, State};

    #[test]
    fn every_spelling_is_of_the_same_plain_name() {
        let fs = ModelFs::new(State::new(), Format::PLAIN);
        let mut dir = fs.getattr(&Cx::default(), fs.root()).unwrap();
        let speller = Speller::default();
        assert_eq!(*speller.spell(&dir, b"Name"), *b"Name");
        dir.flags = InodeFlags::CASEFOLD;
        for name in ["foo", "A", "0_b--", &"x".repeat(250), &"Y".repeat(255)] {
            let mut spellings = BTreeSet::new();
            for _ in 0..50 {
                let spelled = speller.spell(&dir, name.as_bytes()).into_owned();
                assert!(spelled.len() <= LIMIT);
                assert_eq!(plain(&dir, &spelled), name.as_bytes());
                spellings.insert(spelled);
            }
            assert_eq!(spellings.len() > 1, name.len() < LIMIT, "{name}");
        }
    }
}
