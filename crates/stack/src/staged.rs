//! Staging: a device that is never written, with all changes in memory until they are wanted.
//!
//! **Problem.** Many changes of a volume are to become durable together or not at all, and the volume knows only how to make
//! each of its own steps so.
//!
//! **Rule.** A write is kept and never reaches the base. Reads see the newest content. What has been written is given out in
//! two forms: the ranges whose content may differ from the base's, for a caller that makes one transaction of them; and, if
//! the order is kept, the writes between each two barriers (FLUSH, PREFLUSH, FUA), for a caller that repeats them in order, so
//! that a device which loses power meanwhile has a state that this one could have had. Between barriers the newest write of a
//! byte is kept alone, since a device may write it alone, too.

mod pieces;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use steadfs_block::{Bio, Buf, Device, Done, Geometry, IoError, Op};
use steadfs_rt::{Mutex, Rank};

use crate::split::Split;
use pieces::{Piece, Pieces};

/// Whether the order of writes is kept, besides their content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StagedOrder {
    /// [`StagedDevice::in_order`] has all writes.
    Kept,
    /// Only the newest content of each byte is kept, which takes less memory.
    Dropped,
}

/// A base with changes in memory.
pub struct StagedDevice {
    base: Arc<dyn Device>,
    geometry: Geometry,
    order: StagedOrder,
    bytes_max: u64,
    state: Mutex<State>,
}

struct State {
    newest: Pieces,
    /// The writes between barriers, the last entry being those since the last barrier.
    between: Vec<Pieces>,
    /// Bytes in all of `between` but its last entry.
    before_last: u64,
}

impl State {
    fn last(&self) -> u64 {
        self.between.last().map_or(0, Pieces::bytes)
    }

    /// Bytes that are kept.
    fn used(&self) -> u64 {
        self.newest.bytes().max(self.before_last + self.last())
    }
}

impl StagedDevice {
    /// Changes of `base` in at most `bytes_max` bytes of memory: a write that finds no room fails.
    pub fn new(base: Arc<dyn Device>, order: StagedOrder, bytes_max: u64) -> Self {
        let geometry = Geometry {
            discard_granularity: None,
            discard_zeroes: false,
            fua: true,
            ..base.geometry().clone()
        };
        let state = State {
            newest: Pieces::default(),
            between: vec![Pieces::default()],
            before_last: 0,
        };
        Self {
            base,
            geometry,
            order,
            bytes_max,
            state: Mutex::new(Rank::DeviceInner, state),
        }
    }

    /// The ranges in bytes that were written, ascending; neighbours are joined.
    pub fn changed(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (at, piece) in self.state.lock().newest.iter() {
            let end = at + piece.len;
            match ranges.last_mut() {
                Some(last) if last.end == at => last.end = end,
                _ => ranges.push(at..end),
            }
        }
        ranges
    }

    /// The writes in order, in groups: each group is to be durable before the next one begins. Empty if the order was
    /// not kept.
    pub fn in_order(&self) -> Vec<Vec<(u64, Buf)>> {
        let state = self.state.lock();
        let groups = state.between.iter().filter(|pieces| pieces.bytes() > 0);
        groups
            .map(|pieces| pieces.iter().map(|(at, piece)| (at, piece.buf())).collect())
            .collect()
    }

    fn barrier(&self) {
        let mut state = self.state.lock();
        let last = state.last();
        if last > 0 {
            state.before_last += last;
            state.between.push(Pieces::default());
        }
    }

    /// Serves what needs no base, and returns the requests of the base that serve the rest.
    fn expand(&self, bio: Bio, done: Done) -> Vec<(Bio, Done)> {
        if let Err(error) = self.geometry.check(&bio) {
            done(bio, Err(error));
            return Vec::new();
        }
        match bio.op {
            Op::Read => return self.read(bio, done),
            Op::Write | Op::WriteZeroes => {
                let kept = self.keep(&bio);
                done(bio, kept);
            }
            Op::Flush => {
                self.barrier();
                done(bio, Ok(()));
            }
            // The range reads as before.
            Op::Discard => done(bio, Ok(())),
        }
        Vec::new()
    }

    fn keep(&self, bio: &Bio) -> Result<(), IoError> {
        if bio.preflush {
            self.barrier();
        }
        let mut state = self.state.lock();
        if state.used() + bio.len > self.bytes_max {
            let cause = format!(
                "the changes need more than {} MiB of memory",
                self.bytes_max >> 20
            );
            return Err(IoError::of(bio, cause));
        }
        let mut at = bio.offset;
        let zeros = [Piece::zeros(bio.len)];
        let written: Vec<Piece> = match bio.op {
            Op::WriteZeroes => zeros.into(),
            _ => bio
                .bufs
                .iter()
                .map(|buf| Piece::whole(buf.clone()))
                .collect(),
        };
        for piece in written.into_iter().filter(|piece| piece.len > 0) {
            let end = at + piece.len;
            if self.order == StagedOrder::Kept
                && let Some(last) = state.between.last_mut()
            {
                last.put(at, piece.clone());
            }
            state.newest.put(at, piece);
            at = end;
        }
        drop(state);
        if bio.fua {
            self.barrier();
        }
        Ok(())
    }

    fn read(&self, bio: Bio, done: Done) -> Vec<(Bio, Done)> {
        let (offset, end) = (bio.offset, bio.end());
        let there: Vec<(u64, Piece)> = self.state.lock().newest.within(offset..end);
        if there.is_empty() {
            return vec![(bio, done)];
        }
        let split = Split::new(bio, done);
        let mut from_base = Vec::new();
        let mut below = |from: u64, to: u64| {
            if from < to {
                from_base.push(split.read(from, to - from, 0, to - from, from - offset));
            }
        };
        let mut at = offset;
        for (start, piece) in there {
            below(at, start);
            split.fill(start - offset, piece.len, |to, from| {
                piece.copy_to(from, to)
            });
            at = start + piece.len;
        }
        below(at, end);
        split.finish(Ok(()));
        from_base
    }
}

impl Device for StagedDevice {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn start(&self, bio: Bio, done: Done) {
        for (bio, done) in self.expand(bio, done) {
            self.base.start(bio, done);
        }
    }

    fn run(&self, batch: Vec<(Bio, Done)>) {
        let mut from_base = Vec::new();
        for (bio, done) in batch {
            from_base.extend(self.expand(bio, done));
        }
        if !from_base.is_empty() {
            self.base.run(from_base);
        }
    }

    fn help(&self, until: &dyn Fn() -> bool) {
        self.base.help(until);
    }

    fn background_depth(&self) -> usize {
        self.base.background_depth()
    }

    fn depth(&self) -> usize {
        self.base.depth()
    }
}
