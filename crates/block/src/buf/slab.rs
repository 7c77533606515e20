//! Where the memory of buffers comes from.
//!
//! The general allocator takes twice the memory for blocks aligned to their own size, and asks the
//! kernel anew for every large one. So buffers are slots of equal size in arenas, and a slot that
//! was given back is used again as it is.
//!
//! Nothing here waits: buffers come and go below every lock. A class of slots is a table of arenas;
//! an arena says by one bit for each slot whether it is free, and one bit for each arena says
//! whether it may have a free slot. A cleared bit is the proof that the slot is its clearer's.
#![expect(
    unsafe_code,
    reason = "memory aligned for direct I/O has no safe allocation call"
)]

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

/// Bytes in an arena: address space; memory is taken as slots are used.
const ARENA: usize = 4 << 20;
/// Smallest and largest slot, as powers of two.
const SMALLEST: u32 = 9;
const LARGEST: u32 = 20;
const CLASSES: usize = (LARGEST - SMALLEST + 1) as usize;
/// Most arenas of a class: 16 GiB.
const ARENAS: usize = 4096;
/// Unused arenas that keep their memory, besides the first of each class: enough for what a stream
/// has under way.
const KEPT: isize = 4;
/// Slots that are worth a huge page (2 MiB) from the first on: those of streams. A device that is given
/// their memory in single pages has to be told of each page, and virtual disks take no more than some
/// hundred at a time (measured: one request of 1 MiB under way instead of eight).
const LARGE: usize = 256 << 10;

/// How many unused arenas, the first of each class left out, keep their memory.
static UNUSED: AtomicIsize = AtomicIsize::new(0);
static SLABS: [Slab; CLASSES] = [const { Slab::new() }; CLASSES];

/// A slot's place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    class: u8,
    arena: u16,
    slot: u16,
}

impl Place {
    /// Whether both slots are parts of one mapping, which lives for ever.
    pub(super) fn shares_arena(self, other: Self) -> bool {
        (self.class, self.arena) == (other.class, other.arena)
    }
}

/// Slots of one size.
struct Slab {
    /// Each is null until it is made, and lives for ever then.
    arenas: [AtomicPtr<Arena>; ARENAS],
    /// How many were made or are being made.
    made: AtomicUsize,
    /// A bit for each arena that may have a free slot.
    some_free: [AtomicU64; ARENAS / 64],
}

struct Arena {
    start: NonNull<u8>,
    /// A bit for each free slot.
    free: Box<[AtomicU64]>,
    /// A word of `free` whose slots all are.
    full: u64,
    used: AtomicUsize,
    /// Without a used slot, and without memory.
    emptied: AtomicBool,
}

// SAFETY: the pointer is only an address here; who may use what it points to say the bits of `free`.
unsafe impl Send for Arena {}
// SAFETY: as above; everything else in it is atomic.
unsafe impl Sync for Arena {}

/// A slot of at least `len` bytes, aligned to its size but at most to a page of 4 KiB. Its bytes
/// are initialised with anything. `None` if there are no slots of that size.
pub(super) fn take(len: usize) -> Option<(NonNull<u8>, Place)> {
    let bits = len.next_power_of_two().trailing_zeros().max(SMALLEST);
    if bits > LARGEST {
        return None;
    }
    let class = (bits - SMALLEST) as usize;
    let (arena, slot) = SLABS[class].take(1 << bits)?;
    let place = Place {
        class: class as u8,
        arena: arena as u16,
        slot: slot as u16,
    };
    let arena = SLABS[class].arena(arena)?;
    // SAFETY: an arena is as long as its slots together.
    let start = unsafe { arena.start.add(slot << bits) };
    Some((start, place))
}

