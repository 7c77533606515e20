//! Reading a volume as it will be after replay, without writing it.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::{BlockSize, DevBlock};
use steadfs_block::{Bio, Buf, Device, Done, Geometry, IoError, Op};
use steadfs_rt::{Mutex, Rank};

use crate::disk::MAGIC;

/// Where the newest copy of a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Redirect {
    /// The log's block.
    pub at: DevBlock,
    /// Its first word is the magic, which is zero in the log.
    pub escaped: bool,
}

/// The blocks whose newest content is still in the log, with their places there. It holds no
/// content: its size is a few bytes for each block in the log.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    blocks: BTreeMap<DevBlock, Redirect>,
}

impl Overlay {
    pub(crate) fn new(blocks: BTreeMap<DevBlock, Redirect>) -> Self {
        Self { blocks }
    }

    /// Whether every block is read from its home.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The blocks that are read from the log.
    pub fn blocks(&self) -> impl Iterator<Item = DevBlock> {
        self.blocks.keys().copied()
    }
}

/// A device behind an [`Overlay`]: every read, of data too, sees the replayed blocks. It refuses
/// writes; the device below must not change.
pub struct OverlayDevice {
    inner: Arc<dyn Device>,
    geometry: Geometry,
    block_size: BlockSize,
    overlay: Overlay,
}

impl OverlayDevice {
    /// `inner` with the blocks of `overlay` in their places.
    pub fn new(inner: Arc<dyn Device>, block_size: BlockSize, overlay: Overlay) -> Self {
        let geometry = Geometry {
            read_only: true,
            discard_granularity: None,
            ..inner.geometry().clone()
        };
        Self {
            inner,
            geometry,
            block_size,
            overlay,
        }
    }

    fn redirects(&self, bio: &Bio) -> Vec<(DevBlock, Redirect)> {
        if bio.len == 0 || bio.offset.checked_add(bio.len).is_none() {
            return Vec::new();
        }
        let first = DevBlock(bio.offset >> self.block_size.bits());
        let last = DevBlock((bio.end() - 1) >> self.block_size.bits());
        let inside = self.overlay.blocks.range(first..=last);
        inside.map(|(&home, &redirect)| (home, redirect)).collect()
    }
}

/// A read that is put together from several.
struct Parts {
    left: usize,
    /// The read of the homes.
    whole: Option<Bio>,
    /// Byte offset of a home, whether its copy is escaped, and the copy.
    copies: Vec<(u64, bool, Buf)>,
    result: Result<(), IoError>,
    done: Option<Done>,
}

impl Parts {
    /// Notes the end of one read; hands out the call to make when it was the last.
    fn end_one(&mut self, result: Result<(), IoError>) -> Option<(Done, Bio, Result<(), IoError>)> {
        self.result = std::mem::replace(&mut self.result, Ok(())).and(result);
        self.left -= 1;
        if self.left > 0 {
            return None;
        }
        let mut whole = self.whole.take().expect("the read of the homes has ended");
        for (home, escaped, copy) in self.copies.drain(..) {
            patch(&mut whole, home, escaped, copy);
        }
        let done = self.done.take().expect("a read ends once");
        Some((done, whole, self.result.clone()))
    }
}

/// Copies the part of a block that the read `bio` covers into its buffers.
fn patch(bio: &mut Bio, home: u64, escaped: bool, mut copy: Buf) {
    if escaped {
        copy.make_mut()[..4].copy_from_slice(&MAGIC.to_be_bytes());
    }
    let mut at = bio.offset;
    for buf in &mut bio.bufs {
        let end = at + buf.len() as u64;
        let from = at.max(home);
        let to = end.min(home + copy.len() as u64);
        if from < to {
            let source = &copy[(from - home) as usize..(to - home) as usize];
            buf.make_mut()[(from - at) as usize..(to - at) as usize].copy_from_slice(source);
        }
        at = end;
    }
}

impl Device for OverlayDevice {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn start(&self, bio: Bio, done: Done) {
        if bio.op != Op::Read {
            let error = IoError {
                op: bio.op,
                offset: bio.offset,
                len: bio.len,
                cause: "the volume is replayed in memory only".to_owned(),
            };
            let result = if bio.op == Op::Flush {
                Ok(())
            } else {
                Err(error)
            };
            done(bio, result);
            return;
        }
        let redirects = self.redirects(&bio);
        if redirects.is_empty() {
            self.inner.start(bio, done);
            return;
        }
        let parts = Parts {
            left: redirects.len() + 1,
            whole: None,
            copies: Vec::with_capacity(redirects.len()),
            result: Ok(()),
            done: Some(done),
        };
        let parts = Arc::new(Mutex::new(Rank::Leaf, parts));
        let of_whole = Arc::clone(&parts);
        let whole_done = move |bio, result| {
            let mut parts = of_whole.lock();
            parts.whole = Some(bio);
            let last = parts.end_one(result);
            drop(parts);
            if let Some((done, bio, result)) = last {
                done(bio, result);
            }
        };
        self.inner.start(bio, Box::new(whole_done));
        for (home, redirect) in redirects {
            let parts = Arc::clone(&parts);
            let home = self.block_size.offset_of(home);
            let copy_done = move |mut bio: Bio, result: Result<(), IoError>| {
                let mut parts = parts.lock();
                if result.is_ok() {
                    let copy = bio.bufs.pop().expect("a read has one buffer");
                    parts.copies.push((home, redirect.escaped, copy));
                }
                let last = parts.end_one(result);
                drop(parts);
                if let Some((done, bio, result)) = last {
                    done(bio, result);
                }
            };
            let from = self.block_size.offset_of(redirect.at);
            let read = Bio::read(from, self.block_size.bytes());
            self.inner.start(read, Box::new(copy_done));
        }
    }

    fn help(&self, until: &dyn Fn() -> bool) {
        self.inner.help(until);
    }
}
