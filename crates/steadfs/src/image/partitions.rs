//! Partition tables: GPT, with sectors of 512 and of 4096 bytes and from the copy at the device's end, and MBR with
//! logical partitions.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

use steadfs_base::checksum::crc32_le;
use steadfs_block::BlockSource;
use steadfs_stack::Map;

use super::{Holds, read, word_for};

/// Sector sizes of partition tables.
const SECTORS: [u64; 2] = [512, 4096];
/// Most partitions that are listed.
const PARTITIONS_MAX: usize = 256;
/// Most bytes of a GPT's entries that are read.
const ENTRY_BYTES_MAX: u64 = 1 << 20;

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number in the table, from 1.
    pub number: u32,
    /// Its first byte.
    pub start: u64,
    /// Its length.
    pub bytes: u64,
    /// Its type, by name where that is known.
    pub kind: String,
    /// Its name, in a GPT.
    pub name: String,
    /// What was recognised in it.
    pub holds: Option<String>,
    /// Whether `holds` is a volume.
    pub is_volume: bool,
    /// The label of the volume in it.
    pub label: String,
    /// Where a logical partition is, which has no first byte.
    pub map: Option<Map>,
}

/// Where a partition is on its disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its first byte.
    pub start: u64,
    /// Its length.
    pub bytes: u64,
}

impl Partition {
    /// Where it is.
    pub fn window(&self) -> Window {
        Window {
            start: self.start,
            bytes: self.bytes,
        }
    }
}

/// A partition table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// `GPT`, `MBR` or `Android super`.
    pub scheme: &'static str,
    /// What is wrong with it.
    pub flaw: Option<Cow<'static, str>>,
    /// Its partitions, in the order of their numbers.
    pub partitions: Vec<Partition>,
    /// First byte of the disk, where that is not the first of the file.
    pub base: u64,
    /// Whether the partitions have first bytes in the file.
    pub has_places: bool,
}

impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let scheme = self.scheme;
        write!(f, "is a disk with partitions ({scheme})")?;
        if let Some(flaw) = &self.flaw {
            write!(f, ", {flaw}")?;
        }
        if self.partitions.is_empty() {
            return write!(f, "; it has none that can be listed");
        }
        write!(f, ": say which one with IMAGE@NUMBER")?;
        f.write_str(match self.has_places {
            true => ", IMAGE@NAME or -o offset=BYTES",
            false => " or IMAGE@NAME",
        })?;
        for part in &self.partitions {
            let start = part.start.saturating_add(self.base);
            let (number, size, kind) = (part.number, Size(part.bytes), &part.kind);
            write!(f, "\n  partition {number}: ")?;
            if self.has_places {
                write!(f, "-o offset={start}, ")?;
            }
            write!(f, "{size}, {kind}")?;
            if !part.name.is_empty() {
                write!(f, ", \"{}\"", part.name)?;
            }
            if let Some(holds) = &part.holds {
                write!(f, ": {holds}")?;
            }
        }
        Ok(())
    }
}

/// A number of bytes in the largest unit that leaves nothing over, or rounded.
struct Size(u64);

impl Display for Size {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        const UNITS: [(u32, &str); 3] = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        let found = UNITS.iter().find(|(bits, _)| self.0 >> bits > 0);
        match found {
            Some((bits, unit)) if self.0.trailing_zeros() >= *bits => {
                write!(f, "{} {unit}", self.0 >> bits)
            }
            Some((bits, unit)) => {
                write!(f, "{:.1} {unit}", self.0 as f64 / (1u64 << bits) as f64)
            }
            None => write!(f, "{} bytes", self.0),
        }
    }
}

/// CRC-32 as zlib has it.
fn crc32(bytes: &[u8]) -> u32 {
    !crc32_le(!0, bytes)
}

fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from(le16(bytes, at)) | u32::from(le16(bytes, at + 2)) << 16
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from(le32(bytes, at)) | u64::from(le32(bytes, at + 4)) << 32
}

