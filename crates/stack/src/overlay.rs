//! Copy on write: a device that is never written, with an overlay that has all changes.
//!
//! **Problem.** What a FLUSH acknowledged is there after a power cut at any time, and so is the map of what the overlay has.
//!
//! **Rule.** A unit is in the overlay at the same distance as in the base. Its first write puts all of it there (what the write
//! leaves out is copied from the base first), and then sets its bit in memory. A FLUSH makes the data durable, then
//! writes the blocks of the map that have new bits, only with those whose data are durable, and then makes them durable. So a
//! bit on the file means durable data whatever part of the map a power cut tears, and a unit without one reads as the base:
//! as if its writes, which no FLUSH had acknowledged, were lost. Bits are never cleared.
//!
//! Two first writes of one unit would each copy it and lose the other's data: the second one waits for the first. FLUSHes
//! that arrive during another one are served together by the next.

mod flush;
mod format;
mod open;
mod state;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use steadfs_block::{Bio, Buf, Device, Done, Geometry, IoError, Op};
use steadfs_rt::Mutex;

use crate::mapped::moved_back;
use crate::split::Split;
use state::State;

pub use format::{BaseId, Head, Layout, check_head, identity};

/// A base with an overlay.
pub struct OverlayDevice(Arc<Overlay>);

struct Overlay {
    base: Arc<dyn Device>,
    upper: Arc<dyn Device>,
    layout: Layout,
    /// Whether the overlay outlives this process, and so has a map.
    persists: bool,
    geometry: Geometry,
    state: Mutex<State>,
}

/// A request of the base or of the overlay.
enum Step {
    Base(Bio, Done),
    Upper(Bio, Done),
}

/// The units that a write makes complete.
#[derive(Clone)]
struct Claim {
    first: u64,
    end: u64,
    /// Units that were not in the overlay.
    fresh: u64,
    /// Those of them that the write covers in part.
    partial: Vec<u64>,
}

impl Overlay {
    fn unit_of(&self, at: u64) -> u64 {
        at / self.layout.unit
    }

    /// End of a unit.
    fn unit_end(&self, unit: u64) -> u64 {
        ((unit + 1) * self.layout.unit).min(self.layout.size)
    }

