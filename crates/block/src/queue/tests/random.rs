//! Random histories of requests, compared with a model of the content.

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u64, u8),
    Read(u64, u64, u8),
    Ahead(u64, u64),
    Zero(u64, u64),
    Flush(u8),
    Durable(u64),
    Call(u64, u8),
    Plugged(u64, u64),
    End(usize),
    Wait(usize),
    Ask(usize),
    Boost(usize, u8),
    Drop(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = 0..60u64;
    let len = 1..4u64;
    let tag = 0..4u8;
    let any = any::<usize>();
    let step = prop_oneof![
        6 => (at.clone(), len.clone(), tag.clone()).prop_map(|(a, l, t)| Step::Write(a, l, t)),
        3 => (at.clone(), len.clone(), tag.clone()).prop_map(|(a, l, t)| Step::Read(a, l, t)),
        3 => (at.clone(), len.clone()).prop_map(|(a, l)| Step::Ahead(a, l)),
        1 => (at.clone(), len.clone()).prop_map(|(a, l)| Step::Zero(a, l)),
        2 => tag.clone().prop_map(Step::Flush),
        1 => at.clone().prop_map(Step::Durable),
        1 => (at.clone(), tag.clone()).prop_map(|(a, t)| Step::Call(a, t)),
        1 => (at, len).prop_map(|(a, l)| Step::Plugged(a, l)),
        4 => any.prop_map(Step::End),
        2 => any.prop_map(Step::Wait),
        1 => any.prop_map(Step::Ask),
        1 => (any, tag).prop_map(|(i, t)| Step::Boost(i, t)),
        1 => any.prop_map(Step::Drop),
    ];
    prop::collection::vec(step, 1..120)
}

/// Expected result of a submitted request.
struct Expected {
    io: Option<IoHandle>,
    op: Op,
    range: std::ops::Range<u64>,
    /// For reads: the content while they are in flight.
    content: Vec<u8>,
    /// For flushes: how many device operations had started when it was submitted.
    after: usize,
}

struct History {
    device: Arc<Puppet>,
    queue: Queue,
    /// The expected content when every request has ended.
    model: Vec<u8>,
    open: Vec<Expected>,
    /// Callbacks: offset of the request, and whether it succeeded.
    calls: Arc<Mutex<Vec<(u64, bool)>>>,
    called: usize,
    fill: u8,
}

impl History {
    fn is_free(&self, from: u64, len: u64) -> bool {
        let range = from * UNIT..(from + len) * UNIT;
        let overlaps =
            |open: &Expected| range.start < open.range.end && open.range.start < range.end;
        from + len <= 64 && !self.open.iter().any(overlaps)
    }

    fn note(&mut self, io: Option<IoHandle>, op: Op, from: u64, len: u64) {
        let range = from * UNIT..(from + len) * UNIT;
        let content = self.model[range.start as usize..range.end as usize].to_vec();
        self.open.push(Expected {
            io,
            op,
            range,
            content,
            after: self.device.log().len(),
        });
    }

    fn bio(&mut self, from: u64, len: u64) -> Bio {
        let bufs = (0..len).map(|i| {
            self.fill = self.fill.wrapping_add(1);
            let at = ((from + i) * UNIT) as usize;
            self.model[at..at + UNIT as usize].fill(self.fill);
            Buf::copy_of(&[self.fill; UNIT as usize])
        });
        Bio::write(from * UNIT, bufs.collect())
    }

    /// A change has failed, or its result is unknown: the device's content counts.
    fn learn(&mut self, range: std::ops::Range<u64>) {
        let bytes = &mut self.model[range.start as usize..range.end as usize];
        self.device.memory.read(range.start, bytes);
    }

    /// Checks the result of an ended request.
    fn check(&mut self, expected: &Expected) {
        let (start, end) = (expected.range.start, expected.range.end);
        let result = expected.io.as_ref().map(IoHandle::wait);
        if matches!(result, Some(Err(_))) {
            let fails = !self.device.state.lock().fail.is_empty();
            assert!(fails, "nothing fails by itself");
            return self.learn(start..end);
        }
        match expected.op {
            Op::Flush => {
                let log = self.device.log();
                let flushed = log[expected.after..].iter().any(|l| l.0 == Op::Flush);
                assert!(flushed, "a FLUSH starts after its submission");
            }
            Op::Read => {
                let io = expected.io.clone().expect("reads keep their handles");
                let got: Vec<u8> = io
                    .into_bio()
                    .unwrap()
                    .bufs
                    .iter()
                    .flat_map(|b| b.to_vec())
                    .collect();
                assert_eq!(got, expected.content);
            }
            _ => {
                let mut got = vec![0; (end - start) as usize];
                self.device.memory.read(start, &mut got);
                assert_eq!(got, expected.content, "bytes {start}..{end}");
            }
        }
    }

    fn settle(&mut self) {
        let done = |e: &mut Expected| e.io.as_ref().is_some_and(|io| io.io().is_done());
        let ended: Vec<_> = self.open.extract_if(.., done).collect();
        for expected in ended {
            self.check(&expected);
        }
    }

