use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use steadfs_block::Buf;
use steadfs_rt::sim::Config;
use steadfs_rt::{Event as Happening, sleep, spawn};

use super::*;

mod images;

const BLOCK: usize = 512;
const SIZE: u64 = 64 * 1024;

type Outcome = Arc<Happening<Result<Vec<u8>, IoError>>>;

/// Starts a request; the event is signalled when it ends, with the data read.
fn start(device: &dyn Device, bio: Bio) -> Outcome {
    let outcome = Outcome::default();
    let event = Arc::clone(&outcome);
    let done = move |bio: Bio, result: Result<(), IoError>| {
        event.set(result.map(|()| bio.bufs.iter().flat_map(|buf| buf.to_vec()).collect()));
    };
    device.start(bio, Box::new(done));
    outcome
}

fn run(device: &dyn Device, bio: Bio) -> Result<Vec<u8>, IoError> {
    start(device, bio).wait()
}

/// A write of `blocks` blocks of `byte` from block `at` on.
fn write(at: u64, blocks: usize, byte: u8) -> Bio {
    let buf = Buf::copy_of(&vec![byte; blocks * BLOCK]);
    Bio::write(at * BLOCK as u64, vec![buf])
}

fn read(device: &dyn Device, at: u64) -> u8 {
    let bytes = run(device, Bio::read(at * BLOCK as u64, BLOCK)).expect("reads");
    assert!(
        bytes.iter().all(|byte| *byte == bytes[0]),
        "a block is whole"
    );
    bytes[0]
}

fn block_of(image: &Image, at: u64) -> u8 {
    let mut bytes = [0; BLOCK];
    image.read(at * BLOCK as u64, &mut bytes);
    assert!(
        bytes.iter().all(|byte| *byte == bytes[0]),
        "a block is whole"
    );
    bytes[0]
}

/// The first `N` blocks of every image that a crash at `cut` may leave.
fn images<const N: usize>(log: &Log, cut: usize) -> BTreeSet<[u8; N]> {
    let cut = log.at(cut);
    let choices = cut.choices(1 << 12, 0);
    assert!(cut.units() <= 12, "all subsets are looked at");
    let image = |survivors| {
        let image = cut.image(survivors);
        std::array::from_fn(|at| block_of(&image, at as u64))
    };
    choices.iter().map(image).collect()
}

fn instant() -> SimDevice {
    SimDevice::new(&Image::zeroed(SIZE), Model::default())
}

/// Runs `f` on a device of this model, in a simulation.
fn timed<T: 'static>(model: Model, f: impl FnOnce(SimDevice) -> T + 'static) -> T {
    let device = SimDevice::new(&Image::zeroed(SIZE), model);
    steadfs_rt::sim::run(Config::new(1), move || f(device)).value
}

fn slow() -> Model {
    Model {
        read: Duration::from_micros(10),
        write: Duration::from_micros(100),
        flush: Duration::from_micros(1000),
        parallel: 4,
        ..Model::default()
    }
}

#[test]
fn reads_see_what_was_written_discarded_and_zeroed() {
    let device = instant();
    run(&device, write(3, 4, 7)).unwrap();
    assert_eq!([2, 3, 6, 7].map(|at| read(&device, at)), [0, 7, 7, 0]);
    run(&device, Bio::write_zeroes(4 * 512, 512)).unwrap();
    assert_eq!([3, 4, 5].map(|at| read(&device, at)), [7, 0, 7]);
    let mut seen = BTreeSet::new();
    for _ in 0..20 {
        run(&device, write(0, 1, 9)).unwrap();
        run(&device, Bio::discard(0, 512)).unwrap();
        let byte = read(&device, 0);
        assert_eq!(read(&device, 0), byte, "reads are stable");
        seen.insert(byte);
    }
    assert_eq!(seen, [0, 9].into());
}

#[test]
fn invalid_requests_are_refused() {
    let device = instant();
    for bio in [
        Bio::read(SIZE, 512),
        Bio::read(u64::MAX - 511, 512),
        Bio::read(256, 512),
        Bio::discard(0, 100),
        write(127, 2, 1),
    ] {
        assert!(run(&device, bio).is_err());
    }
    let mut bio = write(0, 1, 1);
    bio.len = 1024;
    assert!(run(&device, bio).is_err());
    assert!(device.log().is_empty());
    let model = Model {
        read_only: true,
        ..Model::default()
    };
    let device = SimDevice::new(&Image::zeroed(SIZE), model);
    assert!(run(&device, write(0, 1, 1)).is_err());
    assert!(run(&device, Bio::read(0, 512)).is_ok());
}

