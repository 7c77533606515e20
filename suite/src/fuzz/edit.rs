//! Edits of an image: values in its metadata, with correct checksums.
//!
//! An edit is ten bytes of the input: the kind of block, which of its kind, an offset in it, the way in which the value
//! is written, and the value. So a mutation of the input is a mutation of one field, and survives other mutations.

use steadfs_lab::device::Image;

use super::input::Input;
use crate::hostile::Base;
use crate::hostile::f2fs::F2fsBase;

/// Most edits of an input.
pub const EDITS_MAX: usize = 8;

/// A volume whose metadata can be edited.
pub trait Editable {
    /// Its content before all edits.
    fn image(&self) -> &Image;
    /// Whether a mount has to replay or recover something.
    fn is_dirty(&self) -> bool;
    /// Block size in bytes.
    fn block_size(&self) -> usize;
    /// Number of kinds of metadata blocks.
    fn parts(&self) -> usize;
    /// Number of blocks of a kind; not 0.
    fn count(&self, part: usize) -> usize;
    /// The number of a block of a kind, for references to it.
    fn address(&self, part: usize, nth: usize) -> u64;
    /// Changes a block of a kind by `change` and writes it; `seal`: with a correct checksum.
    fn update(
        &self,
        image: &mut Image,
        at: (usize, usize),
        seal: bool,
        change: &mut dyn FnMut(&mut [u8]),
    );
}

impl Editable for Base {
    fn is_dirty(&self) -> bool {
        Base::is_dirty(self)
    }

    fn image(&self) -> &Image {
        &self.image
    }

    fn block_size(&self) -> usize {
        self.survey.geo.block_size.bytes()
    }

    fn parts(&self) -> usize {
        self.survey.parts.len()
    }

    fn count(&self, part: usize) -> usize {
        self.survey.of_part(self.survey.parts[part]).count()
    }

    fn address(&self, part: usize, nth: usize) -> u64 {
        let mut blocks = self.survey.of_part(self.survey.parts[part]);
        blocks.nth(nth).expect("below the count").block
    }

    fn update(
        &self,
        image: &mut Image,
        (part, nth): (usize, usize),
        seal: bool,
        change: &mut dyn FnMut(&mut [u8]),
    ) {
        let mut blocks = self.survey.of_part(self.survey.parts[part]);
        let meta = *blocks.nth(nth).expect("below the count");
        let mut bytes = self.survey.block(image, meta.block);
        change(&mut bytes);
        image.write(meta.block * self.block_size() as u64, &bytes);
        if seal {
            self.survey.seal(image, &meta);
        }
    }
}

impl Editable for F2fsBase {
    fn is_dirty(&self) -> bool {
        F2fsBase::is_dirty(self)
    }

    fn image(&self) -> &Image {
        &self.image
    }

    fn block_size(&self) -> usize {
        4096
    }

    fn parts(&self) -> usize {
        self.parts.len()
    }

    fn count(&self, part: usize) -> usize {
        self.of_part(self.parts[part]).count()
    }

    fn address(&self, part: usize, nth: usize) -> u64 {
        let mut blocks = self.of_part(self.parts[part]);
        blocks.nth(nth).expect("below the count")[0]
    }

    fn update(
        &self,
        image: &mut Image,
        (part, nth): (usize, usize),
        seal: bool,
        change: &mut dyn FnMut(&mut [u8]),
    ) {
        let part = self.parts[part];
        let blocks = self.of_part(part).nth(nth).expect("below the count");
        self.update_copies(image, part, blocks, seal, change);
    }
}

/// A volume of which only some kinds of metadata are edited.
pub struct Only<'a, P: 'static> {
    base: &'a dyn Editable,
    /// All kinds of the base, and those that are edited.
    kinds: &'a [P],
    edited: &'static [P],
}

impl<'a, P: PartialEq + 'static> Only<'a, P> {
    /// Edits of the kinds `edited` of `base`, which has `kinds`.
    pub fn new(base: &'a dyn Editable, kinds: &'a [P], edited: &'static [P]) -> Self {
        Self {
            base,
            kinds,
            edited,
        }
    }

    fn part(&self, nth: usize) -> usize {
        let mut parts = (0..self.kinds.len()).filter(|&n| self.edited.contains(&self.kinds[n]));
        parts.nth(nth).expect("below the number of parts")
    }
}

