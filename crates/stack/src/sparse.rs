//! Android sparse images: a header, then chunks, each of which has blocks of the image, four bytes that fill blocks, or says
//! that blocks do not matter.
//!
//! **Problem.** Data begin at any byte of the file, and the chunk of a block is found only by reading all headers before it.
//!
//! **Rule.** All headers are read once, when the image is opened; a chunk costs at most 24 bytes of memory, and the map finds
//! it by binary search. Numbers that contradict each other or the file's length are errors. Blocks that do not matter read
//! as zeros, as simg2img writes them. Checksums cover the whole content, so they are not compared.

use steadfs_block::BlockSource;

use crate::bytes::{le16, le32, read};
use crate::map::{Map, MapError, Source};

/// First bytes of a sparse image.
const MAGIC: u32 = 0xed26_ff3a;
/// Bytes of the header in version 1.0.
const HEADER_BYTES: u64 = 28;
/// Bytes of a chunk's header in version 1.0.
const CHUNK_BYTES: u64 = 12;
/// Most chunks that are read.
const CHUNKS_MAX: u32 = Map::SEGMENTS_MAX as u32;

/// A sparse image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SparseImage {
    /// Where its content is in the file.
    pub map: Map,
    /// Whether it begins with blocks that do not matter, as the later parts of an image that was split do.
    pub begins_open: bool,
    /// Whether it ends with such blocks, as the earlier parts do.
    pub ends_open: bool,
}

/// Whether a file that begins with these bytes is a sparse image.
pub fn is_sparse(head: &[u8]) -> bool {
    head.get(..4)
        .is_some_and(|word| word == MAGIC.to_le_bytes())
}

impl SparseImage {
    /// Reads the headers of a sparse image.
    ///
    /// # Errors
    /// What is wrong with it: a sentence.
    pub fn parse(src: &dyn BlockSource) -> Result<Self, String> {
        let (mut chunks, blocks, count) = Chunks::open(src).map_err(|why| format!("it {why}"))?;
        let mut found = Self {
            map: Map::default(),
            begins_open: false,
            ends_open: false,
        };
        let mut is_first = true;
        for number in 0..count {
            let kind = chunks
                .take(&mut found.map, blocks)
                .map_err(|why| format!("its chunk {number} {why}"))?;
            if kind != Kind::Checksum {
                found.begins_open |= kind == Kind::Open && is_first;
                found.ends_open = kind == Kind::Open;
                is_first = false;
            }
        }
        let (size, expected) = (found.map.size(), blocks * chunks.block);
        match size == expected {
            true => Ok(found),
            false => Err(format!(
                "it has chunks for {size} bytes, and {expected} in its header"
            )),
        }
    }
}

/// What a chunk has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data,
    Open,
    Checksum,
}

/// The chunks that follow.
struct Chunks<'a> {
    src: &'a dyn BlockSource,
    at: u64,
    header_bytes: u64,
    block: u64,
}

impl<'a> Chunks<'a> {
    /// The chunks of an image, the number of its blocks, and that of its chunks.
    fn open(src: &'a dyn BlockSource) -> Result<(Self, u64, u32), String> {
        let header = read(src, 0, HEADER_BYTES)?;
        let (major, minor) = (le16(&header, 4), le16(&header, 6));
        if !is_sparse(&header) || major != 1 {
            return Err(format!("has version {major}.{minor}, which is not known"));
        }
        let chunks = Self {
            src,
            at: u64::from(le16(&header, 8)),
            header_bytes: u64::from(le16(&header, 10)),
            block: u64::from(le32(&header, 12)),
        };
        let (blocks, count) = (u64::from(le32(&header, 16)), le32(&header, 20));
        if chunks.at < HEADER_BYTES || chunks.header_bytes < CHUNK_BYTES {
            return Err("has headers that are too short".to_owned());
        }
        if chunks.block == 0 || !chunks.block.is_multiple_of(4) {
            return Err(format!("has blocks of {} bytes", chunks.block));
        }
        if count > CHUNKS_MAX {
            return Err(format!("has {count} chunks, more than {CHUNKS_MAX}"));
        }
        Ok((chunks, blocks, count))
    }

    /// Adds the next chunk to a map of at most `blocks` blocks.
    fn take(&mut self, map: &mut Map, blocks: u64) -> Result<Kind, String> {
        const RAW: u16 = 0xcac1;
        const FILL: u16 = 0xcac2;
        const DONT_CARE: u16 = 0xcac3;
        const CRC32: u16 = 0xcac4;
        let header = read(self.src, self.at, CHUNK_BYTES)?;
        let (kind, count) = (le16(&header, 0), u64::from(le32(&header, 4)));
        let total = u64::from(le32(&header, 8));
        let data = self.at + self.header_bytes;
        let len = count * self.block;
        let (expected, source, kind) = match kind {
            RAW => (len, Source::Below(data), Kind::Data),
            FILL => {
                let pattern = read(self.src, data, 4)?;
                let pattern = [pattern[0], pattern[1], pattern[2], pattern[3]];
                (4, Source::Fill(pattern), Kind::Data)
            }
            DONT_CARE => (0, Source::ZERO, Kind::Open),
            CRC32 => (4, Source::ZERO, Kind::Checksum),
            other => return Err(format!("has the unknown type {other:#06x}")),
        };
        if total != self.header_bytes + expected {
            let wanted = self.header_bytes + expected;
            return Err(format!("has {total} bytes where {wanted} are needed"));
        }
        let end = self.at + total;
        if end > self.src.size_bytes() {
            let size = self.src.size_bytes();
            return Err(format!("ends at byte {end}, behind the end at byte {size}"));
        }
        self.at = end;
        if kind == Kind::Checksum {
            return Ok(kind);
        }
        if len > blocks * self.block - map.size() {
            return Err("is behind the size in the header".to_owned());
        }
        map.push(len, source).map_err(|error| match error {
            MapError::TooLong => "is behind the end of any device".to_owned(),
            MapError::TooMany => "is one too many".to_owned(),
        })?;
        Ok(kind)
    }
}
