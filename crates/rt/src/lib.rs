//! Tasks, time, ranked locks, condition variables and randomness. Only this crate uses the host's primitives for them.
//!
//! The same types have two implementations. A task is an OS thread, or inside `sim::run` a coroutine with a virtual
//! clock (deterministic simulation). A thread-local selects the implementation at run time, so a library that is built
//! once serves both. Without the feature `sim` there are threads only, and no coroutines are linked.

mod condvar;
pub mod cpu;
#[cfg(target_os = "linux")]
mod descriptors;
mod event;
mod fault;
pub mod groups;
pub mod inherit;
#[cfg(target_os = "linux")]
mod interruptible;
mod lock_header;
mod memory;
mod mutex;
#[cfg(target_os = "linux")]
mod namespace;
mod node;
mod random;
mod rank;
mod rank_scope;
mod rwlock;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(not(feature = "sim"))]
#[path = "without_sim.rs"]
mod sim;
mod task;
mod time;
mod unwind;
#[cfg(unix)]
mod user;
pub mod waits;

pub use condvar::Condvar;
#[cfg(target_os = "linux")]
pub use descriptors::{STATX_DONT_SYNC, close, close_descriptors_on_exec, take_passed_socket};
pub use event::Event;
pub use fault::{FAULT_VARIABLE, fault_point};
#[cfg(target_os = "linux")]
pub use interruptible::{Interruptible, end_process_after};
pub use memory::limit_malloc_arenas;
pub use mutex::{Mutex, MutexGuard};
#[cfg(target_os = "linux")]
pub use namespace::{unshare_mounts, unshare_network, unshare_user_and_network};
pub use node::node_name;
pub use random::{Random, random_bytes, random_u64};
pub use rank::Rank;
pub use rank_scope::{RankScope, RankScopeGuard};
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use task::{JoinHandle, check_thread_limit, spawn, task_name, try_spawn, yield_now};
pub use time::{Instant, now, sleep, sleep_until, wall_clock};
pub use unwind::{OnUnwind, PANICKED, Unwinding};
#[cfg(unix)]
pub use user::{contained_user, forbid_core_dumps, kernel_ids};
