//! A transaction as log blocks.

use std::sync::Arc;

use steadfs_base::checksum::crc32_be;
use steadfs_base::{DevBlock, Tid};
use steadfs_block::Buf;
use steadfs_cache::MetaBuf;

use steadfs_jbd2_format::{Checksum, DescriptorBuilder, Format, build_revoke, needs_escape};

/// A block of a transaction, with its content at the time of the commit.
pub(crate) struct BlockSnapshot {
    pub block: DevBlock,
    /// The buffer, which stays in the cache until the block is written to its home location.
    pub buf: Arc<MetaBuf>,
    pub data: Buf,
}

/// A block as a transaction logs it.
pub(crate) trait LoggedBlock {
    /// Its home location.
    fn home(&self) -> DevBlock;
    /// Its content.
    fn data(&self) -> &Buf;
}

impl LoggedBlock for BlockSnapshot {
    fn home(&self) -> DevBlock {
        self.block
    }

    fn data(&self) -> &Buf {
        &self.data
    }
}

impl LoggedBlock for (DevBlock, Buf) {
    fn home(&self) -> DevBlock {
        self.0
    }

    fn data(&self) -> &Buf {
        &self.1
    }
}

/// A transaction's log blocks, without the commit record.
pub(crate) struct EncodedLog {
    pub blocks: Vec<Buf>,
    /// CRC-32 over descriptors and logged blocks (checksum version 1).
    pub sum: u32,
}

/// Number of log blocks that [`encode`] makes.
pub(crate) fn encoded_len(format: &Format, blocks: usize, revokes: usize) -> usize {
    blocks
        + blocks.div_ceil(format.tags_per_descriptor() as usize)
        + revokes.div_ceil(format.revokes_per_block() as usize)
}

/// Lays out revoke blocks, then descriptors, each followed by the blocks that it lists. The content of
/// blocks is shared, not copied, except for escaped ones.
pub(crate) fn encode<B: LoggedBlock>(
    format: &Format,
    tid: Tid,
    snapshot: &[B],
    revokes: &[DevBlock],
) -> EncodedLog {
    let size = format.block_size.bytes();
    let len = encoded_len(format, snapshot.len(), revokes.len());
    let mut blocks = Vec::with_capacity(len + 1);
    let mut sum = !0;
    for revoked in revokes.chunks(format.revokes_per_block() as usize) {
        let mut buf = Buf::zeroed(size);
        build_revoke(format, tid, revoked, buf.make_mut());
        blocks.push(buf);
    }
    for group in snapshot.chunks(format.tags_per_descriptor() as usize) {
        let mut logged = Vec::with_capacity(group.len());
        let mut descriptor = Buf::zeroed(size);
        let mut builder = DescriptorBuilder::new(format, tid, descriptor.make_mut());
        for snapshot in group {
            debug_assert_eq!(snapshot.data().len(), size, "a snapshot is one block");
            let escaped = needs_escape(snapshot.data());
            let mut data = snapshot.data().clone();
            if escaped {
                data.make_mut()[..4].fill(0);
            }
            let data_sum = if format.sealed() {
                format.data_sum(tid, &data)
            } else {
                0
            };
            builder.push(snapshot.home(), escaped, data_sum);
            logged.push(data);
        }
        builder.finish();
        let at = blocks.len();
        blocks.push(descriptor);
        blocks.append(&mut logged);
        if format.checksum == Checksum::V1 {
            sum = blocks[at..].iter().fold(sum, |sum, buf| crc32_be(sum, buf));
        }
    }
    assert_eq!(blocks.len(), len, "the layout is what was reserved");
    EncodedLog { blocks, sum }
}
