//! Calls whose replies the client does not wait for.
//!
//! **Problem.** A round trip wakes two processes, which takes longer than making a small file. **Rule.** These calls are
//! sent in batches, and the replies of the oldest one are received when [`BATCHES`] are on their way and another is to be
//! sent: meanwhile both processes work. The client's stream receives while it cannot send: a reply has an error for each
//! extended attribute that was refused, and the server sends it before it receives the next call.

use std::collections::VecDeque;

use steadfs_vfs::{FsError, Given, NotGiven, Result};

use crate::frame;

/// Most bytes of content, and of extended attributes, in one call; more are sent by single calls.
pub const FITS: usize = frame::LEN_MAX / 4;

/// Bytes that an extended attribute takes in the call, and its error in the reply, besides its name and value.
const XATTR_BYTES: usize = 256;

/// Whether attributes fit in one call, and the errors of all of them in its reply.
pub fn fits(given: &Given) -> bool {
    let xattrs = given.xattrs.iter();
    xattrs
        .map(|(name, value)| name.len() + value.len() + XATTR_BYTES)
        .sum::<usize>()
        <= FITS
}

/// Most calls of a batch.
const CALLS_MAX: usize = 64;
/// A batch is sent when it has this number of bytes.
const BYTES: usize = 64 << 10;
/// Batches that are on their way at once.
const BATCHES: usize = 3;

/// The reply to such a call.
pub type Reply = Result<Vec<NotGiven>>;

/// The calls that are collected or on their way.
#[derive(Default)]
pub struct Later {
    /// Calls of each batch that was sent and is not answered, the oldest first.
    sent: VecDeque<usize>,
    /// Frames of the calls that are not sent yet.
    frames: Vec<u8>,
    /// Calls in `frames`.
    collected: usize,
    /// Replies that were not fetched.
    replies: Vec<Reply>,
}

impl Later {
    /// Where the frame of the next call goes.
    pub fn add(&mut self) -> &mut Vec<u8> {
        self.collected += 1;
        &mut self.frames
    }

    /// Whether the collected calls are to be sent.
    pub fn is_full(&self) -> bool {
        self.collected >= CALLS_MAX || self.frames.len() >= BYTES
    }

    /// The number of replies to receive before the next batch is sent.
    pub fn due(&mut self) -> usize {
        match self.sent.len() >= BATCHES {
            true => self.sent.pop_front().unwrap_or(0),
            false => 0,
        }
    }

    /// The frames to send.
    pub fn take_frames(&mut self) -> Vec<u8> {
        if self.collected > 0 {
            self.sent.push_back(std::mem::take(&mut self.collected));
        }
        std::mem::take(&mut self.frames)
    }

    /// Gives back the memory of frames that were sent.
    pub fn reuse(&mut self, empty: Vec<u8>) {
        if self.frames.capacity() == 0 {
            self.frames = empty;
        }
    }

    /// The number of replies to receive before any other.
    pub fn take_all_due(&mut self) -> usize {
        self.sent.drain(..).sum()
    }

    /// Keeps a reply until it is fetched.
    pub fn came(&mut self, reply: Reply) {
        self.replies.push(reply);
    }

    /// The replies that came.
    pub fn take_replies(&mut self) -> Vec<Reply> {
        std::mem::take(&mut self.replies)
    }

    /// Ends all calls without a reply, because the connection broke.
    pub fn end(&mut self, why: &str) {
        let lost = self.take_all_due() + std::mem::take(&mut self.collected);
        self.frames.clear();
        for _ in 0..lost {
            self.came(Err(FsError::Stopped(why.to_owned())));
        }
    }
}
