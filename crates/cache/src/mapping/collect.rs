//! Collecting dirty blocks for write-back: which ones, at which size of the file.

use std::ops::Range;

use steadfs_base::FileBlock;

use super::{CollectedBlock, Mapping, Page, PageWrite};
use crate::writeback::DirtyEpoch;

impl Mapping {
    /// Collects up to `limit` dirty blocks of `range` for writing, in order. A block in flight is not collected before
    /// its write has completed: no block is ever in flight twice.
    pub fn collect(&self, range: Range<u64>, limit: usize) -> Vec<CollectedBlock> {
        self.collect_with(limit, || (range, ())).0
    }

    /// As [`Mapping::collect`]; `ask` returns the range and the file size, atomically with the collection: the size
    /// covers the collected blocks and no later write. `ask` must not block.
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
        let mut collected = Vec::new();
        let (range, size) = ask();
        if inner.dirty == 0 || range.is_empty() {
            return (collected, size);
        }
        for (&n, page) in inner.pages.range_mut(range) {
            if page.write.is_some() || !wanted(n, page) {
                continue;
            }
            if let Some(tag) = page.dirty.take() {
                let reserved = std::mem::take(&mut page.reserved);
                page.write = Some(PageWrite {
                    io: None,
                    reserved,
                    since: page.since,
                });
                collected.push(CollectedBlock {
                    block: FileBlock(n),
                    data: page.data.clone(),
                    tag,
                    reserved,
                });
                if collected.len() == limit {
                    break;
                }
            }
        }
        let n = collected.len() as u64;
        inner.dirty -= n;
        inner.in_flight += n;
        (collected, size)
    }

    /// Collects the next blocks of a write-back run, which has written everything before `rest` and only moves forward:
    /// a block dirtied again before `rest` belongs to the next run. So nothing is collected if the file has grown from
    /// a `stored` size (on disk) before `rest`: with the new `size`, mapping a block of `rest` would make the file on
    /// disk cover blocks before it that are still dirty. A block that became dirty after `epoch` belongs to the next
    /// run, too, unless it is past `stored`: there the size on disk will cover it as soon as a later block is mapped.
    pub fn collect_forward(
        &self,
        rest: Range<u64>,
        limit: usize,
        epoch: DirtyEpoch,
        stored: u64,
        size: impl FnOnce() -> u64,
    ) -> (Vec<CollectedBlock>, u64) {
        let bits = self.block_size.bits();
        let written_to = rest.start << bits;
        let ask = || {
            let size = size();
            let grown_before = stored < size && stored < written_to;
            (if grown_before { 0..0 } else { rest }, size)
        };
        self.collect_if(limit, ask, |block, page| {
            epoch.contains(page.since) || block >= stored >> bits
        })
    }

    /// The end of the last block whose content of `epoch` is not on the device yet: it is dirty or in flight. Zero if
    /// there is none.
    pub fn dirty_end(&self, epoch: DirtyEpoch) -> u64 {
        let inner = self.inner.lock();
        let mut pages = inner.pages.iter().rev();
        let last = pages.find(|(_, page)| page.is_unwritten_of(epoch));
        last.map_or(0, |(block, _)| block + 1)
    }
}