    fn submit(&self, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Base(bio, done) => self.base.start(bio, done),
                Step::Upper(bio, done) => self.upper.start(bio, done),
            }
        }
    }

    /// What serves a request; it may have ended on return.
    fn expand(self: &Arc<Self>, bio: Bio, done: Done) -> Vec<Step> {
        if let Err(error) = self.geometry.check(&bio) {
            done(bio, Err(error));
            return Vec::new();
        }
        if bio.len == 0 && bio.op != Op::Flush {
            done(bio, Ok(()));
            return Vec::new();
        }
        match bio.op {
            Op::Read => self.read(bio, done),
            Op::Write => self.write(bio, done),
            Op::WriteZeroes => self.write_zeroes(bio, done),
            Op::Flush => self.flush(bio, done),
            // The range reads as before.
            Op::Discard => {
                done(bio, Ok(()));
                Vec::new()
            }
        }
    }

    fn moved(&self, mut bio: Bio, done: Done) -> Step {
        let to = self.layout.data_at + bio.offset;
        let offset = std::mem::replace(&mut bio.offset, to);
        Step::Upper(bio, moved_back(offset, done))
    }

    fn read(self: &Arc<Self>, bio: Bio, done: Done) -> Vec<Step> {
        let runs = self.runs(bio.offset, bio.len);
        match runs[..] {
            [(_, true)] => return vec![self.moved(bio, done)],
            [(_, false)] => return vec![Step::Base(bio, done)],
            _ => {}
        }
        let (offset, mut at) = (bio.offset, 0);
        let split = Split::new(bio, done);
        let mut steps = Vec::new();
        for (len, present) in runs {
            steps.push(match present {
                true => {
                    let from = self.layout.data_at + offset + at;
                    let (bio, done) = split.read(from, len, 0, len, at);
                    Step::Upper(bio, done)
                }
                false => {
                    let (bio, done) = split.read(offset + at, len, 0, len, at);
                    Step::Base(bio, done)
                }
            });
            at += len;
        }
        split.finish(Ok(()));
        steps
    }

    /// The parts of a range that are in the overlay and that are not, with their lengths.
    fn runs(&self, at: u64, len: u64) -> Vec<(u64, bool)> {
        let state = self.state.lock();
        let (mut at, end) = (at, at + len);
        let mut runs: Vec<(u64, bool)> = Vec::new();
        while at < end {
            let unit = self.unit_of(at);
            let len = self.unit_end(unit).min(end) - at;
            let present = state.has(unit);
            match runs.last_mut() {
                Some((last, same)) if *same == present => *last += len,
                _ => runs.push((len, present)),
            }
            at += len;
        }
        runs
    }

    fn write(self: &Arc<Self>, mut bio: Bio, mut done: Done) -> Vec<Step> {
        if std::mem::take(&mut bio.preflush) {
            let this = Arc::clone(self);
            return self.flush(
                Bio::flush(),
                Box::new(move |_, result| match result {
                    Ok(()) => this.submit(this.write(bio, done)),
                    Err(error) => done(bio, Err(error)),
                }),
            );
        }
        if std::mem::take(&mut bio.fua) {
            let this = Arc::clone(self);
            done = Box::new(move |bio, result| match result {
                Ok(()) => {
                    let ended: Done = Box::new(move |_, result| done(bio, result));
                    this.submit(this.flush(Bio::flush(), ended));
                }
                Err(_) => done(bio, result),
            });
        }
        let (claim, bio, done) = match self.claim(bio, done) {
            Some(claimed) => claimed,
            None => return Vec::new(),
        };
        let this = Arc::clone(self);
        let ended = claim.clone();
        let done: Done = Box::new(move |bio, result| {
            let waiting = this.state.lock().end(&ended, result.is_ok());
            done(bio, result);
            for (bio, done) in waiting {
                this.submit(this.write(bio, done));
            }
        });
        match claim.partial[..] {
            [] => vec![self.moved(bio, done)],
            _ => self.copy_up(&claim, bio, done),
        }
    }

    /// Claims the units of a write; `None` if it waits for another one, or has failed.
    fn claim(&self, bio: Bio, done: Done) -> Option<(Claim, Bio, Done)> {
        let (first, last) = (self.unit_of(bio.offset), self.unit_of(bio.end() - 1));
        let mut state = self.state.lock();
        let fresh = (first..=last).filter(|unit| !state.has(*unit)).count() as u64;
        let is_partial = |unit: &u64| {
            let covered =
                bio.offset <= unit * self.layout.unit && bio.end() >= self.unit_end(*unit);
            !covered && !state.has(*unit)
        };
        let mut partial: Vec<u64> = [first, last].into_iter().filter(is_partial).collect();
        partial.dedup();
        if let Some(busy) = partial.iter().find(|unit| state.is_copied(**unit)) {
            state.wait_for(*busy, (bio, done));
            return None;
        }
        let claim = Claim {
            first,
            end: last + 1,
            fresh,
            partial,
        };
        if let Err(cause) = state.begin(&claim) {
            drop(state);
            let error = IoError::of(&bio, cause);
            done(bio, Err(error));
            return None;
        }
        Some((claim, bio, done))
    }

    /// Writes whole units: what the write leaves out of them comes from the base.
    fn copy_up(self: &Arc<Self>, claim: &Claim, bio: Bio, done: Done) -> Vec<Step> {
        let has = |unit: u64| claim.partial.contains(&unit);
        let start = match has(claim.first) {
            true => claim.first * self.layout.unit,
            false => bio.offset,
        };
        let stop = match has(claim.end - 1) {
            true => self.unit_end(claim.end - 1),
            false => bio.end(),
        };
        let whole = Bio::read(start, (stop - start) as usize);
        let (before, after) = (bio.offset - start, stop - bio.end());
        let (end, len) = (bio.end(), bio.len);
        let data: Vec<Buf> = bio.bufs.clone();
        let this = Arc::clone(self);
        let merged: Done = Box::new(move |whole, result| match result {
            Ok(()) => {
                let write = Bio::write(this.layout.data_at + start, whole.bufs);
                let ended: Done = Box::new(move |_, result| {
                    let result = result.map_err(|error| IoError::of(&bio, error.cause));
                    done(bio, result);
                });
                this.upper.start(write, ended);
            }
            Err(error) => {
                let error = IoError::of(&bio, error.cause);
                done(bio, Err(error));
            }
        });
        let split = Split::new(whole, merged);
        let mut from = before;
        for buf in &data {
            split.fill(from, buf.len() as u64, |to, at| {
                let at = at as usize;
                to.copy_from_slice(&buf[at..at + to.len()]);
            });
            from += buf.len() as u64;
        }
        let mut steps = Vec::new();
        for (at, len, to) in [(start, before, 0), (end, after, before + len)] {
            if len > 0 {
                let (bio, done) = split.read(at, len, 0, len, to);
                steps.push(Step::Base(bio, done));
            }
        }
        split.finish(Ok(()));
        steps
    }

    /// Zeros whole units in one request, and the parts of units around them as writes.
    fn write_zeroes(self: &Arc<Self>, bio: Bio, done: Done) -> Vec<Step> {
        let (offset, end) = (bio.offset, bio.end());
        let first = offset.next_multiple_of(self.layout.unit).min(end);
        let last = match end == self.layout.size {
            true => end,
            false => (end / self.layout.unit * self.layout.unit).max(first),
        };
        let split = Split::new(bio, done);
        let mut steps = Vec::new();
        for (from, to) in [(offset, first), (last, end)] {
            if from < to {
                let zeros = vec![Buf::zeroed((to - from) as usize)];
                steps.extend(self.write(Bio::write(from, zeros), split.part()));
            }
        }
        if first < last {
            steps.extend(self.write(Bio::write_zeroes(first, last - first), split.part()));
        }
        split.finish(Ok(()));
        steps
    }
}

impl Device for OverlayDevice {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn start(&self, bio: Bio, done: Done) {
        self.0.submit(self.0.expand(bio, done));
    }

    fn run(&self, batch: Vec<(Bio, Done)>) {
        let (mut base, mut upper) = (Vec::new(), Vec::new());
        for (bio, done) in batch {
            for step in self.0.expand(bio, done) {
                match step {
                    Step::Base(bio, done) => base.push((bio, done)),
                    Step::Upper(bio, done) => upper.push((bio, done)),
                }
            }
        }
        if !base.is_empty() {
            self.0.base.run(base);
        }
        if !upper.is_empty() {
            self.0.upper.run(upper);
        }
    }

    fn help(&self, until: &dyn Fn() -> bool) {
        self.0.upper.help(until);
        self.0.base.help(until);
    }

    fn background_depth(&self) -> usize {
        let base = self.0.base.background_depth();
        base.min(self.0.upper.background_depth())
    }

    fn depth(&self) -> usize {
        self.0.base.depth().min(self.0.upper.depth())
    }

    fn make_writable(&self) -> Result<(), String> {
        if self.0.geometry.read_only {
            return Err("the overlay is open for reading only; unmount and mount again".to_owned());
        }
        Ok(())
    }
}
