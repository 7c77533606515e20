//! The writer of fast commits: the inverse of the scan.
//!
//! A tag never crosses a block. Behind each tag a block has room for one more tag's header and a byte, so the rest can
//! be padding: readers differ on whether a pad of no bytes at the very end of a block belongs to the checksum.

use steadfs_base::Tid;
use steadfs_base::checksum::crc32c;

use super::{
    ADD_RANGE, CREATE, DEL_RANGE, FastCommitChange, HEAD, INODE, LINK, NameChange, PAD, TAG_LEN,
    TAIL, UNLINK,
};

/// Bytes of a tail's value before the rest of its block: the transaction and the checksum.
const TAIL_LEN: usize = 8;

/// The blocks of one fast commit of transaction `tid`, as bytes; `is_first`: the first one of the transaction, which
/// begins the area with a head. `None`: a change does not fit a block.
pub fn encode_fast_commit(
    tid: Tid,
    block_size: usize,
    is_first: bool,
    changes: &[FastCommitChange],
) -> Option<Vec<u8>> {
    let mut writer = TagWriter::new(block_size);
    if is_first {
        writer.head(tid);
    }
    for change in changes {
        let (tag, value) = value_of(change);
        if !writer.tag(tag, &value) {
            return None;
        }
    }
    writer.tail(tid, 0);
    Some(writer.bytes)
}

/// Type and value of a change's tag.
fn value_of(change: &FastCommitChange) -> (u16, Vec<u8>) {
    match change {
        FastCommitChange::AddRange { ino, extent } => {
            (ADD_RANGE, [&ino.to_le_bytes()[..], extent].concat())
        }
        FastCommitChange::DelRange { ino, first, count } => {
            let words = [ino, first, count].map(|word| word.to_le_bytes());
            (DEL_RANGE, words.concat())
        }
        FastCommitChange::Name {
            change,
            parent,
            ino,
            name,
        } => {
            let tag = match change {
                NameChange::Create => CREATE,
                NameChange::Link => LINK,
                NameChange::Unlink => UNLINK,
            };
            let words = [parent, ino].map(|word| word.to_le_bytes());
            (tag, [words.as_flattened(), name].concat())
        }
        FastCommitChange::Inode { ino, raw } => (INODE, [&ino.to_le_bytes()[..], raw].concat()),
    }
}

/// Writes tags into blocks.
pub(super) struct TagWriter {
    block_size: usize,
    pub(super) bytes: Vec<u8>,
    /// First byte of the fast commit that is being written.
    start: usize,
}

impl TagWriter {
    pub(super) fn new(block_size: usize) -> Self {
        Self {
            block_size,
            bytes: Vec::new(),
            start: 0,
        }
    }

    /// Adds the head of the area.
    pub(super) fn head(&mut self, tid: Tid) {
        // No features.
        let head = [0, tid.0].map(u32::to_le_bytes);
        let fits = self.tag(HEAD, head.as_flattened());
        assert!(fits, "a head fits every block");
    }

    /// Adds a tag, in the next block if it does not fit this one. False: it does not fit any.
    #[must_use]
    pub(super) fn tag(&mut self, tag: u16, value: &[u8]) -> bool {
        let len = value.len() + 2 * TAG_LEN;
        if len >= self.block_size {
            return false;
        }
        if self.left() <= len {
            self.pad();
        }
        self.raw(tag, value);
        true
    }

    /// Ends the fast commit; the next one begins in the next block. The checksum is wrong by `flip`.
    pub(super) fn tail(&mut self, tid: Tid, flip: u32) {
        if self.left() <= TAIL_LEN + 2 * TAG_LEN {
            self.pad();
        }
        let end = self.bytes.len() + self.left();
        let len = u16::try_from(self.left() - TAG_LEN).expect("a block has at most 64 KiB");
        self.bytes.extend(TAIL.to_le_bytes());
        self.bytes.extend(len.to_le_bytes());
        self.bytes.extend(tid.0.to_le_bytes());
        let sum = crc32c(0, &self.bytes[self.start..]);
        self.bytes.extend((sum ^ flip).to_le_bytes());
        self.bytes.resize(end, 0);
        self.start = end;
    }

    /// Bytes left in the block that the next tag begins in.
    fn left(&self) -> usize {
        self.block_size - self.bytes.len() % self.block_size
    }

    /// Fills the rest of the block.
    fn pad(&mut self) {
        self.raw(PAD, &vec![0; self.left() - TAG_LEN]);
    }

    fn raw(&mut self, tag: u16, value: &[u8]) {
        let len = u16::try_from(value.len()).expect("a length has 16 bits");
        self.bytes.extend(tag.to_le_bytes());
        self.bytes.extend(len.to_le_bytes());
        self.bytes.extend(value);
    }
}
