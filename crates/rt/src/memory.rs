//! The host's allocator and processors.

/// Lets the allocator keep its free memory in a few places shared by all threads, not in one place for
/// each thread: what a long-running program with many threads gives back is then used again by any of
/// them. To be called before the threads start. Does nothing where the allocator has no such places.
#[cfg_attr(
    all(target_os = "linux", target_env = "gnu"),
    expect(unsafe_code, reason = "a call of the C library")
)]
pub fn limit_malloc_arenas() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // More than the processors that run at a time would not help; few are enough, since small
        // pieces are cached for each thread besides.
        const MOST: usize = 2;
        let arenas = libc::c_int::try_from(crate::cpu::processors().min(MOST)).unwrap_or(1);
        // SAFETY: it takes two numbers and keeps no pointer. An unknown parameter is refused, and then
        // all stays as it was.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) };
    }
}
