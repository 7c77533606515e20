//! The C library's allocator.

/// Limits malloc to two arenas (`M_ARENA_MAX`), or one on a single CPU.
///
/// By default glibc has up to eight arenas for each CPU, and memory freed in one arena is not used by threads of another
/// one: a long-running program with many threads then keeps much free memory. To be called before threads start. Does
/// nothing with other C libraries.
#[cfg_attr(
    all(target_os = "linux", target_env = "gnu"),
    expect(unsafe_code, reason = "a function of the C library")
)]
pub fn limit_malloc_arenas() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // Two are enough to avoid contention, since each thread caches small blocks besides.
        const ARENAS_MAX: usize = 2;
        let arenas = libc::c_int::try_from(crate::cpu::processors().min(ARENAS_MAX)).unwrap_or(1);
        // SAFETY: the call takes two integers and keeps no pointer; an unknown parameter is refused without effect.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) };
    }
}
