//! One file's cached blocks: dirty data, data in flight, and nothing else that is not needed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;

use steadfs_base::{BlockSize, FileBlock, IoTag};
use steadfs_block::{Buf, IoHandle, Queue};
use steadfs_rt::{Condvar, Mutex, Rank};

use crate::write_error::WriteError;
use crate::writeback::{DirtyEpoch, DirtyFile, Writeback};

/// Blocks that a write puts into memory at a time: others may want the mapping meanwhile.
const RUN: usize = 64;

/// A file's blocks in memory.
///
/// A block is *dirty* (newer than the device), *in flight* (being written), both (changed again
/// while being written; the write goes on with the older content), or not here at all. Only a
/// successful write ends a block's dirt.
pub struct Mapping {
    block_size: BlockSize,
    file: DirtyFile,
    writeback: Arc<Writeback>,
    inner: Mutex<Inner>,
    /// Some block's flight has ended.
    landed: Condvar,
}

#[derive(Default)]
struct Inner {
    pages: BTreeMap<u64, Page>,
    dirty: u64,
    in_flight: u64,
    /// The first failed write since [`Mapping::take_error`] that is news.
    error: Option<WriteError>,
    /// Somebody was told that a block could not be written, and some still is not: that it fails again is
    /// no news.
    told: bool,
}

struct Page {
    data: Buf,
    /// Changed since it was last taken for writing; by whom.
    dirty: Option<IoTag>,
    /// The epoch in which it became dirty.
    since: u64,
    /// Being written; the request once submitted.
    flight: Option<Flight>,
    /// The file system holds one block of reservation for this page.
    reserved: bool,
}

impl Page {
    fn clean(data: Buf) -> Self {
        Self {
            data,
            dirty: None,
            since: 0,
            flight: None,
            reserved: false,
        }
    }

    /// Its content was changed; whether it holds a reservation that it did not, and whether it was clean.
    fn written(&mut self, tag: IoTag, epoch: u64, reserve: bool) -> (bool, bool) {
        let newly_reserved = reserve && !self.reserved;
        self.reserved |= reserve;
        (newly_reserved, self.make_dirty(tag, epoch))
    }

    /// Whether it was clean.
    fn make_dirty(&mut self, tag: IoTag, epoch: u64) -> bool {
        let was_clean = self.dirty.replace(tag).is_none();
        if was_clean {
            self.since = epoch;
        }
        was_clean
    }

    /// Whether content that was dirty by the end of that epoch is not on the device yet.
    fn is_older(&self, epoch: DirtyEpoch) -> bool {
        let flight = self.flight.as_ref();
        (self.dirty.is_some() && epoch.contains(self.since))
            || flight.is_some_and(|flight| epoch.contains(flight.since))
    }
}

#[derive(Default)]
struct Flight {
    io: Option<IoHandle>,
    /// The page held a reservation when it was taken.
    reserved: bool,
    /// The epoch in which the page had become dirty.
    since: u64,
}

/// A write into the cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheWrite<'a> {
    /// First byte.
    pub offset: u64,
    /// What is written there.
    pub data: &'a [u8],
    /// By whom.
    pub tag: IoTag,
}

/// A block taken for writing.
#[derive(Debug)]
pub struct CollectedBlock {
    /// Which block.
    pub block: FileBlock,
    /// Its content, fixed for the write.
    pub data: Buf,
    /// Who dirtied it last.
    pub tag: IoTag,
    /// Whether the file system reserved space for it; the reservation passes to the taker.
    pub reserved: bool,
}

impl CollectedBlock {
    /// The first of the blocks `taken`, in order, that is in none of the runs.
    pub fn first_not_in(taken: &[Self], runs: impl Iterator<Item = Range<u64>>) -> Option<u64> {
        let mut blocks = runs.flatten();
        let mut taken = taken.iter().map(|taken| taken.block.0);
        taken.find(|block| blocks.next() != Some(*block))
    }
}

/// What a write into the cache came to.
#[derive(Debug)]
pub struct Written<E> {
    /// Bytes taken, from the first; fewer than given only with an error.
    pub bytes: usize,
    /// Blocks that hold a reservation now and held none before; the rest of what the caller reserved is
    /// his to release.
    pub reserved: u64,
    /// WritebackReason a block could not be filled.
    pub error: Option<E>,
}