/// Recognises the content of each partition.
fn look_inside(src: &dyn BlockSource, partitions: &mut [Partition], holds: Holds<'_>) {
    let size = src.size_bytes();
    for part in partitions {
        if let Some(volume) = holds(src, part.start) {
            part.holds = Some(volume.to_string());
            part.is_volume = true;
            part.label = volume.label;
        } else if part.start >= size {
            part.holds = Some("behind the end of this file".to_owned());
        } else {
            let bytes = part.bytes.min(size - part.start);
            part.holds = word_for(src, part.start, bytes).map(str::to_owned);
        }
    }
}

/// A GPT's header, verified.
struct Header {
    entries: u64,
    count: u64,
    entry_bytes: u64,
    sum: u32,
}

const SIGNATURE: &[u8] = b"EFI PART";

fn header(src: &dyn BlockSource, at: u64, sector: u64) -> Option<Header> {
    const FIELDS: u64 = 92;
    let bytes = read(src, at, sector)?;
    let len = u64::from(le32(&bytes, 12));
    if !bytes.starts_with(SIGNATURE) || !(FIELDS..=sector).contains(&len) {
        return None;
    }
    let mut summed = bytes[..len as usize].to_vec();
    summed[16..20].fill(0);
    let entry_bytes = u64::from(le32(&bytes, 84));
    let is_right = crc32(&summed) == le32(&bytes, 16)
        && le64(&bytes, 24).checked_mul(sector) == Some(at)
        && entry_bytes >= 128
        && entry_bytes.is_multiple_of(8);
    is_right.then_some(Header {
        entries: le64(&bytes, 72).checked_mul(sector)?,
        count: le32(&bytes, 80).into(),
        entry_bytes,
        sum: le32(&bytes, 88),
    })
}

/// The partitions that a header leads to, and whether their sum is right.
fn entries(src: &dyn BlockSource, header: &Header, sector: u64) -> Option<(Vec<Partition>, bool)> {
    let len = header.count.checked_mul(header.entry_bytes)?;
    let bytes = read(src, header.entries, len.min(ENTRY_BYTES_MAX))?;
    let is_right = len <= ENTRY_BYTES_MAX && crc32(&bytes) == header.sum;
    let mut found = Vec::new();
    for (entry, number) in bytes.chunks_exact(header.entry_bytes as usize).zip(1..) {
        let (first, last) = (le64(entry, 32), le64(entry, 40));
        let Some(kind) = gpt_kind(entry) else {
            continue;
        };
        let start = first.checked_mul(sector);
        let sectors = last.checked_sub(first).and_then(|n| n.checked_add(1));
        let bytes = sectors.and_then(|n| n.checked_mul(sector));
        if let (Some(start), Some(bytes)) = (start, bytes)
            && found.len() < PARTITIONS_MAX
        {
            found.push(Partition {
                number,
                start,
                bytes,
                kind,
                name: gpt_name(&entry[56..128]),
                holds: None,
                is_volume: false,
                label: String::new(),
                map: None,
            });
        }
    }
    Some((found, is_right))
}

fn gpt_name(utf16: &[u8]) -> String {
    let units = utf16.chunks_exact(2).map(|unit| le16(unit, 0));
    let units: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
    let shown = |c: char| if c.is_control() { '?' } else { c };
    String::from_utf16_lossy(&units)
        .chars()
        .map(shown)
        .collect()
}

/// A GPT, if there is one: by its first header, else by the copy at the end.
pub(super) fn gpt(src: &dyn BlockSource, holds: Holds<'_>) -> Option<Table> {
    let mut flawed = None;
    for sector in SECTORS {
        let Some(end) = src.size_bytes().checked_sub(sector) else {
            continue;
        };
        let copies = [
            (sector, None),
            (
                end / sector * sector,
                Some(Cow::Borrowed("whose first copy is damaged")),
            ),
        ];
        for (at, flaw) in copies {
            let Some(header) = header(src, at, sector) else {
                continue;
            };
            let Some((mut partitions, is_right)) = entries(src, &header, sector) else {
                continue;
            };
            look_inside(src, &mut partitions, holds);
            let table = |flaw, partitions| Table {
                scheme: "GPT",
                flaw,
                partitions,
                base: 0,
                has_places: true,
            };
            if is_right {
                return Some(table(flaw, partitions));
            }
            let flaw = Some(Cow::Borrowed("whose list has a wrong checksum"));
            flawed.get_or_insert_with(|| table(flaw, partitions));
        }
    }
    flawed.or_else(|| {
        let there = |sector| read(src, sector, 8).is_some_and(|bytes| bytes == SIGNATURE);
        SECTORS.into_iter().any(there).then(|| Table {
            scheme: "GPT",
            flaw: Some(Cow::Borrowed("which is damaged (gdisk can repair it)")),
            partitions: Vec::new(),
            base: 0,
            has_places: true,
        })
    })
}

