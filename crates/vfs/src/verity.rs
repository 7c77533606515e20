//! fs-verity: a file's content is checked against a Merkle tree whenever it is read
//! (Documentation/filesystems/fsverity.rst of Linux).
//!
//! Problem: a read of a verity file must never return content that differs from what was sealed. Rule: no byte of such a
//! file is returned before its block's hash was verified against the tree, and the tree's blocks up to the root hash in
//! the descriptor. A mismatch is EIO. The descriptor's signature is not verified: that needs the kernel's keyring. A
//! program compares [`Verity::digest`] (`fsverity measure`) with the digest that it trusts.
//!
//! The format defines where tree and descriptor are stored; the tree's hash blocks are stored level by level, the root's
//! first. A hash block of 4 KiB covers 128 data blocks (SHA-256). The last verified block of each level is cached, so a
//! sequential read hashes each byte once, and 1/128 more for the tree.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use sha2::digest::Output;
use sha2::{Digest as _, Sha256, Sha512};
use steadfs_rt::{Mutex, Rank};

use crate::{FsError, ReadData, Result, Segment};

mod build;
mod files;

pub use build::{SALT_MAX, SIGNATURE_MAX, TreeBuilder, VerityOptions};
pub use files::VerityFiles;

/// Bytes of a descriptor without its signature.
pub const DESCRIPTOR_SIZE: usize = 256;
/// Largest descriptor with its signature (`FS_VERITY_MAX_DESCRIPTOR_SIZE`).
pub const DESCRIPTOR_MAX: usize = 16 << 10;
/// The tree begins at the first multiple of this after the end of the file, in all formats.
pub const TREE_ALIGNMENT: u64 = 64 << 10;

/// Offsets in the descriptor (`struct fsverity_descriptor`).
mod at {
    use std::ops::Range;

    pub const VERSION: usize = 0;
    pub const ALGORITHM: usize = 1;
    pub const LOG_BLOCK: usize = 2;
    pub const SALT_SIZE: usize = 3;
    pub const SIGNATURE_SIZE: Range<usize> = 4..8;
    pub const DATA_SIZE: Range<usize> = 8..16;
    pub const ROOT: usize = 16;
    pub const SALT: usize = 80;
    pub const RESERVED: Range<usize> = 112..256;
}

/// Blocks of 1 KiB to 64 KiB.
const LOG_BLOCKS: std::ops::RangeInclusive<u8> = 10..=16;

/// Where the tree of a file of `size` bytes begins.
pub const fn tree_start(size: u64) -> Option<u64> {
    size.checked_next_multiple_of(TREE_ALIGNMENT)
}

/// The digest that identifies a verity file's content (`FS_IOC_MEASURE_VERITY`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDigest {
    /// `FS_VERITY_HASH_ALG_*`.
    pub algorithm: u16,
    /// The bytes of the digest.
    pub bytes: Vec<u8>,
}

impl fmt::Display for FileDigest {
    /// As `fsverity measure` shows it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.algorithm {
            1 => f.write_str("sha256:")?,
            2 => f.write_str("sha512:")?,
            other => write!(f, "{other}:")?,
        }
        self.bytes
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A hash function, with the padded salt already hashed.
#[derive(Clone)]
enum Hasher {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hasher {
    fn of(algorithm: u8) -> Option<Self> {
        match algorithm {
            1 => Some(Self::Sha256(Sha256::new())),
            2 => Some(Self::Sha512(Sha512::new())),
            _ => None,
        }
    }

    const fn digest_size(&self) -> usize {
        match self {
            Self::Sha256(_) => 32,
            Self::Sha512(_) => 64,
        }
    }

    /// The input block size of the function, to which the salt is padded.
    const fn input_size(&self) -> usize {
        match self {
            Self::Sha256(_) => 64,
            Self::Sha512(_) => 128,
        }
    }

