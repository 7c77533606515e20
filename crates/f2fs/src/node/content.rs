//! The content of a node in memory. An inode without data is a few hundred bytes and zeros: such content is kept without
//! its zeros, in chunks, until it is used as a block.

use std::sync::Arc;

use steadfs_block::Buf;

use crate::disk::BLOCK_SIZE;
use crate::disk::node::Footer;

const CHUNK: usize = 64;
/// Content with more chunks than this stays whole: it would not halve.
const MAX_CHUNKS: usize = BLOCK_SIZE / CHUNK / 2;

const _: () = assert!(BLOCK_SIZE / CHUNK == u64::BITS as usize);

/// A node's block.
#[derive(Clone)]
pub enum NodeContent {
    Whole(Buf),
    Packed(PackedBlock),
}

/// A block without the chunks that are zero.
#[derive(Clone)]
pub struct PackedBlock {
    /// One bit for each chunk of the block: whether it is here.
    present: u64,
    chunks: Arc<[u8]>,
}

impl PackedBlock {
    /// `None` if it would not be half of the block or less.
    fn of(block: &[u8]) -> Option<Self> {
        assert!(block.len() == BLOCK_SIZE, "a node is a block");
        let mut present = 0;
        for (n, chunk) in block.as_chunks::<CHUNK>().0.iter().enumerate() {
            let bits = chunk.iter().fold(0, |bits, byte| bits | byte);
            present |= u64::from(bits != 0) << n;
        }
        if present.count_ones() as usize > MAX_CHUNKS {
            return None;
        }
        let mut chunks = Vec::with_capacity(present.count_ones() as usize * CHUNK);
        for (n, chunk) in block.chunks_exact(CHUNK).enumerate() {
            if present >> n & 1 == 1 {
                chunks.extend_from_slice(chunk);
            }
        }
        debug_assert!(
            chunks.len() == present.count_ones() as usize * CHUNK,
            "each chunk that is not zero is kept"
        );
        Some(Self {
            present,
            chunks: chunks.into(),
        })
    }

    fn unpack(&self) -> Buf {
        let mut buf = Buf::zeroed(BLOCK_SIZE);
        let mut chunks = self.chunks.chunks_exact(CHUNK);
        for (n, to) in buf.make_mut().chunks_exact_mut(CHUNK).enumerate() {
            if self.present >> n & 1 == 1 {
                to.copy_from_slice(chunks.next().expect("each bit has a chunk"));
            }
        }
        debug_assert!(chunks.next().is_none(), "each chunk has a bit");
        buf
    }
}

impl NodeContent {
    /// Packs the block if that saves memory.
    pub fn of(block: Buf) -> Self {
        PackedBlock::of(&block).map_or(Self::Whole(block), Self::Packed)
    }

    /// The same of a copy.
    pub fn of_bytes(block: &[u8]) -> Self {
        let whole = || Self::Whole(Buf::copy_of(block));
        PackedBlock::of(block).map_or_else(whole, Self::Packed)
    }

    /// The block.
    pub fn block(&self) -> Buf {
        match self {
            Self::Whole(buf) => buf.clone(),
            Self::Packed(packed) => packed.unpack(),
        }
    }

    /// The block, without a copy if there is no other reference.
    pub fn into_block(self) -> Buf {
        match self {
            Self::Whole(buf) => buf,
            Self::Packed(packed) => packed.unpack(),
        }
    }

    /// The node's footer.
    pub fn footer(&self) -> Footer {
        match self {
            Self::Whole(buf) => Footer::parse(buf),
            // A footer is not zero, and is within the last chunk.
            Self::Packed(packed) => Footer::parse_end(&packed.chunks),
        }
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        match self {
            Self::Whole(_) => BLOCK_SIZE,
            Self::Packed(packed) => {
                debug_assert!(
                    packed.chunks.len() <= MAX_CHUNKS * CHUNK,
                    "packed content takes at most half of a block"
                );
                packed.chunks.len()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Nid;

    fn node(filled: std::ops::Range<usize>) -> Vec<u8> {
        let mut block = vec![0; BLOCK_SIZE];
        block[filled].fill(9);
        let footer = Footer {
            nid: Nid(7),
            ino: Nid(5),
            offset: 3,
            ..Footer::default()
        };
        footer.encode_into(&mut block);
        block
    }

    #[test]
    fn packed_content_is_the_same_block() {
        for filled in [0..0, 0..360, 63..65, 1000..2500, 4000..4072, 0..1984] {
            let block = node(filled.clone());
            let content = NodeContent::of_bytes(&block);
            assert!(matches!(content, NodeContent::Packed(_)), "{filled:?}");
            assert!(content.memory() <= BLOCK_SIZE / 2);
            assert_eq!(&content.block()[..], block);
            assert_eq!(content.footer(), Footer::parse(&block));
        }
    }

    #[test]
    fn full_content_stays_whole() {
        let block = node(0..2100);
        let content = NodeContent::of(Buf::copy_of(&block));
        assert!(matches!(content, NodeContent::Whole(_)));
        assert_eq!(content.memory(), BLOCK_SIZE);
        assert_eq!(&content.block()[..], block);
        assert_eq!(content.footer(), Footer::parse(&block));
    }
}
