//! Compressed files: clusters of blocks that are stored in fewer blocks. This file reads them.
//!
//! A cluster's first slot is [`BlockAddr::COMPRESSED`]. The next slots map the blocks of its compressed form: a
//! header (`struct compress_data`: length, checksum, four reserved words) and the data.

use std::collections::BTreeMap;
use std::ops::Range;

use steadfs_base::IoTag;
use steadfs_block::{Bio, Buf, IoHandle, Queue};
use steadfs_cache::{BlockSource, READ_BYTES_MAX};
use steadfs_fscrypt::FileKey;
use steadfs_vfs::{FsError, Result};

use crate::data::BLOCK;
use crate::disk::inode::{CompressAlgorithm, Compression};
use crate::disk::{self, BLOCK_SIZE, BlockAddr, DiskError, Structure, checksum};
use crate::fs::{F2fs, io_error};
use crate::inode::Inode;
use crate::node::{Slot, SlotLookup};

mod calls;
mod encode;
mod flags;
mod lzo;
mod lzo_encode;
pub(crate) mod write;
mod zstd;

const HEADER_BYTES: usize = 24;
const CLUSTER_BYTES_MAX: usize = 1 << 20;

/// The stored blocks of the compressed clusters in a range of a file.
///
/// The blocks of consecutive clusters are mostly contiguous on the device, so that one request reads several
/// clusters.
pub struct StoredClusters {
    /// First file block of each cluster, and its number of stored blocks.
    clusters: Vec<(u64, usize)>,
    /// Their byte ranges on the device, in the order of the clusters.
    runs: Vec<(u64, usize)>,
    /// File blocks per cluster.
    size: u64,
}

/// Reads of stored clusters in flight.
pub struct ClusterReads {
    stored: StoredClusters,
    under_way: Vec<IoHandle>,
}

/// The decompressed clusters, by first file block.
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

    /// The byte ranges on the device.
    pub fn into_runs(self) -> Vec<(u64, usize)> {
        self.runs
    }

    /// Submits the reads.
    pub fn begin(self, queue: &Queue, tag: IoTag) -> ClusterReads {
        let read = |&(at, len): &(u64, usize)| queue.submit(Bio::read(at, len), tag);
        ClusterReads {
            under_way: self.runs.iter().map(read).collect(),
            stored: self,
        }
    }
}

impl ClusterReads {
    /// Waits for the reads and decompresses.
    ///
    /// Each stored block is encrypted as the block of the file in whose slot its address is.
    pub fn finish(self, inode: &Inode, key: Option<&FileKey>) -> Result<PlainClusters> {
        let mut blocks = Vec::new();
        for read in self.under_way {
            let bio = read.into_bio().map_err(io_error)?;
            blocks.extend(bio.bufs);
        }
        let mut bytes = blocks.iter().flat_map(|buf| buf.chunks(BLOCK_SIZE));
        let size = self.stored.size;
        let mut clusters = BTreeMap::new();
        for (first, count) in self.stored.clusters {
            let mut stored: Vec<u8> = bytes.by_ref().take(count).flatten().copied().collect();
            if let Some(key) = key {
                key.decrypt((first + 1) * BLOCK, &mut stored);
            }
            let plain = decompress(inode, &stored, (size * BLOCK) as usize)
                .map_err(|rule| bad(inode, first, rule))?;
            clusters.insert(first, plain);
        }
        Ok(PlainClusters { clusters, size })
    }
}

impl PlainClusters {
    /// The content of at most `count` blocks from `block` on, and their number.
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
    /// Blocks per cluster; `None` for a file without compression.
    pub(crate) fn cluster_blocks(&self, core: &disk::Inode) -> Option<u64> {
        let how = core.compression?;
        core.is_compressed(&self.layout)
            .then(|| 1 << how.log_cluster)
    }

    /// The stored blocks of the compressed clusters in the byte range `range`.
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
            "a cluster has at most CLUSTER_BYTES_MAX bytes"
        );
        let mut stored = StoredClusters {
            clusters: Vec::new(),
            runs: Vec::new(),
            size,
        };
        let mut first = range.start / BLOCK / size * size;
        while first * BLOCK < range.end {
            match self.find_slot(inode, &core, first, tag)? {
                // A cluster never spans two nodes.
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

    /// The addresses of a cluster's stored blocks; `slot` is its first slot. `None`: it is not compressed.
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
            false => Err(bad(inode, first, "has a block outside the main area")),
        }
    }
}

/// Decompresses a cluster; the error describes the corruption.
fn decompress(inode: &Inode, stored: &[u8], plain: usize) -> Result<Vec<u8>, &'static str> {
    let how = inode
        .core
        .read()
        .compression
        .ok_or("is in a file without compression")?;
    let (header, rest) = stored
        .split_at_checked(HEADER_BYTES)
        .ok_or("has no header")?;
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
    let len = usize::try_from(word(0)).unwrap_or(usize::MAX);
    let bytes = rest.get(..len).ok_or("is longer than its blocks")?;
    if how.flags & Compression::CHECKSUM != 0 && checksum::of(bytes) != word(4) {
        return Err("does not match its checksum");
    }
    let corrupt = "cannot be decompressed";
    let out = match CompressAlgorithm::from_number(how.algorithm) {
        Some(CompressAlgorithm::Lz4) => {
            let mut out = vec![0; plain];
            let n = lz4_flex::block::decompress_into(bytes, &mut out).map_err(|_| corrupt)?;
            out.truncate(n);
            out
        }
        Some(CompressAlgorithm::Zstd) => zstd::decompress(bytes, plain).ok_or(corrupt)?,
        Some(CompressAlgorithm::Lzo) => lzo::decompress(bytes, plain).ok_or(corrupt)?,
        Some(CompressAlgorithm::LzoRle) => lzo::decompress(bytes, plain).ok_or(corrupt)?,
        None => return Err("is compressed by an unknown algorithm"),
    };
    if out.len() != plain {
        return Err("decompresses to another length");
    }
    Ok(out)
}
