//! Descriptor blocks: the home locations of the log blocks that follow.

use steadfs_base::endian::{Be16, Be32};
use steadfs_base::{DevBlock, Tid};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Checksum, Format, Header, block_type};

pub(crate) const TAG_V1_LEN: usize = 8;
pub(crate) const TAG_V1_WIDE_LEN: usize = 12;
pub(crate) const TAG_V3_LEN: usize = 16;
pub(crate) const UUID_LEN: usize = 16;
const HEADER_LEN: usize = 12;

/// The logged block's first word was the magic and is zeroed in the log (`JBD2_FLAG_ESCAPE`).
const ESCAPED: u16 = 1;
/// No UUID follows the tag (`JBD2_FLAG_SAME_UUID`).
const SAME_UUID: u16 = 2;
/// The block's last tag (`JBD2_FLAG_LAST_TAG`). `JBD2_FLAG_DELETED` (4) has no meaning: no implementation
/// writes it, and all replay such a block.
const LAST: u16 = 8;

/// Tag of journals without CSUM_V3 (`journal_block_tag_s`), its high word only with 64BIT.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawTagV1 {
    block: Be32,
    checksum: Be16,
    flags: Be16,
    block_high: Be32,
}

const _: () = assert!(size_of::<RawTagV1>() == TAG_V1_WIDE_LEN);

/// Tag of journals with CSUM_V3 (`journal_block_tag3_s`).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawTagV3 {
    block: Be32,
    flags: Be32,
    block_high: Be32,
    checksum: Be32,
}

const _: () = assert!(size_of::<RawTagV3>() == TAG_V3_LEN);

/// The checksum of the block in its tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TagSum {
    /// The journal has no checksums in tags.
    None,
    /// Low 16 bits of the CRC-32C.
    Low16(u16),
    /// The CRC-32C.
    Full(u32),
}

impl TagSum {
    /// Whether a block with checksum `sum` matches the tag.
    pub fn matches(self, sum: u32) -> bool {
        match self {
            Self::None => true,
            Self::Low16(low) => low == low16(sum),
            Self::Full(full) => full == sum,
        }
    }
}

/// One logged block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    /// Its home location.
    pub block: DevBlock,
    /// Its first word is the magic, which is stored as zero in the log.
    pub escaped: bool,
    /// Its checksum.
    pub sum: TagSum,
}

const fn low16(sum: u32) -> u16 {
    let [_, _, high, low] = sum.to_be_bytes();
    u16::from_be_bytes([high, low])
}

/// The tags of a descriptor block. A descriptor without a last tag ends where the next tag does not fit,
/// as in every implementation.
pub fn parse_tags(format: &Format, block: &[u8]) -> Vec<Tag> {
    let end = block.len() - format.tail_len();
    let mut at = HEADER_LEN;
    let mut tags = Vec::new();
    while let Some(raw) = block[..end].get(at..at + format.tag_len()) {
        let (tag, flags) = parse_tag(format, raw);
        tags.push(tag);
        at += format.tag_len();
        if flags & SAME_UUID == 0 {
            at += UUID_LEN;
        }
        if flags & LAST != 0 || at >= end {
            break;
        }
    }
    tags
}

fn parse_tag(format: &Format, raw: &[u8]) -> (Tag, u16) {
    let mut wide = [0; TAG_V3_LEN];
    if format.checksum == Checksum::V3 {
        wide.copy_from_slice(raw);
        let raw: RawTagV3 = zerocopy::transmute!(wide);
        let flags = low16(raw.flags.get());
        let high = if format.wide { raw.block_high.get() } else { 0 };
        let sum = TagSum::Full(raw.checksum.get());
        return (tag_of(raw.block.get(), high, flags, sum), flags);
    }
    let len = if format.wide {
        TAG_V1_WIDE_LEN
    } else {
        TAG_V1_LEN
    };
    wide[..len].copy_from_slice(&raw[..len]);
    let (raw, _) = RawTagV1::read_from_prefix(&wide).expect("16 bytes hold a tag of 12");
    let sum = match format.checksum {
        Checksum::V2 => TagSum::Low16(raw.checksum.get()),
        _ => TagSum::None,
    };
    let flags = raw.flags.get();
    (
        tag_of(raw.block.get(), raw.block_high.get(), flags, sum),
        flags,
    )
}

fn tag_of(low: u32, high: u32, flags: u16, sum: TagSum) -> Tag {
    Tag {
        block: DevBlock(u64::from(high) << 32 | u64::from(low)),
        escaped: flags & ESCAPED != 0,
        sum,
    }
}

/// Builds one descriptor block.
pub struct DescriptorBuilder<'a> {
    format: &'a Format,
    block: &'a mut [u8],
    at: usize,
    last_flags_at: Option<usize>,
}

impl<'a> DescriptorBuilder<'a> {
    /// Starts a descriptor of transaction `tid` in `block`, which is all zeros.
    pub fn new(format: &'a Format, tid: Tid, block: &'a mut [u8]) -> Self {
        assert_eq!(
            block.len(),
            format.block_size.bytes(),
            "a descriptor is one log block"
        );
        let header = Header::new(block_type::DESCRIPTOR, tid);
        block[..HEADER_LEN].copy_from_slice(header.as_bytes());
        Self {
            format,
            block,
            at: HEADER_LEN,
            last_flags_at: None,
        }
    }

    /// Adds a tag. The caller adds at most [`Format::tags_per_descriptor`]. `sum` is the checksum of
    /// the block as stored in the log; journals without sealed blocks ignore it.
    pub fn push(&mut self, home: DevBlock, escaped: bool, sum: u32) {
        let first = self.last_flags_at.is_none();
        let mut flags = if escaped { ESCAPED } else { 0 };
        if !first {
            flags |= SAME_UUID;
        }
        let high = u32::try_from(home.0 >> 32).expect("the upper half of 64 bits has 32");
        let low = u32::try_from(home.0 & 0xFFFF_FFFF).expect("masked to 32 bits");
        assert!(high == 0 || self.format.wide, "the number fits the tag");
        let slot = &mut self.block[self.at..self.at + self.format.tag_len()];
        if self.format.checksum == Checksum::V3 {
            let raw = RawTagV3 {
                block: Be32::new(low),
                flags: Be32::new(u32::from(flags)),
                block_high: Be32::new(high),
                checksum: Be32::new(sum),
            };
            slot.copy_from_slice(raw.as_bytes());
            self.last_flags_at = Some(self.at + 6);
        } else {
            let checksum = match self.format.checksum {
                Checksum::V2 => low16(sum),
                _ => 0,
            };
            let raw = RawTagV1 {
                block: Be32::new(low),
                checksum: Be16::new(checksum),
                flags: Be16::new(flags),
                block_high: Be32::new(high),
            };
            let len = slot.len().min(TAG_V1_WIDE_LEN);
            let len = if self.format.wide { len } else { TAG_V1_LEN };
            slot[..len].copy_from_slice(&raw.as_bytes()[..len]);
            self.last_flags_at = Some(self.at + 6);
        }
        self.at += self.format.tag_len();
        if first {
            self.block[self.at..self.at + UUID_LEN].copy_from_slice(&self.format.uuid);
            self.at += UUID_LEN;
        }
    }

    /// Marks the last tag and seals the block.
    pub fn finish(self) {
        let at = self
            .last_flags_at
            .expect("a descriptor lists at least one block");
        // The flags' low byte is the second of the two, in all tag versions.
        let [_, last] = LAST.to_be_bytes();
        self.block[at + 1] |= last;
        self.format.seal(self.block);
    }
}
