//! Whose turn it is.

use std::ops::Bound;

use super::lanes::{LANES, async_lane, is_sync_lane};
use super::options::CLASSES;
use super::tree::{Child, ROOT};
use super::{Fair, Turn};
use crate::Nanos;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pick {
    /// The owner whose request goes now.
    Leaf(usize),
    /// The same, for one request: others come before it, but it has waited too long.
    Late(usize),
    /// Nobody: the one whose turn it is will come. Until when, if no request in the device says so.
    Wait(Option<Nanos>),
    /// Nobody may.
    Nothing,
}

/// Those of a line who come first and are waited for.
#[derive(Clone, Copy, Default)]
struct Expected {
    /// Their least and greatest weight.
    weights: Option<(u32, u32)>,
    until: Option<Nanos>,
}

impl Expected {
    fn add(&mut self, weight: u32, until: Option<Nanos>) {
        let (least, most) = self.weights.unwrap_or((weight, weight));
        self.weights = Some((least.min(weight), most.max(weight)));
        self.until = self.until.or(until);
    }

    /// Whether somebody of this weight has to wait for them: among equals it is not worth it.
    fn go_before(&self, weight: u32, always: bool) -> bool {
        self.weights
            .is_some_and(|(least, most)| always || least != weight || most != weight)
    }
}

impl Fair {
    pub(super) fn pick(&mut self, now: Nanos) -> Pick {
        if let Some(turn) = self.turn {
            if let Some(pick) = self.go_on(turn, now) {
                return pick;
            }
            self.end_turn(now);
        }
        self.pick_in(ROOT, now)
    }

    /// The owner whose turn it is goes on, or is waited for.
    fn go_on(&self, turn: Turn, now: Nanos) -> Option<Pick> {
        let slice = self.options.slice;
        let leaf = self.tree.leaf(turn.leaf);
        let lane = leaf.key.lane;
        let (longest, most) = if leaf.is_sync() {
            (slice.sync, usize::MAX)
        } else {
            (slice.background, slice.background_requests)
        };
        let next = self.first_bytes(Child::Leaf(turn.leaf)).unwrap_or(0);
        let over = turn.bytes.saturating_add(next) > slice.bytes
            || turn.requests >= most
            || now.0.saturating_sub(turn.began.0) >= longest.0;
        if over || !leaf.place.active || self.overdue_on_the_way(turn.leaf, now) {
            return None;
        }
        if leaf.requests.is_empty() {
            let waits = slice.kept && self.is_waited_for(turn.leaf, now);
            return waits.then(|| Pick::Wait(self.waited_for_until(turn.leaf, now)));
        }
        if !self.may_go(lane, now) || self.is_held_back(turn.leaf, now) {
            return None;
        }
        if leaf.in_flight >= slice.depth && self.tree.active > 1 {
            return slice.kept.then_some(Pick::Wait(None));
        }
        Some(Pick::Leaf(turn.leaf))
    }

    /// Whether an owner of sync requests that has none queued will come soon enough, or somebody for him.
    pub(super) fn is_waited_for(&self, leaf: usize, now: Nanos) -> bool {
        self.comes_back(leaf, now)
            || self
                .tree
                .carrier_of(leaf)
                .is_some_and(|carrier| self.comes_back(carrier, now))
    }

    fn comes_back(&self, leaf: usize, now: Nanos) -> bool {
        let idle = self.options.slice_idle.0;
        let leaf = self.tree.leaf(leaf);
        leaf.is_sync()
            && leaf.key.lane / 2 < CLASSES - 1
            && leaf.think <= idle
            && (leaf.in_flight > 0 || now.0 < leaf.last_end.0.saturating_add(idle))
    }

    /// Until when one that is waited for is, if neither it nor who works for it has something in the device.
    fn waited_for_until(&self, leaf: usize, now: Nanos) -> Option<Nanos> {
        let who = match self.comes_back(leaf, now) {
            true => leaf,
            false => self.tree.carrier_of(leaf).unwrap_or(leaf),
        };
        let leaf = self.tree.leaf(who);
        let until = leaf.last_end.0.saturating_add(self.options.slice_idle.0);
        (leaf.in_flight == 0).then_some(Nanos(until))
    }

    /// Whether the limits of its kind let a request go.
    fn may_go(&self, lane: usize, now: Nanos) -> bool {
        let idle = lane / 2 == CLASSES - 1;
        (is_sync_lane(lane) || self.has_async_room(now)) && !(idle && self.in_flight.all() > 0)
    }

    /// The same for a line that is overdue: the idle class need not wait for an idle device.
    fn may_go_late(&self, lane: usize, now: Nanos) -> bool {
        let idle = lane / 2 == CLASSES - 1;
        (is_sync_lane(lane) || self.has_async_room(now)) && !(idle && self.in_flight.idle > 0)
    }