/// An entry of an MBR or of a link in the chain of logical partitions, in sectors.
#[derive(Clone, Copy)]
struct Entry {
    kind: u8,
    first: u64,
    sectors: u64,
}

const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
const PROTECTIVE: u8 = 0xee;

/// The four entries of a sector that has a table; `None` where what is there is none.
fn mbr_entries(sector: &[u8]) -> Option<[Entry; 4]> {
    const TABLE: usize = 446;
    if sector.get(510..512)? != [0x55, 0xaa] {
        return None;
    }
    let entry = |i: usize| &sector[TABLE + 16 * i..TABLE + 16 * (i + 1)];
    // Boot sectors of file systems have the same signature and code in this place.
    if (0..4).any(|i| !matches!(entry(i)[0], 0 | 0x80)) {
        return None;
    }
    Some([0, 1, 2, 3].map(|i| Entry {
        kind: entry(i)[4],
        first: le32(entry(i), 8).into(),
        sectors: le32(entry(i), 12).into(),
    }))
}

/// An MBR, if there is one that lists anything.
pub(super) fn mbr(src: &dyn BlockSource, holds: Holds<'_>) -> Option<Table> {
    let first = mbr_entries(&read(src, 0, 512)?)?;
    let used: Vec<&Entry> = first.iter().filter(|entry| entry.kind != 0).collect();
    let size = src.size_bytes();
    let is_possible = |entry: &&Entry| entry.sectors > 0 && entry.first > 0;
    if used.is_empty() || !used.iter().all(is_possible) {
        return None;
    }
    if used.iter().any(|entry| entry.kind == PROTECTIVE) && used.len() == 1 {
        return Some(Table {
            scheme: "GPT",
            flaw: Some(Cow::Borrowed(
                "which is damaged or missing (gdisk can repair it)",
            )),
            partitions: Vec::new(),
            base: 0,
            has_places: true,
        });
    }
    // An MBR does not record the sector size: 4096 is used if only that leads to volumes.
    let mut tables = SECTORS.map(|sector| {
        let mut partitions = mbr_partitions(src, &first, sector);
        look_inside(src, &mut partitions, holds);
        partitions
    });
    let is_volume = |part: &Partition| part.is_volume;
    let long = tables[1].iter().any(is_volume) && !tables[0].iter().any(is_volume);
    let partitions = std::mem::take(&mut tables[usize::from(long)]);
    partitions
        .iter()
        .any(|part| part.start < size)
        .then_some(Table {
            scheme: "MBR",
            flaw: None,
            partitions,
            base: 0,
            has_places: true,
        })
}

fn mbr_partitions(src: &dyn BlockSource, first: &[Entry; 4], sector: u64) -> Vec<Partition> {
    let partition = |number: u32, start: u64, entry: &Entry| Partition {
        number,
        start: start.saturating_mul(sector),
        bytes: entry.sectors.saturating_mul(sector),
        kind: mbr_kind(entry.kind),
        name: String::new(),
        holds: None,
        is_volume: false,
        label: String::new(),
        map: None,
    };
    let mut found = Vec::new();
    let mut extended = None;
    for (entry, number) in first.iter().zip(1..) {
        if EXTENDED.contains(&entry.kind) {
            extended.get_or_insert(entry.first);
        } else if entry.kind != 0 {
            found.push(partition(number, entry.first, entry));
        }
    }
    let Some(base) = extended else {
        return found;
    };
    // Each link names a partition from its own place and the next link from the extended partition's.
    let mut seen = BTreeSet::new();
    let mut link = Some(base);
    let mut number = 5;
    while let Some(at) = link.filter(|at| found.len() < PARTITIONS_MAX && seen.insert(*at)) {
        let bytes = read(src, at.saturating_mul(sector), 512);
        let Some(entries) = bytes.as_deref().and_then(mbr_entries) else {
            break;
        };
        let is_link = |entry: &&Entry| EXTENDED.contains(&entry.kind);
        for entry in entries
            .iter()
            .filter(|entry| entry.kind != 0 && !is_link(entry))
        {
            found.push(partition(number, at + entry.first, entry));
            number += 1;
        }
        link = entries.iter().find(is_link).map(|entry| base + entry.first);
    }
    found
}

