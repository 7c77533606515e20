//! The end of a write-back: what is written and named is clean, what is not is dirty again.

use steadfs_block::IoError;
use steadfs_cache::{CollectedBlock, WriteError};
use steadfs_vfs::{FsError, Result};

use super::BLOCK;
use super::flight::{Flight, Named};
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::segment::Run;
use crate::space::Need;

impl F2fs {
    /// Ends the flights: clean what is written and named, dirty again what is not.
    pub(super) fn land(
        &self,
        flight: &Flight<'_>,
        written: &[Result<(), IoError>],
        named: &[Named],
    ) -> Result<()> {
        let Flight {
            inode,
            taken,
            pieces,
            placed,
            ..
        } = flight;
        let unplaced = placed.as_ref().err();
        let mut first_error = Ok(());
        let mut rest = &taken[..];
        for ((piece, written), named) in pieces.iter().zip(written).zip(named) {
            let before = rest.iter().take_while(|t| t.block.0 < piece.blocks.start);
            let (skipped, after) = rest.split_at(before.count());
            self.land_failed(inode, skipped, unplaced, None);
            let (done, after) = after.split_at(named.blocks as usize);
            if let (Some(first), Some(last)) = (done.first(), done.last()) {
                inode
                    .pages
                    .complete(first.block.0..last.block.0 + 1, Ok(()), false);
                self.settle(reservations(done) - named.used, 0);
            }
            let (failed, after) = after.split_at(piece.len() as usize - done.len());
            let why = named.result.as_ref().err();
            self.land_failed(inode, failed, why, written.as_ref().err());
            if piece.claimed && !failed.is_empty() {
                self.segments().release(Run {
                    start: piece.start.plus(named.blocks),
                    len: piece.len() - named.blocks,
                });
            }
            rest = after;
            first_error = first_error.and(named.result.clone());
        }
        self.land_failed(inode, rest, unplaced, None);
        // What the file grew over is as of a new place: the size must not be found without it.
        let mut opu = pieces.iter().any(|p| p.claimed) || named.iter().any(|n| n.grew);
        if let Some(from) = inode.stale_tail()
            && taken.iter().any(|t| t.block.0 == from / BLOCK)
        {
            // As of a new place: what is there now is not what the file ever had.
            opu = true;
            if first_error.is_ok() {
                inode.tail_is_fresh();
            }
        }
        inode.note_written(opu, self.queue.next_flush());
        first_error
    }

    /// Blocks that got no place or no name, or could not be written, are dirty again and keep their
    /// promises. That the logs are full is no error of the file: it is tried again.
    fn land_failed(
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
            self.settle(u64::from(t.reserved), kept);
        }
    }

    /// So many promises were a flight's, so many are blocks' in the cache again.
    fn settle(&self, before: u64, kept: u64) {
        // A block written again meanwhile has taken a promise of its own.
        assert!(kept <= before, "a landing makes no promises");
        self.space.release(Need {
            blocks: before - kept,
            nodes: 0,
        });
    }
}

fn reservations(taken: &[CollectedBlock]) -> u64 {
    taken.iter().filter(|t| t.reserved).count() as u64
}