#[test]
fn unflushed_writes_survive_in_any_subset_and_flushed_ones_for_certain() {
    let device = instant();
    run(&device, write(0, 1, 1)).unwrap();
    run(&device, write(1, 1, 2)).unwrap();
    let log = device.log();
    let expected = [[0, 0], [1, 0], [0, 2], [1, 2]].into();
    assert_eq!(images::<2>(&log, log.len()), expected);
    assert_eq!(images::<2>(&log, 0), [[0, 0]].into());
    assert_eq!(images::<2>(&log, 1), [[0, 0], [1, 0]].into());
    run(&device, Bio::flush()).unwrap();
    run(&device, write(1, 1, 3)).unwrap();
    let log = device.log();
    assert_eq!(images::<2>(&log, log.len()), [[1, 2], [1, 3]].into());
    let before_flush_ended = log.len() - 3;
    assert_eq!(images::<2>(&log, before_flush_ended), expected);
}

#[test]
fn a_later_write_wins_where_both_survive() {
    let device = instant();
    run(&device, write(0, 2, 1)).unwrap();
    run(&device, write(1, 2, 2)).unwrap();
    let log = device.log();
    let all = log.image(log.len(), &Survivors::All);
    assert_eq!([0, 1, 2].map(|at| block_of(&all, at)), [1, 2, 2]);
    let first = log.image(log.len(), &Survivors::Changes(vec![true, false]));
    assert_eq!([0, 1, 2].map(|at| block_of(&first, at)), [1, 1, 0]);
}

#[test]
fn writes_tear_at_the_atomic_unit() {
    let tears = |atomic_unit| -> BTreeSet<[u8; 3]> {
        let model = Model {
            atomic_unit,
            ..Model::default()
        };
        let device = SimDevice::new(&Image::zeroed(SIZE), model);
        run(&device, write(6, 3, 5)).unwrap();
        let log = device.log();
        let found = images::<9>(&log, log.len());
        found
            .into_iter()
            .map(|blocks| [6, 7, 8].map(|at| blocks[at]))
            .collect()
    };
    let every: BTreeSet<_> = (0..8u8)
        .map(|m| [0, 1, 2].map(|b| (m >> b & 1) * 5))
        .collect();
    assert_eq!(tears(512), every);
    // Blocks 6 and 7 are the end of one 4 KiB unit, block 8 begins the next.
    assert_eq!(
        tears(4096),
        [[0, 0, 0], [5, 5, 0], [0, 0, 5], [5, 5, 5]].into()
    );
}

#[test]
fn fua_is_durable_alone_and_older_writes_do_not_come_back_over_it() {
    let device = instant();
    run(&device, write(0, 2, 1)).unwrap();
    run(&device, write(1, 1, 2).with_fua()).unwrap();
    let log = device.log();
    assert_eq!(images::<2>(&log, log.len()), [[0, 2], [1, 2]].into());
    run(&device, write(0, 1, 3).with_fua()).unwrap();
    run(&device, write(2, 1, 4)).unwrap();
    let log = device.log();
    assert_eq!(images::<3>(&log, log.len()), [[3, 2, 0], [3, 2, 4]].into());
    run(&device, Bio::flush()).unwrap();
    let log = device.log();
    assert_eq!(images::<3>(&log, log.len()), [[3, 2, 4]].into());
}

#[test]
fn a_write_with_preflush_never_overtakes_what_it_flushes() {
    let device = instant();
    run(&device, write(0, 1, 1)).unwrap();
    run(&device, write(1, 1, 2).preflush_and_fua()).unwrap();
    let log = device.log();
    for cut in log.cut_points() {
        for [data, commit] in images::<2>(&log, cut) {
            assert!(commit == 0 || data == 1, "cut {cut}");
        }
    }
    assert_eq!(images::<2>(&log, log.len()), [[1, 2]].into());
    // The same in time, with crashes between the steps.
    let log = timed(slow(), |device| {
        run(&device, write(0, 1, 1)).unwrap();
        let commit = start(&device, write(1, 1, 2).preflush_and_fua());
        sleep(Duration::from_micros(500));
        run(&device, write(2, 1, 3)).unwrap();
        commit.wait().unwrap();
        device.log()
    });
    let mut seen = BTreeSet::new();
    for cut in log.cut_points() {
        seen.extend(images::<3>(&log, cut));
    }
    assert!(seen.contains(&[1, 0, 3]) && seen.contains(&[0, 0, 3]) && seen.contains(&[1, 2, 0]));
    assert!(!seen.contains(&[0, 2, 0]) && !seen.contains(&[0, 2, 3]));
}