impl<P: PartialEq + 'static> Editable for Only<'_, P> {
    fn image(&self) -> &Image {
        self.base.image()
    }

    fn is_dirty(&self) -> bool {
        self.base.is_dirty()
    }

    fn block_size(&self) -> usize {
        self.base.block_size()
    }

    fn parts(&self) -> usize {
        let kinds = self.kinds.iter();
        kinds.filter(|kind| self.edited.contains(kind)).count()
    }

    fn count(&self, part: usize) -> usize {
        self.base.count(self.part(part))
    }

    fn address(&self, part: usize, nth: usize) -> u64 {
        self.base.address(self.part(part), nth)
    }

    fn update(
        &self,
        image: &mut Image,
        (part, nth): (usize, usize),
        seal: bool,
        change: &mut dyn FnMut(&mut [u8]),
    ) {
        self.base
            .update(image, (self.part(part), nth), seal, change);
    }
}

/// How a value is written.
struct Way {
    /// Bytes of the value: 1, 2, 4 or 8.
    wide: usize,
    big_endian: bool,
    seal: bool,
    kind: u8,
}

impl Way {
    fn of(byte: u8) -> Self {
        Self {
            wide: 1 << (byte & 3),
            big_endian: byte & 4 != 0,
            seal: byte & 8 == 0,
            kind: byte >> 4,
        }
    }

    fn get(&self, bytes: &[u8]) -> u64 {
        let mut word = [0; 8];
        if self.big_endian {
            word[8 - self.wide..].copy_from_slice(&bytes[..self.wide]);
            return u64::from_be_bytes(word);
        }
        word[..self.wide].copy_from_slice(&bytes[..self.wide]);
        u64::from_le_bytes(word)
    }

    fn put(&self, bytes: &mut [u8], value: u64) {
        if self.big_endian {
            bytes[..self.wide].copy_from_slice(&value.to_be_bytes()[8 - self.wide..]);
        } else {
            bytes[..self.wide].copy_from_slice(&value.to_le_bytes()[..self.wide]);
        }
    }
}

/// Applies the edits of `input` to a copy of the base's image; returns it, and the number of edits.
pub fn edited(base: &dyn Editable, input: &mut Input<'_>) -> (Image, usize) {
    let mut image = base.image().clone();
    let count = input.below(EDITS_MAX + 1);
    for _ in 0..count {
        edit(base, &mut image, input);
    }
    (image, count)
}

fn edit(base: &dyn Editable, image: &mut Image, input: &mut Input<'_>) {
    let part = input.below(base.parts());
    let nth = usize::from(input.half()) % base.count(part);
    let offset = usize::from(input.half());
    let way = Way::of(input.byte());
    let value = input.word32();
    let size = base.block_size();
    let at = (offset % size).min(size - way.wide);
    let [other_part, other_nth, ..] = value.to_le_bytes();
    let other = usize::from(other_part) % base.parts();
    let other = base.address(other, usize::from(other_nth) % base.count(other));
    let copied = (way.kind == 6).then(|| {
        let mut bytes = vec![0; size];
        image.read(other * size as u64, &mut bytes);
        bytes
    });
    base.update(image, (part, nth), way.seal, &mut |bytes| {
        let old = way.get(&bytes[at..]);
        let new = match way.kind {
            // The address of a block of metadata.
            4 => other,
            5 => return bytes[at..].fill(other_part),
            6 => return bytes.copy_from_slice(copied.as_ref().expect("it was read")),
            7 => old.wrapping_add(u64::from(value)),
            8 => old.wrapping_sub(u64::from(value)),
            9 => old ^ u64::from(value),
            // A large number of 8 bytes.
            10 => u64::from(value) << 32,
            11 => !u64::from(value),
            _ => u64::from(value),
        };
        way.put(&mut bytes[at..], new);
    });
}
