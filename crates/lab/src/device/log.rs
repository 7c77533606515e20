//! The log of a device: requests and completions in one sequence.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use super::change::Change;
use super::content_tree::ContentTree;
use super::cut::{Cut, Pending, Survivors};
use super::image::Image;

/// One event of a device.
#[derive(Clone, Debug)]
pub enum Event {
    /// A change was started.
    Issued(Arc<Change>),
    /// A change's preflush is done: its own content may reach the medium from here on.
    Preflushed {
        /// The change's number.
        id: u64,
    },
    /// A change succeeded.
    Completed {
        /// The change's number.
        id: u64,
        /// Whether its completion makes it durable.
        durable: bool,
    },
    /// A change failed without effect.
    Failed {
        /// The change's number.
        id: u64,
    },
    /// A flush was started.
    FlushIssued {
        /// The flush's number.
        id: u64,
    },
    /// A flush succeeded.
    FlushCompleted {
        /// The flush's number.
        id: u64,
    },
    /// A flush failed.
    FlushFailed {
        /// The flush's number.
        id: u64,
    },
    /// The device lost everything that was not durable.
    CacheLost,
    /// A mark of the user.
    Mark(u64),
}

/// A completed change, and whether it certainly survives.
pub(super) type Cached = (Arc<Change>, bool);
/// A change in flight, and whether a part of it can be on the medium.
pub(super) type InFlight = (Arc<Change>, bool);

/// The whole state at one position, the base of the following ones.
#[derive(Clone)]
struct Epoch {
    at: usize,
    durable: ContentTree,
    cached: Vec<Cached>,
    in_flight: Vec<InFlight>,
}

/// A device's log, from which the images that a crash may leave are built for any position.
#[derive(Clone)]
pub struct Log {
    atomic: u64,
    events: Vec<Event>,
    epochs: Vec<Epoch>,
}

impl Log {
    /// Number of events.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The events.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Numbers of the requests that flush: FLUSHes, and writes with a preflush.
    pub fn flushes(&self) -> impl Iterator<Item = u64> {
        self.events.iter().filter_map(|event| match event {
            Event::FlushIssued { id } => Some(*id),
            Event::Issued(change) if change.preflush => Some(change.id),
            _ => None,
        })
    }

    /// The content before the first event.
    pub fn base(&self) -> Image {
        let tree = self.epochs[0].durable.clone();
        Image { tree }
    }

    /// All crash positions: cut `n` follows the first `n` events.
    pub fn cut_points(&self) -> RangeInclusive<usize> {
        0..=self.events.len()
    }

    /// The cuts just before something becomes durable or is lost, and the last one. Every image that some cut allows is
    /// allowed by one of these at which no fewer marks have passed: they suffice to check that acknowledged data
    /// survives.
    pub fn last_cuts(&self) -> Vec<usize> {
        let ends = |event: &Event| match event {
            Event::Preflushed { .. } | Event::FlushCompleted { .. } | Event::CacheLost => true,
            Event::Completed { durable, .. } => *durable,
            Event::Issued(_) | Event::Failed { .. } | Event::Mark(_) => false,
            Event::FlushIssued { .. } | Event::FlushFailed { .. } => false,
        };
        let numbered = self.events.iter().enumerate();
        let mut cuts: Vec<_> = numbered.filter(|(_, e)| ends(e)).map(|(n, _)| n).collect();
        cuts.push(self.events.len());
        cuts
    }

    /// The marks before `cut`, in order.
    pub fn marks(&self, cut: usize) -> impl Iterator<Item = u64> {
        self.events[..cut].iter().filter_map(|event| match event {
            Event::Mark(id) => Some(*id),
            _ => None,
        })
    }

    /// The images that a crash at `cut` may leave.
    ///
    /// # Panics
    /// If there are fewer events.
    pub fn at(&self, cut: usize) -> Cut {
        assert!(cut <= self.events.len(), "no cut after the last event");
        let after = self.epochs.partition_point(|epoch| epoch.at <= cut);
        let epoch = &self.epochs[after - 1];
        let mut cached = epoch.cached.clone();
        let in_flight = epoch.in_flight.iter().cloned();
        let mut in_flight: BTreeMap<u64, InFlight> =
            in_flight.map(|flight| (flight.0.id, flight)).collect();
        for event in &self.events[epoch.at..cut] {
            match event {
                Event::Issued(change) => {
                    let reachable = !change.preflush;
                    in_flight.insert(change.id, (Arc::clone(change), reachable));
                }
                Event::Preflushed { id } => {
                    in_flight.entry(*id).and_modify(|flight| flight.1 = true);
                }
                Event::Completed { id, durable } => {
                    cached.extend(in_flight.remove(id).map(|(change, _)| (change, *durable)));
                }
                Event::Failed { id } => drop(in_flight.remove(id)),
                // An epoch begins after each event that changes the durable content.
                Event::FlushCompleted { .. } | Event::CacheLost => {}
                Event::FlushIssued { .. } | Event::FlushFailed { .. } | Event::Mark(_) => {}
            }
        }
        let completed = cached.into_iter().map(|(change, certain)| Pending {
            change,
            in_flight: false,
            certain,
        });
        let reachable = in_flight.into_values().filter(|flight| flight.1);
        let rest = reachable.map(|(change, _)| Pending {
            change,
            in_flight: true,
            certain: false,
        });
        let pending = completed.chain(rest).collect();
        Cut::new(epoch.durable.clone(), pending, self.atomic)
    }

