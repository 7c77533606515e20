//! A bio as a sequence of requests of the protocol.
//!
//! **Rule.** A bio is a list of steps: a preflush, its transfer, and a FLUSH where the server cannot write with FUA. A step
//! begins when the one before has ended. A transfer is cut into pieces that the server takes, of which a few are in flight
//! at a time.

use steadfs_block::{Bio, Buf, Done, IoError, Op};

use crate::wire::{self, Kind};

/// Pieces of one bio that are in flight at a time.
const PIECES: usize = 8;
/// Bytes of zeros of one request, where the server has no request for zeros.
pub const ZEROS: usize = 1 << 20;
/// Longest range of a request without data: less than 2^32, in whole blocks.
const RANGE_MAX: u64 = 1 << 30;

/// A step of a bio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Flush,
    /// The bio's own range.
    Transfer(Kind, u16),
    /// The same, by zeros that are sent.
    Zeros(u16),
}

/// What an export can do, as far as a bio depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Abilities {
    pub flush: bool,
    pub fua: bool,
    pub trim: bool,
    pub zeroes: bool,
    /// Most bytes of data of a request.
    pub payload: u32,
}

/// One request of a bio.
#[derive(Debug)]
pub struct Piece {
    pub kind: Kind,
    pub flags: u16,
    /// Where it begins within the bio.
    pub from: u64,
    pub len: u32,
}

/// A bio in service.
pub struct Job {
    pub bio: Bio,
    pub done: Done,
    steps: Vec<Step>,
    /// How much of the present step has been issued, in bytes.
    issued: u64,
    in_flight: usize,
    error: Option<String>,
}

impl Job {
    pub fn new(bio: Bio, done: Done, can: Abilities) -> Self {
        let mut steps = Vec::new();
        let fua = bio.fua && can.fua;
        let flags = if fua { wire::FLAG_FUA } else { 0 };
        if bio.preflush && can.flush {
            steps.push(Step::Flush);
        }
        match bio.op {
            Op::Read => steps.push(Step::Transfer(Kind::Read, 0)),
            Op::Write => steps.push(Step::Transfer(Kind::Write, flags)),
            Op::Flush if can.flush => steps.push(Step::Flush),
            Op::Discard if can.trim => steps.push(Step::Transfer(Kind::Trim, 0)),
            Op::WriteZeroes if can.zeroes => steps.push(Step::Transfer(Kind::WriteZeroes, 0)),
            Op::WriteZeroes => steps.push(Step::Zeros(0)),
            // Content that is not needed may stay; without a FLUSH everything counts as durable.
            Op::Flush | Op::Discard => {}
        }
        if bio.fua && !fua && can.flush {
            steps.push(Step::Flush);
        }
        steps.reverse();
        Self {
            bio,
            done,
            steps,
            issued: 0,
            in_flight: 0,
            error: None,
        }
    }

    /// The next piece that may be issued now.
    pub fn next(&mut self, can: Abilities) -> Option<Piece> {
        if self.error.is_some() || self.in_flight == PIECES {
            return None;
        }
        let (kind, flags, most) = match *self.steps.last()? {
            Step::Flush if self.in_flight > 0 => return None,
            Step::Flush => {
                self.in_flight = 1;
                return Some(Piece {
                    kind: Kind::Flush,
                    flags: 0,
                    from: 0,
                    len: 0,
                });
            }
            Step::Transfer(kind @ (Kind::Trim | Kind::WriteZeroes), flags) => {
                (kind, flags, RANGE_MAX)
            }
            Step::Transfer(kind, flags) => (kind, flags, u64::from(can.payload)),
            Step::Zeros(flags) => (Kind::Write, flags, u64::from(can.payload).min(ZEROS as u64)),
        };
        let len = (self.bio.len - self.issued).min(most);
        if len == 0 {
            return None;
        }
        let from = self.issued;
        self.issued += len;
        self.in_flight += 1;
        let len = len as u32;
        Some(Piece {
            kind,
            flags,
            from,
            len,
        })
    }

    /// A piece has ended. Returns whether the present step has ended.
    pub fn end_piece(&mut self, result: Result<(), String>) -> bool {
        self.in_flight -= 1;
        if let Err(cause) = result {
            self.error.get_or_insert(cause);
        }
        let all = self.error.is_some()
            || self.steps.last() == Some(&Step::Flush)
            || self.issued == self.bio.len;
        self.in_flight == 0 && all
    }

    /// Ends the present step. Returns whether there is another one.
    pub fn next_step(&mut self) -> bool {
        self.steps.pop();
        self.issued = 0;
        self.error.is_none() && !self.steps.is_empty()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        let transfers = matches!(self.steps[..], [Step::Transfer(..) | Step::Zeros(_)]);
        self.steps.is_empty() || transfers && self.bio.len == 0
    }

    /// The data of a piece that writes, as pieces of memory.
    pub fn data(&self, piece: &Piece, zeros: Option<&Buf>) -> Vec<(Buf, std::ops::Range<usize>)> {
        if piece.kind != Kind::Write {
            return Vec::new();
        }
        if self.bio.op == Op::WriteZeroes {
            let zeros = zeros.into_iter();
            return zeros
                .map(|zeros| (zeros.clone(), 0..piece.len as usize))
                .collect();
        }
        let (start, end) = (piece.from, piece.from + u64::from(piece.len));
        let mut at = 0;
        let mut parts = Vec::new();
        for buf in &self.bio.bufs {
            let next = at + buf.len() as u64;
            let (from, to) = (start.max(at), end.min(next));
            if from < to {
                parts.push((buf.clone(), (from - at) as usize..(to - at) as usize));
            }
            at = next;
        }
        parts
    }

    /// Memory for a piece that reads: the bio's own if the piece is the whole bio.
    pub fn memory(&mut self, piece: &Piece) -> Vec<Buf> {
        match piece.kind {
            Kind::Read if u64::from(piece.len) == self.bio.len => {
                std::mem::take(&mut self.bio.bufs)
            }
            Kind::Read => vec![Buf::zeroed(piece.len as usize)],
            _ => Vec::new(),
        }
    }

    /// Takes what a piece has read.
    pub fn take_read(&mut self, from: u64, len: u32, memory: Vec<Buf>) {
        if u64::from(len) == self.bio.len {
            self.bio.bufs = memory;
            return;
        }
        let Some(read) = memory.first() else { return };
        let (start, end) = (from, from + read.len() as u64);
        let mut at = 0;
        for buf in &mut self.bio.bufs {
            let next = at + buf.len() as u64;
            let (lo, hi) = (start.max(at), end.min(next));
            if lo < hi {
                let part = &read[(lo - start) as usize..(hi - start) as usize];
                buf.make_mut()[(lo - at) as usize..(hi - at) as usize].copy_from_slice(part);
            }
            at = next;
        }
    }

    /// Reports the end. No lock is held.
    pub fn finish(self) {
        let result = match self.error {
            None => Ok(()),
            Some(cause) => Err(IoError::of(&self.bio, cause)),
        };
        (self.done)(self.bio, result);
    }

    /// Fails it.
    pub fn fail(&mut self, cause: &str) {
        self.error.get_or_insert_with(|| cause.to_owned());
    }

    /// Whether it has failed.
    pub fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// Whether pieces are in flight.
    pub fn is_in_flight(&self) -> bool {
        self.in_flight > 0
    }
}
