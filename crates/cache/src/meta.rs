//! Metadata buffers: one for each device block in use, shared by all its users.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use steadfs_base::{BlockSize, DevBlock, FixedMap, IoTag, Tid};
use steadfs_block::{Bio, Buf, IoError, IoHandle, Queue};
use steadfs_rt::waits::{self, WaitStep};
use steadfs_rt::{Condvar, Mutex, MutexGuard, Rank, RwLock, RwLockWriteGuard};

const SHARDS: usize = 16;
/// Longest request of [`MetaCache::prefetch`], in bytes.
const PREFETCH_BYTES_MAX: usize = 1 << 20;

/// One metadata block in memory.
pub struct MetaBuf {
    block: DevBlock,
    state: RwLock<BufState>,
    /// The kind of content that was verified since it was read; 0: none.
    verified: AtomicU8,
    /// Used since the last eviction sweep.
    recent: AtomicBool,
}

struct BufState {
    /// `None` until the first read has filled it.
    data: Option<Buf>,
    /// The hint of the last change ([`MetaMut::set_hint`]); 0: none.
    hint: u32,
    /// The journal transaction that changed it last, until that one has its snapshot.
    tid: Option<Tid>,
    /// Changed without a journal and not yet written.
    dirty: bool,
}

impl BufState {
    fn fill(&mut self, data: Buf) {
        self.data = Some(data);
        self.hint = 0;
    }
}

impl MetaBuf {
    fn new(block: DevBlock, data: Option<Buf>) -> Self {
        let state = BufState {
            data,
            hint: 0,
            tid: None,
            dirty: false,
        };
        Self {
            block,
            state: RwLock::new(Rank::MetaBuf, state),
            verified: AtomicU8::new(0),
            recent: AtomicBool::new(true),
        }
    }

    /// The block's number.
    pub fn block(&self) -> DevBlock {
        self.block
    }

    /// The current content. The clone keeps it; a later change makes a copy while the clone lives, so drop it before
    /// changing the block.
    pub fn data(&self) -> Buf {
        self.state
            .read()
            .data
            .clone()
            .expect("a buffer is filled before it is returned")
    }

    /// The current content, as [`MetaBuf::data`] returns it, with its hint ([`MetaMut::set_hint`]); 0: none.
    pub fn data_and_hint(&self) -> (Buf, u32) {
        let state = self.state.read();
        let data = state.data.clone();
        (
            data.expect("a buffer is filled before it is returned"),
            state.hint,
        )
    }

    /// Fills the buffer with what a prefetch has read. Content that it has by now is at least as new.
    fn fill_if_empty(&self, data: Buf) {
        let mut state = self.state.write();
        if state.data.is_none() {
            state.fill(data);
        }
    }

    /// Runs `check` on the content unless content of this `kind` (not 0) has passed it before.
    pub fn verify_once<E>(
        &self,
        kind: u8,
        check: impl FnOnce(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        assert!(kind != 0, "0 means not verified");
        if self.verified.load(Ordering::Acquire) == kind {
            return Ok(());
        }
        check(&self.data())?;
        self.verified.store(kind, Ordering::Release);
        Ok(())
    }

    /// Marks the content as verified for this `kind`, because it was made here.
    pub fn set_verified(&self, kind: u8) {
        self.verified.store(kind, Ordering::Release);
    }

    /// Locks the content for changing. Only the journal (or, without one, the transaction layer of
    /// the file system) calls this: every change belongs to a handle.
    pub fn lock(&self) -> MetaMut<'_> {
        MetaMut {
            state: self.state.write(),
        }
    }
}

/// A metadata buffer locked for changing.
pub struct MetaMut<'a> {
    state: RwLockWriteGuard<'a, BufState>,
}

impl MetaMut<'_> {
    /// The transaction that changed the block last, if it has no snapshot yet.
    pub fn tid(&self) -> Option<Tid> {
        self.state.tid
    }

    /// Records the transaction that changes the block (`None` once it has its snapshot).
    pub fn set_tid(&mut self, tid: Option<Tid>) {
        self.state.tid = tid;
    }

    /// Keeps a number with the content as a hint for later readers, until the content changes or is evicted.
    pub fn set_hint(&mut self, hint: u32) {
        self.state.hint = hint;
    }

    /// A shared clone of the current content.
    pub fn snapshot(&self) -> Buf {
        self.state
            .data
            .clone()
            .expect("a buffer is filled before it is returned")
    }
}

