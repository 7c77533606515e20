//! Dispatch to the device, and completion.

use std::sync::Arc;

use steadfs_rt::Instant;

use super::super::handle::IoCompletion;
use super::super::request::{Phase, ReqId, Request, Runner};
use super::{QueueState, nanos, tail_of};
use crate::{Bio, IoError, Op};

impl QueueState {
    /// The next request for the device.
    pub(in super::super) fn dispatch(&mut self, now: Instant) -> Option<Dispatch> {
        loop {
            if self.flushing.is_none()
                && let Some(id) = self.parked.pop_front()
            {
                return Some(self.dispatch_request(id, true, now));
            }
            if self.in_flight >= self.depth {
                return None;
            }
            let io = self.sched.next(nanos(now))?;
            let id = self.id_of(io);
            self.in_flight += 1;
            let request = self.request_mut(id);
            if !makes_durable(&request.bio) || self.flushing.is_none() {
                return Some(self.dispatch_request(id, false, now));
            }
            self.request_mut(id).phase = Phase::Blocked;
            self.parked.push_back(id);
        }
    }

    /// Moves a request from the queue's state to the device.
    fn dispatch_request(&mut self, id: ReqId, was_parked: bool, now: Instant) -> Dispatch {
        let request = self.request_mut(id);
        request.phase = Phase::Dispatched;
        request.dispatched = now;
        let empty = Bio::new(request.bio.op, 0, 0, Vec::new());
        let bio = std::mem::replace(&mut request.bio, empty);
        let runner = request.runner;
        let is_flush = bio.op == Op::Flush;
        // The task that was to run it may be asleep by now.
        let offered = was_parked || (is_flush && runner.is_none());
        let waiters = match offered {
            true => self
                .request_mut(id)
                .parts()
                .filter_map(|part| part.completion.io().cloned())
                .collect(),
            false => Vec::new(),
        };
        if makes_durable(&bio) {
            self.flushing = Some(id);
        }
        if flushes_first(&bio) {
            self.flushes += 1;
            self.request_mut(id).flush = Some(self.flushes);
        }
        if is_flush {
            debug_assert!(self.running_flush.is_none(), "one FLUSH runs at a time");
            debug_assert_eq!(self.next_flush, Some(id));
            self.running_flush = Some(id);
            self.next_flush = None;
        }
        if let Some(tail) = tail_of(&bio)
            && self.tails.get(&tail) == Some(&id)
        {
            self.tails.remove(&tail);
        }
        let refused = match &self.flush_error {
            Some(cause) if bio.preflush => Some(earlier_flush_failed(&bio, cause)),
            _ => None,
        };
        Dispatch {
            id,
            bio,
            runner,
            waiters,
            refused,
        }
    }

    /// Removes a request that the device has ended; returns it and the result for its callers.
    pub(in super::super) fn complete(
        &mut self,
        id: ReqId,
        bio: &Bio,
        result: Result<(), IoError>,
        now: Instant,
    ) -> (Request, Result<(), IoError>) {
        let slot = &mut self.slots[id.slot as usize];
        assert_eq!(slot.generation, id.generation, "a request ends once");
        let request = slot.request.take().expect("a request ends once");
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.slot);
        self.in_flight -= 1;
        let result = match request.flush {
            Some(number) => self.end_flush(number, bio, result),
            // A write with FUA; a device may give it back without the flag.
            None if self.flushing == Some(id) => {
                result.inspect_err(|error| self.record_flush_error(error))
            }
            None => result,
        };
        if request.epoch == self.epoch {
            self.sched.complete(id.io_id(), nanos(now));
        }
        self.end_changes(bio.op, &request);
        self.recorder
            .record_end(&request, bio.op, result.is_err(), now);
        if self.flushing == Some(id) {
            self.flushing = None;
        }
        if self.running_flush == Some(id) {
            self.running_flush = None;
            if let Some(next) = self.next_flush
                && self.request_mut(next).phase == Phase::Blocked
                && !self.parked.contains(&next)
            {
                // Its waiters are asleep by now.
                self.release(next, None, now);
            }
        }
        (request, result)
    }

    /// The end of a FLUSH. After a failed one it is unknown which earlier writes the device still has, so every
    /// later FLUSH fails, too.
    fn end_flush(
        &mut self,
        number: u64,
        bio: &Bio,
        result: Result<(), IoError>,
    ) -> Result<(), IoError> {
        match (&self.flush_error, result) {
            (None, Ok(())) => {
                self.flushed = self.flushed.max(number);
                Ok(())
            }
            (Some(cause), Ok(())) => Err(earlier_flush_failed(bio, cause)),
            (_, Err(error)) => {
                self.record_flush_error(&error);
                Err(error)
            }
        }
    }

    fn record_flush_error(&mut self, error: &IoError) {
        self.flush_error.get_or_insert_with(|| error.cause.clone());
    }
}

/// A request on its way to the device.
pub(in super::super) struct Dispatch {
    pub id: ReqId,
    pub bio: Bio,
    pub runner: Option<Runner>,
    /// For a FLUSH without a runner, and for a request that was parked: tasks that may sleep until its end.
    pub waiters: Vec<Arc<IoCompletion>>,
    /// Why it is not given to the device.
    pub refused: Option<IoError>,
}

/// Whether the device flushes before it does anything else for a bio.
fn flushes_first(bio: &Bio) -> bool {
    bio.op == Op::Flush || bio.preflush
}

/// Whether the device has more to do for a bio than to take its data. Where the host has a cache of its own, it reports a
/// write that it lost to the first of them only, whichever write that was.
fn makes_durable(bio: &Bio) -> bool {
    flushes_first(bio) || bio.fua
}

/// The error of a bio after a failed FLUSH.
fn earlier_flush_failed(bio: &Bio, cause: &str) -> IoError {
    IoError::of(bio, format!("an earlier flush failed: {cause}"))
}