impl Mapping {
    /// An empty mapping of `file`, whose dirt is counted by `writeback`.
    pub fn new(block_size: BlockSize, file: DirtyFile, writeback: Arc<Writeback>) -> Self {
        Self {
            block_size,
            file,
            writeback,
            inner: Mutex::new(Rank::MappingTree, Inner::default()),
            landed: Condvar::new(),
        }
    }

    /// The size of the blocks.
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// The block's content if it is in memory (dirty or in flight).
    pub fn get(&self, block: FileBlock) -> Option<Buf> {
        Some(self.inner.lock().pages.get(&block.0)?.data.clone())
    }

    /// All blocks of `range` that are in memory, in order.
    pub fn cached(&self, range: Range<u64>) -> Vec<(FileBlock, Buf)> {
        let inner = self.inner.lock();
        inner
            .pages
            .range(range)
            .map(|(&n, p)| (FileBlock(n), p.data.clone()))
            .collect()
    }

    /// Blocks that are dirty or in flight.
    pub fn unwritten(&self) -> u64 {
        let inner = self.inner.lock();
        inner.dirty + inner.in_flight
    }

    /// The blocks for which the file system holds a reservation, dirty or in flight, in order.
    pub fn reserved_blocks(&self) -> Vec<FileBlock> {
        let inner = self.inner.lock();
        let pages = inner.pages.iter();
        let flies_reserved = |page: &Page| page.flight.as_ref().is_some_and(|f| f.reserved);
        pages
            .filter(|(_, page)| page.reserved || flies_reserved(page))
            .map(|(&n, _)| FileBlock(n))
            .collect()
    }

    /// Whether nothing is in memory.
    pub fn is_empty(&self) -> bool {
        self.inner.lock().pages.is_empty()
    }

    /// Bytes of this file that are dirty.
    pub fn dirty_bytes(&self) -> u64 {
        self.inner.lock().dirty << self.block_size.bits()
    }

    /// Copies data in and marks the blocks dirty. A block that is written only in part and is not in memory is filled
    /// by `fill` first; where that fails, the write ends short. `reserve` says which blocks are to hold a reservation
    /// of the file system's. `reached` hears how far the write has come, at once with the content: who takes a block
    /// for writing knows a file's size that covers it. It must not wait.
    /// The caller holds the inode lock for writing, so nothing else adds blocks meanwhile.
    pub fn write_growing<E>(
        &self,
        write: CacheWrite<'_>,
        reserve: impl Fn(FileBlock) -> bool,
        mut fill: impl FnMut(FileBlock, &mut [u8]) -> Result<(), E>,
        mut reached: impl FnMut(u64),
    ) -> Written<E> {
        let mut written = Written {
            bytes: 0,
            reserved: 0,
            error: None,
        };
        while written.bytes < write.data.len() {
            let part = CacheWrite {
                offset: write.offset + written.bytes as u64,
                data: &write.data[written.bytes..],
                ..write
            };
            let (bytes, newly_reserved) = match self.put_whole(part, &reserve, &mut reached) {
                Some(put) => put,
                None => match self.put_part(part, &reserve, &mut fill, &mut reached) {
                    Ok(put) => put,
                    Err(error) => {
                        written.error = Some(error);
                        break;
                    }
                },
            };
            written.bytes += bytes;
            written.reserved += newly_reserved;
        }
        written
    }

    /// Puts the whole blocks that a write begins with into memory, up to [`RUN`] at a time, and marks them
    /// dirty; how many bytes that is, and how many reservations it took. `None`: it begins with no whole
    /// block.
    fn put_whole(
        &self,
        write: CacheWrite<'_>,
        reserve: &impl Fn(FileBlock) -> bool,
        reached: &mut impl FnMut(u64),
    ) -> Option<(usize, u64)> {
        if self.block_size.offset_in_block(write.offset) > 0 {
            return None;
        }
        let blocks = write.data.chunks_exact(self.block_size.bytes()).take(RUN);
        let contents: Vec<Buf> = blocks.map(Buf::copy_of).collect();
        let bytes = contents.len() << self.block_size.bits();
        if bytes == 0 {
            return None;
        }
        let first = self.block_size.file_block(write.offset).0;
        let (mut newly_reserved, mut newly_dirty) = (0, 0);
        let mut inner = self.inner.lock();
        let epoch = self.writeback.epoch();
        for (block, content) in (first..).zip(contents) {
            let page = match inner.pages.entry(block) {
                Entry::Occupied(entry) => {
                    let page = entry.into_mut();
                    page.data = content;
                    page
                }
                Entry::Vacant(entry) => entry.insert(Page::clean(content)),
            };
            let (took, dirtied) = page.written(write.tag, epoch, reserve(FileBlock(block)));
            newly_reserved += u64::from(took);
            newly_dirty += u64::from(dirtied);
        }
        reached(write.offset + bytes as u64);
        self.dirtied(&mut inner, newly_dirty);
        Some((bytes, newly_reserved))
    }

