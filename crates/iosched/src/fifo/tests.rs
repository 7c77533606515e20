//! Single decisions, and random histories that are checked against the rules.

use std::collections::BTreeSet;

use proptest::prelude::*;
use steadfs_base::{GroupId, IoPrio};

use super::*;
use crate::Direction;

const NOW: Nanos = Nanos(0);

fn io(urgency: Urgency) -> Io {
    let tag = IoTag::default().with_urgency(urgency);
    Io {
        tag,
        charged: tag,
        direction: Direction::Write,
        bytes: 4096,
        flushes: 0,
        readahead: false,
    }
}

fn filled(urgencies: &[Urgency]) -> Fifo {
    let mut fifo = Fifo::new(FifoOptions::default());
    for (i, &urgency) in urgencies.iter().enumerate() {
        fifo.insert(IoId(i as u32), io(urgency), NOW);
    }
    fifo
}

fn drain(fifo: &mut Fifo) -> Vec<u32> {
    let mut order = Vec::new();
    while let Some(id) = fifo.next(NOW) {
        fifo.complete(id, NOW);
        order.push(id.0);
    }
    order
}

use Urgency::{Background, Idle, Journal, Waited};

#[test]
fn urgent_then_background_then_idle_each_in_arrival_order() {
    let mut fifo = filled(&[Idle, Background, Waited, Background, Journal, Waited]);
    assert_eq!(drain(&mut fifo), [2, 4, 5, 1, 3, 0]);
}

#[test]
fn a_boosted_request_is_queued_by_its_arrival() {
    let mut fifo = filled(&[Background, Background, Waited, Background, Waited]);
    let waiter = IoTag {
        group: GroupId(7),
        ..IoTag::default()
    };
    let boosted = BoostOutcome::Boosted { overtaken: 2 };
    assert_eq!(fifo.boost(IoId(3), waiter, NOW), boosted);
    assert_eq!(
        fifo.boost(IoId(3), waiter, NOW),
        BoostOutcome::AlreadyUrgent
    );
    assert_eq!(
        fifo.boost(IoId(2), waiter, NOW),
        BoostOutcome::AlreadyUrgent
    );
    assert_eq!(fifo.next(NOW), Some(IoId(2)));
    assert_eq!(
        fifo.boost(IoId(2), waiter, NOW),
        BoostOutcome::AlreadyDispatched
    );
    assert_eq!(drain(&mut fifo), [3, 4, 0, 1]);
}

#[test]
fn a_better_priority_alone_changes_no_order() {
    let mut fifo = filled(&[Background, Background]);
    let better = IoTag {
        prio: IoPrio::best_effort(0),
        ..IoTag::background()
    };
    let boosted = BoostOutcome::Boosted { overtaken: 0 };
    assert_eq!(fifo.boost(IoId(1), better, NOW), boosted);
    assert_eq!(drain(&mut fifo), [0, 1]);
}

#[test]
fn background_is_not_starved_by_urgent() {
    let mut fifo = filled(&[Background]);
    for i in 1..100 {
        fifo.insert(IoId(i), io(Waited), NOW);
    }
    let order = drain(&mut fifo);
    let position = order.iter().position(|&id| id == 0);
    assert_eq!(position, Some(FifoOptions::default().urgent_burst));
}

#[test]
fn background_requests_in_flight_are_bounded() {
    let mut fifo = Fifo::new(FifoOptions {
        background_depth: 2,
        urgent_burst: 1,
    });
    for i in 0..5 {
        fifo.insert(IoId(i), io(Background), NOW);
    }
    assert_eq!(fifo.next(NOW), Some(IoId(0)));
    assert_eq!(fifo.next(NOW), Some(IoId(1)));
    assert_eq!(fifo.next(NOW), None);
    fifo.insert(IoId(9), io(Waited), NOW);
    assert_eq!(fifo.next(NOW), Some(IoId(9)));
    fifo.complete(IoId(0), NOW);
    assert_eq!(fifo.next(NOW), Some(IoId(2)));
    assert_eq!(fifo.next(NOW), None);
}

