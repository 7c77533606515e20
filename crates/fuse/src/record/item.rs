//! The records of the log: what they state, and their bytes.
//!
//! **Rule.** A record is a list of items, and an item states what an object is like now, or a change of contents that can
//! be repeated on top of itself. Little-endian, without padding; a reader that finds anything else ignores the record.

use std::ops::Range;

use steadfs_base::{InodeNo, Timestamp};
use steadfs_vfs::{Attr, FallocMode, FileKind, FsxAttr, InodeFlags};

/// The state of an inode, without contents and extended attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InodeState {
    /// The call made it: nothing that was recorded of this number before is of this inode.
    pub is_new: bool,
    /// `blocks` and `block_size` are not kept.
    pub attr: Attr,
    pub flags: FsxAttr,
}

/// One statement of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item<'a> {
    Inode(InodeState),
    /// The target of a symbolic link.
    Target(InodeNo, &'a [u8]),
    /// The inode that a name in a directory leads to.
    Name(InodeNo, &'a [u8], Option<InodeNo>),
    /// An extended attribute.
    Xattr(InodeNo, &'a [u8], Option<&'a [u8]>),
    /// These bytes were written at this offset.
    Bytes(InodeNo, u64, &'a [u8]),
    /// The file was cut or extended to this size.
    Size(InodeNo, u64),
    /// A range of bytes was allocated, punched or zeroed.
    Range(InodeNo, FallocMode, u64, u64),
    /// The request with this number was carried out and is answered with these bytes. A later answer of the same slot is
    /// of a request that began after this one was answered.
    Answer {
        slot: u64,
        unique: u64,
        reply: &'a [u8],
    },
}

const INODE: u8 = 1;
const TARGET: u8 = 2;
const NAME: u8 = 3;
const XATTR: u8 = 4;
const BYTES: u8 = 5;
const SIZE: u8 = 6;
const RANGE: u8 = 7;
const ANSWER: u8 = 8;

/// Bits of an inode's first byte.
const IS_NEW: u8 = 1;
const HAS_BIRTH: u8 = 2;

/// Modes of a range by their number in a record.
const MODES: [FallocMode; 5] = [
    FallocMode::Allocate { keep_size: false },
    FallocMode::Allocate { keep_size: true },
    FallocMode::PunchHole,
    FallocMode::ZeroRange { keep_size: false },
    FallocMode::ZeroRange { keep_size: true },
];

/// Whether the effect of this mode can be repeated on top of itself.
pub(crate) fn is_repeatable(mode: FallocMode) -> bool {
    MODES.contains(&mode)
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = u32::try_from(bytes.len()).expect("a request has at most 1 MiB");
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(bytes);
}

fn put_time(out: &mut Vec<u8>, time: Timestamp) {
    out.extend_from_slice(&time.secs.to_le_bytes());
    out.extend_from_slice(&time.nanos.to_le_bytes());
}

fn put_option(out: &mut Vec<u8>, is_some: bool) {
    out.push(u8::from(is_some));
}

impl InodeState {
    fn encode(&self, out: &mut Vec<u8>) {
        let attr = &self.attr;
        let birth = if attr.btime.is_some() { HAS_BIRTH } else { 0 };
        let new = if self.is_new { IS_NEW } else { 0 };
        out.push(new | birth);
        for word in [
            attr.generation,
            attr.kind.mode_bits() | attr.perm,
            attr.nlink,
            attr.uid,
            attr.gid,
            attr.rdev,
            self.flags.flags.0,
            self.flags.project,
        ] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&attr.size.to_le_bytes());
        for time in [attr.atime, attr.mtime, attr.ctime] {
            put_time(out, time);
        }
        if let Some(time) = attr.btime {
            put_time(out, time);
        }
    }
}

impl Item<'_> {
    /// Appends it to `out`.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Inode(ref state) => {
                head(out, INODE, state.attr.ino);
                state.encode(out);
            }
            Self::Target(ino, target) => {
                head(out, TARGET, ino);
                put_bytes(out, target);
            }
            Self::Name(dir, name, ino) => {
                head(out, NAME, dir);
                put_option(out, ino.is_some());
                out.extend_from_slice(&ino.map_or(0, |ino| ino.0).to_le_bytes());
                put_bytes(out, name);
            }
            Self::Xattr(ino, name, value) => {
                head(out, XATTR, ino);
                put_bytes(out, name);
                put_option(out, value.is_some());
                put_bytes(out, value.unwrap_or_default());
            }
            Self::Bytes(ino, offset, bytes) => {
                encode_bytes_head(out, ino, offset, bytes.len());
                out.extend_from_slice(bytes);
            }
            Self::Size(ino, size) => {
                head(out, SIZE, ino);
                out.extend_from_slice(&size.to_le_bytes());
            }
            Self::Range(ino, mode, offset, len) => {
                head(out, RANGE, ino);
                let number = MODES.iter().position(|one| *one == mode);
                let number = number.expect("other modes are refused");
                out.push(number as u8);
                out.extend_from_slice(&offset.to_le_bytes());
                out.extend_from_slice(&len.to_le_bytes());
            }
            Self::Answer {
                slot,
                unique,
                reply,
            } => {
                head(out, ANSWER, InodeNo(slot));
                out.extend_from_slice(&unique.to_le_bytes());
                put_bytes(out, reply);
            }
        }
    }
}