    /// Puts what a write has for the one block that it begins in, as [`Mapping::put_whole`] does. What else
    /// the block holds is in memory, or asked of `fill`.
    fn put_part<E>(
        &self,
        write: CacheWrite<'_>,
        reserve: &impl Fn(FileBlock) -> bool,
        mut fill: impl FnMut(FileBlock, &mut [u8]) -> Result<(), E>,
        reached: &mut impl FnMut(u64),
    ) -> Result<(usize, u64), E> {
        let block = self.block_size.file_block(write.offset);
        let within = self.block_size.offset_in_block(write.offset);
        let len = write.data.len().min(self.block_size.bytes() - within);
        let mut fresh = None;
        loop {
            // A block that is here now may have landed and left by the time it is needed.
            let reserve = reserve(block);
            let mut inner = self.inner.lock();
            let page = match inner.pages.entry(block.0) {
                Entry::Occupied(entry) => Some(entry.into_mut()),
                Entry::Vacant(entry) => fresh.take().map(|buf| entry.insert(Page::clean(buf))),
            };
            let Some(page) = page else {
                drop(inner);
                let mut buf = Buf::zeroed(self.block_size.bytes());
                fill(block, buf.make_mut())?;
                fresh = Some(buf);
                continue;
            };
            page.data.make_mut()[within..within + len].copy_from_slice(&write.data[..len]);
            let (took, dirtied) = page.written(write.tag, self.writeback.epoch(), reserve);
            reached(write.offset + len as u64);
            self.dirtied(&mut inner, u64::from(dirtied));
            return Ok((len, u64::from(took)));
        }
    }

    /// So many more blocks are dirty. Under the lock: the flusher must not count a block clean before it
    /// counted dirty.
    fn dirtied(&self, inner: &mut Inner, blocks: u64) {
        if blocks > 0 {
            inner.dirty += blocks;
            let bytes = blocks << self.block_size.bits();
            self.writeback.dirtied(&self.file, bytes);
        }
    }

    /// Changes a block by `work` and marks it dirty. `fill` gives the content of one that is not in
    /// memory; no copy is made of a buffer that nobody else holds. The caller holds the inode lock for
    /// writing.
    ///
    /// # Errors
    /// Those of `fill`; nothing is changed then.
    pub fn edit<E>(
        &self,
        block: FileBlock,
        tag: IoTag,
        fill: impl FnOnce() -> Result<Buf, E>,
        work: impl FnOnce(&mut [u8]),
    ) -> Result<(), E> {
        let fresh = match self.get(block) {
            // A copy of a block in flight stays good when that has landed.
            Some(content) => content,
            None => fill()?,
        };
        let mut inner = self.inner.lock();
        let page = match inner.pages.entry(block.0) {
            Entry::Occupied(entry) => {
                drop(fresh);
                entry.into_mut()
            }
            Entry::Vacant(entry) => entry.insert(Page::clean(fresh)),
        };
        work(page.data.make_mut());
        let newly_dirty = page.make_dirty(tag, self.writeback.epoch());
        self.dirtied(&mut inner, u64::from(newly_dirty));
        Ok(())
    }

    /// Zeroes the bytes of `block` from `within` on, if the block is in memory (truncation).
    pub fn zero_tail(&self, block: FileBlock, within: usize) {
        if let Some(page) = self.inner.lock().pages.get_mut(&block.0) {
            page.data.make_mut()[within..].fill(0);
        }
    }

    /// Takes up to `limit` dirty blocks of `range` for writing, in order. A block in flight is not
    /// taken again until it has landed: no block is ever in flight twice.
    pub fn collect(&self, range: Range<u64>, limit: usize) -> Vec<CollectedBlock> {
        self.collect_with(limit, || (range, ())).0
    }

    /// The same; `ask` gives the range, and a size, at the same moment: what it says covers what was taken, and
    /// no later write. It must not wait.
    pub fn collect_with<S>(
        &self,
        limit: usize,
        ask: impl FnOnce() -> (Range<u64>, S),
    ) -> (Vec<CollectedBlock>, S) {
        self.collect_if(limit, ask, |_, _| true)
    }

