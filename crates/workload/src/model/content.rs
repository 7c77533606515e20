//! Sparse file content; copies share their pages.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes per page of the model; independent of a volume's block size.
pub const PAGE: usize = 4096;
const PAGE_U64: u64 = PAGE as u64;

/// Content of one page.
pub type Page = [u8; PAGE];

/// Content of a file: unlimited, and zero where nothing was written. A page that was written or allocated stays present
/// until it is punched out, even if its bytes are zero.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Content {
    pages: BTreeMap<u64, Arc<Page>>,
}

/// The pieces of [offset, offset + len) page by page: (page, first byte within it, bytes).
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset.saturating_add(len);
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let within = at % PAGE_U64;
        let n = (PAGE_U64 - within).min(end - at);
        let piece = (at / PAGE_U64, within as usize, n as usize);
        at += n;
        Some(piece)
    })
}

impl Content {
    /// Page number `index`, if it is present.
    pub fn page(&self, index: u64) -> Option<&Arc<Page>> {
        self.pages.get(&index)
    }

    /// Every present page with its number.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &Arc<Page>)> {
        self.pages.iter().map(|(index, page)| (*index, page))
    }

    /// Copies bytes out.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        let mut rest = out;
        for (index, within, n) in pieces(offset, rest.len() as u64) {
            let (part, tail) = rest.split_at_mut(n);
            match self.pages.get(&index) {
                Some(page) => part.copy_from_slice(&page[within..within + n]),
                None => part.fill(0),
            }
            rest = tail;
        }
    }

    /// Writes bytes.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for (index, within, n) in pieces(offset, bytes.len() as u64) {
            let (part, tail) = rest.split_at(n);
            let page = self
                .pages
                .entry(index)
                .or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(page)[within..within + n].copy_from_slice(part);
            rest = tail;
        }
    }

    /// Zeroes [offset, end); whole pages are removed.
    pub fn zero(&mut self, offset: u64, end: u64) {
        let first = offset.div_ceil(PAGE_U64);
        let last = end / PAGE_U64;
        if first < last {
            let gone: Vec<u64> = self.pages.range(first..last).map(|(i, _)| *i).collect();
            for index in gone {
                self.pages.remove(&index);
            }
        }
        let mut part = |from: u64, to: u64| {
            if from < to
                && let Some(page) = self.pages.get_mut(&(from / PAGE_U64))
            {
                let within = (from % PAGE_U64) as usize;
                Arc::make_mut(page)[within..within + (to - from) as usize].fill(0);
            }
        };
        part(offset, end.min(first.saturating_mul(PAGE_U64)));
        if first <= last {
            part(last * PAGE_U64, end);
        }
    }

    /// Makes the pages of [offset, end) present.
    pub fn allocate(&mut self, offset: u64, end: u64) {
        if offset >= end {
            return;
        }
        let zeros = Arc::new([0; PAGE]);
        for index in offset / PAGE_U64..end.div_ceil(PAGE_U64) {
            self.pages
                .entry(index)
                .or_insert_with(|| Arc::clone(&zeros));
        }
    }

    /// Moves everything from `from` on to `to` (collapse: `to` < `from`, insert: `to` > `from`); content between the
    /// two is lost.
    pub fn shift(&mut self, from: u64, to: u64) {
        let mut tail = self.clone();
        tail.zero(0, from);
        self.zero(from.min(to), u64::MAX);
        for (index, page) in tail.pages() {
            let start = index * PAGE_U64;
            let skip = from.saturating_sub(start).min(PAGE_U64);
            self.write(start + skip - from + to, &page[skip as usize..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use steadfs_rt::Random;

    /// Compares with a plain vector over random changes.
    #[test]
    fn behaves_like_a_vector() {
        let mut rng = Random::new(1);
        let mut content = Content::default();
        let mut plain = vec![0u8; 40_000];
        for round in 1..400u32 {
            let a = rng.below(20_000) as u64;
            let len = rng.below(9_000) as u64;
            let (from, to) = (a as usize, (a + len) as usize);
            match rng.below(4) {
                0 | 1 => {
                    let bytes = crate::pattern::bytes(round, a, len as usize);
                    content.write(a, &bytes);
                    plain[from..to].copy_from_slice(&bytes);
                }
                2 => {
                    content.zero(a, a + len);
                    plain[from..to].fill(0);
                }
                _ => {
                    content.shift(a + len, a);
                    plain.drain(from..to);
                    plain.resize(40_000, 0);
                    content.shift(a, a + 100);
                    plain.splice(from..from, [0; 100]);
                    plain.truncate(40_000);
                    content.zero(30_000, u64::MAX);
                    plain[30_000..].fill(0);
                }
            }
            let mut out = vec![1; 40_000];
            content.read(0, &mut out);
            assert!(out == plain, "round {round}");
        }
    }
}
