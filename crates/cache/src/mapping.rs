//! One file's cached blocks: dirty data and data in flight. Clean data is left to the kernel's page cache.

mod collect;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;

use steadfs_base::{BlockSize, FileBlock, IoTag};
use steadfs_block::{Buf, IoHandle, Queue};
use steadfs_rt::waits::{self, WaitStep};
use steadfs_rt::{Condvar, Mutex, Rank};

use crate::write_error::WriteError;
use crate::writeback::{DirtyEpoch, DirtyFile, Writeback};

/// Blocks that a write copies in under one hold of the mapping's lock.
const COPY_BLOCKS_MAX: usize = 64;

/// A file's blocks in memory.
///
/// A block is *dirty* (newer than the device), *in flight* (being written), both (changed again while being written;
/// the write continues with the older content), or not in the mapping. Only a successful write makes a block clean.
pub struct Mapping {
    block_size: BlockSize,
    file: DirtyFile,
    writeback: Arc<Writeback>,
    inner: Mutex<Inner>,
    /// A write of some block has completed.
    write_done: Condvar,
}

#[derive(Default)]
struct Inner {
    pages: BTreeMap<u64, Page>,
    dirty: u64,
    in_flight: u64,
    /// The first write error since the last [`Mapping::take_error`].
    error: Option<WriteError>,
    /// A write error was reported, and some block is still not written: a repeated failure is no new error.
    error_reported: bool,
}

struct Page {
    data: Buf,
    /// The tag of the last writer, if the page was changed since it was last collected for writing.
    dirty: Option<IoTag>,
    /// The epoch in which it became dirty.
    since: u64,
    /// The write in flight, if there is one.
    write: Option<PageWrite>,
    /// The file system holds one block of reservation for this page.
    reserved: bool,
}

impl Page {
    fn clean(data: Buf) -> Self {
        Self {
            data,
            dirty: None,
            since: 0,
            write: None,
            reserved: false,
        }
    }

    /// Marks changed content dirty. Returns whether the page newly holds a reservation, and whether it was clean.
    fn written(&mut self, tag: IoTag, epoch: u64, reserve: bool) -> (bool, bool) {
        let newly_reserved = reserve && !self.reserved;
        self.reserved |= reserve;
        (newly_reserved, self.make_dirty(tag, epoch))
    }

    /// Marks the page dirty. Returns whether it was clean.
    fn make_dirty(&mut self, tag: IoTag, epoch: u64) -> bool {
        let was_clean = self.dirty.replace(tag).is_none();
        if was_clean {
            self.since = epoch;
        }
        was_clean
    }

    /// Whether content that was dirty by the end of `epoch` is not on the device yet.
    fn is_unwritten_of(&self, epoch: DirtyEpoch) -> bool {
        let write = self.write.as_ref();
        (self.dirty.is_some() && epoch.contains(self.since))
            || write.is_some_and(|write| epoch.contains(write.since))
    }
}

/// The write of a page that is in flight.
#[derive(Default)]
struct PageWrite {
    /// The request, once submitted.
    io: Option<IoHandle>,
    /// The page held a reservation when it was collected.
    reserved: bool,
    /// The epoch in which the page had become dirty.
    since: u64,
}

/// A write into the cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheWrite<'a> {
    /// First byte.
    pub offset: u64,
    /// The content.
    pub data: &'a [u8],
    /// The tag of the writer.
    pub tag: IoTag,
}

/// A block collected for a write-back run.
#[derive(Debug)]
pub struct CollectedBlock {
    /// Its number in the file.
    pub block: FileBlock,
    /// Its content, which no later change affects.
    pub data: Buf,
    /// The tag of its last writer.
    pub tag: IoTag,
    /// Whether the file system reserved space for it; the reservation passes to the write-back run.
    pub reserved: bool,
}

impl CollectedBlock {
    /// The first of the blocks `collected`, in order, that is in none of the runs.
    pub fn first_not_in(collected: &[Self], runs: impl Iterator<Item = Range<u64>>) -> Option<u64> {
        let mut blocks = runs.flatten();
        let mut collected = collected.iter().map(|collected| collected.block.0);
        collected.find(|block| blocks.next() != Some(*block))
    }
}

