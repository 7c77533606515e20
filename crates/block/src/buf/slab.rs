//! Slab allocator for buffers.
//!
//! **Problem.** The general allocator takes twice the memory for blocks aligned to their own size, and
//! calls the kernel for every large one. So buffers are slots of equal size in arenas, and a freed slot
//! is reused without any change.
//!
//! **Rule.** Nothing here waits, because buffers are allocated and freed under every lock. A size class is
//! a table of arenas. An arena has one bit per slot, set if the slot is free, and the class has one bit
//! per arena, set if the arena may have a free slot. The task that clears a slot's bit owns the slot.
#![expect(
    unsafe_code,
    reason = "memory aligned for direct I/O has no safe allocation call"
)]

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

#[cfg(target_os = "linux")]
use rustix::mm::{Advice, madvise};
#[cfg(unix)]
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// Address space of an arena in bytes; memory is allocated as slots are used.
const ARENA_BYTES: usize = 4 << 20;
/// Sizes of the smallest and the largest slot, as powers of two.
const MIN_SLOT_BITS: u32 = 9;
const MAX_SLOT_BITS: u32 = 20;
const CLASSES: usize = (MAX_SLOT_BITS - MIN_SLOT_BITS + 1) as usize;
/// Most arenas of a size class: 16 GiB.
const MAX_ARENAS: usize = 4096;
/// Unused arenas that keep their memory, in addition to the first of each class: enough for the I/O of a
/// stream.
const MAX_UNUSED_ARENAS: isize = 4;
/// Slot size in bytes from which on the first arena uses huge pages (2 MiB), too: the buffers of streams. A request
/// needs one descriptor per physically contiguous segment, and virtual disks have only some hundred (measured: one
/// request of 1 MiB in flight instead of eight).
const HUGE_PAGE_SLOT_BYTES: usize = 256 << 10;

/// Number of unused arenas that keep their memory, without the first of each class.
static UNUSED_ARENAS: AtomicIsize = AtomicIsize::new(0);
static SLABS: [Slab; CLASSES] = [const { Slab::new() }; CLASSES];

/// The address of a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotId {
    class: u8,
    arena: u16,
    slot: u16,
}

impl SlotId {
    /// Whether both slots are in one arena, which is never unmapped.
    #[cfg_attr(
        not(target_os = "linux"),
        allow(dead_code, reason = "only Linux gets vectors")
    )]
    pub(super) fn shares_arena(self, other: Self) -> bool {
        (self.class, self.arena) == (other.class, other.arena)
    }
}

/// Slots of one size.
struct Slab {
    /// Each is null until it is created, and never freed.
    arenas: [AtomicPtr<Arena>; MAX_ARENAS],
    /// How many are created or being created.
    made: AtomicUsize,
    /// A bit for each arena that may have a free slot.
    some_free: [AtomicU64; MAX_ARENAS / 64],
}

struct Arena {
    start: NonNull<u8>,
    /// A bit for each free slot.
    free: Box<[AtomicU64]>,
    /// A word of `free` with all slots free.
    full: u64,
    used: AtomicUsize,
    /// Its memory was released.
    emptied: AtomicBool,
}

// SAFETY: the pointer is only an address here; the bits of `free` determine the owners of the slots.
unsafe impl Send for Arena {}
// SAFETY: as above; everything else in it is atomic.
unsafe impl Sync for Arena {}

/// Allocates a slot of at least `len` bytes, aligned to its size, but at most to a page of 4 KiB. Its bytes are
/// initialised with undefined content. `None` if there are no slots of that size.
pub(super) fn take(len: usize) -> Option<(NonNull<u8>, SlotId)> {
    let bits = len.next_power_of_two().trailing_zeros().max(MIN_SLOT_BITS);
    if bits > MAX_SLOT_BITS {
        return None;
    }
    let class = (bits - MIN_SLOT_BITS) as usize;
    let (arena, slot) = SLABS[class].take(1 << bits)?;
    let slot_id = SlotId {
        class: class as u8,
        arena: arena as u16,
        slot: slot as u16,
    };
    let arena = SLABS[class].arena(arena)?;
    // SAFETY: an arena has the total length of its slots.
    let start = unsafe { arena.start.add(slot << bits) };
    Some((start, slot_id))
}

