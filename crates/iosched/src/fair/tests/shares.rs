//! Shares of a modelled device, in virtual time.

use super::*;

/// A client that keeps `outstanding` requests of `bytes` queued, with a think time of `think` before the next one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    tag: IoTag,
    bytes: u64,
    outstanding: usize,
    think: u64,
    /// Other owners that its requests serve.
    sharers: &'static [IoTag],
}

impl Client {
    pub(super) fn of(tag: IoTag, bytes: u64, outstanding: usize) -> Self {
        Self {
            tag,
            bytes,
            outstanding,
            think: 0,
            sharers: &[],
        }
    }

    pub(super) fn for_others(self, sharers: &[IoTag]) -> Self {
        Self {
            sharers: sharers.to_vec().leak(),
            ..self
        }
    }

    pub(super) fn thinking(self, think: u64) -> Self {
        Self { think, ..self }
    }
}

/// A completed request.
#[derive(Clone, Copy, Debug)]
struct Completed {
    client: usize,
    arrived: u64,
    ended: u64,
    bytes: u64,
}

/// A device of fixed throughput with a queue of `depth` requests, which it serves one after the other.
pub(super) struct World {
    pub(super) fair: Box<dyn Scheduler>,
    depth: usize,
    nanos_per_kib: u64,
    clients: Vec<Client>,
    events: Vec<Completed>,
}

pub(super) const MIB_PER_SECOND: u64 = 20;
pub(super) const WINDOW: u64 = 1000 * MS;

impl World {
    pub(super) fn new(options: FairOptions, groups: &[(u32, u32, u32)], depth: usize) -> Self {
        Self::of(Box::new(Fair::new(options)), groups, depth)
    }

    fn of(mut policy: Box<dyn Scheduler>, groups: &[(u32, u32, u32)], depth: usize) -> Self {
        for &(id, parent, weight) in groups {
            policy.set_group(GroupId(id), GroupId(parent), weight);
        }
        Self {
            fair: policy,
            depth,
            nanos_per_kib: 1_000_000_000 / (MIB_PER_SECOND * 1024),
            clients: Vec::new(),
            events: Vec::new(),
        }
    }

    pub(super) fn run(&mut self, clients: &[Client], until: u64) {
        self.clients = clients.to_vec();
        // (time, client) of the next arrivals.
        let mut arriving: Vec<(u64, usize)> = Vec::new();
        for (n, client) in clients.iter().enumerate() {
            arriving.extend((0..client.outstanding).map(|_| (0, n)));
        }
        let mut in_flight: Vec<(u64, IoId)> = Vec::new();
        let mut requests: BTreeMap<u32, (usize, u64)> = BTreeMap::new();
        let (mut now, mut free_at) = (0, 0);
        while now < until {
            arriving.sort_unstable_by(|a, b| b.cmp(a));
            while let Some(&(at, n)) = arriving.last()
                && at <= now
            {
                arriving.pop();
                let id = (0..).find(|id| !requests.contains_key(id)).unwrap();
                requests.insert(id, (n, now));
                self.fair.insert(
                    IoId(id),
                    write(clients[n].tag, clients[n].bytes),
                    Nanos(now),
                );
                for &tag in clients[n].sharers {
                    self.fair.share(IoId(id), tag, Nanos(now));
                }
            }
            while in_flight.len() < self.depth
                && let Some(id) = self.fair.next(Nanos(now))
            {
                let bytes = clients[requests[&id.0].0].bytes;
                free_at = now.max(free_at) + bytes / KIB * self.nanos_per_kib;
                in_flight.push((free_at, id));
            }
            let timer = self.fair.rerun_at().map(|at| at.0);
            assert!(
                self.fair.queued() == 0 || !in_flight.is_empty() || timer.is_some_and(|t| t > now),
                "an idle device gets a queued request or has a time for the next attempt"
            );
            let end = in_flight.iter().map(|f| f.0).min();
            let next = arriving.last().map(|c| c.0);
            let step = [end, next, timer].into_iter().flatten().min();
            now = step
                .expect("a request arrives or completes, or the scheduler has a timer")
                .max(now);
            for at in (0..in_flight.len()).rev() {
                if in_flight[at].0 <= now {
                    let (ended, id) = in_flight.swap_remove(at);
                    let (n, arrived) = requests.remove(&id.0).unwrap();
                    self.fair.complete(id, Nanos(now));
                    self.events.push(Completed {
                        client: n,
                        arrived,
                        ended,
                        bytes: clients[n].bytes,
                    });
                    arriving.push((now + clients[n].think, n));
                }
            }
        }
    }

