//! The logical partitions of an Android super partition (liblp's metadata, version 10).
//!
//! **Problem.** A logical partition is a list of extents of the super partition. The list is in one of several slots, each with
//! a copy.
//!
//! **Rule.** The first slot that is complete, with right checksums, counts: its first copy, else its second one. All
//! indices, lengths and places of a slot are checked before anything of it is used.

use sha2::{Digest, Sha256};
use steadfs_block::BlockSource;

use crate::bytes::{le16, le32, le64, read};
use crate::map::{Map, Source};

const GEOMETRY_MAGIC: u32 = 0x616c_4467;
const HEADER_MAGIC: u32 = 0x414c_5030;
/// Places of the geometry and its copy.
const GEOMETRIES: [u64; 2] = [4096, 8192];
/// First byte of the slots.
const SLOTS: u64 = 12288;
const GEOMETRY_BYTES: u64 = 52;
/// Bytes of the header in versions 10.0 and 10.1; 10.2 adds flags.
const HEADER_BYTES: usize = 128;
const MAJOR_VERSION: u16 = 10;
const SECTOR: u64 = 512;
/// Most bytes of a slot, and most slots: a super partition needs a few KiB, and two or three.
const SLOT_BYTES_MAX: u32 = 4 << 20;
const SLOTS_MAX: u32 = 16;
/// Most partitions.
const PARTITIONS_MAX: usize = 256;

/// A logical partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logical {
    /// Its name, with the suffix of its slot.
    pub name: String,
    /// Where its content is on the super partition.
    pub map: Map,
}

/// Whether there is a super partition's geometry.
pub fn is_super(src: &dyn BlockSource) -> bool {
    GEOMETRIES
        .iter()
        .any(|&at| read(src, at, 4).is_ok_and(|word| word == GEOMETRY_MAGIC.to_le_bytes()))
}

/// The logical partitions of a super partition.
///
/// # Errors
/// What is wrong with its metadata.
pub fn logical_partitions(src: &dyn BlockSource) -> Result<Vec<Logical>, String> {
    let [first, second] = GEOMETRIES.map(|at| Geometry::read(src, at));
    let geometry = first.or(second)?;
    let slot = u64::from(geometry.slot_bytes);
    let copies = u64::from(geometry.slots) * slot;
    let mut why = None;
    for number in 0..u64::from(geometry.slots) {
        for at in [SLOTS + number * slot, SLOTS + copies + number * slot] {
            match Tables::read(src, at, slot).and_then(|tables| tables.partitions(number)) {
                Ok(found) => return Ok(found),
                Err(error) => _ = why.get_or_insert(error),
            }
        }
    }
    Err(why.unwrap_or_else(|| "has no slots".to_owned()))
}

fn sha256(parts: &[&[u8]]) -> Vec<u8> {
    let mut sum = Sha256::new();
    for part in parts {
        sum.update(part);
    }
    sum.finalize().to_vec()
}

/// The checksum of a structure whose own 32 bytes at `at` are zeros in it.
fn sum_without(bytes: &[u8], at: usize) -> Vec<u8> {
    sha256(&[&bytes[..at], &[0; 32], &bytes[at + 32..]])
}

struct Geometry {
    slot_bytes: u32,
    slots: u32,
}

impl Geometry {
    fn read(src: &dyn BlockSource, at: u64) -> Result<Self, String> {
        let bytes = read(src, at, GEOMETRY_BYTES)?;
        if le32(&bytes, 0) != GEOMETRY_MAGIC || u64::from(le32(&bytes, 4)) != GEOMETRY_BYTES {
            return Err("has no geometry that is known".to_owned());
        }
        if sum_without(&bytes, 8) != bytes[8..40] {
            return Err("has a geometry with a wrong checksum".to_owned());
        }
        let (slot_bytes, slots) = (le32(&bytes, 40), le32(&bytes, 44));
        let in_sectors = u64::from(slot_bytes).is_multiple_of(SECTOR);
        if !in_sectors || slot_bytes > SLOT_BYTES_MAX || slots > SLOTS_MAX {
            return Err(format!("has {slots} slots of {slot_bytes} bytes"));
        }
        Ok(Self { slot_bytes, slots })
    }
}

/// The tables of a slot, with right checksums.
struct Tables {
    header: Vec<u8>,
    bytes: Vec<u8>,
}

/// One table: the bytes of its entries.
struct Table<'a> {
    bytes: &'a [u8],
    entry: usize,
}

impl<'a> Table<'a> {
    fn len(&self) -> usize {
        self.bytes.len() / self.entry
    }

    fn get(&self, index: usize) -> Option<&'a [u8]> {
        let start = index.checked_mul(self.entry)?;
        self.bytes.get(start..start.checked_add(self.entry)?)
    }
}

