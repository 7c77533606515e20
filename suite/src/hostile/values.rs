//! Hostile values, written as text: any number of `PLACE+BYTE=VALUE`, numbers hexadecimal.
//!
//! A place is `super`, a part (`bitmap`, `inodes`, `descriptors`, `journal`, `log`, `orphans`), an inode (`ino(8)` or
//! its path), or a part that an inode owns (`entries(/many)`, `index`, `extents`, `indirect`, `attributes`); `#1` is
//! the second of its kind. A value is `b:`, `h:` or `w:` and a number of one, two or four bytes, `H:` and `W:` for
//! big-endian ones, `w:@PLACE` the number of a place's block or of an inode, `fill:BYTE*COUNT`, or `copy:PLACE`, a
//! whole block.

use std::sync::Arc;

use steadfs_ext4::{CacheSizes, Ext4, MountOptions};
use steadfs_lab::device::Image;
use steadfs_rt::sim;
use steadfs_vfs::{Cx, FileSystem};

use super::survey::MetadataBlock;
use super::{Base, ImageDevice, Part};

/// The effect of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The volume cannot be mounted.
    Refused,
    /// The volume can be mounted, and a call reports corruption.
    Reported,
    /// No call reports it; the checker finds it.
    Found,
    /// No call reports it, and the checker finds nothing.
    Harmless,
}

/// One line of `values.txt`.
pub struct HostileCase {
    /// Name in messages.
    pub name: &'static str,
    /// The volume that is changed.
    pub base: &'static str,
    /// The expected effect.
    pub effect: Effect,
    /// The values that are written.
    pub values: &'static str,
    /// Why e2fsck disagrees.
    pub e2fsck: Option<&'static str>,
}

/// All cases.
///
/// # Panics
/// If the table is malformed.
pub fn table() -> Vec<HostileCase> {
    let lines = include_str!("values.txt").lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(HostileCase::parse).collect()
}

impl HostileCase {
    fn parse(line: &'static str) -> Self {
        let columns: Vec<_> = line.split('|').map(str::trim).collect();
        let [name, base, effect, values] = columns[..4] else {
            panic!("four columns: {line}");
        };
        let effect = match effect {
            "refused" => Effect::Refused,
            "reported" => Effect::Reported,
            "found" => Effect::Found,
            "harmless" => Effect::Harmless,
            other => panic!("{other}: {line}"),
        };
        let e2fsck = columns.get(4).copied();
        Self {
            name,
            base,
            effect,
            values,
            e2fsck,
        }
    }
}

/// Writes hostile values to copies of a base.
pub struct ValueWriter<'a> {
    base: &'a Base,
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap_or_else(|_| panic!("not a number: {text}"))
}

fn low(value: u64) -> u32 {
    u32::try_from(value).expect("numbers of the bases are small")
}

impl<'a> ValueWriter<'a> {
    /// For copies of `base`.
    pub fn new(base: &'a Base) -> Self {
        Self { base }
    }

    /// Writes `values` to `image`, a copy of the base, with correct checksums.
    ///
    /// # Panics
    /// If they are malformed, or name a place that the base does not have.
    pub fn write(&self, image: &mut Image, values: &str) {
        let mut written = Vec::new();
        for assignment in values.split_whitespace() {
            let (target, value) = assignment.split_once('=').expect("PLACE+BYTE=VALUE");
            let (place, byte) = target.rsplit_once('+').expect("PLACE+BYTE");
            let (meta, start) = self.place(place);
            let bytes = self.value(value);
            image.write(start + hex(byte), &bytes);
            written.push(meta);
        }
        for meta in written {
            self.base.survey.seal(image, &meta);
        }
    }

    fn size(&self) -> u64 {
        self.base.survey.geo.block_size.bytes_u64()
    }

