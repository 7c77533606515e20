//! Where things are in the file that outlives the server.
//!
//! The file has a fixed size: first the table of lookup counts, then the segments of the log. A segment begins with its
//! head; records follow each other, each with a head of its own. Nothing behind the last record with a valid head of this
//! segment is read.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwritev};
use steadfs_base::checksum::crc32c;

/// Segments of the log.
pub(super) const SEGMENTS: usize = 4;
/// Bytes of a segment's head.
pub(super) const SEGMENT_HEAD: u64 = 64;
/// Bytes of an entry of the table of lookup counts.
pub(super) const COUNT_BYTES: u64 = 16;
/// Bytes of a record's head.
pub(super) const RECORD_HEAD: usize = 32;

const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"steadlog");
/// The format of the records behind a segment's head. It changes with each change of records or items: a program of
/// another version may continue the mount, and must not take for nothing what it does not understand.
pub(super) const FORMAT: u32 = 1;
/// Checksums begin with it.
const SEED: u32 = !0;

/// Sizes of the parts of the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Entries in the table of lookup counts.
    pub counts: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
}

impl Layout {
    /// Of a mount. A segment holds several of the largest requests. Memory is used as it is written: the log takes up to
    /// 64 MiB, the table 16 bytes for each inode that the kernel knows.
    pub const MOUNT: Self = Self {
        counts: 8 << 20,
        segment_bytes: 16 << 20,
    };

    /// Where a segment begins.
    pub fn segment(self, index: usize) -> u64 {
        self.counts * COUNT_BYTES + self.segment_bytes * index as u64
    }

    /// Size of the file.
    pub fn file_bytes(self) -> u64 {
        self.segment(SEGMENTS)
    }
}

/// The file of a mount, empty and of its final size.
pub(crate) fn new_file() -> io::Result<OwnedFd> {
    new_file_of(Layout::MOUNT)
}

pub(super) fn new_file_of(layout: Layout) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("steadfs-record", flags)?;
    ftruncate(&file, layout.file_bytes())?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Writes all pieces at an offset.
pub(super) fn write_at(file: impl AsFd, offset: u64, pieces: &[&[u8]]) -> Result<(), Errno> {
    let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let wanted: usize = pieces.iter().map(|piece| piece.len()).sum();
    let written = pwritev(&file, &slices, offset)?;
    if written == wanted {
        return Ok(());
    }
    // A signal has interrupted the copy.
    let (mut at, mut skip) = (offset + written as u64, written);
    for piece in pieces {
        let from = skip.min(piece.len());
        skip -= from;
        let mut rest = &piece[from..];
        while !rest.is_empty() {
            match rustix::io::pwrite(&file, rest, at)? {
                0 => return Err(Errno::NOSPC),
                n => {
                    at += n as u64;
                    rest = &rest[n..];
                }
            }
        }
    }
    Ok(())
}

/// Reads as much as there is.
pub(super) fn read_at(file: BorrowedFd<'_>, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match pread(file, &mut bytes[done..], offset + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

/// The head of the segment with this number, which is at least 1.
pub(super) fn segment_head(number: u64) -> [u8; SEGMENT_HEAD as usize] {
    segment_head_of(number, FORMAT)
}

/// The same with records of any format. The head is the same in all of them.
pub(super) fn segment_head_of(number: u64, format: u32) -> [u8; SEGMENT_HEAD as usize] {
    let mut head = [0; SEGMENT_HEAD as usize];
    head[..8].copy_from_slice(&SEGMENT_MAGIC.to_le_bytes());
    head[8..16].copy_from_slice(&number.to_le_bytes());
    head[16..20].copy_from_slice(&format.to_le_bytes());
    let sum = crc32c(SEED, &head[..20]);
    head[20..24].copy_from_slice(&sum.to_le_bytes());
    head
}

/// The number in a segment's head, and the format of its records; `None`: the segment is free.
pub(super) fn segment_in(head: &[u8; SEGMENT_HEAD as usize]) -> Option<(u64, u32)> {
    let number = head[8..16].try_into().map_or(0, u64::from_le_bytes);
    let format = head[16..20].try_into().map_or(0, u32::from_le_bytes);
    let is_valid = number > 0 && *head == segment_head_of(number, format);
    is_valid.then_some((number, format))
}

/// A whole record, or its segment, is of another version of this program.
pub(super) const NOT_UNDERSTOOD: Errno = Errno::PROTO;

/// The head of a record: its items are in a body and, if the last one is bytes of a file, the data behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHead {
    /// Number of the segment.
    pub segment: u64,
    pub body_len: u32,
    pub data_len: u32,
    pub body_sum: u32,
    pub data_sum: u32,
}

impl RecordHead {
    pub(super) fn encode(self) -> [u8; RECORD_HEAD] {
        let mut head = [0; RECORD_HEAD];
        head[..8].copy_from_slice(&self.segment.to_le_bytes());
        let words = [self.body_len, self.data_len, self.body_sum, self.data_sum];
        for (place, word) in head[8..24].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let sum = crc32c(SEED, &head[..24]);
        head[24..28].copy_from_slice(&sum.to_le_bytes());
        head
    }

    /// `None`: there is no record.
    pub(super) fn decode(head: &[u8]) -> Option<Self> {
        let head = head.get(..RECORD_HEAD)?;
        let word = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
        let decoded = Self {
            segment: u64::from_le_bytes(head.get(..8)?.try_into().ok()?),
            body_len: word(8)?,
            data_len: word(12)?,
            body_sum: word(16)?,
            data_sum: word(20)?,
        };
        (head == decoded.encode()).then_some(decoded)
    }
}

/// The checksum of a body or of data.
pub(super) fn sum(bytes: &[u8]) -> u32 {
    crc32c(SEED, bytes)
}
