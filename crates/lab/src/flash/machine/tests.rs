//! A test for each property, against its parameter.

use super::*;
use crate::flash::{Cache, Erase, Flash, Host, Interface};

const US: u64 = 1000;
const MS: u64 = 1_000_000;
const KIB: u64 = 1024;

/// Round numbers: 100 us per command, 1 MiB per ms, 4 units, pages of 16 KiB programmed in 1 ms.
fn parameters() -> Parameters {
    Parameters {
        name: "test".to_owned(),
        interface: Interface {
            queue_depth: 32,
            command: Duration::from_micros(100),
            transfer_mib_s: 1000,
            max_transfer: 1 << 20,
        },
        flash: Flash {
            units: 4,
            page: 16 * KIB,
            read: Duration::from_micros(50),
            program: Duration::from_millis(1),
            jitter_percent: 0,
        },
        cache: Cache {
            size: 0,
            flush: Duration::from_millis(3),
            flush_per_mib: Duration::ZERO,
            flush_blocks: false,
            fua: true,
            fua_extra: Duration::from_micros(200),
        },
        erase: None,
        host: Host {
            wake: Duration::ZERO,
        },
    }
}

fn cached(size: u64) -> Parameters {
    let mut parameters = parameters();
    parameters.cache.size = size;
    parameters
}

fn command(op: Op, offset: u64, len: u64) -> Command {
    Command {
        op,
        offset,
        len,
        preflush: false,
        fua: false,
    }
}

fn write(offset: u64, len: u64) -> Command {
    command(Op::Write, offset, len)
}

const FLUSH: Command = Command {
    op: Op::Flush,
    offset: 0,
    len: 0,
    preflush: false,
    fua: false,
};

/// Transfer time of this number of bytes.
fn moved(bytes: u64) -> u64 {
    bytes * 1_000_000_000 / (1000 << 20)
}

fn end(machine: &mut Machine, command: Command, now: u64) -> u64 {
    machine.begin(command, now).ended
}

#[test]
fn a_command_costs_its_overhead_and_its_transfer() {
    let mut machine = Machine::new(&cached(1 << 20), 0);
    assert_eq!(
        end(&mut machine, write(0, 4 * KIB), 7),
        7 + 100 * US + moved(4 * KIB)
    );
    let discard = command(Op::Discard, 0, 1 << 20);
    assert_eq!(end(&mut machine, discard, MS), MS + 100 * US);
}

#[test]
fn a_page_takes_its_time_to_be_programmed_and_read() {
    let mut machine = Machine::new(&parameters(), 0);
    let wrote = end(&mut machine, write(0, 4 * KIB), 0);
    assert_eq!(
        wrote,
        100 * US + moved(4 * KIB) + MS,
        "a part of a page is a page"
    );
    let read = end(&mut machine, command(Op::Read, 0, 4 * KIB), 10 * MS);
    assert_eq!(read, 10 * MS + 100 * US + 50 * US + moved(4 * KIB));
}

#[test]
fn units_program_pages_concurrently() {
    for units in [1, 2, 4, 8] {
        let mut parameters = parameters();
        parameters.flash.units = units;
        let mut machine = Machine::new(&parameters, 0);
        let took = end(&mut machine, write(0, 512 * KIB), 0);
        let waves = 32 / units as u64;
        let least = waves * MS;
        assert!((least..least + MS).contains(&took), "{units} units: {took}");
        assert_eq!(machine.pages_programmed(), 32);
    }
}

#[test]
fn more_commands_than_the_queue_has_wait() {
    let mut parameters = parameters();
    parameters.interface.queue_depth = 2;
    let mut machine = Machine::new(&parameters, 0);
    let first = end(&mut machine, write(0, 4 * KIB), 0);
    end(&mut machine, write(0, 4 * KIB), 0);
    assert_eq!(machine.begin(write(0, 4 * KIB), 0).began, first);
}

#[test]
fn a_cache_answers_when_it_has_the_data_until_it_is_full() {
    let mut machine = Machine::new(&cached(128 * KIB), 0);
    let quick = end(&mut machine, write(0, 128 * KIB), 0);
    assert!(quick < 300 * US, "{quick}");
    // Four pages are programmed in the first millisecond; the cache has no space for eight more before.
    let slow = end(&mut machine, write(0, 128 * KIB), quick);
    assert!((2 * MS..3 * MS).contains(&slow), "{slow}");
}

#[test]
fn a_cache_combines_small_writes_into_pages() {
    let mut machine = Machine::new(&cached(1 << 20), 0);
    for block in 0..10 {
        end(&mut machine, write(block * 4 * KIB, 4 * KIB), block);
    }
    assert_eq!(machine.pages_programmed(), 2);
    end(&mut machine, FLUSH, MS);
    assert_eq!(machine.pages_programmed(), 3, "the rest with the flush");
}

#[test]
fn a_flush_costs_what_is_cached_and_its_own_time() {
    let mut machine = Machine::new(&cached(1 << 20), 0);
    assert_eq!(
        end(&mut machine, FLUSH, 0),
        100 * US + 3 * MS,
        "an idle one"
    );
    // 512 KiB: 32 pages, eight per unit.
    let wrote = end(&mut machine, write(0, 512 * KIB), 10 * MS);
    let flushed = end(&mut machine, FLUSH, wrote);
    let programmed = flushed - 3 * MS - 10 * MS;
    assert!((8 * MS..9 * MS).contains(&programmed), "{programmed}");
}