    fn value(&self, text: &str) -> Vec<u8> {
        let (kind, text) = text.split_once(':').expect("KIND:VALUE");
        let number = || match text.strip_prefix('@') {
            Some(place) => u64::from(self.number_of(place)),
            None => hex(text),
        };
        match kind {
            "b" => vec![u8::try_from(number()).unwrap()],
            "h" => u16::try_from(number()).unwrap().to_le_bytes().into(),
            "H" => u16::try_from(number()).unwrap().to_be_bytes().into(),
            "w" => low(number()).to_le_bytes().into(),
            "W" => low(number()).to_be_bytes().into(),
            "fill" => {
                let (byte, count) = text.split_once('*').expect("BYTE*COUNT");
                vec![u8::try_from(hex(byte)).unwrap(); usize::try_from(hex(count)).unwrap()]
            }
            "copy" => {
                let block = self.place(text).0.block;
                self.base.survey.block(&self.base.image, block)
            }
            other => panic!("unknown kind of value {other}"),
        }
    }

    /// The number of an inode, or of a place's block.
    fn number_of(&self, place: &str) -> u32 {
        match self.inode(place) {
            Some(ino) => ino,
            None => low(self.place(place).0.block),
        }
    }

    fn inode(&self, place: &str) -> Option<u32> {
        if let Some(path) = place.strip_prefix('/') {
            return Some(self.find(path));
        }
        let number = place.strip_prefix("ino(")?.strip_suffix(')')?;
        Some(number.parse().unwrap())
    }

    /// The block of a place, and its offset in the image.
    fn place(&self, text: &str) -> (MetadataBlock, u64) {
        let survey = &self.base.survey;
        if let Some(ino) = self.inode(text) {
            let (block, start) = survey.inode_place(&self.base.image, ino);
            let mut metadata = survey.metadata.iter();
            let meta = metadata.find(|meta| meta.part == Part::Inodes && meta.block == block);
            return (*meta.expect("an inode in use"), start);
        }
        let (text, nth) = text.split_once('#').unwrap_or((text, "0"));
        let (part, owner) = match text.split_once('(') {
            Some((part, owner)) => (part, Some(owner.strip_suffix(')').expect("a parenthesis"))),
            None => (text, None),
        };
        let part = match part {
            "super" => Part::Super,
            "descriptors" => Part::Descriptors,
            "bitmap" => Part::BlockBitmap,
            "inodes" => Part::InodeBitmap,
            "entries" => Part::Entries,
            "index" => Part::Index,
            "extents" => Part::Extents,
            "indirect" => Part::Indirect,
            "attributes" => Part::Attributes,
            "journal" => Part::JournalSuper,
            "log" => Part::Log,
            "orphans" => Part::Orphans,
            other => panic!("unknown place {other}"),
        };
        let owner = owner.map(|owner| self.inode(owner).expect("an inode"));
        let mut metadata = survey
            .metadata
            .iter()
            .filter(|meta| meta.part == part && owner.is_none_or(|ino| meta.number == ino));
        let nth = usize::try_from(hex(nth)).unwrap();
        let meta = metadata.nth(nth);
        let meta = *meta.unwrap_or_else(|| panic!("{} has no {text}", self.base.name));
        let start = match part {
            Part::Super => 1024,
            _ => meta.block * self.size(),
        };
        (meta, start)
    }

    fn find(&self, path: &str) -> u32 {
        let device = Arc::new(ImageDevice::new(self.base.image.clone()));
        let path: Vec<Vec<u8>> = path
            .replace('\\', " ")
            .split('/')
            .map(|name| name.into())
            .collect();
        let found = sim::run(sim::Config::new(1), move || {
            let mut options = MountOptions::default();
            options.common.read_only = true;
            let (fs, _) = Ext4::open(device as _, options, CacheSizes::of(1 << 20)).unwrap();
            let mut at = fs.root();
            for name in path.iter().filter(|name| !name.is_empty()) {
                at = fs.lookup(&Cx::default(), at, name).unwrap().ino;
            }
            fs.unmount().unwrap();
            at.0
        });
        low(found.value)
    }
}