fn head(out: &mut Vec<u8>, kind: u8, ino: InodeNo) {
    out.push(kind);
    out.extend_from_slice(&ino.0.to_le_bytes());
}

/// Appends an [`Item::Bytes`] without its last part, the bytes.
pub(super) fn encode_bytes_head(out: &mut Vec<u8>, ino: InodeNo, offset: u64, len: usize) {
    head(out, BYTES, ino);
    out.extend_from_slice(&offset.to_le_bytes());
    let len = u32::try_from(len).expect("a request has at most 1 MiB");
    out.extend_from_slice(&len.to_le_bytes());
}

/// Reads items.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, range: Range<usize>) -> Option<&'a [u8]> {
        let taken = self.0.get(range.clone())?;
        self.0 = &self.0[range.end..];
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(0..N)?.try_into().ok()
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn word(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.word()? as usize;
        self.take(0..len)
    }

    fn time(&mut self) -> Option<Timestamp> {
        let secs = i64::from_le_bytes(self.array()?);
        let nanos = self.word()?;
        Some(Timestamp { secs, nanos })
    }

    fn inode(&mut self, ino: InodeNo) -> Option<InodeState> {
        let bits = self.byte()?;
        let generation = self.word()?;
        let mode = self.word()?;
        let (nlink, uid, gid, rdev) = (self.word()?, self.word()?, self.word()?, self.word()?);
        let flags = FsxAttr {
            flags: InodeFlags(self.word()?),
            project: self.word()?,
            extents: 0,
        };
        let size = self.long()?;
        let (atime, mtime, ctime) = (self.time()?, self.time()?, self.time()?);
        let btime = match bits & HAS_BIRTH != 0 {
            true => Some(self.time()?),
            false => None,
        };
        let attr = Attr {
            ino,
            generation,
            kind: FileKind::from_mode(mode)?,
            perm: mode & 0o7777,
            nlink,
            uid,
            gid,
            rdev,
            size,
            blocks: 0,
            block_size: 0,
            atime,
            mtime,
            ctime,
            btime,
            flags: flags.flags,
        };
        Some(InodeState {
            is_new: bits & IS_NEW != 0,
            attr,
            flags,
        })
    }

    fn item(&mut self) -> Option<Item<'a>> {
        let kind = self.byte()?;
        let ino = InodeNo(self.long()?);
        Some(match kind {
            INODE => Item::Inode(self.inode(ino)?),
            TARGET => Item::Target(ino, self.bytes()?),
            NAME => {
                let is_some = self.byte()? != 0;
                let to = InodeNo(self.long()?);
                Item::Name(ino, self.bytes()?, is_some.then_some(to))
            }
            XATTR => {
                let name = self.bytes()?;
                let is_some = self.byte()? != 0;
                let value = self.bytes()?;
                Item::Xattr(ino, name, is_some.then_some(value))
            }
            BYTES => {
                let offset = self.long()?;
                Item::Bytes(ino, offset, self.bytes()?)
            }
            SIZE => Item::Size(ino, self.long()?),
            RANGE => {
                let mode = *MODES.get(usize::from(self.byte()?))?;
                Item::Range(ino, mode, self.long()?, self.long()?)
            }
            ANSWER => Item::Answer {
                slot: ino.0,
                unique: self.long()?,
                reply: self.bytes()?,
            },
            _ => return None,
        })
    }
}

/// The items of a record; `None`: it is not a record of this program.
pub(super) fn decode(record: &[u8]) -> Option<Vec<Item<'_>>> {
    let mut cursor = Cursor(record);
    let mut items = Vec::new();
    while !cursor.0.is_empty() {
        items.push(cursor.item()?);
    }
    Some(items)
}
