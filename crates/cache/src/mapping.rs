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
mod tests {
    use steadfs_block::Op;

    use super::*;
    use crate::WritebackOptions;

    const BS: usize = 1024;

    fn mapping() -> (Arc<Writeback>, Mapping) {
        let writeback = Arc::new(Writeback::new(WritebackOptions::for_cache(1 << 20)));
        let size = BlockSize::new(BS as u32).expect("valid");
        (
            Arc::clone(&writeback),
            Mapping::new(size, DirtyFile(12), writeback),
        )
    }

    fn zero_fill(_: FileBlock, _: &mut [u8]) -> Result<(), ()> {
        Ok(())
    }

    fn always(_: FileBlock) -> bool {
        true
    }

    fn failure() -> IoError {
        IoError {
            op: Op::Write,
            offset: 0,
            len: 0,
            cause: "test".to_owned(),
        }
    }

    #[test]
    fn a_block_written_again_in_flight_stays_dirty() {
        let (writeback, map) = mapping();
        let written = map.write(0, &[1; 2 * BS], IoTag::default(), always, zero_fill);
        assert_eq!((written.bytes, written.reserved), (2 * BS, 2));
        let taken = map.take_dirty(0..9, 9);
        assert_eq!(taken.len(), 2);
        map.write(10, &[2; 5], IoTag::default(), always, zero_fill);
        assert!(map.take_dirty(0..9, 9).is_empty(), "never in flight twice");
        assert_eq!(taken[0].data[10], 1, "the flight keeps what it took");
        map.landed(0..2, Ok(()), false);
        assert_eq!(writeback.dirty_bytes(), BS as u64);
        assert!(map.get(FileBlock(1)).is_none());
        let again = map.take_dirty(0..9, 9);
        assert_eq!(
            (again.len(), again[0].data[10], again[0].data[15]),
            (1, 2, 1)
        );
        map.landed(0..1, Ok(()), false);
        assert_eq!((map.unwritten(), writeback.dirty_bytes()), (0, 0));
        assert!(writeback.dirty_files().is_empty());
    }

    #[test]
    fn an_edited_block_is_filled_once_and_dirty() {
        let (writeback, map) = mapping();
        let fill = || Ok::<_, ()>(Buf::copy_of(&[7; BS]));
        assert_eq!(
            map.edit(FileBlock(3), IoTag::default(), || Err(1), |_| ()),
            Err(1)
        );
        assert!(map.is_empty());
        assert_eq!(
            map.edit(FileBlock(3), IoTag::default(), fill, |b| b[0] = 1),
            Ok(())
        );
        let before = map.get(FileBlock(3)).unwrap();
        let never = || Err("it is in memory");
        assert_eq!(
            map.edit(FileBlock(3), IoTag::default(), never, |b| b[1] = 2),
            Ok(())
        );
        assert_eq!(
            (before[0], before[1], before[2]),
            (1, 7, 7),
            "a reader's stays"
        );
        assert_eq!(map.get(FileBlock(3)).unwrap()[..3], [1, 2, 7]);
        assert_eq!(writeback.dirty_bytes(), BS as u64);
        assert_eq!(map.take_dirty(0..9, 9).len(), 1);
        assert_eq!(map.try_discard(0..9), None, "in flight");
        map.landed(0..9, Err(&failure()), false);
        assert_eq!(map.try_discard(0..9), Some(0));
        assert!(map.is_empty());
    }

    #[test]
    fn only_what_needs_a_reservation_holds_one() {
        let (_, map) = mapping();
        let second = |block| block == FileBlock(1);
        let written = map.write(0, &[1; 2 * BS], IoTag::default(), second, zero_fill);
        assert_eq!(written.reserved, 1);
        let taken = map.take_dirty(0..9, 9);
        assert_eq!((taken[0].reserved, taken[1].reserved), (false, true));
        assert_eq!(map.landed(0..1, Err(&failure()), false), 0);
        assert_eq!(map.landed(1..2, Err(&failure()), true), 1);
        assert_eq!(map.discard(0..9), 1);
    }