    fn collect_if<S>(
        &self,
        limit: usize,
        ask: impl FnOnce() -> (Range<u64>, S),
        wanted: impl Fn(u64, &Page) -> bool,
    ) -> (Vec<CollectedBlock>, S) {
        let mut inner = self.inner.lock();
        let mut taken = Vec::new();
        let (range, size) = ask();
        if inner.dirty == 0 || range.is_empty() {
            return (taken, size);
        }
        for (&n, page) in inner.pages.range_mut(range) {
            if page.flight.is_some() || !wanted(n, page) {
                continue;
            }
            if let Some(tag) = page.dirty.take() {
                let reserved = std::mem::take(&mut page.reserved);
                page.flight = Some(Flight {
                    io: None,
                    reserved,
                    since: page.since,
                });
                taken.push(CollectedBlock {
                    block: FileBlock(n),
                    data: page.data.clone(),
                    tag,
                    reserved,
                });
                if taken.len() == limit {
                    break;
                }
            }
        }
        let n = taken.len() as u64;
        inner.dirty -= n;
        inner.in_flight += n;
        (taken, size)
    }

    /// The same for write-back, which has been up to `rest` and goes onwards only: a block dirtied again before
    /// it is the next one's. So nothing is taken where the file has grown from before `rest`: with `stored`, its
    /// size on disk, and `size`, asked for at the moment of taking, what lies behind would make it cover what is
    /// dirty there. What became dirty after `epoch` stays for the next one, too, unless it lies behind `stored`: there
    /// the size on disk will cover it as soon as a later block is mapped.
    pub fn collect_forward(
        &self,
        rest: Range<u64>,
        limit: usize,
        epoch: DirtyEpoch,
        stored: u64,
        size: impl FnOnce() -> u64,
    ) -> (Vec<CollectedBlock>, u64) {
        let bits = self.block_size.bits();
        let passed = rest.start << bits;
        let ask = || {
            let size = size();
            let grown_behind = stored < size && stored < passed;
            (if grown_behind { 0..0 } else { rest }, size)
        };
        self.collect_if(limit, ask, |block, page| {
            epoch.contains(page.since) || block >= stored >> bits
        })
    }

    /// The end of the blocks that were dirty in `epoch` and whose content of then is not on the device yet: they are
    /// dirty or in flight. Zero if there are none.
    pub fn dirty_end(&self, epoch: DirtyEpoch) -> u64 {
        let inner = self.inner.lock();
        let mut pages = inner.pages.iter().rev();
        let last = pages.find(|(_, page)| page.is_older(epoch));
        last.map_or(0, |(block, _)| block + 1)
    }

    /// Notes the request that carries a run of taken blocks, so that a waiter can raise it.
    pub fn mark_submitted(&self, run: Range<u64>, io: &IoHandle) {
        for (_, page) in self.inner.lock().pages.range_mut(run) {
            if let Some(flight) = &mut page.flight {
                flight.io = Some(io.clone());
            }
        }
    }

    /// Ends the flight of a run of taken blocks. After success a block that was not changed again is
    /// dropped; after a failure each is dirty again (never clean on error), and where the file system keeps
    /// them (`reserve`) holds the reservation again that passed to the taker. Returns how many blocks hold
    /// one now and held none before.
    pub fn complete(&self, run: Range<u64>, result: Result<(), &WriteError>, reserve: bool) -> u64 {
        let mut inner = self.inner.lock();
        if let Err(error) = result
            && !inner.told
        {
            inner.error.get_or_insert_with(|| error.clone());
        }
        self.end_flights(&mut inner, run, result.is_ok(), reserve)
    }

    /// Gives back a run of taken blocks that were not written after all, for no fault of the device's: as
    /// after a failure, but none is kept for [`Mapping::take_error`].
    pub fn redirty(&self, run: Range<u64>, reserve: bool) -> u64 {
        self.end_flights(&mut self.inner.lock(), run, false, reserve)
    }

