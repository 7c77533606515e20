//! The end of a write-back run: blocks written and mapped become clean, all others dirty again.

use steadfs_block::IoError;
use steadfs_cache::{CollectedBlock, WriteError};
use steadfs_vfs::{FsError, Result};

use super::BLOCK;
use super::run::{MapResult, WritebackRun};
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::segment::Run;
use crate::space::Need;

impl F2fs {
    /// Completes a run: blocks written and mapped become clean, all others dirty again.
    pub(super) fn complete_run(
        &self,
        wb_run: &WritebackRun<'_>,
        written: &[Result<(), IoError>],
        mapped: &[MapResult],
    ) -> Result<()> {
        let WritebackRun {
            inode,
            collected,
            extents,
            allocation,
            ..
        } = wb_run;
        let alloc_error = allocation.as_ref().err();
        let mut first_error = Ok(());
        let mut rest = &collected[..];
        for ((extent, written), mapped) in extents.iter().zip(written).zip(mapped) {
            let before = rest.iter().take_while(|t| t.block.0 < extent.blocks.start);
            let (skipped, after) = rest.split_at(before.count());
            self.redirty_failed(inode, skipped, alloc_error, None);
            let (done, after) = after.split_at(mapped.blocks as usize);
            if let (Some(first), Some(last)) = (done.first(), done.last()) {
                inode
                    .pages
                    .complete(first.block.0..last.block.0 + 1, Ok(()), false);
                self.release_reservations(reservations(done) - mapped.used, 0);
            }
            let (failed, after) = after.split_at(extent.len() as usize - done.len());
            let why = mapped.result.as_ref().err();
            self.redirty_failed(inode, failed, why, written.as_ref().err());
            if extent.allocated && !failed.is_empty() {
                self.segments().release(Run {
                    start: extent.start.plus(mapped.blocks),
                    len: extent.len() - mapped.blocks,
                });
            }
            rest = after;
            first_error = first_error.and(mapped.result.clone());
        }
        self.redirty_failed(inode, rest, alloc_error, None);
        // A size that covers more needs the same FLUSH as newly allocated blocks: recovery must not find it without
        // the data.
        let mut opu = extents.iter().any(|p| p.allocated) || mapped.iter().any(|n| n.grew);
        if let Some(from) = inode.stale_tail()
            && collected.iter().any(|t| t.block.0 == from / BLOCK)
        {
            // Treated like newly allocated blocks: the old content of the device is not content of the file.
            opu = true;
            if first_error.is_ok() {
                inode.clear_stale_tail();
            }
        }
        inode.record_written(opu, self.queue.next_flush());
        first_error
    }

    /// Blocks that were not allocated, written or mapped are dirty again and keep their reservations. Full logs are
    /// not an error of the file: the write is retried.
    fn redirty_failed(
        &self,
        inode: &Inode,
        blocks: &[CollectedBlock],
        why: Option<&FsError>,
        error: Option<&IoError>,
    ) {
        for t in blocks {
            let one = t.block.0..t.block.0 + 1;
            let kept = match (why, error) {
                (Some(FsError::NoSpace), None) => inode.pages.redirty(one, t.reserved),
                (_, Some(error)) => {
                    let error = WriteError::from(error.clone());
                    inode.pages.complete(one, Err(&error), t.reserved)
                }
                (Some(why), None) => {
                    let error = WriteError::from(why.clone());
                    inode.pages.complete(one, Err(&error), t.reserved)
                }
                (None, None) => unreachable!("every block that is not written has an error"),
            };
            self.release_reservations(u64::from(t.reserved), kept);
        }
    }

    /// Releases the reservations that a run held and the cache does not keep.
    fn release_reservations(&self, before: u64, kept: u64) {
        // A block written again meanwhile has a reservation of its own.
        assert!(kept <= before, "completing a run adds no reservations");
        self.space.release(Need {
            blocks: before - kept,
            nodes: 0,
        });
    }
}

fn reservations(collected: &[CollectedBlock]) -> u64 {
    collected.iter().filter(|t| t.reserved).count() as u64
}