impl Tables {
    fn read(src: &dyn BlockSource, at: u64, slot: u64) -> Result<Self, String> {
        let fixed = read(src, at, HEADER_BYTES as u64)?;
        if le32(&fixed, 0) != HEADER_MAGIC {
            return Err("has a slot without metadata".to_owned());
        }
        let (major, minor) = (le16(&fixed, 4), le16(&fixed, 6));
        if major != MAJOR_VERSION {
            return Err(format!(
                "has metadata of the unknown version {major}.{minor}"
            ));
        }
        let (header, tables) = (u64::from(le32(&fixed, 8)), u64::from(le32(&fixed, 44)));
        if header < HEADER_BYTES as u64 || header + tables > slot {
            return Err(format!(
                "has a header of {header} and tables of {tables} bytes in a slot of {slot}"
            ));
        }
        let all = read(src, at, header + tables)?;
        let (header, bytes) = all.split_at(header as usize);
        if sum_without(header, 12) != header[12..44] {
            return Err("has metadata with a wrong checksum of the header".to_owned());
        }
        if sha256(&[bytes]) != header[48..80] {
            return Err("has metadata with a wrong checksum of the tables".to_owned());
        }
        Ok(Self {
            header: header.to_vec(),
            bytes: bytes.to_vec(),
        })
    }

    /// The table whose descriptor is at `at` of the header, with entries of at least `least` bytes.
    fn table(&self, at: usize, least: usize) -> Result<Table<'_>, String> {
        let number = |at| u64::from(le32(&self.header, at));
        let (offset, count, entry) = (number(at), number(at + 4), number(at + 8));
        let len = count * entry;
        let range = (offset <= self.bytes.len() as u64)
            .then(|| self.bytes[offset as usize..].get(..usize::try_from(len).ok()?))
            .flatten();
        match range {
            Some(bytes) if entry >= least as u64 => Ok(Table {
                bytes,
                entry: entry as usize,
            }),
            _ => Err(format!(
                "has a table of {count} entries of {entry} bytes at byte {offset}, which does not fit"
            )),
        }
    }

    fn partitions(&self, slot: u64) -> Result<Vec<Logical>, String> {
        let partitions = self.table(80, 52)?;
        let extents = self.table(92, 24)?;
        if partitions.len() > PARTITIONS_MAX {
            return Err(format!("has {} partitions", partitions.len()));
        }
        // An extent belongs to one partition.
        let mut left = extents.len();
        let mut found: Vec<Logical> = Vec::new();
        for index in 0..partitions.len() {
            let entry = partitions.get(index).unwrap_or_default();
            let name = name(entry, slot)?;
            let at = |why: String| format!("has a partition {name:?} that {why}");
            left = left
                .checked_sub(le32(entry, 44) as usize)
                .ok_or_else(|| at("has extents of another one".to_owned()))?;
            let map = map(entry, &extents).map_err(at)?;
            if found.iter().any(|other| other.name == name) {
                return Err(at("is there twice".to_owned()));
            }
            found.push(Logical { name, map });
        }
        Ok(found)
    }
}

/// The name of a partition.
fn name(entry: &[u8], slot: u64) -> Result<String, String> {
    const SLOT_SUFFIXED: u32 = 2;
    let bytes = entry[..36].split(|byte| *byte == 0).next();
    let name = bytes.unwrap_or_default();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    if name.is_empty() || !name.iter().all(is_plain) {
        return Err("has a partition whose name is not one".to_owned());
    }
    let mut name = String::from_utf8_lossy(name).into_owned();
    if le32(entry, 36) & SLOT_SUFFIXED != 0 {
        name.push_str(if slot == 0 { "_a" } else { "_b" });
    }
    Ok(name)
}

/// Where a partition is; the error follows its name.
fn map(entry: &[u8], extents: &Table<'_>) -> Result<Map, String> {
    const LINEAR: u32 = 0;
    const ZERO: u32 = 1;
    let (first, count) = (le32(entry, 40) as usize, le32(entry, 44) as usize);
    let mut map = Map::default();
    for index in first..first.saturating_add(count) {
        let extent = extents
            .get(index)
            .ok_or_else(|| format!("has an extent {index} of {}", extents.len()))?;
        let long = || format!("has the extent {index} behind the end of any device");
        let bytes = le64(extent, 0).checked_mul(SECTOR).ok_or_else(long)?;
        let source = match (le32(extent, 8), le32(extent, 20)) {
            (LINEAR, 0) => Source::Below(le64(extent, 12).checked_mul(SECTOR).ok_or_else(long)?),
            (LINEAR, _) => return Err("is on more than one device".to_owned()),
            (ZERO, _) => Source::ZERO,
            (other, _) => return Err(format!("has an extent of the unknown type {other}")),
        };
        map.push(bytes, source).map_err(|_| long())?;
    }
    Ok(map)
}