#[test]
fn a_flush_covers_only_what_completed_before_it_began() {
    let log = timed(slow(), |device| {
        run(&device, write(0, 1, 1)).unwrap();
        let late = start(&device, write(1, 1, 2));
        let flush = start(&device, Bio::flush());
        late.wait().unwrap();
        flush.wait().unwrap();
        device.log()
    });
    assert_eq!(images::<2>(&log, log.len()), [[1, 0], [1, 2]].into());
}

#[test]
fn writes_in_flight_may_survive() {
    let log = timed(slow(), |device| {
        let first = start(&device, write(0, 1, 1));
        let second = start(&device, write(1, 1, 2));
        let log = device.log();
        first.wait().unwrap();
        second.wait().unwrap();
        log
    });
    assert_eq!(log.len(), 2);
    assert!(log.at(2).doubtful().all(|pending| pending.in_flight));
    let expected = [[0, 0], [1, 0], [0, 2], [1, 2]].into();
    assert_eq!(images::<2>(&log, 2), expected);
}

#[test]
fn a_discarded_block_reads_old_or_zero_after_a_crash() {
    let device = instant();
    run(&device, write(0, 1, 1)).unwrap();
    run(&device, Bio::flush()).unwrap();
    run(&device, Bio::discard(0, 512)).unwrap();
    let log = device.log();
    assert_eq!(images::<1>(&log, log.len()), [[0], [1]].into());
    run(&device, Bio::write_zeroes(0, 512)).unwrap();
    run(&device, Bio::flush()).unwrap();
    let log = device.log();
    assert_eq!(images::<1>(&log, log.len()), [[0]].into());
}

#[test]
fn marks_keep_their_positions() {
    let device = instant();
    run(&device, write(0, 1, 1)).unwrap();
    run(&device, Bio::flush()).unwrap();
    device.mark(17);
    run(&device, write(0, 1, 2)).unwrap();
    device.mark(18);
    let log = device.log();
    let flushed = 4;
    assert_eq!(log.marks(flushed).count(), 0);
    assert_eq!(log.marks(flushed + 1).collect::<Vec<_>>(), [17]);
    assert_eq!(log.marks(log.len()).collect::<Vec<_>>(), [17, 18]);
    assert_eq!(log.cut_points(), 0..=8);
    assert_eq!(log.last_cuts(), [3, 8]);
    assert!(matches!(log.events()[4], Event::Mark(17)));
}

#[test]
fn the_last_cuts_allow_every_image() {
    let log = timed(slow(), |device| {
        for round in 0..3u8 {
            let writes = [0, 1].map(|at| start(&device, write(at, 1, round * 2 + at as u8 + 1)));
            sleep(Duration::from_micros(50));
            run(&device, Bio::flush()).unwrap();
            for write in writes {
                write.wait().unwrap();
            }
            run(&device, write(2, 1, 10 + round).preflush_and_fua()).unwrap();
            device.mark(u64::from(round));
        }
        device.log()
    });
    let by_last: Vec<_> = log
        .last_cuts()
        .into_iter()
        .map(|cut| (cut, images::<3>(&log, cut)))
        .collect();
    for cut in log.cut_points() {
        for image in images::<3>(&log, cut) {
            let later = by_last
                .iter()
                .any(|(last, images)| *last >= cut && images.contains(&image));
            assert!(later, "{image:?} of cut {cut}");
        }
    }
}

#[test]
fn crashes_during_recovery_compose() {
    let device = instant();
    run(&device, write(0, 1, 1)).unwrap();
    run(&device, Bio::flush()).unwrap();
    run(&device, write(1, 1, 2)).unwrap();
    let image = device.log().image(device.log().len(), &Survivors::All);
    let again = SimDevice::new(&image, Model::default());
    run(&again, write(0, 1, 9)).unwrap();
    assert_eq!(read(&device, 0), 1, "the first device is another one");
    let log = again.log();
    assert_eq!(images::<2>(&log, log.len()), [[1, 2], [9, 2]].into());
    assert!(log.base().same_content(&image));
    assert!(
        again
            .content()
            .same_content(&log.image(log.len(), &Survivors::All))
    );
}

