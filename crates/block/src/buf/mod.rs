//! Aligned, shared, copy-on-write memory: what blocks are cached in and devices write from.
#![expect(
    unsafe_code,
    reason = "memory aligned for direct I/O has no safe allocation call"
)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

mod slab;

/// Alignment of every buffer of at least this length; smaller ones are aligned to their length,
/// rounded up to a power of two. No device we know asks for more with O_DIRECT.
pub const ALIGN: usize = 4096;

struct Memory {
    start: NonNull<u8>,
    len: usize,
    home: Home,
}

/// Where the memory came from.
#[derive(Clone, Copy)]
enum Home {
    Slab(slab::Place),
    General,
}

impl Memory {
    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, ALIGN).expect("a buffer is far smaller than the address space")
    }

    /// `len` bytes, initialised with anything.
    fn new(len: usize) -> Self {
        assert!(len > 0, "a buffer has at least a byte");
        if let Some((start, place)) = slab::take(len) {
            let home = Home::Slab(place);
            return Self { start, len, home };
        }
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not zero, as asserted.
        let start = unsafe { alloc_zeroed(layout) };
        Self {
            start: NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout)),
            len,
            home: Home::General,
        }
    }

    fn zeroed(len: usize) -> Self {
        let mut memory = Self::new(len);
        if matches!(memory.home, Home::Slab(_)) {
            memory.bytes_mut().fill(0);
        }
        memory
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `start` points to `len` initialised bytes that live as long as `self`; they
        // change only through `bytes_mut`, which borrows `self` mutably.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Whether `next` begins where this ends, in the same arena.
    fn goes_on_in(&self, next: &Self) -> bool {
        let (Home::Slab(place), Home::Slab(other)) = (self.home, next.home) else {
            return false;
        };
        let end = self.start.addr().get() + self.len;
        place.shares_arena(other) && end == next.start.addr().get()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and the mutable borrow makes it the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.home {
            // SAFETY: taken in `new`, given back once; the borrows of its bytes have ended.
            Home::Slab(place) => unsafe { slab::give_back(place) },
            // SAFETY: allocated in `new` with this very layout, and freed once.
            Home::General => unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) },
        }
    }
}

// SAFETY: `Memory` owns its bytes exclusively, like a `Box<[u8]>`.
unsafe impl Send for Memory {}
// SAFETY: shared access only reads.
unsafe impl Sync for Memory {}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

/// A block's content. Clones share it; a change of a shared one makes a copy first, so whoever
/// holds a clone (a commit, a write in flight) keeps what it saw.
#[derive(Clone)]
pub struct Buf(Arc<Memory>);

impl Buf {
    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        Self(Arc::new(Memory::zeroed(len)))
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut memory = Memory::new(bytes.len());
        memory.bytes_mut().copy_from_slice(bytes);
        Self(Arc::new(memory))
    }

    /// `len` bytes that `fill` writes, all of them: what it finds there is old and means nothing.
    pub fn with_bytes(len: usize, fill: impl FnOnce(&mut [u8])) -> Self {
        let mut memory = Memory::new(len);
        fill(memory.bytes_mut());
        Self(Arc::new(memory))
    }

    /// `len` bytes for a device to fill. What is in them is old and means nothing.
    pub(crate) fn to_fill(len: usize) -> Self {
        Self(Arc::new(Memory::new(len)))
    }

    /// The content of `bufs`, one after the other.
    pub(crate) fn concatenated(bufs: &[Buf]) -> Self {
        let mut memory = Memory::new(bufs.iter().map(|buf| buf.len()).sum());
        let mut rest = memory.bytes_mut();
        for buf in bufs {
            let (head, tail) = rest.split_at_mut(buf.len());
            head.copy_from_slice(buf);
            rest = tail;
        }
        Self(Arc::new(memory))
    }

    /// The bytes of `bufs`, one after the other, in as few pieces as they lie in memory: the kernel's work
    /// for a transfer grows with their number.
    pub(crate) fn runs(bufs: &[Buf]) -> Vec<&[u8]> {
        let mut runs = Vec::new();
        let mut rest = bufs;
        while let Some(first) = rest.first() {
            let follows = |pair: &&[Buf]| pair[0].0.goes_on_in(&pair[1].0);
            let n = 1 + rest.windows(2).take_while(follows).count();
            let (run, after) = rest.split_at(n);
            rest = after;
            let len = run.iter().map(|buf| buf.len()).sum();
            // SAFETY: one buffer's bytes; or those of several, each of which begins where the one before it
            // ends, in an arena, which is one mapping that lives for ever and from whose pointer `start` is
            // derived. All of them are initialised, and borrowed for as long as the slice: nobody changes them.
            runs.push(unsafe { std::slice::from_raw_parts(first.0.start.as_ptr(), len) });
        }
        runs
    }

    /// The bytes for changing; copies them first if anyone shares them.
    pub fn make_mut(&mut self) -> &mut [u8] {
        if Arc::get_mut(&mut self.0).is_none() {
            *self = Self::copy_of(self);
        }
        Arc::get_mut(&mut self.0)
            .expect("just made the only owner")
            .bytes_mut()
    }

    /// The bytes for changing, unless shared.
    pub fn get_mut(&mut self) -> Option<&mut [u8]> {
        Arc::get_mut(&mut self.0).map(Memory::bytes_mut)
    }

    /// Whether both are clones of one buffer.
    pub fn same(&self, other: &Buf) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether anybody else holds a clone.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// This buffer as a shared owner of bytes, for replies that go out without a copy.
    pub fn into_shared(self) -> Arc<dyn AsRef<[u8]> + Send + Sync> {
        self.0
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests;