/// Frees a slot.
///
/// # Safety
/// `slot_id` comes from [`take`], was not freed since, and its bytes are not used any more.
pub(super) unsafe fn give_back(slot_id: SlotId) {
    let slab = &SLABS[usize::from(slot_id.class)];
    let index = usize::from(slot_id.arena);
    let arena = slab.arena(index).expect("its slot was taken");
    let (word, bit) = (usize::from(slot_id.slot) / 64, 1 << (slot_id.slot % 64));
    // Release: this owner's accesses to the bytes happen before the next owner's.
    let before = arena.free[word].fetch_or(bit, Ordering::Release);
    debug_assert_eq!(before & bit, 0, "a slot is freed once");
    if before == 0 {
        slab.mark_free(index);
    }
    if arena.used.fetch_sub(1, Ordering::AcqRel) == 1
        && index > 0
        && UNUSED_ARENAS.fetch_add(1, Ordering::Relaxed) >= MAX_UNUSED_ARENAS
        && arena.release_memory()
    {
        UNUSED_ARENAS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Slab {
    const fn new() -> Self {
        Self {
            arenas: [const { AtomicPtr::new(ptr::null_mut()) }; MAX_ARENAS],
            made: AtomicUsize::new(0),
            some_free: [const { AtomicU64::new(0) }; MAX_ARENAS / 64],
        }
    }

    fn arena(&self, index: usize) -> Option<&'static Arena> {
        let arena = self.arenas[index].load(Ordering::Acquire);
        // SAFETY: null, or from the box that `grow` leaked, and never changed again.
        unsafe { arena.as_ref() }
    }

    fn mark_free(&self, arena: usize) {
        self.some_free[arena / 64].fetch_or(1 << (arena % 64), Ordering::AcqRel);
    }

    /// Takes a slot from the first arena that has one, so that later arenas become unused.
    fn take(&self, size: usize) -> Option<(usize, usize)> {
        for (i, word) in self.some_free.iter().enumerate() {
            if i * 64 >= self.made.load(Ordering::Acquire) {
                break;
            }
            let mut bits = word.load(Ordering::Acquire);
            while bits != 0 {
                let index = i * 64 + bits.trailing_zeros() as usize;
                if let Some(slot) = self.take_from(index) {
                    return Some((index, slot));
                }
                bits &= bits - 1;
            }
        }
        self.grow(size)
    }

    fn take_from(&self, index: usize) -> Option<usize> {
        let arena = self.arena(index)?;
        if let Some(slot) = arena.take() {
            if arena.used.fetch_add(1, Ordering::AcqRel) == 0
                && index > 0
                && !arena.emptied.swap(false, Ordering::AcqRel)
            {
                UNUSED_ARENAS.fetch_sub(1, Ordering::Relaxed);
            }
            return Some(slot);
        }
        // Clear the hint, then check again: a slot that was freed in between has set the hint before.
        self.some_free[index / 64].fetch_and(!(1 << (index % 64)), Ordering::AcqRel);
        if arena.free.iter().any(|w| w.load(Ordering::Acquire) != 0) {
            self.mark_free(index);
        }
        None
    }

    /// A new arena and its first slot.
    fn grow(&self, size: usize) -> Option<(usize, usize)> {
        let index = self.made.fetch_add(1, Ordering::AcqRel);
        if index >= MAX_ARENAS {
            // The class is full: keep the counter from overflowing.
            self.made.store(MAX_ARENAS, Ordering::Release);
            return None;
        }
        let arena = Box::leak(Box::new(Arena::new(size)));
        if index > 0 || size >= HUGE_PAGE_SLOT_BYTES {
            arena.use_huge_pages();
        }
        let slot = arena.take();
        arena.used.store(1, Ordering::Release);
        self.arenas[index].store(arena, Ordering::Release);
        self.mark_free(index);
        slot.map(|slot| (index, slot))
    }
}

impl Arena {
    fn new(size: usize) -> Self {
        let slots = ARENA_BYTES / size;
        let full = if slots >= 64 { !0 } else { (1 << slots) - 1 };
        Self {
            start: map_arena(),
            free: (0..slots.div_ceil(64))
                .map(|_| AtomicU64::new(full))
                .collect(),
            full,
            used: AtomicUsize::new(0),
            emptied: AtomicBool::new(false),
        }
    }

    fn take(&self) -> Option<usize> {
        for (i, word) in self.free.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                let bit = bits & bits.wrapping_neg();
                let before = word.fetch_and(!bit, Ordering::Acquire);
                if before & bit != 0 {
                    return Some(i * 64 + bit.trailing_zeros() as usize);
                }
                bits = before & !bit;
            }
        }
        None
    }

    /// Requests huge pages: a size class that needs a second arena soon fills it, and this takes one page fault per
    /// 2 MiB instead of 512. If the kernel refuses, small pages are used.
    fn use_huge_pages(&self) {
        #[cfg(target_os = "linux")]
        // SAFETY: the arena is a separate mapping, and the advice changes no byte of it.
        unsafe {
            self.advise(Advice::LinuxHugepage)
        };
    }

    /// Advises Linux on the arena's memory, which may refuse. Miri has no such call.
    ///
    /// # Safety
    /// No byte is used that the advice may change.
    #[cfg(target_os = "linux")]
    unsafe fn advise(&self, advice: Advice) {
        if !cfg!(miri) {
            // SAFETY: the arena is a separate mapping of this length; the caller guarantees the rest.
            let _ = unsafe { madvise(self.start.as_ptr().cast(), ARENA_BYTES, advice) };
        }
    }

    /// Releases an unused arena's memory to the kernel; false if a slot has been taken meanwhile.
    fn release_memory(&self) -> bool {
        let claim = |word: &&AtomicU64| {
            word.compare_exchange(self.full, 0, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        };
        let claimed = self.free.iter().take_while(claim).count();
        let all = claimed == self.free.len();
        if all {
            self.emptied.store(true, Ordering::Release);
            #[cfg(target_os = "linux")]
            // SAFETY: every slot is claimed here, so no byte of the arena is used, and the arena is a
            // separate mapping. Its bytes read as zeros afterwards. If madvise fails, they stay.
            unsafe {
                self.advise(Advice::LinuxDontNeed)
            };
        }
        for word in &self.free[..claimed] {
            word.fetch_or(self.full, Ordering::Release);
        }
        all
    }
}

/// Fresh zeroed address space for an arena, aligned to a page.
fn map_arena() -> NonNull<u8> {
    const PAGE: usize = 4096;
    let Ok(layout) = Layout::from_size_align(ARENA_BYTES, PAGE) else {
        unreachable!("an arena is smaller than the address space");
    };
    fresh(layout).unwrap_or_else(|| handle_alloc_error(layout))
}

#[cfg(unix)]
fn fresh(layout: Layout) -> Option<NonNull<u8>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new anonymous mapping at an address that the kernel chooses affects no other memory.
    let start = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            layout.size(),
            protection,
            MapFlags::PRIVATE,
        )
    };
    start.ok().and_then(|start| NonNull::new(start.cast()))
}

#[cfg(not(unix))]
fn fresh(layout: Layout) -> Option<NonNull<u8>> {
    // SAFETY: an arena has bytes. It is never freed.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })
}
