//! The connection to the server, and the calls that are on their way.

use std::io::{BufReader, Read, Write};
use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_vfs::FsError;

use crate::ahead::{Ahead, Forgets};
use crate::codec::{Decoder, Encoder, Malformed};
use crate::later::{Later, Reply};
use crate::preview::Preview;
use crate::{Call, frame};

pub const ENDED: &str = "the process that reads the volume ended";
pub const INVALID: &str = "the process that reads the volume sent an invalid reply";

/// A connection, and what waits on it.
pub struct Connection<S> {
    /// Buffered, since several replies can arrive at once.
    stream: BufReader<S>,
    /// Why the connection is not used any more.
    pub broken: Option<String>,
    /// Calls without a reply, sent with the next call.
    pub forgets: Vec<(InodeNo, u64)>,
    /// Calls whose replies are received later.
    pub later: Later,
    /// Entries that were asked for before they are looked up.
    pub ahead: Ahead,
    /// What is known of the file that was opened or looked up last, if nothing has changed since.
    pub preview: Option<Preview>,
    /// Replies whose memory can be used again when they are not used any more.
    shared: Vec<Arc<Vec<u8>>>,
}

/// Most replies in [`Connection::shared`].
const SHARED_MAX: usize = 12;

impl<S: Read + Write> Connection<S> {
    /// A connection that nothing was sent on.
    pub fn new(stream: S) -> Self {
        Self {
            stream: BufReader::new(stream),
            broken: None,
            forgets: Vec::new(),
            later: Later::default(),
            ahead: Ahead::default(),
            preview: None,
            shared: Vec::new(),
        }
    }

    /// Makes a call. A failure ends the connection.
    pub fn ask(&mut self, call: Call, arguments: Encoder) -> std::result::Result<Vec<u8>, String> {
        self.if_whole(|connection| connection.exchange(call, &arguments))
    }

