//! A write-back run: blocks on their way from the cache to the device, and the result of each step.

use std::ops::Range;

use steadfs_block::{IoError, IoHandle};
use steadfs_cache::CollectedBlock;
use steadfs_vfs::{FsError, Result};

use super::BLOCK;
use crate::disk::BlockAddr;
use crate::fs::io_error;
use crate::inode::Inode;
use crate::segment::Run;

/// The blocks of one file that are written by one run.
pub(super) struct WritebackRun<'a> {
    pub(super) inode: &'a Inode,
    /// The file's size when they were collected: their content is complete up to there.
    pub(super) size: u64,
    pub(super) collected: Vec<CollectedBlock>,
    pub(super) extents: Vec<Extent>,
    /// The requests of each extent.
    pub(super) ios: Vec<Vec<IoHandle>>,
    /// Why some blocks are in no extent, if so.
    pub(super) allocation: Result<()>,
}

/// A run of blocks that is contiguous in the file and on the device.
pub(super) struct Extent {
    pub(super) blocks: Range<u64>,
    pub(super) start: BlockAddr,
    /// The blocks were allocated for this write and are to be mapped (OPU); if false they are overwritten in place.
    pub(super) allocated: bool,
    /// Number of blocks that hold a reservation.
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
    /// The extents written in place: first block and length.
    pub(super) fn ipu(&self) -> impl Iterator<Item = (BlockAddr, u32)> {
        let extents = self.extents.iter().filter(|p| !p.allocated);
        extents.map(|p| (p.start, p.len()))
    }

    /// The first block that was not written, and its error.
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

    /// Waits for the device. Results are in the order of the extents.
    pub(super) fn wait(&self) -> Vec<Result<(), IoError>> {
        let each = |ios: &Vec<IoHandle>| ios.iter().map(IoHandle::wait).fold(Ok(()), Result::and);
        self.ios.iter().map(each).collect()
    }
}

/// The result of mapping an extent.
pub(super) struct MapResult {
    /// Blocks that are mapped, counted from the first one.
    pub(super) blocks: u32,
    /// Reservations that mapping used.
    pub(super) used: u64,
    /// The stored size has grown over some of them.
    pub(super) grew: bool,
    /// Why not all are mapped.
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

/// The size that a file of `size` bytes may have on disk once the extent is mapped.
pub(super) fn size_after(size: u64, extent: &Extent) -> u64 {
    size.min(extent.blocks.end.saturating_mul(BLOCK))
}