#[test]
fn faults_apply_to_the_requests_that_they_name() {
    let device = instant();
    device.inject(RequestFilter::Nth(1), Fault::Fail);
    device.inject(RequestFilter::NthOf(Op::Read, 1), Fault::Fail);
    run(&device, write(0, 1, 1)).unwrap();
    let error = run(&device, write(0, 1, 2)).unwrap_err();
    assert_eq!((error.op, error.offset, error.len), (Op::Write, 0, 512));
    assert!(error.cause.contains("injected"));
    assert_eq!(read(&device, 0), 1);
    assert!(run(&device, Bio::read(0, 512)).is_err());
    assert_eq!(read(&device, 0), 1);
    device.inject(RequestFilter::Touching(Op::Read, 1024..1025), Fault::Fail);
    device.inject(RequestFilter::Every(Op::Flush), Fault::Fail);
    assert!(run(&device, Bio::read(0, 1024)).is_ok());
    assert!(run(&device, Bio::read(512, 1024)).is_err());
    assert!(run(&device, Bio::flush()).is_err());
    assert_eq!(
        images::<1>(&device.log(), device.log().len()),
        [[0], [1]].into()
    );
    device.clear_faults();
    assert!(run(&device, Bio::flush()).is_ok());
    let counts = device.counts();
    assert_eq!((counts.reads, counts.writes, counts.flushes), (5, 2, 2));
    assert_eq!(counts.total(), 9);
}

#[test]
fn a_lost_flush_makes_nothing_durable() {
    let device = instant();
    device.inject(RequestFilter::Every(Op::Flush), Fault::LostFlush);
    device.inject(RequestFilter::Every(Op::Write), Fault::LostFlush);
    run(&device, write(0, 1, 1)).unwrap();
    run(&device, Bio::flush()).unwrap();
    run(&device, write(1, 1, 2).preflush_and_fua()).unwrap();
    let log = device.log();
    let expected = [[0, 0], [1, 0], [0, 2], [1, 2]].into();
    assert_eq!(images::<2>(&log, log.len()), expected);
}

#[test]
fn a_failed_flush_may_lose_the_cache() {
    let device = instant();
    run(&device, write(0, 1, 1)).unwrap();
    run(&device, Bio::flush()).unwrap();
    run(&device, write(0, 2, 2)).unwrap();
    run(&device, write(2, 1, 3).with_fua()).unwrap();
    device.inject(RequestFilter::NthOf(Op::Flush, 1), Fault::LoseCache);
    assert!(run(&device, Bio::flush()).is_err());
    assert_eq!([0, 1, 2].map(|at| read(&device, at)), [1, 0, 3]);
    let log = device.log();
    assert_eq!(images::<3>(&log, log.len()), [[1, 0, 3]].into());
}

#[test]
fn time_follows_the_model() {
    let model = Model {
        parallel: 2,
        per_mib: Duration::from_micros(1 << 11),
        ..slow()
    };
    timed(model, |device| {
        let writes = [0, 1, 2].map(|at| start(&device, write(at, 1, 1)));
        writes
            .iter()
            .for_each(|outcome| drop(outcome.wait().unwrap()));
        // Two at a time, each 100 µs and a 2048th of 2048 µs.
        assert_eq!(now(), Instant(2 * 101_000));
        run(&device, Bio::flush()).unwrap();
        assert_eq!(now(), Instant(1_202_000));
        run(&device, write(0, 1, 1).preflush_and_fua()).unwrap();
        assert_eq!(now(), Instant(1_202_000 + 2_101_000));
        device.inject(
            RequestFilter::Every(Op::Read),
            Fault::Delay(Duration::from_secs(1)),
        );
        let begin = now();
        assert_eq!(read(&device, 0), 1);
        assert_eq!(begin.elapsed(), Duration::from_nanos(1_000_011_000));
    });
}

#[test]
fn jitter_reorders_and_the_seed_decides() {
    let order = |seed| {
        let model = Model {
            jitter: 1024,
            ..slow()
        };
        let device = SimDevice::new(&Image::zeroed(SIZE), model);
        let report = steadfs_rt::sim::run(Config::new(seed), move || {
            let tasks = [0, 1, 2].map(|at| {
                let device = device.clone();
                spawn("writer", move || drop(run(&device, write(at, 1, 1))))
            });
            tasks.into_iter().for_each(|task| task.join());
            let log = device.log();
            let events = log.events().iter();
            let order: Vec<u64> = events
                .filter_map(|event| match event {
                    Event::Completed { id, .. } => Some(*id),
                    _ => None,
                })
                .collect();
            order
        });
        (report.value, report.trace_hash)
    };
    let orders: BTreeSet<_> = (0..40).map(|seed| order(seed).0).collect();
    assert!(orders.len() > 3);
    assert_eq!(order(7), order(7));
}

