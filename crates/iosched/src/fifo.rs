//! First come, first served in three classes.

use std::collections::BTreeMap;

use steadfs_base::{IoTag, Urgency};

use crate::{BoostOutcome, Io, IoId, Nanos, Scheduler};

/// Arrival order in three classes: *urgent* (a task waits, journal, checkpoint), *background* and *idle*. Priorities and
/// groups do not count.
///
/// Urgent requests are dispatched first, but after [`FifoOptions::urgent_burst`] of them in a row one background request
/// is dispatched. Idle requests are dispatched one at a time, when no other request is queued or in flight. A boosted
/// request moves to its new class, at the position of its arrival.
///
/// At most [`FifoOptions::background_depth`] background requests are in flight, so that the device always accepts an
/// urgent one.
#[derive(Debug)]
pub struct Fifo {
    options: FifoOptions,
    arrivals: u64,
    /// By class, then by arrival.
    queues: [BTreeMap<u64, IoId>; CLASSES],
    /// By request number.
    entries: Vec<Option<Entry>>,
    in_flight: [usize; CLASSES],
    /// Urgent requests dispatched since a background request was, while one was queued.
    burst: usize,
}

/// The limits of [`Fifo`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FifoOptions {
    /// Most background requests in flight.
    pub background_depth: usize,
    /// Most urgent requests in a row while a background request waits.
    pub urgent_burst: usize,
}

impl Default for FifoOptions {
    fn default() -> Self {
        Self {
            background_depth: 24,
            urgent_burst: 16,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    tag: IoTag,
    class: Class,
    arrival: u64,
    queued: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    Urgent,
    Background,
    Idle,
}

const CLASSES: usize = 3;

impl Class {
    fn of(tag: IoTag) -> Self {
        match tag.urgency {
            Urgency::Waited | Urgency::Journal | Urgency::Checkpoint => Self::Urgent,
            Urgency::Background => Self::Background,
            Urgency::Idle => Self::Idle,
        }
    }
}

impl Fifo {
    /// A policy with nothing queued.
    pub fn new(options: FifoOptions) -> Self {
        assert!(
            options.background_depth > 0,
            "at least one background request may be in flight"
        );
        assert!(
            options.urgent_burst > 0,
            "at least one urgent request is dispatched in a row"
        );
        Self {
            options,
            arrivals: 0,
            queues: Default::default(),
            entries: Vec::new(),
            in_flight: [0; CLASSES],
            burst: 0,
        }
    }

    fn entry(&mut self, id: IoId) -> &mut Entry {
        self.entries
            .get_mut(id.0 as usize)
            .and_then(Option::as_mut)
            .expect("the request was inserted and is not complete")
    }

    /// The class that is served next.
    fn next_class(&mut self) -> Option<Class> {
        let is_queued = |class: Class| !self.queues[class as usize].is_empty();
        let background = is_queued(Class::Background)
            && self.in_flight[Class::Background as usize] < self.options.background_depth;
        if is_queued(Class::Urgent) && !(background && self.burst >= self.options.urgent_burst) {
            self.burst = if is_queued(Class::Background) {
                self.burst + 1
            } else {
                0
            };
            Some(Class::Urgent)
        } else if background {
            self.burst = 0;
            Some(Class::Background)
        } else {
            let busy = is_queued(Class::Background) || self.in_flight.iter().any(|&n| n > 0);
            (is_queued(Class::Idle) && !busy).then_some(Class::Idle)
        }
    }
}

impl Scheduler for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn insert(&mut self, id: IoId, io: Io, _now: Nanos) {
        let entry = Entry {
            tag: io.tag,
            class: Class::of(io.tag),
            arrival: self.arrivals,
            queued: true,
        };
        self.arrivals += 1;
        let slot = id.0 as usize;
        if self.entries.len() <= slot {
            self.entries.resize(slot + 1, None);
        }
        assert!(
            self.entries[slot].is_none(),
            "the request number is not in use"
        );
        self.entries[slot] = Some(entry);
        self.queues[entry.class as usize].insert(entry.arrival, id);
    }

    fn grow(&mut self, id: IoId, _bytes: u64) {
        assert!(self.entry(id).queued, "only queued requests grow");
    }

    fn boost(&mut self, id: IoId, tag: IoTag, _now: Nanos) -> BoostOutcome {
        let entry = self.entry(id);
        if !entry.queued {
            return BoostOutcome::AlreadyDispatched;
        }
        let boosted = entry.tag.boosted_to(tag);
        if boosted == entry.tag {
            return BoostOutcome::AlreadyUrgent;
        }
        entry.tag = boosted;
        let old = entry.class;
        entry.class = Class::of(boosted);
        let (new, arrival) = (entry.class, entry.arrival);
        self.queues[old as usize].remove(&arrival);
        let before = |class: Class| self.queues[class as usize].range(..arrival).count() as u64;
        let overtaken = if old == new { 0 } else { before(old) };
        self.queues[new as usize].insert(arrival, id);
        BoostOutcome::Boosted { overtaken }
    }

    fn next(&mut self, _now: Nanos) -> Option<IoId> {
        let class = self.next_class()?;
        let (_, id) = self.queues[class as usize]
            .pop_first()
            .expect("the chosen class has a queued request");
        self.in_flight[class as usize] += 1;
        let entry = self.entry(id);
        debug_assert!(entry.queued && entry.class == class);
        entry.queued = false;
        Some(id)
    }

    fn complete(&mut self, id: IoId, _now: Nanos) {
        let entry = *self.entry(id);
        assert!(!entry.queued, "only dispatched requests complete");
        self.entries[id.0 as usize] = None;
        self.in_flight[entry.class as usize] -= 1;
    }

    fn queued(&self) -> usize {
        self.queues.iter().map(BTreeMap::len).sum()
    }
}

#[cfg(test)]
mod tests;
