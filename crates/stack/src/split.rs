//! A request that several requests of other devices serve.

use std::sync::Arc;

use steadfs_block::{Bio, Buf, Done, IoError};
use steadfs_rt::{Mutex, Rank};

/// A request that ends when all of its parts have ended, with the first error that one of them had.
#[derive(Clone)]
pub(crate) struct Split(Arc<Mutex<State>>);

struct State {
    /// Parts that have not ended, and the maker's own hold.
    left: usize,
    result: Result<(), IoError>,
    whole: Option<(Bio, Done)>,
}

impl Split {
    /// The request ends after [`Split::finish`] and the last part.
    pub(crate) fn new(bio: Bio, done: Done) -> Self {
        Self(Arc::new(Mutex::new(
            Rank::Leaf,
            State {
                left: 1,
                result: Ok(()),
                whole: Some((bio, done)),
            },
        )))
    }

    /// Fills a range of the buffers of a read: `len` bytes at byte `at` of it.
    pub(crate) fn fill(&self, at: u64, len: u64, write: impl FnMut(&mut [u8], u64)) {
        let mut state = self.0.lock();
        if let Some((bio, _)) = &mut state.whole {
            fill(&mut bio.bufs, at, len, write);
        }
    }

    /// A part that reads `len` bytes at byte `from` of another device, of which the bytes from `skip` on, `wanted` of them,
    /// are for byte `at` of the request.
    pub(crate) fn read(&self, from: u64, len: u64, skip: u64, wanted: u64, at: u64) -> (Bio, Done) {
        let split = self.clone();
        split.0.lock().left += 1;
        let done: Done = Box::new(move |part: Bio, result: Result<(), IoError>| {
            if let (Ok(()), [buf]) = (&result, &part.bufs[..]) {
                let bytes = &buf[skip as usize..(skip + wanted) as usize];
                split.fill(at, wanted, |to, from| {
                    let from = from as usize;
                    to.copy_from_slice(&bytes[from..from + to.len()]);
                });
            }
            split.end(result);
        });
        (Bio::read(from, len as usize), done)
    }

    /// A part that is done elsewhere.
    pub(crate) fn part(&self) -> Done {
        let split = self.clone();
        split.0.lock().left += 1;
        Box::new(move |_, result| split.end(result))
    }

    /// Ends the maker's hold.
    pub(crate) fn finish(self, result: Result<(), IoError>) {
        self.end(result);
    }

    fn end(&self, result: Result<(), IoError>) {
        let ended = {
            let mut state = self.0.lock();
            state.left -= 1;
            let before = std::mem::replace(&mut state.result, Ok(()));
            state.result = before.and(result);
            match state.left {
                0 => state
                    .whole
                    .take()
                    .map(|whole| (whole, state.result.clone())),
                _ => None,
            }
        };
        if let Some(((bio, done), result)) = ended {
            done(bio, result);
        }
    }
}

/// Calls `write` for each piece of memory of a range of `bufs`, with the piece's distance from the range's start.
fn fill(bufs: &mut [Buf], at: u64, len: u64, mut write: impl FnMut(&mut [u8], u64)) {
    let end = at + len;
    let mut begin = 0;
    for buf in bufs {
        let stop = begin + buf.len() as u64;
        let (from, to) = (at.max(begin), end.min(stop));
        if from < to {
            let bytes = buf.make_mut();
            write(
                &mut bytes[(from - begin) as usize..(to - begin) as usize],
                from - at,
            );
        }
        begin = stop;
    }
}
