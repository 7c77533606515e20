//! Out of the queue, into the device, and back.

use std::sync::Arc;

use steadfs_rt::Instant;

use super::super::handle::Io;
use super::super::request::{Phase, ReqId, Request, Runner};
use super::{State, nanos, tail_of};
use crate::{Bio, IoError, Op};

impl State {
    /// The next request for the device.
    pub(in super::super) fn dispatch(&mut self, now: Instant) -> Option<Dispatch> {
        loop {
            if self.flushing.is_none()
                && let Some(id) = self.parked.pop_front()
            {
                return Some(self.send(id, true, now));
            }
            if self.in_flight >= self.depth {
                return None;
            }
            let io = self.sched.next(nanos(now))?;
            let id = self.id_of(io);
            self.in_flight += 1;
            let request = self.living(id);
            if !flushes_first(&request.bio) || self.flushing.is_none() {
                return Some(self.send(id, false, now));
            }
            self.living(id).phase = Phase::Blocked;
            self.parked.push_back(id);
        }
    }

    /// Takes a request out of the books of what waits.
    fn send(&mut self, id: ReqId, was_parked: bool, now: Instant) -> Dispatch {
        let request = self.living(id);
        request.phase = Phase::Dispatched;
        request.dispatched = now;
        let empty = Bio::new(request.bio.op, 0, 0, Vec::new());
        let bio = std::mem::replace(&mut request.bio, empty);
        let runner = request.runner;
        let is_flush = bio.op == Op::Flush;
        // Whoever was to run it may sleep by now.
        let offered = was_parked || (is_flush && runner.is_none());
        let waiters = match offered {
            true => self
                .living(id)
                .parts()
                .filter_map(|part| part.to.io().cloned())
                .collect(),
            false => Vec::new(),
        };
        if flushes_first(&bio) {
            self.flushing = Some(id);
            self.flushes += 1;
            self.living(id).flush = Some(self.flushes);
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
            Some(cause) if bio.preflush => Some(after_failure(&bio, cause)),
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

    /// Takes the books of a request that the device has ended; what its callers are told comes back too.
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
            Some(number) => self.flushed(number, bio, result),
            None => result,
        };
        if request.epoch == self.epoch {
            self.sched.complete(id.io_id(), nanos(now));
        }
        self.changes_end(bio.op, &request);
        self.recorder.ended(&request, bio.op, result.is_err(), now);
        if self.flushing == Some(id) {
            self.flushing = None;
        }
        if self.running_flush == Some(id) {
            self.running_flush = None;
            if let Some(next) = self.next_flush
                && self.living(next).phase == Phase::Blocked
                && !self.parked.contains(&next)
            {
                // Whoever waits for it sleeps by now.
                self.release(next, None, now);
            }
        }
        (request, result)
    }

    /// The end of a FLUSH. After one that failed, nobody knows which writes the device still has: of those
    /// that were answered before it, no later one makes anything durable.
    fn flushed(
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
            (Some(cause), Ok(())) => Err(after_failure(bio, cause)),
            (_, Err(error)) => {
                self.flush_error.get_or_insert_with(|| error.cause.clone());
                Err(error)
            }
        }
    }
}

/// A request on its way to the device.
pub(in super::super) struct Dispatch {
    pub id: ReqId,
    pub bio: Bio,
    pub runner: Option<Runner>,
    /// For a FLUSH without runner, and for what had to wait for the end of another: those that may sleep
    /// until its end.
    pub waiters: Vec<Arc<Io>>,
    /// The device shall not have it: why.
    pub refused: Option<IoError>,
}

/// Whether the device flushes before it does anything else for a bio.
fn flushes_first(bio: &Bio) -> bool {
    bio.op == Op::Flush || bio.preflush
}

/// What is told after a FLUSH has failed.
fn after_failure(bio: &Bio, cause: &str) -> IoError {
    IoError::of(bio, format!("an earlier flush failed: {cause}"))
}