    /// The same function after the salt.
    fn salted(&self, salt: &[u8]) -> Self {
        let mut salted = self.clone();
        if !salt.is_empty() {
            salted.update(salt);
            salted.update_zeros(salted.input_size() - salt.len());
        }
        salted
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    fn update_zeros(&mut self, mut len: usize) {
        static ZEROS: [u8; 4096] = [0; 4096];
        while len > 0 {
            let n = len.min(ZEROS.len());
            self.update(&ZEROS[..n]);
            len -= n;
        }
    }

    fn finish(self) -> Vec<u8> {
        let bytes = |output: &[u8]| output.to_vec();
        match self {
            Self::Sha256(hasher) => {
                let output: Output<Sha256> = hasher.finalize();
                bytes(&output)
            }
            Self::Sha512(hasher) => {
                let output: Output<Sha512> = hasher.finalize();
                bytes(&output)
            }
        }
    }
}

/// Hashes each block of `data`, which begins with a block; the last one, if it is not whole, with zeros behind it.
fn hash_blocks(
    salted: &Hasher,
    log_block: u8,
    data: &ReadData,
    mut each: impl FnMut(Vec<u8>) -> Result<()>,
) -> Result<()> {
    let block = 1 << log_block;
    let mut hasher = salted.clone();
    let mut filled = 0;
    // Of a block of a hole, hashed once.
    let mut hole: Option<Vec<u8>> = None;
    for segment in data.segments() {
        let mut left = segment_len(segment);
        while left > 0 {
            let n = left.min(block - filled);
            match segment {
                Segment::Bytes(owner, range) => {
                    let from = range.end - left;
                    hasher.update(&(**owner).as_ref()[from..from + n]);
                }
                Segment::Zeros(_) if n == block => {
                    let hash = hole.get_or_insert_with(|| {
                        let mut hasher = salted.clone();
                        hasher.update_zeros(block);
                        hasher.finish()
                    });
                    each(hash.clone())?;
                    left -= n;
                    continue;
                }
                Segment::Zeros(_) => hasher.update_zeros(n),
            }
            (left, filled) = (left - n, filled + n);
            if filled == block {
                each(std::mem::replace(&mut hasher, salted.clone()).finish())?;
                filled = 0;
            }
        }
    }
    if filled == 0 {
        return Ok(());
    }
    hasher.update_zeros(block - filled);
    each(hasher.finish())
}

/// A verified block of the tree with its number.
type TreeBlock = (u64, Arc<[u8]>);

/// Verifies one file's content.
pub struct Verity {
    /// The initial state for each block.
    salted: Hasher,
    log_block: u8,
    size: u64,
    root: Vec<u8>,
    /// First block of each level in the tree; the leaves' level is first here and last in the tree.
    levels: Vec<u64>,
    digest: FileDigest,
    /// The last verified block of each level.
    checked: Mutex<Vec<Option<TreeBlock>>>,
}

impl Verity {
    /// Reads the descriptor of a file of `size` bytes.
    ///
    /// # Errors
    /// [`FsError::Invalid`], as the kernel's EINVAL: the descriptor is inconsistent, does not match the file, or is of an
    /// unknown kind.
    pub fn parse(descriptor: &[u8], size: u64) -> Result<Self> {
        let bad = |what| Err(FsError::Invalid(what));
        let Some(fixed) = descriptor.get(..DESCRIPTOR_SIZE) else {
            return bad("the verity descriptor is too short");
        };
        if fixed[at::VERSION] != 1 {
            return bad("the verity descriptor has an unknown version");
        }
        if fixed[at::RESERVED].iter().any(|&byte| byte != 0) {
            return bad("the verity descriptor has reserved bits set");
        }
        let word = |range: Range<usize>| {
            let bytes = fixed[range].iter().rev();
            bytes.fold(0, |word: u64, &byte| word << 8 | u64::from(byte))
        };
        if word(at::SIGNATURE_SIZE) > (descriptor.len() - DESCRIPTOR_SIZE) as u64 {
            return bad("the verity descriptor is shorter than its signature");
        }
        if word(at::DATA_SIZE) != size {
            return bad("the verity descriptor has another file size");
        }
        let algorithm = fixed[at::ALGORITHM];
        let Some(plain) = Hasher::of(algorithm) else {
            return bad("the verity descriptor has an unknown hash algorithm");
        };
        let log_block = fixed[at::LOG_BLOCK];
        let salt_size = usize::from(fixed[at::SALT_SIZE]);
        if !LOG_BLOCKS.contains(&log_block) || salt_size > SALT_MAX {
            return bad("the verity descriptor has an invalid block or salt size");
        }
        let salted = plain.salted(&fixed[at::SALT..at::SALT + salt_size]);
        let mut digest = plain;
        digest.update(&fixed[..at::SIGNATURE_SIZE.start]);
        digest.update_zeros(at::SIGNATURE_SIZE.len());
        digest.update(&fixed[at::SIGNATURE_SIZE.end..]);
        let levels = levels(size, log_block, salted.digest_size());
        Ok(Self {
            root: fixed[at::ROOT..at::ROOT + salted.digest_size()].to_vec(),
            digest: FileDigest {
                algorithm: algorithm.into(),
                bytes: digest.finish(),
            },
            checked: Mutex::new(Rank::Leaf, vec![None; levels.len()]),
            salted,
            log_block,
            size,
            levels,
        })
    }

    /// The file's digest.
    pub const fn digest(&self) -> &FileDigest {
        &self.digest
    }

