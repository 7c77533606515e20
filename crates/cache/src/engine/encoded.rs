//! Batches of files that the file system encodes (compresses): it finds places, writes and maps by itself
//! ([`WritebackFs::write_encoded`]).

use std::ops::Range;

use steadfs_base::{FileBlock, Urgency};

use super::batches::TurnEnd;
use super::{Engine, Intent, WritebackFile, WritebackFs};
use crate::DirtyEpoch;

impl<S: WritebackFs> Engine<'_, S> {
    /// As [`Engine::write_batches`], for an encoded file. Blocks that are encoded together are collected together, whenever
    /// they became dirty.
    pub(super) fn write_encoded(
        &self,
        file: &S::File,
        rest: &mut Range<u64>,
        (blocks, most): (usize, usize),
        intent: &Intent<S::Hint>,
    ) -> TurnEnd {
        let mut end = TurnEnd {
            more: false,
            result: Ok(()),
            failed_from: rest.start,
        };
        let pages = file.pages();
        for batch in 0.. {
            if batch == most {
                end.more = true;
                break;
            }
            let waiter = file.flush().waiters().tag();
            if intent.tag.urgency == Urgency::Background && waiter.is_some() {
                break;
            }
            let Some(FileBlock(first)) = pages.next_dirty(FileBlock(rest.start)) else {
                break;
            };
            if first >= rest.end {
                break;
            }
            let Some(until) = self.encoded_batch(file, first, blocks as u64) else {
                break;
            };
            let stored = file.stored_size();
            let batch = rest.start..until;
            let size = || file.size();
            let collected = pages.collect_forward(batch, usize::MAX, DirtyEpoch::ALL, stored, size);
            let Some(last) = collected.0.last().map(|last| last.block.0) else {
                break;
            };
            let size = collected.1;
            let written = self.0.write_encoded(file, collected, intent);
            if written.is_err() && end.result.is_ok() {
                (end.result, end.failed_from) = (written, rest.start);
            }
            let reached = size.min((last + 1) << pages.block_size().bits());
            if let Err(error) = &end.result
                && (self.0.is_retried(error) || file.stored_size() < reached)
            {
                // The file cannot grow over what has failed.
                break;
            }
            // Behind a hole at the end of the batch the file has not grown yet.
            rest.start = last + 1;
        }
        end
    }

    /// The end of a batch that begins with block `first` and has about `most` blocks. Holes do not end it: what one call
    /// wrote behind a hole comes into the same transaction as what is before, so that no crash leaves a size between.
    fn encoded_batch(&self, file: &S::File, first: u64, most: u64) -> Option<u64> {
        let mut until = self.0.encoded_end(file, first)?;
        let mut blocks = until - first;
        while blocks < most
            && let Some(FileBlock(next)) = file.pages().next_dirty(FileBlock(until))
        {
            until = self.0.encoded_end(file, next)?;
            blocks += until - next;
        }
        Some(until)
    }
}
