//! Reading a volume as it will be after replay, without writing it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use steadfs_base::{BlockSize, DevBlock};
use steadfs_block::{Bio, Buf, Device, Done, Geometry, IoError, Op};
use steadfs_rt::{Mutex, Rank, sleep};

use steadfs_jbd2_format::MAGIC;

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
/// writes; the device below must not change, until the overlay is [disabled](OverlayDevice::disable_overlay).
pub struct OverlayDevice {
    inner: Arc<dyn Device>,
    geometry: Geometry,
    block_size: BlockSize,
    overlay: Overlay,
    disabled: AtomicBool,
    /// Reads that may go to the log and have not ended.
    redirected: Arc<AtomicU64>,
}

impl OverlayDevice {
    /// `inner` with the blocks of `overlay` in their places.
    pub fn new(inner: Arc<dyn Device>, block_size: BlockSize, overlay: Overlay) -> Self {
        let geometry = Geometry {
            read_only: true,
            discard_granularity: None,
            discard_zeroes: false,
            ..inner.geometry().clone()
        };
        Self {
            inner,
            geometry,
            block_size,
            overlay,
            disabled: AtomicBool::new(false),
            redirected: Arc::default(),
        }
    }

    /// The device below.
    pub fn inner(&self) -> &Arc<dyn Device> {
        &self.inner
    }

    /// Every block has been written home: from now on requests, writes too, go to the device below.
    /// Returns when no read from the log is under way, so that the log may be written.
    pub fn disable_overlay(&self) {
        self.disabled.store(true, Ordering::SeqCst);
        while self.redirected.load(Ordering::SeqCst) > 0 {
            sleep(Duration::from_millis(1));
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

    /// The reads that serve `bio`: its own, and one for each block in the log. What is no read is
    /// answered here.
    fn expand(&self, bio: Bio, done: Done) -> Vec<(Bio, Done)> {
        // Counted before looking: whoever lifts the overlay waits for it or it sees it disabled.
        self.redirected.fetch_add(1, Ordering::SeqCst);
        if self.disabled.load(Ordering::SeqCst) {
            self.redirected.fetch_sub(1, Ordering::SeqCst);
            return vec![(bio, done)];
        }
        let redirected = Arc::clone(&self.redirected);
        let done: Done = Box::new(move |bio, result| {
            redirected.fetch_sub(1, Ordering::SeqCst);
            done(bio, result);
        });
        if bio.op != Op::Read {
            let result = match bio.op {
                Op::Flush => Ok(()),
                _ => Err(IoError::of(&bio, "the volume is replayed in memory only")),
            };
            done(bio, result);
            return Vec::new();
        }
        let redirects = self.redirects(&bio);
        if redirects.is_empty() {
            return vec![(bio, done)];
        }
        let parts = Arc::new(Mutex::new(
            Rank::Leaf,
            SplitRead {
                left: redirects.len() + 1,
                whole: None,
                copies: Vec::with_capacity(redirects.len()),
                result: Ok(()),
                done: Some(done),
            },
        ));
        let of_whole = Arc::clone(&parts);
        let whole_done: Done = Box::new(move |bio, result| {
            end_part(&of_whole, result, |parts| parts.whole = Some(bio));
        });
        let mut reads = vec![(bio, whole_done)];
        for (home, redirect) in redirects {
            let parts = Arc::clone(&parts);
            let home = self.block_size.offset_of(home);
            let copy_done: Done = Box::new(move |mut bio, result| {
                let copy = bio.bufs.pop().expect("a read has one buffer");
                let escaped = redirect.escaped;
                end_part(&parts, result, |parts| {
                    parts.copies.push((home, escaped, copy))
                });
            });
            let from = self.block_size.offset_of(redirect.at);
            reads.push((Bio::read(from, self.block_size.bytes()), copy_done));
        }
        reads
    }
}

/// A read that is put together from several.
struct SplitRead {
    left: usize,
    /// The read of the homes.
    whole: Option<Bio>,
    /// Byte offset of a home, whether its copy is escaped, and the copy.
    copies: Vec<(u64, bool, Buf)>,
    result: Result<(), IoError>,
    done: Option<Done>,
}

/// Notes the end of one read; the last one puts the parts together and tells who asked.
fn end_part(
    parts: &Mutex<SplitRead>,
    result: Result<(), IoError>,
    record: impl FnOnce(&mut SplitRead),
) {
    let (done, mut whole, copies, result) = {
        let mut parts = parts.lock();
        record(&mut parts);
        parts.left -= 1;
        parts.result = std::mem::replace(&mut parts.result, Ok(())).and(result);
        if parts.left > 0 {
            return;
        }
        (
            parts.done.take().expect("a read ends once"),
            parts.whole.take().expect("the read of the homes has ended"),
            std::mem::take(&mut parts.copies),
            parts.result.clone(),
        )
    };
    for (home, escaped, copy) in copies {
        patch(&mut whole, home, escaped, copy);
    }
    done(whole, result);
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
        if self.disabled.load(Ordering::Acquire) {
            self.inner.geometry()
        } else {
            &self.geometry
        }
    }

    fn make_writable(&self) -> Result<(), String> {
        if self.disabled.load(Ordering::Acquire) {
            self.inner.make_writable()
        } else {
            Err("the volume is replayed in memory only".to_owned())
        }
    }

    fn start(&self, bio: Bio, done: Done) {
        for (bio, done) in self.expand(bio, done) {
            self.inner.start(bio, done);
        }
    }

    fn run(&self, batch: Vec<(Bio, Done)>) {
        let reads = batch
            .into_iter()
            .flat_map(|(bio, done)| self.expand(bio, done));
        self.inner.run(reads.collect());
    }

    fn background_depth(&self) -> usize {
        self.inner.background_depth()
    }

    fn help(&self, until: &dyn Fn() -> bool) {
        self.inner.help(until);
    }
}
