//! Blocks on their way from the cache to the device, and what came of them.

use std::ops::Range;

use steadfs_block::{IoError, IoHandle};
use steadfs_cache::CollectedBlock;
use steadfs_vfs::{FsError, Result};

use super::BLOCK;
use crate::disk::BlockAddr;
use crate::fs::io_error;
use crate::inode::Inode;
use crate::segment::Run;

/// Blocks of a file on their way to the device.
pub(super) struct WritebackRun<'a> {
    pub(super) inode: &'a Inode,
    /// The file's size when they were collected: they hold what was written up to there.
    pub(super) size: u64,
    pub(super) collected: Vec<CollectedBlock>,
    pub(super) extents: Vec<Extent>,
    /// The requests of each extent.
    pub(super) ios: Vec<Vec<IoHandle>>,
    /// Why some block has no place, if so.
    pub(super) allocation: Result<()>,
}

/// A run of blocks that lies in one extent in the file and on the device.
pub(super) struct Extent {
    pub(super) blocks: Range<u64>,
    pub(super) start: BlockAddr,
    /// Claimed for this write, and to be mapped; otherwise the blocks' old place.
    pub(super) allocated: bool,
    /// How many of its blocks hold a promise.
    pub(super) reserved: u64,
}

impl Extent {
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.blocks.end - self.blocks.start).unwrap_or(u32::MAX)
    }

    pub(super) fn run(&self) -> Run {
        Run {
            start: self.start,
            len: self.len(),
        }
    }
}

impl WritebackRun<'_> {
    /// Where blocks are written over: first block and length of each extent.
    pub(super) fn ipu(&self) -> impl Iterator<Item = (BlockAddr, u32)> {
        let extents = self.extents.iter().filter(|p| !p.allocated);
        extents.map(|p| (p.start, p.len()))
    }

    /// The first block that was not written, and why.
    pub(super) fn first_failed(&self, written: &[Result<(), IoError>]) -> Option<(u64, FsError)> {
        let both = || self.extents.iter().zip(written);
        let good = both().filter(|(_, written)| written.is_ok());
        let good = good.map(|(extent, _)| extent.blocks.clone());
        let first = CollectedBlock::first_not_in(&self.collected, good)?;
        let its = both().find(|(extent, _)| extent.blocks.contains(&first));
        let its = its.and_then(|(_, written)| written.clone().err());
        let error = its.map(io_error).or(self.allocation.clone().err())?;
        Some((first, error))
    }

    /// Waits for the device; results in the extents' order.
    pub(super) fn wait(&self) -> Vec<Result<(), IoError>> {
        let each = |ios: &Vec<IoHandle>| ios.iter().map(IoHandle::wait).fold(Ok(()), Result::and);
        self.ios.iter().map(each).collect()
    }
}

/// What naming a extent came to.
pub(super) struct MapResult {
    /// Blocks that are mapped, from the first.
    pub(super) blocks: u32,
    /// Promises they used.
    pub(super) used: u64,
    /// Whether the size that is stored now covers more of them.
    pub(super) grew: bool,
    /// Why not all.
    pub(super) result: Result<()>,
}

impl MapResult {
    pub(super) fn all(extent: &Extent) -> Self {
        Self {
            blocks: extent.len(),
            used: 0,
            grew: false,
            result: Ok(()),
        }
    }

    pub(super) fn none(error: FsError) -> Self {
        Self {
            blocks: 0,
            used: 0,
            grew: false,
            result: Err(error),
        }
    }
}

/// The size that a file of `size` bytes may have on disk once the extent is there.
pub(super) fn size_after(size: u64, extent: &Extent) -> u64 {
    size.min(extent.blocks.end.saturating_mul(BLOCK))
}