impl Deref for MetaMut<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.state
            .data
            .as_ref()
            .expect("a buffer is filled before it is returned")
    }
}

impl DerefMut for MetaMut<'_> {
    /// Copies the content first if a commit, a write in flight or a reader shares it.
    fn deref_mut(&mut self) -> &mut [u8] {
        self.state.hint = 0;
        self.state
            .data
            .as_mut()
            .expect("a buffer is filled before it is returned")
            .make_mut()
    }
}

/// The fill level of the metadata cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaStats {
    /// Blocks in memory.
    pub cached: usize,
    /// Blocks changed without a journal and not yet written.
    pub dirty: usize,
}

/// All metadata buffers of a volume.
pub struct MetaCache {
    queue: Arc<Queue>,
    block_size: BlockSize,
    budget: usize,
    cached: AtomicUsize,
    shards: Vec<Mutex<FixedMap<u64, Arc<MetaBuf>>>>,
    /// Blocks changed without a journal, by number.
    dirty: Mutex<std::collections::BTreeMap<u64, Arc<MetaBuf>>>,
    /// One write-back of unjournaled blocks at a time: no block is in flight twice.
    writing: Mutex<()>,
    /// Blocks collected from `dirty` whose writes have not completed.
    in_flight: Mutex<BTreeSet<u64>>,
    /// The write of some block has completed.
    write_done: Condvar,
    /// Blocks being read, each under its buffer's lock, so that waiters can boost the read.
    fills: Mutex<std::collections::BTreeMap<u64, Fill>>,
}

/// A block being read.
#[derive(Default)]
struct Fill {
    /// The request, once submitted.
    io: Option<IoHandle>,
    /// The highest tag of the tasks that began to wait before that.
    waiter: Option<IoTag>,
}

impl MetaCache {
    /// A cache of blocks of `block_size` that are read through `queue`. It keeps about `budget` bytes of unused blocks.
    pub fn new(queue: Arc<Queue>, block_size: BlockSize, budget: usize) -> Self {
        let shards = (0..SHARDS)
            .map(|_| Mutex::new(Rank::Table, FixedMap::default()))
            .collect();
        Self {
            queue,
            block_size,
            budget: (budget / block_size.bytes()).max(64),
            cached: AtomicUsize::new(0),
            shards,
            dirty: Mutex::new(Rank::Dirty, std::collections::BTreeMap::new()),
            writing: Mutex::new(Rank::Writeback, ()),
            in_flight: Mutex::new(Rank::Leaf, BTreeSet::new()),
            write_done: Condvar::new(),
            fills: Mutex::new(Rank::Leaf, std::collections::BTreeMap::new()),
        }
    }

    /// The block size.
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// The device's queue.
    pub fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// The fill level.
    pub fn stats(&self) -> MetaStats {
        MetaStats {
            cached: self.cached.load(Ordering::Relaxed),
            dirty: self.dirty.lock().len(),
        }
    }

    fn shard(&self, block: DevBlock) -> &Mutex<FixedMap<u64, Arc<MetaBuf>>> {
        &self.shards[(block.0 as usize) % SHARDS]
    }

    fn find_or_insert(&self, block: DevBlock, make: impl FnOnce() -> MetaBuf) -> Arc<MetaBuf> {
        let mut shard = self.shard(block).lock();
        let mut inserted = false;
        let buf = Arc::clone(shard.entry(block.0).or_insert_with(|| {
            inserted = true;
            Arc::new(make())
        }));
        buf.recent.store(true, Ordering::Relaxed);
        if inserted && self.cached.fetch_add(1, Ordering::Relaxed) >= self.budget {
            let before = shard.len();
            shard.retain(|_, b| keep(b));
            self.cached
                .fetch_sub(before - shard.len(), Ordering::Relaxed);
        }
        buf
    }

