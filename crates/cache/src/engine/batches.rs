//! A large file's dirty data, batch by batch: while the device writes one, the next one is collected and allocated.

use std::ops::Range;

use steadfs_base::Urgency;
use steadfs_vfs::{FsError, Result};

use super::{Engine, Intent, MappedPiece, SPACE_TRIES, WritebackFile, WritebackFs, WritebackRun};
use crate::{DirtyEpoch, FlushGuard};

/// The end of a turn of batches.
pub(super) struct TurnEnd {
    /// Whether there may be more to write.
    pub(super) more: bool,
    /// The first error of all.
    pub(super) result: Result<()>,
    /// First block of the batch that failed first.
    pub(super) failed_from: u64,
}

impl<S: WritebackFs> Engine<'_, S> {
    /// Writes turns of batches, without the flush lock between two turns, until what was dirty in `epoch` is written, or
    /// `enough`.
    pub(super) fn write_in_turns(
        &self,
        file: &S::File,
        enough: impl Fn() -> bool,
        epoch: DirtyEpoch,
        intent: &Intent<S::Hint>,
    ) -> Result<()> {
        let mut rest = 0..file.pages().dirty_end(epoch);
        let mut first_error = Ok(());
        let mut tries = 0;
        while !rest.is_empty() {
            if let Err(error) = self.0.before_turn(intent.tag) {
                return first_error.and(Err(error));
            }
            let end = {
                let _lock = FlushGuard::lock(file);
                if enough() {
                    return first_error;
                }
                let turn = self.0.turn(intent.reason);
                self.write_batches(file, &mut rest, epoch, turn, intent)
            };
            match end.result {
                Err(error) if self.0.is_retried(&error) && tries < SPACE_TRIES => {
                    tries += 1;
                    rest.start = end.failed_from;
                    self.0.make_space(intent.tag)?;
                    continue;
                }
                Ok(()) => tries = 0,
                failed => first_error = first_error.and(failed),
            }
            if !end.more {
                break;
            }
        }
        first_error
    }

    /// Writes batches of what was dirty in `epoch` in `rest`, and takes them out of it: `turn` is the number of blocks in
    /// a batch and of batches, at most. The caller holds the flush lock.
    pub(super) fn write_batches(
        &self,
        file: &S::File,
        rest: &mut Range<u64>,
        epoch: DirtyEpoch,
        turn: (usize, usize),
        intent: &Intent<S::Hint>,
    ) -> TurnEnd {
        let (blocks, most) = turn;
        if self.0.encoded_end(file, rest.start).is_some() {
            return self.write_encoded(file, rest, turn, intent);
        }
        let mut in_flight: Option<WritebackRun<'_, S::File>> = None;
        let mut end = TurnEnd {
            more: false,
            result: Ok(()),
            failed_from: rest.start,
        };
        let mut batches = 0;
        loop {
            let is_full = |run: &WritebackRun<'_, S::File>| {
                let error = run.alloc_result.as_ref().err();
                error.is_some_and(|error| self.0.is_retried(error))
            };
            let mut next = match batches < most && !in_flight.as_ref().is_some_and(is_full) {
                true => self.collect_next(file, rest, (epoch, blocks), in_flight.as_ref(), intent),
                false => None,
            };
            // Blocks that are overwritten may, on a damaged volume, be those of the batch in flight.
            let is_apart = |next: &WritebackRun<'_, S::File>| {
                let before = in_flight.as_ref();
                next.is_all_new() || before.is_none_or(|before| next.is_apart_from(before))
            };
            let beside = next.as_mut().filter(|next| is_apart(next));
            let submitted = beside
                .map(|next| self.submit_run(None, next, intent.tag))
                .is_some();
            if let Some(done) = in_flight.take() {
                let (size, from) = (done.size, done.collected[0].block.0);
                let finished = self.finish_runs(vec![done]);
                if end.result.is_ok() && finished.is_err() {
                    (end.result, end.failed_from) = (finished, from);
                }
                if let Err(error) = &end.result
                    && file.stored_size() < size
                {
                    // The file cannot grow over what has failed.
                    if let Some(next) = next {
                        self.abandon_run(&next, error);
                    }
                    end.more = false;
                    return end;
                }
            }
            let Some(mut next) = next else {
                end.more = batches == most;
                return end;
            };
            if !submitted {
                self.submit_run(None, &mut next, intent.tag);
            }
            in_flight = Some(next);
            batches += 1;
        }
    }

    /// Collects the next batch of dirty blocks out of `rest` and allocates for it, behind the batch `before`. `None`:
    /// nothing is dirty any more, or a caller waits that writes the rest itself, with its own tag.
    fn collect_next<'f>(
        &self,
        file: &'f S::File,
        rest: &mut Range<u64>,
        (epoch, blocks): (DirtyEpoch, usize),
        before: Option<&WritebackRun<'_, S::File>>,
        intent: &Intent<S::Hint>,
    ) -> Option<WritebackRun<'f, S::File>> {
        let waiters = file.flush().waiters();
        if intent.tag.urgency == Urgency::Background && waiters.tag().is_some() {
            return None;
        }
        let reached = rest.start << file.pages().block_size().bits();
        let stored = before.map_or(0, |run| run.size.min(reached));
        let stored = stored.max(file.stored_size());
        let pages = file.pages();
        let collected = pages.collect_forward(rest.clone(), blocks, epoch, stored, || file.size());
        rest.start = collected.0.last()?.block.0 + 1;
        let before = before.and_then(|run| run.pieces.last());
        Some(self.allocate_run(file, collected, before, intent))
    }

    /// Leaves the blocks of a run dirty and unmapped, because of an error elsewhere.
    fn abandon_run(&self, run: &WritebackRun<'_, S::File>, error: &FsError) {
        run.wait();
        let written = vec![Ok(()); run.pieces.len()];
        let outcomes: Vec<_> = run
            .pieces
            .iter()
            .map(|_| MappedPiece::none(error.clone()))
            .collect();
        // The caller has the error, and each block is dirty.
        let _ = self.complete_run(run, &written, &outcomes);
    }
}