    /// Uses the connection unless it is broken. An error breaks it.
    pub fn if_whole<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> std::result::Result<T, String>,
    ) -> std::result::Result<T, String> {
        if let Some(why) = &self.broken {
            return Err(why.clone());
        }
        work(self).inspect_err(|why| self.breaks(why))
    }

    /// Ends the connection.
    pub fn breaks(&mut self, why: &str) {
        self.broken = Some(why.to_owned());
        self.later.end(why);
    }

    fn exchange(
        &mut self,
        call: Call,
        arguments: &Encoder,
    ) -> std::result::Result<Vec<u8>, String> {
        if call.changes() {
            self.forget_content()?;
        }
        let mut frames = self.later.take_frames();
        self.push_forgets(&mut frames)?;
        push(&mut frames, call, |to| to.0.extend(&arguments.0))?;
        self.send(frames)?;
        let before = self.later.take_all_due();
        self.receive_later(before)?;
        self.receive_ahead(self.ahead.on_way())?;
        self.receive()
    }

    /// Makes a call whose reply is received later.
    pub fn begin(
        &mut self,
        call: Call,
        arguments: impl FnOnce(&mut Encoder),
    ) -> std::result::Result<(), String> {
        self.forget_content()?;
        push(self.later.add(), call, arguments)?;
        if self.later.is_full() {
            let due = self.later.due();
            self.receive_later(due)?;
            let mut frames = self.later.take_frames();
            self.push_forgets(&mut frames)?;
            self.send(frames)?;
        }
        Ok(())
    }

    /// Receives the replies of all calls that were begun.
    pub fn settle(&mut self) -> std::result::Result<(), String> {
        let frames = self.later.take_frames();
        self.send(frames)?;
        let due = self.later.take_all_due();
        self.receive_later(due)
    }

    /// Asks for entries that will be looked up.
    pub fn expect(&mut self, dir: InodeNo, names: Vec<Vec<u8>>) -> std::result::Result<(), String> {
        // Replies to calls of both kinds are never on their way at once.
        self.settle()?;
        let mut frames = self.later.take_frames();
        self.push_forgets(&mut frames)?;
        push(&mut frames, Call::Expect, |to| {
            to.ino(dir);
            to.list(&names, |to, name| to.bytes(name));
        })?;
        self.send(frames)?;
        self.ahead.sends(dir, names);
        Ok(())
    }

    /// Receives the reply that has this entry, if it is on its way.
    pub fn wait_for(&mut self, dir: InodeNo, name: &[u8]) -> std::result::Result<(), String> {
        while self.ahead.is_on_way(dir, name) {
            self.receive_ahead(1)?;
        }
        Ok(())
    }

    fn receive_ahead(&mut self, count: usize) -> std::result::Result<(), String> {
        for _ in 0..count {
            let reply = self.receive_shared()?;
            let forgets = self.ahead.receive(&reply);
            self.forgets
                .extend(forgets.map_err(|Malformed| INVALID.to_owned())?);
        }
        Ok(())
    }

    /// Drops what arrived of files, before one of them changes.
    fn forget_content(&mut self) -> std::result::Result<(), String> {
        self.preview = None;
        self.receive_ahead(self.ahead.on_way())?;
        let forgets: Forgets = self.ahead.clear();
        self.forgets.extend(forgets);
        Ok(())
    }

    fn push_forgets(&mut self, frames: &mut Vec<u8>) -> std::result::Result<(), String> {
        for (ino, count) in self.forgets.drain(..) {
            push(frames, Call::Forget, |to| {
                to.ino(ino);
                to.long(count);
            })?;
        }
        Ok(())
    }

    /// Sends frames, and keeps their memory for the next ones.
    fn send(&mut self, mut frames: Vec<u8>) -> std::result::Result<(), String> {
        self.stream.get_mut().write_all(&frames).map_err(gone)?;
        frames.clear();
        self.later.reuse(frames);
        Ok(())
    }

    /// Receives a reply into the memory of one that is not used any more.
    fn receive_shared(&mut self) -> std::result::Result<Arc<Vec<u8>>, String> {
        let unused = self
            .shared
            .iter_mut()
            .position(|reply| Arc::get_mut(reply).is_some());
        let mut content = match unused {
            Some(place) => Arc::unwrap_or_clone(self.shared.swap_remove(place)),
            None => Vec::new(),
        };
        let received = frame::receive_into(&mut self.stream, &mut content).map_err(gone)?;
        let reply = Arc::new(content);
        if self.shared.len() < SHARED_MAX {
            self.shared.push(Arc::clone(&reply));
        }
        received.then_some(reply).ok_or_else(|| ENDED.to_owned())
    }

    fn receive(&mut self) -> std::result::Result<Vec<u8>, String> {
        let reply = frame::receive(&mut self.stream).map_err(gone)?;
        reply.ok_or_else(|| ENDED.to_owned())
    }

    fn receive_later(&mut self, count: usize) -> std::result::Result<(), String> {
        for got in 0..count {
            let reply = self.receive();
            let reply = reply.and_then(|reply| not_given(&reply).map_err(|_| INVALID.to_owned()));
            match reply {
                Ok(reply) => self.later.came(reply),
                Err(why) => {
                    let lost = (got..count).map(|_| Err(FsError::Stopped(why.clone())));
                    lost.for_each(|lost| self.later.came(lost));
                    return Err(why);
                }
            }
        }
        Ok(())
    }
}

fn gone(error: std::io::Error) -> String {
    format!("{ENDED} ({error})")
}

fn push(
    frames: &mut Vec<u8>,
    call: Call,
    arguments: impl FnOnce(&mut Encoder),
) -> std::result::Result<(), String> {
    let pushed = frame::push(frames, |to| {
        to.byte(call as u8);
        arguments(to);
    });
    pushed.map_err(gone)
}

/// The reply to `make` or `give`.
fn not_given(reply: &[u8]) -> std::result::Result<Reply, Malformed> {
    let mut decoder = Decoder::new(reply);
    let reply = match decoder.flag()? {
        true => Ok(decoder.list(Decoder::not_given)?),
        false => Err(decoder.error()?),
    };
    decoder.end()?;
    Ok(reply)
}
