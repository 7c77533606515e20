//! When each command ends: a pure state machine. Times are integer nanoseconds.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use steadfs_block::{Bio, Op};
use steadfs_rt::Random;

use super::parameters::Parameters;

/// A command to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// The operation.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Flush before.
    pub preflush: bool,
    /// Durable when it ends.
    pub fua: bool,
}

impl Command {
    /// The command of a bio.
    pub fn of(bio: &Bio) -> Self {
        Self {
            op: bio.op,
            offset: bio.offset,
            len: bio.len,
            preflush: bio.preflush,
            fua: bio.fua,
        }
    }
}

/// The times of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// When the device began it.
    pub began: u64,
    /// When it ended.
    pub ended: u64,
}

/// A device's state between commands. Commands are served in the order of arrival; reads precede planned programs, but
/// not those that have begun.
#[derive(Clone, Debug)]
pub struct Machine {
    parameters: Parameters,
    random: Random,
    /// When each command slot becomes free.
    places: Vec<u64>,
    /// When the bus becomes free: to the device, from it.
    bus: [u64; 2],
    /// When each unit becomes free.
    units: Vec<u64>,
    /// Programs from the cache in progress: end and bytes, the earliest end first.
    programs: BinaryHeap<Reverse<(u64, u64)>>,
    /// Bytes in the cache: those being programmed, and `pending`.
    cached: u64,
    /// Bytes in the cache that do not fill a page yet.
    pending: u64,
    /// Bytes written since the last flush began.
    unflushed: u64,
    /// When all programs started so far have ended.
    programmed: u64,
    /// Open erase units, the least recently used first: number, and end of the last write.
    open: VecDeque<(u64, u64)>,
    opened: u64,
    jumps: u64,
    pages: u64,
}

