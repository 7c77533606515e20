//! Aligned, shared, copy-on-write memory for cached blocks and device transfers.
#![expect(
    unsafe_code,
    reason = "memory aligned for direct I/O has no safe allocation call"
)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

mod slab;

/// Alignment in bytes of every buffer of at least this length; smaller ones are aligned to their length,
/// rounded up to a power of two. No known device needs more for O_DIRECT.
pub const ALIGN_BYTES: usize = 4096;

struct Memory {
    start: NonNull<u8>,
    len: usize,
    backing: Backing,
}

/// The allocator of the memory.
#[derive(Clone, Copy)]
enum Backing {
    Slab(slab::SlotId),
    General,
}

impl Memory {
    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, ALIGN_BYTES)
            .expect("a buffer is far smaller than the address space")
    }

    /// `len` initialised bytes of undefined content.
    fn new(len: usize) -> Self {
        assert!(len > 0, "a buffer has at least one byte");
        if let Some((start, slot_id)) = slab::take(len) {
            let backing = Backing::Slab(slot_id);
            return Self {
                start,
                len,
                backing,
            };
        }
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not zero, as asserted.
        let start = unsafe { alloc_zeroed(layout) };
        Self {
            start: NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout)),
            len,
            backing: Backing::General,
        }
    }

    fn zeroed(len: usize) -> Self {
        let mut memory = Self::new(len);
        if matches!(memory.backing, Backing::Slab(_)) {
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
    #[cfg_attr(
        not(target_os = "linux"),
        allow(dead_code, reason = "only Linux gets vectors")
    )]
    fn continues_in(&self, next: &Self) -> bool {
        let (Backing::Slab(slot_id), Backing::Slab(other)) = (self.backing, next.backing) else {
            return false;
        };
        let end = self.start.addr().get() + self.len;
        slot_id.shares_arena(other) && end == next.start.addr().get()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and the mutable borrow makes it the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.backing {
            // SAFETY: taken in `new`, given back once; the borrows of its bytes have ended.
            Backing::Slab(slot_id) => unsafe { slab::give_back(slot_id) },
            // SAFETY: allocated in `new` with this very layout, and freed once.
            Backing::General => unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) },
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

/// A block's content. Clones share it. A change of a shared buffer makes a copy first (copy on write), so a commit
/// or a write in flight that has a clone keeps the old content.
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

    /// `len` bytes, all of which `fill` must write: their initial content is undefined.
    pub fn with_bytes(len: usize, fill: impl FnOnce(&mut [u8])) -> Self {
        let mut memory = Memory::new(len);
        fill(memory.bytes_mut());
        Self(Arc::new(memory))
    }

    /// `len` bytes for a device to fill. Their initial content is undefined.
    pub(crate) fn to_fill(len: usize) -> Self {
        Self(Arc::new(Memory::new(len)))
    }

    /// The content of `bufs`, one after the other.
    #[cfg_attr(
        not(target_os = "linux"),
        allow(dead_code, reason = "only Linux gets vectors")
    )]
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

    /// The bytes of `bufs`, one after the other, as runs that are contiguous in memory: the kernel's cost of a
    /// transfer grows with the number of pieces.
    #[cfg_attr(
        not(target_os = "linux"),
        allow(dead_code, reason = "only Linux gets vectors")
    )]
    pub(crate) fn runs(bufs: &[Buf]) -> Vec<&[u8]> {
        let mut runs = Vec::new();
        let mut rest = bufs;
        while let Some(first) = rest.first() {
            let follows = |pair: &&[Buf]| pair[0].0.continues_in(&pair[1].0);
            let n = 1 + rest.windows(2).take_while(follows).count();
            let (run, after) = rest.split_at(n);
            rest = after;
            let len = run.iter().map(|buf| buf.len()).sum();
            // SAFETY: the bytes of one buffer, or of several, each of which begins at the end of the previous one
            // in the same arena. An arena is one mapping that is never unmapped, and `start` is derived from its
            // pointer. All bytes are initialised, and borrowed for the lifetime of the slice, so they do not change.
            runs.push(unsafe { std::slice::from_raw_parts(first.0.start.as_ptr(), len) });
        }
        runs
    }

    /// The bytes for changing; copies them first if they are shared.
    pub fn make_mut(&mut self) -> &mut [u8] {
        if Arc::get_mut(&mut self.0).is_none() {
            *self = Self::copy_of(self);
        }
        Arc::get_mut(&mut self.0)
            .expect("the copy above has one owner")
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

    /// Whether there are other clones.
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
