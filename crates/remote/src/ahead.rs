//! Entries that arrive before they are looked up.
//!
//! **Problem.** A copy out of a volume looks up and opens each file, and each call is a round trip between two processes.
//! **Rule.** The caller announces the next entries of a directory ([`FileSystem::expect`](steadfs_vfs::FileSystem)). The
//! client asks for them at once and goes on; the reply has their attributes and previews, and answers the calls that
//! follow. What waits here is bounded, and a call that changes anything drops it.

use std::collections::VecDeque;
use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_vfs::{Attr, Cx, FileSystem, Result};

use crate::codec::{Decoder, Encoder, Malformed};
use crate::preview::{self, Preview};

/// Most names in a request.
pub const NAMES_MAX: usize = 64;
/// Replies whose entries are kept.
const REPLIES_MAX: usize = 12;
/// A reply has no previews of further files after this number of bytes.
const CONTENT_BYTES: usize = 512 << 10;

/// An entry as it arrived.
struct Found {
    name: Vec<u8>,
    attr: Result<Attr>,
    preview: Option<Preview>,
}

/// The entries of one reply that were not looked up yet.
struct Arrived {
    dir: InodeNo,
    entries: Vec<Found>,
}

/// Lookups that are not counted by the caller, by inode.
pub type Forgets = Vec<(InodeNo, u64)>;

/// The requests on their way, and what arrived.
#[derive(Default)]
pub struct Ahead {
    /// Directories and names, the oldest request first.
    sent: VecDeque<(InodeNo, Vec<Vec<u8>>)>,
    arrived: VecDeque<Arrived>,
}

impl Ahead {
    /// Remembers a request.
    pub fn sends(&mut self, dir: InodeNo, names: Vec<Vec<u8>>) {
        self.sent.push_back((dir, names));
    }

    /// Requests on their way.
    pub fn on_way(&self) -> usize {
        self.sent.len()
    }

    /// Whether a request for this entry is on its way.
    pub fn is_on_way(&self, dir: InodeNo, name: &[u8]) -> bool {
        let mut requests = self.sent.iter().filter(|request| request.0 == dir);
        requests.any(|(_, names)| names.iter().any(|asked| asked == name))
    }

    /// Takes the reply to the oldest request. Returns what is forgotten for it.
    pub fn receive(&mut self, frame: &Arc<Vec<u8>>) -> std::result::Result<Forgets, Malformed> {
        let (dir, names) = self.sent.pop_front().ok_or(Malformed)?;
        let mut from = Decoder::new(frame);
        let mut entries = Vec::with_capacity(names.len());
        for name in names {
            let attr = match from.flag()? {
                true => Ok(from.attr()?),
                false => Err(from.error()?),
            };
            let preview = match &attr {
                Ok(attr) => from.option(|from| Preview::decode(attr.ino, from, frame))?,
                Err(_) => None,
            };
            entries.push(Found {
                name,
                attr,
                preview,
            });
        }
        from.end()?;
        // The copy takes them from the end.
        entries.reverse();
        self.arrived.push_back(Arrived { dir, entries });
        let old = match self.arrived.len() > REPLIES_MAX {
            true => self.arrived.pop_front(),
            false => None,
        };
        Ok(old.map(forgets_of).unwrap_or_default())
    }

    /// The result of looking up an entry that arrived, and its preview.
    pub fn take(&mut self, dir: InodeNo, name: &[u8]) -> Option<(Result<Attr>, Option<Preview>)> {
        let replies = self.arrived.iter_mut().filter(|reply| reply.dir == dir);
        for reply in replies {
            let place = reply.entries.iter().rposition(|entry| entry.name == name);
            if let Some(place) = place {
                let found = reply.entries.remove(place);
                self.arrived.retain(|reply| !reply.entries.is_empty());
                return Some((found.attr, found.preview));
            }
        }
        None
    }

    /// Drops all that arrived. Returns what is forgotten.
    pub fn clear(&mut self) -> Forgets {
        self.arrived.drain(..).flat_map(forgets_of).collect()
    }
}

fn forgets_of(reply: Arrived) -> Forgets {
    let found = reply.entries.into_iter();
    found
        .filter_map(|entry| Some((entry.attr.ok()?.ino, 1)))
        .collect()
}

/// In the server: looks up entries, and reads the content of small files.
pub fn answer(
    fs: &dyn FileSystem,
    cx: &Cx,
    from: &mut Decoder<'_>,
    to: &mut Encoder,
) -> std::result::Result<(), Malformed> {
    let dir = from.ino()?;
    let names = from.list(Decoder::bytes)?;
    for name in names {
        match fs.lookup(cx, dir, name) {
            Ok(attr) => {
                to.flag(true);
                to.attr(&attr);
                let wanted = to.0.len() < CONTENT_BYTES;
                // A file that cannot be opened or read is met again by the calls that the client makes itself.
                let preview = wanted.then(|| preview::of_found(fs, cx, &attr).ok().flatten());
                to.option(preview.flatten(), |to, preview| preview.encode(to));
            }
            Err(error) => {
                to.flag(false);
                to.error(&error);
            }
        }
    }
    Ok(())
}