#[derive(Clone, Debug)]
enum Step {
    Insert(Urgency),
    Boost(usize, Urgency),
    Next,
    Complete(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let urgency = prop_oneof![Just(Waited), Just(Journal), Just(Background), Just(Idle)];
    let step = prop_oneof![
        4 => urgency.clone().prop_map(Step::Insert),
        1 => (any::<usize>(), urgency).prop_map(|(i, u)| Step::Boost(i, u)),
        3 => Just(Step::Next),
        3 => any::<usize>().prop_map(Step::Complete),
    ];
    prop::collection::vec(step, 1..200)
}

/// The queued requests as (id, arrival, urgency), and those in flight.
#[derive(Default)]
struct Model {
    queued: Vec<(u32, u64, Urgency)>,
    in_flight: Vec<(u32, Urgency)>,
    passed_over: usize,
}

fn class(urgency: Urgency) -> u8 {
    match urgency {
        Waited | Journal | Urgency::Checkpoint => 0,
        Background => 1,
        Idle => 2,
    }
}

impl Model {
    fn dispatched(&mut self, got: Option<IoId>, options: FifoOptions) {
        let Some(id) = got else {
            assert!(
                self.queued.is_empty() || !self.in_flight.is_empty(),
                "an idle device gets a queued request"
            );
            assert!(
                self.queued.iter().all(|q| class(q.2) > 0),
                "urgent requests are never held back"
            );
            return;
        };
        let at = self.queued.iter().position(|q| q.0 == id.0);
        let (_, arrival, urgency) = self.queued.remove(at.expect("it was queued"));
        let same = |q: &&(u32, u64, Urgency)| class(q.2) == class(urgency);
        assert!(
            self.queued.iter().filter(same).all(|q| q.1 > arrival),
            "requests of a class are served in order of arrival"
        );
        let in_flight = |c| self.in_flight.iter().filter(|f| class(f.1) == c).count();
        let background_waits = self.queued.iter().any(|q| class(q.2) == 1);
        if class(urgency) == 0 && background_waits {
            let held_back = in_flight(1) == options.background_depth;
            assert!(
                held_back || self.passed_over < options.urgent_burst,
                "a background request is served after a burst"
            );
            self.passed_over += 1;
        } else {
            self.passed_over = 0;
        }
        assert!(class(urgency) != 1 || in_flight(1) < options.background_depth);
        assert!(class(urgency) != 2 || self.in_flight.is_empty());
        self.in_flight.push((id.0, urgency));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_histories_keep_the_rules(steps in steps()) {
        let options = FifoOptions { background_depth: 3, urgent_burst: 4 };
        let mut fifo = Fifo::new(options);
        let mut model = Model::default();
        let mut free: BTreeSet<u32> = (0..256).collect();
        for (arrival, step) in (0u64..).zip(steps) {
            match step {
                Step::Insert(urgency) => {
                    let id = free.pop_first().unwrap();
                    fifo.insert(IoId(id), io(urgency), NOW);
                    model.queued.push((id, arrival, urgency));
                }
                Step::Boost(i, urgency) if !model.queued.is_empty() => {
                    let at = i % model.queued.len();
                    let queued = &mut model.queued[at];
                    let boosted = queued.2.min(urgency);
                    let is_boosted = boosted != queued.2;
                    queued.2 = boosted;
                    let boost = fifo.boost(IoId(queued.0), io(urgency).tag, NOW);
                    prop_assert_eq!(matches!(boost, BoostOutcome::Boosted { .. }), is_boosted);
                    prop_assert!(is_boosted || boost == BoostOutcome::AlreadyUrgent);
                }
                Step::Next => model.dispatched(fifo.next(NOW), options),
                Step::Complete(i) if !model.in_flight.is_empty() => {
                    let (id, _) = model.in_flight.remove(i % model.in_flight.len());
                    fifo.complete(IoId(id), NOW);
                    free.insert(id);
                }
                Step::Boost(..) | Step::Complete(_) => {}
            }
            prop_assert_eq!(fifo.queued(), model.queued.len());
        }
        // All requests complete.
        while !model.queued.is_empty() || !model.in_flight.is_empty() {
            if let Some((id, _)) = model.in_flight.pop() {
                fifo.complete(IoId(id), NOW);
            }
            model.dispatched(fifo.next(NOW), options);
        }
    }
}
