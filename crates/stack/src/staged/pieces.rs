//! Content by range of bytes: a later piece replaces what it covers of earlier ones.

use std::collections::BTreeMap;
use std::ops::Range;

use steadfs_block::Buf;

/// A part of a buffer that was written, or zeros.
#[derive(Clone)]
pub(super) struct Piece {
    /// The buffer and the part's first byte in it; `None`: zeros.
    from: Option<(Buf, usize)>,
    pub(super) len: u64,
}

impl Piece {
    pub(super) fn zeros(len: u64) -> Self {
        Self { from: None, len }
    }

    pub(super) fn whole(buf: Buf) -> Self {
        Self {
            len: buf.len() as u64,
            from: Some((buf, 0)),
        }
    }

    /// The bytes from `skip` on, `len` of them.
    fn part(&self, skip: u64, len: u64) -> Self {
        assert!(skip + len <= self.len, "a part is inside its piece");
        let from = self.from.as_ref();
        Self {
            from: from.map(|(buf, at)| (buf.clone(), at + skip as usize)),
            len,
        }
    }

    /// Copies the bytes from `from` on.
    pub(super) fn copy_to(&self, from: u64, to: &mut [u8]) {
        match &self.from {
            None => to.fill(0),
            Some((buf, at)) => {
                let at = at + from as usize;
                to.copy_from_slice(&buf[at..at + to.len()]);
            }
        }
    }

    /// The content as a buffer.
    pub(super) fn buf(&self) -> Buf {
        match &self.from {
            None => Buf::zeroed(self.len as usize),
            Some((buf, 0)) if buf.len() as u64 == self.len => buf.clone(),
            Some((buf, at)) => Buf::copy_of(&buf[*at..at + self.len as usize]),
        }
    }
}

/// Pieces by their first byte; no two overlap.
#[derive(Default)]
pub(super) struct Pieces {
    by_start: BTreeMap<u64, Piece>,
    bytes: u64,
}

impl Pieces {
    /// Total length of all pieces.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Piece)> {
        self.by_start.iter().map(|(at, piece)| (*at, piece))
    }

    pub(super) fn put(&mut self, at: u64, piece: Piece) {
        let end = at + piece.len;
        for start in self.starts(at..end) {
            let old = self.by_start.remove(&start).expect("it was found above");
            let stop = start + old.len;
            self.bytes -= old.len;
            if start < at {
                self.insert(start, old.part(0, at - start));
            }
            if stop > end {
                self.insert(end, old.part(end - start, stop - end));
            }
        }
        self.insert(at, piece);
    }

    fn insert(&mut self, at: u64, piece: Piece) {
        self.bytes += piece.len;
        self.by_start.insert(at, piece);
    }

    /// The first bytes of the pieces that overlap a range.
    fn starts(&self, range: Range<u64>) -> Vec<u64> {
        let before = self.by_start.range(..range.start).next_back();
        let before = before.filter(|(start, piece)| *start + piece.len > range.start);
        let before = before.map(|(start, _)| *start);
        let inside = self.by_start.range(range).map(|(start, _)| *start);
        before.into_iter().chain(inside).collect()
    }

    /// What there is of a range, ascending.
    pub(super) fn within(&self, range: Range<u64>) -> Vec<(u64, Piece)> {
        let part = |start: u64| {
            let piece = &self.by_start[&start];
            let (from, to) = (start.max(range.start), (start + piece.len).min(range.end));
            (from, piece.part(from - start, to - from))
        };
        self.starts(range.clone()).into_iter().map(part).collect()
    }
}