    /// Bytes of each client that completed in the second after `from`.
    pub(super) fn served(&self, from: u64) -> Vec<u64> {
        let mut served = vec![0; self.clients.len()];
        let inside = |e: &&Completed| e.ended > from && e.ended <= from + WINDOW;
        for event in self.events.iter().filter(inside) {
            served[event.client] += event.bytes;
        }
        served
    }

    /// Checks every second after the first 0.3 s: each client has its share within 5 %, or within two of its slices (the
    /// bound of start-time fair queueing: one slice of its own, and its part of another client's).
    #[track_caller]
    pub(super) fn check(&self, until: u64, weights: &[f64]) {
        let whole: f64 = weights.iter().sum();
        for from in (300 * MS..until - WINDOW).step_by(37 * MS as usize) {
            let served = self.served(from);
            let total: u64 = served.iter().sum();
            let device = (MIB_PER_SECOND << 20) as f64;
            assert!(
                total as f64 > 0.5 * device,
                "the device is used: {served:?}"
            );
            for (n, (&got, part)) in served.iter().zip(weights).enumerate() {
                let due = total as f64 * part / whole;
                let slice = self.clients[n].bytes.max(64 * KIB) as f64;
                let slack = (0.05 * due).max(2.0 * slice);
                assert!(
                    (got as f64 - due).abs() <= slack,
                    "client {n} at {from}: got {got}, due {due:.0}; all {served:?}"
                );
            }
        }
    }

    pub(super) fn longest(&self, client: usize) -> u64 {
        let of = |e: &&Completed| e.client == client;
        let waits = self.events.iter().filter(of).map(|e| e.ended - e.arrived);
        waits.max().expect("it was served")
    }

    pub(super) fn longest_gap(&self, client: usize, until: u64) -> u64 {
        let of = |e: &&Completed| e.client == client;
        let mut ends: Vec<u64> = self.events.iter().filter(of).map(|e| e.ended).collect();
        ends.insert(0, 0);
        ends.push(until);
        ends.windows(2)
            .map(|w| w[1].saturating_sub(w[0]))
            .max()
            .unwrap()
    }
}

pub(super) const LONG: u64 = 6000 * MS;

#[test]
fn two_groups_get_five_to_one_with_any_request_size_and_depth() {
    let kinds = [
        |g| Client::of(sync(g, g), 128 * KIB, 8),
        |g| Client::of(sync(g, g), 64 * KIB, 1),
        |g| Client::of(sync(g, g), 256 * KIB, 1).thinking(MS),
        |g| Client::of(sync(g, g), 4 * KIB, 32),
    ];
    for depth in [1, 4] {
        for a in kinds {
            for b in kinds {
                let groups = [(1, 0, 100), (2, 0, 20)];
                let mut world = World::new(FairOptions::default(), &groups, depth);
                let clients = [a(1), b(2)];
                world.run(&clients, LONG);
                // The device does not idle for a lighter client with think time: it may get less.
                if clients[1].think == 0 || clients[0].think > 0 {
                    world.check(LONG, &[100.0, 20.0]);
                }
            }
        }
    }
}

#[test]
fn background_writes_of_two_groups_get_their_weights() {
    let mut world = World::new(FairOptions::default(), &[(1, 0, 100), (2, 0, 300)], 4);
    let clients = [1, 2].map(|g| Client::of(background(g), 128 * KIB, 16));
    world.run(&clients, LONG);
    world.check(LONG, &[100.0, 300.0]);
}

#[test]
fn nested_groups_share_the_service_of_their_parent() {
    let groups = [(1, 0, 200), (2, 0, 100), (3, 1, 300), (4, 1, 100)];
    let mut world = World::new(FairOptions::default(), &groups, 2);
    let clients = [3, 4, 2].map(|g| Client::of(sync(g, g), 64 * KIB, 4));
    world.run(&clients, LONG);
    world.check(LONG, &[150.0, 50.0, 100.0]);
}

#[test]
fn priorities_inside_a_group_have_the_weights_of_bfq() {
    let mut world = World::new(FairOptions::default(), &[], 1);
    let at = |level: u8| tag(0, level.into(), Urgency::Waited, be(level));
    let clients = [0, 4, 7].map(|level| Client::of(at(level), 64 * KIB, 4));
    world.run(&clients, LONG);
    world.check(LONG, &[80.0, 40.0, 10.0]);
}

