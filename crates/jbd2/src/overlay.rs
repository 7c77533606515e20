//! Reads of a volume with the content that replay would give it, without writing it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use steadfs_base::{BlockSize, DevBlock};
use steadfs_block::{Bio, Buf, Device, Done, Geometry, IoError, Op};
use steadfs_rt::{Mutex, Rank, sleep};

use steadfs_jbd2_format::MAGIC;

/// Why writes are refused.
const REFUSED: &str = "the log is replayed in memory only, so the volume is read-only";

/// The newest copy of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Redirect {
    /// Its block in the log.
    pub at: DevBlock,
    /// Its first word is the magic, which is stored as zero in the log.
    pub escaped: bool,
}

/// The blocks whose newest content is in the log, with their locations there: a few bytes per block. Only blocks that
/// fast commits change are held with their content.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    blocks: BTreeMap<DevBlock, Redirect>,
    /// Content that is nowhere on the device, newer than `blocks`.
    in_memory: BTreeMap<DevBlock, Buf>,
}

impl Overlay {
    pub(crate) fn new(blocks: BTreeMap<DevBlock, Redirect>) -> Self {
        Self {
            blocks,
            in_memory: BTreeMap::new(),
        }
    }

    /// The same with `changed` in place of older content.
    #[must_use]
    pub fn with_changed(mut self, changed: BTreeMap<DevBlock, Buf>) -> Self {
        self.blocks.retain(|home, _| !changed.contains_key(home));
        self.in_memory.extend(changed);
        self
    }

    /// Whether every block is read from its home location.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.in_memory.is_empty()
    }

    /// The blocks that are read from the log.
    pub fn blocks(&self) -> impl Iterator<Item = DevBlock> {
        self.blocks.keys().copied()
    }

    /// The blocks whose content is held in memory.
    pub fn in_memory(&self) -> &BTreeMap<DevBlock, Buf> {
        &self.in_memory
    }
}

/// A device with an [`Overlay`]: every read, also of file data, returns the replayed blocks. It refuses
/// writes. The device below must not change until the overlay is
/// [disabled](OverlayDevice::disable_overlay).
pub struct OverlayDevice {
    inner: Arc<dyn Device>,
    geometry: Geometry,
    block_size: BlockSize,
    overlay: Overlay,
    disabled: AtomicBool,
    /// No read goes to the log any more.
    log_left: AtomicBool,
    /// Reads of the log that have not ended.
    in_log: Arc<AtomicU64>,
    /// Reads through the overlay that have not ended.
    redirected: Arc<AtomicU64>,
}

impl OverlayDevice {
    /// `inner` with the blocks of `overlay` at their home locations.
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
            log_left: AtomicBool::new(false),
            in_log: Arc::default(),
            redirected: Arc::default(),
        }
    }

    /// The device below.
    pub fn inner(&self) -> &Arc<dyn Device> {
        &self.inner
    }

    /// What it lays over the device.
    pub fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// Every block of the log has been written to its home location: from now on only the copies in memory are laid over
    /// the device. Returns when no read from the log is in flight, so that the log may be written.
    pub fn leave_log(&self) {
        self.log_left.store(true, Ordering::SeqCst);
        while self.in_log.load(Ordering::SeqCst) > 0 {
            sleep(Duration::from_millis(1));
        }
    }

    /// Every block has been written to its home location: from now on all requests, also writes, go to the
    /// device below. Returns when no read from the log is in flight, so that the log may be written.
    pub fn disable_overlay(&self) {
        self.disabled.store(true, Ordering::SeqCst);
        while self.redirected.load(Ordering::SeqCst) > 0 {
            sleep(Duration::from_millis(1));
        }
    }

    /// The blocks of the log that the read needs. If there are any, it counts as a read of the log.
    fn redirects(&self, bio: &Bio) -> Vec<(DevBlock, Redirect)> {
        let Some(range) = blocks_of(bio, self.block_size) else {
            return Vec::new();
        };
        let inside = self.overlay.blocks.range(range);
        let found: Vec<_> = inside.map(|(&home, &redirect)| (home, redirect)).collect();
        if found.is_empty() {
            return found;
        }
        // Counted before the check, as in `expand`.
        self.in_log.fetch_add(1, Ordering::SeqCst);
        if self.log_left.load(Ordering::SeqCst) {
            self.in_log.fetch_sub(1, Ordering::SeqCst);
            return Vec::new();
        }
        found
    }

    /// The copies in memory that the read needs: byte offset of the home location, not escaped.
    fn copies(&self, bio: &Bio) -> Vec<(u64, bool, Buf)> {
        let Some(range) = blocks_of(bio, self.block_size) else {
            return Vec::new();
        };
        let inside = self.overlay.in_memory.range(range);
        inside
            .map(|(&home, buf)| (self.block_size.offset_of(home), false, buf.clone()))
            .collect()
    }

    /// The reads that serve `bio`: its own, and one for each block in the log. A request that is not a read
    /// is completed here.
    fn expand(&self, bio: Bio, done: Done) -> Vec<(Bio, Done)> {
        // Counted before the check: `disable_overlay` either waits for this read or is seen by it.
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
                _ => Err(IoError::of(&bio, REFUSED)),
            };
            done(bio, result);
            return Vec::new();
        }
        let (redirects, mut copies) = (self.redirects(&bio), self.copies(&bio));
        if redirects.is_empty() && copies.is_empty() {
            return vec![(bio, done)];
        }
        copies.reserve(redirects.len());
        let in_log = (!redirects.is_empty()).then(|| Arc::clone(&self.in_log));
        let done: Done = Box::new(move |bio, result| {
            if let Some(in_log) = in_log {
                in_log.fetch_sub(1, Ordering::SeqCst);
            }
            done(bio, result);
        });
        let parts = Arc::new(Mutex::new(
            Rank::Leaf,
            SplitRead {
                left: redirects.len() + 1,
                whole: None,
                copies,
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

/// The blocks that a request touches, if any.
pub(crate) fn blocks_of(bio: &Bio, block_size: BlockSize) -> Option<RangeInclusive<DevBlock>> {
    if bio.len == 0 || bio.offset.checked_add(bio.len).is_none() {
        return None;
    }
    let first = DevBlock(bio.offset >> block_size.bits());
    let last = DevBlock((bio.end() - 1) >> block_size.bits());
    Some(first..=last)
}

/// A read that was split into several.
struct SplitRead {
    left: usize,
    /// The read of the home locations.
    whole: Option<Bio>,
    /// Byte offset of a home location, whether its copy is escaped, and the copy.
    copies: Vec<(u64, bool, Buf)>,
    result: Result<(), IoError>,
    done: Option<Done>,
}

/// Records the end of one part; the last one assembles the read and completes it.
fn end_part(
    parts: &Mutex<SplitRead>,
    result: Result<(), IoError>,
    record: impl FnOnce(&mut SplitRead),
) {
    let (done, mut whole, copies, result) = {
        let mut parts = parts.lock();
        record(&mut parts);
        assert!(parts.left > 0, "each part of a read ends once");
        parts.left -= 1;
        parts.result = std::mem::replace(&mut parts.result, Ok(())).and(result);
        if parts.left > 0 {
            return;
        }
        (
            parts.done.take().expect("a read ends once"),
            parts
                .whole
                .take()
                .expect("the read of the home locations has ended"),
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
pub(crate) fn patch(bio: &mut Bio, home: u64, escaped: bool, mut copy: Buf) {
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
            Err(REFUSED.to_owned())
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