/// Gives a slot back.
///
/// # Safety
/// `place` comes from [`take`], was not given back since, and nobody uses its bytes any more.
pub(super) unsafe fn give_back(place: Place) {
    let slab = &SLABS[usize::from(place.class)];
    let index = usize::from(place.arena);
    let arena = slab.arena(index).expect("its slot was taken");
    let (word, bit) = (usize::from(place.slot) / 64, 1 << (place.slot % 64));
    // The next owner sees what this one did to the bytes, or rather that it has ended.
    let before = arena.free[word].fetch_or(bit, Ordering::Release);
    debug_assert_eq!(before & bit, 0, "a slot is given back once");
    if before == 0 {
        slab.note_free(index);
    }
    if arena.used.fetch_sub(1, Ordering::AcqRel) == 1
        && index > 0
        && UNUSED.fetch_add(1, Ordering::Relaxed) >= KEPT
        && arena.give_up_memory()
    {
        UNUSED.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Slab {
    const fn new() -> Self {
        Self {
            arenas: [const { AtomicPtr::new(ptr::null_mut()) }; ARENAS],
            made: AtomicUsize::new(0),
            some_free: [const { AtomicU64::new(0) }; ARENAS / 64],
        }
    }

    fn arena(&self, index: usize) -> Option<&'static Arena> {
        let arena = self.arenas[index].load(Ordering::Acquire);
        // SAFETY: null, or from the box that `grow` leaked, and never changed again.
        unsafe { arena.as_ref() }
    }

    fn note_free(&self, arena: usize) {
        self.some_free[arena / 64].fetch_or(1 << (arena % 64), Ordering::AcqRel);
    }

    /// Takes a slot of the first arena that has one: the later ones then run empty.
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
                UNUSED.fetch_sub(1, Ordering::Relaxed);
            }
            return Some(slot);
        }
        // Clear the hint, then look again: a slot given back in between has set it before.
        self.some_free[index / 64].fetch_and(!(1 << (index % 64)), Ordering::AcqRel);
        if arena.free.iter().any(|w| w.load(Ordering::Acquire) != 0) {
            self.note_free(index);
        }
        None
    }

    /// A new arena and its first slot.
    fn grow(&self, size: usize) -> Option<(usize, usize)> {
        let index = self.made.fetch_add(1, Ordering::AcqRel);
        if index >= ARENAS {
            // Nobody has so much memory; do not count on.
            self.made.store(ARENAS, Ordering::Release);
            return None;
        }
        let arena = Box::leak(Box::new(Arena::new(size)));
        if index > 0 || size >= LARGE {
            arena.use_huge_pages();
        }
        let slot = arena.take();
        arena.used.store(1, Ordering::Release);
        self.arenas[index].store(arena, Ordering::Release);
        self.note_free(index);
        slot.map(|slot| (index, slot))
    }
}

impl Arena {
    fn new(size: usize) -> Self {
        let slots = ARENA / size;
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

    /// A class of small slots that needs a second arena fills it soon: one page fault for 2 MiB instead of
    /// 512. Where the kernel does not want to, small pages do.
    fn use_huge_pages(&self) {
        // SAFETY: the arena is a mapping of its own, and the advice changes no byte of it.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), ARENA, Advice::LinuxHugepage) };
    }

    /// Gives an unused arena's memory back to the kernel; false if somebody has taken a slot.
    fn give_up_memory(&self) -> bool {
        let claim = |word: &&AtomicU64| {
            word.compare_exchange(self.full, 0, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        };
        let claimed = self.free.iter().take_while(claim).count();
        let all = claimed == self.free.len();
        if all {
            self.emptied.store(true, Ordering::Release);
            // SAFETY: every slot is claimed, so nobody uses a byte of the arena, which is a mapping
            // of its own. Its bytes read as zeros afterwards. If it fails, they stay.
            let _ = unsafe { madvise(self.start.as_ptr().cast(), ARENA, Advice::LinuxDontNeed) };
        }
        for word in &self.free[..claimed] {
            word.fetch_or(self.full, Ordering::Release);
        }
        all
    }
}

/// Fresh zeroed address space for an arena, aligned to a page.
fn map_arena() -> NonNull<u8> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing else.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), ARENA, protection, MapFlags::PRIVATE) };
    let start = start.ok().and_then(|start| NonNull::new(start.cast()));
    start.unwrap_or_else(|| match Layout::from_size_align(ARENA, 4096) {
        Ok(layout) => handle_alloc_error(layout),
        Err(_) => unreachable!("an arena is smaller than the address space"),
    })
}
