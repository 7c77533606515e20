//! FLUSHes: data, then the map, then the map's own FLUSH.

use std::sync::Arc;

use steadfs_block::{Bio, Buf, Done, IoError};

use super::format::MAP_BLOCK;
use super::state::Job;
use super::{Overlay, Step};
use crate::split::Split;

impl Overlay {
    /// Makes durable what completed writes have written.
    pub(super) fn flush(self: &Arc<Self>, bio: Bio, done: Done) -> Vec<Step> {
        if !self.persists {
            done(bio, Ok(()));
            return Vec::new();
        }
        {
            let mut state = self.state.lock();
            state.flushes.waiting.push((bio, done));
            if std::mem::replace(&mut state.flushes.running, true) {
                return Vec::new();
            }
        }
        vec![self.begin_flush()]
    }

    /// Begins a FLUSH for all that wait for one.
    fn begin_flush(self: &Arc<Self>) -> Step {
        let (served, blocks) = {
            let mut state = self.state.lock();
            let served = std::mem::take(&mut state.flushes.waiting);
            // Bits of writes that end from now on could be without durable data: they are not among these.
            (served, state.take_unsaved())
        };
        let this = Arc::clone(self);
        let flushed: Done = Box::new(move |_, result| match result {
            Ok(()) if blocks.is_empty() => this.end_flush(served, &Ok(())),
            Ok(()) => this.save(served, blocks),
            Err(error) => this.fail_flush(served, &blocks, error),
        });
        Step::Upper(Bio::flush(), flushed)
    }

    /// Writes blocks of the map, whose data are durable, and makes them durable.
    fn save(self: &Arc<Self>, served: Vec<Job>, blocks: Vec<(u64, Buf)>) {
        let this = Arc::clone(self);
        let again = blocks.clone();
        let written: Done = Box::new(move |_, result| match result {
            Ok(()) => {
                let overlay = Arc::clone(&this);
                let flushed: Done = Box::new(move |_, result| match result {
                    Ok(()) => this.end_flush(served, &Ok(())),
                    Err(error) => this.fail_flush(served, &again, error),
                });
                overlay.upper.start(Bio::flush(), flushed);
            }
            Err(error) => this.fail_flush(served, &again, error),
        });
        let split = Split::new(Bio::flush(), written);
        for (block, buf) in blocks {
            let at = MAP_BLOCK + block * MAP_BLOCK;
            self.upper.start(Bio::write(at, vec![buf]), split.part());
        }
        split.finish(Ok(()));
    }

    fn fail_flush(self: &Arc<Self>, served: Vec<Job>, blocks: &[(u64, Buf)], error: IoError) {
        let numbers = blocks.iter().map(|(block, _)| *block);
        self.state.lock().not_saved(numbers);
        self.end_flush(served, &Err(error));
    }

    /// Ends the FLUSHes of `served`, and begins the next one if there is any.
    fn end_flush(self: &Arc<Self>, served: Vec<Job>, result: &Result<(), IoError>) {
        for (bio, done) in served {
            let result = result
                .clone()
                .map_err(|error| IoError::of(&bio, error.cause));
            done(bio, result);
        }
        let is_next = {
            let mut state = self.state.lock();
            state.flushes.running = !state.flushes.waiting.is_empty();
            state.flushes.running
        };
        if is_next {
            self.submit(vec![self.begin_flush()]);
        }
    }
}
