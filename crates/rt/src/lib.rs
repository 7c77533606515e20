//! Tasks, time, ranked locks, wait queues and randomness: the only room that names the host's
//! primitives for them.
//!
//! Two worlds stand behind the same types. A task is an OS thread, or inside [`sim::run`] a
//! coroutine with a virtual clock. Which one is found by a thread-local, so a library built once
//! serves both.

mod condvar;
pub mod cpu;
mod descriptors;
mod event;
mod fault;
mod gate;
pub mod inherit;
mod memory;
mod mutex;
mod place;
mod random;
mod rank;
mod rwlock;
pub mod sim;
mod task;
mod time;
mod unwind;
mod user;

pub use condvar::Condvar;
pub use descriptors::close_descriptors_on_exec;
pub use event::Event;
pub use fault::{FAULT_VARIABLE, fault_point};
pub use memory::limit_malloc_arenas;
pub use mutex::{Mutex, MutexGuard};
pub use place::{RankScope, RankScopeGuard};
pub use random::{Random, random_u64};
pub use rank::Rank;
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use task::{JoinHandle, check_thread_limit, spawn, task_name, try_spawn, yield_now};
pub use time::{Instant, now, sleep, sleep_until, wall_clock};
pub use unwind::{OnUnwind, PANICKED, Unwinding};
pub use user::kernel_ids;