impl Machine {
    /// A new device; `seed` determines its jitter.
    pub fn new(parameters: &Parameters, seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            places: vec![0; parameters.interface.queue_depth],
            bus: [0; 2],
            units: vec![0; parameters.flash.units],
            programs: BinaryHeap::new(),
            cached: 0,
            pending: 0,
            unflushed: 0,
            programmed: 0,
            open: VecDeque::new(),
            opened: 0,
            jumps: 0,
            pages: 0,
            parameters: parameters.clone(),
        }
    }

    /// Number of erase units opened.
    pub fn opened(&self) -> u64 {
        self.opened
    }

    /// Number of writes to open erase units that did not continue the last one.
    pub fn jumps(&self) -> u64 {
        self.jumps
    }

    /// Number of pages programmed.
    pub fn pages_programmed(&self) -> u64 {
        self.pages
    }

    /// Serves a command that arrives at `now`, which never decreases.
    pub fn begin(&mut self, command: Command, now: u64) -> Times {
        let place = self
            .places
            .iter()
            .enumerate()
            .min_by_key(|(_, free)| **free);
        let (place, free) = place
            .map(|(at, free)| (at, *free))
            .expect("a device has a command slot");
        let began = now.max(free);
        let mut at = began + nanos(self.parameters.interface.command);
        if command.preflush {
            at = self.flush(at);
        }
        let ended = match command.op {
            Op::Read => self.read(command, at),
            Op::Write => self.write(command, at),
            Op::Flush => self.flush(at),
            Op::Discard | Op::WriteZeroes => at,
        };
        self.places[place] = ended;
        Times { began, ended }
    }

    /// When a transfer of `bytes` that may begin at `at` ends.
    fn transfer(&mut self, way: usize, bytes: u64, at: u64) -> u64 {
        let speed = u128::from(self.parameters.interface.transfer_mib_s) << 20;
        let time = u128::from(bytes) * 1_000_000_000 / speed;
        let end = at.max(self.bus[way]) + u64::try_from(time).expect("a transfer is short");
        self.bus[way] = end;
        end
    }

    /// Programs a page in the unit that becomes free first.
    fn program(&mut self, at: u64) -> u64 {
        let flash = &self.parameters.flash;
        let time = nanos(flash.program);
        let most = time * flash.jitter_percent / 100;
        let more = match most {
            0 => 0,
            most => self.random.next_u64() % (most + 1),
        };
        let unit = self.units.iter_mut().min().expect("a device has a unit");
        *unit = at.max(*unit) + time + more;
        let end = *unit;
        self.programmed = self.programmed.max(end);
        self.pages += 1;
        end
    }

    fn write(&mut self, command: Command, at: u64) -> u64 {
        let at = self.open_units(command, at);
        if command.fua {
            return self.write_through(command.len, at) + nanos(self.parameters.cache.fua_extra);
        }
        self.unflushed += command.len;
        match self.parameters.cache.size {
            0 => self.write_through(command.len, at),
            _ => self.write_cached(command.len, at),
        }
    }

    /// Programs the data page by page.
    fn write_through(&mut self, len: u64, at: u64) -> u64 {
        let mut left = len;
        let mut ended = at;
        while left > 0 {
            let part = left.min(self.parameters.flash.page);
            let here = self.transfer(0, part, at);
            ended = ended.max(self.program(here));
            left -= part;
        }
        ended
    }

    /// Puts the data into the cache as soon as it has space, and programs each full page.
    fn write_cached(&mut self, len: u64, mut at: u64) -> u64 {
        let page = self.parameters.flash.page;
        let mut left = len;
        while left > 0 {
            let part = left.min(page);
            at = self.make_room(part, at);
            at = self.transfer(0, part, at);
            self.cached += part;
            self.pending += part;
            if self.pending >= page {
                self.pending -= page;
                let end = self.program(at);
                self.programs.push(Reverse((end, page)));
            }
            left -= part;
        }
        at
    }

    /// Waits until the cache has space for `bytes`.
    fn make_room(&mut self, bytes: u64, mut at: u64) -> u64 {
        while let Some(Reverse((end, _))) = self.programs.peek()
            && (*end <= at || self.cached + bytes > self.parameters.cache.size)
        {
            let Some(Reverse((end, freed))) = self.programs.pop() else {
                break;
            };
            self.cached -= freed;
            at = at.max(end);
        }
        at
    }

    /// Programs the cached data, and adds the cost of the flush.
    fn flush(&mut self, at: u64) -> u64 {
        if self.pending > 0 {
            self.pending = 0;
            self.program(at);
        }
        let at = at.max(self.programmed);
        self.programs.clear();
        self.cached = 0;
        let cache = &self.parameters.cache;
        let share = (u128::from(nanos(cache.flush_per_mib)) * u128::from(self.unflushed)) >> 20;
        self.unflushed = 0;
        let end = at + nanos(cache.flush) + u64::try_from(share).expect("a flush is short");
        if cache.flush_blocks {
            self.bus = self.bus.map(|free| free.max(end));
            for unit in &mut self.units {
                *unit = end.max(*unit);
            }
        }
        end
    }

    fn read(&mut self, command: Command, at: u64) -> u64 {
        let page = self.parameters.flash.page;
        let (read, program) = (
            nanos(self.parameters.flash.read),
            nanos(self.parameters.flash.program),
        );
        let pages = command.offset / page..(command.offset + command.len).div_ceil(page);
        let at = match self.parameters.cache.flush_blocks {
            // A flush in progress occupies the bus.
            true => at.max(self.bus[1]),
            false => at,
        };
        let mut ready = at;
        for number in pages {
            let unit = (number % self.units.len() as u64) as usize;
            let begins = at.max(self.units[unit].min(at + program));
            self.units[unit] = self.units[unit].max(at) + read;
            ready = ready.max(begins + read);
        }
        self.transfer(1, command.len, ready)
    }

    /// The cost of the erase units that a write touches.
    fn open_units(&mut self, command: Command, mut at: u64) -> u64 {
        let Some(erase) = self.parameters.erase.clone() else {
            return at;
        };
        let end = command.offset + command.len;
        for number in command.offset / erase.unit..end.div_ceil(erase.unit) {
            let from = command.offset.max(number * erase.unit);
            let upto = end.min((number + 1) * erase.unit);
            let known = self.open.iter().position(|(open, _)| *open == number);
            match known.and_then(|place| self.open.remove(place)) {
                Some((_, last)) if last == from => {}
                Some(_) => {
                    at += nanos(erase.jump);
                    self.jumps += 1;
                }
                None => {
                    at += nanos(erase.opening);
                    self.opened += 1;
                    if self.open.len() == erase.open {
                        self.open.pop_front();
                    }
                }
            }
            self.open.push_back((number, upto));
        }
        at
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("parameters are at most a minute")
}

#[cfg(test)]
mod tests;
