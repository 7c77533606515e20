//! Compressed files: clusters of blocks of which fewer are stored.
//!
//! A cluster's first slot is [`BlockAddr::COMPRESSED`], the next ones name the blocks of its compressed
//! form: a header (`struct compress_data`: length, checksum, four unused words) and the bytes.

use steadfs_base::IoTag;
use steadfs_block::Buf;
use steadfs_vfs::{FsError, Result};

use crate::data::BLOCK;
use crate::disk::inode::CompressAlgorithm;
use crate::disk::{self, BLOCK_SIZE, DiskError, Structure, checksum};
use crate::fs::{F2fs, io_error};
use crate::inode::Inode;

mod lzo;
mod zstd;

/// Bytes of the header.
const HEADER: usize = 24;
/// Bytes of the largest cluster.
const LARGEST: usize = 1 << 20;
/// `i_compress_flag`: clusters have a checksum.
const HAS_CHECKSUM: u16 = 1;

/// A cluster's plain content.
pub struct Cluster {
    first: u64,
    bytes: Vec<u8>,
}

impl Cluster {
    /// Blocks of the file that lie in this cluster.
    pub fn part(&self, block: u64, count: u64) -> Buf {
        let start = ((block - self.first) * BLOCK) as usize;
        Buf::copy_of(&self.bytes[start..start + (count * BLOCK) as usize])
    }
}

fn bad(inode: &Inode, block: u64, rule: &'static str) -> FsError {
    let index = u32::try_from(block).unwrap_or(u32::MAX);
    let error = DiskError::entry(Structure::Cluster, index, rule);
    error.in_node(inode.nid()).into()
}

impl F2fs {
    /// Blocks in a cluster, of a file that may have compressed ones.
    pub(crate) fn cluster_blocks(&self, core: &disk::Inode) -> Option<u64> {
        let how = core.compression?;
        core.is_compressed(&self.layout)
            .then(|| 1 << how.log_cluster)
    }

    /// The plain content of the compressed cluster that a block lies in.
    pub(crate) fn read_cluster(&self, inode: &Inode, block: u64, tag: IoTag) -> Result<Cluster> {
        let size = self.cluster_blocks(&inode.core.read()).unwrap_or(1);
        let first = block / size * size;
        let mut stored = Vec::new();
        for n in 1..size {
            let addr = self.slot(inode, first + n, tag)?;
            if !addr.is_block() {
                break;
            }
            if !self.layout.is_main(addr) {
                return Err(bad(inode, first, "lies outside the main area"));
            }
            let at = u64::from(addr.0) * BLOCK;
            let data = self.queue.read(at, BLOCK_SIZE, tag).map_err(io_error)?;
            stored.extend_from_slice(&data);
        }
        let plain = (size * BLOCK) as usize;
        debug_assert!(plain <= LARGEST, "a cluster is bounded");
        let bytes = decompress(inode, &stored, plain).map_err(|rule| bad(inode, first, rule))?;
        Ok(Cluster { first, bytes })
    }
}

/// The content of a cluster from its stored form; what is wrong, if it is.
fn decompress(inode: &Inode, stored: &[u8], plain: usize) -> Result<Vec<u8>, &'static str> {
    let how = inode
        .core
        .read()
        .compression
        .ok_or("of a file that has none")?;
    let (header, rest) = stored.split_at_checked(HEADER).ok_or("has no header")?;
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
    let len = usize::try_from(word(0)).unwrap_or(usize::MAX);
    let bytes = rest.get(..len).ok_or("is longer than its blocks")?;
    if how.flags & HAS_CHECKSUM != 0 && checksum::of(bytes) != word(4) {
        return Err("has another checksum than it says");
    }
    let damaged = "cannot be decompressed";
    let out = match CompressAlgorithm::from_number(how.algorithm) {
        Some(CompressAlgorithm::Lz4) => {
            let mut out = vec![0; plain];
            let n = lz4_flex::block::decompress_into(bytes, &mut out).map_err(|_| damaged)?;
            out.truncate(n);
            out
        }
        Some(CompressAlgorithm::Zstd) => zstd::decompress(bytes, plain).ok_or(damaged)?,
        Some(CompressAlgorithm::Lzo) => lzo::decompress(bytes, plain).ok_or(damaged)?,
        Some(CompressAlgorithm::LzoRle) => lzo::decompress(bytes, plain).ok_or(damaged)?,
        None => return Err("is compressed by an unknown algorithm"),
    };
    if out.len() != plain {
        return Err("decompresses to another length");
    }
    Ok(out)
}