    fn step(&mut self, step: Step) {
        let n = self.open.len();
        match step {
            Step::Write(from, len, t) if self.is_free(from, len) => {
                let bio = self.bio(from, len);
                let io = self.queue.submit(bio, tag(t));
                self.note(Some(io), Op::Write, from, len);
            }
            Step::Read(from, len, t) if self.is_free(from, len) => {
                let bio = Bio::read(from * UNIT, (len * UNIT) as usize);
                let io = self.queue.submit(bio, tag(t));
                self.note(Some(io), Op::Read, from, len);
            }
            // Even if requests are in flight there.
            Step::Ahead(from, len) if from + len <= 64 => {
                let len = (len * UNIT) as usize;
                self.queue.read_ahead(from * UNIT, len, tag(0));
            }
            Step::Zero(from, len) if self.is_free(from, len) => {
                let range = (from * UNIT) as usize..((from + len) * UNIT) as usize;
                self.model[range].fill(0);
                let bio = Bio::write_zeroes(from * UNIT, len * UNIT);
                let io = self.queue.submit(bio, tag(0));
                self.note(Some(io), Op::WriteZeroes, from, len);
            }
            Step::Flush(t) => {
                let after = self.device.log().len();
                let io = self.queue.flush(tag(t));
                self.note(Some(io), Op::Flush, 0, 0);
                self.open.last_mut().unwrap().after = after;
            }
            Step::Durable(from) if self.is_free(from, 1) => {
                let bio = self.bio(from, 1).preflush_and_fua();
                let io = self.queue.submit(bio, tag(0));
                self.note(Some(io), Op::Write, from, 1);
            }
            Step::Call(from, t) if self.is_free(from, 1) => self.call(from, t),
            Step::Plugged(from, len) if self.is_free(from, len) => self.plugged(from, len),
            Step::End(i) if self.device.pending() > 0 => self.device.end(i),
            Step::Wait(i) if n > 0 => {
                if let Some(io) = self.open[i % n].io.clone() {
                    let _ = io.wait();
                }
            }
            Step::Ask(i) if n > 0 => {
                let _ = self.open[i % n].io.as_ref().map(IoHandle::is_done);
            }
            Step::Boost(i, t) if n > 0 => {
                if let Some(io) = &self.open[i % n].io {
                    self.queue.boost(io, tag(t));
                }
            }
            Step::Drop(i) if n > 0 => {
                let expected = &mut self.open[i % n];
                if expected.op != Op::Read {
                    expected.io = None;
                }
            }
            _ => {}
        }
        self.settle();
    }

    fn plugged(&mut self, from: u64, len: u64) {
        let bios: Vec<_> = (0..len).map(|i| self.bio(from + i, 1)).collect();
        let plug = self.queue.plug();
        let ios: Vec<_> = bios
            .into_iter()
            .map(|bio| plug.submit(bio, tag(2)))
            .collect();
        drop(plug);
        for (i, io) in (0..).zip(ios) {
            self.note(Some(io), Op::Write, from + i, 1);
        }
    }

    fn call(&mut self, from: u64, t: u8) {
        let bio = self.bio(from, 1);
        let calls = Arc::clone(&self.calls);
        self.queue.submit_with(bio, tag(t), move |bio, result| {
            assert_eq!(bio.bufs.len(), 1);
            calls.lock().push((bio.offset, result.is_ok()));
        });
        self.called += 1;
        self.note(None, Op::Write, from, 1);
    }

    fn finish(mut self) {
        let left = self.open.iter().filter_map(|open| open.io.clone());
        let left: Vec<_> = left.collect();
        let result = wait_all(&left);
        assert_eq!(result.is_ok(), left.iter().all(|io| io.wait().is_ok()));
        self.queue.drain_read_ahead();
        self.device.end_all();
        self.settle();
        let calls = self.calls.lock().clone();
        assert_eq!(calls.len(), self.called);
        let failed = calls.iter().filter(|call| !call.1);
        failed.for_each(|call| self.learn(call.0..call.0 + UNIT));
        let forgotten: Vec<_> = self.open.drain(..).map(|open| open.range).collect();
        if !self.device.state.lock().fail.is_empty() {
            forgotten.into_iter().for_each(|range| self.learn(range));
        }
        assert_eq!(self.device.memory.to_bytes(), self.model);
        let stats = self.queue.stats();
        assert_eq!((stats.held, stats.queued, stats.in_flight), (0, 0, 0));
        let flushes = self
            .device
            .log()
            .iter()
            .filter(|l| l.0 == Op::Flush)
            .count();
        assert_eq!(stats.ops[Op::Flush as usize].requests, flushes as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn random_histories_end_and_leave_what_was_written(
        steps in steps(),
        depth in 1..6usize,
        choices in prop::collection::vec(any::<usize>(), 0..50),
        fail in prop::collection::vec(0..SIZE, 0..3),
        policy in prop_oneof![Just(Policy::Fifo), Just(Policy::Fair), Just(Policy::Cfq)],
    ) {
        let device = Puppet::new();
        device.state.lock().choices = choices;
        device.state.lock().fail = fail;
        let mut history = History {
            queue: queue_by(&device, depth, policy),
            device,
            model: vec![0; SIZE as usize],
            open: Vec::new(),
            calls: Arc::new(Mutex::new(Rank::Leaf, Vec::new())),
            called: 0,
            fill: 0,
        };
        for step in steps {
            history.step(step);
        }
        prop_assert!(history.device.state.lock().most <= depth);
        history.finish();
    }
}