#[test]
fn processes_of_a_group_share_it_equally() {
    let mut world = World::new(FairOptions::default(), &[(1, 0, 100), (2, 0, 100)], 1);
    let clients = [(1, 10, 32), (1, 11, 1), (2, 20, 4)];
    let clients = clients.map(|(g, owner, n)| Client::of(sync(g, owner), 32 * KIB, n));
    let options = FairOptions {
        always_idle: true,
        ..FairOptions::default()
    };
    world.fair = Box::new(Fair::new(options));
    world.run(&clients, LONG);
    world.check(LONG, &[50.0, 50.0, 100.0]);
}

#[test]
fn strict_guarantees_keep_one_request_in_the_device() {
    let options = FairOptions {
        strict_guarantees: true,
        ..FairOptions::default()
    };
    let mut world = World::new(options, &[(1, 0, 100), (2, 0, 20)], 32);
    let clients = [
        Client::of(sync(1, 1), 4 * KIB, 1).thinking(MS / 10),
        Client::of(sync(2, 2), 64 * KIB, 16),
    ];
    world.run(&clients, LONG);
    world.check(LONG, &[100.0, 20.0]);
}

#[test]
fn cfq_shares_time_by_priority() {
    let mut world = World::of(Box::new(Cfq::new(Cfq::preset())), &[], 8);
    let at = |level: u8| tag(0, level.into(), Urgency::Waited, be(level));
    let clients = [0, 4].map(|level| Client::of(at(level), 64 * KIB, 4));
    let until = 20_000 * MS;
    world.run(&clients, until);
    let served: Vec<u64> = (0..2)
        .map(|n| {
            let own = world.events.iter().filter(|e| e.client == n);
            own.map(|e| e.bytes).sum()
        })
        .collect();
    let ratio = served[0] as f64 / served[1] as f64;
    assert!((1.6..2.0).contains(&ratio), "{served:?}");
}

#[test]
fn a_real_time_request_waits_for_the_device_only() {
    for depth in [1, 4] {
        let mut world = World::new(FairOptions::default(), &[(1, 0, 1000)], depth);
        let request = 128 * world.nanos_per_kib;
        let rt = tag(0, 9, Urgency::Waited, prio(PrioClass::RealTime));
        world.run(
            &[
                Client::of(rt, 4 * KIB, 1).thinking(3 * MS),
                Client::of(sync(1, 1), 128 * KIB, 32),
                Client::of(sync(0, 2), 128 * KIB, 32),
                Client::of(background(0), 128 * KIB, 32),
            ],
            LONG,
        );
        // The requests in flight, one overdue request, and its own.
        let bound = (depth as u64 + 2) * request;
        assert!(world.longest(0) <= bound, "{} > {bound}", world.longest(0));
    }
}

#[test]
fn nothing_starves() {
    let idle = tag(0, 8, Urgency::Waited, prio(PrioClass::Idle));
    let rt = tag(0, 9, Urgency::Waited, prio(PrioClass::RealTime));
    let clients = [
        Client::of(idle, 64 * KIB, 1),
        Client::of(background(0), 64 * KIB, 4),
        Client::of(sync(0, 1), 64 * KIB, 8),
        Client::of(rt, 64 * KIB, 8),
    ];
    let mut world = World::new(FairOptions::default(), &[], 2);
    world.run(&clients, LONG);
    let own = 4 * 64 * world.nanos_per_kib;
    for client in [0, 1, 2] {
        let gap = world.longest_gap(client, LONG);
        assert!(gap <= 250 * MS + own, "client {client}: {gap}");
    }
}

/// CFQ dispatches no async request while sync requests are in flight: the device drains for an overdue one.
#[test]
fn nothing_starves_under_cfq_either() {
    for depth in [1, 8] {
        let clients = [
            Client::of(background(0), 64 * KIB, 4),
            Client::of(sync(0, 1), 64 * KIB, 8),
            Client::of(sync(0, 2), 64 * KIB, 8),
        ];
        let mut world = World::of(Box::new(Cfq::new(Cfq::preset())), &[], depth);
        world.run(&clients, LONG);
        let request = 64 * world.nanos_per_kib;
        let bound = 250 * MS + (depth as u64 + 2) * request;
        let gap = world.longest_gap(0, LONG);
        assert!(gap <= bound, "depth {depth}: {gap} > {bound}");
        // The slices of two clients, and the time to drain the device.
        for client in [1, 2] {
            let gap = world.longest_gap(client, LONG);
            assert!(gap <= 250 * MS, "depth {depth}, client {client}: {gap}");
        }
    }
}

