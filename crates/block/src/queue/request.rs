//! A request: one bio for the device, made of one or more submitted ones.

use std::sync::Arc;

use steadfs_base::{IoTag, Urgency};
use steadfs_iosched::{Direction, IoId};
use steadfs_rt::Instant;
use steadfs_rt::inherit::{self, TaskNo};

use super::handle::Io;
use crate::{Bio, IoError, Op};

/// Most buffers in one request (Linux `UIO_MAXIOV`).
const MAX_BUFS: usize = 1024;

/// Whose waiting releases a held request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HoldKey {
    /// The task that submitted it.
    Task(u64),
    /// A plug: waiting for one of its requests releases all.
    Plug(u64),
}

/// A task that waits and runs what its waiting releases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Runner(pub u64);

/// Names a request for ever: its slot is used again, with another generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ReqId {
    pub slot: u32,
    pub generation: u32,
}

impl ReqId {
    pub(super) fn io_id(self) -> IoId {
        IoId(self.slot)
    }

    pub(super) fn to_word(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    pub(super) fn from_word(word: u64) -> Self {
        Self {
            slot: word as u32,
            generation: (word >> 32) as u32,
        }
    }
}

/// Where a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Until its submitter waits.
    Held(HoldKey),
    /// Not yet in anybody's hands: on its way in, or a FLUSH behind the one that runs.
    Blocked,
    /// In the policy's hands.
    Queued,
    /// In the device's.
    Dispatched,
}

/// Who is told of the end.
pub(super) enum Completion {
    Handle(Arc<Io>),
    /// The same for a read that was begun before anybody asked.
    Ahead(Arc<Io>),
    /// The same for one that somebody joined and that failed: once more, by itself.
    Again(Arc<Io>),
    Call(Box<dyn FnOnce(Bio, Result<(), IoError>) + Send>),
}

/// A read that failed and that whoever joined it has not asked for himself.
pub(super) struct Repeat {
    pub io: Arc<Io>,
    pub offset: u64,
    pub len: u64,
    pub tag: IoTag,
}

impl Completion {
    pub(super) fn call(self, bio: Bio, result: Result<(), IoError>) -> Option<Repeat> {
        let (offset, len) = (bio.offset, bio.len);
        match self {
            Self::Handle(io) | Self::Ahead(io) | Self::Again(io) => {
                let tag = io.end(bio, result)?;
                Some(Repeat {
                    io,
                    offset,
                    len,
                    tag,
                })
            }
            Self::Call(done) => {
                done(bio, result);
                None
            }
        }
    }

    pub(super) fn io(&self) -> Option<&Arc<Io>> {
        match self {
            Self::Handle(io) | Self::Ahead(io) | Self::Again(io) => Some(io),
            Self::Call(_) => None,
        }
    }

    /// Whether the requests of both may become one. Nobody who asks is to meet the error of what nobody asked for.
    fn goes_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Again(_), _) | (_, Self::Again(_)) => false,
            (Self::Ahead(_), other) | (other, Self::Ahead(_)) => matches!(other, Self::Ahead(_)),
            _ => true,
        }
    }
}

/// A submitted bio inside a request.
pub(super) struct Part {
    pub to: Completion,
    pub offset: u64,
    pub len: u64,
    pub bufs: usize,
    pub submitted: Instant,
    /// Who submitted it.
    pub by: TaskNo,
}

impl Part {
    pub(super) fn of(bio: &Bio, to: Completion, submitted: Instant) -> Self {
        Self {
            to,
            offset: bio.offset,
            len: bio.len,
            bufs: bio.bufs.len(),
            submitted,
            by: inherit::current_task(),
        }
    }
}

/// A request.
pub(super) struct Request {
    /// Empty while the device has it.
    pub bio: Bio,
    pub first: Part,
    /// What was merged behind it, in order of offsets (flushes: of arrival).
    pub merged: Vec<Part>,
    pub tag: IoTag,
    pub phase: Phase,
    /// Which of the queue's policies it was given to last.
    pub epoch: u32,
    pub runner: Option<Runner>,
    pub dispatched: Instant,
    /// The number of its FLUSH, if it has one.
    pub flush: Option<u64>,
    /// Whose else it is: of a FLUSH, those who joined it; those for whom its submitter works.
    pub sharers: Vec<IoTag>,
}

impl Request {
    pub(super) fn parts(&self) -> impl Iterator<Item = &Part> {
        std::iter::once(&self.first).chain(&self.merged)
    }

    /// Whether the tag says that somebody waits, everybody has a handle to wait by, and one of them
    /// is still there.
    pub(super) fn will_be_waited_for(&self) -> bool {
        is_urgent(self.tag)
            && self.parts().all(|part| part.to.io().is_some())
            && self
                .parts()
                .any(|part| part.to.io().is_some_and(|io| io.has_handle()))
    }

    /// Whether `bio` may be appended to this one, which ends where it begins.
    pub(super) fn takes(
        &self,
        bio: &Bio,
        to: &Completion,
        tag: IoTag,
        hold: Option<HoldKey>,
        max_transfer: u64,
    ) -> bool {
        let waits = match self.phase {
            Phase::Held(key) => hold == Some(key),
            Phase::Queued => true,
            Phase::Blocked | Phase::Dispatched => false,
        };
        waits
            && self.tag == tag
            && self.first.to.goes_with(to)
            && self.bio.len + bio.len <= max_transfer
            && self.bio.bufs.len() + bio.bufs.len() <= MAX_BUFS
    }

    pub(super) fn append(&mut self, mut bio: Bio, part: Part) {
        debug_assert_eq!(self.bio.op, bio.op);
        debug_assert_eq!(self.bio.end(), bio.offset);
        self.bio.len += bio.len;
        self.bio.bufs.append(&mut bio.bufs);
        self.merged.push(part);
    }

    /// Whether part of it was begun before anybody asked.
    pub(super) fn is_ahead(&self) -> bool {
        matches!(self.first.to, Completion::Ahead(_))
    }

    /// Gives every part its bio and the result. What has to be read again comes back.
    pub(super) fn end(self, bio: Bio, result: Result<(), IoError>) -> Vec<Repeat> {
        if self.merged.is_empty() {
            return self.first.to.call(bio, result).into_iter().collect();
        }
        let mut again = Vec::new();
        let op = bio.op;
        let mut bufs = bio.bufs.into_iter();
        for part in std::iter::once(self.first).chain(self.merged) {
            let own = Bio {
                op,
                offset: part.offset,
                len: part.len,
                bufs: bufs.by_ref().take(part.bufs).collect(),
                preflush: false,
                fua: false,
            };
            let result = result.clone().map_err(|error| IoError {
                offset: part.offset,
                len: part.len,
                ..error
            });
            again.extend(part.to.call(own, result));
        }
        again
    }
}

/// Whether whoever submits with this tag is going to wait.
pub(super) fn is_urgent(tag: IoTag) -> bool {
    tag.urgency <= Urgency::Checkpoint
}

/// Whether neighbours of `bio` may be merged with it.
pub(super) fn is_mergeable(bio: &Bio) -> bool {
    bio.is_plain() && bio.len > 0
}

/// What a policy sees of an operation.
pub(super) fn direction(op: Op) -> Direction {
    match op {
        Op::Read => Direction::Read,
        Op::Write | Op::Discard | Op::WriteZeroes => Direction::Write,
        Op::Flush => Direction::Flush,
    }
}