    /// The block's buffer, read from the device if it is not in memory.
    pub fn get(&self, block: DevBlock, tag: IoTag) -> Result<Arc<MetaBuf>, IoError> {
        let buf = self.find_or_insert(block, || MetaBuf::new(block, None));
        match buf.state.try_read().map(|state| state.data.is_some()) {
            Some(true) => return Ok(buf),
            Some(false) => {}
            None => self.boost_fill(block, tag),
        }
        let mut state = buf.state.write();
        if state.data.is_none() {
            // The lock is held during the read: other tasks that need the block wait here.
            state.fill(self.read_in(block, tag)?);
        }
        drop(state);
        Ok(buf)
    }

    /// Reads a block; waiters can boost the read.
    fn read_in(&self, block: DevBlock, tag: IoTag) -> Result<Buf, IoError> {
        self.fills.lock().insert(block.0, Fill::default());
        let offset = self.block_size.offset_of(block);
        let bio = Bio::read(offset, self.block_size.bytes());
        let io = self.queue.submit(bio, tag);
        let waiter = self.fills.lock().get_mut(&block.0).and_then(|fill| {
            fill.io = Some(io.clone());
            fill.waiter
        });
        if let Some(waiter) = waiter {
            self.queue.boost(&io, waiter);
        }
        let bio = io.into_bio();
        self.fills.lock().remove(&block.0);
        Ok(bio?.bufs.pop().expect("a read has one buffer"))
    }

    /// Boosts the read of a locked block, if it is being read, for a task that waits for it.
    fn boost_fill(&self, block: DevBlock, tag: IoTag) {
        let io = self.fills.lock().get_mut(&block.0).and_then(|fill| {
            fill.waiter = Some(fill.waiter.map_or(tag, |other| other.boosted_to(tag)));
            fill.io.clone()
        });
        if let Some(io) = io {
            self.queue.boost(&io, tag);
        }
    }

    /// The block's buffer if it is in memory.
    pub fn peek(&self, block: DevBlock) -> Option<Arc<MetaBuf>> {
        let buf = Arc::clone(self.shard(block).lock().get(&block.0)?);
        buf.recent.store(true, Ordering::Relaxed);
        let filled = buf.state.read().data.is_some();
        filled.then_some(buf)
    }

    /// Whether a block is in memory or being read by [`MetaCache::get`].
    pub fn is_cached(&self, block: DevBlock) -> bool {
        let buf = self.shard(block).lock().get(&block.0).map(Arc::clone);
        let is_filled = |buf: Arc<MetaBuf>| {
            let state = buf.state.try_read();
            state.is_none_or(|state| state.data.is_some())
        };
        buf.is_some_and(is_filled)
    }

    /// The buffer of a newly allocated block: zeros, whatever the device holds. Its first change
    /// must come through a handle before anything is written.
    pub fn get_new(&self, block: DevBlock) -> Arc<MetaBuf> {
        let buf = self.find_or_insert(block, || MetaBuf::new(block, None));
        let mut state = buf.state.write();
        state.fill(Buf::zeroed(self.block_size.bytes()));
        drop(state);
        buf.verified.store(0, Ordering::Release);
        buf
    }

    /// Replaces the content of a block that was written to the device without the cache.
    pub fn set_content(&self, block: DevBlock, data: Buf) {
        let buf = self.find_or_insert(block, || MetaBuf::new(block, None));
        buf.state.write().fill(data);
        buf.verified.store(0, Ordering::Release);
    }

    /// Reads `count` blocks from `first` on with as few requests as possible, and waits. Blocks in memory are not read
    /// again. Errors are not reported here: [`MetaCache::get`] reads such a block again.
    pub fn prefetch(&self, first: DevBlock, count: u64, tag: IoTag) {
        let blocks = (0..count).map(|n| first.plus(n));
        self.fill_missing(blocks, tag);
    }

    /// The same for blocks in ascending order: all requests are submitted before the first is waited for.
    pub fn prefetch_blocks(&self, blocks: &[DevBlock], tag: IoTag) {
        assert!(blocks.is_sorted(), "blocks are read in their order");
        self.fill_missing(blocks.iter().copied(), tag);
    }

