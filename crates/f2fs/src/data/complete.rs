//! The end of a write-back: what is written and mapped is clean, what is not is dirty again.

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
    /// Ends the runs: clean what is written and mapped, dirty again what is not.
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
        // What the file grew over is as of a new place: the size must not be found without it.
        let mut opu = extents.iter().any(|p| p.allocated) || mapped.iter().any(|n| n.grew);
        if let Some(from) = inode.stale_tail()
            && collected.iter().any(|t| t.block.0 == from / BLOCK)
        {
            // As of a new place: what is there now is not what the file ever had.
            opu = true;
            if first_error.is_ok() {
                inode.clear_stale_tail();
            }
        }
        inode.record_written(opu, self.queue.next_flush());
        first_error
    }

    /// Blocks that got no place or no name, or could not be written, are dirty again and keep their
    /// promises. That the logs are full is no error of the file: it is tried again.
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
                (None, None) => unreachable!("a block that is not written has a cause"),
            };
            self.release_reservations(u64::from(t.reserved), kept);
        }
    }

    /// So many promises were a wb_run's, so many are blocks' in the cache again.
    fn release_reservations(&self, before: u64, kept: u64) {
        // A block written again meanwhile has collected a promise of its own.
        assert!(kept <= before, "a landing makes no promises");
        self.space.release(Need {
            blocks: before - kept,
            nodes: 0,
        });
    }
}

fn reservations(collected: &[CollectedBlock]) -> u64 {
    collected.iter().filter(|t| t.reserved).count() as u64
}
