//! Random histories, checked against the invariants.

use std::collections::BTreeSet;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Insert(IoTag, u64),
    Flush(IoTag),
    Share(usize, IoTag),
    Boost(usize, IoTag),
    Grow(usize),
    Next,
    Complete(usize),
    Advance(u64),
    Weigh(u32, u32, u32),
    RemoveGroup(u32),
}

fn tags() -> impl Strategy<Value = IoTag> {
    let urgency = prop_oneof![
        3 => Just(Urgency::Waited),
        1 => Just(Urgency::Journal),
        3 => Just(Urgency::Background),
        1 => Just(Urgency::Idle),
    ];
    let class = prop_oneof![
        1 => Just(PrioClass::RealTime),
        4 => Just(PrioClass::BestEffort),
        1 => Just(PrioClass::Idle),
    ];
    (0..5u32, 0..4u32, urgency, class, 0..8u8).prop_map(|(group, owner, urgency, class, level)| {
        tag(group, owner, urgency, IoPrio { class, level })
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (tags(), 1..64u64).prop_map(|(tag, kib)| Step::Insert(tag, kib * KIB)),
        1 => tags().prop_map(Step::Flush),
        3 => (any::<usize>(), tags()).prop_map(|(n, tag)| Step::Share(n, tag)),
        2 => (any::<usize>(), tags()).prop_map(|(n, tag)| Step::Boost(n, tag)),
        1 => any::<usize>().prop_map(Step::Grow),
        8 => Just(Step::Next),
        8 => any::<usize>().prop_map(Step::Complete),
        3 => (0..20 * MS).prop_map(Step::Advance),
        1 => (1..5u32, 0..5u32, 1..1000u32).prop_map(|(id, p, w)| Step::Weigh(id, p, w)),
        1 => (1..5u32).prop_map(Step::RemoveGroup),
    ];
    prop::collection::vec(step, 1..300)
}

#[derive(Clone, Copy, Debug)]
struct Queued {
    id: u32,
    tag: IoTag,
    flush: bool,
    /// Whether its tag was boosted.
    boosted: bool,
    /// Whether it also serves other owners.
    shared: bool,
}

struct History<R> {
    fair: FairQueue<R>,
    options: FairOptions,
    now: u64,
    free: BTreeSet<u32>,
    /// In order of arrival.
    queued: Vec<Queued>,
    in_flight: Vec<Queued>,
}

impl<R: Rules> History<R> {
    fn new(options: FairOptions) -> Self {
        Self {
            fair: FairQueue::new(options),
            options,
            now: 0,
            free: (0..1000).collect(),
            queued: Vec::new(),
            in_flight: Vec::new(),
        }
    }

    /// Runs the steps and completes all requests.
    fn run(mut self, steps: Vec<Step>) {
        for step in steps {
            self.step(step);
        }
        self.finish();
    }

    fn insert(&mut self, io: Io) {
        let id = self.free.pop_first().expect("there are 1000 numbers");
        self.fair.insert(IoId(id), io, Nanos(self.now));
        self.queued.push(Queued {
            id,
            tag: io.tag,
            flush: io.direction == Direction::Flush,
            boosted: false,
            shared: false,
        });
    }

    fn next(&mut self) -> bool {
        let Some(IoId(id)) = self.fair.next(Nanos(self.now)) else {
            let waits = self.fair.rerun_at().is_some_and(|at| at.0 > self.now);
            let full = self.in_flight.len() >= self.options.depth;
            assert!(
                self.queued.is_empty() || !self.in_flight.is_empty() || waits,
                "an idle device gets a queued request or has a time for the next attempt"
            );
            assert!(
                full || self.queued.iter().all(|q| !q.flush),
                "a FLUSH is held back"
            );
            return false;
        };
        let at = self.queued.iter().position(|q| q.id == id);
        let at = at.expect("it was queued and not dispatched");
        let dispatched = self.queued.remove(at);
        let (before, _) = self.queued.split_at(at);
        assert!(before.iter().all(|q| !q.flush), "it overtook a FLUSH");
        let same = |q: &&Queued| LeafKey::of(q.tag) == LeafKey::of(dispatched.tag) && !q.flush;
        assert!(
            dispatched.flush || dispatched.shared || before.iter().find(same).is_none(),
            "requests of one owner are served in order of arrival"
        );
        self.in_flight.push(dispatched);
        assert!(self.in_flight.len() <= self.options.depth);
        let in_flight =
            |kind: fn(&Queued) -> bool| self.in_flight.iter().filter(|q| kind(q)).count();
        let background = in_flight(|q| !is_sync(q.tag) && !q.flush);
        assert!(background <= self.options.async_depth);
        true
    }

    fn boost(&mut self, at: usize, waiter: IoTag) {
        let queued = &mut self.queued[at];
        let boosted = self.fair.boosted_tag(queued.tag, waiter);
        assert!(boosted.urgency <= queued.tag.urgency && boosted.prio <= queued.tag.prio);
        assert_eq!(
            self.fair.boosted_tag(boosted, waiter),
            boosted,
            "a second boost changes nothing"
        );
        let boost = self.fair.boost(IoId(queued.id), waiter, Nanos(self.now));
        assert_eq!(
            matches!(boost, BoostOutcome::Boosted { .. }),
            boosted != queued.tag
        );
        queued.tag = boosted;
        queued.boosted = true;
    }

    fn step(&mut self, step: Step) {
        let (queued, in_flight) = (self.queued.len(), self.in_flight.len());
        match step {
            Step::Insert(tag, bytes) => self.insert(write(tag, bytes)),
            Step::Flush(tag) => self.insert(flush(tag)),
            Step::Share(n, tag) if queued > 0 => {
                let queued = &mut self.queued[n % queued];
                queued.shared = true;
                self.fair.share(IoId(queued.id), tag, Nanos(self.now));
            }
            Step::Boost(n, tag) if queued > 0 => self.boost(n % queued, tag),
            Step::Grow(n) if queued > 0 => {
                self.fair.grow(IoId(self.queued[n % queued].id), 4 * KIB);
            }
            Step::Next => {
                self.next();
            }
            Step::Complete(n) if in_flight > 0 => self.complete(n % in_flight),
            Step::Advance(time) => self.now += time,
            Step::Weigh(id, parent, weight) if id != parent => {
                self.fair.set_group(GroupId(id), GroupId(parent), weight);
            }
            Step::RemoveGroup(id) => self.fair.remove_group(GroupId(id)),
            _ => {}
        }
        assert_eq!(self.fair.queued(), self.queued.len());
    }

    fn complete(&mut self, at: usize) {
        let ended = self.in_flight.swap_remove(at);
        let boost = self.fair.boost(IoId(ended.id), sync(1, 1), Nanos(self.now));
        assert_eq!(boost, BoostOutcome::AlreadyDispatched);
        self.fair.complete(IoId(ended.id), Nanos(self.now));
        self.free.insert(ended.id);
    }

    /// Completes all requests.
    fn finish(mut self) {
        let mut steps_left = 10_000;
        while !self.queued.is_empty() || !self.in_flight.is_empty() {
            steps_left -= 1;
            assert!(
                steps_left > 0,
                "{} requests never complete",
                self.queued.len()
            );
            if self.next() {
                continue;
            }
            if self.in_flight.is_empty() {
                let at = self.fair.rerun_at().expect("next() asserts this time");
                self.now = self.now.max(at.0);
            } else {
                self.now += MS;
                self.complete(0);
            }
        }
        assert!(
            self.fair.sharers.is_empty(),
            "completed requests have no sharers"
        );
    }
}

fn presets() -> impl Strategy<Value = FairOptions> {
    let small = FairOptions {
        depth: 4,
        async_depth: 2,
        ..FairOptions::default()
    };
    prop_oneof![
        3 => Just(small),
        1 => Just(FairOptions { async_bytes: 128 << 10, ..small }),
        1 => Just(FairOptions { slice_idle: Nanos(0), ..small }),
        1 => Just(FairOptions { depth: 1, strict_guarantees: true, ..small }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn random_histories_keep_the_rules(steps in steps(), options in presets()) {
        History::<FairRules>::new(options).run(steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn cfq_keeps_the_rules_too(steps in steps()) {
        let options = FairOptions { depth: 8, ..Cfq::preset() };
        History::<CfqRules>::new(options).run(steps);
    }
}