#[test]
fn background_writes_get_a_ninth_beside_sync_of_their_group() {
    let mut world = World::new(FairOptions::default(), &[], 1);
    let clients = [
        Client::of(sync(0, 1), 64 * KIB, 8),
        Client::of(background(0), 64 * KIB, 8),
    ];
    world.run(&clients, LONG);
    world.check(LONG, &[8.0, 1.0]);
}

#[test]
fn a_small_request_passes_a_backlog_of_background() {
    let mut world = World::new(
        FairOptions {
            async_depth: 2,
            ..FairOptions::default()
        },
        &[],
        32,
    );
    let clients = [
        Client::of(sync(0, 1), 4 * KIB, 1).thinking(5 * MS),
        Client::of(background(0), 512 * KIB, 64),
    ];
    world.run(&clients, LONG);
    let bound = 3 * 512 * world.nanos_per_kib;
    assert!(world.longest(0) <= bound, "{} > {bound}", world.longest(0));
}

/// No request overtakes those in flight, so their bytes are bounded even if the device takes many requests.
#[test]
fn background_bytes_in_flight_are_bounded_on_a_deep_device() {
    let mut world = World::new(FairOptions::default(), &[], 32);
    let clients = [
        Client::of(sync(0, 1), 4 * KIB, 1).thinking(5 * MS),
        Client::of(background(0), 512 * KIB, 64),
    ];
    world.run(&clients, LONG);
    let bound = (4 * 512 + 4) * world.nanos_per_kib;
    assert!(world.longest(0) <= bound, "{} > {bound}", world.longest(0));
}

#[test]
fn a_background_request_above_the_byte_limit_is_served() {
    let options = FairOptions {
        async_bytes: 1,
        ..FairOptions::default()
    };
    let mut world = World::new(options, &[], 4);
    world.run(&[Client::of(background(0), 64 * KIB, 4)], LONG);
    world.check(LONG, &[1.0]);
}

/// The wait for its own share is no pause of an owner, after which its requests would be taken for a new fsync and async
/// requests held back for them.
#[test]
fn an_owner_with_requests_queued_begins_no_fsync_after_its_share() {
    let groups = [(1, 0, 142), (2, 0, 738), (3, 0, 561), (4, 0, 568)];
    let mut world = World::new(FairOptions::default(), &groups, 2);
    let clients = [
        Client::of(background(1), 56 * KIB, 4),
        Client::of(sync(2, 2), 96 * KIB, 4),
        Client::of(background(3), 8 * KIB, 4),
        Client::of(background(4), 8 * KIB, 4),
    ];
    world.run(&clients, 3000 * MS);
    world.check(3000 * MS, &[142.0, 738.0, 561.0, 568.0]);
    // The first requests are steps of an fsync, perhaps; after them two slices of each other client, at most.
    let gaps = world
        .events
        .iter()
        .filter(|e| e.client == 1 && e.ended > 1000 * MS);
    let ends: Vec<u64> = gaps.map(|e| e.ended).collect();
    let longest = ends.windows(2).map(|w| w[1] - w[0]).max().unwrap();
    let bound = (2 * (56 + 64 + 64) + 96) * world.nanos_per_kib;
    assert!(longest <= bound, "{longest} > {bound}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_weights_are_kept_in_any_second(
        weights in prop::collection::vec(1..=1000u32, 2..5),
        sizes in prop::collection::vec(1..16u64, 5),
        outstanding in prop::collection::vec(4..12usize, 5),
        sync_kind in prop::collection::vec(any::<bool>(), 5),
        depth in 1..4usize,
    ) {
        let groups: Vec<_> = (1..).zip(&weights).map(|(id, &w)| (id, 0, w)).collect();
        let mut world = World::new(FairOptions::default(), &groups, depth);
        let clients: Vec<_> = (0..weights.len())
            .map(|n| {
                let group = n as u32 + 1;
                let tag = if sync_kind[n] { sync(group, group) } else { background(group) };
                Client::of(tag, sizes[n] * 8 * KIB, outstanding[n])
            })
            .collect();
        world.run(&clients, 3000 * MS);
        let parts: Vec<f64> = weights.iter().map(|&w| w.into()).collect();
        world.check(3000 * MS, &parts);
    }
}