/// The result of a write into the cache.
#[derive(Debug)]
pub struct Written<E> {
    /// Bytes copied in, from the first; fewer than given only with an error.
    pub bytes: usize,
    /// Blocks that hold a reservation now and held none before. The caller releases the rest of what it reserved.
    pub reserved: u64,
    /// The error of the block that could not be filled.
    pub error: Option<E>,
}

impl Mapping {
    /// An empty mapping of `file`, whose dirty bytes `writeback` counts.
    pub fn new(block_size: BlockSize, file: DirtyFile, writeback: Arc<Writeback>) -> Self {
        Self {
            block_size,
            file,
            writeback,
            inner: Mutex::new(Rank::MappingTree, Inner::default()),
            write_done: Condvar::new(),
        }
    }

    /// The block size.
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
        let writes_reserved = |page: &Page| page.write.as_ref().is_some_and(|w| w.reserved);
        pages
            .filter(|(_, page)| page.reserved || writes_reserved(page))
            .map(|(&n, _)| FileBlock(n))
            .collect()
    }

    /// Whether nothing is in memory.
    pub fn is_empty(&self) -> bool {
        self.inner.lock().pages.is_empty()
    }

    /// Whether it has blocks, or an error that no fsync has reported.
    pub fn is_needed(&self) -> bool {
        let inner = self.inner.lock();
        !inner.pages.is_empty() || inner.error.is_some()
    }

    /// Bytes of this file that are dirty.
    pub fn dirty_bytes(&self) -> u64 {
        self.inner.lock().dirty << self.block_size.bits()
    }

    /// Copies data in and marks the blocks dirty. A block that is written only in part and is not in memory is filled
    /// by `fill` first; if that fails, the write ends short. `reserve` returns whether a block holds a reservation of
    /// the file system's. `reached` is called with the end of the write, atomically with the content, so a write-back
    /// run that collects a block sees a file size that covers it; it must not block.
    ///
    /// The caller holds the inode lock for writing, so no other task adds blocks meanwhile.
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
            let (bytes, newly_reserved) = match self.copy_whole_blocks(part, &reserve, &mut reached)
            {
                Some(put) => put,
                None => match self.copy_partial_block(part, &reserve, &mut fill, &mut reached) {
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

    /// Copies in the whole blocks that a write begins with, at most [`COPY_BLOCKS_MAX`], and marks them dirty. Returns
    /// the number of bytes and of new reservations; `None` if the write does not begin with a whole block.
    fn copy_whole_blocks(
        &self,
        write: CacheWrite<'_>,
        reserve: &impl Fn(FileBlock) -> bool,
        reached: &mut impl FnMut(u64),
    ) -> Option<(usize, u64)> {
        if self.block_size.offset_in_block(write.offset) > 0 {
            return None;
        }
        let blocks = write
            .data
            .chunks_exact(self.block_size.bytes())
            .take(COPY_BLOCKS_MAX);
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

    /// Copies in the part of a write that is in its first block, as [`Mapping::copy_whole_blocks`] does. The rest of the
    /// block is in memory, or comes from `fill`.
    fn copy_partial_block<E>(
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
            // A block that is in the mapping now may be written and dropped before the lock is taken again.
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

    /// Counts `blocks` newly dirty blocks. Runs under the lock, so that no block is counted clean before it is counted
    /// dirty.
    fn dirtied(&self, inner: &mut Inner, blocks: u64) {
        if blocks > 0 {
            inner.dirty += blocks;
            let bytes = blocks << self.block_size.bits();
            self.writeback.dirtied(&self.file, bytes);
        }
    }

    /// Changes a block by `work` and marks it dirty. `fill` reads a block that is not in memory; a buffer without other
    /// references is not copied. The caller holds the inode lock for writing.
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
            // The copy of a block in flight stays valid after its write has completed.
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

    /// Records the request that writes a run of collected blocks, so that a waiter can boost it.
    pub fn mark_submitted(&self, run: Range<u64>, io: &IoHandle) {
        for (_, page) in self.inner.lock().pages.range_mut(run) {
            if let Some(write) = &mut page.write {
                write.io = Some(io.clone());
            }
        }
    }

    /// Completes the write of a run of collected blocks. After success, a block that was not changed again is dropped.
    /// After a failure each block is dirty again (never clean on error), and if `reserve` is set it holds the
    /// reservation again that passed to the write-back run. Returns the number of blocks that newly hold one.
    pub fn complete(&self, run: Range<u64>, result: Result<(), &WriteError>, reserve: bool) -> u64 {
        let mut inner = self.inner.lock();
        if let Err(error) = result
            && !inner.error_reported
        {
            inner.error.get_or_insert_with(|| error.clone());
        }
        self.end_writes(&mut inner, run, result.is_ok(), reserve)
    }

    /// Marks a run of collected blocks dirty again that were not written, without an error of the device: as after a
    /// failed write, but without an error for [`Mapping::take_error`].
    pub fn redirty(&self, run: Range<u64>, reserve: bool) -> u64 {
        self.end_writes(&mut self.inner.lock(), run, false, reserve)
    }

    fn end_writes(&self, inner: &mut Inner, run: Range<u64>, good: bool, reserve: bool) -> u64 {
        let mut ended = 0;
        let mut cleaned = 0;
        let mut dirtied = 0;
        let mut reserved = 0;
        inner.pages.retain_range(run, |page| {
            let Some(write) = page.write.take() else {
                return true;
            };
            ended += 1;
            if !good {
                // The content is not on the device: the page keeps the older epoch.
                let since = page.dirty.map_or(write.since, |_| page.since);
                page.since = since.min(write.since);
            }
            match (good, page.dirty) {
                (_, Some(_)) => cleaned += 1,
                (true, None) => {
                    cleaned += 1;
                    return false;
                }
                (false, None) => {
                    page.dirty = Some(IoTag::background());
                    let keeps = reserve && write.reserved;
                    reserved += u64::from(keeps && !page.reserved);
                    page.reserved |= keeps;
                    dirtied += 1;
                }
            }
            true
        });
        inner.in_flight -= ended;
        inner.dirty += dirtied;
        self.write_done.notify_all();
        self.cleaned(inner, cleaned);
        reserved
    }

    /// Records that this number of blocks became clean. Without any other, a later error is a new one.
    fn cleaned(&self, inner: &mut Inner, blocks: u64) {
        let left = inner.dirty + inner.in_flight;
        inner.error_reported &= left > 0;
        self.writeback
            .cleaned(&self.file, blocks << self.block_size.bits(), left == 0);
    }

    /// Boosts every queued write of `range` to `tag`, the tag of a task that now waits for it.
    pub fn boost(&self, range: Range<u64>, queue: &Queue, tag: IoTag) {
        let ios: Vec<IoHandle> = {
            let inner = self.inner.lock();
            if inner.in_flight == 0 {
                return;
            }
            let writes = inner
                .pages
                .range(range)
                .filter_map(|(_, p)| p.write.as_ref());
            writes.filter_map(|w| w.io.clone()).collect()
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
                .any(|(_, p)| p.write.is_some())
        {
            let _step = waits::during(WaitStep::Io);
            self.write_done.wait(&mut inner);
        }
    }

    /// Drops every block of `range`, none of which may be in flight. Returns the number of reservations they held.
    pub fn discard(&self, range: Range<u64>) -> u64 {
        self.try_discard(range)
            .expect("a discarded block is not in flight")
    }

    /// As [`Mapping::discard`]; `None` if a block is in flight, and then nothing is dropped.
    pub fn try_discard(&self, range: Range<u64>) -> Option<u64> {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let mut pages = inner.pages.range(range.clone());
        if inner.in_flight > 0 && pages.any(|(_, page)| page.write.is_some()) {
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
            self.cleaned(inner, cleaned);
        }
        Some(released)
    }

    /// Returns the first write error since the last call; the caller reports it. While some block stays unwritten, a
    /// repeated failure is no new error: a later fsync that writes everything succeeds.
    pub fn take_error(&self) -> Option<WriteError> {
        let mut inner = self.inner.lock();
        let error = inner.error.take();
        inner.error_reported |= error.is_some() && inner.dirty + inner.in_flight > 0;
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
        if self.is_empty() {
            // An emptied map keeps its last node, 0.8 KiB, which an open file without a name would hold until it is closed.
            *self = Self::new();
        }
    }
}

#[cfg(test)]
mod tests;