    #[test]
    fn a_failed_write_is_never_clean() {
        let (writeback, map) = mapping();
        map.write(0, &[1; BS], IoTag::default(), always, zero_fill);
        assert!(map.take_dirty(0..9, 9)[0].reserved);
        assert_eq!(map.landed(0..1, Err(&failure()), true), 1);
        assert_eq!(map.take_error(), Some(failure()));
        assert_eq!(writeback.dirty_bytes(), BS as u64);
        let again = map.take_dirty(0..9, 9);
        assert!(again[0].reserved);
        map.landed(0..1, Ok(()), false);
        assert!(map.is_empty());
    }

    #[test]
    fn a_failure_that_was_told_is_no_news_until_all_is_written() {
        let (_, map) = mapping();
        map.write(0, &[1; BS], IoTag::default(), always, zero_fill);
        let fail = || {
            map.take_dirty(0..9, 9);
            map.landed(0..1, Err(&failure()), true);
        };
        fail();
        assert_eq!(map.take_error(), Some(failure()));
        fail();
        map.take_dirty(0..9, 9);
        map.landed(0..1, Ok(()), true);
        assert_eq!(map.take_error(), None, "told before");
        // All was written since: this one is another.
        map.write(0, &[1; BS], IoTag::default(), always, zero_fill);
        fail();
        map.take_dirty(0..9, 9);
        map.landed(0..1, Ok(()), true);
        assert_eq!(map.take_error(), Some(failure()), "nobody was told");
        assert_eq!(map.take_error(), None);
    }

    #[test]
    fn what_is_put_back_is_dirty_without_an_error() {
        let (writeback, map) = mapping();
        map.write(0, &[1; BS], IoTag::default(), always, zero_fill);
        map.take_dirty(0..9, 9);
        assert_eq!(map.put_back(0..1, true), 1);
        assert_eq!((map.unwritten(), map.take_error()), (1, None));
        assert_eq!(writeback.dirty_bytes(), BS as u64);
        assert!(map.take_dirty(0..9, 9)[0].reserved);
    }

    #[test]
    fn a_block_written_without_a_reservation_never_gets_one_by_failing() {
        let (_, map) = mapping();
        let never = |_| false;
        let written = map.write(0, &[1; BS], IoTag::default(), never, zero_fill);
        assert_eq!((written.bytes, written.reserved), (BS, 0));
        assert!(!map.take_dirty(0..9, 9)[0].reserved);
        assert_eq!(map.landed(0..1, Err(&failure()), true), 0);
        // Nor does writing it again so take away the one it has got since.
        map.write(0, &[2; BS], IoTag::default(), always, zero_fill);
        map.write(0, &[3; BS], IoTag::default(), never, zero_fill);
        assert_eq!(map.discard(0..1), 1);
    }

    #[test]
    fn the_size_grows_with_the_content() {
        let (_, map) = mapping();
        let write = CacheWrite {
            offset: 10,
            data: &[1; 2 * BS],
            tag: IoTag::default(),
        };
        let size = std::cell::Cell::new(0);
        map.write_growing(write, always, zero_fill, |end| size.set(end));
        assert_eq!(size.get(), 10 + 2 * BS as u64);
        let (taken, seen) = map.take_dirty_of(0..9, 9, || size.get());
        assert_eq!((taken.len(), seen), (3, size.get()));
    }

    #[test]
    fn a_failed_fill_ends_the_write_short() {
        let (_, map) = mapping();
        let fill = |_, _: &mut [u8]| Err("unreadable");
        let written = map.write(0, &[1; BS + 3], IoTag::default(), always, fill);
        assert_eq!((written.bytes, written.reserved), (BS, 1));
        assert_eq!(written.error, Some("unreadable"));
    }

    #[test]
    fn discarding_returns_reservations() {
        let (writeback, map) = mapping();
        map.write(0, &[1; 3 * BS], IoTag::default(), always, zero_fill);
        assert_eq!(map.discard(1..9), 2);
        assert_eq!((map.unwritten(), writeback.dirty_bytes()), (1, BS as u64));
        assert_eq!(map.next_cached(FileBlock(0)), Some(FileBlock(0)));
        assert_eq!(map.next_dirty(FileBlock(1)), None);
    }
}