    /// The image that a crash at `cut` leaves if `survivors` survive; for several images of one cut call [`Log::at`]
    /// once.
    ///
    /// # Panics
    /// As [`Log::at`] and [`Cut::image`].
    pub fn image(&self, cut: usize, survivors: &Survivors) -> Image {
        self.at(cut).image(survivors)
    }
}

/// What a flush makes durable: of the changes that had completed when it started, those within its part of the device.
#[derive(Clone)]
pub(super) struct Covered {
    before: u64,
    part: Range<u64>,
}

/// A device's content, its durable part, and the log.
pub(super) struct Recorder {
    live: ContentTree,
    durable: ContentTree,
    /// Completed changes that are not durable yet, in order.
    cached: VecDeque<Cached>,
    /// Number of changes removed from the front of `cached`.
    left: u64,
    in_flight: BTreeMap<u64, InFlight>,
    keep: bool,
    log: Log,
}

impl Recorder {
    /// Starts with `image`; keeps a log if `keep`.
    pub(super) fn new(image: &Image, atomic: u64, keep: bool) -> Self {
        let tree = &image.tree;
        let first = Epoch {
            at: 0,
            durable: tree.clone(),
            cached: Vec::new(),
            in_flight: Vec::new(),
        };
        Self {
            live: tree.clone(),
            durable: tree.clone(),
            cached: VecDeque::new(),
            left: 0,
            in_flight: BTreeMap::new(),
            keep,
            log: Log {
                atomic,
                events: Vec::new(),
                epochs: vec![first],
            },
        }
    }

    pub(super) fn log(&self) -> &Log {
        &self.log
    }

    /// The content that reads see.
    pub(super) fn live(&self) -> &ContentTree {
        &self.live
    }

    pub(super) fn push(&mut self, event: Event) {
        if self.keep {
            self.log.events.push(event);
        }
    }

    pub(super) fn issued(&mut self, change: Change) {
        let change = Arc::new(change);
        let reachable = !change.preflush;
        let flight = (Arc::clone(&change), reachable);
        self.in_flight.insert(change.id, flight);
        self.push(Event::Issued(change));
    }

    /// The changes that a flush of this part makes durable which starts now.
    pub(super) fn covered_by_flush(&self, part: Range<u64>) -> Covered {
        Covered {
            before: self.left + self.cached.len() as u64,
            part,
        }
    }

    /// A flush, or a change's preflush, has made what it covers durable.
    pub(super) fn flushed(&mut self, covered: &Covered, event: Event) {
        if let Event::Preflushed { id } = event {
            self.in_flight
                .entry(id)
                .and_modify(|flight| flight.1 = true);
        }
        self.push(event);
        let (before, mut news) = (self.left, false);
        let count = covered.before.saturating_sub(self.left) as usize;
        for (change, certain) in self.cached.iter_mut().take(count) {
            // Parts do not overlap, and no change is on two of them.
            if !*certain && covered.part.contains(&change.offset) {
                (*certain, news) = (true, true);
            }
        }
        self.settle_certain();
        if self.left > before || news {
            self.begin_epoch();
        }
    }

    /// A flush, or a change's preflush, was acknowledged without effect (a lost FLUSH).
    pub(super) fn flushed_nothing(&mut self, event: Event) {
        if let Event::Preflushed { id } = event {
            self.in_flight
                .entry(id)
                .and_modify(|flight| flight.1 = true);
        }
        self.push(event);
    }

    pub(super) fn completed(&mut self, id: u64, durable: bool) {
        let (change, _) = self.in_flight.remove(&id).expect("a change completes once");
        change.apply_outcome(&mut self.live);
        self.cached.push_back((change, durable));
        self.push(Event::Completed { id, durable });
        let before = self.left;
        self.settle_certain();
        if self.left > before {
            self.begin_epoch();
        }
    }

    pub(super) fn failed(&mut self, id: u64) {
        self.in_flight.remove(&id);
        self.push(Event::Failed { id });
    }

    /// Loses every completed change that is not durable; reads show it.
    pub(super) fn lose_cache(&mut self) {
        self.push(Event::CacheLost);
        for (change, certain) in std::mem::take(&mut self.cached) {
            self.left += 1;
            if certain {
                change.apply_outcome(&mut self.durable);
            }
        }
        self.live = self.durable.clone();
        self.begin_epoch();
    }

    /// Makes the leading FUA changes durable.
    fn settle_certain(&mut self) {
        while self.cached.front().is_some_and(|(_, certain)| *certain) {
            self.settle_first();
        }
    }

    fn settle_first(&mut self) {
        if let Some((change, _)) = self.cached.pop_front() {
            change.apply_outcome(&mut self.durable);
        }
        self.left += 1;
    }

    fn begin_epoch(&mut self) {
        if self.keep {
            self.log.epochs.push(Epoch {
                at: self.log.events.len(),
                durable: self.durable.clone(),
                cached: self.cached.iter().cloned().collect(),
                in_flight: self.in_flight.values().cloned().collect(),
            });
        }
    }
}
