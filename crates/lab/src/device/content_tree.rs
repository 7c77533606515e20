//! A device's content as a persistent radix tree: cheap to clone, and a change copies only the nodes on its path.

use std::ops::Range;
use std::sync::Arc;

use steadfs_base::is_zero;
use steadfs_block::Buf;

/// Bytes of a chunk, the unit of sharing.
pub(crate) const CHUNK: usize = 4096;
const CHUNK_U64: u64 = CHUNK as u64;
const BITS: u32 = 5;
const FAN: usize = 1 << BITS;

/// A chunk's bytes: a part of a written buffer.
#[derive(Clone)]
struct Chunk {
    buf: Buf,
    at: usize,
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        &self.buf[self.at..self.at + CHUNK]
    }

    /// The bytes, mutable; copied first if they are shared.
    fn bytes_mut(&mut self) -> &mut [u8] {
        if self.buf.len() != CHUNK || self.buf.is_shared() {
            *self = Self {
                buf: Buf::copy_of(self.bytes()),
                at: 0,
            };
        }
        self.buf.make_mut()
    }
}

/// A subtree; an absent one is all zeros.
#[derive(Clone)]
#[expect(
    clippy::large_enum_variant,
    reason = "most nodes are leaves, and each has its own Arc"
)]
enum Node {
    Inner([Option<Arc<Node>>; FAN]),
    Leaf([Option<Chunk>; FAN]),
}

impl Node {
    fn empty(height: u32) -> Self {
        match height {
            0 => Self::Leaf([const { None }; FAN]),
            _ => Self::Inner([const { None }; FAN]),
        }
    }
}

/// Called with offset, old and new bytes of a chunk.
pub(crate) type OnChange<'a> = &'a mut dyn FnMut(u64, &[u8], &[u8]);

/// The content of a device in chunks of 4 KiB; chunks that were never written are zero.
#[derive(Clone)]
pub(crate) struct ContentTree {
    root: Option<Arc<Node>>,
    /// Levels above the leaves.
    height: u32,
    size: u64,
}

impl ContentTree {
    /// `size` zero bytes.
    pub(crate) fn zeroed(size: u64) -> Self {
        let chunks = size.div_ceil(CHUNK_U64);
        let mut height = 0;
        while chunks > 1 << (BITS * (height + 1)) {
            height += 1;
        }
        Self {
            root: None,
            height,
            size,
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    fn chunk(&self, number: u64) -> Option<&Chunk> {
        let mut node = self.root.as_deref()?;
        let mut height = self.height;
        loop {
            match node {
                Node::Inner(children) => node = children[slot(number, height)].as_deref()?,
                Node::Leaf(chunks) => return chunks[slot(number, 0)].as_ref(),
            }
            height -= 1;
        }
    }

    /// The slot of a chunk. Creates the path to it and copies shared nodes.
    fn place(&mut self, number: u64) -> &mut Option<Chunk> {
        let mut height = self.height;
        let mut node = &mut self.root;
        loop {
            let here = node.get_or_insert_with(|| Arc::new(Node::empty(height)));
            match Arc::make_mut(here) {
                Node::Inner(children) => node = &mut children[slot(number, height)],
                Node::Leaf(chunks) => return &mut chunks[slot(number, 0)],
            }
            height -= 1;
        }
    }

    /// Reads at `offset`; the range must be inside the device.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        for piece in pieces(offset, out.len() as u64) {
            let part = &mut out[piece.of_range];
            match self.chunk(piece.chunk) {
                Some(chunk) => part.copy_from_slice(&chunk.bytes()[piece.within]),
                None => part.fill(0),
            }
        }
    }

    /// Writes the bytes `range` of `buf` at `offset`, inside the device. Whole chunks share the buffer.
    pub(crate) fn write(&mut self, offset: u64, buf: &Buf, range: Range<usize>) {
        for piece in pieces(offset, range.len() as u64) {
            let from = range.start + piece.of_range.start;
            let place = self.place(piece.chunk);
            if piece.within.len() == CHUNK {
                *place = Some(Chunk {
                    buf: buf.clone(),
                    at: from,
                });
                continue;
            }
            let chunk = place.get_or_insert_with(|| Chunk {
                buf: Buf::zeroed(CHUNK),
                at: 0,
            });
            let part = &buf[from..from + piece.within.len()];
            chunk.bytes_mut()[piece.within].copy_from_slice(part);
        }
    }

    /// Zeroes a range inside the device.
    pub(crate) fn zero(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        let whole = offset.div_ceil(CHUNK_U64)..end / CHUNK_U64;
        if whole.start >= whole.end {
            self.zero_within(offset..end);
            return;
        }
        self.zero_within(offset..whole.start * CHUNK_U64);
        self.zero_within(whole.end * CHUNK_U64..end);
        clear(&mut self.root, self.height, 0, &whole);
    }

    /// Zeroes a range within one chunk.
    fn zero_within(&mut self, range: Range<u64>) {
        for piece in pieces(range.start, range.end - range.start) {
            if self.chunk(piece.chunk).is_some()
                && let Some(chunk) = self.place(piece.chunk)
            {
                chunk.bytes_mut()[piece.within].fill(0);
            }
        }
    }

    /// Calls `f` with offset, old and new bytes of every chunk that differs from `base`; an absent chunk has no bytes
    /// and reads as zeros. Both devices have the same size.
    pub(crate) fn changes(&self, base: &ContentTree, f: OnChange) {
        assert_eq!(self.size, base.size, "both contents have the same size");
        let (old, new) = (base.root.as_ref(), self.root.as_ref());
        changes(old, new, self.height, 0, f);
    }
}

