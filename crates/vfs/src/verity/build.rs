//! The Merkle tree and the descriptor of a file that becomes a verity file.
//!
//! **Problem.** The tree of a large file does not fit in memory, and its levels are stored one behind the other. **Rule.**
//! All levels grow at the same time: one unfinished block for each level is in memory, and a finished block is passed on to
//! be stored. The volume's blocks may be larger than those of the tree, and are stored whole and once, so blocks of the tree
//! are collected until they fill one: at most one for each level is incomplete at a time.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{DESCRIPTOR_SIZE, Hasher, LOG_BLOCKS, at, hash_blocks, level_blocks, levels};
use crate::{FsError, ReadData, Result};

/// Most bytes of a salt.
pub const SALT_MAX: usize = 32;
/// Most bytes of a signature (`FS_VERITY_MAX_SIGNATURE_SIZE`).
pub const SIGNATURE_MAX: usize = super::DESCRIPTOR_MAX - DESCRIPTOR_SIZE;
/// The most levels of a tree that Linux reads (`FS_VERITY_MAX_LEVELS`).
const LEVELS_MAX: usize = 8;
/// Bytes of content that are read at once.
const STEP_BYTES: u64 = 1 << 20;

/// How a file's content is hashed (`struct fsverity_enable_arg`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerityOptions {
    /// `FS_VERITY_HASH_ALG_*`.
    pub algorithm: u32,
    /// Bytes of a block of content and of the tree.
    pub block_size: u32,
    /// Hashed before each block, at most [`SALT_MAX`] bytes.
    pub salt: Vec<u8>,
}

impl Default for VerityOptions {
    /// Those of `fsverity enable`: SHA-256, blocks of 4 KiB, no salt.
    fn default() -> Self {
        Self {
            algorithm: 1,
            block_size: 4096,
            salt: Vec::new(),
        }
    }
}

impl VerityOptions {
    /// The number of an algorithm with the name that `fsverity` has for it.
    pub fn algorithm_named(name: &str) -> Option<u32> {
        match name {
            "sha256" => Some(1),
            "sha512" => Some(2),
            _ => None,
        }
    }

    /// The options as a line of text, for [`VerityOptions::parse`].
    pub fn to_line(&self) -> String {
        let salt: String = self.salt.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{} {} {salt}", self.algorithm, self.block_size)
    }

    /// Parses a line: the number of the algorithm, the block size, and the salt in hexadecimal digits.
    ///
    /// # Errors
    /// `Invalid`: it is no such line.
    pub fn parse(line: &str) -> Result<Self> {
        let invalid = || FsError::Invalid("a number, a block size and a salt are expected");
        let mut words = line.split(' ');
        let mut number = || words.next()?.parse().ok();
        Ok(Self {
            algorithm: number().ok_or_else(invalid)?,
            block_size: number().ok_or_else(invalid)?,
            salt: Self::parse_salt(words.next().unwrap_or_default()).ok_or_else(invalid)?,
        })
    }

    /// A salt from hexadecimal digits; `None`: these are none, or too many.
    pub fn parse_salt(digits: &str) -> Option<Vec<u8>> {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        // Two digits are a byte.
        let byte = |pair: &[u8]| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8);
        let pairs = digits.as_bytes();
        let is_whole = pairs.len().is_multiple_of(2) && pairs.len() <= 2 * SALT_MAX;
        is_whole.then(|| pairs.chunks(2).map(byte).collect())?
    }

    /// The hash function without the salt, and the logarithm of the block size, for a volume with blocks of this size.
    fn check(&self, volume_block: usize) -> Result<(Hasher, u8)> {
        let hasher = u8::try_from(self.algorithm).ok().and_then(Hasher::of);
        let Some(hasher) = hasher else {
            return Err(FsError::Invalid("the hash algorithm is not known"));
        };
        let log_block = self.block_size.trailing_zeros() as u8;
        if !self.block_size.is_power_of_two() || !LOG_BLOCKS.contains(&log_block) {
            return Err(FsError::Invalid(
                "a verity block size is a power of two from 1024 to 65536",
            ));
        }
        // The kernel verifies a block of the volume at a time.
        if self.block_size as usize > volume_block {
            return Err(FsError::Invalid(
                "the verity block size is larger than the volume's blocks",
            ));
        }
        if self.salt.len() > SALT_MAX {
            return Err(FsError::Invalid("the salt is longer than 32 bytes"));
        }
        Ok((hasher, log_block))
    }
}

/// Builds a tree.
pub struct TreeBuilder {
    salted: Hasher,
    log_block: u8,
    size: u64,
    /// The unfinished block of each level, the leaves' first.
    blocks: Vec<Vec<u8>>,
    /// Where the next block of each level is, in bytes from the tree's beginning.
    next: Vec<u64>,
    /// Bytes of the tree.
    len: u64,
    root: Vec<u8>,
    stored: WholeBlocks,
    options: VerityOptions,
}

