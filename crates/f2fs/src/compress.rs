//! Compressed files: clusters of blocks of which fewer are stored.
//!
//! A cluster's first slot is [`BlockAddr::COMPRESSED`], the next ones name the blocks of its compressed
//! form: a header (`struct compress_data`: length, checksum, four unused words) and the bytes.

use std::collections::BTreeMap;
use std::ops::Range;

use steadfs_base::IoTag;
use steadfs_block::{Bio, Buf, IoHandle, Queue};
use steadfs_cache::{BlockSource, READ_BYTES_MAX};
use steadfs_vfs::{FsError, Result};

use crate::data::BLOCK;
use crate::disk::inode::CompressAlgorithm;
use crate::disk::{self, BLOCK_SIZE, BlockAddr, DiskError, Structure, checksum};
use crate::fs::{F2fs, io_error};
use crate::inode::Inode;
use crate::node::{Slot, SlotLookup};

mod lzo;
mod zstd;

/// Bytes of the header.
const HEADER_BYTES: usize = 24;
/// Bytes of the largest cluster.
const CLUSTER_BYTES_MAX: usize = 1 << 20;
/// `i_compress_flag`: clusters have a checksum.
const HAS_CHECKSUM: u16 = 1;

/// What is stored of the compressed clusters that a range of a file lies in.
///
/// The blocks of one cluster mostly lie behind those of the one before, so several clusters are one read.
pub struct StoredClusters {
    /// First block of each cluster, and how many blocks are stored of it.
    clusters: Vec<(u64, usize)>,
    /// Where those lie on the device, in bytes, in the order of the clusters.
    runs: Vec<(u64, usize)>,
    /// Blocks of the file in a cluster.
    size: u64,
}

/// ClusterReads of stored clusters under way.
pub struct ClusterReads {
    stored: StoredClusters,
    under_way: Vec<IoHandle>,
}

/// The content of compressed clusters, by first block.
pub struct PlainClusters {
    clusters: BTreeMap<u64, Vec<u8>>,
    size: u64,
}

impl StoredClusters {
    fn push(&mut self, first: u64, addrs: &[BlockAddr]) {
        self.clusters.push((first, addrs.len()));
        for addr in addrs {
            let at = u64::from(addr.0) * BLOCK;
            match self.runs.last_mut() {
                Some((start, len))
                    if *start + *len as u64 == at && (*len as u64) < READ_BYTES_MAX =>
                {
                    *len += BLOCK_SIZE;
                }
                _ => self.runs.push((at, BLOCK_SIZE)),
            }
        }
    }

    /// The runs on the device, in bytes.
    pub fn into_runs(self) -> Vec<(u64, usize)> {
        self.runs
    }

    /// Begins to read them.
    pub fn begin(self, queue: &Queue, tag: IoTag) -> ClusterReads {
        let read = |&(at, len): &(u64, usize)| queue.submit(Bio::read(at, len), tag);
        ClusterReads {
            under_way: self.runs.iter().map(read).collect(),
            stored: self,
        }
    }
}

impl ClusterReads {
    /// Waits for all, and decompresses.
    pub fn finish(self, inode: &Inode) -> Result<PlainClusters> {
        let mut blocks = Vec::new();
        for read in self.under_way {
            let bio = read.into_bio().map_err(io_error)?;
            blocks.extend(bio.bufs);
        }
        let mut bytes = blocks.iter().flat_map(|buf| buf.chunks(BLOCK_SIZE));
        let size = self.stored.size;
        let mut clusters = BTreeMap::new();
        for (first, count) in self.stored.clusters {
            let stored: Vec<u8> = bytes.by_ref().take(count).flatten().copied().collect();
            let plain = decompress(inode, &stored, (size * BLOCK) as usize)
                .map_err(|rule| bad(inode, first, rule))?;
            clusters.insert(first, plain);
        }
        Ok(PlainClusters { clusters, size })
    }
}

impl PlainClusters {
    /// The content of at most `count` blocks from `block` on, and of how many it is.
    pub fn part(&self, inode: &Inode, block: u64, count: u64) -> Result<(BlockSource, u64)> {
        let first = block / self.size * self.size;
        let cluster = self.clusters.get(&first);
        let cluster = cluster.ok_or_else(|| bad(inode, first, "is no longer compressed"))?;
        let count = count.min(first + self.size - block);
        let start = ((block - first) * BLOCK) as usize;
        let part = &cluster[start..start + (count * BLOCK) as usize];
        Ok((BlockSource::Content(Buf::copy_of(part)), count))
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

    /// What is stored of the compressed clusters that bytes `range` lie in.
    pub(crate) fn stored_in(
        &self,
        inode: &Inode,
        range: &Range<u64>,
        tag: IoTag,
    ) -> Result<StoredClusters> {
        let core = inode.core.read();
        let size = self.cluster_blocks(&core).unwrap_or(1);
        debug_assert!(
            (size * BLOCK) as usize <= CLUSTER_BYTES_MAX,
            "a cluster is bounded"
        );
        let mut stored = StoredClusters {
            clusters: Vec::new(),
            runs: Vec::new(),
            size,
        };
        let mut first = range.start / BLOCK / size * size;
        while first * BLOCK < range.end {
            match self.find_slot(inode, &core, first, tag)? {
                // No cluster lies in two nodes.
                SlotLookup::Slot(slot) => {
                    if let Some(addrs) = self.cluster_addrs(inode, &core, &slot, first, size)? {
                        stored.push(first, &addrs);
                    }
                    first += size;
                }
                SlotLookup::Missing(len) => first += len.max(1).next_multiple_of(size),
            }
        }
        Ok(stored)
    }

    /// Where the blocks of a cluster lie whose first slot this is; `None`: it is not compressed.
    fn cluster_addrs(
        &self,
        inode: &Inode,
        core: &disk::Inode,
        slot: &Slot,
        first: u64,
        size: u64,
    ) -> Result<Option<Vec<BlockAddr>>> {
        let data = slot.node.data()?;
        let addr = |n| slot.addr(&self.layout, core, &data, n);
        if addr(0) != BlockAddr::COMPRESSED {
            return Ok(None);
        }
        let within = u64::from(slot.left).min(size) as u16;
        let addrs: Vec<_> = (1..within)
            .map(addr)
            .take_while(|addr| addr.is_block())
            .collect();
        match addrs.iter().all(|addr| self.layout.is_main(*addr)) {
            true => Ok(Some(addrs)),
            false => Err(bad(inode, first, "lies outside the main area")),
        }
    }
}

/// The content of a cluster from its stored form; what is wrong, if it is.
fn decompress(inode: &Inode, stored: &[u8], plain: usize) -> Result<Vec<u8>, &'static str> {
    let how = inode
        .core
        .read()
        .compression
        .ok_or("of a file that has none")?;
    let (header, rest) = stored
        .split_at_checked(HEADER_BYTES)
        .ok_or("has no header")?;
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