    /// Reads the blocks that are not in memory. The buffers are taken before the device reads: while they are held,
    /// eviction keeps them, so a block that another task changes and writes meanwhile is seen to be filled, and what
    /// was read before that is dropped.
    fn fill_missing(&self, blocks: impl Iterator<Item = DevBlock>, tag: IoTag) {
        let missing: Vec<_> = blocks.filter_map(|block| self.unfilled(block)).collect();
        let per_read = (PREFETCH_BYTES_MAX / self.block_size.bytes()).max(1);
        let runs = missing.chunk_by(|a, b| a.block.plus(1) == b.block);
        let reads: Vec<_> = runs
            .flat_map(|run| run.chunks(per_read))
            .map(|bufs| (bufs, self.submit_read(bufs, tag)))
            .collect();
        for (bufs, io) in reads {
            if let Ok(bio) = io.into_bio() {
                for (buf, data) in bufs.iter().zip(bio.bufs) {
                    buf.fill_if_empty(data);
                }
            }
        }
    }

    /// The block's buffer if it has no content yet.
    fn unfilled(&self, block: DevBlock) -> Option<Arc<MetaBuf>> {
        let buf = self.find_or_insert(block, || MetaBuf::new(block, None));
        let is_filled = buf.state.read().data.is_some();
        (!is_filled).then_some(buf)
    }

    /// Submits one read of adjacent blocks.
    fn submit_read(&self, bufs: &[Arc<MetaBuf>], tag: IoTag) -> IoHandle {
        let bytes = self.block_size.bytes();
        let offset = self.block_size.offset_of(bufs[0].block);
        let mut bio = Bio::read(offset, bytes * bufs.len());
        bio.bufs = bufs.iter().map(|_| Buf::zeroed(bytes)).collect();
        self.queue.submit(bio, tag)
    }

    /// Drops a block that is no longer metadata (jbd2_journal_forget). Dirty content is not written. A write in flight
    /// completes first, since the block's next owner may write to it at once.
    pub fn forget(&self, block: DevBlock) {
        let buf = self.shard(block).lock().remove(&block.0);
        let clean = || {
            if let Some(buf) = &buf {
                buf.state.write().dirty = false;
            }
            self.dirty.lock().remove(&block.0);
        };
        self.cached
            .fetch_sub(usize::from(buf.is_some()), Ordering::Relaxed);
        clean();
        if self.wait_in_flight(block) {
            // A failed write leaves its block dirty.
            clean();
        }
    }

    /// Waits until no unjournaled write of the block is in flight. Returns whether one was.
    fn wait_in_flight(&self, block: DevBlock) -> bool {
        let mut in_flight = self.in_flight.lock();
        let waits = in_flight.contains(&block.0);
        while in_flight.contains(&block.0) {
            self.wait_for_a_write(&mut in_flight);
        }
        waits
    }

    fn wait_for_a_write(&self, in_flight: &mut MutexGuard<'_, BTreeSet<u64>>) {
        let _step = waits::during(WaitStep::Io);
        self.write_done.wait(in_flight);
    }

    /// Completes the writes of these blocks.
    fn complete(&self, blocks: impl IntoIterator<Item = DevBlock>) {
        let mut in_flight = self.in_flight.lock();
        for block in blocks {
            in_flight.remove(&block.0);
        }
        drop(in_flight);
        self.write_done.notify_all();
    }