fn mbr_kind(kind: u8) -> String {
    let name = match kind {
        0x01 | 0x04 | 0x06 | 0x0e => "FAT",
        0x07 => "NTFS or exFAT",
        0x0b | 0x0c => "FAT32",
        0x27 => "Windows recovery",
        0x82 => "Linux swap",
        0x83 => "Linux",
        0x8e => "Linux LVM",
        0xa5 => "FreeBSD",
        0xa6 => "OpenBSD",
        0xaf => "Apple HFS+",
        0xda => "data",
        0xef => "EFI system",
        0xfd => "Linux RAID",
        _ => return format!("type {kind:#04x}"),
    };
    name.to_owned()
}

/// Types of GPT partitions as their GUIDs are written.
const GPT_KINDS: &[(&str, &str)] = &[
    ("c12a7328-f81f-11d2-ba4b-00a0c93ec93b", "EFI system"),
    ("21686148-6449-6e6f-744e-656564454649", "BIOS boot"),
    ("0fc63daf-8483-4772-8e79-3d69d8477de4", "Linux"),
    ("0657fd6d-a4ab-43c4-84e5-0933c84b4f4f", "Linux swap"),
    ("e6d6d379-f507-44c2-a23c-238f2a3df928", "Linux LVM"),
    ("a19d880f-05fc-4d3b-a006-743f0f84911e", "Linux RAID"),
    ("ca7d7ccb-63ed-4c53-861c-1742536059cc", "Linux LUKS"),
    ("bc13c2ff-59e6-4262-a352-b275fd6f7172", "Linux boot"),
    ("933ac7e1-2eb4-4f13-b844-0e14e2aef915", "Linux home"),
    (
        "4f68bce3-e8cd-4db1-96e7-fbcaf984b709",
        "Linux root (x86-64)",
    ),
    ("44479540-f297-41b2-9af7-d131d5f0458a", "Linux root (x86)"),
    ("b921b045-1df0-41c3-af44-4c6f280d3fae", "Linux root (arm64)"),
    ("69dad710-2ce4-4e3c-b16c-21a1d49abed3", "Linux root (arm)"),
    ("ebd0a0a2-b9e5-4433-87c0-68b6b72699c7", "Microsoft data"),
    ("e3c9e316-0b5c-4db8-817d-f92df00215ae", "Microsoft reserved"),
    ("de94bba4-06d1-4d40-a16a-bfd50179d6ac", "Windows recovery"),
    ("48465300-0000-11aa-aa11-00306543ecac", "Apple HFS+"),
    ("7c3457ef-0000-11aa-aa11-00306543ecac", "Apple APFS"),
    ("fe3a2a5d-4f32-41a7-b725-accc3285a309", "ChromeOS kernel"),
    ("3cb8e202-3b7e-47dd-8a3c-7ff2a13cfcec", "ChromeOS root"),
];

/// The type of an entry; `None` for one that is not in use.
fn gpt_kind(entry: &[u8]) -> Option<String> {
    if entry[..16].iter().all(|&byte| byte == 0) {
        return None;
    }
    let tail: String = entry[8..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let guid = format!(
        "{:08x}-{:04x}-{:04x}-{}-{}",
        le32(entry, 0),
        le16(entry, 4),
        le16(entry, 6),
        &tail[..4],
        &tail[4..]
    );
    let known = GPT_KINDS.iter().find(|(known, _)| *known == guid);
    Some(known.map_or(guid.clone(), |(_, name)| (*name).to_owned()))
}