    fn end_flights(&self, inner: &mut Inner, run: Range<u64>, good: bool, reserve: bool) -> u64 {
        let mut ended = 0;
        let mut cleaned = 0;
        let mut dirtied = 0;
        let mut reserved = 0;
        inner.pages.retain_range(run, |page| {
            let Some(flight) = page.flight.take() else {
                return true;
            };
            ended += 1;
            if !good {
                // What was to be written is not on the device: the page is as old as that.
                let since = page.dirty.map_or(flight.since, |_| page.since);
                page.since = since.min(flight.since);
            }
            match (good, page.dirty) {
                (_, Some(_)) => cleaned += 1,
                (true, None) => {
                    cleaned += 1;
                    return false;
                }
                (false, None) => {
                    page.dirty = Some(IoTag::background());
                    let keeps = reserve && flight.reserved;
                    reserved += u64::from(keeps && !page.reserved);
                    page.reserved |= keeps;
                    dirtied += 1;
                }
            }
            true
        });
        inner.in_flight -= ended;
        inner.dirty += dirtied;
        let left = inner.dirty + inner.in_flight;
        inner.told &= left > 0;
        self.landed.notify_all();
        self.writeback
            .cleaned(&self.file, cleaned << self.block_size.bits(), left == 0);
        reserved
    }

    /// Raises every queued write of `range` to `tag`: somebody waits for it now.
    pub fn boost(&self, range: Range<u64>, queue: &Queue, tag: IoTag) {
        let ios: Vec<IoHandle> = {
            let inner = self.inner.lock();
            if inner.in_flight == 0 {
                return;
            }
            let flights = inner
                .pages
                .range(range)
                .filter_map(|(_, p)| p.flight.as_ref());
            flights.filter_map(|f| f.io.clone()).collect()
        };
        for io in ios {
            queue.boost(&io, tag);
        }
    }

    /// Waits until no block of `range` is in flight.
    pub fn wait_for_writes(&self, range: Range<u64>) {
        let mut inner = self.inner.lock();
        while inner.in_flight > 0
            && inner
                .pages
                .range(range.clone())
                .any(|(_, p)| p.flight.is_some())
        {
            self.landed.wait(&mut inner);
        }
    }

    /// Drops every block of `range`, none of which may be in flight; returns how many reservations
    /// they held.
    pub fn discard(&self, range: Range<u64>) -> u64 {
        self.try_discard(range)
            .expect("a discarded block is not in flight")
    }

    /// The same where blocks may be in flight: then nothing is dropped, and there is no answer.
    pub fn try_discard(&self, range: Range<u64>) -> Option<u64> {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let mut flying = inner.pages.range(range.clone());
        if inner.in_flight > 0 && flying.any(|(_, page)| page.flight.is_some()) {
            return None;
        }
        let mut released = 0;
        let mut cleaned = 0;
        inner.pages.retain_range(range, |page| {
            released += u64::from(page.reserved);
            cleaned += u64::from(page.dirty.is_some());
            false
        });
        inner.dirty -= cleaned;
        if cleaned > 0 {
            let left = inner.dirty + inner.in_flight;
            self.writeback
                .cleaned(&self.file, cleaned << self.block_size.bits(), left == 0);
        }
        Some(released)
    }

    /// The first write error since the last call, for somebody who is told of it. As long as some block
    /// stays unwritten, that it fails again is no new error: whoever writes all of it later, and
    /// succeeds, has nothing to tell.
    pub fn take_error(&self) -> Option<WriteError> {
        let mut inner = self.inner.lock();
        let error = inner.error.take();
        inner.told |= error.is_some() && inner.dirty + inner.in_flight > 0;
        error
    }

    /// The first dirty block at or after `from`.
    pub fn next_dirty(&self, from: FileBlock) -> Option<FileBlock> {
        let inner = self.inner.lock();
        inner
            .pages
            .range(from.0..)
            .find(|(_, p)| p.dirty.is_some())
            .map(|(&n, _)| FileBlock(n))
    }

    /// The first block at or after `from` that is in memory.
    pub fn next_cached(&self, from: FileBlock) -> Option<FileBlock> {
        self.inner
            .lock()
            .pages
            .range(from.0..)
            .next()
            .map(|(&n, _)| FileBlock(n))
    }
}

/// Visits a range of a map and removes what the visitor does not keep.
trait RetainRange<V> {
    fn retain_range(&mut self, range: Range<u64>, keep: impl FnMut(&mut V) -> bool);
}

impl<V> RetainRange<V> for BTreeMap<u64, V> {
    fn retain_range(&mut self, range: Range<u64>, mut keep: impl FnMut(&mut V) -> bool) {
        if range.is_empty() {
            return;
        }
        let gone: Vec<u64> = self
            .range_mut(range)
            .filter_map(|(&n, v)| (!keep(v)).then_some(n))
            .collect();
        for n in gone {
            self.remove(&n);
        }
    }
}

#[cfg(test)]
mod tests;