    /// Drops every block that is unused and clean, as `drop_caches` does.
    pub fn drop_unused(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let before = shard.len();
            shard.retain(|_, buf| Arc::strong_count(buf) > 1);
            self.cached
                .fetch_sub(before - shard.len(), Ordering::Relaxed);
        }
    }

    /// Drops every block, because the device was changed without the cache. Nothing may be dirty.
    pub fn invalidate_all(&self) {
        assert!(self.dirty.lock().is_empty(), "dirty blocks are not dropped");
        for shard in &self.shards {
            let gone = std::mem::take(&mut *shard.lock());
            self.cached.fetch_sub(gone.len(), Ordering::Relaxed);
        }
    }

    /// Locks a buffer for a change without a journal; [`MetaCache::write_dirty`] will write it.
    pub fn lock_dirty<'b>(&self, buf: &'b Arc<MetaBuf>) -> MetaMut<'b> {
        let mut state = buf.state.write();
        if !state.dirty {
            // Under the buffer's lock: a write-back in between would miss the change.
            state.dirty = true;
            self.dirty.lock().insert(buf.block.0, Arc::clone(buf));
        }
        MetaMut { state }
    }

    /// Writes every block changed without a journal and waits. A failed block stays dirty; the first error is returned
    /// after all blocks were tried.
    pub fn write_dirty(&self, tag: IoTag) -> Result<(), IoError> {
        let _one = self.writing.lock();
        let batch = self.collect_dirty();
        let mut blocks = Vec::with_capacity(batch.len());
        for buf in batch.into_values() {
            let mut state = buf.state.write();
            if state.dirty {
                state.dirty = false;
                let data = state.data.clone().expect("a dirty buffer is filled");
                drop(state);
                blocks.push((buf, data));
            } else {
                drop(state);
                self.complete([buf.block]);
            }
        }
        let mut first_error = None;
        for (run, io) in self.submit_runs(&blocks, tag) {
            let run = &blocks[run];
            if let Err(error) = io.wait() {
                for (buf, _) in run {
                    drop(self.lock_dirty(buf));
                }
                first_error.get_or_insert(error);
            }
            self.complete(run.iter().map(|(buf, _)| buf.block));
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Takes all dirty blocks, which are in flight from then on. Waits for the blocks of [`MetaCache::write_alone`].
    fn collect_dirty(&self) -> std::collections::BTreeMap<u64, Arc<MetaBuf>> {
        loop {
            let mut dirty = self.dirty.lock();
            let mut in_flight = self.in_flight.lock();
            if in_flight.is_empty() {
                // Under both locks: `forget` finds a block either dirty or in flight.
                in_flight.extend(dirty.keys().copied());
                return std::mem::take(&mut *dirty);
            }
            drop(dirty);
            self.wait_for_a_write(&mut in_flight);
        }
    }

    /// Writes one block at once while no other write of it is in flight, durably if `durable`. `content` is called when
    /// the block's turn has come. The caller holds no buffer's lock.
    ///
    /// # Errors
    /// The write has failed.
    pub fn write_alone(
        &self,
        block: DevBlock,
        durable: bool,
        tag: IoTag,
        content: impl FnOnce() -> Buf,
    ) -> Result<(), IoError> {
        {
            let mut in_flight = self.in_flight.lock();
            while !in_flight.insert(block.0) {
                self.wait_for_a_write(&mut in_flight);
            }
        }
        let bio = Bio::write(self.block_size.offset_of(block), vec![content()]);
        let bio = if durable { bio.preflush_and_fua() } else { bio };
        let written = self.queue.submit(bio, tag).wait();
        self.complete([block]);
        written
    }

    /// Submits one write for each run of adjacent blocks.
    fn submit_runs(
        &self,
        blocks: &[(Arc<MetaBuf>, Buf)],
        tag: IoTag,
    ) -> Vec<(std::ops::Range<usize>, IoHandle)> {
        let mut writes = Vec::new();
        let mut start = 0;
        while start < blocks.len() {
            let mut end = start + 1;
            while end < blocks.len() && blocks[end].0.block == blocks[end - 1].0.block.plus(1) {
                end += 1;
            }
            let bufs = blocks[start..end]
                .iter()
                .map(|(_, data)| data.clone())
                .collect();
            let offset = self.block_size.offset_of(blocks[start].0.block);
            writes.push((start..end, self.queue.submit(Bio::write(offset, bufs), tag)));
            start = end;
        }
        writes
    }
}

/// Whether an eviction sweep keeps a buffer: it is in use or dirty (both hold a reference), or was used since the last
/// sweep.
fn keep(buf: &Arc<MetaBuf>) -> bool {
    Arc::strong_count(buf) > 1 || buf.recent.swap(false, Ordering::Relaxed)
}

#[cfg(test)]
mod tests;