#[test]
fn a_flush_costs_more_for_each_byte_since_the_last() {
    let mut parameters = cached(1 << 20);
    parameters.cache.flush_per_mib = Duration::from_millis(4);
    let mut machine = Machine::new(&parameters, 0);
    end(&mut machine, write(0, 256 * KIB), 0);
    // All programs have ended by then.
    let at = 100 * MS;
    assert_eq!(end(&mut machine, FLUSH, at), at + 100 * US + 3 * MS + MS);
    assert_eq!(end(&mut machine, FLUSH, 2 * at), 2 * at + 100 * US + 3 * MS);
}

#[test]
fn a_preflush_comes_before_its_write() {
    let mut machine = Machine::new(&cached(1 << 20), 0);
    let last = Command {
        preflush: true,
        fua: true,
        ..write(0, 4 * KIB)
    };
    let expected = 100 * US + 3 * MS + moved(4 * KIB) + MS + 200 * US;
    assert_eq!(end(&mut machine, last, 0), expected);
}

#[test]
fn fua_waits_for_its_own_pages_only() {
    let mut machine = Machine::new(&cached(1 << 20), 0);
    let fua = Command {
        fua: true,
        ..write(0, 4 * KIB)
    };
    let took = end(&mut machine, fua, 0);
    assert_eq!(took, 100 * US + moved(4 * KIB) + MS + 200 * US);
}

#[test]
fn a_flush_blocks_other_commands_if_configured() {
    for (blocks, least) in [(false, 0), (true, 3 * MS)] {
        let mut parameters = cached(1 << 20);
        parameters.cache.flush_blocks = blocks;
        let mut machine = Machine::new(&parameters, 0);
        end(&mut machine, FLUSH, 0);
        for op in [Op::Read, Op::Write] {
            let took = end(&mut machine, command(op, 0, 4 * KIB), 0);
            assert!(
                took > least && (took < MS) == (least == 0),
                "{op:?}: {took}"
            );
        }
    }
}

#[test]
fn a_read_waits_for_one_program_at_most() {
    let mut machine = Machine::new(&cached(1 << 20), 0);
    end(&mut machine, write(0, 1 << 20), 0);
    let now = 2 * MS;
    let took = end(&mut machine, command(Op::Read, 0, 4 * KIB), now) - now;
    assert!(took <= 100 * US + MS + 50 * US + moved(4 * KIB), "{took}");
}

#[test]
fn erase_units_are_opened_and_the_longest_unused_is_closed() {
    let mut parameters = parameters();
    parameters.erase = Some(Erase {
        unit: 1 << 20,
        open: 2,
        opening: Duration::from_millis(20),
        jump: Duration::from_millis(5),
    });
    let mut machine = Machine::new(&parameters, 0);
    let mut now = 0;
    let mut took = |machine: &mut Machine, offset: u64| {
        now += 100 * MS;
        let page = 100 * US + moved(4 * KIB) + MS;
        end(machine, write(offset, 4 * KIB), now) - now - page
    };
    const UNIT: u64 = 1 << 20;
    assert_eq!(took(&mut machine, 0), 20 * MS);
    assert_eq!(took(&mut machine, 4 * KIB), 0, "goes on there");
    assert_eq!(took(&mut machine, 64 * KIB), 5 * MS, "a jump");
    assert_eq!(took(&mut machine, UNIT), 20 * MS);
    assert_eq!(took(&mut machine, 68 * KIB), 0, "two are open");
    assert_eq!(took(&mut machine, 2 * UNIT), 20 * MS, "closes the second");
    assert_eq!(took(&mut machine, 72 * KIB), 0);
    assert_eq!(took(&mut machine, UNIT + 4 * KIB), 20 * MS);
    assert_eq!((machine.opened(), machine.jumps()), (4, 1));
}

#[test]
fn jitter_is_bounded_and_follows_the_seed() {
    let mut parameters = parameters();
    parameters.flash.jitter_percent = 50;
    let times = |seed| {
        let mut machine = Machine::new(&parameters, seed);
        (1..100u64)
            .map(|n| end(&mut machine, write(0, 16 * KIB), n * 10 * MS) - n * 10 * MS)
            .collect::<Vec<_>>()
    };
    let base = 100 * US + moved(16 * KIB) + MS;
    let one = times(1);
    assert!(one.iter().all(|t| (base..=base + MS / 2).contains(t)));
    assert!(one.iter().max() > one.iter().min());
    assert_eq!(one, times(1));
    assert_ne!(one, times(2));
}

#[test]
fn throughput_follows_from_units_page_and_program() {
    // Four pages of 16 KiB per millisecond: 62.5 MiB/s, with or without a cache.
    for parameters in [parameters(), cached(256 * KIB)] {
        let mut machine = Machine::new(&parameters, 0);
        let mut now = 0;
        for n in 0..64 {
            now = end(&mut machine, write(n << 20, 1 << 20), now);
        }
        let seconds = now as f64 / 1e9;
        let speed = 64.0 / seconds;
        assert!((54.0..64.0).contains(&speed), "{speed} MiB/s");
    }
}