    /// Whether a line was passed by better ones as much as it has to bear.
    fn is_overdue(&self, group: usize, lane: usize, now: Nanos) -> bool {
        let line = &self.tree.group(group).lanes[lane];
        if line.queued == 0 || line.passed == 0 {
            return false;
        }
        let options = &self.options;
        let waited = now.0.saturating_sub(line.since.0);
        if is_sync_lane(lane) || self.tree.group(group).lanes[lane - 1].queued == 0 {
            return waited >= options.class_max_wait.0;
        }
        let goes =
            |child: &&Child| !matches!(**child, Child::Leaf(leaf) if self.is_held_back(leaf, now));
        let Some(first) = line.active.values().find(goes) else {
            return false;
        };
        let first = self.first_bytes(*first).unwrap_or(0);
        let due = first.saturating_mul(options.sync_per_async);
        line.passed >= due.max(1) || waited >= options.async_max_wait.0
    }

    /// The bytes of a leaf's first request.
    fn first_bytes(&self, child: Child) -> Option<u64> {
        let Child::Leaf(at) = child else { return None };
        let (_, &id) = self.tree.leaf(at).requests.first_key_value()?;
        Some(self.entry(id).bytes)
    }

    /// Whether, in one of a leaf's groups, another line is overdue and may go.
    fn overdue_on_the_way(&self, leaf: usize, now: Nanos) -> bool {
        let mut at = Some(self.tree.leaf(leaf).place);
        while let Some(place) = at {
            let overdue = |lane: usize| {
                lane != place.lane
                    && self.is_overdue(place.parent, lane, now)
                    && (self.may_go_late(lane, now) || self.is_drained_for(place.parent, lane, now))
            };
            if (1..LANES).any(overdue) {
                return true;
            }
            at = self.tree.group(place.parent).place;
        }
        false
    }

    /// Whether a line of what nobody waits for has waited so long that nothing more of what somebody waits
    /// for goes before it: it needs the device alone.
    fn is_drained_for(&self, group: usize, lane: usize, now: Nanos) -> bool {
        let line = &self.tree.group(group).lanes[lane];
        self.options.async_alone
            && !is_sync_lane(lane)
            && line.queued > 0
            && self.in_flight.sync > 0
            && now.0.saturating_sub(line.since.0) >= self.options.async_max_wait.0
    }

    fn pick_in(&mut self, group: usize, now: Nanos) -> Pick {
        if self.tree.group(group).queued > 0 {
            if (1..LANES).any(|lane| self.is_drained_for(group, lane, now)) {
                return Pick::Wait(None);
            }
            for lane in (1..LANES).rev() {
                if self.is_overdue(group, lane, now)
                    && self.may_go_late(lane, now)
                    && let Pick::Leaf(leaf) | Pick::Late(leaf) =
                        self.pick_in_lane(group, lane, now, true)
                {
                    return Pick::Late(leaf);
                }
            }
        }
        let mut expected: Option<(usize, Option<Nanos>)> = None;
        for lane in 0..LANES {
            if self.tree.group(group).lanes[lane].active.is_empty() {
                continue;
            }
            if let Some((ahead, _)) = expected
                && (self.options.always_idle || lane != async_lane(ahead))
            {
                break;
            }
            if !self.may_go(lane, now) {
                continue;
            }
            match self.pick_in_lane(group, lane, now, false) {
                Pick::Wait(until) => expected = Some((lane, until)),
                Pick::Nothing => {}
                found => return found,
            }
        }
        expected.map_or(Pick::Nothing, |(_, until)| Pick::Wait(until))
    }

    /// The first of a line, unless somebody ahead of it is waited for (`late`: nobody is).
    fn pick_in_lane(&mut self, group: usize, lane: usize, now: Nanos, late: bool) -> Pick {
        let mut expected = Expected::default();
        let mut after = Bound::Unbounded;
        loop {
            let line = &self.tree.group(group).lanes[lane].active;
            let Some((&key, &child)) = line.range((after, Bound::Unbounded)).next() else {
                break;
            };
            after = Bound::Excluded(key);
            let weight = self.tree.weight(child);
            let found = match child {
                Child::Leaf(leaf) => self.look_at(leaf, now),
                Child::Group(group) => self.pick_in(group, now),
            };
            match found {
                Pick::Nothing => {}
                Pick::Wait(until) => expected.add(weight, until),
                Pick::Leaf(_) | Pick::Late(_) => {
                    if !late && expected.go_before(weight, self.options.always_idle) {
                        break;
                    }
                    return found;
                }
            }
        }
        match expected.weights {
            Some(_) if !late => Pick::Wait(expected.until),
            _ => Pick::Nothing,
        }
    }

    fn look_at(&mut self, at: usize, now: Nanos) -> Pick {
        let leaf = self.tree.leaf(at);
        if !leaf.requests.is_empty() {
            return match self.is_held_back(at, now) {
                true => Pick::Nothing,
                false => Pick::Leaf(at),
            };
        }
        if self.is_waited_for(at, now) {
            return Pick::Wait(self.waited_for_until(at, now));
        }
        if leaf.in_flight == 0 {
            self.tree.deactivate(at);
        }
        Pick::Nothing
    }
}
