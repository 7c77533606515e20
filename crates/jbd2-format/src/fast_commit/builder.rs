//! Writes fast-commit areas, valid and invalid ones, for tests.

use steadfs_base::Tid;

use super::encode::TagWriter;

/// An area that is being written.
pub struct FastCommitBuilder {
    tid: Tid,
    block_size: usize,
    writer: TagWriter,
}

impl FastCommitBuilder {
    /// An area of transaction `tid` that begins with a head.
    pub fn new(tid: Tid, block_size: usize) -> Self {
        let mut builder = Self::headless(tid, block_size);
        builder.writer.head(tid);
        builder
    }

    /// An area without a head.
    pub fn headless(tid: Tid, block_size: usize) -> Self {
        Self {
            tid,
            block_size,
            writer: TagWriter::new(block_size),
        }
    }

    /// Adds a tag; pads to the next block first if it does not fit.
    pub fn tag(&mut self, tag: u16, value: &[u8]) -> &mut Self {
        assert!(self.writer.tag(tag, value), "tag {tag} fits no block");
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
        self.writer.tail(tid, flip);
        self
    }

    /// The area's bytes, whole blocks.
    pub fn finish(&self) -> Vec<u8> {
        let mut bytes = self.writer.bytes.clone();
        bytes.resize(bytes.len().next_multiple_of(self.block_size), 0);
        bytes
    }
}
