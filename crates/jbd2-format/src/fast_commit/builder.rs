//! Writes fast-commit areas, valid and invalid ones, for tests.

use steadfs_base::Tid;
use steadfs_base::checksum::crc32c;

use super::{HEAD, PAD, TAG_LEN, TAIL};

/// An area that is being written.
pub struct FastCommitBuilder {
    tid: Tid,
    block_size: usize,
    bytes: Vec<u8>,
    /// First byte of the fast commit that is being written.
    start: usize,
}

impl FastCommitBuilder {
    /// An area of transaction `tid` that begins with a head.
    pub fn new(tid: Tid, block_size: usize) -> Self {
        let mut builder = Self {
            tid,
            block_size,
            bytes: Vec::new(),
            start: 0,
        };
        let head = [0u32.to_le_bytes(), tid.0.to_le_bytes()].concat();
        builder.tag(HEAD, &head);
        builder
    }

    /// An area without a head.
    pub fn headless(tid: Tid, block_size: usize) -> Self {
        Self {
            tid,
            block_size,
            bytes: Vec::new(),
            start: 0,
        }
    }

    /// Adds a tag; pads to the next block first if it does not fit.
    pub fn tag(&mut self, tag: u16, value: &[u8]) -> &mut Self {
        let left = self.block_size - self.bytes.len() % self.block_size;
        if left < value.len() + 2 * TAG_LEN {
            self.raw(PAD, &vec![0; left - TAG_LEN]);
        }
        self.raw(tag, value);
        self
    }

    /// Adds an add-range tag of a written extent.
    pub fn add_range(&mut self, ino: u32, block: u32, len: u16, start: u32) -> &mut Self {
        let words = [ino.to_le_bytes(), block.to_le_bytes()].concat();
        let high = 0u16.to_le_bytes();
        let value = [&words[..], &len.to_le_bytes(), &high, &start.to_le_bytes()].concat();
        self.tag(super::ADD_RANGE, &value)
    }

    /// Adds a delete-range tag.
    pub fn del_range(&mut self, ino: u32, first: u32, count: u32) -> &mut Self {
        let value = [ino, first, count].map(u32::to_le_bytes).concat();
        self.tag(super::DEL_RANGE, &value)
    }

    /// Adds a tag of a name: type 3 (create), 4 (link) or 5 (unlink).
    pub fn name(&mut self, tag: u16, parent: u32, ino: u32, name: &[u8]) -> &mut Self {
        let words = [parent, ino].map(u32::to_le_bytes).concat();
        self.tag(tag, &[&words[..], name].concat())
    }

    /// Adds an inode tag.
    pub fn inode(&mut self, ino: u32, raw: &[u8]) -> &mut Self {
        self.tag(super::INODE, &[&ino.to_le_bytes()[..], raw].concat())
    }

    /// Ends the fast commit; the next one begins in the next block.
    pub fn tail(&mut self) -> &mut Self {
        self.tail_with(self.tid, 0)
    }

    /// Ends the fast commit with another transaction's number, and a checksum that is wrong by `flip`.
    pub fn tail_with(&mut self, tid: Tid, flip: u32) -> &mut Self {
        let left = self.block_size - self.bytes.len() % self.block_size;
        if left < TAG_LEN + 8 {
            self.raw(PAD, &vec![0; left - TAG_LEN]);
        }
        let left = self.block_size - self.bytes.len() % self.block_size;
        let len = u16::try_from(left - TAG_LEN).expect("a block of less than 64 KiB");
        self.bytes.extend(TAIL.to_le_bytes());
        self.bytes.extend(len.to_le_bytes());
        self.bytes.extend(tid.0.to_le_bytes());
        let sum = crc32c(0, &self.bytes[self.start..]);
        self.bytes.extend((sum ^ flip).to_le_bytes());
        let end = self.bytes.len().next_multiple_of(self.block_size);
        self.bytes.resize(end, 0);
        self.start = end;
        self
    }

    /// The area's bytes, whole blocks.
    pub fn finish(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.resize(bytes.len().next_multiple_of(self.block_size), 0);
        bytes
    }

    fn raw(&mut self, tag: u16, value: &[u8]) {
        let len = u16::try_from(value.len()).expect("a length has 16 bits");
        self.bytes.extend(tag.to_le_bytes());
        self.bytes.extend(len.to_le_bytes());
        self.bytes.extend(value);
    }
}