/// The index of chunk `number` in a node of `height`.
fn slot(number: u64, height: u32) -> usize {
    (number >> (BITS * height)) as usize & (FAN - 1)
}

/// The part of a range inside one chunk.
struct Piece {
    chunk: u64,
    within: Range<usize>,
    of_range: Range<usize>,
}

/// The parts of a range, chunk by chunk.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done;
        let within = (at % CHUNK_U64) as usize;
        let n = (CHUNK - within).min((len - done) as usize);
        let from = done as usize;
        done += n as u64;
        Some(Piece {
            chunk: at / CHUNK_U64,
            within: within..within + n,
            of_range: from..from + n,
        })
    })
}

/// Removes the chunks `range` of the tree below `node`, whose first chunk is `first`.
fn clear(node: &mut Option<Arc<Node>>, height: u32, first: u64, range: &Range<u64>) {
    let covers = 1u64 << (BITS * (height + 1));
    if node.is_none() || range.end <= first || first + covers <= range.start {
        return;
    }
    if range.start <= first && first + covers <= range.end {
        *node = None;
        return;
    }
    let Some(here) = node else { return };
    match Arc::make_mut(here) {
        Node::Leaf(chunks) => {
            for (number, chunk) in (first..).zip(chunks) {
                if range.contains(&number) {
                    *chunk = None;
                }
            }
        }
        Node::Inner(children) => {
            for (n, child) in (0u64..).zip(children) {
                let first = first + (n << (BITS * height));
                clear(child, height - 1, first, range);
            }
        }
    }
}

fn changes(old: Option<&Arc<Node>>, new: Option<&Arc<Node>>, height: u32, first: u64, f: OnChange) {
    match (old, new) {
        (None, None) => return,
        (Some(old), Some(new)) if Arc::ptr_eq(old, new) => return,
        _ => {}
    }
    for n in 0..FAN {
        if height == 0 {
            let old = leaf_bytes(old, n);
            let new = leaf_bytes(new, n);
            let shared = std::ptr::eq(old, new);
            if !shared && old != new && !(is_zero(old) && is_zero(new)) {
                f((first + n as u64) * CHUNK_U64, old, new);
            }
        } else {
            let first = first + ((n as u64) << (BITS * height));
            changes(child(old, n), child(new, n), height - 1, first, f);
        }
    }
}

fn child(node: Option<&Arc<Node>>, n: usize) -> Option<&Arc<Node>> {
    match node.map(Arc::as_ref) {
        Some(Node::Inner(children)) => children[n].as_ref(),
        _ => None,
    }
}

fn leaf_bytes(node: Option<&Arc<Node>>, n: usize) -> &[u8] {
    match node.map(Arc::as_ref) {
        Some(Node::Leaf(chunks)) => chunks[n].as_ref().map_or(&[], Chunk::bytes),
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: usize = 300 * CHUNK;

    /// A range of up to 40 chunks at 512-byte boundaries, and its operation.
    fn change() -> impl Strategy<Value = (usize, usize, u8, bool)> {
        let places = (0..SIZE / 512, 1..320usize);
        (places, any::<u8>(), any::<bool>()).prop_map(|((at, len), byte, zero)| {
            let at = at * 512;
            (at, (len * 512).min(SIZE - at), byte, zero)
        })
    }

    fn apply(
        tree: &mut ContentTree,
        model: &mut [u8],
        (at, len, byte, zero): (usize, usize, u8, bool),
    ) {
        if zero {
            tree.zero(at as u64, len as u64);
            model[at..at + len].fill(0);
            return;
        }
        let bytes: Vec<u8> = (0..len + 7)
            .map(|n| byte.wrapping_add((n / 512) as u8))
            .collect();
        tree.write(at as u64, &Buf::copy_of(&bytes), 7..len + 7);
        model[at..at + len].copy_from_slice(&bytes[7..]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

        #[test]
        fn behaves_like_bytes(before in prop::collection::vec(change(), 0..8),
                              after in prop::collection::vec(change(), 0..8)) {
            let mut tree = ContentTree::zeroed(SIZE as u64);
            let mut model = vec![0; SIZE];
            before.into_iter().for_each(|c| apply(&mut tree, &mut model, c));
            let (old, old_model) = (tree.clone(), model.clone());
            after.into_iter().for_each(|c| apply(&mut tree, &mut model, c));
            let content = |tree: &ContentTree| {
                let mut out = vec![1; SIZE];
                tree.read(0, &mut out);
                out
            };
            prop_assert_eq!(content(&tree), model.clone());
            prop_assert_eq!(content(&old), old_model.clone());
            let mut changed = Vec::new();
            tree.changes(&old, &mut |offset, _, _| changed.push(offset as usize));
            let differs = |at: &usize| model[*at..at + CHUNK] != old_model[*at..at + CHUNK];
            let expected: Vec<_> = (0..SIZE).step_by(CHUNK).filter(differs).collect();
            prop_assert_eq!(changed, expected);
        }
    }

    #[test]
    fn huge_and_tiny_sizes_work() {
        for size in [512, 4096, 4096 * 32, 4096 * 32 + 512, 1 << 40] {
            let mut tree = ContentTree::zeroed(size);
            let buf = Buf::copy_of(&[7; 512]);
            tree.write(size - 512, &buf, 0..512);
            let mut out = [0; 512];
            tree.read(size - 512, &mut out);
            assert_eq!(out, [7; 512]);
            tree.zero(0, size);
            tree.read(size - 512, &mut out);
            assert_eq!(out, [0; 512]);
        }
    }
}