impl TreeBuilder {
    /// For a file of `size` bytes on a volume with blocks of `volume_block` bytes.
    ///
    /// # Errors
    /// `Invalid`: the volume cannot have such a tree.
    pub fn new(options: &VerityOptions, size: u64, volume_block: usize) -> Result<Self> {
        let (hasher, log_block) = options.check(volume_block)?;
        let digest_size = hasher.digest_size();
        let next: Vec<u64> = levels(size, log_block, digest_size)
            .iter()
            .map(|block| block << log_block)
            .collect();
        if next.len() > LEVELS_MAX {
            return Err(FsError::FileTooBig);
        }
        let blocks: u64 = level_blocks(size, log_block, digest_size).iter().sum();
        Ok(Self {
            salted: hasher.salted(&options.salt),
            log_block,
            size,
            blocks: vec![Vec::new(); next.len()],
            next,
            len: blocks << log_block,
            // Of an empty file.
            root: vec![0; digest_size],
            stored: WholeBlocks {
                block: volume_block,
                incomplete: BTreeMap::new(),
            },
            options: options.clone(),
        })
    }

    /// Bytes of the tree.
    pub const fn tree_len(&self) -> u64 {
        self.len
    }

    /// Reads the content with `read` and hashes it. `write` gets each block of the volume that the tree fills: its offset from
    /// the tree's beginning, and its content. Returns the descriptor.
    ///
    /// # Errors
    /// Those of `read` and `write`; `Io`: the content has become shorter.
    pub fn build(
        &mut self,
        mut read: impl FnMut(Range<u64>) -> Result<ReadData>,
        write: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<Vec<u8>> {
        let (salted, log_block) = (self.salted.clone(), self.log_block);
        let mut at = 0;
        while at < self.size {
            let end = self.size.min(at + STEP_BYTES);
            let data = read(at..end)?;
            if data.len() as u64 != end - at {
                return Err(FsError::Io(format!("no content at byte {at}")));
            }
            hash_blocks(&salted, log_block, &data, |hash| self.add(0, &hash, write))?;
            at = end;
        }
        for level in 0..self.blocks.len() {
            if !self.blocks[level].is_empty() {
                self.finish_block(level, write)?;
            }
        }
        Ok(self.descriptor())
    }

    /// Passes on bytes that are stored behind the tree, in order, at an offset from its beginning.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn append(
        &mut self,
        offset: u64,
        bytes: &[u8],
        write: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.stored.put(offset, bytes, write)
    }

    /// Passes on the blocks of the volume that are not filled, with zeros behind what they have.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn finish(&mut self, write: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let rest = std::mem::take(&mut self.stored.incomplete);
        for (block, (content, _)) in rest {
            write(block * self.stored.block as u64, &content)?;
        }
        Ok(())
    }

    /// Adds the hash of a block below `level`; the hash of the highest block is the root.
    fn add(
        &mut self,
        level: usize,
        hash: &[u8],
        write: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        if level == self.blocks.len() {
            self.root.copy_from_slice(hash);
            return Ok(());
        }
        self.blocks[level].extend_from_slice(hash);
        match self.blocks[level].len() + hash.len() > 1 << self.log_block {
            true => self.finish_block(level, write),
            false => Ok(()),
        }
    }

    fn finish_block(
        &mut self,
        level: usize,
        write: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut block = std::mem::take(&mut self.blocks[level]);
        block.resize(1 << self.log_block, 0);
        self.stored.put(self.next[level], &block, write)?;
        self.next[level] += block.len() as u64;
        let mut hasher = self.salted.clone();
        hasher.update(&block);
        self.add(level + 1, &hasher.finish(), write)
    }

    fn descriptor(&self) -> Vec<u8> {
        let mut descriptor = vec![0; DESCRIPTOR_SIZE];
        descriptor[at::VERSION] = 1;
        // Both were checked to be numbers of a byte.
        descriptor[at::ALGORITHM] = self.options.algorithm as u8;
        descriptor[at::LOG_BLOCK] = self.log_block;
        let salt = &self.options.salt;
        descriptor[at::SALT_SIZE] = salt.len() as u8;
        descriptor[at::DATA_SIZE].copy_from_slice(&self.size.to_le_bytes());
        descriptor[at::ROOT..at::ROOT + self.root.len()].copy_from_slice(&self.root);
        descriptor[at::SALT..at::SALT + salt.len()].copy_from_slice(salt);
        descriptor
    }
}

/// Collects pieces into blocks of the volume.
struct WholeBlocks {
    block: usize,
    /// By their numbers, with the number of bytes that they have.
    incomplete: BTreeMap<u64, (Vec<u8>, usize)>,
}

impl WholeBlocks {
    /// Adds a piece that overlaps no other one.
    fn put(
        &mut self,
        offset: u64,
        mut bytes: &[u8],
        write: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut at = offset;
        while !bytes.is_empty() {
            let (number, from) = (at / self.block as u64, (at % self.block as u64) as usize);
            let n = bytes.len().min(self.block - from);
            let empty = || (vec![0; self.block], 0);
            let (content, filled) = self.incomplete.entry(number).or_insert_with(empty);
            content[from..from + n].copy_from_slice(&bytes[..n]);
            *filled += n;
            if *filled == self.block
                && let Some((content, _)) = self.incomplete.remove(&number)
            {
                write(number * self.block as u64, &content)?;
            }
            (at, bytes) = (at + n as u64, &bytes[n..]);
        }
        Ok(())
    }
}
