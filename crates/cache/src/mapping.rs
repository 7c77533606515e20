//! One file's cached blocks: dirty data, data in flight, and nothing else that is not needed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;

use steadfs_base::{BlockSize, FileBlock, IoTag};
use steadfs_block::{Buf, IoError, IoHandle, Queue};
use steadfs_rt::{Condvar, Mutex, Rank};

use crate::writeback::{DirtyFile, Writeback};

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
    error: Option<IoError>,
    /// Somebody was told that a block could not be written, and some still is not: that it fails again is
    /// no news.
    told: bool,
}

struct Page {
    data: Buf,
    /// Changed since it was last taken for writing; by whom.
    dirty: Option<IoTag>,
    /// Being written; the request once submitted.
    flight: Option<Flight>,
    /// The file system holds one block of reservation for this page.
    reserved: bool,
}

#[derive(Default)]
struct Flight {
    io: Option<IoHandle>,
    /// The page held a reservation when it was taken.
    reserved: bool,
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
pub struct Taken {
    /// Which block.
    pub block: FileBlock,
    /// Its content, fixed for the write.
    pub data: Buf,
    /// Who dirtied it last.
    pub tag: IoTag,
    /// Whether the file system reserved space for it; the reservation passes to the taker.
    pub reserved: bool,
}

/// What a write into the cache came to.
#[derive(Debug)]
pub struct Written<E> {
    /// Bytes taken, from the first; fewer than given only with an error.
    pub bytes: usize,
    /// Blocks that hold a reservation now and held none before; the rest of what the caller reserved is
    /// his to release.
    pub reserved: u64,
    /// Why a block could not be filled.
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

    /// Whether nothing is in memory.
    pub fn is_empty(&self) -> bool {
        self.inner.lock().pages.is_empty()
    }

    /// Bytes of this file that are dirty.
    pub fn dirty_bytes(&self) -> u64 {
        self.inner.lock().dirty << self.block_size.bits()
    }

    /// Copies `data` in at byte `offset` and marks the blocks dirty. A block that is written only in
    /// part and is not in memory is filled by `fill` first; where that fails, the write ends short.
    /// `reserve` says which blocks are to hold a reservation of the file system's.
    /// The caller holds the inode lock for writing, so nothing else adds blocks meanwhile.
    pub fn write<E>(
        &self,
        offset: u64,
        data: &[u8],
        tag: IoTag,
        reserve: impl Fn(FileBlock) -> bool,
        fill: impl FnMut(FileBlock, &mut [u8]) -> Result<(), E>,
    ) -> Written<E> {
        let write = CacheWrite { offset, data, tag };
        self.write_growing(write, reserve, fill, |_| ())
    }

    /// The same; `reached` hears after each block how far the write has come, at once with its content:
    /// who takes the block for writing knows a file's size that covers it. It must not wait.
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
            let at = write.offset + written.bytes as u64;
            let block = self.block_size.file_block(at);
            let room = self.block_size.bytes() - self.block_size.within(at);
            let rest = &write.data[written.bytes..];
            let part = CacheWrite {
                offset: at,
                data: &rest[..room.min(rest.len())],
                ..write
            };
            let mut fresh = None;
            let newly_reserved = loop {
                // A block that is here now may have landed and left by the time it is needed.
                let reserve = reserve(block);
                let put = self.put(part, reserve, fresh.take(), &mut reached);
                if let Some(newly_reserved) = put {
                    break newly_reserved;
                }
                let mut buf = Buf::zeroed(self.block_size.bytes());
                if let Err(error) = fill(block, buf.make_mut()) {
                    written.error = Some(error);
                    return written;
                }
                fresh = Some(buf);
            };
            written.reserved += u64::from(newly_reserved);
            written.bytes += part.data.len();
        }
        written
    }

    /// Puts a part of a write into the one block it lies in and marks that dirty; whether that took a
    /// reservation. `None`: the rest of the block is needed first, in `fresh`.
    fn put(
        &self,
        part: CacheWrite<'_>,
        reserve: bool,
        fresh: Option<Buf>,
        reached: &mut impl FnMut(u64),
    ) -> Option<bool> {
        let block = self.block_size.file_block(part.offset);
        let whole = part.data.len() == self.block_size.bytes();
        let content = whole.then(|| Buf::copy_of(part.data));
        let mut inner = self.inner.lock();
        let page = match inner.pages.entry(block.0) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Page {
                data: content.clone().or(fresh)?,
                dirty: None,
                flight: None,
                reserved: false,
            }),
        };
        match content {
            Some(content) => page.data = content,
            None => {
                let within = self.block_size.within(part.offset);
                page.data.make_mut()[within..within + part.data.len()].copy_from_slice(part.data);
            }
        }
        let newly_reserved = reserve && !page.reserved;
        page.reserved |= reserve;
        let newly_dirty = page.dirty.is_none();
        page.dirty = Some(part.tag);
        reached(part.offset + part.data.len() as u64);
        if newly_dirty {
            inner.dirty += 1;
            // Under the lock: the flusher must not count the block clean before it counted dirty.
            self.writeback
                .dirtied(&self.file, self.block_size.bytes_u64());
        }
        Some(newly_reserved)
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
            Entry::Vacant(entry) => entry.insert(Page {
                data: fresh,
                dirty: None,
                flight: None,
                reserved: false,
            }),
        };
        work(page.data.make_mut());
        if page.dirty.replace(tag).is_none() {
            inner.dirty += 1;
            // As in `put`.
            self.writeback
                .dirtied(&self.file, self.block_size.bytes_u64());
        }
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
    pub fn take_dirty(&self, range: Range<u64>, limit: usize) -> Vec<Taken> {
        self.take_dirty_of(range, limit, || ()).0
    }

    /// The same; `size` is asked at the same moment: what it says covers what was taken, and no later
    /// write. It must not wait.
    pub fn take_dirty_of<S>(
        &self,
        range: Range<u64>,
        limit: usize,
        size: impl FnOnce() -> S,
    ) -> (Vec<Taken>, S) {
        let mut inner = self.inner.lock();
        let mut taken = Vec::new();
        if inner.dirty == 0 {
            return (taken, size());
        }
        for (&n, page) in inner.pages.range_mut(range) {
            if page.flight.is_some() {
                continue;
            }
            if let Some(tag) = page.dirty.take() {
                let reserved = std::mem::take(&mut page.reserved);
                page.flight = Some(Flight { io: None, reserved });
                taken.push(Taken {
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
        (taken, size())
    }

    /// Notes the request that carries a run of taken blocks, so that a waiter can raise it.
    pub fn submitted(&self, run: Range<u64>, io: &IoHandle) {
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
    pub fn landed(&self, run: Range<u64>, result: Result<(), &IoError>, reserve: bool) -> u64 {
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
    pub fn put_back(&self, run: Range<u64>, reserve: bool) -> u64 {
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
    pub fn wait_landed(&self, range: Range<u64>) {
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
    pub fn take_error(&self) -> Option<IoError> {
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