/// One step against a device that completes at once.
#[derive(Clone, Debug)]
enum Step {
    Write(u64, usize, u8, bool, bool),
    Zero(u64, u64),
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    let write = (0..6u64, 1..3usize, 1..250u8, any::<bool>(), any::<bool>());
    prop_oneof![
        4 => write.prop_map(|(at, n, byte, pre, fua)| Step::Write(at, n, byte, pre, fua)),
        1 => (0..6u64, 1..3u64).prop_map(|(at, n)| Step::Zero(at, n)),
        1 => Just(Step::Flush),
    ]
}

/// The values that each block may hold after a crash: those since it was last certain. A reference for the log.
#[derive(Clone)]
struct Plain(Vec<Vec<u8>>);

impl Plain {
    fn flush(&mut self) {
        for values in &mut self.0 {
            values.drain(..values.len() - 1);
        }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Write(at, n, byte, pre, fua) => {
                if pre {
                    self.flush();
                }
                for values in &mut self.0[at as usize..at as usize + n] {
                    values.push(byte);
                    if fua {
                        values.drain(..values.len() - 1);
                    }
                }
            }
            Step::Zero(at, n) => {
                for values in &mut self.0[at as usize..(at + n) as usize] {
                    values.push(0);
                }
            }
            Step::Flush => self.flush(),
        }
    }
}

#[test]
fn a_flush_of_a_part_is_of_what_lies_in_it() {
    let device = instant();
    let parts = [0..1024, 1024..4096].map(|range| SimPart::new(&device, range));
    run(&parts[0], write(0, 1, 1)).unwrap();
    run(&parts[1], write(1, 1, 2)).unwrap();
    run(&parts[1], Bio::flush()).unwrap();
    let flushed = device.log().len();
    assert_eq!((read(&device, 0), read(&device, 3)), (1, 2));
    assert_eq!(read(&parts[1], 1), 2);
    let seen = images::<4>(&device.log(), flushed);
    assert_eq!(seen, BTreeSet::from([[0, 0, 0, 2], [1, 0, 0, 2]]));

    let mut bio = write(0, 1, 3);
    bio.preflush = true;
    run(&parts[1], bio).unwrap();
    let seen = images::<4>(&device.log(), device.log().len());
    assert_eq!(seen.len(), 4, "{seen:?}");
    assert!(seen.iter().all(|blocks| blocks[3] == 2));
    run(&parts[0], Bio::flush()).unwrap();
    let seen = images::<4>(&device.log(), device.log().len());
    assert_eq!(seen, BTreeSet::from([[1, 0, 0, 2], [1, 0, 3, 2]]));
    assert!(run(&parts[0], Bio::read(1024, 512)).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn blocks_hold_what_they_may(steps in prop::collection::vec(step(), 1..12), seed: u64) {
        let device = instant();
        let mut plain = Plain(vec![vec![0]; 8]);
        for step in &steps {
            match *step {
                Step::Write(at, n, byte, pre, fua) => {
                    let mut bio = write(at, n, byte);
                    (bio.preflush, bio.fua) = (pre, fua);
                    run(&device, bio).unwrap();
                }
                Step::Zero(at, n) => drop(run(&device, Bio::write_zeroes(at * 512, n * 512)).unwrap()),
                Step::Flush => drop(run(&device, Bio::flush()).unwrap()),
            }
            plain.apply(step);
        }
        let log = device.log();
        let cut = log.at(log.len());
        let newest: Vec<u8> = plain.0.iter().map(|values| values[values.len() - 1]).collect();
        let mut seen = vec![BTreeSet::new(); 8];
        for choice in cut.choices(512, seed) {
            let image = cut.image(&choice);
            for (at, values) in plain.0.iter().enumerate() {
                let byte = block_of(&image, at as u64);
                prop_assert!(values.contains(&byte), "block {at}: {byte} of {values:?}");
                seen[at].insert(byte);
            }
        }
        let all = cut.image(&Survivors::All);
        for at in 0..8 {
            prop_assert_eq!(block_of(&all, at as u64), newest[at]);
            prop_assert_eq!(read(&device, at as u64), newest[at]);
            if cut.units() <= 9 {
                let values: BTreeSet<u8> = plain.0[at].iter().copied().collect();
                prop_assert_eq!(&seen[at], &values);
            }
        }
    }
}
