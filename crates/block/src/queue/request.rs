//! A request: one bio for the device, merged from one or more submitted ones.

use std::sync::Arc;

use steadfs_base::{IoTag, Urgency};
use steadfs_iosched::{Direction, IoId};
use steadfs_rt::Instant;
use steadfs_rt::inherit::{self, TaskNo};

use super::handle::IoCompletion;
use crate::{Bio, IoError, Op};

/// Most buffers in one request (Linux `UIO_MAXIOV`).
const MAX_BUFS: usize = 1024;

/// The task or plug that releases a held request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HoldKey {
    /// The task that submitted it.
    Task(u64),
    /// A plug: waiting for one of its requests releases all.
    Plug(u64),
}

/// A task that waits, and runs the requests that it released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Runner(pub u64);

/// A unique number of a request: a slot that is reused gets another generation.
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

/// State of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Held until its submitter waits.
    Held(HoldKey),
    /// Not in the scheduler: being submitted, or behind a FLUSH that runs.
    Blocked,
    /// In the scheduler.
    Queued,
    /// In the device.
    Dispatched,
}

/// How a bio's end is reported.
pub(super) enum Completion {
    Handle(Arc<IoCompletion>),
    /// To a handle, for a read-ahead.
    ReadAhead(Arc<IoCompletion>),
    /// To a handle, for the retry of a failed read-ahead that a read had joined: it is not merged.
    Retry(Arc<IoCompletion>),
    Call(Box<dyn FnOnce(Bio, Result<(), IoError>) + Send>),
}

/// A failed read-ahead that a read has joined, and that is therefore retried.
pub(super) struct RetryRead {
    pub io: Arc<IoCompletion>,
    pub offset: u64,
    pub len: u64,
    pub tag: IoTag,
}

impl Completion {
    pub(super) fn call(self, bio: Bio, result: Result<(), IoError>) -> Option<RetryRead> {
        let (offset, len) = (bio.offset, bio.len);
        match self {
            Self::Handle(io) | Self::ReadAhead(io) | Self::Retry(io) => {
                let tag = io.end(bio, result)?;
                Some(RetryRead {
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

    pub(super) fn io(&self) -> Option<&Arc<IoCompletion>> {
        match self {
            Self::Handle(io) | Self::ReadAhead(io) | Self::Retry(io) => Some(io),
            Self::Call(_) => None,
        }
    }

    /// Whether the requests of both may be merged: a read must not fail because of an error in a read-ahead.
    fn merges_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Retry(_), _) | (_, Self::Retry(_)) => false,
            (Self::ReadAhead(_), other) | (other, Self::ReadAhead(_)) => {
                matches!(other, Self::ReadAhead(_))
            }
            _ => true,
        }
    }
}

/// A submitted bio inside a request.
pub(super) struct RequestPart {
    pub completion: Completion,
    pub offset: u64,
    pub len: u64,
    pub bufs: usize,
    pub submitted: Instant,
    /// The tag with which it was submitted, before boosts.
    pub charged: IoTag,
    /// The task that submitted it.
    pub submitter: TaskNo,
}

impl RequestPart {
    pub(super) fn of(bio: &Bio, charged: IoTag, to: Completion, submitted: Instant) -> Self {
        Self {
            completion: to,
            offset: bio.offset,
            len: bio.len,
            bufs: bio.bufs.len(),
            submitted,
            charged,
            submitter: inherit::current_task(),
        }
    }
}

/// One bio for the device, with the submitted bios that it serves.
pub(super) struct Request {
    /// Empty while the device has it.
    pub bio: Bio,
    pub first: RequestPart,
    /// Bios merged after it, by offset (FLUSHes: by arrival).
    pub merged: Vec<RequestPart>,
    pub tag: IoTag,
    pub phase: Phase,
    /// The number of the scheduler that it was inserted into last.
    pub epoch: u32,
    pub runner: Option<Runner>,
    pub dispatched: Instant,
    /// The number of its FLUSH, if it has one.
    pub flush: Option<u64>,
    /// Tags of other owners: of FLUSHes that joined it, or of tasks that share its work.
    pub sharers: Vec<IoTag>,
}

impl Request {
    pub(super) fn parts(&self) -> impl Iterator<Item = &RequestPart> {
        std::iter::once(&self.first).chain(&self.merged)
    }

    /// Whether the tag is urgent, all parts have handles, and at least one handle still exists.
    pub(super) fn will_be_waited_for(&self) -> bool {
        is_urgent(self.tag)
            && self.parts().all(|part| part.completion.io().is_some())
            && self
                .parts()
                .any(|part| part.completion.io().is_some_and(|io| io.has_handle()))
    }

    /// Whether `bio`, which begins at this request's end, may be merged into it.
    pub(super) fn can_append(
        &self,
        bio: &Bio,
        part: &RequestPart,
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
            && self.first.charged.group == part.charged.group
            && self.first.completion.merges_with(&part.completion)
            && self.bio.len + bio.len <= max_transfer
            && self.bio.bufs.len() + bio.bufs.len() <= MAX_BUFS
    }

    pub(super) fn append(&mut self, mut bio: Bio, part: RequestPart) {
        debug_assert_eq!(self.bio.op, bio.op);
        debug_assert_eq!(self.bio.end(), bio.offset);
        self.bio.len += bio.len;
        self.bio.bufs.append(&mut bio.bufs);
        self.merged.push(part);
    }

    /// Whether it is a read-ahead.
    pub(super) fn is_read_ahead(&self) -> bool {
        matches!(self.first.completion, Completion::ReadAhead(_))
    }

    /// Ends every part with its bio and the result. Returns the reads to retry.
    pub(super) fn end(self, bio: Bio, result: Result<(), IoError>) -> Vec<RetryRead> {
        if self.merged.is_empty() {
            return self
                .first
                .completion
                .call(bio, result)
                .into_iter()
                .collect();
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
            again.extend(part.completion.call(own, result));
        }
        again
    }
}

/// Whether the submitter of a request with this tag is going to wait.
pub(super) fn is_urgent(tag: IoTag) -> bool {
    tag.urgency <= Urgency::Checkpoint
}

/// Whether contiguous bios may be merged with `bio`.
pub(super) fn is_mergeable(bio: &Bio) -> bool {
    bio.is_plain() && bio.len > 0
}

/// The operation as the scheduler sees it.
pub(super) fn direction(op: Op) -> Direction {
    match op {
        Op::Read => Direction::Read,
        Op::Write => Direction::Write,
        Op::Discard | Op::WriteZeroes => Direction::Range,
        Op::Flush => Direction::Flush,
    }
}