    /// The range to read so that `range` can be verified: whole blocks, up to the end of the file.
    pub fn whole_blocks(&self, range: Range<u64>) -> Range<u64> {
        let block = 1 << self.log_block;
        let end = range.end.checked_next_multiple_of(block);
        let end = end.unwrap_or(u64::MAX).min(self.size);
        range.start / block * block..end
    }

    /// Reads bytes `range` of the file and verifies them. `read` reads bytes of the file's blocks: of its content, whose
    /// size it gets, or beyond its end, where the tree begins at byte `tree`.
    ///
    /// # Errors
    /// [`FsError::Io`] if a hash does not match; those of `read`.
    pub fn read(
        &self,
        range: Range<u64>,
        tree: u64,
        read: impl Fn(Range<u64>, Option<u64>) -> Result<ReadData>,
    ) -> Result<ReadData> {
        let whole = self.whole_blocks(range.clone());
        let data = read(whole.clone(), Some(self.size))?;
        let read_tree = |bytes: Range<u64>| {
            let range = tree.saturating_add(bytes.start)..tree.saturating_add(bytes.end);
            Ok(read(range, None)?.to_vec())
        };
        self.check(whole.start, &data, read_tree)?;
        Ok(data.slice((range.start - whole.start) as usize..(range.end - whole.start) as usize))
    }

    /// Verifies `data`, which begins at byte `start` and consists of [whole blocks](Self::whole_blocks). `tree` reads bytes
    /// of the tree, counted from its beginning.
    ///
    /// # Errors
    /// [`FsError::Io`] if a hash does not match; those of `tree`.
    pub fn check(
        &self,
        start: u64,
        data: &ReadData,
        mut tree: impl FnMut(Range<u64>) -> Result<Vec<u8>>,
    ) -> Result<()> {
        let mut index = start >> self.log_block;
        hash_blocks(&self.salted, self.log_block, data, |hash| {
            if hash != self.wanted(0, index, &mut tree)? {
                return Err(FsError::Io(format!(
                    "block {index} does not fit the file's verity hashes"
                )));
            }
            index += 1;
            Ok(())
        })
    }

    /// The expected hash of block `index` of a level: level 0 is the data, the others are the tree's.
    fn wanted(
        &self,
        level: usize,
        index: u64,
        tree: &mut dyn FnMut(Range<u64>) -> Result<Vec<u8>>,
    ) -> Result<Vec<u8>> {
        if level == self.levels.len() {
            return Ok(self.root.clone());
        }
        let size = self.salted.digest_size();
        let per_block = (1_u64 << self.log_block) / size as u64;
        let block = self.tree_block(level, index / per_block, tree)?;
        let at = (index % per_block) as usize * size;
        Ok(block[at..at + size].to_vec())
    }

    /// Block `index` of a level of the tree, verified.
    fn tree_block(
        &self,
        level: usize,
        index: u64,
        tree: &mut dyn FnMut(Range<u64>) -> Result<Vec<u8>>,
    ) -> Result<Arc<[u8]>> {
        let known = self.checked.lock()[level].clone();
        if let Some((_, block)) = known.filter(|(known, _)| *known == index) {
            return Ok(block);
        }
        let start = (self.levels[level] + index) << self.log_block;
        let block = tree(start..start + (1 << self.log_block))?;
        let mut hasher = self.salted.clone();
        hasher.update(&block);
        if block.len() != 1 << self.log_block
            || hasher.finish() != self.wanted(level + 1, index, tree)?
        {
            return Err(FsError::Io(format!(
                "block {index} of level {level} of the file's verity hashes does not fit the next level"
            )));
        }
        let block: Arc<[u8]> = block.into();
        self.checked.lock()[level] = Some((index, Arc::clone(&block)));
        Ok(block)
    }
}

fn segment_len(segment: &Segment) -> usize {
    match segment {
        Segment::Bytes(_, range) => range.len(),
        Segment::Zeros(len) => *len,
    }
}

/// Blocks of each level of the tree, the leaves' first. The smallest block holds 16 hashes, so there are at most 14 levels.
fn level_blocks(size: u64, log_block: u8, digest_size: usize) -> Vec<u64> {
    let per_block = (1_u64 << log_block) / digest_size as u64;
    let mut blocks = size.div_ceil(1 << log_block);
    let mut counts = Vec::new();
    while blocks > 1 {
        blocks = blocks.div_ceil(per_block);
        counts.push(blocks);
    }
    counts
}

/// The first block of each level of the tree, the leaves' first.
fn levels(size: u64, log_block: u8, digest_size: usize) -> Vec<u64> {
    let mut start = 0;
    let mut starts: Vec<u64> = level_blocks(size, log_block, digest_size)
        .iter()
        .rev()
        .map(|count| {
            let here = start;
            start += count;
            here
        })
        .collect();
    starts.reverse();
    starts
}

#[cfg(test)]
mod tests;
