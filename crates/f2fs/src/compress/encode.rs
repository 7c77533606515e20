//! Compressing a cluster: the header and the compressed data, in whole blocks.

use steadfs_block::Buf;

use super::{HEADER_BYTES, lzo, lzo_encode, zstd};
use crate::disk::inode::{CompressAlgorithm, Compression};
use crate::disk::{BLOCK_SIZE, checksum};

/// The blocks of the compressed form of a cluster; `None` where it does not save a block. Encoded data is decoded again
/// and compared, so that a fault of an encoder costs space and no data.
pub(super) fn encode(how: &Compression, plain: &[u8]) -> Option<Vec<Buf>> {
    let most = plain.len().checked_sub(BLOCK_SIZE + HEADER_BYTES)?;
    let algorithm = CompressAlgorithm::from_number(how.algorithm)?;
    let packed = match algorithm {
        CompressAlgorithm::Lz4 => lz4_flex::block::compress(plain),
        CompressAlgorithm::Zstd => zstd::compress(plain)?,
        CompressAlgorithm::Lzo | CompressAlgorithm::LzoRle => lzo_encode::compress(plain),
    };
    if packed.len() > most {
        return None;
    }
    let again = match algorithm {
        CompressAlgorithm::Lz4 => lz4_flex::block::decompress(&packed, plain.len()).ok(),
        CompressAlgorithm::Zstd => zstd::decompress(&packed, plain.len()),
        CompressAlgorithm::Lzo | CompressAlgorithm::LzoRle => lzo::decompress(&packed, plain.len()),
    };
    if again.as_deref() != Some(plain) {
        tracing::warn!(
            ?algorithm,
            "a cluster was encoded wrongly, and is written plain"
        );
        return None;
    }
    let sum = match how.flags & Compression::CHECKSUM {
        0 => 0,
        _ => checksum::of(&packed),
    };
    let mut stored = vec![0; HEADER_BYTES];
    stored[..4].copy_from_slice(&(packed.len() as u32).to_le_bytes());
    stored[4..8].copy_from_slice(&sum.to_le_bytes());
    stored.extend_from_slice(&packed);
    stored.resize(stored.len().next_multiple_of(BLOCK_SIZE), 0);
    Some(stored.chunks(BLOCK_SIZE).map(Buf::copy_of).collect())
}
